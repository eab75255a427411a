//! Keeps private keys, bearer tokens and passwords out of every file (design section 11).

use std::fmt;

/// What stands in place of a secret.
pub const REDACTED: &str = "REDACTED";
/// Shorter secrets are refused: replacing them would damage innocent text.
pub const SECRET_LEN_MIN: usize = 8;

/// Replaces the run's real secrets wherever they appear, and the values of JSON keys that name a secret.
#[derive(Clone, Default)]
pub struct Redactor {
    secrets: Vec<String>,
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
        Self { secrets }
    }

    /// The text without secrets; the same text when it holds none.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> std::borrow::Cow<'a, str> {
        let mut out = std::borrow::Cow::Borrowed(text);
        for secret in &self.secrets {
            if out.contains(secret.as_str()) {
                out = std::borrow::Cow::Owned(out.replace(secret.as_str(), REDACTED));
            }
        }
        out
    }

    /// Replaces in place: values under secret-naming keys, and secrets inside any string or key.
    pub fn json(&self, value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(map) => {
                for (key, inner) in map.iter_mut() {
                    if names_a_secret(key) && inner.as_str().is_some_and(|text| !text.is_empty()) {
                        *inner = serde_json::Value::String(REDACTED.to_owned());
                    } else {
                        self.json(inner);
                    }
                }
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            serde_json::Value::String(text) => {
                if let std::borrow::Cow::Owned(clean) = self.text(text) {
                    *text = clean;
                }
            }
            _ => {}
        }
    }
}

/// Keys whose value is a secret whatever it is. `private_key_env` names a variable and is kept.
fn names_a_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["private_key", "privatekey", "authorization", "password", "passphrase", "api_key", "bearer", "mnemonic"]
        .contains(&key.as_str())
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
}
