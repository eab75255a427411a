//! The one comparator between a captured answer and ours: status, headers, JSON keys, types, and the values
//! of enumerations. Every ignored path has a reason.

use std::collections::BTreeSet;

use serde_json::Value;

/// Paths that are not compared (`*` stands for one name or index), and why.
pub const IGNORED: &[(&str, &str)] = &[
    ("/devshards/*/private_key", "the July build leaks it; here it is never shown"),
    ("/devshards/*/private_key_env", "shown in place of the key for every escrow"),
    ("/settings/model_limits", "a list that each stack sets by itself"),
    ("/model_limits", "a list that each stack sets by itself"),
    ("/settings/redundancy/speed_policy", "a setting that each stack sets by itself"),
    ("/redundancy/speed_policy", "a setting that each stack sets by itself"),
    ("/speed_policy", "a setting that each stack sets by itself"),
    ("/settings/escrow_rotation/models", "a list that each stack sets by itself"),
    ("/escrow_rotation/models", "a list that each stack sets by itself"),
    ("/settings/models", "a list that each stack sets by itself"),
    ("/accounting/row/winner/confirmed_at", "present once the confirmation is in a step"),
    ("/accounting/row/attempts/*/confirmed_at", "present once the confirmation is in a step"),
    ("/client/*/json/choices/*/message", "what a model says differs from model to model"),
    ("/client/*/json/choices/*/token_ids", "the model server of the replay gives none"),
    ("/client/*/json/choices/*/stop_reason", "the model server of the replay gives none"),
    ("/nonces", "its length is the nonce of the stack"),
    ("/inferences", "keys are nonces; the records are compared one by one"),
    ("/host_stats", "keys are slots; the captures have another group"),
    ("/capacity/escrow_weights", "keys are escrows of the stack"),
    ("/chain_grpc", "the July build shows it on this read only; here it is part of the settings everywhere"),
    (
        "/settings/chain_grpc",
        "the July build leaves it out of the state; here it is part of the settings everywhere",
    ),
    ("/attempts/*/executor_slot", "left out for slot 0, and the group of that capture has one slot"),
    ("/winner/executor_slot", "left out for slot 0, and the group of that capture has one slot"),
    ("/winner/confirmed_at", "present once the confirmation is in a step"),
];

/// Strings whose value is part of the contract, by the last name of their path.
const ENUMS: &[&str] = &[
    "phase",
    "status",
    "outcome",
    "decision",
    "mode",
    "access_mode",
    "object",
    "type",
    "session_version",
    "end",
    "content_type",
    "stage",
    "speed_policy",
];

/// Paths whose value counts whatever its type: what was counted, and answers of yes or no.
const VALUES: &[&str] = &[
    "/client/*/status",
    "/client/*/request_id",
    "/client/*/devshard_id",
    "/client/*/events/*",
    "/accounting/header_lookups",
    "/accounting/outcomes/*",
    "/drained/*",
    "/counters/*",
    "/statuses/*",
];

/// Differences between a capture and our answer, one line each.
pub fn differences(captured: &Value, ours: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", captured, ours, &mut found);
    found
}

fn compare(path: &str, captured: &Value, ours: &Value, found: &mut Vec<String>) {
    if IGNORED.iter().any(|(pattern, _)| matches(pattern, path)) {
        return;
    }
    if VALUES.iter().any(|pattern| matches(pattern, path)) {
        if captured != ours {
            found.push(format!("{path}: {captured} became {ours}"));
        }
        return;
    }
    match (captured, ours) {
        (Value::Object(captured), Value::Object(ours)) => {
            let names: BTreeSet<&String> = captured.keys().chain(ours.keys()).collect();
            for name in names {
                let path = format!("{path}/{name}");
                match (captured.get(name), ours.get(name)) {
                    (Some(captured), Some(ours)) => compare(&path, captured, ours, found),
                    _ if IGNORED.iter().any(|(pattern, _)| matches(pattern, &path)) => {}
                    (Some(_), None) => found.push(format!("{path}: missing here")),
                    _ => found.push(format!("{path}: not in the capture")),
                }
            }
        }
        (Value::Array(captured), Value::Array(ours)) => {
            if captured.is_empty() != ours.is_empty() {
                found.push(format!("{path}: one list is empty"));
            }
            if let (Some(captured), Some(ours)) = (captured.first(), ours.first()) {
                compare(&format!("{path}/0"), captured, ours, found);
            }
        }
        (Value::String(captured), Value::String(ours)) => {
            let name = path.rsplit('/').next().unwrap_or_default();
            if ENUMS.contains(&name) && captured != ours {
                found.push(format!("{path}: {captured:?} became {ours:?}"));
            }
        }
        (captured, ours) if kind(captured) != kind(ours) => {
            found.push(format!("{path}: {} became {}", kind(captured), kind(ours)));
        }
        _ => {}
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<_>, Vec<_>) = (pattern.split('/').collect(), path.split('/').collect());
    pattern.len() == path.len() && pattern.iter().zip(&path).all(|(one, other)| *one == "*" || one == other)
}
