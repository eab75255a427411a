//! A line of `results-<ts>.jsonl`: one turn of a conversation. Facts; times in microseconds from the start of the run.

use std::borrow::Cow;

use evidence::record::{CancelFact, ClientClass, Excerpt, TokenSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Ended;
use crate::connection::transport::Http;
use crate::json_line::{JsonLine, Line};

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
pub struct TurnRecord<'a> {
    /// Format version.
    pub v: u32,
    /// Conversation id: the key for joins with the server's rows.
    pub conversation: Cow<'a, str>,
    /// Scenario name.
    pub scenario: Cow<'a, str>,
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
    /// Tunnel through a proxy, when one was opened.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub proxy_us: Option<u64>,
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
    pub finish_reason: Option<Cow<'a, str>>,
    /// `X-Request-Id` of the answer.
    pub response_request_id: Option<Cow<'a, str>>,
    /// `id` of body or stream.
    pub response_id: Option<Cow<'a, str>>,
    /// One sentence when the class is not `ok`.
    pub detail: Option<Cow<'a, str>>,
    /// Checks that failed.
    #[serde(skip_serializing_if = "<[String]>::is_empty", default)]
    pub failed_checks: Cow<'a, [String]>,
    /// Own cancel point and how it went.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cancel: Option<CancelFact>,
    /// Start and end of the body of a failure.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub excerpt: Option<Cow<'a, Excerpt>>,
}

impl<'a> TurnRecord<'a> {
    /// The record of a turn that has ended; it borrows what is text.
    #[must_use]
    pub fn new(place: TurnPlace<'a>, ended: &'a Ended) -> Self {
        let record = &*ended.record;
        let since = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?));
        let borrowed = |text: &'a Option<String>| text.as_deref().map(Cow::Borrowed);
        let answer = record.answer.as_ref();
        Self {
            v: TURN_VERSION,
            conversation: Cow::Borrowed(place.conversation),
            scenario: Cow::Borrowed(place.scenario),
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
            tpot_us: tpot_us(record, ended.output_events),
            dns_us: record.dns_us.or(record.connect_us.map(|_| 0)),
            connect_us: record.connect_us,
            tls_us: record.tls_us,
            proxy_us: ended.proxy_us,
            transfer_us: since(record.first_byte_us, record.end_us),
            http: ended.start_us.map(|_| if ended.http2 { Http::Two } else { Http::One }),
            status: record.status,
            prompt_tokens: record.tokens.and_then(|tokens| tokens.prompt),
            completion_tokens: record.tokens.map(|tokens| tokens.completion),
            tokens_by: record.tokens.map(|tokens| tokens.source),
            content_len: answer.map_or(0, |answer| answer.content_chars),
            events: answer.map_or(0, |answer| answer.events),
            finish_reason: answer
                .and_then(|answer| answer.finish_reasons.values().next())
                .map(|reason| Cow::Borrowed(reason.as_str())),
            response_request_id: borrowed(&record.response_request_id),
            response_id: borrowed(&record.response_body_id),
            detail: borrowed(&record.detail),
            failed_checks: Cow::Borrowed(&record.failed_checks),
            cancel: record.cancel,
            excerpt: record.excerpt.as_ref().map(Cow::Borrowed),
        }
    }
}

