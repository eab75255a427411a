//! The known-findings file (written by people) and what a run says about it (design section 7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::assertion::AssertionId;

/// Version of the file.
pub const KNOWN_VERSION: u32 = 1;

/// A fault that is known and not yet repaired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KnownFinding {
    /// Assertion that fails.
    pub assertion: AssertionId,
    /// Reason of the witness, for example `wrong-ending`.
    pub reason: String,
    /// Which witnesses of that reason; all when absent.
    #[serde(default, skip_serializing_if = "WitnessPattern::is_empty")]
    pub witness: WitnessPattern,
    /// Why it is known, in a sentence.
    pub because: String,
    /// Where it is followed up.
    pub link: String,
    /// Who answers for it.
    pub owner: String,
    /// Last day on which it counts as known, `YYYY-MM-DD`.
    #[schemars(regex(pattern = r"^\d{4}-\d{2}-\d{2}$"))]
    pub expires: String,
}

/// Texts that a witness must have; `*` stands for any text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WitnessPattern {
    /// Its sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Load request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Escrow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escrow: Option<String>,
    /// Service or node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Rule, signal, limit or field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

impl WitnessPattern {
    /// It takes every witness.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KnownFindings {
    /// 1.
    pub version: u32,
    /// Entries.
    pub findings: Vec<KnownFinding>,
}

/// What became of an entry in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KnownState {
    /// It occurred and is known.
    Known,
    /// It occurred, and its last day is over: it counts as new.
    Expired,
    /// Its assertion was judged, and it did not occur: the entry may go.
    Gone,
    /// Its assertion could not be judged.
    NotJudged,
}

/// An entry with what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnownEntry {
    /// The entry.
    pub finding: KnownFinding,
    /// What became of it.
    pub state: KnownState,
    /// Witnesses that it takes, kept or not.
    pub count: u64,
}

/// What a run says about the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnownReport {
    /// Entries in the order of the file.
    pub entries: Vec<KnownEntry>,
    /// Witnesses that no valid entry takes, kept or not.
    pub new: u64,
    /// The run ends as if the known findings had not been there (`--accept-known`, and nothing is new).
    pub accepted: bool,
}
