//! Control API of the mocks (design section 8). Control listens apart from the data port.
//!
//! | Call | Body | Answer |
//! |---|---|---|
//! | `GET /healthz` | | `ok` |
//! | `GET /metrics` | | Prometheus text |
//! | `PUT /control/v1/config` | a whole [`MockConfig`] | [`ConfigApplied`]; 400 with [`ControlError`] when refused, nothing changed |
//! | `GET /control/v1/config` | | the [`MockConfig`] in force |
//! | `GET /control/v1/hits?after=<seq>&limit=<n>` | | [`Page`] of [`Hit`] |
//! | `GET /control/v1/calls?after=<seq>&limit=<n>` | | [`Page`] of [`NodeCall`], [`DapiCallRecord`] or [`ChainCallRecord`] |
//! | `GET /control/v1/stats` | | [`OpenaiStats`], [`DapiStats`] or [`ChainStats`] |
//! | `POST /control/v1/act` | [`NodeAct`] (mock-openai) or [`ChainAct`] (mock-chain) | `{"ok":true}` |
//!
//! Every log is a bounded ring with sequence numbers from 1: `dropped` says what fell out before it was read.
//! Times are microseconds since the process started; `started_unix_us` of a page anchors them.

mod chain;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::digest;
use crate::fault::{Attempts, CallKind, DapiCall, DapiFault, NodeFault, Select};
use crate::model::Policy;
use crate::profile::Profile;
use crate::units::Micros;

pub use chain::{
    BlockPace, ChainAct, ChainCallRecord, ChainConfig, ChainEscrow, ChainGrant, ChainParams,
    ChainParticipant, ChainRule, ChainStats, basis_points,
};

/// Format version of configs and logs.
pub const CONTROL_VERSION: u32 = 1;

/// A whole configuration. Replacing it is atomic; topology (node and host names) can't change after the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mock", rename_all = "kebab-case")]
pub enum MockConfig {
    /// For `mock-openai`.
    Openai(OpenaiConfig),
    /// For `mock-dapi`.
    Dapi(DapiConfig),
    /// For `mock-chain`.
    Chain(ChainConfig),
}

impl MockConfig {
    /// BLAKE3 of the canonical JSON; what the mock answers and what the runner compares.
    #[must_use]
    pub fn hash(&self) -> String {
        digest(self)
    }
}

/// Answer to a PUT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigApplied {
    /// Hash of the config now in force.
    pub hash: String,
    /// Number of configs applied since start, the first one included.
    pub revision: u64,
}

/// Why a control call was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControlError {
    /// What is wrong and what to do.
    pub error: String,
}

/// Part of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Page<T> {
    /// Entries in order of `seq`.
    pub items: Vec<T>,
    /// Give this as `after` next time.
    pub next: u64,
    /// Entries that fell out of the ring since start.
    pub dropped: u64,
    /// Unix time of offset 0, microseconds.
    pub started_unix_us: u64,
}

/// One fault decision that was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hit {
    /// Sequence number in this mock.
    pub seq: u64,
    /// Offset.
    pub at_us: u64,
    /// Where: an instance such as `node-b-0`, a host such as `host-1` for dapi, or a chain method.
    pub place: String,
    /// Rule.
    pub rule: String,
    /// Action by its name in the file, for example `status`.
    pub action: String,
    /// Kind of call; nodes only.
    pub kind: Option<CallKind>,
    /// Request id of the marker; nodes only, `None` when the body had none.
    pub request_id: Option<String>,
    /// Attempt at this place (nodes) or ordinal of the call (dapi, chain), from 1.
    pub attempt: u64,
    /// Sequence number of the call in the call log.
    pub call_seq: u64,
}

/// How a call at a node ended, seen from the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeOutcome {
    /// Still running when the log was read.
    Running,
    /// The whole answer was written.
    Completed,
    /// A fault rule answered or spoilt it.
    Faulted,
    /// Refused: workers and queue full.
    Rejected,
    /// The caller closed before the end.
    ClientCancelled,
    /// The request itself was bad (400).
    BadRequest,
    /// The node was killed while it answered.
    Killed,
}

