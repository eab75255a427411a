//! Named rules: each quirk passes with its rule, says where it was used, and is a fail with `--no-rule`.

use crate::support::catalogue::{http_error, without_tx};
use crate::support::twins::{cached, dapi_hits, expected_failure};
use crate::support::{Files, good};
use evidence::assertion::{AssertionId, Status};
use evidence::exit::Outcome;
use evidence::record::ClientClass;
use evidence::snapshot::Moment;
use scenario::fault::{Because, DapiFault, Expect, RequestClass, Select};
use verdict::rules::{
    ALL, CACHE_HIT, CACHED_NODE, GHOST, NAMELESS_FAILURE, PREPARE_FAILURE, QUARANTINE, Rule, SPLIT_ID,
    UNLOADED,
};

/// A quirk, the rule that excuses it, and what fires without the rule.
type Quirk = (Rule, fn(&mut Files), &'static [(AssertionId, &'static str)]);

const QUIRKS: &[Quirk] = &[
    (GHOST, ghost, &[(AssertionId::A6, "pending-for-ever")]),
    (CACHED_NODE, cached_node, &[(AssertionId::A11, "call-without-lock")]),
    (
        PREPARE_FAILURE,
        prepare_failure,
        &[(AssertionId::A1, "no-terminal-outcome"), (AssertionId::A11, "race-sum")],
    ),
    (SPLIT_ID, split_id, &[(AssertionId::A10, "split-id")]),
    (NAMELESS_FAILURE, nameless_failure, &[(AssertionId::A10, "nameless-answer")]),
    (CACHE_HIT, cache_hit, &[(AssertionId::A10, "no-accounting-row")]),
    (QUARANTINE, quarantine, &[(AssertionId::A9, "quarantine-left")]),
    (UNLOADED, unloaded, &[(AssertionId::A4, "nonce-regressed")]),
];

/// The losing attempt of request 3 becomes a probe that no host was sent.
fn ghost(files: &mut Files) {
    let row = files.joined[3].accounting.as_mut().expect("the story has it");
    let (escrow, nonce) = (row.escrow.clone(), row.attempts.remove(0).nonce);
    without_tx(files, &escrow, "timeout", nonce);
    for snapshot in files.snapshots.values_mut() {
        for state in snapshot.escrows.iter_mut().filter(|state| state.escrow == escrow) {
            if let Some(inference) = state.inferences.get_mut(&nonce) {
                inference.prompt_hash =
                    Some("48808fa46173e7fbca42ea98965dc6d8be18107425af188b38fb6c31d51ad0a2".to_owned());
                inference.input_length = 59;
                inference.max_tokens = 1;
            }
        }
    }
}

/// The allocator is out; a host calls a node that it knows.
fn cached_node(files: &mut Files) {
    dapi_hits(files, DapiFault::Outage(true), Select::All(true), &[1]);
    let call = files.joined[7].calls[0].call;
    files.calls.iter_mut().filter(|c| c.call == call).for_each(|c| c.lock = None);
}

/// The gateway can't begin a request: an error for the client, a row that waits for ever, no race.
fn prepare_failure(files: &mut Files) {
    let index = files.untouched(false, 1);
    http_error(files, index, 502);
    let joined = &mut files.joined[index];
    joined.calls.clear();
    joined.inferences.clear();
    let row = joined.accounting.as_mut().expect("the story has it");
    row.outcome = "running".to_owned();
    row.completed_at = None;
    row.winner_nonce = None;
    row.attempts.clear();
    files.from(Moment::DrainPassive, |snapshot| {
        snapshot.gateway_metrics.values_mut().for_each(|value| *value -= 1.0);
    });
    // An action explains the refusal to A2 and T, with the rule (rejected) and without it (failed).
    let allowed = Expect {
        class: RequestClass::ExpectedFailure,
        because: Some(Because::GatewayError),
        ending: None,
        status: Some(502),
    };
    files.acted(scenario::model::Action {
        after: scenario::model::Trigger::Requests(10),
        action: scenario::model::ServiceAction::Deactivate(1),
        expect: vec![allowed],
    });
}

