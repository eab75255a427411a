//! `report.html`: one page about one run, the verdict first.

use evidence::exit::Outcome;
use evidence::summary::Summary;

use super::{RunReport, devshard_words, plots, tables, timeline, verdict_tone, verdict_words};
use crate::html::{escape, page as shell, section};
use crate::units;

/// The whole page.
#[must_use]
pub fn page(report: &RunReport<'_>) -> String {
    let summary = report.summary;
    let body = [
        head(report),
        section("Assertions", "", &tables::assertions(report)),
        section("Failures", "", &tables::failures(report)),
        section("Faults injected", "", &tables::faults(report)),
        section("Over time", "", &plots::over_time(report)),
        section("Timeline", "", &timeline::timeline(report)),
        section("Where requests went", "", &format!("{}{}", tables::nodes(report), tables::hosts(report))),
        section("Measurements", "", &tables::measured(report)),
        section("What ran", "", &tables::identity(report)),
        format!("<footer>{}</footer>\n", escape(&summary.note)),
    ]
    .concat();
    shell(&format!("{} {}: {}", summary.verdict.word(), summary.scenario, summary.run_id), &body)
}

fn head(report: &RunReport<'_>) -> String {
    let summary = report.summary;
    let tone = verdict_tone(summary.verdict).class();
    let reasons: String = reasons(summary).map(|reason| format!("<li>{}</li>", escape(reason))).collect();
    let reasons = if reasons.is_empty() {
        String::new()
    } else {
        format!("<ul class=\"reasons {tone}\">{reasons}</ul>\n")
    };
    format!(
        "<header>\n<div class=\"head\"><h1>{}</h1><div class=\"verdict {tone}\">{} <small>exit {}</small></div></div>\n\
         <p class=\"about\">{}</p>\n<p class=\"about\">{}, seed {}, begun {}, run <code>{}</code></p>\n{reasons}{}</header>\n",
        escape(&summary.scenario),
        escape(&capital(summary.verdict.word())),
        summary.exit_code,
        escape(verdict_words(summary.verdict)),
        escape(&devshard_words(summary)),
        summary.seed,
        units::utc(report.started_unix_us),
        escape(&summary.run_id),
        figures(summary),
    )
}

/// Why, in one line each; a failed environment is not buried under what could then not be judged.
pub(super) fn reasons(summary: &Summary) -> impl Iterator<Item = &str> {
    let environment = summary.verdict == Outcome::Environment;
    let of_environment = move |reason: &&String| !environment || !reason.starts_with("A1 ");
    summary.reasons.iter().take_while(of_environment).map(String::as_str)
}

/// The handful of figures that people look for first.
fn figures(summary: &Summary) -> String {
    let client = &summary.client;
    let n = |n: u64| format!("of {}", units::count(n));
    let drain = summary.devshard.get("passive_drain_us").and_then(serde_json::Value::as_u64);
    let figures = [
        ("Requests sent", units::count(client.sent), format!("of {} planned", units::count(client.planned))),
        ("Achieved", units::per_second(client.achieved_rps), "ended over the load".to_owned()),
        ("Success rate", units::share(client.success_rate), "masked faults included".to_owned()),
        (
            "Error rate",
            units::share(client.error_rate),
            format!("{} with expected", units::share(client.raw_error_rate)),
        ),
        ("TTFT p95", units::span_or_none(client.ttft.p95_us), n(client.ttft.n)),
        ("Latency p95", units::span_or_none(client.latency.p95_us), n(client.latency.n)),
        ("Passive drain", units::span_or_none(drain), String::new()),
    ];
    let items: String = figures
        .iter()
        .map(|(name, value, note)| format!("<div><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>"))
        .collect();
    format!("<dl class=\"figures\">{items}</dl>\n")
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
