//! `assertions.json`: what was judged, how much of it, and the witnesses (design section 7).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit::{Findings, Outcome};

/// Ids of the assertions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AssertionId {
    /// `terminal-outcome`.
    A1,
    /// `fault-class`.
    A2,
    /// `response-format`.
    A3,
    /// `nonce-order`.
    A4,
    /// `validation-ownership`.
    A5,
    /// `orphans`.
    A6,
    /// `replica-agreement`.
    A7,
    /// `drain`.
    A8,
    /// `service-stability`.
    A9,
    /// `correlation`.
    A10,
    /// `conservation`.
    A11,
    /// `validity`.
    V,
    /// `thresholds`.
    T,
}

impl AssertionId {
    /// All, in order.
    pub const ALL: [Self; 13] = [
        Self::A1,
        Self::A2,
        Self::A3,
        Self::A4,
        Self::A5,
        Self::A6,
        Self::A7,
        Self::A8,
        Self::A9,
        Self::A10,
        Self::A11,
        Self::V,
        Self::T,
    ];

    /// The name people use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A1 => "terminal-outcome",
            Self::A2 => "fault-class",
            Self::A3 => "response-format",
            Self::A4 => "nonce-order",
            Self::A5 => "validation-ownership",
            Self::A6 => "orphans",
            Self::A7 => "replica-agreement",
            Self::A8 => "drain",
            Self::A9 => "service-stability",
            Self::A10 => "correlation",
            Self::A11 => "conservation",
            Self::V => "validity",
            Self::T => "thresholds",
        }
    }
}

impl std::fmt::Display for AssertionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Status of an assertion, or of one half of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Evaluated and held.
    Pass,
    /// A witness exists.
    Fail,
    /// An input is missing or too little happened.
    Unknown,
    /// By the committed table the evidence can't exist here.
    NotApplicable,
}

/// A place in the run directory that shows a fact.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct EvidenceRef {
    /// File, relative to the run directory.
    pub file: String,
    /// Where in it: a line key, a JSON pointer, a log pattern.
    pub at: String,
}

/// Why an assertion failed, for one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Witness {
    /// Stable kebab-case reason, for example `no-terminal-outcome`; `repro` compares it.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
    /// Load request, when it is about one.
    pub request_id: Option<String>,
    /// Escrow.
    pub escrow: Option<String>,
    /// Nonce.
    pub nonce: Option<u64>,
    /// Service or node.
    pub service: Option<String>,
    /// Rule, signal, limit or field it is about.
    pub subject: Option<String>,
    /// Numbers and words that belong to the reason.
    pub detail: BTreeMap<String, Value>,
    /// Where it can be seen.
    pub evidence: Vec<EvidenceRef>,
}

impl Witness {
    /// A witness with nothing but reason and message.
    #[must_use]
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.to_owned(),
            message: message.into(),
            request_id: None,
            escrow: None,
            nonce: None,
            service: None,
            subject: None,
            detail: BTreeMap::new(),
            evidence: Vec::new(),
        }
    }
}

/// A named rule that was used (design section 7).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleUse {
    /// Rule.
    pub rule: String,
    /// Source in the contract.
    pub source: String,
    /// How often.
    pub count: u64,
}

/// Something worth knowing that is no failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Information {
    /// Stable kebab-case name.
    pub name: String,
    /// One sentence.
    pub message: String,
    /// How many.
    pub count: u64,
}

/// Result of one assertion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AssertionResult {
    /// Id.
    pub id: AssertionId,
    /// Name.
    pub name: String,
    /// Status.
    pub status: Status,
    /// How many things were looked at.
    pub evaluated: u64,
    /// What a "thing" is, for example `accepted requests`.
    pub unit: String,
    /// Least number of things; below it the status is unknown.
    pub minimum: u64,
    /// Parts with a status of their own (the two halves of A5).
    pub parts: BTreeMap<String, Status>,
    /// Inputs that were missing, in words.
    pub missing: Vec<String>,
    /// Witnesses, bounded; at least one per distinct reason.
    pub witnesses: Vec<Witness>,
    /// All witnesses, kept or not.
    pub witnesses_total: u64,
    /// Named rules used.
    pub rules: Vec<RuleUse>,
    /// Information.
    pub information: Vec<Information>,
}

/// `assertions.json`. Holds no time and no path: judging the same files twice gives the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Assertions {
    /// Format version.
    pub v: u32,
    /// Build that judged.
    pub build: String,
    /// Run.
    pub run_id: String,
    /// Verdict.
    pub verdict: Outcome,
    /// All that holds.
    pub findings: Findings,
    /// In order of id.
    pub results: Vec<AssertionResult>,
}
