//! The bounded histogram: percentiles within 0.1 %, exact count, sum, minimum and maximum.

use std::fmt;

use hdrhistogram::Histogram as Buckets;

use crate::rank::Percentile;
use crate::sparse::SparseHistogram;
use crate::summary::Summary;

/// Largest value that has a bucket: 24 hours in microseconds. Larger ones are counted as over range.
pub const RANGE_MAX_US: u64 = 24 * 3_600 * 1_000_000;

/// Significant decimal digits of a bucket.
pub const SIGNIFICANT_DIGITS: u8 = 3;

/// Latencies in microseconds in fixed memory: 16 KiB for values up to 2 ms, growing with the largest
/// value to at most 224 KiB, nothing before the first one (design load-and-mocks 1.4 and 2.6).
///
/// Below 2048 µs each value has its own bucket; above, a bucket is at most 1/1024 of its values wide. A
/// percentile is the upper end of the bucket that holds its rank, cut to minimum and maximum: never below
/// the true value, at most 0.1 % above. Values over [`RANGE_MAX_US`] share one bucket, which reads as the
/// exact maximum; count, sum, minimum and maximum include them.
#[derive(Clone, Default)]
pub struct Histogram {
    buckets: Option<Buckets<u64>>,
    exact: Exact,
    over_range: u64,
}

/// What is known exactly of all values. Minimum and maximum mean nothing while the count is 0, and
/// leave this module as options only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Exact {
    count: u64,
    sum_us: u128,
    min_us: u64,
    max_us: u64,
}

impl Exact {
    fn absorb(&mut self, other: Self) {
        if other.count == 0 {
            return;
        }
        let empty = self.count == 0;
        self.min_us = if empty { other.min_us } else { self.min_us.min(other.min_us) };
        self.max_us = self.max_us.max(other.max_us);
        self.count = self.count.saturating_add(other.count);
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }
}

/// One bucket that holds something: the values `low_us..=high_us`, `count` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Smallest value of the bucket.
    pub low_us: u64,
    /// Largest value of the bucket.
    pub high_us: u64,
    /// Values recorded, at least one.
    pub count: u64,
}

/// No values yet, and room for the smallest range. The array grows by itself when a value needs it.
fn no_buckets() -> Buckets<u64> {
    let mut buckets = Buckets::new(SIGNIFICANT_DIGITS).expect("three digits are within what the crate takes");
    buckets.auto(true);
    buckets
}

impl Histogram {
    /// An empty histogram; allocates nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one value in microseconds.
    pub fn record(&mut self, value_us: u64) {
        self.record_n(value_us, 1);
    }

    /// Adds the same value several times.
    pub(crate) fn record_n(&mut self, value_us: u64, count: u64) {
        let sum_us = u128::from(value_us) * u128::from(count);
        self.exact.absorb(Exact { count, sum_us, min_us: value_us, max_us: value_us });
        if value_us > RANGE_MAX_US {
            self.over_range = self.over_range.saturating_add(count);
            return;
        }
        let buckets = self.buckets.get_or_insert_with(no_buckets);
        buckets
            .record_n(value_us, count)
            .expect("values up to the range limit fit after the array has grown");
    }

    /// Adds all values of another histogram: the result equals one histogram that saw both.
    /// (Counts stop at `u64::MAX`, 585 years of a thousand million a second.)
    pub fn merge(&mut self, other: &Self) {
        self.exact.absorb(other.exact);
        self.over_range = self.over_range.saturating_add(other.over_range);
        if let Some(theirs) = &other.buckets {
            let ours = self.buckets.get_or_insert_with(no_buckets);
            ours.add(theirs).expect("an array that grows takes all values of one with the same digits");
        }
    }

