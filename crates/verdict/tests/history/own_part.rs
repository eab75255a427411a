//! What our own programs and their machine did is not charged to Devshard: it makes the run invalid, what it explains is
//! unknown, and what it can't explain stays a failure.

use evidence::assertion::{AssertionId, Assertions, Status};
use evidence::event::EventKind;
use evidence::exit::Outcome;
use evidence::snapshot::Moment;
use scenario::units::Micros;

use crate::support::catalogue::{account, http_error, without_tx};
use crate::support::defects_run::{failed_looks, frozen, health, slow};
use crate::support::{Files, good};

use AssertionId::{A1, A2, A5, A6, A7, A8, A9, A11, T, V};

fn status(assertions: &Assertions, id: AssertionId) -> Status {
    assertions.results.iter().find(|result| result.id == id).expect("all are judged").status
}

/// Spoils a run as a frozen part would, and gives the assertion that tells of it.
type Spoil = (&'static str, AssertionId, fn(&mut Files));

const ABSENCES: &[Spoil] = &[
    ("a row without an end", A1, |files| account(files, 7, "running")),
    ("a host that is refused answers", A2, |files| {
        account(files, 7, "failed");
        http_error(files, 7, 502);
        files.run.resolved.scenario.thresholds.error_rate = None;
    }),
    ("a finish that never came", A6, |files| without_tx(files, "11", "finish", 2)),
    ("a host behind at the end", A7, |files| {
        files.snapshot(Moment::DrainFinal).hosts[1].escrows[0].diffs.pop();
    }),
    ("locks that did not come back", A8, |files| {
        files.from(Moment::DrainPassive, |s| s.dapi.as_mut().expect("the story has it").releases -= 1);
    }),
    ("health that was lost", A9, |files| {
        files.event_in_load(failed_looks("host-1", true, &[150_000, 160_000, 170_000, 180_000]));
    }),
    ("a lock that nobody used", A11, |files| {
        let call = files.calls[0].call;
        files.calls.retain(|line| line.call != call);
        for joined in &mut files.joined {
            joined.calls.retain(|joined| joined.call != call);
        }
        for snapshot in files.snapshots.values_mut() {
            for node in &mut snapshot.openai.as_mut().expect("the story has it").nodes {
                node.execution.completed = node.execution.completed.saturating_sub(1);
            }
        }
    }),
];

/// Each of them is a failure by itself, and none when a mock was frozen.
#[test]
fn what_a_frozen_mock_explains_is_unknown_and_the_run_invalid() {
    for (name, id, spoil) in ABSENCES {
        let mut files = good();
        spoil(&mut files);
        let alone = files.judge().assertions;
        assert_eq!(status(&alone, *id), Status::Fail, "{name}: {:?}", verdict::judge::reasons(&alone));
        assert_eq!(alone.verdict, Outcome::Fail, "{name}");
        for mock in ["mock-openai", "mock-dapi", "mock-chain"] {
            let mut files = files.clone();
            frozen(&mut files, mock, 4_000_000);
            let beside = files.judge().assertions;
            let reasons = verdict::judge::reasons(&beside);
            assert_eq!(beside.verdict, Outcome::Invalid, "{name}, {mock}: {reasons:?}");
            assert_eq!(status(&beside, *id), Status::Unknown, "{name}, {mock}: {reasons:?}");
            assert!(reasons.iter().any(|reason| reason.contains(mock)), "{name}, {mock}: {reasons:?}");
        }
    }
}

/// A generator that stood still may have lost its patience with answers, and nothing behind the gateway.
#[test]
fn a_frozen_generator_explains_its_own_requests_only() {
    for (name, id, spoil) in ABSENCES {
        let mut files = good();
        spoil(&mut files);
        health(&mut files, "loop_gap_max_us", 4_000_000);
        let judged = files.judge().assertions;
        let due = if *id == A2 { (Status::Unknown, Outcome::Invalid) } else { (Status::Fail, Outcome::Fail) };
        assert_eq!((status(&judged, *id), judged.verdict), due, "{name}");
    }
}

/// 20 ms and a microsecond of a p95 of 20 ms: the loop of the generator itself was late by as much as a request loses.
#[test]
fn a_limit_that_the_machine_broke_is_invalid_and_not_slow() {
    let judged = |late_us: u64, by_us: u64| {
        let mut files = good();
        slow(&mut files, 2);
        for record in files.records.iter_mut().take(2) {
            record.first_content_us = record.first_content_us.map(|us| us + by_us);
        }
        health(&mut files, "loop_late_p95_us", late_us);
        files.judge().assertions
    };
    let quiet = judged(0, 0);
    assert_eq!(
        (status(&quiet, T), status(&quiet, V), quiet.verdict),
        (Status::Fail, Status::Pass, Outcome::Fail)
    );
    let busy = judged(3_000, 7_000);
    let reasons = verdict::judge::reasons(&busy);
    assert_eq!((status(&busy, T), status(&busy, V)), (Status::Unknown, Status::Fail), "{reasons:?}");
    assert_eq!(busy.verdict, Outcome::Invalid);
    let result = busy.results.iter().find(|result| result.id == V).expect("all are judged");
    assert_eq!(result.witnesses[0].reason, "no-free-core");
    // More than the machine explains is slow, whatever else the machine did.
    assert_eq!(judged(3_000, 8_000).verdict, Outcome::Fail);
    // A timer that is kept to the millisecond is no lateness.
    assert_eq!(judged(2_000, 0).verdict, Outcome::Fail);
}

/// A generator that was kept waiting for much of its time: nobody can say how slow Devshard is on such a machine.
#[test]
fn on_a_machine_without_a_free_core_no_latency_is_held_against_anybody() {
    let judged = |stalled_us: u64| {
        let mut files = good();
        for record in files.records.iter_mut().take(2) {
            record.first_content_us = record.first_content_us.map(|us| us + 30_000);
        }
        health(&mut files, "stalled_us", stalled_us);
        files.judge().assertions
    };
    assert_eq!(judged(80_000).verdict, Outcome::Fail);
    let busy = judged(80_001);
    assert_eq!(
        (status(&busy, T), status(&busy, V), busy.verdict),
        (Status::Unknown, Status::Fail, Outcome::Invalid)
    );
}

/// The same for a rate, by the time in which the generator did not get to run.
#[test]
fn a_rate_that_the_machine_broke_is_invalid() {
    let judged = |stalled_us: u64| {
        let mut files = good();
        files.run.resolved.scenario.thresholds.success_rps_min = Some(200);
        for event in &mut files.events {
            if let EventKind::StepEnded { started_us, ended_us, .. } = &mut event.event {
                (*started_us, *ended_us) = (0, 124_000);
            }
        }
        health(&mut files, "stalled_us", stalled_us);
        files.judge().assertions
    };
    assert_eq!(judged(0).verdict, Outcome::Fail);
    assert_eq!(judged(400).verdict, Outcome::Fail);
    assert_eq!(judged(500).verdict, Outcome::Invalid);
}

/// A take-over that came too early by a clock that was set is no proof of anything; what was committed twice stays so.
#[test]
fn what_hangs_on_a_wall_clock_that_moved_is_unknown() {
    let planted = |name: &str, by_us: &[i64]| {
        let mut files = good();
        let all = crate::support::catalogue::all();
        let defect = all.into_iter().find(|defect| defect.name.starts_with(name)).expect("in the catalogue");
        (defect.plant)(&mut files);
        by_us.iter().for_each(|by_us| files.event_in_load(EventKind::ClockMoved { by_us: *by_us }));
        let judged = files.judge().assertions;
        (status(&judged, A5), status(&judged, V), judged.verdict)
    };
    let early = "A5.5 a lease is taken over while it holds";
    assert_eq!(planted(early, &[]), (Status::Fail, Status::Pass, Outcome::Fail));
    assert_eq!(planted(early, &[5_000_000]), (Status::Unknown, Status::Fail, Outcome::Invalid));
    assert_eq!(planted(early, &[-200_000, 200_000]), (Status::Unknown, Status::Fail, Outcome::Invalid));
    assert_eq!(planted(early, &[20_000]), (Status::Unknown, Status::Pass, Outcome::Unknown));
    let again = "A5.6 a lease is claimed again after its submit";
    assert_eq!(planted(again, &[5_000_000]), (Status::Fail, Status::Fail, Outcome::Fail));
}

#[test]
fn the_limit_has_a_default_that_a_scenario_overrides() {
    let mut files = good();
    assert_eq!(files.run.resolved.scenario.validity.loop_gap_max(), Micros::from_s(1));
    files.run.resolved.scenario.validity.loop_gap_max = Some(Micros::from_s(2));
    health(&mut files, "loop_gap_max_us", 2_000_001);
    assert_eq!(files.judge().assertions.verdict, Outcome::Invalid);
}
