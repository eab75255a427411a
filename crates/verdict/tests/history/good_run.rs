//! The control: a good run passes, everything was looked at, and judging it again gives the same bytes.

use crate::support::{Files, good};
use evidence::assertion::{AssertionId, Status};
use evidence::exit::Outcome;

#[test]
fn a_good_run_passes_and_every_assertion_looked() {
    let judged = good().judge();
    let assertions = &judged.assertions;
    for result in &assertions.results {
        let why = format!("{}: {:?} {:?}", result.id, result.missing, result.witnesses);
        assert_eq!(result.status, Status::Pass, "{why}");
        assert!(result.evaluated >= 1, "{why}");
    }
    assert_eq!(assertions.results.len(), AssertionId::ALL.len());
    assert_eq!(assertions.verdict, Outcome::Pass);
    let a5 = &assertions.results[4];
    assert_eq!(a5.parts["ownership"], Status::NotApplicable, "SQLite has no leases");
    assert_eq!(a5.parts["commits"], Status::Pass);
    assert!(judged.failures.is_empty());
    assert_eq!(judged.summary.client.classes["masked-fault"], judged.evidence.hits.len() as u64);
}

#[test]
fn the_evaluated_counts_are_pinned() {
    let judged = good().judge();
    let counts: Vec<(String, u64)> =
        judged.assertions.results.iter().map(|r| (r.id.to_string(), r.evaluated)).collect();
    let counts: Vec<(&str, u64)> = counts.iter().map(|(id, count)| (id.as_str(), *count)).collect();
    assert_eq!(counts, COUNTS);
}

const COUNTS: &[(&str, u64)] = &[
    ("A1", 24),
    ("A2", 24),
    ("A3", 24),
    ("A4", 267),
    ("A5", 26),
    ("A6", 51),
    ("A7", 174),
    ("A8", 18),
    ("A9", 28),
    ("A10", 24),
    ("A11", 136),
    ("V", 12),
    ("T", 3),
];

#[test]
fn judging_twice_gives_the_same_bytes() {
    let base = good().write();
    let bytes =
        || serde_json::to_vec(&crate::support::judge_in(base.path()).assertions).expect("assertions.json");
    assert_eq!(bytes(), bytes());
}

#[test]
fn teardown_does_not_change_the_verdict() {
    let mut files: Files = good();
    let before = serde_json::to_string(&files.judge().assertions).expect("assertions.json");
    let last = files.events.last().expect("a story has events").clone();
    let event = evidence::event::EventKind::Signal { signal: "SIGTERM".to_owned() };
    files.events.push(evidence::event::Event { event, ..last });
    files.number_events();
    assert_eq!(before, serde_json::to_string(&files.judge().assertions).expect("assertions.json"));
}
