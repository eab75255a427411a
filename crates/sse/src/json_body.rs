//! The facts of an answer that is one JSON document: a chat completion or an error. Facts, never a
//! verdict: an empty answer and an error body are described, not judged.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::chat::{CHOICES_MAX, Chunk, ErrorFact, ID_BYTES_MAX, LABEL_BYTES_MAX, Payload, Usage, UsageFlags};
use crate::json::{Field, bounded};

/// What one body holds. A body that is not JSON, or no object, leaves all that follows empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BodyFacts {
    /// Length of the body in bytes.
    pub bytes: u64,
    /// All of it is valid UTF-8. If not, it is read with U+FFFD, as for events.
    pub valid_utf8: bool,
    /// One well-formed JSON document, blanks around it allowed (the July gateway adds a newline).
    pub json: bool,
    /// That document is an object.
    pub is_object: bool,
    /// Its `id`.
    pub id: Option<String>,
    /// Its `object`, `chat.completion` when all is well.
    pub object: Option<String>,
    /// There is no `choices` (or null). Normal for an error.
    pub choices_missing: bool,
    /// Entries of `choices`.
    pub choices: u64,
    /// Choices with non-empty `message.content`.
    pub content_choices: u64,
    /// Choices with non-empty `message.tool_calls`.
    pub tool_call_choices: u64,
    /// Choices with non-empty `message.reasoning` or `message.reasoning_content`.
    pub reasoning_choices: u64,
    /// Choices with neither content nor tool calls: an answer that carries nothing.
    pub bare_choices: u64,
    /// Finish reason of each choice that has one; at most 128.
    pub finish_reasons: BTreeMap<u32, String>,
    /// Two entries of `choices` have the same index.
    pub choice_repeated: bool,
    /// The token counts, when there are any.
    pub usage: Option<Usage>,
    /// A token count is negative.
    pub usage_negative: bool,
    /// Usage is no object, or a count is no whole number.
    pub usage_ill_typed: bool,
    /// The error, when there is one.
    pub error: Option<ErrorFact>,
    /// A known key other than usage has a wrong type.
    pub shape_error: bool,
}

impl BodyFacts {
    /// Reads a whole body.
    pub fn of(body: &[u8]) -> Self {
        Self::read(body, |_| {})
    }

