//! `loadgen compare A B`: two sets of runs, stage by stage. Reads files and sends no load.
//!
//! A latency or rate has become worse when the median of all pairwise ratios passes the practical limit and the
//! interval of the ratio excludes no change (with one run a side the interval is the ratio itself, and the report says
//! so). Error shares are compared as counts: beyond the limit, with Wilson intervals that do not meet.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use evidence::exit::Outcome;
use report::units;
use schemars::JsonSchema;
use serde::Serialize;
use stats::interval::{CONFIDENCE, ratio_of_runs, wilson};
use stats::{Interval, Percentile};

use super::{read_summary, show};
use crate::error::LoadgenError;
use crate::result::{Better, Figure, Figures, Metric, RunResult, Unit};

/// Flags of `compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareFlags {
    /// Runs to compare with: summary files separated by commas, or a folder of them.
    #[arg(value_name = "A")]
    pub before: String,
    /// Runs to judge, in the same form.
    #[arg(value_name = "B")]
    pub after: String,
    /// Practical limit: what is worse by less than this many per cent is no regression.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub regress_pct: u32,
    /// Compare although the plans differ.
    #[arg(long)]
    pub allow_other_plan: bool,
    /// Compare although the machines differ.
    #[arg(long)]
    pub allow_other_machine: bool,
    /// Compare although a run was stopped early or its generator was the limit.
    #[arg(long)]
    pub allow_unfit: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Form of the JSON output.
pub const COMPARISON_VERSION: u32 = 1;
/// Most runs a side.
const RUNS_MAX: usize = stats::interval::RUNS_MAX;

/// Latencies that are compared.
const LATENCIES: [(Metric, Percentile); 7] = [
    (Metric::Latency, Percentile::P50),
    (Metric::Latency, Percentile::P95),
    (Metric::Latency, Percentile::P99),
    (Metric::Latency, Percentile::P999),
    (Metric::Ttft, Percentile::P50),
    (Metric::Ttft, Percentile::P95),
    (Metric::Tpot, Percentile::P95),
];
/// Rates that are compared.
const RATES: [Figure; 3] = [Figure::OkRps, Figure::OutputTokensPerSecond, Figure::GoodputRps];

/// What became of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Worse beyond the limit.
    Regression,
    /// Better beyond the limit.
    Better,
    /// Within the limit, or not told apart from chance.
    Same,
    /// Too few values, or none on either side.
    NotJudged,
}

/// One compared figure.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// Stage, from 1.
    pub stage: usize,
    /// Load of the stage in words.
    pub load: String,
    /// Figure, for example `latency p99`.
    pub figure: String,
    /// Median of side A in the unit of the table; a share for the error rate.
    pub before: Option<f64>,
    /// Median of side B.
    pub after: Option<f64>,
    /// Unit.
    pub unit: Unit,
    /// B over A: 1 is no change.
    pub ratio: Option<f64>,
    /// Interval of the ratio.
    pub interval: Option<Interval>,
    /// Its confidence; below 0.95 there are too few runs.
    pub coverage: Option<f64>,
    /// What became of it.
    pub change: Change,
    /// Why, when the numbers do not say it.
    pub note: Option<String>,
}

/// A whole comparison.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Comparison {
    /// Format version.
    pub v: u32,
    /// Runs of side A.
    pub runs_before: usize,
    /// Runs of side B.
    pub runs_after: usize,
    /// Practical limit in per cent.
    pub regress_pct: u32,
    /// Differences that were allowed by a flag.
    pub allowed: Vec<String>,
    /// Every figure of every stage.
    pub rows: Vec<Row>,
    /// Whether any of them is a regression.
    pub regression: bool,
}

/// Compares and gives the exit code: 6 on a regression, 2 when the runs can't be compared, else 0.
#[must_use]
pub fn run(flags: &CompareFlags) -> u8 {
    match try_run(flags) {
        Ok(outcome) => outcome.code(),
        Err(error) => {
            eprintln!("loadgen compare: {error}");
            error.outcome().code()
        }
    }
}

