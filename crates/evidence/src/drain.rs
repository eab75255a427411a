//! `drain.jsonl` and the one table of drain signals (design section 3: zero value, K, spacing, source).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which part of the drain a sample belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DrainPart {
    /// (a) passive wait.
    Passive,
    /// (c) sync rounds.
    Synced,
    /// (d) finalize.
    Final,
}

/// Definition of one drain signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Name in `drain.jsonl`.
    pub name: &'static str,
    /// What it counts.
    pub meaning: &'static str,
    /// Where it is read.
    pub source: &'static str,
    /// Where the rule comes from.
    pub rule: &'static str,
}

/// Every signal that must be zero and unchanged for K samples at the end of the passive wait. K and the spacing are
/// `drain.stable_samples` and `drain.interval` of the scenario, for every signal alike. Own polls, heartbeats and
/// `devshard_mempool_size` (stale by contract hosts 8) are not on the list.
pub const SIGNALS: &[Signal] = &[
    Signal {
        name: "gateway_active_requests",
        meaning: "client handlers, disconnected ones included",
        source: "gateway /metrics devshard_runtime_active_requests, summed",
        rule: "contract gateway 6.6",
    },
    Signal {
        name: "gateway_inflight_requests",
        meaning: "limiter slots in use",
        source: "gateway /metrics devshard_gateway_inflight_requests",
        rule: "contract gateway 6.6",
    },
    Signal {
        name: "gateway_attempts_open",
        meaning: "attempts started minus attempts terminal",
        source: "gateway /metrics devshard_gateway_attempts_{started,terminal}_total",
        rule: "contract gateway 6.6",
    },
    Signal {
        name: "gateway_races_open",
        meaning: "races begun and not settled: attempts are over, a protocol timeout still runs for one of them",
        source: "gateway /metrics devshard_speculative_decisions_total minus devshard_gateway_requests_total of \
                 outcome success and failed, at least 0",
        rule: "contract gateway 5.2 and 7, measured on July builds",
    },
    Signal {
        name: "host_inflight_requests",
        meaning: "chat handlers running on hosts (absent = 0)",
        source: "host /metrics devshard_inflight{stage=\"request\"}, summed",
        rule: "contract hosts 10",
    },
    Signal {
        name: "host_validation_queue",
        meaning: "validation jobs waiting on hosts",
        source: "host /metrics devshard_validation_queue_depth, summed",
        rule: "contract hosts 10",
    },
    Signal {
        name: "node_active_calls",
        meaning: "calls being answered by ML nodes, executions and validations",
        source: "mock-openai stats",
        rule: "specification, Mock ML pool",
    },
    Signal {
        name: "node_queued_calls",
        meaning: "calls waiting at ML nodes",
        source: "mock-openai stats",
        rule: "specification, Mock ML pool",
    },
    Signal {
        name: "dapi_active_locks",
        meaning: "locks not released",
        source: "mock-dapi stats",
        rule: "specification, ML allocation",
    },
];

/// One sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DrainSample {
    /// Format version.
    pub v: u32,
    /// Microseconds since the run began.
    pub at_us: u64,
    /// Part.
    pub part: DrainPart,
    /// Value by signal; `None` when it could not be read.
    pub signals: BTreeMap<String, Option<f64>>,
    /// How many samples in a row were zero and unchanged, this one included.
    pub stable: u32,
    /// The last sample of its part: why it ended. (a) `stable`, `deadline`, `interrupted`; (c) `stable`, or `rounds` when
    /// every round of sync was used; (d) `looked`: one look after finalize.
    pub ended: Option<String>,
    /// Deadline of the passive wait, microseconds since the run began.
    pub deadline_us: Option<u64>,
    /// For a drain between steps: after which step. Absent in the drain after the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
}
