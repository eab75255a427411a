//! Quiet twins of the planted defects: the part of the catalogue that must pass.

use evidence::accounting::Attempt;
use evidence::assertion::AssertionId;
use evidence::event::EventKind;
use evidence::leases::LeaseSeen;
use evidence::record::ClientClass;
use evidence::snapshot::{Lease, Moment, Tx};
use scenario::control::DapiCallRecord;
use scenario::fault::{
    Because, DapiCall, DapiFault, EndingKind, Expect, FaultAction, Place, RequestClass, Select,
};
use scenario::model::{Action, Saturation, ServiceAction, Trigger};
use scenario::units::Micros;

use super::Files;
use super::catalogue::{account, answer, http_error, logs, place, refused};
use super::defects_run::{epoch_moves, failed_looks};
use super::defects_session::{late_receipt, lease, seen_as};
use super::log::{SLOTS, tx};

/// Changes a good run.
pub type Change = fn(&mut Files);

fn expected(class: RequestClass, because: Option<Because>, ending: Option<EndingKind>) -> Expect {
    Expect { class, because, ending, status: None }
}

pub fn action(do_: ServiceAction, expect: Vec<Expect>) -> Action {
    Action { after: Trigger::Requests(10), action: do_, expect }
}

/// A hit request fails as its rule allows. Gives its index.
pub fn expected_failure(files: &mut Files) -> usize {
    let index = files.first_hit();
    let failure = expected(RequestClass::ExpectedFailure, Some(Because::GatewayError), None);
    files.run.resolved.scenario.faults[0].expect.push(failure);
    account(files, index, "failed");
    http_error(files, index, 502);
    index
}

