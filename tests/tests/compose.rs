//! The Compose stack end to end: the same scenario in containers, with the same verdict, and nothing left.

mod support;

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::{Run, lines, ml_5xx, run_dirs, runner, with};

/// A smaller plan: containers are started for each test.
fn small() -> String {
    let text = with(&ml_5xx(), "requests: 400", "requests: 160");
    let text = with(&text, "fault_hits: 20", "fault_hits: 5");
    // Runs side by side on a small machine are slow; what is tested here is the stack, not its speed.
    let text = with(&text, "ttft_p95: 2s", "ttft_p95: 120s");
    with(&text, "schedule_lateness_p99: 50ms", "schedule_lateness_p99: 20s")
}

/// What `docker` would talk to, or a loud line. An engine that was announced (`.ci/engine`) must be there.
fn socket() -> Option<String> {
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
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("the engine answered before");
    let head = format!("GET {path} HTTP/1.0\r\nhost: engine\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("the engine reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the engine answers in text");
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

/// Everything on the engine that carries a run label which begins so.
fn left(socket: &str, begin: &str) -> BTreeSet<String> {
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

fn named(text: &str, name: &str) -> String {
    with(text, "name: ml-5xx", &format!("name: {name}"))
}

#[test]
fn ml_5xx_passes_in_containers_as_on_the_embedded_stack_and_leaves_nothing() {
    let Some(socket) = socket() else { return };
    let text = named(&small(), "cmp-pass");
    let embedded = Run::of(&text, &[]).expect(0);
    let compose = Run::of(&text, &["--stack", "compose"]).expect(0);
    let assertions = |run: &Run| {
        let all = run.json("assertions.json");
        let results = all["results"].as_array().expect("results").clone();
        results.iter().map(|r| (r["id"].to_string(), r["status"].to_string())).collect::<Vec<_>>()
    };
    assert_eq!(assertions(&embedded), assertions(&compose));
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

#[test]
fn two_runs_side_by_side_do_not_meet() {
    let Some(socket) = socket() else { return };
    let start = |name: &'static str| {
        std::thread::spawn(move || Run::of(&named(&small(), name), &["--stack", "compose"]))
    };
    let runs =
        [start("cmp-two-a"), start("cmp-two-b")].map(|run| run.join().expect("the run's thread").expect(0));
    let hashes: BTreeSet<String> =
        runs.iter().map(|run| run.json("work/plan.json")["hash"].to_string()).collect();
    assert_eq!(hashes.len(), 1, "one plan for both: {hashes:?}");
    assert_eq!(left(&socket, "cmp-two"), BTreeSet::new());
}

#[test]
fn services_are_killed_started_and_restarted_in_their_containers() {
    let Some(socket) = socket() else { return };
    let actions = "actions:\n\
                   \x20 - { after: { requests: 40 }, do: { kill: node-a-0 }, expect: [ { class: success } ] }\n\
                   \x20 - { after: { requests: 60 }, do: { start: node-a-0 }, expect: [ { class: success } ] }\n\
                   \x20 - { after: { requests: 100 }, do: { restart: node-a-1 }, expect: [ { class: success } ] }\n";
    let run = Run::of(&format!("{}{actions}", named(&small(), "cmp-acts")), &["--stack", "compose"]);
    // What requests in flight become is Devshard's affair; here each deed must have been done, with its intention before.
    let events = lines(&run.dir().join("events.jsonl"));
    let done: Vec<_> = events.iter().filter(|event| event["kind"] == "action-done").collect();
    assert_eq!(done.len(), 3, "{}", run.text());
    assert!(done.iter().all(|event| event["error"].is_null()), "{done:?}");
    let ledger = lines(&run.dir().join("work/ledger.jsonl"));
    for (deed, service) in
        [("kill", "node-a-0"), ("start", "node-a-0"), ("stop", "node-a-1"), ("start", "node-a-1")]
    {
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
