//! `/v1/admin/…`: state, settings, and acts on escrows (contract gateway 2.4.3, 2.4.8). The key has been
//! checked.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::{Method, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use wire::proto::inference::{DevshardSettlementHostStats, DevshardSlotSignature, MsgSettleDevshardEscrow};

use super::http::Incoming;
use super::respond::{self, Answer};
use super::store::Registered;
use super::{Gateway, capacity, reads, registry, shapes};
use crate::clock;

/// Paths below `/v1/admin/`.
pub async fn route(gateway: &Arc<Gateway>, rest: &[&str], incoming: &Incoming) -> Answer {
    match rest {
        ["state" | "devshards"] if incoming.reads() => respond::ok(&shapes::admin_state(gateway)),
        ["settings"] if incoming.reads() => respond::ok(&settings(gateway)),
        ["settings"] if incoming.posts() => change_settings(gateway, &incoming.body),
        ["devshards"] if incoming.posts() => registry::add(gateway, &incoming.body).await,
        ["state" | "devshards" | "settings"] => respond::wrong_method(),
        ["participants", "unquarantine"] if incoming.posts() => unquarantine(gateway, &incoming.body),
        ["suspicious-hosts"] => suspicious(gateway, incoming),
        ["escrows"] if incoming.posts() => registry::create(gateway, &incoming.body).await,
        ["devshards", "import"] if incoming.posts() => registry::import(gateway, &incoming.body).await,
        ["devshards", id] if incoming.method == Method::DELETE => registry::delete(gateway, id),
        ["devshards", id, act] => devshard(gateway, id, act, incoming).await,
        _ => respond::not_found(),
    }
}

async fn devshard(gateway: &Arc<Gateway>, id: &str, act: &str, incoming: &Incoming) -> Answer {
    let row = match gateway.store.find(id) {
        Ok(Some(row)) => row,
        Ok(None) => return respond::error(StatusCode::NOT_FOUND, &format!("unknown devshard {id}")),
        Err(error) => return respond::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    };
    match act {
        "deactivate" if incoming.posts() => {
            gateway.deactivate(id);
            respond::ok(&json!({ "active": false, "id": id }))
        }
        "activate" if incoming.posts() => activate(gateway, &row),
        "settle" if incoming.posts() => match settle_escrow(gateway, &row).await {
            Ok(answer) => respond::ok(&answer),
            Err((status, text)) => respond::error(status, &text),
        },
        "participants" if incoming.reads() => respond::ok(&capacity::participants(gateway, &row)),
        _ => respond::not_found(),
    }
}

fn settings(gateway: &Gateway) -> Value {
    serde_json::to_value(&*gateway.settings()).expect("settings are plain data")
}

fn change_settings(gateway: &Gateway, body: &[u8]) -> Answer {
    let updated = serde_json::from_slice::<Value>(body)
        .map_err(|error| format!("parse settings: {error}"))
        .and_then(|patch| gateway.settings().updated(&patch));
    match updated {
        Err(text) => respond::error(StatusCode::BAD_REQUEST, &text),
        Ok(updated) => match gateway.replace_settings(updated) {
            Ok(()) => {
                gateway.gate.restart();
                respond::ok(&settings(gateway))
            }
            Err(error) => respond::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        },
    }
}

fn activate(gateway: &Arc<Gateway>, row: &Registered) -> Answer {
    let id = &row.params.escrow_id;
    if let Err(error) = gateway.store.set_active(id, true, clock::unix_ns()) {
        return respond::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
    }
    if let Some(escrow) = gateway.resident(id) {
        escrow.active.store(true, Ordering::Release);
        return respond::ok(&json!({ "active": true, "already_resident": true, "id": id }));
    }
    match gateway.admit(row) {
        Ok(_) => respond::ok(&json!({ "active": true, "id": id, "model": row.model })),
        Err(error) => respond::error(StatusCode::BAD_GATEWAY, &error.to_string()),
    }
}

/// Seconds and nanoseconds of this moment, for a transaction.
pub fn now() -> (i64, i32) {
    let nanos = i32::try_from(clock::unix_ns() % 1_000_000_000).unwrap_or_default();
    (clock::unix_s(), nanos)
}

