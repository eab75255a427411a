//! The data of one event read as a chat payload. Wrong types and missing keys are remembered, not
//! refused, so that a broken chunk still shows whatever it holds.

use std::borrow::Cow;

use serde::de::{IgnoredAny, MapAccess, SeqAccess};
use serde::{Deserialize, Serialize};

use crate::json::{Field, Keys, Shape, skip_value};
use crate::scan;

/// The one word for an event. An event that is several things gets the first name that fits, in
/// the order of this list; [`crate::EventFacts`] has the flags, which do not exclude each other.
/// What counts as output is what the gateway itself counts (contract gateway 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// Exactly `[DONE]`, the terminal marker.
    Done,
    /// It crossed the parser's limit; nothing else is known of it.
    TooLarge,
    /// Neither the marker nor JSON.
    BadJson,
    /// Has an error: a top-level `error` that is an object or a text, or `object: "error"`.
    Error,
    /// Has non-empty content.
    Content,
    /// Has a non-empty list of tool calls.
    ToolCall,
    /// Has non-empty `reasoning` or `reasoning_content`.
    Reasoning,
    /// Has a finish reason.
    Finish,
    /// `choices` is an empty list and there are token counts (vllm, `include_usage`).
    UsageOnly,
    /// A role and nothing of the above; such a first chunk is no first token.
    RoleOnly,
    /// A chunk with `choices` in which nothing of the above is filled.
    Empty,
    /// Any other JSON, for example a protocol event that should not have come this far.
    Other,
}

/// What the data of an event is.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one lives on the stack at a time; a box would allocate per event"
)]
pub enum Payload<'a> {
    /// The terminal marker.
    Done,
    /// A JSON object: a chunk, an error, or something else.
    Object(Chunk<'a>),
    /// JSON, but no object.
    NotObject,
    /// Not JSON, or with half a surrogate pair as an escape in a text that is read.
    NotJson,
}

impl<'a> Payload<'a> {
    /// Reads the data of an event. The marker must be exact: one with blanks around it is not
    /// JSON either and shows up as such.
    pub fn parse(text: &'a str) -> Self {
        if text == "[DONE]" { Self::Done } else { Self::parse_document(text) }
    }

    /// Reads a JSON document, for which the marker has no meaning.
    pub(crate) fn parse_document(text: &'a str) -> Self {
        Self::parse_fast(text).unwrap_or_else(|| Self::parse_slowly(text))
    }

    /// What the fast reader finds; `None` = it gave up.
    pub(crate) fn parse_fast(text: &'a str) -> Option<Self> {
        scan::read(text).map(Self::of)
    }

    /// The same by the reader that gives up on nothing.
    pub(crate) fn parse_slowly(text: &'a str) -> Self {
        serde_json::from_str(text).map_or(Self::NotJson, Self::of)
    }

    fn of(document: Field<Chunk<'a>>) -> Self {
        if let Field::Value(chunk) = document { Self::Object(chunk) } else { Self::NotObject }
    }

    /// The non-empty content texts with the index of their choice, in the order of the chunk.
    pub fn content(&self) -> impl Iterator<Item = (u32, &str)> {
        let chunk = if let Self::Object(chunk) = self { Some(chunk) } else { None };
        chunk.into_iter().flat_map(Chunk::choices).filter_map(|choice| {
            let text = choice.parts().find_map(|part| filled(&part.content))?;
            Some((choice.index(), text))
        })
    }

    pub(crate) fn kind(&self) -> EventKind {
        match self {
            Self::Done => EventKind::Done,
            Self::NotJson => EventKind::BadJson,
            Self::NotObject => EventKind::Other,
            Self::Object(chunk) => chunk.kind(),
        }
    }
}

/// A JSON object seen as a chat chunk, or as a whole chat completion, which differs in the name
/// `message` for `delta` only.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chunk<'a> {
    pub(crate) id: Field<Cow<'a, str>>,
    pub(crate) object: Field<Cow<'a, str>>,
    pub(crate) choices: Field<Vec<Field<Choice<'a>>>>,
    pub(crate) usage: Field<UsageKeys>,
    error: Field<ErrorKeys<'a>>,
    /// `message`, `type` and `code` beside `object: "error"`, the flat form of an error.
    flat_error: ErrorKeys<'a>,
}

