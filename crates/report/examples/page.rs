//! Writes `report.html` of a stored run anew from its files, without judging it again: for work on the page itself.
//! `cargo run -p report --example page -- results/<run_id>`

use std::path::PathBuf;

use evidence::event::Event;
use evidence::record::{ClientClass, RequestRecord};
use evidence::rundir::{ASSERTIONS, EVENTS, REQUESTS, RunReader, SUMMARY};
use report::run::{FailureLine, RequestPoint, RunReport};

fn main() -> Result<(), String> {
    let root = PathBuf::from(std::env::args().nth(1).ok_or("give the directory of a run")?);
    let reader = RunReader::new(&root);
    let summary: evidence::summary::Summary =
        reader.json(SUMMARY).map_err(|bad| bad.why)?.ok_or("no summary.json")?;
    let assertions: evidence::assertion::Assertions =
        reader.json(ASSERTIONS).map_err(|bad| bad.why)?.ok_or("no assertions.json")?;
    let events: Vec<Event> = reader.lines(EVENTS).into_iter().flatten().filter_map(Result::ok).collect();
    let records = reader.lines::<RequestRecord>(REQUESTS).into_iter().flatten().filter_map(Result::ok);
    let requests = records.filter_map(|record| {
        let good = record.client_class == ClientClass::Ok;
        Some(RequestPoint {
            planned_us: record.planned_us?,
            end_us: record.end_us?,
            class: if good { "success" } else { "unexpected-failure" },
            ttft_us: record.ttft_us().filter(|_| good),
            latency_us: record.latency_us().filter(|_| good),
        })
    });
    let failures = assertions.results.iter().flat_map(|result| {
        result.witnesses.iter().enumerate().map(|(number, witness)| {
            let key = witness.request_id.clone();
            let key = key.unwrap_or_else(|| format!("_run.{}.{}", result.id, number + 1));
            FailureLine {
                file: format!("failures/{}.json", evidence::names::file_stem(&key)),
                class: None,
                found: vec![(result.id.to_string(), witness.reason.clone(), witness.message.clone())],
                repro: format!("runner repro {} {key}", summary.run_id),
                key,
            }
        })
    });
    let started_unix_us = events.first().map_or(0, |event| event.unix_us - event.at_us);
    let page = report::run::page(&RunReport {
        summary: &summary,
        assertions: &assertions,
        events: &events,
        started_unix_us,
        failures: failures.collect(),
        failures_dropped: 0,
        requests: Box::new(requests.collect::<Vec<_>>()),
        limits: Vec::new(),
    });
    std::fs::write(root.join("report.html"), page).map_err(|error| error.to_string())
}
