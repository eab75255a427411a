//! `POST /sessions/:id/chat/completions`: steps in, receipt out, execution behind it.
//!
//! The answer is written by a task of its own: when the gateway hangs up, the work runs on to its finish.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::Host;
use super::auth::{Refusal, sender};
use super::chain::ChainError;
use super::execute::{self, Job};
use super::session::{HostSession, Plan, Prepared, SessionError};
use super::track::{ChatTrack, Operation, Terminal};
use super::validate;
use crate::clock;
use crate::logline::{Level, LogLine};
use crate::personality::Personality;
use crate::transport::{ChatRequest, Meta, MetaEvent, ReceiptEvent};

/// Frames that may wait for a slow reader.
const FRAMES_MAX: usize = 256;
/// Time between a finish and the meta that carries it to its own request, in July: what that host does in
/// between lets another request's answer bring the finish first (finding J3).
const META_LAG: Duration = Duration::from_millis(2);
/// Every so many inferences of a session have that lag. With all of them two thirds of the attempts of 24 clients were
/// overtaken, where the real build shows one in twenty.
const META_LAG_EVERY: u64 = 16;
/// A reader that takes nothing for so long counts as gone.
const READER_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the frames of an answer go; silent once the reader has gone.
#[derive(Debug)]
pub struct Frames {
    sender: Option<mpsc::Sender<Bytes>>,
}

impl Frames {
    /// Sends one event line with its blank line.
    pub async fn line(&mut self, line: &str) {
        let Some(sender) = &self.sender else { return };
        let frame = Bytes::from(format!("{line}\n\n"));
        if sender.send_timeout(frame, READER_TIMEOUT).await.is_err() {
            self.sender = None;
        }
    }

    async fn event(&mut self, event: &impl Serialize) {
        let json = serde_json::to_string(event).expect("events are plain data");
        self.line(&format!("data: {json}")).await;
    }
}

/// Handles one chat request.
pub async fn chat(
    host: &Arc<Host>,
    escrow_id: &str,
    request_id: &str,
    headers: &HeaderMap,
    body: &Bytes,
) -> Response<Body> {
    let mut operation = Operation::begin(host, "devshardd.inference");
    let chats = host.chats.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
    if let Some(time) = host.defect.unwell_from(chats) {
        // The tenth chat comes once.
        let _only_once = host.unwell_until.set(crate::clock::instant() + time);
    }
    let session = match resolve_and_authenticate(host, escrow_id, headers, body).await {
        Ok(session) => session,
        Err(refusal) => {
            operation.fail();
            return refusal.response();
        }
    };
    let mut track = ChatTrack::begin(host, request_id, escrow_id, operation);
    if !session.allow(&session.params.creator, clock::instant()) {
        let text = "rate limit exceeded";
        track.end(&Terminal::refused("rate_limited", "transport.rate_limit", text.into()));
        return Refusal::new(StatusCode::TOO_MANY_REQUESTS, text).response();
    }
    let request: ChatRequest = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(error) => {
            let text = format!("invalid request: {error}");
            track.end(&Terminal::refused("parse_err", "transport.handle_inference", text.clone()));
            return Refusal::new(StatusCode::BAD_REQUEST, text).response();
        }
    };
    let refreshed = if host.has_replicas() { session.refresh() } else { Ok(()) };
    let prepared = refreshed.and_then(|()| session.prepare(&request, host.limits(), clock::unix_s()));
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            let refusal = refuse(host, escrow_id, &error);
            track.end(&Terminal::refused(reason_of(&error), where_of(&error), error.to_string()));
            return refusal.response();
        }
    };
    track.names(prepared.inference_id, prepared.receipt.nonce);
    let (sender, receiver) = mpsc::channel(FRAMES_MAX);
    let frames = Frames { sender: Some(sender) };
    tokio::spawn(answer(host.clone(), session, prepared, frames, track));
    let stream = ReceiverStream::new(receiver).map(Ok::<_, std::convert::Infallible>);
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Writes the whole answer and brings the request to its end.
async fn answer(
    host: Arc<Host>,
    session: Arc<HostSession>,
    prepared: Prepared,
    mut frames: Frames,
    track: ChatTrack,
) {
    frames.event(&ReceiptEvent { devshard_receipt: prepared.receipt }).await;
    let id = prepared.inference_id;
    let terminal = match prepared.plan {
        Plan::Nothing(reason) => {
            Terminal { failure_where: "host.sign_receipt", ..Terminal::good("no_receipt_expected", reason) }
        }
        Plan::AlreadyExecuting => Terminal::good("receipt_no_execution_expected", "already_executing"),
        Plan::Cached(stored) => {
            for line in execute::replay_lines(&stored) {
                frames.line(&line).await;
            }
            Terminal::good("receipt_no_execution_expected", "cached_response")
        }
        Plan::Execute(payload) => {
            let request_id = track.request_id().to_owned();
            let job = Job { host: &host, session: &session, id, payload: &payload, request_id: &request_id };
            let result = execute::execute(&job, &mut frames).await;
            session.executed(id);
            match result {
                Ok(()) => Terminal::good("finish_published", "ok"),
                Err(failure) => {
                    LogLine::new(Level::Error, "execute failed")
                        .field("request_id", track.request_id())
                        .field("escrow_id", &session.params.escrow_id)
                        .field("stage", "finished")
                        .field("where", failure.failure_where)
                        .field("reason", failure.reason)
                        .field("error", &failure.error)
                        .field("inference_id", id)
                        .emit();
                    failure
                }
            }
        }
    };
    // No meta after a failed execution: its absence is the sign on the wire (contract hosts 2.3).
    if terminal.terminal != "execution_no_finish" {
        let july = host.config.personality == Personality::July;
        if july && terminal.terminal == "finish_published" && id.is_multiple_of(META_LAG_EVERY) {
            tokio::time::sleep(META_LAG).await;
        }
        frames.event(&MetaEvent { devshard_meta: Meta { mempool: session.mempool() } }).await;
        validate::collect(&host, &session);
    }
    track.end(&terminal);
}

