//! `junit-<ts>.xml`: the verdict, the generator, and each threshold as a case. What was not measured is no success.

use evidence::exit::Outcome;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::show::{threshold_found, threshold_limit, threshold_scope};
use crate::result::{RunResult, ThresholdResult};

/// The whole file.
#[must_use]
pub fn junit(result: &RunResult) -> String {
    let mut suite = TestSuite::new(result.run.name.as_str());
    let verdict = &result.verdict;
    let status = match verdict.outcome {
        Outcome::Pass => TestCaseStatus::success(),
        outcome => {
            let kind = match outcome {
                Outcome::Fail | Outcome::Regression => NonSuccessKind::Failure,
                _ => NonSuccessKind::Error,
            };
            let message = format!("{outcome} (exit {})", outcome.code());
            not_well(kind, outcome.word(), &message, &verdict.reasons.join("\n"))
        }
    };
    suite.add_test_case(case(result, "verdict".to_owned(), status));
    let saturation: Vec<&str> = result.health.saturation.iter().map(|found| found.detail.as_str()).collect();
    let status = if saturation.is_empty() {
        TestCaseStatus::success()
    } else {
        not_well(
            NonSuccessKind::Error,
            "saturated",
            "the generator reached its own limits",
            &saturation.join("\n"),
        )
    };
    suite.add_test_case(case(result, "generator".to_owned(), status));
    for threshold in &result.thresholds {
        let name = format!("{} ({})", threshold.name, threshold_scope(threshold));
        suite.add_test_case(case(result, name, status_of(threshold)));
    }
    let warnings = super::show::warnings(result);
    if !warnings.is_empty() {
        suite.set_system_out(warnings.join("\n"));
    }
    let mut report = Report::new(format!("loadgen {} {}", result.run.name, result.run.stamp));
    report.add_test_suite(suite);
    report.to_string().expect("JUnit is serialised into memory")
}

fn status_of(threshold: &ThresholdResult) -> TestCaseStatus {
    if threshold.held {
        return TestCaseStatus::success();
    }
    let message = format!(
        "limit {}, found {} of {}",
        threshold_limit(threshold),
        threshold_found(threshold),
        threshold.n
    );
    match threshold.found {
        Some(_) => not_well(NonSuccessKind::Failure, "broken", &message, ""),
        None => not_well(NonSuccessKind::Error, "not-measured", &message, ""),
    }
}

fn case(result: &RunResult, name: String, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname(format!("loadgen.{}", result.run.name));
    case
}

fn not_well(kind: NonSuccessKind, name: &str, message: &str, text: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(kind);
    status.set_type(name).set_message(message).set_description(text);
    status
}
