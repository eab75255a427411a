//! Hosts under `versiond`, each in a network namespace of its own: a planned kill takes the host with its child, a child
//! that `versiond` starts again is seen, and whoever is killed, nothing is left on the machine. The programs of others are
//! stand-ins around the reference Devshard, so that no real build is needed.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{self, bin_dir, json, lines, root, run_dirs, runner, theirs, with, with_status};

#[test]
fn the_stand_in() {
    theirs::run();
}

/// No fault, slow answers, and a host that is killed and comes back.
fn scenario() -> String {
    let text = std::fs::read_to_string(root().join("tests/real/normal-load.yaml")).unwrap();
    let text = with(&text, "profile: fast", "profile: steady");
    let text = with(&text, "requests: 120", "requests: 240");
    let text = with(&text, "schedule_lateness_p99: 500ms", "schedule_lateness_p99: 20s");
    let text = with(&text, "loadgen_cpu_share: 0.9", "loadgen_cpu_share: 1.0");
    let text =
        with(&text, "allocator: { policy: round-robin }", "allocator: { policy: round-robin, lease: 5s }");
    let expect = "expect: [ { class: success }, { class: expected-failure } ]";
    let actions = format!(
        "actions:\n  - {{ after: {{ requests: 20 }}, do: {{ kill: host-0 }}, {expect} }}\n  \
         - {{ after: {{ requests: 60 }}, do: {{ start: host-0 }}, {expect} }}\nthresholds:"
    );
    with(&text, "thresholds: { error_rate: 0 }", &format!("{actions} {{ error_rate: 1 }}"))
}

/// Starts a run on stand-ins in the background.
fn start(home: &Path) -> Child {
    theirs::write_all(home, &bin_dir("debug"));
    let file = home.join("scenario.yaml");
    std::fs::write(&file, scenario()).unwrap();
    runner()
        .arg("run")
        .arg(&file)
        .args(["--profiles", "ml-profiles", "--quiet", "--hosts-by", "versiond", "--devshard-bin"])
        .arg(home)
        .arg("--results")
        .arg(home.join("results"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until something is there.
fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(90), "{what} within 90 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The run directory, once so many requests have been recorded.
fn under_load(home: &Path, records: usize) -> PathBuf {
    wait("load", || {
        let dir = run_dirs(&home.join("results")).pop()?;
        let text = std::fs::read_to_string(dir.join("requests.jsonl")).ok()?;
        (text.lines().count() >= records).then_some(dir)
    })
}

/// Links of a run that this machine has.
fn links(run: &Path) -> Vec<String> {
    let name = run.file_name().unwrap().to_string_lossy().into_owned();
    let begin = format!("pl{}-", name.rsplit('-').next().unwrap());
    let all = std::fs::read_dir("/sys/class/net").unwrap().flatten();
    all.map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(&begin))
        .collect()
}

/// Nothing of a run is left: the kernel takes a moment to remove namespaces.
fn nothing_left(home: &Path, run: &Path) {
    wait("an end of everything", || {
        (links(run).is_empty() && theirs::processes(home, "", "").is_empty()).then_some(())
    });
}

fn kill(pids: &[u32]) {
    let pids = pids.iter().map(u32::to_string);
    assert!(Command::new("kill").arg("-9").args(pids).status().unwrap().success());
}

#[test]
fn a_host_under_versiond_is_killed_with_its_child_and_a_child_that_comes_back_is_seen() {
    if !theirs::namespaces() {
        eprintln!("NOT CHECKED: hosts under versiond: this machine makes no network namespaces");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let child = start(home);
    // After the planned kill of host-0 was undone, the host program of host-2 dies by itself.
    let run = under_load(home, 100);
    assert_eq!(links(&run).len(), 3, "one link for each host");
    kill(&theirs::processes(home, "ref-host", "KEY_NAME=host-2"));
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    nothing_left(home, &run);
    let judged = support::judged(&run);
    assert_eq!(output.status.code(), Some(1), "{text}{judged}");
    let assertions = json(&run.join("assertions.json"));
    assert!(with_status(&assertions, "fail").contains(&"A9".to_owned()), "{judged}");
    let results = assertions["results"].as_array().unwrap();
    let stability = results.iter().find(|result| result["id"] == "A9").unwrap();
    let found: Vec<(&str, &str)> = stability["witnesses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|witness| (witness["service"].as_str().unwrap(), witness["reason"].as_str().unwrap()))
        .collect();
    assert!(found.contains(&("host-2", "restarted")), "{judged}");
    assert!(found.iter().all(|(service, _)| *service == "host-2"), "{judged}");
    // The planned kill took the child along: else the port inside would not have been free for the next one.
    let events = lines(&run.join("events.jsonl"));
    let done: Vec<_> = events.iter().filter(|event| event["kind"] == "action-done").collect();
    assert!(done.len() == 2 && done.iter().all(|event| event["error"].is_null()), "{done:?}");
    let about = std::fs::read_to_string(run.join("run.yaml")).unwrap();
    assert!(about.contains("hosts_by: versiond"), "{about}");
}

#[test]
fn when_runner_and_guard_are_killed_gc_ends_what_runs_in_the_namespaces() {
    if !theirs::namespaces() {
        eprintln!("NOT CHECKED: hosts under versiond: this machine makes no network namespaces");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut child = start(home);
    let run = under_load(home, 1);
    let id = child.id().to_string();
    let guard: Vec<u32> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1));
            parent == Some(id.as_str()) && line.contains("__guard")
        })
        .collect();
    assert_eq!(guard.len(), 1);
    assert!(
        theirs::processes(home, "ref-host", "").len() >= 2,
        "hosts that nobody will end run in namespaces"
    );
    kill(&[guard[0], child.id()]);
    child.wait().unwrap();
    let output = runner().arg("gc").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    nothing_left(home, &run);
}
