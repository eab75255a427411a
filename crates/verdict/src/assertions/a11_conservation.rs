//! A11 `conservation`: the sums close.
//!
//! Reasons: `two-records`, `unplanned-record`, `class-sum`, `record-count` (loadgen wrote another number of records), `outcome-pair` (client and accounting contradict each other), `race-sum`
//! (gateway races are not accepted minus cache hits), `call-without-lock`, `lock-for-another-node`,
//! `lock-without-call`. Source: design section 7.

use std::collections::{BTreeMap, BTreeSet};

use evidence::assertion::{AssertionId, EvidenceRef, Witness};
use evidence::event::EventKind;
use evidence::record::ClientClass;
use evidence::rundir::{ACCOUNTING, DAPI_CALLS, EVENTS, NODE_CALLS, PLAN, REQUESTS};
use evidence::snapshot::{Moment, Snapshot};
use scenario::fault::{DapiCall, FaultAction};
use scenario::model::ServiceAction;

use super::{Assertion, Case, about_request, snapshot_file};
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion = Assertion {
    id: AssertionId::A11,
    inputs: &[PLAN, REQUESTS, ACCOUNTING, EVENTS],
    unit: "requests, calls and locks",
    judge,
};

/// Which accounting outcome goes with what the client saw. `None`: any.
const fn pair(class: ClientClass) -> Option<&'static str> {
    match class {
        // A check of the scenario failed: for the gateway that was a success.
        ClientClass::Ok | ClientClass::CheckFailed => Some("success"),
        ClientClass::HttpError
        | ClientClass::InBandError
        | ClientClass::Truncated
        | ClientClass::Malformed
        | ClientClass::ConnectionLost => Some("failed"),
        _ => None,
    }
}

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    records(case, sheet);
    pairs(case, sheet);
    races(case, sheet);
    locks(case, sheet);
}

fn records(case: &Case<'_>, sheet: &mut Sheet) {
    let evidence = case.evidence;
    sheet.looked(evidence.records.len() as u64);
    for index in &evidence.repeated_records {
        let id = evidence.records.get(index).map_or("", |record| record.id.as_str());
        sheet.witness(about_request(
            "two-records",
            format!("{id} has more than one client record"),
            id,
            REQUESTS,
        ));
    }
    let mut classes = 0;
    for line in &evidence.plan {
        match evidence.records.get(&line.index) {
            Some(record) if record.id == line.id => classes += 1,
            Some(record) => {
                let text = format!("the record of {} says it is {}", line.id, record.id);
                sheet.witness(about_request("unplanned-record", text, record.id.as_str(), REQUESTS));
            }
            None => {}
        }
    }
    let planned: BTreeSet<u64> = evidence.plan.iter().map(|line| line.index).collect();
    for record in evidence.records.values().filter(|record| !planned.contains(&record.index)) {
        let text = format!("{} has a record and is not planned", record.id);
        sheet.witness(about_request("unplanned-record", text, record.id.as_str(), REQUESTS));
    }
    if classes != evidence.plan.len() {
        let first = evidence.plan.iter().find(|line| !evidence.records.contains_key(&line.index));
        let text = format!("{} requests are planned, {classes} have a class", evidence.plan.len());
        let mut witness = Witness::new("class-sum", text);
        witness.subject = first.map(|line| line.id.as_str().to_owned());
        witness.evidence.push(EvidenceRef { file: PLAN.to_owned(), at: "all lines".to_owned() });
        sheet.witness(witness);
    }
    written(case, sheet);
}

/// Loadgen's own count of its records against the file; a repeated line is reported by its id already.
fn written(case: &Case<'_>, sheet: &mut Sheet) {
    let kept = case.evidence.records.len() as u64;
    for event in &case.evidence.events {
        let EventKind::LoadEnded { records, .. } = event.event else { continue };
        sheet.looked(1);
        if records != kept && case.evidence.repeated_records.is_empty() {
            let text = format!("loadgen wrote {records} records, {kept} are there");
            let mut witness = Witness::new("record-count", text);
            witness.service = Some("loadgen".to_owned());
            witness.evidence.push(EvidenceRef { file: EVENTS.to_owned(), at: format!("seq={}", event.seq) });
            sheet.witness(witness);
        }
    }
}

fn pairs(case: &Case<'_>, sheet: &mut Sheet) {
    for (index, joined) in &case.evidence.joined {
        let (Some(record), Some(row)) = (case.evidence.records.get(index), &joined.accounting) else {
            continue;
        };
        let Some(wanted) = pair(record.client_class) else { continue };
        if joined.cached || !matches!(row.outcome.as_str(), "success" | "failed") {
            continue;
        }
        if row.outcome != wanted {
            let class = record.client_class.word();
            let text = format!("{}: the client saw {class}, accounting says {}", joined.id, row.outcome);
            let mut witness = about_request("outcome-pair", text, &joined.id, ACCOUNTING);
            witness.escrow = Some(row.escrow.clone());
            witness.nonce = row.winner_nonce.or_else(|| row.attempts.first().map(|attempt| attempt.nonce));
            witness.detail.insert("client".to_owned(), class.into());
            witness.detail.insert("accounting".to_owned(), row.outcome.clone().into());
            sheet.witness(witness);
        }
    }
}

