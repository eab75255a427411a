//! Projects that stay up, and what `runner gc` removes, only names, or leaves.

use std::collections::BTreeSet;

use crate::compose::{call, left, named, send, small, socket};
use crate::support::{Run, runner};

/// How often another run may be quicker.
const TRIES_MAX: u32 = 5;

/// Everything of a run on the engine: path of its removal, containers first.
fn paths(socket: &str, run: &str) -> Vec<String> {
    let filter = format!("filters=%7B%22label%22%3A%5B%22proofload.run%3D{run}%22%5D%7D");
    let of = |path: &str| -> serde_json::Value {
        serde_json::from_str(&call(socket, "GET", path)).expect("the engine answers in JSON")
    };
    let all = |list: &serde_json::Value, key: &str, kind: &str, end: &str| -> Vec<String> {
        let names = list.as_array().into_iter().flatten().filter_map(|one| one[key].as_str());
        names.map(|name| format!("/{kind}/{name}{end}")).collect()
    };
    let mut found = all(&of(&format!("/containers/json?all=1&{filter}")), "Id", "containers", "?force=1&v=1");
    found.extend(all(&of(&format!("/networks?{filter}")), "Id", "networks", ""));
    found.extend(all(&of(&format!("/volumes?{filter}"))["Volumes"], "Name", "volumes", ""));
    found
}

/// Removes what a kept run left up; gives what is there all the same.
pub(crate) fn remove(socket: &str, run: &Run) -> BTreeSet<String> {
    let id = run.dir().file_name().expect("the run's name").to_string_lossy().into_owned();
    for path in paths(socket, &id) {
        call(socket, "DELETE", &path);
    }
    left(socket, &id)
}

/// `runner gc` as it says.
fn gc(args: &[&str]) -> String {
    let output = runner().arg("gc").args(args).output().expect("the runner starts");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    text
}

/// The line about a run.
fn line(text: &str, run: &str) -> String {
    text.lines().find(|line| line.contains(run)).unwrap_or_default().to_owned()
}

fn volume(socket: &str, name: &str, labels: &str) {
    let body = format!("{{\"Name\":\"{name}\",\"Labels\":{labels}}}");
    assert!(send(socket, "POST", "/volumes/create", &body).contains(name), "{name}");
}

/// Whether `--dry-run` names it and leaves it, and without the flag it goes.
fn an_old_one_is_collected(socket: &str) -> bool {
    let run = "test-keep-old";
    let labels =
        format!("{{\"proofload.run\":\"{run}\",\"proofload.kept\":\"true\",\"proofload.expires\":\"5\"}}");
    volume(socket, "proofload-keep-old", &labels);
    let would = line(&gc(&["--dry-run"]), run);
    let named = would.starts_with("would remove") && would.contains("proofload-keep-old");
    let stays = paths(socket, run).len() == 1;
    let removed = line(&gc(&[]), run).starts_with("removed ");
    named && stays && removed && paths(socket, run).is_empty()
}

#[test]
fn a_kept_project_can_be_entered_and_only_what_is_over_is_collected() {
    let Some(socket) = socket() else { return };
    let run = Run::of(&named(&small(), "cmp-keep"), &["--stack", "compose", "--keep"]).expect(0);
    let id = run.dir().file_name().expect("the run's name").to_string_lossy().into_owned();
    let kept = paths(&socket, &id);
    assert!(kept.len() > 8, "{kept:?}");
    // It is up, not only there, and what was told leads to it.
    let events = std::fs::read_to_string(run.dir().join("events.jsonl")).expect("events");
    let project =
        events.split("project ds-").nth(1).and_then(|rest| rest.split(' ').next()).expect("its name");
    assert!(events.contains(&format!("logs ds-{project}-gateway-1")), "{events}");
    let up = call(&socket, "GET", &format!("/containers/ds-{project}-gateway-1/json"));
    assert!(up.contains("\"Running\":true"), "{up}");
    // Beside it, what belongs to nobody of ours, and what a run left whose time as a kept one was over long ago. Every run that
    // starts meanwhile collects such a thing, too: then it is made once more.
    volume(&socket, "proofload-keep-foreign", "{}");
    let collected = (0..TRIES_MAX).any(|_| an_old_one_is_collected(&socket));
    assert!(collected, "gc did not name and remove what is over: {}", gc(&["--dry-run"]));
    let did = gc(&[]);
    assert!(line(&did, &id).starts_with("keeps ") && line(&did, &id).contains("kept for"), "{did}");
    assert_eq!(paths(&socket, &id), kept);
    assert!(call(&socket, "GET", "/volumes/proofload-keep-foreign").contains("local"), "it was not ours");
    call(&socket, "DELETE", "/volumes/proofload-keep-foreign");
    assert_eq!(remove(&socket, &run), BTreeSet::new());
}
