//! The text summary of a load for people.

use std::fmt::Write as _;

use evidence::record::ClientClass;
use stats::histogram::Histogram;
use stats::rank::Percentile;

use crate::tally::Tally;

const PERCENTILES: [(&str, Percentile); 3] =
    [("p50", Percentile::P50), ("p95", Percentile::P95), ("p99", Percentile::P99)];

/// The summary: counts, rates and percentiles; what has no sample is `-`.
#[must_use]
pub fn text(tally: &Tally, wall_us: u64, partial: bool) -> String {
    let mut out = String::new();
    let mut put = |name: &str, value: &str| {
        // Writing into memory cannot fail.
        let _ = writeln!(out, "{name:<28}{value}");
    };
    let ok = tally.count(ClientClass::Ok);
    let window_us = tally.first_us.map_or(0, |first| tally.last_us.saturating_sub(first));
    put("requests", &format!("{}{}", tally.done, if partial { " (stopped early)" } else { "" }));
    put("ok", &ok.to_string());
    for (class, count) in tally.classes.iter().filter(|(class, _)| **class != ClientClass::Ok) {
        put(&class.word(), &count.to_string());
    }
    put("window", &format!("{} s", thousandths(window_us / 1_000)));
    put("requests per second", &rate(tally.done, window_us));
    put("successes per second", &rate(ok, window_us));
    put("TTFT of successes", &percentiles(&tally.ttft));
    put("total latency of successes", &percentiles(&tally.latency));
    put("lateness (released to sent)", &percentiles(&tally.lateness));
    put("reconnects", &tally.reconnected.to_string());
    let health = tally.health(wall_us, None);
    let share = health.cpu_us.saturating_mul(100).checked_div(wall_us).unwrap_or_default();
    put("generator", &format!("{share} % of one core, {} MB", health.rss_bytes / 1_000_000));
    out.push_str("Latencies count from the planned instant: in a closed loop, when the slot became free.\n");
    out
}

fn rate(count: u64, window_us: u64) -> String {
    // Milli-requests a second in integers; a window below the clock's resolution has no rate.
    let milli = (u128::from(count) * 1_000_000_000).checked_div(u128::from(window_us));
    milli.and_then(|milli| u64::try_from(milli).ok()).map_or_else(|| "-".to_owned(), thousandths)
}

fn thousandths(value: u64) -> String {
    format!("{}.{:03}", value / 1_000, value % 1_000)
}

fn percentiles(histogram: &Histogram) -> String {
    let n = histogram.count();
    let part = |(name, percentile): (&str, Percentile)| {
        let value = histogram.percentile_us(percentile);
        let low = if n > 0 && percentile.is_low_n(n) { " (low n)" } else { "" };
        format!(
            "{name} {}{low}",
            value.map_or_else(|| "-".to_owned(), |us| format!("{} ms", thousandths(us)))
        )
    };
    format!("{} (n {n})", PERCENTILES.map(part).join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_run_has_a_summary_without_figures() {
        let text = text(&Tally::default(), 0, true);
        assert!(text.contains("requests                    0 (stopped early)"), "{text}");
        assert!(text.contains("p50 -, p95 -, p99 - (n 0)"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn figures_carry_units_and_low_n() {
        let mut tally =
            Tally { done: 200, first_us: Some(1_000_000), last_us: 3_000_000, ..Tally::default() };
        tally.classes = [(ClientClass::Ok, 150), (ClientClass::HttpError, 50)].into();
        (0..20).for_each(|_| tally.ttft.record(1_500));
        let text = text(&tally, 10, false);
        for part in
            ["100.000", "75.000", "http-error                  50", "p50 1.500 ms", "p99 1.500 ms (low n)"]
        {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
