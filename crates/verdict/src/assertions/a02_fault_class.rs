//! A2 `fault-class`: what a fault touched ends as its `expect` says; what nothing touched succeeds.
//!
//! Reasons: `outside-expect` (class, reason, status or ending not allowed), `untouched-failed`, `untouched-rejected`,
//! `untouched-cancelled`. Unknown when the two fault sources disagree, when a rule hit nothing, when a planned action did
//! not take place, or when fewer requests were hit than `minimum.fault_hits`. Source: design section 6.

use std::collections::{BTreeMap, HashSet};

use evidence::assertion::AssertionId;
use evidence::event::EventKind;
use evidence::record::ClientClass;
use evidence::rundir::{ACCOUNTING, CHAIN_CALLS, FAULTS_APPLIED, HITS, NODE_CALLS, PLAN, REQUESTS};
use evidence::snapshot::Moment;
use scenario::fault::{CallKind, FaultAction, RequestClass};
use scenario::model::ServiceAction;

use super::{Assertion, Case, about_request};
use crate::calls::Who;
use crate::health;
use crate::sheet::Sheet;
use crate::table::Fast;

pub(super) const ASSERTION: Assertion = Assertion {
    id: AssertionId::A2,
    inputs: &[PLAN, REQUESTS, ACCOUNTING, HITS, NODE_CALLS, FAULTS_APPLIED],
    unit: "requests with a class",
    judge,
};

/// Ends of chat requests at a host (contract hosts 8).
const CHATS: &str = "devshard_request_terminal_total";
/// Differences of the oracle that are printed; the rest are counted.
const DIFFERENCES_NAMED_MAX: usize = 5;
/// Characters of an error message that a witness repeats.
const SAID_MAX: usize = 160;

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    oracle(case, sheet);
    actions(case, sheet);
    amounts(case, sheet);
    for (index, decided) in case.decided.iter() {
        if matches!(decided.class, RequestClass::NotOffered | RequestClass::Dropped) {
            continue;
        }
        sheet.looked(1);
        let Some(record) = case.evidence.records.get(index) else { continue };
        if decided.allowed {
            let cut = record.stream && record.client_class == ClientClass::InBandError;
            if decided.touched && cut && case.evidence.hits_of(index).next().is_none() {
                let text = "streams that no rule hit ended with an error event and no end marker while an action or an \
                            outage was on, as the scenario allows; their rows stay running until the protocol's timeout \
                            (contract gateway 4.6, finding J19)";
                sheet.information("cut-by-action", text, 1);
            }
            continue;
        }
        let id = case.evidence.id(index);
        if case.oracle.disputed.contains(&id) {
            continue;
        }
        // In a search level what nothing touched counts in the error rate of the level (design section 7).
        if !decided.touched && case.evidence.run.resolved.scenario.workload.search.is_some() {
            continue;
        }
        let rules = case.evidence.rules_of(index);
        let class = word(&decided.class);
        let because = decided.because.map_or_else(|| "no reason seen".to_owned(), |reason| word(&reason));
        let said = case.evidence.records.reasons.get(&index);
        // The gateway's own words tell one cause of a failure from another.
        let said = said.map(|said| format!(": {:?}", said.chars().take(SAID_MAX).collect::<String>()));
        let said = said.unwrap_or_default();
        let (reason, text) = if decided.touched {
            let by = if rules.is_empty() { "its cancel or a window".to_owned() } else { rules.join(", ") };
            ("outside-expect", format!("{id} was touched by {by} and ended as {class} ({because}){said}"))
        } else {
            let reason = match decided.class {
                RequestClass::Rejected => "untouched-rejected",
                RequestClass::Cancelled => "untouched-cancelled",
                _ => "untouched-failed",
            };
            (reason, format!("{id} was touched by no fault and ended as {class} ({because}){said}"))
        };
        let mut witness = about_request(reason, text, &id, REQUESTS);
        witness.subject = rules.first().map(|rule| (*rule).to_owned());
        witness.detail.insert("class".to_owned(), class.into());
        witness.detail.insert("because".to_owned(), because.into());
        witness.detail.insert("status".to_owned(), record.status.into());
        witness.detail.insert("client_class".to_owned(), record.client_class.word().into());
        sheet.witness(witness);
    }
}

fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => String::new(),
    }
}

fn oracle(case: &Case<'_>, sheet: &mut Sheet) {
    let faults = &case.evidence.run.resolved.scenario.faults;
    // Without such a rule nobody needs that log.
    if faults.iter().any(|rule| matches!(rule.action, FaultAction::Chain(_))) {
        case.evidence.missing_of(&[CHAIN_CALLS]).into_iter().for_each(|input| sheet.missing(input));
    }
    for difference in case.oracle.differences.iter().take(DIFFERENCES_NAMED_MAX) {
        sheet.missing(format!("plan and hit log disagree: {difference}"));
    }
    let total = case.oracle.differences_total;
    if total > DIFFERENCES_NAMED_MAX as u64 {
        sheet.missing(format!("plan and hit log disagree {total} times in all"));
    }
}

