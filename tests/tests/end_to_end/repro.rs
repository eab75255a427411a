//! `runner repro` on failures of requests and of runs, with neighbours and alone, once and several times: what came back
//! is said, and no more than that.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::path::PathBuf;

use crate::support::{self, Run, json, ml_5xx, runner_of, with};

/// Profile of the programs with planted defects.
const DEFECTS: &str = "defects";

/// The main scenario with fewer requests and a short drain.
fn short(requests: u32) -> String {
    let text = with(&ml_5xx(), "requests: 400", &format!("requests: {requests}"));
    let text = with(&text, "fault_hits: 20", "fault_hits: 1");
    with(&text, "  timeout: protocol\n  stable_samples", "  timeout: 6s\n  stable_samples")
}

/// Two requests fail at every node although the scenario says that faults are masked.
fn unmasked() -> String {
    let ids = "ids: [ml-5xx-42-000003, ml-5xx-42-000017]";
    let other = format!(
        "faults:\n  - {{ id: node-a-503, where: {{ node: node-a }}, select: {{ {ids} }}, do: {{ status: 503 }}, expect: [ {{ class: masked-fault }} ] }}\n"
    );
    let text = with(&with(&short(40), "faults:\n", &other), "fraction: 0.25", ids);
    with(&text, "  error_rate: 0\n", "  error_rate: 1\n")
}

/// Failures of a run by the names of their bundles.
fn failures(run: &Run) -> Vec<String> {
    let folder = std::fs::read_dir(run.dir().join("failures")).unwrap();
    let name = |path: PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut names: Vec<String> = folder.flatten().map(|entry| name(entry.path())).collect();
    names.sort();
    names
}

/// Exit code and what it says.
fn repro(profile: &str, run: &Run, failure: &str, args: &[&str]) -> (Option<i32>, String) {
    let output = runner_of(profile)
        .args(["repro", run.dir().to_str().unwrap(), failure, "--results"])
        .arg(run.results.path().join("replays"))
        .args(args)
        .output()
        .unwrap();
    let text = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part).into_owned());
    (output.status.code(), text.concat())
}

#[test]
fn a_request_fails_alone_again_and_again() {
    let run = Run::of(&unmasked(), &[]).expect(1);
    assert_eq!(failures(&run), ["ml-5xx-42-000003", "ml-5xx-42-000017"], "{}", run.text());
    let (code, text) = repro("debug", &run, "ml-5xx-42-000017", &["--alone", "--times", "2"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("level 1, analysis-exact: reached"), "{text}");
    assert!(text.contains("replay 2 of 2: reproduced, on the same request"), "{text}");
    assert!(text.contains("level 2, plan-exact: reached, alone"), "{text}");
    assert!(text.contains("level 3, statistical: 2 of 2 alone, 95 % interval 0.342 to 1.000"), "{text}");
    let replays = support::run_dirs(&run.results.path().join("replays"));
    for replay in &replays {
        assert_eq!(support::lines(&replay.join("requests.jsonl")).len(), 1, "one request was sent");
        let assertions = json(&replay.join("assertions.json"));
        assert_eq!(support::with_status(&assertions, "fail"), ["A2"], "{text}");
    }
    assert_eq!(replays.len(), 2);
    // Evidence alone starts nothing, and what nobody failed can't be repeated.
    let (code, text) = repro("debug", &run, "ml-5xx-42-000017", &["--analysis-only"]);
    assert!(code == Some(1) && !text.contains("level 2"), "{text}");
    let (code, text) = repro("debug", &run, "ml-5xx-42-000001", &[]);
    assert!(code == Some(2) && text.contains("ml-5xx-42-000003"), "{text}");
    assert_eq!(support::run_dirs(&run.results.path().join("replays")).len(), 2);
}

#[test]
fn a_failure_of_the_run_is_repeated_with_its_neighbours() {
    let run = Run::on(DEFECTS, &short(60), &["--defect", "flip-balance"]).expect(1);
    let failure = failures(&run).into_iter().find(|name| name.starts_with("_run.A7.")).unwrap();
    let (code, text) = repro(DEFECTS, &run, &failure, &["--alone"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("--alone has no effect"), "{text}");
    assert!(text.contains("level 2, plan-exact: reached, with its neighbours"), "{text}");
}

/// What a defect is run with: the main scenario, or a twin of the self-test that passes without it.
fn text_of(defect: &str) -> String {
    match defect {
        // What is wrong with failed requests needs some that fail as their rules allow.
        "lookup-404" => std::fs::read_to_string(support::root().join("selftest/failing.yaml")).unwrap(),
        _ => short(120),
    }
}

/// Each defect with the failure that is repeated: by assertion, of a request or of the run.
const TABLE: &[(&str, &str, bool)] = &[
    ("lost-accounting", "A1", true),
    ("fail-unselected", "A2", true),
    ("double-done", "A3", true),
    ("reuse-nonce", "A4", false),
    ("drop-finish", "A6", true),
    ("flip-balance", "A7", false),
    ("stuck-gauge", "A8", false),
    ("lookup-404", "A10", true),
    ("record-failed-on-200", "A11", true),
];

#[test]
#[ignore = "make prove: nineteen runs"]
fn planted_defects_come_back() {
    drop(Run::on(DEFECTS, &text_of("lookup-404"), &[]).expect(0));
    TABLE.iter().for_each(|(defect, id, of_request)| comes_back(defect, id, *of_request));
}

/// The failure of this assertion is there, and there again when it is repeated.
fn comes_back(defect: &str, id: &str, of_request: bool) {
    let run = Run::on(DEFECTS, &text_of(defect), &["--defect", defect]).expect(1);
    let own = |name: &String| {
        let bundle = json(&run.dir().join("failures").join(format!("{name}.json")));
        let failed = bundle["failed"].as_array().unwrap();
        name.starts_with("_run.") != of_request && failed.iter().any(|failed| failed["id"] == id)
    };
    let failure = failures(&run).into_iter().find(own);
    let failure = failure.unwrap_or_else(|| panic!("{defect}: {:?}\n{}", failures(&run), run.text()));
    let (code, text) = repro(DEFECTS, &run, &failure, &[]);
    assert_eq!(code, Some(1), "{defect} {failure}: {text}");
    assert!(text.contains("level 2, plan-exact: reached, with its neighbours"), "{defect}: {text}");
    // Any reason of the failure counts for `repro`; here it must be the one of this assertion.
    let replays = support::run_dirs(&run.results.path().join("replays"));
    let again = json(&replays[0].join("assertions.json"));
    assert!(support::with_status(&again, "fail").contains(&id.to_owned()), "{defect}: {text}");
}

#[test]
#[ignore = "make prove: three runs"]
fn a_failure_by_a_service_action_comes_back_without_a_claim_about_its_moment() {
    let action = "actions:\n  - { after: { requests: 20 }, do: { kill: gateway }, expect: [ { class: success } ] }\nthresholds:\n";
    let run = Run::of(&with(&short(60), "thresholds:\n", action), &[]).expect(1);
    let failure = failures(&run).into_iter().find(|name| !name.starts_with("_run.")).unwrap();
    let (code, text) = repro("debug", &run, &failure, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("level 2, plan-exact: reached, with its neighbours"), "{text}");
    assert!(text.contains("what is in flight at that moment is not part of the plan"), "{text}");
    let (code, text) = repro("debug", &run, &failure, &["--alone"]);
    assert_ne!(code, Some(1), "{text}");
    assert!(text.contains("without its service actions"), "{text}");
}
