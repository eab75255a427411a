//! JSON shapes of the reads (contract gateway 2.4, fixtures surfaces-single and surfaces-multi).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use wire::devshard::{Tx, TxKind};

use super::Gateway;
use super::accounting::{AttemptRow, Found, RequestRow};
use super::capacity;
use super::escrow::Escrow;
use super::store::Registered;
use super::sync::quorum;
use crate::clock;
use crate::planted::On;
use crate::state::{Inference, Session};

/// Unix nanoseconds as RFC 3339 with nanoseconds.
pub fn time_of(unix_ns: u64) -> String {
    let at =
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_ns)).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second, nano) = at.to_hms_nano();
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nano:09}Z")
}

/// Status of one escrow.
pub fn status(gateway: &Gateway, escrow: &Escrow) -> Value {
    let view = gateway.gate.view();
    let config = serde_json::to_value(&escrow.params.config).expect("settings are plain data");
    let shown = escrow.with_state(|state| state.nonce().saturating_sub(1));
    let back = u64::from(gateway.defect.shows_nonce_back(On::Nonce(escrow.id(), shown)));
    let mut status = escrow.with_state(|state| {
        json!({
            "escrow_id": escrow.id(),
            "nonce": state.nonce().saturating_sub(back),
            "phase": state.phase().name(),
            "balance": state.balance(),
            "chain_phase": view.shown_phase(),
            "requests_blocked": view.block_reason().is_some(),
            "config": config,
        })
    });
    // Left out while empty, as in the real answer.
    if !view.confirmation.is_empty() {
        status["confirmation_poc_phase"] = view.confirmation.clone().into();
    }
    if let Some(reason) = view.block_reason() {
        status["block_reason"] = reason.into();
    }
    status
}

/// Status of a gateway with no escrow or several.
pub fn gateway_status(gateway: &Gateway) -> Value {
    let residents = gateway.residents();
    json!({
        "capacity": capacity::shape(gateway),
        "devshards": residents.iter().map(|escrow| runtime(gateway, escrow)).collect::<Vec<_>>(),
        "limiter": capacity::limiter(gateway),
        "mode": "gateway",
        "runtimes": residents.len(),
    })
}

/// Everything that the admin may see. Keys of escrows are not among it.
pub fn admin_state(gateway: &Gateway) -> Value {
    let rows = gateway.store.registered().unwrap_or_default();
    let devshards: Vec<Value> = rows.iter().map(|row| devshard(gateway, row)).collect();
    json!({
        "capacity": capacity::shape(gateway),
        "devshards": devshards,
        "limiter": capacity::limiter(gateway),
        "settings": *gateway.settings(),
    })
}

/// Where an escrow's files are.
pub fn storage_path(gateway: &Gateway, id: &str) -> String {
    gateway.config.database_dir.join(format!("escrow-{id}")).display().to_string()
}

fn devshard(gateway: &Gateway, row: &Registered) -> Value {
    let id = &row.params.escrow_id;
    let mut entry = json!({
        "id": id,
        "private_key_env": super::CREATOR_KEY_VARIABLE,
        "model": row.model,
        "storage_path": storage_path(gateway, id),
        "active": row.active,
        "created_at": time_of(row.created_ns),
        "updated_at": time_of(row.updated_ns),
    });
    if let Ok(Some((role, epoch))) = gateway.store.role(id) {
        entry["rotation_role"] = role.into();
        entry["rotation_epoch"] = epoch.into();
    }
    if let Some(escrow) = gateway.resident(id) {
        entry["runtime"] = runtime(gateway, &escrow);
    }
    entry
}

/// A resident escrow in lists; zeros are left out where the real program leaves them out.
fn runtime(gateway: &Gateway, escrow: &Escrow) -> Value {
    let view = gateway.gate.view();
    let mut entry = Map::new();
    entry.insert("id".into(), escrow.id().into());
    entry.insert("model".into(), escrow.model.clone().into());
    entry.insert("active".into(), escrow.active.load(Ordering::Acquire).into());
    escrow.with_state(|state| {
        entry.insert("phase".into(), state.phase().name().into());
        if state.nonce() > 0 {
            entry.insert("nonce".into(), state.nonce().into());
        }
        if state.balance() > 0 {
            entry.insert("balance".into(), state.balance().into());
        }
    });
    entry.insert("session_version".into(), escrow.params.protocol_version.clone().into());
    entry.insert("active_requests".into(), escrow.active_requests.load(Ordering::Acquire).into());
    entry.insert("reserved_tokens".into(), escrow.reserved_tokens.load(Ordering::Acquire).into());
    entry.insert("chain_phase".into(), view.shown_phase().into());
    entry.insert("requests_blocked".into(), view.block_reason().is_some().into());
    Value::Object(entry)
}

