//! The real program without a runner: flags, summary, exit codes; and the golden records of both kinds of answer.

#![expect(clippy::unwrap_used, reason = "a test that can't go on must stop")]

mod common;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use common::{Server, good_answer};
use evidence::record::{ClientClass, RequestRecord};
use serde_json::Value;

fn loadgen(url: &str, output: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args(["--gateway-url", url, "--model", "test-model", "--output"])
        .arg(output)
        .args(flags)
        .env_remove("PROOFLOAD_CLIENT_KEY")
        .output()
        .unwrap()
}

fn records(output: &Path) -> Vec<RequestRecord> {
    let text = std::fs::read_to_string(output.join("requests.jsonl")).unwrap();
    let mut records: Vec<RequestRecord> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    records.sort_by_key(|record| record.index);
    records
}

#[test]
fn a_count_is_exact_and_the_choices_follow_the_seed() {
    let server = Server::good(Duration::from_millis(1));
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--requests", "200", "--stream-ratio", "0.25", "--run-id", "smoke", "--seed", "7"];
    let mut plans = Vec::new();
    for concurrency in ["1", "16"] {
        let output = dir.path().join(concurrency);
        let result = loadgen(&server.url(), &output, &[&flags[..], &["--concurrency", concurrency]].concat());
        let text = String::from_utf8(result.stdout).unwrap();
        assert_eq!(result.status.code(), Some(0), "{text}");
        for part in ["ok                          200", "TTFT of successes", "p95", "requests per second"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert_eq!(std::fs::read_to_string(output.join("summary.txt")).unwrap(), text);
        let records = records(&output);
        assert_eq!(records.len(), 200);
        assert_eq!(records[3].id.as_str(), "smoke-7-000003");
        plans.push(records.iter().map(|record| record.stream).collect::<Vec<_>>());
    }
    assert_eq!(plans[0], plans[1], "concurrency changes no choice");
    let streams = plans[0].iter().filter(|stream| **stream).count();
    assert!((25..=80).contains(&streams), "{streams}");
    let again = loadgen(&server.url(), &dir.path().join("1"), &["--requests", "1"]);
    assert_eq!(again.status.code(), Some(2), "results are never overwritten");
}

#[test]
fn a_duration_ends_and_cancelled_clients_are_no_failures() {
    let server = Server::good(Duration::from_millis(2));
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--duration", "300ms", "--concurrency", "4", "--cancel-phase", "first-content"];
    let result = loadgen(&server.url(), dir.path(), &[&flags[..], &["--cancel-fraction", "0.5"]].concat());
    assert_eq!(result.status.code(), Some(0), "{result:?}");
    let records = records(dir.path());
    let count = |class| records.iter().filter(|record| record.client_class == class).count();
    assert!(count(ClientClass::Cancelled) > 0 && count(ClientClass::Ok) > 0);
    assert_eq!(count(ClientClass::Cancelled) + count(ClientClass::Ok), records.len());
    assert!(records.iter().map(|record| record.index).eq(0..records.len() as u64));
}

#[test]
fn exit_codes_tell_failure_from_misuse() {
    let dir = tempfile::tempdir().unwrap();
    let failing = Server::start(|peer| {
        while peer.request().is_some() && peer.send("HTTP/1.1 500 E\r\nContent-Length: 2\r\n\r\n{}") {}
    });
    let result = loadgen(&failing.url(), &dir.path().join("a"), &["--requests", "5"]);
    assert_eq!(result.status.code(), Some(1));
    assert!(String::from_utf8(result.stdout).unwrap().contains("http-error                  5"));
    for flags in [
        &["--requests", "0"][..],
        &["--requests", "5", "--duration", "1s"],
        &["--duration", "10"],
        &["--duration", "0s"],
        &["--requests", "1", "--timeout", "5"],
        &["--requests", "1", "--stream-ratio", "1.5"],
        &["--requests", "1", "--cancel-phase", "later", "--cancel-fraction", "1"],
        &["--requests", "1", "--cancel-phase", "first-content"],
        &["--requests", "1", "--run-id", "a/b"],
        &["--requests", "1", "--concurrency", "0"],
        &[],
    ] {
        let result = loadgen(&failing.url(), &dir.path().join("b"), flags);
        assert_eq!(result.status.code(), Some(2), "{flags:?}: {result:?}");
    }
    let result = loadgen("ftp://127.0.0.1:1", &dir.path().join("c"), &["--requests", "1"]);
    assert_eq!(result.status.code(), Some(2));
    assert!(String::from_utf8(result.stderr).unwrap().contains("write http://host:port"));
    let nothing = Command::new(env!("CARGO_BIN_EXE_loadgen")).output().unwrap();
    assert_eq!(nothing.status.code(), Some(2));
    let both =
        Command::new(env!("CARGO_BIN_EXE_loadgen")).args(["--job", "x", "--seed", "1"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn golden_records() {
    let server = Server::start(|peer| {
        while let Some(request) = peer.request() {
            assert_eq!(request.header("x-request-id"), Some("golden-42-000000"));
            assert_eq!(request.header("content-type"), Some("application/json"));
            peer.send(good_answer(request.is_stream()));
        }
    });
    let dir = tempfile::tempdir().unwrap();
    for (name, ratio) in [("json", "0"), ("sse", "1")] {
        let output = dir.path().join(name);
        let flags = ["--requests", "1", "--run-id", "golden", "--stream-ratio", ratio];
        assert_eq!(loadgen(&server.url(), &output, &flags).status.code(), Some(0));
        let text = std::fs::read_to_string(output.join("requests.jsonl")).unwrap();
        let mut record: Value = serde_json::from_str(&text).unwrap();
        // Instants differ from run to run; that they are there, and which are not, is part of the picture.
        for (key, value) in record.as_object_mut().unwrap() {
            if key.ends_with("_us") && value.is_u64() {
                *value = "time".into();
            }
        }
        insta::assert_json_snapshot!(name, record);
    }
}
