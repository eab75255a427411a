//! The deadlines of one request on one timer. The timer is moved lazily: a read only changes a number, so that a
//! stream of many reads costs no timer operation each.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::Sleep;

use crate::clock::Clock;

/// What a request is waiting for; each has a limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The connection.
    Connect,
    /// Complete response headers.
    Headers,
    /// The first byte of the body.
    FirstByte,
    /// The next bytes of the body.
    Idle,
}

/// Which deadline passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The limit of a phase.
    Phase(Phase),
    /// The limit of the whole request.
    Total,
    /// The request's own cancel point.
    Cancel,
}

/// Deadlines as clock offsets.
#[derive(Debug)]
pub struct Deadlines {
    clock: Clock,
    total_us: u64,
    phase: Option<(u64, Phase)>,
    cancel_us: Option<u64>,
    sleep: Option<Pin<Box<Sleep>>>,
    armed_us: u64,
}

impl Deadlines {
    /// Deadlines of a request that must have ended at `total_us`.
    #[must_use]
    pub fn new(clock: Clock, total_us: u64) -> Self {
        Self { clock, total_us, phase: None, cancel_us: None, sleep: None, armed_us: u64::MAX }
    }

    /// Starts waiting for a phase that must be over at `deadline_us`.
    pub fn enter(&mut self, phase: Phase, deadline_us: u64) {
        self.phase = Some((deadline_us, phase));
    }

    /// Sets when the request cuts itself.
    pub fn cancel_at(&mut self, offset_us: u64) {
        self.cancel_us = Some(offset_us);
    }

    /// The deadline that has passed at `now_us`. For a peer that is never silent, so that no timer is polled.
    #[must_use]
    pub fn passed(&self, now_us: u64) -> Option<Expiry> {
        let (at_us, expiry) = self.next();
        (now_us >= at_us).then_some(expiry)
    }

    /// Ready when the next deadline has passed. To be polled whenever the socket has nothing to do.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Expiry> {
        loop {
            let (at_us, expiry) = self.next();
            let clock = self.clock;
            let sleep = self.sleep.get_or_insert_with(|| {
                self.armed_us = at_us;
                Box::pin(tokio::time::sleep_until(clock.at(at_us)))
            });
            // A timer that is set too early only wakes once for nothing; one that is too late must be moved.
            if self.armed_us > at_us {
                self.armed_us = at_us;
                sleep.as_mut().reset(clock.at(at_us));
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if clock.now_us() >= at_us {
                return Poll::Ready(expiry);
            }
            self.armed_us = at_us;
            sleep.as_mut().reset(clock.at(at_us));
        }
    }

    /// At the same instant the own cancel comes first, then the total, then the phase.
    fn next(&self) -> (u64, Expiry) {
        let mut next = (self.total_us, Expiry::Total);
        if let Some((at_us, phase)) = self.phase
            && at_us < next.0
        {
            next = (at_us, Expiry::Phase(phase));
        }
        match self.cancel_us {
            Some(at_us) if at_us <= next.0 => (at_us, Expiry::Cancel),
            _ => next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[test]
    fn the_nearest_deadline_counts() {
        let mut deadlines = Deadlines::new(Clock::start(), 100);
        assert_eq!(deadlines.passed(99), None);
        assert_eq!(deadlines.passed(100), Some(Expiry::Total));
        deadlines.enter(Phase::Headers, 50);
        assert_eq!(deadlines.passed(50), Some(Expiry::Phase(Phase::Headers)));
        deadlines.cancel_at(50);
        assert_eq!(deadlines.passed(50), Some(Expiry::Cancel));
        deadlines.enter(Phase::Idle, 200);
        assert_eq!(deadlines.passed(49), None);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_moved_deadline_fires_at_its_new_time() {
        let clock = Clock::start();
        let mut deadlines = Deadlines::new(clock, clock.now_us() + 2_000_000);
        deadlines.enter(Phase::Headers, clock.now_us() + 5_000);
        let first = poll_fn(|cx| Poll::Ready(deadlines.poll(cx).is_pending())).await;
        assert!(first, "nothing has passed yet");
        let later = clock.now_us() + 40_000;
        deadlines.enter(Phase::Idle, later);
        assert_eq!(poll_fn(|cx| deadlines.poll(cx)).await, Expiry::Phase(Phase::Idle));
        assert!(clock.now_us() >= later, "not at the first, earlier time");
        let sooner = clock.now_us() + 5_000;
        deadlines.cancel_at(sooner);
        deadlines.enter(Phase::Idle, sooner + 1_000_000);
        assert_eq!(poll_fn(|cx| deadlines.poll(cx)).await, Expiry::Cancel);
        assert!(clock.now_us() < sooner + 500_000, "a nearer deadline moves the timer forward");
    }
}
