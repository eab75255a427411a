//! Where the gateway's numbers are counted, and the gauges that are computed when somebody looks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Gateway;
use super::accounting::Outcome;
use super::quarantine::Mode;
use super::race::{Attempt, Race};

impl Gateway {
    /// A call of a host failed.
    pub fn count_transport_error(&self, participant: &str, path_kind: &str, status: u16) {
        let status = status.to_string();
        let labels = [
            ("participant_key", participant),
            ("model", "unknown"),
            ("path_kind", path_kind),
            ("status", &status),
        ];
        self.metrics.count("devshard_gateway_participant_transport_errors_total", &labels);
    }

    /// An attempt has its nonce.
    pub fn count_attempt_start(&self, race: &Race, place: usize) {
        let attempt = &race.attempts[place];
        let Some(started) = &attempt.started else { return };
        let participant = ("participant_key", started.participant.address.as_str());
        let (model, reason) = (("model", race.model()), ("reason", attempt.reason));
        let mode = ("quarantine_mode", attempt.mode.name());
        let labels = [participant, model, ("role", attempt.role()), reason, mode];
        self.metrics.count("devshard_gateway_attempts_started_total", &labels);
        let escrow = ("escrow_id", race.escrow.id());
        let labels = [participant, model, escrow, ("decision", "real_send"), reason, mode];
        self.metrics.count("devshard_gateway_slot_decisions_total", &labels);
    }

    /// A race is settled.
    pub fn count_race(&self, race: &Race, outcome: Outcome) {
        let model = ("model", race.model());
        let failures = || race.attempts.iter().filter(|attempt| !attempt.succeeded());
        let winner_failure = race.winner.map(|place| race.attempts[place].failure());
        let failure = winner_failure.or_else(|| failures().next().map(Attempt::failure)).unwrap_or("unknown");
        let success = outcome == Outcome::Success;
        let reason = ("reason", if success { "none" } else { failure });
        self.metrics.count("devshard_gateway_requests_total", &[model, ("outcome", outcome.name()), reason]);
        if !success {
            self.metrics.count("devshard_gateway_critical_user_failures_total", &[model, reason]);
        } else if let Some(hidden) = failures().next() {
            let labels = [model, ("severity", "protected"), ("reason", hidden.failure())];
            self.metrics.count("devshard_gateway_user_requests_with_hidden_failure_total", &labels);
        }
        for (place, attempt) in race.attempts.iter().enumerate() {
            self.count_attempt_end(race, place, attempt, success);
        }
    }

    fn count_attempt_end(&self, race: &Race, place: usize, attempt: &Attempt, success: bool) {
        let Some(started) = &attempt.started else { return };
        let key = started.participant.address.as_str();
        let pair = [("participant_key", key), ("model", race.model())];
        let visibility = match (race.winner == Some(place) && success, attempt.succeeded()) {
            (true, _) => "user_visible_winner",
            (false, true) => "suppressed_loser",
            (false, false) => "failed_not_finished",
        };
        let role = ("role", attempt.role());
        let outcome = ("outcome", if attempt.succeeded() { "success" } else { "failed" });
        let labels = [pair[0], pair[1], role, outcome, ("visibility", visibility)];
        self.metrics.count("devshard_gateway_attempts_terminal_total", &labels);
        if !attempt.succeeded() {
            let labels = [pair[0], pair[1], role, ("reason", attempt.failure()), ("visibility", visibility)];
            self.metrics.count("devshard_gateway_attempt_failures_total", &labels);
        }
        if race.winner == Some(place) && success {
            self.metrics.count("devshard_gateway_user_visible_wins_total", &pair);
        }
        let host_idx = started.slot.to_string();
        let host = [("devshard_id", race.escrow.id()), ("host_idx", host_idx.as_str())];
        let observe = |ours, hosts, value: Option<Duration>| {
            if let Some(value) = value {
                self.metrics.observe(ours, &pair, value.as_secs_f64());
                self.metrics.observe(hosts, &host, value.as_secs_f64());
            }
        };
        observe(
            "devshard_gateway_participant_receipt_seconds",
            "devshard_host_receipt_seconds",
            attempt.receipt_after,
        );
        observe(
            "devshard_gateway_participant_first_content_seconds",
            "devshard_host_first_token_seconds",
            attempt.content_after,
        );
        observe(
            "devshard_gateway_participant_total_attempt_seconds",
            "devshard_host_total_time_seconds",
            Some(attempt.took),
        );
        if let Some(after) = attempt.content_after {
            let per_byte = after.as_secs_f64() / number(race.input_length().max(1));
            self.metrics.observe(
                "devshard_gateway_participant_prefill_seconds_per_input_token",
                &pair,
                per_byte,
            );
            self.metrics.observe("devshard_host_cttfl_seconds_per_input_token", &host, per_byte);
        }
    }

    /// A request that no race was run for.
    pub fn count_request(&self, model: &str, outcome: &str, reason: &str) {
        let labels = [("model", model), ("outcome", outcome), ("reason", reason)];
        self.metrics.count("devshard_gateway_requests_total", &labels);
        if outcome != "cached" {
            let labels = [("model", model), ("reason", reason)];
            self.metrics.count("devshard_gateway_critical_user_failures_total", &labels);
        }
    }

