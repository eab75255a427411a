//! T `thresholds`: limits of the scenario, compared as integers; exactly at a limit holds. What the scenario doesn't
//! name is not judged. Expected failures enter neither the error rate nor latencies.
//!
//! Reasons: `above-limit`, with the limit as subject (`success_rps_min`: below it); `no-stable-level` of a search.

use evidence::assertion::{AssertionId, EvidenceRef, Witness};
use evidence::event::EventKind;
use evidence::rundir::{ACCOUNTING, EVENTS, HITS, REQUESTS};
use scenario::fault::RequestClass;
use scenario::model::Thresholds;
use scenario::units::Micros;
use stats::Percentile;
use stats::next_level::Next;

use super::{Assertion, Case};
use crate::own_part::{self, Machine};
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::T, inputs: &[REQUESTS, EVENTS, HITS, ACCOUNTING], unit: "limits", judge };

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let scenario = &case.evidence.run.resolved.scenario;
    if scenario.workload.search.is_some() {
        search(case, sheet);
        return;
    }
    let recovery_step = scenario.workload.recovery.as_ref().map(|_| scenario.workload.steps.len());
    let usual = populations(case, &|step| recovery_step.is_none() || step != recovery_step);
    let span_us = crate::summary::load_span_us(case.evidence);
    let machine = Machine::seen(case.evidence);
    hold(&scenario.thresholds, &usual, (span_us, machine), "", sheet);
    if let (Some(recovery), Some(step)) = (&scenario.workload.recovery, recovery_step) {
        let lightly = populations(case, &|of| of == Some(step));
        if lightly.sent == 0 {
            sheet.missing("recovery: nothing was sent in the recovery step");
        }
        hold(&recovery.limits, &lightly, (span_of(case, step), machine), "recovery.", sheet);
    }
    // A scenario without limits has nothing to hold: that is a pass without a look by definition.
    if scenario.thresholds == Thresholds::default() && recovery_step.is_none() {
        sheet.set_minimum(0);
    }
}

/// In a search the limits hold per level; the run fails when no level at or above `minimum.step` held.
fn search(case: &Case<'_>, sheet: &mut Sheet) {
    let levels = crate::levels::judge(case);
    sheet.looked(levels.len() as u64);
    let least = case.evidence.run.resolved.scenario.minimum.step.unwrap_or(1);
    let none = |text: String| {
        let mut witness = Witness::new("no-stable-level", text);
        witness.subject = Some("minimum.step".to_owned());
        let why = levels.iter().flat_map(|judged| &judged.reasons).next().cloned();
        witness.detail.insert("first_reason".to_owned(), why.into());
        witness.evidence.push(EvidenceRef { file: EVENTS.to_owned(), at: "kind=level-ended".to_owned() });
        witness
    };
    match crate::levels::standing(case) {
        Some(Next::Done(bracket)) => {
            let best = bracket.highest_good.unwrap_or_default();
            if best < u64::from(least) {
                sheet.witness(none(format!(
                    "level {best} is the highest stable one, at least {least} wanted"
                )));
            }
        }
        Some(Next::NonePassed(_)) => sheet.witness(none("no level of the search was stable".to_owned())),
        Some(Next::Limited { level, .. }) => {
            sheet.missing(format!("the search ended at level {level}: generator or mocks were the limit"));
        }
        Some(Next::RunsUsedUp(_) | Next::Run { .. }) | None => {
            sheet.missing("the search did not come to its end (plan or runs used up)");
        }
    }
}

/// Time during which one step offered load.
fn span_of(case: &Case<'_>, wanted: usize) -> u64 {
    let spans = case.evidence.events.iter().filter_map(|event| match event.event {
        EventKind::StepEnded { step, started_us, ended_us, .. } if step == wanted => {
            Some(ended_us.saturating_sub(started_us))
        }
        _ => None,
    });
    spans.sum()
}

