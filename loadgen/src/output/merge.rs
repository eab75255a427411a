//! `loadgen merge`: the shards of one run become one result, which equals the one of a single big run.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use evidence::exit::Outcome;
use stats::Percentile;

use super::{read_summary, write_all};
use crate::error::LoadgenError;
use crate::result::{Figure, Figures, Metric, RunResult, ScenarioFigures, StageResult, ThresholdResult};

/// Flags of `merge`.
#[derive(Clone, Debug, Args)]
pub struct MergeFlags {
    /// `summary-<ts>.json` of every shard.
    #[arg(required = true, num_args = 2.., value_name = "SUMMARY")]
    pub shards: Vec<PathBuf>,
    /// Folder for the files of the merged run.
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
}

/// Merges and gives the exit code: that of the merged run, 2 when the files are no shards of one run.
#[must_use]
pub fn run(flags: &MergeFlags) -> u8 {
    match try_run(flags) {
        Ok(outcome) => outcome.code(),
        Err(error) => {
            eprintln!("loadgen merge: {error}");
            error.outcome().code()
        }
    }
}

fn try_run(flags: &MergeFlags) -> Result<Outcome, LoadgenError> {
    let mut shards = Vec::new();
    for path in &flags.shards {
        shards.push(read_summary(path)?);
    }
    let merged = merge(shards).map_err(LoadgenError::Usage)?;
    crate::terminal::say(&super::text(&merged));
    for path in write_all(&flags.output, &merged)? {
        eprintln!("wrote {}", path.display());
    }
    Ok(merged.verdict.outcome)
}

/// Shards as one run.
///
/// # Errors
/// In words: no shards, other plans or builds, a shard twice, or one that is missing.
pub fn merge(mut shards: Vec<RunResult>) -> Result<RunResult, String> {
    check(&shards)?;
    if shards.len() > 1 {
        shards.iter_mut().for_each(name_findings);
    }
    let mut shards = shards.into_iter();
    let mut whole = shards.next().ok_or("no shard was given")?;
    for shard in shards {
        add(&mut whole, shard)?;
    }
    // Sums over stages are made anew, so that spans of the same time are not added up.
    whole.total = Figures::default();
    for scenario in &mut whole.scenarios {
        scenario.figures = Figures::default();
    }
    for stage in &whole.stages {
        whole.total.merge_next_span(&stage.total);
        for scenario in &stage.scenarios {
            named(&mut whole.scenarios, &scenario.name).merge_next_span(&scenario.figures);
        }
    }
    judge(&mut whole);
    Ok(whole)
}

/// Puts its shard in front of what one of them found: figures in such a sentence, a lateness above all, are its own and not
/// those of the whole.
fn name_findings(shard: &mut RunResult) {
    let whose = format!("shard {}: ", shard.run.shards.join(", "));
    let details = shard.health.saturation.iter_mut().map(|found| &mut found.detail);
    details.chain(&mut shard.verdict.reasons).for_each(|text| text.insert_str(0, &whose));
}

/// The same plan, every share of it once.
fn check(shards: &[RunResult]) -> Result<(), String> {
    let first = shards.first().ok_or("no shard was given")?;
    let mut seen = BTreeSet::new();
    let mut of = BTreeSet::new();
    for shard in shards {
        if shard.run.plan_digest != first.run.plan_digest || shard.run.seed != first.run.seed {
            return Err(format!(
                "{} and {} have different plans: only shards of one plan and seed merge",
                first.run.stamp, shard.run.stamp
            ));
        }
        if shard.run.build != first.run.build {
            return Err(format!("builds {} and {} do not mix", first.run.build, shard.run.build));
        }
        if shard.search.is_some() {
            return Err("a capacity search has no shards: its levels follow from its own results".to_owned());
        }
        for name in &shard.run.shards {
            let parts = name
                .split_once('/')
                .and_then(|(i, n)| Some((i.parse::<u64>().ok()?, n.parse::<u64>().ok()?)));
            let (_, count) = parts.ok_or_else(|| format!("{name:?} is no shard; i/n is expected"))?;
            of.insert(count);
            if !seen.insert(name.clone()) {
                return Err(format!("shard {name} was given twice"));
            }
        }
    }
    match of.iter().copied().collect::<Vec<_>>().as_slice() {
        [count] if seen.len() as u64 == *count => Ok(()),
        [count] => Err(format!("{} of {count} shards were given; all are needed", seen.len())),
        _ => Err("the files are shards of different numbers".to_owned()),
    }
}

fn add(whole: &mut RunResult, shard: RunResult) -> Result<(), String> {
    let (run, theirs) = (&mut whole.run, shard.run);
    run.shards.extend(theirs.shards);
    run.shards.sort_unstable();
    run.targets.extend(theirs.targets);
    run.targets.sort_unstable();
    run.targets.dedup();
    run.started_unix_us = run.started_unix_us.min(theirs.started_unix_us);
    run.wall_us = run.wall_us.max(theirs.wall_us);
    run.partial |= theirs.partial;
    run.records += theirs.records;
    run.records_dropped += theirs.records_dropped;
    for note in theirs.notes {
        if !run.notes.contains(&note) {
            run.notes.push(note);
        }
    }
    for stage in shard.stages {
        match whole.stages.iter_mut().find(|own| own.index == stage.index) {
            Some(own) => add_stage(own, stage)?,
            // A shard that was stopped earlier has fewer of them.
            None => whole.stages.push(stage),
        }
    }
    whole.stages.sort_by_key(|stage| stage.index);
    whole.over_time.merge(&shard.over_time);
    whole.health.merge(&shard.health);
    whole.wires.merge(&shard.wires);
    for theirs in shard.thresholds {
        if !whole.thresholds.iter().any(|own| same_threshold(own, &theirs)) {
            whole.thresholds.push(theirs);
        }
    }
    for scenario in shard.scenarios {
        // Its figures are made anew from the stages; here its name and place are kept.
        let _ = named(&mut whole.scenarios, &scenario.name);
    }
    for reason in shard.verdict.reasons {
        if !whole.verdict.reasons.contains(&reason) {
            whole.verdict.reasons.push(reason);
        }
    }
    whole.verdict.outcome = graver(whole.verdict.outcome, shard.verdict.outcome);
    Ok(())
}

