//! Failure bundles (design section 11): one file per failure, with all that is needed to understand it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use evidence::EVIDENCE_VERSION;
use evidence::bundle::{Bundle, FailedAssertion, LogSlice, Query};
use evidence::event::EventKind;
use evidence::names::file_stem;
use evidence::run::RunInfo;
use evidence::rundir::{FAILURES, LOGS, RunDir};
use serde_json::{Value, json};
use verdict::judge::{Failure, Judgement};

use crate::error::RunnerError;
use crate::stack::compose::observe::{Observed, RESULT};
use crate::stack::real::DEVSHARD;

mod details;
mod walk;

use details::Detail;

/// Log lines kept per file and bundle.
const LINES_MAX: usize = 60;
/// Bytes of one log line that are kept.
const LINE_LEN_MAX: usize = 2_000;
/// Bytes of one log file that are searched.
const LOG_LEN_MAX: u64 = 256 * 1024 * 1024;
/// Events of the run kept in a bundle.
const EVENTS_MAX: usize = 60;

/// Writes every bundle. Evidence and logs are read once for all of them. A bundle that can't be written does not keep
/// the others from being written: the first such error is given back at the end.
///
/// # Errors
/// [`RunnerError::RunDir`].
pub fn write_all(dir: &RunDir, judged: &Judgement) -> Result<(), RunnerError> {
    if judged.failures.is_empty() {
        return Ok(());
    }
    let details = details::collect(judged);
    let subjects: Vec<Subject<'_>> =
        judged.failures.iter().zip(&details).map(|(failure, detail)| Subject::of(failure, detail)).collect();
    let logs = log_slices(dir, &subjects);
    let observed: Option<Observed> =
        std::fs::read(dir.path(RESULT)).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let mut first_error = None;
    for (subject, logs) in subjects.iter().zip(logs) {
        let bundle = bundle(judged, subject, logs, observed.as_ref());
        let written =
            dir.write_json(&format!("{FAILURES}/{}.json", file_stem(&subject.failure.key)), &bundle);
        first_error = first_error.or(written.err());
    }
    first_error.map_or(Ok(()), |error| Err(error.into()))
}

/// The command that replays a failure. Where the user's programs are is not kept: a path tells about the machine.
#[must_use]
pub fn repro_command(run: &RunInfo, key: &str) -> String {
    let theirs = if run.stack.devshard == DEVSHARD { " --devshard-bin DIR" } else { "" };
    format!("runner repro {} {key}{theirs}", run.run_id)
}

/// One failure and what evidence says about it.
struct Subject<'a> {
    failure: &'a Failure,
    detail: &'a Detail,
    /// Texts that mark a log line as its own.
    needles: Vec<String>,
}

impl<'a> Subject<'a> {
    fn of(failure: &'a Failure, detail: &'a Detail) -> Self {
        let mut needles = Vec::new();
        needles.extend(detail.record.as_ref().and_then(|record| record.response_request_id.clone()));
        let row = detail.joined.as_ref().and_then(|joined| joined.accounting.as_ref());
        needles.extend(row.map(|row| row.request_id.clone()));
        needles.extend(detail.calls.iter().filter_map(|call| call.x_request_id.clone()));
        if let Some(escrow) = detail.escrow(failure) {
            for nonce in detail.nonces(failure) {
                needles.push(format!("escrow={escrow} nonce={nonce} "));
                needles.push(format!("escrow_id={escrow} inference_id={nonce} "));
            }
        }
        needles.extend(failure.found.iter().filter_map(|(_, witness)| witness.service.clone()));
        needles.retain(|needle| needle.len() >= 3);
        needles.sort_unstable();
        needles.dedup();
        Self { failure, detail, needles }
    }
}

