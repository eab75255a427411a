//! The only place of this crate that reads a clock; everything else gets time as a value.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

fn since_epoch() -> std::time::Duration {
    // A clock before 1970 reads as 0: nothing here may fail for it.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Unix time in whole seconds, as signed messages and states carry it.
#[must_use]
pub fn unix_s() -> i64 {
    i64::try_from(since_epoch().as_secs()).unwrap_or(i64::MAX)
}

/// Unix time in seconds with fraction, for `process_start_time_seconds`.
#[must_use]
pub fn unix_f64() -> f64 {
    since_epoch().as_secs_f64()
}

/// Unix time in nanoseconds, for request ids and payload signatures.
#[must_use]
pub fn unix_ns() -> u64 {
    u64::try_from(since_epoch().as_nanos()).unwrap_or(u64::MAX)
}

/// A point of the monotonic clock, for durations and deadlines.
#[must_use]
pub fn instant() -> Instant {
    Instant::now()
}