/// Accounting knows the request by another id.
fn split_id(files: &mut Files) {
    files.joined[7].ways.push(evidence::accounting::JoinWay::GatewayLog);
}

/// A failed race of a build that names no failure.
fn nameless_failure(files: &mut Files) {
    files.run.stack.personality = Some("july".to_owned());
    let index = expected_failure(files);
    files.records[index].response_request_id = None;
}

/// An answer from the cache, of a build whose answers name ids that accounting does not have.
fn cache_hit(files: &mut Files) {
    split_id(files);
    let index = unplanned_hit(files) as u64;
    let duplicates = &mut files.run.resolved.scenario.workload.duplicates;
    duplicates.push(scenario::model::Duplicate { index, duplicate_of: 0 });
}

fn unplanned_hit(files: &mut Files) -> usize {
    let index = files.untouched(false, 1);
    cached(files, index);
    let joined = &mut files.joined[index];
    joined.accounting = None;
    joined.ways.push(evidence::accounting::JoinWay::CacheRecord);
    index
}

/// Every prompt of a plan is its own: an answer from the cache that nobody planned is never a quirk of accounting.
#[test]
fn a_hit_that_nobody_planned_is_not_excused() {
    let mut files = good();
    split_id(&mut files);
    unplanned_hit(&mut files);
    let results = files.judge().assertions.results;
    let a10 = results.iter().find(|result| result.id == AssertionId::A10).unwrap();
    assert_eq!(
        a10.witnesses.iter().map(|found| found.reason.as_str()).collect::<Vec<_>>(),
        ["no-accounting-row"]
    );
}

const STATE: &str =
    "devshard_gateway_participant_quarantine_state{mode=\"probe\",model=\"m\",participant_key=\"one\"}";
const TRANSITIONS: &str = "devshard_gateway_participant_quarantine_transitions_total\
     {mode=\"probe\",model=\"all\",participant_key=\"one\",reason=\"http_throttle_quarantine\"}";

/// One 429 of a host, whose participant is kept out for an hour.
fn quarantine(files: &mut Files) {
    files.from(Moment::DrainPassive, |snapshot| {
        snapshot.gateway_metrics.insert(STATE.to_owned(), 1.0);
        snapshot.gateway_metrics.insert(TRANSITIONS.to_owned(), 1.0);
    });
}

/// A finalized runtime shows no nonce any more.
fn unloaded(files: &mut Files) {
    files.snapshot(Moment::DrainFinal).escrows[0].nonce = 0;
    files.snapshot(Moment::DrainFinal).escrows[0].group.clear();
}

#[test]
fn a_quirk_passes_by_its_rule_and_fails_without_it() {
    for (rule, quirk, fires) in QUIRKS {
        let mut files = good();
        quirk(&mut files);
        let judged = files.judge();
        let assertions = &judged.assertions;
        let reasons = verdict::judge::reasons(assertions);
        assert_eq!(assertions.verdict, Outcome::Pass, "{}: {reasons:?}", rule.name);
        for id in rule.excuses {
            let result = assertions.results.iter().find(|result| result.id == *id).expect("all are judged");
            let used = result.rules.iter().find(|used| used.rule == rule.name).expect(rule.name);
            assert_eq!((used.source.as_str(), used.count >= 1), (rule.source, true), "{}", rule.name);
        }
        files.run.rules_off = vec![rule.name.to_owned()];
        let assertions = files.judge().assertions;
        assert_eq!(assertions.verdict, Outcome::Fail, "--no-rule {}", rule.name);
        for result in &assertions.results {
            let wanted: Vec<&str> =
                fires.iter().filter(|(id, _)| *id == result.id).map(|(_, reason)| *reason).collect();
            let reasons: Vec<&str> = result.witnesses.iter().map(|witness| witness.reason.as_str()).collect();
            assert_eq!(reasons, wanted, "--no-rule {}: {}", rule.name, result.id);
            assert!(result.rules.iter().all(|used| used.rule != rule.name), "{} is off", rule.name);
        }
    }
    let tested: Vec<Rule> = QUIRKS.iter().map(|(rule, _, _)| *rule).collect();
    assert_eq!(tested, ALL, "every rule has a quirk here");
}

