//! The session state machine that gateway and hosts run over the same steps (contract hosts 3, 4, 6).
//!
//! Pure: time enters in the entries themselves. A step is atomic; a refused one leaves no trace.

mod effects;
mod machine;
mod root;
mod seal;
mod types;

pub use machine::{Composed, Session, Trust};
pub use types::{
    HostStats, Inference, Phase, SessionConfig, SessionParams, StateError, StateRoot, Status, VoteCount,
};

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
