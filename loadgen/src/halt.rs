//! The end of a run as all parts see it: nothing new after a stop, nothing at all after an abort.

use std::cell::Cell;

use tokio::sync::Notify;

/// Why the load ended before its plan. The first reason stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// SIGINT or SIGTERM.
    Signal,
    /// The runner said `stop`.
    Command,
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
    stopped: Notify,
    aborted: Notify,
}

impl Halt {
    /// No new requests from now on.
    pub fn stop(&self, reason: Reason) {
        if self.reason.get().is_none() {
            self.reason.set(Some(reason));
        }
        self.stopped.notify_waiters();
    }

    /// Open requests are cut too.
    pub fn abort(&self, reason: Reason) {
        self.stop(reason);
        self.abort.set(true);
        self.aborted.notify_waiters();
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
