//! A9 `service-stability`: no required service ends, restarts, or becomes unready outside the planned actions.
//!
//! Reasons: `ended`, `restarted` (another process under the same name), `not-ready`. A service that an action names is
//! exempt. Identity is pid and start time, never health alone. Source: design section 7, contract hosts 11.1 A8.

use std::collections::{BTreeMap, BTreeSet};

use evidence::assertion::{AssertionId, EvidenceRef, Witness};
use evidence::event::EventKind;
use evidence::rundir::EVENTS;
use evidence::snapshot::Moment;
use scenario::model::ServiceAction;

use super::{Assertion, Case, snapshot_file};
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::A9, inputs: &[EVENTS], unit: "looks at required services", judge };

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let planned = planned(case);
    for event in &case.evidence.events {
        match &event.event {
            EventKind::ProcessExited { service, code, signal, planned: false, .. }
                if service != "loadgen" && !planned.contains(service.as_str()) =>
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
            EventKind::Probe { service, ready: false, detail } if !planned.contains(service.as_str()) => {
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
    let mut identities: BTreeMap<&str, (u32, u64)> = BTreeMap::new();
    for moment in [Moment::Before, Moment::DrainPassive, Moment::DrainSynced, Moment::DrainFinal] {
        let snapshot = match case.evidence.snapshot(moment) {
            Ok(snapshot) => snapshot,
            Err(missing) => {
                sheet.missing(missing);
                continue;
            }
        };
        for process in &snapshot.processes {
            sheet.looked(1);
            if planned.contains(process.service.as_str()) {
                continue;
            }
            let identity = (process.pid, process.start_ticks);
            let first = *identities.entry(&process.service).or_insert(identity);
            let found = if !process.ready {
                Some(("not-ready", format!("{} is not running at {}", process.service, moment.dir())))
            } else if first != identity {
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

/// Services that an action of the scenario stops, kills, pauses or restarts.
fn planned<'a>(case: &Case<'a>) -> BTreeSet<&'a str> {
    let actions = case.evidence.run.resolved.scenario.actions.iter();
    actions
        .filter_map(|action| match &action.action {
            ServiceAction::Stop(service)
            | ServiceAction::Start(service)
            | ServiceAction::Kill(service)
            | ServiceAction::Pause(service)
            | ServiceAction::Unpause(service)
            | ServiceAction::Restart(service) => Some(service.as_str()),
            ServiceAction::Deactivate(_) => None,
        })
        .collect()
}
