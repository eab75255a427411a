//! Settings that `/v1/admin/settings` reads and changes (contract gateway 9, fixture surfaces-single).

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who may use a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessMode {
    /// Everybody.
    Open,
    /// Bearers of a client key.
    ApiKey,
    /// The bearer of the admin key; also every model without an entry.
    #[default]
    AdminOnly,
}

/// Limits of one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelLimit {
    /// Which.
    pub model_id: String,
    /// 0 = unlimited.
    #[serde(default)]
    pub max_concurrent_requests: u64,
    /// 0 = unlimited.
    #[serde(default)]
    pub max_input_tokens_in_flight: u64,
    /// Over the general one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_request_max_tokens: Option<u64>,
    /// Over the general one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_max_tokens_cap: Option<u64>,
    /// Who may use it.
    #[serde(default)]
    pub access_mode: AccessMode,
    /// What a refused client is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_message: Option<String>,
}

/// Redirect mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disabled {
    /// On or off.
    pub enabled: bool,
    /// What clients are told.
    pub message: String,
    /// Where they should go.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub new_url: String,
}

/// Reactions to failing participants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParticipantThrottle {
    pub request_burst: u64,
    pub recovery_per_minute: u64,
    pub http_quarantine_ms: u64,
    pub transport_failure_quarantine_ms: u64,
    pub empty_stream_quarantine_ms: u64,
    pub stalled_winner_quarantine_ms: u64,
    pub empty_stream_threshold: u64,
    pub eof_transport_failure_threshold: u64,
}

/// Races.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Redundancy {
    pub receipt_timeout_ms: u64,
    pub first_token_timeout_floor_ms: u64,
    pub per_input_token_first_token_lag_ms: u64,
    pub inter_chunk_stall_timeout_ms: u64,
    pub streaming_attempt_hard_timeout_ms: u64,
    pub non_stream_response_floor_ms: u64,
    pub non_stream_no_content_timeout_ms: u64,
    pub non_stream_max_attempt_wait_ms: u64,
    pub per_input_token_response_lag_ms: u64,
    pub secondary_wait_after_winner_ms: u64,
    pub parallel_advantage_threshold: f64,
    pub unresponsive_threshold: f64,
    pub speed_policy: String,
    pub pairwise_budget_percentile: f64,
    pub pairwise_max_proactive_attempts: u64,
    pub pairwise_min_direct_comparisons: u64,
    pub pairwise_winner_hold_ms: u64,
    pub pairwise_winner_hold_min_speedup: f64,
    pub pairwise_winner_hold_min_samples: u64,
}

/// Performance samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Perf {
    pub sample_size: u64,
    pub window_ms: u64,
}

/// Escrows of one model that a rotation keeps. All fields are required.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationModel {
    pub model_id: String,
    pub temp_count: u64,
    pub target_count: u64,
    pub amount: u64,
    pub private_key_env: String,
}

/// Rotation of escrows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscrowRotation {
    pub enabled: bool,
    #[serde(default)]
    pub models: Option<Vec<RotationModel>>,
    pub pre_poc_blocks: u64,
    pub settlement_enabled: bool,
}

/// All settings, in the order of the real answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub chain_rest: String,
    pub chain_grpc: String,
    pub public_api: String,
    pub default_model: String,
    pub default_request_max_tokens: u64,
    pub request_max_tokens_cap: u64,
    pub max_concurrent_requests: u64,
    pub max_concurrent_requests_per_10000_weight: u64,
    pub poc_max_concurrent_requests_per_10000_weight: u64,
    pub max_input_tokens_in_flight: u64,
    pub model_limits: Vec<ModelLimit>,
    pub disabled: Disabled,
    pub participant_throttle: ParticipantThrottle,
    pub redundancy: Redundancy,
    pub perf: Perf,
    pub escrow_rotation: EscrowRotation,
}

impl Settings {
    /// Defaults of contract gateway 9, but the policy: one attempt per request is what a plan expects.
    #[must_use]
    pub fn defaults(chain_grpc: &str, public_api: &str, model: &str) -> Self {
        let half_hour_ms = 1_800_000;
        Self {
            chain_rest: String::new(),
            chain_grpc: chain_grpc.to_owned(),
            public_api: public_api.to_owned(),
            default_model: model.to_owned(),
            default_request_max_tokens: 3072,
            request_max_tokens_cap: 4096,
            max_concurrent_requests: 512,
            max_concurrent_requests_per_10000_weight: 5,
            poc_max_concurrent_requests_per_10000_weight: 10,
            max_input_tokens_in_flight: 0,
            model_limits: Vec::new(),
            disabled: Disabled {
                enabled: false,
                message: "this gateway is closed".to_owned(),
                new_url: String::new(),
            },
            participant_throttle: ParticipantThrottle {
                request_burst: 600,
                recovery_per_minute: 10,
                http_quarantine_ms: 2 * half_hour_ms,
                transport_failure_quarantine_ms: half_hour_ms,
                empty_stream_quarantine_ms: half_hour_ms,
                stalled_winner_quarantine_ms: half_hour_ms,
                empty_stream_threshold: 3,
                eof_transport_failure_threshold: 3,
            },
            redundancy: Redundancy::defaults(),
            perf: Perf { sample_size: 256, window_ms: 3_600_000 },
            escrow_rotation: EscrowRotation {
                enabled: false,
                models: None,
                pre_poc_blocks: 300,
                settlement_enabled: false,
            },
        }
    }

