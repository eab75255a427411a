//! Behaviour of a mock ML node, committed under `ml-profiles/` (specification, "Extensions to Existing Components").

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fault::Expect;
use crate::units::{Micros, Ppb};

/// A constant or a seeded range, in the file `25ms` or `{min: 150ms, max: 350ms}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// Shortest.
    pub min: Micros,
    /// Longest; equal to `min` for a constant.
    pub max: Micros,
}

/// A share of the requests that a profile fails by itself; becomes the rule `<profile>/<n>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileFailure {
    /// Seeded share of request ids.
    pub request_id_hash_fraction: Ppb,
    /// Status answered to them.
    pub http_status: u16,
}

/// One node profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Format version; the specification's own form leaves it out.
    #[serde(default = "version_one")]
    pub version: u32,
    /// What this profile stands for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Wait before the first content.
    pub ttft: Timing,
    /// Wait between later content events.
    pub token_interval: Timing,
    /// Calls answered at the same time.
    pub workers: u32,
    /// Calls that may wait for a worker; one more is refused with 503 and `Retry-After`.
    pub queue: u32,
    /// Seeded failures of the node itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<ProfileFailure>,
    /// Allowed outcomes of those failures when the scenario's pool entry gives none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expect>,
}

fn version_one() -> u32 {
    1
}

impl Timing {
    /// The same time always.
    #[must_use]
    pub const fn constant(value: Micros) -> Self {
        Self { min: value, max: value }
    }
}

impl JsonSchema for Timing {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timing".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let time = generator.subschema_for::<Micros>();
        schemars::json_schema!({
            "description": "A constant duration, or a range from which a seeded draw takes one.",
            "anyOf": [time, {"type": "object", "additionalProperties": false, "required": ["min", "max"],
                "properties": {"min": time, "max": time}}],
        })
    }
}

impl<'de> Deserialize<'de> for Timing {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimingVisitor;
        impl<'de> serde::de::Visitor<'de> for TimingVisitor {
            type Value = Timing;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a duration such as 25ms, or {min: 150ms, max: 350ms}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Timing, E> {
                Micros::parse(text).map(Timing::constant).map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Timing, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Timing, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Range {
                    min: Micros,
                    max: Micros,
                }
                let range = Range::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                if range.min > range.max {
                    let text = format!("min {} is above max {}", range.min, range.max);
                    return Err(serde::de::Error::custom(text));
                }
                Ok(Timing { min: range.min, max: range.max })
            }
        }
        deserializer.deserialize_any(TimingVisitor)
    }
}
