//! # evidence
//! Record types, the run directory, format versions and redaction. The run directory is the only interface between
//! what happened and what is judged: the verdict reads these files and nothing else.
//!
//! Owner of state: [`rundir::RunDir`] owns the directory of one run while it is being written.
//! Must never happen here: a judgement, a clock, or a secret reaching a file.

pub mod accounting;
pub mod assertion;
pub mod bundle;
pub mod drain;
pub mod event;
pub mod exit;
pub mod known;
pub mod leases;
pub mod manifest;
pub mod names;
pub mod raw;
pub mod record;
pub mod redact;
pub mod run;
pub mod rundir;
pub mod sessions;
pub mod snapshot;
pub mod summary;

/// Version of every format in the run directory; a reader refuses a higher one and keeps reading lower ones.
pub const EVIDENCE_VERSION: u32 = 1;
