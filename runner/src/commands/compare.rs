//! `runner compare A B`: is run B worse than the baseline A? Only runs of the same plan and scenario on the same kind
//! of stack are compared (design section 5); a regression is exit 6.

use std::path::Path;

use evidence::assertion::Status;
use evidence::exit::Outcome;
use evidence::rundir::{RunReader, SUMMARY};
use evidence::summary::Summary;

use super::find_run;
use crate::error::RunnerError;
use crate::view::say;

/// Time differences below this are noise of any machine, microseconds.
const TIME_NOISE_US: u64 = 5_000;

/// One compared figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Figure.
    pub name: String,
    /// Of the baseline.
    pub before: String,
    /// Of the other run.
    pub after: String,
    /// Worse beyond tolerance.
    pub worse: bool,
}

/// Compares two runs and prints a table.
///
/// # Errors
/// [`RunnerError::Usage`] when one is not there, was never judged, or they are not comparable.
pub fn compare(results: &Path, before: &str, after: &str, tolerance: f64) -> Result<Outcome, RunnerError> {
    let (before, after) = (summary(results, before)?, summary(results, after)?);
    if let Some(why) = incomparable(&before, &after) {
        return Err(RunnerError::Usage(why));
    }
    for one in [&before, &after] {
        if !matches!(one.verdict, Outcome::Pass | Outcome::Fail) {
            say(&format!("{} ended as {}: it carries no figures to compare", one.run_id, one.verdict));
            return Ok(Outcome::Unknown);
        }
    }
    say(&format!("baseline {}\ncompared {}\n", before.run_id, after.run_id));
    let rows = rows(&before, &after, tolerance);
    for row in &rows {
        let mark = if row.worse { "WORSE" } else { "" };
        say(&format!("{:<22} {:>14} {:>14}  {mark}", row.name, row.before, row.after));
    }
    let worse = rows.iter().filter(|row| row.worse).count();
    if worse == 0 {
        say("\nno regression");
        return Ok(Outcome::Pass);
    }
    say(&format!("\nREGRESSION in {worse} of {} figures (tolerance {:.0} %)", rows.len(), tolerance * 100.0));
    Ok(Outcome::Regression)
}

fn summary(results: &Path, name: &str) -> Result<Summary, RunnerError> {
    let root = find_run(results, name)?;
    let read: Option<Summary> = RunReader::new(&root).json(SUMMARY).ok().flatten();
    read.ok_or_else(|| {
        RunnerError::Usage(format!("{}: no readable {SUMMARY}; `runner analyze` writes it", root.display()))
    })
}

/// Why two runs say nothing about each other.
#[must_use]
pub fn incomparable(before: &Summary, after: &Summary) -> Option<String> {
    let pairs = [
        ("plan_hash", &before.plan_hash, &after.plan_hash),
        ("scenario_hash", &before.scenario_hash, &after.scenario_hash),
        ("stack", &before.stack.provider, &after.stack.provider),
        ("kind of Devshard", &before.stack.devshard, &after.stack.devshard),
    ];
    let (what, one, other) = pairs.into_iter().find(|(_, one, other)| one != other)?;
    Some(format!("not comparable: the {what} of {} is {one}, of {} {other}", before.run_id, after.run_id))
}

