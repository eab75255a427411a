//! `POST /v1/chat/completions`, pooled and per escrow: the checks in their order (contract gateway 4.1), then
//! the race, whose words become the client's answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::Gateway;
use super::cache::{self, Key, Stored};
use super::escrow::Escrow;
use super::limiter::Permit;
use super::log::Line;
use super::normalize::{Chat, normalize};
use super::race::{self, Out, Request};
use super::respond::{self, Answer};
use super::settings::AccessMode;
use crate::clock;
use crate::planted::On;

/// Frames that may wait for a slow client.
const FRAMES_MAX: usize = 64;

/// Steps of an escrow after which it gets no more pooled requests (contract gateway 6.8).
const NONCE_MAX: u64 = 19_800;

/// A request that was refused before its race.
struct Refused {
    status: StatusCode,
    message: String,
    /// Outcome and reason of the metric on the per-escrow path.
    count: (&'static str, &'static str),
}

impl Refused {
    fn new(status: StatusCode, message: &str, count: (&'static str, &'static str)) -> Self {
        Self { status, message: message.to_owned(), count }
    }

    fn answer(&self) -> Answer {
        respond::error(self.status, &self.message)
    }
}

enum Checked {
    Hit(Stored),
    Go(Box<Chat>, Key, Permit),
}

/// Chat over all escrows of the model, the least loaded first.
pub async fn pooled(gateway: &Arc<Gateway>, headers: &HeaderMap, body: &Bytes) -> Answer {
    let id = gateway.new_request_id();
    let chat = match parse(gateway, headers, body, &id) {
        Ok(chat) => chat,
        Err(refused) => return refused.answer(),
    };
    let mut models: Vec<String> = gateway.residents().iter().map(|escrow| escrow.model.clone()).collect();
    models.sort_unstable();
    models.dedup();
    if !models.contains(&chat.model) {
        let known = models.join(", ");
        let text = format!("unsupported model {:?}; supported models: {known}", chat.model);
        Line::request(&id, "gateway_model_rejected").field("model", &chat.model).emit();
        return respond::error(StatusCode::BAD_REQUEST, &text);
    }
    if let Some(answer) = blocked(gateway) {
        return answer;
    }
    match admit(gateway, headers, chat, &id) {
        Err(refused) => refused.answer(),
        Ok(Checked::Hit(stored)) => replay(gateway, &stored, &id),
        Ok(Checked::Go(chat, key, permit)) => match choose(gateway, &chat.model) {
            Err(text) => {
                Line::request(&id, "gateway_runtime_select_failed").field("error", &text).emit();
                respond::error(StatusCode::BAD_GATEWAY, &text)
            }
            Ok(escrow) => {
                let labels = [("devshard_id", escrow.id()), ("model", chat.model.as_str())];
                gateway.metrics.count("devshard_gateway_picker_choice_total", &labels);
                Line::request(&id, "gateway_runtime_selected").field("escrow", escrow.id()).emit();
                run(gateway, escrow, id, *chat, (key, permit)).await
            }
        },
    }
}

/// Chat in one escrow.
pub async fn in_escrow(
    gateway: &Arc<Gateway>,
    escrow: Arc<Escrow>,
    headers: &HeaderMap,
    body: &Bytes,
) -> Answer {
    let id = gateway.new_request_id();
    if let Some(answer) = blocked(gateway) {
        return respond::of_escrow(answer, escrow.id());
    }
    if let Some(why) = escrow.unavailable() {
        let reason = why.strip_prefix("phase=").unwrap_or(why);
        gateway.count_request(&escrow.model, "runtime_unavailable", reason);
        let text = format!("devshard {} is unavailable for new inferences: {why}", escrow.id());
        Line::request(&id, "gateway_devshard_unavailable")
            .field("escrow", escrow.id())
            .field("reason", why)
            .emit();
        return respond::error(StatusCode::CONFLICT, &text);
    }
    let checked = parse(gateway, headers, body, &id).and_then(|chat| {
        if chat.model == escrow.model {
            return admit(gateway, headers, chat, &id);
        }
        let text = format!(
            "model {:?} does not match devshard {} model {:?}",
            chat.model,
            escrow.id(),
            escrow.model
        );
        Err(Refused::new(StatusCode::BAD_REQUEST, &text, ("model_rejected", "model_rejected")))
    });
    match checked {
        Err(refused) => {
            gateway.count_request(&escrow.model, refused.count.0, refused.count.1);
            refused.answer()
        }
        Ok(Checked::Hit(stored)) => {
            gateway.count_request(&escrow.model, "cached", "cache_hit");
            replay(gateway, &stored, &id)
        }
        Ok(Checked::Go(chat, key, permit)) => run(gateway, escrow, id, *chat, (key, permit)).await,
    }
}

