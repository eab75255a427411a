//! What stands around Devshard goes away and comes back under load: no line of a mock's log is lost, a frozen mock is no
//! gap, an outage of the chain leaves no inference open, and replicas that share a database agree.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::collections::BTreeSet;

use crate::support::{Run, lines, ml_5xx, with, with_status};
use serde_json::Value;

/// The main scenario without its fault, with so many requests and these actions.
fn scenario(requests: u32, actions: &[(u32, &str)]) -> String {
    let text = with(&ml_5xx(), "requests: 400", &format!("requests: {requests}"));
    let text = with(&text, "fault_hits: 20", "fault_hits: 0");
    let text = with(&text, "  policy: seeded-weighted", "  policy: seeded-weighted\n  lease: 5s");
    let text = with(&text, "schedule_lateness_p99: 50ms", "schedule_lateness_p99: 20s");
    let (head, rest) = text.split_once("faults:\n").unwrap();
    let (_, tail) = rest.split_once("thresholds:\n").unwrap();
    let tail = with(&with(tail, "  ttft_p95: 2s\n", ""), "  error_rate: 0\n", "  error_rate: 1\n");
    let expect = "expect: [ { class: success }, { class: expected-failure } ]";
    let action = |(after, what): &(u32, &str)| {
        format!("  - {{ after: {{ requests: {after} }}, do: {{ {what} }}, {expect} }}\n")
    };
    let actions: String = actions.iter().map(action).collect();
    let actions = if actions.is_empty() { String::new() } else { format!("actions:\n{actions}") };
    format!("{head}{actions}thresholds:\n{tail}")
}

fn events(run: &Run, kind: &str) -> Vec<Value> {
    let all = lines(&run.dir().join("events.jsonl"));
    all.into_iter().filter(|event| event["kind"] == kind).collect()
}

fn text_of(entry: &Value, key: &str) -> Option<String> {
    entry[key].as_str().map(str::to_owned)
}

#[test]
fn a_killed_allocator_loses_no_line_and_a_frozen_chain_is_no_gap() {
    let actions = [
        (30, "kill: mock-dapi"),
        (40, "start: mock-dapi"),
        (60, "pause: mock-chain"),
        (90, "unpause: mock-chain"),
    ];
    let run = Run::of(&scenario(160, &actions), &[]);
    let done = events(&run, "action-done");
    assert_eq!(done.len(), actions.len(), "{}", run.text());
    assert!(done.iter().all(|event| event["error"].is_null()), "{done:?}");
    // Every lock that a node was called with was granted in the log, also by the process that was killed.
    let log = lines(&run.dir().join("faults/dapi-calls.jsonl"));
    let granted: BTreeSet<String> = log.iter().filter_map(|call| text_of(call, "lock")).collect();
    let calls = lines(&run.dir().join("faults/node-calls.jsonl"));
    let carried: BTreeSet<String> = calls.iter().filter_map(|call| text_of(call, "lock")).collect();
    assert_eq!(carried.difference(&granted).next(), None, "{}", run.text());
    let prefixes: BTreeSet<&str> = granted.iter().filter_map(|lock| Some(lock.rsplit_once('-')?.0)).collect();
    assert_eq!(prefixes.len(), 2, "both processes granted locks");
    let numbers: BTreeSet<u64> = log.iter().map(|call| call["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers.len(), log.len(), "numbers are unique over both processes");
    let gaps: Vec<Value> = events(&run, "evidence-missing")
        .into_iter()
        .filter(|gap| gap["what"].as_str().is_some_and(|what| what.starts_with("mock-")))
        .collect();
    assert_eq!(gaps, Vec::<Value>::new());
    let failed = with_status(&run.json("assertions.json"), "fail");
    assert!(!failed.iter().any(|id| id == "A11"), "{}", run.text());
}

#[test]
fn an_outage_of_the_chain_leaves_no_inference_open() {
    let actions = [(20, "stop: mock-chain"), (150, "start: mock-chain")];
    let run = Run::of(&scenario(200, &actions), &[]).expect(0);
    let done = events(&run, "action-done");
    assert!(done.len() == 2 && done.iter().all(|event| event["error"].is_null()), "{done:?}");
    let assertions = run.json("assertions.json");
    let passed = with_status(&assertions, "pass");
    for id in ["A1", "A6", "A8"] {
        assert!(passed.iter().any(|passed| passed == id), "{id}: {}", run.text());
    }
    // Hosts follow the chain's events, as the real ones do, and found the way back to them.
    let chain = &run.json("snapshots/drain-final/snapshot.json")["chain"];
    assert!(chain["subscriptions"].as_u64().unwrap() >= 3, "{chain}");
}

#[test]
fn replicas_that_share_a_database_agree() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = |name: &str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    if !(here("initdb") && here("postgres")) {
        eprintln!("NOT CHECKED: replicas: no initdb and postgres on PATH");
        return;
    }
    let text = with(&scenario(80, &[]), "storage: sqlite", "storage: postgres\n  replicas: 2");
    let run = Run::of(&text, &[]);
    let assertions = run.json("assertions.json");
    assert_eq!(with_status(&assertions, "fail"), Vec::<String>::new(), "{}", run.text());
    assert!(with_status(&assertions, "pass").iter().any(|id| id == "A7"), "{}", run.text());
    let hosts = run.json("snapshots/drain-final/snapshot.json")["hosts"].clone();
    let hosts = hosts.as_array().unwrap();
    assert_eq!(hosts.len(), 6, "both replicas of each participant are looked at");
    for pair in hosts.chunks(2) {
        assert_eq!(pair[0]["participant"], pair[1]["participant"]);
        assert_eq!(pair[0]["escrows"], pair[1]["escrows"], "two views of one log");
    }
}
