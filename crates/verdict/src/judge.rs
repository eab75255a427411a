//! From evidence to verdict: every assertion is evaluated, always, and nothing here reads a clock.

use std::panic::{AssertUnwindSafe, catch_unwind};

use evidence::EVIDENCE_VERSION;
use evidence::assertion::{AssertionId, AssertionResult, Assertions, Status, Witness};
use evidence::event::EventKind;
use evidence::exit::{Findings, Outcome};
use evidence::rundir::RunReader;
use evidence::summary::Summary;
use scenario::build::BUILD_ID;
use stats::next_level::Next;

use crate::assertions::{ALL, Assertion, Case};
use crate::classify::{Decided, classify};
pub use crate::load::NoRun;

use crate::known::Tally;
use crate::load::Evidence;
use crate::own_part;
use crate::sheet::Sheet;
use crate::table::Table;

/// Failures that get a bundle; the rest are counted.
pub const FAILURES_MAX: usize = 1_000;

/// One thing that failed, with all that was found about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Load request id, or `_run.<assertion>.<n>`.
    pub key: String,
    /// What was found.
    pub found: Vec<(AssertionId, Witness)>,
}

/// Everything that judging gives.
#[derive(Debug)]
pub struct Judgement {
    /// Evidence as read.
    pub evidence: Evidence,
    /// Class of each request.
    pub decided: Table<Decided>,
    /// `assertions.json`.
    pub assertions: Assertions,
    /// `summary.json`.
    pub summary: Summary,
    /// Failures by key, bounded.
    pub failures: Vec<Failure>,
    /// Failures without a bundle.
    pub failures_dropped: u64,
}

impl Judgement {
    /// Lets one assertion look once more, so that every witness is held against known findings and none need be kept.
    pub(crate) fn hold_all(&self, id: AssertionId, tally: Tally) -> Tally {
        let Some(assertion) = ALL.iter().find(|assertion| assertion.id == id) else { return tally };
        let case =
            Case { evidence: &self.evidence, decided: &self.decided, oracle: &self.evidence.calls.oracle };
        let mut sheet = Sheet::holding(id, assertion.unit, tally.clone());
        let looked = catch_unwind(AssertUnwindSafe(|| (assertion.judge)(&case, &mut sheet)));
        // One that can't be asked again leaves its witnesses to be counted as new.
        looked.ok().and_then(|()| sheet.into_tally()).unwrap_or(tally)
    }
}

/// Judges a run directory.
///
/// # Errors
/// [`NoRun`] when there is no readable `run.yaml`.
pub fn judge(reader: &RunReader) -> Result<Judgement, NoRun> {
    judge_with(reader, &ALL)
}

/// Judges a run directory of which somebody knows that some files are not what they were: they count as missing.
///
/// # Errors
/// As [`judge`].
pub fn judge_beside(reader: &RunReader, changed: Vec<(String, String)>) -> Result<Judgement, NoRun> {
    let mut evidence = Evidence::read(reader)?;
    for (name, why) in changed {
        if let Some(moment) = evidence.moment_of(&name) {
            evidence.snapshots.remove(&moment);
        }
        evidence.altered.push(format!("{name}: {why}"));
        evidence.missing.entry(name).or_insert(why);
    }
    Ok(judged(evidence, &ALL))
}

/// Judges with a given registry: the self-test replaces single assertions to see that it notices.
///
/// # Errors
/// As [`judge`].
pub fn judge_with(reader: &RunReader, registry: &[Assertion]) -> Result<Judgement, NoRun> {
    Ok(judged(Evidence::read(reader)?, registry))
}

fn judged(evidence: Evidence, registry: &[Assertion]) -> Judgement {
    let decided = classify(&evidence);
    let (results, internal) = evaluate(&evidence, &decided, registry);
    let mut findings = findings(&evidence, &results);
    // An assertion that was not asked can't have held.
    let all_asked = results.iter().map(|result| result.id).eq(AssertionId::ALL);
    findings.internal |= internal || !all_asked;
    let assertions = Assertions {
        v: EVIDENCE_VERSION,
        build: BUILD_ID.to_owned(),
        run_id: evidence.run.run_id.clone(),
        verdict: findings.outcome(),
        findings,
        results,
    };
    let mut summary = crate::summary::summarize(&evidence, &decided, &assertions);
    let case = Case { evidence: &evidence, decided: &decided, oracle: &evidence.calls.oracle };
    summary.highest_stable_step = match crate::levels::standing(&case) {
        Some(Next::Done(found)) => found.highest_good.and_then(|level| u32::try_from(level).ok()),
        _ => None,
    };
    let (failures, failures_dropped) = failures(&assertions);
    Judgement { evidence, decided, assertions, summary, failures, failures_dropped }
}

