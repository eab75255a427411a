//! T `thresholds`: limits of the scenario, compared as integers; exactly at a limit holds. What the scenario doesn't
//! name is not judged. Expected failures enter neither the error rate nor latencies.
//!
//! Reason: `above-limit`, with the limit as subject (`success_rps_min`: below it).

use evidence::assertion::{AssertionId, EvidenceRef, Witness};
use evidence::rundir::{EVENTS, REQUESTS};
use scenario::fault::RequestClass;
use scenario::units::Micros;
use stats::Histogram;
use stats::Percentile;

use super::{Assertion, Case};
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::T, inputs: &[REQUESTS, EVENTS], unit: "limits", judge };

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let limits = &case.evidence.run.resolved.scenario.thresholds;
    let populations = populations(case);
    let sent = populations.sent;
    if let Some(limit) = limits.error_rate {
        sheet.looked(1);
        if stats::ratio::exceeds(populations.errors, sent, limit.get()) {
            let text = format!("{} errors of {sent} sent, error_rate limit {limit}", populations.errors);
            sheet.witness(above("error_rate", text));
        }
    }
    let named: [(&str, Option<Micros>, &Histogram, Percentile); 6] = [
        ("ttft_p50", limits.ttft_p50, &populations.ttft, Percentile::P50),
        ("ttft_p95", limits.ttft_p95, &populations.ttft, Percentile::P95),
        ("ttft_p99", limits.ttft_p99, &populations.ttft, Percentile::P99),
        ("latency_p50", limits.latency_p50, &populations.latency, Percentile::P50),
        ("latency_p95", limits.latency_p95, &populations.latency, Percentile::P95),
        ("latency_p99", limits.latency_p99, &populations.latency, Percentile::P99),
    ];
    for (name, limit, histogram, percentile) in named {
        let Some(limit) = limit else { continue };
        match histogram.percentile_us(percentile) {
            None => sheet.missing(format!("{name}: no success to measure")),
            Some(us) => {
                sheet.looked(1);
                if us > limit.us() {
                    sheet.witness(above(name, format!("{name} is {us} us, limit {limit}")));
                }
            }
        }
    }
    if let Some(least) = limits.success_rps_min {
        sheet.looked(1);
        let span = crate::summary::load_span_us(case.evidence);
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
    good: u64,
    ttft: Histogram,
    latency: Histogram,
}

fn populations(case: &Case<'_>) -> Populations {
    let mut found =
        Populations { sent: 0, errors: 0, good: 0, ttft: Histogram::new(), latency: Histogram::new() };
    for (index, decided) in case.decided {
        let Some(record) = case.evidence.records.get(index) else { continue };
        if matches!(decided.class, RequestClass::NotOffered | RequestClass::Dropped) {
            continue;
        }
        found.sent += 1;
        match decided.class {
            RequestClass::UnexpectedFailure | RequestClass::Rejected => found.errors += 1,
            RequestClass::Success | RequestClass::MaskedFault => {
                found.good += 1;
                record.ttft_us().into_iter().for_each(|us| found.ttft.record(us));
                record.latency_us().into_iter().for_each(|us| found.latency.record(us));
            }
            _ => {}
        }
    }
    found
}