    /// July samples pairs unless told otherwise, and its limit for answers without content is the execution
    /// timeout, which is short here like every wait of the protocol.
    pub fn july(&mut self, waits: crate::personality::Waits) {
        let execution_ms = u64::from(waits.execution_s) * 1000;
        "hybrid".clone_into(&mut self.redundancy.speed_policy);
        self.redundancy.non_stream_no_content_timeout_ms = execution_ms.max(1);
        self.redundancy.non_stream_max_attempt_wait_ms = (execution_ms * 3 / 2).max(1);
        self.redundancy.streaming_attempt_hard_timeout_ms = (execution_ms * 2).max(1);
    }

    /// The settings after a partial update. Unknown fields do nothing, lists are replaced as a whole.
    ///
    /// # Errors
    /// When a value has the wrong type or makes no sense; what is then answered with 400.
    pub fn updated(&self, patch: &Value) -> Result<Self, String> {
        let mut merged = serde_json::to_value(self).expect("settings are plain data");
        if !patch.is_object() {
            return Err("settings must be a JSON object".to_owned());
        }
        merge(&mut merged, patch);
        let mut settings: Self = serde_json::from_value(merged).map_err(|error| error.to_string())?;
        // A zero is read back as the default (contract gateway 4.3).
        if settings.max_concurrent_requests_per_10000_weight == 0 {
            settings.max_concurrent_requests_per_10000_weight = 5;
        }
        if settings.poc_max_concurrent_requests_per_10000_weight == 0 {
            settings.poc_max_concurrent_requests_per_10000_weight = 10;
        }
        settings.check()?;
        Ok(settings)
    }

    /// The entry of a model.
    #[must_use]
    pub fn limit_of(&self, model: &str) -> Option<&ModelLimit> {
        self.model_limits.iter().find(|limit| limit.model_id == model)
    }

    /// Access mode of a model.
    #[must_use]
    pub fn access_of(&self, model: &str) -> AccessMode {
        self.limit_of(model).map_or(AccessMode::AdminOnly, |limit| limit.access_mode)
    }

    /// Default and cap of output tokens of a model.
    #[must_use]
    pub fn tokens_of(&self, model: &str) -> (u64, u64) {
        let limit = self.limit_of(model);
        let default = limit.and_then(|limit| limit.default_request_max_tokens);
        let cap = limit.and_then(|limit| limit.request_max_tokens_cap);
        (default.unwrap_or(self.default_request_max_tokens), cap.unwrap_or(self.request_max_tokens_cap))
    }

    fn check(&self) -> Result<(), String> {
        let race = &self.redundancy;
        let throttle = &self.participant_throttle;
        let positive = [
            ("default_request_max_tokens", self.default_request_max_tokens),
            ("request_max_tokens_cap", self.request_max_tokens_cap),
            ("participant_throttle.request_burst", throttle.request_burst),
            ("participant_throttle.recovery_per_minute", throttle.recovery_per_minute),
            ("participant_throttle.http_quarantine_ms", throttle.http_quarantine_ms),
            (
                "participant_throttle.transport_failure_quarantine_ms",
                throttle.transport_failure_quarantine_ms,
            ),
            ("participant_throttle.empty_stream_quarantine_ms", throttle.empty_stream_quarantine_ms),
            ("participant_throttle.stalled_winner_quarantine_ms", throttle.stalled_winner_quarantine_ms),
            ("redundancy.receipt_timeout_ms", race.receipt_timeout_ms),
            ("redundancy.first_token_timeout_floor_ms", race.first_token_timeout_floor_ms),
            ("redundancy.streaming_attempt_hard_timeout_ms", race.streaming_attempt_hard_timeout_ms),
            ("redundancy.non_stream_no_content_timeout_ms", race.non_stream_no_content_timeout_ms),
            ("redundancy.secondary_wait_after_winner_ms", race.secondary_wait_after_winner_ms),
            ("perf.sample_size", self.perf.sample_size),
            ("perf.window_ms", self.perf.window_ms),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} must be greater than 0"));
        }
        if self.default_request_max_tokens > self.request_max_tokens_cap {
            return Err("default_request_max_tokens must not exceed request_max_tokens_cap".to_owned());
        }
        if race.non_stream_max_attempt_wait_ms < race.non_stream_no_content_timeout_ms {
            let text = "redundancy.non_stream_max_attempt_wait_ms must not be below non_stream_no_content_timeout_ms";
            return Err(text.to_owned());
        }
        if !["legacy", "hybrid", "pairwise"].contains(&race.speed_policy.as_str()) {
            return Err(format!("redundancy.speed_policy {:?} is unknown", race.speed_policy));
        }
        let open = |value: f64| value > 0.0 && value < 1.0;
        let shares = [
            ("redundancy.parallel_advantage_threshold", open(race.parallel_advantage_threshold)),
            (
                "redundancy.unresponsive_threshold",
                race.unresponsive_threshold > 0.0 && race.unresponsive_threshold <= 1.0,
            ),
            ("redundancy.pairwise_budget_percentile", open(race.pairwise_budget_percentile)),
            ("redundancy.pairwise_winner_hold_min_speedup", open(race.pairwise_winner_hold_min_speedup)),
        ];
        if let Some((name, _)) = shares.into_iter().find(|(_, fits)| !fits) {
            return Err(format!("{name} is out of range"));
        }
        self.check_rotation()
    }

    fn check_rotation(&self) -> Result<(), String> {
        let rotation = &self.escrow_rotation;
        let models = rotation.models.as_deref().unwrap_or_default();
        if rotation.enabled && models.is_empty() {
            return Err("escrow_rotation.models is needed while rotation is enabled".to_owned());
        }
        for model in models {
            if model.target_count == 0 || model.amount == 0 || model.model_id.is_empty() {
                return Err(format!("escrow_rotation.models {:?}: a count or amount is 0", model.model_id));
            }
            // There is one creator here, and its key has one name.
            if model.private_key_env != super::CREATOR_KEY_VARIABLE {
                return Err(format!(
                    "escrow_rotation.models {:?}: private_key_env must be {}",
                    model.model_id,
                    super::CREATOR_KEY_VARIABLE
                ));
            }
        }
        Ok(())
    }
}

