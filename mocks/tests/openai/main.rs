//! `mock-openai` in-process: what its clients see byte for byte, and what its control surface says about it.

mod answers;
mod control;
mod faults;
mod garbage;
mod load;
mod support;
