//! The figures of one set of values that every report and file shows in the same shape.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rank::Percentile;

/// Figures of one set of latencies in microseconds. All are of the same values; with none, all are null.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Number of values.
    pub n: u64,
    /// Exact smallest value.
    pub min_us: Option<u64>,
    /// Exact largest value.
    pub max_us: Option<u64>,
    /// Exact mean, rounded to the nearest microsecond.
    pub mean_us: Option<u64>,
    /// Median by nearest rank.
    pub p50_us: Option<u64>,
    /// 90th percentile by nearest rank.
    pub p90_us: Option<u64>,
    /// 95th percentile by nearest rank.
    pub p95_us: Option<u64>,
    /// 99th percentile by nearest rank.
    pub p99_us: Option<u64>,
    /// 99.9th percentile by nearest rank.
    pub p999_us: Option<u64>,
    /// Percentiles above for which there are too few values: `n < 100 / (100 − p)`. Empty when `n` is 0,
    /// because then there are no figures to mark.
    pub low_n: Vec<Percentile>,
}

impl Summary {
    /// Exact figures of values in ascending order.
    #[must_use]
    pub fn of_sorted(sorted_us: &[u64]) -> Self {
        let n = sorted_us.len() as u64;
        let sum = sorted_us.iter().map(|value| u128::from(*value)).sum();
        let percentiles =
            (n > 0).then(|| Percentile::SUMMARY.map(|p| p.of_sorted(sorted_us).expect("there are values")));
        Self::from_parts(n, sorted_us.first().copied(), sorted_us.last().copied(), mean(sum, n), percentiles)
    }

    /// From figures found elsewhere; the percentiles are those of [`Percentile::SUMMARY`].
    pub(crate) fn from_parts(
        n: u64,
        min_us: Option<u64>,
        max_us: Option<u64>,
        mean_us: Option<u64>,
        percentiles_us: Option<[u64; 5]>,
    ) -> Self {
        let [p50_us, p90_us, p95_us, p99_us, p999_us] = percentiles_us.map_or([None; 5], |all| all.map(Some));
        let low_n = Percentile::SUMMARY.into_iter().filter(|p| n > 0 && p.is_low_n(n)).collect();
        Self { n, min_us, max_us, mean_us, p50_us, p90_us, p95_us, p99_us, p999_us, low_n }
    }
}

/// Sum over count to the nearest whole (halves up); `None` for no values.
pub(crate) fn mean(sum: u128, count: u64) -> Option<u64> {
    let count = u128::from(count);
    let rounded = sum.checked_add(count / 2)?.checked_div(count)?;
    u64::try_from(rounded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Histogram;

    #[test]
    fn empty_summary_has_nulls_only() {
        let json = serde_json::to_string(&Histogram::new().summary()).unwrap();
        assert_eq!(
            json,
            r#"{"n":0,"min_us":null,"max_us":null,"mean_us":null,"p50_us":null,"p90_us":null,"p95_us":null,"p99_us":null,"p999_us":null,"low_n":[]}"#
        );
        assert_eq!(Summary::of_sorted(&[]), Histogram::new().summary());
    }

    #[test]
    fn low_n_names_what_is_weak() {
        for (n, low) in [
            (1, &["p50", "p90", "p95", "p99", "p999"][..]),
            (2, &["p90", "p95", "p99", "p999"]),
            (10, &["p95", "p99", "p999"]),
            (20, &["p99", "p999"]),
            (100, &["p999"]),
            (1000, &[]),
        ] {
            let values: Vec<u64> = (0..n).collect();
            let exact = Summary::of_sorted(&values);
            let names: Vec<String> = exact.low_n.iter().map(ToString::to_string).collect();
            assert_eq!(names, low, "{n}");
            assert_eq!(exact, values.into_iter().collect::<Histogram>().summary());
        }
    }

    #[test]
    fn mean_rounds_to_nearest() {
        for (sum, count, expected) in
            [(0, 0, None), (0, 3, Some(0)), (1, 3, Some(0)), (1, 2, Some(1)), (5, 3, Some(2))]
        {
            assert_eq!(mean(sum, count), expected);
        }
        assert_eq!(mean(u128::from(u64::MAX) * 9, 9), Some(u64::MAX));
    }

    #[test]
    fn round_trip() {
        let summary = (0..50).collect::<Histogram>().summary();
        let json = serde_json::to_string(&summary).unwrap();
        assert_eq!(serde_json::from_str::<Summary>(&json).unwrap(), summary);
    }
}