/// Finalizes when that has not been done, sends the settlement, and lets the escrow leave. A repeated settle
/// sends another transaction.
///
/// # Errors
/// Status and text for the client.
pub async fn settle_escrow(gateway: &Arc<Gateway>, row: &Registered) -> Result<Value, (StatusCode, String)> {
    let id = &row.params.escrow_id;
    let bad = |error: String| (StatusCode::BAD_GATEWAY, error);
    let escrow = match gateway.resident(id) {
        Some(escrow) if escrow.is_busy() => {
            return Err((StatusCode::CONFLICT, format!("devshard {id} has active requests")));
        }
        Some(escrow) => escrow,
        None => Arc::new(gateway.load(row).map_err(|error| bad(error.to_string()))?),
    };
    let payload = reads::finalize_and_keep(gateway, &escrow).await.map_err(bad)?;
    let settler = gateway.keys.creator.address().to_owned();
    let damaged = || bad("the settlement payload is damaged".to_owned());
    let message = settlement_message(&payload, &settler).ok_or_else(damaged)?;
    let sent = gateway.chain.settle(&message, &gateway.keys.creator_tx, now()).await;
    let tx_hash = sent.map_err(|error| bad(error.to_string()))?;
    gateway.deactivate(id);
    Ok(json!({
        "active": false,
        "escrow_id": message.escrow_id,
        "id": id,
        "settler": settler,
        "tx_hash": tx_hash,
    }))
}

fn settlement_message(payload: &Value, settler: &str) -> Option<MsgSettleDevshardEscrow> {
    let bytes = |value: &Value| STANDARD.decode(value.as_str()?).ok();
    let small = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let stats = |entry: &Value| {
        Some(DevshardSettlementHostStats {
            slot_id: small(&entry["slot_id"])?,
            missed: small(&entry["missed"])?,
            invalid: small(&entry["invalid"])?,
            cost: entry["cost"].as_u64()?,
            ..DevshardSettlementHostStats::default()
        })
    };
    let signature = |entry: &Value| {
        Some(DevshardSlotSignature {
            slot_id: small(&entry["slot_id"])?,
            signature: bytes(&entry["signature"])?,
        })
    };
    Some(MsgSettleDevshardEscrow {
        settler: settler.to_owned(),
        escrow_id: payload["escrow_id"].as_str()?.parse().ok()?,
        state_root: bytes(&payload["state_root"])?,
        nonce: payload["nonce"].as_u64()?,
        rest_hash: bytes(&payload["rest_hash"])?,
        host_stats: payload["host_stats"].as_array()?.iter().map(stats).collect::<Option<_>>()?,
        signatures: payload["signatures"].as_array()?.iter().map(signature).collect::<Option<_>>()?,
        fees: payload["fees"].as_u64()?,
        state_root_and_protocol_version: payload["version"].as_str()?.to_owned(),
    })
}

fn unquarantine(gateway: &Gateway, body: &[u8]) -> Answer {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    match request.get("participant_key").and_then(Value::as_str) {
        Some(key) if !key.is_empty() => {
            let cleared = gateway.quarantine.clear(key);
            respond::ok(&json!({ "cleared": cleared, "participant_key": key }))
        }
        _ => respond::error(StatusCode::BAD_REQUEST, "participant_key is required"),
    }
}

/// The list of hosts that may not win.
fn suspicious(gateway: &Gateway, incoming: &Incoming) -> Answer {
    if !incoming.reads() {
        if !incoming.posts() && incoming.method != Method::DELETE {
            return respond::wrong_method();
        }
        let request: Value = serde_json::from_slice(&incoming.body).unwrap_or_default();
        let one = request.get("participant_key").and_then(Value::as_str);
        let many = request.get("participant_keys").and_then(Value::as_array);
        let many = many.into_iter().flatten().filter_map(Value::as_str);
        let keys: Vec<&str> = one.into_iter().chain(many).filter(|key| !key.is_empty()).collect();
        if keys.is_empty() {
            return respond::error(StatusCode::BAD_REQUEST, "participant_key is required");
        }
        let note = request.get("note").and_then(Value::as_str).unwrap_or_default();
        let note = incoming.posts().then_some(note);
        for key in keys {
            if let Err(error) = gateway.store.put_suspicious(key, note, clock::unix_ns()) {
                return respond::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
            }
        }
    }
    let hosts: Vec<Value> = gateway
        .store
        .suspicious()
        .unwrap_or_default()
        .into_iter()
        .map(|(key, note, created_ns)| {
            json!({ "participant_key": key, "note": note, "created_at": shapes::time_of(created_ns) })
        })
        .collect();
    let hosts = if hosts.is_empty() { Value::Null } else { hosts.into() };
    respond::ok(&json!({ "suspicious_hosts": hosts }))
}
