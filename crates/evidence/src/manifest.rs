//! `manifest.json`: BLAKE3 and size of every file of the run.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileEntry {
    /// Bytes.
    pub bytes: u64,
    /// Lower-case hex.
    pub blake3: String,
}

/// `manifest.json`. Names are relative with `/`; the manifest itself is not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// Format version.
    pub v: u32,
    /// Run.
    pub run_id: String,
    /// Files by name.
    pub files: BTreeMap<String, FileEntry>,
    /// Evidence that a bound or an error kept out, in words.
    pub dropped: Vec<String>,
}
