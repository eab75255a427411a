//! `requests.jsonl`: one record per planned request, written by loadgen (design section 10). Facts, never verdicts.
//!
//! Times are microseconds since the wall anchor of loadgen's `ready` line, on one monotonic clock.

use std::collections::BTreeMap;

use scenario::fault::Close;
use scenario::identity::RequestId;
use scenario::model::CancelPhase;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the client saw, decided in one place in loadgen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientClass {
    /// A whole, well-formed 2xx answer that passed its checks.
    Ok,
    /// A status outside 2xx.
    HttpError,
    /// A 200 stream that carried an error event.
    InBandError,
    /// The answer ended early: no marker, a marker without finish reason, or a cut body.
    Truncated,
    /// HTTP, JSON or SSE that breaks its grammar.
    Malformed,
    /// A good answer that failed a check of the scenario. Written as the specification of the load generator writes it;
    /// `check-failed` was written before.
    #[serde(rename = "check_failed", alias = "check-failed")]
    CheckFailed,
    /// The connection did not stand in time.
    ConnectTimeout,
    /// No complete headers in time.
    HeadersTimeout,
    /// No body byte in time.
    FirstByteTimeout,
    /// Silence in the body.
    IdleTimeout,
    /// The whole request took too long.
    TotalTimeout,
    /// Nobody listens.
    ConnectRefused,
    /// The name of the gateway does not resolve.
    DnsFailed,
    /// TLS was not agreed on: certificate, version or protocol.
    TlsFailed,
    /// The proxy that was asked for can't be reached or opens no tunnel.
    ProxyFailed,
    /// Closed or reset before a complete answer, with no complete headers.
    ConnectionLost,
    /// Cut at its own cancel point.
    Cancelled,
    /// Cut by the end of the run.
    Interrupted,
    /// The generator could not send it (in-flight policy).
    Dropped,
    /// Never reached.
    NotOffered,
    /// No local port left: the generator's own limit.
    GeneratorPorts,
    /// No file descriptor left: the generator's own limit.
    GeneratorFds,
}

impl ClientClass {
    /// The word in files and progress lines.
    #[must_use]
    pub fn word(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(text)) => text,
            _ => String::new(),
        }
    }
}

/// Who counted the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TokenSource {
    /// `usage` of the answer.
    Usage,
    /// Content events counted by the client.
    Events,
}

/// Token counts of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tokens {
    /// Prompt tokens, when known.
    pub prompt: Option<u64>,
    /// Completion tokens.
    pub completion: u64,
    /// Source.
    pub source: TokenSource,
}

/// How the client's own cancel point went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CancelFact {
    /// Phase of the plan line.
    pub phase: CancelPhase,
    /// How it closed.
    pub close: Close,
    /// When it closed; `None` when the request had ended before its phase was reached.
    pub at_us: Option<u64>,
}

/// The start and end of a body that is worth keeping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Excerpt {
    /// First bytes (lossy UTF-8), bounded.
    pub head: String,
    /// Last bytes (lossy UTF-8), bounded; empty when the head holds everything.
    pub tail: String,
    /// Bytes of the whole body.
    pub bytes: u64,
    /// BLAKE3 of the whole body.
    pub blake3: String,
}

/// Facts of the answer's grammar; what A3 is judged from again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AnswerFacts {
    /// How the stream ended, in the words of crate `sse` (`done`, `error-event`, `truncated`, …); `None` for JSON.
    pub ending: Option<String>,
    /// Events dispatched.
    pub events: u64,
    /// Events with content.
    pub content_events: u64,
    /// Events with reasoning.
    pub reasoning_events: u64,
    /// Comment lines.
    pub comments: u64,
    /// `[DONE]` markers.
    pub done_count: u64,
    /// Events after the first marker.
    pub events_after_done: u64,
    /// Bytes of an unfinished last event.
    pub unfinished_bytes: u64,
    /// Events that were not JSON.
    pub json_errors: u64,
    /// Events or bodies with illegal UTF-8.
    pub utf8_errors: u64,
    /// Events above the size bound.
    pub oversize_events: u64,
    /// Events or bodies of the wrong shape (no choices, ill-typed or negative usage).
    pub shape_errors: u64,
    /// The `id` changed inside one stream.
    pub id_changed: bool,
    /// First error object: its message, bounded.
    pub error_message: Option<String>,
    /// First error object: its code as text, bounded.
    pub error_code: Option<String>,
    /// Finish reason per choice.
    pub finish_reasons: BTreeMap<u32, String>,
    /// Choices seen.
    pub choices: u32,
    /// JSON answers: the body parsed as a JSON object.
    pub json_object: Option<bool>,
    /// The HTTP body ended as its framing says (content length or terminator).
    pub body_complete: bool,
    /// Characters of joined content.
    pub content_chars: u64,
    /// BLAKE3 of the joined content.
    pub content_blake3: Option<String>,
}

