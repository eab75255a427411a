//! The Compose stack end to end: the same scenario in containers, with the same verdict, and nothing left.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{self, Run, lines, ml_5xx, run_dirs, runner, with};

/// A smaller plan: containers are started for each test.
pub(crate) fn small() -> String {
    let text = with(&ml_5xx(), "requests: 400", "requests: 160");
    let text = with(&text, "fault_hits: 20", "fault_hits: 5");
    // Runs side by side on a small machine are slow; what is tested here is the stack, not its speed: nothing measures.
    let text = with(&text, "  ttft_p95: 2s\n", "");
    with(&text, "schedule_lateness_p99: 50ms", "schedule_lateness_p99: 20s")
}

/// What `docker` would talk to, or a loud line. An engine that was announced (`.ci/engine`) must be there.
pub(crate) fn socket() -> Option<String> {
    let named = std::env::var("DOCKER_HOST").ok();
    let socket = named.unwrap_or_else(|| "unix:///var/run/docker.sock".to_owned());
    let path = socket.trim_start_matches("unix://").to_owned();
    if std::os::unix::net::UnixStream::connect(&path).is_ok() {
        return Some(path);
    }
    let announced = std::env::var_os("PROOFLOAD_ENGINE").is_some();
    assert!(!announced, "an engine was announced (.ci/engine), and none answers at {path}");
    eprintln!("SKIPPED, NOTHING WAS TESTED: no container engine answers at {path}");
    None
}

/// Asks the engine over its socket; the body as text.
fn ask(socket: &str, path: &str) -> String {
    call(socket, "GET", path)
}

/// One call of the engine over its socket; the body as text.
pub(crate) fn call(socket: &str, method: &str, path: &str) -> String {
    send(socket, method, path, "")
}

