//! Levels of a search for the highest stable concurrency (design section 10). One place decides whether a level held:
//! the runner asks it after each level to choose the next, the verdict asks it again over the stored evidence.
//!
//! A level fails by a broken limit or a drain that missed its deadline, and is limited when the generator or a mock
//! reached its own capacity. What else goes wrong in a level fails the run, whatever the search finds.

use evidence::assertion::AssertionId;
use evidence::event::{EventKind, LevelFacts};
use evidence::rundir::RunReader;
use scenario::model::{Saturation, Search};
use stats::next_level::{LevelRun, Next, Outcome, Purpose, SearchError, SearchPlan, Steps, next_level};

use crate::assertions::Case;
use crate::assertions::thresholds::{hold, populations};
use crate::classify::classify;
use crate::load::{Evidence, NoRun};
use crate::own_part::Machine;
use crate::sheet::Sheet;

/// Levels double until one fails.
const FACTOR_PERCENT: u32 = 200;
/// The boundary is known to a tenth.
const RESOLUTION_PPB: u64 = 100_000_000;
/// More runs than any search up to the highest concurrency needs.
const RUNS_MAX: usize = 64;

/// The search of a scenario in the words of crate `stats`.
///
/// # Errors
/// [`SearchError`] for bounds that resolution would have refused.
pub fn plan(search: &Search) -> Result<SearchPlan, SearchError> {
    let (from, to) = (u64::from(search.from), u64::from(search.to));
    SearchPlan::new(Steps::Factor { from, to, percent: FACTOR_PERCENT }, RESOLUTION_PPB, RUNS_MAX)
}

/// How one level ended, and why if not well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The run of the level.
    pub run: LevelRun,
    /// Reasons in words; empty when it passed.
    pub reasons: Vec<String>,
}

/// Judges the levels that a run directory holds so far.
///
/// # Errors
/// [`NoRun`] without a readable `run.yaml`.
pub fn judge_so_far(reader: &RunReader) -> Result<Vec<Judged>, NoRun> {
    let evidence = Evidence::read(reader)?;
    let decided = classify(&evidence);
    Ok(judge(&Case { evidence: &evidence, decided: &decided, oracle: &evidence.calls.oracle }))
}

/// Judges every level in the order in which they were run.
#[must_use]
pub fn judge(case: &Case<'_>) -> Vec<Judged> {
    let ended = case.evidence.events.iter().filter_map(|event| match &event.event {
        EventKind::LevelEnded(facts) => Some(facts),
        _ => None,
    });
    ended.map(|facts| level(case, facts)).collect()
}

/// Where the search stands after the levels that were run; `None` without a search.
#[must_use]
pub fn standing(case: &Case<'_>) -> Option<Next> {
    let search = case.evidence.run.resolved.scenario.workload.search.as_ref()?;
    let runs: Vec<LevelRun> = judge(case).into_iter().map(|judged| judged.run).collect();
    Some(next_level(&plan(search).ok()?, &runs))
}

fn level(case: &Case<'_>, facts: &LevelFacts) -> Judged {
    let limited = limited(case, facts);
    let mut reasons = broken(case, facts);
    let outcome = match (limited.is_empty(), reasons.is_empty()) {
        (false, _) => Outcome::Limited,
        (true, false) => Outcome::Failed,
        (true, true) => Outcome::Passed,
    };
    reasons.splice(0..0, limited);
    // Why a level is run is a record for readers; the search looks at level and outcome only.
    let run = LevelRun { level: u64::from(facts.level), purpose: Purpose::Step, outcome };
    Judged { run, reasons }
}

/// Limits of the scenario that the level broke, and a drain that did not end well.
fn broken(case: &Case<'_>, facts: &LevelFacts) -> Vec<String> {
    let of_level = populations(case, &|step| step == Some(facts.step));
    // The runner asks before the generator has told how late its loop was; both must answer the same.
    let machine = Machine::default();
    let mut sheet = Sheet::new(AssertionId::T, "limits", 0);
    hold(
        &case.evidence.run.resolved.scenario.thresholds,
        &of_level,
        (facts.load_us, machine),
        "",
        &mut sheet,
    );
    let result = sheet.finish();
    let mut reasons: Vec<String> = result.witnesses.into_iter().map(|witness| witness.message).collect();
    reasons.extend(result.missing.into_iter().map(|what| format!("not known: {what}")));
    if of_level.sent != facts.released {
        reasons.push(format!("{} of {} released requests are recorded", of_level.sent, facts.released));
    }
    if !facts.drained {
        reasons.push("the drain missed its deadline".to_owned());
    }
    match facts.pending {
        Some(0) => {}
        Some(count) => reasons.push(format!("{count} transactions were pending after sync")),
        None => reasons.push("not known: transactions pending after sync".to_owned()),
    }
    reasons
}

/// Capacity of the generator or of a mock that the level reached.
fn limited(case: &Case<'_>, facts: &LevelFacts) -> Vec<String> {
    let scenario = &case.evidence.run.resolved.scenario;
    let mut reasons = Vec::new();
    if facts.released < facts.wanted {
        reasons.push(format!("{} of {} requests were released", facts.released, facts.wanted));
    }
    if let Some(most) = scenario.validity.schedule_lateness_p99
        && facts.lateness_p99_us.is_some_and(|us| us > most.us())
    {
        reasons.push(format!("the generator sent late: p99 above {most}"));
    }
    if let Some(most) = scenario.validity.loadgen_cpu_share
        && stats::ratio::exceeds(facts.cpu_us, facts.load_us.max(1), most.get())
    {
        reasons.push(format!("the generator used more than {most} of a core"));
    }
    for node in &facts.nodes {
        let waited =
            stats::ratio::exceeds(node.waited_us, facts.load_us.max(1), super::assertions::WAITING_SHARE_PPB);
        let allowed = match &scenario.validity.mock_saturation {
            Saturation::Forbidden => false,
            Saturation::Required(names) => names.contains(&node.name),
        };
        if (node.refused > 0 || waited) && !allowed {
            reasons.push(format!("{} was saturated", node.name));
        }
    }
    reasons
}