impl<'a> Chunk<'a> {
    /// The choices that are objects.
    pub(crate) fn choices(&self) -> impl Iterator<Item = &Choice<'a>> {
        self.choices.value().into_iter().flatten().filter_map(Field::value)
    }

    pub(crate) fn error(&self) -> Option<&ErrorKeys<'a>> {
        let flat = self.object.value().is_some_and(|object| object == "error");
        self.error.value().or_else(|| flat.then_some(&self.flat_error))
    }

    pub(crate) fn has_usage(&self) -> bool {
        self.usage.value().is_some_and(|usage| usage.all().iter().any(|count| !count.absent()))
    }

    /// What the choices hold together.
    pub(crate) fn output(&self) -> Output {
        self.choices().fold(Output::default(), |sum, choice| sum.or(choice.output()))
    }

    /// True when a known key holds another type than the chat format gives it. Usage is judged
    /// apart, since a wrong count is a finding of its own.
    pub(crate) fn ill_shaped(&self) -> bool {
        self.id.ill_typed()
            || self.object.ill_typed()
            || self.choices.ill_typed()
            || self.error.ill_typed()
            || self.choices.value().is_some_and(|list| list.iter().any(|item| item.value().is_none()))
            || self.choices().any(Choice::ill_shaped)
    }

    fn kind(&self) -> EventKind {
        let output = self.output();
        if self.error().is_some() {
            return EventKind::Error;
        }
        let Some(choices) = self.choices.value() else { return EventKind::Other };
        match output {
            Output { content: true, .. } => EventKind::Content,
            Output { tool_call: true, .. } => EventKind::ToolCall,
            Output { reasoning: true, .. } => EventKind::Reasoning,
            Output { finish: true, .. } => EventKind::Finish,
            _ if choices.is_empty() && self.has_usage() => EventKind::UsageOnly,
            Output { role: true, .. } => EventKind::RoleOnly,
            _ => EventKind::Empty,
        }
    }
}

impl<'de> Keys<'de> for Chunk<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, object: &mut A) -> Result<(), A::Error> {
        match key {
            "id" => self.id = object.next_value()?,
            "object" => self.object = object.next_value()?,
            "choices" => self.choices = object.next_value()?,
            "usage" => self.usage = object.next_value()?,
            "error" => self.error = object.next_value()?,
            _ => return self.flat_error.take(key, object),
        }
        Ok(())
    }
}

/// Which things a choice, or a chunk, has. Missing, null and "" are the same: nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) role: bool,
    pub(crate) content: bool,
    pub(crate) reasoning: bool,
    pub(crate) tool_call: bool,
    pub(crate) finish: bool,
}

impl Output {
    fn or(self, other: Self) -> Self {
        Self {
            role: self.role || other.role,
            content: self.content || other.content,
            reasoning: self.reasoning || other.reasoning,
            tool_call: self.tool_call || other.tool_call,
            finish: self.finish || other.finish,
        }
    }

    /// True when the model said something: content, reasoning or a tool call.
    pub(crate) fn any(self) -> bool {
        self.content || self.reasoning || self.tool_call
    }
}

/// One entry of `choices`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Choice<'a> {
    index: Field<Index>,
    delta: Field<Message<'a>>,
    message: Field<Message<'a>>,
    finish_reason: Field<Cow<'a, str>>,
}

impl<'a> Choice<'a> {
    /// The index; servers that never send more than one choice may leave it out.
    pub(crate) fn index(&self) -> u32 {
        self.index.value().map_or(0, |index| index.0)
    }

    pub(crate) fn finish_reason(&self) -> Option<&str> {
        filled(&self.finish_reason)
    }

    /// `delta` and, for a whole completion that came as an event, `message`.
    fn parts(&self) -> impl Iterator<Item = &Message<'a>> {
        self.delta.value().into_iter().chain(self.message.value())
    }

    pub(crate) fn output(&self) -> Output {
        let sum = self.parts().fold(Output::default(), |sum, part| sum.or(part.output()));
        Output { finish: self.finish_reason().is_some(), ..sum }
    }

    fn ill_shaped(&self) -> bool {
        self.index.ill_typed()
            || self.delta.ill_typed()
            || self.message.ill_typed()
            || self.finish_reason.ill_typed()
            || self.parts().any(Message::ill_shaped)
    }
}

impl<'de> Keys<'de> for Choice<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, object: &mut A) -> Result<(), A::Error> {
        match key {
            "index" => self.index = object.next_value()?,
            "delta" => self.delta = object.next_value()?,
            "message" => self.message = object.next_value()?,
            "finish_reason" => self.finish_reason = object.next_value()?,
            // Log probabilities are the bulk of a real chunk; they are skipped here.
            _ => return skip_value(object),
        }
        Ok(())
    }
}

/// A `delta` or a `message`.
#[derive(Debug, Clone, Default, PartialEq)]
struct Message<'a> {
    role: Field<Cow<'a, str>>,
    content: Field<Cow<'a, str>>,
    reasoning: Field<Cow<'a, str>>,
    /// The older name of `reasoning`; some servers send both.
    reasoning_content: Field<Cow<'a, str>>,
    tool_calls: Field<ListLen>,
}

