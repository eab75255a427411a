//! Percentiles by nearest rank: the one definition, exact on sorted values and exact against a limit.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// Parts in a whole: percentiles are kept as whole parts per million, so that ranks are exact.
const WHOLE_PPM: u32 = 1_000_000;

/// A percentile strictly between 0 and 100, with at most four digits after the point.
///
/// Text form: `p50`, `p95`, `p999` (99.9) as in the names of summary fields: the first two digits are
/// whole, the others follow the point. `p99.9` is read as well. 0 and 100 are refused, because they are
/// the minimum and the maximum, which are exact and have names of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percentile(u32);

/// Why a percentile could not be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a percentile: write p50, p95 or p99.9, between 0 and 100, at most four decimals")]
pub struct PercentileError(String);

impl Percentile {
    /// The median.
    pub const P50: Self = Self(500_000);
    /// 90.
    pub const P90: Self = Self(900_000);
    /// 95.
    pub const P95: Self = Self(950_000);
    /// 99.
    pub const P99: Self = Self(990_000);
    /// 99.9.
    pub const P999: Self = Self(999_000);
    /// Those of a [`Summary`](crate::Summary), ascending.
    pub const SUMMARY: [Self; 5] = [Self::P50, Self::P90, Self::P95, Self::P99, Self::P999];

    /// From parts per million, 990 000 for p99. `None` for 0, for a million and above.
    #[must_use]
    pub const fn from_ppm(ppm: u32) -> Option<Self> {
        if ppm == 0 || ppm >= WHOLE_PPM { None } else { Some(Self(ppm)) }
    }

    /// In parts per million.
    #[must_use]
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// The rank, from 1, of this percentile among `n` sorted values: `ceil(p / 100 · n)`.
    /// `None` when there are none.
    #[must_use]
    pub fn rank(self, n: u64) -> Option<u64> {
        if n == 0 {
            return None;
        }
        let rank = (u128::from(self.0) * u128::from(n)).div_ceil(u128::from(WHOLE_PPM));
        Some(u64::try_from(rank).expect("a percentile is below 100, so a rank is at most n"))
    }

    /// Whether `n` values are too few for this percentile to be more than the maximum under another name:
    /// `n < 100 / (100 − p)`, for example fewer than 100 for p99. Such figures are marked, not hidden.
    #[must_use]
    pub fn is_low_n(self, n: u64) -> bool {
        u128::from(n) * u128::from(WHOLE_PPM - self.0) < u128::from(WHOLE_PPM)
    }

    /// Whether this percentile of `n` values is at or below a limit that `over` of them exceed.
    /// `None` when there are no values, or fewer than `over`.
    ///
    /// This judges a limit exactly with two counters and no histogram: a histogram's percentile may be
    /// up to 0.1 % too high, which must not turn a run red.
    #[must_use]
    pub fn within_limit(self, n: u64, over: u64) -> Option<bool> {
        // the value at the rank is within the limit when at least that many values are
        Some(n.checked_sub(over)? >= self.rank(n)?)
    }

    /// The exact percentile of values in ascending order, by nearest rank; `None` for an empty slice.
    #[must_use]
    pub fn of_sorted<T: Copy + PartialOrd>(self, sorted: &[T]) -> Option<T> {
        debug_assert!(sorted.is_sorted(), "a rank means nothing among unsorted values");
        let rank = self.rank(sorted.len() as u64)?;
        let index = usize::try_from(rank - 1).expect("a rank is at most the length of the slice");
        sorted.get(index).copied()
    }
}

impl fmt::Display for Percentile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:06}", self.0);
        let decimals = digits[2..].trim_end_matches('0');
        write!(f, "p{}{decimals}", &digits[..2])
    }
}

impl FromStr for Percentile {
    type Err = PercentileError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || PercentileError(text.chars().take(32).collect());
        let number = text.strip_prefix('p').ok_or_else(refused)?;
        let (whole, decimals) = match number.split_once('.') {
            Some((whole, decimals)) if !decimals.is_empty() => (whole, decimals),
            Some(_) => return Err(refused()),
            // p100 must not be read as 10.0: without a point a last decimal of 0 is refused
            None if number.len() > 2 && number.ends_with('0') => return Err(refused()),
            // the first two digits are whole; a single digit is whole too
            None => number.split_at_checked(2).unwrap_or((number, "")),
        };
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if !(1..=2).contains(&whole.len())
            || decimals.len() > 4
            || !all_digits(whole)
            || !all_digits(decimals)
        {
            return Err(refused());
        }
        let ppm = format!("{whole}{decimals:0<4}").parse().map_err(|_| refused())?;
        Self::from_ppm(ppm).ok_or_else(refused)
    }
}

