//! The only place of the runner that reads clocks and the system's random source.

use std::io::Read;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Variable under which the self-test has the wall clock of a run jump.
pub const JUMP: &str = "PROOFLOAD_PLANTED_CLOCK_JUMP";

/// Monotonic offsets from one start, with one wall anchor for display.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    start_unix_us: u64,
}

impl Clock {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now(), start_unix_us: unix_us() }
    }

    /// Microseconds since the start.
    #[must_use]
    pub fn at_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Unix time of the start, microseconds.
    #[must_use]
    pub const fn start_unix_us(&self) -> u64 {
        self.start_unix_us
    }

    /// How far the wall clock is from where its anchor and the monotonic clock have it, microseconds; `None` when this
    /// process was kept from running between the two readings, so that they are not of one moment.
    #[must_use]
    pub fn wall_ahead_us(&self) -> Option<i64> {
        const ONE_MOMENT_US: u64 = 1_000;
        let before_us = self.at_us();
        let wall_us = unix_us().saturating_add(planted_jump_us(before_us));
        let took_us = self.at_us().saturating_sub(before_us);
        let ahead_us = i128::from(wall_us) - i128::from(self.unix_at(before_us));
        (took_us <= ONE_MOMENT_US).then(|| i64::try_from(ahead_us).unwrap_or(i64::MAX))
    }

    /// Unix time of an offset, by the anchor: never goes back when the wall clock does.
    #[must_use]
    pub const fn unix_at(&self, at_us: u64) -> u64 {
        self.start_unix_us.saturating_add(at_us)
    }
}

/// Unix time now, microseconds.
#[must_use]
pub fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Sabotage of the self-test: five seconds, from the second second of a run on. Setting the real clock would reach every
/// other program of the machine.
fn planted_jump_us(at_us: u64) -> u64 {
    let planted = cfg!(feature = "planted-defects") && std::env::var_os(JUMP).is_some();
    if planted && at_us >= 1_000_000 { 5_000_000 } else { 0 }
}

/// Today as `YYYY-MM-DD`, in UTC.
#[must_use]
pub fn today() -> String {
    let seconds = i64::try_from(unix_us() / 1_000_000).unwrap_or_default();
    let date = time::OffsetDateTime::from_unix_timestamp(seconds).map(time::OffsetDateTime::date);
    // `Date` prints itself as YYYY-MM-DD; a clock beyond the calendar lets nothing count as known.
    date.map_or_else(|_| "9999-12-31".to_owned(), |date| date.to_string())
}

/// Random bytes of the operating system, for salts and keys of one run; never for a decision of the plan.
///
/// # Errors
/// When `/dev/urandom` can't be read.
pub fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0_u8; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