/// Session, group, statistics.
pub fn state(escrow: &Escrow) -> Value {
    let group: Vec<Value> = escrow
        .by_slot
        .iter()
        .enumerate()
        .map(|(slot, one)| json!({ "slot_id": slot, "validator_address": one.address }))
        .collect();
    let config = &escrow.params.config;
    escrow.with_state(|state| {
        let stats: Map<String, Value> = state
            .host_stats()
            .iter()
            .enumerate()
            .map(|(slot, stats)| {
                let stats = json!({ "cost": stats.cost, "invalid": stats.invalid, "missed": stats.missed });
                (slot.to_string(), stats)
            })
            .collect();
        json!({
            "group": group,
            "host_stats": stats,
            "revealed_seeds": {},
            "session": {
                "balance": state.balance(),
                "config": {
                    "execution_timeout": config.execution_timeout,
                    "refusal_timeout": config.refusal_timeout,
                    "token_price": config.token_price,
                    "validation_rate": config.validation_rate,
                    "vote_threshold": config.vote_threshold,
                },
                "escrow_id": escrow.id(),
                "finalize_nonce": state.finalize_nonce().unwrap_or(0),
                "latest_nonce": state.nonce(),
                "phase": state.phase().name(),
            },
            "warm_keys": {},
        })
    })
}

/// Counts of live and sealed inferences.
pub fn debug_state(escrow: &Escrow) -> Value {
    escrow.with_state(|state| {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for record in state.live().values() {
            *counts.entry(record.status.name()).or_default() += 1;
        }
        json!({
            "balance": state.balance(),
            "live_inferences": state.live().len(),
            "live_status_counts": counts,
            "nonce": state.nonce(),
            "phase": state.phase().name(),
            "sealed_inferences": state.sealed().len(),
            "status_counts": counts,
            "total_inferences": state.live().len(),
        })
    })
}

/// What waits for the next step.
pub fn pending(escrow: &Escrow) -> Value {
    let entries: Vec<Value> = escrow.pending().iter().map(pending_entry).collect();
    let entries = if entries.is_empty() { Value::Null } else { entries.into() };
    json!({ "nonce": escrow.with_state(Session::nonce), "pending": entries, "warm_keys": null })
}

fn pending_entry(tx: &Tx) -> Value {
    let kind = match tx.kind() {
        TxKind::Timeout => return json!({ "type": "*types.DevshardTx_TimeoutInference" }),
        kind => kind.name(),
    };
    json!({ "type": kind, "id": tx.inference_id() })
}

/// Every inference, live or sealed, by nonce.
pub fn inferences(escrow: &Escrow) -> Value {
    escrow.with_state(|state| {
        let all: Map<String, Value> = state
            .live()
            .iter()
            .chain(state.sealed())
            .map(|(id, record)| (id.to_string(), inference(record)))
            .collect();
        json!({ "total_inferences": all.len(), "inferences": all })
    })
}

fn inference(record: &Inference) -> Value {
    let validated_by: Vec<u32> = record.validated_by.iter().copied().collect();
    let validated_by = if validated_by.is_empty() { Value::Null } else { validated_by.into() };
    json!({
        "actual_cost": record.actual_cost,
        "confirmed_at": record.confirmed_at,
        "executor_slot": record.executor_slot,
        "input_length": record.input_length,
        "input_tokens": record.input_tokens,
        "max_tokens": record.max_tokens,
        "model": record.model,
        "output_tokens": record.output_tokens,
        "prompt_hash": hex::encode(&record.prompt_hash),
        "reserved_cost": record.reserved_cost,
        "response_hash": hex::encode(&record.response_hash),
        "started_at": record.started_at,
        "status": record.status.name(),
        "validated_by": validated_by,
        "votes_invalid": record.votes.invalid,
        "votes_valid": record.votes.valid,
    })
}

/// Signed weight by nonce.
pub fn signatures(escrow: &Escrow) -> Value {
    let total = escrow.by_slot.len();
    let weights = escrow.signature_weights();
    let enough = |weight: u64| weight >= quorum(total) as u64;
    let highest = weights.iter().rev().find(|(_, weight)| enough(**weight)).map_or(0, |(nonce, _)| *nonce);
    let nonces: Vec<Value> = weights
        .iter()
        .map(|(nonce, weight)| {
            json!({ "nonce": nonce, "sig_weight": weight, "total_slots": total, "has_quorum": enough(*weight) })
        })
        .collect();
    json!({
        "current_nonce": escrow.with_state(Session::nonce),
        "total_slots": total,
        "quorum_threshold": quorum(total),
        "highest_quorum_nonce": highest,
        "has_quorum": highest > 0,
        "nonces": nonces,
    })
}

/// A request's accounting, joined with the live state.
pub fn request(escrow: &Escrow, id: &str, found: &Found) -> Value {
    match found {
        Found::Race(row) => race(escrow, id, row),
        Found::Alias { source_request_id, source_escrow_id, created_ns } => json!({
            "request_id": id,
            "escrow_id": escrow.id(),
            "outcome": "cached",
            "decision": "cache_hit",
            "cached_from_request_id": source_request_id,
            "cached_from_escrow_id": source_escrow_id,
            "attempts": [],
            "cost": costs(0, 0),
            "started_at": time_of(*created_ns),
            "completed_at": time_of(*created_ns),
        }),
    }
}

