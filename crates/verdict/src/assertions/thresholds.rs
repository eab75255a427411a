//! T `thresholds`: limits of the scenario, compared as integers; exactly at a limit holds. What the scenario doesn't
//! name is not judged. Expected failures enter neither the error rate nor latencies.
//!
//! Reason: `above-limit`, with the limit as subject (`success_rps_min`: below it).

use evidence::assertion::{AssertionId, EvidenceRef, Witness};
use evidence::rundir::{ACCOUNTING, EVENTS, HITS, REQUESTS};
use scenario::fault::RequestClass;
use scenario::units::Micros;
use stats::Percentile;

use super::{Assertion, Case};
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::T, inputs: &[REQUESTS, EVENTS, HITS, ACCOUNTING], unit: "limits", judge };

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let limits = &case.evidence.run.resolved.scenario.thresholds;
    let populations = populations(case);
    let sent = populations.sent;
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
                if !within {
                    let text = format!("{name} is above {limit}: {over} of {} are", values.len());
                    sheet.witness(above(name, text));
                }
            }
        }
    }
    if let Some(least) = limits.success_rps_min {
        let span = crate::summary::load_span_us(case.evidence);
        if span == 0 {
            sheet.missing("success_rps_min: no step tells how long the load took");
        } else {
            sheet.looked(1);
        }
        let needed = u128::from(least) * u128::from(span);
        if u128::from(populations.good) * 1_000_000 < needed {
            let text =
                format!("{} successes in {span} us, at least {least} a second wanted", populations.good);
            sheet.witness(above("success_rps_min", text));
        }
    }
    // A scenario without limits has nothing to hold: that is a pass without a look by definition.
    if *limits == scenario::model::Thresholds::default() {
        sheet.set_minimum(0);
    }
}

fn above(limit: &str, text: String) -> Witness {
    let mut witness = Witness::new("above-limit", text);
    witness.subject = Some(limit.to_owned());
    witness.evidence.push(EvidenceRef { file: REQUESTS.to_owned(), at: "all successes".to_owned() });
    witness
}

struct Populations {
    sent: u64,
    errors: u64,
    disputed: u64,
    good: u64,
    ttft_us: Vec<u64>,
    latency_us: Vec<u64>,
}

fn populations(case: &Case<'_>) -> Populations {
    let mut found =
        Populations { sent: 0, errors: 0, disputed: 0, good: 0, ttft_us: Vec::new(), latency_us: Vec::new() };
    for (index, decided) in case.decided {
        let Some(record) = case.evidence.records.get(index) else { continue };
        if matches!(decided.class, RequestClass::NotOffered | RequestClass::Dropped) {
            continue;
        }
        found.sent += 1;
        match decided.class {
            // It may be an expected failure: plan and hit log disagree about it.
            RequestClass::UnexpectedFailure | RequestClass::Rejected
                if case.oracle.disputed.contains(record.id.as_str()) =>
            {
                found.disputed += 1;
            }
            RequestClass::UnexpectedFailure | RequestClass::Rejected => found.errors += 1,
            RequestClass::Success | RequestClass::MaskedFault => {
                found.good += 1;
                found.ttft_us.extend(record.ttft_us());
                found.latency_us.extend(record.latency_us());
            }
            _ => {}
        }
    }
    found
}
