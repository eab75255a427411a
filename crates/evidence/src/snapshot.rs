//! `snapshots/<moment>/`: state of gateway, hosts and mocks at one moment. `snapshot.json` is the normalised form
//! below; raw answers lie beside it for people. What snapshots share is stored once, see [`crate::sessions`].

use std::collections::BTreeMap;

use scenario::control::{ChainStats, DapiStats, OpenaiStats};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sessions::Span;

/// Version of a snapshot: 1 held diffs and inferences in itself, 2 refers to the files of [`crate::sessions`].
pub const SNAPSHOT_VERSION: u32 = 2;

/// When a snapshot was taken (design section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// Before load.
    Before,
    /// (b): after the passive wait.
    DrainPassive,
    /// (c): after sync.
    DrainSynced,
    /// (d): after finalize.
    DrainFinal,
}

impl Moment {
    /// Name of its directory.
    #[must_use]
    pub const fn dir(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::DrainPassive => "drain-passive",
            Self::DrainSynced => "drain-synced",
            Self::DrainFinal => "drain-final",
        }
    }
}

/// One inference as the gateway's debug read shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Inference {
    /// `pending`, `started`, `finished`, `challenged`, `validated`, `invalidated`, `timed_out`, or another word.
    pub status: String,
    /// Slot.
    pub executor_slot: u32,
    /// Hex.
    pub prompt_hash: Option<String>,
    /// Hex.
    pub response_hash: Option<String>,
    /// Bytes.
    pub input_length: u64,
    /// As signed.
    pub max_tokens: u64,
    /// Unix seconds (milliseconds for July ghosts).
    pub started_at: u64,
    /// Cost after the finish.
    pub actual_cost: u64,
    /// Weight.
    pub votes_valid: u32,
    /// Weight.
    pub votes_invalid: u32,
    /// Slots.
    pub validated_by: Vec<u32>,
}

/// A transaction that waits somewhere or stands in a diff.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Tx {
    /// `start`, `confirm_start`, `finish`, `timeout`, `validation`, `vote`, `finalize_round`, or the gateway's word.
    pub kind: String,
    /// Inference it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<u64>,
    /// Proposing slot (validator, voter, executor).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// `valid` of a validation or vote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid: Option<bool>,
    /// Escrow named inside (finish, validation, vote).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escrow: Option<String>,
    /// BLAKE3 of the encoded transaction, 16 hex characters.
    pub digest: String,
}

/// One escrow at the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GatewayEscrow {
    /// Id.
    pub escrow: String,
    /// Latest nonce.
    pub nonce: u64,
    /// `active`, `finalizing`, `settlement`, …
    pub phase: String,
    /// Balance.
    pub balance: Option<u64>,
    /// Slot owners in order.
    pub group: Vec<String>,
    /// Transactions waiting for a diff.
    pub pending: Vec<Tx>,
    /// By nonce; only in version 1, later ones are in `snapshots/inferences.jsonl`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inferences: BTreeMap<u64, Inference>,
    /// Highest nonce with a signature quorum.
    pub highest_quorum_nonce: Option<u64>,
    /// Active requests of the runtime.
    pub active_requests: Option<u64>,
    /// Refusal timeout, seconds.
    pub refusal_timeout_s: Option<u64>,
    /// Execution timeout, seconds.
    pub execution_timeout_s: Option<u64>,
}

/// One diff as a host stores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diff {
    /// Nonce.
    pub nonce: u64,
    /// BLAKE3 over transactions and user signature, hex: what may never differ at one nonce.
    pub content: String,
    /// State hash after it, base64 as the host gives it.
    pub state_hash: String,
    /// State root in the diff, base64 as the host gives it.
    pub post_state_root: String,
    /// Decoded.
    pub txs: Vec<Tx>,
}

/// One escrow at one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostEscrow {
    /// Id.
    pub escrow: String,
    /// Diffs in order of nonce; only in version 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diffs: Vec<Diff>,
    /// The log from version 2 on: lines of `snapshots/diffs.jsonl`, as `[first, count]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<Span>,
    /// Mempool.
    pub mempool: Vec<Tx>,
}

/// One host process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostState {
    /// Service name, `host-0`.
    pub service: String,
    /// Address of its participant.
    pub participant: String,
    /// Escrows it serves.
    pub escrows: Vec<HostEscrow>,
    /// Epoch that its statistics name; only asked for at the end, since real hosts keep an answer for a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
}

/// A validation lease row (Postgres).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lease {
    /// Epoch.
    pub epoch: u64,
    /// Escrow.
    pub escrow: String,
    /// Inference.
    pub inference: u64,
    /// Owner.
    pub owner: String,
    /// `pending`, `submitted`, `skipped`.
    pub status: String,
    /// Unix microseconds.
    pub claimed_unix_us: u64,
}

/// A process and what makes it the same process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessIdentity {
    /// Service.
    pub service: String,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// `process_start_time_seconds` of its metrics, as text.
    pub metric_start: Option<String>,
    /// Whether its health probe answered.
    pub ready: bool,
}

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    /// What, for example `gateway/debug/inferences/12`.
    pub what: String,
    /// Why, bounded.
    pub why: String,
}

/// `snapshots/<moment>/snapshot.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// Format version.
    pub v: u32,
    /// When.
    pub moment: Moment,
    /// Microseconds since the run began.
    pub at_us: u64,
    /// Lines of `snapshots/inferences.jsonl` that stood then.
    #[serde(default)]
    pub inference_lines: u64,
    /// Escrows at the gateway.
    pub escrows: Vec<GatewayEscrow>,
    /// Hosts.
    pub hosts: Vec<HostState>,
    /// Leases; `None` where storage has none.
    pub leases: Option<Vec<Lease>>,
    /// Processes.
    pub processes: Vec<ProcessIdentity>,
    /// Counters of the gateway by series (`name{labels}`), finite values only.
    pub gateway_metrics: BTreeMap<String, f64>,
    /// Counters per host service.
    pub host_metrics: BTreeMap<String, BTreeMap<String, f64>>,
    /// Nodes.
    pub openai: Option<OpenaiStats>,
    /// Allocator.
    pub dapi: Option<DapiStats>,
    /// Chain.
    pub chain: Option<ChainStats>,
    /// What could not be read.
    pub missing: Vec<Missing>,
}

impl Snapshot {
    /// A snapshot in which nothing has been read yet.
    #[must_use]
    pub fn blank(moment: Moment, at_us: u64) -> Self {
        Self {
            v: SNAPSHOT_VERSION,
            moment,
            at_us,
            inference_lines: 0,
            escrows: Vec::new(),
            hosts: Vec::new(),
            leases: None,
            processes: Vec::new(),
            gateway_metrics: BTreeMap::new(),
            host_metrics: BTreeMap::new(),
            openai: None,
            dapi: None,
            chain: None,
            missing: Vec::new(),
        }
    }
}
