//! `workload`: what is sent, how much, how fast, and which requests leave in the middle.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Thresholds;
use crate::fault::{Close, Expect, Select};
use crate::units::{Micros, Ppb};

/// The text that is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// Approximate size of the prompt: four characters a token.
    pub input_tokens: u32,
}

/// A limit that is either a number or the protocol's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// The protocol timeouts read from status plus 30 s; resolved per stack.
    #[default]
    Protocol,
    /// A deliberate limit.
    Time(Micros),
}

/// One step of a closed loop. Exactly one of `requests` and `duration`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Requests in flight at the same time.
    pub concurrency: u32,
    /// Ends after this many requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Ends after this time (then a recorded prefix of `max_requests`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<Micros>,
}

/// Search for the highest stable level instead of fixed steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// First concurrency.
    pub from: u32,
    /// Highest concurrency tried.
    pub to: u32,
    /// Requests per level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
}

/// A light step after the others, with limits of its own: what was overloaded must serve well again. Before it the
/// system drains as before a snapshot (design section 3, up to (c)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recovery {
    /// Requests in flight at the same time.
    pub concurrency: u32,
    /// Requests.
    pub requests: u64,
    /// Limits of this step alone.
    pub limits: Thresholds,
}

/// Requests that are larger than the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Oversize {
    /// Which requests.
    pub select: Select,
    /// Approximate size of their prompt: four characters a token.
    pub input_tokens: u32,
    /// How they may end.
    pub expect: Vec<Expect>,
}

/// Repeats another request's body exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Duplicate {
    /// The request that repeats.
    pub index: u64,
    /// The request whose body it repeats; a lower index.
    pub duplicate_of: u64,
}

/// A check of the answer; a 200 that fails one is a failure (`check_failed`). Exactly one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Check {
    /// The joined content contains this text.
    Contains(String),
    /// The joined content does not contain this text.
    NotContains(String),
    /// A JSON pointer into the body (non-stream) exists.
    JsonPointer(String),
    /// No logprobs in the answer.
    LogprobsAbsent(bool),
    /// At least this many completion tokens by usage.
    CompletionTokensMin(u64),
}

/// Moment at which a client cancels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CancelPhase {
    /// After the request was written, before response headers.
    BeforeHeaders,
    /// When the headers are complete.
    AfterHeaders,
    /// At the first content (JSON: the first body byte).
    FirstContent,
    /// At the n-th event (`event`).
    NthEvent,
}

/// Cancellation by clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// Which requests.
    pub select: Select,
    /// When.
    pub phase: CancelPhase,
    /// For `nth-event`: which event, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<u64>,
    /// Time added after the phase was reached.
    #[serde(default)]
    pub after: Micros,
    /// How the connection is closed.
    #[serde(default)]
    pub close: Close,
    /// More cancel points: each selected request takes the one above or one of these, by a seeded draw in equal
    /// shares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<CancelVariant>,
    /// Allowed outcomes.
    pub expect: Vec<Expect>,
}

/// Another point at which selected requests are cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelVariant {
    /// When.
    pub phase: CancelPhase,
    /// For `nth-event`: which event, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<u64>,
    /// Time added after the phase was reached.
    #[serde(default)]
    pub after: Micros,
    /// How the connection is closed.
    #[serde(default)]
    pub close: Close,
}

/// What is sent, how much and how fast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Share of SSE requests.
    pub stream_ratio: Ppb,
    /// The prompt.
    pub prompt: Prompt,
    /// Output tokens asked for.
    pub max_tokens: u32,
    /// Total time limit of a request.
    #[serde(default)]
    pub timeout: Limit,
    /// Fixed steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// Search instead of steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
    /// A last step that must meet limits of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// Length of the plan; needed with duration steps and with a search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u64>,
    /// Repeated bodies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub duplicates: Vec<Duplicate>,
    /// Requests of another size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oversize: Option<Oversize>,
    /// Checks of every answer that no fault touched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// Cancellation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Cancel>,
}

/// Requests of a level when the search names none.
const LEVEL_REQUESTS: u64 = 60;
/// Each slot of a level sends at least so many requests.
const LEVEL_REQUESTS_EACH: u64 = 4;

impl Search {
    /// Requests of a level: what the file says, but enough for every slot.
    #[must_use]
    pub fn requests_at(&self, level: u32) -> u64 {
        self.requests.unwrap_or(LEVEL_REQUESTS).max(u64::from(level) * LEVEL_REQUESTS_EACH)
    }
}

impl Workload {
    /// All steps that have a fixed place, the recovery step last.
    #[must_use]
    pub fn all_steps(&self) -> Vec<Step> {
        let recovery = self.recovery.as_ref().map(|recovery| Step {
            concurrency: recovery.concurrency,
            requests: Some(recovery.requests),
            duration: None,
        });
        self.steps.iter().cloned().chain(recovery).collect()
    }
}

impl JsonSchema for Limit {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Limit".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let time = generator.subschema_for::<Micros>();
        schemars::json_schema!({"anyOf": [{"const": "protocol"}, time],
            "description": "A deliberate limit, or the protocol's own timeouts plus 30 s."})
    }
}

impl Serialize for Limit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Protocol => serializer.serialize_str("protocol"),
            Self::Time(time) => time.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "protocol" {
            return Ok(Self::Protocol);
        }
        Micros::parse(&text).map(Self::Time).map_err(serde::de::Error::custom)
    }
}
