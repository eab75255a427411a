//! Checks of the answer (scenario `workload.checks`). A good answer that fails one is a failure.

use evidence::record::TokenSource;
use scenario::model::Check;
use serde_json::Value;

use crate::answer::{Finished, Keep};

/// Built-in check: an answer with neither content nor reasoning nor tool calls serves nobody.
pub const CARRIES_SOMETHING: &str = "carries_something";

/// What must be kept while the answer comes.
#[must_use]
pub fn needs(checks: &[Check], stream: bool) -> Keep {
    checks.iter().fold(Keep::default(), |keep, check| match check {
        Check::Contains(_) | Check::NotContains(_) => Keep { content: true, ..keep },
        // A JSON document is kept anyway.
        Check::JsonPointer(_) | Check::LogprobsAbsent(true) => Keep { raw: stream, ..keep },
        Check::LogprobsAbsent(false) | Check::CompletionTokensMin(_) => keep,
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

/// The key in the scenario file.
fn name(check: &Check) -> &'static str {
    match check {
        Check::Contains(_) => "contains",
        Check::NotContains(_) => "not_contains",
        Check::JsonPointer(_) => "json_pointer",
        Check::LogprobsAbsent(_) => "logprobs_absent",
        Check::CompletionTokensMin(_) => "completion_tokens_min",
    }
}

fn holds(check: &Check, answer: &Finished, stream: bool) -> bool {
    match check {
        Check::Contains(text) => answer.content.contains(text.as_str()),
        Check::NotContains(text) => !answer.content.contains(text.as_str()),
        // The scenario file says: non-stream only.
        Check::JsonPointer(_) if stream => true,
        Check::JsonPointer(pointer) => {
            documents(&answer.raw, stream).any(|document| document.pointer(pointer).is_some())
        }
        Check::LogprobsAbsent(false) => true,
        Check::LogprobsAbsent(true) => {
            !documents(&answer.raw, stream).any(|document| has_logprobs(&document))
        }
        Check::CompletionTokensMin(least) => answer
            .tokens
            .is_some_and(|tokens| tokens.source == TokenSource::Usage && tokens.completion >= *least),
    }
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
    use evidence::record::RequestRecord;
    use scenario::identity::RequestId;

    fn answer(stream: bool, body: &str, checks: &[Check]) -> Finished {
        let mut answer = Answer::new(stream, needs(checks, stream));
        let mut record = RequestRecord::blank(0, RequestId::new("s", 1, 0), stream);
        answer.feed(body.as_bytes(), 1, &mut record);
        answer.finish(true)
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
            (Check::CompletionTokensMin(3), true, false),
            (Check::CompletionTokensMin(4), false, false),
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