    /// The text of `/metrics`, gauges of this moment included.
    pub fn render_metrics(&self) -> String {
        let usage = self.limiter.usage();
        let settings = self.settings();
        let races = self.races.load(Ordering::Relaxed);
        let inflight = self.defect.shown_inflight(number(usage.requests), races);
        let flaps = races > 0 && self.defect.flaps();
        let inflight = if flaps { inflight.max(1.0) } else { inflight };
        let set = |name, value| self.metrics.set(name, &[], value);
        set("devshard_gateway_inflight_requests", inflight);
        set("devshard_gateway_inflight_input_tokens", number(usage.tokens));
        let weight = self.weight();
        let effective = super::capacity::scaled(settings.max_concurrent_requests, weight.scale());
        set("devshard_gateway_effective_max_concurrent_requests", number(effective));
        set(
            "devshard_gateway_effective_max_input_tokens_in_flight",
            number(settings.max_input_tokens_in_flight),
        );
        set("devshard_gateway_participants_exhausted", number(weight.hosts - weight.available));
        let current = number(weight.current);
        set("devshard_gateway_capacity_scale", weight.scale());
        set("devshard_gateway_capacity_total_weight", current);
        set("devshard_gateway_capacity_baseline_weight", number(weight.full));
        let model = [("model", self.config.model.as_str())];
        self.metrics.set("devshard_gateway_capacity_scale_by_model", &model, weight.scale());
        self.metrics.set("devshard_gateway_capacity_total_weight_by_model", &model, current);
        self.metrics.set("devshard_gateway_capacity_baseline_weight_by_model", &model, number(weight.full));
        self.set_runtime_gauges(current);
        self.metrics.render()
    }

    /// Series of escrows that have left stay at zero here; in the real program they vanish.
    fn set_runtime_gauges(&self, hosts: f64) {
        let residents = self.residents();
        let active = residents.iter().filter(|escrow| escrow.active.load(Ordering::Acquire)).count();
        for row in self.store.registered().unwrap_or_default() {
            let id = row.params.escrow_id.as_str();
            let labels = [("devshard_id", id), ("model", row.model.as_str())];
            let escrow = residents.iter().find(|escrow| escrow.id() == id);
            let value = |read: fn(&super::Escrow) -> u64| escrow.map_or(0.0, |escrow| number(read(escrow)));
            self.metrics.set(
                "devshard_runtime_active",
                &labels,
                value(|escrow| u64::from(escrow.active.load(Ordering::Acquire))),
            );
            self.metrics.set(
                "devshard_runtime_active_requests",
                &labels,
                value(|escrow| escrow.active_requests.load(Ordering::Acquire)),
            );
            self.metrics.set(
                "devshard_runtime_reserved_tokens",
                &labels,
                value(|escrow| escrow.reserved_tokens.load(Ordering::Acquire)),
            );
            let blocked = escrow.map_or(0, |escrow| self.blocked_in(escrow));
            let limited = if blocked > 0 { 1.0 } else { 0.0 };
            self.metrics.set("devshard_gateway_escrow_participant_limited", &labels, limited);
            self.metrics.set("devshard_gateway_escrow_blocked_participants", &labels, number(blocked));
            let is_active = escrow.is_some_and(|escrow| escrow.active.load(Ordering::Acquire));
            let weight = if is_active { hosts / number(active as u64) } else { 0.0 };
            self.metrics.set("devshard_gateway_escrow_weight", &[("devshard_id", id)], weight);
        }
        let mut tracked = std::collections::BTreeSet::new();
        for escrow in &residents {
            for participant in escrow.participants() {
                let key = participant.address.as_str();
                let now = self.quarantine.of(key, crate::clock::unix_ns()).mode;
                if now != Mode::None {
                    tracked.insert(key.to_owned());
                }
                // One series per mode that was ever shown; the current one is 1.
                for mode in [Mode::None, Mode::Probation, Mode::Shadow, Mode::Probe] {
                    let model = escrow.model.as_str();
                    let labels = [("participant_key", key), ("model", model), ("mode", mode.name())];
                    let name = "devshard_gateway_participant_quarantine_state";
                    if mode == now {
                        self.metrics.set(name, &labels, 1.0);
                    } else if self.metrics.value(name, &labels) > 0.0 {
                        self.metrics.set(name, &labels, 0.0);
                    }
                }
            }
        }
        self.metrics.set("devshard_gateway_participants_tracked", &[], number(tracked.len() as u64));
    }

    /// Participants of an escrow that get no requests now.
    fn blocked_in(&self, escrow: &super::Escrow) -> u64 {
        let now_ns = crate::clock::unix_ns();
        let blocked = |address: &str| self.quarantine.of(address, now_ns).mode == Mode::Probe;
        escrow.participants().into_iter().filter(|one| blocked(&one.address)).count() as u64
    }
}

/// Counts stay far below 2^53.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub const fn number(value: u64) -> f64 {
    value as f64
}
