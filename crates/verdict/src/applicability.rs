//! The committed table of what can't be seen where (design section 7). A row here is the only way to
//! `not-applicable`; it has no effect on the verdict and is printed.

use evidence::assertion::AssertionId;
use evidence::run::RunInfo;

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Assertion.
    pub id: AssertionId,
    /// Part of it; empty for the whole.
    pub part: &'static str,
    /// When the row holds.
    pub holds: fn(&RunInfo) -> bool,
    /// Why the evidence can't exist then.
    pub why: &'static str,
}

/// Whether the run was made on a running environment.
pub(crate) fn attached(run: &RunInfo) -> bool {
    run.stack.provider == "attach"
}

/// The table.
pub const TABLE: &[Row] = &[
    Row {
        id: AssertionId::A5,
        part: "ownership",
        holds: |run| run.stack.storage == "sqlite",
        why: "SQLite has no lease table: every acquire is granted (contract hosts 5.2)",
    },
    Row {
        id: AssertionId::A5,
        part: "",
        holds: |run| {
            let devshard = &run.resolved.scenario.devshard;
            devshard.participants < 2 || devshard.validation_rate.get() == 0
        },
        why: "nobody validates: one participant, or a validation rate of 0 (contract hosts 5.1)",
    },
    Row {
        id: AssertionId::A6,
        part: "",
        holds: attached,
        why: "a running environment is neither synced nor finalized: what has no partner yet is on its way (design section 3)",
    },
    Row {
        id: AssertionId::A7,
        part: "",
        holds: |run| run.resolved.scenario.devshard.participants < 2,
        why: "one participant: there is nothing to compare with (contract hosts 6.5)",
    },
];

/// A blind spot that stays on every run for which it holds.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Assertion.
    pub id: AssertionId,
    /// When it holds.
    pub holds: fn(&RunInfo) -> bool,
    /// What can't be seen.
    pub why: &'static str,
}

/// What no run shows, so that nobody takes a pass for more than it is.
pub const LIMITS: &[Limit] = &[
    Limit {
        id: AssertionId::A4,
        holds: |_| true,
        why: "a host passes over another diff at an old nonce without a word: reuse shows only where two parties hold \
              different copies (contract hosts 11.1)",
    },
    Limit {
        id: AssertionId::A5,
        holds: |run| run.stack.storage == "postgres",
        why: "the lease table keeps no history and all replicas of a participant share one owner: it is read at each \
              snapshot and watched in between, and what happened between two looks is not seen (contract hosts 5.2, 11.1)",
    },
    Limit {
        id: AssertionId::A6,
        holds: |_| true,
        why: "which validator was due is not exposed, and a mempool is lost when its host restarts (contract hosts 11.1)",
    },
    Limit {
        id: AssertionId::A7,
        holds: |run| run.stack.storage == "postgres",
        why: "replicas that share a database show the same log by construction (contract hosts 6.5)",
    },
    Limit {
        id: AssertionId::A8,
        holds: |_| true,
        why: "no gauge counts running validations, the execution set or asynchronous writes (contract hosts 10)",
    },
    Limit {
        id: AssertionId::A8,
        holds: attached,
        why: "a running environment is not synced: what waits at its gateway, and the leases of its hosts, are not judged",
    },
    Limit {
        id: AssertionId::A9,
        holds: attached,
        why: "process ids of a running environment are not known: a restart shows in the start time of its metrics alone",
    },
    Limit {
        id: AssertionId::A11,
        holds: attached,
        why: "others may use a running environment: races of theirs are not told from a surplus of ours",
    },
    Limit {
        id: AssertionId::A9,
        holds: |_| true,
        why: "a service that is unready for fewer than three looks at its health, 250 ms apart, and stays the same process \
              is not seen",
    },
];

/// Why an assertion, or a part of it, does not apply to this run.
#[must_use]
pub fn not_applicable(run: &RunInfo, id: AssertionId, part: &str) -> Option<&'static str> {
    TABLE.iter().find(|row| row.id == id && row.part == part && (row.holds)(run)).map(|row| row.why)
}
