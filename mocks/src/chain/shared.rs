//! What all listeners of the chain share: the core behind a lock, the logs, the clock, the news for subscribers,
//! and the state file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scenario::control::{BlockPace, ChainAct, ChainCallRecord, ChainConfig, ChainStats, Hit};
use scenario::fault::{ChainFault, FaultAction};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::chain::core::{Arrival, Core, Edge, Fault};
use crate::chain::state_file::StateFile;
use crate::clock::Clock;
use crate::control::Ring;
use crate::process::cpu_us;
use crate::pulse::gap_max_us;

/// Entries kept of each log.
const LOG_MAX: usize = 100_000;
/// Argument text kept of a call.
const ARGUMENT_MAX: usize = 120;
/// Orders to open websockets that may wait; there are few and they are taken at once.
const ORDERS_MAX: usize = 16;
/// Pause after each block that comes by itself on the way to an epoch.
const WALK_PAUSE: Duration = Duration::from_millis(1);

/// What happens to every websocket that is open at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Cut the TCP connection. Carries the rule, if it is one.
    Cut(Option<String>),
    /// Close with a code. Carries the rule, if it is one.
    Close(Option<String>, u16),
}

/// State of one `mock-chain` process. Never held locked across a wait.
#[derive(Debug)]
pub struct Shared {
    core: Mutex<Core>,
    calls: Ring<ChainCallRecord>,
    hits: Ring<Hit>,
    clock: Clock,
    news: watch::Sender<u64>,
    orders: broadcast::Sender<Order>,
    subscriptions: AtomicU64,
    websockets_ended: AtomicU64,
    file: Option<StateFile>,
    closing: CancellationToken,
}

impl Shared {
    /// Around a core.
    #[must_use]
    pub fn new(core: Core, clock: Clock, file: Option<StateFile>, closing: CancellationToken) -> Self {
        Self {
            core: Mutex::new(core),
            calls: Ring::new(LOG_MAX),
            hits: Ring::new(LOG_MAX),
            clock,
            news: watch::Sender::new(0),
            orders: broadcast::Sender::new(ORDERS_MAX),
            subscriptions: AtomicU64::new(0),
            websockets_ended: AtomicU64::new(0),
            file,
            closing,
        }
    }

    /// The core. Every step on it is short and leaves it whole, so a panic elsewhere can't have spoilt it.
    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call log.
    #[must_use]
    pub fn call_log(&self) -> &Ring<ChainCallRecord> {
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

    /// Told when the process ends; held calls end then too.
    #[must_use]
    pub fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Open websocket subscriptions.
    #[must_use]
    pub fn subscriptions(&self) -> &AtomicU64 {
        &self.subscriptions
    }

    /// Counts a websocket that a rule or an action has ended.
    pub fn count_ended(&self) {
        self.websockets_ended.fetch_add(1, Ordering::Relaxed);
    }

    /// A receiver that sees every block after this call.
    #[must_use]
    pub fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// A receiver of orders to open websockets.
    #[must_use]
    pub fn orders(&self) -> broadcast::Receiver<Order> {
        self.orders.subscribe()
    }

    /// Wakes subscribers: blocks or events may be new.
    pub fn publish(&self) {
        self.news.send_modify(|count| *count += 1);
    }

    /// Replaces the configuration and carries out what comes into force by it.
    ///
    /// # Errors
    /// Why it was refused; nothing has changed then.
    pub fn apply(&self, config: ChainConfig) -> Result<(), String> {
        let edges = self.core().apply(config)?;
        for edge in edges {
            let (rule, action) = match edge {
                // Each connection logs its own hit: what was not open was not cut.
                Edge::Cut(rule) => {
                    let _nobody_listens = self.orders.send(Order::Cut(Some(rule)));
                    continue;
                }
                Edge::Close(rule, code) => {
                    let _nobody_listens = self.orders.send(Order::Close(Some(rule), code));
                    continue;
                }
                Edge::Hold(rule) => (rule, ChainFault::HoldBlocks(true)),
                Edge::Burst(rule, count) => (rule, ChainFault::BurstBlocks(count)),
            };
            self.log_hit("blocks", &rule, action, 1, 0);
        }
        self.publish();
        Ok(())
    }

    /// An admin action, saved before it is answered.
    ///
    /// # Errors
    /// Why it can't be done, or why it could not be saved.
    pub async fn carry_out(self: &Arc<Self>, act: &ChainAct) -> Result<(), String> {
        self.core().act(act)?;
        match act {
            ChainAct::AdvanceEpoch { pace: BlockPace::OneByOne } => self.walk_to_epoch().await,
            ChainAct::CutWebsockets => self.order(Order::Cut(None))?,
            ChainAct::CloseWebsockets { code } => self.order(Order::Close(None, *code))?,
            _ => {}
        }
        // The settled event needs a block to be in; an admin action does not wait for the next one.
        if matches!(act, ChainAct::Settle { .. }) {
            self.core().ledger.produce(1);
        }
        self.publish();
        self.save().await
    }

    /// An order to websockets that nobody has open would be an action that did nothing.
    fn order(&self, order: Order) -> Result<(), String> {
        let sent = self.orders.send(order);
        sent.map(drop).map_err(|_| "no websocket is open, so that none can be ended".to_owned())
    }

    /// Produces every block to the next epoch by itself, so that each subscriber sees each of them come.
    async fn walk_to_epoch(&self) {
        let left = self.core().ledger.blocks_to_epoch();
        for block in 1..=left {
            {
                let mut core = self.core();
                core.ledger.produce(1);
                if block == left {
                    core.ledger.begin_epoch();
                }
            }
            self.publish();
            tokio::time::sleep(WALK_PAUSE).await;
        }
    }

    /// Writes the state file, when there is one.
    ///
    /// # Errors
    /// What could not be written, and where.
    pub async fn save(self: &Arc<Self>) -> Result<(), String> {
        if self.file.is_none() {
            return Ok(());
        }
        let shared = Arc::clone(self);
        let write = move || match &shared.file {
            // The snapshot is taken under the file's own lock, so that an older one can't overwrite a newer one.
            Some(file) => {
                file.write(|| shared.core().ledger.saved().clone()).map_err(|error| error.to_string())
            }
            None => Ok(()),
        };
        tokio::task::spawn_blocking(write).await.map_err(|error| error.to_string())?
    }

    /// Counters with subscriptions and CPU time.
    #[must_use]
    pub fn counters(&self) -> ChainStats {
        let subscriptions = self.subscriptions.load(Ordering::Relaxed);
        let websockets_ended = self.websockets_ended.load(Ordering::Relaxed);
        let loop_gap_max_us = Some(gap_max_us());
        ChainStats {
            subscriptions,
            websockets_ended,
            cpu_us: cpu_us(),
            loop_gap_max_us,
            ..self.core().stats()
        }
    }

    /// Logs a carried out fault.
    pub fn log_hit(&self, place: &str, rule: &str, action: ChainFault, attempt: u64, call_seq: u64) {
        let at_us = self.clock.now_us();
        let action = FaultAction::Chain(action).name();
        self.hits.push(|seq| Hit {
            seq,
            at_us,
            place: place.to_owned(),
            rule: rule.to_owned(),
            action,
            kind: None,
            request_id: None,
            attempt,
            call_seq,
        });
    }
}

/// One gRPC call between its arrival and its line in the log. Dropped without an end it is logged as `CANCELLED`.
#[derive(Debug)]
pub struct Call<'a> {
    shared: &'a Shared,
    method: &'static str,
    argument: String,
    at_us: u64,
    ordinal: u64,
    fault: Option<Fault>,
    code: &'static str,
}

