//! The scenario file, version 1 (design section 6), and its resolved form.
//!
//! [`Scenario`] is what a person writes. [`Resolved`] is what every other part reads: profiles inlined, instances
//! named, profile failures turned into rules. Only the resolution in this crate makes one from the other.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fault::{Attempts, CallKind, Expect, FaultAction, Place, RequestClass, Select};
use crate::profile::Profile;
use crate::units::{Micros, Ppb};

mod action;
mod workload;

pub use action::*;
pub use workload::*;

/// Format version of the scenario file.
pub const SCENARIO_VERSION: u32 = 1;

/// Where durable state of Devshard lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Storage {
    /// One file a participant; no leases.
    #[default]
    Sqlite,
    /// One database a participant; needed for leases and replicas.
    Postgres,
}

/// The Devshard topology under test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Devshard {
    /// Hosts with a key of their own.
    pub participants: u32,
    /// Processes per participant.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Slots of each escrow; at least one a participant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Escrows that share the load.
    #[serde(default = "one")]
    pub escrows: u32,
    /// Storage of the hosts.
    #[serde(default)]
    pub storage: Storage,
    /// Share of inferences that each participant validates (default 0.5, the chain's own default).
    #[serde(default = "half")]
    pub validation_rate: Ppb,
    /// Gateway settings that are sent and read back, by the gateway's own names (contract gateway 9); nested
    /// groups are written as groups. `speed_policy` and the like may stand at the top for short.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub settings: serde_json::Map<String, serde_json::Value>,
}

/// One line of the pool: `count` nodes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolEntry {
    /// Name; with `count` above one the instances are `<name>-0`, `<name>-1`, …
    pub name: String,
    /// Profile file name without `.yaml`.
    pub profile: String,
    /// Instances.
    #[serde(default = "one")]
    pub count: u32,
    /// Overrides the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Overrides the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// Allowed outcomes of the profile's own failures; needed when it has some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expect>,
}

/// How the allocator picks a node; each policy is a pure function (design section 8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// One after another, by acquire ordinal.
    #[default]
    RoundRobin,
    /// By seeded draw over the acquire ordinal with weights.
    SeededWeighted,
    /// The node with the fewest active locks; ties by pool order.
    LeastActive,
    /// The order given; after its end it starts again.
    FixedOrder,
}

/// Allocation rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Allocator {
    /// The policy.
    #[serde(default)]
    pub policy: Policy,
    /// Weight per instance by pool entry or instance name; 1 when absent. Only with `seeded-weighted`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
    /// Instance names for `fixed-order`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<String>,
    /// A lock that is not released expires after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Micros>,
}

/// One fault rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct FaultRule {
    /// Name, unique in the file. Profile failures are named `<profile>/<n>`.
    pub id: String,
    /// Where.
    #[serde(rename = "where")]
    pub place: Place,
    /// Executions or validations (nodes only).
    #[schemars(default)]
    pub on: CallKind,
    /// Which calls.
    pub select: Select,
    /// Which attempts of a selected call (nodes only).
    #[schemars(default)]
    pub attempts: Attempts,
    /// What is done.
    #[serde(rename = "do")]
    pub action: FaultAction,
    /// Allowed outcomes of the requests it hits.
    #[schemars(default)]
    pub expect: Vec<Expect>,
}

/// Limits that fail the run (T). No default: what is absent is not judged. 0 is a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// Share of unexpected failures and rejections over sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_rate: Option<Ppb>,
    /// TTFT of successes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_p50: Option<Micros>,
    /// TTFT of successes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_p95: Option<Micros>,
    /// TTFT of successes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_p99: Option<Micros>,
    /// Total latency of successes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p50: Option<Micros>,
    /// Total latency of successes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p95: Option<Micros>,
    /// Total latency of successes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_p99: Option<Micros>,
    /// Least successes per second, over the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_rps_min: Option<u64>,
}

/// Whether a mock may reach its own capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Saturation {
    /// Saturation anywhere makes the run invalid.
    #[default]
    Forbidden,
    /// These nodes must saturate, and only these.
    Required(Vec<String>),
}

/// When the run says nothing about Devshard (V).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Validity {
    /// Planned against sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_lateness_p99: Option<Micros>,
    /// CPU of loadgen, 1 = one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loadgen_cpu_share: Option<Ppb>,
    /// Longest time in one piece for which the generator or a mock may not get to run; 1 s when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_gap_max: Option<Micros>,
    /// Mocks.
    #[serde(default)]
    pub mock_saturation: Saturation,
    /// Allowed outcomes of requests refused by required saturation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expect>,
}

