//! Plan lines (design section 10): line i is a pure function of (scenario, i).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::draw::{ValueKey, in_range, selected};
use crate::fault::{Close, FaultAction, Select};
use crate::identity::RequestId;
use crate::model::{Cancel, CancelPhase, CancelVariant, Check, FaultRule, Resolved, Workload};
use crate::prompt;
pub use crate::prompt::body;
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

/// Purpose of the draw by which a fault rule selects a request.
pub const FAULT_PURPOSE: &str = "fault";
/// Rule name and purpose of the draw between SSE and JSON.
pub const STREAM_DRAW: (&str, &str) = ("workload", "stream");
/// Rule name and purpose of the draw of cancelled requests.
pub const CANCEL_DRAW: (&str, &str) = ("workload", "cancel");
/// Rule name and purpose of the draw of oversized requests.
pub const OVERSIZE_DRAW: (&str, &str) = ("workload", "oversize");
/// Rule name and purpose of the draw of a cancel point among several.
pub const CANCEL_POINT_DRAW: (&str, &str) = ("workload", "cancel-point");

/// Whether a selection takes a request id. Selections by call ordinal take none.
#[must_use]
pub fn takes(select: &Select, seed: u64, rule: &str, purpose: &str, id: &RequestId) -> bool {
    match select {
        Select::Fraction(fraction) => selected(seed, rule, purpose, id.as_str(), *fraction),
        Select::Ids(ids) => ids.contains(id),
        Select::All(all) => *all,
        Select::Calls(_) => false,
    }
}

/// Whether a node rule selects a request id wherever it is routed.
#[must_use]
pub fn rule_selects(seed: u64, rule: &FaultRule, id: &RequestId) -> bool {
    matches!(rule.action, FaultAction::Node(_)) && takes(&rule.select, seed, &rule.id, FAULT_PURPOSE, id)
}

fn input_tokens(workload: &Workload, seed: u64, id: &RequestId) -> u32 {
    let (rule, purpose) = OVERSIZE_DRAW;
    let large = workload.oversize.as_ref().filter(|large| takes(&large.select, seed, rule, purpose, id));
    large.map_or(workload.prompt.input_tokens, |large| large.input_tokens)
}

/// The point of a cancelled request: one of the points of the file, by a seeded draw.
fn cancel_point(cancel: &Cancel, seed: u64, id: &RequestId) -> CancelPoint {
    let own =
        CancelVariant { phase: cancel.phase, event: cancel.event, after: cancel.after, close: cancel.close };
    let (rule, purpose) = CANCEL_POINT_DRAW;
    let key = ValueKey { seed, rule, purpose, request_id: id.as_str(), attempt: 0, event: 0 };
    let place = in_range(key, 0, cancel.also.len() as u64);
    let chosen = usize::try_from(place).ok().and_then(|place| place.checked_sub(1));
    let point = chosen.and_then(|place| cancel.also.get(place)).unwrap_or(&own);
    CancelPoint {
        phase: point.phase,
        event: point.event.unwrap_or_default(),
        after: point.after,
        close: point.close,
    }
}

/// Line `index` of the plan.
#[must_use]
pub fn line(resolved: &Resolved, index: u64) -> PlanLine {
    let scenario = &resolved.scenario;
    let seed = scenario.seed;
    let workload = &scenario.workload;
    let id = RequestId::new(&scenario.name, seed, index);
    let duplicate_of = workload.duplicates.iter().find(|d| d.index == index).map(|d| d.duplicate_of);
    // A repeated body is the same in every byte: it streams when the other one does, and a node sees that one's id.
    let source = duplicate_of.map_or_else(|| id.clone(), |other| RequestId::new(&scenario.name, seed, other));
    let (rule, purpose) = STREAM_DRAW;
    let stream = selected(seed, rule, purpose, source.as_str(), workload.stream_ratio);
    let (rule, purpose) = CANCEL_DRAW;
    let cancel = workload.cancel.as_ref().filter(|cancel| takes(&cancel.select, seed, rule, purpose, &id));
    let prompt = PromptRecipe {
        seed,
        index: duplicate_of.unwrap_or(index),
        input_tokens: input_tokens(workload, seed, &source),
    };
    PlanLine {
        v: PLAN_VERSION,
        index,
        stream,
        max_tokens: workload.max_tokens,
        cancel: cancel.map(|cancel| cancel_point(cancel, seed, &id)),
        rules: scenario
            .faults
            .iter()
            .filter(|rule| rule_selects(seed, rule, &source))
            .map(|rule| rule.id.clone())
            .collect(),
        prompt_digest: prompt::digest(&prompt),
        prompt,
        duplicate_of,
        checks: workload.checks.clone(),
        id,
    }
}

/// Every line of the plan, in order.
pub fn lines(resolved: &Resolved) -> impl Iterator<Item = PlanLine> + '_ {
    (0..resolved.requests_max).map(|index| line(resolved, index))
}
