//! Planned arrivals of an open loop: instants are the exact inverse of the summed rate, in integers.
//!
//! Gaps that are slept one by one drift, and pacers stumble over ramps, zero rates and catching up
//! (design load-and-mocks 2.1). Here each instant follows from its number alone, whatever came before.

use std::fmt;

use thiserror::Error;

use crate::ratio::PerSecond;

/// An arrival is made of this many parts: one thousandth a second for one nanosecond is exactly one part.
const PARTS_PER_ARRIVAL: u128 = 1_000_000_000_000;

/// 2⁶⁴ · ln 2, rounded.
const LN_2_Q64: u128 = 0xB172_17F7_D1CF_79AC;

/// Binary digits of a logarithm after the point: 2⁻⁵⁰ is a thousandth of a part.
const FRACTION_BITS: u32 = 50;

/// How much arrival is due, in parts of 10⁻¹² of one: the unit in which rates add up without rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Due(u128);

impl Due {
    /// The amount that is due when arrival `index`, from 0, is to happen: `index + 1` whole arrivals.
    #[must_use]
    pub const fn of_arrival(index: u64) -> Self {
        Self((index as u128 + 1) * PARTS_PER_ARRIVAL)
    }

    /// Adds the gap before the next arrival of a Poisson process, from a draw that is even over all of
    /// `u64`: `−ln((draw + 1) / 2⁶⁴)` arrivals, 1 on average, from 0 to 44.4.
    ///
    /// Computed in integers, so that the same seed gives the same instants on every machine.
    #[must_use]
    pub fn plus_poisson_gap(self, draw: u64) -> Self {
        Self(self.0.saturating_add(exponential(draw)))
    }

    /// In parts of 10⁻¹² of an arrival.
    #[must_use]
    pub const fn parts(self) -> u128 {
        self.0
    }
}

/// A rate over the time of one stage: constant, or rising or falling in a straight line.
///
/// Time is in nanoseconds from the start of the stage. Arrival `index` is planned at the first nanosecond
/// at which the summed rate reaches `index + 1`: the first of a constant rate r after 1/r, the last at the
/// end, so that a stage has exactly `floor(integral)` arrivals. What is left of an arrival ends with the
/// stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateCurve {
    from: PerSecond,
    to: PerSecond,
    duration_ns: u64,
}

/// A stage whose sums leave 127 bits, for example more than 10 000 000 a second for a day.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0} is too much for one stage: lower the rate, or split the time into several stages")]
pub struct CurveTooLarge(RateCurve);

impl fmt::Display for RateCurve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} over {} ms", self.from, self.to, self.duration_ns / 1_000_000)
    }
}

impl RateCurve {
    /// The same rate for all of the time.
    ///
    /// # Errors
    /// See [`CurveTooLarge`].
    pub fn constant(rate: PerSecond, duration_ns: u64) -> Result<Self, CurveTooLarge> {
        Self::ramp(rate, rate, duration_ns)
    }

    /// A straight line from one rate to another; either may be 0.
    ///
    /// # Errors
    /// See [`CurveTooLarge`].
    pub fn ramp(from: PerSecond, to: PerSecond, duration_ns: u64) -> Result<Self, CurveTooLarge> {
        let curve = Self { from, to, duration_ns };
        // all sums below are at most 2 · duration² · the larger rate, and one of them is signed
        let largest = i128::from(duration_ns)
            .checked_mul(i128::from(duration_ns))
            .and_then(|square| square.checked_mul(2))
            .and_then(|double| double.checked_mul(i128::from(from.max(to).milli())));
        if largest.is_some() { Ok(curve) } else { Err(CurveTooLarge(curve)) }
    }

