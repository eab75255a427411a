//! The page that a run prints at its end.

use evidence::assertion::{AssertionResult, Assertions, Status};
use evidence::exit::Outcome;
use evidence::known::{KnownEntry, KnownReport, KnownState};
use evidence::summary::{Coverage, Latency, Summary};
use serde_json::Value;

/// Witnesses printed per assertion; the rest is in `assertions.json`.
const WITNESSES_MAX: usize = 3;
/// Missing things printed; the rest is in `summary.json`.
const NOT_SEEN_MAX: usize = 6;

/// The whole page, without a line end. `place` is where the run directory is.
#[must_use]
pub fn summary(summary: &Summary, assertions: &Assertions, place: &str) -> String {
    let mut out = String::new();
    let line = |out: &mut String, text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    let client = &summary.client;
    line(
        &mut out,
        &format!(
            "{}  seed {}  {} on {}",
            summary.scenario,
            summary.seed,
            devshard(summary),
            summary.stack.provider
        ),
    );
    let rate = client.achieved_rps.map_or_else(|| "-".to_owned(), |rps| format!("{rps:.0}/s"));
    line(
        &mut out,
        &format!(
            "requests   {} planned, {} sent, {rate}; {}",
            client.planned,
            client.sent,
            counts(&client.classes)
        ),
    );
    line(&mut out, &format!("TTFT       {}", latency(&client.ttft)));
    line(&mut out, &format!("latency    {}", latency(&client.latency)));
    for (rule, facts) in &summary.faults {
        let number = |key: &str| facts[key].as_u64().unwrap_or_default();
        let text = format!(
            "fault      {rule}: {} hits on {} requests at {}; {} ({})",
            number("hits"),
            number("distinct_requests"),
            words(&facts["places"]),
            words(&facts["classes"]),
            words(&facts["because"])
        );
        line(&mut out, &text);
    }
    out.push('\n');
    if summary.verdict == Outcome::Environment {
        line(&mut out, "the environment failed, so that nothing is said about Devshard:");
        // What could not be judged follows from that and would only hide it.
        let of_environment = summary.reasons.iter().take_while(|reason| !reason.starts_with("A1 "));
        of_environment.for_each(|reason| line(&mut out, &format!("  {reason}")));
    } else {
        for result in &assertions.results {
            assertion(&mut out, result);
        }
    }
    out.push('\n');
    coverage(&mut out, summary);
    if let Some(known) = &summary.known {
        self::known(&mut out, known);
    }
    line(
        &mut out,
        &format!("verdict    {} (exit {})", summary.verdict.word().to_uppercase(), summary.exit_code),
    );
    line(&mut out, &format!("results    {place}"));
    out.push_str(&summary.note);
    out
}

/// What was judged and what was not, in a line or two: a pass is no more than what it looked at.
fn coverage(out: &mut String, summary: &Summary) {
    let Coverage { in_full, in_part, not_applicable, not_judged, not_seen, limits } = &summary.coverage;
    out.push_str(&format!(
        "coverage   {in_full} assertions in full, {in_part} in part, {not_applicable} not applicable, {not_judged} not \
         judged; {} standing limits in summary.json\n",
        limits.len()
    ));
    // An environment that failed before the load left no evidence at all, and a list of absent files would say no more.
    if summary.verdict == Outcome::Environment && summary.client.sent == 0 {
        return;
    }
    for missing in not_seen.iter().take(NOT_SEEN_MAX) {
        out.push_str(&format!("           not seen: {}: {}\n", missing.what, missing.why));
    }
    let more = not_seen.len().saturating_sub(NOT_SEEN_MAX);
    if more > 0 {
        out.push_str(&format!("           and {more} more in summary.json\n"));
    }
}

/// The known findings; an accepted run says so in words that can't be overlooked.
fn known(out: &mut String, known: &KnownReport) {
    for entry in &known.entries {
        let KnownEntry { finding, state, count } = entry;
        let what = format!("{} {}", finding.assertion, finding.reason);
        let by = format!("{} ({}, {})", finding.because, finding.owner, finding.link);
        let text = match state {
            KnownState::Known => format!("known      {what}: {count} found; {by}; until {}", finding.expires),
            KnownState::Expired => {
                format!(
                    "EXPIRED    {what}: {count} found, known until {} and new since; {by}",
                    finding.expires
                )
            }
            KnownState::Gone => format!("gone       {what} did not occur any more: the entry may go; {by}"),
            KnownState::NotJudged => format!("known      {what}: could not be judged in this run; {by}"),
        };
        out.push_str(&text);
        out.push('\n');
    }
    if known.new > 0 {
        out.push_str(&format!("new        {} findings are in no valid entry of the file\n", known.new));
    }
    if known.accepted {
        out.push_str(
            "ACCEPTED   THIS RUN FAILED. Every finding is a known one, and --accept-known was given: the exit code \
             leaves them out.\n",
        );
    }
}

fn devshard(summary: &Summary) -> String {
    let personality = summary.stack.personality.as_deref().unwrap_or("as built");
    let defect = summary.stack.defect.as_ref().map(|defect| format!(", planted defect {defect}"));
    format!("{} Devshard ({personality}{})", summary.stack.devshard, defect.unwrap_or_default())
}

fn assertion(out: &mut String, result: &AssertionResult) {
    let mark = match result.status {
        Status::Pass => "pass",
        Status::Fail => "FAIL",
        Status::Unknown => "UNKNOWN",
        Status::NotApplicable => "n/a",
    };
    let id = result.id.to_string();
    out.push_str(&format!("{mark:<8} {id:<4} {:<22} {} {}\n", result.name, result.evaluated, result.unit));
    for witness in result.witnesses.iter().take(WITNESSES_MAX) {
        out.push_str(&format!("              {}: {}\n", witness.reason, witness.message));
    }
    let more = result.witnesses_total.saturating_sub(WITNESSES_MAX as u64);
    if more > 0 {
        out.push_str(&format!("              and {more} more in assertions.json\n"));
    }
    for missing in &result.missing {
        out.push_str(&format!("              missing: {missing}\n"));
    }
    for (part, status) in &result.parts {
        if *status == Status::NotApplicable {
            out.push_str(&format!("              {part}: not applicable here\n"));
        }
    }
    for rule in &result.rules {
        out.push_str(&format!(
            "              rule {} used {} times ({})\n",
            rule.rule, rule.count, rule.source
        ));
    }
    for information in &result.information {
        out.push_str(&format!(
            "              {}: {} ({})\n",
            information.name, information.message, information.count
        ));
    }
}

fn counts(counts: &std::collections::BTreeMap<String, u64>) -> String {
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    if parts.is_empty() { "none ended".to_owned() } else { parts.join(", ") }
}

fn words(value: &Value) -> String {
    let Some(map) = value.as_object().filter(|map| !map.is_empty()) else { return "-".to_owned() };
    let parts: Vec<String> = map.iter().map(|(name, count)| format!("{count} {name}")).collect();
    parts.join(", ")
}

fn latency(latency: &Latency) -> String {
    let ms = |us: Option<u64>| {
        us.map_or_else(|| "-".to_owned(), |us| format!("{}.{} ms", us / 1_000, us % 1_000 / 100))
    };
    format!(
        "p50 {}, p95 {}, p99 {}, max {} (n {})",
        ms(latency.p50_us),
        ms(latency.p95_us),
        ms(latency.p99_us),
        ms(latency.max_us),
        latency.n
    )
}
