//! Whether this process gets to run: a timer that is due every few milliseconds, and how much too late it comes. A
//! generator that is stopped or has no core reads answers late and takes them for slow ones, and nothing else of what it
//! measures tells.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stats::Histogram;

use crate::clock::Clock;

/// Time between two beats.
const BEAT_US: u64 = 20_000;
/// A beat that comes so late is what a machine with other work gives, and no stall.
const SLACK_US: u64 = 10_000;

/// How late the beats came.
#[derive(Debug, Default)]
pub struct Pulse(Mutex<Beats>);

/// What the beats have shown so far.
#[derive(Clone, Debug, Default)]
pub struct Beats {
    /// Sum over all beats of what they came later than the slack, microseconds.
    pub stalled_us: u64,
    /// How late each beat came.
    pub late: Histogram,
}

impl Pulse {
    /// All beats so far.
    #[must_use]
    pub fn beats(&self) -> Beats {
        self.lock().clone()
    }

    fn late(&self, late_us: u64) {
        let mut beats = self.lock();
        beats.stalled_us += late_us.saturating_sub(SLACK_US);
        beats.late.record(late_us);
    }

    fn lock(&self) -> MutexGuard<'_, Beats> {
        // Each step leaves the beats whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Beats until it is dropped.
pub async fn watch(pulse: Arc<Pulse>, clock: Clock) {
    loop {
        let due_us = clock.now_us() + BEAT_US;
        tokio::time::sleep_until(clock.at(due_us)).await;
        pulse.late(clock.now_us().saturating_sub(due_us));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_above_the_slack_is_a_stall() {
        let pulse = Pulse::default();
        [0, SLACK_US, SLACK_US + 1, 90_000].into_iter().for_each(|late_us| pulse.late(late_us));
        let beats = pulse.beats();
        assert_eq!(beats.stalled_us, 1 + 80_000);
        assert_eq!((beats.late.count(), beats.late.max_us()), (4, Some(90_000)));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_thread_that_is_held_up_is_seen() {
        let pulse = Arc::new(Pulse::default());
        let watching = tokio::spawn(watch(Arc::clone(&pulse), Clock::start()));
        tokio::task::yield_now().await;
        std::thread::sleep(std::time::Duration::from_millis(300));
        while pulse.beats().stalled_us == 0 {
            tokio::task::yield_now().await;
        }
        assert!(pulse.beats().stalled_us >= 250_000, "{}", pulse.beats().stalled_us);
        watching.abort();
    }
}