    /// Length of the stage.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.duration_ns
    }

    /// Arrivals planned in `[0, at_ns]`: the floor of the integral of the rate. A pacer that wakes up at
    /// any time sends this many less what it has sent. Stays at the total after the end.
    #[must_use]
    pub fn count_until(&self, at_ns: u64) -> u64 {
        let parts = self.scaled_parts(at_ns.min(self.duration_ns)) / self.scale();
        u64::try_from(parts / PARTS_PER_ARRIVAL).expect("a stage holds fewer arrivals than its checked sums")
    }

    /// Arrivals of the whole stage.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.count_until(self.duration_ns)
    }

    /// Planned instant of arrival `index`, from 0, in nanoseconds; `None` past the last one.
    #[must_use]
    pub fn instant_of(&self, index: u64) -> Option<u64> {
        self.instant_due(Due::of_arrival(index))
    }

    /// The first nanosecond at which this much is due, or `None` when the stage ends before. With
    /// [`Due::plus_poisson_gap`] this gives a Poisson process that follows the ramp.
    #[must_use]
    pub fn instant_due(&self, due: Due) -> Option<u64> {
        let wanted = due.0.checked_mul(self.scale())?;
        if self.scaled_parts(self.duration_ns) < wanted {
            return None;
        }
        if self.from == self.to {
            // straight sums need no search; a rate of 0 only gets here with nothing due
            let rate = u128::from(self.from.milli());
            return if rate == 0 { Some(0) } else { u64::try_from(due.0.div_ceil(rate)).ok() };
        }
        // the sum never falls, so the first instant that reaches it is found by halving: 50 steps a day
        let (mut before, mut reached) = (0, self.duration_ns);
        while before < reached {
            let middle = before + (reached - before) / 2;
            if self.scaled_parts(middle) < wanted { before = middle + 1 } else { reached = middle }
        }
        Some(reached)
    }

    /// What sums are multiplied by to stay whole: a ramp divides by twice its duration.
    fn scale(&self) -> u128 {
        if self.from == self.to { 1 } else { 2 * u128::from(self.duration_ns.max(1)) }
    }

    /// The integral from 0 to `at_ns` in parts, times the scale. `at_ns` is within the duration.
    fn scaled_parts(&self, at_ns: u64) -> u128 {
        let (from, to) = (i128::from(self.from.milli()), i128::from(self.to.milli()));
        let at = i128::from(at_ns);
        let parts = if from == to {
            from * at
        } else {
            // from·t + (to − from)·t² / (2·duration), times 2·duration
            at * (2 * i128::from(self.duration_ns) * from + (to - from) * at)
        };
        u128::try_from(parts).expect("no rate of the line is negative, so neither is its sum")
    }
}

