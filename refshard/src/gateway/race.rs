//! The race of one request: attempts on different participants until one answers, the client's answer, and
//! the outcome in accounting. A race is a task of its own: a client that leaves does not end it (contract
//! gateway 4.8, 4.9).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::StatusCode;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Gateway;
use super::accounting::{AttemptRow, Outcome};
use super::attempt::{Context, End, Event};
use super::cache::{Key, Stored};
use super::escrow::{Escrow, Guard, Started, StepError};
use super::limiter::Permit;
use super::log::{Line, host_label};
use super::normalize::Chat;
use super::respond::error_body;
use super::settings::Redundancy;
use super::timeouts;
use crate::clock;

/// Plan of every race under the legacy policy: a second attempt waits for the receipt timer.
const DECISION: &str = "receipt_timeout";
/// A client that takes nothing for so long counts as gone.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Answers above this are not cached.
const CACHED_MAX: usize = 4 << 20;

/// What the client's handler gets to hear.
#[derive(Debug)]
pub enum Out {
    /// The stream begins.
    Stream,
    /// More of the stream.
    Frame(Bytes),
    /// A whole JSON answer.
    Json(Bytes),
    /// There will be no answer.
    Fail(StatusCode, Value),
}

/// A request that has passed all checks.
#[derive(Debug)]
pub struct Request {
    pub id: String,
    pub chat: Chat,
    pub key: Key,
    pub permit: Permit,
    pub out: mpsc::Sender<Out>,
}

/// An attempt as the race sees it.
#[derive(Debug)]
pub struct Attempt {
    pub reason: &'static str,
    pub begun: Instant,
    pub sent_s: i64,
    pub started: Option<Started>,
    pub confirmed_at: Option<i64>,
    pub receipt_after: Option<Duration>,
    pub content_after: Option<Duration>,
    pub took: Duration,
    pub end: Option<End>,
    buffered: Vec<Bytes>,
    chunks: u64,
    checked: bool,
    task: Option<JoinHandle<()>>,
}

impl Attempt {
    pub const fn role(&self) -> &'static str {
        if self.is_primary() { "primary" } else { "secondary" }
    }

    const fn is_primary(&self) -> bool {
        matches!(self.reason.as_bytes(), b"primary")
    }

    pub fn succeeded(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.failure.is_none())
    }

    /// Label of the failure of an attempt that did not succeed.
    pub fn failure(&self) -> &'static str {
        self.end.as_ref().and_then(|end| end.failure).unwrap_or("client_cancelled")
    }
}

/// One race.
#[derive(Debug)]
pub struct Race {
    pub gateway: Arc<Gateway>,
    pub escrow: Arc<Escrow>,
    pub id: String,
    pub attempts: Vec<Attempt>,
    pub winner: Option<usize>,
    pub outcome: Option<Outcome>,
    pub number: u64,
    chat: Arc<Chat>,
    key: Key,
    settings: Redundancy,
    out: Option<mpsc::Sender<Out>>,
    written: Vec<u8>,
    client_gone: bool,
    exhausted: bool,
    events: mpsc::Sender<Event>,
}

/// Runs the race to its last act. The permit is given back when the client has its answer.
pub async fn run(gateway: Arc<Gateway>, escrow: Arc<Escrow>, request: Request) {
    let Request { id, chat, key, permit, out } = request;
    let guard = Guard::request(&escrow, chat.limiter_tokens());
    let cleanup = Guard::cleanup(&escrow);
    let (events, mut inbox) = mpsc::channel(256);
    let settings = gateway.settings().redundancy.clone();
    let number = gateway.next_race();
    let chat = Arc::new(chat);
    let mut race = Race {
        gateway,
        escrow,
        id,
        attempts: Vec::new(),
        winner: None,
        outcome: None,
        number,
        chat,
        key,
        settings,
        out: Some(out),
        written: Vec::new(),
        client_gone: false,
        exhausted: false,
        events,
    };
    if race.open().await {
        race.foreground(&mut inbox).await;
        if race.winner.is_some() || race.outcome.is_some() {
            race.out = None;
            drop((permit, guard));
            race.background(&mut inbox).await;
            if race.outcome == Some(Outcome::Failed) {
                timeouts::settle(&race).await;
                race.settle();
            } else {
                race.settle();
                timeouts::settle(&race).await;
            }
        } else {
            // Nobody answered: the protocol's timeouts come first, then the client's error.
            timeouts::settle(&race).await;
            race.fail_unanswered().await;
            race.settle();
            drop((permit, guard));
        }
    }
    drop(cleanup);
}

