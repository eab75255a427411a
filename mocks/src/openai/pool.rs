//! What all nodes share: the configuration in force, gates, attempts, logs, and the control calls over them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use scenario::control::{
    CONTROL_VERSION, Hit, MockConfig, NodeAct, NodeCall, OpenaiConfig, OpenaiStats, Page,
};
use tokio::sync::{mpsc, oneshot};

use super::attempts::{AttemptBook, IDS_MAX};
use super::config::{Prepared, check_replacement};
use super::gate::Gate;
use super::metrics;
use super::request::Chat;
use crate::clock::Clock;
use crate::control::{Mock, Ring};
use crate::process::cpu_us;
use crate::pulse::gap_max_us;

/// Entries kept of each log when nothing else is asked for; the runner reads them while the load runs.
pub const LOG_MAX: usize = 200_000;

/// Orders that may wait for one listener.
const ORDERS_MAX: usize = 8;

/// State of one `mock-openai` process.
#[derive(Debug)]
pub struct Pool {
    prepared: RwLock<Arc<Prepared>>,
    gates: Vec<(String, Arc<Gate>)>,
    attempts: Mutex<AttemptBook>,
    calls: Ring<NodeCall>,
    hits: Ring<Hit>,
    unreadable: AtomicU64,
    clock: Clock,
    /// Where each node's listener takes its orders.
    listeners: Mutex<Vec<mpsc::Sender<Order>>>,
}

/// What the listener of one node is asked to do; the answer comes when it is done.
#[derive(Debug)]
pub struct Order {
    /// What.
    pub what: Change,
    /// Says when it has taken effect, or why it can't.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// A change of one node's listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Listener closed, connections cut.
    Kill,
    /// Listener closed, running calls are answered.
    Stop,
    /// Listens again.
    Start,
}

impl Pool {
    /// Starts with a configuration; `log_max` entries are kept of each log.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: OpenaiConfig, log_max: usize, clock: Clock) -> Result<Self, String> {
        let prepared = Prepared::new(config)?;
        let gates = prepared
            .config
            .nodes
            .iter()
            .map(|node| (node.name.clone(), Gate::new(node.behaviour.workers, node.behaviour.queue, clock)))
            .collect();
        Ok(Self {
            prepared: RwLock::new(Arc::new(prepared)),
            gates,
            attempts: Mutex::new(AttemptBook::new(IDS_MAX)),
            calls: Ring::new(log_max),
            hits: Ring::new(log_max),
            unreadable: AtomicU64::new(0),
            clock,
            listeners: Mutex::new(Vec::new()),
        })
    }

    /// Gives the orders for the next node's listener, in the order of nodes.
    #[must_use]
    pub fn orders(&self) -> mpsc::Receiver<Order> {
        let (sender, orders) = mpsc::channel(ORDERS_MAX);
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        orders
    }

    /// The configuration in force. A call keeps the one it began with.
    #[must_use]
    pub fn prepared(&self) -> Arc<Prepared> {
        Arc::clone(&self.prepared.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Name of a node by position.
    #[must_use]
    pub fn name(&self, node: usize) -> &str {
        &self.gates[node].0
    }

    /// Gate of a node by position.
    #[must_use]
    pub fn gate(&self, node: usize) -> &Arc<Gate> {
        &self.gates[node].1
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.gates.len()
    }

    /// Counts a call and answers its attempt.
    #[must_use]
    pub fn attempt(&self, node: usize, chat: &Chat) -> u64 {
        let mut book = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        book.next(node, chat.kind, &chat.key, chat.salt.as_deref())
    }

    /// The call log.
    #[must_use]
    pub fn call_log(&self) -> &Ring<NodeCall> {
        &self.calls
    }

    /// The hit log.
    #[must_use]
    pub fn hit_log(&self) -> &Ring<Hit> {
        &self.hits
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Counts a request that was no HTTP or had no route.
    pub fn count_unreadable(&self) {
        self.unreadable.fetch_add(1, Ordering::Relaxed);
    }
}

impl Mock for Pool {
    type Call = NodeCall;
    type Stats = OpenaiStats;
    type Act = NodeAct;

    fn put(&self, config: MockConfig) -> Result<(), String> {
        let MockConfig::Openai(config) = config else {
            return Err("`mock` must be \"openai\" here".to_owned());
        };
        let next = Arc::new(Prepared::new(config)?);
        let mut prepared = self.prepared.write().unwrap_or_else(PoisonError::into_inner);
        check_replacement(&prepared.config, &next.config)?;
        for (node, (_, gate)) in next.config.nodes.iter().zip(&self.gates) {
            gate.resize(node.behaviour.workers, node.behaviour.queue);
        }
        *prepared = next;
        Ok(())
    }

    fn config(&self) -> MockConfig {
        MockConfig::Openai(self.prepared().config.clone())
    }

    fn hits(&self, after: u64, limit: usize) -> Page<Hit> {
        self.hits.page(after, limit, self.clock.started_unix_us())
    }

    fn calls(&self, after: u64, limit: usize) -> Page<NodeCall> {
        self.calls.page(after, limit, self.clock.started_unix_us())
    }

    fn keep_logs(&self, folder: &Path) -> std::io::Result<()> {
        let start = self.clock().started_unix_us();
        self.hit_log().keep_in(&folder.join(format!("{start}-hits.jsonl")))?;
        self.call_log().keep_in(&folder.join(format!("{start}-calls.jsonl")))
    }

    fn stats(&self) -> OpenaiStats {
        let shown = |(at, _): &(usize, _)| !crate::defects::hides_node(*at, self.gates.len());
        let gates = self.gates.iter().enumerate().filter(shown);
        let nodes = gates.map(|(_, (name, gate))| gate.stats(name).0).collect();
        OpenaiStats { v: CONTROL_VERSION, nodes, cpu_us: cpu_us(), loop_gap_max_us: Some(gap_max_us()) }
    }

    fn metrics(&self) -> String {
        let nodes: Vec<_> = self.gates.iter().map(|(name, gate)| gate.stats(name)).collect();
        let forgotten = self.attempts.lock().unwrap_or_else(PoisonError::into_inner).forgotten();
        let process = metrics::Process {
            cpu_us: cpu_us(),
            attempt_ids_forgotten: forgotten,
            calls_dropped: self.calls.page(0, 0, 0).dropped,
            hits_dropped: self.hits.page(0, 0, 0).dropped,
            unreadable_requests: self.unreadable.load(Ordering::Relaxed),
        };
        metrics::text(&nodes, &process)
    }

    async fn act(self: Arc<Self>, act: NodeAct) -> Result<(), String> {
        let (what, name) = match act {
            NodeAct::Kill { node } => (Change::Kill, node),
            NodeAct::Stop { node } => (Change::Stop, node),
            NodeAct::Start { node } => (Change::Start, node),
        };
        let position = self.gates.iter().position(|(known, _)| *known == name);
        let position = position.ok_or_else(|| format!("there is no node {name:?} here"))?;
        let listener = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).get(position).cloned();
        let gone = || format!("the listener of {name} has ended with the process");
        let (done, answer) = oneshot::channel();
        let order = Order { what, done };
        listener.ok_or_else(gone)?.send(order).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
