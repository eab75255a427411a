//! What a model server's answer is, read piece by piece: which lines go on to the gateway, what is stored,
//! and whether the answer was complete (contract mocks 3.9, design section 9). Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::body::sorted_bytes;
use crate::personality::Personality;

/// Longest line of a stream, in bytes.
pub const LINE_MAX: usize = 1 << 20;
/// Longest answer, in bytes.
pub const ANSWER_MAX: usize = 16 << 20;

/// Why an answer is not a success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The stream ended early.
    #[error("answer ended before its end: {0}")]
    Truncated(&'static str),
    /// Not the JSON that was promised.
    #[error("answer is malformed: {0}")]
    Malformed(String),
    /// No count of tokens.
    #[error("answer without usage")]
    NoUsage,
    /// The model server reported an error in the answer.
    #[error("model server error: {0}")]
    Application(String),
    /// Larger than a host takes.
    #[error("answer larger than {0} bytes")]
    TooLarge(usize),
}

impl AnswerError {
    /// Reason in log and metrics (contract hosts 9.3).
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Truncated(_) => "transport_err",
            Self::Application(_) => "application_err",
            Self::Malformed(_) | Self::NoUsage | Self::TooLarge(_) => "process_response_err",
        }
    }
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Stored bytes; their SHA-256 is the finish's `response_hash`.
    pub stored: Vec<u8>,
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Answer tokens.
    pub output_tokens: u64,
}

/// Reads a JSON answer: the bytes to send on (id rewritten, keys sorted), and the answer.
///
/// # Errors
/// When it is no chat completion with usage, or an error document.
pub fn read_json(bytes: &[u8], id: &str, personality: Personality) -> Result<Answer, AnswerError> {
    let mut document: Map<String, Value> =
        serde_json::from_slice(bytes).map_err(|error| AnswerError::Malformed(error.to_string()))?;
    if let Some(error) = document.get("error").filter(|error| !error.is_null()) {
        return Err(AnswerError::Application(error_text(error)));
    }
    let choices = document.get("choices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if personality == Personality::Intended {
        if choices.is_empty() {
            return Err(AnswerError::Malformed("no choices".into()));
        }
        if choices.iter().any(|choice| !choice.get("finish_reason").is_some_and(Value::is_string)) {
            return Err(AnswerError::Truncated("a choice has no finish reason"));
        }
    }
    let (input_tokens, output_tokens) = usage_of(&document).ok_or(AnswerError::NoUsage)?;
    document.insert("id".into(), id.into());
    Ok(Answer { stored: sorted_bytes(Value::Object(document)), input_tokens, output_tokens })
}

/// What becomes of one line of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Goes on to the gateway in this form.
    Relay(String),
    /// Nothing to send.
    Skip,
    /// The end marker; whether it goes on is decided by [`StreamReader::finish`].
    Done,
}

/// Reader of an SSE answer.
#[derive(Debug)]
pub struct StreamReader {
    id: String,
    personality: Personality,
    events: Vec<String>,
    stored_bytes: usize,
    done: bool,
    usage: Option<(u64, u64)>,
    finished: BTreeMap<u64, bool>,
    logprob_entries: u64,
    error: Option<AnswerError>,
}

impl StreamReader {
    /// A reader that gives every event the id `id`.
    #[must_use]
    pub const fn new(id: String, personality: Personality) -> Self {
        Self {
            id,
            personality,
            events: Vec::new(),
            stored_bytes: 0,
            done: false,
            usage: None,
            finished: BTreeMap::new(),
            logprob_entries: 0,
            error: None,
        }
    }