impl Race {
    fn line(&self, stage: &str) -> Line {
        Line::request(&self.id, stage).field("escrow", self.escrow.id())
    }

    fn attempt_line(&self, stage: &str, place: usize) -> Line {
        let line = self.line(stage);
        match &self.attempts[place].started {
            Some(started) => {
                line.field("nonce", started.nonce).field("host", host_label(&started.participant.address))
            }
            None => line,
        }
    }

    /// Opens the row; without one there is no race.
    async fn open(&mut self) -> bool {
        let (length, model) = (self.chat.input_length(), self.chat.model.clone());
        self.line("runner_started").field("input_tokens", length).field("model", &model).emit();
        let now_ns = clock::unix_ns();
        if let Err(error) = self.gateway.accounting.begin(&self.id, self.escrow.id(), &model, now_ns) {
            let body = error_body(&format!("accounting: {error}"));
            self.send(Out::Fail(StatusCode::INTERNAL_SERVER_ERROR, body)).await;
            return false;
        }
        if self.gateway.defect.fails(self.number) {
            self.outcome = Some(Outcome::Failed);
            let body = error_body("inference: no non-probe attempt finished");
            self.send(Out::Fail(StatusCode::BAD_GATEWAY, body)).await;
            self.settle();
            return false;
        }
        self.launch("primary");
        true
    }

    /// Begins an attempt in a task of its own, since it may have to wait for a nonce.
    fn launch(&mut self, reason: &'static str) {
        let place = self.attempts.len();
        let exclude: HashSet<String> = self
            .attempts
            .iter()
            .filter_map(|attempt| Some(attempt.started.as_ref()?.participant.address.clone()))
            .collect();
        let context = Context {
            gateway: self.gateway.clone(),
            escrow: self.escrow.clone(),
            place,
            stream: self.chat.stream,
            events: self.events.clone(),
        };
        let chat = self.chat.clone();
        let task = tokio::spawn(async move {
            match context.escrow.start(&chat, &exclude, clock::unix_s).await {
                Ok(started) => {
                    let _ = context.events.send(Event::Started(place, Box::new(started.clone()))).await;
                    context.run(started).await;
                }
                Err(error) => drop(context.events.send(Event::NotStarted(place, error)).await),
            }
        });
        self.attempts.push(Attempt {
            reason,
            begun: clock::instant(),
            sent_s: clock::unix_s(),
            started: None,
            confirmed_at: None,
            receipt_after: None,
            content_after: None,
            took: Duration::ZERO,
            end: None,
            buffered: Vec::new(),
            chunks: 0,
            checked: false,
            task: Some(task),
        });
    }

    /// Until the client has its answer or nobody is left who could give one.
    async fn foreground(&mut self, inbox: &mut mpsc::Receiver<Event>) {
        let begun = clock::instant();
        let limit = if self.chat.stream {
            self.settings.streaming_attempt_hard_timeout_ms
        } else {
            self.settings.non_stream_no_content_timeout_ms
        };
        let limit = begun + Duration::from_millis(limit);
        loop {
            let wake = self.next_check().map_or(limit, |check| check.min(limit));
            tokio::select! {
                event = inbox.recv() => {
                    let Some(event) = event else { return };
                    if self.take(event).await {
                        return;
                    }
                    if self.winner.is_none() && self.live() == 0 {
                        return;
                    }
                }
                () = tokio::time::sleep_until(wake.into()) => {
                    if clock::instant() >= limit {
                        self.give_up().await;
                        return;
                    }
                    self.check_late();
                }
            }
        }
    }

    /// Losers may run on for a while and are then cut.
    async fn background(&mut self, inbox: &mut mpsc::Receiver<Event>) {
        let patience = Duration::from_millis(self.settings.secondary_wait_after_winner_ms);
        let limit = clock::instant() + patience;
        if self.live() > 0 {
            self.line("request_returned_while_speculation_pending").field("pending", self.live()).emit();
        }
        while self.live() > 0 {
            match tokio::time::timeout_at(limit.into(), inbox.recv()).await {
                Ok(Some(event)) => drop(self.take(event).await),
                Ok(None) => return,
                Err(_) => break,
            }
        }
        for place in 0..self.attempts.len() {
            if self.attempts[place].end.is_none()
                && let Some(task) = self.attempts[place].task.take()
            {
                task.abort();
                self.attempts[place].took = self.attempts[place].begun.elapsed();
                self.attempt_line("speculative_attempt_canceled", place).field("reason", "winner").emit();
            }
        }
    }

