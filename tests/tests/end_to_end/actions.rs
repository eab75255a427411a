//! Service actions on the embedded stack: what ends comes back at its address, and a healthy Devshard stands it.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::{self, Run, lines, ml_5xx, processes_of, runner, with};
use serde_json::Value;

/// The main scenario without its fault, short, with actions. Locks of a process that died are given back soon.
fn scenario(actions: &str) -> String {
    let text = with(&ml_5xx(), "requests: 400", "requests: 80");
    let text = with(&text, "fault_hits: 20", "fault_hits: 0");
    let text = with(&text, "  policy: seeded-weighted", "  policy: seeded-weighted\n  lease: 5s");
    let (head, rest) = text.split_once("faults:\n").unwrap();
    let (_, tail) = rest.split_once("thresholds:\n").unwrap();
    let tail = with(tail, "  ttft_p95: 2s\n", "");
    format!("{head}actions:\n{actions}thresholds:\n{tail}")
}

fn committed(name: &str) -> String {
    std::fs::read_to_string(support::root().join(format!("scenarios/{name}.yaml"))).unwrap()
}

fn action(after: u32, what: &str) -> String {
    format!("  - {{ after: {{ requests: {after} }}, do: {{ {what} }}, expect: [ {{ class: success }} ] }}\n")
}

fn events(run: &Run, kind: &str) -> Vec<Value> {
    let all = lines(&run.dir().join("events.jsonl"));
    all.into_iter().filter(|event| event["kind"] == kind).collect()
}

fn all_done(run: &Run, count: usize) {
    let done = events(run, "action-done");
    assert_eq!(done.len(), count);
    assert!(done.iter().all(|event| event["error"].is_null()), "{done:?}");
}

#[test]
fn a_restarted_host_is_another_process_at_the_same_address() {
    let run = Run::of(&scenario(&action(20, "restart: host-1")), &[]).expect(0);
    all_done(&run, 1);
    let ready: Vec<Value> =
        events(&run, "process-ready").into_iter().filter(|event| event["service"] == "host-1").collect();
    assert_eq!(ready.len(), 2, "{ready:?}");
    assert_ne!(ready[0]["pid"], ready[1]["pid"]);
    assert_eq!(ready[0]["addresses"], ready[1]["addresses"]);
    let identity = |moment: &str| {
        let snapshot = run.json(&format!("snapshots/{moment}/snapshot.json"));
        let processes = snapshot["processes"].as_array().unwrap().clone();
        processes.into_iter().find(|process| process["service"] == "host-1").unwrap()
    };
    assert_eq!(identity("before")["pid"], ready[0]["pid"]);
    assert_eq!(identity("drain-final")["pid"], ready[1]["pid"]);
}

#[test]
fn a_killed_node_and_a_frozen_host_are_brought_back_for_the_drain() {
    let actions = action(20, "kill: node-b") + &action(60, "pause: host-2");
    let run = Run::of(&scenario(&actions), &["--drain-timeout", "20s"]);
    all_done(&run, 2);
    let notes = events(&run, "note");
    let notes: BTreeSet<&str> = notes.iter().filter_map(|event| event["text"].as_str()).collect();
    for back in [r#"for the drain: {"start":"node-b"}"#, r#"for the drain: {"unpause":"host-2"}"#] {
        assert!(notes.contains(back), "{back}: {notes:?}");
    }
    // The one pool process went on: only the node's listener was closed.
    assert!(events(&run, "process-exited").iter().all(|event| event["planned"] == true));
    let calls = lines(&run.dir().join("faults/node-calls.jsonl"));
    assert!(calls.iter().any(|call| call["node"] == "node-b"), "node-b worked before it was killed");
}

#[test]
fn a_restarted_mock_starts_with_the_rules_that_were_in_force() {
    let text = with(&ml_5xx(), "requests: 400", "requests: 80");
    let text = with(&text, "fault_hits: 20", "fault_hits: 1");
    let text = with(
        &text,
        "thresholds:\n",
        &format!("actions:\n{}thresholds:\n", action(30, "restart: mock-chain")),
    );
    let run = Run::of(&text, &[]);
    all_done(&run, 1);
    let ended = events(&run, "process-exited");
    assert!(
        ended.iter().any(|event| event["service"] == "mock-chain" && event["planned"] == true),
        "{ended:?}"
    );
    let assertions = run.json("assertions.json");
    let failed = support::with_status(&assertions, "fail");
    assert!(failed.iter().all(|id| id == "T"), "{failed:?}: {}", run.text());
}

/// The July build never subscribes again after a normal goodbye: what a scenario proves of one build it refutes of another.
#[test]
fn a_host_that_stays_deaf_is_found() {
    let run = Run::of(&committed("rpc-drop"), &["--personality", "july", "--drain-timeout", "20s"]).expect(1);
    all_done(&run, 4);
    let told = run.text();
    assert!(told.contains("subscription-lost: host-0 is in epoch 2, the chain in 3"), "{told}");
}

