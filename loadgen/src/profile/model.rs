//! The profile file, as people write it: JSON or YAML, strict, durations with units.

use std::collections::BTreeMap;

use scenario::fault::Close;
use scenario::model::CancelPhase;
use scenario::units::{Micros, Ppb};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::connection::transport::{Dns, Http, STREAMS_DEFAULT};

/// A load profile.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// Name of the run, in ids and reports.
    pub name: Option<String>,
    /// Seed of all choices; 42 when not given.
    pub seed: Option<u64>,
    /// What scenarios have in common.
    pub defaults: Settings,
    /// Stages, one after another.
    pub stages: Vec<Stage>,
    /// Left out of the steady figures at the start of each stage.
    pub warmup: Option<Micros>,
    /// Left out at the end of each stage that has a duration.
    pub cooldown: Option<Micros>,
    /// Gaps between arrivals of an open loop.
    pub arrival: Arrival,
    /// Time between progress lines; `"0"` = none.
    pub live_interval: Option<Interval>,
    /// The text of sized prompts is made once a scenario and only the marker changes.
    pub reuse_body: bool,
    /// Most conversations in flight in an open loop; 50,000 when not given.
    pub openloop_max_inflight: Option<u64>,
    /// What an arrival above that does.
    pub inflight_policy: InflightPolicy,
    /// Whether prompts get past a response cache.
    pub cache_mode: CacheMode,
    /// How requests are found again in the server's rows.
    pub correlation: Correlation,
    /// Limits that make the run fail.
    pub thresholds: Thresholds,
    /// Latency limits of a good request (goodput).
    pub slo: Option<Slo>,
    /// Limits of the generator that make the run invalid.
    pub health: HealthLimits,
    /// Time limits of a request.
    pub limits: TimeLimits,
    /// Connections and threads.
    pub connections: Connections,
    /// Price table.
    pub prices: Option<Prices>,
    /// An open loop whose oldest waiting arrival is older than this ends its stage: the target is over-saturated.
    pub oversaturation: Option<Micros>,
    /// Capacity search (`loadgen search`).
    pub search: Option<Search>,
    /// What users do; none = one scenario made of the defaults.
    pub scenarios: Vec<Scenario>,
}

/// Settings that defaults give and a scenario may override.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// `openai-chat` or `anthropic`.
    pub protocol: Option<String>,
    /// URL of the call; without a path the protocol's own is used.
    pub target: Option<String>,
    /// Further headers.
    pub headers: BTreeMap<String, String>,
    /// Model name.
    pub model: Option<String>,
    /// Output tokens asked for.
    pub max_tokens: Option<u32>,
    /// SSE or one document.
    pub stream: Option<bool>,
    /// System prompt.
    pub system: Option<String>,
    /// Further fields of the body, tools for example; null takes a field away.
    pub body: Option<Fields>,
}

/// Fields of a body, any JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fields(pub Map<String, Value>);

impl JsonSchema for Fields {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Fields".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "Fields of a body, any JSON." })
    }
}

/// One stage: exactly one of `concurrency`, `rate`, `rate_from` with `rate_to`, and `replay`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stage {
    /// Name in reports.
    pub name: Option<String>,
    /// Users of a closed loop.
    pub concurrency: Option<u64>,
    /// Conversations a second of an open loop.
    pub rate: Option<Number>,
    /// The rate at the start of a linear ramp.
    pub rate_from: Option<Number>,
    /// The rate at its end.
    pub rate_to: Option<Number>,
    /// Trace file (JSONL, one arrival a line).
    pub replay: Option<String>,
    /// Speed of the trace; 2 = twice as fast.
    pub speed: Option<Number>,
    /// Length.
    pub duration: Option<Micros>,
    /// Conversations of a closed loop, in place of a length.
    pub requests: Option<u64>,
    /// Closed loop: time from the users of the stage before to those of this one; then they are held.
    pub ramp: Option<Micros>,
    /// Overrides the profile's.
    pub warmup: Option<Micros>,
    /// Overrides the profile's.
    pub arrival: Option<Arrival>,
}

/// A decimal number, as a number or as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Number(pub String);

impl Number {
    /// In parts of 10⁻⁹; `None` when it is no decimal of that precision.
    #[must_use]
    pub fn nano(&self) -> Option<u64> {
        let (whole, fraction) = self.0.split_once('.').unwrap_or((&self.0, ""));
        let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || fraction.len() > 9 || !plain(whole) || !plain(fraction) {
            return None;
        }
        let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
        whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(number) => Ok(Self(number.to_string())),
            Value::String(text) => Ok(Self(text.trim_end_matches("/s").to_owned())),
            other => Err(serde::de::Error::custom(format!("{other} is no number"))),
        }
    }
}

impl JsonSchema for Number {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Number".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "A decimal number, as a number or as text; for limits also a duration." })
    }
}

