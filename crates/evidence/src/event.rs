//! `events.jsonl`: the stream of the runner's dispatcher, written as things happen.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Steps of a run (design section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Parse, resolve, plan, preflight.
    Prepare,
    /// Stack up and ready.
    Start,
    /// Faults applied and read back.
    Faults,
    /// First snapshot.
    Before,
    /// Load and actions.
    Load,
    /// Bounded drain.
    Drain,
    /// Logs, hits, metrics.
    Collect,
    /// Verdict, bundles, summary.
    Judge,
    /// Stack down.
    Teardown,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum EventKind {
    /// A phase began.
    PhaseStarted {
        /// Which.
        phase: Phase,
    },
    /// A phase is over.
    PhaseEnded {
        /// Which.
        phase: Phase,
        /// How long it took.
        took_us: u64,
    },
    /// A program runs and printed its ready line.
    ProcessReady {
        /// Service, for example `host-1`.
        service: String,
        /// Process id.
        pid: u32,
        /// Start time of the process in clock ticks since boot: with the pid its identity.
        start_ticks: u64,
        /// Its addresses.
        addresses: BTreeMap<String, String>,
        /// Its build.
        build: String,
    },
    /// A program ended.
    ProcessExited {
        /// Service.
        service: String,
        /// Process id.
        pid: u32,
        /// Exit code, or `None` after a signal.
        code: Option<i32>,
        /// Signal.
        signal: Option<i32>,
        /// Whether the runner had asked for it.
        planned: bool,
    },
    /// A readiness or health probe changed its answer.
    Probe {
        /// Service.
        service: String,
        /// Ready or not.
        ready: bool,
        /// Why not, bounded.
        detail: Option<String>,
    },
    /// A chat outside the plan.
    Canary {
        /// Status.
        status: Option<u16>,
        /// Its escrow.
        escrow: Option<String>,
        /// How long it took.
        took_us: u64,
    },
    /// A configuration is about to be sent to a mock (written before it is done).
    ConfigIntended {
        /// Mock.
        mock: String,
        /// Hash.
        hash: String,
        /// Why: `start`, `faults`, `drain-execution-off`, `drain-validation-off`.
        purpose: String,
    },
    /// The mock answered and was read back.
    ConfigApplied {
        /// Mock.
        mock: String,
        /// Hash it answered.
        answered: String,
        /// Hash of what was read back.
        read_back: String,
        /// Why.
        purpose: String,
    },
    /// A load step was started.
    StepStarted {
        /// Which.
        step: usize,
        /// Concurrency.
        concurrency: u32,
    },
    /// A load step is over.
    StepEnded {
        /// Which.
        step: usize,
        /// First release.
        started_us: u64,
        /// Last end.
        ended_us: u64,
        /// Requests released.
        released: u64,
        /// Lowest in flight while full.
        in_flight_min: u64,
        /// Highest in flight.
        in_flight_max: u64,
    },
    /// Loadgen said it is done.
    LoadEnded {
        /// Records written.
        records: u64,
        /// Records lost.
        records_dropped: u64,
        /// Ended before the plan.
        partial: bool,
        /// Generator health as loadgen reported it.
        health: Value,
    },
    /// A service action is about to be done.
    ActionIntended {
        /// Ordinal in the scenario, from 0.
        action: usize,
        /// In words.
        what: String,
    },
    /// A service action is done.
    ActionDone {
        /// Ordinal in the scenario.
        action: usize,
        /// Error, if it failed.
        error: Option<String>,
    },
    /// A chain step of the drain: `sync`, `finalize`.
    DrainStep {
        /// Which.
        what: String,
        /// Escrow.
        escrow: String,
        /// HTTP status.
        status: Option<u16>,
        /// Answer, bounded.
        detail: Option<String>,
    },
    /// Evidence could not be had.
    EvidenceMissing {
        /// What.
        what: String,
        /// Why.
        why: String,
    },
    /// A signal reached the runner.
    Signal {
        /// Name.
        signal: String,
    },
    /// The environment failed; the run can't go on.
    EnvironmentFailed {
        /// What, where, what to do.
        message: String,
        /// Last log lines of the service, bounded.
        log: Vec<String>,
    },
    /// Something that people want to know and that judges nothing.
    Note {
        /// The text.
        text: String,
    },
}

/// One line of `events.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Format version.
    pub v: u32,
    /// Sequence number from 1, without gaps.
    pub seq: u64,
    /// Microseconds since the run began (monotonic).
    pub at_us: u64,
    /// Unix time, microseconds, for display only.
    pub unix_us: u64,
    /// What.
    #[serde(flatten)]
    pub event: EventKind,
}
