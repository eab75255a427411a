//! JUnit XML of a run. What was not judged is an error and never a silent success.

use evidence::assertion::{AssertionId, AssertionResult, Status};
use evidence::exit::Outcome;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::{RunReport, verdict_words};

/// Witnesses in the text of a failure.
const WITNESSES_MAX: usize = 20;

/// The whole file. One suite: the verdict, each assertion, each limit of the scenario.
#[must_use]
pub fn junit(report: &RunReport<'_>) -> String {
    let summary = report.summary;
    let mut suite = TestSuite::new(summary.scenario.as_str());
    suite.add_test_case(verdict(report));
    for result in &report.assertions.results {
        // T is told limit by limit where there are limits.
        if result.id == AssertionId::T && !report.limits.is_empty() {
            suite.add_test_cases(report.limits.iter().map(|limit| threshold(report, result, limit)));
        } else {
            suite.add_test_case(assertion(report, result));
        }
    }
    let mut whole = Report::new(format!("proofload {}", summary.run_id));
    whole.add_test_suite(suite);
    // Writing into memory can't fail, and the crate replaces what XML does not allow.
    whole.to_string().expect("JUnit is serialised into memory")
}

fn case(report: &RunReport<'_>, name: String, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname(format!("proofload.{}", report.summary.scenario));
    case
}

fn not_well(kind: NonSuccessKind, name: &str, message: String, text: String) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(kind);
    status.set_type(name).set_message(message).set_description(text);
    status
}

/// The verdict as a case of its own, so that an environment failure can't look green.
fn verdict(report: &RunReport<'_>) -> TestCase {
    let summary = report.summary;
    let kind = match summary.verdict {
        Outcome::Pass => None,
        Outcome::Fail | Outcome::Regression => Some(NonSuccessKind::Failure),
        _ => Some(NonSuccessKind::Error),
    };
    let status = kind.map_or_else(TestCaseStatus::success, |kind| {
        let message = format!("{} (exit {})", verdict_words(summary.verdict), summary.exit_code);
        not_well(kind, summary.verdict.word(), message, summary.reasons.join("\n"))
    });
    case(report, "verdict".to_owned(), status)
}

fn assertion(report: &RunReport<'_>, result: &AssertionResult) -> TestCase {
    let status = match result.status {
        Status::Pass => TestCaseStatus::success(),
        Status::NotApplicable => {
            let mut status = TestCaseStatus::skipped();
            status.set_message("not applicable on this stack");
            status
        }
        Status::Fail => {
            let first = result.witnesses.first();
            let reason = first.map_or("no-witness", |witness| witness.reason.as_str());
            let message = first.map_or_else(String::new, |witness| witness.message.clone());
            let message = format!("{} found, first: {message}", result.witnesses_total);
            not_well(NonSuccessKind::Failure, reason, message, witnesses(report, result))
        }
        Status::Unknown => {
            let message = if result.missing.is_empty() {
                format!("{} {} looked at, at least {} needed", result.evaluated, result.unit, result.minimum)
            } else {
                format!("missing: {}", result.missing.join("; "))
            };
            not_well(NonSuccessKind::Error, "unknown", message, String::new())
        }
    };
    let mut case = case(report, format!("{} {}", result.id, result.name), status);
    case.set_system_out(format!("{} {} looked at", result.evaluated, result.unit));
    case
}

fn threshold(report: &RunReport<'_>, result: &AssertionResult, (name, limit): &(String, String)) -> TestCase {
    let broken = result.witnesses.iter().find(|witness| witness.subject.as_ref() == Some(name));
    let missing = result.missing.iter().find(|missing| missing.starts_with(&format!("{name}:")));
    // A missing input names no limit: then none of them was judged.
    let missing = missing.or(result.missing.first()).filter(|_| result.status == Status::Unknown);
    let status = match (broken, missing) {
        (Some(witness), _) => {
            not_well(NonSuccessKind::Failure, "above-limit", witness.message.clone(), String::new())
        }
        (None, Some(missing)) => {
            not_well(NonSuccessKind::Error, "unknown", format!("missing: {missing}"), String::new())
        }
        (None, None) => TestCaseStatus::success(),
    };
    case(report, format!("T {name} limit {limit}"), status)
}

fn witnesses(report: &RunReport<'_>, result: &AssertionResult) -> String {
    let mut lines: Vec<String> = result
        .witnesses
        .iter()
        .take(WITNESSES_MAX)
        .map(|witness| {
            let key = witness.request_id.as_deref();
            let failure = report.failures.iter().find(|failure| Some(failure.key.as_str()) == key);
            let again = failure.map(|failure| format!("\n  again: {}", failure.repro)).unwrap_or_default();
            format!("{}: {}{again}", witness.reason, witness.message)
        })
        .collect();
    let left_out = result.witnesses_total.saturating_sub(lines.len() as u64);
    if left_out > 0 {
        lines.push(format!("{left_out} more in assertions.json"));
    }
    lines.join("\n")
}
