//! Strict reading of the two files that people write, scenarios and ML profiles.
//!
//! The text is read once into a tree with positions, the tree is held against the JSON Schema of the type (which finds
//! many problems at once, each with its line), and only then the type itself is read.

mod check;
pub mod settings;
mod tree;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::error::{PROBLEMS_MAX, Position, Problem, ScenarioError};
use crate::model::Scenario;
use crate::profile::Profile;

pub use tree::Positions;

/// Largest file that is read, bytes. Callers need not read more than one byte beyond it.
pub const INPUT_BYTES_MAX: usize = 1 << 20;

/// A scenario as written, with the places of its values.
#[derive(Clone, Debug)]
pub struct ScenarioFile {
    /// File name for messages.
    pub file: String,
    /// The contents.
    pub scenario: Scenario,
    /// Where each value stands.
    pub positions: Positions,
}

impl ScenarioFile {
    /// Wraps a scenario that comes from no file (built by a program or taken from `run.yaml`).
    #[must_use]
    pub fn without_text(scenario: Scenario, file: &str) -> Self {
        Self { file: file.to_owned(), scenario, positions: Positions::default() }
    }

    /// Names of the profiles that the pool uses, each once.
    #[must_use]
    pub fn profile_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.scenario.pool.iter().map(|entry| entry.profile.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Reads a scenario file. `file` is only used in messages.
///
/// # Errors
/// Every problem of the text: bad YAML, unknown keys and words, wrong types, missing keys, bad quantities.
pub fn parse(bytes: &[u8], file: &str) -> Result<ScenarioFile, ScenarioError> {
    let (scenario, positions) = read::<Scenario>(bytes, file, "a scenario")?;
    Ok(ScenarioFile { file: file.to_owned(), scenario, positions })
}

/// Reads an ML profile; the specification's own form, without `version`, is read unchanged.
///
/// # Errors
/// As [`parse`], and values that no node can have (no worker, a failure status outside 400 to 599).
pub fn parse_profile(bytes: &[u8], file: &str) -> Result<Profile, ScenarioError> {
    let (profile, positions) = read::<Profile>(bytes, file, "an ML profile")?;
    let mut problems = Problems::new(file, &positions);
    crate::resolve::check_profile(&profile, &mut problems);
    problems.finish()?;
    Ok(profile)
}

/// Reads any file that people write, with the same strictness: `T` is its type, `what` names it in messages
/// ("a scenario"). Used by programs with files of their own, which have further rules: hence the places of the values.
///
/// # Errors
/// As [`parse`].
pub fn parse_as<T: DeserializeOwned + JsonSchema>(
    bytes: &[u8],
    file: &str,
    what: &str,
) -> Result<(T, Positions), ScenarioError> {
    read::<T>(bytes, file, what)
}

fn read<T: DeserializeOwned + JsonSchema>(
    bytes: &[u8],
    file: &str,
    what: &str,
) -> Result<(T, Positions), ScenarioError> {
    let none = Positions::default();
    let mut problems = Problems::new(file, &none);
    let text = match std::str::from_utf8(bytes) {
        _ if bytes.len() > INPUT_BYTES_MAX => {
            let text =
                format!("the file is larger than {INPUT_BYTES_MAX} bytes ({}); is it {what}?", bytes.len());
            problems.at(Position::START, "", text);
            return Err(problems.error());
        }
        Ok(text) => text,
        Err(error) => {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() as u64;
            problems.at(Position { line, column: 1 }, "", "the file is not UTF-8 text".to_owned());
            return Err(problems.error());
        }
    };
    let root = match tree::read(text) {
        Ok(root) => root,
        Err((position, message)) => {
            problems.at(position, "", message);
            return Err(problems.error());
        }
    };
    let positions = root.positions();
    let mut problems = Problems::new(file, &positions);
    check::check::<T>(&root, what, &mut problems);
    problems.finish()?;
    match tree::typed::<T>(text) {
        Ok(value) => Ok((value, positions)),
        Err((position, message)) => {
            let mut problems = Problems::new(file, &positions);
            problems.at(position, "", message);
            Err(problems.error())
        }
    }
}

/// Collects problems of one file.
#[derive(Debug)]
pub(crate) struct Problems<'a> {
    file: &'a str,
    positions: &'a Positions,
    found: Vec<Problem>,
    left_out: usize,
}

impl<'a> Problems<'a> {
    pub(crate) fn new(file: &'a str, positions: &'a Positions) -> Self {
        Self { file, positions, found: Vec::new(), left_out: 0 }
    }

    /// A problem of the value at a key path.
    pub(crate) fn add(&mut self, path: &str, message: String) {
        self.at(self.positions.of(path), path, message);
    }

    /// The same, with the nearest known word.
    pub(crate) fn add_near(&mut self, path: &str, message: String, suggestion: Option<String>) {
        self.put(self.positions.of(path), path, message, suggestion);
    }

    /// A problem at a given place.
    pub(crate) fn at(&mut self, position: Position, path: &str, message: String) {
        self.put(position, path, message, None);
    }

    pub(crate) fn put(
        &mut self,
        position: Position,
        path: &str,
        message: String,
        suggestion: Option<String>,
    ) {
        if self.found.len() >= PROBLEMS_MAX {
            self.left_out += 1;
            return;
        }
        self.found.push(Problem {
            file: self.file.to_owned(),
            line: position.line,
            column: position.column,
            path: path.to_owned(),
            message,
            suggestion,
        });
    }

    pub(crate) fn error(mut self) -> ScenarioError {
        self.found.sort_by_key(|problem| (problem.line, problem.column));
        if self.left_out > 0 {
            let text = format!("{} more problems are not shown", self.left_out);
            let last =
                self.found.last().map_or(Position::START, |p| Position { line: p.line, column: p.column });
            self.found.push(Problem {
                file: self.file.to_owned(),
                line: last.line,
                column: last.column,
                path: String::new(),
                message: text,
                suggestion: None,
            });
        }
        ScenarioError { problems: self.found }
    }

    /// # Errors
    /// When anything was added.
    pub(crate) fn finish(self) -> Result<(), ScenarioError> {
        if self.found.is_empty() { Ok(()) } else { Err(self.error()) }
    }
}