    /// Number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.exact.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.exact.count == 0
    }

    /// Exact sum.
    #[must_use]
    pub fn sum_us(&self) -> u128 {
        self.exact.sum_us
    }

    /// Exact smallest value.
    #[must_use]
    pub fn min_us(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.exact.min_us)
    }

    /// Exact largest value.
    #[must_use]
    pub fn max_us(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.exact.max_us)
    }

    /// Exact mean, rounded to the nearest microsecond (halves up).
    #[must_use]
    pub fn mean_us(&self) -> Option<u64> {
        crate::summary::mean(self.exact.sum_us, self.exact.count)
    }

    /// How many values were larger than [`RANGE_MAX_US`].
    #[must_use]
    pub fn over_range(&self) -> u64 {
        self.over_range
    }

    /// The percentile by nearest rank; see the type for its error. First and last rank are exact.
    #[must_use]
    pub fn percentile_us(&self, percentile: Percentile) -> Option<u64> {
        let [value] = self.percentiles_us([percentile])?;
        Some(value)
    }

    /// Several percentiles in one pass over the buckets; they must ascend.
    #[must_use]
    pub fn percentiles_us<const N: usize>(&self, ascending: [Percentile; N]) -> Option<[u64; N]> {
        debug_assert!(ascending.is_sorted(), "one pass finds ascending ranks only");
        let Exact { count, min_us, max_us, .. } = self.exact;
        // what the pass does not reach lies over the range, where the maximum is all that is known
        let mut found = [max_us; N];
        let mut buckets = self.buckets();
        let mut bucket_end = 0;
        let mut seen: u64 = 0;
        for (value, percentile) in found.iter_mut().zip(ascending) {
            let rank = percentile.rank(count)?;
            while seen < rank {
                let Some(bucket) = buckets.next() else { break };
                seen = seen.saturating_add(bucket.count);
                bucket_end = bucket.high_us;
            }
            // the first rank is known better than its bucket, and so is the last: no bucket ends above it
            *value = match rank {
                1 => min_us,
                _ if seen >= rank => bucket_end.min(max_us),
                _ => max_us,
            };
        }
        Some(found)
    }

    /// The buckets that hold something, ascending; values over the range are in none.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        self.buckets.iter().flat_map(|buckets| {
            buckets.iter_recorded().map(|step| Bucket {
                low_us: buckets.lowest_equivalent(step.value_iterated_to()),
                high_us: buckets.highest_equivalent(step.value_iterated_to()),
                count: step.count_at_value(),
            })
        })
    }

    /// The figures that reports show.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let percentiles = self.percentiles_us(Percentile::SUMMARY);
        Summary::from_parts(self.count(), self.min_us(), self.max_us(), self.mean_us(), percentiles)
    }

    /// The same values with an exactly known sum, minimum and maximum in place of those of the buckets.
    /// The caller (the reader of the sparse form) has checked that they fit.
    pub(crate) fn with_exact(mut self, sum_us: u128, min_us: u64, max_us: u64) -> Self {
        self.exact = Exact { count: self.exact.count, sum_us, min_us, max_us };
        self
    }
}

/// The bucket of a value, whatever has been recorded.
pub(crate) fn bucket_bounds(value_us: u64) -> (u64, u64) {
    // the layout by the definition of the digits: 2048 values one apart, then 1024 per doubling
    let doublings = value_us.max(1).ilog2().saturating_sub(10);
    let width = 1_u64 << doublings;
    let low = value_us / width * width;
    (low, low.saturating_add(width - 1))
}

impl PartialEq for Histogram {
    /// Equal values, whatever room each histogram has grown to.
    fn eq(&self, other: &Self) -> bool {
        self.exact == other.exact && self.over_range == other.over_range && self.buckets().eq(other.buckets())
    }
}

impl Eq for Histogram {}

impl fmt::Debug for Histogram {
    /// The sparse form: thousands of empty buckets help nobody.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SparseHistogram::from(self).fmt(f)
    }
}

