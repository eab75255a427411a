//! What all listeners of the allocator share: the core behind a lock, the logs, the clock, the wake-up of long polls.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scenario::control::{DapiCallRecord, DapiConfig, DapiStats, Hit};
use scenario::fault::{DapiCall, DapiFault, FaultAction};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::control::Ring;
use crate::dapi::core::{Arrival, Core, Fault};
use crate::process::cpu_us;
use crate::pulse::gap_max_us;

/// Entries kept of each log; the runner reads them while the load runs.
const LOG_MAX: usize = 100_000;

/// State of one `mock-dapi` process. Never held locked across a wait.
#[derive(Debug)]
pub struct Shared {
    core: Mutex<Core>,
    calls: Ring<DapiCallRecord>,
    hits: Ring<Hit>,
    clock: Clock,
    revision: watch::Sender<u64>,
    closing: CancellationToken,
}

impl Shared {
    /// Starts with a configuration.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: DapiConfig, clock: Clock, closing: CancellationToken) -> Result<Self, String> {
        let core = Core::new(config, format!("k{:x}", clock.started_unix_us()))?;
        Ok(Self {
            core: Mutex::new(core),
            calls: Ring::new(LOG_MAX),
            hits: Ring::new(LOG_MAX),
            clock,
            revision: watch::Sender::new(1),
            closing,
        })
    }

    /// The core. Every step on it is short and leaves it whole, so a panic elsewhere can't have spoilt it.
    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call log.
    #[must_use]
    pub fn call_log(&self) -> &Ring<DapiCallRecord> {
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

    /// A receiver that sees every replacement of the configuration after this call.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Configurations applied, the first included.
    #[must_use]
    pub fn revision(&self) -> u64 {
        *self.revision.borrow()
    }

    /// Replaces the configuration and wakes long polls.
    ///
    /// # Errors
    /// Why it was refused; nothing has changed then.
    pub fn apply(&self, config: DapiConfig) -> Result<(), String> {
        self.core().apply(config)?;
        self.revision.send_modify(|revision| *revision += 1);
        Ok(())
    }

    /// Counters with CPU time.
    #[must_use]
    pub fn counters(&self) -> DapiStats {
        let loop_gap_max_us = Some(gap_max_us());
        DapiStats { cpu_us: cpu_us(), loop_gap_max_us, ..self.core().stats(self.clock.now_us()) }
    }

    /// Waits, but not beyond the end of the process. Answers whether the whole time has passed.
    pub async fn pause(&self, time: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(time) => true,
            () = self.closing.cancelled() => false,
        }
    }
}

/// One call between its arrival and its line in the log. Dropped without an end it is logged as `cancelled`: the
/// caller has gone away while the call waited.
#[derive(Debug)]
pub struct Entry<'a> {
    shared: &'a Shared,
    record: Option<DapiCallRecord>,
    ordinal_at_host: u64,
    fault: Option<Fault>,
}

impl<'a> Entry<'a> {
    /// Counts the call and finds its rule.
    #[must_use]
    pub fn open(shared: &'a Shared, call: DapiCall, host: &str) -> Self {
        let at_us = shared.clock.now_us();
        let Arrival { ordinal, ordinal_at_host, fault } = shared.core().arrive(call, host);
        let record = DapiCallRecord {
            seq: 0,
            at_us,
            call,
            host: host.to_owned(),
            ordinal,
            lock: None,
            node: None,
            excluded: Vec::new(),
            result: "cancelled".to_owned(),
            outcome: None,
            rule: None,
        };
        Self { shared, record: Some(record), ordinal_at_host, fault }
    }

    /// The line that will be logged.
    pub fn record(&mut self) -> &mut DapiCallRecord {
        self.record.as_mut().expect("an entry is open until it is finished")
    }

    /// What the matched rule does.
    #[must_use]
    pub fn action(&self) -> Option<&DapiFault> {
        self.fault.as_ref().map(|fault| &fault.action)
    }

    /// Whether an outage has begun while the call was held; the call then counts as hit by it.
    pub fn meets_outage(&mut self) -> bool {
        let (ordinal, host) = (self.record().ordinal, self.record().host.clone());
        let outage = self.shared.core().outage(&host, ordinal, self.ordinal_at_host);
        let met = outage.is_some();
        self.fault = outage.or(self.fault.take());
        met
    }

    /// Ends the call with a result.
    pub fn finish(mut self, result: &str) {
        result.clone_into(&mut self.record().result);
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let Some(mut record) = self.record.take() else { return };
        record.rule = self.fault.as_ref().map(|fault| fault.rule.clone());
        let (at_us, host) = (record.at_us, record.host.clone());
        let call_seq = self.shared.calls.push(|seq| DapiCallRecord { seq, ..record });
        if let Some(fault) = self.fault.take() {
            let action = FaultAction::Dapi(fault.action).name();
            self.shared.hits.push(|seq| Hit {
                seq,
                at_us,
                place: host,
                rule: fault.rule,
                action,
                kind: None,
                request_id: None,
                attempt: fault.ordinal,
                call_seq,
            });
        }
    }
}
