//! Memory of a long run: what is kept of a request is bounded, however many there are.

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Server, json_answer};
use serde_json::json;

/// Issue 5: two million requests within 5 MB.
const REQUESTS: u64 = 2_000_000;
const GROWTH_KIB_MAX: u64 = 5 * 1024;
/// Looks that come before everything has its room (buffers, histograms, windows).
const WARM_SHARE: usize = 10;
const ANSWER: &str = r#"{"id":"c-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":1,"total_tokens":5}}"#;

/// Resident memory that is no file's, KiB; `None` when the process is gone.
fn resident_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[test]
#[ignore = "make prove: two million requests"]
fn memory_is_flat_over_two_million_requests() {
    let server = Server::start(|peer| while peer.request().is_some() && peer.send(json_answer(ANSWER)) {});
    let dir = tempfile::tempdir().unwrap();
    let profile = json!({
        "name": "long",
        "defaults": {"target": server.url(), "protocol": "openai-chat", "model": "m", "max_tokens": 8},
        "stages": [{"concurrency": 64, "requests": REQUESTS}],
        "live_interval": "1s",
        "reuse_body": true,
        "health": {"cpu_share": 1},
    });
    std::fs::write(dir.path().join("profile.json"), profile.to_string()).unwrap();
    // The records are 1.7 GB; another build of the program can be named, an optimised one takes minutes.
    let out = dir.path().join("out");
    let program =
        std::env::var_os("PROOFLOAD_LOADGEN").unwrap_or_else(|| env!("CARGO_BIN_EXE_loadgen").into());
    let mut child = Command::new(program)
        .args(["run", dir.path().join("profile.json").to_str().unwrap(), "--output", out.to_str().unwrap()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut seen = Vec::new();
    while child.try_wait().unwrap().is_none() {
        seen.extend(resident_kib(child.id()));
        std::thread::sleep(Duration::from_millis(500));
    }
    let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    // Without the narrow blanks between thousands.
    let plain: String = text.chars().filter(char::is_ascii).collect();
    assert!(plain.contains(&format!("{REQUESTS} ok")), "{text}");
    let steady = &seen[seen.len() / WARM_SHARE..seen.len() - 1];
    let (least, most) = (steady.iter().min().unwrap(), steady.iter().max().unwrap());
    println!("{least} to {most} KiB over {} looks", steady.len());
    assert!(most - least <= GROWTH_KIB_MAX, "memory went from {least} to {most} KiB: {seen:?}");
}
