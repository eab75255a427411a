//! Measures what a run costs around the load: how soon the embedded stack is ready, how soon the first request leaves,
//! and how much of a core the runner takes while it collects. Medians of several runs of the program itself.
//!
//! `make bench`, or `cargo run --profile demo -p runner --example start_times -- target/demo/runner [RUNS]`

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// Ticks a second of `/proc/<pid>/stat`.
const TICKS_PER_S: f64 = 100.0;
/// Requests of a run whose start is measured.
const SHORT: &str = "16";
/// Requests of the run whose collection is measured: some ten seconds of load.
const LONG: &str = "2000";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(runner) = arguments.next() else {
        eprintln!("usage: start_times RUNNER [RUNS]");
        return ExitCode::from(2);
    };
    let runs: usize = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10);
    match measure(&runner, runs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(runner: &str, runs: usize) -> Result<(), String> {
    let (mut ready, mut settled, mut first) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs.max(1) {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let begun_us = unix_us();
        let mut child = start(runner, folder.path(), SHORT)?;
        // The verdict does not matter here: so few requests are too few for the scenario.
        child.wait().map_err(|error| error.to_string())?;
        let facts = Facts::read(folder.path())?;
        ready.push(facts.ready_us - facts.start_us);
        settled.push(facts.settled_us - facts.start_us);
        first.push(facts.first_request_unix_us.saturating_sub(begun_us));
    }
    println!("medians of {} runs of the embedded stack:", ready.len());
    println!("  start to the last ready line        {:>7.1} ms", median_ms(&mut ready));
    println!("  start to the last canary answered   {:>7.1} ms", median_ms(&mut settled));
    println!("  `runner run` to the first request   {:>7.1} ms", median_ms(&mut first));
    let (share, seconds) = collecting(runner)?;
    println!("  the runner's CPU during a load of {seconds:.1} s: {:.1} % of one core", share * 100.0);
    Ok(())
}

fn start(runner: &str, folder: &Path, requests: &str) -> Result<Child, String> {
    Command::new(runner)
        .args(["run", "scenarios/ml-5xx.yaml", "--quiet", "--requests", requests, "--results"])
        .arg(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{runner}: {error}"))
}

/// Offsets of a run, microseconds.
struct Facts {
    start_us: u64,
    ready_us: u64,
    settled_us: u64,
    first_request_unix_us: u64,
}

impl Facts {
    fn read(folder: &Path) -> Result<Self, String> {
        let lines = |name: &str| {
            let run = std::fs::read_dir(folder)
                .ok()?
                .flatten()
                .map(|entry| entry.path())
                .find(|path| path.is_dir())?;
            let text = std::fs::read_to_string(run.join(name)).ok()?;
            Some(text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect::<Vec<_>>())
        };
        let events = lines("events.jsonl").ok_or("the run left no events")?;
        let last = |kind: &str, key: &str, value: &str| {
            let found = events
                .iter()
                .filter(|event| event["kind"] == kind && (key.is_empty() || event[key] == value));
            found.filter_map(|event| event["at_us"].as_u64()).next_back().ok_or(format!("no {kind} {value}"))
        };
        let anchor = events.iter().filter_map(|event| event["text"].as_str()).find_map(|text| {
            text.strip_prefix("loadgen ready")
                .and_then(|rest| rest.rsplit_once("anchor "))?
                .1
                .parse::<u64>()
                .ok()
        });
        let records = lines("requests.jsonl").ok_or("the run left no records")?;
        let sent = records.iter().filter_map(|record| record["sent_us"].as_u64()).min();
        Ok(Self {
            start_us: last("phase-started", "phase", "start")?,
            ready_us: last("process-ready", "service", "gateway")?,
            settled_us: last("canary", "", "")?,
            first_request_unix_us: anchor.ok_or("loadgen named no anchor")?
                + sent.ok_or("nothing was sent")?,
        })
    }
}

/// CPU of the runner between the begin and the end of the load, as a share of one core, and how long that was.
fn collecting(runner: &str) -> Result<(f64, f64), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut child = start(runner, folder.path(), LONG)?;
    let at = |mark: &str| {
        let run = std::fs::read_dir(folder.path())
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.is_dir())?;
        std::fs::read_to_string(run.join("events.jsonl")).ok()?.contains(mark).then_some(())
    };
    let (mut before, mut after) = (None, None);
    while after.is_none() {
        if child.try_wait().map_err(|error| error.to_string())?.is_some() {
            return Err("the run ended before its load did".to_owned());
        }
        let looked = Some((unix_us(), ticks(child.id())));
        if before.is_none() && at("step-started").is_some() {
            before = looked;
        }
        if at("load-ended").is_some() {
            after = looked;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait().map_err(|error| error.to_string())?;
    let (Some((from_us, from)), Some((to_us, to))) = (before, after) else {
        return Err("no load was seen".to_owned());
    };
    let seconds = Duration::from_micros(to_us.saturating_sub(from_us)).as_secs_f64();
    Ok(((to - from) / TICKS_PER_S / seconds, seconds))
}

/// User and system time of a process, ticks.
fn ticks(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_ascii_whitespace().skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum()
}

fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn median_ms(values: &mut [u64]) -> f64 {
    values.sort_unstable();
    let middle = values.get(values.len() / 2).copied().unwrap_or_default();
    Duration::from_micros(middle).as_secs_f64() * 1_000.0
}
