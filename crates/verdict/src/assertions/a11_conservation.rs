//! A11 `conservation`: the sums close.
//!
//! Reasons: `two-records`, `unplanned-record`, `class-sum`, `record-count` (loadgen wrote another number of records), `outcome-pair` (client and accounting contradict each other), `race-sum`
//! (gateway races are not accepted minus cache hits), `call-without-lock`, `lock-for-another-node`,
//! `lock-without-call`. Source: design section 7.

use evidence::assertion::{AssertionId, EvidenceRef, Witness};
use evidence::event::EventKind;
use evidence::record::ClientClass;
use evidence::rundir::{ACCOUNTING, DAPI_CALLS, EVENTS, NODE_CALLS, PLAN, REQUESTS};
use evidence::snapshot::{Moment, Snapshot};
use scenario::fault::FaultAction;
use scenario::model::ServiceAction;

use super::{Assertion, Case, about_request, snapshot_file};
use crate::calls::LockFault;
use crate::rules;
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
    after_cancel(case, sheet);
    races(case, sheet);
    locks(case, sheet);
}

fn records(case: &Case<'_>, sheet: &mut Sheet) {
    let evidence = case.evidence;
    sheet.looked(evidence.records.len());
    for index in &evidence.records.repeated {
        let id = evidence.id(*index);
        let text = format!("{id} has more than one client record");
        sheet.witness(about_request("two-records", text, &id, REQUESTS));
    }
    let mut classes = 0;
    let mut first = None;
    for index in evidence.plan.indexes() {
        if !evidence.records.has(index) {
            first = first.or(Some(index));
            continue;
        }
        if evidence.records.odd_id(index) == evidence.plan.odd_id(index) {
            classes += 1;
        } else {
            let (id, planned) = (evidence.id(index), evidence.planned_id(index));
            let text = format!("the record of {planned} says it is {id}");
            sheet.witness(about_request("unplanned-record", text, &id, REQUESTS));
        }
    }
    for (index, _) in evidence.records.iter().filter(|(index, _)| !evidence.plan.has(*index)) {
        let id = evidence.id(index);
        let text = format!("{id} has a record and is not planned");
        sheet.witness(about_request("unplanned-record", text, &id, REQUESTS));
    }
    if classes != evidence.plan.len() {
        let text = format!("{} requests are planned, {classes} have a class", evidence.plan.len());
        let mut witness = Witness::new("class-sum", text);
        witness.subject = first.map(|index| evidence.planned_id(index));
        witness.evidence.push(EvidenceRef { file: PLAN.to_owned(), at: "all lines".to_owned() });
        sheet.witness(witness);
    }
    written(case, sheet);
}

/// Loadgen's own count of its records against the file; a repeated line is reported by its id already, and with fewer
/// lines than it wrote the file is a missing input.
fn written(case: &Case<'_>, sheet: &mut Sheet) {
    let kept = case.evidence.records.len();
    for event in &case.evidence.events {
        let EventKind::LoadEnded { records, .. } = event.event else { continue };
        sheet.looked(1);
        if records != kept && case.evidence.records.repeated.is_empty() {
            let text = format!("loadgen wrote {records} records, {kept} are there");
            let mut witness = Witness::new("record-count", text);
            witness.service = Some("loadgen".to_owned());
            witness.evidence.push(EvidenceRef { file: EVENTS.to_owned(), at: format!("seq={}", event.seq) });
            sheet.witness(witness);
        }
    }
}

fn pairs(case: &Case<'_>, sheet: &mut Sheet) {
    let (evidence, names) = (case.evidence, &case.evidence.names);
    for (index, joined) in evidence.joined.iter() {
        let (Some(record), Some(outcome)) = (evidence.records.get(index), names.maybe(joined.outcome)) else {
            continue;
        };
        if record.client_class == ClientClass::Cancelled && outcome == "success" {
            let text = "clients closed early, and the work ran on to its end and full cost, which the contract allows \
                        (contract gateway 4.6, finding J17)";
            sheet.information("work-after-cancel", text, 1);
        }
        let Some(wanted) = pair(record.client_class) else { continue };
        if joined.cached || !matches!(outcome, "success" | "failed") || outcome == wanted {
            continue;
        }
        let class = record.client_class.word();
        let id = evidence.joined_id(index);
        let text = format!("{id}: the client saw {class}, accounting says {outcome}");
        let mut witness = about_request("outcome-pair", text, &id, ACCOUNTING);
        witness.escrow = names.maybe(joined.row_escrow).map(str::to_owned);
        witness.nonce = evidence.joined.nonce(joined);
        witness.detail.insert("client".to_owned(), class.into());
        witness.detail.insert("accounting".to_owned(), outcome.into());
        sheet.witness(witness);
    }
}

