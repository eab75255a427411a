//! The pipe between runner and loadgen (design section 10).
//!
//! Runner → loadgen, standard input, text lines: `go <step>` starts a step (from 0) of the job; in a job without steps
//! (a search) `go <step> <concurrency> <requests>` starts a level that the runner chose, and `end` says that no more
//! comes; `stop` ends the load as SIGINT does. Loadgen → runner, standard output, one [`LoadgenLine`] of JSON a line. `end` is the last one; an end of
//! the pipe without it means that loadgen died.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::Step;
use crate::units::Micros;

/// Format version of the job and the pipe.
pub const PIPE_VERSION: u32 = 1;

/// The job file (`--job`): everything loadgen needs beside the plan. A client key, if there is one, comes in the
/// environment variable `PROOFLOAD_CLIENT_KEY` and never in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadgenJob {
    /// Format version.
    pub v: u32,
    /// Base URL of the gateway; only `/v1/chat/completions` below it is called.
    pub gateway_url: String,
    /// Model name sent.
    pub model: String,
    /// Plan file (`plan.jsonl`).
    pub plan: String,
    /// Records file to append to (`requests.jsonl`).
    pub records: String,
    /// Salt of the run.
    pub salt: String,
    /// Steps in order; empty in a search, whose levels come over the pipe.
    pub steps: Vec<Step>,
    /// Time limits.
    pub limits: LoadLimits,
    /// Lines of the plan that may be used (`--shard i/n` by plan index): every `of`-th from `shard`.
    pub shard: Shard,
    /// PEM file with root certificates beside those of the system, for a gateway behind `https://`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ca: Option<String>,
    /// Any certificate is believed; whoever sets it says so in its report.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub insecure: bool,
}

/// A share of the plan by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Which, from 0.
    pub shard: u64,
    /// Of how many; 1 = the whole plan.
    pub of: u64,
}

/// Limits of one request; each that passes is a class of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadLimits {
    /// Until the connection stands.
    pub connect: Micros,
    /// From sent to complete headers.
    pub headers: Micros,
    /// From headers to the first body byte.
    pub first_byte: Micros,
    /// Between two reads of the body.
    pub idle: Micros,
    /// From released to end.
    pub total: Micros,
    /// After a stop: until open requests are ended.
    pub drain: Micros,
}

/// Health of the generator itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GeneratorHealth {
    /// CPU time used since start, microseconds (user and system).
    pub cpu_us: u64,
    /// Wall time since start, microseconds.
    pub wall_us: u64,
    /// Released against sent: percentiles in microseconds, `None` without samples.
    pub lateness_p50_us: Option<u64>,
    /// 99th percentile.
    pub lateness_p99_us: Option<u64>,
    /// Largest.
    pub lateness_max_us: Option<u64>,
    /// Resident memory, bytes.
    pub rss_bytes: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Requests that failed for lack of local ports.
    pub ports_exhausted: u64,
    /// Requests that failed for lack of file descriptors.
    pub fds_exhausted: u64,
    /// Time in which the process was due and did not get to run, microseconds; `None` where nobody watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled_us: Option<u64>,
    /// Longest time in one piece in which it did not get to run, microseconds; `None` where nobody watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_gap_max_us: Option<u64>,
    /// How late its loop woke up, of all beats of a timer in it: median, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_late_p50_us: Option<u64>,
    /// 95th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_late_p95_us: Option<u64>,
    /// 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_late_p99_us: Option<u64>,
}

/// A line from loadgen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum LoadgenLine {
    /// Plan loaded, waiting for `go`.
    Ready {
        /// Format version.
        v: u32,
        /// Build identity.
        build: String,
        /// Plan lines this process will use at most.
        planned: u64,
        /// Unix time of offset 0 of all record times, microseconds. Read once; spans are monotonic.
        wall_anchor_unix_us: u64,
    },
    /// About once a second, and at each 1/20 of a count step.
    Progress {
        /// Offset of this line.
        at_us: u64,
        /// Step.
        step: usize,
        /// Requests sent since start.
        sent: u64,
        /// Requests ended since start.
        done: u64,
        /// Open now.
        in_flight: u64,
        /// Ended requests by client class (`ok`, `http-error`, …).
        classes: BTreeMap<String, u64>,
        /// TTFT p95 of the successes since start.
        ttft_p95_us: Option<u64>,
    },
    /// A step is over and none of its requests is open.
    StepEnd {
        /// Step.
        step: usize,
        /// When the first request was released.
        started_us: u64,
        /// When the last one ended.
        ended_us: u64,
        /// Requests released.
        released: u64,
        /// Lowest number in flight between first full and the last release; 0 when never full.
        in_flight_min: u64,
        /// Highest number in flight.
        in_flight_max: u64,
        /// Health so far.
        health: GeneratorHealth,
    },
    /// The last line.
    End {
        /// Lines written to the records file, one a planned request.
        records: u64,
        /// Records that could not be kept.
        records_dropped: u64,
        /// Stopped by a signal or `stop` before the plan's end.
        partial: bool,
        /// Health over the whole run.
        health: GeneratorHealth,
    },
    /// Loadgen can't go on; the process then ends with a code above 0.
    Failed {
        /// What, where, and what to do.
        message: String,
    },
}
