//! `metrics-<ts>.prom`: Prometheus text format for a textfile collector or a push gateway. Base units: seconds, bytes,
//! shares. What has no value has no sample.

use std::fmt::Write as _;

use stats::Histogram;

use super::show::{PERCENTILES, scopes};
use crate::result::{Figure, Figures, Metric, RunResult, Unit};

/// The whole exposition.
#[must_use]
pub fn prometheus(result: &RunResult) -> String {
    let mut out = String::new();
    let scopes: Vec<(String, &Figures)> = scopes(result)
        .into_iter()
        .enumerate()
        .map(|(at, (name, figures))| (labels(result, if at == 0 { "" } else { name }), figures))
        .collect();
    for metric in Metric::ALL {
        summary(&mut out, *metric, &scopes);
    }
    for figure in Figure::ALL {
        let row = figure.definition();
        let name = format!("loadgen_{}{}", row.name, if row.unit == Unit::Bytes { "_bytes" } else { "" });
        let samples: Vec<(String, f64)> = scopes
            .iter()
            .filter_map(|(labels, figures)| Some((labels.clone(), figures.value(*figure)?)))
            .collect();
        gauge(&mut out, &name, row.meaning, &samples);
    }
    let classes: Vec<(String, f64)> =
        scopes
            .iter()
            .flat_map(|(labels, figures)| {
                figures.counts.classes.iter().map(move |(class, count)| {
                    (format!("{labels},class=\"{}\"", class.word()), *count as f64)
                })
            })
            .collect();
    gauge(&mut out, "loadgen_requests", "requests of the steady parts by class", &classes);
    of_run(&mut out, result);
    out
}

/// What belongs to the run and to no scenario.
fn of_run(out: &mut String, result: &RunResult) {
    let labels = labels(result, "");
    let held: Vec<(String, f64)> = result
        .thresholds
        .iter()
        .map(|threshold| {
            let scope = super::show::threshold_scope(threshold);
            let text =
                format!("{labels},threshold=\"{}\",scope=\"{}\"", escape(&threshold.name), escape(&scope));
            (text, f64::from(u8::from(threshold.held)))
        })
        .collect();
    gauge(out, "loadgen_threshold_held", "1 when the threshold held", &held);
    let one = |value: f64| vec![(labels.clone(), value)];
    let exit = f64::from(result.verdict.outcome.code());
    gauge(out, "loadgen_exit_code", "exit code of the run, 0 is a pass", &one(exit));
    gauge(
        out,
        "loadgen_partial",
        "1 when the run was stopped early",
        &one(f64::from(u8::from(result.run.partial))),
    );
    let wires = &result.wires;
    let unchecked = f64::from(u8::from(wires.insecure));
    gauge(out, "loadgen_certificates_unchecked", "1 when no certificate was checked", &one(unchecked));
    let versions = [("1.1", wires.http1_connections), ("2", wires.http2_connections)];
    let versions = versions.map(|(http, count)| (format!("{labels},http=\"{http}\""), count as f64));
    gauge(out, "loadgen_connections", "connections that stood, by version of HTTP", &versions);
    let health = &result.health;
    gauge(out, "loadgen_cpu_seconds", "CPU time of the generator", &one(health.cpu_us as f64 / 1e6));
    gauge(
        out,
        "loadgen_memory_bytes",
        "largest resident memory of the generator",
        &one(health.rss_max_bytes as f64),
    );
    let waited: Vec<(String, f64)> =
        health.core_wait_us.iter().flat_map(|wait_us| one(*wait_us as f64 / 1e6)).collect();
    let meaning = "time in which threads that send were ready and other programs had their core";
    gauge(out, "loadgen_core_wait_seconds", meaning, &waited);
    let saturated = health.saturation.len() as f64;
    gauge(out, "loadgen_saturations", "limits of the generator that were reached", &one(saturated));
}

fn labels(result: &RunResult, scenario: &str) -> String {
    // An empty label is the same as none: the whole run.
    format!("profile=\"{}\",scenario=\"{}\"", escape(&result.run.name), escape(scenario))
}

fn summary(out: &mut String, metric: Metric, scopes: &[(String, &Figures)]) {
    let filled: Vec<(&String, &Histogram)> = scopes
        .iter()
        .map(|(labels, figures)| (labels, figures.distributions.get(metric)))
        .filter(|(_, histogram)| !histogram.is_empty())
        .collect();
    if filled.is_empty() {
        return;
    }
    let name = format!("loadgen_{}_seconds", metric.name());
    head(out, &name, metric.definition().meaning, "summary");
    for (labels, histogram) in filled {
        for (_, percentile) in PERCENTILES {
            if let Some(us) = histogram.percentile_us(percentile) {
                let quantile = f64::from(percentile.ppm()) / 1e6;
                let _ = writeln!(out, "{name}{{{labels},quantile=\"{quantile}\"}} {}", us as f64 / 1e6);
            }
        }
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", histogram.sum_us() as f64 / 1e6);
        let _ = writeln!(out, "{name}_count{{{labels}}} {}", histogram.count());
    }
}

fn gauge(out: &mut String, name: &str, meaning: &str, samples: &[(String, f64)]) {
    if samples.is_empty() {
        return;
    }
    head(out, name, meaning, "gauge");
    for (labels, value) in samples.iter().filter(|(_, value)| value.is_finite()) {
        let _ = writeln!(out, "{name}{{{labels}}} {value}");
    }
}

fn head(out: &mut String, name: &str, meaning: &str, kind: &str) {
    let help = meaning.split_whitespace().collect::<Vec<_>>().join(" ").replace('\\', "\\\\");
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