impl Redundancy {
    fn defaults() -> Self {
        Self {
            receipt_timeout_ms: 5000,
            first_token_timeout_floor_ms: 1000,
            per_input_token_first_token_lag_ms: 10,
            inter_chunk_stall_timeout_ms: 60_000,
            streaming_attempt_hard_timeout_ms: 1_200_000,
            non_stream_response_floor_ms: 20_000,
            non_stream_no_content_timeout_ms: 1_200_000,
            non_stream_max_attempt_wait_ms: 1_800_000,
            per_input_token_response_lag_ms: 20,
            secondary_wait_after_winner_ms: 600_000,
            parallel_advantage_threshold: 0.5,
            unresponsive_threshold: 1.0,
            speed_policy: "legacy".to_owned(),
            pairwise_budget_percentile: 0.9,
            pairwise_max_proactive_attempts: 3,
            pairwise_min_direct_comparisons: 4,
            pairwise_winner_hold_ms: 500,
            pairwise_winner_hold_min_speedup: 0.1,
            pairwise_winner_hold_min_samples: 6,
        }
    }
}

/// Takes over what `current` knows; `new_url` is left out of answers while it is empty.
fn merge(current: &mut Value, patch: &Value) {
    let (Some(current), Some(patch)) = (current.as_object_mut(), patch.as_object()) else { return };
    for (key, value) in patch.iter().filter(|(_, value)| !value.is_null()) {
        match current.get_mut(key) {
            Some(known) if known.is_object() && value.is_object() => merge(known, value),
            Some(known) => *known = value.clone(),
            None if key == "new_url" => drop(current.insert(key.clone(), value.clone())),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn defaults() -> Settings {
        Settings::defaults("127.0.0.1:1", "", "m")
    }

    #[test]
    fn a_partial_update_changes_what_it_names_and_ignores_the_unknown() {
        let patch = json!({
            "redundancy": {"receipt_timeout_ms": 2000, "nonsense": 1},
            "disabled": {"new_url": "http://x"},
            "model_limits": [{"model_id": "m", "access_mode": "open", "max_concurrent_requests": 3}],
            "max_concurrent_requests_per_10000_weight": 0,
            "force_everything": true
        });
        let settings = defaults().updated(&patch).unwrap();
        assert_eq!(settings.redundancy.receipt_timeout_ms, 2000);
        assert_eq!(settings.redundancy.secondary_wait_after_winner_ms, 600_000);
        assert_eq!(settings.disabled.new_url, "http://x");
        assert_eq!(settings.access_of("m"), AccessMode::Open);
        assert_eq!(settings.access_of("other"), AccessMode::AdminOnly);
        assert_eq!(settings.max_concurrent_requests_per_10000_weight, 5);
        let again = settings.updated(&json!({})).unwrap();
        assert_eq!(again, settings);
    }

    #[test]
    fn impossible_values_are_refused() {
        for patch in [
            json!([1]),
            json!({"redundancy": {"receipt_timeout_ms": 0}}),
            json!({"redundancy": {"receipt_timeout_ms": "soon"}}),
            json!({"redundancy": {"speed_policy": "fastest"}}),
            json!({"redundancy": {"parallel_advantage_threshold": 1.0}}),
            json!({"redundancy": {"non_stream_max_attempt_wait_ms": 1}}),
            json!({"default_request_max_tokens": 5000}),
            json!({"escrow_rotation": {"enabled": true}}),
            json!({"model_limits": [{"access_mode": "open"}]}),
        ] {
            assert!(defaults().updated(&patch).is_err(), "{patch}");
        }
    }
}
