//! Shares compared as integers: a float can turn exactly 20 % into a breach.

/// Parts per 10⁹ in one.
pub const PPB: u64 = 1_000_000_000;

/// Whether `part` of `total` is above the limit. Nothing of nothing is above no limit.
#[must_use]
pub fn exceeds(part: u64, total: u64, limit_ppb: u64) -> bool {
    u128::from(part) * u128::from(PPB) > u128::from(limit_ppb) * u128::from(total)
}

/// A share for display; `None` of an empty total.
#[must_use]
pub fn share(part: u64, total: u64) -> Option<f64> {
    (total > 0).then(|| part as f64 / total as f64)
}

/// Events per second over a span; `None` for an empty span.
#[must_use]
pub fn per_second(count: u64, span_us: u64) -> Option<f64> {
    (span_us > 0).then(|| count as f64 * 1e6 / span_us as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_at_the_limit_holds() {
        assert!(!exceeds(200, 1_000, 200_000_000));
        assert!(exceeds(201, 1_000, 200_000_000));
        assert!(!exceeds(0, 1_000, 0) && exceeds(1, 1_000_000_000, 0), "0 is a limit");
        assert!(!exceeds(0, 0, 0));
        assert!(exceeds(u64::MAX, u64::MAX, 999_999_999));
    }

    #[test]
    fn empty_is_not_zero() {
        assert_eq!(share(0, 0), None);
        assert_eq!(per_second(5, 0), None);
        assert_eq!(per_second(5, 1_000_000), Some(5.0));
    }
}