/// What must pass; the name begins with the assertions whose twin it is, or with `all`.
pub const TWINS: &[(&str, Change)] = &[
    ("A1: terminal arrives late: the row is complete after sync", |files| {
        files.joined[7].accounting.as_mut().expect("the story has it").completed_at =
            Some("2026-01-01T00:59:59Z".to_owned());
    }),
    ("A1, A10: refused before acceptance with a reason, as an action allows", |files| {
        let rejected = expected(RequestClass::ExpectedFailure, Some(Because::Overloaded), None);
        files.acted(action(ServiceAction::Pause("host-1".to_owned()), vec![rejected]));
        refused(files, 7);
    }),
    ("A1: an equal row twice says nothing new", |files| {
        let again = files.joined[7].clone();
        files.joined.push(again);
    }),
    ("A2: a retry on another host masks the fault where the scenario allows it", |files| {
        let index = files.first_hit();
        let retried = expected(RequestClass::MaskedFault, Some(Because::RetriedOnOtherHost), None);
        files.run.resolved.scenario.faults[0].expect.push(retried);
        let (escrow, nonce) = place(files, index);
        // the second call belongs to the nonce of the next request of this escrow, which gets none of its own
        let next = nonce + 1;
        let call = files.joined[index].calls[1].call;
        files.joined[index].calls[1].nonce = Some(next);
        files.calls.iter_mut().filter(|c| c.call == call).for_each(|c| c.seed = Some(next));
        let attempt = Attempt {
            nonce: next,
            ..files.joined[index].accounting.as_ref().expect("the story has it").attempts[0].clone()
        };
        files.joined[index].accounting.as_mut().expect("the story has it").attempts.push(attempt);
        let other = files.joined.iter().position(|j| {
            j.index != index as u64
                && j.accounting.as_ref().is_some_and(|r| r.escrow == escrow && r.winner_nonce == Some(next))
        });
        cached(files, other.expect("another request follows in this escrow"));
    }),
    ("A2, T: a failure of exactly the faulted set is expected and no error", |files| {
        expected_failure(files);
    }),
    ("A3: CRLF, comments and heartbeats", |files| {
        let index = files.untouched(true, 0);
        answer(files, index, |answer| answer.comments = 40);
    }),
    ("A3: a declared ending of a hit request is exempt", |files| {
        let index = files.hits.iter().find_map(|hit| {
            files.records.iter().position(|r| r.stream && Some(r.id.as_str()) == hit.request_id.as_deref())
        });
        let index = index.expect("a streamed request is hit");
        let broken =
            expected(RequestClass::ExpectedFailure, Some(Because::Truncated), Some(EndingKind::Truncated));
        files.run.resolved.scenario.faults[0].expect.push(broken);
        files.records[index].client_class = ClientClass::Truncated;
        account(files, index, "failed");
        answer(files, index, |answer| {
            answer.ending = Some("truncated".to_owned());
            answer.done_count = 0;
            answer.unfinished_bytes = 12;
        });
    }),
    ("A3: an id of another form names no nonce", |files| {
        files.records[7].response_body_id = Some("chatcmpl-9".to_owned());
    }),
    ("A3: a cached answer bears the id of its source", |files| {
        cached(files, 7);
        files.records[7].response_body_id = files.records[5].response_body_id.clone();
    }),
    ("A3: parameters of a content type", |files| {
        let index = files.untouched(true, 0);
        files.records[index].content_type = Some("Text/Event-Stream; charset=utf-8".to_owned());
    }),
    ("A4: a request may leave nonces to others", |files| {
        files.joined[7].accounting.as_mut().expect("the story has it").attempts[0].status = None;
    }),
    ("A4: equal nonces in different sessions", |files| {
        assert!(
            files.snapshots[&Moment::DrainFinal]
                .escrows
                .iter()
                .all(|escrow| escrow.inferences.contains_key(&5))
        );
    }),
    ("A4: an identical replay: every host holds the same signed diff at every moment", |files| {
        let holders = files.snapshots.values().flat_map(|snapshot| &snapshot.hosts);
        let copies = holders.filter(|host| host.escrows[0].diffs.first().is_some_and(|diff| diff.nonce == 1));
        assert_eq!(copies.count(), 12);
    }),
    ("A4: an unloaded runtime shows no nonce after finalize", |files| {
        files.snapshot(Moment::DrainFinal).escrows[0].nonce = 0;
        files.snapshot(Moment::DrainFinal).escrows[0].group.clear();
    }),
    ("A5: Postgres, each participant leases the same inference for itself", |files| {
        files.run.stack.storage = "postgres".to_owned();
        let lease = |slot: u64, status: &str, claimed_unix_us| Lease {
            epoch: 1,
            escrow: "11".to_owned(),
            inference: 5,
            owner: super::log::owner(slot),
            status: status.to_owned(),
            claimed_unix_us,
        };
        files.from(Moment::Before, |s| {
            s.leases = Some(vec![lease(0, "submitted", 1), lease(1, "skipped", 2)]);
        });
        // a takeover: claimed before its submit, by the other replica, later
        files.snapshot(Moment::DrainPassive).leases =
            Some(vec![lease(0, "submitted", 1), lease(1, "pending", 1)]);
    }),
    ("A5: a lease is taken over after its time, and what was released is claimed by another", |files| {
        files.run.stack.storage = "postgres".to_owned();
        let row = |status: &str, claimed_unix_us| lease(0, 1, status, claimed_unix_us);
        files.from(Moment::Before, |s| s.leases = Some(vec![lease(0, 1, "submitted", 4_500_000)]));
        files.leases = seen_as(&[row("pending", 1), row("pending", 4_000_000)]);
        let gone = row("pending", 4_000_000);
        files.leases.push(LeaseSeen::Gone {
            participant: "host-0".to_owned(),
            seen_unix_us: 4_200_000,
            lease: gone,
        });
        files.leases.extend(seen_as(&[row("submitted", 4_500_000)]));
    }),
    ("A5: SQLite has no leases: the half about ownership does not apply", |files| {
        assert!(files.run.stack.storage == "sqlite" && files.snapshots[&Moment::DrainFinal].leases.is_none());
    }),
    ("A6: residue in a mempool that would not apply any more", |files| {
        let residue = tx("finish", Some(5), Some(5 % SLOTS), Some("11"));
        files.snapshot(Moment::DrainFinal).hosts[0].escrows[0].mempool.push(residue);
    }),
    ("A6: a replay that ended after its escrow was settled under load", |files| {
        let waiting = tx("validation", Some(5), Some((5 + 2) % SLOTS), Some("11"));
        files.from(Moment::DrainPassive, |snapshot| {
            snapshot.chain.as_mut().expect("the story has it").settled.push(11);
        });
        files.snapshot(Moment::DrainFinal).hosts[0].escrows[0].mempool.push(waiting);
    }),
    ("A6: work still in a mempool after the passive wait is information", |files| {
        let waiting = tx("validation", Some(5), Some((5 + 2) % SLOTS), Some("11"));
        files.snapshot(Moment::DrainPassive).hosts[0].escrows[0].mempool.push(waiting);
    }),
    ("A6: a receipt without a call while the allocator refuses", |files| {
        late_receipt(files);
        let refused = scenario::control::DapiCallRecord {
            lock: None,
            node: None,
            result: "resource-exhausted".to_owned(),
            ..files.dapi[0].clone()
        };
        files.dapi.push(refused);
    }),
    ("A6: a losing attempt that timed out, and a validation that nobody made", |files| {
        super::catalogue::without_tx(files, "11", "validation", 5);
    }),
    ("A7: snapshots while converging: one host is behind before finalize", |files| {
        for moment in [Moment::DrainPassive, Moment::DrainSynced] {
            files.snapshot(moment).hosts[2].escrows[0].diffs.pop();
        }
    }),
    ("A7: order of mempools and hosts", |files| {
        files.snapshot(Moment::DrainFinal).hosts.reverse();
    }),
    ("A8: drains one sample before the deadline", |files| {
        let last = files.drain.last_mut().expect("the story has it");
        last.deadline_us = Some(last.at_us);
    }),
    ("A8: a counter that is not on the list", |files| {
        for sample in &mut files.drain {
            sample.signals.insert("devshard_mempool_size".to_owned(), Some(7.0));
        }
    }),
    ("A8: a host begins a validation after the wait", |files| {
        let metrics = &mut files.snapshot(Moment::DrainSynced).host_metrics;
        let series = "devshard_inflight{stage=\"request\"}".to_owned();
        metrics.get_mut("host-1").expect("the story has it").insert(series, 1.0);
    }),
    ("A8: pending before sync", |files| {
        let waiting = Tx { digest: String::new(), ..tx("finish", Some(5), None, None) };
        files.snapshot(Moment::DrainPassive).escrows[0].pending.push(waiting);
    }),
    ("A9: a restart that the scenario lists", |files| {
        let allowed = vec![expected(RequestClass::ExpectedFailure, None, None)];
        files.acted(action(ServiceAction::Restart("host-1".to_owned()), allowed));
        files.from(Moment::DrainPassive, |snapshot| {
            snapshot.processes.iter_mut().find(|p| p.service == "host-1").expect("the story has it").pid =
                9_999;
        });
    }),
    ("A9: a program that runs once ends with exit code 0", |files| {
        let ended = |kind: &EventKind| matches!(kind, EventKind::ProcessExited { service, code: Some(0), planned: false, .. } if service == "loadgen");
        assert!(files.events.iter().any(|event| ended(&event.event)));
    }),
    ("A9: a new epoch that every host follows", |files| epoch_moves(files)),
    ("A4, A5, A6: a deactivated escrow shows neither nonce nor group, its hosts keep the log", |files| {
        files.acted(action(ServiceAction::Deactivate(11), vec![]));
        files.from(Moment::DrainPassive, |snapshot| {
            snapshot.escrows[0].nonce = 0;
            snapshot.escrows[0].group.clear();
        });
    }),
    ("A9: a probe that is not ready before the stack is up", |files| {
        let (service, detail) = ("ref-gateway".to_owned(), None);
        let event = EventKind::Probe { service, ready: false, detail, failed_at_us: Vec::new() };
        let first = files.events[1].clone();
        files.events.insert(2, evidence::event::Event { event, ..first });
        files.number_events();
    }),
    ("A9: health is lost while a planned pause holds, and two single looks fail", |files| {
        files.event_in_load(failed_looks("host-0", true, &[100_000, 350_000]));
        files.acted(action(ServiceAction::Pause("host-1".to_owned()), vec![]));
        let paused_us = files.events.iter().map(|event| event.at_us).max().expect("the story has events");
        let looks: Vec<u64> = (1..=4).map(|look| paused_us + look * 250_000).collect();
        files.event_in_load(failed_looks("host-1", false, &looks));
        files.event_in_load(EventKind::BroughtBack { service: "host-1".to_owned() });
        let brought = |event: &evidence::event::Event| matches!(event.event, EventKind::BroughtBack { .. });
        let at = files.events.iter().position(brought).expect("just planted");
        files.events[at].at_us = paused_us + 1_000_000;
    }),
    ("A10: a failed request that can be followed", |files| {
        expected_failure(files);
    }),
    ("A11: a hybrid race with several nonces", |files| {
        assert_eq!(files.joined[3].accounting.as_ref().expect("the story has it").attempts.len(), 2);
    }),
    ("A11: canary chats and replays of validation are calls of their own", |files| {
        let canary = files.calls.iter().any(|call| call.request_id.is_none());
        let replay = |call: &scenario::control::NodeCall| call.kind == scenario::fault::CallKind::Validation;
        assert!(canary && files.calls.iter().any(replay));
    }),
    ("A11: a cache hit has no race and no call", |files| {
        cached(files, 7);
    }),
    ("A11: a cancelled request may be anything in accounting", |files| {
        let cancelled = expected(RequestClass::Cancelled, Some(Because::ClientCancelled), None);
        files.run.resolved.scenario.workload.cancel = Some(scenario::model::Cancel {
            select: Select::Ids(vec![files.records[7].id.clone()]),
            phase: scenario::model::CancelPhase::FirstContent,
            event: None,
            after: Default::default(),
            close: Default::default(),
            also: Vec::new(),
            expect: vec![cancelled],
        });
        files.records[7].client_class = ClientClass::Cancelled;
        account(files, 7, "failed");
    }),
    ("A11: a lock that was granted too late and given back unused", |files| {
        let late = Some("lock-late".to_owned());
        let seq = files.dapi.iter().map(|line| line.seq).max().unwrap_or_default();
        let granted = DapiCallRecord { seq: seq + 1, lock: late.clone(), ..files.dapi[0].clone() };
        let back =
            files.dapi.iter().find(|line| line.call == DapiCall::Release).expect("locks are given back");
        let outcome = Some("transport-error".to_owned());
        let back = DapiCallRecord { seq: seq + 2, lock: late, outcome, ..back.clone() };
        files.dapi.extend([granted, back]);
    }),
    ("A11: calls without a lock while the allocator is out", |files| {
        dapi_hits(files, DapiFault::Outage(true), Select::All(true), &[1]);
        let call = files.joined[7].calls[0].call;
        files.calls.iter_mut().filter(|c| c.call == call).for_each(|c| c.lock = None);
    }),
    (
        "all: a wall clock that jumps by 5 s: order comes from sequence numbers and monotonic offsets",
        |files| {
            let jump = 5_000_000;
            for event in &mut files.events {
                event.unix_us = if event.seq % 2 == 0 { jump * 2 } else { jump };
            }
            let row = files.joined[7].accounting.as_mut().expect("the story has it");
            row.completed_at = Some("2025-12-31T23:59:56Z".to_owned());
        },
    ),
    ("T: exactly at every limit", |files| {
        files.run.resolved.scenario.thresholds.success_rps_min = Some(193);
    }),
    ("T: one slow request of 24 is within a p95", |files| {
        super::defects_run::slow(files, 1);
    }),
    ("V: a generator that did not get to run for half of its time", |files| {
        super::defects_run::health(files, "stalled_us", 500_000);
    }),
    ("V: a generator and a mock that stood still for exactly as long as they may", |files| {
        super::defects_run::health(files, "loop_gap_max_us", 1_000_000);
        super::defects_run::frozen(files, "mock-chain", 1_000_000);
    }),
    ("V: the scenario lets a mock stand still for longer", |files| {
        files.run.resolved.scenario.validity.loop_gap_max = Some(Micros::from_s(5));
        super::defects_run::frozen(files, "mock-openai", 4_000_000);
    }),
    ("V: an action pauses the mock", |files| {
        files.acted(action(ServiceAction::Pause("mock-dapi".to_owned()), vec![]));
        super::defects_run::frozen(files, "mock-dapi", 4_000_000);
    }),
    ("V: a queue of one inside the capacity", |files| {
        files.from(Moment::DrainPassive, |s| {
            s.openai.as_mut().expect("the story has it").nodes[2].saturated_us = 12_000;
        });
    }),
    ("V: required saturation on the selected node alone", |files| {
        files.run.resolved.scenario.validity.mock_saturation =
            Saturation::Required(vec!["node-b".to_owned()]);
        files.from(Moment::DrainPassive, |s| {
            s.openai.as_mut().expect("the story has it").nodes[2].saturated_us = 90_000;
        });
    }),
    ("all: records, rows, calls and events in any order", |files| {
        files.records.reverse();
        files.joined.reverse();
        files.calls.reverse();
        files.dapi.reverse();
        files.events.reverse();
        files.drain.reverse();
        files.plan.reverse();
    }),
];