/// Refusal while the chain proves its compute (contract gateway 4.3).
fn blocked(gateway: &Gateway) -> Option<Answer> {
    let view = gateway.gate.view();
    view.block_reason()?;
    let text = format!("devshard temporarily unavailable during {}", view.shown_phase());
    Some(respond::error(StatusCode::SERVICE_UNAVAILABLE, &text))
}

fn parse(gateway: &Gateway, headers: &HeaderMap, body: &Bytes, id: &str) -> Result<Chat, Refused> {
    let chat = normalize(body, &gateway.settings(), gateway.is_admin(headers)).map_err(|refusal| {
        Line::request(id, "gateway_parse_failed").field("error", &refusal.message).emit();
        Refused::new(refusal.status, &refusal.message, ("invalid_request", "invalid_request"))
    })?;
    Line::request(id, "gateway_request_received")
        .field("model", &chat.model)
        .field("input_tokens", chat.limiter_tokens())
        .emit();
    Ok(chat)
}

/// Access, cache, limiter.
fn admit(gateway: &Arc<Gateway>, headers: &HeaderMap, chat: Chat, id: &str) -> Result<Checked, Refused> {
    if let Some(text) = denied(gateway, headers, &chat.model) {
        Line::request(id, "gateway_model_temporarily_unavailable").field("model", &chat.model).emit();
        let count = ("model_rejected", "model_access_rejected");
        return Err(Refused::new(StatusCode::UNAUTHORIZED, &text, count));
    }
    let intent = if gateway.is_july() { String::new() } else { format!("{:?}", chat.logprobs) };
    let key = cache::key(&chat.model, &chat.body, &intent);
    if let Some(stored) = gateway.cache.get(&key, clock::instant()) {
        Line::request(id, "gateway_cache_hit").field("escrow", &stored.escrow_id).emit();
        return Ok(Checked::Hit(stored));
    }
    Line::request(id, "gateway_cache_miss").field("stream", chat.stream).emit();
    let caps = gateway.caps(&chat.model);
    match gateway.limiter.acquire(&chat.model, chat.limiter_tokens(), caps) {
        Ok(permit) => {
            Line::request(id, "gateway_limiter_acquired").field("input_tokens", chat.limiter_tokens()).emit();
            Ok(Checked::Go(Box::new(chat), key, permit))
        }
        Err(refused) => {
            let reason = refused.reason();
            Line::request(id, "gateway_limiter_rejected").field("reason", reason).emit();
            gateway.metrics.count("devshard_gateway_limit_rejections_total", &[("reason", reason)]);
            let count = ("gateway_limited", reason);
            Err(Refused::new(StatusCode::TOO_MANY_REQUESTS, refused.message(), count))
        }
    }
}

/// Why a client may not use a model.
fn denied(gateway: &Gateway, headers: &HeaderMap, model: &str) -> Option<String> {
    let settings = gateway.settings();
    let text = match settings.access_of(model) {
        _ if gateway.is_admin(headers) => return None,
        AccessMode::Open => return None,
        AccessMode::ApiKey if gateway.has_api_key(headers) => return None,
        AccessMode::ApiKey => format!("model {model:?} requires an API key"),
        AccessMode::AdminOnly => format!("model {model:?} requires an admin API key"),
    };
    let own = settings.limit_of(model).and_then(|limit| limit.access_message.clone());
    Some(own.unwrap_or(text))
}

