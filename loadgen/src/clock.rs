//! The one clock of the generator: a monotonic instant as offset 0, and the wall time of that instant, read once.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Offsets in microseconds since the start of the program; they never go back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    wall_anchor_unix_us: u64,
}

impl Clock {
    /// Starts the clock: this moment is offset 0 of all record times.
    #[must_use]
    pub fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { start: Instant::now(), wall_anchor_unix_us: as_us(wall) }
    }

    /// Microseconds since the start.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        as_us(self.start.elapsed())
    }

    /// Unix time of offset 0, microseconds.
    #[must_use]
    pub fn wall_anchor_unix_us(&self) -> u64 {
        self.wall_anchor_unix_us
    }

    /// The runtime's instant for an offset. Offsets beyond a year are cut: the timer cannot hold them.
    #[must_use]
    pub fn at(&self, offset_us: u64) -> tokio::time::Instant {
        const YEAR_US: u64 = 365 * 24 * 3_600 * 1_000_000;
        tokio::time::Instant::from_std(self.start + Duration::from_micros(offset_us.min(YEAR_US)))
    }
}

fn as_us(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_grow_and_convert_back() {
        let clock = Clock::start();
        let first = clock.now_us();
        let later = clock.now_us();
        assert!(later >= first);
        assert!(clock.at(5_000) > clock.at(4_000));
        assert_eq!(clock.at(u64::MAX), clock.at(u64::MAX - 1), "no overflow");
        assert!(clock.wall_anchor_unix_us() > 1_600_000_000_000_000, "an anchor in this century");
    }
}
