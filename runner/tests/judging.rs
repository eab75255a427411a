//! Bad luck around judging: a full disk at the bundles, a folder that can't be written, evidence cut after the run, a
//! directory from another machine, a signal between evidence and verdict. Never a pass, the cause is told, and what was
//! good stays readable.

#[path = "../../crates/verdict/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;

use evidence::assertion::Assertions;
use evidence::event::EventKind;
use evidence::exit::Outcome;
use evidence::rundir::{ASSERTIONS, EVENTS, FAILURES, REQUESTS, RUN, RunDir, RunReader, SUMMARY};
use evidence::summary::Summary;
use runner::clock::Clock;
use runner::commands::analyze::analyze;
use runner::error::RunnerError;
use runner::judge::{Known, judge};
use runner::life::dispatcher::{Dispatcher, Message};
use runner::view::View;
use support::catalogue::account;
use support::{Files, RUN_ID, good};

fn run_dir(base: &Path) -> RunDir {
    RunDir::existing(base.join(RUN_ID))
}

fn judged(base: &Path) -> Result<Outcome, RunnerError> {
    judge(&run_dir(base), &Known::default(), &Default::default())
}

/// The gateway answers 200 and records a failure: A11 fails and a bundle is due.
fn failing() -> Files {
    let mut files = good();
    account(&mut files, 7, "failed");
    files
}

fn read<T: serde::de::DeserializeOwned>(base: &Path, name: &str) -> T {
    RunReader::new(base.join(RUN_ID)).json(name).expect(name).expect(name)
}

#[test]
fn a_bundle_has_every_hop_and_the_name_of_its_request() {
    let base = failing().write();
    assert_eq!(judged(base.path()).expect("everything can be written"), Outcome::Fail);
    let bundle: evidence::bundle::Bundle = read(base.path(), "failures/story-42-000007.json");
    assert_eq!(bundle.request.as_ref().map(|record| record.index), Some(7));
    assert_eq!(bundle.plan.as_ref().map(|line| line.index), Some(7));
    assert!(bundle.node_calls.len() >= 2 && bundle.node_calls.iter().all(|call| call.ended_us.is_some()));
    let hops: Vec<&str> = bundle.walk.iter().map(|hop| hop.hop.as_str()).collect();
    for hop in [
        "client → gateway",
        "gateway → escrow",
        "gateway → accounting",
        "accounting → attempt",
        "attempt → host",
        "host → node call",
        "attempt → session",
    ] {
        assert!(hops.contains(&hop), "{hop} is not in {hops:?}");
    }
    assert!(bundle.walk.iter().all(|hop| hop.found), "{:?}", bundle.walk);
    let shown = &bundle.state["drain-synced"]["escrow"]["inferences"];
    assert_eq!(shown.as_object().map(|map| map.len()), Some(1), "{}", bundle.state);
}

#[test]
fn a_failure_of_the_run_has_the_name_that_the_design_gives_it() {
    let mut files = good();
    let (service, pid) = ("host-1".to_owned(), 104);
    let (code, signal, planned) = (None, Some(9), false);
    files.event_in_load(EventKind::ProcessExited { service, pid, code, signal, planned });
    let base = files.write();
    assert_eq!(judged(base.path()).expect("everything can be written"), Outcome::Fail);
    assert!(run_dir(base.path()).path("failures/_run.A9.1.json").is_file());
}

#[test]
fn a_bundle_that_can_not_be_written_is_an_error_and_the_verdict_is_there() {
    let base = failing().write();
    let failures = run_dir(base.path()).path(FAILURES);
    fs::remove_dir_all(&failures).expect("a folder of the run");
    fs::write(&failures, b"in the way").expect("a file instead of the folder");
    let error = judged(base.path()).expect_err("the bundle can't be written");
    assert_eq!(error.outcome(), Outcome::Environment);
    assert!(error.to_string().contains(FAILURES), "{error}");
    assert_eq!(read::<Assertions>(base.path(), ASSERTIONS).verdict, Outcome::Fail);
    assert_eq!(read::<Summary>(base.path(), SUMMARY).verdict, Outcome::Fail);
}

