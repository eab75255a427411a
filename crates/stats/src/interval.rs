//! How far a measured figure can be trusted: a share of few tries, and two sets of few runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Confidence of every interval of this module: 95 %, of which each side may miss half the rest.
pub const CONFIDENCE: f64 = 0.95;

/// The 97.5 % point of the normal distribution, which belongs to [`CONFIDENCE`].
const Z: f64 = 1.959_963_984_540_054;

/// Most runs a side that [`ratio_of_runs`] takes; the count of their orderings fits 128 bits.
pub const RUNS_MAX: usize = 64;

/// A range of plausible values, both ends finite.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The Wilson score interval of "k of n", for example of reproductions (design section 11). `None` of no
/// tries, and of more hits than tries.
///
/// Unlike the plain one it stays within 0 and 1 and says something at 0 of n and n of n.
#[must_use]
pub fn wilson(k: u64, n: u64) -> Option<Interval> {
    if n == 0 || k > n {
        return None;
    }
    let (tries, z2) = (n as f64, Z * Z);
    let p = k as f64 / tries;
    let center = (p + z2 / (2.0 * tries)) / (1.0 + z2 / tries);
    let half = Z / (1.0 + z2 / tries) * (p * (1.0 - p) / tries + z2 / (4.0 * tries * tries)).sqrt();
    // the ends are exact where rounding would put them next to 0 and 1
    let low = if k == 0 { 0.0 } else { (center - half).max(0.0) };
    let high = if k == n { 1.0 } else { (center + half).min(1.0) };
    Some(Interval { low, high })
}

/// How a figure of the runs of one side relates to the same figure of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RatioOfRuns {
    /// Runs of the side that is compared with.
    pub n_before: usize,
    /// Runs of the side that is judged.
    pub n_after: usize,
    /// Median of `after / before` over all pairs: 1 is no change, 1.1 a tenth more.
    pub median: f64,
    /// Range of the ratio that holds with the confidence of `coverage`.
    pub interval: Interval,
    /// Confidence that so few runs allow, at most near [`CONFIDENCE`] and above: 0 for one run a side,
    /// 0.9 for three. A judge asks for at least 0.95 (four runs a side) before it calls a difference real.
    pub coverage: f64,
}

/// Compares two sets of runs by the ratios of all pairs, `None` when a side is empty, larger than
/// [`RUNS_MAX`] or holds a 0 (which has no ratio).
///
/// Median and interval are order statistics of the pairs (Hodges and Lehmann; the interval inverts the
/// rank test of Mann and Whitney). Nothing is drawn at random and no shape of the data is assumed but
/// that both sides have the same one up to a factor.
#[must_use]
pub fn ratio_of_runs(before: &[u64], after: &[u64]) -> Option<RatioOfRuns> {
    let usable = |side: &[u64]| (1..=RUNS_MAX).contains(&side.len()) && !side.contains(&0);
    if !usable(before) || !usable(after) {
        return None;
    }
    let mut ratios: Vec<f64> =
        before.iter().flat_map(|&b| after.iter().map(move |&a| a as f64 / b as f64)).collect();
    ratios.sort_by(f64::total_cmp);
    let (cut, coverage) = cut_for(before.len(), after.len());
    let middle = (ratios.len() - 1) / 2;
    let median = if ratios.len() % 2 == 1 {
        ratios[middle]
    } else {
        // the geometric mean, so that exchanging the sides gives the reciprocal
        (ratios[middle] * ratios[middle + 1]).sqrt()
    };
    let interval = Interval { low: ratios[cut], high: ratios[ratios.len() - 1 - cut] };
    Some(RatioOfRuns { n_before: before.len(), n_after: after.len(), median, interval, coverage })
}

/// How many of the sorted ratios to cut at each end for [`CONFIDENCE`], and the coverage that remains.
/// With too few runs nothing can be cut and the coverage is lower.
fn cut_for(m: usize, n: usize) -> (usize, f64) {
    let ways = orderings(m, n);
    let total: u128 = ways.iter().sum();
    let (mut cut, mut below) = (0, ways[0]);
    let outside = |ways: u128| 2.0 * (ways as f64 / total as f64);
    while let Some(next) = ways.get(cut + 1) {
        if outside(below + next) > 1.0 - CONFIDENCE {
            break;
        }
        below += next;
        cut += 1;
    }
    (cut, (1.0 - outside(below)).max(0.0))
}

