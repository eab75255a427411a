//! The table of every limit in force and where it comes from (`runner plan`).

use super::layers::{Overrides, Setting, Source};
use crate::configs::LEASE_DEFAULT;
use crate::model::{Limit, Resolved, Saturation, Thresholds};
use crate::read::ScenarioFile;

/// A limit in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRow {
    /// Key path, for example `workload.timeout`.
    pub name: String,
    /// Value with its unit, or `not judged`.
    pub value: String,
    /// Where it comes from.
    pub source: Source,
}

/// Every limit of a resolved scenario, in the order of the file format.
#[must_use]
pub fn limits(file: &ScenarioFile, resolved: &Resolved, overrides: &Overrides) -> Vec<LimitRow> {
    let scenario = &resolved.scenario;
    let mut table = Table { file, overrides, rows: Vec::new() };
    table.set("seed", &scenario.seed, Some(Setting::Seed));
    for node in &resolved.nodes {
        let index = scenario.pool.iter().position(|entry| entry.name == node.entry).unwrap_or_default();
        let name = |key: &str| format!("{}.{key}", node.name);
        for (key, value) in [("workers", node.behaviour.workers), ("queue", node.behaviour.queue)] {
            let own = format!("pool[{index}].{key}");
            let given = if file.positions.has(&own) { own } else { format!("pool[{index}].profile") };
            table.row(&name(key), &value, &given, None);
        }
    }
    table.set("allocator.lease", &scenario.allocator.lease.unwrap_or(LEASE_DEFAULT), None);
    let length = "workload.max_requests";
    let given = if file.positions.has(length) { length } else { "workload.steps" };
    table.row(length, &resolved.requests_max, given, Some(Setting::Requests));
    for (index, step) in scenario.workload.steps.iter().enumerate() {
        let path = format!("workload.steps[{index}]");
        table.set(&format!("{path}.concurrency"), &step.concurrency, Some(Setting::Concurrency));
        match (step.requests, step.duration) {
            (Some(requests), _) => table.set(&format!("{path}.requests"), &requests, Some(Setting::Requests)),
            (None, Some(duration)) => table.set(&format!("{path}.duration"), &duration, None),
            (None, None) => {}
        }
    }
    if let Some(search) = &scenario.workload.search {
        table.set("workload.search.from", &search.from, None);
        table.set("workload.search.to", &search.to, None);
    }
    if let Some(recovery) = &scenario.workload.recovery {
        table.set("workload.recovery.concurrency", &recovery.concurrency, None);
        table.set("workload.recovery.requests", &recovery.requests, None);
    }
    table.set("workload.timeout", &limit(scenario.workload.timeout), Some(Setting::Timeout));
    thresholds(&mut table, "thresholds", &scenario.thresholds);
    if let Some(recovery) = &scenario.workload.recovery {
        thresholds(&mut table, "workload.recovery.limits", &recovery.limits);
    }
    ends(&mut table, resolved);
    table.rows
}

fn thresholds(table: &mut Table<'_>, place: &str, limits: &Thresholds) {
    let name = |limit: &str| format!("{place}.{limit}");
    table.judged(&name("error_rate"), limits.error_rate.as_ref());
    table.judged(&name("ttft_p50"), limits.ttft_p50.as_ref());
    table.judged(&name("ttft_p95"), limits.ttft_p95.as_ref());
    table.judged(&name("ttft_p99"), limits.ttft_p99.as_ref());
    table.judged(&name("latency_p50"), limits.latency_p50.as_ref());
    table.judged(&name("latency_p95"), limits.latency_p95.as_ref());
    table.judged(&name("latency_p99"), limits.latency_p99.as_ref());
    table.judged(&name("success_rps_min"), limits.success_rps_min.as_ref());
}

fn ends(table: &mut Table<'_>, resolved: &Resolved) {
    let scenario = &resolved.scenario;
    table.judged("validity.schedule_lateness_p99", scenario.validity.schedule_lateness_p99.as_ref());
    table.judged("validity.loadgen_cpu_share", scenario.validity.loadgen_cpu_share.as_ref());
    table.set("validity.loop_gap_max", &scenario.validity.loop_gap_max(), None);
    let saturation = match &scenario.validity.mock_saturation {
        Saturation::Forbidden => "forbidden".to_owned(),
        Saturation::Required(nodes) => format!("required: {}", nodes.join(", ")),
    };
    table.set("validity.mock_saturation", &saturation, None);
    table.set("drain.timeout", &limit(scenario.drain.timeout), Some(Setting::DrainTimeout));
    table.set("drain.stable_samples", &scenario.drain.stable_samples, None);
    table.set("drain.interval", &scenario.drain.interval, None);
    table.judged("minimum.fault_hits", scenario.minimum.fault_hits.as_ref());
    table.judged("minimum.cancelled", scenario.minimum.cancelled.as_ref());
    table.judged("minimum.validations", scenario.minimum.validations.as_ref());
    table.judged("minimum.take_overs", scenario.minimum.take_overs.as_ref());
    for (class, least) in &scenario.minimum.classes {
        let class = serde_json::to_value(class).ok().and_then(|word| word.as_str().map(str::to_owned));
        table.set(&format!("minimum.classes.{}", class.unwrap_or_default()), least, None);
    }
    table.judged("minimum.cached", scenario.minimum.cached.as_ref());
    table.judged("minimum.settled", scenario.minimum.settled.as_ref());
    table.judged("minimum.resumed", scenario.minimum.resumed.as_ref());
    table.judged("minimum.step", scenario.minimum.step.as_ref());
}

struct Table<'a> {
    file: &'a ScenarioFile,
    overrides: &'a Overrides,
    rows: Vec<LimitRow>,
}

impl Table<'_> {
    fn row(&mut self, name: &str, value: &dyn std::fmt::Display, path: &str, setting: Option<Setting>) {
        let above = setting.and_then(|setting| self.overrides.source(setting)).cloned();
        let source = above.unwrap_or_else(|| {
            let positions = &self.file.positions;
            if positions.has(path) { Source::File(positions.of(path).line) } else { Source::Default }
        });
        self.rows.push(LimitRow { name: name.to_owned(), value: value.to_string(), source });
    }

    fn set(&mut self, path: &str, value: &dyn std::fmt::Display, setting: Option<Setting>) {
        self.row(path, value, path, setting);
    }

    /// A limit without default: what is absent is not judged.
    fn judged<T: std::fmt::Display>(&mut self, path: &str, value: Option<&T>) {
        match value {
            Some(value) => self.set(path, value, None),
            None => self.set(path, &"not judged", None),
        }
    }
}

fn limit(limit: Limit) -> String {
    match limit {
        Limit::Protocol => "protocol (the protocol's timeouts plus 30s)".to_owned(),
        Limit::Time(time) => time.to_string(),
    }
}
