//! The body of an answer while it comes: grammar facts, instants of its parts, joined content, and a bounded excerpt.

use std::borrow::Cow;

use evidence::record::{AnswerFacts, Excerpt, RequestRecord, TokenSource, Tokens};
use sse::{BodyFacts, ChatStream, Ending, Payload, StreamFacts};

/// Largest JSON body that is parsed; what is longer is counted and digested, not kept.
pub const JSON_BYTES_MAX: usize = 16 << 20;
/// Joined content and raw bytes that are kept when a check asks for them.
const KEPT_BYTES_MAX: usize = 16 << 20;
const EXCERPT_HEAD_BYTES: usize = 2048;
const EXCERPT_TAIL_BYTES: usize = 1024;

/// What a check needs beside facts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// The joined content.
    pub content: bool,
    /// The bytes of the body.
    pub raw: bool,
}

/// A finished answer.
#[derive(Debug, Default)]
pub struct Finished {
    /// Facts for the record.
    pub facts: AnswerFacts,
    /// The ending of a stream.
    pub ending: Option<Ending>,
    /// Token counts.
    pub tokens: Option<Tokens>,
    /// `id` of body or stream.
    pub id: Option<String>,
    /// Neither content nor reasoning nor tool calls.
    pub carries_nothing: bool,
    /// Joined content, when asked for.
    pub content: String,
    /// Bytes of the body, when asked for or JSON.
    pub raw: Vec<u8>,
    /// The JSON body was too large to be parsed.
    pub too_large: bool,
}

#[derive(Debug)]
enum Reader {
    Stream(Box<ChatStream>),
    Document { too_large: bool },
}

/// An answer while it comes.
#[derive(Debug)]
pub struct Answer {
    reader: Reader,
    keep: Keep,
    raw: Vec<u8>,
    content: String,
    content_chars: u64,
    content_hash: blake3::Hasher,
    excerpt: ExcerptBuilder,
}

impl Answer {
    /// A reader for an SSE answer or for one JSON document.
    #[must_use]
    pub fn new(stream: bool, keep: Keep) -> Self {
        let reader = if stream {
            Reader::Stream(Box::new(ChatStream::new()))
        } else {
            Reader::Document { too_large: false }
        };
        Self {
            reader,
            keep,
            raw: Vec::new(),
            content: String::new(),
            content_chars: 0,
            content_hash: blake3::Hasher::new(),
            excerpt: ExcerptBuilder::default(),
        }
    }

    /// Takes bytes that were read at `now_us` and notes in the record which parts came with them.
    pub fn feed(&mut self, bytes: &[u8], now_us: u64, record: &mut RequestRecord) {
        record.bytes_in += bytes.len() as u64;
        record.first_byte_us.get_or_insert(now_us);
        self.excerpt.add(bytes);
        match &mut self.reader {
            Reader::Stream(stream) => {
                if self.keep.raw && self.raw.len() + bytes.len() <= KEPT_BYTES_MAX {
                    self.raw.extend_from_slice(bytes);
                }
                let keep = self.keep.content;
                let (chars, hash, content) =
                    (&mut self.content_chars, &mut self.content_hash, &mut self.content);
                stream.feed(bytes, |what, payload| {
                    record.first_event_us.get_or_insert(now_us);
                    if what.reasoning {
                        record.first_reasoning_us.get_or_insert(now_us);
                    }
                    if what.content || what.tool_call {
                        record.first_content_us.get_or_insert(now_us);
                        record.last_content_us = Some(now_us);
                    }
                    if let Some(payload) = payload.filter(|_| what.content) {
                        join(payload, chars, hash, keep.then_some(&mut *content));
                    }
                });
            }
            Reader::Document { too_large } => {
                record.first_content_us.get_or_insert(now_us);
                record.last_content_us = Some(now_us);
                if *too_large || self.raw.len() + bytes.len() > JSON_BYTES_MAX {
                    *too_large = true;
                    self.raw = Vec::new();
                } else {
                    self.raw.extend_from_slice(bytes);
                }
            }
        }
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        match &self.reader {
            Reader::Stream(stream) => stream.facts().events + stream.facts().oversize_events,
            Reader::Document { .. } => 0,
        }
    }

    /// The excerpt of what came.
    #[must_use]
    pub fn excerpt(&self) -> Excerpt {
        self.excerpt.finish()
    }

