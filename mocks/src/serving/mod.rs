//! What the gRPC mocks share around their state: clock, bounded logs, control listener, start and end of a process.

pub mod clock;
pub mod control;
pub mod label;
pub mod process;
pub mod ring;
