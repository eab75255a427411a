//! Every committed scenario passes on the embedded stack, for the reasons that its file states: each has minimum
//! counts, so that a pass is a proof that the thing happened.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod support;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Mutex;

use support::{root, runner, with_status};

/// Scenarios that run at the same time. Each has seven programs of its own and limits on lateness, and a small machine
/// carries one of them honestly.
const AT_ONCE: usize = 1;

fn scenarios() -> Vec<PathBuf> {
    let list = std::fs::read_dir(root().join("scenarios")).unwrap().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        list.filter(|path| path.extension().is_some_and(|kind| kind == "yaml")).collect();
    found.sort();
    assert!(found.len() >= 23, "scenarios are missing: {found:?}");
    found
}

/// Runs of one scenario before its outcome stands. `invalid` speaks of the machine and of nothing else, so another
/// run may answer; no other outcome is ever tried again.
const RUNS_MAX: usize = 3;

/// Runs one scenario; says what is wrong with the result, if anything.
fn wrong(file: &std::path::Path) -> Option<String> {
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
fn wrong_once(file: &std::path::Path) -> (bool, Option<String>) {
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
    (false, undone(file, &dirs[0]))
}

/// Every action of the file was carried out: a run that ended before one proves less than the file says.
fn undone(file: &std::path::Path, dir: &std::path::Path) -> Option<String> {
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
