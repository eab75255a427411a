//! Shares and rates in whole numbers: comparisons are exact, floats are for display only.
//!
//! `1 − 800/1000` in floats is 0.19999…, so that exactly 20 % reads as a breach
//! (design load-and-mocks 2.4); here nothing is divided before it is compared.

use std::cmp::Ordering;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Parts of a whole in limits: 0.25 is 250 000 000 ppb (design section 5).
pub const PPB_WHOLE: u64 = 1_000_000_000;

/// Shortest span over which a rate is stated, in microseconds. Both ends of a span are known to one
/// microsecond, so that shorter ones would make a rate wrong by more than 0.1 %.
pub const RATE_WINDOW_MIN_US: u64 = 1_000;

/// Whether `part` of `total` is more than a limit in parts per 10⁹. Equality is within the limit.
///
/// 0 of 0 exceeds nothing: a judge asks for a minimum count apart.
#[must_use]
pub fn exceeds(part: u64, total: u64, limit_ppb: u64) -> bool {
    compare(part, total, limit_ppb) == Ordering::Greater
}

/// Whether `part` of `total` is less than a limit in parts per 10⁹. Equality is no shortfall.
#[must_use]
pub fn falls_short(part: u64, total: u64, limit_ppb: u64) -> bool {
    compare(part, total, limit_ppb) == Ordering::Less
}

fn compare(part: u64, total: u64, limit_ppb: u64) -> Ordering {
    let part = u128::from(part) * u128::from(PPB_WHOLE);
    part.cmp(&(u128::from(limit_ppb) * u128::from(total)))
}

/// A share as a float, for display and plots only; `None` of nothing.
#[must_use]
pub fn share(part: u64, total: u64) -> Option<f64> {
    Fraction::new(part, total).map(Fraction::as_f64)
}

/// Events per second as a float, for display and plots only; `None` over a span shorter than
/// [`RATE_WINDOW_MIN_US`].
#[must_use]
pub fn per_second(count: u64, span_us: u64) -> Option<f64> {
    Rate::new(count, span_us).map(|rate| rate.count as f64 * 1e6 / rate.window_us as f64)
}

/// A share of counted things, kept as the two counts. Compared by value: 1/2 equals 2/4.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "FractionParts", into = "FractionParts")]
#[schemars(with = "FractionParts")]
pub struct Fraction {
    num: u64,
    den: u64,
}

/// The written form of a [`Fraction`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Fraction")]
struct FractionParts {
    /// Part.
    num: u64,
    /// Whole, at least 1.
    #[schemars(range(min = 1))]
    den: u64,
}

/// A fraction whose whole is 0.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a fraction of 0 things has no value: write null instead")]
pub struct NothingToDivide;

impl Fraction {
    /// `num` of `den`; `None` when there is nothing to divide by.
    #[must_use]
    pub fn new(num: u64, den: u64) -> Option<Self> {
        (den > 0).then_some(Self { num, den })
    }

    /// Part.
    #[must_use]
    pub fn num(self) -> u64 {
        self.num
    }

    /// Whole, at least 1.
    #[must_use]
    pub fn den(self) -> u64 {
        self.den
    }

    /// Whether it is more than a limit in parts per 10⁹.
    #[must_use]
    pub fn exceeds(self, limit_ppb: u64) -> bool {
        exceeds(self.num, self.den, limit_ppb)
    }

    /// For plots. Always finite.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.num as f64 / self.den as f64
    }
}

impl PartialEq for Fraction {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Fraction {}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fraction {
    fn cmp(&self, other: &Self) -> Ordering {
        let left = u128::from(self.num) * u128::from(other.den);
        left.cmp(&(u128::from(other.num) * u128::from(self.den)))
    }
}

impl fmt::Display for Fraction {
    /// A decimal cut (not rounded) after nine digits, without idle zeros: `0.25`, `0.333333333`, `1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.num / self.den, self.num % self.den);
        let ppb = u128::from(rest) * u128::from(PPB_WHOLE) / u128::from(self.den);
        let decimals = format!("{ppb:09}");
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{whole}"),
            decimals => write!(f, "{whole}.{decimals}"),
        }
    }
}

impl TryFrom<FractionParts> for Fraction {
    type Error = NothingToDivide;

