//! What a race plans before it starts: one attempt with a timer behind it, or more at once (contract gateway
//! 4.8). Pure: what is known comes in as values, the draw is a function of escrow and nonce.

use std::time::Duration;

use super::perf::{Pair, Record};
use super::settings::Redundancy;
use crate::signing::sha256;

/// Share of requests of a well-known pair that run twice.
pub const AB_RATE: f64 = 0.05;
/// The same while the pair is little known.
pub const AB_SPARSE_RATE: f64 = 0.2;
/// Comparisons beyond the least number up to which a pair counts as little known.
pub const AB_SPARSE_BELOW: u64 = 3;
/// Samples of both sides that a prediction needs.
const PREDICT_MIN: u64 = 1;

/// What is known when the primary has its nonce.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The primary may not win.
    pub suspicious: bool,
    /// The primary's record.
    pub primary: Record,
    /// Record of the participant that would come next; none when there is no other.
    pub next: Option<Record>,
    /// Both of them for requests of this size.
    pub pair: Pair,
}

/// The plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name in accounting, log and metrics.
    pub decision: &'static str,
    /// Whether another attempt starts together with the primary, under this reason.
    pub at_once: bool,
}

const fn armed(decision: &'static str) -> Plan {
    Plan { decision, at_once: false }
}

const fn doubled(decision: &'static str) -> Plan {
    Plan { decision, at_once: true }
}

/// Plans a race.
#[must_use]
pub fn plan(settings: &Redundancy, known: &Known, escrow_id: &str, nonce: u64) -> Plan {
    // The word stands even where nobody else could be asked (fixture ml-errevent-stream).
    if known.primary.samples > 0 && known.primary.responsive_rate() < settings.unresponsive_threshold {
        return doubled("primary_unresponsive");
    }
    let Some(next) = known.next else { return armed("receipt_timeout") };
    if known.suspicious {
        return doubled("primary_suspicious");
    }
    if settings.speed_policy != "legacy" {
        let least = settings.pairwise_min_direct_comparisons;
        let ratio_for_speedup = 1.0 / (1.0 - settings.pairwise_winner_hold_min_speedup).max(0.01);
        if known.pair.count >= least && known.pair.ratio >= ratio_for_speedup {
            return doubled("pairwise_budgeted_speedup");
        }
        let rate = match known.pair.count {
            count if count < least => 1.0,
            count if count < least + AB_SPARSE_BELOW => AB_SPARSE_RATE,
            _ => AB_RATE,
        };
        if draw(escrow_id, nonce) < rate {
            return doubled("pairwise_ab_sample");
        }
    }
    let predictable = known.primary.samples >= PREDICT_MIN && next.samples >= PREDICT_MIN;
    let advantage = 1.0 - settings.parallel_advantage_threshold;
    // Below a tenth of a second a difference is noise and not worth a second price.
    if settings.speed_policy != "pairwise"
        && predictable
        && known.primary.total_ms - next.total_ms > 100.0
        && next.total_ms < known.primary.total_ms * advantage
    {
        return doubled("secondary_faster");
    }
    armed("receipt_timeout")
}

/// A number in `[0, 1)` that depends on nothing but escrow and nonce.
fn draw(escrow_id: &str, nonce: u64) -> f64 {
    let digest = sha256(format!("{escrow_id}:{nonce}").as_bytes());
    let word = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    f64::from(word) / (f64::from(u32::MAX) + 1.0)
}

/// When an attempt without output is looked at: the receipt timer, doubled for long requests; for a stream with
/// a receipt also 1.7 s + 30 µs per byte + 0.5 ns per byte squared, seen only once the receipt timer has rung.
#[must_use]
pub fn check_after(settings: &Redundancy, bytes: u64, stream: bool, has_receipt: bool) -> Duration {
    let doubled = if bytes > 100_000 { 2 } else { 1 };
    let receipt = Duration::from_millis(settings.receipt_timeout_ms.saturating_mul(doubled));
    if !has_receipt || !stream {
        return receipt;
    }
    let bytes_us = bytes.saturating_mul(30).saturating_add(bytes.saturating_mul(bytes) / 2000);
    let computed = Duration::from_micros(1_700_000_u64.saturating_add(bytes_us));
    receipt.max(computed).max(Duration::from_millis(settings.first_token_timeout_floor_ms))
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;

    fn redundancy(policy: &str) -> Redundancy {
        Redundancy { speed_policy: policy.to_owned(), ..Settings::defaults("", "", "m").redundancy }
    }

    fn known() -> Known {
        let record = Record { samples: 10, failures: 0, total_ms: 50.0 };
        Known { suspicious: false, primary: record, next: Some(record), pair: Pair::default() }
    }

    #[test]
    fn legacy_doubles_only_for_a_bad_or_slow_primary() {
        let legacy = redundancy("legacy");
        let decide = |known: &Known| plan(&legacy, known, "1", 1);
        assert_eq!(decide(&known()), armed("receipt_timeout"));
        let failing = Record { failures: 1, ..known().primary };
        assert_eq!(decide(&Known { primary: failing, ..known() }), doubled("primary_unresponsive"));
        let slow = Record { total_ms: 6000.0, ..known().primary };
        assert_eq!(decide(&Known { primary: slow, ..known() }), doubled("secondary_faster"));
        assert_eq!(decide(&Known { suspicious: true, ..known() }), doubled("primary_suspicious"));
        let alone = Known { next: None, suspicious: true, ..known() };
        assert_eq!(decide(&alone), armed("receipt_timeout"), "nobody else is there");
    }

    #[test]
    fn hybrid_and_pairwise_sample_every_unknown_pair_and_then_some() {
        for policy in ["hybrid", "pairwise"] {
            let settings = redundancy(policy);
            let share = |count: u64| {
                let pair = Pair { count, ratio: 1.0 };
                (0..1000)
                    .filter(|nonce| plan(&settings, &Known { pair, ..known() }, "1", *nonce).at_once)
                    .count()
            };
            assert_eq!(share(0), 1000);
            assert_eq!(share(3), 1000);
            assert!((150..250).contains(&share(4)), "{}", share(4));
            assert!((25..80).contains(&share(50)), "{}", share(50));
            let slower = Known { pair: Pair { count: 4, ratio: 1.2 }, ..known() };
            assert_eq!(plan(&settings, &slower, "1", 5), doubled("pairwise_budgeted_speedup"));
        }
    }

    #[test]
    fn the_first_token_is_looked_at_when_the_receipt_timer_has_rung() {
        let settings = redundancy("legacy");
        assert_eq!(check_after(&settings, 165, true, true), Duration::from_secs(5));
        assert_eq!(check_after(&settings, 200_000, false, true), Duration::from_secs(10));
        let quick = Redundancy { receipt_timeout_ms: 300, ..settings };
        assert_eq!(check_after(&quick, 0, true, true), Duration::from_micros(1_700_000));
        assert_eq!(check_after(&quick, 0, true, false), Duration::from_millis(300));
    }
}
