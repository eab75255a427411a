//! What a chat request asks for, read from its body (contract mocks 3.1, 3.8, 3.10).

use std::borrow::Cow;
use std::fmt;

use scenario::digest::digest;
use scenario::fault::CallKind;
use scenario::identity::find_marker;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

/// Tokens of an answer when the body names no number.
const MAX_TOKENS_DEFAULT: u64 = 16;
/// Most tokens of an answer; a larger `max_tokens` gives this many.
pub const TOKENS_MAX: u64 = 8_192;
/// Most alternatives of an enforced token (contract mocks 3.10).
const TOP_TOKENS_MAX: usize = 64;
/// Longest salt that is logged; ours have twelve characters.
const SALT_BYTES_MAX: usize = 64;

/// A chat request as the mock understands it.
#[derive(Debug)]
pub struct Chat {
    /// Model asked for.
    pub model: String,
    /// Asked for SSE.
    pub stream: bool,
    /// Tokens to answer.
    pub tokens: usize,
    /// Alternatives per log probability entry; `None` when none were asked for.
    pub top_logprobs: Option<usize>,
    /// `seed` of the body.
    pub seed: Option<u64>,
    /// Bytes of text in the messages; prompt tokens are counted from it, so that a replay counts the same.
    pub prompt_bytes: u64,
    /// Tokens to echo; `Some` of an empty list when the body gave `null` for them.
    pub enforced: Option<Vec<Enforced>>,
    /// Execution or validation.
    pub kind: CallKind,
    /// Marker id.
    pub request_id: Option<String>,
    /// Marker salt.
    pub salt: Option<String>,
    /// What text and timing are drawn from: the marker id, or a digest of the messages without one.
    pub key: String,
}

/// One token of `enforced_tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Enforced {
    /// Token id that was chosen.
    pub token: String,
    /// Its alternatives in order of rank.
    #[serde(default)]
    pub top_tokens: Option<Vec<String>>,
}

/// Why a body is refused with status 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBody {
    /// What is wrong.
    pub message: String,
    /// Member that is wrong, for `error.param`.
    pub param: Option<&'static str>,
}

#[derive(Deserialize)]
struct EnforcedTokens {
    tokens: Option<Vec<Enforced>>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    messages: Option<TextBytes>,
    stream: Option<bool>,
    max_tokens: Option<Number>,
    max_completion_tokens: Option<Number>,
    logprobs: Option<Value>,
    top_logprobs: Option<Number>,
    seed: Option<Number>,
    enforced_tokens: Option<Value>,
}

/// Reads a body. `x_request_id` decides the kind together with the body.
///
/// # Errors
/// [`BadBody`] when it is no JSON object, a member has the wrong type, or there are no messages.
pub fn read(body: &[u8], x_request_id: Option<&str>) -> Result<Chat, BadBody> {
    let bad = |message: String| BadBody { message, param: None };
    let text = std::str::from_utf8(body).map_err(|error| bad(format!("the body is not UTF-8: {error}")))?;
    let parsed: Body<'_> =
        serde_json::from_str(text).map_err(|error| bad(format!("the body is no chat request: {error}")))?;
    let Some(messages) = parsed.messages else {
        return Err(BadBody { message: "`messages` is missing".to_owned(), param: Some("messages") });
    };
    let enforced = parsed.enforced_tokens.map(read_enforced).transpose()?;
    let replay = enforced.is_some() || x_request_id.is_some_and(|id| id.starts_with("validate-"));
    let marker = find_marker(text);
    let whole = |number: &Option<Number>| number.as_ref().and_then(whole_number);
    let tokens = whole(&parsed.max_tokens)
        .or_else(|| whole(&parsed.max_completion_tokens))
        .unwrap_or(MAX_TOKENS_DEFAULT)
        .clamp(1, TOKENS_MAX);
    let top = whole(&parsed.top_logprobs).unwrap_or(0).min(super::vocabulary::TOP_MAX as u64);
    Ok(Chat {
        model: parsed.model.map_or_else(|| "test-model".to_owned(), Cow::into_owned),
        stream: parsed.stream.unwrap_or(false),
        tokens: usize::try_from(tokens).expect("at most a few thousand"),
        top_logprobs: parsed
            .logprobs
            .is_some_and(|asked| truthy(&asked))
            .then_some(usize::try_from(top).expect("at most twenty")),
        seed: whole(&parsed.seed),
        prompt_bytes: messages.0,
        enforced,
        kind: if replay { CallKind::Validation } else { CallKind::Execution },
        request_id: marker.as_ref().map(|marker| marker.id.to_owned()),
        salt: marker
            .as_ref()
            .and_then(|marker| marker.salt)
            .filter(|salt| salt.len() <= SALT_BYTES_MAX)
            .map(str::to_owned),
        key: marker.map_or_else(|| messages_digest(text), |marker| marker.id.to_owned()),
    })
}

fn read_enforced(value: Value) -> Result<Vec<Enforced>, BadBody> {
    let refused = |error: serde_json::Error| BadBody {
        message: format!("`enforced_tokens` is not {{\"tokens\": […]}}: {error}"),
        param: Some("enforced_tokens"),
    };
    let read: EnforcedTokens = serde_json::from_value(value).map_err(refused)?;
    let tokens = read.tokens.unwrap_or_default();
    let top_tokens = |token: &Enforced| token.top_tokens.as_ref().map_or(0, Vec::len);
    // A rendered entry is many times as long as what asks for it.
    if tokens.len() as u64 > TOKENS_MAX || tokens.iter().any(|token| top_tokens(token) > TOP_TOKENS_MAX) {
        let message = format!("at most {TOKENS_MAX} enforced tokens of {TOP_TOKENS_MAX} alternatives each");
        return Err(BadBody { message, param: Some("enforced_tokens") });
    }
    Ok(tokens)
}

