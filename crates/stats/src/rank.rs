//! Nearest-rank percentiles on sorted samples.

/// Percentile in hundredths of a percent, so that 99.9 % is exact: 9,990.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percentile(u32);

impl Percentile {
    /// Median.
    pub const P50: Self = Self(5_000);
    /// 90 %.
    pub const P90: Self = Self(9_000);
    /// 95 %.
    pub const P95: Self = Self(9_500);
    /// 99 %.
    pub const P99: Self = Self(9_900);
    /// 99.9 %.
    pub const P999: Self = Self(9_990);

    /// From hundredths of a percent; `None` above 100 %.
    #[must_use]
    pub const fn new(hundredths: u32) -> Option<Self> {
        if hundredths <= 10_000 { Some(Self(hundredths)) } else { None }
    }

    /// As percent.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// Position from 1 in `n` sorted samples: ⌈p·n⌉, at least 1.
    #[must_use]
    pub fn rank(self, n: u64) -> u64 {
        let exact = u128::from(n) * u128::from(self.0);
        u64::try_from(exact.div_ceil(10_000)).unwrap_or(u64::MAX).max(1)
    }

    /// Whether `n` is too small to tell this percentile from the maximum.
    #[must_use]
    pub fn low_n(self, n: u64) -> bool {
        u128::from(n) * u128::from(10_000 - self.0) < 10_000
    }
}

/// The percentile of sorted samples; `None` when there are none.
#[must_use]
pub fn of_sorted(sorted: &[u64], percentile: Percentile) -> Option<u64> {
    let position = percentile.rank(sorted.len() as u64).saturating_sub(1);
    sorted.get(usize::try_from(position).ok()?).or(sorted.last()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_small_sets() {
        assert_eq!(of_sorted(&[], Percentile::P50), None);
        assert_eq!(of_sorted(&[7], Percentile::P99), Some(7));
        assert_eq!(of_sorted(&[1, 2], Percentile::P50), Some(1));
        assert_eq!(of_sorted(&[1, 2], Percentile::P95), Some(2), "p95 of two is the larger one");
        let ten: Vec<u64> = (1..=10).collect();
        assert_eq!(of_sorted(&ten, Percentile::P99), Some(10));
        assert_eq!(of_sorted(&ten, Percentile::P90), Some(9));
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(of_sorted(&hundred, Percentile::P95), Some(95));
        assert_eq!(of_sorted(&hundred, Percentile::P999), Some(100));
    }

    #[test]
    fn low_n_is_marked() {
        assert!(Percentile::P99.low_n(99) && !Percentile::P99.low_n(100));
        assert!(Percentile::P50.low_n(1) && !Percentile::P50.low_n(2));
        assert!(Percentile::P999.low_n(999) && !Percentile::P999.low_n(1_000));
    }
}