fn add_stage(own: &mut StageResult, stage: StageResult) -> Result<(), String> {
    // Each shard is given its share of the load, so that the words of the whole are those of the profile.
    if std::mem::discriminant(&own.load) != std::mem::discriminant(&stage.load) {
        return Err(format!("stage {} has different loads in its shards", own.index + 1));
    }
    own.started_us = own.started_us.min(stage.started_us);
    own.ended_us = own.ended_us.max(stage.ended_us);
    own.steady_from_us = own.steady_from_us.min(stage.steady_from_us);
    own.steady_until_us = own.steady_until_us.max(stage.steady_until_us);
    own.total.merge_same_span(&stage.total);
    for scenario in &stage.scenarios {
        named(&mut own.scenarios, &scenario.name).merge_same_span(&scenario.figures);
    }
    own.outside.merge(&stage.outside);
    own.in_flight_max += stage.in_flight_max;
    own.stopped = own.stopped.take().or(stage.stopped);
    own.health.merge(&stage.health);
    Ok(())
}

fn named<'a>(scenarios: &'a mut Vec<ScenarioFigures>, name: &str) -> &'a mut Figures {
    let at = scenarios.iter().position(|scenario| scenario.name == name).unwrap_or(scenarios.len());
    if at == scenarios.len() {
        scenarios.push(ScenarioFigures { name: name.to_owned(), figures: Figures::default() });
    }
    &mut scenarios[at].figures
}

fn same_threshold(a: &ThresholdResult, b: &ThresholdResult) -> bool {
    (&a.name, a.stage, &a.scenario, a.limit.to_bits()) == (&b.name, b.stage, &b.scenario, b.limit.to_bits())
}

/// Thresholds hold of the whole, whatever the shards said; then the verdict follows.
fn judge(whole: &mut RunResult) {
    let mut thresholds = std::mem::take(&mut whole.thresholds);
    for threshold in &mut thresholds {
        judge_one(whole, threshold);
    }
    for stage in &mut whole.stages {
        let mut own = thresholds.iter().filter(|threshold| threshold.stage == Some(stage.index)).peekable();
        stage.passed = own.peek().is_some().then(|| own.all(|threshold| threshold.held));
    }
    let broken = thresholds.iter().any(|threshold| !threshold.held);
    whole.thresholds = thresholds;
    whole.verdict.outcome = match (whole.verdict.outcome, broken) {
        // The shards' own judgement of thresholds counts no longer; what ended them otherwise does.
        (Outcome::Pass | Outcome::Fail, true) => Outcome::Fail,
        (Outcome::Fail, false) if !whole.thresholds.is_empty() => Outcome::Pass,
        (outcome, _) => outcome,
    };
}

fn judge_one(whole: &RunResult, threshold: &mut ThresholdResult) {
    let stage = threshold.stage.and_then(|index| whole.stages.iter().find(|stage| stage.index == index));
    let (total, scenarios) = match (threshold.stage, stage) {
        (None, _) => (&whole.total, &whole.scenarios),
        (Some(_), Some(stage)) => (&stage.total, &stage.scenarios),
        (Some(_), None) => return,
    };
    let figures = match &threshold.scenario {
        None => total,
        Some(name) => match scenarios.iter().find(|scenario| scenario.name == *name) {
            Some(scenario) => &scenario.figures,
            None => return,
        },
    };
    let mut words = threshold.name.split_whitespace();
    let (metric, percentile) = (words.next().unwrap_or_default(), words.next());
    if let (Ok(metric), Some(Ok(percentile))) =
        (metric.parse::<Metric>(), percentile.map(str::parse::<Percentile>))
    {
        let histogram = figures.distributions.get(metric);
        threshold.found = histogram.percentile_us(percentile).map(|us| us as f64);
        threshold.n = histogram.count();
        threshold.low_n = threshold.n > 0 && percentile.is_low_n(threshold.n);
    } else if let Some(figure) = Figure::ALL.iter().find(|figure| figure.definition().name == metric) {
        threshold.found = figures.value(*figure);
        threshold.n = figures.counts.ended();
    } else {
        return;
    }
    threshold.held = threshold.found.is_some_and(|found| {
        if threshold.at_least { found >= threshold.limit } else { found <= threshold.limit }
    });
}

/// The graver of two outcomes in the order of the design, section 7.
fn graver(a: Outcome, b: Outcome) -> Outcome {
    let order = [
        Outcome::Internal,
        Outcome::Interrupted,
        Outcome::Environment,
        Outcome::Invalid,
        Outcome::Fail,
        Outcome::Unknown,
    ];
    order.into_iter().find(|outcome| *outcome == a || *outcome == b).unwrap_or(a)
}
