//! Checks of the answer (scenario `workload.checks`). A good answer that fails one is a failure.

use evidence::record::TokenSource;
use regex::Regex;
use serde_json::Value;

use crate::answer::Keep;
use crate::protocol::Finished;

/// Built-in check: an answer with neither content nor reasoning nor tool calls serves nobody.
pub const CARRIES_SOMETHING: &str = "carries_something";

/// One check of an answer.
#[derive(Clone, Debug)]
pub enum Check {
    /// The joined content contains this text.
    Contains(String),
    /// The joined content does not contain it.
    NotContains(String),
    /// The body, or the content joined from it, contains this text.
    BodyContains(String),
    /// Neither contains it.
    BodyLacks(String),
    /// The joined content matches.
    Regex(Regex),
    /// A place that a JSON answer must have; streams have no such place.
    JsonPointer(String),
    /// A place that a document of the answer must have, with this value if one is given; for a stream one event is
    /// enough.
    Json {
        /// JSON pointer.
        pointer: String,
        /// Value there.
        equals: Option<Value>,
    },
    /// No logprobs anywhere.
    LogprobsAbsent(bool),
    /// At least so many completion tokens by usage.
    TokensMin(u64),
    /// At most so many completion tokens by usage.
    TokensMax(u64),
    /// Every choice ends for one of these reasons.
    FinishReason(Vec<String>),
}

impl From<&scenario::model::Check> for Check {
    fn from(check: &scenario::model::Check) -> Self {
        use scenario::model::Check as S;
        match check {
            S::Contains(text) => Self::Contains(text.clone()),
            S::NotContains(text) => Self::NotContains(text.clone()),
            S::JsonPointer(pointer) => Self::JsonPointer(pointer.clone()),
            S::LogprobsAbsent(absent) => Self::LogprobsAbsent(*absent),
            S::CompletionTokensMin(least) => Self::TokensMin(*least),
        }
    }
}

/// What must be kept while the answer comes.
#[must_use]
pub fn needs(checks: &[Check], stream: bool) -> Keep {
    checks.iter().fold(Keep::default(), |keep, check| match check {
        Check::Contains(_) | Check::NotContains(_) | Check::Regex(_) => Keep { content: true, ..keep },
        Check::BodyContains(_) | Check::BodyLacks(_) => {
            Keep { content: true, raw: keep.raw || stream, ..keep }
        }
        // A JSON document is kept anyway.
        Check::JsonPointer(_) | Check::Json { .. } | Check::LogprobsAbsent(true) => {
            Keep { raw: stream, ..keep }
        }
        _ => keep,
    })
}

/// Names of the checks that the answer fails, in their order.
#[must_use]
pub fn failed(checks: &[Check], answer: &Finished, stream: bool) -> Vec<String> {
    let mut failed: Vec<String> = checks
        .iter()
        .filter(|check| !holds(check, answer, stream))
        .map(|check| name(check).to_owned())
        .collect();
    if answer.carries_nothing {
        failed.push(CARRIES_SOMETHING.to_owned());
    }
    failed
}

/// The key in the files that people write.
fn name(check: &Check) -> &'static str {
    match check {
        Check::Contains(_) | Check::BodyContains(_) => "contains",
        Check::NotContains(_) | Check::BodyLacks(_) => "not_contains",
        Check::Regex(_) => "regex",
        Check::JsonPointer(_) => "json_pointer",
        Check::Json { .. } => "json",
        Check::LogprobsAbsent(_) => "logprobs_absent",
        Check::TokensMin(_) => "completion_tokens_min",
        Check::TokensMax(_) => "completion_tokens_max",
        Check::FinishReason(_) => "finish_reason",
    }
}

fn holds(check: &Check, answer: &Finished, stream: bool) -> bool {
    let tokens = || answer.tokens.filter(|tokens| tokens.source == TokenSource::Usage);
    match check {
        Check::Contains(text) => answer.content.contains(text.as_str()),
        Check::NotContains(text) => !answer.content.contains(text.as_str()),
        Check::BodyContains(text) => body_has(answer, text),
        Check::BodyLacks(text) => !body_has(answer, text),
        Check::Regex(regex) => regex.is_match(&answer.content),
        // The scenario file says: non-stream only.
        Check::JsonPointer(_) if stream => true,
        Check::JsonPointer(pointer) => {
            documents(&answer.raw, stream).any(|document| document.pointer(pointer).is_some())
        }
        Check::Json { pointer, equals } => documents(&answer.raw, stream).any(|document| {
            let found = document.pointer(pointer);
            found.is_some_and(|found| equals.as_ref().is_none_or(|wanted| wanted == found))
        }),
        Check::LogprobsAbsent(false) => true,
        Check::LogprobsAbsent(true) => {
            !documents(&answer.raw, stream).any(|document| has_logprobs(&document))
        }
        Check::TokensMin(least) => tokens().is_some_and(|tokens| tokens.completion >= *least),
        Check::TokensMax(most) => tokens().is_some_and(|tokens| tokens.completion <= *most),
        Check::FinishReason(reasons) => {
            let given = &answer.facts.finish_reasons;
            !given.is_empty() && given.values().all(|reason| reasons.contains(reason))
        }
    }
}

