//! `report-<ts>.txt`, which is also what a run prints at its end.

use report::units;

use super::show::{
    PERCENTILES, classes, figure, percentile, scopes, stage_name, threshold_found, threshold_limit,
    threshold_scope,
};
use super::{legend, show};
use crate::result::{Figure, Figures, Metric, RunResult};

/// Width of the first column.
const NAME: usize = 26;
/// Explanations are folded to this width, which is also that of the table of percentiles.
const WIDTH: usize = 104;
/// Width of a column of figures.
const CELL: usize = 11;

/// The whole report.
#[must_use]
pub fn text(result: &RunResult) -> String {
    let mut out = String::new();
    head(&mut out, result);
    stages(&mut out, result);
    for (name, figures) in scopes(result) {
        scope(&mut out, name, figures);
    }
    thresholds(&mut out, result);
    search(&mut out, result);
    health(&mut out, result);
    let explained = legend::of(&result.total);
    if !explained.is_empty() {
        out.push_str("\nlegend\n");
        for entry in explained {
            folded(&mut out, entry.title, &entry.text);
        }
    }
    out.push_str("Steady part of each stage only. * too few values for this percentile.\n");
    out
}

fn row(out: &mut String, name: &str, values: &[&str]) {
    line(out, &format!("  {name:<NAME$} {}", values.join("  ")));
}

/// A row whose text goes on below itself.
fn folded(out: &mut String, name: &str, text: &str) {
    let mut rest = String::new();
    let mut name = name;
    for word in text.split_whitespace() {
        if !rest.is_empty() && NAME + 4 + rest.chars().count() + word.chars().count() > WIDTH {
            row(out, std::mem::take(&mut name), &[&rest]);
            rest.clear();
        }
        if !rest.is_empty() {
            rest.push(' ');
        }
        rest.push_str(word);
    }
    row(out, name, &[&rest]);
}

/// A line without idle spaces at its end.
fn line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push('\n');
}

fn cells<T: AsRef<str>>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| format!("{:>CELL$}", value.as_ref())).collect()
}

fn head(out: &mut String, result: &RunResult) {
    let run = &result.run;
    line(out, &format!("{}  seed {}  {}", run.name, run.seed, run.targets.join(", ")));
    show::warnings(result).iter().for_each(|warning| line(out, warning));
    let partial = if run.partial { ", stopped before its plan ended: figures are partial" } else { "" };
    let verdict = &result.verdict;
    line(out, &format!("verdict {} (exit {}){partial}", verdict.outcome, verdict.outcome.code()));
    verdict.reasons.iter().for_each(|reason| line(out, &format!("  {reason}")));
    run.notes.iter().for_each(|note| line(out, &format!("  note: {note}")));
}

fn stages(out: &mut String, result: &RunResult) {
    if result.stages.is_empty() {
        out.push_str("\nno stage was begun\n");
        return;
    }
    let heads = ["requests", "ok/s", "errors", "p50", "p95", "p99", "TTFT p95", "in flight"];
    line(out, &format!("\n{:<28} {}", "stages", cells(heads)));
    for stage in &result.stages {
        let latency = stage.total.distributions.get(Metric::Latency);
        let ttft = stage.total.distributions.get(Metric::Ttft);
        let [p50, _, p95, p99, _] = PERCENTILES.map(|(_, p)| percentile(latency, p));
        let values = [
            units::count(stage.total.counts.ended()),
            figure(&stage.total, Figure::OkRps),
            figure(&stage.total, Figure::ErrorRate),
            p50,
            p95,
            p99,
            percentile(ttft, stats::Percentile::P95),
            units::count(stage.in_flight_max),
        ];
        let name = format!("{} {}", stage_name(stage), stage.load.words());
        line(out, &format!("  {name:<NAME$} {}", cells(values)));
        if let Some(why) = &stage.stopped {
            row(out, "", &[&format!("ended early: {why}")]);
        }
    }
}

