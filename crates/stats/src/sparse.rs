//! The written form of a histogram, version 1, and its checked reading.
//!
//! A file or pipe from another process is foreign input: nothing is believed before it adds up.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use crate::bounded;
use crate::histogram::{Histogram, RANGE_MAX_US, SIGNIFICANT_DIGITS, bucket_bounds};

/// Version of the written form.
pub const SPARSE_VERSION: u32 = 1;

/// Most buckets that a range of 24 hours has: 1024 for each doubling, twice that below the first.
pub const BUCKETS_MAX: usize = 28 * 1024;

/// Most values that a written histogram may claim: what JSON numbers hold exactly, and little enough that
/// two thousand such shards still fit the counters.
pub const COUNT_MAX: u64 = 1 << 53;

/// A histogram as JSON: only buckets that hold something, each as `[smallest value, count]`.
///
/// Readers take other keys as additions of a later minor form and skip them; a change of meaning changes
/// `version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SparseHistogram {
    /// Version of this form: 1.
    pub version: u32,
    /// Significant decimal digits of the buckets: 3.
    pub digits: u8,
    /// Number of values, those over the range included.
    pub count: u64,
    /// Exact sum in microseconds as decimal text, because it can exceed what a JSON number holds.
    pub sum_us: String,
    /// Exact smallest value; null when there are none.
    pub min_us: Option<u64>,
    /// Exact largest value; null when there are none.
    pub max_us: Option<u64>,
    /// Values larger than 24 hours; they are in no bucket.
    pub over_range: u64,
    /// `[smallest value of the bucket in microseconds, count]`, ascending, no count of 0.
    #[serde(deserialize_with = "bounded::list::<_, _, BUCKETS_MAX>")]
    pub buckets: Vec<(u64, u64)>,
}

/// Why a written histogram is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum HistogramError {
    /// Another version or another bucket layout.
    #[error(
        "histogram version {version} with {digits} digits; this build reads version 1 with 3: use the build that wrote it"
    )]
    Version {
        /// Version found.
        version: u32,
        /// Digits found.
        digits: u8,
    },
    /// A bucket that the layout does not have, or one out of order.
    #[error(
        "histogram bucket {index} starts at {low_us} µs, which is no bucket start or not above the one before"
    )]
    Bucket {
        /// Position in the list.
        index: usize,
        /// Its first number.
        low_us: u64,
    },
    /// A bucket that holds nothing.
    #[error("histogram bucket {index} has a count of 0; empty buckets are left out")]
    EmptyBucket {
        /// Position in the list.
        index: usize,
    },
    /// More buckets than the layout has.
    #[error("histogram with {0} buckets; there are at most 28672")]
    TooManyBuckets(usize),
    /// `count` is not the sum of its parts, or larger than is allowed.
    #[error(
        "histogram claims {claimed} values, its buckets and over_range hold {held}; at most 2^53 are read"
    )]
    Count {
        /// The field `count`.
        claimed: u64,
        /// Sum over buckets and over_range (cut at `u64::MAX`).
        held: u64,
    },
    /// Minimum or maximum outside the first or last bucket, or missing, or there without values.
    #[error("histogram minimum or maximum does not lie in its first or last bucket")]
    Extremes,
    /// The sum is no number or can't be the sum of these buckets.
    #[error("histogram sum is not a decimal number that these buckets can have")]
    Sum,
}

impl From<&Histogram> for SparseHistogram {
    fn from(histogram: &Histogram) -> Self {
        Self {
            version: SPARSE_VERSION,
            digits: SIGNIFICANT_DIGITS,
            count: histogram.count(),
            sum_us: histogram.sum_us().to_string(),
            min_us: histogram.min_us(),
            max_us: histogram.max_us(),
            over_range: histogram.over_range(),
            buckets: histogram.buckets().map(|bucket| (bucket.low_us, bucket.count)).collect(),
        }
    }
}

impl TryFrom<&SparseHistogram> for Histogram {
    type Error = HistogramError;

