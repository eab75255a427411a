//! The state file of `--state`: written whole beside its place, then renamed, so that a kill leaves the old or the
//! new one and never a part.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use thiserror::Error;

use crate::chain::ledger::Saved;

/// Largest file that is read back.
const FILE_MAX: u64 = 256 << 20;

/// Why the state could not be kept or read.
#[derive(Debug, Error)]
pub enum StateError {
    /// The file system refused.
    #[error("state file {path}: {source}; check that the directory exists, is writable and has space")]
    Io {
        /// The file.
        path: String,
        /// Cause.
        source: io::Error,
    },
    /// It is no state file of this build.
    #[error("state file {path} can't be read: {reason}; remove it to start from the configuration")]
    Content {
        /// The file.
        path: String,
        /// Cause.
        reason: String,
    },
}

/// Where the state is kept.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    writing: Mutex<()>,
}

impl StateFile {
    /// At this path; nothing is touched yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, writing: Mutex::new(()) }
    }

    /// Reads what an earlier process left; `None` when there is no file.
    ///
    /// # Errors
    /// [`StateError`] when there is a file that can't be used.
    pub fn read(&self) -> Result<Option<Saved>, StateError> {
        let content = |reason: String| StateError::Content { path: self.shown(), reason };
        let length = match fs::metadata(&self.path) {
            Ok(meta) => meta.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io(error)),
        };
        if length > FILE_MAX {
            return Err(content(format!("{length} bytes, at most {FILE_MAX} are read")));
        }
        let text = fs::read(&self.path).map_err(|error| self.io(error))?;
        serde_json::from_slice(&text).map(Some).map_err(|error| content(error.to_string()))
    }

    /// Replaces the file by what `snapshot` gives, taken when it is this writer's turn.
    ///
    /// # Errors
    /// [`StateError::Io`]; the old file is whole then.
    pub fn write(&self, snapshot: impl FnOnce() -> Saved) -> Result<(), StateError> {
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let text = serde_json::to_vec(&snapshot()).map_err(|error| self.io(io::Error::other(error)))?;
        let beside = self.path.with_extension("new");
        let write = || {
            let mut file = File::create(&beside)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&beside, &self.path)?;
            File::open(
                self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")),
            )?
            .sync_all()
        };
        write().map_err(|error| self.io(error))
    }

    fn io(&self, source: io::Error) -> StateError {
        StateError::Io { path: self.shown(), source }
    }

    fn shown(&self) -> String {
        self.path.display().to_string()
    }
}