fn scope(out: &mut String, name: &str, figures: &Figures) {
    line(out, &format!("\n{name}"));
    let counts = &figures.counts;
    let amounts = format!(
        "{} planned, {} sent; {}",
        units::count(counts.planned),
        units::count(counts.sent),
        classes(counts)
    );
    row(out, "requests", &[&amounts]);
    if !counts.details.is_empty() {
        let details: Vec<String> =
            counts.details.iter().map(|(word, count)| format!("{} {word}", units::count(*count))).collect();
        row(out, "errors", &[&details.join(", ")]);
    }
    for which in Figure::ALL.iter().filter(|which| figures.value(**which).is_some()) {
        row(out, which.definition().title, &[&figure(figures, *which)]);
    }
    let heads = PERCENTILES.iter().map(|(name, _)| if *name == "p999" { "p99.9" } else { name });
    line(out, &format!("  {:<NAME$} {}", "", cells(heads.chain(["max", "n"]))));
    for metric in Metric::ALL {
        let histogram = figures.distributions.get(*metric);
        if histogram.is_empty() {
            continue;
        }
        let values = PERCENTILES.iter().map(|(_, p)| percentile(histogram, *p));
        let ends = [units::span_or_none(histogram.max_us()), units::count(histogram.count())];
        line(out, &format!("  {:<NAME$} {}", metric.definition().title, cells(values.chain(ends))));
    }
}

fn thresholds(out: &mut String, result: &RunResult) {
    if result.thresholds.is_empty() {
        return;
    }
    out.push_str("\nthresholds\n");
    for threshold in &result.thresholds {
        let word = if threshold.held { "held" } else { "BROKEN" };
        let text = format!(
            "{word:<7} {}, found {} (n {}, {})",
            threshold_limit(threshold),
            threshold_found(threshold),
            units::count(threshold.n),
            threshold_scope(threshold)
        );
        row(out, &threshold.name, &[&text]);
    }
}

fn search(out: &mut String, result: &RunResult) {
    let Some(search) = &result.search else { return };
    let level = |level: Option<u64>| level.map_or_else(|| "none".to_owned(), units::count);
    out.push_str("\ncapacity search\n");
    row(out, &format!("highest stable {}", search.of), &[&level(search.highest)]);
    row(out, "lowest that failed", &[&level(search.lowest_bad)]);
    row(out, "ended", &[&search.ending]);
    for run in &search.runs {
        row(
            out,
            &format!("level {}", units::count(run.level)),
            &[&run.outcome, &format!("({})", run.purpose)],
        );
    }
}

fn health(out: &mut String, result: &RunResult) {
    let health = &result.health;
    let cpu = health.cpu_share_ppm().map(|ppm| ppm as f64 / 1e6);
    out.push_str("\ngenerator\n");
    let threads = format!("of one core, {} sending", health.threads);
    row(out, "CPU", &[&units::share(cpu), &threads]);
    let memory =
        format!("{}, largest {}", units::bytes(health.rss_bytes), units::bytes(health.rss_max_bytes));
    row(out, "memory", &[&memory]);
    let limit = health.fds_limit.map_or_else(|| "unlimited".to_owned(), units::count);
    row(out, "descriptors", &[&format!("{} open, limit {limit}", units::count(health.open_fds))]);
    let turn = percentile(&health.loop_turn, stats::Percentile::P99);
    row(out, "loop turn p99", &[&turn, &format!("max {}", units::span_or_none(health.loop_turn.max_us()))]);
    if let Some(wait_us) = health.core_wait_us {
        row(out, "waited for a core", &[&units::span(wait_us), "of its threads' time"]);
    }
    let run = &result.run;
    let records =
        format!("{} written, {} lost", units::count(run.records), units::count(run.records_dropped));
    row(out, "records", &[&records]);
    show::wires(result).iter().for_each(|(name, text)| row(out, name, &[text]));
    if health.saturation.is_empty() {
        row(out, "saturation", &["none"]);
    }
    for found in &health.saturation {
        row(out, "SATURATION", &[&found.detail]);
    }
}
