//! What happens between stages: a broken threshold may end the run, and a search chooses its next level.

use std::sync::Arc;

use scenario::units::Ppb;
use stats::{LevelRun, Next, Outcome, Purpose, SearchPlan, Steps, next_level};

use crate::engine::profile_load::Director;
use crate::engine::stage::StagePart;
use crate::error::LoadgenError;
use crate::profile::Resolved;
use crate::profile::model::{Arrival, Search, SearchOf};
use crate::profile::resolve::StagePlan;
use crate::profile::stages::search_stage;
use crate::result::{Figure, Figures, Metric, SearchResult, SearchRun, ThresholdResult};

const SEARCH_RUNS_MAX: usize = 60;

/// Holds the limits against a stage; those over all stages are left out.
#[must_use]
pub fn judge_stage(plan: &Resolved, index: usize, part: &StagePart) -> Vec<ThresholdResult> {
    let span_us = part.span_us();
    let total = part.total();
    let mine =
        plan.rules.iter().filter(|rule| !rule.overall && rule.stage.is_none_or(|stage| stage == index));
    mine.map(|rule| match rule.scenario {
        None => rule.judge(&total, Some(index), None),
        Some(place) => {
            let figures = Figures { span_us, ..part.scenarios[place].clone() };
            rule.judge(&figures, Some(index), Some(&plan.scenarios[place].name))
        }
    })
    .collect()
}

/// Why the generator was the limit of a stage, if it was.
#[must_use]
pub fn limited(plan: &Resolved, figures: &Figures) -> Option<String> {
    let late = figures.distributions.get(Metric::Lateness).percentile_us(stats::Percentile::P99);
    let most = plan.health.lateness_p99.us();
    if let Some(late_us) = late.filter(|late_us| *late_us > most) {
        return Some(format!("lateness p99 was {late_us} µs, more than {most} µs"));
    }
    None
}

/// Thresholds that end a run early.
#[derive(Debug)]
pub struct Thresholds {
    /// The profile.
    pub plan: Arc<Resolved>,
}

impl Director for Thresholds {
    fn after(&mut self, index: usize, part: &StagePart) -> (Option<StagePlan>, bool) {
        let broken = judge_stage(&self.plan, index, part).iter().any(|result| !result.held);
        (None, !(broken && self.plan.abort_on_fail))
    }

    fn during(&mut self, index: usize, part: &StagePart) -> Option<String> {
        // A figure of few values may still recover; one without any says nothing yet.
        let results = judge_stage(&self.plan, index, part);
        let broken = results.iter().find(|result| !result.held && result.found.is_some() && !result.low_n)?;
        Some(format!("threshold {} broke: {:?}", broken.name, broken.found))
    }

    fn found(&self) -> Option<SearchResult> {
        None
    }
}

/// A search for the highest level that passes.
#[derive(Debug)]
pub struct Searching {
    plan: Arc<Resolved>,
    search: Search,
    levels: SearchPlan,
    warmup_us: u64,
    arrival: Arrival,
    runs: Vec<LevelRun>,
    now: (u64, Purpose),
    ending: String,
}

impl Searching {
    /// A search and its first stage.
    ///
    /// # Errors
    /// Usage when its levels don't rise, or no limit could ever fail one.
    pub fn new(
        plan: Arc<Resolved>,
        search: Search,
        warmup_us: u64,
        arrival: Arrival,
    ) -> Result<(Self, StagePlan), LoadgenError> {
        let usage = |error: String| LoadgenError::Usage(format!("search: {error}"));
        if plan.rules.is_empty() {
            return Err(usage("give thresholds; without one every level passes".to_owned()));
        }
        if search.hold.us() <= warmup_us {
            return Err(usage("hold is not longer than the warm-up".to_owned()));
        }
        let steps =
            Steps::Factor { from: search.from, to: search.to, percent: search.percent.unwrap_or(200) };
        let resolution = search.resolution.map_or(50_000_000, Ppb::get);
        let levels =
            SearchPlan::new(steps, resolution, SEARCH_RUNS_MAX).map_err(|error| usage(error.to_string()))?;
        let mut searching = Self {
            plan,
            search,
            levels,
            warmup_us,
            arrival,
            runs: Vec::new(),
            now: (0, Purpose::Step),
            ending: String::new(),
        };
        let first = searching.advance()?.ok_or_else(|| usage("it has no level".to_owned()))?;
        Ok((searching, first))
    }

    fn advance(&mut self) -> Result<Option<StagePlan>, LoadgenError> {
        let next = next_level(&self.levels, &self.runs);
        if let Next::Run { level, purpose } = next {
            self.now = (level, purpose);
            return search_stage(&self.search, level, self.warmup_us, self.arrival).map(Some);
        }
        self.ending = match next {
            Next::Done(bracket) if bracket.lowest_bad.is_none() => "every level passed; it may be higher",
            Next::Done(_) => "found, both ends seen twice",
            Next::NonePassed(_) => "the lowest level failed twice",
            Next::Limited { .. } => "the generator was the limit",
            Next::RunsUsedUp(_) | Next::Run { .. } => "not found within the allowed runs",
        }
        .to_owned();
        Ok(None)
    }
}

impl Director for Searching {
    fn after(&mut self, index: usize, part: &StagePart) -> (Option<StagePlan>, bool) {
        let figures = part.total();
        let held = judge_stage(&self.plan, index, part).iter().all(|result| result.held);
        // A target that can't keep up shows as arrivals that were never sent.
        let offered = self.search.of == SearchOf::Concurrency
            || figures
                .value(Figure::Achieved)
                .is_some_and(|share| share >= self.plan.health.achieved.get() as f64 / 1e9);
        let outcome = if limited(&self.plan, &figures).is_some() {
            Outcome::Limited
        } else if held && offered {
            Outcome::Passed
        } else {
            Outcome::Failed
        };
        self.runs.push(LevelRun { level: self.now.0, purpose: self.now.1, outcome });
        match self.advance() {
            Ok(Some(stage)) => (Some(stage), true),
            Ok(None) => (None, false),
            Err(error) => {
                self.ending = error.to_string();
                (None, false)
            }
        }
    }

    fn during(&mut self, _index: usize, _part: &StagePart) -> Option<String> {
        None
    }

    fn found(&self) -> Option<SearchResult> {
        let bracket = match next_level(&self.levels, &self.runs) {
            Next::Done(bracket) | Next::NonePassed(bracket) | Next::RunsUsedUp(bracket) => bracket,
            Next::Limited { known, .. } => known,
            // Interrupted: the runs so far stand for themselves.
            Next::Run { .. } => stats::Bracket::default(),
        };
        let word = |value: serde_json::Result<serde_json::Value>| {
            value.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        Some(SearchResult {
            of: word(serde_json::to_value(self.search.of)),
            highest: bracket.highest_good,
            lowest_bad: bracket.lowest_bad,
            ending: self.ending.clone(),
            runs: self
                .runs
                .iter()
                .enumerate()
                .map(|(stage, run)| SearchRun {
                    level: run.level,
                    purpose: word(serde_json::to_value(run.purpose)),
                    outcome: word(serde_json::to_value(run.outcome)),
                    stage,
                })
                .collect(),
        })
    }
}