    fn live(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.end.is_none()).count()
    }

    /// Takes one event; true when the client has its answer.
    async fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Started(place, started) => self.started(place, *started),
            Event::NotStarted(place, error) => return self.not_started(place, &error).await,
            Event::Receipt(place, confirmed_at) => {
                let attempt = &mut self.attempts[place];
                attempt.confirmed_at = Some(confirmed_at);
                let after = attempt.begun.elapsed();
                attempt.receipt_after = Some(after);
                self.attempt_line("receipt_received", place).field("elapsed_ms", after.as_millis()).emit();
            }
            Event::Chunk(place, frame, has_content) => self.chunk(place, frame, has_content).await,
            Event::Ended(place, end) => return self.ended(place, end).await,
        }
        false
    }

    fn started(&mut self, place: usize, started: Started) {
        let row = AttemptRow {
            nonce: started.nonce,
            host_idx: started.slot,
            participant_key: started.participant.address.clone(),
            created_ns: clock::unix_ns(),
        };
        if let Err(error) = self.gateway.accounting.attempt(&self.id, self.escrow.id(), &row) {
            self.line("accounting_failed").field("error", error).emit();
        }
        self.attempts[place].started = Some(started);
        self.attempts[place].sent_s = clock::unix_s();
        self.gateway.count_attempt_start(self, place);
        if place == 0 {
            self.attempt_line("decision_made", place)
                .field("decision", DECISION)
                .field("delay_ms", self.settings.receipt_timeout_ms)
                .field("max_attempts", self.escrow.participants().len())
                .field("group_size", self.escrow.by_slot.len())
                .emit();
            self.gateway.metrics.count("devshard_speculative_decisions_total", &[("reason", DECISION)]);
        }
        self.attempt_line("prepared", place).emit();
        self.attempt_line("started", place).emit();
    }

    /// No nonce: the end of the race only when nothing else is under way.
    async fn not_started(&mut self, place: usize, error: &StepError) -> bool {
        self.exhausted = true;
        self.attempts[place].end = Some(End {
            failure: Some("unknown"),
            message: error.to_string(),
            error: None,
            document: None,
            finished: false,
        });
        if place > 0 {
            self.line("picker_exhausted").field("error", error).emit();
            return false;
        }
        self.line("runner_prepare_failed").field("error", error).emit();
        self.outcome = Some(Outcome::Failed);
        self.send(Out::Fail(StatusCode::BAD_GATEWAY, error_body(&format!("prepare: {error}")))).await;
        if matches!(error, StepError::Balance) {
            // An escrow without money serves nobody: it leaves, and the next request finds it unknown.
            self.gateway.deactivate(self.escrow.id());
        }
        true
    }

    async fn chunk(&mut self, place: usize, frame: Bytes, has_content: bool) {
        self.attempts[place].chunks += 1;
        if self.winner == Some(place) {
            self.frame(frame).await;
            return;
        }
        if self.winner.is_some() {
            return;
        }
        self.attempts[place].buffered.push(frame);
        if has_content {
            self.win(place);
            self.attempt_line("stream_forwarding_started", place).emit();
            self.send(Out::Stream).await;
            for frame in std::mem::take(&mut self.attempts[place].buffered) {
                self.frame(frame).await;
            }
        }
    }

    fn win(&mut self, place: usize) {
        self.winner = Some(place);
        let after = self.attempts[place].begun.elapsed();
        self.attempts[place].content_after = Some(after);
        self.attempt_line("winner_selected", place).emit();
        self.attempt_line("first_token", place).field("route", "winner").emit();
    }

    async fn ended(&mut self, place: usize, end: End) -> bool {
        self.attempts[place].took = self.attempts[place].begun.elapsed();
        let mut line = match end.failure {
            None => self.attempt_line("send_completed", place),
            Some(reason) => self.attempt_line("send_failed", place).field("failure_reason", reason),
        };
        if end.failure.is_some() {
            line = line.field("error", &end.message);
        }
        line.field("output_chunks", self.attempts[place].chunks).emit();
        let failed = end.failure.is_some();
        self.attempts[place].end = Some(end);
        let first = self.outcome.is_none();
        if failed {
            if self.winner == Some(place) && first {
                self.winner_failed(place).await;
                return true;
            }
            if self.winner.is_none() && first {
                self.escalate("attempt_failed");
            }
            return false;
        }
        if self.winner.is_none() && first && !self.chat.stream {
            self.win(place);
        }
        if self.winner == Some(place) && first {
            self.deliver(place).await;
            return true;
        }
        false
    }

    /// The winner is complete: the end of the client's answer, and the cache.
    async fn deliver(&mut self, place: usize) {
        self.outcome = Some(Outcome::Success);
        let document = self.attempts[place].end.as_mut().and_then(|end| end.document.take());
        let content_type = if let Some(document) = document {
            self.written.extend_from_slice(&document);
            self.send(Out::Json(document)).await;
            "application/json"
        } else {
            self.frame(Bytes::from_static(b"data: [DONE]\n\n")).await;
            "text/event-stream"
        };
        let client_gone = self.client_gone || self.out.as_ref().is_none_or(mpsc::Sender::is_closed);
        self.line("request_succeeded")
            .field("winner_nonce", self.nonce_of(place))
            .field("decision", DECISION)
            .emit();
        if client_gone {
            self.line("proxy_stream_client_gone").emit();
        } else if self.written.len() <= CACHED_MAX {
            let stored = Stored {
                content_type,
                body: std::mem::take(&mut self.written).into(),
                escrow_id: self.escrow.id().to_owned(),
                request_id: self.id.clone(),
            };
            self.line("gateway_cache_stored").field("bytes", stored.body.len()).emit();
            self.gateway.cache.put(self.key, stored, clock::instant());
        }
        if self.chat.stream && self.gateway.defect.repeats_done(self.number) {
            self.frame(Bytes::from_static(b"data: [DONE]\n\n")).await;
        }
    }

    /// No way back after the first content: an error event and no marker.
    async fn winner_failed(&mut self, place: usize) {
        self.outcome = Some(Outcome::Failed);
        let end = self.attempts[place].end.as_ref();
        let message = end.map(|end| end.message.clone()).unwrap_or_default();
        let document = end.and_then(|end| end.error.clone()).unwrap_or_else(|| error_body(&message));
        self.attempt_line("winner_failed_after_content", place).field("error", &message).emit();
        self.line("request_failed").field("error", &message).emit();
        self.frame(Bytes::from(format!("data: {document}\n\n"))).await;
    }

    /// The limit of the whole race has passed.
    async fn give_up(&mut self) {
        self.outcome = Some(Outcome::Failed);
        if self.winner.is_some() {
            let message = "inference: winner stream took longer than allowed";
            self.line("winner_stream_hard_timeout").emit();
            self.frame(Bytes::from(format!("data: {}\n\n", error_body(message)))).await;
            return;
        }
        let message = "inference: no non-empty response within the allowed time";
        self.line("request_failed").field("error", message).emit();
        self.send(Out::Fail(StatusCode::GATEWAY_TIMEOUT, error_body(message))).await;
    }

    /// The client's error when no attempt answered: the model server's own one if there was one.
    async fn fail_unanswered(&mut self) {
        self.outcome = Some(Outcome::Failed);
        let ends: Vec<&End> = self.attempts.iter().filter_map(|attempt| attempt.end.as_ref()).collect();
        let throttled = |end: &&End| matches!(end.failure, Some("http_429" | "http_503"));
        let (status, body) = if let Some(document) = ends.iter().find_map(|end| end.error.clone()) {
            (status_of(&document), document)
        } else if !ends.is_empty() && ends.iter().all(throttled) {
            let text = ends.last().map(|end| end.message.clone()).unwrap_or_default();
            (StatusCode::TOO_MANY_REQUESTS, error_body(&text))
        } else {
            (StatusCode::BAD_GATEWAY, error_body("inference: no non-probe attempt finished"))
        };
        self.line("request_failed").field("error", &body).emit();
        self.send(Out::Fail(status, body)).await;
    }

    /// A further attempt on another participant, unless one is about to start or all have been tried.
    fn escalate(&mut self, reason: &'static str) -> bool {
        if self.attempts.iter().any(|attempt| attempt.started.is_none() && attempt.end.is_none()) {
            return true;
        }
        if self.exhausted || self.attempts.len() >= self.escrow.participants().len() {
            self.line("escalation_skipped").field("reason", "attempt_limit").emit();
            return false;
        }
        self.gateway.metrics.count("devshard_speculative_attempt_starts_total", &[("reason", reason)]);
        self.launch(reason);
        true
    }

    /// When an attempt has to be looked at next: the receipt timer, and for streams then the first token.
    fn next_check(&self) -> Option<Instant> {
        if self.winner.is_some() {
            return None;
        }
        let open =
            |attempt: &&Attempt| attempt.end.is_none() && !attempt.checked && attempt.started.is_some();
        self.attempts.iter().filter(open).map(|attempt| attempt.begun + self.check_after(attempt)).min()
    }

    fn check_after(&self, attempt: &Attempt) -> Duration {
        let bytes = self.chat.input_length();
        let doubled = if bytes > 100_000 { 2 } else { 1 };
        let receipt = Duration::from_millis(self.settings.receipt_timeout_ms * doubled);
        if attempt.confirmed_at.is_none() || !self.chat.stream {
            return receipt;
        }
        // 1.7 s, 30 µs per byte, 0.5 ns per byte squared; looked at only once the receipt timer has rung.
        let bytes_us = bytes.saturating_mul(30).saturating_add(bytes.saturating_mul(bytes) / 2000);
        let computed = Duration::from_micros(1_700_000_u64.saturating_add(bytes_us));
        let floor = Duration::from_millis(self.settings.first_token_timeout_floor_ms);
        receipt.max(computed).max(floor)
    }

    fn check_late(&mut self) {
        let now = clock::instant();
        for place in 0..self.attempts.len() {
            let attempt = &self.attempts[place];
            let due = attempt.started.is_some()
                && attempt.end.is_none()
                && !attempt.checked
                && now >= attempt.begun + self.check_after(attempt);
            if !due {
                continue;
            }
            let reason = match (attempt.confirmed_at, self.chat.stream && attempt.chunks == 0) {
                (None, _) => Some("receipt_timeout"),
                (Some(_), true) => Some("first_token_timeout"),
                (Some(_), false) => None,
            };
            self.attempts[place].checked = true;
            if let Some(reason) = reason {
                self.escalate(reason);
            }
        }
    }

    async fn frame(&mut self, frame: Bytes) {
        if self.written.len() <= CACHED_MAX {
            self.written.extend_from_slice(&frame);
        }
        self.send(Out::Frame(frame)).await;
    }

    async fn send(&mut self, out: Out) {
        let Some(sender) = &self.out else { return };
        if sender.send_timeout(out, CLIENT_TIMEOUT).await.is_err() {
            self.client_gone = true;
            self.out = None;
        }
    }

    fn nonce_of(&self, place: usize) -> u64 {
        self.attempts[place].started.as_ref().map_or(0, |started| started.nonce)
    }

    /// The one outcome in accounting, metrics and log.
    fn settle(&self) {
        let mut outcome = self.outcome.unwrap_or(Outcome::Failed);
        let winner = self.winner.filter(|_| outcome == Outcome::Success);
        let winner_nonce = winner.map_or(0, |place| self.nonce_of(place));
        self.gateway.count_race(self, outcome);
        if outcome == Outcome::Success && self.gateway.defect.records_failed(self.number) {
            outcome = Outcome::Failed;
        }
        if !self.gateway.defect.loses_outcome(self.number) {
            let end = (outcome, DECISION, winner_nonce);
            let ended = self.gateway.accounting.end(&self.id, self.escrow.id(), end, clock::unix_ns());
            if let Err(error) = ended {
                self.line("accounting_failed").field("error", error).emit();
            }
        }
        for place in 0..self.attempts.len() {
            let attempt = &self.attempts[place];
            self.attempt_line("race_completed", place)
                .field("winner", self.winner == Some(place))
                .field("finished", attempt.end.as_ref().is_some_and(|end| end.finished))
                .field("has_receipt", attempt.confirmed_at.is_some())
                .field("confirmed_at", attempt.confirmed_at.unwrap_or_default())
                .field("output_chunks", attempt.chunks)
                .field("failure_reason", if attempt.succeeded() { "" } else { attempt.failure() })
                .emit();
        }
        self.line("request_fully_settled")
            .field("winner_nonce", winner_nonce)
            .field("decision", DECISION)
            .field("outcome", outcome.name())
            .emit();
    }

    /// The model.
    pub fn model(&self) -> &str {
        &self.chat.model
    }

    /// Bytes of the normalised request.
    pub fn input_length(&self) -> u64 {
        self.chat.input_length()
    }
}

/// Status for a relayed error document (contract gateway 4.3).
fn status_of(document: &Value) -> StatusCode {
    let code = document.pointer("/error/code").and_then(Value::as_u64);
    let code = code.filter(|code| (400..600).contains(code)).and_then(|code| u16::try_from(code).ok());
    if let Some(status) = code.and_then(|code| StatusCode::from_u16(code).ok()) {
        return status;
    }
    let kind = document.pointer("/error/type").and_then(Value::as_str).unwrap_or_default();
    if kind.to_ascii_lowercase().contains("badrequest") {
        StatusCode::BAD_REQUEST
    } else {
        StatusCode::BAD_GATEWAY
    }
}