impl Validity {
    /// Half a minute of protocol waits is normal, a second without a single step of our own programs is not.
    pub const LOOP_GAP_MAX: Micros = Micros::from_s(1);

    /// The limit in force.
    #[must_use]
    pub fn loop_gap_max(&self) -> Micros {
        self.loop_gap_max.unwrap_or(Self::LOOP_GAP_MAX)
    }
}

/// How long the drain may take and how stable its end must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Deadline of the passive wait.
    #[serde(default)]
    pub timeout: Limit,
    /// Samples in a row that must be zero and unchanged (K).
    #[serde(default = "three")]
    pub stable_samples: u32,
    /// Time between samples.
    #[serde(default = "half_second")]
    pub interval: Micros,
}

/// Least amounts below which the verdict is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Minimum {
    /// Distinct executed request ids that a fault hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_hits: Option<u64>,
    /// Requests cut at their cancel point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<u64>,
    /// Validations that ended with a vote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validations: Option<u64>,
    /// Validation leases that a replica took over when their time had passed (Postgres).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take_overs: Option<u64>,
    /// Requests that ended in each of these classes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<RequestClass, u64>,
    /// Requests answered from the gateway's response cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    /// Escrows that the chain settled during the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<u64>,
    /// Chats taken by host processes that an action started: they went on with sessions that they found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<u64>,
    /// In a search: lowest concurrency that must pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
}

/// A scenario after strict parsing, as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Format version.
    pub version: u32,
    /// Name, `[a-z0-9-]`.
    pub name: String,
    /// What it proves.
    #[serde(default)]
    pub description: String,
    /// Seed of every draw.
    pub seed: u64,
    /// Topology.
    pub devshard: Devshard,
    /// ML nodes.
    pub pool: Vec<PoolEntry>,
    /// Allocation.
    #[serde(default)]
    pub allocator: Allocator,
    /// Load.
    pub workload: Workload,
    /// Faults.
    #[serde(default)]
    pub faults: Vec<FaultRule>,
    /// Service actions.
    #[serde(default)]
    pub actions: Vec<Action>,
    /// Limits of T.
    #[serde(default)]
    pub thresholds: Thresholds,
    /// Limits of V.
    #[serde(default)]
    pub validity: Validity,
    /// Drain.
    #[serde(default)]
    pub drain: Drain,
    /// Least amounts.
    #[serde(default)]
    pub minimum: Minimum,
}

/// One ML node of the resolved pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Instance name.
    pub name: String,
    /// The pool entry it came from.
    pub entry: String,
    /// Name of its profile.
    pub profile: String,
    /// Behaviour, overrides applied.
    pub behaviour: Profile,
    /// Weight in the allocator.
    pub weight: u32,
}

/// What every other part reads. Self-contained: it can be rebuilt into the same plan without any other file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resolved {
    /// The scenario, defaults filled in; its `faults` hold the file's rules, then the profiles' own.
    pub scenario: Scenario,
    /// Pool instances in order.
    pub nodes: Vec<Node>,
    /// Length of the plan.
    pub requests_max: u64,
    /// False when an action is triggered by the wall clock.
    pub plan_exact: bool,
}

impl Default for Drain {
    fn default() -> Self {
        Self { timeout: Limit::Protocol, stable_samples: three(), interval: half_second() }
    }
}

fn one() -> u32 {
    1
}

fn three() -> u32 {
    3
}

fn half() -> Ppb {
    Ppb::new(500_000_000).expect("a half is below one")
}

fn half_second() -> Micros {
    Micros::from_ms(500)
}

/// Reads a rule in two steps: which actions exist depends on where the rule applies.
impl<'de> Deserialize<'de> for FaultRule {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            id: String,
            #[serde(rename = "where")]
            place: Place,
            #[serde(default)]
            on: CallKind,
            select: Select,
            #[serde(default)]
            attempts: Attempts,
            #[serde(rename = "do")]
            action: serde_json::Value,
            #[serde(default)]
            expect: Vec<Expect>,
        }
        let written = Written::deserialize(deserializer)?;
        let action =
            FaultAction::for_place(&written.place, written.action).map_err(serde::de::Error::custom)?;
        let Written { id, place, on, select, attempts, expect, .. } = written;
        Ok(Self { id, place, on, select, attempts, action, expect })
    }
}
