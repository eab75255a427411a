//! HTTP face of the allocator: versions for versiond, epochs for the gateway (contract mocks 4.4, 4.5, 4.7).

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use scenario::control::{EpochPhase, Oracle, OracleParticipant, OracleVersion};
use serde_json::{Value, json};

use crate::dapi::shared::Shared;

/// Heights of the captured document of epoch 1 (fixture wire-july, `gateway-to-dapi`); each epoch moves them on.
const EPOCH_LENGTH: u64 = 400;

/// Routes of the `http` listener.
pub fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/versions", get(versions))
        .route("/v1/epochs/latest", get(latest_epoch))
        .route("/v1/epochs/current/participants", get(participants))
        .with_state(shared)
}

/// The July keys, and beside them those that newer readers want. With an override path neither URL nor checksum is
/// used. The revision grows with every replacement of the configuration, so that a catalog reader sees a change.
async fn versions(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let named = shared.core().config().oracle.versions.clone();
    let entry = |version: &OracleVersion| json!({ "name": version.name, "binary": version.binary, "sha256": version.sha256 });
    let versions: Vec<Value> =
        if named.is_empty() { vec![built_in()] } else { named.iter().map(entry).collect() };
    Json(json!({ "schema": 1, "initialized": true, "revision": shared.revision(), "versions": versions }))
}

/// The entry of the captured document.
fn built_in() -> Value {
    json!({ "name": "v2", "binary": "file:///opt/devshard/devshardd", "sha256": "0".repeat(64) })
}

async fn latest_epoch(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let core = shared.core();
    Json(epoch_document(core.runtime().1.epoch, &core.config().oracle))
}

/// An empty list keeps the gateway's weight limiter off (fixture wire-july, gotcha 8).
async fn participants(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let core = shared.core();
    let model = &core.runtime().1.model;
    let entry = |listed: &OracleParticipant| {
        let node =
            json!({ "node_id": "node", "timeslot_allocation": [true, false], "poc_weight": listed.weight });
        json!({
            "index": listed.address,
            "inference_url": listed.inference_url,
            "weight": listed.weight,
            "models": [model],
            "ml_nodes": [{ "ml_nodes": [node] }],
        })
    };
    let list: Vec<Value> = core.config().oracle.participants.iter().map(entry).collect();
    Json(json!({ "active_participants": { "participants": list } }))
}

/// The phase document of an epoch. Numbers travel as text. Rotation of escrows waits for `block_height` to come near
/// the switch heights and for the index to change after them (contract mocks 4.7).
fn epoch_document(epoch: u64, oracle: &Oracle) -> Value {
    let moved = EPOCH_LENGTH.saturating_mul(epoch.saturating_sub(1));
    let height = |first: u64| first.saturating_add(moved).to_string();
    json!({
        "block_height": oracle.block_height.map_or_else(|| height(150), |height| height.to_string()),
        "phase": oracle.phase.unwrap_or(EpochPhase::Inference),
        "latest_epoch": { "index": epoch.to_string(), "poc_start_block_height": height(100) },
        "epoch_stages": {
            "epoch_index": epoch.to_string(),
            "set_new_validators": height(180),
            "next_poc_start": height(200),
        },
        "next_epoch_stages": {
            "epoch_index": epoch.saturating_add(1).to_string(),
            "set_new_validators": height(600),
        },
        "is_confirmation_poc_active": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_epoch_is_the_captured_document() {
        let captured = r#"{"block_height":"150","epoch_stages":{"epoch_index":"1","next_poc_start":"200","set_new_validators":"180"},"is_confirmation_poc_active":false,"latest_epoch":{"index":"1","poc_start_block_height":"100"},"next_epoch_stages":{"epoch_index":"2","set_new_validators":"600"},"phase":"Inference"}"#;
        let captured: Value = serde_json::from_str(captured).expect("captured JSON");
        assert_eq!(epoch_document(1, &Oracle::default()), captured);
        assert_eq!(epoch_document(2, &Oracle::default())["latest_epoch"]["poc_start_block_height"], "500");
        let near =
            Oracle { block_height: Some(979), phase: Some(EpochPhase::PoCGenerate), ..Oracle::default() };
        let document = epoch_document(2, &near);
        assert_eq!((&document["block_height"], &document["phase"]), (&json!("979"), &json!("PoCGenerate")));
    }
}
