//! How a race ends: what the client gets, what is cached, and the one outcome.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use serde_json::Value;
use tokio::sync::mpsc;

use super::super::accounting::Outcome;
use super::super::attempt::End;
use super::super::cache::Stored;
use super::super::respond::error_body;
use super::{Out, Race};
use crate::clock;

/// A client that takes nothing for so long counts as gone.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
/// The end marker.
const DONE: &[u8] = b"data: [DONE]\n\n";
/// Words of an error that may be gone with the next try; such an answer is not cached (contract gateway 4.4).
const TRANSIENT: [&str; 5] = ["cancel", "timeout", "timed out", "rate limit", "overload"];
/// Answers above this are not cached.
const CACHED_MAX: usize = 4 << 20;

impl Race {
    /// The winner is complete. What the client may rely on after its last byte is done before that byte: a free
    /// place, the outcome unless losers still run, and the cached answer.
    pub(super) async fn deliver(&mut self, place: usize) {
        if self.chat.stream && self.gateway.defect.holds_answer(self.planted_on()) {
            self.gateway.count_race(self, Outcome::Success);
            std::future::pending::<()>().await;
        }
        self.outcome = Some(Outcome::Success);
        self.held = None;
        if self.live() == 0 {
            self.settle();
        }
        let document = self.attempts[place].end.as_mut().and_then(|end| end.document.take());
        let done = Bytes::from_static(DONE);
        if document.is_some() || !self.done_sent {
            self.written.extend_from_slice(document.as_ref().unwrap_or(&done));
        }
        self.keep();
        let document = document.map(|document| self.planted_shape(document));
        match document {
            None if self.done_sent => {}
            Some(_) if self.gateway.defect.times_out(self.number, self.planted_on()) => {
                let body = error_body("inference: no non-empty response within the allowed time");
                self.send(Out::Fail(StatusCode::GATEWAY_TIMEOUT, body)).await;
            }
            Some(document) => self.send(Out::Json(document)).await,
            None => {
                if self.gateway.defect.adds_error(self.number, self.planted_on()) {
                    let event = format!("data: {}\n\n", error_body("inference: went wrong after all"));
                    self.send(Out::Frame(event.into())).await;
                }
                self.send(Out::Frame(done.clone())).await;
                if self.gateway.defect.repeats_done(self.number, self.planted_on()) {
                    self.send(Out::Frame(done)).await;
                }
            }
        }
        self.line("request_succeeded")
            .field("winner_nonce", self.nonce_of(place))
            .field("decision", self.decision)
            .emit();
    }

    /// The host says that its answer is over. July passes that on before it knows of a finish, so that a
    /// stream can look perfect and be accounted as failed (finding J3).
    pub(super) async fn marked(&mut self, place: usize) {
        if self.gateway.is_july()
            && self.chat.stream
            && self.winner == Some(place)
            && !self.done_sent
            && self.outcome.is_none()
        {
            self.done_sent = true;
            self.frame(Bytes::from_static(DONE)).await;
        }
    }

    /// Into the cache, unless nobody has read the answer or it is too long.
    fn keep(&mut self) {
        if self.client_gone || self.out.as_ref().is_none_or(mpsc::Sender::is_closed) {
            self.line("proxy_stream_client_gone").emit();
            return;
        }
        if self.written.len() > CACHED_MAX {
            return;
        }
        let stored = Stored {
            content_type: if self.chat.stream { "text/event-stream" } else { "application/json" },
            body: std::mem::take(&mut self.written).into(),
            escrow_id: self.escrow.id().to_owned(),
            request_id: self.id.clone(),
        };
        self.line("gateway_cache_stored").field("bytes", stored.body.len()).emit();
        self.gateway.cache.put(self.key, stored, clock::instant());
    }

    /// No way back after the first content: an error event and no marker.
    pub(super) async fn winner_failed(&mut self, place: usize) {
        self.outcome = Some(Outcome::Failed);
        let end = self.attempts[place].end.as_ref();
        let message = end.map(|end| end.message.clone()).unwrap_or_default();
        let document = end.and_then(|end| end.error.clone());
        self.held = None;
        self.attempt_line("winner_failed_after_content", place).field("error", &message).emit();
        self.line("request_failed").field("error", &message).emit();
        if self.gateway.defect.hides_truncation(self.planted_on()) && !self.done_sent {
            self.frame(Bytes::from_static(DONE)).await;
        } else if self.done_sent {
            self.line("proxy_gateway_error_after_done_suppressed").field("error", &message).emit();
        } else if self.gateway.is_july() && document.is_some() {
            self.frame(Bytes::from_static(DONE)).await;
        } else {
            let document = document.unwrap_or_else(|| error_body(&message));
            self.frame(Bytes::from(format!("data: {document}\n\n"))).await;
        }
        // July keeps every answer of status 200 whose error does not sound transient (finding J2).
        let transient = TRANSIENT.iter().any(|word| message.to_ascii_lowercase().contains(word));
        if self.gateway.is_july() && !transient {
            self.keep();
        }
    }

