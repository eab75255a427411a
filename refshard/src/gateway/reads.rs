//! Reads and acts below `/devshard/{id}`, served from one session (contract gateway 2.3).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::Gateway;
use super::accounting::{Found, RequestRow};
use super::escrow::Escrow;
use super::http::Incoming;
use super::respond::{self, Answer};
use super::store::Registered;
use super::{shapes, sync};
use crate::clock;
use crate::planted::On;
use crate::state::Session;

/// `GET /v1/status`: of the only escrow, or of the gateway.
pub fn status(gateway: &Gateway) -> Answer {
    match gateway.residents().as_slice() {
        [only] => respond::ok(&shapes::status(gateway, only)),
        _ => respond::ok(&shapes::gateway_status(gateway)),
    }
}

/// What everybody may know of an escrow that is not served any more.
pub fn metadata(row: &Registered) -> Value {
    json!({
        "active": row.active,
        "id": row.params.escrow_id,
        "metadata_only": true,
        "model": row.model,
        "resident": false,
        "rotation_epoch": 0,
        "rotation_role": "",
        "settlement_pending": false,
    })
}

/// Inner paths but chat and models. Admin paths have been checked for the key.
pub async fn route(
    gateway: &Arc<Gateway>,
    escrow: &Arc<Escrow>,
    inner: &[&str],
    incoming: &Incoming,
) -> Answer {
    if inner == ["v1", "status"] {
        return if incoming.reads() {
            respond::ok(&shapes::status(gateway, escrow))
        } else {
            respond::wrong_method()
        };
    }
    let shape: Option<fn(&Escrow) -> Value> = match inner {
        ["v1", "state"] => Some(shapes::state),
        ["v1", "debug", "state"] => Some(shapes::debug_state),
        ["v1", "debug", "pending"] => Some(shapes::pending),
        ["v1", "debug", "inferences"] => Some(shapes::inferences),
        ["v1", "debug", "signatures"] => Some(shapes::signatures),
        _ => None,
    };
    if let Some(shape) = shape {
        return if incoming.reads() { respond::ok(&shape(escrow)) } else { respond::wrong_method() };
    }
    match inner {
        ["v1", "debug", "perf"] if incoming.reads() => {
            respond::ok(&gateway.perf.shape(&gateway.settings(), &escrow.params.group))
        }
        ["v1", "debug", "pairwise"] if incoming.reads() => {
            respond::ok(&gateway.perf.pairwise_shape(&gateway.settings().redundancy))
        }
        ["v1", "requests", id] if incoming.reads() => request(gateway, escrow, id),
        ["v1", "finalize"] if incoming.posts() => finalize(gateway, escrow).await,
        ["v1", "finalize"] if incoming.reads() => finalized(gateway, escrow),
        ["v1", "debug", "sync-hosts"] if incoming.posts() => sync_hosts(gateway, escrow).await,
        ["v1", "debug", "signatures", "collect"] if incoming.posts() => {
            collect(gateway, escrow, &incoming.query).await
        }
        ["v1", "requests", _] | ["v1", "finalize"] => respond::wrong_method(),
        ["v1", "debug", "sync-hosts" | "perf" | "pairwise"] => respond::wrong_method(),
        ["v1", "debug", "signatures", "collect"] => respond::wrong_method(),
        _ => respond::not_found(),
    }
}

/// The nonce by which a planted defect of a row is known.
fn first<'e>(escrow: &'e Escrow, row: &RequestRow) -> On<'e> {
    row.attempts.first().map_or(On::Program, |attempt| On::Nonce(escrow.id(), attempt.nonce))
}

fn request(gateway: &Gateway, escrow: &Escrow, id: &str) -> Answer {
    let found = match gateway.accounting.find(id, escrow.id()) {
        Ok(found) => found,
        Err(error) => return respond::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    };
    let hidden = |found: &Found| matches!(found, Found::Race(row) if gateway.defect.hides(&row.outcome, first(escrow, row)));
    let planted = |found: Found| match found {
        Found::Race(mut row) => {
            for attempt in &mut row.attempts {
                let on = On::Nonce(escrow.id(), attempt.nonce);
                if gateway.defect.names_foreign_host(&row.outcome, on) {
                    "gonka1nobody".clone_into(&mut attempt.participant_key);
                }
                if gateway.defect.shows_future_nonce(escrow.id(), attempt.nonce) {
                    attempt.nonce += 1_000_000;
                }
            }
            Found::Race(row)
        }
        alias => alias,
    };
    match found.filter(|found| !hidden(found)).map(planted) {
        Some(found) => respond::ok(&shapes::request(escrow, id, &found)),
        None => {
            let text = format!("request {id} not found for devshard {}", escrow.id());
            respond::error(StatusCode::NOT_FOUND, &text)
        }
    }
}

