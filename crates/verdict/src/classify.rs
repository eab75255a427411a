//! The class of every planned request and the observed reason (design section 6). Decided here and nowhere else.

use std::collections::{BTreeMap, BTreeSet};

use evidence::accounting::JoinedRequest;
use evidence::record::{ClientClass, RequestRecord};
use scenario::control::Hit;
use scenario::fault::{Because, EndingKind, Expect, FaultAction, NodeFault, RequestClass};
use scenario::model::FaultRule;
use scenario::plan::PlanLine;

use crate::load::Evidence;

/// What was decided about one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Class.
    pub class: RequestClass,
    /// Observed reason.
    pub because: Option<Because>,
    /// Stream ending that needs an exemption, if any.
    pub ending: Option<EndingKind>,
    /// Rules that hit it.
    pub rules: Vec<String>,
    /// Whether an `expect` of what touched it allows the outcome. Requests that nothing touched are allowed to
    /// succeed only.
    pub allowed: bool,
    /// Whether a fault, its own cancel point, an action window or required saturation touched it.
    pub touched: bool,
}

/// Classes by plan index; an index without a record has none.
#[must_use]
pub fn classify(evidence: &Evidence) -> BTreeMap<u64, Decided> {
    let hits = evidence.hits_by_request();
    let rules: BTreeMap<&str, &FaultRule> =
        evidence.run.resolved.scenario.faults.iter().map(|rule| (rule.id.as_str(), rule)).collect();
    let windows = windows(evidence);
    let oversized = oversized(evidence);
    evidence
        .records
        .iter()
        .map(|(index, record)| {
            let joined = evidence.joined.get(index);
            let own = hits.get(record.id.as_str()).map(Vec::as_slice).unwrap_or_default();
            let windows = if oversized.contains(index) { &windows.with_oversize } else { &windows.usual };
            (*index, decide(evidence, record, joined, own, &rules, windows))
        })
        .collect()
}

/// A span in which a service action, or an allocator or chain fault, may touch every request in flight.
#[derive(Clone, Copy, Debug)]
struct Window<'a> {
    expect: &'a [Expect],
}

/// Faults without a request id touch whatever is in flight while they are on: the whole load. Actions likewise from
/// their instant on; a narrower window would have to trust two clocks.
fn windows(evidence: &Evidence) -> Windows<'_> {
    let scenario = &evidence.run.resolved.scenario;
    let faults = scenario.faults.iter().filter(|rule| !matches!(rule.action, FaultAction::Node(_)));
    let faults = faults.map(|rule| Window { expect: rule.expect.as_slice() });
    let actions = scenario.actions.iter().map(|action| Window { expect: action.expect.as_slice() });
    let usual: Vec<Window<'_>> = faults.chain(actions).collect();
    let oversize = scenario.workload.oversize.iter().map(|large| Window { expect: large.expect.as_slice() });
    Windows { with_oversize: usual.iter().copied().chain(oversize).collect(), usual }
}

/// What may touch a request without a hit of its own, for requests of the usual size and for larger ones.
#[derive(Debug)]
struct Windows<'a> {
    usual: Vec<Window<'a>>,
    with_oversize: Vec<Window<'a>>,
}

/// Plan indexes whose prompt has the size of `workload.oversize`.
fn oversized(evidence: &Evidence) -> BTreeSet<u64> {
    let workload = &evidence.run.resolved.scenario.workload;
    let Some(large) = &workload.oversize else { return BTreeSet::new() };
    let is_large = |line: &&PlanLine| {
        line.prompt.input_tokens == large.input_tokens
            && line.prompt.input_tokens != workload.prompt.input_tokens
    };
    evidence.plan.iter().filter(is_large).map(|line| line.index).collect()
}

