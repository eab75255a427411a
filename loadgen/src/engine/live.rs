//! What a run looks like while it goes on: one line an interval, made of what all threads did in it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use evidence::record::ClientClass;
use stats::{Histogram, Percentile};

use crate::result::figures::is_failure;

/// What happened since the last line.
#[derive(Debug, Default)]
pub struct Interval {
    /// Requests ended.
    pub done: u64,
    /// Of those, failures by class.
    pub failed: BTreeMap<ClientClass, u64>,
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
        if is_failure(class) {
            *self.failed.entry(class).or_default() += 1;
        }
        if let Some(us) = latency_us.filter(|_| class == ClientClass::Ok) {
            self.latency.record(us);
        }
        late_us.into_iter().for_each(|us| self.lateness.record(us));
    }

    fn merge(&mut self, other: &Self) {
        self.done += other.done;
        other.failed.iter().for_each(|(class, count)| *self.failed.entry(*class).or_default() += count);
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

    /// The line of everything since the last one, within so many columns.
    #[must_use]
    pub fn line(&self, now_us: u64, span_us: u64, stage: &str, width: usize) -> String {
        let interval = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let rate = u128::from(interval.done) * 1_000_000 / u128::from(span_us.max(1));
        let live = report::live::Live {
            stage: format!("{:>5} s  {stage}", now_us / 1_000_000),
            rate: u64::try_from(rate).unwrap_or(u64::MAX),
            in_flight: interval.in_flight,
            errors: interval.failed.iter().map(|(class, count)| (class.word(), *count)).collect(),
            latency_p50_us: interval.latency.percentile_us(Percentile::P50),
            latency_p99_us: interval.latency.percentile_us(Percentile::P99),
            lateness_p99_us: interval.lateness.percentile_us(Percentile::P99),
            ..report::live::Live::default()
        };
        report::live::line(&live, width)
    }
}
