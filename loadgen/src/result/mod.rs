//! What a load run found, as one value: `summary.json` is this value, and every writer and comparison reads nothing
//! else. Parts of a run (threads, shards) merge into the whole.

pub mod distributions;
pub mod figures;
pub mod metric;
pub mod wires;

use evidence::exit::Outcome;
use evidence::record::ClientClass;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stats::{Histogram, Windows, WindowsForm};

pub use distributions::Distributions;
pub use figures::{Counts, Figures, TokenCounts};
pub use metric::{Better, Definition, Figure, Metric, Population, Unit};
pub use wires::{Peer, Wires};

/// Format version of `summary.json` of a load run.
pub const RESULT_VERSION: u32 = 1;
/// First width of the windows over time.
pub const WINDOW_US: u64 = 1_000_000;
/// Share of their time for which sending threads may have no core before reports say so.
pub const CORE_TAKEN_PPM_MAX: u64 = 50_000;
/// Most windows over time; above it their width doubles.
pub const WINDOWS_MAX: usize = 120;

/// Everything that a load run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunResult {
    /// Format version.
    pub v: u32,
    /// Which run this is.
    pub run: RunInfo,
    /// Where it ran.
    pub machine: Machine,
    /// Stages in their order; a search adds one a level.
    pub stages: Vec<StageResult>,
    /// Per scenario over the steady parts of all stages.
    pub scenarios: Vec<ScenarioFigures>,
    /// Over the steady parts of all stages.
    pub total: Figures,
    /// Figures over the time of the whole run, warm-up included.
    pub over_time: OverTime,
    /// The generator itself.
    pub health: Health,
    /// Connections.
    #[serde(default)]
    pub wires: Wires,
    /// Thresholds with what was found.
    pub thresholds: Vec<ThresholdResult>,
    /// Capacity search, if this was one.
    pub search: Option<SearchResult>,
    /// How it ended.
    pub verdict: Verdict,
}

/// Which run this is. Runs compare only when `plan_digest` is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunInfo {
    /// Name of the profile.
    pub name: String,
    /// Time stamp in the names of its files, UTC, `20261130T084500Z`.
    pub stamp: String,
    /// Build identity.
    pub build: String,
    /// Seed of all choices.
    pub seed: u64,
    /// BLAKE3 of what is sent and when: the resolved profile without target, key, name, output and thresholds.
    pub plan_digest: String,
    /// Where the load went: scheme, host and port, one entry a target.
    pub targets: Vec<String>,
    /// Shards that this result holds, `i/n`; one entry when it was not merged.
    pub shards: Vec<String>,
    /// Unix time of offset 0, microseconds.
    pub started_unix_us: u64,
    /// Length of the run.
    pub wall_us: u64,
    /// Stopped before its plan ended.
    pub partial: bool,
    /// Records written.
    pub records: u64,
    /// Records that found the buffer full or the disk failing.
    pub records_dropped: u64,
    /// Name of the records file.
    pub records_file: String,
    /// What preflight had to say.
    pub notes: Vec<String>,
}

/// The machine of the generator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// CPU model.
    pub cpu: String,
    /// Cores that the process may use, by affinity and quota.
    pub cores: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Operating system and kernel.
    pub kernel: String,
}

/// The load that a stage asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum StageLoad {
    /// Closed loop: so many users, reached from `from` within `ramp_us`.
    Closed {
        /// Users at the start.
        from: u64,
        /// Users after the ramp.
        concurrency: u64,
        /// Length of the ramp.
        ramp_us: u64,
    },
    /// Open loop: a rate in thousandths a second, constant when both ends are equal.
    Open {
        /// At the start, 10⁻³/s.
        from_milli: u64,
        /// At the end, 10⁻³/s.
        to_milli: u64,
        /// Exponential gaps in place of even ones.
        poisson: bool,
    },
    /// The instants of a trace.
    Replay {
        /// Arrivals in the trace.
        arrivals: u64,
    },
}

impl StageLoad {
    /// The level on the axis of a plot: users, or the higher of the two rates.
    #[must_use]
    pub fn level(&self) -> Option<f64> {
        match self {
            Self::Closed { concurrency, .. } => Some(*concurrency as f64),
            Self::Open { from_milli, to_milli, .. } => Some((*from_milli).max(*to_milli) as f64 / 1_000.0),
            Self::Replay { .. } => None,
        }
    }

