//! Prometheus text of the allocator.

use std::fmt::Write as _;

use scenario::control::DapiStats;

use crate::label::label;

/// The page for these counters; `active` holds locks out by node.
pub(super) fn text(stats: &DapiStats, active: &[(String, u64)]) -> String {
    let totals = [
        ("acquisitions", "Locks given.", stats.acquisitions),
        ("releases", "Locks given back.", stats.releases),
        ("rejections", "Acquires refused.", stats.rejections),
        ("expired", "Locks whose lease ran out.", stats.expired),
        ("double_releases", "Releases of a lock that was back already.", stats.double_releases),
        ("unknown_releases", "Releases of an unknown lock.", stats.unknown_releases),
    ];
    let mut page = String::new();
    for (name, help, value) in totals {
        let name = format!("proofload_dapi_{name}_total");
        let _infallible = writeln!(page, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
    }
    page.push_str("# HELP proofload_dapi_active Locks out now.\n# TYPE proofload_dapi_active gauge\n");
    for (node, count) in active {
        let _infallible = writeln!(page, "proofload_dapi_active{{node=\"{}\"}} {count}", label(node));
    }
    let name = "proofload_dapi_node_acquisitions_total";
    let _infallible = writeln!(page, "# HELP {name} Locks given by node.\n# TYPE {name} counter");
    for (node, count) in &stats.per_node {
        let _infallible = writeln!(page, "{name}{{node=\"{}\"}} {count}", label(node));
    }
    page
}
