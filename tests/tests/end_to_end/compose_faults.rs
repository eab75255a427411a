//! What others do to the containers of a run, and what an engine that fails does to it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::compose::{call, left, named, send_raw, small, socket};
use crate::compose_keep::remove;
use crate::support::{Run, lines, with};

/// The id of a running container of a service, in the run whose id holds this name.
fn container(socket: &str, run: &str, service: &str) -> Option<String> {
    let text = call(socket, "GET", "/containers/json");
    let all: serde_json::Value = serde_json::from_str(&text).ok()?;
    let own = all.as_array()?.iter().find(|one| {
        let labels = &one["Labels"];
        labels["com.docker.compose.service"] == service
            && labels["proofload.run"].as_str().is_some_and(|id| id.contains(run))
    })?;
    own["Id"].as_str().map(str::to_owned)
}

#[test]
fn a_host_that_somebody_else_restarts_under_the_load_is_named() {
    let Some(socket) = socket() else { return };
    // Enough requests that the restart is in their midst.
    let text = with(&named(&small(), "cmp-outside"), "requests: 160", "requests: 600");
    let run = std::thread::spawn(move || Run::of(&text, &["--stack", "compose"]));
    let begun = Instant::now();
    // Loadgen is the last one to start; before it every host was seen ready.
    while container(&socket, "cmp-outside", "loadgen").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(240) && !run.is_finished(), "no load began");
        std::thread::sleep(Duration::from_millis(50));
    }
    let host = container(&socket, "cmp-outside", "host-1").expect("the host's container");
    assert_eq!(call(&socket, "POST", &format!("/containers/{host}/restart?t=0")), "", "the engine refused");
    let run = run.join().expect("the run's thread").expect(1);
    let all = run.json("assertions.json");
    let results = all["results"].as_array().expect("results");
    let a9 = results.iter().find(|result| result["id"] == "A9").expect("A9");
    assert_eq!(a9["status"], "fail", "{}", run.judged());
    let witnesses = a9["witnesses"].as_array().expect("witnesses");
    assert!(
        witnesses.iter().any(|one| one["reason"] == "restarted" && one["service"] == "host-1"),
        "{witnesses:?}"
    );
    // Nobody else is said to have been restarted.
    assert!(
        witnesses.iter().all(|one| one["reason"] != "restarted" || one["service"] == "host-1"),
        "{witnesses:?}"
    );
    assert_eq!(left(&socket, "cmp-outside"), BTreeSet::new());
}

/// What a proxy before the engine does with every call whose head holds the text.
#[derive(Clone, Copy)]
struct Fault {
    head: &'static str,
    deed: Deed,
}

#[derive(Clone, Copy)]
enum Deed {
    /// Answers with these bytes in the engine's place and ends the connection.
    Instead(&'static str),
    /// Lets the engine do it and ends the connection in place of the answer.
    LoseAnswer,
    /// Ends the connection after so many bytes of the answer, once for each path.
    CutAfter(usize),
}

/// What the proxy has done.
#[derive(Clone, Default)]
struct Done(Arc<Mutex<BTreeSet<String>>>);

impl Done {
    /// Notes a deed; false when it was done before.
    fn first(&self, text: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned())
    }

    fn all(&self) -> BTreeSet<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Bytes of an answer that pass before its stream is cut.
const CUT_BYTES: usize = 2_000;

/// The path of a call without what is asked there.
fn path_of(head: &str) -> &str {
    let path = head.split(' ').nth(1).unwrap_or_default();
    path.split('?').next().unwrap_or_default()
}

/// Carries calls to the engine until one side ends. How many bytes of the answer may pass is told to the other direction.
fn carry_calls(mut from: UnixStream, mut to: UnixStream, faults: &[Fault], done: &Done, room: &AtomicUsize) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(len) = from.read(&mut piece) {
        if len == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&piece[..len]).into_owned();
        match faults.iter().find(|fault| text.contains(fault.head)).map(|fault| fault.deed) {
            Some(Deed::Instead(answer)) => {
                done.first(path_of(&text));
                drop(from.write_all(answer.as_bytes()));
                drop(from.shutdown(Shutdown::Both));
                break;
            }
            Some(Deed::LoseAnswer) => {
                done.first(path_of(&text));
                room.store(0, Ordering::SeqCst);
            }
            Some(Deed::CutAfter(bytes)) if done.first(path_of(&text)) => room.store(bytes, Ordering::SeqCst),
            _ => {}
        }
        if to.write_all(&piece[..len]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Write));
}