/// One call at an ML node. A call appears when it starts and again, with the same `seq`, when it has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCall {
    /// Sequence number of this log entry (a start and its end have different ones).
    pub seq: u64,
    /// Identity of the call: equal in its two entries.
    pub call: u64,
    /// Instance.
    pub node: String,
    /// Start.
    pub started_us: u64,
    /// End; `None` in the first entry.
    pub ended_us: Option<u64>,
    /// When the first content byte was written.
    pub first_content_us: Option<u64>,
    /// Marker id.
    pub request_id: Option<String>,
    /// Marker salt.
    pub salt: Option<String>,
    /// `seed` of the body: the inference id, hence the nonce of its start.
    pub seed: Option<u64>,
    /// Header `X-Request-Id`.
    pub x_request_id: Option<String>,
    /// Lock of the path `/l/<lock>/…`.
    pub lock: Option<String>,
    /// Execution or validation.
    pub kind: CallKind,
    /// Attempt: ordinal of calls of that id and kind at that node, from 1.
    pub attempt: u64,
    /// Asked for SSE.
    pub stream: bool,
    /// Status answered; `None` when reset or closed before.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: NodeOutcome,
    /// Rule that hit it.
    pub rule: Option<String>,
    /// Content events written.
    pub content_events: u64,
}

/// One node of `mock-openai`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Instance name.
    pub name: String,
    /// Behaviour. Its `failures` are not read here: they arrive as rules.
    pub behaviour: Profile,
}

/// A fault rule for nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeRule {
    /// Rule id.
    pub id: String,
    /// Instances it applies to.
    pub nodes: Vec<String>,
    /// Execution or validation.
    pub on: CallKind,
    /// Which requests (`calls` is not used at nodes).
    pub select: Select,
    /// Which attempts.
    pub attempts: Attempts,
    /// What is done.
    pub action: NodeFault,
}

/// Configuration of `mock-openai`. The first rule in order that matches a call is carried out, no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenaiConfig {
    /// Format version.
    pub v: u32,
    /// Seed of the scenario.
    pub seed: u64,
    /// Nodes.
    pub nodes: Vec<NodeConfig>,
    /// Rules in order.
    pub rules: Vec<NodeRule>,
}

/// Counters of one kind of call at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCounters {
    /// Being answered.
    pub active: u64,
    /// Waiting for a worker.
    pub queued: u64,
    /// Answered whole.
    pub completed: u64,
    /// Spoilt by a rule, by action name.
    pub failed: BTreeMap<String, u64>,
    /// Caller closed.
    pub client_cancelled: u64,
    /// Refused with 503 because workers and queue were full.
    pub rejected: u64,
}

/// Counters of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeStats {
    /// Instance.
    pub name: String,
    /// Executions.
    pub execution: NodeCounters,
    /// Validation replays.
    pub validation: NodeCounters,
    /// Time during which all workers were busy and something waited or was refused, microseconds.
    pub saturated_us: u64,
    /// Workers in force.
    pub workers: u32,
    /// Queue places in force.
    pub queue: u32,
}

/// An admin action on a pool: its nodes share one process, and still each can end and come back by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "act", rename_all = "kebab-case", deny_unknown_fields)]
pub enum NodeAct {
    /// Closes the node's listener and cuts its connections.
    Kill {
        /// Instance.
        node: String,
    },
    /// Closes the node's listener; calls that run are answered.
    Stop {
        /// Instance.
        node: String,
    },
    /// Listens again at the same address.
    Start {
        /// Instance.
        node: String,
    },
}

/// Stats of `mock-openai`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OpenaiStats {
    /// Format version.
    pub v: u32,
    /// One per node.
    pub nodes: Vec<NodeStats>,
    /// CPU time of the process, microseconds.
    pub cpu_us: u64,
    /// Longest time in one piece in which the process did not get to run, microseconds; `None` from builds that did
    /// not watch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_gap_max_us: Option<u64>,
}

/// One node as the allocator knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DapiNode {
    /// Instance name = `node_id` of the answer.
    pub name: String,
    /// Base URL without trailing slash; the answer's endpoint is `<base_url>/l/<lock>`.
    pub base_url: String,
    /// Weight for `seeded-weighted`.
    pub weight: u32,
    /// Whether it may be given out.
    pub available: bool,
}

/// A fault rule for the allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DapiRule {
    /// Rule id.
    pub id: String,
    /// Call.
    pub call: DapiCall,
    /// Calling host; every host when absent.
    pub host: Option<String>,
    /// `all` or `calls` by ordinal of that call (and host, if named).
    pub select: Select,
    /// What is done.
    pub action: DapiFault,
}

/// Configuration of `mock-dapi`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DapiConfig {
    /// Format version.
    pub v: u32,
    /// Seed of the scenario.
    pub seed: u64,
    /// Hosts, each with a gRPC listener of its own.
    pub hosts: Vec<String>,
    /// Nodes.
    pub nodes: Vec<DapiNode>,
    /// Policy.
    pub policy: Policy,
    /// Node order for `fixed-order`.
    pub order: Vec<String>,
    /// Lifetime of a lock.
    pub lease: Micros,
    /// Runtime configuration served to hosts and gateway.
    pub runtime: RuntimeParams,
    /// Documents of the HTTP face.
    #[serde(default)]
    pub oracle: Oracle,
    /// Rules in order; the first match is carried out.
    pub rules: Vec<DapiRule>,
}

