//! # verdict
//! Judges one run from its directory alone: classes of requests, assertions A1 to A11, validity, thresholds.
//!
//! Owner of state: nobody. [`load`] reads the files, everything else is a pure function over what was read.
//! Must never happen here: a clock, a path or a run of our own in the result (judging twice gives the same bytes), a
//! pass without having looked, a fail without a witness, a fail from evidence that is missing.

pub mod applicability;
pub mod assertions;
pub mod calls;
pub mod classify;
pub mod format;
mod gaps;
mod health;
pub mod judge;
pub mod known;
mod leases;
pub mod levels;
mod lines;
pub mod load;
mod locks;
pub mod oracle;
mod ordinals;
mod own_part;
mod quarantine;
pub mod requests;
pub mod rules;
mod scan;
mod scanned;
pub mod sessions;
pub mod sheet;
mod small;
pub mod summary;
pub mod table;