/// One call with a body in JSON; the answer's body as it came, where it is no text with signs in place of what is none.
pub(crate) fn send(socket: &str, method: &str, path: &str, body: &str) -> String {
    let bytes = send_raw(socket, method, path, body);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The same, as bytes.
pub(crate) fn send_raw(socket: &str, method: &str, path: &str, body: &str) -> Vec<u8> {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("the engine answered before");
    let head = format!(
        "{method} {path} HTTP/1.0\r\nhost: engine\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("the engine reads");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the engine answers");
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n");
    end.map(|end| bytes.split_off(end + 4)).unwrap_or_default()
}

/// Everything on the engine that carries a run label which begins so.
pub(crate) fn left(socket: &str, begin: &str) -> BTreeSet<String> {
    let filter = "filters=%7B%22label%22%3A%5B%22proofload.run%22%5D%7D";
    let mut found = BTreeSet::new();
    for path in [
        format!("/containers/json?all=1&{filter}"),
        format!("/networks?{filter}"),
        format!("/volumes?{filter}"),
    ] {
        let text = ask(socket, &path);
        let runs = text.split("\"proofload.run\":\"").skip(1);
        found.extend(
            runs.filter_map(|rest| rest.split('"').next())
                .filter(|run| run.contains(begin))
                .map(str::to_owned),
        );
    }
    found
}

pub(crate) fn named(text: &str, name: &str) -> String {
    with(text, "name: ml-5xx", &format!("name: {name}"))
}

/// Every assertion with its status.
pub(crate) fn statuses(run: &Run) -> Vec<(String, String)> {
    let all = run.json("assertions.json");
    let results = all["results"].as_array().expect("results").clone();
    results.iter().map(|result| (result["id"].to_string(), result["status"].to_string())).collect()
}

#[test]
fn ml_5xx_passes_in_containers_as_on_the_embedded_stack_and_leaves_nothing() {
    let Some(socket) = socket() else { return };
    let text = named(&small(), "cmp-pass");
    let embedded = Run::of(&text, &[]).expect(0);
    let compose = Run::of(&text, &["--stack", "compose"]).expect(0);
    assert_eq!(statuses(&embedded), statuses(&compose));
    assert_eq!(left(&socket, "cmp-pass"), BTreeSet::new());
    let dir = compose.dir();
    // Every container's log is there, each intention of a change has its end, and the plan is kept with its hash.
    for service in ["mock-chain", "mock-dapi", "node-a-0", "node-b", "host-0", "gateway", "loadgen"] {
        assert!(dir.join(format!("logs/{service}.log")).is_file(), "{service}");
    }
    let ledger = lines(&dir.join("work/ledger.jsonl"));
    let count = |phase: &str| ledger.iter().filter(|line| line["phase"] == phase).count();
    assert!(count("intended") > 20);
    assert_eq!(count("intended"), count("done") + count("failed"));
    assert_eq!(compose.json("work/plan.json")["hash"].as_str().map(str::len), Some(64));
}

/// From the first service that was ready to the begin of the teardown, Unix microseconds.
fn stood(run: &Run) -> (u64, u64) {
    let events = lines(&run.dir().join("events.jsonl"));
    let at = |event: &serde_json::Value| event["unix_us"].as_u64().expect("a time");
    let ready = events.iter().find(|event| event["kind"] == "process-ready").map(at);
    let teardown = events.iter().find(|event| event["phase"] == "teardown").map(at);
    (ready.expect("a ready service"), teardown.expect("a teardown"))
}

fn overlap(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 < other.1 && other.0 < one.1
}

#[test]
fn two_runs_side_by_side_do_not_meet_and_one_that_measures_is_alone() {
    let Some(socket) = socket() else { return };
    let start = |text: String| std::thread::spawn(move || Run::of(&text, &["--stack", "compose"]));
    let measuring = with(&small(), "thresholds:\n", "thresholds:\n  ttft_p95: 120s\n");
    let runs = [named(&small(), "cmp-two-a"), named(&small(), "cmp-two-b"), named(&measuring, "cmp-two-c")];
    let runs = runs.map(start).map(|run| run.join().expect("the run's thread").expect(0));
    let hashes: BTreeSet<String> =
        runs.iter().map(|run| run.json("work/plan.json")["hash"].to_string()).collect();
    assert_eq!(hashes.len(), 1, "one plan for all: {hashes:?}");
    let [first, second, alone] = runs.each_ref().map(stood);
    assert!(!overlap(first, alone) && !overlap(second, alone), "{first:?} {second:?} {alone:?}");
    assert_eq!(left(&socket, "cmp-two"), BTreeSet::new());
}

#[test]
#[ignore = "prove: eight runs one after another and at once, some minutes"]
fn eight_runs_at_once_are_judged_and_planned_as_one_after_another() {
    let Some(socket) = socket() else { return };
    let text =
        |place: usize| with(&named(&small(), &format!("cmp-eight-{place}")), "requests: 160", "requests: 60");
    let text = move |place: usize| with(&text(place), "fault_hits: 5", "fault_hits: 1");
    let told = |run: Run| {
        let run = run.expect(0);
        (statuses(&run), run.json("work/plan.json")["hash"].to_string())
    };
    let begun = Instant::now();
    let single: Vec<_> = (0..8).map(|place| told(Run::of(&text(place), &["--stack", "compose"]))).collect();
    let single_s = begun.elapsed().as_secs();
    let begun = Instant::now();
    let start = |place| std::thread::spawn(move || Run::of(&text(place), &["--stack", "compose"]));
    let at_once: Vec<_> = (0..8).map(start).collect();
    let at_once: Vec<_> =
        at_once.into_iter().map(|run| told(run.join().expect("the run's thread"))).collect();
    eprintln!("one after another {single_s} s, at once {} s", begun.elapsed().as_secs());
    assert_eq!(single, at_once);
    assert_eq!(left(&socket, "cmp-eight"), BTreeSet::new());
}

#[test]
fn services_are_killed_started_and_restarted_in_their_containers() {
    let Some(socket) = socket() else { return };
    let actions = "actions:\n\
                   \x20 - { after: { requests: 40 }, do: { kill: node-a-0 }, expect: [ { class: success } ] }\n\
                   \x20 - { after: { requests: 60 }, do: { start: node-a-0 }, expect: [ { class: success } ] }\n\
                   \x20 - { after: { requests: 80 }, do: { restart: mock-dapi }, expect: [ { class: success } ] }\n\
                   \x20 - { after: { requests: 100 }, do: { restart: node-a-1 }, expect: [ { class: success } ] }\n";
    let run = Run::of(&format!("{}{actions}", named(&small(), "cmp-acts")), &["--stack", "compose"]);
    // What requests in flight become is Devshard's affair; here each deed must have been done, with its intention before.
    let events = lines(&run.dir().join("events.jsonl"));
    let done: Vec<_> = events.iter().filter(|event| event["kind"] == "action-done").collect();
    assert_eq!(done.len(), 4, "{}", run.text());
    assert!(done.iter().all(|event| event["error"].is_null()), "{done:?}");
    // What a mock had not shown when it ended came out of its container.
    let gaps = events.iter().filter(|event| event["kind"] == "evidence-missing");
    let gaps: Vec<_> = gaps.filter(|gap| gap["what"].to_string().contains("mock-")).collect();
    assert!(gaps.is_empty(), "{gaps:?}");
    let locks = |file: &str| -> BTreeSet<String> {
        lines(&run.dir().join(file))
            .iter()
            .filter_map(|call| call["lock"].as_str().map(str::to_owned))
            .collect()
    };
    let (granted, carried) = (locks("faults/dapi-calls.jsonl"), locks("faults/node-calls.jsonl"));
    assert_eq!(carried.difference(&granted).next(), None, "a node was called with a lock of no log");
    let ledger = lines(&run.dir().join("work/ledger.jsonl"));
    for (deed, service) in [
        ("kill", "node-a-0"),
        ("start", "node-a-0"),
        ("stop", "mock-dapi"),
        ("start", "mock-dapi"),
        ("stop", "node-a-1"),
        ("start", "node-a-1"),
    ] {
        let own = ledger.iter().filter(|line| line["deed"] == deed && line["object"] == service);
        let phases: Vec<&str> = own.filter_map(|line| line["phase"].as_str()).collect();
        assert_eq!(phases, ["intended", "done"], "{deed} {service}");
    }
    assert_eq!(left(&socket, "cmp-acts"), BTreeSet::new());
}

#[test]
fn a_killed_runner_leaves_nothing_at_three_moments() {
    let Some(socket) = socket() else { return };
    for (moment, wait) in [("early", "work/ledger.jsonl"), ("up", "snapshots"), ("load", "requests.jsonl")] {
        let results = tempfile::tempdir().expect("a temporary folder");
        let name = format!("cmp-kill-{moment}");
        let file = results.path().join("scenario.yaml");
        std::fs::write(&file, named(&small(), &name)).expect("writing the scenario");
        let out = results.path().join("results");
        let mut child = runner()
            .arg("run")
            .arg(&file)
            .args(["--profiles", "ml-profiles", "--quiet", "--stack", "compose", "--results"])
            .arg(&out)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the runner starts");
        let begun = Instant::now();
        while !run_dirs(&out).iter().any(|dir| dir.join(wait).exists()) {
            assert!(begun.elapsed() < Duration::from_secs(120), "{moment}: {wait} did not appear");
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill().expect("kill -9");
        child.wait().expect("it ends");
        // The reaper is the only one left to do it.
        let begun = Instant::now();
        while !left(&socket, &name).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{moment}: left {:?}", left(&socket, &name));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_failure_in_the_stack_is_exit_5_with_its_cause_and_nothing_left() {
    let Some(socket) = socket() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text =
        std::fs::read_to_string(support::root().join("compose/devshard.yml")).expect("the Compose file");
    let broken =
        text.replace("/bin/ref-gateway --config /config.json", "/bin/ref-gateway --config /nowhere.json");
    assert_ne!(broken, text);
    let file = folder.path().join("devshard.yml");
    std::fs::write(&file, broken).expect("writing");
    std::fs::copy(support::root().join("compose/stack.dockerfile"), folder.path().join("stack.dockerfile"))
        .expect("copying the recipe");
    let args = ["--stack", "compose", "--compose-file", file.to_str().expect("a text path")];
    let run = Run::of(&named(&small(), "cmp-broken"), &args).expect(5);
    let events = std::fs::read_to_string(run.dir().join("events.jsonl")).expect("events");
    assert!(events.contains("gateway: it ended with code"), "{}", run.text());
    assert_eq!(left(&socket, "cmp-broken"), BTreeSet::new());
}

#[test]
fn an_engine_that_is_not_there_or_not_local_is_exit_5_in_words() {
    for (engine, part) in
        [("/nowhere/engine.sock", "no container engine answers"), ("tcp://10.0.0.1:2375", "only a local one")]
    {
        let run =
            Run::of(&named(&small(), "cmp-none"), &["--stack", "compose", "--engine", engine]).expect(5);
        let events = std::fs::read_to_string(run.dir().join("events.jsonl")).expect("events");
        assert!(events.contains(part), "{engine}: {}", run.text());
    }
}

#[test]
fn the_plan_is_printed_without_an_engine() {
    let output = runner()
        .args(["stack", "plan", "scenarios/ml-5xx.yaml", "--stack", "compose"])
        .env("DOCKER_HOST", "unix:///nowhere")
        .output()
        .expect("the runner starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for part in [
        "image proofload/stack",
        "create network default",
        "create container host-2",
        "start gateway",
        "plan ",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// The variant of the main scenario that its participants' leases need. Replicas are in scenarios of their own, which the
/// long proof of all of them runs.
fn with_leases(text: &str) -> String {
    let text = with(text, "storage: sqlite", "storage: postgres");
    with(&text, "name: ml-5xx", "name: cmp-leases")
}

#[test]
fn leases_in_containers_are_judged_as_on_the_embedded_stack() {
    let Some(socket) = socket() else { return };
    // Both stacks take the server's binaries from this machine.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    if !versions.into_iter().any(|entry| entry.path().join("bin/psql").is_file()) {
        eprintln!("SKIPPED, NOTHING WAS TESTED: no Postgres is installed");
        return;
    }
    let text = with_leases(&small());
    let run = Run::of(&text, &["--stack", "compose"]);
    assert_eq!(statuses(&run), statuses(&Run::of(&text, &[])), "{}", run.text());
    let images = run.json("work/images.json");
    assert!(images["postgres"]["id"].as_str().is_some_and(|id| id.starts_with("sha256:")), "{images}");
    for service in ["postgres", "host-0", "host-2"] {
        assert!(run.dir().join(format!("logs/{service}.log")).is_file(), "{service}");
    }
    assert_eq!(left(&socket, "cmp-leases"), BTreeSet::new());
}

#[test]
fn a_host_that_is_cut_off_comes_back_and_on_loopback_the_scenario_is_refused() {
    let Some(socket) = socket() else { return };
    let actions = "actions:\n\
                   \x20 - { after: { requests: 40 }, do: { disconnect: host-1 }, expect: [ { class: success } ] }\n\
                   \x20 - { after: { requests: 100 }, do: { connect: host-1 }, expect: [ { class: success } ] }\n";
    let text = format!("{}{actions}", named(&small(), "cmp-cut"));
    let refused = Run::of(&text, &[]).expect(4);
    assert!(refused.text().contains("use --stack compose"), "{}", refused.text());
    let run = Run::of(&text, &["--stack", "compose"]);
    let events = lines(&run.dir().join("events.jsonl"));
    let done: Vec<_> = events.iter().filter(|event| event["kind"] == "action-done").collect();
    assert_eq!(done.len(), 2, "{}", run.text());
    assert!(done.iter().all(|event| event["error"].is_null()), "{done:?}");
    let ledger = lines(&run.dir().join("work/ledger.jsonl"));
    for deed in ["disconnect", "connect"] {
        let own = ledger.iter().filter(|line| line["deed"] == deed && line["object"] == "host-1");
        let phases: Vec<&str> = own.filter_map(|line| line["phase"].as_str()).collect();
        assert_eq!(phases, ["intended", "done"], "{deed}");
    }
    // It is the same process afterwards, and every host has the same state.
    let all = run.json("assertions.json");
    let status = |id: &str| {
        let results = all["results"].as_array().expect("results");
        results.iter().find(|result| result["id"] == id).map(|result| result["status"].clone())
    };
    for id in ["A1", "A7", "A9"] {
        assert_eq!(status(id).expect(id), "pass", "{}", run.text());
    }
    assert_eq!(left(&socket, "cmp-cut"), BTreeSet::new());
}

#[test]
fn images_by_name_are_refused_in_words() {
    if socket().is_none() {
        return;
    }
    let flags = ["--stack", "compose", "--pull", "never", "--image"];
    for (image, code, part) in [
        ("gateway=proofload.invalid/none:1", 5, "the pull policy forbids to fetch it"),
        ("nothing=img", 5, "no service \"nothing\""),
    ] {
        let mut args = flags.to_vec();
        args.push(image);
        let run = Run::of(&named(&small(), "cmp-image"), &args).expect(code);
        let events = run_dirs(&run.results.path().join("results"))
            .first()
            .map(|dir| std::fs::read_to_string(dir.join("events.jsonl")).unwrap_or_default());
        let told = format!("{}{}", run.text(), events.unwrap_or_default());
        assert!(told.contains(part), "{image}: {told}");
    }
}

/// Runs a committed scenario on a stack; gives its exit code, every assertion with its status, and what it said. A run
/// that was invalid speaks of the machine alone and is done again.
fn committed(file: &std::path::Path, stack: &str) -> (i32, Vec<(String, String)>, String) {
    let text = std::fs::read_to_string(file).expect("a committed scenario");
    let mut run = Run::of(&text, &["--stack", stack]);
    for _ in 0..2 {
        if run.code() == 3 {
            run = Run::of(&text, &["--stack", stack]);
        }
    }
    let statuses = if run.dirs().is_empty() { Vec::new() } else { statuses(&run) };
    (run.code(), statuses, format!("{}{}", run.text(), run.judged()))
}

#[test]
#[ignore = "prove: every committed scenario on both stacks, about half an hour"]
fn every_scenario_has_the_verdict_in_containers_that_it_has_embedded() {
    let Some(socket) = socket() else { return };
    let list = std::fs::read_dir(support::root().join("scenarios")).expect("the scenarios").flatten();
    let files: BTreeSet<_> = list.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    let mut different = Vec::new();
    for file in files {
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        let (embedded, compose) = (committed(&file, "embedded"), committed(&file, "compose"));
        eprintln!("| {name} | {} | {} |", embedded.0, compose.0);
        if (embedded.0, &embedded.1) != (compose.0, &compose.1) {
            different.push(format!("{name}:\nembedded: {}\ncompose: {}", embedded.2, compose.2));
        }
    }
    assert!(different.is_empty(), "{} differ\n{}", different.len(), different.join("\n"));
    assert_eq!(left(&socket, ""), BTreeSet::new());
}

/// A network namespace of its own, so that a second engine disturbs none on this machine.
const RESTART: &str = r#"
set -u
home="$1"; runner="$2"; scenario="$3"
ip link set lo up
engine() {
  dockerd --data-root "$home/data" --exec-root "$home/exec" --pidfile "$home/pid" --host "unix://$home/sock" \
    >>"$home/log" 2>&1 </dev/null &
  for _ in $(seq 1 300); do
    curl -fsS --max-time 5 --unix-socket "$home/sock" http://e/_ping >/dev/null 2>&1 && return
    sleep 0.2
  done
  exit 99
}
stop() {
  pid="$(cat "$home/pid")"; kill "-$1" "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  # Its containerd ends after it. A new engine that still finds the old one leaves it to that and starts none.
  pid="$(cat "$home/exec/containerd/containerd.pid" 2>/dev/null)"
  while [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  rm -f "$home/pid" "$home/exec/containerd/containerd.pid"
}
engine
"$runner" run "$scenario" --profiles ml-profiles --stack compose --engine "$home/sock" --results "$home/results" \
  >"$home/out" 2>&1 &
run=$!
for _ in $(seq 1 1200); do
  cat "$home"/results/*/requests.jsonl 2>/dev/null | grep -q . && break
  kill -0 "$run" 2>/dev/null || break
  sleep 0.1
done
stop "$4"
engine
wait "$run"; echo "exit $?"
# The reaper has the rest, if any.
for _ in $(seq 1 300); do
  left="$(curl -fsS --unix-socket "$home/sock" 'http://e/containers/json?all=1')$(curl -fsS --unix-socket "$home/sock" \
    'http://e/networks?filters=%7B%22label%22%3A%5B%22proofload.run%22%5D%7D')"
  [ "$left" = '[][]' ] && break
  sleep 0.2
done
echo "left $left"
stop TERM
umount -l "$home/data" 2>/dev/null
exit 0
"#;

#[test]
#[ignore = "prove: starts an engine of its own and restarts it under the load"]
fn an_engine_that_restarts_under_the_load_is_the_environment_and_leaves_nothing() {
    for signal in ["TERM", "KILL"] {
        let home = tempfile::tempdir().expect("a temporary folder");
        let scenario = home.path().join("scenario.yaml");
        // Slow enough to be in the middle of the load.
        let text = with(&named(&small(), "cmp-restart"), "requests: 160", "requests: 400");
        std::fs::write(&scenario, text).expect("writing");
        let output = std::process::Command::new("unshare")
            .args(["--net", "bash", "-c", RESTART, "restart"])
            .arg(home.path())
            .arg(support::bin_dir("debug").join("runner"))
            .arg(&scenario)
            .arg(signal)
            .current_dir(support::root())
            .env_remove("DOCKER_HOST")
            .output()
            .expect("unshare as root, dockerd, ip and curl");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let read = |name: &str| std::fs::read_to_string(home.path().join(name)).unwrap_or_default();
        let log = read("log");
        let run =
            format!("{}{}", read("out"), &log[log.floor_char_boundary(log.len().saturating_sub(4_000))..]);
        assert!(told.contains("exit 5"), "{signal}: {told}{}{run}", String::from_utf8_lossy(&output.stderr));
        assert!(told.contains("left [][]"), "{signal}: {told}");
    }
}
