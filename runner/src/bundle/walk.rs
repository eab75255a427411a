//! The walk from a client's request to everything that worked for it, hop by hop: client → gateway → escrow → accounting →
//! attempts → hosts → nodes → session.

use evidence::accounting::{Attempt, JoinedCall, JoinedRequest};
use evidence::bundle::Hop;
use evidence::snapshot::Moment;

use super::details::Detail;

fn hop(hop: &str, id: Option<String>, detail: impl Into<String>) -> Hop {
    Hop { hop: hop.to_owned(), found: id.is_some(), id, detail: detail.into() }
}

/// Every hop with the id that joins it; a hop that is not found stays, with what was looked for.
pub fn walk(detail: &Detail) -> Vec<Hop> {
    let Some(record) = &detail.record else { return Vec::new() };
    let mut hops =
        vec![hop("client → gateway", record.response_request_id.clone(), "X-Request-Id of the answer")];
    let Some(joined) = &detail.joined else {
        hops.push(hop("gateway → escrow", None, "no joined line"));
        return hops;
    };
    let ways: Vec<String> = joined.ways.iter().map(word).collect();
    hops.push(hop("gateway → escrow", joined.escrow.clone(), format!("found by {}", ways.join(", "))));
    let row = joined.accounting.as_ref();
    let outcome = row.map_or_else(
        || "no row".to_owned(),
        |row| format!("outcome {}, decision {}", row.outcome, row.decision.as_deref().unwrap_or("none")),
    );
    hops.push(hop("gateway → accounting", row.map(|row| row.request_id.clone()), outcome));
    let attempts = row.map(|row| row.attempts.as_slice()).unwrap_or_default();
    for attempt in attempts {
        of_attempt(&mut hops, attempt, joined, detail);
    }
    // Work for a nonce that no attempt names belongs to the walk as well: that is what A10 tells about.
    let stray = |call: &&JoinedCall| !attempts.iter().any(|attempt| Some(attempt.nonce) == call.nonce);
    joined.calls.iter().filter(stray).for_each(|call| of_call(&mut hops, call));
    for missing in &joined.missing {
        hops.push(hop("not found", None, missing.as_str()));
    }
    hops
}

fn of_attempt(hops: &mut Vec<Hop>, attempt: &Attempt, joined: &JoinedRequest, detail: &Detail) {
    let nonce = attempt.nonce;
    let won = if attempt.winner { ", won" } else { "" };
    let status = attempt.status.as_deref().unwrap_or("none");
    hops.push(hop("accounting → attempt", Some(format!("nonce {nonce}")), format!("status {status}{won}")));
    let participant = attempt.participant.clone().unwrap_or_else(|| format!("slot {}", attempt.host_idx));
    hops.push(hop("attempt → host", Some(participant), format!("slot {}", attempt.host_idx)));
    let mut calls = joined.calls.iter().filter(|call| call.nonce == Some(nonce)).peekable();
    if calls.peek().is_none() {
        hops.push(hop("host → node call", None, format!("no node was called for nonce {nonce}")));
    }
    calls.for_each(|call| of_call(hops, call));
    let synced =
        joined.inferences.iter().find(|(known, _)| *known == nonce).map(|(_, status)| status.clone());
    let last = detail.inferences.get(&Moment::DrainFinal).and_then(|shown| shown.get(&nonce));
    let last = last.map_or("not shown", |inference| inference.status.as_str());
    let text = format!("inference {nonce} after sync; after finalize: {last}");
    hops.push(hop("attempt → session", synced, text));
}

fn of_call(hops: &mut Vec<Hop>, call: &JoinedCall) {
    let status = call.status.map_or_else(|| "no status".to_owned(), |status| status.to_string());
    let host = call.host.as_deref().unwrap_or("unknown");
    let lock = call.lock.as_deref().unwrap_or("none");
    let text = format!("answered {status} ({}), lock {lock} of {host}", call.outcome);
    hops.push(hop("host → node call", Some(format!("{} call {}", call.node, call.call)), text));
    if let Some(rule) = &call.rule {
        hops.push(hop("node call → fault", Some(rule.clone()), "rule that hit it"));
    }
}

/// The word of a serialised name.
fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => String::new(),
    }
}
