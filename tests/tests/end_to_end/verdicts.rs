//! The main scenario and its variants give the verdicts and exit codes of the design, with the right witnesses.

use std::collections::BTreeSet;

use crate::support::{self, Run, lines, ml_5xx, run_dirs, runner, with, with_status};

#[test]
fn the_main_job_passes_having_looked_at_everything() {
    let run = Run::of(&ml_5xx(), &[]).expect(0);
    let assertions = run.json("assertions.json");
    let summary = run.json("summary.json");
    assert_eq!(assertions["verdict"], "pass");
    for result in assertions["results"].as_array().unwrap() {
        assert_eq!(result["status"], "pass", "{result}");
        assert!(result["evaluated"].as_u64().unwrap() >= 1, "{result}");
    }
    // Pinned: every planned request is looked at by the assertions about requests.
    for (id, least) in [("A1", 400), ("A2", 400), ("A3", 400), ("A10", 400), ("A11", 1_200), ("A4", 1_200)] {
        let evaluated = summary["evaluated"][id].as_u64().unwrap();
        assert!(evaluated >= least, "{id} looked at {evaluated}, pinned at {least}");
    }
    let a5 = assertions["results"].as_array().unwrap().iter().find(|r| r["id"] == "A5").unwrap();
    assert_eq!(a5["parts"]["ownership"], "not-applicable");
    assert_eq!(a5["parts"]["commits"], "pass");
    assert!(summary["client"]["sent"].as_u64().unwrap() >= 400);
}

#[test]
fn every_hit_is_joined_and_masked_by_a_second_call() {
    let run = Run::of(&ml_5xx(), &[]).expect(0);
    let dir = run.dir();
    let hits = lines(&dir.join("faults/hits.jsonl"));
    let places: BTreeSet<&str> = hits.iter().map(|hit| hit["place"].as_str().unwrap()).collect();
    assert_eq!(places, BTreeSet::from(["node-b"]));
    let ids: BTreeSet<&str> = hits.iter().map(|hit| hit["request_id"].as_str().unwrap()).collect();
    assert!(ids.len() >= 20, "{} distinct ids", ids.len());
    let joined = lines(&dir.join("accounting.jsonl"));
    for id in &ids {
        let row = joined.iter().find(|row| row["id"] == *id).unwrap();
        assert_eq!(row["accounting"]["outcome"], "success", "{row}");
        let calls = row["calls"].as_array().unwrap();
        let spoilt = calls.iter().find(|call| call["rule"] == "node-b-503").unwrap();
        let proof =
            calls.iter().find(|call| call["outcome"] == "completed" && call["nonce"] == spoilt["nonce"]);
        assert_ne!(proof.unwrap()["node"], "node-b", "{row}");
        for way in ["marker", "seed-nonce", "devshard-id", "response-request-id"] {
            assert!(row["ways"].as_array().unwrap().iter().any(|used| used == way), "{way}: {row}");
        }
        assert_eq!(row["missing"], serde_json::json!([]));
    }
    let classes = run.json("summary.json")["client"]["classes"].clone();
    assert_eq!(classes["masked-fault"].as_u64(), Some(ids.len() as u64));
}

