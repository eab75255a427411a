//! `mock-chain`: the part of the chain that gateway and hosts ask (contract mocks 5, fixture wire-july).

pub mod config;
pub mod core;
pub mod ledger;
pub mod tx;
