//! The assertions, one file each. Every one declares what it reads and what it counts, and is a pure function over
//! [`Case`]. Adding one means a line in [`ALL`].

mod a01_terminal_outcome;
mod a02_fault_class;
mod a03_response_format;
mod a04_nonce_order;
mod a05_validation_ownership;
mod a06_orphans;
pub(crate) mod a07_replica_agreement;
mod a08_drain;
mod a09_service_stability;
mod a10_correlation;
mod a11_conservation;
pub(crate) mod thresholds;
mod validity;

pub(crate) use validity::WAITING_SHARE_PPB;

use std::collections::BTreeSet;

use evidence::assertion::{AssertionId, EvidenceRef, Witness};
use evidence::sessions::Span;
use evidence::snapshot::{HostEscrow, HostState, Moment, Snapshot};
use scenario::model::ServiceAction;

use crate::classify::Decided;
use crate::load::Evidence;
use crate::oracle::Oracle;
use crate::sheet::Sheet;
use crate::table::Table;

/// What every assertion is given.
#[derive(Debug)]
pub struct Case<'a> {
    /// Evidence.
    pub evidence: &'a Evidence,
    /// Class of each request.
    pub decided: &'a Table<Decided>,
    /// Fault oracle.
    pub oracle: &'a Oracle,
}

impl Case<'_> {
    /// The run was stopped before its plan was done: amounts are not judged.
    #[must_use]
    pub fn partial(&self) -> bool {
        use evidence::event::EventKind;
        self.evidence.events.iter().any(|event| match &event.event {
            EventKind::Signal { .. } | EventKind::EnvironmentFailed { .. } => true,
            EventKind::LoadEnded { partial, .. } => *partial,
            _ => false,
        })
    }
}

/// One assertion as the registry lists it.
#[derive(Clone, Copy)]
pub struct Assertion {
    /// Id.
    pub id: AssertionId,
    /// Files without which it can't judge.
    pub inputs: &'static [&'static str],
    /// What it counts.
    pub unit: &'static str,
    /// Judges.
    pub judge: fn(&Case<'_>, &mut Sheet),
}

impl std::fmt::Debug for Assertion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Assertion({})", self.id)
    }
}

/// Every assertion, in order.
pub const ALL: [Assertion; 13] = [
    a01_terminal_outcome::ASSERTION,
    a02_fault_class::ASSERTION,
    a03_response_format::ASSERTION,
    a04_nonce_order::ASSERTION,
    a05_validation_ownership::ASSERTION,
    a06_orphans::ASSERTION,
    a07_replica_agreement::ASSERTION,
    a08_drain::ASSERTION,
    a09_service_stability::ASSERTION,
    a10_correlation::ASSERTION,
    a11_conservation::ASSERTION,
    validity::ASSERTION,
    thresholds::ASSERTION,
];

/// A witness about a load request.
fn about_request(reason: &str, message: String, id: &str, file: &str) -> Witness {
    let mut witness = Witness::new(reason, message);
    witness.request_id = Some(id.to_owned());
    witness.evidence.push(EvidenceRef { file: file.to_owned(), at: format!("id={id}") });
    witness
}

/// A witness about a nonce of an escrow.
fn about_nonce(reason: &str, message: String, escrow: &str, nonce: u64, file: &str) -> Witness {
    let mut witness = Witness::new(reason, message);
    witness.escrow = Some(escrow.to_owned());
    witness.nonce = Some(nonce);
    witness
        .evidence
        .push(EvidenceRef { file: file.to_owned(), at: format!("escrow={escrow} nonce={nonce}") });
    witness
}

/// Notes what a snapshot itself says could not be read, as far as it matters to the caller.
fn unread(snapshot: &Snapshot, moment: Moment, matters: fn(&str) -> bool, sheet: &mut Sheet) {
    for missing in snapshot.missing.iter().filter(|missing| matters(&missing.what)) {
        sheet.missing(format!("{} at {}: {}", missing.what, moment.dir(), missing.why));
    }
}

/// Whether a name of [`Snapshot::missing`] is a host's log of diffs.
fn is_host_log(what: &str) -> bool {
    what.starts_with("host-") && what.ends_with("/diffs")
}

/// Whether a name of [`Snapshot::missing`] is a host's log or mempool.
fn is_host_state(what: &str) -> bool {
    is_host_log(what) || (what.starts_with("host-") && what.ends_with("/mempool"))
}

/// Every escrow that any snapshot shows in use: a later snapshot must not lose one without a word.
fn escrows_in_use(evidence: &Evidence) -> BTreeSet<&str> {
    let escrows = evidence.snapshots.values().flat_map(|snapshot| &snapshot.escrows);
    escrows.filter(|escrow| escrow.nonce > 0).map(|escrow| escrow.escrow.as_str()).collect()
}

/// Whether an action of the scenario deactivates an escrow: its runtime is unloaded then, its hosts keep the log.
fn deactivated(case: &Case<'_>, escrow: &str) -> bool {
    let actions = &case.evidence.run.resolved.scenario.actions;
    actions
        .iter()
        .any(|action| matches!(action.action, ServiceAction::Deactivate(id) if id.to_string() == escrow))
}

/// The longest log of an escrow over all hosts.
fn longest_log<'s>(snapshot: &'s Snapshot, escrow: &str) -> Option<&'s HostEscrow> {
    let logs = snapshot.hosts.iter().flat_map(|host| host.escrows.iter());
    logs.filter(|log| log.escrow == escrow).max_by_key(|log| log_len(log))
}

/// Diffs of a host's log.
fn log_len(log: &HostEscrow) -> u64 {
    log.log.iter().map(|span| span.count).sum()
}

/// File of a moment's snapshot.
pub(crate) fn snapshot_file(moment: Moment) -> String {
    format!("{}/{}/{}", evidence::rundir::SNAPSHOTS, moment.dir(), evidence::rundir::SNAPSHOT_FILE)
}

/// The lines of one nonce that a host holds, in the order of its log.
fn held(host: &HostState, escrow: &str, lines: &[u64]) -> Vec<u64> {
    let spans = host.escrows.iter().filter(|log| log.escrow == escrow).flat_map(|log| &log.log);
    let of_span = |span: &Span| {
        let inside = |line: &&u64| (span.first..span.first.saturating_add(span.count)).contains(*line);
        lines.iter().filter(inside).copied().collect::<Vec<u64>>()
    };
    spans.flat_map(of_span).collect()
}