/// Carries answers back, no more of them than there is room for.
fn carry_answers(mut from: UnixStream, mut to: UnixStream, room: &AtomicUsize) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(len) = from.read(&mut piece) {
        if len == 0 {
            break;
        }
        let left = room.load(Ordering::SeqCst);
        if to.write_all(&piece[..len.min(left)]).is_err() || left < len {
            drop(to.shutdown(Shutdown::Both));
            drop(from.shutdown(Shutdown::Both));
            return;
        }
        if left != usize::MAX {
            room.store(left - len, Ordering::SeqCst);
        }
    }
    drop(to.shutdown(Shutdown::Write));
}

/// A proxy on a socket of its own, for as long as the test's process lives.
fn proxy(path: &Path, engine: String, faults: Vec<Fault>) -> Done {
    let listener = UnixListener::bind(path).expect("binding the proxy's socket");
    let done = Done::default();
    let own = done.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = UnixStream::connect(&engine) else { continue };
            let twins = (client.try_clone(), server.try_clone());
            let (Ok(client_twin), Ok(server_twin)) = twins else { continue };
            let room = Arc::new(AtomicUsize::new(usize::MAX));
            let (faults, done, twin) = (faults.clone(), own.clone(), room.clone());
            std::thread::spawn(move || carry_calls(client, server, &faults, &done, &room));
            std::thread::spawn(move || carry_answers(server_twin, client_twin, &twin));
        }
    });
    done
}

#[test]
fn an_engine_that_fails_is_exit_5_in_words_and_nothing_is_left() {
    let Some(socket) = socket() else { return };
    let full = "HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\ncontent-length: 37\r\n\r\n\
                {\"message\":\"no space left on device\"}";
    let cut =
        "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"Id\":\"0";
    let old = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 44\r\n\r\n\
               {\"ApiVersion\":\"1.24\",\"MinAPIVersion\":\"1.12\"}";
    let create = "/containers/create";
    for (name, head, deed, part) in [
        ("full", create, Deed::Instead(full), "no space is left: no space left on device"),
        ("cut", create, Deed::Instead(cut), "the connection to the engine broke: error reading a body"),
        ("reset", create, Deed::Instead(""), "the connection to the engine broke"),
        // The container is there, and nobody was told its id.
        ("lost", create, Deed::LoseAnswer, "the connection to the engine broke"),
        ("old", "/version HTTP", Deed::Instead(old), "the engine speaks API 1.12 to 1.24"),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("engine.sock");
        proxy(&path, socket.clone(), vec![Fault { head, deed }]);
        let project = format!("cmp-fault-{name}");
        let engine = format!("unix://{}", path.display());
        let run = Run::of(&named(&small(), &project), &["--stack", "compose", "--engine", &engine]).expect(5);
        let events = std::fs::read_to_string(run.dir().join("events.jsonl")).expect("events");
        let told = events.lines().find(|line| line.contains("\"environment-failed\"")).unwrap_or_default();
        assert!(told.contains(part), "{name}: {events}");
        // Something had been made before the fault, so that there was something to leave.
        if head != "/version HTTP" {
            let ledger = std::fs::read_to_string(run.dir().join("work/ledger.jsonl")).expect("the ledger");
            assert!(
                ledger.lines().any(|line| line.contains("network") && line.contains("\"done\"")),
                "{ledger}"
            );
            if name == "lost" {
                // What was made without an answer was found by its label.
                assert!(ledger.lines().any(|line| line.contains("\"remove_container\"")), "{ledger}");
            }
        }
        assert_eq!(left(&socket, &project), BTreeSet::new(), "{name}");
    }
}

/// Every line of a container up to a time, by the engine's frames; the outputs apart, as the engine keeps them.
fn log_of(socket: &str, container: &str, until_unix_s: u64) -> Vec<String> {
    let path = format!("/containers/{container}/logs?stdout=1&stderr=1&until={until_unix_s}");
    let bytes = send_raw(socket, "GET", &path, "");
    let mut outputs: [Vec<u8>; 3] = Default::default();
    let mut rest = bytes.as_slice();
    while let [kind, _, _, _, a, b, c, d, tail @ ..] = rest {
        let len = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let (body, next) = tail.split_at(len.min(tail.len()));
        outputs[usize::from(*kind).min(2)].extend_from_slice(body);
        rest = next;
    }
    let text = outputs.map(|output| String::from_utf8_lossy(&output).into_owned()).concat();
    text.lines().map(str::to_owned).collect()
}

/// How often each line is there.
fn counted(lines: &[String]) -> BTreeMap<&str, u32> {
    let mut counts = BTreeMap::new();
    lines.iter().for_each(|line| *counts.entry(line.as_str()).or_default() += 1);
    counts
}

/// Lines of one log that another has not, or not as often.
fn beyond<'a>(one: &'a [String], other: &[String]) -> Vec<(&'a str, u32)> {
    let other = counted(other);
    counted(one).into_iter().filter(|(line, count)| other.get(line).is_none_or(|has| has < count)).collect()
}