    /// The answer has ended, `complete` when its framing says so.
    #[must_use]
    pub fn finish(mut self, complete: bool) -> Finished {
        let mut finished = match &mut self.reader {
            Reader::Stream(stream) => of_stream(&stream.finish()),
            Reader::Document { too_large: true } => Finished {
                facts: AnswerFacts { json_object: Some(false), json_errors: 1, ..AnswerFacts::default() },
                too_large: true,
                ..Finished::default()
            },
            Reader::Document { .. } => {
                // The strict check is many times faster than the lossy one, and nearly always enough.
                let text = std::str::from_utf8(&self.raw)
                    .map_or_else(|_| String::from_utf8_lossy(&self.raw), Cow::Borrowed);
                let kept = self.keep.content.then_some(&mut self.content);
                join(&Payload::parse(&text), &mut self.content_chars, &mut self.content_hash, kept);
                of_document(&BodyFacts::of(&self.raw))
            }
        };
        finished.facts.body_complete = complete;
        finished.facts.content_chars = self.content_chars;
        if self.content_chars > 0 {
            finished.facts.content_blake3 = Some(self.content_hash.finalize().to_hex().to_string());
        }
        finished.content = self.content;
        finished.raw = self.raw;
        finished
    }
}

fn join(payload: &Payload<'_>, chars: &mut u64, hash: &mut blake3::Hasher, mut kept: Option<&mut String>) {
    for (_, text) in payload.content() {
        *chars += text.chars().count() as u64;
        hash.update(text.as_bytes());
        if let Some(kept) = &mut kept
            && kept.len() + text.len() <= KEPT_BYTES_MAX
        {
            kept.push_str(text);
        }
    }
}

/// The word of an ending, as crate `sse` writes it.
fn word(ending: Ending) -> Option<String> {
    serde_json::to_value(ending).ok().and_then(|value| value.as_str().map(str::to_owned))
}

fn of_stream(facts: &StreamFacts) -> Finished {
    let ending = facts.ending();
    let usage = facts.usage.unwrap_or_default();
    let tokens = match usage.completion_tokens {
        Some(completion) => {
            Some(Tokens { prompt: usage.prompt_tokens, completion, source: TokenSource::Usage })
        }
        None if facts.events == 0 => None,
        None => Some(Tokens {
            prompt: usage.prompt_tokens,
            completion: facts.content_events + facts.reasoning_events,
            source: TokenSource::Events,
        }),
    };
    Finished {
        facts: AnswerFacts {
            ending: word(ending),
            events: facts.events,
            content_events: facts.content_events,
            reasoning_events: facts.reasoning_events,
            comments: facts.comments,
            done_count: facts.done_count,
            events_after_done: facts.events_after_done,
            unfinished_bytes: facts.unfinished_bytes(),
            json_errors: facts.json_errors,
            utf8_errors: facts.utf8_errors,
            oversize_events: facts.oversize_events,
            shape_errors: facts.shape_errors
                + facts.not_objects
                + facts.choices_missing
                + facts.usage_negative
                + facts.usage_ill_typed,
            id_changed: facts.foreign_id.is_some(),
            error_message: facts.error.as_ref().map(|error| error.message.clone().unwrap_or_default()),
            error_code: facts.error.as_ref().and_then(|error| error.code.clone()),
            finish_reasons: facts.finish_reasons.clone(),
            choices: u32::try_from(facts.choices.len()).unwrap_or(u32::MAX),
            ..AnswerFacts::default()
        },
        ending: Some(ending),
        tokens,
        id: facts.id.clone(),
        carries_nothing: facts.content_events + facts.reasoning_events + facts.tool_call_events == 0,
        ..Finished::default()
    }
}

fn of_document(facts: &BodyFacts) -> Finished {
    let tokens = facts.usage.and_then(|usage| {
        let completion = usage.completion_tokens?;
        Some(Tokens { prompt: usage.prompt_tokens, completion, source: TokenSource::Usage })
    });
    let missing = facts.is_object && facts.error.is_none() && (facts.choices_missing || facts.choices == 0);
    let shape_errors = [
        facts.shape_error,
        missing,
        facts.json && !facts.is_object,
        facts.choice_repeated,
        facts.usage_negative,
        facts.usage_ill_typed,
    ];
    Finished {
        facts: AnswerFacts {
            content_events: facts.content_choices,
            reasoning_events: facts.reasoning_choices,
            json_errors: u64::from(!facts.json),
            utf8_errors: u64::from(!facts.valid_utf8),
            shape_errors: shape_errors.into_iter().map(u64::from).sum(),
            error_message: facts.error.as_ref().map(|error| error.message.clone().unwrap_or_default()),
            error_code: facts.error.as_ref().and_then(|error| error.code.clone()),
            finish_reasons: facts.finish_reasons.clone(),
            choices: u32::try_from(facts.choices).unwrap_or(u32::MAX),
            json_object: Some(facts.is_object),
            ..AnswerFacts::default()
        },
        tokens,
        id: facts.id.clone(),
        carries_nothing: facts.content_choices + facts.reasoning_choices + facts.tool_call_choices == 0,
        ..Finished::default()
    }
}