/// Every figure of both runs.
#[must_use]
pub fn rows(before: &Summary, after: &Summary, tolerance: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for (id, was) in &before.assertions {
        let now = after.assertions.get(id);
        if *was == Status::Pass && now != Some(&Status::Pass) {
            let text = |status: Option<&Status>| {
                status.map_or("absent".to_owned(), |s| format!("{s:?}").to_lowercase())
            };
            rows.push(Row { name: id.clone(), before: text(Some(was)), after: text(now), worse: true });
        }
    }
    let (one, two) = (&before.client, &after.client);
    for (name, was, now) in [
        ("error_rate", one.error_rate, two.error_rate),
        ("raw_error_rate", one.raw_error_rate, two.raw_error_rate),
        ("timeout_rate", one.timeout_rate, two.timeout_rate),
    ] {
        rows.push(rate(name, was, now, two.sent));
    }
    for (name, was, now) in [
        ("ttft p50", one.ttft.p50_us, two.ttft.p50_us),
        ("ttft p95", one.ttft.p95_us, two.ttft.p95_us),
        ("ttft p99", one.ttft.p99_us, two.ttft.p99_us),
        ("latency p50", one.latency.p50_us, two.latency.p50_us),
        ("latency p95", one.latency.p95_us, two.latency.p95_us),
        ("latency p99", one.latency.p99_us, two.latency.p99_us),
    ] {
        rows.push(time(name, was, now, tolerance));
    }
    let worse =
        one.achieved_rps.zip(two.achieved_rps).is_some_and(|(was, now)| now < was * (1.0 - tolerance));
    let text = |rps: Option<f64>| rps.map_or_else(|| "-".to_owned(), |rps| format!("{rps:.1}"));
    rows.push(Row {
        name: "requests/s".to_owned(),
        before: text(one.achieved_rps),
        after: text(two.achieved_rps),
        worse,
    });
    if before.highest_stable_step.is_some() || after.highest_stable_step.is_some() {
        let text = |step: Option<u32>| step.map_or_else(|| "-".to_owned(), |step| step.to_string());
        let (was, now) = (before.highest_stable_step, after.highest_stable_step);
        let worse = now < was;
        rows.push(Row { name: "highest stable step".to_owned(), before: text(was), after: text(now), worse });
    }
    rows
}

/// A rate is worse when the other run's 95 % interval lies above the baseline: few requests prove little.
fn rate(name: &str, was: Option<f64>, now: Option<f64>, sent: u64) -> Row {
    let worse = was.zip(now).is_some_and(|(was, now)| {
        let failed = (now * sent as f64).round() as u64;
        now > was && stats::interval::wilson(failed, sent).is_some_and(|interval| interval.low > was)
    });
    let text =
        |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.3} %", rate * 100.0));
    Row { name: name.to_owned(), before: text(was), after: text(now), worse }
}

fn time(name: &str, was: Option<u64>, now: Option<u64>, tolerance: f64) -> Row {
    let worse = was.zip(now).is_some_and(|(was, now)| {
        now > was.saturating_add(TIME_NOISE_US) && now as f64 > was as f64 * (1.0 + tolerance)
    });
    let text =
        |us: Option<u64>| us.map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us as f64 / 1_000.0));
    Row { name: name.to_owned(), before: text(was), after: text(now), worse }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Summary {
        let text = include_str!("../../../docs/samples/summary.json");
        serde_json::from_str(text).unwrap()
    }

    fn worse(change: impl Fn(&mut Summary)) -> Vec<String> {
        let mut before = sample();
        before.client.sent = 400;
        before.client.error_rate = Some(0.0);
        before.client.achieved_rps = Some(100.0);
        before.client.ttft.p95_us = Some(100_000);
        let mut after = before.clone();
        change(&mut after);
        rows(&before, &after, 0.2).into_iter().filter(|row| row.worse).map(|row| row.name).collect()
    }

    #[test]
    fn equal_runs_show_no_regression() {
        assert_eq!(worse(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn each_kind_of_regression_is_found_and_small_changes_are_not() {
        assert_eq!(worse(|run| run.client.ttft.p95_us = Some(121_000)), ["ttft p95"]);
        assert!(worse(|run| run.client.ttft.p95_us = Some(119_000)).is_empty());
        assert_eq!(worse(|run| run.client.achieved_rps = Some(79.0)), ["requests/s"]);
        assert_eq!(worse(|run| run.client.error_rate = Some(0.05)), ["error_rate"]);
        let id = sample().assertions.iter().find(|(_, status)| **status == Status::Pass).unwrap().0.clone();
        let fails = |run: &mut Summary| {
            run.assertions.insert(id.clone(), Status::Fail);
        };
        assert_eq!(worse(fails), std::slice::from_ref(&id));
    }

    #[test]
    fn runs_of_other_plans_are_refused() {
        let (before, mut after) = (sample(), sample());
        assert_eq!(incomparable(&before, &after), None);
        "another".clone_into(&mut after.scenario_hash);
        assert!(incomparable(&before, &after).unwrap().contains("scenario_hash"));
    }
}
