//! HTTP face of the allocator: versions for versiond, epochs for the gateway (contract mocks 4.4, 4.5, 4.7).

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
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
/// used.
async fn versions() -> Json<Value> {
    let entry = json!({
        "name": "v2",
        "binary": "file:///opt/devshard/devshardd",
        "sha256": "0".repeat(64),
    });
    Json(json!({ "schema": 1, "initialized": true, "revision": 1, "versions": [entry] }))
}

async fn latest_epoch(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let epoch = shared.core().runtime().1.epoch;
    Json(epoch_document(epoch))
}

/// An empty list keeps the gateway's weight limiter off (fixture wire-july, gotcha 8).
async fn participants() -> Json<Value> {
    Json(json!({ "active_participants": { "participants": [] } }))
}

/// The phase document of an epoch. Numbers travel as text.
fn epoch_document(epoch: u64) -> Value {
    let moved = EPOCH_LENGTH.saturating_mul(epoch.saturating_sub(1));
    let height = |first: u64| first.saturating_add(moved).to_string();
    json!({
        "block_height": height(150),
        "phase": "Inference",
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
        assert_eq!(epoch_document(1), captured);
        assert_eq!(epoch_document(2)["latest_epoch"]["poc_start_block_height"], "500");
    }
}
