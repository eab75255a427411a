//! Parser and facts in one: what a client that reads a chat stream holds.

use super::facts::StreamFacts;
use super::payload::{EventKind, Payload};
use crate::parser::Parser;

/// What one event was. The flags do not exclude each other: a last chunk often has content and a
/// finish reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventFacts {
    /// Position in the stream.
    pub index: u64,
    /// The one word for it.
    pub kind: EventKind,
    /// A terminal marker came before it.
    pub after_done: bool,
    /// Has a role.
    pub role: bool,
    /// Has non-empty content.
    pub content: bool,
    /// Has non-empty reasoning.
    pub reasoning: bool,
    /// Has tool calls.
    pub tool_call: bool,
    /// Has a finish reason of some choice.
    pub finish: bool,
    /// Has token counts.
    pub usage: bool,
}

impl EventFacts {
    /// True when the model said something: the first such event ends the time to first token. A
    /// caller with two clocks asks for `reasoning` and `content` instead.
    pub fn output(&self) -> bool {
        self.content || self.reasoning || self.tool_call
    }

    pub(crate) fn bare(index: u64, kind: EventKind) -> Self {
        Self {
            index,
            kind,
            after_done: false,
            role: false,
            content: false,
            reasoning: false,
            tool_call: false,
            finish: false,
            usage: false,
        }
    }
}

/// One chat stream: bytes in, facts out.
#[derive(Debug, Default)]
pub struct ChatStream {
    parser: Parser,
    facts: StreamFacts,
}

impl ChatStream {
    /// A stream with the default event limit of 1 MiB.
    pub fn new() -> Self {
        Self::default()
    }

    /// A stream that drops events larger than `limit_bytes`.
    pub fn with_limit(limit_bytes: usize) -> Self {
        Self { parser: Parser::with_limit(limit_bytes), facts: StreamFacts::default() }
    }

    /// Reads one piece of the stream and tells `on_event` of every event that it completes. An
    /// oversized event has no payload.
    pub fn feed(&mut self, bytes: &[u8], mut on_event: impl FnMut(EventFacts, Option<&Payload<'_>>)) {
        let facts = &mut self.facts;
        self.parser.feed(bytes, |item| match item {
            Ok(event) => {
                let text = event.text_lossy();
                let payload = Payload::parse(&text);
                on_event(facts.add(&event, &payload), Some(&payload));
            }
            Err(dropped) => on_event(facts.add_too_large(&dropped), None),
        });
    }

    /// The facts so far, for a caller that decides while reading.
    pub fn facts(&self) -> &StreamFacts {
        &self.facts
    }

    /// The input has ended, however it ended: the facts of the whole stream. The value is then
    /// ready for another stream and keeps its buffers.
    pub fn finish(&mut self) -> StreamFacts {
        let mut facts = std::mem::take(&mut self.facts);
        facts.finish(&mut self.parser);
        self.parser.reset();
        facts
    }
}