    /// Takes one line without its end.
    ///
    /// # Errors
    /// When the line is not what a model server may send. The stream is then over.
    pub fn line(&mut self, line: &[u8]) -> Result<Line, AnswerError> {
        let text = std::str::from_utf8(line).map_err(|error| AnswerError::Malformed(error.to_string()))?;
        let text = text.trim_end_matches('\r');
        let Some(data) = text.strip_prefix("data:") else { return self.other_line(text) };
        let data = data.strip_prefix(' ').unwrap_or(data);
        if data == "[DONE]" {
            self.done = true;
            return Ok(Line::Done);
        }
        let mut event: Map<String, Value> =
            serde_json::from_str(data).map_err(|error| AnswerError::Malformed(error.to_string()))?;
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            let error = AnswerError::Application(error_text(error));
            if self.personality == Personality::Intended {
                return Err(error);
            }
            self.error = Some(error);
        }
        self.note(&event);
        event.insert("id".into(), self.id.clone().into());
        let bytes = sorted_bytes(Value::Object(event));
        let relayed = format!("data: {}", String::from_utf8_lossy(&bytes));
        self.stored_bytes += relayed.len();
        if self.stored_bytes > ANSWER_MAX {
            return Err(AnswerError::TooLarge(ANSWER_MAX));
        }
        self.events.push(relayed.clone());
        Ok(Line::Relay(relayed))
    }

    /// The end of the bytes; `cut` says why, when it was no clean end. The answer if it is complete.
    ///
    /// # Errors
    /// When it is not. The July host takes what it got, the intended one does not.
    pub fn finish(self, cut: Option<&'static str>) -> Result<Answer, AnswerError> {
        if self.events.is_empty() {
            return Err(AnswerError::Truncated(cut.unwrap_or("no event")));
        }
        let usage = if self.personality == Personality::Intended {
            if let (Some(cut), false) = (cut, self.done) {
                return Err(AnswerError::Truncated(cut));
            }
            if !self.done {
                return Err(AnswerError::Truncated("no [DONE]"));
            }
            if self.finished.is_empty() || self.finished.values().any(|finished| !finished) {
                return Err(AnswerError::Truncated("a choice has no finish reason"));
            }
            self.usage.ok_or(AnswerError::NoUsage)?
        } else {
            self.usage.unwrap_or((0, if self.error.is_some() { 0 } else { self.logprob_entries }))
        };
        let stored = sorted_bytes(json!({ "events": self.events }));
        Ok(Answer { stored, input_tokens: usage.0, output_tokens: usage.1 })
    }

    /// Whether the end marker was seen.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.done
    }

    fn other_line(&self, text: &str) -> Result<Line, AnswerError> {
        let known = text.is_empty()
            || text.starts_with(':')
            || ["event", "id", "retry"].contains(&text.split(':').next().unwrap_or_default());
        // July keeps every non-empty line and later fails to read it as JSON.
        if text.is_empty() || (known && self.personality == Personality::Intended) {
            return Ok(Line::Skip);
        }
        Err(AnswerError::Malformed(format!("line {:?}", text.chars().take(80).collect::<String>())))
    }

    fn note(&mut self, event: &Map<String, Value>) {
        if self.usage.is_none() {
            self.usage = usage_of(event);
        }
        for choice in event.get("choices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default() {
            let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
            let finished = choice.get("finish_reason").is_some_and(Value::is_string);
            *self.finished.entry(index).or_default() |= finished;
            let entries = choice.pointer("/logprobs/content").and_then(Value::as_array);
            self.logprob_entries += entries.map_or(0, |entries| entries.len() as u64);
        }
    }
}

/// Tokens that a document counts; none when both counts are missing or 0.
pub fn usage_of(document: &Map<String, Value>) -> Option<(u64, u64)> {
    let usage = document.get("usage")?;
    let count = |key| usage.get(key).and_then(Value::as_u64).unwrap_or(0);
    Some((count("prompt_tokens"), count("completion_tokens"))).filter(|counts| *counts != (0, 0))
}

