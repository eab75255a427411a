//! From what the threads counted to the result: thresholds, saturation, verdict.

use evidence::exit::Findings;
use evidence::record::ClientClass;
use report::units;

use super::director::{judge_stage, limited};
use crate::engine::stage::StagePart;
use crate::profile::Resolved;
use crate::profile::resolve::StagePlan;
use crate::result::{
    Figures, RunResult, Saturation, SaturationClass, ScenarioFigures, ThresholdResult, Unit, Verdict,
};

/// Classes of requests that could not be sent by the target's fault.
const NOT_LET_IN: [ClientClass; 5] = [
    ClientClass::ConnectRefused,
    ClientClass::ConnectTimeout,
    ClientClass::DnsFailed,
    ClientClass::TlsFailed,
    ClientClass::ProxyFailed,
];

/// Fills in stages, totals, thresholds and verdict of a result.
pub fn complete(
    result: &mut RunResult,
    plan: &Resolved,
    stages: Vec<(StagePlan, StagePart)>,
    interrupted: bool,
) {
    for (index, (stage, part)) in stages.into_iter().enumerate() {
        let judged = judge_stage(plan, index, &part);
        let mut done = part.result(index, &stage, &plan.scenarios, plan.threads);
        done.passed = (!judged.is_empty()).then(|| judged.iter().all(|result| result.held));
        result.thresholds.extend(judged);
        result.stages.push(done);
    }
    result.scenarios = plan
        .scenarios
        .iter()
        .map(|scenario| ScenarioFigures { name: scenario.name.clone(), figures: Figures::default() })
        .collect();
    for stage in &result.stages {
        result.total.merge_next_span(&stage.total);
        for (sum, one) in result.scenarios.iter_mut().zip(&stage.scenarios) {
            sum.figures.merge_next_span(&one.figures);
        }
    }
    let overall: Vec<ThresholdResult> = plan
        .rules
        .iter()
        .filter(|rule| rule.overall)
        .map(|rule| match rule.scenario {
            None => rule.judge(&result.total, None, None),
            Some(place) => {
                let scenario = &result.scenarios[place];
                rule.judge(&scenario.figures, None, Some(&scenario.name))
            }
        })
        .collect();
    result.thresholds.extend(overall);
    result.health.saturation = saturation(result, plan);
    result.verdict = verdict(result, interrupted);
}

fn saturation(result: &RunResult, plan: &Resolved) -> Vec<Saturation> {
    let mut found = Vec::new();
    let mut all = result.total.counts.clone();
    result.stages.iter().for_each(|stage| all.merge(&stage.outside));
    for (class, word, what) in [
        (ClientClass::GeneratorPorts, SaturationClass::GeneratorPorts, "no local port left"),
        (ClientClass::GeneratorFds, SaturationClass::GeneratorFds, "no file descriptor left"),
    ] {
        if all.class(class) > 0 {
            let detail = format!("{} requests found {what}", all.class(class));
            found.push(Saturation { class: word, detail });
        }
    }
    for stage in &result.stages {
        if let Some(class) = plan.inflight_lowered.filter(|_| stage.in_flight_max >= plan.inflight_max) {
            let limit = if class == SaturationClass::GeneratorPorts {
                "the local ports allow; widen net.ipv4.ip_local_port_range or add targets"
            } else {
                "the hard limit of open files allows; raise it (ulimit -Hn)"
            };
            let (stage, most) = (stage.index + 1, stage.in_flight_max);
            let detail = format!("stage {stage}: {most} were in flight, as many as {limit}");
            found.push(Saturation { class, detail });
        }
        let share = stage.health.cpu_share_ppm().map(|ppm| ppm / u64::from(plan.threads.max(1)));
        let most = plan.health.cpu_share.get() / 1_000;
        if let Some(ppm) = share.filter(|ppm| *ppm > most) {
            let detail = format!(
                "stage {}: {} % of the cores of its threads were used, at most {} % are allowed; add threads or lower \
                 the load",
                stage.index + 1,
                ppm / 10_000,
                most / 10_000
            );
            found.push(Saturation { class: SaturationClass::GeneratorCpu, detail });
        }
        if let Some(why) = limited(plan, &stage.total) {
            let waited = result.health.core_taken_ppm().and(result.health.core_wait_us);
            let waited = waited.map_or_else(String::new, |wait_us| {
                format!("; its threads waited {} for a core, which other programs used", units::span(wait_us))
            });
            let detail = format!("stage {}: {why}{waited}", stage.index + 1);
            found.push(Saturation { class: SaturationClass::GeneratorLateness, detail });
        }
        let counts = &stage.total.counts;
        // What the target did not let in was offered all the same.
        let refused: u64 = NOT_LET_IN.iter().map(|class| counts.class(*class)).sum();
        let offered = counts.sent.saturating_add(refused);
        if stats::ratio::falls_short(offered, counts.planned, plan.health.achieved.get()) {
            let detail = format!(
                "stage {}: {} of {} planned requests were sent; the load was not offered",
                stage.index + 1,
                counts.sent,
                counts.planned
            );
            found.push(Saturation { class: SaturationClass::NotOffered, detail });
        }
    }
    found
}

/// A figure as reports show it.
fn said(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Microseconds => units::span(value.max(0.0).round() as u64),
        Unit::Share => units::share(Some(value)),
        Unit::PerSecond => units::per_second(Some(value)),
        Unit::Bytes => units::bytes(value.max(0.0).round() as u64),
        Unit::Count | Unit::Money => units::trimmed(value, 6),
    }
}

