//! `docs/fidelity.md`: the tables of the page come from here. With `PROOFLOAD_REGENERATE=1` they are written,
//! else the table of reasons is compared.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;

use serde_json::Value;

use super::explained::{ELSEWHERE, EXPLAINED, Who};

static PAGE: Mutex<()> = Mutex::new(());

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/fidelity.md")
}

fn reasons() -> String {
    let mut text = "| Personality | Cases | What | Why |\n|---|---|---|---|\n".to_owned();
    for entry in EXPLAINED {
        let who = match entry.who {
            Who::Both => "both",
            Who::Intended => "intended",
        };
        let cases = entry.cases.join("`, `");
        let _ = writeln!(text, "| {who} | `{cases}` | `{}` | {} |", entry.path, entry.reason);
    }
    text.push_str("\n| Case | Covered by |\n|---|---|\n");
    for (case, where_else) in ELSEWHERE {
        let _ = writeln!(text, "| `{case}` | {where_else} |");
    }
    text
}

fn pairs(value: &Value) -> String {
    let Some(map) = value.as_object() else { return String::new() };
    map.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// What each case showed: clients, accounting, inferences, counters.
fn outcomes(seen: &[(&str, &Value)]) -> String {
    let mut text =
        "| Case | Clients | Accounting | Inferences | Counters |\n|---|---|---|---|---|\n".to_owned();
    for (case, ours) in seen {
        let clients: Vec<String> = ours["client"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(_, answer)| {
                let events = pairs(&answer["events"]);
                let status =
                    answer["status"].as_u64().map_or_else(|| "–".to_owned(), |code| code.to_string());
                let end = answer["end"].as_str().unwrap_or_default();
                let end = if end == "clean" { String::new() } else { format!(" {end}") };
                if events.is_empty() { format!("{status}{end}") } else { format!("{status}{end} ({events})") }
            })
            .collect();
        let counters = pairs(&ours["counters"]).replace("devshard_", "").replace("_total", "");
        let _ = writeln!(
            text,
            "| `{case}` | {} | {} | {} | {} |",
            clients.join("; "),
            pairs(&ours["accounting"]["outcomes"]),
            pairs(&ours["drained"]),
            counters
        );
    }
    text
}

fn put(page: &str, name: &str, body: &str) -> String {
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let begin = page.find(&open).unwrap() + open.len();
    let end = page.find(&close).unwrap();
    format!("{}{body}{}", &page[..begin], &page[end..])
}

/// Writes or compares.
pub fn check(personality: &str, seen: &[(&str, &Value)]) {
    if std::env::var("FIDELITY_CASE").is_ok() {
        return;
    }
    let _one_at_a_time = PAGE.lock().unwrap();
    let page = std::fs::read_to_string(path()).unwrap();
    let with_reasons = put(&page, "reasons", &reasons());
    if std::env::var("PROOFLOAD_REGENERATE").is_ok() {
        let with_outcomes = put(&with_reasons, personality, &outcomes(seen));
        std::fs::write(path(), with_outcomes).unwrap();
        return;
    }
    assert!(page == with_reasons, "docs/fidelity.md is stale; run with PROOFLOAD_REGENERATE=1");
}