/// One line of `requests.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestRecord {
    /// Format version.
    pub v: u32,
    /// Plan index.
    pub index: u64,
    /// Request id.
    pub id: RequestId,
    /// Step it ran in; `None` when not offered.
    pub step: Option<usize>,
    /// SSE or JSON was asked for.
    pub stream: bool,
    /// When it should have started.
    pub planned_us: Option<u64>,
    /// When a slot was free.
    pub released_us: Option<u64>,
    /// When its last request byte was written.
    pub sent_us: Option<u64>,
    /// Complete headers.
    pub headers_us: Option<u64>,
    /// First body byte.
    pub first_byte_us: Option<u64>,
    /// First event (SSE).
    pub first_event_us: Option<u64>,
    /// First reasoning.
    pub first_reasoning_us: Option<u64>,
    /// First content; for JSON the first body byte.
    pub first_content_us: Option<u64>,
    /// Last content.
    pub last_content_us: Option<u64>,
    /// End, whatever kind.
    pub end_us: Option<u64>,
    /// Time to connect when a new connection was made.
    pub connect_us: Option<u64>,
    /// Time of the resolver, when the name was resolved for this request; absent when its address was known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dns_us: Option<u64>,
    /// Time of the TLS handshake, when this request made one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tls_us: Option<u64>,
    /// A pooled connection was closed before any byte; the request went out once more.
    pub reconnected: bool,
    /// HTTP status.
    pub status: Option<u16>,
    /// `Content-Type` of the answer.
    pub content_type: Option<String>,
    /// `X-Request-Id` of the answer.
    pub response_request_id: Option<String>,
    /// `X-Devshard-Id` of the answer: the escrow.
    pub response_devshard_id: Option<String>,
    /// `id` of body or stream.
    pub response_body_id: Option<String>,
    /// `Retry-After` of the answer.
    pub retry_after: Option<String>,
    /// Grammar facts; `None` when no body came.
    pub answer: Option<AnswerFacts>,
    /// Tokens.
    pub tokens: Option<Tokens>,
    /// Bytes of the request body.
    pub bytes_out: u64,
    /// Bytes of the answer's body.
    pub bytes_in: u64,
    /// What the client saw.
    pub client_class: ClientClass,
    /// One sentence for people when the class is not `ok`, bounded.
    pub detail: Option<String>,
    /// Checks that failed, by their name in the scenario.
    pub failed_checks: Vec<String>,
    /// Cancel point of the plan line and how it went.
    pub cancel: Option<CancelFact>,
    /// Start and end of the body; always for failures.
    pub excerpt: Option<Excerpt>,
}

impl RequestRecord {
    /// A record in which nothing has happened yet.
    #[must_use]
    pub fn blank(index: u64, id: RequestId, stream: bool) -> Self {
        Self {
            v: crate::EVIDENCE_VERSION,
            index,
            id,
            step: None,
            stream,
            planned_us: None,
            released_us: None,
            sent_us: None,
            headers_us: None,
            first_byte_us: None,
            first_event_us: None,
            first_reasoning_us: None,
            first_content_us: None,
            last_content_us: None,
            end_us: None,
            connect_us: None,
            dns_us: None,
            tls_us: None,
            reconnected: false,
            status: None,
            content_type: None,
            response_request_id: None,
            response_devshard_id: None,
            response_body_id: None,
            retry_after: None,
            answer: None,
            tokens: None,
            bytes_out: 0,
            bytes_in: 0,
            client_class: ClientClass::NotOffered,
            detail: None,
            failed_checks: Vec::new(),
            cancel: None,
            excerpt: None,
        }
    }

    /// TTFT from the planned instant.
    #[must_use]
    pub fn ttft_us(&self) -> Option<u64> {
        Some(self.first_content_us?.saturating_sub(self.planned_us?))
    }

    /// Total latency from the planned instant.
    #[must_use]
    pub fn latency_us(&self) -> Option<u64> {
        Some(self.end_us?.saturating_sub(self.planned_us?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_has_the_word_of_the_specification_and_its_old_one_is_read() {
        assert_eq!(ClientClass::CheckFailed.word(), "check_failed");
        for word in ["\"check_failed\"", "\"check-failed\""] {
            assert_eq!(serde_json::from_str::<ClientClass>(word).unwrap(), ClientClass::CheckFailed);
        }
        assert_eq!(ClientClass::ConnectTimeout.word(), "connect-timeout");
    }
}
