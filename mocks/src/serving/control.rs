//! The control listener (design section 8, types in `scenario::control`): one router for any mock.

use std::future::Future;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use scenario::control::{ChainAct, ConfigApplied, ControlError, Hit, MockConfig, Page};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Mutex;

/// Largest configuration that is read.
const CONFIG_MAX: usize = 16 << 20;

/// A mock as the control listener sees it.
pub trait Controlled: Send + Sync + 'static {
    /// Entry of its call log.
    type Call: Serialize;
    /// Its counters.
    type Stats: Serialize;

    /// Replaces the configuration, or changes nothing.
    ///
    /// # Errors
    /// Why it was refused.
    fn put(&self, config: MockConfig) -> Result<(), String>;
    /// The configuration in force.
    fn get(&self) -> MockConfig;
    /// Part of the hit log.
    fn hits(&self, after: u64, limit: usize) -> Page<Hit>;
    /// Part of the call log.
    fn calls(&self, after: u64, limit: usize) -> Page<Self::Call>;
    /// Counters.
    fn stats(&self) -> Self::Stats;
    /// Prometheus text.
    fn metrics(&self) -> String;
    /// An admin action.
    ///
    /// # Errors
    /// Why it can't be done; the default has none.
    fn act(self: Arc<Self>, _: ChainAct) -> impl Future<Output = Result<(), String>> + Send {
        async { Err("this mock has no actions".to_owned()) }
    }
}

struct Control<M> {
    mock: Arc<M>,
    /// Held while a configuration is replaced, so that hash and revision of an answer belong together.
    revision: Mutex<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Range {
    after: u64,
    limit: usize,
}

impl Default for Range {
    fn default() -> Self {
        Self { after: 0, limit: 1_000 }
    }
}

/// Routes of the `control` listener.
pub fn routes<M: Controlled>(mock: Arc<M>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(metrics::<M>))
        .route("/control/v1/config", get(config::<M>).put(replace::<M>))
        .route("/control/v1/hits", get(hits::<M>))
        .route("/control/v1/calls", get(calls::<M>))
        .route("/control/v1/stats", get(stats::<M>))
        .route("/control/v1/act", post(act::<M>))
        .layer(DefaultBodyLimit::max(CONFIG_MAX))
        .with_state(Arc::new(Control { mock, revision: Mutex::new(1) }))
}

type Shared<M> = State<Arc<Control<M>>>;

async fn metrics<M: Controlled>(State(control): Shared<M>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], control.mock.metrics()).into_response()
}

async fn config<M: Controlled>(State(control): Shared<M>) -> Json<MockConfig> {
    Json(control.mock.get())
}

async fn replace<M: Controlled>(State(control): Shared<M>, body: Bytes) -> Response {
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

async fn hits<M: Controlled>(State(control): Shared<M>, Query(range): Query<Range>) -> Json<Page<Hit>> {
    Json(control.mock.hits(range.after, range.limit))
}

async fn calls<M: Controlled>(State(control): Shared<M>, Query(range): Query<Range>) -> Json<Page<M::Call>> {
    Json(control.mock.calls(range.after, range.limit))
}

async fn stats<M: Controlled>(State(control): Shared<M>) -> Json<M::Stats> {
    Json(control.mock.stats())
}

async fn act<M: Controlled>(State(control): Shared<M>, body: Bytes) -> Response {
    let act: ChainAct = match serde_json::from_slice(&body) {
        Ok(act) => act,
        Err(error) => return refuse(format!("the body is no action: {error}")),
    };
    match Arc::clone(&control.mock).act(act).await {
        Ok(()) => Json(json!({ "ok": true })).into_response(),
        Err(error) => refuse(error),
    }
}

fn refuse(error: String) -> Response {
    (StatusCode::BAD_REQUEST, Json(ControlError { error })).into_response()
}
