//! Named rules: each quirk passes with its rule, says where it was used, and is a fail with `--no-rule`.

use crate::support::catalogue::{http_error, without_tx};
use crate::support::twins::{dapi_hits, expected_failure};
use crate::support::{Files, good};
use evidence::assertion::{AssertionId, Status};
use evidence::exit::Outcome;
use evidence::record::ClientClass;
use evidence::snapshot::Moment;
use scenario::fault::{Because, DapiFault, Expect, RequestClass, Select};
use verdict::rules::{ALL, CACHED_NODE, GHOST, NAMELESS_FAILURE, PREPARE_FAILURE, Rule, SPLIT_ID, UNLOADED};

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
