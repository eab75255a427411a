//! A running environment: one run's stack stands idle, and another run is made on it by its addresses alone.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{json, lines, ml_5xx, run_dirs, runner, with, with_status};

/// A stack that somebody else started: a run whose drain looks once a minute.
struct Standing {
    child: Child,
    folder: tempfile::TempDir,
    /// Listeners by `<service> <listener>`.
    addresses: BTreeMap<String, String>,
    admin_key: String,
}

impl Standing {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("standing.yaml");
        let text = with(&ml_5xx(), "requests: 400", "requests: 1");
        std::fs::write(&file, with(&text, "interval: 500ms", "interval: 60s")).unwrap();
        let mut child = runner()
            .arg("run")
            .arg(&file)
            .args(["--profiles", "ml-profiles", "--quiet", "--results"])
            .arg(folder.path().join("results"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        let idle = |dir: &Path| {
            let text = std::fs::read_to_string(dir.join("drain.jsonl")).unwrap_or_default();
            text.lines().next().is_some_and(|line| line.ends_with('}'))
        };
        let dir = loop {
            if let Some(dir) = run_dirs(&folder.path().join("results")).pop().filter(|dir| idle(dir)) {
                break dir;
            }
            assert!(child.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(90));
            std::thread::sleep(Duration::from_millis(50));
        };
        let (mut addresses, mut admin_key) = (BTreeMap::new(), String::new());
        for event in lines(&dir.join("events.jsonl")) {
            if event["kind"] != "process-ready" {
                continue;
            }
            let service = event["service"].as_str().unwrap();
            for (listener, address) in event["addresses"].as_object().unwrap() {
                addresses.insert(format!("{service} {listener}"), address.as_str().unwrap().to_owned());
            }
            if service == "gateway" {
                let environment = std::fs::read(format!("/proc/{}/environ", event["pid"])).unwrap();
                let environment = String::from_utf8_lossy(&environment).into_owned();
                let mut words = environment.split('\0');
                admin_key =
                    words.find_map(|word| word.strip_prefix("PROOFLOAD_ADMIN_KEY=")).unwrap().to_owned();
            }
        }
        Self { child, folder, addresses, admin_key }
    }

    fn url(&self, listener: &str) -> String {
        format!("http://{}", self.addresses[listener])
    }

    /// What the three mocks hold.
    fn configs(&self) -> Vec<String> {
        let mocks = ["mock-openai", "mock-dapi", "mock-chain"];
        mocks.map(|mock| get(&self.addresses[&format!("{mock} control")], "/control/v1/config")).into()
    }

    /// Runs a scenario on it; gives exit code, both outputs, and the run directory if there is one.
    fn run(&self, name: &str, text: &str, mocks: bool) -> (Option<i32>, String, Option<PathBuf>) {
        let file = self.folder.path().join(format!("{name}.yaml"));
        std::fs::write(&file, text).unwrap();
        let results = self.folder.path().join(name);
        let output = self.command(&file, &results, mocks).output().unwrap();
        let text = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part).into_owned());
        (output.status.code(), text.concat(), run_dirs(&results).pop())
    }

    fn command(&self, file: &Path, results: &Path, mocks: bool) -> Command {
        let mut command = runner();
        command
            .arg("run")
            .arg(file)
            .args(["--profiles", "ml-profiles", "--quiet", "--drain-timeout", "20s", "--stack", "attach"])
            .args(["--gateway", &self.url("gateway http"), "--results"])
            .arg(results)
            .env("PROOFLOAD_ADMIN_KEY", &self.admin_key);
        for host in ["host-0", "host-1", "host-2"] {
            command.args(["--host", &self.url(&format!("{host} http"))]);
        }
        if mocks {
            for mock in ["mock-openai", "mock-dapi", "mock-chain"] {
                command.args([&format!("--{mock}"), &self.url(&format!("{mock} control"))]);
            }
        }
        command
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Body of a good answer.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: mock\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}

