//! Planted defects of the reference stack (layer M): each makes the right assertion fail with the right witness, a
//! bundle, and a repro; the same scenario without it passes (`verdicts.rs` holds the twin).

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod support;

use serde_json::Value;
use support::{Run, json, ml_5xx, runner_of, with};

/// Profile of the programs with planted defects.
const PROFILE: &str = "defects";

/// Runs the main scenario with a defect; it must fail, with `id` among the failed assertions for one of `reasons`.
fn caught(defect: &str, id: &str, reasons: &[&str]) -> (Run, Value) {
    caught_in(&ml_5xx(), defect, id, reasons)
}

/// The same with another scenario.
fn caught_in(scenario: &str, defect: &str, id: &str, reasons: &[&str]) -> (Run, Value) {
    // Defects that stay in the way of a drain must not cost the whole protocol wait in a test.
    let text = with(scenario, "  timeout: protocol\n  stable_samples", "  timeout: 15s\n  stable_samples");
    let run = Run::on(PROFILE, &text, &["--defect", defect]).expect(1);
    let assertions = run.json("assertions.json");
    let result =
        assertions["results"].as_array().unwrap().iter().find(|result| result["id"] == id).unwrap().clone();
    assert_eq!(result["status"], "fail", "{defect}: {}", run.text());
    let witness = result["witnesses"]
        .as_array()
        .unwrap()
        .iter()
        .find(|witness| reasons.iter().any(|reason| witness["reason"] == *reason))
        .unwrap_or_else(|| panic!("{defect}: no witness of {reasons:?} in {result}"))
        .clone();
    assert_ne!(witness["evidence"], serde_json::json!([]), "{defect}: a witness says where it can be seen");
    let bundles = std::fs::read_dir(run.dir().join("failures")).unwrap().count();
    assert!(bundles > 0, "{defect}: no bundle");
    (run, witness)
}

#[test]
fn a_lost_outcome_trips_a1() {
    let (_, witness) = caught("lost-accounting", "A1", &["no-terminal-outcome"]);
    assert!(witness["request_id"].is_string());
}

#[test]
fn a_failure_outside_the_fault_trips_a2() {
    caught("fail-unselected", "A2", &["untouched-failed", "untouched-rejected"]);
}

#[test]
fn two_markers_trip_a3() {
    caught("double-done", "A3", &["repeated-done", "after-done"]);
}

#[test]
fn a_reused_nonce_trips_a4() {
    let (_, witness) = caught("reuse-nonce", "A4", &["nonce-reused"]);
    assert!(witness["nonce"].is_u64() && witness["escrow"].is_string());
}

#[test]
fn a_second_commit_trips_a5() {
    caught("double-validation", "A5", &["committed-twice"]);
}

#[test]
fn a_swallowed_finish_trips_a6() {
    caught("drop-finish", "A6", &["started-without-finish", "execution-without-finish"]);
}

#[test]
fn another_state_trips_a7() {
    let (_, witness) = caught("flip-balance", "A7", &["state-differs"]);
    assert_eq!(witness["service"].as_str().map(|name| name.starts_with("host-")), Some(true));
}

#[test]
fn a_gauge_that_never_falls_trips_a8() {
    let (_, witness) = caught("stuck-gauge", "A8", &["not-drained", "within-protocol-timeout"]);
    assert!(witness["subject"].as_str().unwrap().starts_with("gateway_"));
}

#[test]
fn a_lookup_that_finds_nothing_trips_a10() {
    // The defect hides failed requests only: two ids fail at every node, as their rules expect.
    let ids = "ids: [ml-5xx-42-000003, ml-5xx-42-000017]";
    let expect = "expect: [ { class: expected-failure } ]";
    let other = format!(
        "faults:\n  - {{ id: node-a-503, where: {{ node: node-a }}, select: {{ {ids} }}, do: {{ status: 503 }}, {expect} }}\n"
    );
    let text = with(&ml_5xx(), "faults:\n", &other);
    let text = with(&text, "fraction: 0.25", ids);
    let text = with(
        &text,
        "- { class: masked-fault, because: rotated-to-other-node }",
        "- { class: expected-failure }",
    );
    let text = with(&text, "fault_hits: 20", "fault_hits: 2");
    caught_in(&text, "lookup-404", "A10", &["no-accounting-row"]);
}

#[test]
fn a_contradiction_trips_a11_and_repro_reproduces_it() {
    let (run, witness) = caught("record-failed-on-200", "A11", &["outcome-pair"]);
    let failure = witness["request_id"].as_str().unwrap();
    let bundle = json(&run.dir().join("failures").join(format!("{failure}.json")));
    assert_eq!(bundle["failure"], failure);
    assert!(
        bundle["request"].is_object()
            && bundle["accounting"].is_object()
            && bundle["applied_faults"].is_object()
    );
    let output = runner_of(PROFILE)
        .args(["repro", run.dir().to_str().unwrap(), failure, "--results"])
        .arg(run.results.path().join("results"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("level 1, analysis-exact: reached"), "{text}");
    assert!(text.contains("level 2, plan-exact: reached"), "{text}");
}

#[test]
fn the_flag_does_not_exist_in_an_ordinary_build() {
    let output =
        support::runner().args(["run", "scenarios/ml-5xx.yaml", "--defect", "double-done"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Values of `--defect` that a program's short help names.
fn offered(program: &str, args: &[&str]) -> Vec<String> {
    let path = support::bin_dir(PROFILE).join(program);
    let output = std::process::Command::new(path).args(args).output().unwrap();
    // Help is wrapped at the width of the terminal.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let (_, rest) =
        text.split_once("--defect").unwrap_or_else(|| panic!("{program} has no --defect: {text}"));
    let (_, rest) = rest.split_once("[possible values: ").unwrap();
    let (list, _) = rest.split_once(']').unwrap();
    list.split(',').map(|name| name.trim().to_owned()).collect()
}

#[test]
fn the_runner_plants_every_defect_that_the_programs_have() {
    let mut theirs = offered("ref-gateway", &["-h"]);
    theirs.extend(offered("ref-host", &["-h"]));
    let mut ours = offered("runner", &["run", "-h"]);
    theirs.sort();
    ours.sort();
    assert_eq!(ours, theirs);
    assert!(ours.len() > 30, "{ours:?}");
}