fn verdict(result: &RunResult, interrupted: bool) -> Verdict {
    let mut reasons = Vec::new();
    if interrupted {
        reasons.push("stopped by a signal; the figures are those of a part".to_owned());
    }
    reasons.extend(result.health.saturation.iter().map(|found| found.detail.clone()));
    let search = result.search.is_some();
    // In a search levels are meant to break limits; its own ending decides.
    let broken = result.thresholds.iter().filter(|threshold| !threshold.held && !search);
    let mut failed = false;
    for threshold in broken {
        failed = true;
        let place =
            threshold.stage.map_or_else(|| "overall".to_owned(), |stage| format!("stage {}", stage + 1));
        let found =
            threshold.found.map_or_else(|| "not measured".to_owned(), |found| said(threshold.unit, found));
        let way = if threshold.at_least { "at least" } else { "at most" };
        let limit = said(threshold.unit, threshold.limit);
        reasons.push(format!("{place}: {} was {found}, {way} {limit} is allowed", threshold.name));
    }
    for stage in &result.stages {
        if let Some(why) = &stage.stopped {
            failed = true;
            reasons.push(format!("stage {}: {why}", stage.index + 1));
        }
    }
    if let Some(found) = &result.search
        && found.highest.is_none()
    {
        failed = true;
        reasons.push(format!("search: no level passed ({})", found.ending));
    }
    let counts = &result.total.counts;
    let limited = result.thresholds.iter().any(|threshold| threshold.name == "error_rate");
    if counts.failed() > 0 && counts.ok() == 0 && !search {
        // Without any limit a run may be a mere look, but not one at nothing.
        failed = true;
        reasons.push(format!("all {} requests failed", counts.failed()));
    } else if counts.failed() > 0 && !limited {
        let all = counts.failed() + counts.ok();
        reasons.push(format!(
            "{} of {all} requests failed; the profile has no limit on error_rate",
            counts.failed()
        ));
    }
    let nothing = counts.ended() == 0;
    if nothing {
        reasons.push("no request ended in a steady part".to_owned());
    }
    let limited_search = result.search.as_ref().is_some_and(|found| found.ending.contains("generator"));
    let invalid = if search { limited_search } else { !result.health.saturation.is_empty() };
    let findings =
        Findings { interrupted, invalid, threshold_failed: failed, unknown: nothing, ..Findings::default() };
    Verdict { outcome: findings.outcome(), reasons }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::Profile;
    use crate::profile::resolve;
    use crate::result::{Health, Machine, OverTime, RESULT_VERSION, RunInfo, Wires};
    use evidence::exit::Outcome;
    use serde_json::json;
    use std::path::Path;

    fn blank() -> RunResult {
        RunResult {
            v: RESULT_VERSION,
            run: RunInfo::default(),
            machine: Machine::default(),
            stages: Vec::new(),
            scenarios: Vec::new(),
            total: Figures::default(),
            over_time: OverTime::default(),
            health: Health::default(),
            wires: Wires::default(),
            thresholds: Vec::new(),
            search: None,
            verdict: Verdict { outcome: Outcome::Internal, reasons: Vec::new() },
        }
    }

    /// The judgement of one stage with these ends.
    fn judged(
        classes: &[(ClientClass, u64)],
        lowered: Option<SaturationClass>,
        error_rate: &str,
    ) -> RunResult {
        let profile: Profile = serde_json::from_value(json!({
            "defaults": {"model": "m", "target": "http://a.invalid"}, "stages": [{"rate": 10, "duration": "1s"}],
            "thresholds": {"error_rate": error_rate}, "openloop_max_inflight": 5,
        }))
        .unwrap();
        let mut plan = resolve(&profile, Path::new(".")).unwrap();
        plan.inflight_lowered = lowered;
        let mut figures = Figures { span_us: 1_000_000, ..Figures::default() };
        figures.counts.classes = classes.iter().copied().collect();
        figures.counts.planned = classes.iter().map(|(_, count)| count).sum();
        figures.counts.sent = figures.counts.planned;
        let part = StagePart { scenarios: vec![figures], in_flight_max: 5, ..StagePart::default() };
        let mut result = blank();
        complete(&mut result, &plan, vec![(plan.stages[0].clone(), part)], false);
        result
    }

    #[test]
    fn limits_of_the_generator_make_a_run_invalid_and_blame_nobody_else() {
        use ClientClass as C;
        use SaturationClass as S;
        for (class, word) in [(C::GeneratorPorts, S::GeneratorPorts), (C::GeneratorFds, S::GeneratorFds)] {
            // The limit on errors is broken too: a saturated generator can't make the target look bad.
            let result = judged(&[(C::Ok, 900), (class, 100)], None, "0.01");
            assert_eq!(result.verdict.outcome, Outcome::Invalid, "{:?}", result.verdict);
            let found: Vec<S> = result.health.saturation.iter().map(|found| found.class).collect();
            assert_eq!(found, [word]);
        }
        for lowered in [S::GeneratorPorts, S::GeneratorFds] {
            let result = judged(&[(C::Ok, 1_000)], Some(lowered), "0.01");
            assert_eq!(result.verdict.outcome, Outcome::Invalid, "the lowered bound was reached");
            assert_eq!(result.health.saturation[0].class, lowered);
        }
        let result = judged(&[(C::Ok, 900), (C::HttpError, 100)], None, "0.01");
        assert_eq!(result.verdict.outcome, Outcome::Fail, "an error of the target is the target's");
        assert_eq!(judged(&[(C::Ok, 1_000)], None, "0.01").verdict.outcome, Outcome::Pass);
    }
}
