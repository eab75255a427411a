//! `mock-openai` in-process: what its clients see byte for byte, and what its control surface says about it.

#![expect(clippy::unwrap_used, reason = "a helper of a test may panic")]

mod answers;
mod control;
mod faults;
mod garbage;
mod load;
mod support;