fn try_run(flags: &CompareFlags) -> Result<Outcome, LoadgenError> {
    let (before, after) = (side(&flags.before)?, side(&flags.after)?);
    let comparison = compare(&before, &after, flags).map_err(LoadgenError::Usage)?;
    if flags.json {
        let text = serde_json::to_string_pretty(&comparison)
            .map_err(|error| LoadgenError::Internal(error.to_string()))?;
        crate::terminal::say(&format!("{text}\n"));
    } else {
        crate::terminal::say(&text(&comparison));
    }
    Ok(if comparison.regression { Outcome::Regression } else { Outcome::Pass })
}

/// Files of one side.
fn side(given: &str) -> Result<Vec<RunResult>, LoadgenError> {
    let folder = Path::new(given);
    let mut paths: Vec<PathBuf> = if folder.is_dir() {
        let list = fs::read_dir(folder)
            .map_err(|error| LoadgenError::Usage(format!("{}: {error}", folder.display())))?;
        let summary = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("summary-") && name.ends_with(".json")
        };
        list.flatten().map(|entry| entry.path()).filter(summary).collect()
    } else {
        given.split(',').filter(|part| !part.is_empty()).map(PathBuf::from).collect()
    };
    paths.sort_unstable();
    match paths.len() {
        0 => Err(LoadgenError::Usage(format!("{given}: no summary-<ts>.json"))),
        1..=RUNS_MAX => paths.iter().map(|path| read_summary(path)).collect(),
        many => Err(LoadgenError::Usage(format!("{given}: {many} runs, at most {RUNS_MAX} a side"))),
    }
}

/// Compares two sets of runs.
///
/// # Errors
/// In words: an empty side, or runs that differ in what no flag allows.
pub fn compare(
    before: &[RunResult],
    after: &[RunResult],
    flags: &CompareFlags,
) -> Result<Comparison, String> {
    let first = before.first().ok_or("side A has no run")?;
    if after.is_empty() {
        return Err("side B has no run".to_owned());
    }
    let allowed = refuse(first, before.iter().chain(after), flags)?;
    let stages = before.iter().chain(after).map(|run| run.stages.len()).max().unwrap_or_default();
    let mut rows = Vec::new();
    for index in 0..stages {
        rows.extend(stage_rows(index, before, after, flags.regress_pct));
    }
    let regression = rows.iter().any(|row| row.change == Change::Regression);
    Ok(Comparison {
        v: COMPARISON_VERSION,
        runs_before: before.len(),
        runs_after: after.len(),
        regress_pct: flags.regress_pct,
        allowed,
        rows,
        regression,
    })
}

/// Refuses what can't be compared; gives what a flag let pass.
fn refuse<'a>(
    first: &RunResult,
    all: impl Iterator<Item = &'a RunResult>,
    flags: &CompareFlags,
) -> Result<Vec<String>, String> {
    let mut allowed = Vec::new();
    for run in all {
        let unfit = run.run.partial || matches!(run.verdict.outcome, Outcome::Invalid | Outcome::Interrupted);
        let machine = |run: &RunResult| (run.machine.cpu.clone(), run.machine.cores);
        let findings = [
            (
                run.run.plan_digest != first.run.plan_digest,
                flags.allow_other_plan,
                "--allow-other-plan",
                "another plan",
            ),
            (
                machine(run) != machine(first),
                flags.allow_other_machine,
                "--allow-other-machine",
                "another machine",
            ),
            (unfit, flags.allow_unfit, "--allow-unfit", "stopped early or limited by its generator"),
        ];
        for (found, told, flag, words) in findings {
            let text = format!("run {} ({}): {words}", run.run.stamp, run.run.name);
            match (found, told) {
                (true, false) => return Err(format!("{text}; {flag} compares all the same")),
                (true, true) => allowed.push(text),
                (false, _) => {}
            }
        }
        let said = |warning| format!("run {} ({}): {warning}", run.run.stamp, run.run.name);
        allowed.extend(super::show::warnings(run).into_iter().map(said));
    }
    Ok(allowed)
}

