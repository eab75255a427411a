//! A9 `service-stability`: no required service ends, restarts, becomes unready or stops following the chain outside the
//! planned actions.
//!
//! Reasons: `ended`, `restarted` (another process under the same name), `not-ready`, `health-lost` (looks at its health
//! failed in a row while no action had it down, whether it came back or not), `subscription-lost` (a host that is
//! behind the chain's epoch at the end, july-findings J22), `quarantine-without-cause` and `quarantine-overdue` (the
//! gateway keeps away from a participant, and its own counters and settings do not say why; the named rule
//! `quarantine-left` is for those that they do). A service that an action names may end and come back as
//! another process; its health must be good outside the time of the action all the same. Identity is pid, start time and
//! the start time in its metrics, never health alone. What a probe says before the stack is up is no change. Source:
//! design section 7, contract hosts 11.1 A8.

use std::collections::{BTreeMap, BTreeSet};

use evidence::assertion::{AssertionId, EvidenceRef, Witness};
use evidence::event::{EventKind, Phase};
use evidence::rundir::EVENTS;
use evidence::snapshot::Moment;

use super::{Assertion, Case, snapshot_file};
use crate::health;
use crate::quarantine;
use crate::rules;
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::A9, inputs: &[EVENTS], unit: "looks at required services", judge };

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let planned = planned(case);
    let mut up = false;
    for event in &case.evidence.events {
        match &event.event {
            EventKind::PhaseStarted { phase } => up |= *phase != Phase::Prepare && *phase != Phase::Start,
            EventKind::ProcessExited { service, code, signal, planned: false, .. }
                if service != "loadgen" && !covers(&planned, service) =>
            {
                let how = match (code, signal) {
                    (Some(code), _) => format!("exit code {code}"),
                    (None, Some(signal)) => format!("signal {signal}"),
                    (None, None) => "unknown end".to_owned(),
                };
                sheet.witness(about(
                    "ended",
                    service,
                    format!("{service} ended by itself: {how}"),
                    event.seq,
                ));
            }
            EventKind::Probe { service, ready: false, detail, failed_at_us }
                if up && failed_at_us.is_empty() && !covers(&planned, service) =>
            {
                let detail = detail.as_deref().unwrap_or("no answer");
                sheet.witness(about(
                    "not-ready",
                    service,
                    format!("{service} became unready: {detail}"),
                    event.seq,
                ));
            }
            _ => {}
        }
    }
    identities(case, &planned, sheet);
    health(case, sheet);
    following(case, sheet);
    quarantines(case, sheet);
}

/// Whom the gateway keeps away from at the end. A cause that its counters do not have, or a time that is over, is its
/// own fault; the rest is what failures of this run leave behind, and is told.
fn quarantines(case: &Case<'_>, sheet: &mut Sheet) {
    let scenario = &case.evidence.run.resolved.scenario;
    // Counters of a gateway that was started again begin anew.
    let counted = !scenario.actions.iter().any(|action| action.action.service() == Some("gateway"));
    let throttle = scenario.devshard.settings.get("participant_throttle");
    for left in quarantine::left(&case.evidence.snapshots, throttle, counted) {
        sheet.looked(1);
        let (reason, text) = match left.odd {
            Some((reason, words)) => (reason, words),
            None if case.rule_on(rules::QUARANTINE) => {
                sheet.rule(rules::QUARANTINE, 1);
                let text = format!("{} is left in mode {} by the gateway", left.participant, left.mode);
                sheet.information(&format!("quarantine-left {}", left.participant), &text, 1);
                continue;
            }
            None => ("quarantine-left", "after the run".to_owned()),
        };
        let text = format!("the gateway keeps {} in mode {} {text}", left.participant, left.mode);
        let mut witness = Witness::new(reason, text);
        witness.subject = Some(left.participant);
        witness
            .evidence
            .push(EvidenceRef { file: snapshot_file(Moment::DrainFinal), at: "/gateway_metrics".to_owned() });
        sheet.witness(witness);
    }
}

/// Nobody's health is lost for a while, unless an action explains it.
fn health(case: &Case<'_>, sheet: &mut Sheet) {
    let (events, actions) = (&case.evidence.events, &case.evidence.run.resolved.scenario.actions);
    for row in health::rows(events) {
        let Some(lost) = row.lost(&health::windows(events, actions, row.service)) else { continue };
        let s = |us: u64| us as f64 / 1e6;
        let text = format!(
            "{} failed {} looks at its health in a row, from {:.3} s to {:.3} s of the run: {}",
            row.service,
            lost.count,
            s(lost.first_us),
            s(lost.last_us),
            row.detail
        );
        sheet.witness(about("health-lost", row.service, text, lost.seq));
    }
    for event in events {
        let EventKind::HealthWatched { service, good, failed, unknown, .. } = &event.event else { continue };
        let (name, text) = if *good == 0 {
            // It never showed any health: nothing could be lost, and that is said.
            (format!("health-not-shown {service}"), "its health was never shown, so that a loss is not seen")
        } else {
            sheet.information("health-unknown", "looks while the runner itself had no time", *unknown);
            (
                "health-looks".to_owned(),
                "looks at the health of services from the load to the end of the drain",
            )
        };
        sheet.information(&name, text, good + failed + unknown);
    }
}