/// Holds one population against limits; `place` begins the names of witnesses. With the time of its load comes what the
/// machine may have added to it.
pub(crate) fn hold(
    limits: &Thresholds,
    populations: &Populations,
    (span, machine): (u64, Machine),
    place: &str,
    sheet: &mut Sheet,
) {
    let sent = populations.sent;
    let above = |limit: &str, text: String| above(&format!("{place}{limit}"), format!("{place}{text}"));
    if let Some(limit) = limits.error_rate {
        if sent == 0 {
            sheet.missing("error_rate: nothing was sent");
        } else if populations.disputed > 0 {
            sheet.missing(format!("error_rate: what hit {} failed requests", populations.disputed));
        } else {
            sheet.looked(1);
        }
        if stats::ratio::exceeds(populations.errors, sent, limit.get()) {
            let text = format!("{} errors of {sent} sent, error_rate limit {limit}", populations.errors);
            sheet.witness(above("error_rate", text));
        }
    }
    latencies(limits, populations, machine, place, sheet);
    if let Some(least) = limits.success_rps_min {
        if span == 0 {
            sheet.missing("success_rps_min: no step tells how long the load took");
        } else {
            sheet.looked(1);
        }
        let short = |span| u128::from(populations.good) * 1_000_000 < u128::from(least) * u128::from(span);
        if short(span) {
            let text =
                format!("{} successes in {span} us, at least {least} a second wanted", populations.good);
            if short(span.saturating_sub(machine.lost_us())) {
                sheet.witness(above("success_rps_min", text));
            } else {
                own_part::on_the_machine(sheet, &format!("{place}{text}"));
            }
        }
    }
}

fn latencies(
    limits: &Thresholds,
    populations: &Populations,
    machine: Machine,
    place: &str,
    sheet: &mut Sheet,
) {
    let named: [(&str, Option<Micros>, &[u64], Percentile); 6] = [
        ("ttft_p50", limits.ttft_p50, &populations.ttft_us, Percentile::P50),
        ("ttft_p95", limits.ttft_p95, &populations.ttft_us, Percentile::P95),
        ("ttft_p99", limits.ttft_p99, &populations.ttft_us, Percentile::P99),
        ("latency_p50", limits.latency_p50, &populations.latency_us, Percentile::P50),
        ("latency_p95", limits.latency_p95, &populations.latency_us, Percentile::P95),
        ("latency_p99", limits.latency_p99, &populations.latency_us, Percentile::P99),
    ];
    for (name, limit, values, percentile) in named {
        let Some(limit) = limit else { continue };
        // Counted, not read from a histogram: its rounding must not turn a run red at the limit itself.
        let over = values.iter().filter(|us| **us > limit.us()).count() as u64;
        match percentile.within_limit(values.len() as u64, over) {
            None => sheet.missing(format!("{name}: no success to measure")),
            Some(within) => {
                sheet.looked(1);
                if within {
                    continue;
                }
                let text = format!("{name} is above {limit}: {over} of {} are", values.len());
                let added_us = machine.added_us(percentile);
                let far = values.iter().filter(|us| us.saturating_sub(added_us) > limit.us()).count() as u64;
                if percentile.within_limit(values.len() as u64, far) == Some(true) {
                    own_part::on_the_machine(sheet, &format!("{place}{text}"));
                } else {
                    sheet.witness(above(&format!("{place}{name}"), format!("{place}{text}")));
                }
            }
        }
    }
}

fn above(limit: &str, text: String) -> Witness {
    let mut witness = Witness::new("above-limit", text);
    witness.subject = Some(limit.to_owned());
    witness.evidence.push(EvidenceRef { file: REQUESTS.to_owned(), at: "all successes".to_owned() });
    witness
}

/// What limits are held against.
pub(crate) struct Populations {
    pub(crate) sent: u64,
    errors: u64,
    disputed: u64,
    good: u64,
    ttft_us: Vec<u64>,
    latency_us: Vec<u64>,
}

/// The requests of the steps that `takes` names.
pub(crate) fn populations(case: &Case<'_>, takes: &dyn Fn(Option<usize>) -> bool) -> Populations {
    let mut found =
        Populations { sent: 0, errors: 0, disputed: 0, good: 0, ttft_us: Vec::new(), latency_us: Vec::new() };
    for (index, decided) in case.decided.iter() {
        let Some(record) = case.evidence.records.get(index) else { continue };
        let unsent = matches!(decided.class, RequestClass::NotOffered | RequestClass::Dropped);
        if unsent || !takes(record.step) {
            continue;
        }
        found.sent += 1;
        match decided.class {
            // It may be an expected failure: plan and hit log disagree about it.
            RequestClass::UnexpectedFailure | RequestClass::Rejected
                if case.oracle.disputed.contains(&case.evidence.id(index)) =>
            {
                found.disputed += 1;
            }
            RequestClass::UnexpectedFailure | RequestClass::Rejected => found.errors += 1,
            RequestClass::Success | RequestClass::MaskedFault => {
                found.good += 1;
                found.ttft_us.extend(record.ttft.us());
                found.latency_us.extend(record.latency.us());
            }
            _ => {}
        }
    }
    found
}
