//! CometBFT RPC over HTTP (contract mocks 5.4): `health`, `status`, `block`, by GET and by JSON-RPC, and the upgrade
//! to a websocket.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::chain::shared::Shared;
use crate::chain::websocket;

/// Largest JSON-RPC body or frame; a subscription has some hundred bytes.
const MESSAGE_MAX: usize = 64 << 10;

#[derive(Debug, Default, Deserialize)]
struct BlockQuery {
    height: Option<String>,
}

/// Routes of the `rpc` listener.
pub fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(|| async { "health, status, block, websocket" }).post(call))
        .route("/health", get(health))
        .route("/status", get(status))
        .route("/block", get(block))
        .route("/websocket", get(upgrade))
        .layer(DefaultBodyLimit::max(MESSAGE_MAX))
        .with_state(shared)
}

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    respond(&shared, &json!(-1), Ok(json!({})))
}

async fn status(State(shared): State<Arc<Shared>>) -> Response {
    respond(&shared, &json!(-1), Ok(status_of(&shared)))
}

async fn block(State(shared): State<Arc<Shared>>, query: Query<BlockQuery>) -> Response {
    respond(&shared, &json!(-1), block_of(&shared, query.height.as_deref()))
}

async fn call(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let Ok(ask) = serde_json::from_slice::<Value>(&body) else {
        let error = json!({ "code": -32700, "message": "Parse error" });
        return Json(json!({ "jsonrpc": "2.0", "id": null, "error": error })).into_response();
    };
    let result = match ask["method"].as_str() {
        Some("health") => Ok(json!({})),
        Some("status") => Ok(status_of(&shared)),
        Some("block") => block_of(&shared, ask["params"]["height"].as_str()),
        _ => Err(json!({ "code": -32601, "message": "Method not found" })),
    };
    respond(&shared, &ask["id"], result)
}

/// An error of a method is status 500 on GET and 200 for an unknown method, as captured.
fn respond(shared: &Shared, id: &Value, result: Result<Value, Value>) -> Response {
    if shared.core().in_outage() {
        return (StatusCode::SERVICE_UNAVAILABLE, "outage by a fault rule").into_response();
    }
    match result {
        Ok(result) => Json(json!({ "jsonrpc": "2.0", "id": id, "result": result })).into_response(),
        Err(error) => {
            let unknown = error["code"] == json!(-32601);
            let status = if unknown { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
            (status, Json(json!({ "jsonrpc": "2.0", "id": id, "error": error }))).into_response()
        }
    }
}

fn status_of(shared: &Shared) -> Value {
    let core = shared.core();
    let saved = core.ledger.saved();
    json!({
        "node_info": {
            "id": "mockchain000000000000000000000000000000",
            "network": saved.chain_id,
            "version": "0.38.21",
            "moniker": "mock-chain",
        },
        "sync_info": { "latest_block_height": saved.height.to_string(), "catching_up": false },
    })
}

fn block_of(shared: &Shared, height: Option<&str>) -> Result<Value, Value> {
    let core = shared.core();
    let saved = core.ledger.saved();
    let height = match height {
        None => Some(saved.height),
        Some(text) => text.trim_matches('"').parse().ok(),
    };
    match height.filter(|height| (1..=saved.height).contains(height)) {
        Some(height) => Ok(json!({ "block": { "header": header_of(&saved.chain_id, height) } })),
        None => {
            let data = format!("blocks 1 to {} exist", saved.height);
            Err(json!({ "code": -32603, "message": "Internal error", "data": data }))
        }
    }
}

/// The part of a block header that anyone reads.
#[must_use]
pub fn header_of(chain_id: &str, height: u64) -> Value {
    json!({ "chain_id": chain_id, "height": height.to_string() })
}

/// Takes the connection over as a websocket. Written by hand over the upgrade so that the server, not a library,
/// decides how a connection ends: cut, or closed with a code.
async fn upgrade(State(shared): State<Arc<Shared>>, headers: HeaderMap, mut request: Request) -> Response {
    let token = |name| headers.get(name).and_then(|value: &axum::http::HeaderValue| value.to_str().ok());
    let wanted = token(header::UPGRADE).is_some_and(|value| value.eq_ignore_ascii_case("websocket"));
    let (true, Some(key)) = (wanted, token(header::SEC_WEBSOCKET_KEY)) else {
        return (StatusCode::BAD_REQUEST, "a websocket handshake is needed").into_response();
    };
    if shared.core().in_outage() {
        return (StatusCode::SERVICE_UNAVAILABLE, "outage by a fault rule").into_response();
    }
    let accept = derive_accept_key(key.as_bytes());
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(connection) = upgraded.await else { return };
        let config =
            WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX));
        let socket =
            WebSocketStream::from_raw_socket(TokioIo::new(connection), Role::Server, Some(config)).await;
        websocket::serve(shared, socket).await;
    });
    let head = [
        (header::CONNECTION, "Upgrade".to_owned()),
        (header::UPGRADE, "websocket".to_owned()),
        (header::SEC_WEBSOCKET_ACCEPT, accept),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, head).into_response()
}
