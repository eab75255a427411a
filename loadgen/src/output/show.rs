//! How the values of the metric table are written for people, and which parts of a result every writer walks over.

use evidence::record::ClientClass;
use report::units;
use stats::{Histogram, Percentile};

use crate::result::{Counts, Figure, Figures, RunResult, Unit};

/// Percentiles that every writer shows, with their names in files.
pub(super) const PERCENTILES: [(&str, Percentile); 5] = [
    ("p50", Percentile::P50),
    ("p90", Percentile::P90),
    ("p95", Percentile::P95),
    ("p99", Percentile::P99),
    ("p999", Percentile::P999),
];

/// A value by its unit.
pub(super) fn value(unit: Unit, value: Option<f64>) -> String {
    let Some(finite) = value.filter(|value| value.is_finite()) else { return units::NONE.to_owned() };
    match unit {
        Unit::Microseconds => units::span(finite.max(0.0).round() as u64),
        Unit::PerSecond => units::per_second(value),
        Unit::Share => units::share(value),
        Unit::Bytes => units::bytes(finite.max(0.0).round() as u64),
        Unit::Count => units::trimmed(finite, 2),
        Unit::Money => units::trimmed(finite, 6),
    }
}

/// A figure of the table, as people read it.
pub(super) fn figure(figures: &Figures, which: Figure) -> String {
    let found = figures.value(which);
    match (which.definition().unit, found) {
        (Unit::Count, Some(number)) if number.fract() == 0.0 && number >= 0.0 => units::count(number as u64),
        (unit, found) => value(unit, found),
    }
}

/// A percentile; `*` marks one with too few values behind it.
pub(super) fn percentile(histogram: &Histogram, percentile: Percentile) -> String {
    let n = histogram.count();
    let mark = if n > 0 && percentile.is_low_n(n) { "*" } else { "" };
    format!("{}{mark}", units::span_or_none(histogram.percentile_us(percentile)))
}

/// The run as a whole and each scenario, each with its name; one scenario alone is the run itself.
pub(super) fn scopes(result: &RunResult) -> Vec<(&str, &Figures)> {
    let mut scopes = vec![("all", &result.total)];
    if result.scenarios.len() > 1 {
        scopes.extend(result.scenarios.iter().map(|scenario| (scenario.name.as_str(), &scenario.figures)));
    }
    scopes
}

/// Counts by class in words, the successes first.
pub(super) fn classes(counts: &Counts) -> String {
    let ok = counts.ok();
    let mut parts = vec![format!("{} ok", units::count(ok))];
    let others = counts.classes.iter().filter(|(class, _)| **class != ClientClass::Ok);
    parts.extend(others.map(|(class, count)| format!("{} {}", units::count(*count), class.word())));
    parts.join(", ")
}

/// What every report says when nobody checked who answered.
const INSECURE: &str =
    "CERTIFICATES WERE NOT CHECKED (insecure): who answered is not known, and these figures vouch for nobody";

/// What every report says at its top, so that no figure below is believed for more than it is.
pub(super) fn warnings(result: &RunResult) -> Vec<String> {
    let insecure = result.wires.insecure.then(|| INSECURE.to_owned());
    let busy = result.health.core_taken_ppm().map(|ppm| {
        format!(
            "NO FREE CORE: the threads that send waited {} ({}) for a core that other programs used; lateness and what \
             it adds to latency are those of a busy machine and say nothing about generator or target",
            units::span(result.health.core_wait_us.unwrap_or_default()),
            units::share(Some(ppm as f64 / 1e6))
        )
    });
    insecure.into_iter().chain(busy).collect()
}

/// Connections, streams, names and peers in words; what did not occur is left out.
pub(super) fn wires(result: &RunResult) -> Vec<(&'static str, String)> {
    const PEERS_MAX: usize = 16;
    let wires = &result.wires;
    let mut rows = Vec::new();
    let counted = [
        (wires.http1_connections, "HTTP/1.1"),
        (wires.http2_connections, "HTTP/2"),
        (wires.tls_handshakes, "TLS handshakes"),
        (wires.name_lookups, "name lookups"),
    ];
    let counted: Vec<String> = counted
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{} {what}", units::count(*count)))
        .collect();
    if !counted.is_empty() {
        rows.push(("connections", counted.join(", ")));
    }
    if wires.http2_connections > 0 {
        let granted = wires.streams_granted_min.map_or_else(|| "no limit".to_owned(), units::count);
        rows.push((
            "streams",
            format!(
                "granted {granted}, open at once on a connection at most {}; used up {} times, reset by the peer {}",
                units::count(wires.streams_open_max),
                units::count(wires.streams_used_up),
                units::count(wires.streams_reset)
            ),
        ));
    }
    rows.extend(wires.peers.iter().take(PEERS_MAX).map(|(address, peer)| {
        let text = format!(
            "{address}: {} requests, {} connections",
            units::count(peer.requests),
            units::count(peer.connections)
        );
        ("peer", text)
    }));
    if wires.peers.len() > PEERS_MAX {
        rows.push(("peers", format!("{} in all", units::count(wires.peers.len() as u64))));
    }
    rows
}

/// Name of a stage in tables and plots.
pub(super) fn stage_name(stage: &crate::result::StageResult) -> String {
    match &stage.name {
        Some(name) => format!("{} {name}", stage.index + 1),
        None => (stage.index + 1).to_string(),
    }
}

/// What a threshold is held against, for example `stage 2, chat`.
pub(super) fn threshold_scope(threshold: &crate::result::ThresholdResult) -> String {
    let stage = threshold.stage.map(|stage| format!("stage {}", stage + 1));
    let parts: Vec<String> = stage.into_iter().chain(threshold.scenario.clone()).collect();
    if parts.is_empty() { "run".to_owned() } else { parts.join(", ") }
}

/// Its limit with the direction.
pub(super) fn threshold_limit(threshold: &crate::result::ThresholdResult) -> String {
    let sign = if threshold.at_least { "≥" } else { "≤" };
    format!("{sign} {}", value(threshold.unit, Some(threshold.limit)))
}

/// What was found, with the mark of few values.
pub(super) fn threshold_found(threshold: &crate::result::ThresholdResult) -> String {
    format!("{}{}", value(threshold.unit, threshold.found), if threshold.low_n { "*" } else { "" })
}
