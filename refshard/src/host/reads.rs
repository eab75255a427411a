//! Everything that can be read from a host without a signature, and payloads for validators.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use wire::transport::payload_response_text;

use super::Host;
use super::auth::Refusal;
use super::session::HostSession;
use super::store::StoreError;
use super::validate::check_payload_request;
use crate::clock;
use crate::logline::{Level, LogLine};
use crate::state::HostStats;
use crate::transport::{Base64, Mempool, PayloadResponse, Signatures};

/// Query of a read, by name.
pub type Query = BTreeMap<String, String>;

/// `GET …/diffs?from=&to=`.
///
/// # Errors
/// 400 when a number is missing, 500 when the database refuses.
pub fn diffs(host: &Host, session: &HostSession, query: &Query) -> Result<Value, Refusal> {
    let (from, to) = (number(query, "from")?, number(query, "to")?);
    // 0 unless the defect `stale-replica` is planted.
    let hidden = host.defect.hidden_nonces();
    let shown = session.with_state(|state| state.nonce().saturating_sub(hidden));
    let mut records =
        host.store.diffs(&session.params.escrow_id, from, to.min(shown)).map_err(|error| internal(&error))?;
    for record in &mut records {
        if host.defect.rewrites_step(&session.params.escrow_id, record.diff.nonce)
            && let Some(first) = record.diff.user_sig.0.first_mut()
        {
            *first ^= 1;
        }
        let hash = std::mem::take(&mut record.state_hash.0);
        let (escrow, nonce) = (&session.params.escrow_id, record.diff.nonce);
        record.state_hash = Base64(host.defect.shown_hash(escrow, nonce, hash, host.signer.address()));
    }
    Ok(plain(&records))
}

/// `GET …/mempool`.
pub fn mempool(session: &HostSession) -> Value {
    plain(&Mempool { txs: session.mempool() })
}

/// `GET …/signatures?nonce=`.
///
/// # Errors
/// 400 without a nonce, 500 when the database refuses.
pub fn signatures(host: &Host, session: &HostSession, query: &Query) -> Result<Value, Refusal> {
    let nonce = number(query, "nonce")?;
    let stored = host.store.signatures(&session.params.escrow_id, nonce).map_err(|error| internal(&error))?;
    let signatures = stored.into_iter().map(|(slot, sig)| (slot, Base64(sig))).collect();
    Ok(plain(&Signatures { signatures }))
}

