//! Placeholder head, replaced by the crate's owner.

pub mod chain;
pub mod dapi;
pub mod ordinal;
pub mod serving;