/// In how many orderings of `m` and `n` runs exactly `u` pairs are inverted, for u from 0 to m·n.
fn orderings(m: usize, n: usize) -> Vec<u128> {
    // rows[j][u] for the first i runs of one side: the largest run belongs to one side or the other
    let mut rows = vec![vec![0_u128; m * n + 1]; n + 1];
    rows.iter_mut().for_each(|row| row[0] = 1);
    for _ in 1..=m {
        for j in 1..=n {
            for u in (0..=m * n).rev() {
                let with_this_side_largest = if u >= j { rows[j][u - j] } else { 0 };
                rows[j][u] = rows[j - 1][u] + with_this_side_largest;
            }
        }
    }
    rows.swap_remove(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 5e-5
    }

    #[test]
    fn wilson_against_published_values() {
        // (k, n, low, high)
        for (k, n, low, high) in [
            (0, 10, 0.0, 0.2775),
            (10, 10, 0.7225, 1.0),
            (1, 1, 0.2065, 1.0),
            (5, 10, 0.2366, 0.7634),
            (9, 10, 0.5958, 0.9821),
            (81, 263, 0.2553, 0.3662),
        ] {
            let found = wilson(k, n).unwrap();
            assert!(close(found.low, low) && close(found.high, high), "{k} of {n}: {found:?}");
        }
        assert_eq!((wilson(0, 0), wilson(3, 2)), (None, None));
        for n in 1..500 {
            let (none, all) = (wilson(0, n).unwrap(), wilson(n, n).unwrap());
            assert!(none.low.to_bits() == 0 && all.high.to_bits() == 1.0_f64.to_bits(), "{n}");
        }
        let most = wilson(u64::MAX - 1, u64::MAX).unwrap();
        assert!(most.low.is_finite() && most.low <= most.high && most.high <= 1.0);
    }

    #[test]
    fn orderings_count_all_arrangements() {
        assert_eq!(orderings(1, 1), [1, 1]);
        assert_eq!(orderings(2, 2), [1, 1, 2, 1, 1]);
        assert_eq!(orderings(3, 2), [1, 1, 2, 2, 2, 1, 1]);
        assert_eq!(orderings(2, 3), orderings(3, 2));
        assert_eq!(orderings(5, 5).iter().sum::<u128>(), 252);
        // 128 choose 64, the largest there is, fits
        let all: u128 = orderings(RUNS_MAX, RUNS_MAX).iter().sum();
        assert_eq!(all, 23_951_146_041_928_082_866_135_587_776_380_551_750);
    }

    #[test]
    fn coverage_of_few_runs() {
        // critical values of the rank test at 5 %: U = 0 at 4 and 4, 2 at 5 and 5, 23 at 10 and 10
        for (m, n, cut, coverage) in [
            (1, 1, 0, 0.0),
            (2, 2, 0, 0.6667),
            (3, 3, 0, 0.9),
            (4, 4, 0, 0.9714),
            (5, 5, 2, 0.9683),
            (10, 10, 23, 0.9567),
        ] {
            let found = cut_for(m, n);
            assert_eq!(found.0, cut, "{m} and {n}");
            assert!(close(found.1, coverage), "{m} and {n}: {}", found.1);
        }
    }

    #[test]
    fn ratios_of_runs() {
        let same = ratio_of_runs(&[100, 110, 90, 105], &[100, 110, 90, 105]).unwrap();
        assert!(close(same.median, 1.0) && same.interval.low < 1.0 && same.interval.high > 1.0);
        let slower = ratio_of_runs(&[100, 101, 99, 100], &[120, 121, 119, 122]).unwrap();
        assert!(slower.interval.low > 1.15 && slower.interval.high < 1.25 && slower.coverage >= CONFIDENCE);
        // exchanged sides give reciprocals
        let faster = ratio_of_runs(&[120, 121, 119, 122], &[100, 101, 99, 100]).unwrap();
        assert!(close(faster.median * slower.median, 1.0));
        assert!(close(faster.interval.low * slower.interval.high, 1.0));
        // one outlier among the runs moves the median little
        let outlier = ratio_of_runs(&[100, 100, 100, 100], &[101, 101, 101, 9_000]).unwrap();
        assert!(outlier.median < 1.02);
    }

    #[test]
    fn no_ratio_without_values() {
        for (before, after) in [(&[][..], &[1][..]), (&[1], &[]), (&[0, 1], &[1]), (&[1], &[1, 0])] {
            assert_eq!(ratio_of_runs(before, after), None);
        }
        assert_eq!(ratio_of_runs(&[1; RUNS_MAX + 1], &[1]), None);
        let extreme = ratio_of_runs(&[1], &[u64::MAX]).unwrap();
        assert!(extreme.median.is_finite() && extreme.coverage.abs() < f64::EPSILON);
    }
}
