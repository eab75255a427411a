//! Evidence that is not enough: the part of the catalogue that must be unknown.

use std::collections::BTreeMap;

use evidence::event::EventKind;
use evidence::snapshot::{Missing, Moment};
use scenario::control::DapiCallRecord;
use scenario::fault::{ChainFault, DapiFault, FaultAction, Place, Refusal, Select};
use scenario::model::{Limit, ServiceAction};
use scenario::units::{Micros, Ppb};

use super::catalogue::{answer, logs, place, refused};
use super::defects_run::epoch_moves;
use super::defects_session::{lease, seen_as};
use super::log::{SLOTS, tx};

use super::twins::{Change, action, dapi_hits, expected_failure, unhit};

/// What must be unknown, and words that say what is missing.
pub const UNKNOWN: &[(&str, &str, Change)] = &[
    ("a fraction of zero hits nothing", "hit nothing", |files| {
        files.run.resolved.scenario.faults[0].select = Select::Fraction(Ppb::ZERO);
        files.hits.clear();
        unhit(files);
    }),
    ("fewer hits than the minimum", "minimum.fault_hits is 20", |files| {
        files.run.resolved.scenario.minimum.fault_hits = Some(20);
    }),
    ("fewer cancels than the minimum", "minimum.cancelled is 2", |files| {
        files.run.resolved.scenario.minimum.cancelled = Some(2);
    }),
    ("fewer validations than the minimum", "at least 99 needed", |files| {
        files.run.resolved.scenario.minimum.validations = Some(99);
    }),
    ("A2.5 a hit names another node", "plan and hit log disagree", |files| {
        files.hits[0].place = "node-a-0".to_owned();
    }),
    ("a hit at a node that does not exist", "plan and hit log disagree", |files| {
        let stray = scenario::control::Hit { place: "node-z".to_owned(), ..files.hits[0].clone() };
        files.hits.push(stray);
    }),
    ("a selected call was not hit", "carried out no rule", |files| {
        unhit(files);
    }),
    ("an acquire that was to be refused never came", "dapi-rule did not hit call 2", |files| {
        let calls = Select::Calls(vec![1, 2]);
        dapi_hits(files, DapiFault::Reject(Refusal::Unavailable), calls, &[1]);
    }),
    (
        "an acquire was refused that was not to be",
        "dapi-rule hit call 3, which it does not select",
        |files| {
            let calls = Select::Calls(vec![1]);
            dapi_hits(files, DapiFault::Reject(Refusal::Unavailable), calls, &[1, 3]);
        },
    ),
    ("an outage lets acquires through", "dapi-rule hit Acquire 901 and 903 and let 902 through", |files| {
        dapi_hits(files, DapiFault::Outage(true), Select::All(true), &[901, 903]);
        files.dapi.push(DapiCallRecord {
            ordinal: 902,
            rule: None,
            ..files.dapi[files.dapi.len() - 1].clone()
        });
    }),
    ("a hit of the allocator without its call", "2 hits of dapi-rule, 1 calls that show it", |files| {
        dapi_hits(files, DapiFault::Outage(true), Select::All(true), &[1]);
        files.hits.push(files.hits[files.hits.len() - 1].clone());
    }),
    ("a rule on the chain without the log of its calls", "faults/chain-calls.jsonl", |files| {
        dapi_hits(files, DapiFault::Outage(true), Select::All(true), &[1]);
        let rule = files.run.resolved.scenario.faults.last_mut().expect("it was pushed");
        rule.place = Place { chain: Some("*".to_owned()), ..Place::default() };
        rule.action = FaultAction::Chain(ChainFault::Fail(true));
    }),
    ("fewer escrows were settled than the scenario wants", "minimum.settled is 2", |files| {
        files.run.resolved.scenario.minimum.settled = Some(2);
        files.from(Moment::Before, |s| s.chain.as_mut().expect("the story has it").settled = vec![9]);
        files.from(Moment::DrainFinal, |s| s.chain.as_mut().expect("the story has it").settled = vec![9, 11]);
    }),
    ("hosts started under load took fewer chats than wanted", "minimum.resumed is 9", |files| {
        files.acted(action(ServiceAction::Start("host-1".to_owned()), vec![]));
        files.run.resolved.scenario.minimum.resumed = Some(9);
        for (service, series) in &mut files.snapshot(Moment::DrainPassive).host_metrics {
            let chats = if service == "host-1" { 8.0 } else { 50.0 };
            series.insert("devshard_request_terminal_total{reason=\"ok\"}".to_owned(), chats);
        }
    }),
    ("A7.6 one replica can't be reached", "host-1/11/diffs at drain-final", |files| {
        let snapshot = files.snapshot(Moment::DrainFinal);
        snapshot.hosts[1].escrows.remove(0);
        snapshot.missing.push(Missing { what: "host-1/11/diffs".to_owned(), why: "refused".to_owned() });
    }),
    ("one replica is not in the snapshot", "2 of 3 hosts", |files| {
        files.snapshot(Moment::DrainSynced).hosts.pop();
    }),
    ("no host log of an escrow", "no host log of escrow 12", |files| {
        logs(files.snapshot(Moment::DrainFinal), "12").for_each(drop);
        files.snapshot(Moment::DrainFinal).hosts.iter_mut().for_each(|host| drop(host.escrows.pop()));
    }),
    ("the gateway shows no escrow any more", "escrow 11 after sync", |files| {
        files.snapshot(Moment::DrainSynced).escrows.clear();
    }),
    ("the gateway's nonce could not be read", "gateway/11/status at drain-synced", |files| {
        let snapshot = files.snapshot(Moment::DrainSynced);
        snapshot.escrows[0].nonce = 0;
        snapshot.missing.push(Missing { what: "gateway/11/status".to_owned(), why: "refused".to_owned() });
    }),
    ("gateway transactions could not be read", "gateway/12/debug/pending", |files| {
        let missing = Missing { what: "gateway/12/debug/pending".to_owned(), why: "refused".to_owned() };
        files.snapshot(Moment::DrainSynced).missing.push(missing);
    }),
    ("A8.5 a series disappears in the drain", "signal host_validation_queue", |files| {
        files
            .drain
            .last_mut()
            .expect("the story has it")
            .signals
            .insert("host_validation_queue".to_owned(), None);
    }),
    ("an action did not take place", "action 0 {\"restart\":\"host-1\"} did not take place", |files| {
        files.run.resolved.scenario.actions =
            vec![action(ServiceAction::Restart("host-1".to_owned()), vec![])];
    }),
    ("an action failed", "action 0 {\"pause\":\"host-1\"} failed: no such process", |files| {
        files.acted(action(ServiceAction::Pause("host-1".to_owned()), vec![]));
        for event in &mut files.events {
            if let EventKind::ActionDone { error, .. } = &mut event.event {
                *error = Some("no such process".to_owned());
            }
        }
    }),
    ("a drain deadline of 0 leaves no time to look", "the deadline left room for 1 samples", |files| {
        files.run.resolved.scenario.drain.timeout = Limit::Time(Micros::from_s(0));
        files.drain.drain(..3);
        let only = files.drain.first_mut().expect("the story has it");
        only.ended = Some("deadline".to_owned());
        only.stable = 1;
    }),
    ("the samples don't show what the last one says", "3 are needed", |files| {
        files.drain.remove(2);
    }),
    ("finalize did not succeed", "finalize of escrow 12", |files| {
        for event in &mut files.events {
            if let EventKind::DrainStep { what, escrow, status, .. } = &mut event.event
                && what == "finalize"
                && escrow == "12"
            {
                *status = Some(500);
            }
        }
    }),
    ("finalize had no answer: what waits there may be ours", "finalize of escrow 11: no answer", |files| {
        for event in &mut files.events {
            if let EventKind::DrainStep { what, escrow, status, .. } = &mut event.event
                && what == "finalize"
                && escrow == "11"
            {
                *status = None;
            }
        }
        let waiting = tx("validation", Some(5), Some((5 + 2) % SLOTS), Some("11"));
        files.snapshot(Moment::DrainFinal).hosts[2].escrows[0].mempool.push(waiting);
    }),
    ("one record is not in the file any more", "line 24 is the first that is missing", |files| {
        files.records.remove(7);
    }),
    (
        "the records were cut in the middle after the load",
        "requests.jsonl: it ends after 12 of the 24",
        |files| {
            files.records.truncate(12);
        },
    ),
    ("a service is not in a snapshot", "host-2 at drain-final", |files| {
        files.snapshot(Moment::DrainFinal).processes.retain(|process| process.service != "host-2");
    }),
    ("a host names no epoch although the chain moved", "epoch of host-0 after finalize", |files| {
        epoch_moves(files);
        files.snapshot(Moment::DrainFinal).hosts[0].epoch = None;
    }),
    ("counters of the gateway are absent", "counters of the gateway", |files| {
        files.snapshot(Moment::DrainSynced).gateway_metrics = BTreeMap::from([("up".to_owned(), 1.0)]);
    }),
    ("a node shows no statistics", "statistics of node-b", |files| {
        files.snapshot(Moment::DrainPassive).openai.as_mut().expect("the story has it").nodes.pop();
    }),
    ("leases were not read on Postgres", "validation leases", |files| {
        files.run.stack.storage = "postgres".to_owned();
    }),
    ("fewer leases were taken over than the scenario wants", "minimum.take_overs wants 1", |files| {
        files.run.stack.storage = "postgres".to_owned();
        files.run.resolved.scenario.minimum.take_overs = Some(1);
        files.from(Moment::Before, |s| s.leases = Some(vec![lease(0, 1, "submitted", 1)]));
        files.leases = seen_as(&[lease(0, 1, "pending", 1), lease(0, 1, "submitted", 1)]);
    }),
    ("nobody knows who owns the slots", "who owns the slots of escrow 11", |files| {
        files.from(Moment::Before, |snapshot| snapshot.escrows[0].group.clear());
    }),
    ("the load was stopped early without a signal", "before the end of its plan", |files| {
        for event in &mut files.events {
            if let EventKind::LoadEnded { partial, .. } = &mut event.event {
                *partial = true;
            }
        }
    }),
    ("the runner declared a gap", "mock-openai/hits", |files| {
        let (what, why) = ("mock-openai/hits".to_owned(), "3 fell out of the ring".to_owned());
        files.event_in_load(EventKind::EvidenceMissing { what, why });
    }),
    (
        "a failure whose hit was lost is neither expected nor an error",
        "what hit 1 failed requests",
        |files| {
            expected_failure(files);
            files.hits.remove(0);
        },
    ),
    ("nothing was measured for a limit", "no success to measure", |files| {
        files.records.iter_mut().for_each(|record| record.first_content_us = None);
    }),
];
