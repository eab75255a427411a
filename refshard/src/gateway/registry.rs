//! Escrows that come and go while the gateway runs: add, import, create on the chain, delete (contract gateway
//! 2.4.8). The key has been checked.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use serde_json::{Value, json};
use wire::proto::inference::MsgCreateDevshardEscrow;

use super::respond::{self, Answer};
use super::store::Store;
use super::{Gateway, GatewayError, admin, shapes};
use crate::clock;

fn refuse(status: StatusCode, text: &str) -> Answer {
    respond::error(status, text)
}

/// A JSON object, and its `id` where one is named.
fn request(body: &[u8]) -> Result<(Value, Option<u64>), String> {
    let request: Value = serde_json::from_slice(body).map_err(|error| format!("parse request: {error}"))?;
    if !request.is_object() {
        return Err("parse request: a JSON object is expected".to_owned());
    }
    // Ids come as text or as numbers.
    let id = &request["id"];
    let id = id.as_u64().or_else(|| id.as_str()?.parse().ok());
    Ok((request, id))
}

/// The one key there is signs for every escrow, so a request may name no other.
fn foreign_key(gateway: &Gateway, request: &Value) -> Option<Answer> {
    let named = request.get("private_key_env").and_then(Value::as_str);
    let hex = request.get("private_key").and_then(Value::as_str);
    let own_name = named.is_none_or(|name| name.is_empty() || name == super::CREATOR_KEY_VARIABLE);
    let own_key = hex.is_none_or(|hex| {
        hex.is_empty()
            || crate::signing::Signer::from_hex(hex)
                .is_ok_and(|signer| signer.address() == gateway.keys.creator.address())
    });
    let text = "this gateway signs with the key of its environment alone";
    (!own_name || !own_key).then(|| refuse(StatusCode::BAD_REQUEST, text))
}

