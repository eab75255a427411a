//! Which Devshard is imitated, and how long its protocol waits last.

use serde::{Deserialize, Serialize};

/// Behaviour that the reference stack shows (design section 9). Never part of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Personality {
    /// What the specification and newer builds do: truncated streams are failures, work outlives its client.
    #[default]
    Intended,
    /// What the July build was measured to do, its findings included.
    July,
}

impl Personality {
    /// The name as it stands on the command line and in `run.yaml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Intended => "intended",
            Self::July => "july",
        }
    }
}

/// Waits of the protocol, in whole seconds. Shorter than the real ones (60 s and 1200 s), so that a
/// drain ends within a test; status reports them, and collectors read them there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Waits {
    /// Without a receipt, a request may be voted refused after this time since `started_at`.
    pub refusal_s: u32,
    /// With a receipt and no finish, a request may be voted timed out after this time since `confirmed_at`.
    pub execution_s: u32,
    /// What a gateway waits longer than these before it asks for votes (5 s in July).
    pub grace_s: u32,
}

impl Default for Waits {
    fn default() -> Self {
        Self { refusal_s: 6, execution_s: 12, grace_s: 1 }
    }
}