impl<'a> Call<'a> {
    /// Counts the call and carries out the rule that it meets.
    ///
    /// # Errors
    /// The status that a rule, or the end of the process, answers instead.
    pub async fn open(shared: &'a Shared, method: &'static str, argument: &str) -> Result<Call<'a>, Status> {
        let at_us = shared.clock.now_us();
        let Arrival { ordinal, fault } = shared.core().arrive(method);
        let argument = argument.chars().take(ARGUMENT_MAX).collect();
        let mut call = Call { shared, method, argument, at_us, ordinal, fault, code: "CANCELLED" };
        let refused = match call.fault.as_ref().map(|fault| &fault.action) {
            Some(ChainFault::Delay(time)) => tokio::select! {
                () = tokio::time::sleep(time.duration()) => None,
                () = shared.closing.cancelled() => Some("the chain is ending"),
            },
            Some(ChainFault::Outage(_)) => Some("chain unavailable: outage by a fault rule"),
            Some(ChainFault::Fail(_)) => Some("chain unavailable: failed by a fault rule"),
            _ => None,
        };
        match refused {
            Some(text) => call.refuse(Status::unavailable(text)),
            None => Ok(call),
        }
    }

    /// Ends the call well.
    pub fn answer<T>(mut self, message: T) -> Result<tonic::Response<T>, Status> {
        self.code = "OK";
        Ok(tonic::Response::new(message))
    }

    /// Ends the call with an error.
    ///
    /// # Errors
    /// The status given.
    pub fn refuse<T>(&mut self, status: Status) -> Result<T, Status> {
        self.code = code_name(status.code());
        Err(status)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let rule = self.fault.as_ref().map(|fault| fault.rule.clone());
        let call_seq = self.shared.calls.push(|seq| ChainCallRecord {
            seq,
            at_us: self.at_us,
            method: self.method.to_owned(),
            ordinal: self.ordinal,
            argument: std::mem::take(&mut self.argument),
            code: self.code.to_owned(),
            rule,
        });
        if let Some(fault) = self.fault.take() {
            self.shared.log_hit(self.method, &fault.rule, fault.action, fault.ordinal, call_seq);
        }
    }
}

/// Name of a code as gRPC writes it; only those that this program answers.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::NotFound => "NOT_FOUND",
        Code::Unavailable => "UNAVAILABLE",
        Code::Internal => "INTERNAL",
        _ => "UNKNOWN",
    }
}
