//! Capacity search: which level to try next, from the list of what was tried (design section 10).
//!
//! The whole state is that list, so that a search can be stopped, written down and continued, and so that
//! the runner and the load generator, which both search, can't differ.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ratio::PPB_WHOLE;

/// Most levels in a fixed list and most runs of a search.
pub const RUNS_MAX: usize = 1_000;

/// How levels rise until one fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Steps {
    /// From `from` by a factor, at least by one, and at last `to` itself.
    Factor {
        /// Lowest level, at least 1.
        from: u64,
        /// Highest level.
        to: u64,
        /// Factor in percent, above 100; 200 doubles.
        percent: u32,
    },
    /// These levels, ascending.
    List(Vec<u64>),
}

/// What is searched, and how finely. A level is a concurrency or a rate; the search only compares them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "PlanForm", into = "PlanForm")]
#[schemars(with = "PlanForm")]
pub struct SearchPlan(PlanForm);

/// The written form of a [`SearchPlan`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SearchPlan")]
struct PlanForm {
    /// Levels before the first failure.
    steps: Steps,
    /// Halving ends when lowest bad − highest good ≤ this share of highest good, in parts per 10⁹, or 1.
    resolution_ppb: u64,
    /// Most runs in all, 1 to 1000.
    runs_max: usize,
}

/// Why a search can't be planned.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SearchError {
    /// Levels don't rise from at least 1.
    #[error(
        "search levels must rise and start at 1 or more: give from ≤ to, or an ascending list of 1 to 1000 levels"
    )]
    Levels,
    /// Steps that do not rise.
    #[error("search factor of {0} percent does not rise: give more than 100, for example 200 to double")]
    Factor(u32),
    /// No runs, or too many.
    #[error("search of at most {0} runs: give 1 to 1000")]
    Runs(usize),
}

/// Why a level is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// First try of a level while no level has failed.
    Step,
    /// First try of a level between the highest good and the lowest bad one.
    Bisect,
    /// Second run of the highest good level.
    ConfirmGood,
    /// Second run of the lowest bad level.
    ConfirmBad,
    /// Third run of a level whose two runs disagree; two of three decide.
    Decide,
}

/// How a run of a level ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All limits held.
    Passed,
    /// A limit broke, or the drain missed its deadline.
    Failed,
    /// Load generator or mocks reached their own capacity: says nothing about the level, ends the search.
    Limited,
}

/// One finished run of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LevelRun {
    /// Level.
    pub level: u64,
    /// Why it was run. A record for readers; the search itself looks at level and outcome.
    pub purpose: Purpose,
    /// How it ended.
    pub outcome: Outcome,
}

/// What is known of the boundary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bracket {
    /// Highest level below `lowest_bad` of whose runs more passed than failed.
    pub highest_good: Option<u64>,
    /// Lowest level of whose runs more failed than passed; null when none did.
    pub lowest_bad: Option<u64>,
    /// Whether each end that is there was seen at least twice.
    pub confirmed: bool,
    /// Levels whose runs disagreed, ascending: the boundary is not sharp there.
    pub unstable: Vec<u64>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Next {
    /// Run this level.
    Run {
        /// Level.
        level: u64,
        /// Why.
        purpose: Purpose,
    },
    /// Found: `highest_good` is set, and both ends are confirmed. Without `lowest_bad` even the highest
    /// level passed, and the capacity may be higher.
    Done(Bracket),
    /// The lowest level failed, and failed again.
    NonePassed(Bracket),
    /// The load generator was the limit at this level; what is known of the boundary beside it.
    Limited {
        /// Level that could not be offered.
        level: u64,
        /// Known until then.
        known: Bracket,
    },
    /// All allowed runs are used up before the boundary was found and confirmed.
    RunsUsedUp(Bracket),
}

impl SearchPlan {
    /// Checks a plan. `resolution_ppb` as in the written form: 50 000 000 ends within 5 %.
    ///
    /// # Errors
    /// Levels that don't rise from at least 1, a factor of at most 100 %, no runs or more than 1000.
    pub fn new(steps: Steps, resolution_ppb: u64, runs_max: usize) -> Result<Self, SearchError> {
        Self::try_from(PlanForm { steps, resolution_ppb, runs_max })
    }

    /// Levels before the first failure.
    #[must_use]
    pub fn steps(&self) -> &Steps {
        &self.0.steps
    }

