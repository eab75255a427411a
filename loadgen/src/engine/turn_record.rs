//! A line of `results-<ts>.jsonl`: one turn of a conversation. Facts; times in microseconds from the start of the run.

use evidence::record::{CancelFact, ClientClass, Excerpt, TokenSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Ended;
use crate::connection::transport::Http;

/// Format version.
pub const TURN_VERSION: u32 = 1;

/// Where a turn belongs.
#[derive(Clone, Copy, Debug)]
pub struct TurnPlace<'a> {
    /// Conversation id.
    pub conversation: &'a str,
    /// Scenario name.
    pub scenario: &'a str,
    /// Turn, from 0.
    pub turn: u32,
    /// Stage, from 0.
    pub stage: usize,
    /// It counts in the steady figures.
    pub steady: bool,
}

/// One turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnRecord {
    /// Format version.
    pub v: u32,
    /// Conversation id: the key for joins with the server's rows.
    pub conversation: String,
    /// Scenario name.
    pub scenario: String,
    /// Turn, from 0.
    pub turn: u32,
    /// Stage, from 0.
    pub stage: usize,
    /// Planned in the steady part of its stage; false = warm-up, ramp or cool-down.
    pub steady: bool,
    /// SSE was asked for.
    pub stream: bool,
    /// What the client saw.
    pub class: ClientClass,
    /// When it should have been sent.
    pub planned_us: Option<u64>,
    /// When the in-flight bound let it go.
    pub released_us: Option<u64>,
    /// When sending began.
    pub start_us: Option<u64>,
    /// When its last byte was written.
    pub sent_us: Option<u64>,
    /// When it ended.
    pub end_us: Option<u64>,
    /// Planned to end.
    pub latency_us: Option<u64>,
    /// Start of sending to end.
    pub service_us: Option<u64>,
    /// Planned to first content.
    pub ttft_us: Option<u64>,
    /// Sent to the first byte of the body.
    pub first_byte_us: Option<u64>,
    /// Planned to first reasoning.
    pub first_reasoning_us: Option<u64>,
    /// Time per output token.
    pub tpot_us: Option<u64>,
    /// Name resolution; 0 where the address was known.
    pub dns_us: Option<u64>,
    /// TCP connect, when a connection was opened.
    pub connect_us: Option<u64>,
    /// TLS handshake, when there was one.
    pub tls_us: Option<u64>,
    /// First to last byte of the body.
    pub transfer_us: Option<u64>,
    /// Version of HTTP that it travelled over; null when it was never sent.
    #[serde(default)]
    pub http: Option<Http>,
    /// HTTP status.
    pub status: Option<u16>,
    /// Prompt tokens by usage.
    pub prompt_tokens: Option<u64>,
    /// Completion tokens.
    pub completion_tokens: Option<u64>,
    /// Who counted them.
    pub tokens_by: Option<TokenSource>,
    /// Characters of joined content.
    pub content_len: u64,
    /// Events of a stream.
    pub events: u64,
    /// Finish reason of the first choice.
    pub finish_reason: Option<String>,
    /// `X-Request-Id` of the answer.
    pub response_request_id: Option<String>,
    /// `id` of body or stream.
    pub response_id: Option<String>,
    /// One sentence when the class is not `ok`.
    pub detail: Option<String>,
    /// Checks that failed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed_checks: Vec<String>,
    /// Own cancel point and how it went.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cancel: Option<CancelFact>,
    /// Start and end of the body of a failure.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub excerpt: Option<Excerpt>,
}

impl TurnRecord {
    /// The record of a turn that has ended.
    #[must_use]
    pub fn new(place: TurnPlace<'_>, ended: Ended) -> Self {
        let record = *ended.record;
        let since = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?));
        let connected = record.connect_us.is_some();
        let tpot_us = tpot_us(&record, ended.output_events);
        Self {
            v: TURN_VERSION,
            conversation: place.conversation.to_owned(),
            scenario: place.scenario.to_owned(),
            turn: place.turn,
            stage: place.stage,
            steady: place.steady,
            stream: record.stream,
            class: record.client_class,
            planned_us: record.planned_us,
            released_us: record.released_us,
            start_us: ended.start_us,
            sent_us: record.sent_us,
            end_us: record.end_us,
            latency_us: record.latency_us(),
            service_us: since(ended.start_us, record.end_us),
            ttft_us: record.ttft_us(),
            first_byte_us: since(record.sent_us, record.first_byte_us),
            first_reasoning_us: since(record.planned_us, record.first_reasoning_us),
            tpot_us,
            dns_us: ended.dns_us.or(connected.then_some(0)),
            connect_us: record.connect_us,
            tls_us: ended.tls_us,
            transfer_us: since(record.first_byte_us, record.end_us),
            http: ended.start_us.map(|_| if ended.http2 { Http::Two } else { Http::One }),
            status: record.status,
            prompt_tokens: record.tokens.and_then(|tokens| tokens.prompt),
            completion_tokens: record.tokens.map(|tokens| tokens.completion),
            tokens_by: record.tokens.map(|tokens| tokens.source),
            content_len: record.answer.as_ref().map_or(0, |answer| answer.content_chars),
            events: record.answer.as_ref().map_or(0, |answer| answer.events),
            finish_reason: record.answer.and_then(|answer| answer.finish_reasons.into_values().next()),
            response_request_id: record.response_request_id,
            response_id: record.response_body_id,
            detail: record.detail,
            failed_checks: record.failed_checks,
            cancel: record.cancel,
            excerpt: record.excerpt,
        }
    }
}

/// `(last − first output) / (tokens − 1)` of a stream, tokens by usage or else events with output.
#[must_use]
pub fn tpot_us(record: &evidence::record::RequestRecord, output_events: u64) -> Option<u64> {
    if !record.stream {
        return None;
    }
    let first = [record.first_reasoning_us, record.first_content_us].into_iter().flatten().min()?;
    let span = record.last_content_us?.saturating_sub(first);
    let tokens = match record.tokens {
        Some(tokens) if tokens.source == TokenSource::Usage => tokens.completion,
        _ => output_events,
    };
    span.checked_div(tokens.checked_sub(1)?)
}
