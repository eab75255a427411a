//! Running `loadgen run` and `loadgen search` as programs, and what they leave.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use loadgen::connection::request::KEY_VARIABLE;
use loadgen::engine::turn_record::TurnRecord;
use loadgen::result::RunResult;
use serde_json::{Value, json};

use super::{JSON_BODY, SSE_BODY, Server, json_answer, sse_answer};

pub fn loadgen(command: &str, profile: &Path, output: &Path, flags: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    program.args([command, profile.to_str().unwrap(), "--output", output.to_str().unwrap()]).args(flags);
    program.env(KEY_VARIABLE, "sk-test-key-1234").stdin(Stdio::null()).output().unwrap()
}

pub struct Ran {
    pub code: Option<i32>,
    pub text: String,
    pub result: RunResult,
    pub records: Vec<TurnRecord<'static>>,
}

pub fn run(command: &str, profile: &Value, flags: &[&str]) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("profile.json");
    std::fs::write(&file, profile.to_string()).unwrap();
    run_file(command, &file, &dir.path().join("out"), flags)
}

/// The file of a run whose name begins so.
pub fn written(output: &Path, start: &str, text: &str) -> String {
    let mut names = std::fs::read_dir(output).unwrap_or_else(|error| panic!("{error}: {text}"));
    let found = names.find_map(|entry| {
        let path = entry.unwrap().path();
        path.file_name().unwrap().to_str().unwrap().starts_with(start).then_some(path)
    });
    std::fs::read_to_string(found.unwrap_or_else(|| panic!("no {start}: {text}"))).unwrap()
}

pub fn run_file(command: &str, file: &Path, output: &Path, flags: &[&str]) -> Ran {
    let ended = loadgen(command, file, output, flags);
    let text =
        format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    let read = |start: &str| written(output, start, &text);
    Ran {
        code: ended.status.code(),
        result: serde_json::from_str(&read("summary-")).unwrap(),
        records: read("results-").lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        text,
    }
}

/// What a request takes at a server of these tests. One that answers at once would be no target but a mirror: a closed
/// loop then uses all of its core, and the run is rightly invalid.
pub const ANSWER_TIME: Duration = Duration::from_millis(20);

/// Answers as the mock of the specification does.
pub fn mock() -> Server {
    Server::start(|peer| {
        while let Some(request) = peer.request() {
            std::thread::sleep(ANSWER_TIME);
            let answer = if request.is_stream() {
                sse_answer(SSE_BODY)
            } else {
                let mut body: Value = serde_json::from_str(JSON_BODY).unwrap();
                body["id"] = "chatcmpl-llm-mock-1".into();
                json_answer(&body.to_string())
            };
            if !peer.send(answer) {
                return;
            }
        }
    })
}

/// Requests seen at a server that answers well.
pub fn seen(
    answer: impl Fn(u64, bool) -> String + Send + Sync + 'static,
) -> (Server, std::sync::mpsc::Receiver<(String, Value)>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let sender = Mutex::new(sender);
    let server = Server::start(move |peer| {
        while let Some(request) = peer.request() {
            let body = serde_json::from_slice(&request.body).unwrap();
            let _ = sender.lock().unwrap().send((request.head.clone(), body));
            std::thread::sleep(ANSWER_TIME);
            if !peer.send(answer(request.number, request.is_stream())) {
                return;
            }
        }
    });
    (server, receiver)
}

/// A profile whose verdict does not depend on how fast the machine is that runs the tests.
pub fn base(url: &str) -> Value {
    json!({
        "defaults": {"target": url, "model": "m"}, "live_interval": "0",
        "health": {"cpu_share": 1, "lateness_p99": "60s"},
        "stages": [{"concurrency": 4, "requests": 40}]
    })
}
