//! Nothing outlives a run, whatever ends it, and what was written stays readable.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{self, Run, ml_5xx, processes_of, run_dirs, runner, with};

/// Starts a run in the background, in its own results folder.
fn start(results: &std::path::Path, text: &str) -> std::process::Child {
    start_in(results, results, text)
}

/// The same with another folder for the private directory: every service names a file in it, so that each can be found.
fn start_in(private: &std::path::Path, results: &std::path::Path, text: &str) -> std::process::Child {
    let file = results.join("scenario.yaml");
    std::fs::write(&file, text).unwrap();
    runner()
        .arg("run")
        .arg(&file)
        .args(["--profiles", "ml-profiles", "--results"])
        .arg(results.join("results"))
        .env("TMPDIR", private)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until no process names the folder, at most this long.
fn gone(part: &str, limit: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if processes_of(part).is_empty() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Moments of a run: what stands in its events, the pause after that, the services that are there at least, and a file
/// that can't be there yet.
const MOMENTS: [(&str, u64, usize, &str); 10] = [
    ("", 20, 0, ""),
    ("\"phase\":\"prepare\"", 0, 0, "requests.jsonl"),
    ("\"phase\":\"start\"", 50, 0, "requests.jsonl"),
    ("\"kind\":\"process-ready\"", 0, 1, "requests.jsonl"),
    ("\"phase\":\"before\"", 0, 6, "accounting.jsonl"),
    ("\"phase\":\"load\"", 0, 7, "drain.jsonl"),
    ("\"phase\":\"load\"", 600, 7, "accounting.jsonl"),
    ("\"phase\":\"drain\"", 100, 6, "accounting.jsonl"),
    ("\"kind\":\"drain-step\"", 0, 6, "snapshots/drain-final/snapshot.json"),
    ("\"phase\":\"collect\"", 0, 6, "manifest.json"),
];

/// Waits until a run in this folder has written the words to its events.
fn until_written(results: &std::path::Path, words: &str) {
    let written = || {
        let dirs = run_dirs(&results.join("results"));
        dirs.iter().any(|dir| {
            std::fs::read_to_string(dir.join("events.jsonl")).is_ok_and(|text| text.contains(words))
        })
    };
    let begun = Instant::now();
    while !words.is_empty() && !written() {
        assert!(begun.elapsed() < Duration::from_secs(90), "{words} never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn kill_at_ten_moments_leaves_no_process_and_a_readable_directory() {
    let mut unfinished = 0;
    for (words, pause_ms, services, absent) in MOMENTS {
        let results = tempfile::tempdir().unwrap();
        let mut child = start(results.path(), &ml_5xx());
        until_written(results.path(), words);
        std::thread::sleep(Duration::from_millis(pause_ms));
        let over = child.try_wait().unwrap();
        assert!(over.is_none(), "{words}: the run is over: {over:?}");
        let part = results.path().to_str().unwrap();
        // The runner and its guard name the folder too.
        let there = processes_of(part).len();
        assert!(there >= services, "{words}: {there} processes");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(gone(part, Duration::from_secs(2)), "{words}: left: {:?}", processes_of(part));
        // The guard ends last, with the private directory.
        let begun = Instant::now();
        while !private_directories(results.path()).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(2), "{words}: a directory for gc to find");
            std::thread::sleep(Duration::from_millis(20));
        }
        for dir in run_dirs(&results.path().join("results")) {
            let output = runner().arg("analyze").arg(&dir).output().unwrap();
            let page = String::from_utf8_lossy(&output.stdout).into_owned();
            let judged = dir.join("assertions.json").exists();
            assert_eq!(output.status.code(), Some(4), "{words}: {page}");
            assert!(judged, "{words}: {page}");
            // What is missing has a name: a file, and why it can't be had.
            let missing = page.lines().any(|line| {
                (line.contains("missing: ") || line.contains("not seen: ")) && line.contains(absent)
            });
            assert!(missing, "{words}: {absent}: {page}");
            unfinished += 1;
        }
        let gc = runner()
            .args(["gc", "--dry-run"])
            .env("TMPDIR", results.path())
            .env("DOCKER_HOST", "unix:///nobody/listens/here.sock")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&gc.stdout).into_owned();
        assert_eq!(said.trim(), "nothing left behind", "{words}");
    }
    assert!(unfinished >= 8, "{unfinished}");
}

/// `SIGKILL` for both, of which neither can say goodbye to what it started.
#[test]
fn runner_and_guard_killed_together_leave_no_process_and_gc_their_directory() {
    let results = tempfile::tempdir().unwrap();
    let mut child = start(results.path(), &ml_5xx());
    let part = results.path().to_str().unwrap().to_owned();
    let begun = Instant::now();
    while processes_of(&part).len() < 6 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no services");
        std::thread::sleep(Duration::from_millis(20));
    }
    let guard = guard_of(child.id());
    let pids = [child.id().to_string(), guard.to_string()];
    assert!(std::process::Command::new("kill").arg("-9").args(&pids).status().unwrap().success());
    child.wait().unwrap();
    // Programs of ours end with the pipe that the guard held.
    assert!(gone(&part, Duration::from_secs(5)), "left: {:?}", processes_of(&part));
    assert_eq!(private_directories(results.path()).len(), 1, "nobody was there to remove it");
    assert!(runner().arg("gc").env("TMPDIR", results.path()).status().unwrap().success());
    assert_eq!(private_directories(results.path()), Vec::<std::path::PathBuf>::new());
}

