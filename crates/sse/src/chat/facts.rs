//! The facts of a whole stream: a fold over its events, without a clock and without a verdict.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::payload::{Choice, Chunk, ErrorKeys, EventKind, Output, Payload, TokenCount, UsageKeys};
use super::stream::EventFacts;
use crate::json::{Field, bounded};
use crate::parser::{Event, EventTooLarge, Parser};

/// Choices of one answer that are kept apart; more are counted in `choices_dropped`.
pub(crate) const CHOICES_MAX: usize = 128;
/// Bytes kept of texts of the peer. Cut at a character boundary.
pub(crate) const ID_BYTES_MAX: usize = 128;
pub(crate) const LABEL_BYTES_MAX: usize = 64;
const MESSAGE_BYTES_MAX: usize = 512;
const EXCERPT_BYTES_MAX: usize = 256;

/// Token counts as the server reported them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// `prompt_tokens`, None when missing, negative or no whole number.
    pub prompt_tokens: Option<u64>,
    /// `completion_tokens`, likewise.
    pub completion_tokens: Option<u64>,
    /// `total_tokens`, likewise; not checked against the sum.
    pub total_tokens: Option<u64>,
}

impl Usage {
    pub(crate) fn from_keys(keys: &UsageKeys) -> Self {
        let tokens = |field: &Field<TokenCount>| match field.value() {
            Some(TokenCount::Tokens(count)) => Some(*count),
            _ => None,
        };
        Self {
            prompt_tokens: tokens(&keys.prompt_tokens),
            completion_tokens: tokens(&keys.completion_tokens),
            total_tokens: tokens(&keys.total_tokens),
        }
    }
}

/// What an error said, each part cut to a bounded length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorFact {
    /// `code`; a number is kept as its digits.
    pub code: Option<String>,
    /// `type`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// `message`, or the whole error when it was a plain text.
    pub message: Option<String>,
}

impl ErrorFact {
    pub(crate) fn from_keys(keys: &ErrorKeys<'_>) -> Self {
        Self {
            code: keys.code.value().map(|code| bounded(&code.0, LABEL_BYTES_MAX)),
            kind: keys.kind.value().map(|kind| bounded(&kind.0, LABEL_BYTES_MAX)),
            message: keys.message.value().map(|text| bounded(text, MESSAGE_BYTES_MAX)),
        }
    }
}

/// The first id in a stream that differs from the stream's first id: a chunk of another request,
/// or a restarted answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignId {
    /// Position of the event.
    pub event: u64,
    /// Its id, bounded.
    pub id: String,
}

/// What was left when the input ended inside an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedFact {
    /// Length of its field lines joined by LF, at most the event limit.
    pub bytes: u64,
    /// Their beginning, illegal UTF-8 replaced; at most 256 bytes of the raw text.
    pub head: String,
}

/// The facts of one stream. Event positions count from 0 over all events, oversized ones included.
/// Serialised names are the field names; what is missing in a file has its empty value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamFacts {
    /// Events dispatched by the grammar, the terminal marker included.
    pub events: u64,
    /// Events with non-empty content.
    pub content_events: u64,
    /// Events with non-empty `reasoning` or `reasoning_content`.
    pub reasoning_events: u64,
    /// Events with tool calls.
    pub tool_call_events: u64,
    /// Events with token counts.
    pub usage_events: u64,
    /// Events with an error.
    pub error_events: u64,
    /// Comment lines.
    pub comments: u64,
    /// Terminal markers.
    pub done_count: u64,
    /// Events after the first terminal marker: further markers and oversized events count too.
    pub events_after_done: u64,
    /// Indices of all choices seen, at most 128.
    pub choices: BTreeSet<u32>,
    /// First finish reason of each choice.
    pub finish_reasons: BTreeMap<u32, String>,
    /// Choices that got another, different finish reason later.
    pub finish_conflicts: u64,
    /// Choices in events that went on with output although they had finished before.
    pub output_after_finish: u64,
    /// Entries of `choices` that were not kept apart because there were too many.
    pub choices_dropped: u64,
    /// The last token counts.
    pub usage: Option<Usage>,
    /// Events with a negative token count.
    pub usage_negative: u64,
    /// Events whose usage is no object, or in which a count is no whole number.
    pub usage_ill_typed: u64,
    /// The first error.
    pub error: Option<ErrorFact>,
    /// Position of the first error.
    pub first_error_event: Option<u64>,
    /// Position of the last error.
    pub last_error_event: Option<u64>,
    /// The first `id` of a payload.
    pub id: Option<String>,
    /// The first one that differs from it.
    pub foreign_id: Option<ForeignId>,
    /// Events with an `id` other than the first one.
    pub foreign_id_events: u64,
    /// Events that are neither JSON nor the marker.
    pub json_errors: u64,
    /// Events that are JSON but no object.
    pub not_objects: u64,
    /// JSON objects without `choices` (or with null) that are no error.
    pub choices_missing: u64,
    /// Events in which a known key other than usage has a wrong type.
    pub shape_errors: u64,
    /// Events with a field line that is not valid UTF-8. Their text is read with U+FFFD.
    pub utf8_errors: u64,
    /// Events dropped because they crossed the event limit.
    pub oversize_events: u64,
    /// Full size of those.
    pub oversize_bytes: u64,
    /// What was left at the end of the input.
    pub unfinished: Option<UnfinishedFact>,
}