/// What the HTTP face of the allocator serves beside the epoch of the runtime configuration (contract mocks 4.4 to 4.7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Oracle {
    /// Versions for versiond and the newer router; the built-in July entry when empty.
    pub versions: Vec<OracleVersion>,
    /// Block height of the epoch document; the 50th block after the epoch's begin when absent. Rotation of escrows
    /// compares it with the switch heights of the same document.
    pub block_height: Option<u64>,
    /// Phase; `Inference` when absent.
    pub phase: Option<EpochPhase>,
    /// Participants with weights. A listed one switches the gateway's weight limiter on.
    pub participants: Vec<OracleParticipant>,
}

/// One version of the host program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OracleVersion {
    /// Protocol name.
    pub name: String,
    /// Where the program is fetched.
    pub binary: String,
    /// Its SHA-256, hex.
    pub sha256: String,
}

/// Phase of an epoch as the gateway reads it (contract mocks 4.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EpochPhase {
    /// Chats are served.
    Inference,
    /// Proof of compute runs.
    PoCGenerate,
    /// Proof of compute ends.
    PoCGenerateWindDown,
    /// Proof of compute is checked.
    PoCValidate,
    /// The check ends.
    PoCValidateWindDown,
}

/// A participant as the epoch's list shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OracleParticipant {
    /// bech32 address.
    pub address: String,
    /// Where it is reached.
    pub inference_url: String,
    /// Weight, at least 2000 per unit of concurrency at default settings.
    pub weight: u64,
}

/// Runtime parameters (contract mocks 4.1, `RuntimeConfig`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuntimeParams {
    /// Change marker; must grow with every change.
    pub params_block_height: i64,
    /// Epoch.
    pub epoch: u64,
    /// Hosts accept chats.
    pub requests_enabled: bool,
    /// Highest nonce of a session.
    pub max_nonce: u32,
    /// `raw` or `processed`.
    pub logprobs_mode: String,
    /// Seconds; announced to clients, does not change a session.
    pub refusal_timeout_s: i64,
    /// Seconds; announced to clients, does not change a session.
    pub execution_timeout_s: i64,
    /// Basis points.
    pub validation_rate: u32,
    /// Percent of the group; 0 = half.
    pub vote_threshold_factor: u32,
    /// Model the thresholds are for.
    pub model: String,
    /// Similarity threshold: value · 10^exponent (95, −2 works on real builds).
    pub threshold_value: i64,
    /// Exponent.
    pub threshold_exponent: i32,
}

/// One call of the allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DapiCallRecord {
    /// Sequence number.
    pub seq: u64,
    /// Offset.
    pub at_us: u64,
    /// Which call.
    pub call: DapiCall,
    /// Calling host by its listener (`gateway` for the gateway's).
    pub host: String,
    /// Ordinal of this call over all hosts, from 1.
    pub ordinal: u64,
    /// Lock given or released.
    pub lock: Option<String>,
    /// Node given or released.
    pub node: Option<String>,
    /// Nodes the caller excluded.
    pub excluded: Vec<String>,
    /// `granted`, `released`, `released-twice`, `unknown-lock`, `expired`, `exhausted`, `refused`, `lost`, `cancelled`,
    /// `answered`.
    pub result: String,
    /// Release outcome as sent: `success`, `transport-error`, `application-error`, `timeout`.
    pub outcome: Option<String>,
    /// Rule that hit it.
    pub rule: Option<String>,
}

/// Stats of `mock-dapi`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DapiStats {
    /// Format version.
    pub v: u32,
    /// Locks given.
    pub acquisitions: u64,
    /// Locks given back.
    pub releases: u64,
    /// Acquires refused (no node left, or by a rule).
    pub rejections: u64,
    /// Locks out now.
    pub active: u64,
    /// Locks that expired.
    pub expired: u64,
    /// Releases of a lock already released.
    pub double_releases: u64,
    /// Releases of an unknown lock.
    pub unknown_releases: u64,
    /// Acquisitions per node.
    pub per_node: BTreeMap<String, u64>,
    /// CPU time of the process, microseconds.
    pub cpu_us: u64,
    /// Longest time in one piece in which the process did not get to run, microseconds; `None` from builds that did
    /// not watch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_gap_max_us: Option<u64>,
}