/// What to ask a store of the run's, and where; or why there is nothing to ask.
fn query(what: &str, observed: Option<&Observed>, subject: &Subject<'_>) -> Query {
    let store = observed.and_then(|all| Some((all, all.stores.iter().find(|store| store.what == what)?)));
    let Some((all, store)) = store else {
        let why = match what {
            "traces" => "this stack writes no traces",
            _ => "logs, metrics and traces of this stack lie inside the run directory (logs/, metrics/)",
        };
        return Query { what: what.to_owned(), query: None, none_because: Some(why.to_owned()) };
    };
    let asked = match what {
        // The first needle is an id of the request; without one the whole project is asked.
        "logs" => subject
            .needles
            .first()
            .map_or_else(|| store.query.clone(), |needle| format!("{} |= {needle:?}", store.query)),
        "metrics" => format!("{{compose_project=\"{}\"}}", all.project),
        _ => store.query.clone(),
    };
    let text =
        format!("{asked} at {} from {} to {} (Unix seconds)", store.at, all.from_unix_s, all.to_unix_s);
    Query { what: what.to_owned(), query: Some(text), none_because: None }
}

fn bundle(
    judged: &Judgement,
    subject: &Subject<'_>,
    logs: Vec<LogSlice>,
    observed: Option<&Observed>,
) -> Bundle {
    let evidence = &judged.evidence;
    let key = &subject.failure.key;
    let detail = subject.detail;
    let index = detail.record.as_ref().map(|record| record.index);
    let class = index.and_then(|index| judged.decided.get(index)).map(|decided| decided.class);
    let class = class.and_then(|class| serde_json::to_value(class).ok());
    let failed = subject.failure.found.iter().map(|(id, witness)| FailedAssertion {
        id: *id,
        name: id.name().to_owned(),
        witness: witness.clone(),
    });
    Bundle {
        v: EVIDENCE_VERSION,
        run_id: evidence.run.run_id.clone(),
        failure: key.clone(),
        class: class.and_then(|class| class.as_str().map(str::to_owned)),
        failed: failed.collect(),
        plan: detail.plan.clone(),
        request: detail.record.clone(),
        accounting: detail.joined.clone(),
        walk: walk::walk(detail),
        node_calls: detail.calls.clone(),
        hits: detail.hits.clone(),
        applied_faults: evidence.applied.clone(),
        state: state(judged, subject),
        events: events(judged),
        logs,
        queries: ["logs", "metrics", "traces"].map(|what| query(what, observed, subject)).to_vec(),
        repro: repro_command(&evidence.run, key),
    }
}

/// State of the escrow around the failure, per moment.
fn state(judged: &Judgement, subject: &Subject<'_>) -> Value {
    let escrow = subject.detail.escrow(subject.failure);
    let mut moments = BTreeMap::new();
    for (moment, snapshot) in &judged.evidence.snapshots {
        let found = snapshot.escrows.iter().find(|state| Some(&state.escrow) == escrow.as_ref());
        let value = found.map(|state| {
            let inferences = subject.detail.inferences.get(moment);
            json!({"escrow": state.escrow, "nonce": state.nonce, "phase": state.phase, "balance": state.balance,
                "pending": state.pending.len(), "inferences": inferences})
        });
        let value = json!({"escrow": value, "missing": snapshot.missing, "dapi": snapshot.dapi});
        moments.insert(moment.dir(), value);
    }
    json!(moments)
}

/// The events that frame a failure: phases, actions, ends of processes, gaps.
fn events(judged: &Judgement) -> Vec<Value> {
    let frame = |event: &&evidence::event::Event| {
        matches!(
            event.event,
            EventKind::PhaseStarted { .. }
                | EventKind::ProcessExited { .. }
                | EventKind::ActionIntended { .. }
                | EventKind::ActionDone { .. }
                | EventKind::BroughtBack { .. }
                | EventKind::Probe { .. }
                | EventKind::DrainStep { .. }
                | EventKind::EvidenceMissing { .. }
                | EventKind::EnvironmentFailed { .. }
                | EventKind::ClockMoved { .. }
                | EventKind::Signal { .. }
                | EventKind::StepStarted { .. }
                | EventKind::StepEnded { .. }
        )
    };
    judged.evidence.events.iter().filter(frame).take(EVENTS_MAX).map(|event| json!(event)).collect()
}

