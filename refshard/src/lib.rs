//! The reference Devshard: small programs that serve the outside surfaces of the real one, so that the
//! product works on a bare machine and every assertion can be proven with a planted defect.
//!
//! Owners of state: a gateway owns the order of a session's steps, a host its copy of the session, its
//! mempool and its payloads, each in its own SQLite file. [`state`] and [`transport`] are shared and pure.
//! What must never happen here: two places that decide what an entry does to a session, a clock read
//! outside [`clock`], an answer to the gateway before the steps it rests on are durable.

pub mod clock;
#[cfg(feature = "planted-defects")]
pub mod defects;
pub mod gateway;
pub mod host;
pub mod logline;
pub mod metrics;
pub mod personality;
pub mod planted;
pub mod ready;
pub mod request_id;
pub mod router;
pub mod signing;
pub mod state;
pub mod transport;
