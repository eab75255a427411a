//! # mocks
//! The three dependencies of a Devshard that a run replaces: a pool of ML nodes, the allocator, the chain. Each is a
//! library module with a thin program, and each is steered over the control surface of `scenario::control`.
//!
//! Owner of state: one `Shared` (allocator, chain) or `Pool` (ML nodes) per process; logs are bounded rings in it.
//! Must never happen here: a fault that no rule asked for, an unbounded log or wait, a decision about what a fault
//! *means* (the verdict judges), a clock outside `clock`, chance outside `scenario::draw`.

pub mod chain;
pub mod clock;
pub mod control;
pub mod dapi;
pub mod defects;
pub mod label;
pub mod openai;
pub mod ordinal;
pub mod process;
pub mod program;
pub mod pulse;
pub mod ready;