impl StreamFacts {
    /// Adds one event with its payload, which the caller has parsed from [`Event::text_lossy`],
    /// and says what it was.
    pub fn add(&mut self, event: &Event<'_>, payload: &Payload<'_>) -> EventFacts {
        let after_done = self.start_event();
        self.events += 1;
        self.utf8_errors += u64::from(!event.valid_utf8());
        let (output, usage) = match payload {
            Payload::Done => {
                self.done_count += 1;
                Default::default()
            }
            Payload::NotJson => {
                self.json_errors += 1;
                Default::default()
            }
            Payload::NotObject => {
                self.not_objects += 1;
                Default::default()
            }
            Payload::Object(chunk) => (self.add_chunk(event.index(), chunk), chunk.has_usage()),
        };
        EventFacts {
            index: event.index(),
            kind: payload.kind(),
            after_done,
            role: output.role,
            content: output.content,
            reasoning: output.reasoning,
            tool_call: output.tool_call,
            finish: output.finish,
            usage,
        }
    }

    /// Adds an event that the parser had to drop.
    pub fn add_too_large(&mut self, dropped: &EventTooLarge) -> EventFacts {
        let after_done = self.start_event();
        self.oversize_events += 1;
        EventFacts { after_done, ..EventFacts::bare(dropped.index, EventKind::TooLarge) }
    }

    /// Adds what only the parser knows: once, after the input has ended.
    pub fn finish(&mut self, parser: &mut Parser) {
        self.unfinished = parser.finish().map(|left| {
            let head = &left.raw[..left.raw.len().min(EXCERPT_BYTES_MAX)];
            UnfinishedFact { bytes: left.raw.len() as u64, head: String::from_utf8_lossy(head).into_owned() }
        });
        let counts = parser.counts();
        self.comments = counts.comments;
        self.oversize_bytes = counts.oversize_bytes;
    }

    /// True when the answer is complete as far as choices tell: there was one, and each has a
    /// finish reason.
    pub fn every_choice_finished(&self) -> bool {
        !self.choices.is_empty() && self.choices.iter().all(|index| self.finish_reasons.contains_key(index))
    }

    /// Length of an unfinished last event in bytes, 0 when the input ended at an event boundary.
    pub fn unfinished_bytes(&self) -> u64 {
        self.unfinished.as_ref().map_or(0, |left| left.bytes)
    }

    fn start_event(&mut self) -> bool {
        let after_done = self.done_count > 0;
        self.events_after_done += u64::from(after_done);
        after_done
    }

    fn add_chunk(&mut self, index: u64, chunk: &Chunk<'_>) -> Output {
        self.shape_errors += u64::from(chunk.ill_shaped());
        self.add_id(index, chunk);
        self.add_usage(chunk);
        if let Some(error) = chunk.error() {
            self.error_events += 1;
            self.error.get_or_insert_with(|| ErrorFact::from_keys(error));
            self.first_error_event.get_or_insert(index);
            self.last_error_event = Some(index);
        } else {
            self.choices_missing += u64::from(chunk.choices.absent());
        }
        for choice in chunk.choices() {
            self.add_choice(choice);
        }
        let output = chunk.output();
        self.content_events += u64::from(output.content);
        self.reasoning_events += u64::from(output.reasoning);
        self.tool_call_events += u64::from(output.tool_call);
        output
    }

    fn add_choice(&mut self, choice: &Choice<'_>) {
        let index = choice.index();
        if !self.choices.contains(&index) {
            if self.choices.len() == CHOICES_MAX {
                self.choices_dropped += 1;
                return;
            }
            self.choices.insert(index);
        }
        let finished = self.finish_reasons.get(&index);
        self.output_after_finish += u64::from(finished.is_some() && choice.output().any());
        if let Some(reason) = choice.finish_reason() {
            let reason = bounded(reason, LABEL_BYTES_MAX);
            match finished {
                // A usage chunk may repeat the reason (July mock-openai does).
                Some(first) => self.finish_conflicts += u64::from(*first != reason),
                None => {
                    self.finish_reasons.insert(index, reason);
                }
            }
        }
    }

