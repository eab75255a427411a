//! What one data line of an answer contains, as far as a race must know it (contract gateway 4.5). Pure.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Debug, Default, Deserialize)]
struct Document {
    #[serde(default)]
    object: Option<String>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    index: u64,
    #[serde(default)]
    delta: Option<Said>,
    #[serde(default)]
    message: Option<Said>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Said {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<serde::de::IgnoredAny>>,
}

impl Said {
    fn says_something(&self) -> bool {
        [&self.content, &self.reasoning, &self.reasoning_content]
            .into_iter()
            .any(|text| text.as_ref().is_some_and(|text| !text.is_empty()))
            || self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty())
    }
}

#[derive(Debug, Deserialize)]
struct Usage {
    #[serde(default)]
    completion_tokens: Option<u64>,
}

/// Facts of an answer as its lines come.
#[derive(Debug, Default)]
pub struct Progress {
    /// Whether each choice seen so far has its finish reason.
    finished: BTreeMap<u64, bool>,
    /// Whether anything was said.
    pub has_content: bool,
    /// The error document, when one came.
    pub error: Option<Value>,
    /// Whether the host ended the answer itself.
    pub done: bool,
}

impl Progress {
    /// Takes one JSON document; false when it is none.
    pub fn take(&mut self, data: &str) -> bool {
        let Ok(document) = serde_json::from_str::<Document>(data) else { return false };
        if document.error.as_ref().is_some_and(|error| !error.is_null()) {
            self.error = serde_json::from_str(data).ok();
            return true;
        }
        let tokens = document.usage.and_then(|usage| usage.completion_tokens).unwrap_or_default();
        for choice in document.choices.unwrap_or_default() {
            let said = [&choice.delta, &choice.message].into_iter().flatten().any(Said::says_something);
            let ended = choice.finish_reason.as_deref().is_some_and(|reason| !reason.is_empty());
            self.has_content |= said || (ended && tokens > 0);
            *self.finished.entry(choice.index).or_default() |= ended;
        }
        true
    }

    /// Whether the whole answer has come: content, a finish reason of every choice, the host's own end.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let finished = !self.finished.is_empty() && self.finished.values().all(|finished| *finished);
        self.done && self.error.is_none() && self.has_content && finished
    }
}

/// The event with no more logprobs than the client asked for: `None` takes them away, a number keeps so many
/// alternatives per token. They are forced on every request for the validators' sake.
#[must_use]
pub fn trim_logprobs(data: &str, wanted: Option<usize>) -> Option<String> {
    if !data.contains(r#""logprobs":{"#) {
        return None;
    }
    let mut document: Map<String, Value> = serde_json::from_str(data).ok()?;
    for choice in document.get_mut("choices")?.as_array_mut()? {
        let Some(logprobs) = choice.get_mut("logprobs") else { continue };
        let Some(wanted) = wanted else {
            *logprobs = Value::Null;
            continue;
        };
        let entries = logprobs.get_mut("content").and_then(Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            if let Some(top) = entry.get_mut("top_logprobs").and_then(Value::as_array_mut) {
                top.truncate(wanted);
            }
        }
    }
    Some(Value::Object(document).to_string())
}