/// A time between lines, or 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Interval(pub Micros);

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "0" => Ok(Self(Micros::ZERO)),
            Value::Number(number) if number.as_u64() == Some(0) => Ok(Self(Micros::ZERO)),
            Value::String(text) => Micros::parse(&text).map(Self).map_err(serde::de::Error::custom),
            other => Err(serde::de::Error::custom(format!("{other} is no duration such as 10s, nor \"0\""))),
        }
    }
}

impl JsonSchema for Interval {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Interval".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "A duration such as 10s, or \"0\" for none." })
    }
}

/// Gaps between arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Arrival {
    /// Even.
    #[default]
    Uniform,
    /// Exponential.
    Poisson,
}

/// What an arrival above the in-flight bound does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InflightPolicy {
    /// Waits; the wait is part of its latency.
    #[default]
    Delay,
    /// Is not sent, and counted as dropped.
    Drop,
}

/// Whether prompts get past a response cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMode {
    /// A marker at the front of the first user message makes every conversation new.
    #[default]
    Bust,
    /// Prompts as they are.
    Natural,
}

/// How requests are found again in the server's rows.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Correlation {
    /// The conversation id stands at the front of the first user message (cache mode bust).
    pub uuid_in_prompt: bool,
    /// Header that carries it too; null = none.
    pub header: Option<String>,
}

impl Default for Correlation {
    fn default() -> Self {
        Self { uuid_in_prompt: true, header: Some("x-request-id".to_owned()) }
    }
}

/// Limits that make the run fail. 0 = no limit.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Thresholds {
    /// 95th percentile of TTFT, milliseconds.
    pub ttft_p95_ms: u64,
    /// 95th percentile of latency, milliseconds.
    pub p95_ms: u64,
    /// Failed over ended.
    pub error_rate: Ppb,
    /// Stop after the first stage that breaks one.
    pub abort_on_fail: bool,
    /// Look at them inside a stage too, each time so much has passed, and stop as soon as one is broken.
    pub abort_within: Option<Micros>,
    /// Further ones.
    pub limits: Vec<ThresholdLimit>,
}

/// One limit on one figure.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ThresholdLimit {
    /// A metric or figure by its name; `ttft_p95` is short for metric `ttft` with percentile `p95`.
    pub metric: String,
    /// For a metric: which percentile, `p95` for example.
    #[serde(default)]
    pub percentile: Option<String>,
    /// Most that is allowed: a duration, or a number.
    #[serde(default)]
    pub max: Option<Number>,
    /// Least that is needed.
    #[serde(default)]
    pub min: Option<Number>,
    /// Only this scenario.
    #[serde(default)]
    pub scenario: Option<String>,
    /// Only this stage, by position from 0.
    #[serde(default)]
    pub stage: Option<u64>,
    /// Over all stages together and not each by itself.
    #[serde(default)]
    pub overall: bool,
}

/// Latency limits of a good request.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Slo {
    /// Time to first token.
    pub ttft: Option<Micros>,
    /// Total latency.
    pub latency: Option<Micros>,
    /// Time per output token.
    pub tpot: Option<Micros>,
}

/// Limits of the generator.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthLimits {
    /// CPU time over wall time and threads.
    pub cpu_share: Ppb,
    /// 99th percentile of lateness.
    pub lateness_p99: Micros,
    /// Least share of planned requests that must have been sent.
    pub achieved: Ppb,
}

impl Default for HealthLimits {
    fn default() -> Self {
        let ppb = |ppb| Ppb::new(ppb).unwrap_or(Ppb::ONE);
        Self { cpu_share: ppb(950_000_000), lateness_p99: Micros::from_ms(50), achieved: ppb(950_000_000) }
    }
}

/// Time limits of a request; each that passes is a class of its own.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TimeLimits {
    /// Until the connection stands.
    pub connect: Micros,
    /// From sent to complete headers.
    pub headers: Micros,
    /// From headers to the first body byte.
    pub first_byte: Micros,
    /// Between two reads of the body.
    pub idle: Micros,
    /// From release to end.
    pub total: Micros,
    /// After a signal, for open requests.
    pub drain: Micros,
}

impl Default for TimeLimits {
    fn default() -> Self {
        let long = Micros::from_s;
        Self {
            connect: Micros::from_s(10),
            headers: long(120),
            first_byte: long(120),
            idle: long(120),
            total: long(600),
            drain: Micros::from_s(10),
        }
    }
}

