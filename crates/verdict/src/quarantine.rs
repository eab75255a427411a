//! Participants that the gateway does not trust, as its own gauges say, and what is normal about that (contract gateway
//! 4.11): a quarantine has a counted cause and ends after its time; probation ends with the next success.

use std::collections::BTreeMap;

use evidence::snapshot::{Moment, Snapshot};
use serde_json::Value;

/// Gauge: 1 for the mode that a participant is in.
const STATE: &str = "devshard_gateway_participant_quarantine_state{";
/// Counter of changes of mode.
const TRANSITIONS: &str = "devshard_gateway_participant_quarantine_transitions_total{";
/// Ends with a success, at no time.
const PROBATION: &str = "probation";
/// How much longer than its time a quarantine may show: the gauge is set when somebody looks.
const SLACK_US: u64 = 5_000_000;

/// Times of quarantines in milliseconds: what a mode can come from, and what holds when the scenario does not say
/// (contract gateway 4.11 and 9).
const TIMES: [(&str, &str, u64); 4] = [
    ("probe", "http_quarantine_ms", 3_600_000),
    ("probe", "transport_failure_quarantine_ms", 1_800_000),
    ("shadow", "empty_stream_quarantine_ms", 1_800_000),
    ("shadow", "stalled_winner_quarantine_ms", 1_800_000),
];

/// A participant that is left in a mode at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Address.
    pub participant: String,
    /// `probe`, `shadow`, `probation`.
    pub mode: String,
    /// What is not normal about it: a reason and words.
    pub odd: Option<(&'static str, String)>,
}

/// Who is left in a quarantine. `counted` is false where the counters may have begun anew between the snapshots: then a
/// cause that is not counted means nothing.
#[must_use]
pub fn left(snapshots: &BTreeMap<Moment, Snapshot>, throttle: Option<&Value>, counted: bool) -> Vec<Left> {
    let Some(last) = snapshots.get(&Moment::DrainFinal) else { return Vec::new() };
    let first = snapshots.get(&Moment::Before).filter(|first| !first.gateway_metrics.is_empty());
    let judge = |(participant, mode): (String, String)| {
        let known = first.filter(|_| counted && mode != PROBATION);
        let odd = known.and_then(|first| {
            let before = modes(first).contains_key(&participant);
            let new = changes(last, &participant) - changes(first, &participant);
            if !before && new < 0.5 {
                let text = "and no change into it was counted";
                return Some(("quarantine-without-cause", text.to_owned()));
            }
            overdue(snapshots, &participant, &mode, throttle)
        });
        Left { participant, mode, odd }
    };
    modes(last).into_iter().map(judge).collect()
}

/// A quarantine that two snapshots show, with no change counted between them, further apart than it may last.
fn overdue(
    snapshots: &BTreeMap<Moment, Snapshot>,
    participant: &str,
    mode: &str,
    throttle: Option<&Value>,
) -> Option<(&'static str, String)> {
    let set = |name: &str| throttle?.get(name)?.as_u64();
    let times = TIMES.iter().filter(|(of, ..)| *of == mode);
    let most_ms = times.map(|(_, name, usual)| set(name).unwrap_or(*usual)).max()?;
    let last = snapshots.get(&Moment::DrainFinal)?;
    let same = |snapshot: &&Snapshot| {
        modes(snapshot).get(participant).is_some_and(|then| then == mode)
            && (changes(snapshot, participant) - changes(last, participant)).abs() < 0.5
    };
    let since = snapshots.values().find(same)?;
    let held_us = last.at_us.saturating_sub(since.at_us);
    let text =
        || format!("for {:.1} s at least, and {:.1} s are set", held_us as f64 / 1e6, most_ms as f64 / 1e3);
    (held_us > most_ms.saturating_mul(1_000).saturating_add(SLACK_US)).then(|| ("quarantine-overdue", text()))
}

/// Participants that are in a mode other than none.
fn modes(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let on = snapshot.gateway_metrics.iter().filter(|(_, value)| **value > 0.5);
    let modes = on.filter_map(|(series, _)| {
        let labels = series.strip_prefix(STATE)?;
        Some((label(labels, "participant_key")?.to_owned(), label(labels, "mode")?.to_owned()))
    });
    modes.filter(|(_, mode)| mode != "none").collect()
}

/// Changes of mode that were counted for a participant.
fn changes(snapshot: &Snapshot, participant: &str) -> f64 {
    let counters = snapshot.gateway_metrics.iter().filter(|(series, _)| {
        let labels = series.strip_prefix(TRANSITIONS);
        labels.and_then(|labels| label(labels, "participant_key")) == Some(participant)
    });
    counters.map(|(_, value)| value).sum()
}

/// The value of a label in `name="value",…}`. Addresses and modes hold no quotes.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut parts = labels.trim_end_matches('}').split(',').filter_map(|part| part.split_once('='));
    parts.find(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"'))
}
