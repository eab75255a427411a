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

/// Nanoseconds since 1970 of an RFC 3339 time.
#[must_use]
pub fn parse_ns(text: &str) -> Option<i128> {
    let format = &time::format_description::well_known::Rfc3339;
    time::OffsetDateTime::parse(text, format).ok().map(time::OffsetDateTime::unix_timestamp_nanos)
}
