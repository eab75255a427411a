//! The build identity that every program of ours prints and that the runner compares.

/// Identity of this build: what the builder put into `PROOFLOAD_BUILD` (the Makefile gives version and commit),
/// else the package version with `+dev`. Two programs work together only when both are equal (design section 2).
pub const BUILD_ID: &str = match option_env!("PROOFLOAD_BUILD") {
    Some(text) => text,
    None => concat!(env!("CARGO_PKG_VERSION"), "+dev"),
};
