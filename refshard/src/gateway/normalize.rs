//! What a chat request must be, and the form in which it goes on (contract gateway 4.2): checked, bounded,
//! canonical. Pure.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::settings::Settings;

/// Largest body, in bytes.
pub const BODY_MAX: usize = 10 << 20;
const DEPTH_MAX: usize = 32;
const MESSAGES_MAX: usize = 2048;
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Parameters that go on. Anything else is refused, since a model server may die of it.
const KNOWN: &[&str] = &[
    "messages",
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "bad_words",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "return_token_ids",
    "user",
    "metadata",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "structured_outputs",
    "skip_special_tokens",
    "chat_template_kwargs",
];

/// Parameters that are taken out without a word.
const REMOVED: &[&str] = &[
    "service_tier",
    "store",
    "provider",
    "plugins",
    "prompt_cache_key",
    "cache_key",
    "extra_headers",
    "thinking_config",
    "think",
    "reasoning_effort",
];

/// Numbers that are pulled into a range: name, least, most.
const CLAMPED: &[(&str, f64, f64)] = &[
    ("temperature", 0.0, 2.0),
    ("min_p", 0.0, 1.0),
    ("frequency_penalty", -2.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
];

/// Lists that are bounded: name, most elements, most bytes of one.
const LISTS: &[(&str, usize, usize)] =
    &[("stop", 16, 256), ("stop_token_ids", 64, 32), ("bad_words", 64, 128)];

/// Documents that are bounded: name, most bytes, most nodes.
const DOCUMENTS: &[(&str, usize, usize)] =
    &[("tools", 16 << 10, 256), ("response_format", 16 << 10, 128), ("structured_outputs", 16 << 10, 128)];

/// A request that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// 400 or 413.
    pub status: StatusCode,
    /// For the client.
    pub message: String,
}

impl Refusal {
    fn bad(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into() }
    }
}

/// A request in the form that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chat {
    /// Model, the default one when none was named.
    pub model: String,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// Most answer tokens, as signed.
    pub max_tokens: u64,
    /// Canonical JSON with what is forced on every request.
    pub body: Vec<u8>,
    /// Alternatives per token that the client asked for; none when it asked for no logprobs.
    pub logprobs: Option<usize>,
}

impl Chat {
    /// Price in the limiter: a quarter of the bytes, rounded up.
    #[must_use]
    pub const fn limiter_tokens(&self) -> u64 {
        (self.body.len() as u64).div_ceil(4)
    }

    /// Price in the protocol: the bytes.
    #[must_use]
    pub const fn input_length(&self) -> u64 {
        self.body.len() as u64
    }
}

/// Checks and normalises. `uncapped` is set for the bearer of the admin key, whom the token cap spares.
///
/// # Errors
/// What the client did wrong.
pub fn normalize(bytes: &[u8], settings: &Settings, uncapped: bool) -> Result<Chat, Refusal> {
    if bytes.len() > BODY_MAX {
        let message = "request body too large".to_owned();
        return Err(Refusal { status: StatusCode::PAYLOAD_TOO_LARGE, message });
    }
    if depth_of(bytes) > DEPTH_MAX {
        return Err(Refusal::bad(format!("request nesting depth exceeds limit {DEPTH_MAX}")));
    }
    let mut body = parse(bytes)?;
    if let Some(Value::Object(extra)) = body.remove("extra_body") {
        for (key, value) in extra {
            body.entry(key).or_insert(value);
        }
    }
    for name in REMOVED {
        body.remove(*name);
    }
    if let Some(name) = body.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        return Err(Refusal::bad(format!("parameter {name:?} is not supported, leave it out")));
    }
    check_messages(&body)?;
    let model = match body.get("model") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(model)) => model.clone(),
        Some(_) => return Err(Refusal::bad("parse request: model must be a string")),
    };
    let model = if model.is_empty() { settings.default_model.clone() } else { model };
    let stream = match body.get("stream") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(stream)) => *stream,
        Some(_) => return Err(Refusal::bad("parse request: stream must be a boolean")),
    };
    let max_tokens = limit_tokens(&mut body, settings.tokens_of(&model), uncapped)?;
    check_numbers(&mut body, max_tokens)?;
    check_sizes(&body)?;
    keep_include_usage(&mut body);
    let logprobs = (body.get("logprobs") == Some(&Value::Bool(true))).then(|| {
        let top = body.get("top_logprobs").and_then(Value::as_u64).unwrap_or(0);
        usize::try_from(top).unwrap_or(usize::MAX)
    });
    body.insert("model".into(), model.clone().into());
    body.insert("logprobs".into(), true.into());
    body.insert("top_logprobs".into(), 5.into());
    body.insert("return_token_ids".into(), true.into());
    let body = canonical(Value::Object(body));
    Ok(Chat { model, stream, max_tokens, body, logprobs })
}

