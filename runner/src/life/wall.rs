//! Watches the wall clock of a run: what is judged by it, such as the time of a lease, can't be judged across a jump.

use std::time::Duration;

use evidence::event::EventKind;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::dispatcher::Message;
use crate::clock::Clock;

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// Smaller moves are not told: two clocks that are read one after the other differ by less.
const TOLD_US: u64 = 10_000;

/// Looks until it is dropped, or until nobody listens any more.
#[derive(Debug)]
pub(super) struct WallWatch {
    _task: JoinSet<()>,
}

impl WallWatch {
    /// Begins; moves go to `inbox`.
    pub(super) fn start(clock: Clock, inbox: mpsc::Sender<Message>) -> Self {
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut moves = Moves::default();
            loop {
                let moved = clock.wall_ahead_us().and_then(|ahead_us| moves.take(ahead_us));
                if let Some(by_us) = moved
                    && inbox.send(Message::Seen(EventKind::ClockMoved { by_us })).await.is_err()
                {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        Self { _task: task }
    }
}

/// Where the wall clock was when it was last told of.
#[derive(Debug, Default)]
struct Moves {
    told_us: Option<i64>,
}

impl Moves {
    /// The move since then, when there is one. Measured from the last one told, so that many small ones add up.
    fn take(&mut self, ahead_us: i64) -> Option<i64> {
        // The first look is where it stands: the anchor may have been taken by a process that was kept waiting.
        let by_us = ahead_us.saturating_sub(*self.told_us.get_or_insert(ahead_us));
        (by_us.unsigned_abs() >= TOLD_US).then(|| {
            self.told_us = Some(ahead_us);
            by_us
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_both_ways_and_small_moves_that_add_up_are_told() {
        let mut moves = Moves::default();
        let told = |moves: &mut Moves, looks: &[i64]| -> Vec<i64> {
            looks.iter().filter_map(|ahead_us| moves.take(*ahead_us)).collect()
        };
        assert_eq!(told(&mut moves, &[700, 701, 650, 10_699]), Vec::<i64>::new(), "the anchor is no jump");
        assert_eq!(told(&mut moves, &[5_000_700, 5_000_650]), [5_000_000]);
        assert_eq!(told(&mut moves, &[700, 600]), [-5_000_000]);
        assert_eq!(told(&mut moves, &[4_700, 8_700, 12_700]), [12_000]);
    }

    #[test]
    fn a_clock_that_nobody_sets_stays_where_it_is() {
        let clock = Clock::start();
        let mut moves = Moves::default();
        let looks = (0..50).filter_map(|_| clock.wall_ahead_us());
        assert!(looks.filter_map(|ahead_us| moves.take(ahead_us)).next().is_none());
    }
}