async fn sync_hosts(gateway: &Gateway, escrow: &Escrow) -> Answer {
    match sync::sync_hosts(gateway, escrow).await {
        Ok(()) => {
            let (nonce, phase) = escrow.with_state(|state| (state.nonce(), state.phase().name()));
            respond::ok(&json!({ "escrow_id": escrow.id(), "nonce": nonce, "phase": phase }))
        }
        Err(error) => respond::error(StatusCode::INTERNAL_SERVER_ERROR, &error),
    }
}

async fn finalize(gateway: &Arc<Gateway>, escrow: &Arc<Escrow>) -> Answer {
    if escrow.is_busy() {
        let text = format!("devshard {} has active requests", escrow.id());
        return respond::error(StatusCode::CONFLICT, &text);
    }
    match finalize_and_keep(gateway, escrow).await {
        Ok(payload) => respond::ok(&payload),
        Err(error) => respond::error(StatusCode::INTERNAL_SERVER_ERROR, &error),
    }
}

/// Finalizes, keeps the payload, and closes the escrow for new requests; it stays resident for reads.
///
/// # Errors
/// The text for the client.
pub async fn finalize_and_keep(gateway: &Gateway, escrow: &Escrow) -> Result<Value, String> {
    let stored = |row: Registered| serde_json::from_str(row.settlement.as_deref()?).ok();
    if let Ok(Some(payload)) = gateway.store.find(escrow.id()).map(|row| row.and_then(stored)) {
        return Ok(payload);
    }
    let was_active = escrow.active.swap(false, Ordering::AcqRel);
    match sync::finalize(gateway, escrow).await {
        Ok(payload) => {
            let kept = gateway.store.put_settlement(escrow.id(), &payload.to_string());
            let kept = kept.and_then(|()| gateway.store.set_active(escrow.id(), false, clock::unix_ns()));
            kept.map_err(|error| error.to_string())?;
            Ok(payload)
        }
        Err(error) => {
            escrow.active.store(was_active, Ordering::Release);
            Err(error)
        }
    }
}

fn finalized(gateway: &Gateway, escrow: &Escrow) -> Answer {
    let row = gateway.store.find(escrow.id()).ok().flatten();
    let payload = row.and_then(|row| serde_json::from_str::<Value>(&row.settlement?).ok());
    match payload {
        Some(payload) => respond::ok(&payload),
        None => respond::error(StatusCode::CONFLICT, "session not yet finalized"),
    }
}

async fn collect(gateway: &Gateway, escrow: &Escrow, query: &str) -> Answer {
    let bad = |text: &str| respond::error(StatusCode::BAD_REQUEST, text);
    let value = query.split('&').find_map(|pair| pair.strip_prefix("nonce="));
    let Some(value) = value else { return bad("missing 'nonce' query parameter") };
    let Ok(nonce) = value.parse::<u64>() else { return bad("invalid 'nonce' query parameter") };
    let current = escrow.with_state(Session::nonce);
    if nonce > current {
        return bad(&format!("nonce {nonce} is above the current nonce {current}"));
    }
    for participant in escrow.participants() {
        // Hosts sign their latest state, so only the current nonce can still be collected.
        if nonce == current && !escrow.signatures_at(nonce).contains_key(&participant.slot) {
            let _ = gateway.hosts.deliver(escrow, participant, nonce).await;
        }
    }
    let weight = escrow.signatures_at(nonce).len();
    let total = escrow.by_slot.len();
    respond::ok(&json!({
        "has_quorum": weight >= sync::quorum(total),
        "nonce": nonce,
        "quorum_threshold": sync::quorum(total),
        "sig_weight": weight,
        "total_slots": total,
    }))
}
