//! Prints how many records per second one core takes, and what the other operations cost.
//!
//! `cargo run --profile demo -p stats --example histogram_throughput [seconds per line]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use stats::{Due, Histogram, PerSecond, RateCurve, Windows};

/// Operations between two looks at the clock.
const BATCH: u64 = 4096;

/// Runs `operation` on batches of counters for about `time` and prints the rate.
fn measure(name: &str, time: Duration, mut operation: impl FnMut(u64)) {
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < time {
        (count..count + BATCH).for_each(&mut operation);
        count += BATCH;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{name:<44} {:>12.0} /s {:>9.1} ns", count as f64 / seconds, seconds / count as f64 * 1e9);
}

/// Latencies from 0.1 ms to 1.6 s, spread over the magnitudes.
fn latency_us(count: u64) -> u64 {
    let mixed = count.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (100 + (mixed >> 57)) << (mixed >> 20 & 7) << (mixed >> 40 & 3)
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    measure("nothing (cost of the loop)", time, |count| {
        black_box(latency_us(count));
    });
    let mut histogram = Histogram::new();
    measure("histogram: record", time, |count| histogram.record(latency_us(count)));
    measure("histogram: summary of 5 percentiles", time, |_| {
        black_box(histogram.summary());
    });
    measure("histogram: merge", time, |_| {
        let mut whole = Histogram::new();
        whole.merge(&histogram);
        black_box(whole);
    });
    let mut windows =
        Windows::new(1_000_000, 240).expect("a second is a width, and 240 is a number of windows");
    measure("windows: record, 1 ms apart", time, |count| {
        windows.record(count * 1_000 % 240_000_000, &"success", Some(latency_us(count)));
    });
    let (low, high) = (PerSecond::from_whole(1_000), PerSecond::from_whole(8_000));
    let hour_ns = 3_600_000_000_000;
    let curve = RateCurve::ramp(low, high, hour_ns).expect("an hour at 8000 a second fits");
    measure("ramp: planned instant", time, |count| {
        black_box(curve.instant_of(count % 16_200_000));
    });
    let mut due = Due::default();
    measure("Poisson: gap", time, |count| {
        due = due.plus_poisson_gap(count.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    });
    black_box(due);
}
