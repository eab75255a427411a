//! Paths, methods and keys: which handler answers (contract gateway 2.1 to 2.3).

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::json;

use super::Gateway;
use super::normalize::BODY_MAX;
use super::respond::{self, Answer};
use super::{admin, chat, openapi, reads};
use crate::clock;

const PREFIX_NEEDED: &str =
    "use /devshard/{id} prefix for this endpoint when multiple devshards are configured";

impl Gateway {
    /// Whether the request bears the admin key. The scheme is compared byte for byte.
    pub fn is_admin(&self, headers: &HeaderMap) -> bool {
        self.keys.admin.as_deref().is_some_and(|key| bearer(headers) == Some(key))
    }

    /// Whether the request bears a client key.
    pub fn has_api_key(&self, headers: &HeaderMap) -> bool {
        bearer(headers).is_some_and(|key| self.keys.api.iter().any(|known| known == key))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

/// A request with its body in memory.
#[derive(Debug)]
pub struct Incoming {
    pub method: Method,
    pub query: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Incoming {
    /// GET or HEAD.
    pub fn reads(&self) -> bool {
        self.method == Method::GET || self.method == Method::HEAD
    }

    /// POST.
    pub fn posts(&self) -> bool {
        self.method == Method::POST
    }
}

/// Answers every request.
pub async fn handle(State(gateway): State<Arc<Gateway>>, request: Request) -> Answer {
    let begun = clock::instant();
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    let answer = match read(request).await {
        Ok(incoming) => route(&gateway, &path, &incoming).await,
        Err(answer) => answer,
    };
    if path != "/metrics" {
        count(&gateway, &path, &method, answer.status(), begun);
    }
    answer
}

async fn read(request: Request) -> Result<Incoming, Answer> {
    let (parts, body) = request.into_parts();
    // One byte more than allowed, so that the check in its place can tell.
    let Ok(body) = to_bytes(body, BODY_MAX + 1).await else {
        return Err(respond::error(StatusCode::PAYLOAD_TOO_LARGE, "request body too large"));
    };
    let query = parts.uri.query().unwrap_or_default().to_owned();
    Ok(Incoming { method: parts.method, query, headers: parts.headers, body })
}

async fn route(gateway: &Arc<Gateway>, path: &str, incoming: &Incoming) -> Answer {
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let inner = match segments.as_slice() {
        ["devshard", _, inner @ ..] => inner,
        all => all,
    };
    let admin_only = matches!(inner, ["v1", "finalize" | "state"] | ["v1", "debug", ..])
        || segments.starts_with(&["v1", "admin"]);
    if admin_only {
        if gateway.keys.admin.is_none() {
            return respond::not_found();
        }
        if !gateway.is_admin(&incoming.headers) {
            return respond::invalid_admin_key();
        }
    } else if gateway.settings().disabled.enabled {
        return disabled(gateway);
    }
    match segments.as_slice() {
        ["v1", "chat", "completions"] => chat::pooled(gateway, &incoming.headers, &incoming.body).await,
        ["v1", "models"] => models(gateway, incoming),
        ["v1", "status"] => reads::status(gateway),
        ["metrics"] => respond::metrics(gateway.render_metrics()),
        ["v1", "admin", rest @ ..] => admin::route(gateway, rest, incoming).await,
        ["v1", "debug", "rotation"] if incoming.reads() => respond::ok(&super::rotation::shape(gateway)),
        ["v1", "debug", "memstats"] if incoming.reads() => respond::ok(&super::shapes::memstats(gateway)),
        ["v1", "debug", "rotation" | "memstats"] => respond::wrong_method(),
        ["v1", "finalize" | "state"] | ["v1", "debug", _] | ["v1", "debug", "signatures", "collect"] => {
            match gateway.residents().as_slice() {
                [only] => reads::route(gateway, only, inner, incoming).await,
                _ => respond::error(StatusCode::BAD_REQUEST, PREFIX_NEEDED),
            }
        }
        ["devshard", id, "v1", ..] | ["devshard", id, "" | "openapi.json"] => {
            in_devshard(gateway, id, inner, incoming).await
        }
        _ => respond::not_found(),
    }
}

async fn in_devshard(gateway: &Arc<Gateway>, id: &str, inner: &[&str], incoming: &Incoming) -> Answer {
    if let Some(escrow) = gateway.resident(id) {
        return match inner {
            ["v1", "chat", "completions"] => {
                chat::in_escrow(gateway, escrow, &incoming.headers, &incoming.body).await
            }
            ["v1", "models"] => respond::of_escrow(models(gateway, incoming), id),
            [""] if incoming.reads() => respond::of_escrow(openapi::page(id), id),
            ["openapi.json"] if incoming.reads() => respond::of_escrow(respond::ok(&openapi::document()), id),
            _ => respond::of_escrow(reads::route(gateway, &escrow, inner, incoming).await, id),
        };
    }
    let unknown = || respond::error(StatusCode::NOT_FOUND, &format!("unknown devshard {id}"));
    let Ok(Some(row)) = gateway.store.find(id) else { return unknown() };
    if inner == ["v1", "models"] {
        return respond::of_escrow(models(gateway, incoming), id);
    }
    if !incoming.reads() {
        return unknown();
    }
    if !gateway.is_admin(&incoming.headers) {
        return if inner == ["v1", "status"] {
            respond::metadata_only(respond::of_escrow(respond::ok(&reads::metadata(&row)), id))
        } else {
            unknown()
        };
    }
    match gateway.load_to_read(&row) {
        Ok(escrow) => {
            let answer = reads::route(gateway, &escrow, inner, incoming).await;
            respond::read_only(respond::of_escrow(answer, id))
        }
        Err(error) => respond::error(StatusCode::BAD_GATEWAY, &format!("load devshard {id}: {error}")),
    }
}

fn models(gateway: &Gateway, incoming: &Incoming) -> Answer {
    if incoming.reads() {
        return respond::ok(&super::shapes::models(gateway));
    }
    let mut answer = respond::error(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    answer
}

fn disabled(gateway: &Gateway) -> Answer {
    let disabled = &gateway.settings().disabled;
    let body = json!({ "status": 308, "message": disabled.message, "new_url": disabled.new_url });
    respond::json_error(StatusCode::PERMANENT_REDIRECT, &body)
}

/// Ids are taken out of the path, so that the number of series stays bounded.
fn count(gateway: &Gateway, path: &str, method: &Method, status: StatusCode, begun: Instant) {
    let mut segments: Vec<&str> = path.split('/').skip(1).collect();
    for place in 1..segments.len() {
        if matches!(segments[place - 1], "devshard" | "devshards" | "requests") {
            segments[place] = "{id}";
        }
    }
    let known = matches!(segments.first(), Some(&("v1" | "devshard")));
    let path =
        if known && segments.len() <= 8 { format!("/{}", segments.join("/")) } else { "other".to_owned() };
    let path =
        if status == StatusCode::NOT_FOUND && !path.contains("{id}") { "other".to_owned() } else { path };
    let labels = [("path", path.as_str()), ("method", method.as_str())];
    let took_s = clock::instant().duration_since(begun).as_secs_f64();
    gateway.metrics.observe("devshard_http_request_duration_seconds", &labels, took_s);
    let labels = [labels[0], labels[1], ("status", status.as_str())];
    gateway.metrics.count("devshard_http_requests_total", &labels);
}
