//! What can go wrong in the runner, and with which exit code it ends.

use std::path::PathBuf;

use evidence::exit::Outcome;
use evidence::rundir::RunDirError;
use thiserror::Error;

/// An error that ends the command. The text says what, where and what to do.
#[derive(Debug, Error)]
pub enum RunnerError {
    /// Bad command line or scenario; nothing was started.
    #[error("{0}")]
    Usage(String),
    /// The scenario can't be done here; found before the start.
    #[error("{0}")]
    CannotDo(String),
    /// The stack or the machine failed.
    #[error("{message}")]
    Environment {
        /// What, where, what to do.
        message: String,
        /// Last log lines of the service that failed.
        log: Vec<String>,
    },
    /// A file of the run directory could not be written or read.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// A file could not be read.
    #[error("reading {path}: {source}")]
    Read {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A bug of ours.
    #[error("internal error: {0}; please report it with the run directory")]
    Internal(String),
}

impl RunnerError {
    /// An environment error without a log.
    #[must_use]
    pub fn environment(message: impl Into<String>) -> Self {
        Self::Environment { message: message.into(), log: Vec::new() }
    }

    /// The outcome it ends the command with.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        match self {
            Self::Usage(_) => Outcome::Usage,
            Self::Read { .. } => Outcome::Usage,
            Self::CannotDo(_) => Outcome::Unknown,
            Self::Environment { .. } | Self::RunDir(_) => Outcome::Environment,
            Self::Internal(_) => Outcome::Internal,
        }
    }
}
