//! `run.yaml`: everything that is needed to judge again and to replay (no secret).

use std::collections::BTreeMap;

use scenario::model::Resolved;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The stack that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stack {
    /// `embedded`, `compose`, `attach`.
    pub provider: String,
    /// `reference` or `devshard`.
    pub devshard: String,
    /// `intended`, `july`; only for the reference.
    pub personality: Option<String>,
    /// Planted defect, if any.
    pub defect: Option<String>,
    /// Storage.
    pub storage: String,
    /// What was isolated and how, in words.
    pub isolation: String,
    /// What ran the hosts of the user's own programs: `versiond` or `devshardd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts_by: Option<String>,
}

/// Identity of one program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramIdentity {
    /// Build id of its ready line, or what its probe said.
    pub build: String,
    /// BLAKE3 of the binary.
    pub blake3: Option<String>,
    /// Path as given.
    pub path: String,
}

/// A limit in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitInForce {
    /// Name, for example `workload.timeout`.
    pub name: String,
    /// Value in words with unit.
    pub value: String,
    /// `default`, `file`, `environment NAME`, `flag --name`, `protocol`.
    pub source: String,
}

/// Another run that this one repeats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReproOf {
    /// Run.
    pub run_id: String,
    /// Request, or `_run.<assertion>.<n>`.
    pub failure: String,
    /// Index of the one request that was sent, without its neighbours: the plan has this line only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<u64>,
}

/// `run.yaml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunInfo {
    /// Format version.
    pub v: u32,
    /// Run id.
    pub run_id: String,
    /// Build of the runner.
    pub build: String,
    /// Unix time of offset 0 of events, microseconds.
    pub started_unix_us: u64,
    /// Scenario file as given.
    pub scenario_file: String,
    /// BLAKE3 of its text.
    pub scenario_file_blake3: String,
    /// Plan hash.
    pub plan_hash: String,
    /// Scenario hash.
    pub scenario_hash: String,
    /// Salt of the run.
    pub salt: String,
    /// The whole resolved scenario.
    pub resolved: Resolved,
    /// Stack.
    pub stack: Stack,
    /// Programs by service kind (`runner`, `loadgen`, `ref-gateway`, …).
    pub programs: BTreeMap<String, ProgramIdentity>,
    /// Limits in force.
    pub limits: Vec<LimitInForce>,
    /// Named rules switched off (`--no-rule`).
    pub rules_off: Vec<String>,
    /// Set by `repro`.
    pub repro_of: Option<ReproOf>,
    /// Machine: cores, memory bytes, kernel.
    pub machine: BTreeMap<String, String>,
}