fn parse(bytes: &[u8]) -> Result<Map<String, Value>, Refusal> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Refusal::bad("parse request: EOF"));
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(body)) => Ok(body),
        Ok(other) => {
            let kind = match other {
                Value::Array(_) => "an array",
                Value::String(_) => "a string",
                Value::Number(_) => "a number",
                _ => "a literal",
            };
            Err(Refusal::bad(format!("parse request: {kind} is not an object")))
        }
        Err(error) if error.is_eof() => Err(Refusal::bad("parse request: unexpected EOF")),
        Err(error) => Err(Refusal::bad(format!("parse request: {error}"))),
    }
}

/// Deepest nesting, counted over the bytes before anything is parsed.
fn depth_of(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn check_messages(body: &Map<String, Value>) -> Result<(), Refusal> {
    let messages = match body.get("messages") {
        None | Some(Value::Null) => return Err(Refusal::bad("messages is required")),
        Some(Value::Array(messages)) => messages,
        Some(_) => return Err(Refusal::bad("parse request: messages must be an array")),
    };
    if messages.is_empty() {
        return Err(Refusal::bad("messages must not be empty"));
    }
    if messages.len() > MESSAGES_MAX {
        return Err(Refusal::bad(format!("messages has more than {MESSAGES_MAX} entries")));
    }
    messages.iter().enumerate().try_for_each(|(index, message)| check_message(index, message))
}

fn check_message(index: usize, message: &Value) -> Result<(), Refusal> {
    let bad = |text: String| Err(Refusal::bad(format!("messages[{index}]{text}")));
    let Some(message) = message.as_object() else { return bad(" must be an object".into()) };
    let Some(role) = message.get("role").and_then(Value::as_str) else {
        return bad(".role is required".into());
    };
    if !ROLES.contains(&role) {
        return bad(format!(".role has unsupported value {role:?}"));
    }
    match message.get("content") {
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) => {
            let typed = |part: &Value| part.get("type").is_some_and(Value::is_string);
            match parts.iter().position(|part| !typed(part)) {
                None => Ok(()),
                Some(part) => bad(format!(".content[{part}]: needs a type")),
            }
        }
        // An assistant that only called tools says nothing.
        None | Some(Value::Null) if role == "assistant" => Ok(()),
        None | Some(Value::Null) => bad(".content is required".into()),
        Some(_) => bad(".content: must be a string or an array of typed content parts".into()),
    }
}

fn limit_tokens(
    body: &mut Map<String, Value>,
    (default, cap): (u64, u64),
    uncapped: bool,
) -> Result<u64, Refusal> {
    let mut asked: Option<u64> = None;
    for name in ["max_tokens", "max_completion_tokens"] {
        let tokens = match body.get(name) {
            None | Some(Value::Null) => continue,
            Some(value) => match (value.as_u64(), value.as_i64()) {
                (Some(tokens), _) => tokens,
                (None, Some(_)) => 0,
                (None, None) => {
                    return Err(Refusal::bad(format!(
                        "parse request: {name} must be a non-negative integer"
                    )));
                }
            },
        };
        if tokens == 0 {
            return Err(Refusal::bad(format!("{name}: must be greater than 0")));
        }
        asked = Some(asked.map_or(tokens, |other| other.min(tokens)));
    }
    let tokens = asked.unwrap_or(default);
    let tokens = if uncapped { tokens } else { tokens.min(cap) };
    body.remove("max_completion_tokens");
    body.insert("max_tokens".into(), tokens.into());
    Ok(tokens)
}

