//! Services that answer garbage, close at once, hang, or send 100 MB: the run ends in time with a typed finding, and
//! the runner's memory stays bounded, whatever they send.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::collections::VecDeque;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::support::stand_in::{Manner, Task};
use crate::support::{self, ml_5xx, run_dirs, runner, with};

/// Memory that the runner may ever take: 16 times the largest answer that is parsed (8 MB for a plan of this length),
/// and what it takes anyway.
const MEMORY_MAX_KB: u64 = 256 * 1024;

#[test]
fn the_stand_in() {
    support::stand_in::run();
}

/// What the runner reads of a service: nothing that clients or other services send there.
fn read_by_the_runner(service: &str) -> Vec<String> {
    let parts: &[&str] = match service {
        "gateway" => {
            &["/v1/admin/", "/v1/status", "/v1/state", "/v1/debug/", "/v1/requests/", "/metrics", "/finalize"]
        }
        "mock-dapi" => &["/control/v1/stats"],
        "mock-chain" | "mock-openai" => &["/control/v1/"],
        _ => &["/diffs", "/mempool", "/metrics"],
    };
    parts.iter().map(|part| (*part).to_owned()).collect()
}

struct Ended {
    code: i32,
    text: String,
    took: Duration,
    memory_kb: u64,
    results: tempfile::TempDir,
}

impl Ended {
    fn dir(&self) -> std::path::PathBuf {
        let mut dirs = run_dirs(&self.results.path().join("results"));
        assert_eq!(dirs.len(), 1, "{}", self.text);
        dirs.pop().unwrap()
    }
}

