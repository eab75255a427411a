//! The reports of a run: on the sample of the formats, on runs in which little or nothing happened, and on hostile text.

#![expect(clippy::unwrap_used, reason = "a sample that can't be read must stop the test")]

use std::path::Path;

use evidence::assertion::{Assertions, Status, Witness};
use evidence::event::Event;
use evidence::exit::Outcome;
use evidence::summary::{ClientSignals, Summary};
use proptest::prelude::*;
use quick_junit::{NonSuccessKind, Report, TestCaseStatus};
use report::run::{FailureLine, RequestPoint, RunReport, junit, markdown, page};

fn sample<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&text(name)).unwrap()
}

fn text(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/samples").join(name))
        .unwrap()
}

/// The parts that a report borrows.
struct Parts {
    summary: Summary,
    assertions: Assertions,
    events: Vec<Event>,
    requests: Vec<RequestPoint<'static>>,
    failures: Vec<FailureLine>,
}

impl Parts {
    /// The run of the samples: one failure among 400 requests.
    fn sample() -> Self {
        let requests = (0..400).map(|k| RequestPoint {
            planned_us: k * 7_000,
            end_us: k * 7_000 + 40_000 + k % 9 * 1_000,
            class: if k == 12 { "unexpected-failure" } else { "success" },
            ttft_us: (k != 12).then_some(9_000 + k * 20),
            latency_us: (k != 12).then_some(40_000 + k % 9 * 1_000),
        });
        Self {
            summary: sample("summary.json"),
            assertions: sample("assertions.json"),
            events: text("event.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
            requests: requests.collect(),
            failures: vec![FailureLine {
                key: "ml-5xx-42-000012".to_owned(),
                file: "failures/ml-5xx-42-000012.json".to_owned(),
                class: Some("unexpected-failure".to_owned()),
                found: vec![("A1".to_owned(), "no-terminal-outcome".to_owned(), "still running".to_owned())],
                repro: "runner repro 20261130T072954Z-ml-5xx-k3j9x0 ml-5xx-42-000012".to_owned(),
            }],
        }
    }

    /// Nothing was sent and nothing could be judged.
    fn empty() -> Self {
        let mut parts = Self::sample();
        parts.summary.client = ClientSignals::default();
        for map in [
            &mut parts.summary.devshard,
            &mut parts.summary.hosts,
            &mut parts.summary.allocation,
            &mut parts.summary.nodes,
            &mut parts.summary.validity,
            &mut parts.summary.faults,
        ] {
            map.clear();
        }
        parts.summary.verdict = Outcome::Unknown;
        for result in &mut parts.assertions.results {
            result.status = Status::Unknown;
            result.evaluated = 0;
            result.witnesses.clear();
            result.witnesses_total = 0;
        }
        (parts.events, parts.requests, parts.failures) = Default::default();
        parts
    }

    fn one_request() -> Self {
        let mut parts = Self::sample();
        parts.requests.truncate(1);
        parts.failures.clear();
        parts
    }

    fn all_failed() -> Self {
        let mut parts = Self::sample();
        for point in &mut parts.requests {
            point.class = "unexpected-failure";
            (point.ttft_us, point.latency_us) = (None, None);
        }
        parts.summary.client.ttft = Default::default();
        parts.summary.client.latency = Default::default();
        parts.summary.client.success_rate = Some(0.0);
        parts
    }

    fn interrupted() -> Self {
        let mut parts = Self::sample();
        parts.summary.verdict = Outcome::Interrupted;
        parts.summary.partial = true;
        parts.events.truncate(9);
        parts.requests.truncate(17);
        parts
    }

    fn report(&self) -> RunReport<'_> {
        RunReport {
            summary: &self.summary,
            assertions: &self.assertions,
            events: &self.events,
            started_unix_us: 1_796_023_794_898_065,
            failures: self.failures.clone(),
            failures_dropped: 0,
            requests: Box::new(self.requests.clone()),
            limits: vec![("ttft_p95".to_owned(), "2s".to_owned()), ("error_rate".to_owned(), "0".to_owned())],
        }
    }
}

fn all() -> [(&'static str, Parts); 5] {
    [
        ("sample", Parts::sample()),
        ("empty", Parts::empty()),
        ("one request", Parts::one_request()),
        ("all failed", Parts::all_failed()),
        ("interrupted", Parts::interrupted()),
    ]
}

/// Every tag that is opened is closed, in order. What browsers would guess at is an error here.
fn assert_balanced(html: &str, name: &str) {
    let html = html.split("<script>").next().unwrap().to_owned() + html.split("</script>").last().unwrap();
    let mut open: Vec<String> = Vec::new();
    for part in html.split('<').skip(1) {
        let tag = part.split('>').next().unwrap();
        let word: String =
            tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        if tag.starts_with('!') || tag.ends_with('/') || ["meta", "br"].contains(&word.as_str()) {
            continue;
        }
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(word.as_str()), "{name}");
        } else {
            open.push(word);
        }
    }
    assert!(open.is_empty(), "{name}: {open:?}");
}