fn body_has(answer: &Finished, text: &str) -> bool {
    answer.content.contains(text) || memchr::memmem::find(&answer.raw, text.as_bytes()).is_some()
}

/// The JSON documents of a body: itself, or the single-line data of each event.
fn documents(raw: &[u8], stream: bool) -> impl Iterator<Item = Value> {
    raw.split(move |byte| stream && matches!(byte, b'\n' | b'\r'))
        .map(move |line| if stream { line.strip_prefix(b"data:").unwrap_or_default() } else { line })
        .filter_map(|text| serde_json::from_slice(text).ok())
}

fn has_logprobs(document: &Value) -> bool {
    let choices = document.get("choices").and_then(Value::as_array);
    choices.into_iter().flatten().any(|choice| choice.get("logprobs").is_some_and(|value| !value.is_null()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Answer;
    use crate::protocol::openai_chat::OpenAiChat;
    use evidence::record::RequestRecord;
    use scenario::identity::RequestId;

    fn answer(stream: bool, body: &str, checks: &[Check]) -> Finished {
        let mut answer = Answer::new(&OpenAiChat, stream, needs(checks, stream));
        let mut record = RequestRecord::blank(0, RequestId::new("s", 1, 0), stream);
        answer.feed(body.as_bytes(), 1, &mut record, &mut |_| {});
        answer.finish(true).0
    }

    #[test]
    fn every_check_holds_and_fails() {
        let json = r#"{"choices":[{"message":{"content":"hello world"},"logprobs":{"content":[]},
            "finish_reason":"stop"}],"usage":{"completion_tokens":3}}"#;
        let sse = "data: {\"choices\":[{\"delta\":{\"content\":\"hello \"},\"logprobs\":null}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"world\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        for (check, on_json, on_sse) in [
            (Check::Contains("lo wo".into()), true, true),
            (Check::Contains("nothing".into()), false, false),
            (Check::NotContains("hello".into()), false, false),
            (Check::NotContains("nothing".into()), true, true),
            (Check::JsonPointer("/choices/0/message".into()), true, true),
            (Check::JsonPointer("/choices/1".into()), false, true),
            (Check::LogprobsAbsent(true), false, true),
            (Check::LogprobsAbsent(false), true, true),
            (Check::TokensMin(3), true, false),
            (Check::TokensMin(4), false, false),
            (Check::TokensMax(3), true, false),
            (Check::TokensMax(2), false, false),
            (Check::BodyContains("lo wo".into()), true, true),
            (Check::BodyContains("finish_reason".into()), true, true),
            (Check::BodyLacks("nothing".into()), true, true),
            (Check::BodyLacks("finish_reason".into()), false, false),
            (Check::Regex(Regex::new("^hel+o").unwrap()), true, true),
            (Check::Regex(Regex::new("^world").unwrap()), false, false),
            (
                Check::Json { pointer: "/choices/0/finish_reason".into(), equals: Some("stop".into()) },
                true,
                true,
            ),
            (
                Check::Json { pointer: "/choices/0/finish_reason".into(), equals: Some("length".into()) },
                false,
                false,
            ),
            (Check::FinishReason(vec!["stop".into(), "length".into()]), true, true),
            (Check::FinishReason(vec!["length".into()]), false, false),
        ] {
            let checks = [check];
            for (stream, body, good) in [(false, json, on_json), (true, sse, on_sse)] {
                let failed = failed(&checks, &answer(stream, body, &checks), stream);
                assert_eq!(failed.is_empty(), good, "{:?} stream={stream}: {failed:?}", checks[0]);
            }
        }
    }

    #[test]
    fn an_empty_answer_fails_the_built_in_check() {
        let empty = answer(false, r#"{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}"#, &[]);
        assert_eq!(failed(&[], &empty, false), [CARRIES_SOMETHING]);
    }
}
