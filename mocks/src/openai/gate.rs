//! Workers and queue of one node: bounded, first come first served, resizable while calls run.
//!
//! The gate also keeps the node's counters, because both change at the same moments and one lock is cheaper than two.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scenario::control::{NodeCounters, NodeStats};
use scenario::fault::CallKind;
use tokio::sync::oneshot;

use crate::clock::Clock;

/// Workers and queue.
#[derive(Debug)]
pub struct Gate {
    state: Mutex<State>,
    clock: Clock,
}

#[derive(Debug)]
struct State {
    workers: u64,
    queue: u64,
    /// Calls that hold a worker, of both kinds.
    busy: u64,
    waiting: VecDeque<Waiter>,
    next_ticket: u64,
    saturated_since_us: Option<u64>,
    saturated_us: u64,
    execution: NodeCounters,
    validation: NodeCounters,
    bad_requests: u64,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    kind: CallKind,
    sender: oneshot::Sender<Permit>,
}

/// How a call at the gate is counted when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The whole answer was written.
    Completed,
    /// A rule spoilt it; the action's name.
    Failed(&'static str),
    /// The caller closed.
    ClientCancelled,
    /// Workers and queue were full.
    Rejected,
    /// The request was bad.
    BadRequest,
}

/// What the gate says to a call.
#[derive(Debug)]
pub enum Entry {
    /// A worker is free.
    Go(Permit),
    /// Wait for [`Place::turn`].
    Wait(Place),
    /// Workers and queue are full.
    Full,
}

impl State {
    fn counters(&mut self, kind: CallKind) -> &mut NodeCounters {
        match kind {
            CallKind::Execution => &mut self.execution,
            CallKind::Validation => &mut self.validation,
        }
    }

    /// Begins saturated time: all workers are busy and something had to wait or was refused.
    fn saturate(&mut self, now_us: u64) {
        self.saturated_since_us.get_or_insert(now_us);
    }

    /// Ends saturated time once nothing waits any more.
    fn relax(&mut self, now_us: u64) {
        if self.waiting.is_empty()
            && let Some(since) = self.saturated_since_us.take()
        {
            // A refusal is never of length zero: an observer must be able to see it.
            self.saturated_us += now_us.saturating_sub(since).max(1);
        }
    }

    /// Takes the next waiter that fits into a free worker.
    fn next_turn(&mut self) -> Option<Waiter> {
        if self.busy >= self.workers {
            return None;
        }
        let waiter = self.waiting.pop_front()?;
        self.counters(waiter.kind).queued -= 1;
        self.busy += 1;
        self.counters(waiter.kind).active += 1;
        Some(waiter)
    }
}