/// Chunk events for a whole completion that came in answer to a streaming request; `None` when `data` is
/// something else.
#[must_use]
pub fn as_chunks(data: &str) -> Option<Vec<String>> {
    let header: Document = serde_json::from_str(data).ok()?;
    if header.object.as_deref() != Some("chat.completion") {
        return None;
    }
    let whole: Map<String, Value> = serde_json::from_str(data).ok()?;
    let chunk = |choices: Vec<Value>, usage: Option<&Value>| {
        let mut event = Map::new();
        event.insert("choices".into(), choices.into());
        for key in ["created", "id", "model"] {
            if let Some(value) = whole.get(key) {
                event.insert(key.into(), value.clone());
            }
        }
        event.insert("object".into(), "chat.completion.chunk".into());
        if let Some(usage) = usage {
            event.insert("usage".into(), usage.clone());
        }
        Value::Object(event).to_string()
    };
    let mut events = Vec::new();
    for choice in whole.get("choices")?.as_array()? {
        let index = choice.get("index").cloned().unwrap_or_else(|| json!(0));
        let mut delta = choice.get("message").and_then(Value::as_object).cloned().unwrap_or_default();
        let role = delta.remove("role").unwrap_or_else(|| json!("assistant"));
        let none = Value::Null;
        events.push(chunk(
            vec![json!({ "delta": { "role": role }, "finish_reason": none, "index": index })],
            None,
        ));
        let logprobs = choice.get("logprobs").cloned().unwrap_or_default();
        let said = json!({ "delta": delta, "finish_reason": none, "index": index, "logprobs": logprobs });
        events.push(chunk(vec![said], None));
        let reason = choice.get("finish_reason").cloned().unwrap_or_default();
        events.push(chunk(vec![json!({ "delta": {}, "finish_reason": reason, "index": index })], None));
    }
    if let Some(usage) = whole.get("usage").filter(|usage| !usage.is_null()) {
        events.push(chunk(Vec::new(), Some(usage)));
    }
    Some(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_what_somebody_can_read() {
        let content = |data: &str| {
            let mut progress = Progress::default();
            assert!(progress.take(data), "{data}");
            progress.has_content
        };
        assert!(!content(r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#));
        assert!(content(r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#));
        assert!(content(r#"{"choices":[{"index":0,"delta":{"reasoning_content":"a"}}]}"#));
        assert!(content(r#"{"choices":[{"index":0,"delta":{"tool_calls":[{}]}}]}"#));
        assert!(content(r#"{"choices":[{"index":0,"message":{"content":"a"}}]}"#));
        assert!(!content(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#));
        assert!(content(
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}"#
        ));
        assert!(!Progress::default().take("{"));
    }

    #[test]
    fn an_answer_is_complete_with_every_finish_reason_and_the_end() {
        let mut progress = Progress::default();
        progress.take(r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}"#);
        progress.take(r#"{"choices":[{"index":1,"delta":{"content":"b"}}]}"#);
        progress.done = true;
        assert!(!progress.is_complete());
        progress.take(r#"{"choices":[{"index":1,"delta":{},"finish_reason":"length"}]}"#);
        assert!(progress.is_complete());
        progress.take(r#"{"error":{"message":"late"}}"#);
        assert!(!progress.is_complete());
    }

    #[test]
    fn logprobs_are_shown_as_far_as_they_were_asked_for() {
        let event =
            r#"{"choices":[{"index":0,"logprobs":{"content":[{"token":"1","top_logprobs":[1,2,3]}]}}]}"#;
        let none = trim_logprobs(event, None).unwrap();
        assert_eq!(none, r#"{"choices":[{"index":0,"logprobs":null}]}"#);
        let two = trim_logprobs(event, Some(2)).unwrap();
        assert!(two.contains(r#""top_logprobs":[1,2]"#), "{two}");
        assert_eq!(trim_logprobs(r#"{"choices":[{"logprobs":null}]}"#, None), None, "nothing to do");
    }

    #[test]
    fn a_whole_completion_becomes_chunks() {
        let whole = r#"{"choices":[{"finish_reason":"stop","index":0,"message":{"content":"hi","role":"assistant"}}],"id":"devshard-1-2","object":"chat.completion","usage":{"completion_tokens":1}}"#;
        let chunks = as_chunks(whole).unwrap();
        assert_eq!(chunks.len(), 4);
        let mut progress = Progress::default();
        for chunk in &chunks {
            assert!(progress.take(chunk));
            assert!(chunk.contains(r#""object":"chat.completion.chunk""#), "{chunk}");
        }
        progress.done = true;
        assert!(progress.is_complete());
        assert!(as_chunks(r#"{"object":"chat.completion.chunk"}"#).is_none());
    }
}
