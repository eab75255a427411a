//! The class of every planned request and the observed reason (design section 6). Decided here and nowhere else.

use std::collections::{BTreeMap, BTreeSet};

use evidence::record::ClientClass;
use scenario::control::NodeOutcome;
use scenario::fault::{Because, EndingKind, Expect, FaultAction, NodeFault, RequestClass};
use scenario::model::FaultRule;

use crate::load::Evidence;
use crate::requests::{Call, Joined, Record};
use crate::rules::PREPARE_FAILURE;
use crate::table::Table;

/// What was decided about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Class.
    pub class: RequestClass,
    /// Observed reason.
    pub because: Option<Because>,
    /// Stream ending that needs an exemption, if any.
    pub ending: Option<EndingKind>,
    /// Whether an `expect` of what touched it allows the outcome. Requests that nothing touched are allowed to
    /// succeed only.
    pub allowed: bool,
    /// Whether a fault, its own cancel point, an action window or required saturation touched it.
    pub touched: bool,
}

/// Classes by plan index; an index without a record has none.
#[must_use]
pub fn classify(evidence: &Evidence) -> Table<Decided> {
    let rules: BTreeMap<&str, &FaultRule> =
        evidence.run.resolved.scenario.faults.iter().map(|rule| (rule.id.as_str(), rule)).collect();
    let windows = windows(evidence);
    let oversized = oversized(evidence);
    let mut decided = Table::new(evidence.run.resolved.requests_max.min(evidence.records.len() * 2 + 64));
    for (index, record) in evidence.records.iter() {
        let joined = evidence.joined.get(index);
        let windows = if oversized.contains(&index) { &windows.with_oversize } else { &windows.usual };
        decided.insert(index, decide(evidence, index, &record, joined, &rules, windows));
    }
    decided
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
    let sizes = evidence.plan.sizes();
    let large =
        sizes.filter(|(_, tokens)| *tokens == large.input_tokens && *tokens != workload.prompt.input_tokens);
    large.map(|(index, _)| index).collect()
}

fn decide(
    evidence: &Evidence,
    index: u64,
    record: &Record,
    joined: Option<&Joined>,
    rules: &BTreeMap<&str, &FaultRule>,
    windows: &[Window<'_>],
) -> Decided {
    let scenario = &evidence.run.resolved.scenario;
    let names = evidence.rules_of(index);
    let ending = record.ending;
    let first = evidence.hits_of(index).next().map(|hit| evidence.names.word(hit.rule));
    let calls = joined.map(|joined| evidence.joined.calls(joined));
    let because = because(record, calls, first, rules);
    let cancelled = record.client_class == ClientClass::Cancelled;
    let mut expects: Vec<&Expect> = Vec::new();
    for name in &names {
        expects.extend(rules.get(name).map(|rule| rule.expect.as_slice()).unwrap_or_default());
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
    let unstarted = evidence.is_prepare_failure(index)
        && !evidence.run.rules_off.iter().any(|off| off == PREPARE_FAILURE.name);
    let started = joined.is_some_and(|joined| joined.accepted) && !unstarted;
    let raw = raw_class(record, started, !names.is_empty());
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
    Decided { class, because, ending, allowed, touched }
}

/// The class before `expect` is looked at.
fn raw_class(record: &Record, started: bool, hit: bool) -> RequestClass {
    match record.client_class {
        ClientClass::Ok if hit => RequestClass::MaskedFault,
        ClientClass::Ok => RequestClass::Success,
        ClientClass::Cancelled | ClientClass::Interrupted => RequestClass::Cancelled,
        ClientClass::Dropped | ClientClass::GeneratorPorts | ClientClass::GeneratorFds => {
            RequestClass::Dropped
        }
        ClientClass::NotOffered => RequestClass::NotOffered,
        ClientClass::HttpError if !started => RequestClass::Rejected,
        _ => RequestClass::UnexpectedFailure,
    }
}

/// The observed reason, from the answer for failures and from the calls for successes.
fn because(
    record: &Record,
    calls: Option<impl Iterator<Item = Call> + Clone>,
    hit: Option<&str>,
    rules: &BTreeMap<&str, &FaultRule>,
) -> Option<Because> {
    match record.client_class {
        ClientClass::Ok => masked(calls?, hit?, rules),
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
        ClientClass::ConnectRefused | ClientClass::ProxyFailed => Some(Because::Unreachable),
        ClientClass::ConnectionLost => Some(Because::ConnectionLost),
        _ => None,
    }
}

/// Why a request that a fault hit was answered well. The proof is a call: another node for the same nonce, another
/// nonce, a later call at the same node, or the hit call itself.
fn masked(
    calls: impl Iterator<Item = Call> + Clone,
    hit: &str,
    rules: &BTreeMap<&str, &FaultRule>,
) -> Option<Because> {
    let spoilt = calls.clone().find(|call| call.rule.is_some())?;
    let completed = |call: &Call| call.outcome == NodeOutcome::Completed && call.rule.is_none();
    let mut good = calls.filter(completed);
    if good.clone().any(|call| call.nonce == spoilt.nonce && call.node != spoilt.node) {
        return Some(Because::RotatedToOtherNode);
    }
    if good.clone().any(|call| call.nonce == spoilt.nonce) {
        return Some(Because::SameNodeLater);
    }
    if good.any(|call| call.nonce != spoilt.nonce) {
        return Some(Because::RetriedOnOtherHost);
    }
    match rules.get(hit).map(|rule| &rule.action) {
        Some(FaultAction::Node(
            NodeFault::DelayHeaders(_)
            | NodeFault::DelayFirstContent(_)
            | NodeFault::SlowTokens(_)
            | NodeFault::Stall(_),
        )) => Some(Because::DelayedOnly),
        _ => Some(Because::Invisible),
    }
}