impl Line for TurnRecord<'_> {
    /// The same bytes as by serde, which looks at every key and value anew: a record is written for each request.
    fn write_to(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        let mut line = JsonLine::begin(out, "{\"v\":", u64::from(self.v));
        line.text(",\"conversation\":", Some(&self.conversation))?;
        line.text(",\"scenario\":", Some(&self.scenario))?;
        line.number(",\"turn\":", Some(self.turn.into()));
        line.number(",\"stage\":", u64::try_from(self.stage).ok());
        line.truth(",\"steady\":", self.steady);
        line.truth(",\"stream\":", self.stream);
        match self.class {
            // By far the most; serde takes its time for a word.
            ClientClass::Ok => line.word(",\"class\":", Some("ok")),
            other => line.value(",\"class\":", &other)?,
        }
        line.number(",\"planned_us\":", self.planned_us);
        line.number(",\"released_us\":", self.released_us);
        line.number(",\"start_us\":", self.start_us);
        line.number(",\"sent_us\":", self.sent_us);
        line.number(",\"end_us\":", self.end_us);
        line.number(",\"latency_us\":", self.latency_us);
        line.number(",\"service_us\":", self.service_us);
        line.number(",\"ttft_us\":", self.ttft_us);
        line.number(",\"first_byte_us\":", self.first_byte_us);
        line.number(",\"first_reasoning_us\":", self.first_reasoning_us);
        line.number(",\"tpot_us\":", self.tpot_us);
        line.number(",\"dns_us\":", self.dns_us);
        line.number(",\"connect_us\":", self.connect_us);
        line.number(",\"tls_us\":", self.tls_us);
        if self.proxy_us.is_some() {
            line.number(",\"proxy_us\":", self.proxy_us);
        }
        line.number(",\"transfer_us\":", self.transfer_us);
        line.word(",\"http\":", self.http.map(Http::word));
        line.number(",\"status\":", self.status.map(u64::from));
        line.number(",\"prompt_tokens\":", self.prompt_tokens);
        line.number(",\"completion_tokens\":", self.completion_tokens);
        line.word(",\"tokens_by\":", self.tokens_by.map(source_word));
        line.number(",\"content_len\":", Some(self.content_len));
        line.number(",\"events\":", Some(self.events));
        line.text(",\"finish_reason\":", self.finish_reason.as_deref())?;
        line.text(",\"response_request_id\":", self.response_request_id.as_deref())?;
        line.text(",\"response_id\":", self.response_id.as_deref())?;
        line.text(",\"detail\":", self.detail.as_deref())?;
        if !self.failed_checks.is_empty() {
            line.value(",\"failed_checks\":", &self.failed_checks)?;
        }
        if let Some(cancel) = &self.cancel {
            line.value(",\"cancel\":", cancel)?;
        }
        if let Some(excerpt) = &self.excerpt {
            line.value(",\"excerpt\":", excerpt)?;
        }
        line.end();
        Ok(())
    }
}

fn source_word(source: TokenSource) -> &'static str {
    match source {
        TokenSource::Usage => "usage",
        TokenSource::Events => "events",
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

#[cfg(test)]
mod tests {
    use super::*;
    use evidence::record::{RequestRecord, Tokens};
    use proptest::prelude::*;
    use scenario::identity::RequestId;

    fn ended(numbers: &[Option<u64>], text: &str, class: ClientClass, more: bool) -> Ended {
        let mut record = RequestRecord::blank(0, RequestId::from_text("r"), more);
        let text = || Some(text.to_owned());
        record.client_class = class;
        [record.planned_us, record.sent_us, record.first_byte_us, record.end_us, record.connect_us] =
            std::array::from_fn(|place| numbers[place]);
        (record.dns_us, record.tls_us) = (numbers[2], numbers[9]);
        record.status = numbers[5].and_then(|number| u16::try_from(number).ok());
        record.response_request_id = text();
        (record.response_body_id, record.detail) = (text().filter(|_| more), text().filter(|_| !more));
        let source = if more { TokenSource::Usage } else { TokenSource::Events };
        record.tokens = numbers[6].map(|completion| Tokens { prompt: numbers[7], completion, source });
        if more {
            record.failed_checks = text().into_iter().collect();
            let (head, tail) = (text().unwrap_or_default(), String::new());
            record.excerpt = Some(Excerpt { head, tail, bytes: 3, blake3: String::new() });
            let (phase, close) = (scenario::model::CancelPhase::FirstContent, scenario::fault::Close::Fin);
            record.cancel = Some(CancelFact { phase, close, at_us: numbers[1] });
            record.answer = Some(evidence::record::AnswerFacts {
                finish_reasons: [(0, "stop".to_owned())].into(),
                content_chars: 7,
                ..Default::default()
            });
        }
        Ended {
            tag: 0,
            record: Box::new(record),
            content: String::new(),
            output_events: 0,
            start_us: numbers[8],
            http2: more,
            first_on_connection: false,
            proxy_us: numbers[3],
            cancel_reached_us: None,
        }
    }

    proptest! {
        #[test]
        fn any_record_is_written_as_serde_writes_it(
            numbers in prop::collection::vec(any::<Option<u64>>(), 10),
            text in "([a-z\"\\\\é\n\u{1}\u{7f}]){0,6}",
            bad: bool,
            more: bool,
        ) {
            let class = if bad { ClientClass::CheckFailed } else { ClientClass::Ok };
            let ended = ended(&numbers, &text, class, more);
            let place = TurnPlace { conversation: &text, scenario: "s", turn: 1, stage: 2, steady: bad };
            let record = TurnRecord::new(place, &ended);
            let mut line = b"before".to_vec();
            record.write_to(&mut line).unwrap();
            prop_assert_eq!(std::str::from_utf8(&line[6..]).unwrap(), serde_json::to_string(&record).unwrap());
            prop_assert_eq!(serde_json::from_slice::<TurnRecord<'_>>(&line[6..]).unwrap(), record);
        }
    }
}
