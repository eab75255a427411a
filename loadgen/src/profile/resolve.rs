//! What a profile means: defaults laid under scenarios, every rule checked, quantities in one unit.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use regex::Regex;
use scenario::identity::valid_name;
use scenario::pipe::LoadLimits;
use scenario::plan::CancelPoint;
use scenario::units::{Micros, Ppb};
use serde_json::{Map, Value};
use stats::RateCurve;

use super::model::{
    CacheMode, Cancel, Checks, Content, ContentMode, HealthLimits, InflightPolicy, Number, Profile, Scenario,
    Slo, Turns,
};
use super::thresholds::{self, Rule};
use crate::checks::Check;
use crate::connection::transport::Options;
use crate::error::LoadgenError;
use crate::protocol::{self, Protocol};
use crate::result::{SaturationClass, StageLoad};

/// In-flight bound of an open loop when none is given.
pub const INFLIGHT_DEFAULT: u64 = 50_000;
const TURNS_MAX: u32 = 1_000;
/// Most threads that send; each has an event loop and a writer of its own.
pub const THREADS_MAX: u32 = 256;
/// Bytes of a data set or trace that are read.
const INPUT_BYTES_MAX: u64 = 4 << 30;
/// Lines of a data set or trace that are kept.
const LINES_MAX: usize = 2_000_000;

/// Texts of a scenario.
#[derive(Clone, Debug)]
pub enum Text {
    /// Drawn from a list.
    Pool(Vec<String>),
    /// In order.
    Scripted(Vec<String>),
    /// Made to a size.
    Sized {
        /// Tokens.
        tokens: u32,
        /// The same text each time.
        same: bool,
    },
    /// Lines of a file.
    Dataset(Vec<String>),
}

/// A scenario with everything laid over its defaults.
#[derive(Clone, Debug)]
pub struct ScenarioPlan {
    /// Name.
    pub name: String,
    /// Share.
    pub weight: u64,
    /// Turns, both ends included.
    pub turns: (u32, u32),
    /// Texts.
    pub text: Text,
    /// Checks.
    pub checks: Arc<[Check]>,
    /// Share and point of clients that leave.
    pub cancel: Option<(Ppb, CancelPoint)>,
    /// Wire format.
    pub protocol: &'static dyn Protocol,
    /// URL.
    pub target: String,
    /// Headers.
    pub headers: BTreeMap<String, String>,
    /// Model.
    pub model: String,
    /// Output tokens asked for.
    pub max_tokens: u32,
    /// SSE or one document.
    pub stream: bool,
    /// System prompt.
    pub system: Option<String>,
    /// Further fields.
    pub body: Map<String, Value>,
}

/// One arrival of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceArrival {
    /// From the start of the stage, microseconds.
    pub at_us: u64,
    /// Scenario, when the trace names one.
    pub scenario: Option<usize>,
}

/// When a stage starts conversations.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Users, one conversation each at a time.
    Closed {
        /// At the start.
        from: u64,
        /// After the ramp.
        to: u64,
        /// Length of the ramp.
        ramp_us: u64,
    },
    /// Arrivals by rate.
    Open {
        /// The rate.
        curve: RateCurve,
        /// Exponential gaps.
        poisson: bool,
    },
    /// Arrivals of a trace, ascending.
    Replay(Arc<[TraceArrival]>),
}

/// A stage.
#[derive(Clone, Debug)]
pub struct StagePlan {
    /// Name.
    pub name: Option<String>,
    /// When it starts conversations.
    pub kind: Kind,
    /// For reports.
    pub load: StageLoad,
    /// Length; `None` = until its conversations are started.
    pub duration_us: Option<u64>,
    /// Conversations of a closed loop.
    pub requests: Option<u64>,
    /// Not in the steady figures, from the start: warm-up and ramp.
    pub warmup_us: u64,
    /// Not in the steady figures, before the end.
    pub cooldown_us: u64,
}

