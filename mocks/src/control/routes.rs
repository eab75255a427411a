//! The control listener's routes, the same for every mock.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use scenario::control::{ConfigApplied, ControlError, Hit, MockConfig, Page};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use super::Mock;

/// Largest configuration that is read.
const CONFIG_BYTES_MAX: usize = 16 << 20;
/// Entries of a page when the reader names no number.
const PAGE_DEFAULT: usize = 1_000;

struct Control<M> {
    mock: Arc<M>,
    /// Configurations applied, the first included. Held during a replacement, so that the hash and the revision of
    /// one answer belong together.
    revision: Mutex<u64>,
}

type Shared<M> = State<Arc<Control<M>>>;

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Range {
    after: u64,
    limit: usize,
}

impl Default for Range {
    fn default() -> Self {
        Self { after: 0, limit: PAGE_DEFAULT }
    }
}

/// Routes of the `control` listener of a mock.
pub fn routes<M: Mock>(mock: Arc<M>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(metrics::<M>))
        .route("/control/v1/config", get(config::<M>).put(replace::<M>))
        .route("/control/v1/hits", get(hits::<M>))
        .route("/control/v1/calls", get(calls::<M>))
        .route("/control/v1/stats", get(stats::<M>))
        .route("/control/v1/act", post(act::<M>))
        .layer(DefaultBodyLimit::max(CONFIG_BYTES_MAX))
        .with_state(Arc::new(Control { mock, revision: Mutex::new(1) }))
}

async fn metrics<M: Mock>(State(control): Shared<M>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], control.mock.metrics()).into_response()
}

async fn config<M: Mock>(State(control): Shared<M>) -> Json<MockConfig> {
    Json(control.mock.config())
}

async fn replace<M: Mock>(State(control): Shared<M>, body: Bytes) -> Response {
    let config: MockConfig = match serde_json::from_slice(&body) {
        Ok(config) => config,
        Err(error) => return refuse(format!("the body is no mock configuration: {error}")),
    };
    let mut revision = control.revision.lock().await;
    let hash = config.hash();
    match control.mock.put(config) {
        Ok(()) => {
            *revision += 1;
            Json(ConfigApplied { hash, revision: *revision }).into_response()
        }
        Err(error) => refuse(error),
    }
}

async fn hits<M: Mock>(State(control): Shared<M>, Query(range): Query<Range>) -> Json<Page<Hit>> {
    Json(control.mock.hits(range.after, range.limit))
}

async fn calls<M: Mock>(State(control): Shared<M>, Query(range): Query<Range>) -> Json<Page<M::Call>> {
    Json(control.mock.calls(range.after, range.limit))
}

async fn stats<M: Mock>(State(control): Shared<M>) -> Json<M::Stats> {
    Json(control.mock.stats())
}

async fn act<M: Mock>(State(control): Shared<M>, body: Bytes) -> Response {
    let act = match serde_json::from_slice(&body) {
        Ok(act) => act,
        Err(error) => return refuse(format!("the body is no admin action: {error}")),
    };
    match Arc::clone(&control.mock).act(act).await {
        Ok(()) => Json(json!({ "ok": true })).into_response(),
        Err(error) => refuse(error),
    }
}

fn refuse(error: String) -> Response {
    (StatusCode::BAD_REQUEST, Json(ControlError { error })).into_response()
}