fn stage_rows(index: usize, before: &[RunResult], after: &[RunResult], percent: u32) -> Vec<Row> {
    let figures = |side: &'_ [RunResult]| -> Vec<Figures> {
        side.iter().filter_map(|run| run.stages.get(index)).map(|stage| stage.total.clone()).collect()
    };
    let load =
        before.iter().chain(after).find_map(|run| run.stages.get(index)).map(|stage| stage.load.words());
    let load = load.unwrap_or_default();
    let sides = (figures(before), figures(after));
    let stage = index + 1;
    let row = |figure: String, unit| Row {
        stage,
        load: load.clone(),
        figure,
        before: None,
        after: None,
        unit,
        ratio: None,
        interval: None,
        coverage: None,
        change: Change::NotJudged,
        note: None,
    };
    let mut rows = Vec::new();
    for figure in RATES {
        let milli = |figures: &Figures| figures.value(figure).map(|rate| (rate * 1e3).round() as u64);
        let definition = figure.definition();
        let blank = row(definition.name.to_owned(), definition.unit);
        rows.extend(judged(
            blank,
            &sides,
            milli,
            1e-3,
            &Rule { better: definition.better, percent, low_n: false },
        ));
    }
    for (metric, percentile) in LATENCIES {
        let us = |figures: &Figures| figures.distributions.get(metric).percentile_us(percentile);
        let low = |figures: &Figures| percentile.is_low_n(figures.distributions.get(metric).count());
        let low_n = sides.0.iter().chain(&sides.1).any(low);
        let blank = row(format!("{metric} {percentile}"), Unit::Microseconds);
        rows.extend(judged(
            blank,
            &sides,
            us,
            1.0,
            &Rule { better: metric.definition().better, percent, low_n },
        ));
    }
    rows.push(errors(row(Figure::ErrorRate.definition().name.to_owned(), Unit::Share), &sides, percent));
    rows
}

/// How a figure's ratio is judged.
struct Rule {
    better: Better,
    /// Changes up to this many percent are no change.
    percent: u32,
    /// A side has too few values for this percentile.
    low_n: bool,
}

/// A figure that has a ratio. `None` when neither side has it.
fn judged(
    mut row: Row,
    sides: &(Vec<Figures>, Vec<Figures>),
    of: impl Fn(&Figures) -> Option<u64>,
    scale: f64,
    rule: &Rule,
) -> Option<Row> {
    let Rule { better, percent, low_n } = *rule;
    let values = |side: &[Figures]| -> Vec<u64> { side.iter().filter_map(&of).collect() };
    let (before, after) = (values(&sides.0), values(&sides.1));
    if before.is_empty() && after.is_empty() {
        return None;
    }
    row.before = median(&before).map(|value| value * scale);
    row.after = median(&after).map(|value| value * scale);
    if after.is_empty() {
        row.change = Change::Regression;
        row.note = Some("nothing of it is left on side B".to_owned());
        return Some(row);
    }
    let Some(ratio) = ratio_of_runs(&before, &after) else {
        // A rate of 0 has no ratio, and is as bad as it gets.
        let fell = better == Better::Higher && row.before > Some(0.0) && row.after == Some(0.0);
        row.change = if fell { Change::Regression } else { Change::NotJudged };
        row.note = Some(if fell { "fell to nothing" } else { "a side has no value, or 0" }.to_owned());
        return Some(row);
    };
    row.ratio = Some(ratio.median);
    row.interval = Some(ratio.interval);
    row.coverage = Some(ratio.coverage);
    let limit = 1.0 + f64::from(percent) / 100.0;
    let (grown, shrunk) = (
        ratio.median > limit && ratio.interval.low > 1.0,
        ratio.median < 1.0 / limit && ratio.interval.high < 1.0,
    );
    row.change = match (better, grown, shrunk) {
        _ if low_n => Change::NotJudged,
        (Better::Lower, true, _) | (Better::Higher, _, true) => Change::Regression,
        (Better::Lower, _, true) | (Better::Higher, true, _) => Change::Better,
        _ => Change::Same,
    };
    if low_n {
        row.note = Some("too few values for this percentile".to_owned());
    }
    Some(row)
}

