//! # loadgen
//! The data plane: sends planned chat requests to one gateway and records what came back. It works under the runner
//! ([`plan_mode`]) and alone ([`standalone`]); both use one send path ([`exchange`]) and one closed loop ([`engine`]).
//!
//! Owner of state: [`engine::Engine`] owns plan, counts and record file of a run; everything lives on one thread
//! except the record writer and the printer, which own their files.
//! Must never happen here: a call of another path than chat completions, a verdict, a planned line without exactly one
//! record, an unbounded buffer, or the client key in any output.

pub mod answer;
pub mod body;
pub mod cancel;
pub mod checks;
pub mod classify;
pub mod clock;
pub mod connection;
pub mod engine;
pub mod error;
pub mod exchange;
pub mod halt;
pub mod health;
pub mod job;
pub mod plan_mode;
pub mod plan_source;
pub mod progress;
pub mod record_writer;
pub mod result;
pub mod standalone;
pub mod summary;
pub mod supervisor;
pub mod tally;
pub mod target;
