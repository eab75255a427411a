//! The end of a run as all parts see it: nothing new after a stop, nothing at all after an abort.

use std::cell::Cell;

use tokio::sync::Notify;

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

/// Shared by all tasks of the one thread.
#[derive(Debug, Default)]
pub struct Halt {
    reason: Cell<Option<Reason>>,
    abort: Cell<bool>,
    hurry: Cell<bool>,
    stopped: Notify,
    aborted: Notify,
}

impl Halt {
    /// No new requests from now on.
    pub fn stop(&self, reason: Reason) {
        self.reason.set(self.reason.get().max(Some(reason)));
        self.stopped.notify_waiters();
    }

    /// Open requests are cut too.
    pub fn abort(&self, reason: Reason) {
        self.stop(reason);
        self.abort.set(true);
        self.aborted.notify_waiters();
    }

    /// Open requests are cut, and nothing that takes long is begun any more.
    pub fn abort_at_once(&self, reason: Reason) {
        self.hurry.set(true);
        self.abort(reason);
    }

    /// Whether the program must end now.
    #[must_use]
    pub fn is_hurried(&self) -> bool {
        self.hurry.get()
    }

    /// Why it was stopped, if it was.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.reason.get()
    }

    /// Whether nothing new may start.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.reason.get().is_some()
    }

    /// Whether open requests are cut.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.abort.get()
    }

    /// Waits for a stop.
    pub async fn stopped(&self) {
        let notified = self.stopped.notified();
        if !self.is_stopped() {
            notified.await;
        }
    }

    /// Waits for an abort.
    pub async fn aborted(&self) {
        let notified = self.aborted.notified();
        if !self.is_aborted() {
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
        halt.aborted().await;
        assert!(!halt.is_hurried());
        halt.abort_at_once(Reason::Failed);
        assert_eq!((halt.reason(), halt.is_hurried()), (Some(Reason::Failed), true));
    }
}