/// The guard that this runner started.
fn guard_of(runner: u32) -> u32 {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    processes_of("__guard").into_iter().find(|pid| parent(*pid) == Some(runner)).unwrap()
}

/// Private directories of runs in a folder.
fn private_directories(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let of_a_run = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("proofload-run-"))
    };
    paths.filter(of_a_run).collect()
}

#[test]
fn an_interrupt_drains_writes_and_ends_with_130() {
    stopped_by("-INT");
}

#[test]
fn a_closed_terminal_ends_a_run_like_an_interrupt() {
    stopped_by("-HUP");
}

/// Stops a run in the middle of its load by a signal.
fn stopped_by(signal: &str) {
    let slow = with(&ml_5xx(), "requests: 400", "requests: 20000");
    let slow = with(&slow, "fault_hits: 20", "fault_hits: 1");
    let results = tempfile::tempdir().unwrap();
    let mut child = start(results.path(), &slow);
    // The load is going on when records appear.
    let recorded = || {
        let dirs = run_dirs(&results.path().join("results"));
        dirs.iter().any(|dir| dir.join("requests.jsonl").metadata().is_ok_and(|about| about.len() > 0))
    };
    let begun = Instant::now();
    while !recorded() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no record within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    let kill = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let dir = run_dirs(&results.path().join("results")).pop().unwrap();
    let summary = support::json(&dir.join("summary.json"));
    assert_eq!(summary["verdict"], "interrupted");
    assert_eq!(summary["partial"], true);
    for file in ["requests.jsonl", "accounting.jsonl", "assertions.json", "report.html", "manifest.json"] {
        assert!(dir.join(file).metadata().is_ok_and(|about| about.len() > 0), "{file}");
    }
    assert!(gone(results.path().to_str().unwrap(), Duration::from_secs(2)));
}