    fn try_from(sparse: &SparseHistogram) -> Result<Self, Self::Error> {
        let SparseHistogram { version, digits, .. } = *sparse;
        if version != SPARSE_VERSION || digits != SIGNIFICANT_DIGITS {
            return Err(HistogramError::Version { version, digits });
        }
        sparse.check_buckets()?;
        sparse.check_count()?;
        let Some((min_us, max_us)) = sparse.checked_extremes()? else {
            return if sparse.sum_us == "0" { Ok(Self::new()) } else { Err(HistogramError::Sum) };
        };
        let sum_us = sparse.checked_sum(min_us, max_us)?;
        let mut histogram = Self::new();
        for (low_us, count) in &sparse.buckets {
            histogram.record_n(*low_us, *count);
        }
        if sparse.over_range > 0 {
            histogram.record_n(max_us, sparse.over_range);
        }
        Ok(histogram.with_exact(sum_us, min_us, max_us))
    }
}

impl SparseHistogram {
    fn check_buckets(&self) -> Result<(), HistogramError> {
        if self.buckets.len() > BUCKETS_MAX {
            return Err(HistogramError::TooManyBuckets(self.buckets.len()));
        }
        let mut before = None;
        for (index, &(low_us, count)) in self.buckets.iter().enumerate() {
            if low_us > RANGE_MAX_US || bucket_bounds(low_us).0 != low_us || before >= Some(low_us) {
                return Err(HistogramError::Bucket { index, low_us });
            }
            if count == 0 {
                return Err(HistogramError::EmptyBucket { index });
            }
            before = Some(low_us);
        }
        Ok(())
    }

    fn check_count(&self) -> Result<(), HistogramError> {
        let held = self.buckets.iter().fold(self.over_range, |sum, (_, count)| sum.saturating_add(*count));
        if held != self.count || held > COUNT_MAX {
            return Err(HistogramError::Count { claimed: self.count, held });
        }
        Ok(())
    }

    /// Minimum and maximum, `None` when there are rightly none.
    fn checked_extremes(&self) -> Result<Option<(u64, u64)>, HistogramError> {
        let (min_us, max_us) = match (self.min_us, self.max_us) {
            (Some(min_us), Some(max_us)) if self.count > 0 && min_us <= max_us => (min_us, max_us),
            (None, None) if self.count == 0 => return Ok(None),
            _ => return Err(HistogramError::Extremes),
        };
        // values over the range lie in no bucket, so that they take the place of a missing one
        let holds = |bucket: Option<&(u64, u64)>, value: u64| match bucket {
            Some(&(low_us, _)) => value <= RANGE_MAX_US && bucket_bounds(value).0 == low_us,
            None => value > RANGE_MAX_US,
        };
        let last = if self.over_range > 0 { None } else { self.buckets.last() };
        if !holds(self.buckets.first(), min_us) || !holds(last, max_us) {
            return Err(HistogramError::Extremes);
        }
        // a single value has no room for two extremes
        if self.count == 1 && min_us != max_us {
            return Err(HistogramError::Extremes);
        }
        Ok(Some((min_us, max_us)))
    }

    /// The sum, when it lies between the smallest and the largest that these buckets can have.
    fn checked_sum(&self, min_us: u64, max_us: u64) -> Result<u128, HistogramError> {
        // text such as "+5" or "007" would parse, but is nothing that a writer of this form writes
        let sum: u128 = self.sum_us.parse().map_err(|_| HistogramError::Sum)?;
        if sum.to_string() != self.sum_us {
            return Err(HistogramError::Sum);
        }
        let (mut least, mut most) = (0_u128, 0_u128);
        let over = (RANGE_MAX_US.max(min_us), max_us, self.over_range);
        let in_range = self.buckets.iter().map(|&(low_us, count)| {
            let (low, high) = bucket_bounds(low_us);
            (low.max(min_us), high.min(max_us), count)
        });
        for (low, high, count) in in_range.chain([over]) {
            least += u128::from(low) * u128::from(count);
            most += u128::from(high) * u128::from(count);
        }
        if sum < least || sum > most { Err(HistogramError::Sum) } else { Ok(sum) }
    }
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        SparseHistogram::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let sparse = SparseHistogram::deserialize(deserializer)?;
        Self::try_from(&sparse).map_err(de::Error::custom)
    }
}

impl JsonSchema for Histogram {
    fn schema_name() -> Cow<'static, str> {
        SparseHistogram::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        SparseHistogram::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        SparseHistogram::json_schema(generator)
    }
}