/// A checked profile.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Name.
    pub name: String,
    /// Seed.
    pub seed: u64,
    /// Stages.
    pub stages: Vec<StagePlan>,
    /// Scenarios, at least one.
    pub scenarios: Vec<ScenarioPlan>,
    /// Time between progress lines.
    pub live_us: Option<u64>,
    /// In-flight bound of an open loop.
    pub inflight_max: u64,
    /// The profile names the bound; the default is nothing that anybody asked for.
    pub inflight_given: bool,
    /// The limit of this machine to which the in-flight bound was lowered, if it was.
    pub inflight_lowered: Option<SaturationClass>,
    /// Arrivals above it are dropped.
    pub drop_above: bool,
    /// A marker stands in front of the first user message.
    pub marker: bool,
    /// Header with the conversation id.
    pub id_header: Option<String>,
    /// Limits.
    pub rules: Vec<Rule>,
    /// Stop after the first stage that breaks one.
    pub abort_on_fail: bool,
    /// Look inside a stage too.
    pub abort_within_us: Option<u64>,
    /// Goodput limits.
    pub slo: Option<Slo>,
    /// Limits of the generator.
    pub health: HealthLimits,
    /// Time limits.
    pub limits: LoadLimits,
    /// Requests a connection carries.
    pub requests_per_connection: Option<u64>,
    /// How connections are made.
    pub connections: Options,
    /// Threads.
    pub threads: u32,
    /// Spinning.
    pub spin: bool,
    /// Threads stay on cores of their own.
    pub pin: bool,
    /// Price of a million prompt and of a million completion tokens, 10⁻⁹ of the currency.
    pub prices_nano: Option<(u64, u64)>,
    /// Age of a waiting arrival that stops the stage.
    pub oversaturation_us: Option<u64>,
    /// Search.
    pub search: Option<super::model::Search>,
    /// Digest of what is sent and when.
    pub plan_digest: String,
}

/// A rule of the profile that is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Key path of the value, for example `stages[0].rate`; readers of the text look up its line.
    pub path: String,
    /// What is wrong and what is allowed.
    pub text: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.text)
    }
}

#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Wrong>);