fn check_numbers(body: &mut Map<String, Value>, max_tokens: u64) -> Result<(), Refusal> {
    for (name, least, most) in CLAMPED {
        let Some(value) = body.get(*name).filter(|value| !value.is_null()) else { continue };
        let Some(number) = value.as_f64() else {
            return Err(Refusal::bad(format!("parse request: {name} must be a number")));
        };
        if number < *least || number > *most {
            body.insert((*name).into(), json!(number.clamp(*least, *most)));
        }
    }
    for name in ["top_p", "repetition_penalty"] {
        let Some(value) = body.get(name).filter(|value| !value.is_null()) else { continue };
        match value.as_f64() {
            Some(number) if number > 0.0 => {
                let most = if name == "top_p" { 1.0 } else { 2.0 };
                if number > most {
                    body.insert(name.into(), json!(most));
                }
            }
            _ => return Err(Refusal::bad(format!("{name}: must be greater than 0"))),
        }
    }
    if let Some(value) = body.get("top_k").filter(|value| !value.is_null())
        && !value.as_i64().is_some_and(|number| number == -1 || number >= 1)
    {
        return Err(Refusal::bad("top_k: must be -1 or at least 1"));
    }
    for name in ["seed", "min_tokens", "n"] {
        let Some(value) = body.get(name).filter(|value| !value.is_null()) else { continue };
        let Some(number) = value.as_u64() else {
            return Err(Refusal::bad(format!("parse request: {name} must be a non-negative integer")));
        };
        match name {
            "min_tokens" => drop(body.insert(name.into(), number.min(max_tokens).into())),
            "n" => drop(body.insert(name.into(), number.clamp(1, 5).into())),
            _ => {}
        }
    }
    let several = body.get("n").and_then(Value::as_u64).is_some_and(|n| n > 1);
    if several && body.get("temperature").and_then(Value::as_f64) == Some(0.0) {
        return Err(Refusal::bad("n: must be 1 when temperature is 0"));
    }
    Ok(())
}

fn check_sizes(body: &Map<String, Value>) -> Result<(), Refusal> {
    for (name, elements_max, bytes_max) in LISTS {
        let long = |value: &Value| value.to_string().len() > bytes_max + 2;
        let too_big = match body.get(*name) {
            Some(Value::Array(items)) => items.len() > *elements_max || items.iter().any(long),
            Some(value @ Value::String(_)) => long(value),
            _ => false,
        };
        if too_big {
            return Err(Refusal::bad(format!(
                "{name}: more than {elements_max} entries or an entry too long"
            )));
        }
    }
    for (name, bytes_max, nodes_max) in DOCUMENTS {
        let Some(value) = body.get(*name) else { continue };
        if value.to_string().len() > *bytes_max || nodes_of(value) > *nodes_max {
            return Err(Refusal::bad(format!("{name}: too large")));
        }
    }
    match body.get("logit_bias") {
        None | Some(Value::Null) => {}
        Some(Value::Object(entries)) if entries.len() <= 1024 => {}
        Some(_) => return Err(Refusal::bad("logit_bias: must be an object of at most 1024 entries")),
    }
    match body.get("user") {
        None | Some(Value::Null) => {}
        Some(Value::String(user)) if user.len() <= 512 => {}
        Some(_) => return Err(Refusal::bad("user: must be a string of at most 512 bytes")),
    }
    match body.get("metadata") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(entries)) if entries.len() <= 16 => Ok(()),
        Some(_) => Err(Refusal::bad("metadata: must be an object of at most 16 keys")),
    }
}

fn nodes_of(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes_of).sum(),
        Value::Object(entries) => entries.values().map(nodes_of).sum(),
        _ => 0,
    }
}

fn keep_include_usage(body: &mut Map<String, Value>) {
    let Some(options) = body.remove("stream_options") else { return };
    if let Some(usage) = options.get("include_usage") {
        body.insert("stream_options".into(), json!({ "include_usage": usage }));
    }
}

