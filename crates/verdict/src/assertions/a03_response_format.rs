//! A3 `response-format`: JSON bodies parse and have the right shape, streams keep their grammar and end well. Only an
//! ending that a matched `expect` declares is exempt.
//!
//! Reasons: `wrong-ending`, `after-done`, `repeated-done`, `unfinished-event`, `bad-json`, `bad-utf8`,
//! `oversize-event`, `wrong-shape`, `foreign-id`, `body-cut`, `no-finish-reason`, `wrong-content-type`,
//! `error-body`. Source: contract gateway 4.5, 4.6 and 10.2.

use evidence::assertion::AssertionId;
use evidence::rundir::{ACCOUNTING, HITS, REQUESTS};
use scenario::fault::EndingKind;

use super::{Assertion, Case, about_request};
use crate::classify::Decided;
use crate::format::cut_by_client;
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::A3, inputs: &[REQUESTS], unit: "answers", judge };

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let records = &case.evidence.records;
    let judged = records.iter().filter(|(_, record)| {
        record.answered && record.status.is_some() && !cut_by_client(record.client_class)
    });
    sheet.looked(judged.count() as u64);
    for (index, finding) in &records.format {
        let (Some(record), Some(decided)) = (records.get(*index), case.decided.get(*index)) else { continue };
        let id = case.evidence.id(*index);
        let rules = case.evidence.rules_of(*index);
        if finding.ending.is_some_and(|kind| exempt(case, decided, &rules, kind)) {
            continue;
        }
        // Whether an ending was declared depends on what hit the request: that must be known first.
        let mut unknown = case.evidence.missing_of(&[HITS, ACCOUNTING]);
        if case.oracle.disputed.contains(&id) {
            unknown.push(format!("what hit {id}"));
        }
        if finding.reason == "wrong-ending" && !unknown.is_empty() {
            unknown.into_iter().for_each(|input| sheet.missing(input));
            continue;
        }
        let mut witness = about_request(finding.reason, format!("{id}: {}", finding.text), &id, REQUESTS);
        witness.escrow = case.evidence.names.maybe(record.escrow).map(str::to_owned);
        witness.subject = rules.first().map(|rule| (*rule).to_owned());
        sheet.witness(witness);
    }
    foreign(case, sheet);
}

/// The answer's own id names the nonce that was answered. One that neither the request's row nor a node's call has is
/// another request's answer, however well it is formed. A cached answer bears the id of its source.
fn foreign(case: &Case<'_>, sheet: &mut Sheet) {
    let evidence = case.evidence;
    let cached = evidence.name("cached");
    for (index, joined) in evidence.joined.iter().filter(|(_, joined)| !joined.cached) {
        let Some((record, nonce)) = evidence.records.get(index).and_then(|r| Some((r, r.body_nonce?))) else {
            continue;
        };
        let (attempts, mut calls) = (evidence.joined.attempts(joined), evidence.joined.calls(joined));
        let worked = calls.any(|call| call.nonce == Some(nonce));
        let known = worked || attempts.iter().any(|attempt| attempt.nonce == nonce);
        let here = [joined.escrow, joined.row_escrow].contains(&record.body_escrow);
        // Without a row nothing is known about its nonces: A10 tells of that.
        if (known && here) || attempts.is_empty() || joined.outcome == cached {
            continue;
        }
        let id = evidence.id(index);
        let escrow = evidence.names.maybe(record.body_escrow).unwrap_or_default();
        let text =
            format!("{id}: its answer names nonce {nonce} of escrow {escrow}, which is none of its own");
        let mut witness = about_request("foreign-id", text, &id, REQUESTS);
        witness.escrow = Some(escrow.to_owned());
        witness.nonce = Some(nonce);
        sheet.witness(witness);
    }
}

/// Whether an `expect` of a rule that hit the request, and whose class is the one decided, declares this ending.
fn exempt(case: &Case<'_>, decided: &Decided, rules: &[&str], kind: EndingKind) -> bool {
    if !(decided.allowed && decided.touched) {
        return false;
    }
    let scenario = &case.evidence.run.resolved.scenario;
    let of_rules = scenario
        .faults
        .iter()
        .filter(|rule| rules.contains(&rule.id.as_str()) || rule.place.node.is_none())
        .flat_map(|rule| rule.expect.iter());
    let of_actions = scenario.actions.iter().flat_map(|action| action.expect.iter());
    of_rules.chain(of_actions).any(|expect| expect.class == decided.class && expect.ending == Some(kind))
}
