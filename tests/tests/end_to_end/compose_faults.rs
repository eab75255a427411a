//! What others do to the containers of a run, and what an engine that fails does to it.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::compose::{call, left, named, small, socket};
use crate::support::{Run, with};

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

/// What a proxy before the engine does in its place to every call whose head holds the text: it answers with these bytes
/// and ends the connection.
#[derive(Clone, Copy)]
struct Fault {
    head: &'static str,
    answer: &'static str,
}

/// Carries bytes from one side to the other until one of them ends. What the fault names never reaches the other side.
fn carry(mut from: UnixStream, mut to: UnixStream, fault: Option<Fault>) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(len) = from.read(&mut piece) {
        if len == 0 {
            break;
        }
        if let Some(fault) = fault
            && String::from_utf8_lossy(&piece[..len]).contains(fault.head)
        {
            drop(from.write_all(fault.answer.as_bytes()));
            drop(from.shutdown(Shutdown::Both));
            break;
        }
        if to.write_all(&piece[..len]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Write));
}

/// A proxy on a socket of its own, for as long as the test's process lives.
fn proxy(path: &Path, engine: String, fault: Fault) {
    let listener = UnixListener::bind(path).expect("binding the proxy's socket");
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = UnixStream::connect(&engine) else { continue };
            let twins = (client.try_clone(), server.try_clone());
            let (Ok(client_twin), Ok(server_twin)) = twins else { continue };
            std::thread::spawn(move || carry(client, server, Some(fault)));
            std::thread::spawn(move || carry(server_twin, client_twin, None));
        }
    });
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
    for (name, head, answer, part) in [
        ("full", "/containers/create", full, "no space is left: no space left on device"),
        ("cut", "/containers/create", cut, "the connection to the engine broke: error reading a body"),
        ("reset", "/containers/create", "", "the connection to the engine broke"),
        ("old", "/version HTTP", old, "the engine speaks API 1.12 to 1.24"),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("engine.sock");
        proxy(&path, socket.clone(), Fault { head, answer });
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
        }
        assert_eq!(left(&socket, &project), BTreeSet::new(), "{name}");
    }
}