/// Each planned action is done once, without an error: what it should show was not tested otherwise.
fn actions(case: &Case<'_>, sheet: &mut Sheet) {
    let events = &case.evidence.events;
    for (ordinal, action) in case.evidence.run.resolved.scenario.actions.iter().enumerate() {
        let what = serde_json::to_string(&action.action).unwrap_or_default();
        let mut done = events.iter().filter_map(|event| match &event.event {
            EventKind::ActionDone { action, error, .. } if *action == ordinal => Some(error.as_deref()),
            _ => None,
        });
        match done.next() {
            Some(None) => {}
            Some(Some(error)) => sheet.missing(format!("action {ordinal} {what} failed: {error}")),
            None => {
                let after = serde_json::to_string(&action.after).unwrap_or_default();
                let why = "its trigger was not reached, or the one of an action before it";
                sheet.missing(format!("action {ordinal} {what} did not take place: {why} (after {after})"));
            }
        }
    }
}

fn amounts(case: &Case<'_>, sheet: &mut Sheet) {
    let scenario = &case.evidence.run.resolved.scenario;
    let mut all: HashSet<Who, Fast> = HashSet::default();
    let mut hits: BTreeMap<&str, u64> = BTreeMap::new();
    for hit in case.evidence.hits.iter() {
        *hits.entry(case.evidence.names.word(hit.rule)).or_default() += 1;
    }
    for rule in &scenario.faults {
        if !hits.contains_key(rule.id.as_str()) {
            sheet.missing(format!("rule {} hit nothing: what it should show was not tested", rule.id));
        }
        if matches!(rule.action, FaultAction::Node(_)) && rule.on == CallKind::Execution {
            all.extend(case.oracle.hit_ids.get(&rule.id).into_iter().flatten().copied());
        }
    }
    if let Some(minimum) = scenario.minimum.fault_hits
        && (all.len() as u64) < minimum
    {
        sheet.missing(format!("{} distinct requests were hit, minimum.fault_hits is {minimum}", all.len()));
    }
    for (class, least) in &scenario.minimum.classes {
        let seen = case.decided.values().filter(|decided| decided.class == *class).count() as u64;
        if seen < *least {
            let class = word(class);
            sheet.missing(format!("{seen} requests ended as {class}, minimum.classes wants {least}"));
        }
    }
    if let Some(least) = scenario.minimum.cached {
        let seen = case.evidence.joined.iter().filter(|(_, joined)| joined.cached).count() as u64;
        if seen < least {
            sheet.missing(format!("{seen} answers came from the cache, minimum.cached is {least}"));
        }
    }
    if let Some(least) = scenario.minimum.settled {
        match settled(case) {
            Ok(seen) if seen >= least => {}
            Ok(seen) => sheet.missing(format!("{seen} escrows were settled, minimum.settled is {least}")),
            Err(missing) => sheet.missing(missing),
        }
    }
    if let Some(least) = scenario.minimum.resumed {
        match resumed(case) {
            Ok(seen) if seen >= least => {}
            Ok(seen) => sheet.missing(format!(
                "{seen} chats were taken by hosts that were started under load, minimum.resumed is {least}"
            )),
            Err(missing) => sheet.missing(missing),
        }
    }
    let cancelled =
        case.decided.values().filter(|decided| decided.class == RequestClass::Cancelled).count() as u64;
    if let Some(minimum) = scenario.minimum.cancelled
        && cancelled < minimum
    {
        sheet.missing(format!("{cancelled} requests were cancelled, minimum.cancelled is {minimum}"));
    }
}

/// Chats that ended at host processes which an action started: all escrows are older than these processes, so each of the
/// chats went on with a session that the process found. The reason, where it can't be seen.
fn resumed(case: &Case<'_>) -> Result<u64, String> {
    let snapshot = case.evidence.snapshot(Moment::DrainPassive)?;
    let actions = &case.evidence.run.resolved.scenario.actions;
    let started = |service: &str| {
        actions.iter().any(|action| match &action.action {
            ServiceAction::Start(name) | ServiceAction::Restart(name) => health::names(name, service),
            _ => false,
        })
    };
    let chats = snapshot
        .host_metrics
        .iter()
        .filter(|(service, _)| started(service))
        .flat_map(|(_, series)| series)
        .filter(|(name, _)| name.split('{').next() == Some(CHATS));
    Ok(chats.map(|(_, value)| *value as u64).sum())
}

/// Escrows that the chain shows as settled at the end and did not show so before the load; the reason, where it can't be
/// seen.
fn settled(case: &Case<'_>) -> Result<u64, String> {
    let at = |moment: Moment| -> Result<&[u64], String> {
        let chain = case.evidence.snapshot(moment)?.chain.as_ref();
        Ok(&chain.ok_or_else(|| format!("the chain at {}: minimum.settled needs it", moment.dir()))?.settled)
    };
    let before = at(Moment::Before)?;
    Ok(at(Moment::DrainFinal)?.iter().filter(|escrow| !before.contains(escrow)).count() as u64)
}
