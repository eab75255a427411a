//! Bodies that go to a model server: the client's body with the changes of contract mocks 3.8 and 3.10.

use serde_json::{Map, Value, json};

/// Answers are at most this long when the client sets no limit.
const MAX_TOKENS_DEFAULT: u64 = 3072;

/// Why a prompt cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Not a JSON object.
    #[error("prompt is not a JSON object: {0}")]
    NotAnObject(String),
    /// A message that no model server would take.
    #[error("message {index}: {problem}")]
    Message {
        /// Position.
        index: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// Body of an execution. `logprobs_mode` is left out when empty.
///
/// # Errors
/// When the prompt is not a JSON object with messages of the right shape.
pub fn execution_body(prompt: &[u8], inference_id: u64, logprobs_mode: &str) -> Result<Vec<u8>, BodyError> {
    let mut body = common(prompt, inference_id, logprobs_mode)?;
    if body.get("stream").and_then(Value::as_bool) == Some(true) {
        match body.entry("stream_options").or_insert_with(|| json!({})) {
            Value::Object(options) => drop(options.insert("include_usage".into(), true.into())),
            other => *other = json!({"include_usage": true}),
        }
    }
    Ok(sorted_bytes(Value::Object(body)))
}

/// Body of a validation replay with the tokens of the original answer, never streamed.
///
/// # Errors
/// As for [`execution_body`].
pub fn replay_body(
    prompt: &[u8],
    inference_id: u64,
    logprobs_mode: &str,
    enforced_tokens: &Value,
) -> Result<Vec<u8>, BodyError> {
    let mut body = common(prompt, inference_id, logprobs_mode)?;
    body.insert("stream".into(), false.into());
    body.remove("stream_options");
    body.insert("enforced_tokens".into(), json!({ "tokens": enforced_tokens }));
    Ok(sorted_bytes(Value::Object(body)))
}

fn common(prompt: &[u8], inference_id: u64, logprobs_mode: &str) -> Result<Map<String, Value>, BodyError> {
    let mut body: Map<String, Value> =
        serde_json::from_slice(prompt).map_err(|error| BodyError::NotAnObject(error.to_string()))?;
    check_messages(&body)?;
    let truthy = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        _ => true,
    };
    if !body.get("logprobs").is_some_and(truthy) {
        body.insert("logprobs".into(), true.into());
    }
    body.insert("top_logprobs".into(), 5.into());
    let limit = ["max_tokens", "max_completion_tokens"].iter().find_map(|key| body.get(*key)?.as_u64());
    let limit = limit.unwrap_or(MAX_TOKENS_DEFAULT);
    body.insert("max_tokens".into(), limit.into());
    body.insert("max_completion_tokens".into(), limit.into());
    body.insert("skip_special_tokens".into(), false.into());
    body.insert("return_token_ids".into(), true.into());
    // The join from a node's call to the inference rests on this field (design section 5).
    let seed = i32::try_from(inference_id & 0x7fff_ffff).unwrap_or(i32::MAX);
    body.entry("seed").or_insert_with(|| seed.into());
    if !logprobs_mode.is_empty() {
        body.insert("logprobs_mode".into(), logprobs_mode.into());
    }
    Ok(body)
}

fn check_messages(body: &Map<String, Value>) -> Result<(), BodyError> {
    let messages = body.get("messages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for (index, message) in messages.iter().enumerate() {
        let wrong = |problem| Err(BodyError::Message { index, problem });
        let Some(message) = message.as_object() else { return wrong("is not an object") };
        match message.get("content") {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(Value::Array(parts)) => {
                let empty = |part: &Value| part.get("text").and_then(Value::as_str) == Some("");
                if parts.iter().any(empty) {
                    return wrong("has an empty text part");
                }
            }
            Some(_) => return wrong("has content that is neither text nor a list"),
        }
    }
    Ok(())
}

/// Compact JSON with sorted keys, as the real programs write it.
#[must_use]
pub fn sorted_bytes(value: Value) -> Vec<u8> {
    serde_json::to_vec(&sorted(value)).expect("a JSON value can always be written")
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn an_execution_gets_seed_logprobs_and_usage() {
        let prompt =
            br#"{"stream":true,"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":7}"#;
        let body = execution_body(prompt, 12, "raw").unwrap();
        let expected = concat!(
            r#"{"logprobs":true,"logprobs_mode":"raw","max_completion_tokens":7,"max_tokens":7,"#,
            r#""messages":[{"content":"x","role":"user"}],"model":"m","return_token_ids":true,"seed":12,"#,
            r#""skip_special_tokens":false,"stream":true,"stream_options":{"include_usage":true},"top_logprobs":5}"#,
        );
        assert_eq!(std::str::from_utf8(&body).unwrap(), expected);
    }

    #[test]
    fn a_client_keeps_its_seed_and_json_answers_get_no_stream_options() {
        let body = parsed(&execution_body(br#"{"seed":3,"logprobs":2}"#, 12, "").unwrap());
        assert_eq!(body["seed"], 3);
        assert_eq!(body["logprobs"], 2);
        assert_eq!(body["max_tokens"], MAX_TOKENS_DEFAULT);
        assert!(body.get("stream_options").is_none() && body.get("logprobs_mode").is_none());
    }

    #[test]
    fn a_replay_is_never_streamed() {
        let prompt = br#"{"stream":true,"stream_options":{}}"#;
        let body = parsed(&replay_body(prompt, 1, "", &Value::Null).unwrap());
        assert_eq!(body["stream"], false);
        assert_eq!(body["enforced_tokens"], json!({"tokens": null}));
        assert!(body.get("stream_options").is_none());
    }

    #[test]
    fn strange_messages_are_refused_before_any_call() {
        for prompt in [
            r#"[]"#,
            r#"{"messages":["x"]}"#,
            r#"{"messages":[{"content":5}]}"#,
            r#"{"messages":[{"content":[{"type":"text","text":""}]}]}"#,
        ] {
            assert!(execution_body(prompt.as_bytes(), 1, "").is_err(), "{prompt}");
        }
    }
}
