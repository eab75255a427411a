//! Tables of the page of a run.

use std::collections::BTreeMap;

use evidence::assertion::{AssertionResult, Status};
use serde_json::Value;

use super::measurements::{measurements, shown, words};
use super::{FailureLine, RunReport, status_tone, status_word};
use crate::html::{Cell, command, escape, table};
use crate::units;

/// Witnesses printed per assertion; the rest is in `assertions.json`.
const WITNESSES_MAX: usize = 5;
/// Failures that are open to the eye; a long list of like ones would hide the plots.
const FAILURES_OPEN: usize = 8;
/// Failures printed; each has a bundle of its own.
const FAILURES_MAX: usize = 100;

/// Each assertion with what it looked at and its witnesses.
#[must_use]
pub(super) fn assertions(report: &RunReport<'_>) -> String {
    let row = |result: &AssertionResult| {
        let status = format!(
            "<span class=\"status {}\">{}</span>",
            status_tone(result.status).class(),
            status_word(result.status)
        );
        vec![
            Cell::Raw(status),
            Cell::number(result.id.to_string()),
            Cell::Raw(format!(
                "<div class=\"pair\"><span>{}</span><span class=\"muted\">{} {}</span></div>{}",
                escape(&result.name),
                units::count(result.evaluated),
                escape(&result.unit),
                details(result)
            )),
        ]
    };
    let rows: Vec<Vec<Cell>> = report.assertions.results.iter().map(row).collect();
    table(&[], &rows)
}

/// Witnesses open, for a failure is what the page is read for; rules and information folded away.
fn details(result: &AssertionResult) -> String {
    let mut out = String::new();
    for witness in result.witnesses.iter().take(WITNESSES_MAX) {
        let places: Vec<String> =
            witness.evidence.iter().map(|place| format!("{} {}", place.file, place.at)).collect();
        let places = if places.is_empty() { String::new() } else { format!(" ({})", places.join("; ")) };
        out.push_str(&format!(
            "<p class=\"witness\">{} <span class=\"muted\">{}{}</span></p>",
            escape(&witness.message),
            escape(&witness.reason),
            escape(&places)
        ));
    }
    let shown = result.witnesses.len().min(WITNESSES_MAX) as u64;
    if result.witnesses_total > shown {
        let more = units::count(result.witnesses_total - shown);
        out.push_str(&format!("<p class=\"witness muted\">{more} more in assertions.json</p>"));
    }
    for missing in &result.missing {
        out.push_str(&format!("<p class=\"witness\">missing: {}</p>", escape(missing)));
    }
    let mut notes: Vec<String> = Vec::new();
    for (part, status) in &result.parts {
        if *status == Status::NotApplicable {
            notes.push(format!("{part}: not applicable here"));
        }
    }
    for rule in &result.rules {
        notes.push(format!("rule {} used {} times ({})", rule.rule, units::count(rule.count), rule.source));
    }
    for information in &result.information {
        notes.push(format!("{} ({})", information.message, units::count(information.count)));
    }
    if !notes.is_empty() {
        let lines: String =
            notes.iter().map(|note| format!("<p class=\"witness\">{}</p>", escape(note))).collect();
        let word = if notes.len() == 1 { "note" } else { "notes" };
        out.push_str(&format!("<details><summary>{} {word}</summary>{lines}</details>", notes.len()));
    }
    out
}

/// Failures with the command that replays each.
#[must_use]
pub(super) fn failures(report: &RunReport<'_>) -> String {
    let row = |failure: &FailureLine| {
        let found: String = failure
            .found
            .iter()
            .map(|(id, reason, message)| {
                format!(
                    "<div>{} <span class=\"muted\">{} {}</span></div>",
                    escape(message),
                    escape(id),
                    escape(reason)
                )
            })
            .collect();
        let link = format!("<a href=\"{}\">{}</a>", escape(&link(&failure.file)), escape(&failure.key));
        let class =
            failure.class.as_ref().map(|class| format!("<div class=\"muted\">{}</div>", escape(class)));
        vec![
            Cell::Raw(format!("{link}{}", class.unwrap_or_default())),
            Cell::Raw(format!("{found}{}", command(&failure.repro))),
        ]
    };
    let rows: Vec<Vec<Cell>> = report.failures.iter().take(FAILURES_MAX).map(row).collect();
    let left_out = report.failures.len().saturating_sub(FAILURES_MAX) as u64 + report.failures_dropped;
    let more = match left_out {
        0 => String::new(),
        count => format!("<p class=\"note\">{} more are in the files of the run.</p>\n", units::count(count)),
    };
    let headings = ["what", "found, and how to see it again"];
    let (open, folded) = rows.split_at(rows.len().min(FAILURES_OPEN));
    let folded = match folded.len() {
        0 => String::new(),
        count => format!("<details><summary>{count} more</summary>{}</details>\n", table(&headings, folded)),
    };
    format!("{}{folded}{more}", table(&headings, open))
}

/// A file name as a relative link: its per cent signs are part of the name.
fn link(file: &str) -> String {
    file.replace('%', "%25")
}

/// Fault rules: what they hit and what became of it.
#[must_use]
pub(super) fn faults(report: &RunReport<'_>) -> String {
    let row = |(rule, facts): (&String, &Value)| {
        vec![
            Cell::text(rule.as_str()),
            Cell::number(shown("hits", &facts["hits"])),
            Cell::number(shown("requests", &facts["distinct_requests"])),
            Cell::text(shown("places", &facts["places"])),
            Cell::text(shown("classes", &facts["classes"])),
            Cell::text(shown("because", &facts["because"])),
        ]
    };
    let rows: Vec<Vec<Cell>> = report.summary.faults.iter().map(row).collect();
    table(&["rule", "#hits", "#requests", "where", "became", "because"], &rows)
}