impl Message<'_> {
    fn output(&self) -> Output {
        Output {
            role: filled(&self.role).is_some(),
            content: filled(&self.content).is_some(),
            reasoning: filled(&self.reasoning).or_else(|| filled(&self.reasoning_content)).is_some(),
            tool_call: self.tool_calls.value().is_some_and(|list| list.0 > 0),
            finish: false,
        }
    }

    fn ill_shaped(&self) -> bool {
        let texts = [&self.role, &self.content, &self.reasoning, &self.reasoning_content];
        texts.into_iter().any(Field::ill_typed) || self.tool_calls.ill_typed()
    }
}

impl<'de> Keys<'de> for Message<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, object: &mut A) -> Result<(), A::Error> {
        match key {
            "role" => self.role = object.next_value()?,
            "content" => self.content = object.next_value()?,
            "reasoning" => self.reasoning = object.next_value()?,
            "reasoning_content" => self.reasoning_content = object.next_value()?,
            "tool_calls" => self.tool_calls = object.next_value()?,
            _ => return skip_value(object),
        }
        Ok(())
    }
}

/// The counts of a `usage` object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct UsageKeys {
    pub(crate) prompt_tokens: Field<TokenCount>,
    pub(crate) completion_tokens: Field<TokenCount>,
    pub(crate) total_tokens: Field<TokenCount>,
}

impl UsageKeys {
    pub(crate) fn all(&self) -> [&Field<TokenCount>; 3] {
        [&self.prompt_tokens, &self.completion_tokens, &self.total_tokens]
    }
}

impl<'de> Keys<'de> for UsageKeys {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, object: &mut A) -> Result<(), A::Error> {
        match key {
            "prompt_tokens" => self.prompt_tokens = object.next_value()?,
            "completion_tokens" => self.completion_tokens = object.next_value()?,
            "total_tokens" => self.total_tokens = object.next_value()?,
            _ => return skip_value(object),
        }
        Ok(())
    }
}

/// An error object. Some servers send only a text, which is then its message.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ErrorKeys<'a> {
    pub(crate) code: Field<Label<'a>>,
    pub(crate) kind: Field<Label<'a>>,
    pub(crate) message: Field<Cow<'a, str>>,
}

impl<'de> Keys<'de> for ErrorKeys<'de> {
    fn from_text(text: Cow<'de, str>) -> Option<Self> {
        // An empty text says as little as null, yet it is no object: the shape is wrong.
        (!text.is_empty()).then(|| Self { message: Field::Value(text), ..Self::default() })
    }

    fn take<A: MapAccess<'de>>(&mut self, key: &str, object: &mut A) -> Result<(), A::Error> {
        match key {
            "code" => self.code = object.next_value()?,
            "type" => self.kind = object.next_value()?,
            "message" => self.message = object.next_value()?,
            _ => return skip_value(object),
        }
        Ok(())
    }
}

/// The text, unless there is none or it is empty.
fn filled<'v>(field: &'v Field<Cow<'_, str>>) -> Option<&'v str> {
    field.value().map(AsRef::as_ref).filter(|text: &&str| !text.is_empty())
}

/// Index of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Index(u32);

impl<'de> Shape<'de> for Index {
    fn from_unsigned(number: u64) -> Option<Self> {
        u32::try_from(number).ok().map(Self)
    }
}

/// A token count as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenCount {
    Tokens(u64),
    Negative,
}

impl<'de> Shape<'de> for TokenCount {
    fn from_unsigned(number: u64) -> Option<Self> {
        Some(Self::Tokens(number))
    }

    fn from_negative(_number: i64) -> Option<Self> {
        Some(Self::Negative)
    }
}

/// Number of elements of a list whose content does not matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ListLen(usize);

impl<'de> Shape<'de> for ListLen {
    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        let mut len = 0;
        while list.next_element::<IgnoredAny>()?.is_some() {
            len += 1;
        }
        Ok(Some(Self(len)))
    }
}

/// A short word that some servers send as text and others as number, such as an error code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label<'a>(pub(crate) Cow<'a, str>);

