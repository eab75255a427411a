//! What others do to the containers of a run, and what an engine that fails does to it.

use std::collections::BTreeSet;
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