/// Calls per ML node; the bar is its share of all calls.
#[must_use]
pub(super) fn nodes(report: &RunReport<'_>) -> String {
    let summary = report.summary;
    let sum = |value: &Value| match value {
        Value::Object(map) => map.values().filter_map(Value::as_u64).sum(),
        other => other.as_u64().unwrap_or_default(),
    };
    let calls = |node: &Value, kind: &str| {
        let kind = &node[kind];
        ["completed", "failed", "client_cancelled", "rejected"]
            .iter()
            .map(|name| sum(&kind[*name]))
            .sum::<u64>()
    };
    let total: u64 = summary.nodes.values().map(|node| calls(node, "execution")).sum();
    let granted = &summary.allocation.get("per_node").cloned().unwrap_or_default();
    let row = |(name, node): (&String, &Value)| {
        let execution = &node["execution"];
        vec![
            Cell::Raw(format!("{}{}", escape(name), share_bar(calls(node, "execution"), total))),
            Cell::number(shown("granted", &granted[name.as_str()])),
            Cell::number(shown("completed", &execution["completed"])),
            Cell::number(units::count(sum(&execution["failed"]))),
            Cell::number(shown("client_cancelled", &execution["client_cancelled"])),
            Cell::number(shown("rejected", &execution["rejected"])),
            Cell::number(units::count(calls(node, "validation"))),
            Cell::number(shown("saturated_us", &node["saturated_us"])),
        ]
    };
    let rows: Vec<Vec<Cell>> = summary.nodes.iter().map(row).collect();
    table(
        &[
            "ML node",
            "#locks granted",
            "#completed",
            "#failed",
            "#cancelled",
            "#rejected",
            "#validations",
            "#saturated",
        ],
        &rows,
    )
}

/// Attempts and outcomes per host.
#[must_use]
pub(super) fn hosts(report: &RunReport<'_>) -> String {
    let attempts = |host: &Value| host["attempts"].as_u64().unwrap_or_default();
    let total: u64 = report.summary.hosts.values().map(attempts).sum();
    let row = |(name, host): (&String, &Value)| {
        vec![
            Cell::Raw(format!("{}{}", escape(&words(name)), share_bar(attempts(host), total))),
            Cell::number(units::count(attempts(host))),
            Cell::text(shown("terminal_outcomes", &host["terminal_outcomes"])),
        ]
    };
    let rows: Vec<Vec<Cell>> = report.summary.hosts.iter().map(row).collect();
    table(&["host", "#attempts", "terminal outcomes of its requests"], &rows)
}

fn share_bar(part: u64, total: u64) -> String {
    let Some(share) = stats::ratio::share(part, total) else { return String::new() };
    let text = units::share(Some(share));
    format!(
        "<span class=\"share\" title=\"{text} of all\"><i style=\"width:{:.1}%\"></i></span>",
        share * 100.0
    )
}

/// The measurements table, and below it what could not be seen.
#[must_use]
pub(super) fn measured(report: &RunReport<'_>) -> String {
    let mut last = "";
    let mut rows = Vec::new();
    for measurement in measurements(report.summary) {
        let group = if measurement.group == last { "" } else { measurement.group };
        last = measurement.group;
        rows.push(vec![Cell::text(group), Cell::text(measurement.signal), Cell::text(measurement.value)]);
    }
    let missing: Vec<Vec<Cell>> = report
        .summary
        .not_shown
        .iter()
        .map(|(what, why)| vec![Cell::text(what.as_str()), Cell::text(why.as_str())])
        .collect();
    format!("{}{}", table(&["", "signal", "value"], &rows), table(&["not shown", "because"], &missing))
}

/// Build identity of every program, hashes of the plan, duration of the phases.
#[must_use]
pub(super) fn identity(report: &RunReport<'_>) -> String {
    let summary = report.summary;
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut put = |name: &str, value: String| rows.push(vec![Cell::text(name), Cell::text(value)]);
    put("plan hash", summary.plan_hash.clone());
    put("scenario hash", summary.scenario_hash.clone());
    put("isolation", summary.stack.isolation.clone());
    put("topology", topology(&summary.topology));
    for (name, program) in &summary.programs {
        let digest = program.blake3.as_ref().map(|digest| format!(", BLAKE3 {digest}")).unwrap_or_default();
        put(name, format!("{}{digest}", program.build));
    }
    let phases: BTreeMap<&str, u64> =
        summary.phases_us.iter().map(|(name, us)| (name.as_str(), *us)).collect();
    let parts: Vec<String> = phases.iter().map(|(name, us)| format!("{name} {}", units::span(*us))).collect();
    put("phases", parts.join(", "));
    table(&[], &rows)
}

fn topology(value: &Value) -> String {
    let Some(map) = value.as_object() else { return shown("topology", value) };
    let part = |(name, value): (&String, &Value)| match value {
        Value::Array(items) => {
            let names: Vec<&str> = items.iter().filter_map(|item| item["name"].as_str()).collect();
            format!("{} {}", words(name), names.join(", "))
        }
        value => format!("{} {}", words(name), shown(name, value)),
    };
    map.iter().map(part).collect::<Vec<_>>().join("; ")
}
