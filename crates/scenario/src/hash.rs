//! The two hashes of a run (design section 5). Equal on every machine, thread count and locale.

use serde_json::json;

use crate::digest::{canonical_json, digest};
use crate::model::Resolved;
use crate::plan::lines;

/// BLAKE3 of canonical plan lines, rules, profiles, allocator and actions. Not of concurrency, limits, stack or salt:
/// two runs with the same hash send the same requests into the same faults.
#[must_use]
pub fn plan_hash(resolved: &Resolved) -> String {
    let mut hasher = blake3::Hasher::new();
    for line in lines(resolved) {
        hasher.update(canonical_json(&line).as_bytes());
        hasher.update(b"\n");
    }
    let scenario = &resolved.scenario;
    let profiles: Vec<_> = resolved
        .nodes
        .iter()
        .map(|node| json!({"name": node.name, "entry": node.entry, "behaviour": node.behaviour, "weight": node.weight}))
        .collect();
    let rest = json!({
        "rules": scenario.faults,
        "nodes": profiles,
        "allocator": scenario.allocator,
        "actions": scenario.actions,
    });
    hasher.update(canonical_json(&rest).as_bytes());
    hasher.finalize().to_hex().to_string()
}

/// BLAKE3 of the whole resolved scenario.
#[must_use]
pub fn scenario_hash(resolved: &Resolved) -> String {
    digest(resolved)
}