    /// In words, for tables.
    #[must_use]
    pub fn words(&self) -> String {
        let rate = |milli: u64| stats::PerSecond::from_milli(milli).to_string();
        match self {
            Self::Closed { concurrency, .. } => format!("{concurrency} users"),
            Self::Open { from_milli, to_milli, poisson } => {
                let gaps = if *poisson { " poisson" } else { "" };
                if from_milli == to_milli {
                    format!("{}{gaps}", rate(*from_milli))
                } else {
                    format!("{} to {}{gaps}", rate(*from_milli), rate(*to_milli))
                }
            }
            Self::Replay { arrivals } => format!("trace of {arrivals}"),
        }
    }
}

/// One stage. Its figures are of requests planned in the steady part; the others are in `outside`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageResult {
    /// Position, from 0.
    pub index: usize,
    /// Name, if the profile gives one.
    pub name: Option<String>,
    /// What was asked for.
    pub load: StageLoad,
    /// Offset of the start.
    pub started_us: u64,
    /// Offset of the last end.
    pub ended_us: u64,
    /// Offset from which planned requests count: after warm-up and ramp.
    pub steady_from_us: u64,
    /// Offset up to which they count: before the cool-down.
    pub steady_until_us: u64,
    /// Steady figures of all scenarios.
    pub total: Figures,
    /// Steady figures by scenario, in the order of the profile.
    pub scenarios: Vec<ScenarioFigures>,
    /// Counts of the requests outside the steady part.
    pub outside: Counts,
    /// Most requests in flight.
    pub in_flight_max: u64,
    /// Why it ended early, if it did.
    pub stopped: Option<String>,
    /// Thresholds held; `None` when there are none for it.
    pub passed: Option<bool>,
    /// The generator during the stage.
    pub health: Health,
}

/// Figures of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFigures {
    /// Its name.
    pub name: String,
    /// Its figures.
    pub figures: Figures,
}

/// Windows over the time of a run; offset 0 is its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverTime {
    /// Ends by class with the latency of successes, each in the window in which it ended.
    pub ends: Windows<ClientClass>,
    /// TTFT of successes, in the window of their first content.
    pub ttft: Windows<Mark>,
    /// Lateness of sends, in the window of the send.
    pub lateness: Windows<Mark>,
}

/// The one class of windows that count one kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// It happened.
    Seen,
}

impl Default for OverTime {
    fn default() -> Self {
        let new =
            || Windows::new(WINDOW_US, WINDOWS_MAX).expect("the constants are within the bounds of windows");
        Self {
            ends: Windows::new(WINDOW_US, WINDOWS_MAX)
                .expect("the constants are within the bounds of windows"),
            ttft: new(),
            lateness: new(),
        }
    }
}

impl OverTime {
    /// Adds another part of the same run.
    pub fn merge(&mut self, other: &Self) {
        // all parts are made by `default`, so that their shapes agree
        let _ = self.ends.merge(&other.ends);
        let _ = self.ttft.merge(&other.ttft);
        let _ = self.lateness.merge(&other.lateness);
    }
}

/// [`OverTime`] as JSON.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OverTimeForm {
    ends: WindowsForm<ClientClass>,
    ttft: WindowsForm<Mark>,
    lateness: WindowsForm<Mark>,
}

impl Serialize for OverTime {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        OverTimeForm {
            ends: (&self.ends).into(),
            ttft: (&self.ttft).into(),
            lateness: (&self.lateness).into(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for OverTime {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = OverTimeForm::deserialize(deserializer)?;
        let bad = serde::de::Error::custom;
        Ok(Self {
            ends: form.ends.try_into().map_err(bad)?,
            ttft: form.ttft.try_into().map_err(bad)?,
            lateness: form.lateness.try_into().map_err(bad)?,
        })
    }
}

impl JsonSchema for OverTime {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OverTime".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        generator.subschema_for::<OverTimeForm>()
    }
}

/// The generator itself: whether its figures can be believed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// CPU time used, microseconds.
    pub cpu_us: u64,
    /// Wall time of the span.
    pub wall_us: u64,
    /// Threads that send.
    pub threads: u32,
    /// Resident memory at the end, bytes.
    pub rss_bytes: u64,
    /// Largest resident memory seen, bytes.
    pub rss_max_bytes: u64,
    /// Open descriptors at the end.
    pub open_fds: u64,
    /// Limit of open descriptors.
    pub fds_limit: Option<u64>,
    /// Time in which a sending thread was ready to run and had no core, all threads together: lateness that other
    /// programs on this machine caused. `None` where the kernel does not say.
    #[serde(default)]
    pub core_wait_us: Option<u64>,
    /// Length of the turns of the event loop: while one lasts, nothing else is sent or read.
    pub loop_turn: Histogram,
    /// Saturations found, each apart from faults of the target.
    pub saturation: Vec<Saturation>,
}

