//! Plan lines (design section 10): line i is a pure function of (scenario, i).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fault::Close;
use crate::identity::RequestId;
use crate::model::{CancelPhase, Check};
use crate::units::Micros;

/// Format version of `plan.jsonl`.
pub const PLAN_VERSION: u32 = 1;

/// Where the client cuts its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelPoint {
    /// When.
    pub phase: CancelPhase,
    /// For `nth-event`: which event, from 1; otherwise 0.
    pub event: u64,
    /// Time added after the phase was reached.
    pub after: Micros,
    /// How the connection is closed.
    pub close: Close,
}

/// How the text of a prompt is made again: the words are drawn from `seed` and the body's index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptRecipe {
    /// Seed of the words.
    pub seed: u64,
    /// Index whose text this is: the own index, or that of `duplicate_of`.
    pub index: u64,
    /// Size: four characters a token.
    pub input_tokens: u32,
}

/// One line of `plan.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanLine {
    /// Format version.
    pub v: u32,
    /// Position in the plan, from 0.
    pub index: u64,
    /// Request id.
    pub id: RequestId,
    /// SSE or JSON.
    pub stream: bool,
    /// Output tokens asked for.
    pub max_tokens: u32,
    /// Cancel point, if selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<CancelPoint>,
    /// Rules that select this request wherever it is routed (rules by call ordinal are not listed).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// How the prompt is made.
    pub prompt: PromptRecipe,
    /// BLAKE3 of the prompt text without marker and salt.
    pub prompt_digest: String,
    /// Index of the request whose body this one repeats exactly, marker included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate_of: Option<u64>,
    /// Checks of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}