/// The assertions whose twin a name says it is.
pub fn twin_of(name: &str) -> Vec<AssertionId> {
    let (list, _) = name.split_once(": ").expect("a twin begins with its assertions");
    if list == "all" {
        return AssertionId::ALL.to_vec();
    }
    let known = |word: &str| AssertionId::ALL.into_iter().find(|id| id.to_string() == word);
    list.split(", ").map(|word| known(word).expect("an assertion")).collect()
}

/// Answered from the response cache: no race, no attempt, no call of its own.
pub fn cached(files: &mut Files, index: usize) {
    let joined = &mut files.joined[index];
    joined.cached = true;
    joined.calls.clear();
    let row = joined.accounting.as_mut().expect("the story has it");
    row.outcome = "cached".to_owned();
    row.attempts.clear();
    files.from(Moment::DrainPassive, |snapshot| {
        snapshot.gateway_metrics.values_mut().for_each(|value| *value -= 1.0);
    });
}

/// A rule that refuses acquires, and those that it refused, in both logs.
pub fn dapi_hits(files: &mut Files, fault: DapiFault, select: scenario::fault::Select, ordinals: &[u64]) {
    let mut rule = files.run.resolved.scenario.faults[0].clone();
    rule.id = "dapi-rule".to_owned();
    rule.place = Place { dapi: Some(DapiCall::Acquire), ..Place::default() };
    rule.action = FaultAction::Dapi(fault);
    rule.select = select;
    files.run.resolved.scenario.faults.push(rule);
    for ordinal in ordinals {
        files.hits.push(scenario::control::Hit {
            rule: "dapi-rule".to_owned(),
            place: "host-1".to_owned(),
            kind: None,
            request_id: None,
            attempt: *ordinal,
            ..files.hits[0].clone()
        });
        files.dapi.push(DapiCallRecord {
            seq: 10_000 + ordinal,
            ordinal: *ordinal,
            lock: None,
            node: None,
            result: "refused".to_owned(),
            rule: Some("dapi-rule".to_owned()),
            ..files.dapi[0].clone()
        });
    }
}

/// Turns every hit into a plain completed call.
pub fn unhit(files: &mut Files) {
    let plain = |rule: &mut Option<String>, status: &mut Option<u16>| {
        if rule.take().is_some() {
            *status = Some(200);
        }
    };
    for call in files.calls.iter_mut().filter(|call| call.rule.is_some()) {
        plain(&mut call.rule, &mut call.status);
        call.outcome = scenario::control::NodeOutcome::Completed;
    }
    for call in files.joined.iter_mut().flat_map(|joined| &mut joined.calls) {
        plain(&mut call.rule, &mut call.status);
        call.outcome = "completed".to_owned();
    }
}