/// `−ln((draw + 1) / 2⁶⁴)` in parts of 10⁻¹², rounded down, within a few parts.
fn exponential(draw: u64) -> u128 {
    let x = u128::from(draw) + 1;
    let exponent = x.ilog2();
    // the mantissa in [1, 2) with 63 bits after the point; squaring it moves its logarithm up by one bit
    let mut mantissa = (x << 63) >> exponent;
    let mut fraction = 0_u128;
    for _ in 0..FRACTION_BITS {
        mantissa = (mantissa * mantissa) >> 63;
        fraction <<= 1;
        if mantissa >= 1 << 64 {
            mantissa >>= 1;
            fraction |= 1;
        }
    }
    let log2 = (u128::from(exponent) << FRACTION_BITS) + fraction;
    let minus_log2 = (64 << FRACTION_BITS) - log2;
    let nats = (minus_log2 * LN_2_Q64) >> 64;
    (nats * PARTS_PER_ARRIVAL) >> FRACTION_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn ramp(from: u64, to: u64, seconds: u64) -> RateCurve {
        RateCurve::ramp(PerSecond::from_whole(from), PerSecond::from_whole(to), seconds * SECOND).unwrap()
    }

    fn instants(curve: &RateCurve) -> Vec<u64> {
        (0..).map_while(|index| curve.instant_of(index)).collect()
    }

    #[test]
    fn a_constant_rate_is_even_and_complete() {
        let curve = ramp(4, 4, 2);
        assert_eq!(curve.total(), 8);
        assert_eq!(instants(&curve), (1..=8).map(|i| i * SECOND / 4).collect::<Vec<_>>());
        assert_eq!(curve.count_until(SECOND / 4 - 1), 0);
        assert_eq!(curve.count_until(SECOND / 4), 1);
        assert_eq!(curve.count_until(u64::MAX), 8);
    }

    #[test]
    fn a_rate_that_does_not_divide_a_second_does_not_drift() {
        let curve = ramp(3, 3, 86_400);
        assert_eq!(curve.total(), 3 * 86_400);
        assert_eq!(curve.instant_of(0), Some(333_333_334));
        assert_eq!(curve.instant_of(2), Some(SECOND));
        assert_eq!(curve.instant_of(3 * 86_400 - 1), Some(86_400 * SECOND));
        assert_eq!(curve.instant_of(3 * 86_400), None);
    }

    #[test]
    fn slow_rates_are_exact() {
        let curve = RateCurve::constant(PerSecond::from_milli(100), 35 * SECOND).unwrap();
        assert_eq!(instants(&curve), [10 * SECOND, 20 * SECOND, 30 * SECOND]);
    }

    #[test]
    fn ramps_follow_the_square() {
        // from 0 to 2 a second over 2 s the integral is t²/2
        let up = ramp(0, 2, 2);
        assert_eq!(instants(&up), [1_414_213_563, 2 * SECOND]);
        // the other way round it is 2t − t²/2, whose inverse is 2 − √(4 − 2i)
        let down = ramp(2, 0, 2);
        assert_eq!(instants(&down), [585_786_438, 2 * SECOND]);
        assert_eq!(ramp(1000, 8000, 60).total(), 270_000);
    }

    #[test]
    fn nothing_to_send() {
        for curve in [ramp(0, 0, 10), ramp(5, 5, 0), ramp(0, 5, 0)] {
            assert_eq!(curve.total(), 0, "{curve}");
            assert_eq!(curve.instant_of(0), None, "{curve}");
            assert_eq!(curve.instant_due(Due::default()), Some(0), "{curve}");
        }
    }

    #[test]
    fn the_largest_stage_is_exact_and_larger_ones_are_refused() {
        let day = 86_400;
        let curve = ramp(0, 10_000_000, day);
        let total = curve.total();
        assert_eq!(total, 5_000_000 * day);
        assert_eq!(curve.instant_of(total - 1), Some(day * SECOND));
        assert_eq!(curve.instant_of(total), None);
        assert_eq!(curve.instant_of(u64::MAX), None);
        let refused = RateCurve::constant(PerSecond::from_whole(10_000_000), 2 * day * SECOND).unwrap_err();
        assert!(refused.to_string().starts_with("10000000/s to 10000000/s over 172800000 ms is too much"));
        assert!(RateCurve::ramp(PerSecond::ZERO, PerSecond::from_milli(u64::MAX), u64::MAX).is_err());
        let short = RateCurve::constant(PerSecond::from_milli(u64::MAX), 1_000_000).unwrap();
        assert_eq!(short.total(), 18_446_744_073_709);
    }

    #[test]
    fn gaps_match_the_logarithm() {
        let mut draw = 1_u64;
        for step in 0..10_000 {
            let x = (draw as f64 + 1.0) / 2.0_f64.powi(64);
            let expected = -x.ln() * 1e12;
            let found = exponential(draw) as f64;
            // the float on the right is the less exact one when x is near 1
            let allowed = 3.0 + expected * 1e-12;
            assert!((found - expected).abs() <= allowed, "step {step}: draw {draw}: {found} {expected}");
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
    }

    #[test]
    fn gaps_of_chosen_draws() {
        // ln 2 = 0.693147180559945…; the ends of the range are finite
        for (draw, parts) in [
            (u64::MAX, 0),
            (u64::MAX / 2, 693_147_180_559),
            (u64::MAX / 4, 1_386_294_361_119),
            (0, 44_361_419_555_836),
        ] {
            assert_eq!(exponential(draw), parts);
        }
        assert_eq!(
            Due::of_arrival(u64::MAX).plus_poisson_gap(0).parts(),
            (1 << 64) * PARTS_PER_ARRIVAL + 44_361_419_555_836
        );
    }
}