impl Gate {
    /// A gate with nobody inside.
    #[must_use]
    pub fn new(workers: u32, queue: u32, clock: Clock) -> Arc<Self> {
        let state = State {
            workers: workers.into(),
            queue: queue.into(),
            busy: 0,
            waiting: VecDeque::new(),
            next_ticket: 1,
            saturated_since_us: None,
            saturated_us: 0,
            execution: NodeCounters::default(),
            validation: NodeCounters::default(),
            bad_requests: 0,
        };
        Arc::new(Self { state: Mutex::new(state), clock })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every step under the lock leaves the state whole, so a panic elsewhere can't have spoilt it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a worker.
    #[must_use]
    pub fn enter(self: &Arc<Self>, kind: CallKind) -> Entry {
        let mut state = self.lock();
        if state.busy < state.workers && state.waiting.is_empty() {
            state.busy += 1;
            state.counters(kind).active += 1;
            return Entry::Go(Permit { gate: Some(Arc::clone(self)), kind });
        }
        let now_us = self.clock.now_us();
        state.saturate(now_us);
        if u64::try_from(state.waiting.len()).unwrap_or(u64::MAX) >= state.queue {
            return Entry::Full;
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let (sender, receiver) = oneshot::channel();
        state.waiting.push_back(Waiter { ticket, kind, sender });
        state.counters(kind).queued += 1;
        Entry::Wait(Place { gate: Arc::clone(self), ticket, receiver })
    }

    /// Counts the end of a call.
    pub fn count(&self, kind: CallKind, end: Counted) {
        let mut state = self.lock();
        let counters = state.counters(kind);
        match end {
            Counted::Completed => counters.completed += 1,
            Counted::ClientCancelled => counters.client_cancelled += 1,
            Counted::Rejected => counters.rejected += 1,
            Counted::BadRequest => state.bad_requests += 1,
            Counted::Failed(action) => match counters.failed.get_mut(action) {
                Some(count) => *count += 1,
                None => {
                    counters.failed.insert(action.to_owned(), 1);
                }
            },
        }
    }

    /// New numbers of workers and queue places; calls that are inside or wait stay.
    pub fn resize(self: &Arc<Self>, workers: u32, queue: u32) {
        let mut state = self.lock();
        state.workers = workers.into();
        state.queue = queue.into();
        drop(state);
        self.hand_over();
    }

    /// Counters of the node, and the number of bad requests.
    #[must_use]
    pub fn stats(&self, name: &str) -> (NodeStats, u64) {
        let state = self.lock();
        let running =
            state.saturated_since_us.map_or(0, |since| self.clock.now_us().saturating_sub(since).max(1));
        let mut execution = state.execution.clone();
        execution.queued = crate::defects::queued(execution.queued, execution.completed);
        let stats = NodeStats {
            name: name.to_owned(),
            execution,
            validation: state.validation.clone(),
            saturated_us: state.saturated_us + running,
            workers: u32::try_from(state.workers).unwrap_or(u32::MAX),
            queue: u32::try_from(state.queue).unwrap_or(u32::MAX),
        };
        (stats, state.bad_requests)
    }

    /// Gives free workers to those who wait longest.
    fn hand_over(self: &Arc<Self>) {
        loop {
            let mut state = self.lock();
            let waiter = state.next_turn();
            if state.busy < state.workers || state.waiting.is_empty() {
                state.relax(self.clock.now_us());
            }
            drop(state);
            let Some(waiter) = waiter else { return };
            let permit = Permit { gate: Some(Arc::clone(self)), kind: waiter.kind };
            if let Err(permit) = waiter.sender.send(permit) {
                permit.give_back_quietly();
            }
        }
    }

    fn leave(&self, kind: CallKind) {
        let mut state = self.lock();
        state.busy -= 1;
        state.counters(kind).active -= 1;
    }
}

/// A worker. Dropped, it is free for the next call.
#[derive(Debug)]
pub struct Permit {
    gate: Option<Arc<Gate>>,
    kind: CallKind,
}

impl Permit {
    /// Frees the worker without looking for the next waiter; the caller does.
    fn give_back_quietly(mut self) {
        if let Some(gate) = self.gate.take() {
            gate.leave(self.kind);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.leave(self.kind);
            gate.hand_over();
        }
    }
}

/// A place in the queue. Dropped, it is free again.
#[derive(Debug)]
pub struct Place {
    gate: Arc<Gate>,
    ticket: u64,
    receiver: oneshot::Receiver<Permit>,
}

impl Place {
    /// Waits for a worker. Cancel-safe: a worker that was handed over while nobody looked is given back on drop.
    pub async fn turn(&mut self) -> Permit {
        match (&mut self.receiver).await {
            Ok(permit) => permit,
            // The gate never drops a waiter that is still there, and it lives as long as this place.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        if let Some(position) = state.waiting.iter().position(|waiter| waiter.ticket == self.ticket)
            && let Some(waiter) = state.waiting.remove(position)
        {
            state.counters(waiter.kind).queued -= 1;
            state.relax(self.gate.clock.now_us());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn go(entry: Entry) -> Permit {
        match entry {
            Entry::Go(permit) => permit,
            other => panic!("expected a worker, got {other:?}"),
        }
    }

    fn wait(entry: Entry) -> Place {
        match entry {
            Entry::Wait(place) => place,
            other => panic!("expected a place, got {other:?}"),
        }
    }

    #[tokio::test]
    async fn turns_come_in_order_and_one_more_is_refused() {
        let gate = Gate::new(1, 2, Clock::start());
        let first = go(gate.enter(CallKind::Execution));
        let mut second = wait(gate.enter(CallKind::Execution));
        let mut third = wait(gate.enter(CallKind::Validation));
        assert!(matches!(gate.enter(CallKind::Execution), Entry::Full));
        let (stats, _) = gate.stats("n");
        assert_eq!((stats.execution.active, stats.execution.queued, stats.validation.queued), (1, 1, 1));
        assert!(stats.saturated_us > 0);
        drop(first);
        let permit = second.turn().await;
        assert!(third.receiver.try_recv().is_err());
        drop(permit);
        drop(third.turn().await);
        let (stats, _) = gate.stats("n");
        assert_eq!((stats.execution.active, stats.validation.active, stats.validation.queued), (0, 0, 0));
        let quiet = gate.stats("n").0.saturated_us;
        assert_eq!(gate.stats("n").0.saturated_us, quiet, "saturated time stops when nothing waits");
    }

    #[tokio::test]
    async fn a_place_given_up_is_free_again() {
        let gate = Gate::new(1, 1, Clock::start());
        let first = go(gate.enter(CallKind::Execution));
        drop(wait(gate.enter(CallKind::Execution)));
        let handed_over = wait(gate.enter(CallKind::Execution));
        drop(first);
        // The worker was handed to a place that nobody polls; dropping the place must give it back.
        drop(handed_over);
        drop(go(gate.enter(CallKind::Execution)));
        let (stats, _) = gate.stats("n");
        assert_eq!((stats.execution.active, stats.execution.queued), (0, 0));
    }

    #[tokio::test]
    async fn more_workers_let_waiters_in() {
        let gate = Gate::new(1, 4, Clock::start());
        let _first = go(gate.enter(CallKind::Execution));
        let mut second = wait(gate.enter(CallKind::Execution));
        gate.resize(2, 0);
        let _second = second.turn().await;
        assert!(matches!(gate.enter(CallKind::Execution), Entry::Full));
    }
}