impl Serialize for Percentile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Percentile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Percentile {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Percentile".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Percentile by nearest rank: p50, p95, p999 (99.9).",
            "pattern": r"^p[0-9]{1,2}(\.[0-9]{1,4}|[0-9]{0,3}[1-9])?$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_small_sets() {
        // (percentile, n, rank, low n)
        let table = [
            (Percentile::P50, 1, 1, true),
            (Percentile::P50, 2, 1, false),
            (Percentile::P50, 3, 2, false),
            (Percentile::P50, 4, 2, false),
            (Percentile::P90, 9, 9, true),
            (Percentile::P90, 10, 9, false),
            (Percentile::P90, 11, 10, false),
            (Percentile::P95, 19, 19, true),
            (Percentile::P95, 20, 19, false),
            (Percentile::P99, 1, 1, true),
            (Percentile::P99, 99, 99, true),
            (Percentile::P99, 100, 99, false),
            (Percentile::P99, 101, 100, false),
            (Percentile::P999, 999, 999, true),
            (Percentile::P999, 1000, 999, false),
            (Percentile(1), 5, 1, false),
            // the largest count there is neither overflows nor rounds
            (Percentile(999_999), u64::MAX, u64::MAX - u64::MAX / 1_000_000, false),
        ];
        for (p, n, rank, low) in table {
            assert_eq!(p.rank(n), Some(rank), "{p} of {n}");
            assert_eq!(p.is_low_n(n), low, "{p} of {n}");
        }
        assert_eq!(Percentile::P50.rank(0), None);
        assert!(Percentile::P50.is_low_n(0));
    }

    #[test]
    fn exact_values_of_small_sets() {
        let none: [u64; 0] = [];
        assert_eq!(Percentile::P50.of_sorted(&none), None);
        assert_eq!(Percentile::P999.of_sorted(&[7]), Some(7));
        assert_eq!(Percentile::P50.of_sorted(&[1, 2]), Some(1));
        assert_eq!(Percentile::P50.of_sorted(&[1, 2, 3]), Some(2));
        assert_eq!(Percentile::P90.of_sorted(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), Some(9));
        assert_eq!(Percentile::P99.of_sorted(&[1.5, 2.5]), Some(2.5));
    }

    #[test]
    fn a_limit_is_judged_by_counts() {
        // p95 of 20 values is the 19th: one value may exceed the limit, two may not
        assert_eq!(Percentile::P95.within_limit(20, 0), Some(true));
        assert_eq!(Percentile::P95.within_limit(20, 1), Some(true));
        assert_eq!(Percentile::P95.within_limit(20, 2), Some(false));
        assert_eq!(Percentile::P95.within_limit(19, 1), Some(false));
        assert_eq!(Percentile::P95.within_limit(0, 0), None);
        assert_eq!(Percentile::P95.within_limit(3, 4), None);
    }

    #[test]
    fn text_forms() {
        for (text, ppm, shown) in [
            ("p50", 500_000, "p50"),
            ("p5", 50_000, "p05"),
            ("p05", 50_000, "p05"),
            ("p99.9", 999_000, "p999"),
            ("p999", 999_000, "p999"),
            ("p99.9999", 999_999, "p999999"),
            ("p999999", 999_999, "p999999"),
            ("p0.1", 1_000, "p001"),
            ("p99.50", 995_000, "p995"),
        ] {
            let read: Percentile = text.parse().unwrap();
            assert_eq!(read.ppm(), ppm, "{text}");
            assert_eq!(read.to_string(), shown);
            assert_eq!(shown.parse(), Ok(read));
            assert_eq!(serde_json::from_str::<Percentile>(&format!("{shown:?}")).unwrap(), read);
        }
        for text in [
            "",
            "p",
            "50",
            "p0",
            "p00",
            "p100",
            "p990",
            "p1000",
            "p100.0",
            "p.5",
            "p99.",
            "p-1",
            "p99.99999",
            "pé9",
            "p9é",
            "p+1",
        ] {
            assert!(text.parse::<Percentile>().is_err(), "{text}");
        }
        assert!("p".repeat(100_000).parse::<Percentile>().unwrap_err().to_string().len() < 200);
    }
}