/// Finds the session. An unknown one is looked up on the chain, and made only for a chat that its owner
/// has signed.
async fn resolve_and_authenticate(
    host: &Arc<Host>,
    escrow_id: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Arc<HostSession>, Refusal> {
    if let Some(session) = host.session(escrow_id) {
        authenticate(escrow_id, headers, body, &session.params.creator, &session.params.group)?;
        host.metrics.count("devshard_session_resolution_total", &resolution("ok", "ok"));
        return Ok(session);
    }
    let stored = host.look_up(escrow_id).await.map_err(|error| {
        let reason =
            if matches!(error, ChainError::EscrowId(_)) { "build_group_err" } else { "get_escrow_err" };
        host.metrics.count("devshard_session_resolution_total", &resolution("error", reason));
        resolution_failed(escrow_id, &error)
    })?;
    authenticate(escrow_id, headers, body, &stored.params.creator, &stored.params.group)?;
    let session = host.create(stored).map_err(|error| Refusal::from(&error))?;
    host.metrics.count("devshard_session_resolution_total", &resolution("ok", "ok"));
    Ok(session)
}

const fn resolution(status: &'static str, reason: &'static str) -> [(&'static str, &'static str); 3] {
    [("route", "chat_completions"), ("status", status), ("reason", reason)]
}

fn resolution_failed(escrow_id: &str, error: &ChainError) -> Refusal {
    LogLine::new(Level::Warn, "devshard session resolution failed")
        .field("escrow_id", escrow_id)
        .field("stage", "session_resolved")
        .field("where", "routes.session_resolve")
        .field("error", error)
        .emit();
    let message = format!("build group: get escrow: {error}");
    match error {
        ChainError::EscrowId(_) => {
            Refusal { class: "invalid_escrow_id", ..Refusal::new(StatusCode::BAD_REQUEST, message) }
        }
        ChainError::Query { .. } => {
            Refusal { class: "chain_unavailable", ..Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message) }
        }
        ChainError::NotFound | ChainError::NoSlots(_) => {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        }
    }
}

/// Owner only; a member of the group is told so, anybody else is a stranger.
pub fn authenticate(
    escrow_id: &str,
    headers: &HeaderMap,
    body: &[u8],
    creator: &str,
    group: &[String],
) -> Result<(), Refusal> {
    let sender = sender(escrow_id, headers, body)?;
    if sender == creator {
        return Ok(());
    }
    let text = if group.contains(&sender) { "restricted to escrow owner" } else { "sender not in group" };
    Err(Refusal::new(StatusCode::FORBIDDEN, text))
}

/// The refusal for a request that the session did not take. When memory went ahead of the database, the
/// session is thrown away and replayed on the next touch.
pub fn refuse(host: &Host, escrow_id: &str, error: &SessionError) -> Refusal {
    if matches!(error, SessionError::Persist { .. }) {
        host.forget(escrow_id);
    }
    Refusal::from(error)
}

const fn reason_of(error: &SessionError) -> &'static str {
    match error {
        SessionError::Decode(_) => "decode_err",
        SessionError::Apply { .. } | SessionError::UserSignature(_) | SessionError::Persist { .. } => {
            "apply_err"
        }
        SessionError::Payload { .. } => "payload_verify_err",
        SessionError::MaxNonce { .. } | SessionError::Disabled | SessionError::Store(_) => {
            "handle_request_err"
        }
    }
}

const fn where_of(error: &SessionError) -> &'static str {
    match error {
        SessionError::Payload { .. } | SessionError::Store(_) => "host.sign_receipt",
        _ => "host.apply_diff",
    }
}
