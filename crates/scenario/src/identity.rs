//! Names that travel through a run: scenario name, request id, salt and the marker in the prompt (design section 5).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest scenario name.
pub const SCENARIO_NAME_LEN_MAX: usize = 40;
/// Characters of a salt: fixed, so that the length of a prompt never depends on the run.
pub const SALT_LEN: usize = 12;
const MARKER_OPEN: &str = "[load-request:";
const SALT_OPEN: &str = "[run:";

/// Id of a planned request: `<scenario>-<seed>-<index>`, the index with six digits or more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct RequestId(String);

impl RequestId {
    /// The id of request `index` of a scenario.
    #[must_use]
    pub fn new(scenario: &str, seed: u64, index: u64) -> Self {
        Self(format!("{scenario}-{seed}-{index:06}"))
    }

    /// An id read from a record or a marker; not checked, since evidence is kept as it was found.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a scenario or node name is `[a-z0-9-]`, not empty, at most 40 characters, with no dash at an end.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= SCENARIO_NAME_LEN_MAX
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// The text that begins the first user message: `[load-request:<id>][run:<salt>]`.
#[must_use]
pub fn marker(id: &RequestId, salt: &str) -> String {
    format!("{MARKER_OPEN}{id}]{SALT_OPEN}{salt}]")
}

/// What a marker in a body says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker<'a> {
    /// Id of the request.
    pub id: &'a str,
    /// Salt of the run; `None` when a client wrote the marker without one.
    pub salt: Option<&'a str>,
}

/// Finds the first marker anywhere in a text (a JSON body may be given raw: the marker has no escaped characters).
#[must_use]
pub fn find_marker(text: &str) -> Option<Marker<'_>> {
    let start = text.find(MARKER_OPEN)? + MARKER_OPEN.len();
    let rest = &text[start..];
    let end = rest.find(']')?;
    let id = &rest[..end];
    if id.is_empty() || id.len() > 128 || id.contains(['"', '\\', '\n', '[']) {
        return None;
    }
    let salt =
        rest[end + 1..].strip_prefix(SALT_OPEN).and_then(|tail| tail.split_once(']')).map(|(salt, _)| salt);
    Some(Marker { id, salt })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_found_in_a_raw_body() {
        let id = RequestId::new("ml-5xx", 42, 7);
        assert_eq!(id.as_str(), "ml-5xx-42-000007");
        let body = format!(r#"{{"messages":[{{"content":"{} hello"}}]}}"#, marker(&id, "abcdefghijkl"));
        assert_eq!(find_marker(&body), Some(Marker { id: "ml-5xx-42-000007", salt: Some("abcdefghijkl") }));
        assert_eq!(find_marker("[load-request:x] hi"), Some(Marker { id: "x", salt: None }));
        for text in ["", "[load-request:", "[load-request:]", "[load-request:a\"b]"] {
            assert_eq!(find_marker(text), None, "{text}");
        }
    }

    #[test]
    fn names_are_plain() {
        for name in ["ml-5xx", "a", "normal-load"] {
            assert!(valid_name(name), "{name}");
        }
        for name in ["", "-a", "a-", "A", "a/b", "..", "a b", "a\n", &"x".repeat(41)] {
            assert!(!valid_name(name), "{name:?}");
        }
    }

    #[test]
    fn large_indexes_get_longer() {
        assert_eq!(RequestId::new("s", 1, 12_345_678).as_str(), "s-1-12345678");
    }
}
