//! Prometheus text of the chain.

use std::fmt::Write as _;

use scenario::control::ChainStats;

use crate::label::label;

/// The page for these counters.
pub(super) fn text(stats: &ChainStats) -> String {
    let settled = u64::try_from(stats.settled.len()).unwrap_or(u64::MAX);
    let values = [
        ("height", "gauge", "Height of the last block.", stats.height),
        ("epoch", "gauge", "Epoch.", stats.epoch),
        ("transactions_total", "counter", "Transactions accepted.", stats.transactions),
        ("settled_escrows", "gauge", "Settled escrows.", settled),
        ("subscriptions", "gauge", "Open websocket subscriptions.", stats.subscriptions),
    ];
    let mut page = String::new();
    for (name, kind, help, value) in values {
        let name = format!("proofload_chain_{name}");
        let _infallible = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    let name = "proofload_chain_calls_total";
    let _infallible = writeln!(page, "# HELP {name} Calls by method.\n# TYPE {name} counter");
    for (method, count) in &stats.calls {
        let _infallible = writeln!(page, "{name}{{method=\"{}\"}} {count}", label(method));
    }
    page
}