#[test]
fn concurrency_changes_no_selection_and_a_seed_does() {
    let plan = |args: &[&str]| {
        let output = runner().args(["plan", "scenarios/ml-5xx.yaml"]).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let hash = |text: &str| text.lines().find(|line| line.starts_with("plan_hash")).unwrap().to_owned();
    assert_eq!(hash(&plan(&["--concurrency", "2"])), hash(&plan(&["--concurrency", "16"])));
    assert_eq!(plan(&["--lines", "--concurrency", "2"]), plan(&["--lines", "--concurrency", "16"]));
    assert_ne!(hash(&plan(&[])), hash(&plan(&["--seed", "43"])));
    // Hashes of two seeds differ in any case: which requests are hit is what must be another set.
    let selected = |args: &[&str]| -> Vec<u64> {
        let text = plan(args);
        let rule = text.lines().find(|line| line.trim_start().starts_with("node-b-503 ")).unwrap();
        let (_, indexes) = rule.split_once(" of 400: ").unwrap();
        indexes.trim_end_matches(", …").split(", ").map(|index| index.parse().unwrap()).collect()
    };
    let one = selected(&["--concurrency", "2"]);
    assert!(one.len() >= 10 && one.is_sorted(), "{one:?}");
    assert_eq!(one, selected(&["--concurrency", "16"]));
    let other = selected(&["--seed", "43"]);
    let both = one.iter().filter(|index| other.contains(index)).count();
    assert!(both < one.len() / 2, "{one:?} {other:?}");
}

#[test]
fn no_hits_is_unknown() {
    let run = Run::of(&with(&ml_5xx(), "fraction: 0.25", "fraction: 0"), &[]).expect(4);
    assert_eq!(with_status(&run.json("assertions.json"), "unknown"), ["A2"]);
}

#[test]
fn a_saturated_node_is_invalid() {
    let narrow = with(&ml_5xx(), "workers: 32, queue: 64", "workers: 1, queue: 0");
    let run = Run::of(&narrow, &[]).expect(3);
    let assertions = run.json("assertions.json");
    let v = assertions["results"].as_array().unwrap().iter().find(|result| result["id"] == "V").unwrap();
    let saturated = |found: &serde_json::Value| {
        found["reason"] == "mock-saturated" && found.to_string().contains("node-b")
    };
    assert!(v["witnesses"].as_array().unwrap().iter().any(saturated), "{v}");
}

#[test]
fn a_fault_on_every_node_fails_exactly_the_selected_requests() {
    let text =
        with(&ml_5xx(), "    where: { node: node-b }", "    where: { node: node-b }\n    attempts: all");
    let all = with(
        &text,
        "faults:\n",
        "faults:\n  - id: node-b-503-a\n    where: { node: node-a }\n    select: { fraction: 0.05 }\n    do: { status: 503 }\n    expect: [ { class: masked-fault } ]\n",
    );
    // One rule id selects by its own draw, so that both places need the same id list: take a few ids.
    let ids: Vec<String> = [3, 17, 42, 101].iter().map(|index| format!("ml-5xx-42-{index:06}")).collect();
    let list = format!("ids: [{}]", ids.join(", "));
    let all = with(&all, "fraction: 0.05", &list);
    let all = with(&all, "fraction: 0.25", &list);
    let all = with(&all, "fault_hits: 20", "fault_hits: 4");
    let run = Run::of(&all, &[]).expect(1);
    let failed: BTreeSet<String> = std::fs::read_dir(run.dir().join("failures"))
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().trim_end_matches(".json").to_owned())
        .filter(|name| !name.starts_with("_run"))
        .collect();
    assert_eq!(failed, ids.into_iter().collect::<BTreeSet<_>>(), "{}", run.text());
}

#[test]
fn a_misspelt_key_is_usage_with_a_suggestion_and_starts_nothing() {
    let run = Run::of(&with(&ml_5xx(), "stream_ratio", "stram_ratio"), &[]).expect(2);
    assert!(run.text().contains("stream_ratio"), "{}", run.text());
    assert!(run.dirs().is_empty());
}

#[test]
fn what_is_missing_on_the_command_line_is_named_and_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results");
    let said = |arguments: &[&str], temporary: &str| {
        let mut command = runner();
        command.args(["run", "scenarios/ml-5xx.yaml", "--results"]).arg(&results).args(arguments);
        let output = command.env("TMPDIR", temporary).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let attached = said(&["--stack", "attach"], "/tmp");
    assert!(attached.0 == Some(2) && attached.1.contains("--gateway URL"), "{attached:?}");
    let no_profiles = said(&["--profiles", "/nowhere/at/all"], "/tmp");
    assert!(no_profiles.0 == Some(2) && no_profiles.1.contains("no such folder"), "{no_profiles:?}");
    let no_room = said(&[], "/nowhere/at/all");
    assert!(no_room.0 == Some(5) && no_room.1.contains("TMPDIR"), "{no_room:?}");
    assert_eq!(run_dirs(&results), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_missing_or_foreign_program_is_an_environment_error() {
    let empty = tempfile::tempdir().unwrap();
    let own = support::bin_dir("debug");
    // A copy of the runner that finds nothing beside itself.
    let copy = empty.path().join("runner");
    std::fs::copy(own.join("runner"), &copy).unwrap();
    let run = |args: &[&str]| {
        std::process::Command::new(&copy)
            .current_dir(support::root())
            .args(["run", "scenarios/ml-5xx.yaml", "--results"])
            .arg(empty.path().join("results"))
            .args(args)
            .output()
            .unwrap()
    };
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&output.stderr).contains("mock-chain"));
    for name in ["loadgen", "mock-dapi", "mock-openai", "ref-gateway", "ref-host"] {
        std::os::unix::fs::symlink(own.join(name), empty.path().join(name)).unwrap();
    }
    let foreign = "#!/bin/sh\necho '{\"ready\":{\"control\":\"127.0.0.1:1\",\"grpc\":\"127.0.0.1:1\"},\"program\":\"mock-chain\",\"build\":\"other\"}'\nexec sleep 30\n";
    let path = empty.path().join("mock-chain");
    std::fs::write(&path, foreign).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(5));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("of build \"other\""), "{text}");
}

