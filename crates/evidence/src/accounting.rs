//! `accounting.jsonl`: one line per load request, joined by the runner (design section 5, "Join").

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How an entry of [`JoinedRequest::missing`] begins when the gateway did not say whether it has the row: a gap of the
/// evidence, and no finding.
pub const ROW_UNREAD: &str = "accounting row was not read";

/// Outcome words of the gateway's accounting (contract gateway 5.3). Kept as text: a new word is a fact, not an error.
pub type AccountingOutcome = String;

/// One attempt of a race.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// Nonce = inference id.
    pub nonce: u64,
    /// Host index (slot).
    pub host_idx: u32,
    /// Participant address.
    pub participant: Option<String>,
    /// Whether it won.
    pub winner: bool,
    /// Joined protocol status (`finished`, `timed_out`, `not_in_state`, …).
    pub status: Option<String>,
}

/// A row of gateway accounting, as read after sync (moment (c) of the drain).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccountingRow {
    /// Key in accounting.
    pub request_id: String,
    /// Escrow.
    pub escrow: String,
    /// `running`, `success`, `failed`, `cached`.
    pub outcome: AccountingOutcome,
    /// Decision of the race.
    pub decision: Option<String>,
    /// Winner.
    pub winner_nonce: Option<u64>,
    /// Attempts by nonce.
    pub attempts: Vec<Attempt>,
    /// RFC 3339.
    pub started_at: Option<String>,
    /// RFC 3339; absent while running.
    pub completed_at: Option<String>,
}

/// A way by which a hop was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JoinWay {
    /// Marker in the prompt, seen by an ML node.
    Marker,
    /// `seed` of the node call = inference id = nonce, with the escrow known.
    SeedNonce,
    /// `X-Devshard-Id` of the answer gave the escrow.
    DevshardId,
    /// `X-Request-Id` of the answer found the accounting row.
    ResponseRequestId,
    /// A host's terminal log line gave escrow and inference.
    HostLog,
    /// The gateway's log line for a nonce of the request gave its id in accounting.
    GatewayLog,
    /// The gateway's perf database gave its id in accounting for a nonce of the request.
    PerfDatabase,
    /// The gateway's log, or an alias in its perf database, says that the response cache answered: accounting itself has
    /// no row (contract gateway 3.1 and 5.4).
    CacheRecord,
}

/// A node call of a request, in short; the whole one is in `faults/node-calls.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JoinedCall {
    /// Call id at its mock.
    pub call: u64,
    /// Instance.
    pub node: String,
    /// Nonce (`seed`).
    pub nonce: Option<u64>,
    /// Lock.
    pub lock: Option<String>,
    /// Host that acquired the lock.
    pub host: Option<String>,
    /// Outcome word of [`scenario::control::NodeOutcome`].
    pub outcome: String,
    /// Status answered.
    pub status: Option<u16>,
    /// Rule that hit it.
    pub rule: Option<String>,
    /// Start, microseconds since mock start.
    pub started_us: u64,
}

/// One line of `accounting.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JoinedRequest {
    /// Format version.
    pub v: u32,
    /// Plan index.
    pub index: u64,
    /// Load request id.
    pub id: String,
    /// Accepted by the gateway, as contract gateway 10.2 defines it (decided once, by the runner).
    pub accepted: bool,
    /// Answered from the response cache, as its row says, or without a row the gateway's own records.
    pub cached: bool,
    /// Escrow, when known.
    pub escrow: Option<String>,
    /// Accounting row, when found.
    pub accounting: Option<AccountingRow>,
    /// Execution calls at ML nodes, by start.
    pub calls: Vec<JoinedCall>,
    /// Final statuses of its nonces after sync, `(nonce, status)`.
    pub inferences: Vec<(u64, String)>,
    /// Ways used.
    pub ways: Vec<JoinWay>,
    /// Hops that were looked for and not found, in words.
    pub missing: Vec<String>,
}
