//! Running counts of a load, kept small: histograms and one number a class, never samples.

use std::collections::BTreeMap;

use evidence::record::{ClientClass, RequestRecord};
use scenario::pipe::{GeneratorHealth, LoadgenLine};
use stats::histogram::Histogram;
use stats::rank::Percentile;

use crate::health;
use crate::pulse::Beats;

/// Counts since the start.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests ended.
    pub done: u64,
    /// Requests open now.
    pub in_flight: u64,
    /// Ended requests by class.
    pub classes: BTreeMap<ClientClass, u64>,
    /// TTFT of the successes.
    pub ttft: Histogram,
    /// Total latency of the successes.
    pub latency: Histogram,
    /// Released to sent, of all that were sent.
    pub lateness: Histogram,
    /// Requests whose kept connection was stale.
    pub reconnected: u64,
    /// Instant of the first release.
    pub first_us: Option<u64>,
    /// Instant of the last end.
    pub last_us: u64,
}

impl Tally {
    /// Adds an ended request.
    pub fn add(&mut self, record: &RequestRecord) {
        self.done += 1;
        *self.classes.entry(record.client_class).or_default() += 1;
        self.reconnected += u64::from(record.reconnected);
        if let (Some(released), Some(sent)) = (record.released_us, record.sent_us) {
            self.lateness.record(sent.saturating_sub(released));
        }
        if record.client_class == ClientClass::Ok {
            record.ttft_us().into_iter().for_each(|ttft| self.ttft.record(ttft));
            record.latency_us().into_iter().for_each(|latency| self.latency.record(latency));
        }
        self.last_us = self.last_us.max(record.end_us.unwrap_or_default());
    }

    /// Requests of a class.
    #[must_use]
    pub fn count(&self, class: ClientClass) -> u64 {
        self.classes.get(&class).copied().unwrap_or_default()
    }

    /// The progress line of this moment.
    #[must_use]
    pub fn progress(&self, at_us: u64, step: usize, sent: u64) -> LoadgenLine {
        LoadgenLine::Progress {
            at_us,
            step,
            sent,
            done: self.done,
            in_flight: self.in_flight,
            classes: self.classes.iter().map(|(class, count)| (class.word(), *count)).collect(),
            ttft_p95_us: self.ttft.percentile_us(Percentile::P95),
        }
    }

    /// Health of the generator at this moment; how late its loop came where somebody watches.
    #[must_use]
    pub fn health(&self, wall_us: u64, beats: Option<&Beats>) -> GeneratorHealth {
        let late = |percentile| beats.and_then(|beats| beats.late.percentile_us(percentile));
        let usage = health::Usage::now();
        GeneratorHealth {
            cpu_us: usage.cpu_us,
            wall_us,
            lateness_p50_us: self.lateness.percentile_us(Percentile::P50),
            lateness_p99_us: self.lateness.percentile_us(Percentile::P99),
            lateness_max_us: self.lateness.max_us(),
            rss_bytes: usage.rss_bytes,
            open_fds: usage.open_fds,
            ports_exhausted: self.count(ClientClass::GeneratorPorts),
            fds_exhausted: self.count(ClientClass::GeneratorFds),
            stalled_us: beats.map(|beats| beats.stalled_us),
            loop_gap_max_us: beats.and_then(|beats| beats.late.max_us()),
            loop_late_p50_us: late(Percentile::P50),
            loop_late_p95_us: late(Percentile::P95),
            loop_late_p99_us: late(Percentile::P99),
        }
    }
}