    fn try_from(parts: FractionParts) -> Result<Self, Self::Error> {
        Self::new(parts.num, parts.den).ok_or(NothingToDivide)
    }
}

impl From<Fraction> for FractionParts {
    fn from(Fraction { num, den }: Fraction) -> Self {
        Self { num, den }
    }
}

/// How many a second are asked for, in thousandths: 1.5 a second is 1500.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PerSecond(u64);

impl PerSecond {
    /// None at all.
    pub const ZERO: Self = Self(0);

    /// From thousandths.
    #[must_use]
    pub const fn from_milli(milli: u64) -> Self {
        Self(milli)
    }

    /// From whole ones (at most `u64::MAX / 1000`, above it stays there).
    #[must_use]
    pub const fn from_whole(whole: u64) -> Self {
        Self(whole.saturating_mul(1_000))
    }

    /// In thousandths.
    #[must_use]
    pub const fn milli(self) -> u64 {
        self.0
    }
}

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 1_000, self.0 % 1_000) {
            (whole, 0) => write!(f, "{whole}/s"),
            (whole, rest) => write!(f, "{whole}.{}/s", format!("{rest:03}").trim_end_matches('0')),
        }
    }
}

/// What happened in a span of time, kept as count and span, so that rates compare exactly.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    count: u64,
    window_us: u64,
}

impl Rate {
    /// `count` events in `window_us`; `None` when the window is shorter than [`RATE_WINDOW_MIN_US`].
    #[must_use]
    pub fn new(count: u64, window_us: u64) -> Option<Self> {
        (window_us >= RATE_WINDOW_MIN_US).then_some(Self { count, window_us })
    }

    /// Events.
    #[must_use]
    pub fn count(self) -> u64 {
        self.count
    }

    /// Span in microseconds.
    #[must_use]
    pub fn window_us(self) -> u64 {
        self.window_us
    }

    /// Whether it reaches what was asked for. Equality does.
    #[must_use]
    pub fn reaches(self, asked: PerSecond) -> bool {
        // count / (window / 10⁶) >= milli / 10³
        u128::from(self.count) * 1_000_000_000 >= u128::from(asked.milli()) * u128::from(self.window_us)
    }

    /// Rounded to the nearest thousandth (halves up), for display and files.
    #[must_use]
    pub fn per_second(self) -> PerSecond {
        let window = u128::from(self.window_us);
        let milli = (u128::from(self.count) * 1_000_000_000 + window / 2) / window;
        PerSecond(u64::try_from(milli).unwrap_or(u64::MAX))
    }
}

impl PartialEq for Rate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rate {}

impl PartialOrd for Rate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rate {
    fn cmp(&self, other: &Self) -> Ordering {
        let left = u128::from(self.count) * u128::from(other.window_us);
        left.cmp(&(u128::from(other.count) * u128::from(self.window_us)))
    }
}

/// Goodput: of what was sent, that which succeeded within every latency limit set for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Goodput {
    /// Requests that succeeded within all limits.
    pub good: u64,
    /// Requests sent, failed ones included.
    pub sent: u64,
}

impl Goodput {
    /// Adds one request.
    pub fn record(&mut self, good: bool) {
        self.sent = self.sent.saturating_add(1);
        self.good = self.good.saturating_add(u64::from(good));
    }

    /// Adds those of another shard.
    pub fn merge(&mut self, other: Self) {
        self.sent = self.sent.saturating_add(other.sent);
        self.good = self.good.saturating_add(other.good);
    }

    /// Share of good requests; `None` when nothing was sent.
    #[must_use]
    pub fn share(self) -> Option<Fraction> {
        Fraction::new(self.good, self.sent)
    }

