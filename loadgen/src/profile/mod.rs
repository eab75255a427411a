//! Profiles: the file (`model`), what it means (`resolve`), and what is said in a conversation (`content`).

pub mod content;
pub mod model;
pub mod resolve;
pub mod stages;
pub mod thresholds;
pub mod weights;

pub use resolve::{Resolved, THREADS_MAX, Wrong, check, resolve};