/// At the end every host is in the epoch of the chain: blocks reach it, whatever cut it off before.
fn following(case: &Case<'_>, sheet: &mut Sheet) {
    let Ok(snapshot) = case.evidence.snapshot(Moment::DrainFinal) else { return };
    let Some(chain) = &snapshot.chain else { return };
    let first = case.evidence.snapshot(Moment::Before).ok().and_then(|before| before.chain.as_ref());
    let moved = first.is_some_and(|first| first.epoch != chain.epoch);
    for host in &snapshot.hosts {
        let Some(epoch) = host.epoch else {
            if moved {
                sheet.missing(format!("epoch of {} after finalize", host.service));
            }
            continue;
        };
        sheet.looked(1);
        if epoch < chain.epoch {
            let text = format!("{} is in epoch {epoch}, the chain in {}", host.service, chain.epoch);
            let mut witness = Witness::new("subscription-lost", text);
            witness.service = Some(host.service.clone());
            let file = snapshot_file(Moment::DrainFinal);
            witness.evidence.push(EvidenceRef { file, at: "/hosts".to_owned() });
            sheet.witness(witness);
        }
    }
}

/// Each required service is the same process in its ready line and in every snapshot.
fn identities(case: &Case<'_>, planned: &BTreeSet<&str>, sheet: &mut Sheet) {
    let mut identities: BTreeMap<&str, (u32, u64)> = BTreeMap::new();
    let mut metric_starts: BTreeMap<&str, &str> = BTreeMap::new();
    for event in &case.evidence.events {
        let EventKind::ProcessReady { service, pid, start_ticks, .. } = &event.event else { continue };
        if service == "loadgen" || covers(planned, service) {
            continue;
        }
        let identity = (*pid, *start_ticks);
        if *identities.entry(service).or_insert(identity) != identity {
            let text = format!("{service} became ready again as another process");
            sheet.witness(about("restarted", service, text, event.seq));
        }
    }
    let required: BTreeSet<&str> = case
        .evidence
        .snapshots
        .values()
        .flat_map(|snapshot| snapshot.processes.iter().map(|process| process.service.as_str()))
        .chain(identities.keys().copied())
        .collect();
    for moment in [Moment::Before, Moment::DrainPassive, Moment::DrainSynced, Moment::DrainFinal] {
        let snapshot = match case.evidence.snapshot(moment) {
            Ok(snapshot) => snapshot,
            Err(missing) => {
                sheet.missing(missing);
                continue;
            }
        };
        for service in &required {
            if !snapshot.processes.iter().any(|process| process.service == *service) {
                sheet.missing(format!("{service} at {}", moment.dir()));
            }
        }
        for process in &snapshot.processes {
            sheet.looked(1);
            if covers(planned, &process.service) {
                continue;
            }
            let identity = (process.pid, process.start_ticks);
            let first = *identities.entry(&process.service).or_insert(identity);
            let replaced = process
                .metric_start
                .as_deref()
                .is_some_and(|start| *metric_starts.entry(&process.service).or_insert(start) != start);
            let found = if !process.ready {
                Some(("not-ready", format!("{} is not running at {}", process.service, moment.dir())))
            } else if first != identity || replaced {
                Some(("restarted", format!("{} is another process at {}", process.service, moment.dir())))
            } else {
                None
            };
            if let Some((reason, text)) = found {
                let mut witness = Witness::new(reason, text);
                witness.service = Some(process.service.clone());
                witness
                    .evidence
                    .push(EvidenceRef { file: snapshot_file(moment), at: "/processes".to_owned() });
                sheet.witness(witness);
            }
        }
    }
}

fn about(reason: &str, service: &str, text: String, seq: u64) -> Witness {
    let mut witness = Witness::new(reason, text);
    witness.service = Some(service.to_owned());
    witness.evidence.push(EvidenceRef { file: EVENTS.to_owned(), at: format!("seq={seq}") });
    witness
}

/// Whether an action names this service, or the group it belongs to.
fn covers(planned: &BTreeSet<&str>, service: &str) -> bool {
    planned.iter().any(|name| health::names(name, service))
}

/// Services that an action of the scenario stops, kills, pauses or restarts.
fn planned<'a>(case: &Case<'a>) -> BTreeSet<&'a str> {
    let actions = case.evidence.run.resolved.scenario.actions.iter();
    actions.filter_map(|action| action.action.service()).collect()
}