/// What a cancel did not end, in the words of finding J17. The times are the least: see `AfterCancel`.
fn after_cancel(case: &Case<'_>, sheet: &mut Sheet) {
    let after = case.evidence.calls.after_cancel;
    let text = "milliseconds at least that nodes worked on for requests after their clients had cancelled them, which the \
                contract allows (contract gateway 4.9, finding J17)";
    sheet.information("work-after-cancel-ms", text, after.least_us / 1_000);
    let text =
        "tokens that nodes made for cancelled requests and no client got (contract gateway 4.9, finding J17)";
    sheet.information("work-after-cancel-tokens", text, after.tokens);
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
    let accepted = case.evidence.joined.iter().filter(|(_, joined)| joined.accepted && !joined.cached);
    let mut accepted = accepted.count() as u64;
    if case.rule_on(rules::PREPARE_FAILURE) {
        let indexes = case.evidence.joined.iter().map(|(index, _)| index);
        let unstarted = indexes.filter(|index| case.evidence.is_prepare_failure(*index)).count() as u64;
        sheet.rule(rules::PREPARE_FAILURE, unstarted);
        accepted -= unstarted;
    }
    let shown = |snapshot: &Snapshot| snapshot.gateway_metrics.keys().any(|series| is_race(series));
    // Before the load a counter may not exist yet; the other series then show that the page was read.
    if before.gateway_metrics.is_empty() || (accepted > 0 && !shown(after)) {
        sheet.missing("counters of the gateway before the load and after sync");
        return;
    }
    let counted = races(after) - races(before);
    sheet.looked(1);
    if evidence_of_others(case, counted, accepted) {
        sheet.information(
            "races-of-others",
            "races that this run did not ask for",
            (counted as u64) - accepted,
        );
        return;
    }
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

/// On a running environment others may have asked for the races that are too many.
fn evidence_of_others(case: &Case<'_>, counted: f64, accepted: u64) -> bool {
    case.evidence.is_attached() && counted > accepted as f64 + 0.5
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
        | ServiceAction::Restart(name)
        | ServiceAction::Disconnect(name) => name == service,
        _ => false,
    })
}

fn locks(case: &Case<'_>, sheet: &mut Sheet) {
    let (evidence, names) = (case.evidence, &case.evidence.names);
    let gone = evidence.missing_of(&[NODE_CALLS, DAPI_CALLS]);
    if !gone.is_empty() {
        // A lost line looks like a stolen lock.
        gone.into_iter().for_each(|input| sheet.missing(input));
        return;
    }
    sheet.looked(evidence.calls.looked);
    // Without an allocator hosts fall back to nodes they know.
    let faulted = evidence.calls.dapi_faulted || acted_on(case, "mock-dapi");
    let excused = faulted && case.rule_on(rules::CACHED_NODE);
    for stray in &evidence.calls.strays {
        if excused && matches!(stray.fault, LockFault::Missing(_)) {
            sheet.rule(rules::CACHED_NODE, 1);
            continue;
        }
        let id = stray.request_id.as_deref().unwrap_or("a call outside the plan");
        let node = names.word(stray.node);
        let (reason, text) = match &stray.fault {
            LockFault::Missing(None) => ("call-without-lock", format!("{id} reached {node} without a lock")),
            LockFault::Missing(Some(lock)) => {
                ("call-without-lock", format!("{id} reached {node} with lock {lock}, never granted"))
            }
            LockFault::OfNode(of) => {
                let text = format!("{id} reached {node} with a lock for {}", names.word(*of));
                ("lock-for-another-node", text)
            }
        };
        let mut witness = about_request(reason, text, id, NODE_CALLS);
        witness.request_id = stray.request_id.clone();
        witness.nonce = stray.seed;
        witness.service = Some(node.to_owned());
        sheet.witness(witness);
    }
    unused(case, sheet);
}

/// A lock may stay unused while a fault or an action stands between allocator and node, and when it was given back as
/// one that did not reach its node: the answer came too late, or the node took no connection (contract mocks 4.3).
fn unused(case: &Case<'_>, sheet: &mut Sheet) {
    let scenario = &case.evidence.run.resolved.scenario;
    let explained = !scenario.actions.is_empty()
        || scenario.faults.iter().any(|rule| !matches!(rule.action, FaultAction::Node(_)));
    sheet.looked(case.evidence.allocator.locks());
    for (lock, node, given_back) in case.evidence.allocator.unused() {
        if given_back {
            let text = "locks without a call that were given back as not having reached their node";
            sheet.information("locks-given-back", text, 1);
            continue;
        }
        if explained {
            let text = "locks without a call while a fault or action window was open";
            sheet.information("unused-locks", text, 1);
            continue;
        }
        let node = case.evidence.names.word(node);
        let mut witness = Witness::new("lock-without-call", format!("lock {lock} for {node} was never used"));
        witness.service = Some(node.to_owned());
        witness.evidence.push(EvidenceRef { file: DAPI_CALLS.to_owned(), at: format!("lock={lock}") });
        sheet.witness(witness);
    }
}