/// The escrow with the fewest requests; equal ones take turns.
fn choose(gateway: &Gateway, model: &str) -> Result<Arc<Escrow>, String> {
    let candidates: Vec<_> = gateway.residents().into_iter().filter(|escrow| escrow.model == model).collect();
    let is_high = |escrow: &&Arc<Escrow>| escrow.with_state(crate::state::Session::nonce) >= NONCE_MAX;
    let high = candidates.iter().filter(is_high).count();
    // Loads move while they are looked at: each is read once, so that the least of them is there to be chosen.
    let open: Vec<(_, &Arc<Escrow>)> = candidates
        .iter()
        .filter(|escrow| escrow.unavailable().is_none() && !is_high(escrow))
        .map(|escrow| (escrow.active_requests.load(Ordering::Acquire), escrow))
        .collect();
    let Some(least) = open.iter().map(|(load, _)| *load).min() else {
        let inactive = candidates.len() - high;
        let high = if high > 0 { format!("high_nonce={high}, ") } else { String::new() };
        return Err(format!(
            "no devshard runtimes available for new inferences (skipped: {high}inactive={inactive})"
        ));
    };
    let idle: Vec<_> = open.into_iter().filter(|(load, _)| *load == least).collect();
    let turn = gateway.turns.fetch_add(1, Ordering::Relaxed);
    let place = usize::try_from(turn % idle.len().max(1) as u64).unwrap_or_default();
    idle.get(place)
        .map(|(_, escrow)| Arc::clone(escrow))
        .ok_or_else(|| "no devshard runtimes available for new inferences".to_owned())
}

fn replay(gateway: &Gateway, stored: &Stored, id: &str) -> Answer {
    // July's alias points to an id that accounting never had, so it leads nowhere (finding J20).
    let noted = if gateway.is_july() {
        Ok(())
    } else {
        gateway.accounting.alias(id, &stored.request_id, &stored.escrow_id, clock::unix_ns())
    };
    let mut line = Line::request(id, "gateway_cache_accounting_alias").field("escrow", &stored.escrow_id);
    if let Err(error) = noted {
        line = line.field("error", error);
    }
    line.emit();
    let answer = respond::with_type(StatusCode::OK, stored.content_type, stored.body.clone());
    respond::of_request(respond::of_escrow(answer, &stored.escrow_id), id)
}

/// Runs the race and turns what it says into an answer.
async fn run(
    gateway: &Arc<Gateway>,
    escrow: Arc<Escrow>,
    id: String,
    chat: Chat,
    (key, permit): (Key, Permit),
) -> Answer {
    Line::request(&id, "proxy_request_started")
        .field("escrow", escrow.id())
        .field("model", &chat.model)
        .field("stream", chat.stream)
        .field("input_tokens", chat.input_length())
        .emit();
    let (out, mut inbox) = mpsc::channel(FRAMES_MAX);
    let escrow_id = escrow.id().to_owned();
    // July runs the race under an id of its own, which the client never sees (finding J20).
    let race_id = if gateway.is_july() { gateway.new_request_id() } else { id.clone() };
    let asked = gateway.defect.keeps(&chat.body);
    let request = Request { id: race_id, chat, key, permit, out };
    tokio::spawn(race::run(gateway.clone(), escrow, request));
    if gateway.defect.is_slow(gateway.races.load(Ordering::Relaxed)) {
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    }
    let answer = match inbox.recv().await {
        Some(Out::Stream) => stream(inbox),
        Some(Out::Json(body)) => respond::with_type(StatusCode::OK, "application/json", body),
        Some(Out::Fail(status, body)) => {
            let answer = respond::of_escrow(respond::json_error(status, &body), &escrow_id);
            let named = !gateway.defect.drops_id(On::Body(&asked)) && !gateway.is_july();
            return if named { respond::of_request(answer, &id) } else { answer };
        }
        // A race says something before it ends; were it to panic, the client must still get an answer.
        Some(Out::Frame(_)) | None => {
            let body = respond::error_body("inference: race ended without an answer");
            respond::json_error(StatusCode::BAD_GATEWAY, &body)
        }
    };
    respond::of_request(respond::of_escrow(answer, &escrow_id), &id)
}

fn stream(inbox: mpsc::Receiver<Out>) -> Answer {
    let frames = ReceiverStream::new(inbox).map(|out| match out {
        Out::Frame(frame) => Ok::<_, std::convert::Infallible>(frame),
        _ => Ok(Bytes::new()),
    });
    let mut answer = respond::with_type(StatusCode::OK, "text/event-stream", Body::from_stream(frames));
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    answer
}
