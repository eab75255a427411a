//! Comparison of an answer with its replay (contract mocks 3.10). Pure.

use serde_json::{Map, Value, json};

use super::answer::usage_of;

/// Tokens by which a claim may exceed the replay.
const INFLATION_MAX: u64 = 3;
/// Shorter answers count as this long, so that one token does not decide.
const LENGTH_FLOOR: usize = 100;

/// Why no opinion could be formed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JudgeError {
    /// The stored answer cannot be read.
    #[error("original answer: {0}")]
    Original(String),
    /// The replay cannot be read.
    #[error("replay: {0}")]
    Replay(String),
    /// One of both has no probabilities.
    #[error("{0} has no logprobs")]
    NoLogprobs(&'static str),
}

/// One token with its alternatives.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    token: String,
    top: Vec<(String, f64)>,
}

/// What a stored answer claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    entries: Vec<Entry>,
    usage: (u64, u64),
}

impl Claim {
    /// Reads a stored answer: a JSON document, or the events of a stream.
    ///
    /// # Errors
    /// When it is neither.
    pub fn read(stored: &[u8]) -> Result<Self, JudgeError> {
        let bad = |error: &dyn std::fmt::Display| JudgeError::Original(error.to_string());
        let document: Map<String, Value> = serde_json::from_slice(stored).map_err(|error| bad(&error))?;
        let Some(events) = document.get("events").and_then(Value::as_array) else {
            let entries = entries_of(&document);
            return Ok(Self { entries, usage: usage_of(&document).unwrap_or_default() });
        };
        let mut claim = Self { entries: Vec::new(), usage: (0, 0) };
        for event in events {
            let text = event.as_str().and_then(|line| line.strip_prefix("data: ")).unwrap_or_default();
            let event: Map<String, Value> = serde_json::from_str(text).map_err(|error| bad(&error))?;
            // Of a chunk only the first entry counts.
            claim.entries.extend(entries_of(&event).into_iter().take(1));
            if claim.usage == (0, 0) {
                claim.usage = usage_of(&event).unwrap_or_default();
            }
        }
        Ok(claim)
    }

    /// Whether every token is a decimal id; an answer with others is invalid without a replay.
    #[must_use]
    pub fn has_numeric_tokens(&self) -> bool {
        let numeric = |token: &str| token.parse::<u64>().is_ok();
        self.entries.iter().all(|entry| {
            (numeric(&entry.token) || entry.token == "<EMPTY>")
                && entry.top.iter().all(|(token, _)| numeric(token))
        })
    }

    /// Tokens for the replay; null when the answer has none.
    #[must_use]
    pub fn enforced_tokens(&self) -> Value {
        if self.entries.is_empty() {
            return Value::Null;
        }
        let token = |entry: &Entry| {
            let top: Vec<&str> = entry.top.iter().map(|(token, _)| token.as_str()).collect();
            json!({ "token": entry.token, "top_tokens": top })
        };
        self.entries.iter().map(token).collect()
    }

    /// Whether the replay supports the claim: similarity must exceed `threshold`.
    ///
    /// # Errors
    /// When one of both sides shows nothing to compare.
    pub fn holds(&self, replay: &[u8], threshold: f64) -> Result<bool, JudgeError> {
        let document: Map<String, Value> =
            serde_json::from_slice(replay).map_err(|error| JudgeError::Replay(error.to_string()))?;
        let counted = usage_of(&document).unwrap_or_default();
        if self.usage.0 > counted.0 + INFLATION_MAX || self.usage.1 > counted.1 + INFLATION_MAX {
            return Ok(false);
        }
        let replayed = entries_of(&document);
        if self.entries.is_empty() {
            return Err(JudgeError::NoLogprobs("the original"));
        }
        if replayed.is_empty() {
            return Err(JudgeError::NoLogprobs("the replay"));
        }
        let same = replayed.len() >= self.entries.len()
            && self.entries.iter().zip(&replayed).all(|(claimed, seen)| claimed.token == seen.token);
        Ok(same && self.similarity(&replayed) > threshold)
    }

