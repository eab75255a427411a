//! The public API of a chain: phase, epoch and weights as a test wants them.

use std::sync::{Arc, Mutex};

use axum::routing::get;
use serde_json::{Value, json};

pub struct PublicApi {
    pub base: String,
    epochs: Arc<Mutex<Value>>,
    weights: Arc<Mutex<Value>>,
}

pub async fn start() -> PublicApi {
    let epochs = Arc::new(Mutex::new(document(150, 1, "Inference")));
    let weights = Arc::new(Mutex::new(json!([])));
    let (shown, weighed) = (epochs.clone(), weights.clone());
    let router = axum::Router::new()
        .route(
            "/v1/epochs/latest",
            get(move || {
                let epochs = shown.lock().unwrap().clone();
                async move { axum::Json(epochs) }
            }),
        )
        .route(
            "/v1/epochs/current/participants",
            get(move || {
                let participants = weighed.lock().unwrap().clone();
                let document = json!({ "active_participants": { "participants": participants } });
                async move { axum::Json(document) }
            }),
        );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    PublicApi { base, epochs, weights }
}

/// An epoch ends 30 blocks after its multiple of 150; numbers travel as text.
fn document(height: u64, epoch: u64, phase: &str) -> Value {
    json!({
        "block_height": height.to_string(), "phase": phase,
        "latest_epoch": { "index": epoch.to_string() },
        "epoch_stages": { "set_new_validators": (30 + 150 * epoch).to_string() },
        "next_epoch_stages": { "set_new_validators": (180 + 150 * epoch + 450).to_string() },
    })
}

impl PublicApi {
    pub fn weigh(&self, keys: &[String], weight: u64) {
        let listed = keys.iter().map(|key| json!({ "index": key, "weight": weight })).collect();
        *self.weights.lock().unwrap() = Value::Array(listed);
    }

    pub fn at(&self, height: u64, epoch: u64) {
        *self.epochs.lock().unwrap() = document(height, epoch, "Inference");
    }

    pub fn phase(&self, phase: &str) {
        *self.epochs.lock().unwrap() = document(150, 1, phase);
    }
}