impl FromIterator<u64> for Histogram {
    fn from_iter<I: IntoIterator<Item = u64>>(values_us: I) -> Self {
        let mut histogram = Self::new();
        values_us.into_iter().for_each(|value_us| histogram.record(value_us));
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_is_none_never_zero() {
        let empty = Histogram::new();
        assert_eq!((empty.count(), empty.sum_us(), empty.over_range()), (0, 0, 0));
        assert_eq!((empty.min_us(), empty.max_us(), empty.mean_us()), (None, None, None));
        assert_eq!(empty.percentile_us(Percentile::P50), None);
        assert_eq!(empty.buckets().count(), 0);
    }

    #[test]
    fn a_true_zero_is_a_value() {
        let one: Histogram = [0].into_iter().collect();
        assert_eq!((one.min_us(), one.max_us(), one.mean_us()), (Some(0), Some(0), Some(0)));
        assert_eq!(one.percentile_us(Percentile::P99), Some(0));
        let both: Histogram = [9, 0].into_iter().collect();
        assert_eq!((both.min_us(), both.percentile_us(Percentile::P50)), (Some(0), Some(0)));
    }

    #[test]
    fn small_sets_are_exact() {
        let histogram: Histogram = (1..=1000).collect();
        let found = histogram.percentiles_us(Percentile::SUMMARY).unwrap();
        assert_eq!(found, [500, 900, 950, 990, 999]);
        assert_eq!((histogram.mean_us(), histogram.sum_us()), (Some(501), 500_500));
    }

    #[test]
    fn first_and_last_rank_are_exact_at_any_size() {
        let histogram: Histogram = [1_234_567, 7_654_321].into_iter().collect();
        assert_eq!(histogram.percentile_us(Percentile::P50), Some(1_234_567));
        assert_eq!(histogram.percentile_us(Percentile::P99), Some(7_654_321));
    }

    #[test]
    fn values_over_the_range_are_counted_and_keep_the_maximum() {
        let at_the_end: Histogram = [RANGE_MAX_US].into_iter().collect();
        assert_eq!(at_the_end.over_range(), 0);
        let mut histogram: Histogram = [5, RANGE_MAX_US + 1, u64::MAX, u64::MAX].into_iter().collect();
        assert_eq!((histogram.count(), histogram.over_range()), (4, 3));
        assert_eq!(histogram.max_us(), Some(u64::MAX));
        assert_eq!(histogram.sum_us(), 5 + u128::from(RANGE_MAX_US) + 1 + 2 * u128::from(u64::MAX));
        assert_eq!(histogram.percentile_us(Percentile::P50), Some(u64::MAX));
        histogram.merge(&at_the_end);
        assert_eq!((histogram.count(), histogram.over_range()), (5, 3));
        assert_eq!(
            histogram.percentile_us(Percentile::from_ppm(300_000).unwrap()),
            Some(bucket_bounds(RANGE_MAX_US).1)
        );
    }

    #[test]
    fn bucket_layout_is_that_of_the_crate() {
        let mut probe = Histogram::new();
        probe.record(RANGE_MAX_US);
        let buckets = probe.buckets.as_ref().unwrap();
        let mut value = 1_u64;
        while value <= RANGE_MAX_US {
            for near in [value - 1, value, value + 1] {
                let (low, high) = bucket_bounds(near);
                assert_eq!(low, buckets.lowest_equivalent(near), "{near}");
                assert_eq!(high, buckets.highest_equivalent(near), "{near}");
            }
            value = value * 3 / 2 + 1;
        }
        for power in 0..37 {
            for near in [(1_u64 << power) - 1, 1 << power, (1 << power) + 1] {
                assert_eq!(bucket_bounds(near).0, buckets.lowest_equivalent(near), "{near}");
            }
        }
    }

    #[test]
    fn equality_ignores_room() {
        let mut grown: Histogram = [RANGE_MAX_US].into_iter().collect();
        let mut small: Histogram = [1].into_iter().collect();
        assert_ne!(grown, small);
        grown.record(1);
        small.record(RANGE_MAX_US);
        assert_eq!(grown, small);
    }
}