    /// The first stepping level above `level`; from 0 it is the lowest. `None` above the highest.
    fn step_above(&self, level: u64) -> Option<u64> {
        match &self.0.steps {
            Steps::List(levels) => levels.iter().copied().find(|next| *next > level),
            Steps::Factor { to, .. } if level >= *to => None,
            Steps::Factor { from, .. } if level < *from => Some(*from),
            Steps::Factor { to, percent, .. } => {
                // rounded up, so that any factor above 100 % rises by at least one
                let scaled = (u128::from(level) * u128::from(*percent)).div_ceil(100);
                Some(u64::try_from(scaled).map_or(*to, |next| next.min(*to)))
            }
        }
    }

    /// The level in the middle of a bracket, or `None` when it is narrow enough.
    fn between(&self, good: u64, bad: u64) -> Option<u64> {
        let allowed = u128::from(good) * u128::from(self.0.resolution_ppb) / u128::from(PPB_WHOLE);
        let gap = bad - good;
        (gap > 1 && u128::from(gap) > allowed).then(|| good + gap / 2)
    }
}

impl TryFrom<PlanForm> for SearchPlan {
    type Error = SearchError;

    fn try_from(form: PlanForm) -> Result<Self, Self::Error> {
        match &form.steps {
            Steps::Factor { percent, .. } if *percent <= 100 => return Err(SearchError::Factor(*percent)),
            Steps::Factor { from, to, .. } if *from == 0 || from > to => return Err(SearchError::Levels),
            Steps::List(levels)
                if levels.len() > RUNS_MAX
                    || levels.first().is_none_or(|first| *first == 0)
                    || !levels.is_sorted_by(|left, right| left < right) =>
            {
                return Err(SearchError::Levels);
            }
            Steps::Factor { .. } | Steps::List(_) => {}
        }
        if !(1..=RUNS_MAX).contains(&form.runs_max) {
            return Err(SearchError::Runs(form.runs_max));
        }
        Ok(Self(form))
    }
}

impl From<SearchPlan> for PlanForm {
    fn from(plan: SearchPlan) -> Self {
        plan.0
    }
}

/// Runs of one level, counted.
#[derive(Clone, Copy, Default)]
struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    fn is_good(self) -> bool {
        self.passed > self.failed
    }

    fn is_bad(self) -> bool {
        self.failed > self.passed
    }

    fn is_tied(self) -> bool {
        self.passed == self.failed
    }

    /// Two equal outcomes, or two of three. No level needs more than three runs.
    fn is_confirmed(self) -> bool {
        self.passed.max(self.failed) >= 2 && !self.is_tied()
    }
}

/// All levels that were tried.
struct Tallies(BTreeMap<u64, Tally>);

impl Tallies {
    fn of(runs: &[LevelRun]) -> Self {
        let mut levels = BTreeMap::<u64, Tally>::new();
        for run in runs {
            let tally = levels.entry(run.level);
            match run.outcome {
                Outcome::Passed => tally.or_default().passed += 1,
                Outcome::Failed => tally.or_default().failed += 1,
                Outcome::Limited => {}
            }
        }
        Self(levels)
    }

    fn is_confirmed(&self, level: u64) -> bool {
        self.0.get(&level).is_some_and(|tally| tally.is_confirmed())
    }

    fn bracket(&self) -> Bracket {
        let lowest_bad = self.0.iter().find(|(_, tally)| tally.is_bad()).map(|(level, _)| *level);
        // a pass above a failure proves nothing: the boundary is the lowest one
        let below = |level: u64| lowest_bad.is_none_or(|bad| level < bad);
        let mut from_the_top = self.0.iter().rev();
        let highest_good =
            from_the_top.find(|(level, tally)| tally.is_good() && below(**level)).map(|(level, _)| *level);
        let mut ends = highest_good.into_iter().chain(lowest_bad).peekable();
        let confirmed = ends.peek().is_some() && ends.all(|level| self.is_confirmed(level));
        let mixed = self.0.iter().filter(|(_, tally)| tally.passed > 0 && tally.failed > 0);
        Bracket { highest_good, lowest_bad, confirmed, unstable: mixed.map(|(level, _)| *level).collect() }
    }
}

