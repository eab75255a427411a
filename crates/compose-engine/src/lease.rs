//! The lease of a run: who owns it and when it last said so. The reaper holds it and removes the run's objects when the
//! owner is gone; a connection that breaks proves nothing (reports 21, 23).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::ComposeError;
use crate::labels::Owner;

/// Spacing of heartbeats, seconds.
pub const BEAT_SPACING_S: u64 = 5;
/// Age of a heartbeat after which an owner that can't be looked at counts as gone, seconds.
pub const BEAT_AGE_MAX_S: u64 = 120;

/// What the lease file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Format version.
    pub v: u32,
    /// Run.
    pub run_id: String,
    /// Project.
    pub project: String,
    /// Owner.
    pub owner: Owner,
    /// Unix seconds of the last heartbeat.
    pub beat_unix_s: u64,
    /// Socket of the engine.
    pub engine: PathBuf,
    /// Private folder of the run, removed with it.
    pub work: PathBuf,
}

/// What is known about the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It runs.
    Alive,
    /// It has ended.
    Gone,
    /// It is on another host or in another process namespace.
    Unknown,
}

impl Lease {
    /// The file of a project in a folder.
    #[must_use]
    pub fn path(folder: &Path, project: &str) -> PathBuf {
        folder.join(format!("{project}.json"))
    }

    /// Writes the file whole, so that a reader never sees a half.
    ///
    /// # Errors
    /// [`ComposeError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), ComposeError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(ComposeError::io(folder))?;
        }
        let new = path.with_extension("new");
        let text = serde_json::to_vec(self).unwrap_or_default();
        std::fs::write(&new, text).map_err(ComposeError::io(&new))?;
        std::fs::rename(&new, path).map_err(ComposeError::io(path))
    }

    /// Reads a file; `None` when it is gone or no lease.
    #[must_use]
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    /// Whether the run's objects are to be removed. A living owner keeps them however late its heartbeat is: a process
    /// that was stopped for a while must not lose its stack.
    #[must_use]
    pub const fn lapsed(&self, liveness: Liveness, now_unix_s: u64) -> bool {
        match liveness {
            Liveness::Alive => false,
            Liveness::Gone => true,
            Liveness::Unknown => now_unix_s.saturating_sub(self.beat_unix_s) > BEAT_AGE_MAX_S,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_21_only_a_dead_owner_or_a_silent_unknown_one_loses_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let owner = Owner { host: "h".into(), boot: "b".into(), pid: 1, start_ticks: 2 };
        let lease = Lease {
            v: 1,
            run_id: "r".into(),
            project: "p".into(),
            owner,
            beat_unix_s: 1_000,
            engine: "/s".into(),
            work: "/w".into(),
        };
        assert!(!lease.lapsed(Liveness::Alive, 99_999));
        assert!(lease.lapsed(Liveness::Gone, 1_000));
        assert!(!lease.lapsed(Liveness::Unknown, 1_000 + BEAT_AGE_MAX_S));
        assert!(lease.lapsed(Liveness::Unknown, 1_001 + BEAT_AGE_MAX_S));
        let path = Lease::path(folder.path(), "p");
        lease.write(&path).unwrap();
        assert_eq!(Lease::read(&path), Some(lease));
        assert_eq!(Lease::read(&folder.path().join("none")), None);
    }
}