fn error_text(error: &Value) -> String {
    let text = error.get("message").and_then(Value::as_str).map_or_else(|| error.to_string(), str::to_owned);
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: &str = r#"data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"logprobs":{"content":[{"token":"1"}]}}]}"#;
    const LAST: &str = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;

    fn read(
        lines: &[&str],
        cut: Option<&'static str>,
        personality: Personality,
    ) -> Result<Answer, AnswerError> {
        let mut reader = StreamReader::new("devshard-1-2".into(), personality);
        for line in lines {
            reader.line(line.as_bytes())?;
        }
        reader.finish(cut)
    }

    #[test]
    fn a_complete_stream_is_an_answer_with_rewritten_ids() {
        let mut reader = StreamReader::new("devshard-1-2".into(), Personality::Intended);
        let Line::Relay(sent) = reader.line(CHUNK.as_bytes()).unwrap() else { panic!("not relayed") };
        assert!(sent.contains(r#""id":"devshard-1-2""#) && sent.starts_with("data: {"), "{sent}");
        let answer = read(&[CHUNK, "", ": ping", LAST, "data: [DONE]"], None, Personality::Intended).unwrap();
        assert_eq!((answer.input_tokens, answer.output_tokens), (3, 1));
        assert!(answer.stored.starts_with(br#"{"events":["data: {"#));
    }

    #[test]
    fn what_july_takes_for_complete_is_truncated_here() {
        for (lines, cut) in [
            (&[CHUNK][..], None),
            (&[CHUNK][..], Some("reset")),
            (&[CHUNK, LAST][..], None),
            (&[CHUNK, "data: [DONE]"][..], None),
        ] {
            assert!(matches!(read(lines, cut, Personality::Intended), Err(AnswerError::Truncated(_))));
            assert!(read(lines, cut, Personality::July).is_ok());
        }
        let answer = read(&[CHUNK], None, Personality::July).unwrap();
        assert_eq!((answer.input_tokens, answer.output_tokens), (0, 1));
    }

    #[test]
    fn a_cut_after_the_end_marker_takes_nothing_away() {
        assert!(read(&[CHUNK, LAST, "data: [DONE]"], Some("reset"), Personality::Intended).is_ok());
    }

    #[test]
    fn malformed_lines_and_error_events_end_the_stream() {
        for line in ["data: {\"choices\":[", "data: 5", "nonsense"] {
            assert!(matches!(
                read(&[CHUNK, line], None, Personality::Intended),
                Err(AnswerError::Malformed(_))
            ));
        }
        let error = r#"data: {"error":{"message":"boom"}}"#;
        let refused = read(&[error, "data: [DONE]"], None, Personality::Intended);
        assert_eq!(refused, Err(AnswerError::Application("boom".into())));
        let july = read(&[error, "data: [DONE]"], None, Personality::July).unwrap();
        assert_eq!((july.input_tokens, july.output_tokens), (0, 0));
        assert!(matches!(read(&[": ping"], None, Personality::July), Err(AnswerError::Malformed(_))));
    }

    #[test]
    fn json_answers_need_usage_and_an_end() {
        let good = br#"{"id":"x","choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":5}}"#;
        let answer = read_json(good, "devshard-1-2", Personality::Intended).unwrap();
        assert_eq!((answer.input_tokens, answer.output_tokens), (2, 5));
        assert!(std::str::from_utf8(&answer.stored).unwrap().contains(r#""id":"devshard-1-2""#));
        let no_usage = br#"{"choices":[{"finish_reason":"stop"}]}"#;
        assert_eq!(read_json(no_usage, "i", Personality::July), Err(AnswerError::NoUsage));
        let cut = br#"{"choices":[{"finish_reason":null}],"usage":{"prompt_tokens":2}}"#;
        assert!(matches!(read_json(cut, "i", Personality::Intended), Err(AnswerError::Truncated(_))));
        let error = br#"{"error":{"message":"bad"}}"#;
        assert_eq!(read_json(error, "i", Personality::July), Err(AnswerError::Application("bad".into())));
        assert!(matches!(read_json(b"[]", "i", Personality::July), Err(AnswerError::Malformed(_))));
    }
}
