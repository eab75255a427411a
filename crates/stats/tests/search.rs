//! Capacity search: any sharp boundary is found within its resolution, and every search ends.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use stats::ratio::PPB_WHOLE;
use stats::{Bracket, LevelRun, Next, Outcome, Purpose, SearchPlan, Steps, next_level};

fn steps() -> impl Strategy<Value = Steps> {
    let factor = (1_u64..50, 0_u64..5_000, prop_oneof![101_u32..130, 101_u32..1_000])
        .prop_map(|(from, above, percent)| Steps::Factor { from, to: from + above, percent });
    let list = vec(1_u64..500, 1..12).prop_map(|gaps| {
        let rising = gaps.into_iter().scan(0, |level, gap| {
            *level += gap;
            Some(*level)
        });
        Steps::List(rising.collect())
    });
    prop_oneof![factor, list]
}

fn ends(steps: &Steps) -> (u64, u64) {
    match steps {
        Steps::Factor { from, to, .. } => (*from, *to),
        Steps::List(levels) => (levels[0], levels[levels.len() - 1]),
    }
}

/// Runs a search to its end, checking each step of it.
fn search(plan: &SearchPlan, mut system: impl FnMut(u64) -> Outcome) -> (Vec<LevelRun>, Next) {
    let (lowest, highest) = ends(plan.steps());
    let mut runs: Vec<LevelRun> = Vec::new();
    loop {
        let Next::Run { level, purpose } = next_level(plan, &runs) else {
            return (runs.clone(), next_level(plan, &runs));
        };
        assert!((lowest..=highest).contains(&level), "{level} outside {lowest} to {highest}");
        let before = runs.iter().filter(|run| run.level == level).count();
        let first_try = matches!(purpose, Purpose::Step | Purpose::Bisect);
        assert_eq!(first_try, before == 0, "{purpose:?} of level {level}, run {before} times before");
        assert!(before < 3, "level {level} run more than three times");
        runs.push(LevelRun { level, purpose, outcome: system(level) });
    }
}

/// First tries that a sharp boundary can take: all rising steps, then halvings of the widest gap.
fn tries_max(steps: &Steps) -> usize {
    let rising = match steps {
        Steps::List(levels) => levels.len(),
        Steps::Factor { from, to, percent } => {
            let mut level = *from;
            let mut count = 1;
            while level < *to {
                level = (level * u64::from(*percent)).div_ceil(100).max(level + 1);
                count += 1;
            }
            count
        }
    };
    rising + ends(steps).1.ilog2() as usize + 1
}