fn decide(
    evidence: &Evidence,
    record: &RequestRecord,
    joined: Option<&JoinedRequest>,
    hits: &[&Hit],
    rules: &BTreeMap<&str, &FaultRule>,
    windows: &[Window<'_>],
) -> Decided {
    let scenario = &evidence.run.resolved.scenario;
    let mut names: Vec<String> = hits.iter().map(|hit| hit.rule.clone()).collect();
    names.sort_unstable();
    names.dedup();
    let ending = ending(record);
    let because = because(record, joined, hits, rules);
    let cancelled = record.client_class == ClientClass::Cancelled;
    let mut expects: Vec<&Expect> = Vec::new();
    for name in &names {
        expects.extend(rules.get(name.as_str()).map(|rule| rule.expect.as_slice()).unwrap_or_default());
    }
    if cancelled {
        expects.extend(scenario.workload.cancel.as_ref().map(|c| c.expect.as_slice()).unwrap_or_default());
    }
    let overloaded = matches!(record.status, Some(429 | 503));
    if overloaded {
        expects.extend(scenario.validity.expect.iter());
    }
    let good = record.client_class == ClientClass::Ok;
    let in_window = !good && !windows.is_empty();
    if in_window {
        expects.extend(windows.iter().flat_map(|window| window.expect.iter()));
    }
    let touched = !names.is_empty() || cancelled || in_window || (overloaded && !expects.is_empty());
    let raw = raw_class(record, joined, !names.is_empty());
    let matches = |expect: &&Expect, class: RequestClass| {
        expect.class == class
            && expect.because.is_none_or(|wanted| Some(wanted) == because)
            && expect.status.is_none_or(|wanted| Some(wanted) == record.status)
            && expect.ending.is_none_or(|wanted| Some(wanted) == ending)
    };
    let as_expected = matches!(raw, RequestClass::UnexpectedFailure | RequestClass::Rejected)
        && expects.iter().any(|expect| matches(expect, RequestClass::ExpectedFailure));
    let class = if as_expected { RequestClass::ExpectedFailure } else { raw };
    // Cancelled before anything came of it: the requests that a fault touched may also simply succeed when the
    // scenario says so; nothing else is allowed by default.
    let allowed = if touched {
        expects.iter().any(|expect| matches(expect, class))
    } else {
        // Cut by the end of the run: nothing can be held against it, and the run is marked partial.
        record.client_class == ClientClass::Interrupted
            || matches!(class, RequestClass::Success | RequestClass::Dropped | RequestClass::NotOffered)
    };
    Decided { class, because, ending, rules: names, allowed, touched }
}

/// The class before `expect` is looked at.
fn raw_class(record: &RequestRecord, joined: Option<&JoinedRequest>, hit: bool) -> RequestClass {
    match record.client_class {
        ClientClass::Ok if hit => RequestClass::MaskedFault,
        ClientClass::Ok => RequestClass::Success,
        ClientClass::Cancelled | ClientClass::Interrupted => RequestClass::Cancelled,
        ClientClass::Dropped | ClientClass::GeneratorPorts | ClientClass::GeneratorFds => {
            RequestClass::Dropped
        }
        ClientClass::NotOffered => RequestClass::NotOffered,
        ClientClass::HttpError if !joined.is_some_and(|joined| joined.accepted) => RequestClass::Rejected,
        _ => RequestClass::UnexpectedFailure,
    }
}

/// How a stream ended when it did not end well.
#[must_use]
pub fn ending(record: &RequestRecord) -> Option<EndingKind> {
    match record.answer.as_ref()?.ending.as_deref()? {
        "error-event" | "error-then-done" => Some(EndingKind::ErrorEvent),
        "done-without-finish" => Some(EndingKind::DoneWithoutFinish),
        "truncated" | "finished-without-done" | "empty" => Some(EndingKind::Truncated),
        _ => None,
    }
}

/// The observed reason, from the answer for failures and from the calls for successes.
fn because(
    record: &RequestRecord,
    joined: Option<&JoinedRequest>,
    hits: &[&Hit],
    rules: &BTreeMap<&str, &FaultRule>,
) -> Option<Because> {
    match record.client_class {
        ClientClass::Ok => masked(joined, hits, rules),
        ClientClass::Cancelled => Some(Because::ClientCancelled),
        ClientClass::InBandError => Some(Because::ErrorEvent),
        ClientClass::Truncated => Some(Because::Truncated),
        ClientClass::HttpError if matches!(record.status, Some(429 | 503)) => Some(Because::Overloaded),
        ClientClass::HttpError => Some(Because::GatewayError),
        ClientClass::ConnectTimeout
        | ClientClass::HeadersTimeout
        | ClientClass::FirstByteTimeout
        | ClientClass::IdleTimeout
        | ClientClass::TotalTimeout => Some(Because::ClientTimeout),
        _ => None,
    }
}

/// Why a request that a fault hit was answered well. The proof is a call: another node for the same nonce, another
/// nonce, a later call at the same node, or the hit call itself.
fn masked(
    joined: Option<&JoinedRequest>,
    hits: &[&Hit],
    rules: &BTreeMap<&str, &FaultRule>,
) -> Option<Because> {
    let hit = hits.first()?;
    let joined = joined?;
    let spoilt = joined.calls.iter().find(|call| call.rule.is_some())?;
    let completed =
        |call: &&evidence::accounting::JoinedCall| call.outcome == "completed" && call.rule.is_none();
    let mut good = joined.calls.iter().filter(completed);
    let better = good.clone().find(|call| call.nonce == spoilt.nonce && call.node != spoilt.node);
    if better.is_some() {
        return Some(Because::RotatedToOtherNode);
    }
    if good.clone().any(|call| call.nonce == spoilt.nonce) {
        return Some(Because::SameNodeLater);
    }
    if good.any(|call| call.nonce != spoilt.nonce) {
        return Some(Because::RetriedOnOtherHost);
    }
    match rules.get(hit.rule.as_str()).map(|rule| &rule.action) {
        Some(FaultAction::Node(
            NodeFault::DelayHeaders(_)
            | NodeFault::DelayFirstContent(_)
            | NodeFault::SlowTokens(_)
            | NodeFault::Stall(_),
        )) => Some(Because::DelayedOnly),
        _ => Some(Because::Invisible),
    }
}
