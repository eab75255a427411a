//! The end of a run as all threads see it: nothing new after a stop, nothing at all after an abort.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::engine::poller::Waker;

/// Why the load ended before its plan. Of several, the gravest stays: the last one in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The runner said `stop`.
    Command,
    /// SIGINT or SIGTERM.
    Signal,
    /// Standard input ended: the runner is gone.
    RunnerGone,
    /// Something of ours failed.
    Failed,
}

impl Reason {
    const ALL: [Self; 4] = [Self::Command, Self::Signal, Self::RunnerGone, Self::Failed];
}

/// Shared by all threads of a run.
#[derive(Debug, Default)]
pub struct Halt {
    /// 0 = none, else the place in [`Reason::ALL`] from 1.
    reason: AtomicU8,
    abort: AtomicBool,
    hurry: AtomicBool,
    stopped: Notify,
    loops: Mutex<Vec<Waker>>,
}

impl Halt {
    /// Lets an event loop know at once.
    pub fn tell(&self, event_loop: Waker) {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner).push(event_loop);
    }

    /// No new requests from now on.
    pub fn stop(&self, reason: Reason) {
        self.reason.fetch_max(reason as u8 + 1, Ordering::SeqCst);
        self.stopped.notify_waiters();
        self.loops.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Waker::wake);
    }

    /// Open requests are cut too.
    pub fn abort(&self, reason: Reason) {
        self.abort.store(true, Ordering::SeqCst);
        self.stop(reason);
    }

    /// Open requests are cut, and nothing that takes long is begun any more.
    pub fn abort_at_once(&self, reason: Reason) {
        self.hurry.store(true, Ordering::SeqCst);
        self.abort(reason);
    }

    /// Whether the program must end now.
    #[must_use]
    pub fn is_hurried(&self) -> bool {
        self.hurry.load(Ordering::SeqCst)
    }

    /// Why it was stopped, if it was.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        let place = usize::from(self.reason.load(Ordering::SeqCst));
        Reason::ALL.get(place.checked_sub(1)?).copied()
    }

    /// Whether nothing new may start.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.reason.load(Ordering::SeqCst) > 0
    }

    /// Whether open requests are cut.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.abort.load(Ordering::SeqCst)
    }

    /// Waits for a stop.
    pub async fn stopped(&self) {
        let notified = self.stopped.notified();
        if !self.is_stopped() {
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_gravest_reason_stays_and_waiters_wake() {
        let halt = Halt::default();
        assert!(!halt.is_stopped() && !halt.is_aborted());
        halt.stop(Reason::Signal);
        halt.stop(Reason::Command);
        halt.stopped().await;
        assert_eq!((halt.reason(), halt.is_aborted()), (Some(Reason::Signal), false));
        halt.abort(Reason::Command);
        assert!(halt.is_aborted());
        assert!(!halt.is_hurried());
        halt.abort_at_once(Reason::Failed);
        assert_eq!((halt.reason(), halt.is_hurried()), (Some(Reason::Failed), true));
    }
}
