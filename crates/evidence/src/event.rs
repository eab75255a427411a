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

/// Facts of one level of a search (design section 10).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LevelFacts {
    /// Step of its requests.
    pub step: usize,
    /// Concurrency.
    pub level: u32,
    /// Requests that the level was to send.
    pub wanted: u64,
    /// Requests released.
    pub released: u64,
    /// First release to last end, microseconds.
    pub load_us: u64,
    /// CPU time of the generator in this level, microseconds.
    pub cpu_us: u64,
    /// Released against sent since the start, 99th percentile.
    pub lateness_p99_us: Option<u64>,
    /// The passive wait ended with all signals stable at zero.
    pub drained: bool,
    /// Gateway transactions left after sync; `None` when that could not be read.
    pub pending: Option<u64>,
    /// What the level did to each node's capacity.
    pub nodes: Vec<LevelNode>,
}

/// Capacity of one node in one level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LevelNode {
    /// Instance.
    pub name: String,
    /// Calls refused because workers and queue were full.
    pub refused: u64,
    /// Time during which callers waited for a worker, microseconds.
    pub waited_us: u64,
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
        /// When the looks began that failed one after another, microseconds since the run began: the first and those
        /// after it that no earlier event about the same row names. Only the watch of health has them; it says that a
        /// service is not ready after the third, and that it is ready again with the first good look.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        failed_at_us: Vec<u64>,
    },
    /// The watch of a service's health is over.
    HealthWatched {
        /// Service.
        service: String,
        /// Looks that got an answer of health.
        good: u64,
        /// Looks that failed.
        failed: u64,
        /// Looks that say nothing: the runner itself had no time.
        unknown: u64,
        /// Pause between two looks, microseconds.
        spacing_us: u64,
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
    /// A level of a search is over, drained and synced: the facts by which it is judged.
    LevelEnded(LevelFacts),
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
        /// What was read back afterwards, where there is something to read: the effect, not the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        read_back: Option<String>,
    },
    /// What an action had left stopped, killed or paused works again: the drain needs it.
    BroughtBack {
        /// Service.
        service: String,
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
    /// The wall clock was set, or the machine slept: it is not where the monotonic clock has it.
    ClockMoved {
        /// By how much since the last such event, microseconds; negative when it went back.
        by_us: i64,
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