/// Error shares, of all runs of a side together.
fn errors(mut row: Row, sides: &(Vec<Figures>, Vec<Figures>), percent: u32) -> Row {
    let pooled = |side: &[Figures]| {
        side.iter()
            .filter_map(Figures::error_share)
            .fold((0, 0), |(part, whole), share| (part + share.num(), whole + share.den()))
    };
    let (before, after) = (pooled(&sides.0), pooled(&sides.1));
    row.before = stats::ratio::share(before.0, before.1);
    row.after = stats::ratio::share(after.0, after.1);
    let (Some(old), Some(new)) = (wilson(before.0, before.1), wilson(after.0, after.1)) else {
        row.note = Some("nothing ended on one side".to_owned());
        return row;
    };
    let limit = 1.0 + f64::from(percent) / 100.0;
    let (was, is) = (row.before.unwrap_or_default(), row.after.unwrap_or_default());
    row.change = if is > was * limit && new.low > old.high {
        Change::Regression
    } else if was > is * limit && new.high < old.low {
        Change::Better
    } else {
        Change::Same
    };
    row
}

fn median(values: &[u64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let middle = sorted.len().checked_sub(1)? / 2;
    let upper = sorted[sorted.len() / 2];
    Some(f64::midpoint(sorted[middle] as f64, upper as f64))
}

/// The comparison for people.
#[must_use]
pub fn text(comparison: &Comparison) -> String {
    let mut out = format!(
        "{} runs before, {} after; worse by more than {} % is a regression\n",
        comparison.runs_before, comparison.runs_after, comparison.regress_pct
    );
    comparison.allowed.iter().for_each(|text| out.push_str(&format!("allowed: {text}\n")));
    let mut last = 0;
    for row in &comparison.rows {
        if row.stage != last {
            last = row.stage;
            out.push_str(&format!("\nstage {} {}\n", row.stage, row.load));
        }
        let word = match row.change {
            Change::Regression => "REGRESSION",
            Change::Better => "better",
            Change::Same => "same",
            Change::NotJudged => "not judged",
        };
        let change = row
            .ratio
            .map_or_else(|| units::NONE.to_owned(), |ratio| format!("{:+.1} %", (ratio - 1.0) * 100.0));
        let interval =
            row.interval.filter(|_| row.coverage > Some(0.0)).map_or_else(String::new, |interval| {
                let percent = |ratio: f64| format!("{:+.1}", (ratio - 1.0) * 100.0);
                let weak = if row.coverage < Some(CONFIDENCE) { ", few runs" } else { "" };
                let confidence = row.coverage.unwrap_or_default() * 100.0;
                format!(" [{} to {}, {confidence:.0} %{weak}]", percent(interval.low), percent(interval.high))
            });
        let note = row.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
        out.push_str(&format!(
            "  {word:<11} {:<22} {:>11} {:>11} {change:>9}{interval}{note}\n",
            row.figure,
            show::value(row.unit, row.before),
            show::value(row.unit, row.after)
        ));
    }
    if comparison.runs_before.min(comparison.runs_after) < 4 {
        out.push_str("\nFewer than four runs a side: chance is not excluded with 95 % confidence.\n");
    }
    let verdict = if comparison.regression { "regression" } else { "no regression" };
    out.push_str(&format!("\n{verdict}\n"));
    out
}
