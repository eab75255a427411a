//! `failures/<request_id>.json`: all that is needed to understand one failure (design section 11).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounting::JoinedRequest;
use crate::assertion::{AssertionId, Witness};
use crate::record::RequestRecord;
use scenario::control::{Hit, NodeCall};
use scenario::plan::PlanLine;

/// One hop of the correlation walk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hop {
    /// From what to what, for example `client → gateway`.
    pub hop: String,
    /// Id that joins.
    pub id: Option<String>,
    /// Found or not.
    pub found: bool,
    /// In words.
    pub detail: String,
}

/// A bounded slice of one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogSlice {
    /// File, relative to the run directory.
    pub file: String,
    /// Which lines were chosen (`id`, `time`).
    pub by: String,
    /// Lines.
    pub lines: Vec<String>,
    /// Matching lines left out.
    pub left_out: u64,
}

/// A query for what lies outside the directory, or why none applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Query {
    /// `logs`, `metrics`, `traces`.
    pub what: String,
    /// Query text.
    pub query: Option<String>,
    /// Why there is none.
    pub none_because: Option<String>,
}

/// One failed judgement about the subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedAssertion {
    /// Assertion.
    pub id: AssertionId,
    /// Name.
    pub name: String,
    /// Witness.
    pub witness: Witness,
}

/// A bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bundle {
    /// Format version.
    pub v: u32,
    /// Run.
    pub run_id: String,
    /// Raw request id, or `_run.<assertion>.<n>`.
    pub failure: String,
    /// Verdict class of the request, when it is about one.
    pub class: Option<String>,
    /// What failed.
    pub failed: Vec<FailedAssertion>,
    /// Plan line.
    pub plan: Option<PlanLine>,
    /// Client record.
    pub request: Option<RequestRecord>,
    /// Joined accounting.
    pub accounting: Option<JoinedRequest>,
    /// Correlation walk.
    pub walk: Vec<Hop>,
    /// Node calls with its marker.
    pub node_calls: Vec<NodeCall>,
    /// Fault hits on it.
    pub hits: Vec<Hit>,
    /// The whole applied fault configuration.
    pub applied_faults: Value,
    /// State of its escrow around it: snapshot moment → nonce, phase, inferences of its nonces.
    pub state: Value,
    /// Events of the run near it in time.
    pub events: Vec<Value>,
    /// Log slices.
    pub logs: Vec<LogSlice>,
    /// Queries outside the directory.
    pub queries: Vec<Query>,
    /// Command that replays it.
    pub repro: String,
}
