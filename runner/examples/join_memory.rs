//! Measures the join of a long run: time, and the most memory that the process ever had, for runs of several lengths. The
//! gateway that is asked for accounting rows is a thread here that answers every one.
//!
//! `make bench`, or `cargo run --profile demo -p runner --example join_memory -- 200000`

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use evidence::record::RequestRecord;
use evidence::rundir::{ACCOUNTING, DAPI_CALLS, LOGS, NODE_CALLS, REQUESTS, RunDir};
use runner::clock::Clock;
use runner::collect::ask::Ask;
use runner::collect::join::{PART_LEN, Source, join};
use runner::collect::{Escrows, Surfaces};
use scenario::identity::RequestId;
use serde_json::json;

const SALT: &str = "0123456789abcdef";

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    let Some(requests) = argument.as_deref().unwrap_or("200000").parse::<u64>().ok() else {
        eprintln!("usage: join_memory [REQUESTS]");
        return ExitCode::from(2);
    };
    match measure(requests) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(requests: u64) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let dir = RunDir::create(folder.path(), "long").map_err(|error| error.to_string())?;
    write(&dir, requests).map_err(|error| error.to_string())?;
    let gateway = serve().map_err(|error| error.to_string())?;
    let surfaces = Surfaces {
        ask: Ask::new()?,
        gateway,
        admin_key: String::new(),
        hosts: Vec::new(),
        session_prefix: String::new(),
        escrows: Escrows::first(1),
        requests_max: requests,
        perf_db: None,
    };
    let before_kb = memory_kb("VmRSS:");
    let clock = Clock::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let source = Source::of(&dir, SALT.to_owned(), HashMap::new(), None, PART_LEN);
    let held = runtime.block_on(async {
        let mut out = dir.append(ACCOUNTING).map_err(|error| error.to_string())?;
        join(&surfaces, &source, &mut out).await.map_err(|error| error.to_string())
    })?;
    let took = Duration::from_micros(clock.at_us()).as_secs_f64();
    let (most_mb, before_mb) = (memory_kb("VmHWM:") as f64 / 1e3, before_kb as f64 / 1e3);
    println!(
        "{requests} requests: {took:.1} s, {held} entries held at most, {most_mb:.1} MB at most ({before_mb:.1} MB before)"
    );
    Ok(())
}

/// Records, calls, locks and logs of a run in which every thousandth request was not answered.
fn write(dir: &RunDir, requests: u64) -> Result<(), Box<dyn std::error::Error>> {
    let mut records = dir.append(REQUESTS)?;
    let mut calls = dir.append(NODE_CALLS)?;
    let mut grants = dir.append(DAPI_CALLS)?;
    std::fs::create_dir_all(dir.path(LOGS))?;
    let file = |name: &str| std::fs::File::create(dir.path(&format!("{LOGS}/{name}.log")));
    let (mut host, mut gateway) =
        (std::io::BufWriter::new(file("host-0")?), std::io::BufWriter::new(file("gateway")?));
    for index in 0..requests {
        let mut record = RequestRecord::blank(index, RequestId::new("long", 1, index), index % 2 == 0);
        if index % 1_000 != 7 {
            record.status = Some(200);
            record.response_devshard_id = Some("1".to_owned());
            record.response_request_id = Some(format!("req-{index}"));
        }
        let (id, nonce, lock) = (record.id.as_str(), index + 1, format!("l{index}"));
        records.write_buffered(&record)?;
        for ended_us in [None, Some(index + 40)] {
            calls.write_buffered(
                &json!({"seq": index, "call": index, "node": "node-a", "started_us": index,
                "ended_us": ended_us, "first_content_us": null, "request_id": id, "salt": SALT, "seed": nonce,
                "x_request_id": format!("host-req-{index}"), "lock": lock, "kind": "execution", "attempt": 1,
                "stream": false, "status": 200, "outcome": "completed", "rule": null, "content_events": 3}),
            )?;
        }
        grants.write_buffered(
            &json!({"seq": index, "at_us": index, "call": "AcquireMLNode", "host": "host-0",
            "ordinal": index, "lock": lock, "node": "node-a", "excluded": [], "result": "granted",
            "outcome": null, "rule": null}),
        )?;
        writeln!(host, "stage=terminal escrow_id=1 inference_id={nonce} request_id=host-req-{index}")?;
        writeln!(gateway, "request=req-{index} stage=prepared escrow=1 nonce={nonce} host=0")?;
    }
    records.flush()?;
    calls.flush()?;
    grants.flush()?;
    Ok(())
}

/// A gateway that has a row for every request; gives its base URL.
fn serve() -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let base = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || drop(answer(stream)));
        }
    });
    Ok(base)
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    let mut id = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if line.starts_with("GET ") {
            let path = line.split(' ').nth(1).map(Path::new);
            id = path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        }
        if line.trim_end().is_empty() {
            let attempt =
                json!({"nonce": 1, "host_idx": 0, "participant_key": "p", "winner": true, "status": "ok"});
            let row =
                json!({"request_id": id, "outcome": "success", "winner_nonce": 1, "attempts": [attempt]});
            let row = row.to_string();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{row}", row.len())?;
        }
    }
}

fn memory_kb(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|text| text.split_ascii_whitespace().next()?.parse().ok()).unwrap_or_default()
}
