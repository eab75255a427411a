//! Program `mock-openai`: ready line, exit statuses, how it is told to end.

#![expect(clippy::unwrap_used, reason = "a helper of a test may panic")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use scenario::ready::ReadyLine;

const CONFIG: &str = r#"{"mock":"openai","v":1,"seed":42,"rules":[],"nodes":[{"name":"node-a-0","behaviour":
    {"version":1,"ttft":"1ms","token_interval":{"min":"0ms","max":"1ms"},"workers":2,"queue":2}}]}"#;

fn config(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("openai.json");
    std::fs::write(&path, text).unwrap();
    path
}

fn start(config: &Path, flags: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mock-openai"));
    command.arg("--config").arg(config).args(flags);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn ready(child: &mut Child) -> ReadyLine {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn exit_code(mut child: Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("the program did not end");
}

#[test]
fn it_says_where_it_listens_and_ends_with_its_input() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = start(&config(directory.path(), CONFIG), &["--exit-with-stdin", "--threads", "2"]);
    let line = ready(&mut child);
    assert_eq!((line.program.as_str(), line.build.as_str()), ("mock-openai", scenario::build::BUILD_ID));
    assert_eq!(line.ready.keys().collect::<Vec<_>>(), ["control", "node:node-a-0"]);
    for address in line.ready.values() {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(
            &mut stream,
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"), "{answer}");
    }
    drop(child.stdin.take());
    assert_eq!(exit_code(child), Some(0));
}

#[test]
fn a_signal_ends_it_well() {
    let directory = tempfile::tempdir().unwrap();
    let path = config(directory.path(), CONFIG);
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut child = start(&path, &[]);
        ready(&mut child);
        let pid = rustix::process::Pid::from_child(&child);
        // Without the flag the end of input is no reason to end.
        drop(child.stdin.take());
        std::thread::sleep(Duration::from_millis(30));
        assert!(child.try_wait().unwrap().is_none());
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(exit_code(child), Some(0));
    }
}

#[test]
fn a_bad_start_says_why() {
    let directory = tempfile::tempdir().unwrap();
    for (text, expected) in [
        ("{", "configuration"),
        (r#"{"mock":"chain"}"#, "configuration"),
        (&CONFIG.replace("\"workers\":2", "\"workers\":0"), "workers"),
        (&CONFIG.replace("\"queue\":2", "\"queu\":2"), "queu"),
    ] {
        let mut child = start(&config(directory.path(), text), &[]);
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert!(error.contains(expected), "{error}");
        assert_eq!(exit_code(child), Some(2), "{text}");
    }
    assert_eq!(exit_code(start(&directory.path().join("absent.json"), &[])), Some(5));
}
