//! Quiet twins: what looks like a defect and is none must pass. And what can't be known is unknown, by its name.

use crate::support::catalogue::{account, http_error};
use crate::support::good;
use crate::support::twins::TWINS;
use crate::support::unknown::UNKNOWN;
use evidence::assertion::Status;
use evidence::event::EventKind;
use evidence::exit::Outcome;
use evidence::record::ClientClass;
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