#[test]
fn bad_files_are_refused_with_their_line() {
    let bad = [
        ("not yaml", ": : :\n  - ]"),
        ("negative duration", "interval: -5s"),
        ("unit-less duration", "interval: 500"),
        ("fraction above one", "fraction: 1.5"),
    ];
    for (name, part) in bad {
        let text = match name {
            "not yaml" => part.to_owned(),
            "fraction above one" => with(&ml_5xx(), "fraction: 0.25", part),
            _ => with(&ml_5xx(), "interval: 500ms", part),
        };
        let run = Run::of(&text, &[]).expect(2);
        assert!(run.dirs().is_empty(), "{name} started something");
        assert!(run.text().contains("scenario.yaml:"), "{name}: {}", run.text());
    }
}

/// What the July build is known to do wrong is red, and accepted only when it is asked for.
#[test]
fn known_findings_of_the_july_build_are_accepted_when_asked_for() {
    let text = std::fs::read_to_string(support::root().join("scenarios/partial-stream.yaml")).unwrap();
    // The limit and the least count are about a build that ends such streams well.
    let text = with(&text, "  error_rate: 0\n", "  success_rps_min: 0\n");
    let text = with(&text, "  classes: { expected-failure: 24 }\n", "");
    // Half the load: of each reason fifty witnesses are kept, and what was not kept fits no entry.
    let text = with(&text, "requests: 160", "requests: 80");
    let text = with(&text, "fault_hits: 24", "fault_hits: 6");
    let run = Run::of(&text, &["--personality", "july"]).expect(1);
    let analyze = |args: &[&str]| {
        let run_id = run.dir().file_name().unwrap().to_owned();
        let mut command = support::runner();
        command
            .arg("analyze")
            .arg(&run_id)
            .arg("--results")
            .arg(run.results.path().join("results"))
            .args(args);
        command.output().unwrap()
    };
    let known = ["--known-findings", "scenarios/known/july-2026.yaml"];
    let output = analyze(&known);
    assert_eq!(output.status.code(), Some(1), "known is not accepted\n{}", run.judged());
    let output = analyze(&[known[0], known[1], "--accept-known"]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}{errors}{}", run.judged());
}

/// One participant: nobody races it, and nobody votes against it.
const LONE_HOST: &str = "
version: 1
name: lone-host
description: The only host fails one request, and is on probation when the next one comes.
seed: 42
devshard: { participants: 1, slots: 1, escrows: 1, storage: sqlite, settings: { speed_policy: legacy } }
pool:
  - { name: node-a, profile: fast }
  - { name: node-b, profile: fast }
workload:
  stream_ratio: 0
  prompt: { input_tokens: 64 }
  max_tokens: 16
  timeout: protocol
  steps: [ { concurrency: 1, requests: 2 } ]
faults:
  - id: dead-a
    where: { node: node-a }
    select: { ids: [lone-host-42-000000] }
    do: { status: 503 }
    expect: [ { class: expected-failure } ]
  - id: dead-b
    where: { node: node-b }
    select: { ids: [lone-host-42-000000] }
    do: { status: 503 }
    expect: [ { class: expected-failure } ]
thresholds: {}
validity: { mock_saturation: forbidden }
drain: { timeout: 15s, stable_samples: 3, interval: 300ms }
minimum: { fault_hits: 1 }
";

/// The entries of the held-back answer and of the inference that stays started: no committed scenario has a single host.
#[test]
#[ignore = "make prove: two requests wait for the protocol's limits, half a minute"]
fn a_lone_host_of_july_shows_the_findings_that_need_one() {
    let known = ["--personality", "july", "--known-findings", "scenarios/known/july-2026.yaml"];
    let run = Run::of(LONE_HOST, &known).expect(1);
    let entries = run.json("summary.json")["known"]["entries"].clone();
    for (assertion, words) in [("A11", "on probation is held back"), ("A6", "so that it stays started")] {
        let of = |entry: &&serde_json::Value| {
            let finding = &entry["finding"];
            finding["assertion"] == assertion && finding["because"].as_str().unwrap().contains(words)
        };
        let entry = entries.as_array().unwrap().iter().find(of).unwrap();
        assert_eq!((&entry["state"], &entry["count"]), (&"known".into(), &1.into()), "{}", run.judged());
    }
}
