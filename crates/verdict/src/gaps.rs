//! Lines that are not there. Each file is held against another source of the same fact: what one of them lacks was
//! lost, and what was lost must be unknown, never a pass and never a fail.

use evidence::event::EventKind;
use evidence::record::ClientClass;
use evidence::rundir::{ACCOUNTING, DAPI_CALLS, NODE_CALLS, PLAN, REQUESTS};
use evidence::snapshot::Snapshot;
use scenario::control::NodeCounters;

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

/// The plan has each index once: its length is in `run.yaml`. A replay of one request alone has its line only.
fn plan(evidence: &Evidence) -> Option<String> {
    if let Some(only) = evidence.run.repro_of.as_ref().and_then(|of| of.only) {
        let whole = evidence.plan.len() == 1 && evidence.plan.has(only);
        return (!whole).then(|| format!("not the one line {only} that was to be replayed"));
    }
    let wanted = evidence.run.resolved.requests_max;
    let whole = evidence.plan.is_whole(wanted);
    (!whole).then(|| format!("{} lines that are not the {wanted} lines of the plan", evidence.plan.len()))
}

/// Loadgen writes a record for every planned request, when it comes to its end. Before that, absence proves nothing; and
/// lines that it counted and that are not there were lost after it had written them.
fn records(evidence: &Evidence) -> Option<String> {
    let there = evidence.records.len() + evidence.records.repeated.len() as u64;
    let written = evidence.events.iter().find_map(|event| match event.event {
        EventKind::LoadEnded { records, .. } => Some(records),
        _ => None,
    });
    if let Some(written) = written.filter(|written| *written > there) {
        let first = evidence.plan.indexes().find(|index| !evidence.records.has(*index));
        let first = first.map_or_else(|| "none".to_owned(), |index| evidence.planned_id(index));
        let next = there + 1;
        return Some(format!(
            "it ends after {there} of the {written} records that loadgen wrote: line {next} is the first that is \
             missing, and the first planned request without one is {first}"
        ));
    }
    let short = evidence.plan.indexes().any(|index| !evidence.records.has(index));
    let ended = evidence.events.iter().find_map(|event| match event.event {
        EventKind::LoadEnded { partial, records_dropped, .. } => Some((partial, records_dropped)),
        _ => None,
    });
    match ended {
        Some((_, lost @ 1..)) if short => Some(format!("{lost} client records could not be kept")),
        None if short => Some("not every planned request has a record, and loadgen did not end".to_owned()),
        Some((true, _)) if short => {
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
        .filter(|(index, record)| !unoffered(record.client_class) && evidence.joined.get(*index).is_none());
    let (first, _) = without.next()?;
    Some(format!("{} requests have no line, the first is {}", without.count() + 1, evidence.id(first)))
}

/// A snapshot of counters that was taken before the logs were read for the last time.
fn counters(evidence: &Evidence) -> Option<&Snapshot> {
    evidence.snapshots.values().next_back()
}

/// Calls that the node's own counters or the join know, and the log doesn't.
fn node_calls(evidence: &Evidence) -> Option<String> {
    let nodes = counters(evidence).and_then(|snapshot| snapshot.openai.as_ref());
    for node in nodes.into_iter().flat_map(|stats| &stats.nodes) {
        let counted = total(&node.execution) + total(&node.validation);
        let ended = evidence.name(&node.name).and_then(|name| evidence.calls.ended.get(&name));
        let logged = ended.copied().unwrap_or_default();
        // The log is read later, and counters begin anew with a restarted mock: only fewer lines are a loss.
        if logged < counted {
            return Some(format!("{} ended calls at {}, the node counted {counted}", logged, node.name));
        }
    }
    let place = evidence.calls.not_as_joined?;
    let call = evidence.joined.call_at(place)?;
    let id = evidence.joined.owner_of_call(place).map(|index| evidence.joined_id(index)).unwrap_or_default();
    Some(format!("call {} of {id} at {} is not as joined", call.call, evidence.names.word(call.node)))
}

fn total(counters: &NodeCounters) -> u64 {
    counters.completed + counters.failed.values().sum::<u64>() + counters.client_cancelled + counters.rejected
}

/// Locks that the allocator counted, and its log doesn't have.
fn dapi_calls(evidence: &Evidence) -> Option<String> {
    let stats = counters(evidence).and_then(|snapshot| snapshot.dapi.as_ref())?;
    let granted = evidence.allocator.granted();
    if granted < stats.acquisitions {
        return Some(format!("{granted} granted locks, the allocator counted {}", stats.acquisitions));
    }
    let released = evidence.allocator.released();
    (released < stats.releases)
        .then(|| format!("{released} released locks, the allocator counted {}", stats.releases))
}