/// A short load without faults, while one service misbehaves from one phase on.
fn run(service: &str, phase: &str, manner: Manner) -> Ended {
    let text = with(&ml_5xx(), "requests: 400", "requests: 24");
    let text = with(&text, "fault_hits: 20", "fault_hits: 0");
    let (head, rest) = text.split_once("faults:\n").unwrap();
    let (_, tail) = rest.split_once("thresholds:\n").unwrap();
    let tail = with(tail, "  ttft_p95: 2s\n", "");
    // Proxies and other tests share the cores: how late the generator was is not what is tested.
    let tail = with(&tail, "schedule_lateness_p99: 50ms", "schedule_lateness_p99: 20s");
    let text = format!("{head}thresholds:\n{tail}");
    let results = tempfile::tempdir().unwrap();
    let file = results.path().join("scenario.yaml");
    std::fs::write(&file, text).unwrap();
    let program = match service {
        "gateway" => "ref-gateway",
        "mock-dapi" | "mock-chain" | "mock-openai" => service,
        _ => "ref-host",
    };
    let own = support::bin_dir("debug");
    let folder = results.path().join("bin");
    std::fs::create_dir(&folder).unwrap();
    let task = Task {
        program: own.join(program),
        results: results.path().join("results"),
        service: service.to_owned(),
        phase: phase.to_owned(),
        manner,
        spoilt: read_by_the_runner(service),
    };
    support::stand_in::bin_dir(&own, &folder, program, &task);
    let child = runner()
        .arg("run")
        .arg(&file)
        .args(["--profiles", "ml-profiles", "--quiet", "--drain-timeout", "3s", "--bin-dir"])
        .arg(&folder)
        .arg("--results")
        .arg(results.path().join("results"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    follow(child, results)
}

/// Waits for the end and looks at the runner's memory meanwhile.
fn follow(mut child: Child, results: tempfile::TempDir) -> Ended {
    let begun = Instant::now();
    let mut memory_kb = 0;
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|text| text.split_ascii_whitespace().next()?.parse().ok());
        memory_kb = memory_kb.max(peak.unwrap_or_default());
        assert!(begun.elapsed() < Duration::from_secs(300), "the run does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let took = begun.elapsed();
    let output = child.wait_with_output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ended { code: output.status.code().unwrap(), text, took, memory_kb, results }
}

/// Before the load: exit 5 with the cause, and no request was sent. Later what can't be seen is unknown, never a pass
/// and never a fail, and the summary says which service gave what; a mock that no longer takes its rules off ends the
/// run as an environment error.
fn checked(service: &str, phase: &str, manner: Manner) {
    let ended = run(service, phase, manner);
    let what =
        format!("{service} {phase} {manner:?}: {:?}, {} kB\n{}", ended.took, ended.memory_kb, ended.text);
    assert!(ended.memory_kb > 0 && ended.memory_kb < MEMORY_MAX_KB, "{what}");
    let before_load = phase == "start" && ["gateway", "mock-chain", "mock-openai"].contains(&service);
    // A mock that was too often silent is no longer asked, so its rules can't be taken off.
    let silent = service == "mock-dapi" && manner == Manner::Hang;
    let spoilt = ["mock-chain", "mock-openai"].contains(&service);
    let environment = before_load || spoilt || silent;
    assert_eq!(ended.code, if environment { 5 } else { 4 }, "{what}");
    let sent = std::fs::read(ended.dir().join("requests.jsonl")).unwrap_or_default();
    assert_eq!(sent.is_empty(), before_load, "{what}");
    let summary = support::json(&ended.dir().join("summary.json"));
    let said = match environment {
        true => summary["reasons"].to_string(),
        false => summary["not_shown"][format!("answers of {service}")].to_string(),
    };
    // JSON of another form is no page of metrics; a service that hangs is named when it hangs and when it is left alone.
    let words: &[&str] = match manner {
        Manner::Html => &["is not"],
        Manner::Form => &["another form", "is not a page of metrics", "did not take the setting"],
        Manner::Close => &["no whole answer"],
        Manner::Hang => &["time limit", "not asked"],
        Manner::Huge => &["longer than"],
    };
    assert!(words.iter().any(|word| said.contains(word)), "{words:?}: {said}\n{what}");
    if !environment {
        let assertions = support::json(&ended.dir().join("assertions.json"));
        assert_eq!(support::with_status(&assertions, "fail"), Vec::<String>::new(), "{what}");
    }
}

#[test]
fn a_gateway_that_sends_100_mb_at_the_start_is_an_environment_error() {
    checked("gateway", "start", Manner::Huge);
}

#[test]
fn a_gateway_of_another_form_is_unknown() {
    checked("gateway", "before", Manner::Form);
}

#[test]
fn a_host_that_sends_100_mb_is_unknown() {
    checked("host-1", "before", Manner::Huge);
}

#[test]
fn a_chain_that_shows_a_page_ends_before_the_load() {
    checked("mock-chain", "start", Manner::Html);
}

#[test]
fn a_gateway_that_closes_every_connection_is_unknown() {
    checked("gateway", "before", Manner::Close);
}

#[test]
fn a_host_that_never_answers_is_unknown() {
    checked("host-1", "drain", Manner::Hang);
}

#[test]
fn nodes_that_never_answer_their_control_are_an_environment_error() {
    checked("mock-openai", "before", Manner::Hang);
}

#[test]
fn an_allocator_that_closes_every_connection_is_unknown() {
    checked("mock-dapi", "before", Manner::Close);
}

/// Combinations that run at the same time: they mostly wait for time limits.
const AT_ONCE: usize = 3;

#[test]
#[ignore = "make prove: eighty runs, sixteen of them with services that hang"]
fn every_manner_of_every_service_in_every_phase() {
    let mut all = VecDeque::new();
    for manner in [Manner::Html, Manner::Form, Manner::Close, Manner::Hang, Manner::Huge] {
        for service in ["mock-openai", "gateway", "host-1", "mock-dapi", "mock-chain"] {
            all.extend(["start", "before", "drain"].map(|phase| (service, phase, manner)));
        }
        // After the last snapshot only the mocks' logs are read, and what a mock does not show is in its journal.
        all.push_back(("mock-chain", "collect", manner));
    }
    let (left, wrong) = (Mutex::new(all), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some((service, phase, manner)) = left.lock().unwrap().pop_front() else { return };
                    let ended = std::panic::catch_unwind(|| match phase {
                        "collect" => {
                            let ended = run(service, phase, manner);
                            assert_eq!(ended.code, 0, "{}", ended.text);
                        }
                        _ => checked(service, phase, manner),
                    });
                    let text = if ended.is_ok() { "as wanted" } else { "WRONG" };
                    println!("{service} {phase} {manner:?}: {text}");
                    if ended.is_err() {
                        wrong.lock().unwrap().push(format!("{service} {phase} {manner:?}"));
                    }
                }
            });
        }
    });
    assert_eq!(*wrong.lock().unwrap(), Vec::<String>::new());
}
