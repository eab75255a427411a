//! A histogram at rest: the same values in two or three bytes a bucket, for what is kept long and read rarely.
//!
//! A histogram that records has room for every bucket between 0 and its largest value. A run keeps hundreds of windows
//! of which few will ever get another value: there it is this form that keeps memory flat (design load-and-mocks 2.6).

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::histogram::Histogram;

/// Values that each have a bucket of their own; above, there are half as many buckets for each doubling.
const SINGLES: u64 = 2048;
const PER_DOUBLING: u64 = SINGLES / 2;

/// A [`Histogram`] that takes no further values. Its written form is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedHistogram {
    /// Sum, minimum and maximum; nothing without values.
    exact: Option<(u128, u64, u64)>,
    over_range: u64,
    /// For each bucket that holds something, ascending: steps from the one before and count, seven bits a byte.
    bytes: Box<[u8]>,
}

impl From<&Histogram> for PackedHistogram {
    fn from(histogram: &Histogram) -> Self {
        let places = histogram.buckets().map(|bucket| (place_of(bucket.low_us), bucket.count));
        let extremes = histogram.min_us().zip(histogram.max_us());
        Self {
            exact: extremes.map(|(min_us, max_us)| (histogram.sum_us(), min_us, max_us)),
            over_range: histogram.over_range(),
            bytes: written(places),
        }
    }
}

impl PackedHistogram {
    /// Adds all values of another one, bucket by bucket: hundreds of windows are merged while requests fall due.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.bytes = merged(self.places(), other.places());
        self.over_range = self.over_range.saturating_add(other.over_range);
        self.exact = match (self.exact, other.exact) {
            (Some(own), Some(their)) => {
                Some((own.0.saturating_add(their.0), own.1.min(their.1), own.2.max(their.2)))
            }
            (own, their) => own.or(their),
        };
    }

    /// Ordinals of the buckets that hold something, ascending, and their counts.
    fn places(&self) -> impl Iterator<Item = Place> + '_ {
        let (mut rest, mut place) = (&*self.bytes, 0);
        std::iter::from_fn(move || {
            place += pull(&mut rest)?;
            Some((place, pull(&mut rest)?))
        })
    }
}

/// Ordinal of a bucket, and how many values it holds.
type Place = (u64, u64);

/// The buckets of two histograms, ascending.
fn merged(left: impl Iterator<Item = Place>, right: impl Iterator<Item = Place>) -> Box<[u8]> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    written(std::iter::from_fn(|| match (left.peek().copied(), right.peek().copied()) {
        (Some((place, count)), Some((same, more))) if place == same => {
            left.next();
            right.next();
            Some((place, count.saturating_add(more)))
        }
        (Some((place, _)), Some((later, _))) if place < later => left.next(),
        (Some(_), None) => left.next(),
        _ => right.next(),
    }))
}

fn written(places: impl Iterator<Item = Place>) -> Box<[u8]> {
    let (mut bytes, mut before) = (Vec::new(), 0);
    for (place, count) in places {
        push(&mut bytes, place - before);
        push(&mut bytes, count);
        before = place;
    }
    bytes.into_boxed_slice()
}

impl From<&PackedHistogram> for Histogram {
    fn from(packed: &PackedHistogram) -> Self {
        let mut histogram = Self::new();
        let Some((sum_us, min_us, max_us)) = packed.exact else { return histogram };
        packed.places().for_each(|(place, count)| histogram.record_n(low_of(place), count));
        if packed.over_range > 0 {
            histogram.record_n(max_us, packed.over_range);
        }
        histogram.with_exact(sum_us, min_us, max_us)
    }
}

/// Ordinal of the bucket that begins with a value.
fn place_of(low_us: u64) -> u64 {
    let doublings = u64::from(low_us.max(1).ilog2().saturating_sub(SINGLES.ilog2() - 1));
    doublings * PER_DOUBLING + (low_us >> doublings)
}

/// First value of the bucket with an ordinal.
fn low_of(place: u64) -> u64 {
    let doublings = (place / PER_DOUBLING).saturating_sub(1);
    (place - doublings * PER_DOUBLING) << doublings
}

/// Appends a number, the low bits first; the highest bit of a byte says that more follow.
fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// The next number, `None` at the end. The bytes are this module's own.
fn pull(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some(number)
}

impl Serialize for PackedHistogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Histogram::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PackedHistogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Histogram::deserialize(deserializer).map(|histogram| Self::from(&histogram))
    }
}

impl JsonSchema for PackedHistogram {
    fn schema_name() -> Cow<'static, str> {
        Histogram::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        Histogram::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Histogram::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::histogram::{RANGE_MAX_US, bucket_bounds};

    #[test]
    fn every_bucket_has_its_place_one_after_another() {
        let (mut low_us, mut place) = (0, 0);
        while low_us <= RANGE_MAX_US {
            assert_eq!((place_of(low_us), low_of(place)), (place, low_us));
            (low_us, place) = (bucket_bounds(low_us).1 + 1, place + 1);
        }
    }

    proptest! {
        #[test]
        fn any_values_come_back(draws in prop::collection::vec((any::<u64>(), 0_u32..64, 1_u64..1_000_000), 0..200)) {
            let mut histogram = Histogram::new();
            draws.iter().for_each(|(draw, bits, count)| histogram.record_n(draw >> bits, *count));
            let packed = PackedHistogram::from(&histogram);
            prop_assert_eq!(&Histogram::from(&packed), &histogram);
            let written = serde_json::to_string(&histogram).unwrap();
            prop_assert_eq!(&serde_json::to_string(&packed).unwrap(), &written);
            prop_assert_eq!(serde_json::from_str::<PackedHistogram>(&written).unwrap(), packed);
        }
    }

    proptest! {
        #[test]
        fn merged_is_what_saw_both(
            left in prop::collection::vec((any::<u64>(), 0_u32..64), 0..60),
            right in prop::collection::vec((any::<u64>(), 0_u32..64), 0..60),
        ) {
            let of = |draws: &[(u64, u32)]| draws.iter().map(|(draw, bits)| draw >> bits).collect::<Histogram>();
            let (mut whole, other) = (of(&left), of(&right));
            let mut merged = PackedHistogram::from(&whole);
            merged.merge(&PackedHistogram::from(&other));
            whole.merge(&other);
            prop_assert_eq!(&merged, &PackedHistogram::from(&whole));
            prop_assert_eq!(&Histogram::from(&merged), &whole);
        }
    }

    #[test]
    fn a_busy_second_takes_little_room() {
        // 30,000 latencies around 2 ms with a long tail: the dense array has over 60 KB for them.
        let values = (0..30_000_u64).map(|n| 1_500 + n % 1_000 + if n % 100 == 0 { n * 40 } else { 0 });
        let packed = PackedHistogram::from(&values.collect::<Histogram>());
        assert!(packed.bytes.len() < 4_096, "{} bytes", packed.bytes.len());
    }
}
