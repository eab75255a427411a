//! V `validity`: the run says something about Devshard, not about the generator or a mock.
//!
//! Reasons: `generator-frozen`, `mock-frozen`, `clock-jump` and `no-free-core` (all in [`crate::own_part`]), `records-lost`, `generator-ports`, `generator-fds`, `generator-lateness`, `generator-cpu`, `generator-stalled`,
//! `too-few-requests`, `concurrency-not-held`, `requests-dropped`, `mock-saturated`, `saturation-absent`, `search-limited`. Source: design section 7,
//! specification "Measurements".

use evidence::assertion::{AssertionId, EvidenceRef, Witness};
use evidence::event::EventKind;
use evidence::record::ClientClass;
use evidence::rundir::{EVENTS, REQUESTS};
use evidence::snapshot::Moment;
use scenario::control::NodeStats;
use scenario::model::Saturation;
use scenario::pipe::GeneratorHealth;
use stats::next_level::Next;

use super::{Assertion, Case, about_request, snapshot_file};
use crate::own_part;
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion = Assertion {
    id: AssertionId::V,
    // Records that are lost are what it judges.
    inputs: &[EVENTS],
    unit: "limits of generator and mocks",
    judge,
};

/// A node counts as saturated when it refused a call, or when callers waited for a worker for more than this share of
/// the load: a queue of one now and then is inside its capacity.
pub(crate) const WAITING_SHARE_PPB: u64 = 100_000_000;

/// A generator that did not get to run for more than this share of its time tells more about its machine than about
/// Devshard: it reads answers late, and a closed loop then asks late too, so that nothing else shows it.
const STALLED_SHARE_PPB: u64 = 500_000_000;

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    case.evidence.missing_of(&[REQUESTS]).into_iter().for_each(|input| sheet.missing(input));
    let ended = case.evidence.events.iter().find_map(|event| match &event.event {
        EventKind::LoadEnded { records_dropped, health, .. } => Some((*records_dropped, health.clone())),
        _ => None,
    });
    match ended {
        None => sheet.missing(format!("{EVENTS}: loadgen did not report its end")),
        Some((dropped, health)) => match serde_json::from_value::<GeneratorHealth>(health) {
            Ok(health) => generator(case, dropped, &health, sheet),
            Err(error) => sheet.missing(format!("generator health: {error}")),
        },
    }
    if case.partial() {
        let whole = |event: &evidence::event::Event| {
            matches!(event.event, EventKind::LoadEnded { partial: false, .. })
        };
        sheet.missing(if case.evidence.events.iter().any(whole) {
            "the run was stopped after its load, before all evidence was there"
        } else {
            "the load was stopped before the end of its plan"
        });
    } else {
        steps(case, sheet);
        if let Some(Next::Limited { level, .. }) = crate::levels::standing(case) {
            let text = format!("generator or mocks were the limit at level {level} of the search");
            sheet.witness(limit("search-limited", text));
        }
    }
    dropped(case, sheet);
    own_part::judge(case.evidence, sheet);
    match case.evidence.snapshot(Moment::DrainPassive) {
        Err(missing) => sheet.missing(missing),
        Ok(snapshot) => match &snapshot.openai {
            None => sheet.missing("mock-openai statistics after the load"),
            Some(stats) => nodes(case, &stats.nodes, sheet),
        },
    }
}

/// Planned requests that the generator itself could not send.
fn dropped(case: &Case<'_>, sheet: &mut Sheet) {
    for (index, record) in case.evidence.records.iter() {
        let reason = match record.client_class {
            ClientClass::Dropped => "requests-dropped",
            ClientClass::GeneratorPorts => "generator-ports",
            ClientClass::GeneratorFds => "generator-fds",
            _ => continue,
        };
        let id = case.evidence.id(index);
        let text = format!("{id} was not sent: {}", record.client_class.word());
        sheet.witness(about_request(reason, text, &id, REQUESTS));
    }
}

fn limit(reason: &str, text: String) -> Witness {
    let mut witness = Witness::new(reason, text);
    witness.service = Some("loadgen".to_owned());
    witness.evidence.push(EvidenceRef { file: EVENTS.to_owned(), at: "kind=load-ended".to_owned() });
    witness
}

