//! A10 `correlation`: an accepted request can be followed from its client id to accounting, attempts, hosts and nodes.
//! The walk is made for every accepted request, so that a clean run shows that it could have been followed.
//!
//! Reasons: `no-escrow`, `no-accounting-row`, `no-attempts`, `call-not-in-accounting` (a node worked for a nonce that
//! no attempt names), `unknown-host`, `other-escrow` (the row is another escrow's), `shared-row` (two requests share one
//! row), `answered-but-not-accepted` (a 2xx answer that nothing accepted), `hit-not-joined` (a fault hit it, and none of
//! its calls shows that), `rejected-without-reason`. Source: design section 5, contract gateway 10.2, hosts 9.4.

use std::collections::BTreeMap;

use evidence::accounting::{AccountingRow, JoinedRequest};
use evidence::assertion::AssertionId;
use evidence::record::ClientClass;
use evidence::rundir::{ACCOUNTING, HITS, NODE_CALLS, REQUESTS};

use super::{Assertion, Case, about_request};
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion = Assertion {
    id: AssertionId::A10,
    inputs: &[REQUESTS, ACCOUNTING, NODE_CALLS, HITS],
    unit: "walks from client to node",
    judge,
};

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let mut rows: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for (index, joined) in &case.evidence.joined {
        if !joined.accepted {
            not_accepted(case, *index, joined, sheet);
            continue;
        }
        sheet.looked(1);
        let fail = |reason: &str, text: String, sheet: &mut Sheet| {
            let mut witness = about_request(reason, format!("{}: {text}", joined.id), &joined.id, ACCOUNTING);
            witness.escrow = joined.escrow.clone();
            witness.nonce = joined.calls.first().and_then(|call| call.nonce);
            sheet.witness(witness);
        };
        let Some(escrow) = &joined.escrow else {
            fail("no-escrow", joined.missing.join("; "), sheet);
            continue;
        };
        let Some(row) = &joined.accounting else {
            fail("no-accounting-row", joined.missing.join("; "), sheet);
            continue;
        };
        if row.outcome == "cached" {
            continue;
        }
        if row.escrow != *escrow {
            fail("other-escrow", format!("the row belongs to escrow {}", row.escrow), sheet);
        }
        let rules = case.decided.get(index).map(|decided| decided.rules.as_slice()).unwrap_or_default();
        let unseen =
            rules.iter().find(|rule| !joined.calls.iter().any(|call| call.rule.as_ref() == Some(rule)));
        if let Some(rule) = unseen
            && !case.oracle.disputed.contains(&joined.id)
        {
            fail("hit-not-joined", format!("{rule} hit it, no joined call shows it"), sheet);
        }
        if let Some((reason, text)) = attempts(case, joined, row) {
            fail(reason, text, sheet);
        }
        if let Some(other) = rows.insert((&row.escrow, &row.request_id), &joined.id) {
            fail("shared-row", format!("{other} has the same accounting row {}", row.request_id), sheet);
        }
    }
}

fn attempts(case: &Case<'_>, joined: &JoinedRequest, row: &AccountingRow) -> Option<(&'static str, String)> {
    if row.attempts.is_empty() && !joined.calls.is_empty() {
        return Some(("no-attempts", "nodes worked for it, its row names no attempt".to_owned()));
    }
    let stray = joined.calls.iter().find(|call| {
        call.nonce.is_some_and(|nonce| !row.attempts.iter().any(|attempt| attempt.nonce == nonce))
    });
    if let Some(call) = stray {
        let nonce = call.nonce.unwrap_or_default();
        return Some((
            "call-not-in-accounting",
            format!("{} worked for nonce {nonce}, no attempt has it", call.node),
        ));
    }
    let devshard = &case.evidence.run.resolved.scenario.devshard;
    let slots = devshard.slots.unwrap_or(devshard.participants);
    let unknown = row.attempts.iter().find(|attempt| attempt.host_idx >= slots)?;
    Some(("unknown-host", format!("attempt {} names host {} of {slots}", unknown.nonce, unknown.host_idx)))
}

fn not_accepted(case: &Case<'_>, index: u64, joined: &JoinedRequest, sheet: &mut Sheet) {
    let Some(record) = case.evidence.records.get(&index) else { return };
    match record.status {
        Some(status) if (200..300).contains(&status) => {
            sheet.looked(1);
            let text =
                format!("{} was answered with {status}, and no node and no escrow knows it", joined.id);
            sheet.witness(about_request("answered-but-not-accepted", text, &joined.id, ACCOUNTING));
        }
        Some(_) if record.client_class == ClientClass::HttpError => {
            sheet.looked(1);
            rejected(case, index, joined, sheet);
        }
        _ => {}
    }
}

/// Refused before acceptance: the client id and a reason are all there can be.
fn rejected(case: &Case<'_>, index: u64, joined: &JoinedRequest, sheet: &mut Sheet) {
    let record = case.evidence.records.get(&index);
    let reason = record
        .and_then(|record| record.answer.as_ref())
        .and_then(|answer| answer.error_message.as_deref())
        .is_some_and(|message| !message.is_empty());
    if !reason {
        let text = format!("{} was refused without a reason in the body", joined.id);
        sheet.witness(about_request("rejected-without-reason", text, &joined.id, REQUESTS));
    }
}
