//! Quiet twins: what looks like a defect and is none must pass. And what can't be known is unknown, by its name.

use crate::support::catalogue::{account, http_error};
use crate::support::good;
use crate::support::twins::TWINS;
use crate::support::unknown::UNKNOWN;
use evidence::assertion::{AssertionId, Status};
use evidence::event::EventKind;
use evidence::exit::Outcome;
use evidence::record::ClientClass;
use scenario::fault::{Because, Expect, RequestClass};
use scenario::model::{Action, ServiceAction, Trigger};
use scenario::units::Ppb;

#[test]
fn quiet_twins_pass() {
    let mut wrong = Vec::new();
    for (name, change) in TWINS {
        let mut files = good();
        change(&mut files);
        let assertions = files.judge().assertions;
        for result in assertions.results.iter().filter(|result| result.status != Status::Pass) {
            wrong.push(format!("{name}: {} {:?} {:?}", result.id, result.missing, result.witnesses.first()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_can_not_be_known_is_unknown_and_named() {
    let mut wrong = Vec::new();
    for (name, words, change) in UNKNOWN {
        let mut files = good();
        change(&mut files);
        let assertions = files.judge().assertions;
        let named =
            assertions.results.iter().flat_map(|result| &result.missing).any(|text| text.contains(words));
        if assertions.verdict != Outcome::Unknown || !named {
            let reasons = verdict::judge::reasons(&assertions);
            wrong.push(format!("{name}: {} {reasons:?}", assertions.verdict));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the generator lost is its own fault: nothing is known about that request, and Devshard is not blamed.
#[test]
fn a_record_that_the_generator_lost_makes_the_run_invalid() {
    let mut files = good();
    files.records.remove(7);
    files.joined.remove(7);
    for event in &mut files.events {
        if let EventKind::LoadEnded { records, records_dropped, .. } = &mut event.event {
            (*records, *records_dropped) = (23, 1);
        }
    }
    let assertions = files.judge().assertions;
    assert_eq!(assertions.verdict, Outcome::Invalid, "{:?}", verdict::judge::reasons(&assertions));
    let failed: Vec<String> =
        assertions.results.iter().filter(|r| r.status == Status::Fail).map(|r| r.id.to_string()).collect();
    assert_eq!(failed, ["V"]);
}

/// A limit of exactly one in 24 holds one error; A2 tells of the request all the same.
#[test]
fn an_error_rate_at_its_limit_holds() {
    for (ppb, wanted) in [(41_666_667, Status::Pass), (41_666_666, Status::Fail)] {
        let mut files = good();
        files.run.resolved.scenario.thresholds.error_rate = Ppb::new(ppb);
        account(&mut files, 7, "failed");
        http_error(&mut files, 7, 502);
        let assertions = files.judge().assertions;
        assert_eq!(assertions.results[12].status, wanted, "{ppb}");
        assert_eq!(assertions.results[1].status, Status::Fail);
    }
}

#[test]
fn a_signal_or_a_broken_environment_comes_before_what_was_judged() {
    for (event, wanted) in [
        (EventKind::Signal { signal: "SIGINT".to_owned() }, Outcome::Interrupted),
        (
            EventKind::EnvironmentFailed { message: "the disk is full".to_owned(), log: Vec::new() },
            Outcome::Environment,
        ),
    ] {
        let mut files = good();
        files.records[7].client_class = ClientClass::Interrupted;
        files.event_in_load(event);
        let assertions = files.judge().assertions;
        assert_eq!(assertions.verdict, wanted);
        assert!(!assertions.findings.correctness_failed, "{:?}", verdict::judge::reasons(&assertions));
    }
}

/// What the July build is allowed to do is told with its measure: work for clients that are gone (finding J17), and
/// streams that an action cut (J19).
#[test]
fn work_after_a_cancel_and_streams_that_an_action_cut_are_told() {
    let told = |files: &crate::support::Files, id: AssertionId, name: &str| {
        let results = files.judge().assertions.results;
        let of = results.into_iter().find(|result| result.id == id).expect("all are judged");
        of.information.into_iter().find(|entry| entry.name == name).map_or(0, |entry| entry.count)
    };
    let (ms, tokens, cut) = ("work-after-cancel-ms", "work-after-cancel-tokens", "cut-by-action");
    let mut files = good();
    assert_eq!([told(&files, AssertionId::A11, ms), told(&files, AssertionId::A11, tokens)], [0, 0]);
    let index =
        files.records.iter().position(|record| record.stream && record.answer.is_some()).expect("a stream");
    let id = files.records[index].id.as_str().to_owned();
    files.records[index].client_class = ClientClass::Cancelled;
    let after_us = files.records[index].end_us.unwrap() - files.records[index].planned_us.unwrap();
    files.records[index].answer.as_mut().unwrap().content_events = 2;
    let own = |call: &&mut scenario::control::NodeCall| {
        call.request_id.as_deref() == Some(&id) && call.ended_us.is_some()
    };
    let executed =
        |call: &&mut scenario::control::NodeCall| call.kind == scenario::fault::CallKind::Execution;
    let calls: Vec<_> = files.calls.iter_mut().filter(own).filter(executed).collect();
    assert!(!calls.is_empty());
    let count = calls.len() as u64;
    for call in calls {
        call.ended_us = Some(call.started_us + after_us + 3_000_000);
        call.content_events = 12;
    }
    assert_eq!(told(&files, AssertionId::A11, ms), 3_000 * count);
    assert_eq!(told(&files, AssertionId::A11, tokens), 12 * count - 2);
    let mut files = good();
    let hit = |files: &crate::support::Files, index: usize| {
        let id = Some(files.records[index].id.as_str());
        files.hits.iter().any(|hit| hit.request_id.as_deref() == id)
    };
    let index = (0..files.records.len()).find(|index| files.records[*index].stream && !hit(&files, *index));
    let index = index.expect("a stream that nothing hit");
    files.records[index].client_class = ClientClass::InBandError;
    assert_eq!(told(&files, AssertionId::A2, cut), 0, "nothing explains it");
    let allowed = Expect {
        class: RequestClass::ExpectedFailure,
        because: Some(Because::ErrorEvent),
        ending: None,
        status: None,
    };
    files.acted(Action {
        after: Trigger::Requests(10),
        action: ServiceAction::Kill("host-1".to_owned()),
        expect: vec![allowed],
    });
    assert_eq!(told(&files, AssertionId::A2, cut), 1);
}
