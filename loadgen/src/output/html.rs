//! `report-<ts>.html`: one offline page about a load run, the verdict first.

use evidence::exit::Outcome;
use report::chart::Chart;
use report::html::{Cell, escape, page, section, table};
use report::units;
use stats::Percentile;

use super::show::{
    PERCENTILES, classes, figure, percentile, scopes, stage_name, threshold_found, threshold_limit,
    threshold_scope,
};
use super::{legend, plots};
use crate::result::{Figure, Figures, Metric, RunResult, StageResult};

/// The whole page.
#[must_use]
pub fn html(result: &RunResult) -> String {
    let histograms =
        [Metric::Latency, Metric::Ttft].into_iter().filter_map(|m| plots::histogram(&result.total, m));
    let steady = "Steady part of each stage. * marks a percentile with too few values behind it.";
    let body = [
        head(result),
        section("Thresholds", "", &thresholds(result)),
        section("Stages", steady, &stages(result)),
        section("Capacity search", &search_words(result), &charts(&plots::knee(result))),
        section("Over time", "", &charts(&plots::over_time(result))),
        section("Against load", "", &charts(&plots::against_load(result))),
        section("Distribution", "Steady parts of all stages.", &charts(&histograms.collect::<Vec<_>>())),
        scopes(result).into_iter().map(|(name, figures)| scope(name, figures)).collect(),
        section("Generator", "", &generator(result)),
        section("What the names mean", "", &meanings(result)),
    ]
    .concat();
    let title = format!("{} {}: {}", result.verdict.outcome, result.run.name, result.run.stamp);
    page(&title, &body)
}

fn charts(charts: &[Chart]) -> String {
    let body: String = charts.iter().map(Chart::html).collect();
    if body.is_empty() { body } else { format!("<div class=\"charts\">\n{body}</div>\n") }
}

const fn tone(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Pass => "good",
        Outcome::Fail | Outcome::Regression | Outcome::Internal => "bad",
        _ => "doubt",
    }
}

fn head(result: &RunResult) -> String {
    let (run, verdict) = (&result.run, &result.verdict);
    let tone = tone(verdict.outcome);
    let word = verdict.outcome.word();
    let word: String =
        word.chars().take(1).flat_map(char::to_uppercase).chain(word.chars().skip(1)).collect();
    let partial = if run.partial {
        "<p class=\"about\">Stopped before its plan ended: figures are partial.</p>"
    } else {
        ""
    };
    let reasons: String =
        verdict.reasons.iter().map(|reason| format!("<li>{}</li>", escape(reason))).collect();
    // A pass needs no reason: what is said beside one is a caution, and must not look like praise.
    let said = if verdict.outcome == Outcome::Pass { "doubt" } else { tone };
    let reasons =
        if reasons.is_empty() { reasons } else { format!("<ul class=\"reasons {said}\">{reasons}</ul>") };
    let warnings: String = super::show::warnings(result)
        .iter()
        .map(|warning| format!("<ul class=\"reasons bad\"><li>{}</li></ul>", escape(warning)))
        .collect();
    let notes: String =
        run.notes.iter().map(|note| format!("<p class=\"about\">{}</p>", escape(note))).collect();
    let total = &result.total;
    let latency = total.distributions.get(Metric::Latency);
    let ttft = total.distributions.get(Metric::Ttft);
    let n = |n: u64| format!("of {}", units::count(n));
    let figures = [
        ("Requests sent", units::count(total.counts.sent), n(total.counts.planned) + " planned"),
        ("Succeeded", figure(total, Figure::OkRps), "a second, steady".to_owned()),
        ("Error rate", figure(total, Figure::ErrorRate), n(total.counts.ok() + total.counts.failed())),
        ("Latency p50", percentile(latency, Percentile::P50), n(latency.count())),
        ("Latency p99", percentile(latency, Percentile::P99), n(latency.count())),
        ("TTFT p95", percentile(ttft, Percentile::P95), n(ttft.count())),
        ("Output tokens", figure(total, Figure::OutputTokensPerSecond), "by the server's usage".to_owned()),
    ];
    let figures: String = figures
        .iter()
        .map(|(name, value, note)| format!("<div><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>"))
        .collect();
    format!(
        "<header>\n<div class=\"head\"><h1>{}</h1><div class=\"verdict {tone}\">{word} <small>exit {}</small></div></div>\n\
         <p class=\"about\">{}, seed {}, begun {}, {} long</p>\n{warnings}{partial}{notes}{reasons}\n<dl class=\"figures\">{figures}</dl>\n</header>\n",
        escape(&run.name),
        verdict.outcome.code(),
        escape(&run.targets.join(", ")),
        run.seed,
        units::utc(run.started_unix_us),
        units::span(run.wall_us),
    )
}

fn thresholds(result: &RunResult) -> String {
    let row = |threshold: &crate::result::ThresholdResult| {
        let (tone, word) = if threshold.held { ("good", "held") } else { ("bad", "broken") };
        vec![
            Cell::Raw(format!("<span class=\"status {tone}\">{word}</span>")),
            Cell::text(threshold.name.as_str()),
            Cell::text(threshold_scope(threshold)),
            Cell::number(threshold_limit(threshold)),
            Cell::number(threshold_found(threshold)),
            Cell::number(units::count(threshold.n)),
        ]
    };
    let rows: Vec<Vec<Cell>> = result.thresholds.iter().map(row).collect();
    table(&["", "threshold", "of", "#limit", "#found", "#n"], &rows)
}

