//! A run as Markdown for a pull request: short enough to be read there.

use evidence::assertion::Status;

use super::measurements::{counts, latency};
use super::{RunReport, devshard_words, status_word, verdict_words};
use crate::units;

/// Failures listed; the rest is counted.
const FAILURES_MAX: usize = 10;
/// Longest sentence in a cell.
const SENTENCE_CHARS_MAX: usize = 240;

/// The whole text, with a line end.
#[must_use]
pub fn markdown(report: &RunReport<'_>) -> String {
    let summary = report.summary;
    let client = &summary.client;
    let mut out = format!(
        "### {}: **{}** (exit {})\n\n{} {}, seed {}, run `{}`.\n\n",
        cell(&summary.scenario),
        summary.verdict.word(),
        summary.exit_code,
        verdict_words(summary.verdict),
        cell(&devshard_words(summary)),
        summary.seed,
        summary.run_id.replace('`', "'"),
    );
    for reason in super::page::reasons(summary) {
        out.push_str(&format!("- {}\n", cell(reason)));
    }
    if !summary.reasons.is_empty() {
        out.push('\n');
    }
    out.push_str("| Measurement | Value |\n|---|---|\n");
    let rows = [
        (
            "requests",
            format!("{} sent of {} planned", units::count(client.sent), units::count(client.planned)),
        ),
        ("classes", counts(&client.classes)),
        ("achieved rate", units::per_second(client.achieved_rps)),
        ("error rate", units::share(client.error_rate)),
        ("TTFT of successes", latency(&client.ttft)),
        ("total latency of successes", latency(&client.latency)),
    ];
    for (name, value) in rows {
        out.push_str(&format!("| {name} | {} |\n", cell(&value)));
    }
    out.push_str("\n| Assertion | Status | Looked at |\n|---|---|---|\n");
    for result in &report.assertions.results {
        let status = status_word(result.status);
        // Bold draws the eye to what needs it.
        let status = match result.status {
            Status::Fail | Status::Unknown => format!("**{status}**"),
            Status::Pass | Status::NotApplicable => status.to_owned(),
        };
        out.push_str(&format!(
            "| {} {} | {status} | {} {} |\n",
            result.id,
            cell(&result.name),
            units::count(result.evaluated),
            cell(&result.unit)
        ));
    }
    failures(report, &mut out);
    out.push_str(&format!("\n{}\n", cell(&summary.note)));
    out
}

fn failures(report: &RunReport<'_>, out: &mut String) {
    if report.failures.is_empty() {
        return;
    }
    out.push_str("\n| Failure | Found | Again |\n|---|---|---|\n");
    for failure in report.failures.iter().take(FAILURES_MAX) {
        let found = failure
            .found
            .first()
            .map_or(String::new(), |(id, reason, message)| format!("{id} {reason}: {message}"));
        out.push_str(&format!(
            "| {} | {} | `{}` |\n",
            cell(&failure.key),
            cell(&found),
            failure.repro.replace('`', "'").replace('|', "\\|")
        ));
    }
    let left_out = report.failures.len().saturating_sub(FAILURES_MAX) as u64 + report.failures_dropped;
    if left_out > 0 {
        out.push_str(&format!("\n{} more failures are in the run directory.\n", units::count(left_out)));
    }
}

/// Text that can't leave its cell, nor begin markup of its own.
fn cell(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(SENTENCE_CHARS_MAX) {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '<' | '>' | '[' | ']' | '#' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    if text.chars().count() > SENTENCE_CHARS_MAX {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_stays_one_cell() {
        assert_eq!(cell("a|b\n<c> `d`"), "a\\|b \\<c\\> \\`d\\`");
        assert!(cell(&"x".repeat(500)).ends_with('…'));
    }
}
