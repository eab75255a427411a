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
        let mut out = Cow::Borrowed(text);
        for secret in &self.secrets {
            if out.contains('\\') {
                if let Some(clean) = without_escaped(&out, secret) {
                    out = Cow::Owned(clean);
                }
            } else if out.contains(secret.as_str()) {
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
                    if names_a_secret(key) {
                        blot(inner);
                    } else {
                        self.json(inner);
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

/// The text without a secret that may be escaped; `None` when it is not there.
fn without_escaped(text: &str, secret: &str) -> Option<String> {
    let mut out = String::new();
    let (mut kept, mut at) = (0, 0);
    while at < text.len() {
        let Some(end) = escaped_match(&text[at..], secret) else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
            continue;
        };
        // A backslash before it belongs to its first character: left alone it would spoil what follows.
        let start = text[kept..at].trim_end_matches('\\').len() + kept;
        out.push_str(&text[kept..start]);
        out.push_str(REDACTED);
        at += end;
        kept = at;
    }
    (kept > 0).then(|| out + &text[kept..])
}

/// Length of the secret at the begin of a text, each of its characters as itself or escaped.
fn escaped_match(text: &str, secret: &str) -> Option<usize> {
    let mut at = 0;
    let mut wanted = secret.chars().peekable();
    while let Some(next) = wanted.next() {
        let rest = text.get(at..)?;
        if next == '\\' {
            let mut run = 1;
            while wanted.next_if_eq(&'\\').is_some() {
                run += 1;
            }
            at += backslashes(rest, run)?;
        } else {
            at += character(rest, next)?;
        }
    }
    Some(at)
}

/// Length of so many backslashes in a row. Each may be written as two, as four, or as `\u005c`.
fn backslashes(text: &str, wanted: usize) -> Option<usize> {
    let (mut at, mut left) = (0, wanted);
    while left > 0 {
        let rest = &text[at..];
        let run = leading_backslashes(rest);
        if let Some(len) = code_units(&rest[run..], '\\').filter(|_| run > 0) {
            at += run + len;
            left = left.saturating_sub(1 + run / 2);
        } else if run < left {
            return None;
        } else {
            // The last one of an odd number belongs to the character that follows, unless all stand for themselves.
            at += if run == left { run } else { run - run % 2 };
            left = 0;
        }
    }
    Some(at)
}

fn leading_backslashes(text: &str) -> usize {
    text.len() - text.trim_start_matches('\\').len()
}

/// Length of one character as itself or escaped, with any number of backslashes.
fn character(text: &str, wanted: char) -> Option<usize> {
    let slashes = leading_backslashes(text);
    if let Some(len) = code_units(&text[slashes..], wanted).filter(|_| slashes > 0) {
        return Some(slashes + len);
    }
    let next = text[slashes..].chars().next()?;
    let short = match wanted {
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        '\u{8}' => 'b',
        '\u{c}' => 'f',
        other => other,
    };
    (next == wanted || (slashes > 0 && next == short)).then(|| slashes + next.len_utf8())
}

/// Length of `uXXXX`, or of a pair of them, when they stand for this character.
fn code_units(text: &str, wanted: char) -> Option<usize> {
    let mut units = [0; 2];
    let mut at = 0;
    for (number, unit) in wanted.encode_utf16(&mut units).iter().enumerate() {
        if number > 0 {
            let slashes = leading_backslashes(&text[at..]);
            at += (slashes > 0).then_some(slashes)?;
        }
        let hex = text[at..].strip_prefix('u')?.get(..4)?;
        (u16::from_str_radix(hex, 16).ok()? == *unit).then_some(())?;
        at += 5;
    }
    Some(at)
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