impl<'de> Shape<'de> for Label<'de> {
    fn from_text(text: Cow<'de, str>) -> Option<Self> {
        Some(Self(text))
    }

    fn from_unsigned(number: u64) -> Option<Self> {
        Some(Self(number.to_string().into()))
    }

    fn from_negative(number: i64) -> Option<Self> {
        Some(Self(number.to_string().into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> EventKind {
        Payload::parse(text).kind()
    }

    #[test]
    fn every_kind_has_its_chunk() {
        let table = [
            ("[DONE]", EventKind::Done),
            (" [DONE]", EventKind::BadJson),
            ("", EventKind::BadJson),
            (r#"{"choices":[]"#, EventKind::BadJson),
            (r#"{"choices":[]} {}"#, EventKind::BadJson),
            (r#"{"error":{"message":"m"}}"#, EventKind::Error),
            (r#"{"error":"m","choices":[{"delta":{"content":"x"}}]}"#, EventKind::Error),
            (r#"{"object":"error","message":"m","code":400}"#, EventKind::Error),
            (r#"{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}"#, EventKind::Content),
            (r#"{"choices":[{"message":{"content":"x"}}]}"#, EventKind::Content),
            (r#"{"choices":[{"delta":{"content":" "}}]}"#, EventKind::Content),
            (r#"{"choices":[{"delta":{"tool_calls":[{}]}}]}"#, EventKind::ToolCall),
            (r#"{"choices":[{"delta":{"reasoning":"x"}}]}"#, EventKind::Reasoning),
            (r#"{"choices":[{"delta":{"reasoning_content":"x","content":""}}]}"#, EventKind::Reasoning),
            (r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{}}"#, EventKind::Finish),
            (r#"{"choices":[],"usage":{"prompt_tokens":1}}"#, EventKind::UsageOnly),
            (r#"{"choices":[],"usage":{}}"#, EventKind::Empty),
            (r#"{"choices":[{"delta":{"role":"assistant","content":null}}]}"#, EventKind::RoleOnly),
            (r#"{"choices":[{"delta":{"tool_calls":[]},"finish_reason":null}]}"#, EventKind::Empty),
            (r#"{"error":null,"choices":[{"delta":null}]}"#, EventKind::Empty),
            (r#"{"devshard_receipt":{}}"#, EventKind::Other),
            (r#"{"choices":null}"#, EventKind::Other),
            (r#"{"error":""}"#, EventKind::Other),
            ("[]", EventKind::Other),
            ("\"[DONE]\"", EventKind::Other),
            ("null", EventKind::Other),
        ];
        for (text, expected) in table {
            assert_eq!(kind(text), expected, "{text}");
        }
    }

    #[test]
    fn a_wrong_type_anywhere_is_seen_and_hides_nothing_else() {
        let table = [
            r#"{"id":7,"choices":[{"delta":{"content":"x"}}]}"#,
            r#"{"object":[],"choices":[{"delta":{"content":"x"}}]}"#,
            r#"{"choices":[{"index":-1,"delta":{"content":"x"}}]}"#,
            r#"{"choices":[{"index":4294967296,"delta":{"content":"x"}}]}"#,
            r#"{"choices":[7,{"delta":{"content":"x"}}]}"#,
            r#"{"choices":[null,{"delta":{"content":"x"}}]}"#,
            r#"{"choices":[{"delta":7,"message":{"content":"x"}}]}"#,
            r#"{"choices":[{"delta":{"content":"x","role":{"deep":[1,{"er":2}]}}}]}"#,
            r#"{"choices":[{"delta":{"content":"x","tool_calls":{}}}]}"#,
            r#"{"choices":[{"delta":{"content":"x"},"finish_reason":true}]}"#,
            r#"{"error":1.5,"choices":[{"delta":{"content":"x"}}]}"#,
        ];
        for text in table {
            let Payload::Object(chunk) = Payload::parse(text) else { panic!("{text}") };
            assert!(chunk.ill_shaped(), "{text}");
            assert_eq!(chunk.kind(), EventKind::Content, "{text}");
        }
    }

    #[test]
    fn known_keys_may_be_escaped_and_the_last_of_two_wins() {
        let escaped = r#"{"\u0063hoices":[{"delta":{"content":"\u0041\n"}}]}"#;
        let payload = Payload::parse(escaped);
        assert_eq!(payload.content().collect::<Vec<_>>(), [(0, "A\n")]);
        assert_eq!(kind(r#"{"choices":7,"choices":[]}"#), EventKind::Empty);
    }

    #[test]
    fn content_comes_with_its_choice() {
        let text = r#"{"choices":[{"index":1,"delta":{"content":"b"}},{"index":0,"delta":{"content":""}},
            {"index":2,"delta":{"content":"c"}}]}"#;
        let payload = Payload::parse(text);
        assert_eq!(payload.content().collect::<Vec<_>>(), [(1, "b"), (2, "c")]);
        assert_eq!(Payload::Done.content().count(), 0);
    }

    #[test]
    fn deep_nesting_in_unknown_keys_is_neither_an_error_nor_a_stack() {
        let deep = format!(r#"{{"x":{}{},"choices":[]}}"#, "[".repeat(50_000), "]".repeat(50_000));
        assert_eq!(kind(&deep), EventKind::Empty);
    }
}
