//! Stages of a profile: which load each asks for, and when.

use std::path::Path;

use scenario::units::Micros;
use serde_json::Value;
use stats::{PerSecond, RateCurve};

use super::model::{Arrival, Number, Profile, Search, SearchOf, Stage};
use super::resolve::{Kind, Problems, ScenarioPlan, StagePlan, TraceArrival, read_lines};
use crate::error::LoadgenError;
use crate::result::StageLoad;

/// Most users of a closed loop.
const CONCURRENCY_MAX: u64 = 1_000_000;

/// The stages of a profile, as far as they can be.
pub(super) fn stages(
    profile: &Profile,
    folder: &Path,
    scenarios: &[ScenarioPlan],
    problems: &mut Problems,
) -> Vec<StagePlan> {
    if profile.stages.is_empty() && profile.search.is_none() {
        problems.add("stages", "at least one is needed");
    }
    let mut users = 0;
    let mut plans = Vec::new();
    for (place, stage) in profile.stages.iter().enumerate() {
        let at = format!("stages[{place}]");
        let kind = kind(stage, profile, users, (folder, scenarios), &at, problems);
        let Some((kind, load)) = kind else { continue };
        users = if let Kind::Closed { to, .. } = &kind { *to } else { 0 };
        let ramp_us = if let Kind::Closed { ramp_us, .. } = &kind { *ramp_us } else { 0 };
        let replay_us = if let Kind::Replay(arrivals) = &kind {
            arrivals.last().map(|last| last.at_us + 1)
        } else {
            None
        };
        let duration_us = stage.duration.map(Micros::us).or(replay_us);
        let warmup_us = stage.warmup.or(profile.warmup).map_or(0, Micros::us) + ramp_us;
        let cooldown_us = duration_us.and(profile.cooldown).map_or(0, Micros::us);
        if duration_us.is_some_and(|duration| warmup_us + cooldown_us >= duration) {
            problems.add(&at, "warm-up, ramp and cool-down leave nothing of its duration");
        }
        plans.push(StagePlan {
            name: stage.name.clone(),
            kind,
            load,
            duration_us,
            requests: stage.requests,
            warmup_us,
            cooldown_us,
        });
    }
    plans
}

/// A stage of a search level.
///
/// # Errors
/// Usage when the level is too large.
pub fn search_stage(
    search: &Search,
    level: u64,
    warmup_us: u64,
    arrival: Arrival,
) -> Result<StagePlan, LoadgenError> {
    let duration_us = search.hold.us();
    let kind = match search.of {
        SearchOf::Concurrency => Kind::Closed { from: level, to: level, ramp_us: 0 },
        SearchOf::Rate => Kind::Open {
            curve: RateCurve::constant(PerSecond::from_whole(level), duration_us.saturating_mul(1_000))
                .map_err(|error| LoadgenError::Usage(error.to_string()))?,
            poisson: arrival == Arrival::Poisson,
        },
    };
    let load = match search.of {
        SearchOf::Concurrency => StageLoad::Closed { from: level, concurrency: level, ramp_us: 0 },
        SearchOf::Rate => StageLoad::Open {
            from_milli: level * 1_000,
            to_milli: level * 1_000,
            poisson: arrival == Arrival::Poisson,
        },
    };
    Ok(StagePlan {
        name: None,
        kind,
        load,
        duration_us: Some(duration_us),
        requests: None,
        warmup_us,
        cooldown_us: 0,
    })
}

fn kind(
    stage: &Stage,
    profile: &Profile,
    users_before: u64,
    (folder, scenarios): (&Path, &[ScenarioPlan]),
    at: &str,
    problems: &mut Problems,
) -> Option<(Kind, StageLoad)> {
    let poisson = stage.arrival.unwrap_or(profile.arrival) == Arrival::Poisson;
    let shape = (
        stage.concurrency.is_some(),
        stage.rate.is_some(),
        stage.rate_from.is_some() || stage.rate_to.is_some(),
        stage.replay.is_some(),
    );
    match shape {
        (true, false, false, false) => closed(stage, users_before, at, problems),
        (false, true, false, false) => {
            let rate = stage.rate.as_ref();
            open(stage, (rate, rate), poisson, at, problems)
        }
        (false, false, true, false) if stage.rate_from.is_some() && stage.rate_to.is_some() => {
            open(stage, (stage.rate_from.as_ref(), stage.rate_to.as_ref()), poisson, at, problems)
        }
        (false, false, false, true) => replay(stage, folder, scenarios, at, problems),
        _ => {
            problems.add(at, "give exactly one of concurrency, rate, rate_from with rate_to, and replay");
            None
        }
    }
}

