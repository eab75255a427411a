//! `selftest/defects.json`: what is planted, what must come of it, and what recorded runs prove beside it.

use std::path::Path;

use evidence::assertion::AssertionId;
use serde::{Deserialize, Serialize};

use crate::error::RunnerError;

/// Format version of the catalogue and of the matrix.
pub const SELFTEST_VERSION: u32 = 4;

/// A layer of the self-test that needs runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "UPPERCASE")]
#[value(rename_all = "verbatim")]
pub enum Layer {
    /// Programs and scenarios with a planted defect.
    M,
    /// Sabotage of what surrounds a run.
    B,
}

/// `selftest/defects.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// Format version.
    pub v: u32,
    /// Scenario of the controls, a path from the repository's root.
    pub twin: String,
    /// Name of the defect that is the canary.
    pub canary: String,
    /// Defects of programs (layer M).
    pub defects: Vec<Defect>,
    /// Sabotage from outside (layer B).
    pub sabotage: Vec<Sabotage>,
    /// Defects and quiet twins of recorded runs (layer H): the tests of crate `verdict` write and prove them.
    pub history: History,
}

/// Layer H of the catalogue, for those who read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// A recorded run with one fact spoilt, and all that must fail.
    pub defects: Vec<HistoryDefect>,
    /// What looks like a defect and must pass.
    pub twins: Vec<HistoryTwin>,
    /// Evidence that is not enough: what must be unknown, and words that say so.
    pub unknown: Vec<HistoryUnknown>,
}

/// A spoilt recorded run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryDefect {
    /// Its number in the catalogue, if it has one, and what is spoilt.
    pub name: String,
    /// All assertions that must fail, the one that it is for first.
    pub fires: Vec<AssertionId>,
    /// The reason of each.
    pub reasons: Vec<String>,
}

/// A quiet twin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryTwin {
    /// Whose, and what looks wrong.
    pub name: String,
    /// The assertions that must stay quiet.
    pub of: Vec<AssertionId>,
}

/// Evidence that is not enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryUnknown {
    /// What is missing.
    pub name: String,
    /// Words of the result.
    pub says: String,
}

/// One planted defect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defect {
    /// Name of the flag `--defect`, or of what the scenario itself plants.
    pub name: String,
    /// What it does, in words.
    pub does: String,
    /// Scenario under which it shows.
    pub scenario: String,
    /// Where it sits.
    #[serde(default, skip_serializing_if = "Planted::in_program")]
    pub planted: Planted,
    /// All assertions that must fail, the one that it is for first.
    pub fires: Vec<AssertionId>,
    /// Reason that a witness of the first one must give; any of several. Without one that must fail: words that say
    /// what is missing.
    pub reasons: Vec<String>,
    /// All assertions that must be unknown; only where none must fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<AssertionId>,
    /// Service, signal or limit that the witnesses of the first one must name where the program names no request and no
    /// nonce itself; any of several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl Defect {
    /// The assertion that it is for.
    pub(super) fn first(&self) -> Option<AssertionId> {
        self.fires.first().or(self.unknown.first()).copied()
    }
}

/// Where a defect sits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Planted {
    /// In a program that is built with planted defects.
    #[default]
    Program,
    /// In the scenario: its programs are as they should be.
    Scenario,
}

impl Planted {
    fn in_program(&self) -> bool {
        *self == Self::Program
    }
}

/// Sabotage of what surrounds a run, and what must come of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sabotage {
    /// Name, known to `commands::sabotage`.
    pub name: String,
    /// What it does, in words.
    pub does: String,
    /// Scenario that it disturbs.
    pub scenario: String,
    /// Exit codes that may come of it.
    pub codes: Vec<i32>,
    /// Assertions that must fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fires: Vec<AssertionId>,
    /// Assertion and reason, as in `A9 ended`: each must be found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// The same of what may come along, as chance puts a request in its way; whatever is in neither list is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub along: Vec<String>,
    /// Service that each witness of a reason that must be found has to name; any of several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl Catalogue {
    /// Reads and checks it.
    ///
    /// # Errors
    /// [`RunnerError::Usage`] for a file that is no catalogue of this build.
    pub fn read(path: &Path) -> Result<Self, RunnerError> {
        let usage = |why: String| RunnerError::Usage(format!("catalogue {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
        let catalogue: Self = serde_json::from_str(&text).map_err(|error| usage(error.to_string()))?;
        if catalogue.v != SELFTEST_VERSION {
            return Err(usage(format!("`v` is {}, this build reads {SELFTEST_VERSION}", catalogue.v)));
        }
        if let Some(empty) = catalogue.defects.iter().find(|defect| defect.first().is_none()) {
            return Err(usage(format!("{} names no assertion", empty.name)));
        }
        if !catalogue.defects.iter().any(|defect| defect.name == catalogue.canary) {
            return Err(usage(format!("the canary {} is no defect of it", catalogue.canary)));
        }
        Ok(catalogue)
    }
}