    /// Good requests over time; `None` for a window that is too short.
    #[must_use]
    pub fn rate(self, window_us: u64) -> Option<Rate> {
        Rate::new(self.good, window_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_to_the_last_request() {
        // (part, total, limit in ppb, order)
        for (part, total, limit_ppb, order) in [
            (200, 1000, 200_000_000, Ordering::Equal),
            (201, 1000, 200_000_000, Ordering::Greater),
            (199, 1000, 200_000_000, Ordering::Less),
            (0, 1000, 0, Ordering::Equal),
            (1, u64::MAX, 0, Ordering::Greater),
            (1, 3, 333_333_333, Ordering::Greater),
            (1, 3, 333_333_334, Ordering::Less),
            (u64::MAX, u64::MAX, PPB_WHOLE, Ordering::Equal),
            (u64::MAX, 1, u64::MAX, Ordering::Greater),
            (0, 0, 0, Ordering::Equal),
            (0, 0, PPB_WHOLE, Ordering::Equal),
        ] {
            assert_eq!(exceeds(part, total, limit_ppb), order == Ordering::Greater, "{part}/{total}");
            assert_eq!(falls_short(part, total, limit_ppb), order == Ordering::Less, "{part}/{total}");
        }
    }

    #[test]
    fn fractions_compare_and_print_by_value() {
        let of = |num, den| Fraction::new(num, den).unwrap();
        assert_eq!(Fraction::new(1, 0), None);
        assert_eq!(of(1, 2), of(2, 4));
        assert!(of(u64::MAX - 1, u64::MAX) < of(u64::MAX, u64::MAX));
        for (fraction, text) in [
            (of(1, 4), "0.25"),
            (of(1, 3), "0.333333333"),
            (of(3, 3), "1"),
            (of(0, 9), "0"),
            (of(5, 2), "2.5"),
        ] {
            assert_eq!(fraction.to_string(), text);
        }
        assert!(of(1, 3).exceeds(333_333_333) && !of(1, 4).exceeds(250_000_000));
        assert!((of(1, 4).as_f64() - 0.25).abs() < f64::EPSILON);
    }

    #[test]
    fn fractions_in_files() {
        let json = serde_json::to_string(&Fraction::new(2, 4)).unwrap();
        assert_eq!(json, r#"{"num":2,"den":4}"#);
        assert_eq!(serde_json::from_str::<Fraction>(&json).unwrap().den(), 4);
        let refused = serde_json::from_str::<Fraction>(r#"{"num":0,"den":0}"#).unwrap_err();
        assert!(refused.to_string().contains("write null instead"));
    }

    #[test]
    fn rates_are_exact_and_refuse_short_windows() {
        assert_eq!(Rate::new(833_000, 1), None);
        assert_eq!(Rate::new(0, RATE_WINDOW_MIN_US - 1), None);
        let third = Rate::new(1, 3_000_000).unwrap();
        assert_eq!(third.per_second(), PerSecond::from_milli(333));
        assert!(third.reaches(PerSecond::from_milli(333)) && !third.reaches(PerSecond::from_milli(334)));
        let ten = Rate::new(100, 10_000_000).unwrap();
        assert!(ten.reaches(PerSecond::from_whole(10)));
        assert_eq!(ten, Rate::new(10, 1_000_000).unwrap());
        assert!(third < ten);
        assert_eq!(Rate::new(u64::MAX, 1_000).unwrap().per_second(), PerSecond::from_milli(u64::MAX));
    }

    #[test]
    fn floats_for_display_are_finite_or_absent() {
        assert_eq!((share(0, 0), share(0, 4), share(1, 4)), (None, Some(0.0), Some(0.25)));
        assert_eq!((per_second(5, 0), per_second(5, 999)), (None, None));
        assert_eq!(per_second(5, 1_000_000), Some(5.0));
        assert!(per_second(u64::MAX, RATE_WINDOW_MIN_US).is_some_and(f64::is_finite));
    }

    #[test]
    fn per_second_text() {
        for (milli, text) in
            [(0, "0/s"), (1_500, "1.5/s"), (40_000, "40/s"), (1, "0.001/s"), (1_050, "1.05/s")]
        {
            assert_eq!(PerSecond::from_milli(milli).to_string(), text);
        }
        assert_eq!(PerSecond::from_whole(u64::MAX).milli(), u64::MAX);
    }

    #[test]
    fn goodput_counts_failures_as_sent() {
        let mut goodput = Goodput::default();
        assert_eq!(goodput.share(), None);
        [true, true, false, true].into_iter().for_each(|good| goodput.record(good));
        let mut both = goodput;
        both.merge(goodput);
        assert_eq!(both, Goodput { good: 6, sent: 8 });
        assert_eq!(both.share(), Fraction::new(3, 4));
        assert_eq!(both.rate(2_000_000).unwrap().per_second(), PerSecond::from_whole(3));
    }
}