proptest! {
    #[test]
    fn a_sharp_boundary_is_found_within_the_resolution(
        steps in steps(),
        resolution_ppb in prop_oneof![Just(0), 0_u64..PPB_WHOLE],
        place in any::<prop::sample::Index>(),
    ) {
        let (lowest, highest) = ends(&steps);
        // the first level that fails, from the lowest to one above the highest
        let boundary = lowest + place.index((highest - lowest) as usize + 2) as u64;
        let plan = SearchPlan::new(steps.clone(), resolution_ppb, 1_000).unwrap();
        let (runs, end) =
            search(&plan, |level| if level < boundary { Outcome::Passed } else { Outcome::Failed });
        prop_assert!(runs.len() <= tries_max(&steps) + 2, "{} runs", runs.len());
        let bracket = match end {
            Next::Done(bracket) => bracket,
            Next::NonePassed(bracket) => {
                prop_assert_eq!(boundary, lowest);
                prop_assert_eq!(bracket.lowest_bad, Some(lowest));
                return Ok(());
            }
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        prop_assert!(bracket.confirmed && bracket.unstable.is_empty());
        let good = bracket.highest_good.unwrap();
        prop_assert!(good < boundary);
        match bracket.lowest_bad {
            None => prop_assert_eq!((good, boundary), (highest, highest + 1)),
            Some(bad) => {
                prop_assert!(bad >= boundary);
                let allowed = u128::from(good) * u128::from(resolution_ppb) / u128::from(PPB_WHOLE);
                prop_assert!(u128::from(bad - good) <= allowed.max(1));
            }
        }
    }

    #[test]
    fn any_outcomes_end_within_the_allowed_runs(
        steps in steps(),
        resolution_ppb in 0_u64..PPB_WHOLE,
        runs_max in 1_usize..60,
        passes in vec(any::<bool>(), 60),
    ) {
        let plan = SearchPlan::new(steps, resolution_ppb, runs_max).unwrap();
        let mut next = passes.into_iter();
        let (runs, _) = search(&plan, |_| if next.next().unwrap() { Outcome::Passed } else { Outcome::Failed });
        prop_assert!(runs.len() <= runs_max);
    }

    #[test]
    fn a_flaky_boundary_ends_by_itself(
        to in 2_u64..60,
        flaky in (1_u64..60, 1_u64..20),
        seed in any::<u64>(),
    ) {
        // below the flaky zone all pass, above it all fail, in it anything can happen
        let (low, high) = (flaky.0, flaky.0 + flaky.1);
        let plan = SearchPlan::new(Steps::Factor { from: 1, to, percent: 200 }, 0, 1_000).unwrap();
        let mut state = seed;
        let (runs, end) = search(&plan, |level| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let chance = state >> 63 == 1;
            if level < low || (level < high && chance) { Outcome::Passed } else { Outcome::Failed }
        });
        prop_assert!(runs.len() <= 3 * to as usize);
        let tally = |level: u64, outcome| {
            runs.iter().filter(|run| run.level == level && run.outcome == outcome).count()
        };
        match end {
            Next::Done(Bracket { highest_good: Some(good), lowest_bad, confirmed, unstable }) => {
                prop_assert!(confirmed && good + 1 >= low.min(to) && good < high);
                prop_assert!(tally(good, Outcome::Passed) == 2);
                prop_assert!(lowest_bad.is_none_or(|bad| tally(bad, Outcome::Failed) == 2 && bad == good + 1));
                prop_assert!(unstable.iter().all(|level| (low..high).contains(level)));
            }
            Next::NonePassed(_) => prop_assert_eq!(low, 1),
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        }
    }

    #[test]
    fn the_order_of_the_list_does_not_matter(
        steps in steps(),
        outcomes in vec(any::<bool>(), 40),
        length in 0_usize..40,
    ) {
        let plan = SearchPlan::new(steps, 0, 40).unwrap();
        let mut next = outcomes.into_iter();
        let (mut runs, _) =
            search(&plan, |_| if next.next().unwrap() { Outcome::Passed } else { Outcome::Failed });
        runs.truncate(length);
        let forwards = next_level(&plan, &runs);
        runs.reverse();
        prop_assert_eq!(next_level(&plan, &runs), forwards);
    }

    #[test]
    fn foreign_lists_never_panic(
        steps in steps(),
        resolution_ppb in any::<u64>(),
        runs in vec((any::<u64>(), 0_usize..3), 0..30),
    ) {
        let plan = SearchPlan::new(steps, resolution_ppb, 1_000).unwrap();
        let outcomes = [Outcome::Passed, Outcome::Failed, Outcome::Limited];
        let runs: Vec<LevelRun> = runs
            .into_iter()
            .map(|(level, at)| LevelRun { level, purpose: Purpose::Step, outcome: outcomes[at] })
            .collect();
        let first = next_level(&plan, &runs);
        let json = serde_json::to_string(&first).unwrap();
        prop_assert_eq!(serde_json::from_str::<Next>(&json).unwrap(), first);
    }
}

#[test]
fn a_limited_generator_ends_any_search() {
    let plan = SearchPlan::new(Steps::List(vec![1, 2, 4, 8]), 0, 50).unwrap();
    let mut count = BTreeMap::<u64, usize>::new();
    let (runs, end) = search(&plan, |level| {
        *count.entry(level).or_default() += 1;
        if level >= 5 {
            Outcome::Failed
        } else if count[&level] > 1 {
            Outcome::Limited
        } else {
            Outcome::Passed
        }
    });
    // also in a confirm run: what could not be offered confirms nothing
    assert_eq!(runs.last().map(|run| (run.level, run.purpose)), Some((4, Purpose::ConfirmGood)));
    let Next::Limited { level: 4, known } = end else { panic!("{end:?}") };
    assert_eq!((known.highest_good, known.lowest_bad, known.confirmed), (Some(4), Some(5), false));
}
