//! Compose semantics on a container engine: strict model, observed state, plan, executor, cleanup.
//!
//! State: the engine owns containers, networks and volumes; the ledger file says what this run made or meant to make; the
//! lease file says that its owner lives. Must never happen here: an object without our run label, an action on an
//! object that carries another run's label or none, a variable taken from the caller's environment, a wait without a
//! deadline.

pub mod binds;
pub mod clock;
pub mod down;
pub mod engine;
pub mod error;
pub mod exec;
pub mod fixture;
pub mod gc;
pub mod images;
pub mod labels;
pub mod lease;
pub mod ledger;
pub mod logs;
pub mod model;
pub mod near;
pub mod observed;
pub mod plan;
pub mod preflight;
pub mod queue;
pub mod ready;
pub mod spec;
pub mod subnet;
pub mod target;