impl Health {
    /// CPU time over wall time, parts per million of one core; `None` without a span.
    #[must_use]
    pub fn cpu_share_ppm(&self) -> Option<u64> {
        self.cpu_us.saturating_mul(1_000_000).checked_div(self.wall_us)
    }

    /// Share of the time of the sending threads in which other programs had their core, parts per million; `None` while
    /// it is too small to matter, or unknown.
    #[must_use]
    pub fn core_taken_ppm(&self) -> Option<u64> {
        let time_us = self.wall_us.saturating_mul(u64::from(self.threads.max(1)));
        let ppm = self.core_wait_us?.saturating_mul(1_000_000).checked_div(time_us)?;
        (ppm > CORE_TAKEN_PPM_MAX).then_some(ppm)
    }

    /// Adds a part that ran at the same time (another shard).
    pub fn merge(&mut self, other: &Self) {
        self.cpu_us += other.cpu_us;
        self.wall_us = self.wall_us.max(other.wall_us);
        self.threads += other.threads;
        self.rss_bytes += other.rss_bytes;
        self.rss_max_bytes += other.rss_max_bytes;
        self.open_fds += other.open_fds;
        self.fds_limit = self.fds_limit.min(other.fds_limit);
        self.core_wait_us = self.core_wait_us.zip(other.core_wait_us).map(|(own, theirs)| own + theirs);
        self.loop_turn.merge(&other.loop_turn);
        for theirs in &other.saturation {
            if !self.saturation.contains(theirs) {
                self.saturation.push(theirs.clone());
            }
        }
    }
}

/// A limit of the generator that was reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Saturation {
    /// Which.
    pub class: SaturationClass,
    /// What was found, the limit, and what to do.
    pub detail: String,
}

/// Limits of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SaturationClass {
    /// No local port was left.
    GeneratorPorts,
    /// No descriptor was left.
    GeneratorFds,
    /// The threads that send had no CPU left.
    GeneratorCpu,
    /// Requests were sent too late.
    GeneratorLateness,
    /// The planned load was not offered.
    NotOffered,
}

/// One threshold and what was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ThresholdResult {
    /// As in the profile, for example `ttft p95`.
    pub name: String,
    /// Stage it was held against; `None` = all stages together.
    pub stage: Option<usize>,
    /// Scenario; `None` = all.
    pub scenario: Option<String>,
    /// The limit.
    pub limit: f64,
    /// Whether the limit is the least that must be reached.
    pub at_least: bool,
    /// What was found; `None` without any value.
    pub found: Option<f64>,
    /// Unit of both.
    pub unit: Unit,
    /// Values behind it.
    pub n: u64,
    /// Too few values for this percentile.
    pub low_n: bool,
    /// Whether it held; without any value it did not.
    pub held: bool,
}

/// What a capacity search found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchResult {
    /// `concurrency` or `rate`.
    pub of: String,
    /// Highest level that passed; `None` when none did.
    pub highest: Option<u64>,
    /// Lowest level that did not; `None` when all passed.
    pub lowest_bad: Option<u64>,
    /// How it ended, in words.
    pub ending: String,
    /// Runs in their order.
    pub runs: Vec<SearchRun>,
}

/// One run of a level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchRun {
    /// Level.
    pub level: u64,
    /// Why it was run: `step`, `bracket` or `confirm`.
    pub purpose: String,
    /// `passed`, `failed` or `invalid`.
    pub outcome: String,
    /// Its stage.
    pub stage: usize,
}

/// How the run ended. All reasons are kept, the gravest decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The outcome; its exit code is in one table for all programs.
    pub outcome: Outcome,
    /// Why, one sentence each.
    pub reasons: Vec<String>,
}
