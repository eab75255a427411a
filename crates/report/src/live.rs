//! The one line that shows a load while it goes on. On a narrow terminal the least important parts are left out whole;
//! nothing is cut in the middle and nothing moves to a second line.

use crate::units;

/// What is known at one moment. What is `None` is not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Step or stage, in words.
    pub stage: String,
    /// Requests ended a second since the last line.
    pub rate: u64,
    /// Requests open now.
    pub in_flight: u64,
    /// Requests ended so far, and those sent: what finds no connection ends without having been sent.
    pub done: Option<(u64, u64)>,
    /// Requests that did not succeed, by class, so far.
    pub errors: Vec<(String, u64)>,
    /// Latency of successes, microseconds.
    pub latency_p50_us: Option<u64>,
    /// 99th percentile.
    pub latency_p99_us: Option<u64>,
    /// TTFT of successes.
    pub ttft_p95_us: Option<u64>,
    /// Planned against sent.
    pub lateness_p99_us: Option<u64>,
    /// Anything else, for example fault hits.
    pub extra: Option<String>,
}

/// Between two parts.
const GAP: &str = "  ";

/// The line within `width` columns; the first part is always there.
#[must_use]
pub fn line(live: &Live, width: usize) -> String {
    let mut out = live.stage.clone();
    // In the order of importance, which is also the one in which they are read.
    for part in parts(live) {
        if columns(&out) + GAP.len() + columns(&part) <= width {
            out.push_str(GAP);
            out.push_str(&part);
        }
    }
    out
}

fn parts(live: &Live) -> Vec<String> {
    let span = |name: &str, us: Option<u64>| us.map(|us| format!("{name} {}", units::span(us)));
    let errors: Vec<String> =
        live.errors.iter().map(|(class, count)| format!("{} {class}", units::count(*count))).collect();
    let errors = if errors.is_empty() { "no errors".to_owned() } else { errors.join(", ") };
    let parts = [
        Some(format!("{}/s", units::count(live.rate))),
        Some(format!("{} in flight", units::count(live.in_flight))),
        Some(errors),
        live.done.map(|(done, sent)| format!("{} sent, {} ended", units::count(sent), units::count(done))),
        span("p50", live.latency_p50_us),
        span("p99", live.latency_p99_us),
        span("TTFT p95", live.ttft_p95_us),
        span("late p99", live.lateness_p99_us),
        live.extra.clone(),
    ];
    // Logs and old terminals know the plain space only.
    parts.into_iter().flatten().map(|part| part.replace('\u{202f}', " ")).collect()
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Live {
        Live {
            stage: "step 0".to_owned(),
            rate: 12_345,
            in_flight: 64,
            done: Some((900, 4_000)),
            errors: vec![("http-error".to_owned(), 3), ("truncated".to_owned(), 1)],
            latency_p50_us: Some(41_625),
            ttft_p95_us: Some(9_223),
            lateness_p99_us: Some(31),
            ..Live::default()
        }
    }

    #[test]
    fn all_parts_without_a_limit() {
        assert_eq!(
            line(&live(), usize::MAX),
            "step 0  12 345/s  64 in flight  3 http-error, 1 truncated  4000 sent, 900 ended  p50 41.6 ms  TTFT p95 9.22 ms  \
             late p99 31 µs"
        );
        assert!(line(&Live::default(), 80).contains("no errors"));
    }

    #[test]
    fn a_narrow_line_never_wraps_and_keeps_what_matters() {
        for width in 6..140 {
            assert!(columns(&line(&live(), width)) <= width, "{width}");
        }
        assert_eq!(line(&live(), 32), "step 0  12 345/s  64 in flight");
    }
}
