//! Keeps private keys, bearer tokens and passwords out of every file (design section 11).

use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value};

/// What stands in place of a secret.
pub const REDACTED: &str = "REDACTED";
/// Shorter secrets are refused: replacing them would damage innocent text.
pub const SECRET_LEN_MIN: usize = 8;

/// Replaces the run's real secrets wherever they appear, and the values of JSON keys that name a secret.
#[derive(Clone, Default)]
pub struct Redactor {
    secrets: Vec<String>,
    /// One of them could be read as a number.
    digits: bool,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} secrets)", self.secrets.len())
    }
}

impl Redactor {
    /// A redactor for these secrets; empty ones and ones below [`SECRET_LEN_MIN`] are left out.
    #[must_use]
    pub fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<String> = secrets.into_iter().filter(|s| s.len() >= SECRET_LEN_MIN).collect();
        // Longest first, so that a secret inside another one leaves no rest behind.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        let digits = secrets.iter().any(|secret| secret.bytes().all(|byte| byte.is_ascii_digit()));
        Self { secrets, digits }
    }

    /// The text without secrets; the same text when it holds none. A secret is found as it is, and as JSON writes it:
    /// with escapes, at any depth (a body inside a log line inside a file).
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if text.contains('\\') {
            return without_escaped(text, &self.secrets);
        }
        let mut out = Cow::Borrowed(text);
        for secret in &self.secrets {
            if out.contains(secret.as_str()) {
                out = Cow::Owned(out.replace(secret.as_str(), REDACTED));
            }
        }
        out
    }

    /// Replaces in place: whatever stands under secret-naming keys, and secrets inside any string, key or number.
    pub fn json(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                if map.keys().any(|key| matches!(self.text(key), Cow::Owned(_))) {
                    self.keys(map);
                }
                for (key, inner) in map.iter_mut() {
                    // Below a secret-naming key, other keys may hold secrets too.
                    self.json(inner);
                    if names_a_secret(key) {
                        blot(inner);
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            Value::String(text) => {
                if let Cow::Owned(clean) = self.text(text) {
                    *text = clean;
                }
            }
            // A secret of digits alone may have been read as a number somewhere on its way.
            Value::Number(number)
                if self.digits && matches!(self.text(&number.to_string()), Cow::Owned(_)) =>
            {
                *value = Value::String(REDACTED.to_owned());
            }
            _ => {}
        }
    }

    /// Replaces secrets in keys; keys that become equal get a number.
    fn keys(&self, map: &mut Map<String, Value>) {
        for (key, inner) in std::mem::take(map) {
            let clean = self.text(&key).into_owned();
            let mut free = clean.clone();
            let mut number = 2;
            while map.contains_key(&free) {
                free = format!("{clean}-{number}");
                number += 1;
            }
            map.insert(free, inner);
        }
    }
}

/// How often JSON may be wrapped in JSON before a secret in it is no longer looked for.
const WRAPPED_MAX: usize = 4;

/// A character and the bytes of the written text that stand for it.
type Read = (char, std::ops::Range<usize>);

/// The text without secrets that may be escaped. Each level of escapes is read in turn, and what stands for a secret
/// on any of them is replaced whole, so that JSON stays JSON.
fn without_escaped<'a>(text: &'a str, secrets: &[String]) -> Cow<'a, str> {
    let mut level: Vec<Read> = text.char_indices().map(|(at, c)| (c, at..at + c.len_utf8())).collect();
    let mut found = Vec::new();
    for _ in 0..=WRAPPED_MAX {
        for secret in secrets {
            find(&level, secret, &mut found);
        }
        let read = unescaped(&level);
        if read.len() == level.len() {
            break;
        }
        level = read;
    }
    if found.is_empty() {
        return Cow::Borrowed(text);
    }
    // A backslash before it belongs to its first character: left alone it would spoil what follows.
    found.iter_mut().for_each(|range| range.start = text[..range.start].trim_end_matches('\\').len());
    found.sort_by_key(|range| range.start);
    let (mut out, mut kept) = (String::new(), 0);
    for range in found {
        if range.start >= kept {
            out.push_str(&text[kept..range.start]);
            out.push_str(REDACTED);
        }
        kept = kept.max(range.end);
    }
    Cow::Owned(out + &text[kept..])
}

/// Adds the bytes of each place where the secret stands.
fn find(level: &[Read], secret: &str, found: &mut Vec<std::ops::Range<usize>>) {
    let wanted: Vec<char> = secret.chars().collect();
    for window in level.windows(wanted.len()) {
        if window.iter().map(|(c, _)| c).eq(&wanted) {
            found.push(window[0].1.start..window[wanted.len() - 1].1.end);
        }
    }
}

/// Reads one level of JSON escapes. What is no escape stays as it is.
fn unescaped(level: &[Read]) -> Vec<Read> {
    let mut out = Vec::with_capacity(level.len());
    let mut at = 0;
    while at < level.len() {
        let (c, len) = escape(&level[at..]).unwrap_or((level[at].0, 1));
        out.push((c, level[at].1.start..level[at + len - 1].1.end));
        at += len;
    }
    out
}

