//! The only place of these programs that reads a clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Offsets since the start of the process, anchored in Unix time once.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    started_unix_us: u64,
}

impl Clock {
    /// Starts counting now.
    #[must_use]
    pub fn start() -> Self {
        // A machine clock before 1970 reads as 0: nothing here may fail for it.
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), started_unix_us: u64::try_from(unix.as_micros()).unwrap_or(u64::MAX) }
    }

    /// Microseconds since the start; never goes back.
    #[must_use]
    pub fn now_us(self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Unix time of offset 0, microseconds.
    #[must_use]
    pub fn started_unix_us(self) -> u64 {
        self.started_unix_us
    }

    /// Unix time now, seconds.
    #[must_use]
    pub fn unix_s(self) -> i64 {
        let us = self.started_unix_us.saturating_add(self.now_us());
        i64::try_from(us / 1_000_000).unwrap_or(i64::MAX)
    }
}

/// A point of the timer's clock, for deadlines of waits.
#[must_use]
pub fn instant() -> tokio::time::Instant {
    tokio::time::Instant::now()
}