    fn add_id(&mut self, index: u64, chunk: &Chunk<'_>) {
        let Some(id) = chunk.id.value() else { return };
        let start = &id[..id.floor_char_boundary(ID_BYTES_MAX)];
        match &self.id {
            None => self.id = Some(start.to_owned()),
            Some(first) if first == start => {}
            Some(_) => {
                self.foreign_id_events += 1;
                self.foreign_id.get_or_insert_with(|| ForeignId { event: index, id: start.to_owned() });
            }
        }
    }

    fn add_usage(&mut self, chunk: &Chunk<'_>) {
        let flags = UsageFlags::of(&chunk.usage);
        self.usage_negative += u64::from(flags.negative);
        self.usage_ill_typed += u64::from(flags.ill_typed);
        if let Some(keys) = chunk.usage.value().filter(|_| chunk.has_usage()) {
            self.usage_events += 1;
            // Servers that report continuously send growing counts: the last ones are the total.
            self.usage = Some(Usage::from_keys(keys));
        }
    }
}

/// What is wrong with a usage object.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UsageFlags {
    pub(crate) negative: bool,
    pub(crate) ill_typed: bool,
}

impl UsageFlags {
    pub(crate) fn of(usage: &Field<UsageKeys>) -> Self {
        let counts = usage.value().map(UsageKeys::all).into_iter().flatten();
        counts.fold(Self { negative: false, ill_typed: usage.ill_typed() }, |sum, count| Self {
            negative: sum.negative || count.value() == Some(&TokenCount::Negative),
            ill_typed: sum.ill_typed || count.ill_typed(),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::ChatStream;

    fn facts_of(datas: &[String]) -> super::StreamFacts {
        let mut stream = ChatStream::new();
        for data in datas {
            stream.feed(format!("data: {data}\n\n").as_bytes(), |_, _| {});
        }
        stream.finish()
    }

    #[test]
    fn choices_are_bounded_and_the_rest_is_counted() {
        let many: Vec<String> = (0..200)
            .map(|i| {
                format!(r#"{{"choices":[{{"index":{i},"delta":{{"content":"x"}},"finish_reason":"stop"}}]}}"#)
            })
            .collect();
        let facts = facts_of(&many);
        assert_eq!(
            (facts.choices.len(), facts.finish_reasons.len()),
            (super::CHOICES_MAX, super::CHOICES_MAX)
        );
        assert_eq!(facts.choices_dropped, 200 - super::CHOICES_MAX as u64);
        assert_eq!(facts.content_events, 200);
    }

    /// Every text of the peer is cut at a character boundary: the texts are of 4-byte characters.
    #[test]
    fn texts_of_the_peer_are_bounded() {
        let long = "\u{1F600}".repeat(1000);
        let facts = facts_of(&[
            format!(r#"{{"id":"{long}","choices":[{{"delta":{{}},"finish_reason":"a{long}"}}]}}"#),
            format!(r#"{{"id":"b{long}","error":{{"code":"{long}","type":"{long}","message":"a{long}"}}}}"#),
        ]);
        let error = facts.error.unwrap();
        assert_eq!(facts.id.unwrap().len(), super::ID_BYTES_MAX);
        assert_eq!(facts.foreign_id.unwrap().id.len(), super::ID_BYTES_MAX - 3);
        assert_eq!(facts.finish_reasons[&0].len(), super::LABEL_BYTES_MAX - 3);
        assert_eq!(error.code.unwrap().len(), super::LABEL_BYTES_MAX);
        assert_eq!(error.kind.unwrap().len(), super::LABEL_BYTES_MAX);
        assert_eq!(error.message.unwrap().len(), super::MESSAGE_BYTES_MAX - 3);
    }

    #[test]
    fn a_long_unfinished_event_is_counted_whole_and_shown_in_part() {
        let mut stream = ChatStream::new();
        stream.feed(&[b'x'; 1000], |_, _| {});
        let facts = stream.finish();
        assert_eq!(facts.unfinished_bytes(), 1000);
        assert_eq!(facts.unfinished.unwrap().head, "x".repeat(super::EXCERPT_BYTES_MAX));
    }

    #[test]
    fn a_finished_stream_leaves_nothing_to_the_next_one() {
        let mut stream = ChatStream::new();
        stream.feed(b": c\n\ndata: [DONE]\n\ndata: x", |_, _| {});
        assert_eq!(stream.facts().done_count, 1);
        stream.finish();
        assert_eq!(stream.finish(), super::StreamFacts::default());
    }
}