/// A refusal before the race is a rejection, as the contract has it; without the rule it is a failure.
#[test]
fn a_prepare_failure_is_classed_as_rejected() {
    let mut files = good();
    prepare_failure(&mut files);
    files.run.resolved.scenario.actions.clear();
    let index = files.records.iter().position(|r| r.client_class == ClientClass::HttpError).expect("planted");
    let class = |files: &Files| files.judge().decided[&(index as u64)].class;
    assert_eq!(class(&files), RequestClass::Rejected);
    files.run.rules_off = vec![PREPARE_FAILURE.name.to_owned()];
    assert_eq!(class(&files), RequestClass::UnexpectedFailure);
    assert!(files.judge().assertions.results.iter().any(|result| result.status == Status::Fail));
}

/// The rule is for whole answers of builds with split ids; a truncated answer that is replayed is finding J2.
#[test]
fn a_cache_hit_without_a_row_is_excused_only_when_it_is_whole_and_ids_are_split() {
    let reasons = |files: &Files| {
        let assertions = files.judge().assertions;
        let result = assertions.results.into_iter().find(|result| result.id == AssertionId::A10);
        let witnesses = result.expect("all are judged").witnesses.into_iter();
        witnesses.map(|witness| witness.reason).collect::<Vec<_>>()
    };
    let mut files = good();
    cache_hit(&mut files);
    let index = files.joined.iter().position(|joined| joined.accounting.is_none()).expect("planted");
    files.records[index].client_class = ClientClass::Truncated;
    assert_eq!(reasons(&files), ["no-accounting-row"], "a truncated replay");
    let mut files = good();
    cache_hit(&mut files);
    files.joined[7].ways.pop();
    assert_eq!(reasons(&files), ["no-accounting-row"], "a build that joins its ids");
    let mut files = good();
    cache_hit(&mut files);
    files.joined[index].cached = false;
    assert!(reasons(&files).contains(&"no-accounting-row".to_owned()), "nobody calls it a hit");
}

/// A quarantine without a counted cause, or beyond its time, is no residue of failures: no rule excuses it.
#[test]
fn a_quarantine_that_nothing_explains_fails() {
    let reasons = |files: &Files| {
        let assertions = files.judge().assertions;
        let result = assertions.results.into_iter().find(|result| result.id == AssertionId::A9);
        let result = result.expect("all are judged");
        let told = result.information.iter().any(|entry| entry.name == "quarantine-left one");
        (result.witnesses.into_iter().map(|witness| witness.reason).collect::<Vec<_>>(), told)
    };
    let mut files = good();
    quarantine(&mut files);
    assert_eq!(reasons(&files), (Vec::new(), true));
    // A setting that is over before the drain is.
    let throttle = serde_json::json!({ "http_quarantine_ms": 100, "transport_failure_quarantine_ms": 50 });
    files.run.resolved.scenario.devshard.settings.insert("participant_throttle".to_owned(), throttle);
    files.snapshot(Moment::DrainFinal).at_us += 60_000_000;
    assert_eq!(reasons(&files).0, ["quarantine-overdue"]);
    // A change in between begins it anew.
    files.snapshot(Moment::DrainFinal).gateway_metrics.insert(TRANSITIONS.to_owned(), 2.0);
    assert_eq!(reasons(&files), (Vec::new(), true));
    let mut files = good();
    quarantine(&mut files);
    files.from(Moment::DrainPassive, |snapshot| {
        snapshot.gateway_metrics.remove(TRANSITIONS);
    });
    assert_eq!(reasons(&files).0, ["quarantine-without-cause"]);
    files.acted(scenario::model::Action {
        after: scenario::model::Trigger::Requests(10),
        action: scenario::model::ServiceAction::Restart("gateway".to_owned()),
        expect: Vec::new(),
    });
    assert_eq!(reasons(&files).0, Vec::<String>::new(), "counters began anew");
    // One that was there before is not this run's.
    let mut files = good();
    files.from(Moment::Before, |snapshot| {
        snapshot.gateway_metrics.insert(STATE.to_owned(), 1.0);
    });
    assert_eq!(reasons(&files), (Vec::new(), true));
}
