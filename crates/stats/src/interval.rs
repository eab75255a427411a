//! Intervals for "k of n" (statistical repro).

/// 97.5 % quantile of the normal distribution: a two-sided 95 % interval.
const Z: f64 = 1.959_963_984_540_054;

/// Wilson score interval of a share, 95 %; `None` when `n` is 0 or `k > n`.
#[must_use]
pub fn wilson(k: u64, n: u64) -> Option<(f64, f64)> {
    if n == 0 || k > n {
        return None;
    }
    let (k, n) = (k as f64, n as f64);
    let p = k / n;
    let z2 = Z * Z;
    let middle = p + z2 / (2.0 * n);
    let spread = Z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z2 / n;
    Some((((middle - spread) / scale).clamp(0.0, 1.0), ((middle + spread) / scale).clamp(0.0, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let (low, high) = wilson(5, 10).unwrap();
        assert!((low - 0.2366).abs() < 1e-3 && (high - 0.7634).abs() < 1e-3);
        let (low, high) = wilson(0, 200).unwrap();
        assert!(low.abs() < 1e-12 && (high - 0.0188).abs() < 1e-3);
        assert_eq!(wilson(0, 0), None);
        assert_eq!(wilson(3, 2), None);
    }
}