    /// Reads a whole body and shows the parsed document, so that a caller who wants its texts parses nothing twice.
    pub fn read(body: &[u8], on_document: impl FnOnce(&Payload<'_>)) -> Self {
        // The strict check is many times faster than the lossy one, and nearly always enough.
        let text = std::str::from_utf8(body).map_or_else(|_| String::from_utf8_lossy(body), Cow::Borrowed);
        let mut facts = Self {
            bytes: body.len() as u64,
            // Lossy conversion borrows exactly when there was nothing to replace.
            valid_utf8: matches!(text, Cow::Borrowed(_)),
            ..Self::default()
        };
        let document = Payload::parse_document(&text);
        on_document(&document);
        match document {
            Payload::Object(chunk) => facts.add_object(&chunk),
            Payload::NotObject => facts.json = true,
            Payload::NotJson | Payload::Done => {}
        }
        facts
    }

    /// True when there is a choice and each has a finish reason.
    pub fn every_choice_finished(&self) -> bool {
        self.choices > 0 && self.finish_reasons.len() as u64 == self.choices
    }

    fn add_object(&mut self, chunk: &Chunk<'_>) {
        self.json = true;
        self.is_object = true;
        self.id = chunk.id.value().map(|id| bounded(id, ID_BYTES_MAX));
        self.object = chunk.object.value().map(|object| bounded(object, LABEL_BYTES_MAX));
        self.error = chunk.error().map(ErrorFact::from_keys);
        self.shape_error = chunk.ill_shaped();
        self.choices_missing = chunk.choices.absent();
        self.choices = chunk.choices.value().map_or(0, |list| list.len() as u64);
        self.add_choices(chunk);
        let flags = UsageFlags::of(&chunk.usage);
        self.usage_negative = flags.negative;
        self.usage_ill_typed = flags.ill_typed;
        self.usage = chunk.usage.value().filter(|_| chunk.has_usage()).map(Usage::from_keys);
    }

    fn add_choices(&mut self, chunk: &Chunk<'_>) {
        // A single choice, the usual answer, is no reason to allocate.
        let mut seen = BTreeSet::new();
        for choice in chunk.choices.value().into_iter().flatten() {
            // An entry that is no object has no output either.
            let output = choice.value().map(|choice| choice.output()).unwrap_or_default();
            self.content_choices += u64::from(output.content);
            self.tool_call_choices += u64::from(output.tool_call);
            self.reasoning_choices += u64::from(output.reasoning);
            self.bare_choices += u64::from(!output.content && !output.tool_call);
            let Field::Value(choice) = choice else { continue };
            self.choice_repeated |= self.choices > 1 && !seen.insert(choice.index());
            if let Some(reason) = choice.finish_reason().filter(|_| self.finish_reasons.len() < CHOICES_MAX) {
                self.finish_reasons.entry(choice.index()).or_insert_with(|| bounded(reason, LABEL_BYTES_MAX));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish_reasons(pairs: &[(u32, &str)]) -> BTreeMap<u32, String> {
        pairs.iter().map(|(index, reason)| (*index, (*reason).to_owned())).collect()
    }

    #[test]
    fn captured_completion() {
        let facts = BodyFacts::of(include_bytes!("../tests/fixtures/ok-nonstream.json"));
        let expected = BodyFacts {
            bytes: 2724,
            valid_utf8: true,
            json: true,
            is_object: true,
            id: Some("devshard-1-8".to_owned()),
            object: Some("chat.completion".to_owned()),
            choices: 1,
            content_choices: 1,
            finish_reasons: finish_reasons(&[(0, "stop")]),
            usage: Some(Usage { prompt_tokens: Some(4), completion_tokens: Some(8), total_tokens: Some(12) }),
            ..BodyFacts::default()
        };
        assert_eq!(facts, expected);
        assert!(facts.every_choice_finished());
    }

    #[test]
    fn captured_error() {
        let facts = BodyFacts::of(include_bytes!("../tests/fixtures/ml-503-nonstream.json"));
        assert!(facts.json && facts.is_object && facts.choices_missing && !facts.shape_error);
        let error = facts.error.clone().expect("the body is an error");
        assert_eq!(error.kind, None);
        assert_eq!(
            error.message.as_deref(),
            Some("inference: no non-empty response after retrying with reduced max_tokens")
        );
        assert!(!facts.every_choice_finished());
    }

    #[test]
    fn bodies_that_are_no_json_document() {
        for body in ["", " ", "[DONE]", "{\"choices\":[", "{} x", "{}{}", "<html>", "data: {}\n\n"] {
            let facts = BodyFacts::of(body.as_bytes());
            let expected = BodyFacts { bytes: body.len() as u64, valid_utf8: true, ..BodyFacts::default() };
            assert_eq!(facts, expected, "{body}");
        }
        for body in ["[]", "7", "null", "\"text\""] {
            let facts = BodyFacts::of(body.as_bytes());
            assert!(facts.json && !facts.is_object, "{body}");
        }
        assert!(BodyFacts::of(b" {}\r\n").is_object, "blanks around the document are allowed");
    }

    #[test]
    fn an_answer_without_content_is_described() {
        let facts = BodyFacts::of(
            br#"{"choices":[{"index":0,"message":{"content":""},"finish_reason":"stop"},
            {"index":1,"message":{"content":null,"reasoning":"hm"},"finish_reason":"length"},
            {"index":2,"message":{"content":null,"tool_calls":[{}]},"finish_reason":null},
            {"index":2,"message":{"content":"x"}}]}"#,
        );
        assert_eq!((facts.choices, facts.content_choices, facts.bare_choices), (4, 1, 2));
        assert_eq!((facts.tool_call_choices, facts.reasoning_choices), (1, 1));
        assert_eq!(facts.finish_reasons, finish_reasons(&[(0, "stop"), (1, "length")]));
        assert!(facts.choice_repeated && !facts.shape_error && !facts.every_choice_finished());
        assert_eq!(facts.usage, None);
    }

    #[test]
    fn wrong_shapes_are_flagged_one_by_one() {
        type Holds = fn(&BodyFacts) -> bool;
        let cases: [(&str, Holds); 8] = [
            (r#"{"object":"chat.completion"}"#, |f| f.choices_missing && !f.shape_error),
            (r#"{"choices":{}}"#, |f| f.shape_error && !f.choices_missing),
            (r#"{"choices":["x"]}"#, |f| f.shape_error && f.bare_choices == 1),
            (r#"{"choices":[],"usage":{"prompt_tokens":-1}}"#, |f| f.usage_negative && !f.shape_error),
            (r#"{"choices":[],"usage":{"prompt_tokens":1.5}}"#, |f| f.usage_ill_typed && !f.usage_negative),
            (r#"{"choices":[],"usage":"none"}"#, |f| f.usage_ill_typed && f.usage.is_none()),
            (r#"{"choices":[],"id":1}"#, |f| f.shape_error && f.id.is_none()),
            (r#"{"error":"mock fault"}"#, |f| {
                f.error.as_ref().is_some_and(|e| e.message.as_deref() == Some("mock fault"))
            }),
        ];
        for (body, holds) in cases {
            let facts = BodyFacts::of(body.as_bytes());
            assert!(holds(&facts), "{body}: {facts:?}");
        }
    }

    #[test]
    fn illegal_utf8_is_flagged_and_read_on() {
        let facts = BodyFacts::of(b"{\"choices\":[{\"message\":{\"content\":\"\xff\"}}]}");
        assert!(!facts.valid_utf8 && facts.json);
        assert_eq!(facts.content_choices, 1);
    }
}
