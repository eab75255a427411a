//! Placeholder head, replaced by the crate's owner.

pub mod chain;
pub mod clock;
pub mod control;
pub mod dapi;
pub mod label;
pub mod ordinal;
pub mod process;
pub mod program;
pub mod ready;
