//! Gateway settings, canary chats, and applying and reading back faults (design section 3, steps 1 and 2).

use std::collections::BTreeMap;
use std::time::Duration;

use evidence::event::EventKind;
use evidence::rundir::{FAULTS_APPLIED, RunDir};
use futures_util::StreamExt;
use scenario::control::{ChainConfig, DapiConfig, MockConfig, OpenaiConfig};
use scenario::fault::CallKind;
use scenario::model::Resolved;
use serde_json::{Map, Value, json};

use super::dispatcher::Dispatcher;
use crate::collect::Surfaces;
use crate::collect::ask::{Refusal, begin, bound};
use crate::control::Control;
use crate::error::RunnerError;
use crate::guard::Foreign;
use crate::guard::client::Guard;
use crate::stack::Running;

/// Time limit of a canary chat.
const CANARY_LIMIT: Duration = Duration::from_secs(20);
/// Escrows that are asked at the same time.
const AT_ONCE: usize = 8;
/// Canary chats tried before the stack counts as not ready.
const CANARY_TRIES: u32 = 20;

/// The settings that a run needs whatever the scenario says: the model open to clients without a key, limits far
/// above the load (contract gateway 4.3: the weight cap replaces them), fast retries.
fn base_settings(model: &str) -> Map<String, Value> {
    let value = json!({
        "default_model": model,
        "max_concurrent_requests": 100_000,
        "max_concurrent_requests_per_10000_weight": 100_000,
        "model_limits": [{"model_id": model, "max_concurrent_requests": 100_000,
            "max_input_tokens_in_flight": 0, "access_mode": "open"}],
        "redundancy": {"speed_policy": "legacy"},
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Sends the settings, reads them back and compares every field that was sent (unknown ones are dropped silently by
/// the gateway, contract gateway 9).
///
/// # Errors
/// [`RunnerError::Environment`] naming the field that did not stick.
pub async fn gateway_settings(
    running: &Running,
    resolved: &Resolved,
    dispatcher: &mut Dispatcher,
) -> Result<(), RunnerError> {
    let mut wanted = base_settings(&running.model);
    merge(&mut wanted, &resolved.scenario.devshard.settings);
    let url = format!("{}/v1/admin/settings", running.surfaces.gateway);
    let ask = &running.surfaces.ask;
    let post = ask.client().post(&url).bearer_auth(&running.surfaces.admin_key);
    let post = ask.send(post.json(&Value::Object(wanted.clone())), bound::SMALL);
    let answer = dispatcher.through(post).await?;
    let (status, body) =
        answer.map_err(|error| RunnerError::environment(format!("gateway settings: {error}")))?;
    if status >= 300 {
        return Err(RunnerError::environment(format!("gateway settings: {status}: {}", begin(&body))));
    }
    let read = running.surfaces.json(&url, true, bound::SMALL, |_| Ok(()));
    let read = dispatcher.through(read).await?;
    let ((), read) =
        read.map_err(|error| RunnerError::environment(format!("reading gateway settings: {error}")))?;
    match first_difference("", &Value::Object(wanted), &read) {
        None => Ok(()),
        Some(field) => Err(RunnerError::environment(format!("the gateway did not take the setting {field}"))),
    }
}

/// The settings that the scenario names, held against those of a gateway that is not ours: nothing is sent.
///
/// # Errors
/// [`RunnerError::CannotDo`] naming the first that differs, or when they are not shown: the scenario asks for them.
pub async fn settings_of_others(
    running: &Running,
    resolved: &Resolved,
    dispatcher: &mut Dispatcher,
) -> Result<(), RunnerError> {
    let wanted = &resolved.scenario.devshard.settings;
    if wanted.is_empty() {
        return Ok(());
    }
    let url = format!("{}/v1/admin/settings", running.surfaces.gateway);
    let read = running.surfaces.json(&url, true, bound::SMALL, |_| Ok(()));
    let read = dispatcher.through(read).await?;
    let ((), read) = read.map_err(|why| {
        RunnerError::CannotDo(format!(
            "the scenario names gateway settings, and they are not shown: {url}: {why}"
        ))
    })?;
    let mut full = Map::new();
    merge(&mut full, wanted);
    match first_difference("", &Value::Object(full), &read) {
        None => Ok(()),
        Some(field) => Err(RunnerError::CannotDo(format!(
            "the scenario wants another gateway setting {field}, and the settings of an attached gateway are not changed"
        ))),
    }
}

/// Adds `extra` to `base`, group by group.
fn merge(base: &mut Map<String, Value>, extra: &Map<String, Value>) {
    for (key, value) in extra {
        match (base.get_mut(key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            _ => drop(base.insert(key.clone(), value.clone())),
        }
    }
}

/// Path of the first wanted field that was read back differently.
fn first_difference(path: &str, wanted: &Value, read: &Value) -> Option<String> {
    match (wanted, read) {
        (Value::Object(wanted), Value::Object(read)) => {
            wanted.iter().find_map(|(key, value)| match read.get(key) {
                Some(read) => first_difference(&format!("{path}/{key}"), value, read),
                None => Some(format!("{path}/{key}")),
            })
        }
        (Value::Array(wanted), Value::Array(read)) if wanted.len() == read.len() => {
            wanted.iter().zip(read).find_map(|(value, read)| first_difference(path, value, read))
        }
        (wanted, read) if wanted == read => None,
        _ => Some(path.to_owned()),
    }
}

/// Refusal and execution timeouts that status shows, seconds; the largest of all escrows.
///
/// # Errors
/// [`RunnerError::Environment`] when status can't be read: no deadline could be set.
pub async fn protocol_waits(running: &Running) -> Result<(u64, u64), RunnerError> {
    let of_escrow = |escrow: String| async move {
        let url = format!("{}/devshard/{escrow}/v1/status", running.surfaces.gateway);
        let read = |status: &Value| {
            let wait = |name: &str| status["config"][name].as_u64().ok_or(format!("no config.{name}"));
            Ok((wait("refusal_timeout")?, wait("execution_timeout")?))
        };
        let status = running.surfaces.json(&url, false, bound::SMALL, read).await;
        let failed = |error| RunnerError::environment(format!("status of escrow {escrow}: {error}"));
        status.map(|(waits, _)| waits).map_err(failed)
    };
    let escrows = running.surfaces.escrows.list();
    let mut all = futures_util::stream::iter(escrows.into_iter().map(of_escrow)).buffered(AT_ONCE);
    let mut waits = (0, 0);
    while let Some(of_escrow) = all.next().await {
        let (refusal, execution) = of_escrow?;
        waits = (waits.0.max(refusal), waits.1.max(execution));
    }
    Ok(waits)
}

/// One chat outside the plan through each escrow: ready means that a chat works, not that a port answers.
///
/// # Errors
/// [`RunnerError::Environment`] when none of the tries of an escrow is answered well.
pub async fn canaries(running: &Running, dispatcher: &mut Dispatcher) -> Result<(), RunnerError> {
    for escrow in &running.surfaces.escrows.list() {
        let mut last = String::new();
        let mut done = false;
        for attempt in 0..CANARY_TRIES {
            let began_us = dispatcher.at_us();
            let answer = dispatcher.through(canary(&running.surfaces, escrow, &running.model)).await?;
            let took_us = dispatcher.at_us().saturating_sub(began_us);
            let status = answer.as_ref().ok().copied();
            dispatcher.log(EventKind::Canary { status, escrow: Some(escrow.clone()), took_us })?;
            match answer {
                Ok(200) => {
                    done = true;
                    break;
                }
                Ok(status) => last = format!("status {status}"),
                // It hung twice: more tries would only wait longer.
                Err(Refusal::LeftAlone) => break,
                Err(error) => last = error.to_string(),
            }
            let pause = Duration::from_millis(50 * u64::from(attempt + 1));
            if dispatcher.during(tokio::time::sleep(pause)).await?.is_err() {
                return Err(RunnerError::environment("stopped while the stack was starting"));
            }
        }
        if !done {
            let text = format!("the canary chat through escrow {escrow} was not answered: {last}");
            return Err(RunnerError::environment(text));
        }
    }
    Ok(())
}

async fn canary(surfaces: &Surfaces, escrow: &str, model: &str) -> Result<u16, Refusal> {
    let body = json!({"model": model, "max_tokens": 1, "stream": false,
        "messages": [{"role": "user", "content": format!("[canary:{escrow}] are you there?")}]});
    let url = format!("{}/devshard/{escrow}/v1/chat/completions", surfaces.gateway);
    let request = surfaces.ask.client().post(url).timeout(CANARY_LIMIT).json(&body);
    let (status, _) = surfaces.ask.send(request, bound::SMALL).await?;
    Ok(status)
}

/// The three configurations with or without rules.
#[derive(Clone, Debug)]
pub struct FaultConfigs {
    resolved: Resolved,
    node_urls: BTreeMap<String, String>,
    /// What the pool of a running environment held before, by service: all but the rules stays as its owner wants it.
    others: Option<BTreeMap<String, OpenaiConfig>>,
}

/// Which rules are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesOn {
    /// All of the scenario.
    All,
    /// Only rules for validation replays: the passive drain and sync still validate.
    ValidationOnly,
    /// None.
    None,
}

impl RulesOn {
    const fn purpose(self) -> &'static str {
        match self {
            Self::All => "faults",
            Self::ValidationOnly => "drain-execution-off",
            Self::None => "drain-validation-off",
        }
    }
}

impl FaultConfigs {
    /// For this scenario on this stack.
    #[must_use]
    pub fn new(resolved: &Resolved, running: &Running) -> Self {
        Self { resolved: resolved.clone(), node_urls: running.node_urls.clone(), others: None }
    }

    /// The same for mocks that are not ours. The guard is told of each: whatever ends the run, its rules go with it.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when one does not show what it holds.
    pub async fn for_others(
        resolved: &Resolved,
        running: &Running,
        dispatcher: &mut Dispatcher,
        guard: &mut Guard,
    ) -> Result<Self, RunnerError> {
        let mut others = BTreeMap::new();
        for pool in &running.mocks.openai {
            let config = dispatcher.through(pool.control.config()).await?;
            if let MockConfig::Openai(config) = config.map_err(RunnerError::environment)? {
                guard.take_off(Foreign { address: pool.control.origin(), seed: Some(config.seed) }).await?;
                others.insert(pool.service.clone(), config);
            }
        }
        for control in running.mocks.dapi.iter().chain(&running.mocks.chain) {
            guard.take_off(Foreign { address: control.origin(), seed: None }).await?;
        }
        Ok(Self { others: Some(others), ..Self::new(resolved, running) })
    }

    /// What a process that serves these nodes gets: their configurations and the rules about them.
    fn openai(&self, on: RulesOn, nodes: &[String]) -> OpenaiConfig {
        let mut config = scenario::configs::openai_config(&self.resolved, on != RulesOn::None);
        config.nodes.retain(|node| nodes.contains(&node.name));
        for rule in &mut config.rules {
            rule.nodes.retain(|node| nodes.contains(node));
        }
        config.rules.retain(|rule| !rule.nodes.is_empty());
        if on == RulesOn::ValidationOnly {
            config.rules.retain(|rule| rule.on == CallKind::Validation);
        }
        config
    }

    fn chain(&self, on: RulesOn, mut now: ChainConfig) -> ChainConfig {
        let all = on == RulesOn::All;
        now.rules = if all { scenario::configs::chain_rules(&self.resolved) } else { Vec::new() };
        now
    }

    /// Writes the intention, applies, reads back and compares hashes; what the scenario asks for is kept in
    /// `faults/applied.json`.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when a mock refuses or reads back something else.
    pub async fn apply(
        &self,
        on: RulesOn,
        running: &Running,
        dispatcher: &mut Dispatcher,
        dir: &RunDir,
    ) -> Result<(), RunnerError> {
        let mut configs: Vec<(&str, &Control, MockConfig)> = Vec::new();
        for pool in &running.mocks.openai {
            let mut config = self.openai(on, &pool.nodes);
            if let Some(theirs) = self.others.as_ref().and_then(|others| others.get(&pool.service)) {
                // The rules are ours, and the seed by which they select.
                let seed = if on == RulesOn::None { theirs.seed } else { config.seed };
                config = OpenaiConfig { rules: config.rules, seed, ..theirs.clone() };
            }
            configs.push((&pool.service, &pool.control, MockConfig::Openai(config)));
        }
        if let Some(dapi) = &running.mocks.dapi {
            let now = dispatcher.through(dapi.config()).await?;
            let now = match now {
                Ok(MockConfig::Dapi(now)) => now,
                Ok(_) => {
                    return Err(RunnerError::environment(
                        "mock-dapi shows the configuration of another mock",
                    ));
                }
                Err(why) => {
                    let text = format!("mock-dapi does not show its configuration: {why}");
                    return Err(RunnerError::environment(&text));
                }
            };
            let config = scenario::configs::dapi_config(&self.resolved, &self.node_urls, on == RulesOn::All);
            // Epoch and parameters are where actions have brought them; nodes that were taken away come back.
            let config = match &self.others {
                None => DapiConfig { runtime: now.runtime, oracle: now.oracle, ..config },
                Some(_) => DapiConfig { rules: config.rules, ..now },
            };
            configs.push(("mock-dapi", dapi, MockConfig::Dapi(config)));
        }
        if let Some(chain) = &running.mocks.chain {
            let now = dispatcher.through(chain.config()).await?;
            let now = match now {
                Ok(MockConfig::Chain(now)) => now,
                other => {
                    let why = other.map_or_else(|why| why, |_| "it shows another mock's".to_owned());
                    let text = format!("mock-chain does not show its configuration: {why}");
                    return Err(RunnerError::environment(text));
                }
            };
            configs.push(("mock-chain", chain, MockConfig::Chain(self.chain(on, now))));
        }
        let mut applied = Map::new();
        for (mock, control, config) in configs {
            let entry = apply_one(mock, control, &config, on.purpose(), dispatcher).await?;
            applied.insert(mock.to_owned(), entry);
        }
        if on == RulesOn::All {
            dir.write_json(FAULTS_APPLIED, &Value::Object(applied))?;
        }
        Ok(())
    }
}

async fn apply_one(
    mock: &str,
    control: &Control,
    config: &MockConfig,
    purpose: &str,
    dispatcher: &mut Dispatcher,
) -> Result<Value, RunnerError> {
    let hash = config.hash();
    let (mock_name, purpose) = (mock.to_owned(), purpose.to_owned());
    dispatcher.log(EventKind::ConfigIntended {
        mock: mock_name.clone(),
        hash: hash.clone(),
        purpose: purpose.clone(),
    })?;
    let answered = dispatcher.through(crate::control::put(control, config, mock)).await??;
    let read = dispatcher.through(control.config()).await?;
    let read = read.map_err(|error| RunnerError::environment(format!("{mock}: reading back: {error}")))?;
    let read_back = read.hash();
    dispatcher.log(EventKind::ConfigApplied {
        mock: mock_name,
        answered: answered.clone(),
        read_back: read_back.clone(),
        purpose,
    })?;
    if read_back != hash {
        return Err(RunnerError::environment(format!("{mock} holds another configuration than was sent")));
    }
    Ok(json!({"hash": hash, "answered": answered, "read_back": read_back, "config": config}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_did_not_stick_is_named() {
        let wanted = json!({"a": 1, "g": {"b": "x", "c": [1, {"d": 2}]}});
        assert_eq!(
            first_difference("", &wanted, &json!({"a": 1, "z": 0, "g": {"b": "x", "c": [1, {"d": 2}]}})),
            None
        );
        let read = json!({"a": 1, "g": {"b": "y", "c": [1, {"d": 2}]}});
        assert_eq!(first_difference("", &wanted, &read), Some("/g/b".to_owned()));
        assert_eq!(first_difference("", &wanted, &json!({"a": 1})), Some("/g".to_owned()));
    }

    #[test]
    fn settings_are_merged_by_group() {
        let mut base = base_settings("m");
        let extra = json!({"redundancy": {"receipt_timeout_ms": 700}});
        merge(&mut base, extra.as_object().unwrap());
        assert_eq!(base["redundancy"], json!({"speed_policy": "legacy", "receipt_timeout_ms": 700}));
    }
}