fn generator(case: &Case<'_>, dropped: u64, health: &GeneratorHealth, sheet: &mut Sheet) {
    let validity = &case.evidence.run.resolved.scenario.validity;
    sheet.looked(3);
    if dropped > 0 {
        sheet.witness(limit("records-lost", format!("{dropped} client records could not be kept")));
    }
    if health.ports_exhausted > 0 {
        let text = format!("{} requests found no local port", health.ports_exhausted);
        sheet.witness(limit("generator-ports", text));
    }
    if health.fds_exhausted > 0 {
        let text = format!("{} requests found no file descriptor", health.fds_exhausted);
        sheet.witness(limit("generator-fds", text));
    }
    if let Some(stalled_us) = health.stalled_us {
        sheet.looked(1);
        if stats::ratio::exceeds(stalled_us, health.wall_us, STALLED_SHARE_PPB) {
            let text = format!("did not get to run for {stalled_us} of {} us", health.wall_us);
            sheet.witness(limit("generator-stalled", text));
        }
    }
    if let Some(most) = validity.schedule_lateness_p99 {
        sheet.looked(1);
        match health.lateness_p99_us {
            None => sheet.missing("generator lateness"),
            Some(us) if us > most.us() => {
                sheet.witness(limit(
                    "generator-lateness",
                    format!("p99 of released to sent is {us} us, limit {most}"),
                ));
            }
            Some(_) => {}
        }
    }
    if let Some(most) = validity.loadgen_cpu_share {
        sheet.looked(1);
        if health.wall_us == 0 {
            sheet.missing("generator wall time");
        } else if stats::ratio::exceeds(health.cpu_us, health.wall_us, most.get()) {
            let text = format!("{} us CPU in {} us, limit {most} of a core", health.cpu_us, health.wall_us);
            sheet.witness(limit("generator-cpu", text));
        }
    }
}

fn steps(case: &Case<'_>, sheet: &mut Sheet) {
    for (number, step) in case.evidence.run.resolved.scenario.workload.all_steps().iter().enumerate() {
        let ended = case.evidence.events.iter().find_map(|event| match &event.event {
            EventKind::StepEnded { step, released, in_flight_max, .. } if *step == number => {
                Some((*released, *in_flight_max))
            }
            _ => None,
        });
        let Some((released, in_flight_max)) = ended else {
            sheet.missing(format!("step {number} did not end"));
            continue;
        };
        sheet.looked(1);
        if let Some(requests) = step.requests
            && released < requests
        {
            let text = format!("step {number}: {released} of {requests} requests were released");
            sheet.witness(limit("too-few-requests", text));
        }
        if step.duration.is_some() && in_flight_max < u64::from(step.concurrency) {
            let text =
                format!("step {number}: at most {in_flight_max} of {} were in flight", step.concurrency);
            sheet.witness(limit("concurrency-not-held", text));
        }
    }
}

fn nodes(case: &Case<'_>, nodes: &[NodeStats], sheet: &mut Sheet) {
    let resolved = &case.evidence.run.resolved;
    let load_us: u64 = case
        .evidence
        .events
        .iter()
        .map(|event| match &event.event {
            EventKind::StepEnded { started_us, ended_us, .. } => ended_us.saturating_sub(*started_us),
            _ => 0,
        })
        .sum();
    for node in &resolved.nodes {
        if !nodes.iter().any(|stats| stats.name == node.name) {
            sheet.missing(format!("statistics of {}", node.name));
        }
    }
    for node in nodes {
        sheet.looked(1);
        let refused = node.execution.rejected + node.validation.rejected;
        let waited = stats::ratio::exceeds(node.saturated_us, load_us.max(1), WAITING_SHARE_PPB);
        let saturated = refused > 0 || waited;
        let entry =
            resolved.nodes.iter().find(|known| known.name == node.name).map(|known| known.entry.as_str());
        let required = match &resolved.scenario.validity.mock_saturation {
            Saturation::Forbidden => false,
            Saturation::Required(names) => {
                names.iter().any(|name| *name == node.name || Some(name.as_str()) == entry)
            }
        };
        let found = match (saturated, required) {
            (true, false) => Some((
                "mock-saturated",
                format!(
                    "{} refused {refused} calls and had callers waiting for {} us ({} workers, queue {})",
                    node.name, node.saturated_us, node.workers, node.queue
                ),
            )),
            (false, true) => {
                Some(("saturation-absent", format!("{} was to saturate and did not", node.name)))
            }
            _ => None,
        };
        if let Some((reason, text)) = found {
            let mut witness = Witness::new(reason, text);
            witness.service = Some(node.name.clone());
            let file = snapshot_file(Moment::DrainPassive);
            witness.evidence.push(EvidenceRef { file, at: "/openai/nodes".to_owned() });
            sheet.witness(witness);
        }
    }
}