#[test]
fn two_runs_at_once_do_not_meet() {
    // One folder for results and one for private directories, as in one shell.
    let both = tempfile::tempdir().unwrap();
    // Less load each: two stacks share the cores here, and isolation is tested, not capacity.
    let text = with(&ml_5xx(), "concurrency: 8", "concurrency: 3");
    let children = [start(both.path(), &text), start(both.path(), &text)];
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let dirs = run_dirs(&both.path().join("results"));
    assert_eq!(dirs.len(), 2, "{dirs:?}");
    for dir in dirs {
        assert_eq!(support::json(&dir.join("summary.json"))["verdict"], "pass");
    }
    assert_eq!(private_directories(both.path()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn analyzing_again_gives_the_same_bytes() {
    let run = Run::of(&ml_5xx(), &[]).expect(0);
    let dir = run.dir();
    let first = std::fs::read(dir.join("assertions.json")).unwrap();
    for _ in 0..2 {
        let output = runner().arg("analyze").arg(&dir).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(std::fs::read(dir.join("assertions.json")).unwrap(), first);
    }
    // A limit that was made wider afterwards, by whatever file, and a manifest that was taken away: nobody can vouch for it.
    let file = dir.join("run.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("ttft_p95: 2s", "ttft_p95: 9s")).unwrap();
    for words in ["run.yaml: ", "manifest.json: absent"] {
        let output = runner().arg("analyze").arg(&dir).output().unwrap();
        let page = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(4), "{page}");
        assert!(page.contains(words), "{words}: {page}");
        std::fs::write(&file, &text).unwrap();
        std::fs::remove_file(dir.join("manifest.json")).ok();
    }
}

#[test]
fn a_guard_that_is_killed_ends_the_run_as_environment_and_leaves_nothing() {
    let results = tempfile::tempdir().unwrap();
    let child = start(results.path(), &ml_5xx());
    until_written(results.path(), "\"phase-started\",\"phase\":\"load\"");
    let guard = guard_of(child.id());
    assert!(std::process::Command::new("kill").args(["-9", &guard.to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(5), "{page}");
    assert!(page.contains("the guard process was ended from outside"), "{page}");
    assert!(!page.contains("FAIL "), "{page}");
    let part = results.path().to_str().unwrap();
    assert!(gone(part, Duration::from_secs(5)), "left: {:?}", processes_of(part));
}

/// Secrets of every stack that runs now, from the environment of its services.
fn secrets_of_running_stacks() -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
        let environment = String::from_utf8_lossy(&environment).into_owned();
        for variable in environment.split('\0') {
            for name in ["PROOFLOAD_HOST_KEY=", "PROOFLOAD_CREATOR_KEY=", "PROOFLOAD_ADMIN_KEY="] {
                found.extend(variable.strip_prefix(name).map(str::to_owned));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

#[test]
fn no_secret_of_the_run_is_written() {
    let results = tempfile::tempdir().unwrap();
    let mut child = start(results.path(), &ml_5xx());
    let mut secrets = Vec::new();
    while child.try_wait().unwrap().is_none() {
        secrets.extend(secrets_of_running_stacks());
        std::thread::sleep(Duration::from_millis(100));
    }
    secrets.sort();
    secrets.dedup();
    // Three hosts, the creator and the admin.
    assert!(secrets.len() >= 5, "{} secrets were seen", secrets.len());
    let mut open = vec![results.path().join("results")];
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            assert!(!secrets.iter().any(|secret| text.contains(secret)), "{} holds a secret", path.display());
        }
    }
}

/// A small file system; `None`, and a word about it, where mounting is not allowed.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "proofload-test"])
            .arg(folder.path())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(folder));
        }
        eprintln!("NOT CHECKED: a full disk: mounting a tmpfs needs root");
        None
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg(self.0.path()).status());
    }
}

#[test]
fn a_full_disk_is_an_environment_error() {
    let Some(mount) = Tmpfs::mount("2m") else { return };
    let output = runner()
        .args(["run", "scenarios/ml-5xx.yaml", "--quiet", "--results"])
        .arg(mount.0.path().join("results"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.contains("free bytes for results"), "{text}");
    assert_eq!(run_dirs(&mount.0.path().join("results")), Vec::<std::path::PathBuf>::new());
}

/// There was room enough when the run began.
#[test]
fn a_disk_that_fills_up_in_the_middle_is_an_environment_error() {
    let Some(mount) = Tmpfs::mount("24m") else { return };
    let folder = mount.0.path();
    // Services write elsewhere: it is the room for results that ends.
    let private = tempfile::tempdir().unwrap();
    let text = with(&ml_5xx(), "requests: 400", "requests: 1000");
    let child = start_in(private.path(), folder, &text);
    until_written(folder, "\"phase\":\"load\"");
    let mut filler = std::fs::File::create(folder.join("filler")).unwrap();
    while std::io::Write::write_all(&mut filler, &[0; 65536]).is_ok() {}
    drop(filler);
    let output = child.wait_with_output().unwrap();
    let page =
        [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part).into_owned()).concat();
    assert_eq!(output.status.code(), Some(5), "{page}");
    assert!(page.contains("No space left on device"), "{page}");
    assert!(
        gone(folder.to_str().unwrap(), Duration::from_secs(5)),
        "{:?}",
        processes_of(folder.to_str().unwrap())
    );
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let mut child = runner()
        .args(["plan", "scenarios/ml-5xx.yaml", "--lines"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let mut child =
        runner().args(["validate", "scenarios/ml-5xx.yaml"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