fn race(escrow: &Escrow, id: &str, row: &RequestRow) -> Value {
    let mut entry = Map::new();
    entry.insert("request_id".into(), id.into());
    entry.insert("escrow_id".into(), escrow.id().into());
    entry.insert("model".into(), row.model.clone().into());
    entry.insert("outcome".into(), row.outcome.clone().into());
    if !row.decision.is_empty() {
        entry.insert("decision".into(), row.decision.clone().into());
    }
    let (mut won, mut others) = (0, 0);
    let mut attempts = Vec::new();
    for attempt in &row.attempts {
        let live = escrow.with_state(|state| state.live().get(&attempt.nonce).cloned());
        let is_winner = row.winner_nonce == attempt.nonce;
        let cost = live.as_ref().map_or(0, |record| record.actual_cost);
        *(if is_winner { &mut won } else { &mut others }) += cost;
        attempts.push(joined(attempt, is_winner, live.as_ref()));
    }
    if row.winner_nonce > 0 {
        entry.insert("winner_nonce".into(), row.winner_nonce.into());
        if let Some(winner) = attempts.iter().find(|attempt| attempt["winner"] == true) {
            entry.insert("winner".into(), winner.clone());
        }
    }
    entry.insert("attempts".into(), attempts.into());
    entry.insert("cost".into(), costs(won, others));
    entry.insert("started_at".into(), time_of(row.started_ns).into());
    if let Some(completed_ns) = row.completed_ns {
        entry.insert("completed_at".into(), time_of(completed_ns).into());
    }
    Value::Object(entry)
}

fn costs(winner: u64, others: u64) -> Value {
    json!({
        "winner_actual_cost": winner,
        "other_attempts_actual_cost": others,
        "all_attempts_actual_cost": winner + others,
    })
}

/// Zeros of joined fields are left out, as in the real answer.
fn joined(attempt: &AttemptRow, is_winner: bool, live: Option<&Inference>) -> Value {
    let mut entry = Map::new();
    entry.insert("nonce".into(), attempt.nonce.into());
    entry.insert("host_idx".into(), attempt.host_idx.into());
    entry.insert("participant_key".into(), attempt.participant_key.clone().into());
    entry.insert("probe".into(), false.into());
    entry.insert("winner".into(), is_winner.into());
    entry.insert("status".into(), live.map_or("not_in_state", |record| record.status.name()).into());
    if let Some(record) = live {
        entry.insert("model".into(), record.model.clone().into());
        let fields = [
            ("executor_slot", u64::from(record.executor_slot)),
            ("input_length", record.input_length),
            ("max_tokens", record.max_tokens),
            ("input_tokens", record.input_tokens),
            ("output_tokens", record.output_tokens),
            ("reserved_cost", record.reserved_cost),
            ("actual_cost", record.actual_cost),
            ("started_at", record.started_at.unsigned_abs()),
            ("confirmed_at", record.confirmed_at.unsigned_abs()),
        ];
        for (name, value) in fields.into_iter().filter(|(_, value)| *value > 0) {
            entry.insert(name.into(), value.into());
        }
    }
    entry.insert("created_at".into(), time_of(attempt.created_ns).into());
    Value::Object(entry)
}

/// `/v1/debug/memstats`. This program is not Go: what has no like here is 0.
pub fn memstats(gateway: &Gateway) -> Value {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let page = |place: usize| {
        let pages = pages.split_whitespace().nth(place).and_then(|text| text.parse::<u64>().ok());
        pages.unwrap_or(0).saturating_mul(4096)
    };
    let (size, resident) = (page(0), page(1));
    let races = gateway.residents().iter().map(|one| one.cleanups.load(Ordering::Acquire)).sum::<u64>();
    json!({
        "gc_cpu_fraction": 0.0,
        "heap_alloc": resident,
        "heap_idle": 0,
        "heap_inuse": resident,
        "heap_objects": 0,
        "heap_released": 0,
        "heap_sys": size,
        "loaded_runtimes": gateway.residents().len(),
        "next_gc": 0,
        "num_gc": 0,
        "num_goroutine": races,
        "stack_inuse": 0,
        "sys": size,
    })
}

/// List of models.
pub fn models(gateway: &Gateway) -> Value {
    let model = &gateway.config.model;
    let (_, cap) = gateway.settings().tokens_of(model);
    let text = json!(["text"]);
    json!({
        "object": "list",
        "data": [{
            "id": model,
            "object": "model",
            "created": clock::unix_s(),
            "owned_by": "gonka",
            "name": model,
            "description": "Model of the reference gateway.",
            "context_length": cap,
            "max_completion_tokens": cap,
            "architecture": {
                "modality": "text->text",
                "input_modalities": text,
                "output_modalities": text,
                "tokenizer": "Other",
            },
            "pricing": { "prompt": "0", "completion": "0", "request": "0" },
            "top_provider": { "context_length": cap, "max_completion_tokens": cap, "is_moderated": false },
            "supported_parameters": ["messages", "max_tokens", "stream", "temperature", "top_p", "stop"],
            "input_modalities": text,
            "output_modalities": text,
        }],
    })
}
