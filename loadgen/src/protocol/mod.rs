//! Wire formats of chat calls. Each protocol is one file behind one trait: it writes bodies and reads answers, and
//! nothing else in the program knows its format. `docs/loadgen.md` has the steps to add one.

pub mod anthropic;
pub mod openai_chat;

use std::fmt::Debug;

use evidence::record::{AnswerFacts, Tokens};
use serde_json::{Map, Value};
use sse::Ending;

/// All protocols; a new one is registered here.
pub const ALL: &[&dyn Protocol] = &[&openai_chat::OpenAiChat, &anthropic::Anthropic];

/// The protocol of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Protocol> {
    ALL.iter().copied().find(|protocol| protocol.name() == name)
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// Who speaks in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The word of both protocols.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// A call, free of any wire format.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Model name.
    pub model: &'a str,
    /// System prompt.
    pub system: Option<&'a str>,
    /// Messages, oldest first.
    pub messages: &'a [Message],
    /// Output tokens asked for.
    pub max_tokens: u32,
    /// SSE or one document.
    pub stream: bool,
    /// Further fields of the body; a null takes a field away that the protocol would write.
    pub extra: &'a Map<String, Value>,
}

/// What an answer reader tells while bytes come.
#[derive(Debug)]
pub enum Part<'a> {
    /// An event has come.
    Event {
        /// With reasoning text.
        reasoning: bool,
        /// With content or a tool call.
        output: bool,
    },
    /// Content text of the event that was told last.
    Text(&'a str),
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
    /// Events with output (content, reasoning or tool call).
    pub output_events: u64,
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

/// A wire format.
pub trait Protocol: Debug + Sync {
    /// Name in profiles.
    fn name(&self) -> &'static str;
    /// Default path of the call.
    fn path(&self) -> &'static str;
    /// Header that carries the client key, and what stands before the key.
    fn key_header(&self) -> (&'static str, &'static str);
    /// The body of a call.
    fn body(&self, call: Call<'_>) -> Vec<u8>;
    /// A reader for a streamed answer; one a stream, since parsers are never shared.
    fn stream(&self) -> Box<dyn StreamReader>;
    /// Reads an answer that is one document; `on_text` gets its content texts.
    fn document(&self, body: &[u8], on_text: &mut dyn FnMut(&str)) -> Finished;
}

/// A streamed answer while it comes.
pub trait StreamReader: Debug + Send {
    /// Takes bytes, cut anywhere, and tells the parts that they complete.
    fn feed(&mut self, bytes: &[u8], on_part: &mut dyn FnMut(Part<'_>));
    /// Events so far.
    fn events(&self) -> u64;
    /// The stream has ended, however.
    fn finish(&mut self) -> Finished;
}

/// The word of an ending, as crate `sse` writes it.
#[must_use]
pub fn ending_word(ending: Ending) -> &'static str {
    match ending {
        Ending::Done => "done",
        Ending::ErrorEvent => "error-event",
        Ending::ErrorThenDone => "error-then-done",
        Ending::DoneWithoutFinish => "done-without-finish",
        Ending::FinishedWithoutDone => "finished-without-done",
        Ending::Truncated => "truncated",
        Ending::RepeatedDone => "repeated-done",
        Ending::DataAfterDone => "data-after-done",
        Ending::Empty => "empty",
    }
}

/// Puts further fields over a body; null takes a field away.
fn put_extra(body: &mut Map<String, Value>, extra: &Map<String, Value>) {
    for (key, value) in extra {
        if value.is_null() {
            body.remove(key);
        } else {
            body.insert(key.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ending_words_are_those_of_crate_sse() {
        for ending in [
            Ending::Done,
            Ending::ErrorEvent,
            Ending::ErrorThenDone,
            Ending::DoneWithoutFinish,
            Ending::FinishedWithoutDone,
            Ending::Truncated,
            Ending::RepeatedDone,
            Ending::DataAfterDone,
            Ending::Empty,
        ] {
            assert_eq!(serde_json::to_value(ending).unwrap(), ending_word(ending));
        }
    }

    #[test]
    fn names_are_unique() {
        for protocol in ALL {
            assert_eq!(find(protocol.name()).unwrap().path(), protocol.path());
        }
        assert_eq!(ALL.iter().map(|p| p.name()).collect::<std::collections::BTreeSet<_>>().len(), ALL.len());
        assert!(find("grpc").is_none());
    }
}