/// `GET …/payloads?inference_id=`, for validators with signed headers.
///
/// # Errors
/// 400 without an id, 401 without a good signature, 404 when nothing is stored, 500 when the database refuses.
pub fn payloads(
    host: &Host,
    session: &HostSession,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Value, Refusal> {
    let id = number(query, "inference_id");
    let checked = check_payload_request(
        headers,
        id.as_ref().copied().unwrap_or(0),
        &session.params.group,
        clock::unix_ns(),
    );
    let outcome = |status: &'static str, reason: &'static str| {
        let labels = [("status", status), ("reason", reason)];
        host.metrics.count("devshard_payload_request_total", &labels);
    };
    let validator = checked.map_err(|text| {
        outcome("error", "invalid_signature");
        let missing = text.ends_with("header required");
        Refusal::new(if missing { StatusCode::BAD_REQUEST } else { StatusCode::UNAUTHORIZED }, text)
    })?;
    let id = id?;
    let escrow_id = &session.params.escrow_id;
    let stored = host.store.payload(escrow_id, id).map_err(|error| {
        outcome("error", "payload_retrieve_err");
        internal(&error)
    })?;
    let Some((prompt, response)) = stored else {
        outcome("error", "payload_not_found");
        return Err(Refusal::new(StatusCode::NOT_FOUND, "payload not found"));
    };
    outcome("ok", "ok");
    LogLine::new(Level::Info, "payload served")
        .field("escrow_id", escrow_id)
        .field("stage", "payload_request")
        .field("where", "manager.payloads")
        .field("inference_id", id)
        .field("validator_address", validator)
        .field("served_epoch", session.epoch_id)
        .emit();
    let key = host.signer.key();
    let signed = payload_response_text(&id.to_string(), &prompt, &response, &key.address());
    Ok(plain(&PayloadResponse {
        inference_id: id.to_string(),
        executor_signature: Base64(key.sign_plain(signed.as_bytes()).to_bytes().to_vec()),
        prompt_payload: Base64(prompt),
        response_payload: Base64(response),
    }))
}

/// `GET /stats/shards`. The real host caches it for 60 s; here it is live, and the lifetime says 0.
pub fn shards(host: &Arc<Host>) -> Value {
    let mut shards: Vec<(String, u64)> = host
        .lock_sessions()
        .values()
        .map(|session| (session.params.escrow_id.clone(), session.epoch_id))
        .collect();
    shards.sort();
    let active: Vec<&String> = shards.iter().map(|(escrow_id, _)| escrow_id).collect();
    let entry = |(escrow_id, epoch_id): &(String, u64)| json!({"escrow_id": escrow_id, "epoch_id": epoch_id});
    json!({
        "current_epoch_id": host.chain.epoch(),
        "cached_at": clock::unix_s(),
        "cache_ttl_seconds": 0,
        "active_escrows": active,
        "shards": shards.iter().map(entry).collect::<Vec<_>>(),
    })
}

/// `GET /stats/shards/:id`.
pub fn shard(host: &Host, session: &HostSession) -> Value {
    let hidden = host.defect.hidden_nonces();
    let (nonce, stats, validators) = session.with_state(|state| {
        let mut validators: BTreeMap<u32, u32> = BTreeMap::new();
        for record in state.live().values().chain(state.sealed().values()) {
            for slot in &record.validated_by {
                *validators.entry(*slot).or_default() += 1;
            }
        }
        (state.nonce().saturating_sub(hidden), state.host_stats().to_vec(), validators)
    });
    let by_index: BTreeMap<String, HostStats> =
        stats.into_iter().enumerate().map(|(slot, stats)| (slot.to_string(), stats)).collect();
    let seen = |count: u32| HostStats {
        required_validations: count,
        completed_validations: count,
        ..HostStats::default()
    };
    let by_slot: BTreeMap<String, HostStats> =
        validators.iter().map(|(slot, count)| (slot.to_string(), seen(*count))).collect();
    let total: u32 = validators.values().sum();
    let group: Vec<Value> = session
        .params
        .group
        .iter()
        .enumerate()
        .map(|(slot, address)| json!({"SlotID": slot, "ValidatorAddress": address}))
        .collect();
    let tag = &session.params.protocol_version;
    json!({
        "escrow_id": session.params.escrow_id,
        "epoch_id": session.epoch_id,
        "nonce": nonce,
        "version": tag,
        "state_root_and_protocol_version": tag,
        "cached_at": clock::unix_s(),
        "cache_ttl_seconds": 0,
        "host_stats": by_index,
        "validation_observability": {
            "by_slot": by_slot,
            "totals": {"required_validations": total, "completed_validations": total},
        },
        "group": group,
    })
}

/// `GET /metrics`.
pub fn metrics(host: &Host) -> String {
    let text = host.metrics.render();
    let stage = [("stage", "request")];
    let inflight = host.metrics.value("devshard_inflight", &stage);
    let shown = host.defect.shown_inflight(inflight);
    let line = |value: f64| format!("devshard_inflight{{stage=\"request\"}} {value}\n");
    text.replace(&line(inflight), &line(shown))
}

fn number(query: &Query, name: &'static str) -> Result<u64, Refusal> {
    query
        .get(name)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, format!("invalid '{name}' parameter")))
}

fn internal(error: &StoreError) -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

fn plain(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("answers are plain data")
}
