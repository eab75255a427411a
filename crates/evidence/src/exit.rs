//! Verdicts and exit codes (design section 7): one enum for `runner` and `loadgen`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a program ended. The order of [`Findings::outcome`] decides when several hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every applicable assertion evaluated at least its minimum and held.
    Pass,
    /// An assertion of A1 to A11 failed, or a threshold alone.
    Fail,
    /// Bad command line or scenario; nothing was started.
    Usage,
    /// Generator or mocks were the bottleneck, or the planned load was not offered.
    Invalid,
    /// Evidence is missing, too little happened, or the scenario can't be done here.
    Unknown,
    /// The stack could not start, an engine or a disk failed; no statement about Devshard.
    Environment,
    /// `compare` or a baseline found a regression.
    Regression,
    /// A bug of ours.
    Internal,
    /// Stopped by a signal; artifacts are there and marked partial.
    Interrupted,
}

impl Outcome {
    /// Every outcome, in the order of their codes.
    pub const ALL: [Self; 9] = [
        Self::Pass,
        Self::Fail,
        Self::Usage,
        Self::Invalid,
        Self::Unknown,
        Self::Environment,
        Self::Regression,
        Self::Internal,
        Self::Interrupted,
    ];

    /// The process exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail => 1,
            Self::Usage => 2,
            Self::Invalid => 3,
            Self::Unknown => 4,
            Self::Environment => 5,
            Self::Regression => 6,
            Self::Internal => 70,
            Self::Interrupted => 130,
        }
    }

    /// The word printed for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Usage => "usage",
            Self::Invalid => "invalid",
            Self::Unknown => "unknown",
            Self::Environment => "environment",
            Self::Regression => "regression",
            Self::Internal => "internal",
            Self::Interrupted => "interrupted",
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// What was found while judging; several may hold at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Findings {
    /// A bug of ours was hit.
    pub internal: bool,
    /// Stopped by a signal.
    pub interrupted: bool,
    /// The environment failed.
    pub environment: bool,
    /// One of A1 to A11 failed.
    pub correctness_failed: bool,
    /// V failed.
    pub invalid: bool,
    /// T failed.
    pub threshold_failed: bool,
    /// Something could not be judged.
    pub unknown: bool,
}

impl Findings {
    /// The one outcome by precedence: internal, interrupted, environment, A-fail, invalid, T-fail, unknown, pass.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        if self.internal {
            Outcome::Internal
        } else if self.interrupted {
            Outcome::Interrupted
        } else if self.environment {
            Outcome::Environment
        } else if self.correctness_failed {
            Outcome::Fail
        } else if self.invalid {
            Outcome::Invalid
        } else if self.threshold_failed {
            Outcome::Fail
        } else if self.unknown {
            Outcome::Unknown
        } else {
            Outcome::Pass
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correctness_failure_is_never_hidden_by_invalid() {
        let both = Findings { correctness_failed: true, invalid: true, ..Findings::default() };
        assert_eq!(both.outcome(), Outcome::Fail);
        let slow = Findings { threshold_failed: true, invalid: true, ..Findings::default() };
        assert_eq!(slow.outcome(), Outcome::Invalid, "a saturated generator can't make Devshard look slow");
        assert_eq!(Findings { interrupted: true, ..both }.outcome(), Outcome::Interrupted);
        assert_eq!(Findings::default().outcome(), Outcome::Pass);
        assert_eq!(Findings { unknown: true, ..Findings::default() }.outcome(), Outcome::Unknown);
    }

    #[test]
    fn codes_are_those_of_the_design() {
        let codes: Vec<u8> = Outcome::ALL.iter().map(|outcome| outcome.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 70, 130]);
    }
}
