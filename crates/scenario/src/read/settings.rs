//! The gateway settings that `devshard.settings` may name (contract gateway 9). The gateway ignores unknown names
//! without a word, so a misspelt one has to be caught here.

/// Names at the top of the settings body.
const TOP: [&str; 9] = [
    "public_api",
    "default_model",
    "max_concurrent_requests",
    "max_concurrent_requests_per_10000_weight",
    "poc_max_concurrent_requests_per_10000_weight",
    "max_input_tokens_in_flight",
    "default_request_max_tokens",
    "request_max_tokens_cap",
    "tx_gas_limit",
];

/// Groups and their names.
const GROUPS: [(&str, &[&str]); 5] = [
    ("disabled", &["enabled", "message", "new_url"]),
    (
        "participant_throttle",
        &[
            "request_burst",
            "recovery_per_minute",
            "http_quarantine_ms",
            "transport_failure_quarantine_ms",
            "empty_stream_quarantine_ms",
            "stalled_winner_quarantine_ms",
            "empty_stream_threshold",
        ],
    ),
    ("redundancy", &REDUNDANCY),
    ("perf", &["sample_size", "window_ms"]),
    ("escrow_rotation", &["enabled", "settlement_enabled", "pre_poc_blocks", "models"]),
];

const REDUNDANCY: [&str; 20] = [
    "receipt_timeout_ms",
    "first_token_timeout_floor_ms",
    "per_input_token_first_token_lag_ms",
    "inter_chunk_stall_timeout_ms",
    "streaming_attempt_hard_timeout_ms",
    "non_stream_response_floor_ms",
    "per_input_token_response_lag_ms",
    "non_stream_no_content_timeout_ms",
    "non_stream_max_attempt_wait_ms",
    "secondary_wait_after_winner_ms",
    "parallel_advantage_threshold",
    "unresponsive_threshold",
    "speed_policy",
    "pairwise_budget_percentile",
    "pairwise_max_proactive_attempts",
    "pairwise_min_direct_comparisons",
    "pairwise_winner_hold_ms",
    "pairwise_winner_hold_min_speedup",
    "pairwise_winner_hold_min_samples",
    "force_upstream_streaming",
];

/// Lists whose entries have names of their own.
const LISTS: [(&str, &[&str]); 2] = [
    (
        "model_limits",
        &[
            "model_id",
            "max_concurrent_requests",
            "max_input_tokens_in_flight",
            "default_request_max_tokens",
            "request_max_tokens_cap",
            "access_mode",
            "access_message",
        ],
    ),
    (
        "escrow_rotation.models",
        &["model_id", "temp_count", "target_count", "amount", "private_key_env", "nonce_deactivation_limit"],
    ),
];

/// Words of `speed_policy`.
const SPEED_POLICIES: [&str; 3] = ["legacy", "hybrid", "pairwise"];

/// The group of a name that stands at the top for short; only names of exactly one group may.
#[must_use]
pub fn group_of(name: &str) -> Option<&'static str> {
    let mut groups = GROUPS.iter().filter(|(_, names)| names.contains(&name));
    match (groups.next(), groups.next()) {
        (Some((group, _)), None) if !TOP.contains(&name) => Some(group),
        _ => None,
    }
}

/// The names allowed at a place below `devshard.settings` (`""` for the top); `None` where no names are known.
#[must_use]
pub fn known(place: &str) -> Option<Vec<&'static str>> {
    if place.is_empty() {
        let groups = GROUPS.iter().map(|(name, _)| *name);
        let short = GROUPS.iter().flat_map(|(_, names)| names.iter().copied());
        let short = short.filter(|name| group_of(name).is_some());
        return Some(TOP.iter().copied().chain(groups).chain(short).chain(["model_limits"]).collect());
    }
    let group = GROUPS.iter().chain(LISTS.iter()).find(|(name, _)| *name == place);
    group.map(|(_, names)| names.to_vec())
}

/// The words a setting may have, where it is a word.
#[must_use]
pub fn words(name: &str) -> Option<&'static [&'static str]> {
    match name {
        "speed_policy" => Some(&SPEED_POLICIES),
        "access_mode" => Some(&["open", "api_key", "admin_only"]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_belong_to_one_group() {
        assert_eq!(group_of("speed_policy"), Some("redundancy"));
        assert_eq!(group_of("http_quarantine_ms"), Some("participant_throttle"));
        assert_eq!(group_of("enabled"), None, "two groups have it");
        assert_eq!(group_of("max_concurrent_requests"), None, "it is a top name itself");
        assert!(known("").unwrap().contains(&"receipt_timeout_ms"));
        assert!(known("nothing").is_none());
    }
}
