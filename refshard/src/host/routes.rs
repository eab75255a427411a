//! The routes of a host, with and without their public prefix (contract hosts 2.2).

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Query as QueryOf, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::routing::{get, post};
use serde_json::Value;

use super::Host;
use super::auth::Refusal;
use super::chat;
use super::reads::{self, Query};
use super::session::HostSession;
use super::track::Operation;
use super::votes;
use crate::clock;
use crate::logline::{Level, LogLine};
use crate::transport::{REQUEST_ID_HEADER, VerifyTimeoutRequest};

/// Largest body that is read. The real host sets no limit; a catch-up of a long session has some megabytes.
const BODY_MAX: usize = 64 << 20;

type Shared = State<Arc<Host>>;

/// The service of `host`.
pub fn router(host: Arc<Host>) -> Router {
    let prefix = host.config.route_prefix.clone();
    let tag = format!("/{}", host.config.protocol_version());
    let mut router = Router::new().merge(routes()).nest(&prefix, routes());
    // Behind a router that takes `/devshard` away, the tag alone is left.
    if tag != prefix {
        router = router.nest(&tag, routes());
    }
    router
        .fallback(|| async { Refusal::new(StatusCode::NOT_FOUND, "Not Found").response() })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(host)
}

fn routes() -> Router<Arc<Host>> {
    Router::new()
        .route("/sessions/{id}/chat/completions", post(chat))
        .route("/sessions/{id}/verify-timeout", post(verify_timeout))
        .route("/sessions/{id}/diffs", get(diffs))
        .route("/sessions/{id}/mempool", get(mempool))
        .route("/sessions/{id}/signatures", get(signatures))
        .route("/sessions/{id}/payloads", get(payloads))
        .route("/stats/shards", get(shards))
        .route("/stats/shards/{id}", get(shard))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
}

async fn chat(
    State(host): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let request_id = request_id(&host, &headers);
    let _operation = Operation::begin(&host, "devshardd.request");
    let response = chat::chat(&host, &id, &request_id, &headers, &body).await;
    with_request_id(response, &request_id)
}

async fn verify_timeout(
    State(host): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    session_read(&host, &id, &headers, "devshardd.handler.verify_timeout", |session| {
        chat::authenticate(&id, &headers, &body, &session.params.creator, &session.params.group)?;
        let request: VerifyTimeoutRequest = serde_json::from_slice(&body)
            .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, format!("invalid request: {error}")))?;
        let vote = votes::vote(session, &host.signer, &request, host.limits(), clock::unix_s())?;
        Ok(serde_json::to_value(vote).expect("a vote is plain data"))
    })
}

async fn diffs(
    State(host): Shared,
    Path(id): Path<String>,
    QueryOf(query): QueryOf<Query>,
    headers: HeaderMap,
) -> Response<Body> {
    session_read(&host, &id, &headers, "devshardd.handler.get_diffs", |session| {
        reads::diffs(&host, session, &query)
    })
}

async fn mempool(State(host): Shared, Path(id): Path<String>, headers: HeaderMap) -> Response<Body> {
    let name = "devshardd.handler.get_mempool";
    session_read(&host, &id, &headers, name, |session| Ok(reads::mempool(session)))
}

async fn signatures(
    State(host): Shared,
    Path(id): Path<String>,
    QueryOf(query): QueryOf<Query>,
    headers: HeaderMap,
) -> Response<Body> {
    session_read(&host, &id, &headers, "devshardd.handler.get_signatures", |session| {
        reads::signatures(&host, session, &query)
    })
}

async fn payloads(
    State(host): Shared,
    Path(id): Path<String>,
    QueryOf(query): QueryOf<Query>,
    headers: HeaderMap,
) -> Response<Body> {
    session_read(&host, &id, &headers, "devshardd.request", |session| {
        reads::payloads(&host, session, &headers, &query)
    })
}

async fn shards(State(host): Shared) -> Response<Body> {
    json_response(&reads::shards(&host))
}

async fn shard(State(host): Shared, Path(id): Path<String>) -> Response<Body> {
    // A settled session is gone for statistics, whatever the database still knows of it.
    let known = host.session(&id).filter(|_| !host.store.is_settled(&id).unwrap_or(false));
    match known {
        Some(session) => {
            refresh(&host, &session);
            json_response(&reads::shard(&host, &session))
        }
        None => Refusal::new(StatusCode::NOT_FOUND, "shard not found").response(),
    }
}

async fn healthz(State(host): Shared) -> Response<Body> {
    if host.unwell_until.get().is_some_and(|until| clock::instant() < *until) {
        return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unwell").response();
    }
    axum::response::IntoResponse::into_response("ok")
}

async fn metrics(State(host): Shared) -> Response<Body> {
    let mut response = Response::new(Body::from(reads::metrics(&host)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// A route about one known session. Reading never makes one: only a chat of its owner does.
fn session_read(
    host: &Arc<Host>,
    escrow_id: &str,
    headers: &HeaderMap,
    operation: &'static str,
    read: impl FnOnce(&Arc<HostSession>) -> Result<Value, Refusal>,
) -> Response<Body> {
    let mut operation = Operation::begin(host, operation);
    let result = match host.session(escrow_id) {
        Some(session) => {
            refresh(host, &session);
            read(&session)
        }
        None => Err(Refusal::new(StatusCode::NOT_FOUND, "session not found")),
    };
    let response = match result {
        Ok(value) => json_response(&value),
        Err(refusal) => {
            operation.fail();
            refusal.response()
        }
    };
    with_request_id(response, &request_id(host, headers))
}

/// A read shows what every replica has done; one that cannot be brought up to date shows what it knows.
fn refresh(host: &Host, session: &HostSession) {
    if host.has_replicas()
        && let Err(error) = session.refresh()
    {
        LogLine::new(Level::Warn, "session not refreshed")
            .field("escrow_id", &session.params.escrow_id)
            .field("error", error)
            .emit();
    }
}

fn json_response(value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn request_id(host: &Host, headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID_HEADER).and_then(|value| value.to_str().ok());
    match given.filter(|id| !id.is_empty() && id.len() <= 256) {
        Some(id) => id.to_owned(),
        None => host.request_ids.next(clock::unix_ns()),
    }
}

fn with_request_id(mut response: Response<Body>, id: &str) -> Response<Body> {
    if let Ok(value) = HeaderValue::from_str(id) {
        response.headers_mut().insert(REQUEST_ID_HEADER, value);
    }
    response
}
