//! # scenario
//! What one run is asked to do: the scenario file, its resolution, the request plan, seeded draws, digests, and the
//! types by which the runner talks to the mocks and to the load generator.
//!
//! Owner of state: nobody; every item is a value or a pure function.
//! Must never happen here: a clock, a random source other than [`draw`], a socket, a file, or a default threshold.

pub mod build;
pub mod configs;
pub mod control;
pub mod digest;
pub mod draw;
pub mod error;
pub mod fault;
pub mod hash;
pub mod identity;
pub mod model;
pub mod pipe;
pub mod plan;
pub mod profile;
pub mod prompt;
pub mod read;
pub mod ready;
pub mod resolve;
pub mod units;

pub use error::{Problem, ScenarioError};
pub use read::{ScenarioFile, parse, parse_profile};
pub use resolve::{LimitRow, Overrides, Setting, Source, limits, resolve};