#[test]
fn every_kind_of_run_has_a_whole_page() {
    for (name, parts) in all() {
        let html = page(&parts.report());
        assert_balanced(&html, name);
        for bad in ["NaN", "inf%", "Infinity", "null", "undefined", "http://", "https://"] {
            assert!(!html.contains(bad), "{name}: {bad}");
        }
        let verdict = html.find("class=\"verdict").unwrap();
        assert!(verdict < html.find("<table>").unwrap(), "{name}: the verdict comes first");
    }
}

#[test]
fn the_page_shows_verdict_witness_repro_and_markers() {
    let parts = Parts::sample();
    let html = page(&parts.report());
    for part in [
        "Fail <small>exit 1</small>",
        "still says running after sync",
        "runner repro 20261130T072954Z-ml-5xx-k3j9x0 ml-5xx-42-000012",
        "href=\"failures/ml-5xx-42-000012.json\"",
        "kill host-1",
        "regression baseline",
        "Requests ended",
        "snapshots/drain-final/snapshot.json",
    ] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn junit_is_read_back_and_never_greener_than_the_run() {
    for (name, parts) in all() {
        let report = Report::deserialize_from_str(&junit(&parts.report())).unwrap();
        let cases = &report.test_suites[0].test_cases;
        let bad =
            cases.iter().filter(|case| matches!(case.status, TestCaseStatus::NonSuccess { .. })).count();
        assert!(bad > 0, "{name}: none of these runs passed");
        let kind = |wanted: &str| {
            let case = cases.iter().find(|case| case.name.as_str().starts_with(wanted)).unwrap();
            match &case.status {
                TestCaseStatus::NonSuccess { kind, .. } => Some(*kind),
                _ => None,
            }
        };
        match name {
            "sample" => {
                assert_eq!(kind("verdict"), Some(NonSuccessKind::Failure));
                assert_eq!(kind("A1"), Some(NonSuccessKind::Failure));
                assert_eq!(kind("A5"), None);
                assert_eq!(kind("A7"), Some(NonSuccessKind::Error), "unknown is no success");
            }
            "interrupted" => assert_eq!(kind("verdict"), Some(NonSuccessKind::Error)),
            _ => {}
        }
    }
}

#[test]
fn a_broken_limit_is_a_case_of_its_own() {
    let mut parts = Parts::sample();
    let mut result = parts.assertions.results[1].clone();
    result.id = evidence::assertion::AssertionId::T;
    result.status = Status::Fail;
    let mut witness = Witness::new("above-limit", "ttft_p95 is above 2s: 30 of 400 are");
    witness.subject = Some("ttft_p95".to_owned());
    result.witnesses = vec![witness];
    parts.assertions.results.push(result);
    let report = Report::deserialize_from_str(&junit(&parts.report())).unwrap();
    let failed: Vec<&str> = report.test_suites[0]
        .test_cases
        .iter()
        .filter(|case| case.name.as_str().starts_with("T "))
        .filter(|case| matches!(case.status, TestCaseStatus::NonSuccess { .. }))
        .map(|case| case.name.as_str())
        .collect();
    assert_eq!(failed, ["T ttft_p95 limit 2s"]);
}

#[test]
fn markdown_is_short_and_tabular() {
    for (name, parts) in all() {
        let text = markdown(&parts.report());
        assert!(!text.contains("NaN") && text.len() < 8_000, "{name}: {}", text.len());
        for row in text.lines().filter(|line| line.starts_with('|')) {
            let bars = row.replace("\\|", "").matches('|').count();
            assert!(bars == 3 || bars == 4, "{name}: {row}");
        }
    }
    assert!(markdown(&Parts::sample().report()).starts_with("### ml-5xx: **fail** (exit 1)"));
}

proptest! {
    #[test]
    fn foreign_text_is_never_markup(text in "[<>&\"'|`\\\\\u{0}-\u{1f}a-z/ ]{0,40}") {
        let mut parts = Parts::sample();
        let hostile = format!("<script>x</script><b onload=1>{text}");
        parts.summary.scenario.clone_from(&hostile);
        parts.summary.reasons = vec![hostile.clone()];
        parts.summary.not_shown.insert(hostile.clone(), hostile.clone());
        parts.summary.hosts.insert(hostile.clone(), serde_json::json!({"attempts": 3, hostile.as_str(): 1}));
        parts.summary.faults.insert(hostile.clone(), serde_json::json!({"classes": {hostile.as_str(): 2}}));
        parts.assertions.results[0].witnesses[0].message.clone_from(&hostile);
        parts.failures[0].key.clone_from(&hostile);
        parts.failures[0].repro.clone_from(&hostile);
        let html = page(&parts.report());
        prop_assert!(!html.contains("<b onload") && !html.contains("<script>x"));
        assert_balanced(&html, "hostile");
        prop_assert!(Report::deserialize_from_str(&junit(&parts.report())).is_ok());
        prop_assert!(!markdown(&parts.report()).contains("\n<script"));
    }
}