impl Problems {
    pub(super) fn add(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.0.push(Wrong { path: path.into(), text: text.into() });
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Checks a profile that was read from no text.
///
/// # Errors
/// Usage, with every rule that is broken.
pub fn resolve(profile: &Profile, folder: &Path) -> Result<Resolved, LoadgenError> {
    check(profile, folder).map_err(|wrong| {
        let lines: Vec<String> = wrong.iter().map(Wrong::to_string).collect();
        LoadgenError::Usage(lines.join("\n"))
    })
}

/// Checks a profile; files that it names are looked for beside `folder`.
///
/// # Errors
/// Every rule that is broken.
pub fn check(profile: &Profile, folder: &Path) -> Result<Resolved, Vec<Wrong>> {
    let mut problems = Problems::default();
    let scenarios = scenarios(profile, folder, &mut problems);
    let stages = super::stages::stages(profile, folder, &scenarios, &mut problems);
    let rules = thresholds::rules(&profile.thresholds, &scenarios, stages.len(), &mut problems);
    let name = profile.name.clone().unwrap_or_else(|| "load".to_owned());
    if !valid_name(&name) {
        problems.add("name", format!("{name:?} is not [a-z0-9-], at most 40 characters"));
    }
    let connections = connections(profile, folder, &mut problems);
    if profile.openloop_max_inflight == Some(0) {
        problems.add("openloop_max_inflight", "is 0; nothing could be sent");
    }
    let prices_nano = profile.prices.as_ref().and_then(|prices| {
        let read = |number: &Number| number.nano();
        let both = read(&prices.prompt_per_million).zip(read(&prices.completion_per_million));
        if both.is_none() {
            problems.add("prices", "write decimals such as 0.25");
        }
        both
    });
    let limits = limits(profile, &mut problems);
    let header = profile.correlation.header.clone().filter(|header| !header.is_empty());
    if let Some(why) = header.as_deref().and_then(crate::connection::request::refused_header) {
        problems.add("correlation.header", why);
    }
    if !problems.0.is_empty() {
        return Err(problems.0);
    }
    Ok(Resolved {
        name,
        seed: profile.seed.unwrap_or(42),
        stages,
        scenarios,
        live_us: match profile.live_interval {
            Some(interval) => Some(interval.0.us()).filter(|us| *us > 0),
            None => Some(10_000_000),
        },
        inflight_max: profile.openloop_max_inflight.unwrap_or(INFLIGHT_DEFAULT),
        inflight_given: profile.openloop_max_inflight.is_some(),
        inflight_lowered: None,
        drop_above: profile.inflight_policy == InflightPolicy::Drop,
        marker: profile.cache_mode == CacheMode::Bust && profile.correlation.uuid_in_prompt,
        id_header: header,
        rules,
        abort_on_fail: profile.thresholds.abort_on_fail,
        abort_within_us: profile.thresholds.abort_within.map(Micros::us),
        slo: profile.slo.clone(),
        health: profile.health.clone(),
        limits,
        requests_per_connection: profile.connections.requests_per_connection,
        connections,
        threads: profile.connections.threads,
        spin: profile.connections.spin,
        pin: profile.connections.pin,
        prices_nano,
        oversaturation_us: profile.oversaturation.map(Micros::us),
        search: profile.search.clone(),
        plan_digest: digest(profile),
    })
}

fn connections(profile: &Profile, folder: &Path, problems: &mut Problems) -> Options {
    let given = &profile.connections;
    if given.threads == 0 || given.threads > THREADS_MAX {
        let text = format!("threads are 1 to {THREADS_MAX}; more of them than cores only take turns");
        problems.add("connections.threads", text);
    }
    if given.requests_per_connection == Some(0) {
        problems.add("connections.requests_per_connection", "is at least 1");
    }
    if given.streams_per_connection == 0 {
        problems.add("connections.streams_per_connection", "is at least 1");
    }
    Options {
        http: given.http,
        streams: given.streams_per_connection,
        dns: given.dns,
        ca: given.ca.as_ref().map(|file| folder.join(file)),
        insecure: given.insecure,
        proxy: given.proxy.clone(),
    }
}

fn limits(profile: &Profile, problems: &mut Problems) -> LoadLimits {
    let limits = &profile.limits;
    let limits = LoadLimits {
        connect: limits.connect,
        headers: limits.headers,
        first_byte: limits.first_byte,
        idle: limits.idle,
        total: limits.total,
        drain: limits.drain,
    };
    if [limits.connect, limits.headers, limits.first_byte, limits.idle, limits.total].contains(&Micros::ZERO)
    {
        problems.add("limits", "a limit of 0 lets no request succeed");
    }
    limits
}

/// Digest of what is sent and when, not of where it goes, who asks and how it is judged.
fn digest(profile: &Profile) -> String {
    let mut plan = profile.clone();
    plan.name = None;
    plan.thresholds = super::model::Thresholds::default();
    plan.health = HealthLimits::default();
    plan.slo = None;
    plan.live_interval = None;
    plan.defaults.target = None;
    plan.defaults.headers.clear();
    plan.connections.ca = None;
    plan.connections.insecure = false;
    plan.connections.pin = false;
    plan.connections.proxy = None;
    for scenario in &mut plan.scenarios {
        scenario.target = None;
        scenario.headers.clear();
    }
    let text = serde_json::to_vec(&plan).expect("a profile has text keys and no floats");
    blake3::hash(&text).to_hex().to_string()
}

fn scenarios(profile: &Profile, folder: &Path, problems: &mut Problems) -> Vec<ScenarioPlan> {
    let implicit = [Scenario { name: "default".to_owned(), ..Scenario::default() }];
    let given = if profile.scenarios.is_empty() { &implicit[..] } else { &profile.scenarios };
    let mut names = std::collections::BTreeSet::new();
    given
        .iter()
        .enumerate()
        .filter_map(|(place, scenario)| {
            // The implicit one is made of the defaults.
            let at = if profile.scenarios.is_empty() {
                "defaults".to_owned()
            } else {
                format!("scenarios[{place}]")
            };
            if scenario.name.is_empty() || !names.insert(&scenario.name) {
                problems.add(format!("{at}.name"), "a name is needed, and each only once");
            }
            one_scenario(profile, scenario, folder, &at, problems)
        })
        .collect()
}

fn one_scenario(
    profile: &Profile,
    scenario: &Scenario,
    folder: &Path,
    at: &str,
    problems: &mut Problems,
) -> Option<ScenarioPlan> {
    let defaults = &profile.defaults;
    let word = scenario.protocol.as_ref().or(defaults.protocol.as_ref());
    let word = word.map_or("openai-chat", String::as_str);
    let Some(protocol) = protocol::find(word) else {
        let known: Vec<&str> = protocol::ALL.iter().map(|protocol| protocol.name()).collect();
        let own = scenario.protocol.is_some();
        let at = if own { format!("{at}.protocol") } else { "defaults.protocol".to_owned() };
        problems.add(at, format!("{word:?} is not known; known are {}", known.join(", ")));
        return None;
    };
    let target = scenario.target.clone().or_else(|| defaults.target.clone());
    if target.is_none() {
        problems.add(at, "no target; give it in defaults, in the scenario or with --target");
    }
    let model = scenario.model.clone().or_else(|| defaults.model.clone());
    if model.is_none() {
        problems.add(at, "no model; give it in defaults, in the scenario or with --model");
    }
    let turns = match scenario.turns.unwrap_or(Turns::Fixed(1)) {
        Turns::Fixed(turns) => (turns, turns),
        Turns::Range { min, max } => (min, max),
    };
    if turns.0 == 0 || turns.0 > turns.1 || turns.1 > TURNS_MAX {
        let text = format!("turns are 1 to {TURNS_MAX}, and min is not above max");
        problems.add(format!("{at}.turns"), text);
    }
    let weight = scenario.weight.unwrap_or(1);
    if !(1..=1_000_000).contains(&weight) {
        problems.add(format!("{at}.weight"), "a weight is 1 to 1000000");
    }
    let mut headers = defaults.headers.clone();
    headers.extend(scenario.headers.clone());
    let mut body = defaults.body.clone().unwrap_or_default().0;
    body.extend(scenario.body.clone().unwrap_or_default().0);
    let text = text(scenario.content.as_ref(), profile.reuse_body, folder, at, problems);
    Some(ScenarioPlan {
        name: scenario.name.clone(),
        weight,
        turns,
        text: text?,
        checks: checks(&scenario.checks, at, problems),
        cancel: scenario.cancel.as_ref().map(cancel),
        protocol,
        target: target?,
        headers,
        model: model?,
        max_tokens: scenario.max_tokens.or(defaults.max_tokens).unwrap_or(64),
        stream: scenario.stream.or(defaults.stream).unwrap_or_default(),
        system: scenario.system.clone().or_else(|| defaults.system.clone()),
        body,
    })
}

fn cancel(cancel: &Cancel) -> (Ppb, CancelPoint) {
    let point = CancelPoint {
        phase: cancel.phase,
        event: cancel.event.unwrap_or_default(),
        after: cancel.after.unwrap_or_default(),
        close: cancel.close,
    };
    (cancel.share, point)
}

fn checks(given: &Checks, at: &str, problems: &mut Problems) -> Arc<[Check]> {
    let mut checks: Vec<Check> = given.contains.iter().cloned().map(Check::BodyContains).collect();
    checks.extend(given.not_contains.iter().cloned().map(Check::BodyLacks));
    for text in &given.regex {
        match Regex::new(text) {
            Ok(regex) => checks.push(Check::Regex(regex)),
            Err(error) => problems.add(format!("{at}.checks.regex"), format!("{text:?}: {error}")),
        }
    }
    for (pointer, value) in given.json.iter().flat_map(|fields| &fields.0) {
        if !pointer.starts_with('/') {
            let text = format!("{pointer:?} is no JSON pointer such as /choices/0/index");
            problems.add(format!("{at}.checks.json"), text);
        }
        checks.push(Check::Json {
            pointer: pointer.clone(),
            equals: Some(value.clone()).filter(|v| !v.is_null()),
        });
    }
    checks.extend(given.min_completion_tokens.map(Check::TokensMin));
    checks.extend(given.max_completion_tokens.map(Check::TokensMax));
    if !given.finish_reason.is_empty() {
        checks.push(Check::FinishReason(given.finish_reason.clone()));
    }
    checks.into()
}

fn text(
    content: Option<&Content>,
    same: bool,
    folder: &Path,
    at: &str,
    problems: &mut Problems,
) -> Option<Text> {
    let Some(content) = content else { return Some(Text::Sized { tokens: 16, same }) };
    let needs = |list: &[String], key: &str, problems: &mut Problems| {
        if list.is_empty() {
            problems.add(format!("{at}.content.{key}"), "has no text");
        }
        (!list.is_empty()).then(|| list.to_vec())
    };
    match content.mode {
        ContentMode::Pool => needs(&content.prompts, "prompts", problems).map(Text::Pool),
        ContentMode::Scripted => needs(&content.script, "script", problems).map(Text::Scripted),
        ContentMode::Sized => {
            let tokens = content.approx_input_tokens.filter(|tokens| (1..=1_000_000).contains(tokens));
            if tokens.is_none() {
                problems.add(format!("{at}.content.approx_input_tokens"), "is 1 to 1000000");
            }
            tokens.map(|tokens| Text::Sized { tokens, same })
        }
        ContentMode::Dataset => {
            let field = content.field.as_deref().unwrap_or("prompt");
            let Some(file) = &content.file else {
                problems.add(format!("{at}.content"), "a dataset needs a file");
                return None;
            };
            let read = read_lines(&folder.join(file), |line| {
                let text = line.get(field).and_then(Value::as_str);
                text.map(str::to_owned).ok_or_else(|| format!("no text in field {field:?}"))
            });
            match read {
                Ok(lines) => Some(Text::Dataset(lines)),
                Err(error) => {
                    problems.add(format!("{at}.content.file"), error);
                    None
                }
            }
        }
    }
}

/// Reads JSONL line by line.
pub(super) fn read_lines<T>(
    path: &Path,
    read: impl Fn(&Value) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let shown = path.display();
    let text = crate::input::read(path, INPUT_BYTES_MAX).map_err(|why| format!("{shown}: {why}"))?;
    let text = String::from_utf8(text).map_err(|_| format!("{shown}: not UTF-8 text"))?;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let value = serde_json::from_str(line).map_err(|error| error.to_string());
        lines.push(
            value.and_then(|value| read(&value)).map_err(|why| format!("{shown}:{}: {why}", number + 1))?,
        );
        if lines.len() > LINES_MAX {
            return Err(format!("{shown}: more than {LINES_MAX} lines"));
        }
    }
    if lines.is_empty() { Err(format!("{shown}: no line")) } else { Ok(lines) }
}
