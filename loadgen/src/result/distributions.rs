//! One histogram a metric, in an array while a run goes on and by name in files.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stats::{Histogram, Summary};

use super::metric::Metric;

/// A histogram for each [`Metric`]; one that never got a value takes no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distributions(Box<[Histogram; Metric::COUNT]>);

impl Default for Distributions {
    fn default() -> Self {
        Self(Box::new(std::array::from_fn(|_| Histogram::new())))
    }
}

/// What a file holds of one metric: figures for readers, and the histogram for merging and plots.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Written {
    /// Figures, made from the histogram.
    summary: Summary,
    /// All values.
    histogram: Histogram,
}

impl Distributions {
    /// Adds a value in microseconds.
    pub fn record(&mut self, metric: Metric, value_us: u64) {
        self.0[metric as usize].record(value_us);
    }

    /// The values of a metric.
    #[must_use]
    pub fn get(&self, metric: Metric) -> &Histogram {
        &self.0[metric as usize]
    }

    /// Adds all values of another part of the run.
    pub fn merge(&mut self, other: &Self) {
        for (own, theirs) in self.0.iter_mut().zip(other.0.iter()) {
            own.merge(theirs);
        }
    }
}

impl Serialize for Distributions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = Metric::ALL.iter().map(|metric| {
            let histogram = self.get(*metric);
            (metric.name(), Written { summary: histogram.summary(), histogram: histogram.clone() })
        });
        serializer.collect_map(written)
    }
}

impl<'de> Deserialize<'de> for Distributions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut all = Self::default();
        for (metric, written) in BTreeMap::<Metric, Written>::deserialize(deserializer)? {
            all.0[metric as usize] = written.histogram;
        }
        Ok(all)
    }
}

impl JsonSchema for Distributions {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Distributions".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<BTreeMap<String, Written>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_give_back_what_was_recorded() {
        let mut all = Distributions::default();
        all.record(Metric::Ttft, 0);
        all.record(Metric::Latency, 1_234_567);
        let text = serde_json::to_string(&all).unwrap();
        assert!(text.contains("\"latency\":{\"summary\":{\"n\":1,"), "{text}");
        assert_eq!(serde_json::from_str::<Distributions>(&text).unwrap(), all);
        let mut merged = all.clone();
        merged.merge(&all);
        assert_eq!(merged.get(Metric::Latency).count(), 2);
    }
}