/// Races counted by the gateway between the first snapshot (after the canaries) and sync.
fn races(case: &Case<'_>, sheet: &mut Sheet) {
    let (before, after) =
        match (case.evidence.snapshot(Moment::Before), case.evidence.snapshot(Moment::DrainSynced)) {
            (Ok(before), Ok(after)) => (before, after),
            (Err(missing), _) | (_, Err(missing)) => {
                sheet.missing(missing);
                return;
            }
        };
    if acted_on(case, "gateway") {
        return;
    }
    let races = |snapshot: &Snapshot| -> f64 {
        let series = snapshot.gateway_metrics.iter().filter(|(series, _)| is_race(series));
        series.map(|(_, value)| value).sum()
    };
    let accepted = case.evidence.joined.values().filter(|joined| joined.accepted && !joined.cached).count();
    let shown = |snapshot: &Snapshot| snapshot.gateway_metrics.keys().any(|series| is_race(series));
    // Before the load a counter may not exist yet; the other series then show that the page was read.
    if before.gateway_metrics.is_empty() || (accepted > 0 && !shown(after)) {
        sheet.missing("counters of the gateway before the load and after sync");
        return;
    }
    let counted = races(after) - races(before);
    sheet.looked(1);
    if (counted - accepted as f64).abs() > 0.5 {
        let text =
            format!("the gateway counted {counted} races, {accepted} requests were accepted and not cached");
        let mut witness = Witness::new("race-sum", text);
        witness.service = Some("gateway".to_owned());
        let file = snapshot_file(Moment::DrainSynced);
        witness.evidence.push(EvidenceRef { file, at: "devshard_gateway_requests_total".to_owned() });
        sheet.witness(witness);
    }
}

fn is_race(series: &str) -> bool {
    series.starts_with("devshard_gateway_requests_total{")
        && (series.contains("outcome=\"success\"") || series.contains("outcome=\"failed\""))
}

fn acted_on(case: &Case<'_>, service: &str) -> bool {
    case.evidence.run.resolved.scenario.actions.iter().any(|action| match &action.action {
        ServiceAction::Stop(name)
        | ServiceAction::Start(name)
        | ServiceAction::Kill(name)
        | ServiceAction::Pause(name)
        | ServiceAction::Restart(name) => name == service,
        _ => false,
    })
}

fn locks(case: &Case<'_>, sheet: &mut Sheet) {
    let evidence = case.evidence;
    let gone = evidence.missing_of(&[NODE_CALLS, DAPI_CALLS]);
    if !gone.is_empty() {
        // A lost line looks like a stolen lock.
        gone.into_iter().for_each(|input| sheet.missing(input));
        return;
    }
    let granted: BTreeMap<&str, &str> = evidence
        .dapi
        .iter()
        .filter(|call| call.call == DapiCall::Acquire && call.result == "granted")
        .filter_map(|call| Some((call.lock.as_deref()?, call.node.as_deref()?)))
        .collect();
    let mut used: BTreeSet<&str> = BTreeSet::new();
    // Without an allocator hosts fall back to nodes they know (contract mocks 4).
    let dapi_faults = acted_on(case, "mock-dapi")
        || evidence
            .run
            .resolved
            .scenario
            .faults
            .iter()
            .any(|rule| matches!(rule.action, FaultAction::Dapi(_)));
    for call in &evidence.calls {
        sheet.looked(1);
        let id = call.request_id.as_deref().unwrap_or("a call outside the plan");
        let found = match call.lock.as_deref() {
            None => Some(("call-without-lock", format!("{id} reached {} without a lock", call.node))),
            Some(lock) => {
                used.insert(lock);
                match granted.get(lock) {
                    None => Some((
                        "call-without-lock",
                        format!("{id} reached {} with lock {lock}, never granted", call.node),
                    )),
                    Some(node) if *node != call.node => Some((
                        "lock-for-another-node",
                        format!("{id} reached {} with a lock for {node}", call.node),
                    )),
                    Some(_) => None,
                }
            }
        };
        if let Some(("call-without-lock", _)) = found
            && dapi_faults
        {
            let text = "calls at nodes that hosts know already, while the allocator was faulted";
            sheet.information("cached-nodes", text, 1);
            continue;
        }
        if let Some((reason, text)) = found {
            let mut witness = about_request(reason, text, id, NODE_CALLS);
            witness.request_id = call.request_id.clone();
            witness.nonce = call.seed;
            witness.service = Some(call.node.clone());
            sheet.witness(witness);
        }
    }
    unused(case, &granted, &used, sheet);
}

/// A lock may stay unused while a fault or an action stands between allocator and node.
fn unused(case: &Case<'_>, granted: &BTreeMap<&str, &str>, used: &BTreeSet<&str>, sheet: &mut Sheet) {
    let scenario = &case.evidence.run.resolved.scenario;
    let explained = !scenario.actions.is_empty()
        || scenario.faults.iter().any(|rule| !matches!(rule.action, FaultAction::Node(_)));
    for (lock, node) in granted {
        sheet.looked(1);
        if !used.contains(lock) {
            if explained {
                sheet.information(
                    "unused-locks",
                    "locks without a call while a fault or action window was open",
                    1,
                );
                continue;
            }
            let mut witness =
                Witness::new("lock-without-call", format!("lock {lock} for {node} was never used"));
            witness.service = Some((*node).to_owned());
            witness.evidence.push(EvidenceRef { file: DAPI_CALLS.to_owned(), at: format!("lock={lock}") });
            sheet.witness(witness);
        }
    }
}