#[test]
fn a_run_on_a_running_environment_sees_what_is_shown_and_leaves_it_standing() {
    let mut standing = Standing::start();
    let before = standing.configs();
    let text = with(&ml_5xx(), "requests: 400", "requests: 60");
    let text = with(&with(&text, "fault_hits: 20", "fault_hits: 2"), "name: ml-5xx", "name: on-others");
    let (code, said, dir) = standing.run("seen", &text, true);
    assert_eq!(code, Some(0), "{said}");
    let dir = dir.unwrap();
    let seen = dir.clone();
    let assertions = json(&dir.join("assertions.json"));
    assert_eq!(with_status(&assertions, "not-applicable"), ["A6"], "{said}");
    let run = std::fs::read_to_string(dir.join("run.yaml")).unwrap();
    assert!(run.contains("provider: attach"), "{run}");
    let steps = lines(&dir.join("events.jsonl"));
    assert!(!steps.iter().any(|event| event["kind"] == "drain-step"), "nothing was synced or finalized");
    let everything = std::fs::read_to_string(dir.join("events.jsonl")).unwrap() + &run;
    assert!(!everything.contains(&standing.admin_key));
    assert_eq!(standing.configs(), before, "rules are off again, and all else is as it was");

    // The same requests once more at the same gateway, whose cache is on: the salt of the run makes each a new one.
    let (code, said, dir) = standing.run("again", &text, true);
    assert_eq!(code, Some(0), "{said}");
    let outcomes = |dir: &Path| -> Vec<(String, String)> {
        let of = |line: &serde_json::Value| {
            (line["id"].to_string(), format!("{} {}", line["cached"], line["accounting"]["outcome"]))
        };
        lines(&dir.join("accounting.jsonl")).iter().map(of).collect()
    };
    let (first, second) = (outcomes(&seen), outcomes(&dir.unwrap()));
    assert_eq!(first.len(), 60);
    assert!(first.iter().all(|(_, of)| of == "false \"success\""), "{first:?}");
    assert_eq!(second, first, "same ids, and no answer came from the cache");

    // Without the mocks the same is not seen, and that is said.
    let (head, rest) = text.split_once("faults:\n").unwrap();
    let (_, tail) = rest.split_once("thresholds:\n").unwrap();
    let plain = with(&format!("{head}thresholds:\n{tail}"), "fault_hits: 2", "fault_hits: 0");
    let (code, said, dir) = standing.run("blind", &with(&plain, "on-others", "blind"), false);
    assert_eq!(code, Some(4), "{said}");
    let assertions = json(&dir.unwrap().join("assertions.json"));
    assert_eq!(with_status(&assertions, "fail"), Vec::<String>::new(), "{said}");
    assert!(with_status(&assertions, "unknown").contains(&"A10".to_owned()), "{said}");

    // Rules need the control of the mock, actions are never taken, and nothing is started then.
    let (code, said, dir) = standing.run("rules", &text, false);
    assert!(code == Some(4) && dir.is_none() && said.contains("--mock-openai"), "{said}");
    let action = "actions:\n  - { after: { requests: 5 }, do: { kill: host-1 }, expect: [ { class: success } ] }\nthresholds:\n";
    let (code, said, dir) = standing.run("acts", &with(&plain, "thresholds:\n", action), true);
    assert!(code == Some(4) && dir.is_none() && said.contains("never acted on"), "{said}");
    assert!(standing.child.try_wait().unwrap().is_none(), "it still stands");
}

/// `SIGKILL` in the middle of the load: nothing of the run stays at mocks that are not its own.
#[test]
fn a_killed_run_leaves_no_rule_at_the_mocks_of_others() {
    let standing = Standing::start();
    let before = standing.configs();
    let file = standing.folder.path().join("killed.yaml");
    let text = with(&ml_5xx(), "requests: 400", "requests: 4000");
    std::fs::write(&file, text).unwrap();
    let results = standing.folder.path().join("killed");
    let mut child = standing.command(&file, &results, true).spawn().unwrap();
    let begun = Instant::now();
    while standing.configs() == before {
        assert!(begun.elapsed() < Duration::from_secs(60), "no rule ever stood");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = Instant::now();
    while standing.configs() != before {
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", standing.configs());
        std::thread::sleep(Duration::from_millis(20));
    }
}