/// Slices of every log for every subject, in one pass over each file.
fn log_slices(dir: &RunDir, subjects: &[Subject<'_>]) -> Vec<Vec<LogSlice>> {
    let mut slices: Vec<Vec<LogSlice>> = subjects.iter().map(|_| Vec::new()).collect();
    let mut files: Vec<_> = std::fs::read_dir(dir.path(LOGS))
        .map(|list| list.flatten().map(|e| e.path()).collect())
        .unwrap_or_default();
    files.sort_unstable();
    for path in files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "log")) {
        let Ok(file) = File::open(&path) else { continue };
        let name = format!("{LOGS}/{}", path.file_name().unwrap_or_default().to_string_lossy());
        let mut found: Vec<(Vec<String>, u64)> = subjects.iter().map(|_| (Vec::new(), 0)).collect();
        for line in BufReader::new(file.take(LOG_LEN_MAX)).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            for (subject, (lines, left_out)) in subjects.iter().zip(&mut found) {
                if !subject.needles.iter().any(|needle| line.contains(needle.as_str())) {
                    continue;
                }
                if lines.len() < LINES_MAX {
                    let cut: String = line.chars().take(LINE_LEN_MAX).collect();
                    lines.push(dir.redactor().text(&cut).into_owned());
                } else {
                    *left_out += 1;
                }
            }
        }
        for ((lines, left_out), out) in found.into_iter().zip(&mut slices) {
            if !lines.is_empty() {
                out.push(LogSlice { file: name.clone(), by: "id".to_owned(), lines, left_out });
            }
        }
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::compose::observe::Store;

    /// The query of one kind for a failure whose log lines are found by these texts.
    fn of(what: &str, observed: Option<&Observed>, needles: &[&str]) -> Query {
        let failure = Failure { key: "a-1-000001".to_owned(), found: Vec::new() };
        let detail = Detail::default();
        let needles = needles.iter().map(|needle| (*needle).to_owned()).collect();
        query(what, observed, &Subject { failure: &failure, detail: &detail, needles })
    }

    #[test]
    fn queries_name_store_project_ids_and_window_or_why_there_is_none() {
        let store = |what: &str, at: &str, query: &str| Store {
            what: what.to_owned(),
            at: at.to_owned(),
            query: query.to_owned(),
            found: 1,
        };
        let all = Observed {
            v: 1,
            project: "ds-a-000001".to_owned(),
            from_unix_s: 100,
            to_unix_s: 160,
            stores: vec![
                store("logs", "http://loki:3100", "{compose_project=\"ds-a-000001\"}"),
                store("metrics", "http://prometheus:9090", "up"),
            ],
            lines_dropped: 0,
        };
        let logs = of("logs", Some(&all), &["req-\"7\"", "other"]);
        // What stands in an id can't end the text of the query.
        let text = "{compose_project=\"ds-a-000001\"} |= \"req-\\\"7\\\"\" at http://loki:3100 from 100 to 160 (Unix seconds)";
        assert_eq!((logs.query.as_deref(), logs.none_because), (Some(text), None));
        // A failure without an id asks for the whole project.
        let logs = of("logs", Some(&all), &[]).query.unwrap_or_default();
        assert!(logs.starts_with("{compose_project=\"ds-a-000001\"} at"), "{logs}");
        let metrics = of("metrics", Some(&all), &["req-7"]).query.unwrap_or_default();
        assert!(
            metrics.starts_with("{compose_project=\"ds-a-000001\"} at http://prometheus:9090"),
            "{metrics}"
        );
        // A store that was not there, and a run without any.
        let traces = of("traces", Some(&all), &["req-7"]);
        assert_eq!(traces.query, None);
        assert!(traces.none_because.is_some_and(|why| why.contains("no traces")));
        let none = of("logs", None, &["req-7"]);
        assert_eq!((none.what.as_str(), none.query), ("logs", None));
        assert!(none.none_because.is_some_and(|why| why.contains("inside the run directory")));
    }
}
