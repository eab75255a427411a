//! The measurements table of the specification, from the summary. Units come from the names, which carry them last.

use std::collections::BTreeMap;

use evidence::summary::{Latency, Summary};
use serde_json::Value;

use crate::units;

/// One signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Which part of the system it belongs to.
    pub group: &'static str,
    /// Signal.
    pub signal: String,
    /// Value with unit; [`units::NONE`] when it was not seen.
    pub value: String,
}

/// Every signal of the summary, in the order of the specification.
#[must_use]
pub fn measurements(summary: &Summary) -> Vec<Measurement> {
    let client = &summary.client;
    let mut rows = Vec::new();
    let mut put = |group, signal: &str, value: String| {
        rows.push(Measurement { group, signal: signal.to_owned(), value });
    };
    put("Client", "requests planned", units::count(client.planned));
    put("Client", "requests sent", units::count(client.sent));
    put("Client", "achieved rate", units::per_second(client.achieved_rps));
    put("Client", "success rate", units::share(client.success_rate));
    put("Client", "error rate", units::share(client.error_rate));
    put("Client", "raw error rate", units::share(client.raw_error_rate));
    put("Client", "timeout rate", units::share(client.timeout_rate));
    put("Client", "TTFT", latency(&client.ttft));
    put("Client", "total latency", latency(&client.latency));
    put("Client", "streams completed", units::count(client.streams_completed));
    put("Client", "streams broken", units::count(client.streams_broken));
    put("Client", "classes", counts(&client.classes));
    put("Client", "seen by the client", counts(&client.client_classes));
    if let Some(step) = summary.highest_stable_step {
        put("Client", "highest stable concurrency", step.to_string());
    }
    for (group, map) in [
        ("Devshard", &summary.devshard),
        ("Allocation", &summary.allocation),
        ("Validity", &summary.validity),
    ] {
        for (name, value) in map {
            put(group, &words(name), shown(name, value));
        }
    }
    rows
}

/// Percentiles of one population with its size.
#[must_use]
pub fn latency(latency: &Latency) -> String {
    if latency.n == 0 {
        return units::NONE.to_owned();
    }
    format!(
        "p50 {}, p95 {}, p99 {}, max {} (n {})",
        units::span_or_none(latency.p50_us),
        units::span_or_none(latency.p95_us),
        units::span_or_none(latency.p99_us),
        units::span_or_none(latency.max_us),
        units::count(latency.n)
    )
}

/// Counts by name, the names in their own order.
#[must_use]
pub fn counts(counts: &BTreeMap<String, u64>) -> String {
    if counts.is_empty() {
        return units::NONE.to_owned();
    }
    let parts: Vec<String> =
        counts.iter().map(|(name, count)| format!("{} {name}", units::count(*count))).collect();
    parts.join(", ")
}

/// A name without its unit, in words.
#[must_use]
pub fn words(name: &str) -> String {
    let unit = ["_us", "_bytes"].into_iter().find_map(|unit| name.strip_suffix(unit));
    unit.unwrap_or(name).replace('_', " ")
}

/// A value by the unit in its name; maps as a list of counts.
#[must_use]
pub fn shown(name: &str, value: &Value) -> String {
    match value {
        Value::Null => units::NONE.to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(whole), _) if name.ends_with("_us") => units::span(whole),
            (Some(whole), _) if name.ends_with("_bytes") => units::bytes(whole),
            (_, share) if name.ends_with("_rate") || name.ends_with("_share") => units::share(share),
            (_, rate) if name.ends_with("_rps") => units::per_second(rate),
            (Some(whole), _) => units::count(whole),
            (None, Some(float)) => units::trimmed(float, 3),
            (None, None) => number.to_string(),
        },
        Value::Array(items) if items.is_empty() => units::NONE.to_owned(),
        Value::Array(items) => {
            let parts: Vec<String> = items.iter().map(|item| shown(name, item)).collect();
            parts.join(", ")
        }
        Value::Object(map) if map.is_empty() => units::NONE.to_owned(),
        Value::Object(map) => {
            // A count before its word reads as a sentence; anything else needs its name in front.
            let part = |(key, value): (&String, &Value)| match value {
                Value::Number(number) if number.is_u64() && key != &words(key) => {
                    format!("{} {}", words(key), shown(key, value))
                }
                Value::Number(_) => format!("{} {key}", shown(key, value)),
                _ => format!("{} {}", words(key), shown(key, value)),
            };
            map.iter().map(part).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn units_follow_the_name() {
        for (name, value, text) in [
            ("passive_drain_us", json!(1_247_290), "1.25 s"),
            ("rss_bytes", json!(12_000_000), "12.0 MB"),
            ("error_rate", json!(0.0025), "0.25 %"),
            ("accepted", json!(399), "399"),
            ("queue", json!(null), "–"),
            ("terminal_outcomes", json!({"running": 1, "success": 398}), "1 running, 398 success"),
            ("health", json!({"cpu_us": 410_000, "open_fds": 24}), "cpu 410 ms, open fds 24"),
            ("empty", json!({}), "–"),
        ] {
            assert_eq!(shown(name, &value).replace('\u{202f}', " "), text, "{name}");
        }
    }
}
