//! Why the generator stops, and with which exit code (design section 7).

use evidence::exit::Outcome;
use thiserror::Error;

/// What ends the program before its plan does. Failures of single requests are records, never errors.
#[derive(Debug, Error)]
pub enum LoadgenError {
    /// Flags, job file or plan file say something that can't be done.
    #[error("{0}")]
    Usage(String),
    /// A file or the machine failed.
    #[error("{0}")]
    Environment(String),
    /// A bug of ours.
    #[error("{0}; this is a bug of loadgen, please report it")]
    Internal(String),
}

impl LoadgenError {
    /// The exit class.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        match self {
            Self::Usage(_) => Outcome::Usage,
            Self::Environment(_) => Outcome::Environment,
            Self::Internal(_) => Outcome::Internal,
        }
    }
}
