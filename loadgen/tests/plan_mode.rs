//! The real program under a runner that is a test: pipe, records, ends.

#![expect(clippy::unwrap_used, reason = "a test that can't go on must stop")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use common::{Server, line};
use evidence::record::{ClientClass, RequestRecord};
use scenario::pipe::LoadgenLine;
use serde_json::{Value, json};

/// A folder with plan and job, and the program on it.
struct Run {
    dir: tempfile::TempDir,
    job: Value,
}

impl Run {
    fn new(url: &str, lines: u64, steps: Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plan: String =
            (0..lines).map(|i| serde_json::to_string(&line(i, i % 2 == 1)).unwrap() + "\n").collect();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("plan.jsonl"), plan).unwrap();
        let job = json!({
            "v": 1, "gateway_url": url, "model": "test-model", "plan": path("plan.jsonl"),
            "records": path("requests.jsonl"), "salt": "abcdefghijkl", "steps": steps,
            "limits": {"connect": "2s", "headers": "10s", "first_byte": "10s", "idle": "10s", "total": "20s",
                "drain": "300ms"},
            "shard": {"shard": 0, "of": 1}
        });
        Self { dir, job }
    }

    fn records_path(&self) -> PathBuf {
        self.dir.path().join("requests.jsonl")
    }

    fn start(&self) -> Loadgen {
        let job = self.dir.path().join("job.json");
        std::fs::write(&job, self.job.to_string()).unwrap();
        Loadgen::start(&job)
    }

    fn records(&self) -> Vec<RequestRecord> {
        let text = std::fs::read_to_string(self.records_path()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Exactly one record for each plan line, and the counts by class.
    fn conserved(&self, lines: u64) -> Vec<RequestRecord> {
        let mut records = self.records();
        records.sort_by_key(|record| record.index);
        assert!(records.iter().map(|record| record.index).eq(0..lines), "one record a planned line");
        records
    }
}

struct Loadgen {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Loadgen {
    fn start(job: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_loadgen"))
            .arg("--job")
            .arg(job)
            .env("PROOFLOAD_CLIENT_KEY", "sk-secret-of-the-test")
            // A proxy that would swallow everything, were it honoured.
            .env("http_proxy", "http://127.0.0.1:9")
            .env("HTTP_PROXY", "http://127.0.0.1:9")
            .env("ALL_PROXY", "http://127.0.0.1:9")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    fn say(&mut self, text: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    fn next(&mut self) -> Option<LoadgenLine> {
        let mut text = String::new();
        self.output.read_line(&mut text).unwrap();
        (!text.is_empty()).then(|| serde_json::from_str(&text).unwrap())
    }

    fn next_of(&mut self, wanted: fn(&LoadgenLine) -> bool) -> LoadgenLine {
        loop {
            let line = self.next().expect("the line comes before the end of the pipe");
            if wanted(&line) {
                return line;
            }
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// All lines that are left, then the exit.
    fn finish(mut self) -> (Vec<LoadgenLine>, ExitStatus) {
        let lines = std::iter::from_fn(|| self.next()).collect();
        (lines, self.child.wait().unwrap())
    }
}

impl Drop for Loadgen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn count(records: &[RequestRecord], class: ClientClass) -> usize {
    records.iter().filter(|record| record.client_class == class).count()
}

#[test]
fn two_count_steps_run_the_whole_plan() {
    let server = Server::good(Duration::from_millis(2));
    let run = Run::new(
        &server.url(),
        120,
        json!([{"concurrency": 2, "requests": 40}, {"concurrency": 8, "requests": 80}]),
    );
    let mut loadgen = run.start();
    let ready = loadgen.next().unwrap();
    assert!(matches!(ready, LoadgenLine::Ready { v: 1, planned: 120, .. }), "{ready:?}");
    loadgen.say("go 0\n");
    let LoadgenLine::StepEnd { step, released, in_flight_max, in_flight_min, .. } =
        loadgen.next_of(|line| matches!(line, LoadgenLine::StepEnd { .. }))
    else {
        unreachable!()
    };
    assert_eq!((step, released, in_flight_max), (0, 40, 2));
    assert!((1..=2).contains(&in_flight_min), "{in_flight_min}");
    loadgen.say("go 1\n");
    let (lines, status) = loadgen.finish();
    assert_eq!(status.code(), Some(0));
    let progress = lines.iter().filter(|line| matches!(line, LoadgenLine::Progress { .. })).count();
    assert!(progress >= 20, "one line each twentieth of a count step: {progress}");
    let Some(LoadgenLine::End { records, records_dropped, partial, health }) = lines.last() else {
        panic!("the last line is `end`: {lines:?}")
    };
    assert_eq!((*records, *records_dropped, *partial), (120, 0, false));
    assert!(
        health.cpu_us > 0 && health.rss_bytes > 0 && health.open_fds > 3 && health.lateness_p99_us.is_some()
    );
    let records = run.conserved(120);
    assert_eq!(count(&records, ClientClass::Ok), 120, "{:?}", records.iter().find(|r| r.detail.is_some()));
    assert!(records.iter().all(|record| record.step == Some(usize::from(record.index >= 40))));
    assert!(server.connections.load(std::sync::atomic::Ordering::SeqCst) <= 8, "connections are kept");
    for record in &records {
        assert_eq!(record.response_devshard_id.as_deref(), Some("7"));
        assert!(record.response_body_id.as_deref().unwrap().starts_with("devshard-1-"));
        let instants = [
            record.planned_us,
            record.released_us,
            record.sent_us,
            record.headers_us,
            record.first_byte_us,
            record.first_content_us,
            record.last_content_us,
            record.end_us,
        ];
        assert!(instants.iter().all(Option::is_some), "{record:?}");
        assert!(instants.is_sorted(), "{instants:?}");
    }
}
