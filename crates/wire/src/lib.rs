//! The encodings that Devshard programs exchange with the chain, with the node allocator and
//! with each other: protobuf messages, gRPC stubs, keys, addresses, signatures, keyring files.
//!
//! State: none; every function maps values to values. What must never happen here: reading a
//! clock, drawing random bytes (callers pass them in), touching network or files, and printing
//! a private key by `Debug`, `Display` or an error.

pub mod devshard;
pub mod keyring;
pub mod keys;
pub mod proto;
pub mod settlement;
pub mod transport;
