//! The write-ahead ledger: what a run is about to do to the engine, before it does it, and how it went.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::error::ComposeError;

/// Phase of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Written before the call.
    Intended,
    /// The engine agreed.
    Done,
    /// The engine refused or did not answer: the object may be there.
    Failed,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Ordinal.
    pub seq: u64,
    /// Unix time, nanoseconds.
    pub at_unix_ns: u64,
    /// Deed, for example `create_network` or `kill`.
    pub deed: String,
    /// Name of the object.
    pub object: String,
    /// Phase.
    pub phase: Phase,
    /// Engine's id or words.
    pub note: String,
}

#[derive(Debug, Default)]
struct Inner {
    file: Option<File>,
    seq: u64,
    entries: Vec<Entry>,
}

/// A ledger in a file, or in memory alone.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Inner>);

impl Ledger {
    /// Appends to a file.
    ///
    /// # Errors
    /// [`ComposeError::Io`].
    pub fn open(path: &Path) -> Result<Self, ComposeError> {
        let file = File::options().create(true).append(true).open(path).map_err(ComposeError::io(path))?;
        Ok(Self(Mutex::new(Inner { file: Some(file), ..Inner::default() })))
    }

    /// Writes a line and gets it out of this process before returning.
    ///
    /// # Errors
    /// [`ComposeError::Io`]: nothing may be done that could not be written down.
    pub fn write(&self, deed: &str, object: &str, phase: Phase, note: &str) -> Result<(), ComposeError> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.seq += 1;
        let entry = Entry {
            seq: inner.seq,
            at_unix_ns: clock::unix_ns(),
            deed: deed.to_owned(),
            object: object.to_owned(),
            phase,
            note: note.to_owned(),
        };
        if let Some(file) = &mut inner.file {
            let mut line = serde_json::to_vec(&entry).unwrap_or_default();
            line.push(b'\n');
            file.write_all(&line).map_err(ComposeError::io("the ledger"))?;
        }
        inner.entries.push(entry);
        Ok(())
    }

    /// Entries of this process.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entries.clone()
    }

    /// Objects of a deed that are said to have been made.
    #[must_use]
    pub fn done(&self, deed: &str) -> Vec<String> {
        let entries = self.entries();
        entries.into_iter().filter(|e| e.deed == deed && e.phase == Phase::Done).map(|e| e.object).collect()
    }
}
