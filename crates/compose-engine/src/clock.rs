//! The only place of this crate that reads the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time now, nanoseconds.
#[must_use]
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Unix time now, seconds.
#[must_use]
pub fn unix_s() -> u64 {
    unix_ns() / 1_000_000_000
}
