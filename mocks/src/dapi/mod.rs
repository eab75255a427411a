//! `mock-dapi`: gives out ML nodes and runtime configuration (contract mocks 4, fixture wire-july).

pub mod config;
pub mod core;
pub mod locks;
pub mod policy;