fn stages(result: &RunResult) -> String {
    let row = |stage: &StageResult| {
        let latency = stage.total.distributions.get(Metric::Latency);
        let ttft = stage.total.distributions.get(Metric::Ttft);
        let stopped = stage
            .stopped
            .as_ref()
            .map(|why| format!("<div class=\"muted\">ended early: {}</div>", escape(why)));
        let mut cells = vec![
            Cell::Raw(format!("{}{}", escape(&stage_name(stage)), stopped.unwrap_or_default())),
            Cell::text(stage.load.words()),
            Cell::number(units::count(stage.total.counts.ended())),
            Cell::number(figure(&stage.total, Figure::OkRps)),
            Cell::number(figure(&stage.total, Figure::ErrorRate)),
        ];
        cells.extend(PERCENTILES.iter().map(|(_, p)| Cell::number(percentile(latency, *p))));
        cells.push(Cell::number(percentile(ttft, Percentile::P95)));
        cells.push(Cell::number(figure(&stage.total, Figure::OutputTokensPerSecond)));
        cells
    };
    let rows: Vec<Vec<Cell>> = result.stages.iter().map(row).collect();
    let heads = [
        "stage",
        "load",
        "#requests",
        "#ok/s",
        "#errors",
        "#p50",
        "#p90",
        "#p95",
        "#p99",
        "#p99.9",
        "#TTFT p95",
        "#tokens/s",
    ];
    table(&heads, &rows)
}

fn search_words(result: &RunResult) -> String {
    let Some(search) = &result.search else { return String::new() };
    let level = |level: Option<u64>| level.map_or_else(|| "none".to_owned(), units::count);
    format!(
        "Highest stable {}: {}; lowest that failed: {}. {}",
        search.of,
        level(search.highest),
        level(search.lowest_bad),
        search.ending
    )
}

/// Figures and percentiles of the run or of one scenario.
fn scope(name: &str, figures: &Figures) -> String {
    let heading = if name == "all" { "All scenarios".to_owned() } else { format!("Scenario {name}") };
    let counts = &figures.counts;
    let mut facts = vec![vec![Cell::text("requests"), Cell::text(classes(counts))]];
    if !counts.details.is_empty() {
        let details: Vec<String> =
            counts.details.iter().map(|(word, count)| format!("{} {word}", units::count(*count))).collect();
        facts.push(vec![Cell::text("errors"), Cell::text(details.join(", "))]);
    }
    let shown = Figure::ALL.iter().filter(|which| figures.value(**which).is_some());
    let named = shown.map(|which| format!("{} {}", which.definition().title, figure(figures, *which)));
    facts.push(vec![Cell::text("figures"), Cell::text(named.collect::<Vec<_>>().join("; "))]);
    let rows: Vec<Vec<Cell>> = Metric::ALL
        .iter()
        .map(|metric| (metric, figures.distributions.get(*metric)))
        .filter(|(_, histogram)| !histogram.is_empty())
        .map(|(metric, histogram)| {
            let mut cells = vec![Cell::text(metric.definition().title)];
            cells.extend(PERCENTILES.iter().map(|(_, p)| Cell::number(percentile(histogram, *p))));
            cells.push(Cell::number(units::span_or_none(histogram.max_us())));
            cells.push(Cell::number(units::count(histogram.count())));
            cells
        })
        .collect();
    let heads = ["", "#p50", "#p90", "#p95", "#p99", "#p99.9", "#max", "#n"];
    section(&heading, "", &format!("{}{}", table(&[], &facts), table(&heads, &rows)))
}

fn generator(result: &RunResult) -> String {
    let (health, run, machine) = (&result.health, &result.run, &result.machine);
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut put = |name: &str, value: String| rows.push(vec![Cell::text(name), Cell::text(value)]);
    for found in &health.saturation {
        put("saturated", found.detail.clone());
    }
    let cpu = units::share(health.cpu_share_ppm().map(|ppm| ppm as f64 / 1e6));
    put("CPU", format!("{cpu} of one core, {} threads sending", health.threads));
    put(
        "memory",
        format!(
            "{} at the end, largest {}",
            units::bytes(health.rss_bytes),
            units::bytes(health.rss_max_bytes)
        ),
    );
    let limit = health.fds_limit.map_or_else(|| "unlimited".to_owned(), units::count);
    put("descriptors", format!("{} open, limit {limit}", units::count(health.open_fds)));
    let turn = &health.loop_turn;
    put(
        "loop turn",
        format!("p99 {}, max {}", percentile(turn, Percentile::P99), units::span_or_none(turn.max_us())),
    );
    if let Some(wait_us) = health.core_wait_us {
        put("waited for a core", units::span(wait_us));
    }
    super::show::wires(result).into_iter().for_each(|(name, text)| put(name, text));
    put(
        "records",
        format!("{} written, {} lost", units::count(run.records), units::count(run.records_dropped)),
    );
    put(
        "machine",
        format!(
            "{}, {} cores, {}, {}",
            machine.cpu,
            machine.cores,
            units::bytes(machine.memory_bytes),
            machine.kernel
        ),
    );
    put("build", run.build.clone());
    put("plan digest", run.plan_digest.clone());
    put("shards", run.shards.join(", "));
    table(&[], &rows)
}

fn meanings(result: &RunResult) -> String {
    let rows: Vec<Vec<Cell>> = legend::of(&result.total)
        .into_iter()
        .map(|entry| {
            vec![
                Cell::text(entry.title),
                Cell::Raw(format!("<code>{}</code>", escape(entry.name))),
                Cell::text(entry.text),
            ]
        })
        .collect();
    table(&["", "name in files", ""], &rows)
}