#[test]
fn a_verdict_that_can_not_be_written_leaves_the_one_before() {
    let base = good().write();
    assert_eq!(judged(base.path()).expect("everything can be written"), Outcome::Pass);
    let before = fs::read(run_dir(base.path()).path(ASSERTIONS)).expect("written above");
    // What a read-only folder refuses, also to those whom permissions do not stop.
    fs::create_dir(run_dir(base.path()).path("assertions.json.part")).expect("in the way");
    for again in [judged(base.path()), analyze(base.path(), RUN_ID, &Known::default())] {
        let error = again.expect_err("the verdict can't be written");
        assert_eq!(error.outcome(), Outcome::Environment);
        assert!(error.to_string().contains(ASSERTIONS), "{error}");
    }
    assert_eq!(fs::read(run_dir(base.path()).path(ASSERTIONS)).expect("still there"), before);
}

#[test]
fn evidence_that_was_cut_after_the_run_is_unknown() {
    let base = good().write();
    assert_eq!(judged(base.path()).expect("everything can be written"), Outcome::Pass);
    let path = run_dir(base.path()).path("drain.jsonl");
    let text = fs::read_to_string(&path).expect("a file of the run");
    // The first sample alone: nothing that the samples themselves could tell.
    let rest: String = text.lines().skip(1).map(|line| format!("{line}\n")).collect();
    fs::write(&path, rest).expect("a file of the run");
    for _ in 0..2 {
        let outcome = analyze(base.path(), RUN_ID, &Known::default()).expect("judged");
        assert_eq!(outcome, Outcome::Unknown, "and judging it again does not launder it");
    }
    let assertions: Assertions = read(base.path(), ASSERTIONS);
    let missing = assertions.results.iter().flat_map(|result| &result.missing);
    assert!(missing.into_iter().any(|text| text.contains("drain.jsonl") && text.contains("since the run")));
}

#[test]
fn a_directory_of_another_machine_is_judged_the_same() {
    let base = failing().write();
    assert_eq!(judged(base.path()).expect("everything can be written"), Outcome::Fail);
    let here = fs::read(run_dir(base.path()).path(ASSERTIONS)).expect("written above");
    let there = tempfile::tempdir().expect("a scratch directory");
    let results = there.path().join("elsewhere");
    copy(&base.path().join(RUN_ID), &results.join(RUN_ID));
    assert_eq!(analyze(&results, RUN_ID, &Known::default()).expect("judged"), Outcome::Fail);
    let again = fs::read(results.join(RUN_ID).join(ASSERTIONS)).expect("written");
    assert_eq!(here, again, "same build, same bytes, wherever the directory lies");
    // A part of it is not the whole: A11 still tells what it can see, and what is gone is named.
    fs::remove_file(results.join(RUN_ID).join(REQUESTS)).expect("a file of the run");
    assert_eq!(analyze(&results, RUN_ID, &Known::default()).expect("judged"), Outcome::Unknown);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a file");
        }
    }
}

#[test]
fn a_signal_between_evidence_and_verdict_is_told() {
    let mut files = good();
    let teardown = EventKind::PhaseStarted { phase: evidence::event::Phase::Teardown };
    let end = files.events.iter().position(|event| event.event == teardown).expect("the story tears down");
    files.events.truncate(end);
    let base = files.write();
    let dir = run_dir(base.path());
    let (inbox, outbox) = tokio::sync::mpsc::channel(4);
    let mut dispatcher =
        Dispatcher::new(Clock::start(), outbox, &dir, View::new(true)).expect("events can be opened");
    assert!(!dispatcher.take_waiting().expect("nothing to write"));
    inbox.try_send(Message::Signal("SIGTERM")).expect("room in the inbox");
    assert!(dispatcher.take_waiting().expect("an event is written"));
    let text = fs::read_to_string(dir.path(EVENTS)).expect("a file of the run");
    assert!(text.contains("SIGTERM"));
    assert_eq!(judged(base.path()).expect("everything can be written"), Outcome::Interrupted);
}

#[test]
fn a_newer_run_file_is_refused_by_its_version() {
    let base = good().write();
    let path = run_dir(base.path()).path(RUN);
    let text = fs::read_to_string(&path).expect("a file of the run");
    fs::write(&path, text.replacen("v: 1", "v: 9\nkey_of_a_newer_writer: 1", 1)).expect("a file of the run");
    let error = analyze(base.path(), RUN_ID, &Known::default()).expect_err("nothing is known about the run");
    assert!(error.to_string().contains("format version 9"), "{error}");
}
