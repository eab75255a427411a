//! Lines that are not there. Each file is held against another source of the same fact: what one of them lacks was
//! lost, and what was lost must be unknown, never a pass and never a fail.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use evidence::event::EventKind;
use evidence::record::ClientClass;
use evidence::rundir::{ACCOUNTING, DAPI_CALLS, NODE_CALLS, PLAN, REQUESTS};
use evidence::snapshot::Snapshot;
use scenario::control::{NodeCall, NodeCounters};
use scenario::fault::DapiCall;

use crate::load::Evidence;

/// Notes every gap under the file that has it. What a file says about itself comes first and stays.
pub(crate) fn note(evidence: &mut Evidence) {
    let found = [
        (PLAN, plan(evidence)),
        (REQUESTS, records(evidence)),
        (ACCOUNTING, joined(evidence)),
        (NODE_CALLS, node_calls(evidence)),
        (DAPI_CALLS, dapi_calls(evidence)),
    ];
    for (file, gap) in found {
        if let Some(gap) = gap {
            evidence.missing.entry(file.to_owned()).or_insert(gap);
        }
    }
}

/// The plan has each index once: its length is in `run.yaml`.
fn plan(evidence: &Evidence) -> Option<String> {
    let wanted = evidence.run.resolved.requests_max;
    let whole = evidence.plan.iter().map(|line| line.index).eq(0..wanted);
    (!whole).then(|| format!("{} lines that are not the {wanted} lines of the plan", evidence.plan.len()))
}

/// Loadgen writes a record for every planned request, when it comes to its end. Before that, absence proves nothing.
fn records(evidence: &Evidence) -> Option<String> {
    let short = evidence.plan.iter().any(|line| !evidence.records.contains_key(&line.index));
    let ended = evidence.events.iter().find_map(|event| match event.event {
        EventKind::LoadEnded { partial, .. } => Some(partial),
        _ => None,
    });
    match ended {
        None if short => Some("not every planned request has a record, and loadgen did not end".to_owned()),
        Some(true) if short => {
            Some("not every planned request has a record, and loadgen was stopped".to_owned())
        }
        _ => None,
    }
}

/// The runner writes one joined line for each record.
fn joined(evidence: &Evidence) -> Option<String> {
    let unoffered = |class| {
        matches!(class, ClientClass::NotOffered | ClientClass::GeneratorPorts | ClientClass::GeneratorFds)
    };
    let mut without = evidence
        .records
        .iter()
        .filter(|(index, record)| !unoffered(record.client_class) && !evidence.joined.contains_key(index));
    let (_, first) = without.next()?;
    Some(format!("{} requests have no line, the first is {}", without.count() + 1, first.id))
}

/// A snapshot of counters that was taken before the logs were read for the last time.
fn counters(evidence: &Evidence) -> Option<&Snapshot> {
    evidence.snapshots.values().next_back()
}

/// Calls that the node's own counters or the join know, and the log doesn't.
fn node_calls(evidence: &Evidence) -> Option<String> {
    let mut ended: BTreeMap<&str, u64> = BTreeMap::new();
    let mut by_identity: HashMap<(&str, u64), &NodeCall> = HashMap::new();
    for call in evidence.calls.iter().filter(|call| call.ended_us.is_some()) {
        *ended.entry(&call.node).or_default() += 1;
        by_identity.insert((&call.node, call.call), call);
    }
    let nodes = counters(evidence).and_then(|snapshot| snapshot.openai.as_ref());
    for node in nodes.into_iter().flat_map(|stats| &stats.nodes) {
        let counted = total(&node.execution) + total(&node.validation);
        let logged = ended.get(node.name.as_str()).copied().unwrap_or_default();
        // The log is read later, and counters begin anew with a restarted mock: only fewer lines are a loss.
        if logged < counted {
            return Some(format!("{} ended calls at {}, the node counted {counted}", logged, node.name));
        }
    }
    for joined in evidence.joined.values() {
        for call in &joined.calls {
            let same = by_identity.get(&(call.node.as_str(), call.call)).is_some_and(|logged| {
                logged.seed == call.nonce && logged.rule == call.rule && logged.status == call.status
            });
            if !same {
                return Some(format!(
                    "call {} of {} at {} is not as joined",
                    call.call, joined.id, call.node
                ));
            }
        }
    }
    None
}

fn total(counters: &NodeCounters) -> u64 {
    counters.completed + counters.failed.values().sum::<u64>() + counters.client_cancelled + counters.rejected
}

/// Locks that the allocator counted, and its log doesn't have.
fn dapi_calls(evidence: &Evidence) -> Option<String> {
    let stats = counters(evidence).and_then(|snapshot| snapshot.dapi.as_ref())?;
    let logged = |call: DapiCall, result: &str| {
        let entries = evidence.dapi.iter().filter(|entry| entry.call == call && entry.result == result);
        entries.map(|entry| entry.seq).collect::<BTreeSet<_>>().len() as u64
    };
    let granted = logged(DapiCall::Acquire, "granted");
    if granted < stats.acquisitions {
        return Some(format!("{granted} granted locks, the allocator counted {}", stats.acquisitions));
    }
    let released = logged(DapiCall::Release, "released");
    (released < stats.releases)
        .then(|| format!("{released} released locks, the allocator counted {}", stats.releases))
}
