//! Quantities as people write them in a scenario file: durations with a unit, fractions as decimals.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Why a quantity could not be read. Each message says what to write instead.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum UnitError {
    /// No unit, an unknown unit, or not a number.
    #[error("{0:?} is not a duration: write a number with a unit, for example 150ms, 10s, 5m or 1h")]
    Duration(String),
    /// The duration does not fit.
    #[error("{0:?} is longer than 365 days")]
    TooLong(String),
    /// Not a decimal between 0 and 1 with at most nine digits after the point.
    #[error(
        "{0:?} is not a fraction: write a decimal from 0 to 1 with at most nine digits, for example 0.25"
    )]
    Fraction(String),
}

/// A span of time in microseconds. Text form: number and unit, `us`, `ms`, `s`, `m` or `h`; no bare numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

const YEAR_US: u64 = 365 * 24 * 3_600 * 1_000_000;
const UNITS: [(&str, u64); 5] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000)];

impl Micros {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// From microseconds.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self(us)
    }

    /// From milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000)
    }

    /// From seconds.
    #[must_use]
    pub const fn from_s(s: u64) -> Self {
        Self(s * 1_000_000)
    }

    /// In microseconds.
    #[must_use]
    pub const fn us(self) -> u64 {
        self.0
    }

    /// As a standard duration.
    #[must_use]
    pub const fn duration(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0)
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// [`UnitError::Duration`] without a known unit or with a sign, [`UnitError::TooLong`] beyond a year.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let bad = || UnitError::Duration(text.to_owned());
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (number, unit) = text.split_at(digits);
        let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?.1;
        let nano = parse_decimal(number).ok_or_else(bad)?;
        let us = nano * u128::from(factor) / 1_000_000_000;
        let us = u64::try_from(us).ok().filter(|us| *us <= YEAR_US);
        us.map(Self).ok_or_else(|| UnitError::TooLong(text.to_owned()))
    }
}

/// A plain decimal as parts per 10⁹; at most nine digits after the point. Fourteen before it
/// are what a year in microseconds needs.
fn parse_decimal(text: &str) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let plain = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || whole.len() > 14 || fraction.len() > 9 || !plain(whole) || !plain(fraction) {
        return None;
    }
    if text.contains('.') && fraction.is_empty() {
        return None;
    }
    let scaled: u128 = format!("{fraction:0<9}").parse().ok()?;
    Some(whole.parse::<u128>().ok()? * 1_000_000_000 + scaled)
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, factor) = UNITS
            .iter()
            .rev()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor))
            .unwrap_or(&("s", 1));
        write!(f, "{}{name}", self.0 / factor)
    }
}

/// A share between 0 and 1 in parts per 10⁹. Exact: no floating point enters a selection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ppb(u64);

impl Ppb {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// All.
    pub const ONE: Self = Self(1_000_000_000);

    /// Parts per 10⁹.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// From parts per 10⁹; `None` above one.
    #[must_use]
    pub const fn new(ppb: u64) -> Option<Self> {
        if ppb <= 1_000_000_000 { Some(Self(ppb)) } else { None }
    }

    /// Reads a decimal such as `0.25`.
    ///
    /// # Errors
    /// [`UnitError::Fraction`] for anything that is not a decimal from 0 to 1 with at most nine digits.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let bad = || UnitError::Fraction(text.to_owned());
        let ppb = parse_decimal(text).ok_or_else(bad)?;
        u64::try_from(ppb).ok().and_then(Self::new).ok_or_else(bad)
    }
}

impl fmt::Display for Ppb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        f.write_str(text)
    }
}

/// Accepts a scalar that the file format may already have read as a number, and hands its text to `parse`.
struct ScalarVisitor<T> {
    expecting: &'static str,
    parse: fn(&str) -> Result<T, UnitError>,
}

impl<T> Visitor<'_> for ScalarVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

impl<'de> Deserialize<'de> for Micros {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(ScalarVisitor { expecting: "a duration such as 150ms", parse: Self::parse })
    }
}

impl Serialize for Micros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Ppb {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(ScalarVisitor { expecting: "a fraction such as 0.25", parse: Self::parse })
    }
}

impl Serialize for Ppb {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Micros {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(us|ms|s|m|h)$",
            "description": "A duration: a number and a unit, for example 150ms."})
    }
}

impl JsonSchema for Ppb {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Fraction".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["number", "string"], "minimum": 0, "maximum": 1,
            "pattern": "^[01](\\.[0-9]{1,9})?$", "description": "A share from 0 to 1, at most nine digits."})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        for (text, us) in [
            ("150ms", 150_000),
            ("1.5s", 1_500_000),
            ("0s", 0),
            ("1000000000001us", 1_000_000_000_001),
            ("7us", 7),
        ] {
            assert_eq!(Micros::parse(text), Ok(Micros::from_us(us)), "{text}");
        }
        for text in ["10", "-5s", "", "s", "1.s", "1..5s", "5 s", "5S", "1e3s", "NaNs", "5d"] {
            assert!(Micros::parse(text).is_err(), "{text}");
        }
        assert_eq!(Micros::parse("9999999h"), Err(UnitError::TooLong("9999999h".into())));
    }

    #[test]
    fn a_duration_prints_in_its_largest_whole_unit() {
        for text in ["150ms", "1500ms", "2s", "90m", "3h", "7us"] {
            assert_eq!(Micros::parse(text).map(|d| d.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(Micros::ZERO.to_string(), "0s");
    }

    #[test]
    fn fractions_are_exact() {
        for (text, ppb) in [
            ("0", 0),
            ("1", 1_000_000_000),
            ("0.25", 250_000_000),
            ("0.000000001", 1),
            ("1.0", 1_000_000_000),
        ] {
            assert_eq!(Ppb::parse(text).map(Ppb::get), Ok(ppb), "{text}");
        }
        for text in ["1.1", "-0.1", "2", ".5", "0.0000000001", "1e-3", "", "0,5"] {
            assert!(Ppb::parse(text).is_err(), "{text}");
        }
        assert_eq!(Ppb::parse("0.20").map(|p| p.to_string()), Ok("0.2".to_owned()));
    }
}