/// Connections and threads.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Connections {
    /// Requests after which a connection is closed; 1 = a new one for each, null = kept.
    pub requests_per_connection: Option<u64>,
    /// Threads that send.
    pub threads: u32,
    /// Wait for planned instants without sleeping: lateness of a microsecond for a core.
    pub spin: bool,
    /// Version of HTTP: `auto`, `1.1` or `2`.
    pub http: Http,
    /// Streams on one HTTP/2 connection; where a peer grants fewer, further connections are opened.
    pub streams_per_connection: u32,
    /// When names are resolved.
    pub dns: Dns,
    /// PEM file with root certificates beside those of the system.
    pub ca: Option<String>,
    /// Believe any certificate. Every report says so.
    pub insecure: bool,
    /// Each thread that sends stays on a core of its own.
    pub pin: bool,
    /// HTTP proxy, `http://host:port`: the only way to one, since variables of the environment are ignored.
    pub proxy: Option<String>,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            requests_per_connection: None,
            threads: 1,
            spin: false,
            http: Http::Auto,
            streams_per_connection: STREAMS_DEFAULT,
            dns: Dns::Once,
            ca: None,
            insecure: false,
            pin: false,
            proxy: None,
        }
    }
}

/// Price table, in any currency.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// For a million prompt tokens.
    pub prompt_per_million: Number,
    /// For a million completion tokens.
    pub completion_per_million: Number,
}

/// Capacity search.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// What is searched.
    pub of: SearchOf,
    /// First level.
    pub from: u64,
    /// Last level.
    pub to: u64,
    /// Growth from level to level, percent; 200 doubles.
    #[serde(default)]
    pub percent: Option<u32>,
    /// Length of a run of a level.
    pub hold: Micros,
    /// Where halving stops, as a share of the level.
    #[serde(default)]
    pub resolution: Option<Ppb>,
}

/// What is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SearchOf {
    /// Users of a closed loop.
    Concurrency,
    /// Conversations a second.
    Rate,
}

/// What some users do.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// Name in reports.
    pub name: String,
    /// Share of the users or arrivals, relative to the other scenarios; 1 when not given.
    pub weight: Option<u64>,
    /// Turns of a conversation: a number, or drawn from `{min, max}`.
    pub turns: Option<Turns>,
    /// What is said.
    pub content: Option<Content>,
    /// Checks of each answer.
    pub checks: Checks,
    /// Clients that leave early.
    pub cancel: Option<Cancel>,
    /// Overrides the defaults.
    pub protocol: Option<String>,
    /// Overrides the defaults.
    pub target: Option<String>,
    /// Added to those of the defaults.
    pub headers: BTreeMap<String, String>,
    /// Overrides the defaults.
    pub model: Option<String>,
    /// Overrides the defaults.
    pub max_tokens: Option<u32>,
    /// Overrides the defaults.
    pub stream: Option<bool>,
    /// Overrides the defaults.
    pub system: Option<String>,
    /// Added to those of the defaults.
    pub body: Option<Fields>,
}

/// Turns of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Turns {
    /// Always so many.
    Fixed(u32),
    /// Drawn by seed, both ends included.
    Range {
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
}

impl JsonSchema for Turns {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Turns".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "A number of turns, or {min, max}." })
    }
}

/// What is said.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// Where the text comes from.
    pub mode: ContentMode,
    /// Mode pool: prompts, one drawn a turn.
    #[serde(default)]
    pub prompts: Vec<String>,
    /// Mode scripted: what is said turn by turn; a longer conversation begins it again.
    #[serde(default)]
    pub script: Vec<String>,
    /// Mode sized: tokens of a prompt, four characters each.
    #[serde(default)]
    pub approx_input_tokens: Option<u32>,
    /// Mode dataset: JSONL file.
    #[serde(default)]
    pub file: Option<String>,
    /// Mode dataset: field of a line that holds the text; `prompt` when not given.
    #[serde(default)]
    pub field: Option<String>,
}

/// Where the text comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ContentMode {
    /// Drawn from a list.
    Pool,
    /// A fixed dialogue.
    Scripted,
    /// Made to a size.
    Sized,
    /// Lines of a file, in order.
    Dataset,
}

/// Checks of an answer; a good answer that fails one is of class `check_failed`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Checks {
    /// Texts that the answer's content must contain.
    pub contains: Vec<String>,
    /// Texts that it must not contain.
    pub not_contains: Vec<String>,
    /// Expressions that it must match.
    pub regex: Vec<String>,
    /// Places that a document of the answer must have: JSON pointer and value, null for any.
    pub json: Option<Fields>,
    /// Least completion tokens by usage.
    pub min_completion_tokens: Option<u64>,
    /// Most completion tokens by usage.
    pub max_completion_tokens: Option<u64>,
    /// Finish reasons that are good.
    pub finish_reason: Vec<String>,
}

/// Clients that leave early.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// Share of the requests, drawn by seed.
    pub share: Ppb,
    /// When.
    pub phase: CancelPhase,
    /// For `nth-event`: which, from 1.
    #[serde(default)]
    pub event: Option<u64>,
    /// Time after that.
    #[serde(default)]
    pub after: Option<Micros>,
    /// How the connection is closed.
    #[serde(default)]
    pub close: Close,
}
