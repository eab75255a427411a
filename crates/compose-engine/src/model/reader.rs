//! Reading typed values out of the tree, with the key table as the only judge of keys.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::keys::{self, Policy};
use super::tree::{Entry, Node, Value};
use crate::error::FileError;
use crate::near::nearest;

/// Result of every reader.
pub(super) type Read<T> = Result<T, FileError>;

/// Refuses keys that the table refuses or does not know; gives warnings for the others.
pub(super) fn check_keys(node: &Node, scope: &str, warnings: &mut Vec<String>) -> Read<()> {
    for Entry { key, at, .. } in node.entries() {
        if key.starts_with("x-") {
            continue;
        }
        let Some(known) = keys::find(scope, key) else {
            let near = nearest(key, keys::accepted(scope));
            let hint = near.map_or_else(
                || format!("known: {}", keys::accepted(scope).collect::<Vec<_>>().join(", ")),
                |near| format!("the nearest known key is `{near}`"),
            );
            return Err(FileError::new(at, format!("unknown key `{key}` of a {scope}; {hint}")));
        };
        if let Some(text) = keys::refusal(known) {
            return Err(FileError::new(at, text));
        }
        if let Policy::Warn(text) = known.policy {
            let text = format!("{at}: {text}");
            if !warnings.contains(&text) {
                warnings.push(text);
            }
        }
    }
    Ok(())
}

impl Node {
    /// A map, or nothing.
    pub(super) fn map(&self, what: &str) -> Read<&[Entry]> {
        match &self.value {
            Value::Map(entries) => Ok(entries),
            Value::Null => Ok(&[]),
            _ => Err(self.wrong(what, "a map")),
        }
    }

    /// A list, or nothing.
    pub(super) fn list(&self, what: &str) -> Read<&[Self]> {
        match &self.value {
            Value::List(items) => Ok(items),
            Value::Null => Ok(&[]),
            _ => Err(self.wrong(what, "a list")),
        }
    }

    pub(super) fn wrong(&self, what: &str, wanted: &str) -> FileError {
        FileError::new(&self.at, format!("`{what}` must be {wanted}, not {}", self.kind()))
    }

    /// A scalar as text.
    pub(super) fn string(&self, what: &str) -> Read<String> {
        match &self.value {
            Value::Scalar { text, .. } => Ok(text.clone()),
            _ => Err(self.wrong(what, "a text")),
        }
    }

    /// A scalar parsed by a function that explains itself.
    pub(super) fn parsed<T>(&self, what: &str, parse: impl Fn(&str) -> Result<T, String>) -> Read<T> {
        let text = self.string(what)?;
        parse(&text).map_err(|reason| FileError::new(&self.at, format!("`{what}`: {reason}")))
    }

    /// A number.
    pub(super) fn number<T: FromStr>(&self, what: &str) -> Read<T> {
        self.parsed(what, |text| text.parse().map_err(|_| format!("{text:?} is no number that fits")))
    }

    /// A boolean of YAML 1.2.
    pub(super) fn boolean(&self, what: &str) -> Read<bool> {
        self.parsed(what, |text| match text {
            "true" | "True" | "TRUE" => Ok(true),
            "false" | "False" | "FALSE" => Ok(false),
            other => Err(format!("{other:?} is neither true nor false")),
        })
    }

    /// Texts of a list, or one text alone.
    pub(super) fn strings(&self, what: &str) -> Read<Vec<String>> {
        match &self.value {
            Value::Scalar { text, .. } => Ok(vec![text.clone()]),
            _ => self.list(what)?.iter().map(|item| item.string(what)).collect(),
        }
    }

    /// A map of texts; nothing becomes an empty text.
    pub(super) fn string_map(&self, what: &str) -> Read<BTreeMap<String, String>> {
        let pair = |entry: &Entry| {
            let value = match entry.node.value {
                Value::Null => String::new(),
                _ => entry.node.string(&format!("{what}.{}", entry.key))?,
            };
            Ok((entry.key.clone(), value))
        };
        self.map(what)?.iter().map(pair).collect()
    }

    /// A key of the map read by a function.
    pub(super) fn opt<T>(&self, key: &str, read: impl Fn(&Self, &str) -> Read<T>) -> Read<Option<T>> {
        match self.get(key) {
            Some(node) if node.value != Value::Null => read(node, key).map(Some),
            _ => Ok(None),
        }
    }
}