#[test]
fn logs_whose_streams_are_cut_in_their_midst_are_whole_and_no_line_is_there_twice() {
    let Some(socket) = socket() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("engine.sock");
    // An engine whose clock stands still, besides.
    let info = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 86\r\n\r\n\
                {\"Name\":\"e\",\"NCPU\":2,\"MemTotal\":34359738368,\"SystemTime\":\"2026-01-01T00:00:00.00000Z\"}";
    let faults = vec![
        Fault { head: "/logs?", deed: Deed::CutAfter(CUT_BYTES) },
        Fault { head: "/info HTTP", deed: Deed::Instead(info) },
    ];
    let cut = proxy(&path, socket.clone(), faults);
    let engine = format!("unix://{}", path.display());
    // Kept, so that the engine still has what it was told.
    let text = named(&small(), "cmp-streams");
    let run = Run::of(&text, &["--stack", "compose", "--engine", &engine, "--keep"]).expect(0);
    let events = lines(&run.dir().join("events.jsonl"));
    let teardown = events.iter().find(|event| event["phase"] == "teardown").expect("a teardown");
    let end_s = teardown["unix_us"].as_u64().expect("a time") / 1_000_000;
    let clock = events.iter().find(|event| event["what"] == "engine/clock").expect("a gap of its clock");
    assert!(clock["why"].as_str().is_some_and(|why| why.contains("differs by")), "{clock}");
    let mut in_the_midst = 0;
    for one in run.json("work/containers.json")["containers"].as_array().expect("containers") {
        let id = one["container"]["id"].as_str().expect("an id");
        let service = one["service"].as_str().expect("a name");
        let text = std::fs::read_to_string(run.dir().join(format!("logs/{service}.log"))).expect("a log");
        let file: Vec<String> = text.lines().map(str::to_owned).collect();
        let twice = beyond(&file, &log_of(&socket, id, u64::from(u32::MAX)));
        assert!(twice.is_empty(), "{service}: not so often at the engine: {twice:?}");
        // What it has written since the run's end nobody followed any more.
        let all = log_of(&socket, id, end_s.saturating_sub(3));
        let missed = beyond(&all, &file);
        assert!(missed.is_empty(), "{service}: {missed:?}");
        let bytes: usize = all.iter().map(String::len).sum();
        in_the_midst += u32::from(cut.all().iter().any(|path| path.contains(id)) && bytes > CUT_BYTES);
    }
    assert!(in_the_midst > 0, "no log is so long that a cut was in its midst");
    assert_eq!(remove(&socket, &run), BTreeSet::new());
}
