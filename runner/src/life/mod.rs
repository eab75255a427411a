//! The life cycle of one run (design section 3), step by step, by one dispatcher.

pub mod actions;
pub mod carry;
pub mod chain_actions;
pub mod dispatcher;
pub mod drain;
pub mod faults;
pub mod load;
pub mod preflight;
pub mod prepare;
pub mod run;
pub mod search;
mod wall;
