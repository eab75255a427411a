//! What people and CI read of a judged run: `report.html` in the run directory, and the same facts as Markdown, JUnit
//! or text on request. Crate `report` writes the words; here the evidence is handed to it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use evidence::names::file_stem;
use evidence::rundir::{FAILURES, PAGE, RunDir};
use report::run::{FailureLine, RequestPoint, Requests, RunReport};
use scenario::fault::RequestClass;
use scenario::model::Thresholds;
use verdict::judge::{Failure, Judgement};

use crate::error::RunnerError;

/// Writes `report.html`.
///
/// # Errors
/// [`RunnerError::RunDir`].
pub fn write_page(dir: &RunDir, judged: &Judgement) -> Result<(), RunnerError> {
    Ok(dir.write_text(PAGE, &report::run::page(&run_report(judged)))?)
}

/// Writes JUnit XML to a file outside the run directory, where CI looks for it.
///
/// # Errors
/// [`RunnerError::Environment`] when it can't be written.
pub fn write_junit(path: &Path, judged: &Judgement) -> Result<(), RunnerError> {
    std::fs::write(path, report::run::junit(&run_report(judged)))
        .map_err(|error| RunnerError::environment(format!("writing {}: {error}", path.display())))
}

/// Everything that a report is made from.
#[must_use]
pub fn run_report(judged: &Judgement) -> RunReport<'_> {
    let evidence = &judged.evidence;
    RunReport {
        summary: &judged.summary,
        assertions: &judged.assertions,
        events: &evidence.events,
        started_unix_us: evidence.run.started_unix_us,
        failures: judged.failures.iter().map(|failure| failure_line(judged, failure)).collect(),
        failures_dropped: judged.failures_dropped,
        requests: Box::new(Sent::of(judged)),
        limits: limits(&evidence.run.resolved.scenario.thresholds),
    }
}

fn failure_line(judged: &Judgement, failure: &Failure) -> FailureLine {
    let key = &failure.key;
    let index = judged.evidence.index_of(key);
    let class = index.and_then(|index| judged.decided.get(index)).map(|decided| decided.class);
    let found = failure
        .found
        .iter()
        .map(|(id, witness)| (id.to_string(), witness.reason.clone(), witness.message.clone()));
    FailureLine {
        key: key.clone(),
        file: format!("{FAILURES}/{}.json", file_stem(key)),
        class: class.map(word),
        found: found.collect(),
        repro: crate::bundle::repro_command(&judged.evidence.run, key),
    }
}

/// Requests that were sent, with the latencies of those that succeeded, as often as the report asks for them: a list of
/// a million would need more memory than their judging.
#[derive(Debug)]
struct Sent<'a> {
    judged: &'a Judgement,
    words: BTreeMap<RequestClass, String>,
}

impl<'a> Sent<'a> {
    fn of(judged: &'a Judgement) -> Self {
        let classes: BTreeSet<RequestClass> = judged.decided.values().map(|decided| decided.class).collect();
        Self { judged, words: classes.into_iter().map(|class| (class, word(class))).collect() }
    }
}

impl Requests for Sent<'_> {
    fn each(&self, see: &mut dyn FnMut(&RequestPoint<'_>)) {
        for (index, decided) in self.judged.decided.iter() {
            let Some(record) = self.judged.evidence.records.get(index) else { continue };
            let (Some(planned_us), Some(latency_us)) = (record.planned.us(), record.latency.us()) else {
                continue;
            };
            let good = matches!(decided.class, RequestClass::Success | RequestClass::MaskedFault);
            see(&RequestPoint {
                planned_us,
                end_us: planned_us + latency_us,
                class: self.words.get(&decided.class).map_or("", String::as_str),
                ttft_us: record.ttft.us().filter(|_| good),
                latency_us: good.then_some(latency_us),
            });
        }
    }
}

/// The limits that the scenario names, in the words of its file.
fn limits(thresholds: &Thresholds) -> Vec<(String, String)> {
    let Ok(serde_json::Value::Object(named)) = serde_json::to_value(thresholds) else { return Vec::new() };
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    named.into_iter().filter(|(_, limit)| !limit.is_null()).map(|(name, limit)| (name, text(limit))).collect()
}

fn word(class: RequestClass) -> String {
    match serde_json::to_value(class) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}
