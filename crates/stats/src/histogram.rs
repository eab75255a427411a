//! A bounded latency histogram in microseconds.

use hdrhistogram::Histogram as Hdr;

use crate::rank::Percentile;

/// Largest value told apart, 24 h; above it values are counted in the overflow and the exact maximum is kept.
pub const VALUE_MAX_US: u64 = 24 * 3_600 * 1_000_000;
/// Three significant digits: at most 0.1 % relative error.
const DIGITS: u8 = 3;

/// Latencies with exact count, minimum, maximum and sum. Its size does not grow with the number of values.
#[derive(Clone, Debug)]
pub struct Histogram {
    hdr: Hdr<u64>,
    overflow: u64,
    count: u64,
    sum: u128,
    min: Option<u64>,
    max: Option<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        let hdr = Hdr::new_with_bounds(1, VALUE_MAX_US, DIGITS).expect("constant bounds are in order");
        Self { hdr, overflow: 0, count: 0, sum: 0, min: None, max: None }
    }
}

impl Histogram {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value.
    pub fn record(&mut self, value_us: u64) {
        self.count += 1;
        self.sum += u128::from(value_us);
        self.min = Some(self.min.map_or(value_us, |min| min.min(value_us)));
        self.max = Some(self.max.map_or(value_us, |max| max.max(value_us)));
        if value_us > VALUE_MAX_US || self.hdr.record(value_us).is_err() {
            self.overflow += 1;
        }
    }

    /// Adds all values of another one; equal to having recorded them here.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same constant bounds, so that adding can't fail.
        self.hdr.add(&other.hdr).expect("histograms share their bounds");
        self.overflow += other.overflow;
        self.count += other.count;
        self.sum += other.sum;
        self.min = [self.min, other.min].into_iter().flatten().min();
        self.max = [self.max, other.max].into_iter().flatten().max();
    }

    /// Values recorded.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Values above [`VALUE_MAX_US`].
    #[must_use]
    pub const fn overflow(&self) -> u64 {
        self.overflow
    }

    /// Smallest.
    #[must_use]
    pub const fn min_us(&self) -> Option<u64> {
        self.min
    }

    /// Largest.
    #[must_use]
    pub const fn max_us(&self) -> Option<u64> {
        self.max
    }

    /// Mean, rounded down.
    #[must_use]
    pub fn mean_us(&self) -> Option<u64> {
        u64::try_from(self.sum.checked_div(u128::from(self.count))?).ok()
    }

    /// Nearest-rank percentile within 0.1 %, never outside `[min, max]`; `None` when empty.
    #[must_use]
    pub fn percentile(&self, percentile: Percentile) -> Option<u64> {
        let (min, max) = (self.min?, self.max?);
        let rank = percentile.rank(self.count);
        if rank > self.count - self.overflow {
            return Some(max);
        }
        let mut seen = 0;
        for bucket in self.hdr.iter_recorded() {
            seen += bucket.count_since_last_iteration();
            if seen >= rank {
                return Some(bucket.value_iterated_to().clamp(min, max));
            }
        }
        Some(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::of_sorted;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_values_are_within_a_thousandth_of_the_exact_rank(mut values in prop::collection::vec(0_u64..200_000_000_000, 1..300)) {
            let mut histogram = Histogram::new();
            values.iter().for_each(|value| histogram.record(*value));
            values.sort_unstable();
            for p in [Percentile::P50, Percentile::P95, Percentile::P99] {
                let exact = of_sorted(&values, p).unwrap();
                let read = histogram.percentile(p).unwrap();
                prop_assert!(read <= *values.last().unwrap());
                if exact <= VALUE_MAX_US {
                    prop_assert!(read.abs_diff(exact) <= exact / 1_000 + 1, "{read} against {exact}");
                }
            }
        }

        #[test]
        fn any_merge_equals_the_whole(left in prop::collection::vec(any::<u64>(), 0..100), right in prop::collection::vec(0_u64..1_000_000, 0..100)) {
            let (mut a, mut b, mut whole) = (Histogram::new(), Histogram::new(), Histogram::new());
            left.iter().for_each(|v| { a.record(*v); whole.record(*v); });
            right.iter().for_each(|v| { b.record(*v); whole.record(*v); });
            a.merge(&b);
            prop_assert_eq!((a.count(), a.min_us(), a.max_us(), a.mean_us(), a.overflow()),
                (whole.count(), whole.min_us(), whole.max_us(), whole.mean_us(), whole.overflow()));
            prop_assert_eq!(a.percentile(Percentile::P95), whole.percentile(Percentile::P95));
        }
    }

    #[test]
    fn empty_has_no_numbers() {
        let histogram = Histogram::new();
        assert_eq!(
            (histogram.percentile(Percentile::P99), histogram.max_us(), histogram.mean_us()),
            (None, None, None)
        );
    }
}