/// The escape that a text begins with: its character, and its length in characters.
fn escape(level: &[Read]) -> Option<(char, usize)> {
    let ('\\', _) = level.first()? else { return None };
    let short = match level.get(1)?.0 {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'b' => '\u{8}',
        'f' => '\u{c}',
        c @ ('"' | '\\' | '/') => c,
        'u' => return unicode(level),
        _ => return None,
    };
    Some((short, 2))
}

/// `\uXXXX`, or a pair of them.
fn unicode(level: &[Read]) -> Option<(char, usize)> {
    let unit = |at: usize| -> Option<u16> {
        (level.get(at)?.0 == '\\' && level.get(at + 1)?.0 == 'u').then_some(())?;
        let hex: String = level.get(at + 2..at + 6)?.iter().map(|(c, _)| c).collect();
        u16::from_str_radix(&hex, 16).ok()
    };
    let units = [unit(0)?, unit(6).unwrap_or_default()];
    match char::decode_utf16(units).next()? {
        Ok(c) => Some((c, c.len_utf16() * 6)),
        Err(_) => None,
    }
}

/// Replaces everything that says something, at any depth.
fn blot(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(blot),
        Value::Array(items) => items.iter_mut().for_each(blot),
        Value::String(text) if text.is_empty() => {}
        Value::String(_) | Value::Number(_) => *value = Value::String(REDACTED.to_owned()),
        Value::Null | Value::Bool(_) => {}
    }
}

/// Keys whose value is a secret whatever it is. `private_key_env` names a variable and is kept.
const SECRET_KEYS: &[&str] = &[
    "private_key",
    "privatekey",
    "authorization",
    "proxy_authorization",
    "password",
    "passphrase",
    "api_key",
    "apikey",
    "x_api_key",
    "admin_key",
    "bearer",
    "bearer_token",
    "access_token",
    "auth_token",
    "refresh_token",
    "secret",
    "client_secret",
    "mnemonic",
    "cookie",
    "set_cookie",
];

fn names_a_secret(key: &str) -> bool {
    SECRET_KEYS.contains(&key.to_ascii_lowercase().replace('-', "_").as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_key_is_gone_wherever_it_stands() {
        let redactor = Redactor::new(["deadbeefdeadbeef".to_owned(), "short".to_owned(), String::new()]);
        let mut value = json!({"private_key": "abc", "private_key_env": "KEY", "log": "key=deadbeefdeadbeef short",
            "list": [{"Authorization": "Bearer x"}], "empty": {"password": ""}});
        redactor.json(&mut value);
        assert_eq!(
            value,
            json!({"private_key": "REDACTED", "private_key_env": "KEY", "log": "key=REDACTED short",
                "list": [{"Authorization": "REDACTED"}], "empty": {"password": ""}})
        );
        assert_eq!(redactor.text("nothing here"), "nothing here");
        assert_eq!(format!("{redactor:?}"), "Redactor(1 secrets)");
    }

    #[test]
    fn keys_lists_and_numbers_hold_no_secret() {
        let redactor = Redactor::new(["deadbeefdeadbeef".to_owned(), "1234567890".to_owned()]);
        let mut value = json!({"deadbeefdeadbeef": 1, "x deadbeefdeadbeef": 2, "REDACTED": 3,
            "Api-Key": ["a", {"b": "c", "n": 7, "off": false}], "nonce": 1_234_567_890_u64, "other": 123});
        redactor.json(&mut value);
        assert_eq!(
            value,
            json!({"REDACTED": 1, "x REDACTED": 2, "REDACTED-2": 3,
                "Api-Key": ["REDACTED", {"b": "REDACTED", "n": "REDACTED", "off": false}],
                "nonce": "REDACTED", "other": 123})
        );
    }

    #[test]
    fn escapes_do_not_hide_a_secret() {
        let redactor = Redactor::new(["pa\"ss/w\\ord😀\n!".to_owned()]);
        let plain = r#"{"k":"a pa\"ss/w\\ord😀\n! z"}"#;
        let once = serde_json::to_string(plain).unwrap();
        let odd = r#"{"k":"a \u0070a\"ss\/w\u005Cord\ud83d\uDE00\u000a! z"}"#;
        for text in [plain, once.as_str(), odd] {
            let clean = redactor.text(text).into_owned();
            assert!(clean.contains("a REDACTED z"), "{text} -> {clean}");
            assert!(serde_json::from_str::<Value>(&clean).is_ok(), "{clean}");
        }
        // An escape before it is no part of it, and is not cut in two either.
        let redactor = Redactor::new(["nsecret-".to_owned() + "value"]);
        let clean = redactor.text(r#""a\nsecret-value""#).into_owned();
        assert!(serde_json::from_str::<Value>(&clean).is_ok(), "{clean}");
    }
}