/// Status for an escrow that could not be taken in.
fn failed(error: &GatewayError) -> Answer {
    let status = match error {
        GatewayError::Chain(_) | GatewayError::Session { .. } => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    refuse(status, &error.to_string())
}

/// `POST /v1/admin/devshards`: an escrow of the chain, new here or inactive.
pub async fn add(gateway: &Arc<Gateway>, body: &[u8]) -> Answer {
    let (request, id) = match request(body) {
        Ok((request, Some(id))) => (request, id),
        Ok((_, None)) => return refuse(StatusCode::BAD_REQUEST, "id is required"),
        Err(text) => return refuse(StatusCode::BAD_REQUEST, &text),
    };
    if let Some(answer) = foreign_key(gateway, &request) {
        return answer;
    }
    if gateway.resident(&id.to_string()).is_some_and(|escrow| escrow.active.load(Ordering::Acquire)) {
        return refuse(StatusCode::CONFLICT, "devshard already active");
    }
    match gateway.adopt(id, request.get("model").and_then(Value::as_str)).await {
        Err(error) => failed(&error),
        Ok(model) => respond::ok(&json!({
            "active": true,
            "id": id.to_string(),
            "model": model,
            "storage_path": shapes::storage_path(gateway, &id.to_string()),
        })),
    }
}

/// `POST /v1/admin/devshards/import`: like add, with steps and signatures out of another gateway's database.
pub async fn import(gateway: &Arc<Gateway>, body: &[u8]) -> Answer {
    let (request, id) = match request(body) {
        Ok((request, Some(id))) => (request, id),
        Ok((_, None)) => return refuse(StatusCode::BAD_REQUEST, "id is required"),
        Err(text) => return refuse(StatusCode::BAD_REQUEST, &text),
    };
    if let Some(answer) = foreign_key(gateway, &request) {
        return answer;
    }
    let text = |name: &str| request.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let Some(path) = text("storage_path") else {
        return refuse(StatusCode::BAD_REQUEST, "storage_path is required");
    };
    let id_text = id.to_string();
    match gateway.store.find(&id_text) {
        Ok(None) => {}
        Ok(Some(_)) => return refuse(StatusCode::CONFLICT, "devshard already registered"),
        Err(error) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
    let copied = Store::open(Path::new(path)).and_then(|from| gateway.store.copy_session(&from, &id_text));
    if let Err(error) = copied {
        return refuse(StatusCode::BAD_REQUEST, &format!("import {path}: {error}"));
    }
    let (mut records, mut attempts) = (0, 0);
    if let Some(perf) = text("perf_path") {
        match gateway.accounting.import(Path::new(perf), &id_text) {
            Ok(imported) => (records, attempts) = imported,
            Err(error) => return refuse(StatusCode::BAD_REQUEST, &format!("import {perf}: {error}")),
        }
    }
    let model = match gateway.adopt(id, text("model")).await {
        Ok(model) => model,
        Err(error) => return failed(&error),
    };
    let active = request.get("active").and_then(Value::as_bool).unwrap_or(false);
    if !active {
        gateway.deactivate(&id_text);
    }
    respond::ok(&json!({
        "accounting_attempts_imported": attempts,
        "accounting_records_imported": records,
        "active": active,
        "id": id_text,
        "model": model,
        "perf_path": text("perf_path").unwrap_or_default(),
        "storage_path": path,
    }))
}

/// `DELETE /v1/admin/devshards/{id}`.
pub fn delete(gateway: &Gateway, id: &str) -> Answer {
    match gateway.store.find(id) {
        Ok(Some(row)) => {
            if row.active {
                let text = format!("devshard {id} is active; deactivate it first");
                return refuse(StatusCode::CONFLICT, &text);
            }
        }
        Ok(None) => return refuse(StatusCode::NOT_FOUND, &format!("unknown devshard {id}")),
        Err(error) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
    if gateway.resident(id).is_some_and(|escrow| escrow.is_busy()) {
        return refuse(StatusCode::CONFLICT, &format!("devshard {id} has active requests"));
    }
    if let Some(escrow) = gateway.resident(id) {
        gateway.retire(&escrow);
    }
    gateway.forget_read(id);
    match gateway.store.remove(id) {
        Ok(()) => respond::ok(&json!({ "deleted": true, "id": id })),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// `POST /v1/admin/escrows`: opens an escrow on the chain and, unless told otherwise, serves it.
pub async fn create(gateway: &Arc<Gateway>, body: &[u8]) -> Answer {
    let request = match request(body) {
        Ok((request, _)) => request,
        Err(text) => return refuse(StatusCode::BAD_REQUEST, &text),
    };
    if let Some(answer) = foreign_key(gateway, &request) {
        return answer;
    }
    let Some(amount) = request.get("amount").and_then(Value::as_u64).filter(|amount| *amount > 0) else {
        return refuse(StatusCode::BAD_REQUEST, "amount is required");
    };
    let creator = gateway.keys.creator.address().to_owned();
    let named = request.get("model_id").and_then(Value::as_str).filter(|model| !model.is_empty());
    let model = named.map_or_else(|| gateway.settings().default_model.clone(), str::to_owned);
    let message = MsgCreateDevshardEscrow { creator: creator.clone(), amount, model_id: model.clone() };
    let created = gateway.chain.create(&message, &gateway.keys.creator_tx, admin::now()).await;
    let (escrow_id, tx_hash) = match created {
        Ok(created) => created,
        Err(error) => return refuse(StatusCode::BAD_GATEWAY, &error.to_string()),
    };
    let mut answer = json!({
        "creator": creator,
        "escrow_id": escrow_id,
        "registered": false,
        "tx_hash": tx_hash,
    });
    if request.get("register").and_then(Value::as_bool) == Some(false) {
        return respond::ok(&answer);
    }
    match gateway.adopt(escrow_id, Some(&model)).await {
        Ok(model) => {
            let id = escrow_id.to_string();
            answer["storage_path"] = shapes::storage_path(gateway, &id).into();
            answer["id"] = id.into();
            answer["model"] = model.into();
            answer["registered"] = true.into();
            respond::ok(&answer)
        }
        Err(error) => {
            // It exists on the chain: whoever cleans up must learn its number.
            let error = format!("escrow created but not registered: {error}");
            let document = json!({
                "error": { "message": error },
                "escrow_id": escrow_id,
                "tx_hash": answer["tx_hash"],
            });
            respond::json_error(StatusCode::INTERNAL_SERVER_ERROR, &document)
        }
    }
}

impl Gateway {
    /// Takes an escrow of the chain in and serves it. Returns its model.
    ///
    /// # Errors
    /// When the chain does not know it, it is another user's, or its stored session does not fit.
    pub(super) async fn adopt(&self, id: u64, model: Option<&str>) -> Result<String, GatewayError> {
        self.register(id, model).await?;
        let text = id.to_string();
        self.store.set_active(&text, true, clock::unix_ns())?;
        let missing = || GatewayError::Session { escrow: text.clone(), reason: "it was removed".to_owned() };
        let row = self.store.find(&text)?.ok_or_else(missing)?;
        match self.resident(&text) {
            Some(escrow) => escrow.active.store(true, Ordering::Release),
            None => drop(self.admit(&row)?),
        }
        Ok(row.model)
    }
}
