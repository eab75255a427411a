//! Every committed scenario passes on the embedded stack, for the reasons that its file states: each has minimum
//! counts, so that a pass is a proof that the thing happened.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::support::{self, root, runner, with_status};

/// Scenarios that run at the same time. Each has seven programs of its own and limits on lateness, and a small machine
/// carries one of them honestly.
const AT_ONCE: usize = 1;

fn scenarios() -> Vec<PathBuf> {
    let list = std::fs::read_dir(root().join("scenarios")).unwrap().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        list.filter(|path| path.extension().is_some_and(|kind| kind == "yaml")).collect();
    found.sort();
    assert!(found.len() >= 25, "scenarios are missing: {found:?}");
    found
}

/// Runs of one scenario before its outcome stands. `invalid` speaks of the machine and of nothing else, so another
/// run may answer; no other outcome is ever tried again.
const RUNS_MAX: usize = 3;

/// Runs one scenario; says what is wrong with the result, if anything.
fn wrong(file: &Path) -> Option<String> {
    let mut runs = 1;
    loop {
        let (invalid, wrong) = wrong_once(file);
        if !invalid || runs == RUNS_MAX {
            return wrong;
        }
        eprintln!("INVALID, run again: {}", wrong.unwrap_or_default().trim());
        runs += 1;
    }
}

/// Whether one run was invalid, and what is wrong with its result.
fn wrong_once(file: &Path) -> (bool, Option<String>) {
    let results = tempfile::tempdir().unwrap();
    let output =
        runner().arg("run").arg(file).args(["--quiet", "--results"]).arg(results.path()).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let dirs = support::run_dirs(results.path());
    if output.status.code() == Some(4) && dirs.is_empty() {
        // Refused before the start: what it needs is not on this machine, and the runner says so.
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        eprintln!("NOT CHECKED: {name}: {}", text.trim());
        return (false, None);
    }
    if output.status.code() != Some(0) {
        return (output.status.code() == Some(3), Some(text));
    }
    let assertions = support::json(&dirs[0].join("assertions.json"));
    let unsure: Vec<String> = ["fail", "unknown"].iter().flat_map(|s| with_status(&assertions, s)).collect();
    if !unsure.is_empty() {
        return (false, Some(format!("exit 0 although {unsure:?} did not pass")));
    }
    let name = file.file_stem().unwrap().to_str().unwrap();
    let unproven = PROOFS.iter().filter(|(of, _)| *of == name).find_map(|(_, proof)| proof(&dirs[0]));
    (false, undone(file, &dirs[0]).or(unproven))
}

/// Looks into the directory of a run; gives what is missing.
type Proof = fn(&Path) -> Option<String>;

/// What a scenario is about and its least counts can't say: shown by what the hosts and the lease tables wrote down.
const PROOFS: [(&str, Proof); 2] =
    [("replica-failover", sessions_move), ("validation-race", owners_lose_their_leases)];

/// The sibling finishes requests of a session of which the other replica has finished some before it was killed.
fn sessions_move(dir: &Path) -> Option<String> {
    let log = |replica: &str| std::fs::read_to_string(dir.join(format!("logs/{replica}.log"))).unwrap();
    let served = |log: &str| -> BTreeSet<String> {
        let finished = log.lines().filter(|line| line.contains("terminal=finish_published"));
        finished.filter_map(|line| word(line, "escrow_id=")).collect()
    };
    let (first, second) = (log("host-1-0"), log("host-1-1"));
    let begins: Vec<usize> = first.match_indices("devshardd starting").map(|(at, _)| at).collect();
    let Some(again) = begins.get(1).copied() else {
        return Some("host-1-0 was not started again".to_owned());
    };
    let moved = served(&first[again..]).intersection(&served(&second)).count();
    (moved == 0).then(|| "host-1-0 goes on with no session that host-1-1 had served".to_owned())
}

fn word(line: &str, key: &str) -> Option<String> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)).map(str::to_owned)
}

/// Late submits are refused, replicas meet at a lease, and what a killed owner held is claimed anew.
fn owners_lose_their_leases(dir: &Path) -> Option<String> {
    let logs: String = std::fs::read_dir(dir.join("logs"))
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("host-"))
        .map(|entry| std::fs::read_to_string(entry.path()).unwrap())
        .collect();
    let wanted =
        ["no longer owned; abandon submit", "leased by another instance", "validation lease taken over"];
    if let Some(absent) = wanted.iter().find(|words| !logs.contains(**words)) {
        return Some(format!("no host says {absent:?}"));
    }
    let killed = support::lines(&dir.join("events.jsonl"))
        .iter()
        .filter(|event| event["kind"] == "action-done")
        .filter_map(|event| event["unix_us"].as_u64())
        .next_back()
        .unwrap();
    let mut held = BTreeMap::new();
    let mut lost = 0;
    for line in support::lines(&dir.join("snapshots/leases.jsonl")) {
        let lease = &line["lease"];
        if line["kind"] != "changed" || line["participant"] != "host-1" {
            continue;
        }
        let key = (lease["escrow"].to_string(), lease["inference"].to_string());
        if line["seen_unix_us"].as_u64().unwrap() <= killed {
            held.insert(key, (lease["status"] == "pending").then(|| lease["claimed_unix_us"].clone()));
        } else if let Some(Some(claimed)) = held.get(&key)
            && *claimed != lease["claimed_unix_us"]
        {
            lost += 1;
            held.remove(&key);
        }
    }
    (lost == 0).then(|| "host-1-1 held no lease when it was killed that was claimed anew".to_owned())
}

/// Every action of the file was carried out: a run that ended before one proves less than the file says.
fn undone(file: &Path, dir: &Path) -> Option<String> {
    let wanted = std::fs::read_to_string(file).unwrap().matches("  - after: ").count();
    let events = support::lines(&dir.join("events.jsonl"));
    let done = events.iter().filter(|event| event["kind"] == "action-done");
    let good = done.filter(|event| event["error"].is_null()).count();
    (good != wanted).then(|| format!("{good} of {wanted} actions were carried out"))
}

#[test]
fn every_scenario_passes_for_its_reasons() {
    let waiting: Mutex<VecDeque<PathBuf>> = Mutex::new(scenarios().into());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(file) = waiting.lock().unwrap().pop_front() else { return };
                    if let Some(why) = wrong(&file) {
                        failed.lock().unwrap().push(format!("{}:\n{why}", file.display()));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} scenarios do not pass:\n{}", failed.len(), failed.join("\n"));
}
