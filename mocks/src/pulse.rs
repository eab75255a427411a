//! Whether this process gets to run: a timer that is due every few milliseconds, and how much too late it comes at most. A
//! mock that is frozen makes a Devshard look slow or stuck, and nothing else of what it counts tells.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;

/// Time between two beats.
const BEAT: Duration = Duration::from_millis(20);

/// Of the process, as its CPU time is: several mocks in one process are frozen together.
static GAP_MAX_US: AtomicU64 = AtomicU64::new(0);

/// Longest time by which a beat came too late since the start, microseconds.
#[must_use]
pub fn gap_max_us() -> u64 {
    GAP_MAX_US.load(Ordering::Relaxed)
}

/// Beats until it is dropped.
pub async fn watch() {
    loop {
        let due = clock::instant() + BEAT;
        tokio::time::sleep_until(due).await;
        let late = clock::instant().saturating_duration_since(due);
        GAP_MAX_US.fetch_max(u64::try_from(late.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_thread_that_is_held_up_is_seen() {
        let watching = tokio::spawn(watch());
        tokio::task::yield_now().await;
        std::thread::sleep(Duration::from_millis(300));
        while gap_max_us() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(gap_max_us() >= 250_000, "{}", gap_max_us());
        watching.abort();
    }
}
