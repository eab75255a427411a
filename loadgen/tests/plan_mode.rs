//! The real program under a runner that is a test: pipe, records, ends.

#![expect(clippy::unwrap_used, reason = "a test that can't go on must stop")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use common::secure::{Certified, Http2, Say};
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
    fn new(url: &str, lines: u64, steps: &Value) -> Self {
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
        &json!([{"concurrency": 2, "requests": 40}, {"concurrency": 8, "requests": 80}]),
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

#[test]
fn a_duration_step_ends_in_time_and_the_rest_is_not_offered() {
    let server = Server::good(Duration::from_millis(5));
    let run = Run::new(&server.url(), 5_000, &json!([{"concurrency": 4, "duration": "400ms"}]));
    let mut loadgen = run.start();
    loadgen.say("go 0\n");
    let (lines, status) = loadgen.finish();
    assert_eq!(status.code(), Some(0));
    let Some(LoadgenLine::StepEnd { started_us, ended_us, released, in_flight_min, .. }) =
        lines.iter().find(|line| matches!(line, LoadgenLine::StepEnd { .. }))
    else {
        panic!("{lines:?}")
    };
    assert!(ended_us - started_us >= 400_000, "{started_us} to {ended_us}");
    assert!(*in_flight_min >= 1, "a duration step holds its concurrency");
    let records = run.conserved(5_000);
    let ok = count(&records, ClientClass::Ok);
    assert_eq!(ok as u64, *released);
    assert!(ok >= 4, "{ok}");
    assert_eq!(count(&records, ClientClass::NotOffered), 5_000 - ok);
    assert!(records[ok..].iter().all(|record| record.step.is_none() && record.end_us.is_none()));
    assert!(matches!(lines.last(), Some(LoadgenLine::End { records: 5_000, partial: false, .. })));
}

/// A server's delay that no test waits for to its end.
const FOR_EVER: Duration = Duration::from_secs(120);
/// What a test may take on a busy machine, far below that.
const SOON: Duration = Duration::from_secs(60);

/// Starts a long run against a server that answers slowly, and waits until all its users have a request open.
fn running(delay: Duration, drain: &str) -> (Server, Run, Loadgen) {
    let server = Server::good(delay);
    let mut run = Run::new(&server.url(), 2_000, &json!([{"concurrency": 4, "requests": 2_000}]));
    run.job["limits"]["drain"] = json!(drain);
    for limit in ["headers", "first_byte", "idle", "total"] {
        run.job["limits"][limit] = json!("300s");
    }
    let mut loadgen = run.start();
    loadgen.say("go 0\n");
    loadgen.next_of(|line| matches!(line, LoadgenLine::Progress { in_flight: 4, .. }));
    (server, run, loadgen)
}

#[test]
fn stop_waits_for_open_requests_and_ends_in_order() {
    let (_server, run, mut loadgen) = running(Duration::from_millis(50), "60s");
    loadgen.say("stop\n");
    let (lines, status) = loadgen.finish();
    assert_eq!(status.code(), Some(0), "the runner asked for it");
    assert!(
        matches!(lines.last(), Some(LoadgenLine::End { partial: true, records: 2_000, .. })),
        "{lines:?}"
    );
    let records = run.conserved(2_000);
    assert_eq!(count(&records, ClientClass::Interrupted), 0, "the drain was long enough");
    assert!(count(&records, ClientClass::NotOffered) > 0);
}

#[test]
fn sigint_cuts_what_is_open_after_the_drain() {
    let (_server, run, loadgen) = running(FOR_EVER, "300ms");
    let start = std::time::Instant::now();
    loadgen.signal(rustix::process::Signal::INT);
    let (lines, status) = loadgen.finish();
    assert_eq!(status.code(), Some(130));
    let took = start.elapsed();
    assert!((Duration::from_millis(300)..SOON).contains(&took), "{took:?}");
    assert!(matches!(lines.last(), Some(LoadgenLine::End { partial: true, .. })), "{lines:?}");
    let records = run.conserved(2_000);
    assert_eq!(count(&records, ClientClass::Interrupted), 4, "all that were open");
}

#[test]
fn a_second_sigint_stops_at_once() {
    let (_server, run, loadgen) = running(FOR_EVER, "120s");
    loadgen.signal(rustix::process::Signal::INT);
    std::thread::sleep(Duration::from_millis(100));
    let start = std::time::Instant::now();
    loadgen.signal(rustix::process::Signal::INT);
    let (_, status) = loadgen.finish();
    assert_eq!(status.code(), Some(130));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let records = run.conserved(2_000);
    assert_eq!(count(&records, ClientClass::Interrupted), 4);
    assert_eq!(count(&records, ClientClass::NotOffered), 1_996);
}

#[test]
fn a_runner_that_is_gone_ends_the_load_at_once() {
    let (_server, run, mut loadgen) = running(FOR_EVER, "300ms");
    drop(loadgen.input.take());
    let start = std::time::Instant::now();
    let (_, status) = loadgen.finish();
    assert_ne!(status.code(), Some(0));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(count(&run.conserved(2_000), ClientClass::Interrupted), 4);
}

#[test]
fn a_signal_before_the_first_step_leaves_a_whole_record_file() {
    let run = Run::new("http://127.0.0.1:9", 30, &json!([{"concurrency": 1, "requests": 30}]));
    let mut loadgen = run.start();
    loadgen.next_of(|line| matches!(line, LoadgenLine::Ready { .. }));
    loadgen.signal(rustix::process::Signal::TERM);
    let (lines, status) = loadgen.finish();
    assert_eq!(status.code(), Some(130));
    assert!(matches!(lines[..], [LoadgenLine::End { records: 30, partial: true, .. }]), "{lines:?}");
    assert_eq!(count(&run.conserved(30), ClientClass::NotOffered), 30);
}

#[test]
fn kill_leaves_all_records_up_to_the_last_flush() {
    let (server, run, mut loadgen) = running(Duration::from_millis(5), "300ms");
    // Records reach the file while the run goes on, without anybody asking for it.
    while std::fs::read_to_string(run.records_path()).unwrap().lines().count() < 100 {
        std::thread::sleep(Duration::from_millis(10));
    }
    loadgen.child.kill().unwrap();
    loadgen.child.wait().unwrap();
    drop(server);
    let text = std::fs::read_to_string(run.records_path()).unwrap();
    // Only the last line may be torn.
    let whole = text.rsplit_once('\n').unwrap().0;
    let records: Vec<RequestRecord> = whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!((100..2_000).contains(&records.len()), "{}", records.len());
}

#[test]
fn a_full_disk_fails_with_the_cause() {
    let server = Server::good(Duration::from_millis(1));
    let mut run = Run::new(&server.url(), 500, &json!([{"concurrency": 4, "requests": 500}]));
    run.job["records"] = json!("/dev/full");
    let mut loadgen = run.start();
    loadgen.say("go 0\n");
    let (lines, status) = loadgen.finish();
    assert_eq!(status.code(), Some(5));
    let Some(LoadgenLine::Failed { message }) = lines.last() else { panic!("{lines:?}") };
    assert!(message.contains("/dev/full") && message.contains("No space"), "{message}");
}

#[test]
fn what_can_not_be_run_is_refused_before_ready() {
    let good = |steps: Value| Run::new("http://127.0.0.1:9", 3, &steps);
    let step = || json!([{"concurrency": 1, "requests": 3}]);
    let cases: [(&str, i32, Run); 5] = [
        ("plan.jsonl", 2, {
            let run = good(step());
            std::fs::write(run.dir.path().join("plan.jsonl"), "{}\n").unwrap();
            run
        }),
        ("no-such-plan", 2, {
            let mut run = good(step());
            run.job["plan"] = json!("/no-such-plan");
            run
        }),
        ("ftp", 2, {
            let mut run = good(step());
            run.job["gateway_url"] = json!("ftp://127.0.0.1:9");
            run
        }),
        ("hard limit", 2, good(json!([{"concurrency": 4_000_000_000_u32, "requests": 3}]))),
        ("/no-such-folder", 5, {
            let mut run = good(step());
            run.job["records"] = json!("/no-such-folder/requests.jsonl");
            run
        }),
    ];
    for (word, code, run) in cases {
        let (lines, status) = run.start().finish();
        assert_eq!(status.code(), Some(code), "{word}: {lines:?}");
        let [LoadgenLine::Failed { message }] = &lines[..] else { panic!("{word}: {lines:?}") };
        assert!(message.contains(word), "{message}");
    }
    let (lines, status) = Loadgen::start(Path::new("/no-such-job.json")).finish();
    assert_eq!((lines.len(), status.code()), (1, Some(2)));
}

#[test]
fn levels_of_a_search_come_over_the_pipe_until_the_end() {
    let server = Server::good(Duration::from_millis(2));
    let run = Run::new(&server.url(), 100, &json!([]));
    let mut loadgen = run.start();
    for (command, expected) in [("go 0 2 20\n", (0, 20, 2)), ("go 1 8 40\n", (1, 40, 8))] {
        loadgen.say(command);
        let LoadgenLine::StepEnd { step, released, in_flight_max, .. } =
            loadgen.next_of(|line| matches!(line, LoadgenLine::StepEnd { .. }))
        else {
            unreachable!()
        };
        assert_eq!((step, released, in_flight_max), expected);
    }
    loadgen.say("end\n");
    let (lines, status) = loadgen.finish();
    assert_eq!(status.code(), Some(0));
    let Some(LoadgenLine::End { records: 100, partial: false, .. }) = lines.last() else {
        panic!("{lines:?}")
    };
    let records = run.conserved(100);
    assert_eq!(count(&records, ClientClass::Ok), 60);
    assert_eq!(count(&records, ClientClass::NotOffered), 40, "what no level reached");
    assert!(records.iter().filter(|record| record.step == Some(1)).all(|record| record.index >= 20));
}

#[test]
fn commands_out_of_order_are_refused() {
    for (say, word) in [("go 7\n", "go 7"), ("run\n", "run"), ("go 0\ngo 0\n", "go 0")] {
        let server = Server::good(Duration::ZERO);
        let steps = json!([{"concurrency": 1, "requests": 2}, {"concurrency": 1, "requests": 2}]);
        let run = Run::new(&server.url(), 4, &steps);
        let mut loadgen = run.start();
        loadgen.say(say);
        let (lines, status) = loadgen.finish();
        assert_eq!(status.code(), Some(2), "{say:?}: {lines:?}");
        let Some(LoadgenLine::Failed { message }) = lines.last() else { panic!("{lines:?}") };
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn a_plan_that_breaks_in_the_middle_fails_and_keeps_the_records_so_far() {
    let server = Server::good(Duration::ZERO);
    let run = Run::new(&server.url(), 10, &json!([{"concurrency": 2, "requests": 10}]));
    let plan = run.dir.path().join("plan.jsonl");
    let text = std::fs::read_to_string(&plan).unwrap().replace("test-1-000006", "test 6");
    std::fs::write(&plan, text).unwrap();
    let mut loadgen = run.start();
    loadgen.say("go 0\n");
    let (lines, status) = loadgen.finish();
    assert_eq!(status.code(), Some(2));
    let Some(LoadgenLine::Failed { message }) = lines.last() else { panic!("{lines:?}") };
    assert!(message.contains("line 7"), "{message}");
    assert_eq!(run.records().len(), 6);
}

#[test]
fn shards_of_a_plan_make_the_whole() {
    let server = Server::good(Duration::ZERO);
    let steps = json!([{"concurrency": 5, "requests": 11}, {"concurrency": 2, "requests": 12}]);
    let mut run = Run::new(&server.url(), 25, &steps);
    for shard in 0..3 {
        run.job["shard"] = json!({"shard": shard, "of": 3});
        let mut loadgen = run.start();
        loadgen.say("go 0\ngo 1\n");
        let (_, status) = loadgen.finish();
        assert_eq!(status.code(), Some(0));
    }
    let records = run.conserved(25);
    for record in records {
        let expected = match record.index {
            0..11 => Some(0),
            11..23 => Some(1),
            _ => None,
        };
        assert_eq!(record.step, expected, "{}", record.id);
    }
}

#[test]
fn the_client_key_goes_to_the_gateway_and_nowhere_else() {
    let server = Server::start(|peer| {
        while let Some(request) = peer.request() {
            // A server that echoes the key wherever it can.
            let key = request.header("authorization").unwrap_or("none").to_owned();
            let body = json!({"error": {"message": format!("bad key {key}"), "code": key}}).to_string();
            let answer = format!(
                "HTTP/1.1 401 No\r\nX-Request-Id: {key}\r\nX-Devshard-Id: {key}\r\nRetry-After: {key}\r\n\
                 Content-Type: {key}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            peer.send(answer);
        }
    });
    let run = Run::new(&server.url(), 4, &json!([{"concurrency": 2, "requests": 4}]));
    let mut loadgen = run.start();
    loadgen.say("go 0\n");
    let (lines, _) = loadgen.finish();
    let text = std::fs::read_to_string(run.records_path()).unwrap();
    assert_eq!(count(&run.records(), ClientClass::HttpError), 4);
    assert!(text.contains("bad key Bearer REDACTED"), "the key was sent: {text}");
    assert!(!text.contains("sk-secret") && !format!("{lines:?}").contains("sk-secret"));
}

#[test]
fn a_gateway_behind_tls_is_reached_by_the_roots_of_the_job() {
    let certified = Certified::new("localhost");
    let server = Http2::start_secure(&certified, Some(50), |_| Say::After(Duration::from_millis(2)));
    let steps = json!([{"concurrency": 2, "requests": 10}]);
    let by_roots = json!({"ca": certified.ca().to_str().unwrap()});
    for (keys, good) in [(json!({}), false), (by_roots, true), (json!({"insecure": true}), true)] {
        let mut run = Run::new(&server.url(), 10, &steps);
        run.job.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let mut loadgen = run.start();
        loadgen.say("go 0\n");
        loadgen.finish();
        let records = run.conserved(10);
        let class = if good { ClientClass::Ok } else { ClientClass::TlsFailed };
        assert_eq!(count(&records, class), 10, "{keys}");
        // The request that opened the connection has the time of its handshake, the others have none.
        let made = records.iter().filter(|record| record.tls_us.is_some());
        assert!(made.clone().all(|record| record.connect_us.is_some() && record.dns_us.is_none()));
        assert_eq!(made.count(), usize::from(good), "{keys}");
    }
}
