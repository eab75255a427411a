//! # loadgen
//! The data plane: sends planned chat requests to one gateway and records what came back. It works under the runner
//! ([`plan_mode`]) and alone ([`standalone`]); both use one send path ([`engine::exchange`]) and one event loop ([`engine::reactor`]).
//!
//! Owner of state: each thread of a load owns its connections, its share of the plan and its counts; shares are added
//! up when it has ended. The record writer and the printer own their files.
//! Must never happen here: a call of another path than chat completions, a verdict, a planned line without exactly one
//! record, an unbounded buffer, or the client key in any output.

pub mod answer;
pub mod body;
pub mod cancel;
pub mod checks;
pub mod classify;
pub mod clock;
pub mod connection;
mod defect;
pub mod engine;
pub mod error;
pub mod halt;
pub mod health;
mod input;
pub mod job;
pub mod json_line;
pub mod output;
pub mod plan_mode;
pub mod plan_source;
pub mod profile;
pub mod progress;
pub mod protocol;
pub mod pulse;
pub mod record_writer;
pub mod result;
pub mod run;
pub mod standalone;
pub mod summary;
pub mod supervisor;
pub mod tally;
pub mod target;
pub mod terminal;
