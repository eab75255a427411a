//! Prometheus text of the pool.

use std::fmt::Write as _;

use scenario::control::{NodeCounters, NodeStats};

use crate::label::label;

/// Figures that belong to no node.
#[derive(Debug)]
pub(super) struct Process {
    pub cpu_us: u64,
    pub attempt_ids_forgotten: u64,
    pub calls_dropped: u64,
    pub hits_dropped: u64,
    pub unreadable_requests: u64,
}

/// A family with one series for each node and kind.
type ByKind = (&'static str, &'static str, &'static str, fn(&NodeCounters) -> u64);
/// A family with one series for each node.
type ByNode = (&'static str, &'static str, &'static str, fn(&(NodeStats, u64)) -> u64);

const BY_KIND: [ByKind; 5] = [
    ("active", "gauge", "Calls being answered.", |counters| counters.active),
    ("queued", "gauge", "Calls waiting for a worker.", |counters| counters.queued),
    ("completed_total", "counter", "Calls answered whole.", |counters| counters.completed),
    ("client_cancelled_total", "counter", "Calls whose caller closed.", |counters| counters.client_cancelled),
    ("rejected_total", "counter", "Calls refused because workers and queue were full.", |counters| {
        counters.rejected
    }),
];

const BY_NODE: [ByNode; 4] = [
    ("saturated_us_total", "counter", "Time with all workers busy and something waiting.", |node| {
        node.0.saturated_us
    }),
    ("workers", "gauge", "Workers in force.", |node| node.0.workers.into()),
    ("queue_places", "gauge", "Queue places in force.", |node| node.0.queue.into()),
    ("bad_requests_total", "counter", "Calls answered 400.", |node| node.1),
];

/// The page; each node comes with its number of bad requests.
pub(super) fn text(nodes: &[(NodeStats, u64)], process: &Process) -> String {
    let mut page = String::new();
    let kinds =
        |node: &NodeStats| [("execution", node.execution.clone()), ("validation", node.validation.clone())];
    for (name, form, help, value) in BY_KIND {
        head(&mut page, name, form, help);
        for (node, _) in nodes {
            for (kind, counters) in kinds(node) {
                let labels = format!("node=\"{}\",kind=\"{kind}\"", label(&node.name));
                line(&mut page, name, &labels, value(&counters));
            }
        }
    }
    head(&mut page, "failed_total", "counter", "Calls spoilt by a rule.");
    for (node, _) in nodes {
        for (kind, counters) in kinds(node) {
            for (action, count) in &counters.failed {
                let node = label(&node.name);
                let labels = format!("node=\"{node}\",kind=\"{kind}\",action=\"{}\"", label(action));
                line(&mut page, "failed_total", &labels, *count);
            }
        }
    }
    for (name, form, help, value) in BY_NODE {
        head(&mut page, name, form, help);
        for node in nodes {
            line(&mut page, name, &format!("node=\"{}\"", label(&node.0.name)), value(node));
        }
    }
    let process = [
        ("cpu_us_total", "CPU time of the process.", process.cpu_us),
        (
            "attempt_ids_forgotten_total",
            "Request ids forgotten to stay bounded.",
            process.attempt_ids_forgotten,
        ),
        ("calls_dropped_total", "Call log entries that fell out.", process.calls_dropped),
        ("hits_dropped_total", "Hit log entries that fell out.", process.hits_dropped),
        (
            "unreadable_requests_total",
            "Requests that were no HTTP or had no route.",
            process.unreadable_requests,
        ),
    ];
    for (name, help, value) in process {
        head(&mut page, name, "counter", help);
        let _infallible = writeln!(page, "proofload_openai_{name} {value}");
    }
    page
}

fn head(page: &mut String, name: &str, form: &str, help: &str) {
    let name = format!("proofload_openai_{name}");
    let _infallible = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {form}");
}

fn line(page: &mut String, name: &str, labels: &str, value: u64) {
    let _infallible = writeln!(page, "proofload_openai_{name}{{{labels}}} {value}");
}
