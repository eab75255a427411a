//! Measures the evaluation of a run: writes a good run of the given length (default 20,000 requests), judges it in a
//! process that starts afresh, and prints time and peak memory.
//!
//! `cargo run --release -p verdict --example evaluate -- 20000`

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use evidence::rundir::RunReader;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().unwrap_or_else(|| "20000".to_owned());
    if first == "judge" {
        let Some(directory) = arguments.next() else { return ExitCode::from(2) };
        return measure(Path::new(&directory));
    }
    let Ok(requests) = first.parse::<u64>() else {
        eprintln!("usage: evaluate [REQUESTS]");
        return ExitCode::from(2);
    };
    let base = match tempfile::tempdir() {
        Ok(base) => base,
        Err(error) => {
            eprintln!("making a temporary directory: {error}");
            return ExitCode::FAILURE;
        }
    };
    support::stream::write(requests, base.path());
    // Generating takes memory too: only a process of its own shows what judging needs.
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("evaluate"));
    let ended = Command::new(own).arg("judge").arg(base.path().join(support::RUN_ID)).status();
    if ended.is_ok_and(|status| status.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn measure(directory: &Path) -> ExitCode {
    let started = Instant::now();
    let judged = match verdict::judge::judge(&RunReader::new(directory)) {
        Ok(judged) => judged,
        Err(error) => {
            eprintln!("{}", error.0);
            return ExitCode::FAILURE;
        }
    };
    let took_ms = started.elapsed().as_millis();
    let (requests, verdict) = (judged.evidence.plan.len(), judged.assertions.verdict);
    println!(
        "{requests} requests: {verdict} in {took_ms} ms ({} ms of CPU), peak memory {} kB",
        cpu_ms(),
        peak_kb()
    );
    for reason in verdict::judge::reasons(&judged.assertions) {
        println!("  {reason}");
    }
    ExitCode::SUCCESS
}

/// Peak resident memory of this process as Linux shows it; 0 elsewhere.
fn peak_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").trim().parse().ok()).unwrap_or_default()
}

/// CPU time of this process in milliseconds as Linux counts it, in steps of 10 ms; 0 elsewhere.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_ascii_whitespace().skip(11).take(2);
    ticks.filter_map(|text| text.parse::<u64>().ok()).sum::<u64>() * 10
}