/// What to run next after `runs`, the finished runs in any order.
///
/// Levels rise by the plan until one fails; then the gap between the highest good and the lowest bad
/// level is halved until it is within the resolution; then both ends are run once more. A rerun that
/// disagrees is decided by a third run, and the search goes on from what that changes. Each level is run
/// at most three times, so that every search ends, at the latest after `runs_max` runs.
#[must_use]
pub fn next_level(plan: &SearchPlan, runs: &[LevelRun]) -> Next {
    let tallies = Tallies::of(runs);
    let bracket = tallies.bracket();
    if let Some(run) = runs.iter().find(|run| run.outcome == Outcome::Limited) {
        return Next::Limited { level: run.level, known: bracket };
    }
    match wanted(plan, &tallies, &bracket) {
        Some(_) if runs.len() >= plan.0.runs_max => Next::RunsUsedUp(bracket),
        Some((level, purpose)) => Next::Run { level, purpose },
        None if bracket.highest_good.is_none() => Next::NonePassed(bracket),
        None => Next::Done(bracket),
    }
}

/// The run that would bring the search forward, or `None` when nothing is open.
fn wanted(plan: &SearchPlan, tallies: &Tallies, bracket: &Bracket) -> Option<(u64, Purpose)> {
    if let Some((level, _)) = tallies.0.iter().find(|(_, tally)| tally.is_tied()) {
        return Some((*level, Purpose::Decide));
    }
    let good = bracket.highest_good;
    let open = match bracket.lowest_bad {
        None => plan.step_above(good.unwrap_or(0)).map(|level| (level, Purpose::Step)),
        Some(bad) => match good {
            Some(good) => plan.between(good, bad).map(|level| (level, Purpose::Bisect)),
            // nothing below it passed: the lowest level, unless it is the one that failed
            None => plan.step_above(0).filter(|lowest| *lowest < bad).map(|level| (level, Purpose::Step)),
        },
    };
    let unconfirmed = |level: &u64| !tallies.is_confirmed(*level);
    open.or_else(|| good.filter(unconfirmed).map(|level| (level, Purpose::ConfirmGood)))
        .or_else(|| bracket.lowest_bad.filter(unconfirmed).map(|level| (level, Purpose::ConfirmBad)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubling(to: u64) -> SearchPlan {
        SearchPlan::new(Steps::Factor { from: 1, to, percent: 200 }, 50_000_000, 100).unwrap()
    }

    /// Runs a search against a system; the outcome may depend on how often the level was run before.
    fn search(plan: &SearchPlan, system: impl Fn(u64, usize) -> Outcome) -> (Vec<LevelRun>, Next) {
        let mut runs: Vec<LevelRun> = Vec::new();
        loop {
            match next_level(plan, &runs) {
                Next::Run { level, purpose } => {
                    let before = runs.iter().filter(|run| run.level == level).count();
                    runs.push(LevelRun { level, purpose, outcome: system(level, before) });
                }
                end => return (runs, end),
            }
        }
    }

    fn passes_if(holds: bool) -> Outcome {
        if holds { Outcome::Passed } else { Outcome::Failed }
    }

    fn levels(runs: &[LevelRun]) -> Vec<u64> {
        runs.iter().map(|run| run.level).collect()
    }

    #[test]
    fn steps_then_halves_then_confirms() {
        let (runs, end) = search(&doubling(256), |level, _| passes_if(level <= 21));
        assert_eq!(levels(&runs), [1, 2, 4, 8, 16, 32, 24, 20, 22, 21, 21, 22]);
        let purposes: Vec<Purpose> = runs[5..].iter().map(|run| run.purpose).collect();
        use Purpose::{Bisect, ConfirmBad, ConfirmGood, Step};
        assert_eq!(purposes, [Step, Bisect, Bisect, Bisect, Bisect, ConfirmGood, ConfirmBad]);
        let found =
            Bracket { highest_good: Some(21), lowest_bad: Some(22), confirmed: true, unstable: vec![] };
        assert_eq!(end, Next::Done(found));
    }

    #[test]
    fn everything_passes_up_to_the_highest_level() {
        let (runs, end) = search(&doubling(20), |_, _| Outcome::Passed);
        assert_eq!(levels(&runs), [1, 2, 4, 8, 16, 20, 20]);
        let found = Bracket { highest_good: Some(20), lowest_bad: None, confirmed: true, unstable: vec![] };
        assert_eq!(end, Next::Done(found));
    }

    #[test]
    fn nothing_passes() {
        let (runs, end) = search(&doubling(256), |_, _| Outcome::Failed);
        assert_eq!(levels(&runs), [1, 1]);
        let found = Bracket { highest_good: None, lowest_bad: Some(1), confirmed: true, unstable: vec![] };
        assert_eq!(end, Next::NonePassed(found));
    }

    #[test]
    fn a_failure_by_chance_is_overturned() {
        // level 4 fails its first run only; the true boundary is 21
        let (runs, end) =
            search(&doubling(256), |level, before| passes_if(level <= 21 && !(level == 4 && before == 0)));
        assert_eq!(levels(&runs)[..8], [1, 2, 4, 3, 3, 4, 4, 8]);
        assert_eq!(runs[6].purpose, Purpose::Decide);
        let Next::Done(found) = end else { panic!("{end:?}") };
        assert_eq!((found.highest_good, found.lowest_bad, found.confirmed), (Some(21), Some(22), true));
        assert_eq!(found.unstable, [4]);
    }

    #[test]
    fn a_pass_by_chance_is_overturned() {
        // level 8 passes its first run only; the true boundary is 5
        let (_, end) =
            search(&doubling(8), |level, before| passes_if(level <= 5 || (level == 8 && before == 0)));
        let Next::Done(found) = end else { panic!("{end:?}") };
        assert_eq!((found.highest_good, found.lowest_bad), (Some(5), Some(6)));
        assert_eq!(found.unstable, [8]);
    }

    #[test]
    fn the_generator_as_limit_ends_the_search() {
        let (runs, end) =
            search(&doubling(256), |level, _| if level > 40 { Outcome::Limited } else { Outcome::Passed });
        assert_eq!(levels(&runs), [1, 2, 4, 8, 16, 32, 64]);
        let Next::Limited { level, known } = end else { panic!("{end:?}") };
        assert_eq!(
            (level, known.highest_good, known.lowest_bad, known.confirmed),
            (64, Some(32), None, false)
        );
    }

    #[test]
    fn runs_are_used_up() {
        let plan = SearchPlan::new(Steps::Factor { from: 1, to: 256, percent: 200 }, 0, 7).unwrap();
        let (runs, end) = search(&plan, |level, _| passes_if(level <= 21));
        assert_eq!(runs.len(), 7);
        let Next::RunsUsedUp(known) = end else { panic!("{end:?}") };
        assert_eq!((known.highest_good, known.lowest_bad, known.confirmed), (Some(16), Some(24), false));
        // a search that ends with its last allowed run has ended
        let plan = SearchPlan::new(Steps::List(vec![5]), 0, 2).unwrap();
        assert!(matches!(search(&plan, |_, _| Outcome::Passed).1, Next::Done(_)));
    }

    #[test]
    fn a_fixed_list_and_a_coarse_resolution_try_nothing_in_between() {
        let plan = SearchPlan::new(Steps::List(vec![10, 50, 100]), 10 * PPB_WHOLE, 20).unwrap();
        let (runs, end) = search(&plan, |level, _| passes_if(level < 60));
        assert_eq!(levels(&runs), [10, 50, 100, 50, 100]);
        assert!(matches!(end, Next::Done(Bracket { highest_good: Some(50), lowest_bad: Some(100), .. })));
    }

    #[test]
    fn plans_are_checked() {
        let factor = |from, to, percent| SearchPlan::new(Steps::Factor { from, to, percent }, 0, 10);
        assert_eq!(factor(0, 5, 200), Err(SearchError::Levels));
        assert_eq!(factor(6, 5, 200), Err(SearchError::Levels));
        assert_eq!(factor(1, 5, 100), Err(SearchError::Factor(100)));
        for list in [vec![], vec![0, 1], vec![2, 2], vec![3, 1], (1..=1001).collect()] {
            assert_eq!(SearchPlan::new(Steps::List(list), 0, 10), Err(SearchError::Levels));
        }
        for runs_max in [0, RUNS_MAX + 1] {
            assert_eq!(SearchPlan::new(Steps::List(vec![1]), 0, runs_max), Err(SearchError::Runs(runs_max)));
        }
        let json = r#"{"steps":{"factor":{"from":1,"to":8,"percent":150}},"resolution_ppb":0,"runs_max":9}"#;
        let plan: SearchPlan = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&plan).unwrap(), json);
        assert!(serde_json::from_str::<SearchPlan>(&json.replace("150", "99")).is_err());
        assert!(serde_json::from_str::<SearchPlan>(&json.replace("runs_max", "runs")).is_err());
    }

    #[test]
    fn the_ends_of_the_number_range() {
        let plan = SearchPlan::new(
            Steps::Factor { from: u64::MAX - 1, to: u64::MAX, percent: u32::MAX },
            u64::MAX,
            10,
        );
        let (runs, _) = search(&plan.unwrap(), |_, _| Outcome::Passed);
        assert_eq!(levels(&runs), [u64::MAX - 1, u64::MAX, u64::MAX]);
    }
}