/// Compact JSON with sorted keys.
#[must_use]
pub fn canonical(value: Value) -> Vec<u8> {
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

    fn settings() -> Settings {
        Settings::defaults("", "", "test-model")
    }

    fn with(extra: &str) -> String {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}]{extra}}}"#)
    }

    /// Fixture auth-and-errors and contract gateway 4.2.
    #[test]
    fn every_refusal_names_its_cause() {
        let deep = format!(r#"{{"messages":{}{}}}"#, "[".repeat(32), "]".repeat(32));
        let cases: Vec<(String, u16, &str)> = vec![
            (String::new(), 400, "parse request: EOF"),
            (r#"{"messages":[{"role":"user""#.into(), 400, "parse request: unexpected EOF"),
            ("[1,2]".into(), 400, "parse request: an array is not an object"),
            ("{x}".into(), 400, "parse request: key must be"),
            (deep, 400, "request nesting depth exceeds limit 32"),
            (r#"{"model":"m"}"#.into(), 400, "messages is required"),
            (r#"{"messages":[]}"#.into(), 400, "messages must not be empty"),
            (
                r#"{"messages":[{"role":"alien","content":"x"}]}"#.into(),
                400,
                r#"messages[0].role has unsupported value "alien""#,
            ),
            (
                r#"{"messages":[{"role":"user","content":5}]}"#.into(),
                400,
                "messages[0].content: must be a string",
            ),
            (r#"{"messages":[{"role":"user"}]}"#.into(), 400, "messages[0].content is required"),
            (
                r#"{"messages":[{"role":"user","content":[{"text":"x"}]}]}"#.into(),
                400,
                "messages[0].content[0]",
            ),
            (with(r#","max_tokens":0"#), 400, "max_tokens: must be greater than 0"),
            (with(r#","max_tokens":-5"#), 400, "max_tokens: must be greater than 0"),
            (
                with(r#","max_tokens":"many""#),
                400,
                "parse request: max_tokens must be a non-negative integer",
            ),
            (with(r#","max_tokens":1.5"#), 400, "parse request: max_tokens must be a non-negative integer"),
            (with(r#","foo":1"#), 400, r#"parameter "foo""#),
            (with(r#","extra_body":{"foo":1}"#), 400, r#"parameter "foo""#),
            (with(r#","stream":"yes""#), 400, "parse request: stream must be a boolean"),
            (with(r#","top_p":0"#), 400, "top_p: must be greater than 0"),
            (with(r#","top_k":0"#), 400, "top_k: must be -1"),
            (with(r#","seed":-1"#), 400, "parse request: seed must be"),
            (with(r#","n":2,"temperature":0"#), 400, "n: must be 1"),
            (with(r#","temperature":"hot""#), 400, "parse request: temperature must be a number"),
            (with(&format!(r#","stop":[{}"a"]"#, r#""a","#.repeat(16))), 400, "stop: more than 16"),
            (with(&format!(r#","user":"{}""#, "u".repeat(513))), 400, "user: must be"),
            (with(r#","metadata":[]"#), 400, "metadata: must be"),
            (with(&format!(r#","tools":["{}"]"#, "t".repeat(17 << 10))), 400, "tools: too large"),
            (" ".repeat(BODY_MAX + 1), 413, "request body too large"),
        ];
        for (body, status, message) in cases {
            let refusal = normalize(body.as_bytes(), &settings(), false).unwrap_err();
            let short: String = body.chars().take(120).collect();
            assert_eq!(refusal.status.as_u16(), status, "{short}");
            assert!(refusal.message.starts_with(message), "{short}: {}", refusal.message);
        }
    }

    #[test]
    fn what_goes_on_is_canonical_and_bounded() {
        let body = with(
            r#","temperature":9,"n":9,"top_p":3,"store":true,"stream":true,"min_tokens":9,
               "stream_options":{"include_usage":true,"other":1},"logprobs":false,"top_logprobs":2,
               "max_tokens":100000,"max_completion_tokens":7,"extra_body":{"seed":3,"n":4}"#,
        );
        let chat = normalize(body.as_bytes(), &settings(), false).unwrap();
        let expected = concat!(
            r#"{"logprobs":true,"max_tokens":7,"messages":[{"content":"x","role":"user"}],"min_tokens":7,"#,
            r#""model":"m","n":5,"return_token_ids":true,"seed":3,"stream":true,"#,
            r#""stream_options":{"include_usage":true},"temperature":2.0,"top_logprobs":5,"top_p":1.0}"#,
        );
        assert_eq!(String::from_utf8(chat.body.clone()).unwrap(), expected);
        assert_eq!((chat.stream, chat.max_tokens, chat.logprobs), (true, 7, None));
        assert_eq!(chat.limiter_tokens(), chat.input_length().div_ceil(4));
    }

    /// Fixtures max-tokens-missing, max-tokens-too-large, max-tokens-admin-key.
    #[test]
    fn the_cap_spares_the_admin() {
        let tokens =
            |extra: &str, admin| normalize(with(extra).as_bytes(), &settings(), admin).unwrap().max_tokens;
        assert_eq!(tokens("", false), 3072);
        assert_eq!(tokens(r#","max_tokens":100000"#, false), 4096);
        assert_eq!(tokens(r#","max_tokens":100000"#, true), 100_000);
        assert_eq!(
            normalize(with("").replace(r#""model":"m","#, "").as_bytes(), &settings(), false).unwrap().model,
            "test-model"
        );
    }
}