    #[expect(clippy::cast_precision_loss, reason = "lengths stay far below 2^53")]
    fn similarity(&self, replayed: &[Entry]) -> f64 {
        let tops = self.entries.iter().map(|entry| entry.top.len()).max().unwrap_or(0).max(1);
        let distance: f64 =
            self.entries.iter().zip(replayed).map(|(claimed, seen)| distance(claimed, seen)).sum();
        1.0 - distance / (self.entries.len().max(LENGTH_FLOOR) * tops) as f64
    }
}

fn distance(claimed: &Entry, seen: &Entry) -> f64 {
    let of = |(token, logprob): &(String, f64)| {
        let other = seen.top.iter().find(|(known, _)| known == token).map(|(_, logprob)| *logprob);
        // A token that the replay does not know at all is as far away as can be.
        other.map_or(1.0, |other| ((logprob - other).abs() / (1e-6 + logprob.abs() + other.abs())).min(1.0))
    };
    claimed.top.iter().map(of).sum()
}

fn entries_of(document: &Map<String, Value>) -> Vec<Entry> {
    let entries = document
        .get("choices")
        .and_then(|choices| choices.pointer("/0/logprobs/content"))
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let pair = |top: &Value| {
        let token = top.get("token")?.as_str()?.to_owned();
        Some((token, top.get("logprob")?.as_f64()?))
    };
    entries
        .iter()
        .filter_map(|entry| {
            let top = entry.get("top_logprobs")?.as_array()?.iter().filter_map(pair).collect();
            Some(Entry { token: entry.get("token")?.as_str()?.to_owned(), top })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(token: &str, logprob: f64) -> Value {
        let top = json!([{"token": token, "logprob": logprob}, {"token": "9", "logprob": -3.0}]);
        json!({"token": token, "logprob": logprob, "top_logprobs": top})
    }

    fn document(tokens: &[&str], logprob: f64, completion_tokens: u64) -> Vec<u8> {
        let content: Vec<Value> = tokens.iter().map(|token| entry(token, logprob)).collect();
        let usage = json!({"prompt_tokens": 4, "completion_tokens": completion_tokens});
        json!({"choices": [{"logprobs": {"content": content}}], "usage": usage}).to_string().into_bytes()
    }

    #[test]
    fn an_equal_replay_holds_and_others_do_not() {
        let claim = Claim::read(&document(&["1", "2"], -0.1, 2)).unwrap();
        assert!(claim.has_numeric_tokens());
        assert_eq!(claim.holds(&document(&["1", "2"], -0.1, 2), 0.95), Ok(true));
        assert_eq!(claim.holds(&document(&["1", "2"], -0.1, 2), 1.0), Ok(false), "strictly more");
        assert_eq!(claim.holds(&document(&["1", "3"], -0.1, 2), 0.5), Ok(false));
        assert_eq!(claim.holds(&document(&["1"], -0.1, 2), 0.5), Ok(false));
    }

    #[test]
    fn inflated_counts_are_seen_before_anything_else() {
        let claim = Claim::read(&document(&["1"], -0.1, 9)).unwrap();
        assert_eq!(claim.holds(&document(&["1"], -0.1, 6), 0.5), Ok(true));
        assert_eq!(claim.holds(&document(&["1"], -0.1, 5), 0.5), Ok(false));
    }

    #[test]
    fn streams_are_read_event_by_event() {
        let event = |token: &str| {
            let content = [entry(token, -0.1), entry("7", -0.1)];
            format!("data: {}", json!({"choices": [{"logprobs": {"content": content}}]}))
        };
        let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#.to_owned();
        let stored = json!({"events": [event("1"), event("2"), usage]}).to_string();
        let claim = Claim::read(stored.as_bytes()).unwrap();
        let tokens =
            json!([{"token": "1", "top_tokens": ["1", "9"]}, {"token": "2", "top_tokens": ["2", "9"]}]);
        assert_eq!(claim.enforced_tokens(), tokens);
        assert_eq!(claim.usage, (1, 2));
    }

    #[test]
    fn nothing_to_compare_is_no_opinion() {
        let bare = br#"{"choices":[{"logprobs":null}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
        let claim = Claim::read(bare).unwrap();
        assert_eq!(claim.enforced_tokens(), Value::Null);
        assert_eq!(claim.holds(bare, 0.5), Err(JudgeError::NoLogprobs("the original")));
        assert!(!Claim::read(&document(&["word"], -0.1, 1)).unwrap().has_numeric_tokens());
    }
}
