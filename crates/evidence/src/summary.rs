//! `summary.json`: the one page about a run (design section 11). What a build can't show is null with a reason.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::assertion::Status;
use crate::exit::Outcome;
use crate::known::KnownReport;
use crate::run::{ProgramIdentity, Stack};
use scenario::model::Step;

/// The sentence that belongs to every result.
pub const BASELINE_SENTENCE: &str = "This result is a regression baseline for this environment with controlled \
                                     dependencies; it is not a statement about production capacity.";

/// Percentiles of one population.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// Samples.
    pub n: u64,
    /// Median.
    pub p50_us: Option<u64>,
    /// 95th percentile.
    pub p95_us: Option<u64>,
    /// 99th percentile.
    pub p99_us: Option<u64>,
    /// Largest.
    pub max_us: Option<u64>,
}

/// What clients saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientSignals {
    /// Planned requests.
    pub planned: u64,
    /// Sent requests.
    pub sent: u64,
    /// Requests by class (`success`, `masked-fault`, …); sums to `planned`.
    pub classes: BTreeMap<String, u64>,
    /// Requests by client class (`ok`, `http-error`, …).
    pub client_classes: BTreeMap<String, u64>,
    /// Ended requests per second of load.
    pub achieved_rps: Option<f64>,
    /// Successes and masked faults over sent.
    pub success_rate: Option<f64>,
    /// (Unexpected failures + rejected) over sent.
    pub error_rate: Option<f64>,
    /// All failures over sent.
    pub raw_error_rate: Option<f64>,
    /// Client time limits over sent.
    pub timeout_rate: Option<f64>,
    /// TTFT of successes, from the planned instant.
    pub ttft: Latency,
    /// Total latency of successes, from the planned instant.
    pub latency: Latency,
    /// Streams that ended well.
    pub streams_completed: u64,
    /// Streams that did not.
    pub streams_broken: u64,
}

/// Something that was not seen, or can't be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotSeen {
    /// Assertion, part of one, or field.
    pub what: String,
    /// Why.
    pub why: String,
}

/// What was judged, what could not be seen and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Coverage {
    /// Assertions that saw everything they ask for.
    pub in_full: u64,
    /// Assertions that judged, with something missing or a part that does not apply.
    pub in_part: u64,
    /// Assertions whose evidence can't exist here.
    pub not_applicable: u64,
    /// Assertions that could not judge.
    pub not_judged: u64,
    /// What was missing in this run.
    pub not_seen: Vec<NotSeen>,
    /// What no run on this stack shows.
    pub limits: Vec<NotSeen>,
}

/// `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Format version.
    pub v: u32,
    /// Run.
    pub run_id: String,
    /// Verdict.
    pub verdict: Outcome,
    /// Exit code.
    pub exit_code: u8,
    /// Why, in one line each.
    pub reasons: Vec<String>,
    /// Artifacts are incomplete.
    pub partial: bool,
    /// Scenario name.
    pub scenario: String,
    /// Seed.
    pub seed: u64,
    /// Plan hash.
    pub plan_hash: String,
    /// Scenario hash.
    pub scenario_hash: String,
    /// Build identity of every program.
    pub programs: BTreeMap<String, ProgramIdentity>,
    /// Stack.
    pub stack: Stack,
    /// Participants, replicas, slots, escrows, nodes, storage.
    pub topology: Value,
    /// Workload steps.
    pub steps: Vec<Step>,
    /// Highest concurrency that passed; only of a search.
    pub highest_stable_step: Option<u32>,
    /// Status by assertion id.
    pub assertions: BTreeMap<String, Status>,
    /// Things looked at by assertion id.
    pub evaluated: BTreeMap<String, u64>,
    /// What was judged, what could not be seen and why.
    #[serde(default)]
    pub coverage: Coverage,
    /// What became of the known findings, when a file was given.
    #[serde(default)]
    pub known: Option<KnownReport>,
    /// Client outcome.
    pub client: ClientSignals,
    /// Accepted and terminal requests, rejections by reason, validation queue, drain time, …
    pub devshard: BTreeMap<String, Value>,
    /// Requests and terminal outcomes per host.
    pub hosts: BTreeMap<String, Value>,
    /// Acquisitions, releases, rejections, active after drain, distribution per node.
    pub allocation: BTreeMap<String, Value>,
    /// Per node: active, queued, completions, failures, cancellations, saturation.
    pub nodes: BTreeMap<String, Value>,
    /// Generator health, dropped jobs, unexpected saturation.
    pub validity: BTreeMap<String, Value>,
    /// Fault hits per rule: hits, distinct requests, classes.
    pub faults: BTreeMap<String, Value>,
    /// What could not be seen and why.
    pub not_shown: BTreeMap<String, String>,
    /// Phase durations, microseconds.
    pub phases_us: BTreeMap<String, u64>,
    /// [`BASELINE_SENTENCE`].
    pub note: String,
}