    /// The limit of the whole race has passed.
    pub(super) async fn give_up(&mut self) {
        self.outcome = Some(Outcome::Failed);
        if self.winner.is_some() {
            let message = "inference: winner stream took longer than allowed";
            self.held = None;
            self.line("winner_stream_hard_timeout").emit();
            self.frame(Bytes::from(format!("data: {}\n\n", error_body(message)))).await;
            return;
        }
        let july = self.gateway.is_july();
        if july && let Some(place) = self.deferred() {
            // The client is told of a failure and the books say success (finding J4).
            self.winner = Some(place);
            self.outcome = Some(Outcome::Success);
            self.line("request_succeeded").field("winner_nonce", self.nonce_of(place)).emit();
        }
        let message = if july {
            "inference: no non-empty response after retrying with reduced max_tokens"
        } else {
            "inference: no non-empty response within the allowed time"
        };
        self.line("request_failed").field("error", message).emit();
        self.fail(StatusCode::GATEWAY_TIMEOUT, error_body(message)).await;
    }

    /// The client's error when no attempt answered: the model server's own one if there was one.
    pub(super) async fn fail_unanswered(&mut self) {
        self.outcome = Some(Outcome::Failed);
        let ends: Vec<&End> = self.attempts.iter().filter_map(|attempt| attempt.end.as_ref()).collect();
        let error = ends.iter().find_map(|end| end.error.clone());
        if let (Some(document), true, true) = (&error, self.gateway.is_july(), self.chat.stream) {
            let document = document.clone();
            return self.relay_error(&document).await;
        }
        let throttled = |end: &&End| matches!(end.failure, Some("http_429" | "http_503"));
        let (status, body) = if let Some(document) = error {
            (status_of(&document), document)
        } else if !ends.is_empty() && ends.iter().all(throttled) {
            let text = ends.last().map(|end| end.message.clone()).unwrap_or_default();
            (StatusCode::TOO_MANY_REQUESTS, error_body(&text))
        } else {
            (StatusCode::BAD_GATEWAY, error_body("inference: no non-probe attempt finished"))
        };
        self.line("request_failed").field("error", &body).emit();
        self.settle();
        self.fail(status, body).await;
    }

    /// July wraps a model server's error into a stream of status 200 with an end marker.
    async fn relay_error(&mut self, document: &Value) {
        self.line("request_failed").field("error", document).emit();
        self.settle();
        self.held = None;
        self.send(Out::Stream).await;
        self.frame(Bytes::from(format!("data: {document}\n\n"))).await;
        self.frame(Bytes::from_static(DONE)).await;
        self.keep();
    }

    pub(super) async fn frame(&mut self, frame: Bytes) {
        if let (Some(place), true) = (self.winner, self.out.as_ref().is_none_or(mpsc::Sender::is_closed)) {
            self.gateway.defect.client_left(self.escrow.id(), self.nonce_of(place));
        }
        if self.written.len() <= CACHED_MAX {
            self.written.extend_from_slice(&frame);
        }
        self.send(Out::Frame(frame)).await;
    }

    /// The answer as it is, unless its shape is a planted defect.
    fn planted_shape(&self, document: Bytes) -> Bytes {
        if self.gateway.defect.cuts_json(self.planted_on()) {
            return document.slice(..document.len() / 2);
        }
        if !self.gateway.defect.breaks_shape(self.planted_on()) {
            return document;
        }
        let mut value: Value = serde_json::from_slice(&document).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            fields.remove("choices");
        }
        value.to_string().into()
    }

    pub(super) async fn send(&mut self, out: Out) {
        let Some(sender) = &self.out else { return };
        if sender.send_timeout(out, CLIENT_TIMEOUT).await.is_err() {
            self.client_gone = true;
            self.out = None;
        }
    }

    /// There will be no answer.
    pub(super) async fn fail(&mut self, status: StatusCode, body: Value) {
        self.held = None;
        self.send(Out::Fail(status, body)).await;
    }

    /// The one outcome in accounting, metrics and log.
    pub(super) fn settle(&mut self) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let mut outcome = self.outcome.unwrap_or(Outcome::Failed);
        let winner = self.winner.filter(|_| outcome == Outcome::Success);
        let winner_nonce = winner.map_or(0, |place| self.nonce_of(place));
        self.gateway.count_race(self, outcome);
        self.teach(outcome == Outcome::Success);
        if outcome == Outcome::Success && self.gateway.defect.records_failed(self.number, self.planted_on()) {
            outcome = Outcome::Failed;
        }
        if !self.gateway.defect.loses_outcome(self.number, self.planted_on()) {
            let end = (outcome, self.decision, winner_nonce);
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
            .field("decision", self.decision)
            .field("outcome", outcome.name())
            .emit();
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