#[test]
fn actions_on_chain_and_allocator_take_effect_or_are_refused() {
    let actions: String = [
        (8, "allocator: { unavailable: node-b }"),
        (16, "chain: { params: { max_nonce: 900000 } }"),
        (24, "chain: { grant: { granter: host-0, grantee: host-1 } }"),
        (28, "chain: { revoke: { granter: host-0, grantee: host-1 } }"),
        (32, "chain: { hold_blocks: true }"),
        (36, "chain: { hold_blocks: false }"),
        (40, "create_escrow: 1000000000000"),
        (44, "chain: { blocks: 20 }"),
        (50, "settle: 4"),
        (60, "chain: { revoke: { granter: host-0, grantee: host-1 } }"),
    ]
    .map(|(after, what)| action(after, what))
    .concat();
    let run = Run::of(&scenario(&actions), &[]);
    let done = events(&run, "action-done");
    let read_back: Vec<String> =
        done.iter().map(|event| event["read_back"].as_str().unwrap_or("refused").to_owned()).collect();
    let wanted = [
        "node-b is not given out",
        "chain and allocator hold {\"max_nonce\":900000}",
        "the chain holds 1 grants",
        "the chain holds 0 grants",
        "blocks are held",
        "blocks are running",
        "escrow 5 is active",
        "height ",
        "the chain shows escrow 4 as settled",
        "refused",
    ];
    assert_eq!(read_back.len(), wanted.len(), "{read_back:?}");
    for (read, wanted) in read_back.iter().zip(wanted) {
        assert!(read.starts_with(wanted), "{read:?} where {wanted:?} should stand");
    }
    // What was refused did not happen, and a run that did not do what its file says proves nothing.
    assert_eq!(run.output.status.code(), Some(4), "{}", run.text());
    assert!(run.text().contains("does not stand"), "{}", run.text());
}

#[test]
fn every_kind_of_trigger_comes() {
    let at = |after: &str| {
        format!(
            "  - {{ after: {{ {after} }}, do: {{ chain: {{ blocks: 1 }} }}, expect: [ {{ class: success }} ] }}\n"
        )
    };
    let kinds = ["requests: 5", "request_sent: ml-5xx-42-000019", "nonce: 8", "at: 200ms"];
    let run = Run::of(&scenario(&kinds.map(at).concat()), &[]).expect(0);
    all_done(&run, kinds.len());
}

/// What a file says must happen: an action whose moment never comes leaves the run without its proof.
#[test]
fn an_action_whose_trigger_is_never_reached_is_never_green() {
    let never =
        "  - { after: { nonce: 1000000 }, do: { restart: host-1 }, expect: [ { class: success } ] }\n";
    let run = Run::of(&scenario(&(never.to_owned() + &action(20, "chain: { blocks: 1 }"))), &[]).expect(4);
    assert!(events(&run, "action-intended").is_empty(), "actions are carried out in their order");
    for what in ["action 0 {\"restart\":\"host-1\"}", "action 1 {\"chain\":{\"blocks\":1}}"] {
        let told = run.judged();
        assert!(told.contains(&format!("{what} did not take place")), "{what}: {told}");
    }
    // A count beyond the plan can be told from the file alone: nothing is started.
    let run = Run::of(&scenario(&action(500, "restart: host-1")), &[]).expect(2);
    assert!(run.dirs().is_empty());
    assert!(run.text().contains("actions[0].after"), "{}", run.text());
}

/// Whether this machine can run a Postgres server of its own.
fn postgres_is_here() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = std::env::split_paths(&path)
        .any(|dir| dir.join("initdb").is_file() && dir.join("postgres").is_file());
    if !here {
        eprintln!("NOT CHECKED: Postgres: no initdb and postgres on PATH");
    }
    here
}

#[test]
fn a_killed_runner_leaves_no_postgres() {
    if !postgres_is_here() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let text = with(&ml_5xx(), "storage: sqlite", "storage: postgres");
    let file = home.path().join("scenario.yaml");
    std::fs::write(&file, text).unwrap();
    // The other user of the server must be able to pass through.
    std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    let mut child = runner()
        .arg("run")
        .arg(&file)
        .args(["--profiles", "ml-profiles", "--quiet", "--results"])
        .arg(home.path().join("results"))
        .env("TMPDIR", home.path())
        .env_remove("PGHOST")
        .spawn()
        .unwrap();
    let data = format!("{}/proofload-run-", home.path().display());
    let begun = Instant::now();
    while !processes_of(&data).iter().any(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "postgres")
    }) {
        assert!(begun.elapsed() < Duration::from_secs(120), "no Postgres within two minutes");
        assert!(child.try_wait().unwrap().is_none(), "the run ended before Postgres was up");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = Instant::now();
    while !processes_of(&data).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(5), "left: {:?}", processes_of(&data));
        std::thread::sleep(Duration::from_millis(20));
    }
}
