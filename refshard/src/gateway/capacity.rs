//! Shapes of limiter, capacity and throttle (contract gateway 2.4.2 and 2.4.8, fixtures burst-50-*).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use serde_json::{Map, Value, json};

use super::Gateway;
use super::counts::number;
use super::quarantine::Mode;
use super::store::Registered;
use crate::clock;

/// Caps and usage.
pub fn limiter(gateway: &Gateway) -> Value {
    let settings = gateway.settings();
    let usage = gateway.limiter.usage();
    let weight = gateway.weight();
    let model = &gateway.config.model;
    let caps = gateway.caps(model);
    let (requests, tokens) = (caps.requests.unwrap_or(0), caps.tokens.unwrap_or(0));
    let of_model = gateway.limiter.usage_of(model);
    let mut entry = json!({
        "in_flight_requests": of_model.requests,
        "in_flight_input_tokens": of_model.tokens,
        "max_concurrent_requests": requests,
        "max_input_tokens_in_flight": tokens,
        "effective_max_concurrent_requests": requests,
        "effective_max_input_tokens_in_flight": tokens,
        "capacity_cap_requests": requests,
        "current_capacity_cap_requests": requests,
        "capacity_cap_input_tokens": tokens,
        "current_capacity_cap_input_tokens": tokens,
        "scale_factor": whole(weight.scale()),
        "current_weight": weight.current,
        "baseline_weight": weight.full,
    });
    // Shown only while weights decide.
    if weight.matched > 0 {
        entry["max_concurrent_requests_per_10000_weight"] =
            settings.max_concurrent_requests_per_10000_weight.into();
    }
    let effective = scaled(settings.max_concurrent_requests, weight.scale());
    json!({
        "in_flight_requests": usage.requests,
        "in_flight_input_tokens": usage.tokens,
        "max_concurrent_requests": settings.max_concurrent_requests,
        "max_input_tokens_in_flight": settings.max_input_tokens_in_flight,
        "effective_max_concurrent_requests": effective,
        "effective_max_input_tokens_in_flight": settings.max_input_tokens_in_flight,
        "scale_factor": whole(weight.scale()),
        "models": { model: entry },
    })
}

/// A general cap with the share of hosts that may be asked.
pub fn scaled(cap: u64, scale: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a small cap")]
    let scaled = (number(cap) * scale) as u64;
    scaled
}

/// Whole numbers are shown without a fraction, as in the real answer.
fn whole(value: f64) -> Value {
    if value.fract() == 0.0 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small whole number")]
        let value = value as u64;
        return value.into();
    }
    value.into()
}

/// Weights and availability.
pub fn shape(gateway: &Gateway) -> Value {
    let weight = gateway.weight();
    let residents = gateway.residents();
    let active: Vec<_> = residents.iter().filter(|escrow| escrow.active.load(Ordering::Acquire)).collect();
    let share = number(weight.current) / number((active.len() as u64).max(1));
    let weights: Map<String, Value> =
        active.iter().map(|escrow| (escrow.id().to_owned(), whole(share))).collect();
    let routable = active.iter().filter(|escrow| escrow.unavailable().is_none()).count();
    let model = &gateway.config.model;
    let lost = weight.full - weight.current;
    let percent = whole(100.0 * weight.scale());
    let lost_percent = whole(100.0 - 100.0 * weight.scale());
    json!({
        "total_weight": weight.current,
        "baseline_weight": weight.full,
        "lost_weight": lost,
        "scale_factor": whole(weight.scale()),
        "available_percent": percent,
        "lost_percent": lost_percent,
        "host_count": weight.hosts,
        "available_host_count": weight.available,
        "unavailable_host_count": weight.hosts - weight.available,
        "current_weight_matched_hosts": weight.matched,
        "current_weight_fallback_hosts": weight.hosts - weight.matched,
        "baseline_weight_matched_hosts": weight.matched,
        "baseline_weight_fallback_hosts": weight.hosts - weight.matched,
        "observed_current_weight_keys": weight.observed,
        "observed_full_weight_keys": weight.observed,
        "escrow_weights": weights,
        "models": { model: {
            "total_weight": weight.current,
            "current_weight": weight.current,
            "full_weight": weight.full,
            "baseline_weight": weight.full,
            "lost_weight": lost,
            "scale_factor": whole(weight.scale()),
            "limit_share": 1,
            "available_percent": percent,
            "lost_percent": lost_percent,
            "active_devshards": active.len(),
            "routable_devshards": routable,
            "routable": routable > 0,
            "access_enabled": true,
            "access_mode": gateway.settings().access_of(model),
        } },
    })
}

/// Throttle view of an escrow's participants.
pub fn participants(gateway: &Gateway, row: &Registered) -> Value {
    let burst = gateway.settings().participant_throttle.request_burst;
    let now_ns = clock::unix_ns();
    let mut slots: BTreeMap<&str, u64> = BTreeMap::new();
    for address in &row.params.group {
        *slots.entry(address).or_default() += 1;
    }
    let (mut blocked, mut quarantined) = (0, 0);
    let mut participants: Vec<Value> = Vec::new();
    for (address, count) in slots {
        let entry = gateway.quarantine.of(address, now_ns);
        let is_quarantined = matches!(entry.mode, Mode::Shadow | Mode::Probe);
        let is_blocked = entry.mode == Mode::Probe;
        blocked += u64::from(is_blocked);
        quarantined += u64::from(is_quarantined);
        let mut shown = json!({
            "participant_key": address,
            "slot_count": count,
            "tracked": entry.mode != Mode::None,
            "quarantined": is_quarantined,
            "blocked": is_blocked,
            "request_allowed": !is_blocked,
            "available_for_capacity": !is_blocked,
            "tokens": burst,
            "burst": burst,
        });
        if is_quarantined {
            shown["quarantine_mode"] = entry.mode.name().into();
            shown[if is_blocked { "probe_quarantined" } else { "shadow_quarantined" }] = true.into();
            shown["quarantine_until"] = super::shapes::time_of(entry.until_ns).into();
            shown["quarantine_remaining_ms"] = (entry.until_ns.saturating_sub(now_ns) / 1_000_000).into();
        }
        if entry.mode == Mode::Probation {
            shown["probationary"] = true.into();
            shown["failure_strikes"] = entry.strikes.into();
        }
        participants.push(shown);
    }
    let escrow = gateway.resident(&row.params.escrow_id);
    json!({
        "active": row.active,
        "active_requests": escrow.map_or(0, |escrow| escrow.active_requests.load(Ordering::Acquire)),
        "available_count": participants.len() as u64 - blocked,
        "blocked_count": blocked,
        "id": row.params.escrow_id,
        "model": row.model,
        "participant_count": participants.len(),
        "participants": participants,
        "quarantined_count": quarantined,
    })
}