fn closed(stage: &Stage, before: u64, at: &str, problems: &mut Problems) -> Option<(Kind, StageLoad)> {
    let to = stage.concurrency.unwrap_or_default();
    if !(1..=CONCURRENCY_MAX).contains(&to) {
        problems.add(format!("{at}.concurrency"), format!("is 1 to {CONCURRENCY_MAX}"));
    }
    match (stage.duration, stage.requests) {
        (Some(duration), None) if duration.us() > 0 => {}
        (None, Some(requests)) if requests > 0 => {}
        _ => problems.add(at, "give exactly one of duration and requests, above 0"),
    }
    let ramp_us = stage.ramp.map_or(0, Micros::us);
    let from = if ramp_us > 0 { before } else { to };
    Some((Kind::Closed { from, to, ramp_us }, StageLoad::Closed { from, concurrency: to, ramp_us }))
}

fn open(
    stage: &Stage,
    (from, to): (Option<&Number>, Option<&Number>),
    poisson: bool,
    at: &str,
    problems: &mut Problems,
) -> Option<(Kind, StageLoad)> {
    let milli = |number: Option<&Number>| {
        let nano = number?.nano()?;
        nano.is_multiple_of(1_000_000).then_some(nano / 1_000_000)
    };
    let Some((from_milli, to_milli)) = milli(from).zip(milli(to)) else {
        problems.add(at, "a rate is a decimal a second with at most three digits after the point");
        return None;
    };
    let Some(duration) = stage.duration.filter(|duration| duration.us() > 0 && stage.requests.is_none())
    else {
        problems.add(at, "an open loop has a duration, and no requests");
        return None;
    };
    if stage.ramp.is_some() {
        problems.add(format!("{at}.ramp"), "a ramp of a rate is written rate_from and rate_to");
    }
    let ends = (PerSecond::from_milli(from_milli), PerSecond::from_milli(to_milli));
    match RateCurve::ramp(ends.0, ends.1, duration.us().saturating_mul(1_000)) {
        Ok(curve) => Some((Kind::Open { curve, poisson }, StageLoad::Open { from_milli, to_milli, poisson })),
        Err(error) => {
            problems.add(at, error.to_string());
            None
        }
    }
}

fn replay(
    stage: &Stage,
    folder: &Path,
    scenarios: &[ScenarioPlan],
    at: &str,
    problems: &mut Problems,
) -> Option<(Kind, StageLoad)> {
    let speed = stage.speed.as_ref().map_or(Some(1_000_000_000), Number::nano).filter(|speed| *speed > 0);
    let Some(speed) = speed else {
        problems.add(format!("{at}.speed"), "is a decimal above 0");
        return None;
    };
    let arrival = |line: &Value| -> Result<TraceArrival, String> {
        let at_ms = line.get("at_ms").and_then(Value::as_number).map(|number| Number(number.to_string()));
        let nano = at_ms.as_ref().and_then(Number::nano).ok_or("`at_ms` is no number of milliseconds")?;
        let at_us = u128::from(nano) * 1_000 / u128::from(speed);
        let scenario = match line.get("scenario").and_then(Value::as_str) {
            None => None,
            Some(name) => {
                let place = scenarios.iter().position(|scenario| scenario.name == name);
                Some(place.ok_or_else(|| format!("no scenario {name:?}"))?)
            }
        };
        Ok(TraceArrival { at_us: u64::try_from(at_us).unwrap_or(u64::MAX / 2), scenario })
    };
    match read_lines(&folder.join(stage.replay.as_deref().unwrap_or_default()), arrival) {
        Ok(mut arrivals) => {
            arrivals.sort_by_key(|arrival| arrival.at_us);
            let load = StageLoad::Replay { arrivals: arrivals.len() as u64 };
            Some((Kind::Replay(arrivals.into()), load))
        }
        Err(error) => {
            problems.add(at, error);
            None
        }
    }
}
