//! What a run looks like while it goes on: one line an interval, made of what all threads did in it.

use std::sync::{Mutex, PoisonError};

use evidence::record::ClientClass;
use stats::{Histogram, Percentile};

use crate::result::figures::is_failure;

/// What happened since the last line.
#[derive(Debug, Default)]
pub struct Interval {
    /// Requests ended.
    pub done: u64,
    /// Of those, failures.
    pub failed: u64,
    /// Latency of successes.
    pub latency: Histogram,
    /// Lateness of sends.
    pub lateness: Histogram,
    /// In flight at its end.
    pub in_flight: u64,
}

impl Interval {
    /// Adds an ended request.
    pub fn add(&mut self, class: ClientClass, latency_us: Option<u64>, late_us: Option<u64>) {
        self.done += 1;
        self.failed += u64::from(is_failure(class));
        if let Some(us) = latency_us.filter(|_| class == ClientClass::Ok) {
            self.latency.record(us);
        }
        late_us.into_iter().for_each(|us| self.lateness.record(us));
    }

    fn merge(&mut self, other: &Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.latency.merge(&other.latency);
        self.lateness.merge(&other.lateness);
        self.in_flight += other.in_flight;
    }
}

/// Collects the intervals of all threads.
#[derive(Debug, Default)]
pub struct Live(Mutex<Interval>);

impl Live {
    /// Adds what a thread did.
    pub fn add(&self, interval: &Interval) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).merge(interval);
    }

    /// The line of everything since the last one.
    #[must_use]
    pub fn line(&self, now_us: u64, span_us: u64, stage: &str) -> String {
        let interval = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let rate = u128::from(interval.done) * 1_000_000 / u128::from(span_us.max(1));
        let ms = |histogram: &Histogram, percentile| {
            histogram
                .percentile_us(percentile)
                .map_or_else(|| "-".to_owned(), |us| format!("{}.{:03} ms", us / 1_000, us % 1_000))
        };
        format!(
            "{:>6} s  {stage}  {rate} req/s  in flight {}  p50 {}  p99 {}  failed {}  lateness p99 {}",
            now_us / 1_000_000,
            interval.in_flight,
            ms(&interval.latency, Percentile::P50),
            ms(&interval.latency, Percentile::P99),
            interval.failed,
            ms(&interval.lateness, Percentile::P99),
        )
    }
}