/// Whole numbers only; clients also write `32.0`.
fn whole_number(number: &Number) -> Option<u64> {
    number.as_u64().or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && (0.0..1e15).contains(float))?;
        format!("{float:.0}").parse().ok()
    })
}

/// Hosts keep any truthy value that the client sent (contract mocks 3.8).
fn truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(asked) => *asked,
        Value::Number(number) => number.as_f64() != Some(0.0),
        _ => true,
    }
}

/// Without a marker the messages are the identity; stream flag and ids of the body stay out, so that JSON and SSE
/// give one text. Slow and rare: every planned request carries a marker.
fn messages_digest(body: &str) -> String {
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    digest(parsed.get("messages").unwrap_or(&Value::Null))
}

/// Counts the bytes of message texts without keeping them.
#[derive(Clone, Copy, Debug, Default)]
struct TextBytes(u64);

impl<'de> Deserialize<'de> for TextBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = TextBytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    fn visit_str<E>(self, text: &str) -> Result<TextBytes, E> {
        Ok(TextBytes(u64::try_from(text.len()).unwrap_or(u64::MAX)))
    }

    fn visit_unit<E>(self) -> Result<TextBytes, E> {
        Ok(TextBytes(0))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<TextBytes, A::Error> {
        let mut total = 0;
        while let Some(TextBytes(bytes)) = items.next_element()? {
            total += bytes;
        }
        Ok(TextBytes(total))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<TextBytes, A::Error> {
        let mut total = 0;
        while let Some(name) = members.next_key::<Cow<'_, str>>()? {
            // A text part of a message is `{"type":"text","text":…}`.
            if name == "content" || name == "text" {
                total += members.next_value::<TextBytes>()?.0;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(TextBytes(total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: &str) -> Chat {
        read(body.as_bytes(), None).unwrap()
    }

    #[test]
    fn the_marker_is_found_in_any_message() {
        let body = r#"{"messages":[{"role":"system","content":"be brief"},
            {"role":"user","content":[{"type":"text","text":"[load-request:ml-1-000003][run:abcdefghijkl] go"}]}]}"#;
        let chat = chat(body);
        assert_eq!(chat.request_id.as_deref(), Some("ml-1-000003"));
        assert_eq!(chat.salt.as_deref(), Some("abcdefghijkl"));
        assert_eq!(chat.key, "ml-1-000003");
        assert_eq!(chat.prompt_bytes, 8 + 47);
        assert_eq!((chat.tokens, chat.stream, chat.top_logprobs), (16, false, None));
        assert_eq!(chat.model, "test-model");
    }

    #[test]
    fn what_a_host_sends_is_understood() {
        let body = r#"{"logprobs":true,"logprobs_mode":"raw","max_completion_tokens":9,"max_tokens":32.0,
            "messages":[{"content":"hi","role":"user"}],"model":"m","return_token_ids":true,"seed":7,"stream":true,
            "stream_options":{"include_usage":true},"top_logprobs":5}"#;
        let chat = chat(body);
        assert_eq!((chat.tokens, chat.stream, chat.top_logprobs, chat.seed), (32, true, Some(5), Some(7)));
        assert_eq!(chat.kind, CallKind::Execution);
        assert_eq!(read(body.as_bytes(), Some("validate-7")).unwrap().kind, CallKind::Validation);
    }

    #[test]
    fn without_a_marker_the_messages_are_the_identity() {
        let key = |rest: &str| chat(&format!(r#"{{"messages":[{{"content":"hi"}}]{rest}}}"#)).key;
        assert_eq!(key(""), key(r#","stream":true,"seed":3"#));
        assert_ne!(key(""), chat(r#"{"messages":[{"content":"ho"}]}"#).key);
    }

    #[test]
    fn enforced_tokens_make_a_replay_even_when_null() {
        let none = chat(r#"{"messages":[],"enforced_tokens":{"tokens":null}}"#);
        assert_eq!((none.kind, none.enforced), (CallKind::Validation, Some(Vec::new())));
        let one =
            chat(r#"{"messages":[],"enforced_tokens":{"tokens":[{"token":"5","top_tokens":["5","6"]}]}}"#);
        assert_eq!(one.enforced.unwrap()[0].top_tokens, Some(vec!["5".to_owned(), "6".to_owned()]));
        let bad = read(br#"{"messages":[],"enforced_tokens":[1]}"#, None).unwrap_err();
        assert_eq!(bad.param, Some("enforced_tokens"));
        assert!(chat(r#"{"messages":[],"enforced_tokens":null}"#).enforced.is_none());
        let many = vec![r#"{"token":"5"}"#; 8_193].join(",");
        let bad =
            read(format!(r#"{{"messages":[],"enforced_tokens":{{"tokens":[{many}]}}}}"#).as_bytes(), None);
        assert_eq!(bad.unwrap_err().param, Some("enforced_tokens"));
    }

    #[test]
    fn bad_bodies_are_refused() {
        for body in
            [&b"\xff"[..], b"", b"[]", b"{", br#"{"model":"m"}"#, br#"{"messages":[],"stream":"yes"}"#]
        {
            assert!(read(body, None).is_err(), "{body:?}");
        }
    }
}