/// Files changed since the run that V names; the rest are counted.
const ALTERED_NAMED_MAX: usize = 8;

fn evaluate(
    evidence: &Evidence,
    decided: &Table<Decided>,
    registry: &[Assertion],
) -> (Vec<AssertionResult>, bool) {
    let case = Case { evidence, decided, oracle: &evidence.calls.oracle };
    let mut internal = false;
    let excuses = own_part::Excuses::of(evidence);
    let mut results: Vec<AssertionResult> = registry
        .iter()
        .map(|assertion| {
            let mut sheet = Sheet::new(assertion.id, assertion.unit, 1);
            let mut missing = evidence.missing_of(assertion.inputs);
            if assertion.id == AssertionId::V {
                missing.extend(evidence.altered.iter().take(ALTERED_NAMED_MAX).cloned());
                let more = evidence.altered.len().saturating_sub(ALTERED_NAMED_MAX);
                if more > 0 {
                    missing.push(format!("{more} other files were changed since the run"));
                }
            }
            if missing.is_empty() {
                // A bug in one assertion must not hide what the others found.
                let judged = catch_unwind(AssertUnwindSafe(|| (assertion.judge)(&case, &mut sheet)));
                if let Err(panic) = judged {
                    internal = true;
                    sheet.missing(format!("internal error: the assertion panicked: {}", said(&*panic)));
                }
            } else {
                missing.into_iter().for_each(|input| sheet.missing(input));
            }
            excuses.take(assertion.id, &mut sheet);
            sheet.finish()
        })
        .collect();
    own_part::blame_machine(&mut results);
    (results, internal)
}

/// What a panic said.
fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}

fn findings(evidence: &Evidence, results: &[AssertionResult]) -> Findings {
    let mut findings = Findings::default();
    for event in &evidence.events {
        match &event.event {
            EventKind::Signal { .. } => findings.interrupted = true,
            EventKind::EnvironmentFailed { .. } => findings.environment = true,
            _ => {}
        }
    }
    for result in results {
        match (result.status, result.id) {
            (Status::Fail, AssertionId::V) => findings.invalid = true,
            (Status::Fail, AssertionId::T) => findings.threshold_failed = true,
            (Status::Fail, _) => findings.correctness_failed = true,
            (Status::Unknown, _) => findings.unknown = true,
            (Status::Pass | Status::NotApplicable, _) => {}
        }
    }
    findings
}

/// One failure per request, and one per run-level witness.
fn failures(assertions: &Assertions) -> (Vec<Failure>, u64) {
    let mut by_request: std::collections::BTreeMap<String, Vec<(AssertionId, Witness)>> = Default::default();
    let mut of_run = Vec::new();
    let mut unlisted = 0;
    for result in &assertions.results {
        let mut number = 0;
        for witness in &result.witnesses {
            if let Some(id) = &witness.request_id {
                by_request.entry(id.clone()).or_default().push((result.id, witness.clone()));
            } else {
                number += 1;
                let key = format!("_run.{}.{number}", result.id);
                of_run.push(Failure { key, found: vec![(result.id, witness.clone())] });
            }
        }
        unlisted += result.witnesses_total - result.witnesses.len() as u64;
    }
    let mut all = of_run;
    all.extend(by_request.into_iter().map(|(key, found)| Failure { key, found }));
    let over = all.len().saturating_sub(FAILURES_MAX);
    all.truncate(FAILURES_MAX);
    (all, unlisted + over as u64)
}

/// The outcome in one line for people: which assertions failed and which could not be judged.
#[must_use]
pub fn reasons(assertions: &Assertions) -> Vec<String> {
    let mut lines = Vec::new();
    for result in &assertions.results {
        let name = format!("{} {}", result.id, result.name);
        match result.status {
            Status::Fail => {
                let first = result.witnesses.first().map_or("", |witness| witness.message.as_str());
                lines.push(format!("{name}: {} found, first: {first}", result.witnesses_total));
            }
            Status::Unknown => lines.push(format!("{name}: unknown: {}", result.missing.join("; "))),
            Status::Pass | Status::NotApplicable => {}
        }
    }
    if assertions.verdict == Outcome::Interrupted {
        lines.insert(0, "the run was stopped by a signal".to_owned());
    }
    lines
}
