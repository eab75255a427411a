//! What is wrong with a file that a person wrote: every problem with its place and, where one is near, the right word.

use std::fmt;

use thiserror::Error;

/// Most problems kept of one file; the rest is counted.
pub const PROBLEMS_MAX: usize = 50;

/// Place in a file, both counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line.
    pub line: u64,
    /// Column in characters.
    pub column: u64,
}

impl Position {
    /// The first character of a file: what is about the file as a whole.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File as the caller named it.
    pub file: String,
    /// Line from 1.
    pub line: u64,
    /// Column from 1.
    pub column: u64,
    /// Key path, for example `faults[0].do`; empty for the file as a whole.
    pub path: String,
    /// What is wrong and what is allowed.
    pub message: String,
    /// The nearest known word.
    pub suggestion: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        match &self.suggestion {
            Some(word) => write!(f, "; did you mean {word:?}?"),
            None => Ok(()),
        }
    }
}

/// A file that can't be used, with every problem that was found, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ScenarioError {
    /// At least one.
    pub problems: Vec<Problem>,
}

/// The nearest of the known words, if one is near enough to be meant.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let lower = word.to_lowercase();
    known
        .into_iter()
        .map(|candidate| {
            let known = candidate.to_lowercase();
            // In a short word one wrong letter is already a large share of it.
            let slip = lower.len() > 1 && strsim::osa_distance(&lower, &known) == 1;
            (strsim::jaro_winkler(&lower, &known).max(if slip { 0.8 } else { 0.0 }), candidate)
        })
        .filter(|(likeness, _)| *likeness >= 0.8)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_near_word_is_suggested() {
        let known = ["stream_ratio", "max_tokens", "steps"];
        assert_eq!(nearest("stram_ratio", known), Some("stream_ratio".to_owned()));
        assert_eq!(nearest("Max-Tokens", known), Some("max_tokens".to_owned()));
        assert_eq!(nearest("zebra", known), None);
        assert_eq!(nearest("", known), None);
    }
}