/// First and last bytes, length and digest of a body of any size.
#[derive(Debug)]
struct ExcerptBuilder {
    head: Vec<u8>,
    tail: Vec<u8>,
    bytes: u64,
    hash: blake3::Hasher,
}

impl Default for ExcerptBuilder {
    fn default() -> Self {
        Self { head: Vec::new(), tail: Vec::new(), bytes: 0, hash: blake3::Hasher::new() }
    }
}

impl ExcerptBuilder {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.hash.update(bytes);
        let (start, rest) = bytes.split_at(bytes.len().min(EXCERPT_HEAD_BYTES - self.head.len()));
        self.head.extend_from_slice(start);
        let rest = &rest[rest.len().saturating_sub(EXCERPT_TAIL_BYTES)..];
        let surplus = (self.tail.len() + rest.len()).saturating_sub(EXCERPT_TAIL_BYTES);
        self.tail.drain(..surplus);
        self.tail.extend_from_slice(rest);
    }

    fn finish(&self) -> Excerpt {
        Excerpt {
            head: String::from_utf8_lossy(&self.head).into_owned(),
            tail: String::from_utf8_lossy(&self.tail).into_owned(),
            bytes: self.bytes,
            blake3: self.hash.finalize().to_hex().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::identity::RequestId;

    fn blank() -> RequestRecord {
        RequestRecord::blank(0, RequestId::new("s", 1, 0), true)
    }

    const STREAM: &[u8] = include_bytes!("../tests/fixtures/ok-stream.txt");

    #[test]
    fn a_stream_gives_the_same_facts_at_any_cut() {
        let whole = {
            let mut answer = Answer::new(true, Keep::default());
            answer.feed(STREAM, 5, &mut blank());
            (answer.excerpt(), answer.finish(true).facts)
        };
        assert_eq!(whole.1.ending.as_deref(), Some("done"));
        for cut in 0..STREAM.len() {
            let mut answer = Answer::new(true, Keep::default());
            let mut record = blank();
            answer.feed(&STREAM[..cut], 5, &mut record);
            answer.feed(&STREAM[cut..], 9, &mut record);
            assert_eq!((answer.excerpt(), answer.finish(true).facts), whole, "cut at {cut}");
            assert_eq!(record.bytes_in, STREAM.len() as u64);
        }
    }

    #[test]
    fn an_excerpt_is_bounded_and_says_the_whole() {
        let body: Vec<u8> = (0..100_000_u32).map(|i| b'a' + u8::try_from(i % 26).unwrap()).collect();
        for step in [1, 7, 1000, 4096, 100_000] {
            let mut excerpt = ExcerptBuilder::default();
            body.chunks(step).for_each(|piece| excerpt.add(piece));
            let got = excerpt.finish();
            assert_eq!(got.head.as_bytes(), &body[..2048], "step {step}");
            assert_eq!(got.tail.as_bytes(), &body[body.len() - 1024..], "step {step}");
            assert_eq!((got.bytes, got.blake3), (100_000, blake3::hash(&body).to_hex().to_string()));
        }
        let mut short = ExcerptBuilder::default();
        short.add(b"short");
        assert_eq!((short.finish().head.as_str(), short.finish().tail.as_str()), ("short", ""));
    }

    #[test]
    fn a_document_that_is_too_large_is_counted_and_not_kept() {
        let mut answer = Answer::new(false, Keep::default());
        let mut record = blank();
        let piece = vec![b' '; 1 << 20];
        for _ in 0..20 {
            answer.feed(&piece, 1, &mut record);
        }
        assert_eq!(record.bytes_in, 20 << 20);
        assert_eq!(answer.raw.capacity(), 0);
        let finished = answer.finish(true);
        assert!(finished.too_large);
        assert_eq!(finished.facts.json_object, Some(false));
    }

    #[test]
    fn reasoning_and_content_have_their_own_instants() {
        let mut answer = Answer::new(true, Keep { content: true, raw: false });
        let mut record = blank();
        let event = |delta: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
        answer.feed(event(r#"{"role":"assistant","content":""}"#).as_bytes(), 1, &mut record);
        answer.feed(event(r#"{"reasoning_content":"hm"}"#).as_bytes(), 2, &mut record);
        answer.feed(event(r#"{"content":"a"}"#).as_bytes(), 3, &mut record);
        answer.feed(event(r#"{"content":"é"}"#).as_bytes(), 4, &mut record);
        assert_eq!((record.first_event_us, record.first_reasoning_us), (Some(1), Some(2)));
        assert_eq!((record.first_content_us, record.last_content_us), (Some(3), Some(4)));
        let finished = answer.finish(true);
        assert_eq!((finished.content.as_str(), finished.facts.content_chars), ("aé", 2));
    }
}
