//! What a configuration of the pool must fulfil before it replaces the one in force, and which rule meets a call.

use std::collections::{BTreeSet, HashSet};

use scenario::control::{CONTROL_VERSION, NodeRule, OpenaiConfig};
use scenario::draw::selected;
use scenario::fault::{Attempts, CallKind, NodeFault, Select};
use scenario::identity::valid_name;
use scenario::plan::FAULT_PURPOSE;
use scenario::profile::Timing;

/// Largest event or document that `oversize_event` makes.
pub const OVERSIZE_BYTES_MAX: u64 = 64 << 20;

/// A configuration prepared for looking up rules.
#[derive(Debug)]
pub struct Prepared {
    /// As it was given.
    pub config: OpenaiConfig,
    /// Rules of each node, by its position.
    rules: Vec<Vec<PreparedRule>>,
}

#[derive(Debug)]
struct PreparedRule {
    position: usize,
    ids: Option<HashSet<String>>,
}

/// A call as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Position of the node.
    pub node: usize,
    /// Execution or validation.
    pub kind: CallKind,
    /// Marker id; calls without one are selected by `all` only.
    pub request_id: Option<&'a str>,
    /// Attempt.
    pub attempt: u64,
}

impl Prepared {
    /// Checks a configuration and prepares it.
    ///
    /// # Errors
    /// What is wrong, where, and what to write instead.
    pub fn new(config: OpenaiConfig) -> Result<Self, String> {
        check(&config)?;
        let rules_of = |name: &String| {
            let applies = |rule: &NodeRule| rule.nodes.contains(name) && takes_effect(&rule.action);
            let prepare = |(position, rule): (usize, &NodeRule)| PreparedRule {
                position,
                ids: match &rule.select {
                    Select::Ids(ids) => Some(ids.iter().map(|id| id.as_str().to_owned()).collect()),
                    _ => None,
                },
            };
            config.rules.iter().enumerate().filter(|(_, rule)| applies(rule)).map(prepare).collect()
        };
        let rules = config.nodes.iter().map(|node| rules_of(&node.name)).collect();
        Ok(Self { config, rules })
    }

    /// The first rule in order that selects the call.
    #[must_use]
    pub fn rule_for(&self, asked: &Asked<'_>) -> Option<&NodeRule> {
        self.rules[asked.node].iter().find_map(|prepared| {
            let rule = &self.config.rules[prepared.position];
            let in_scope = rule.on == asked.kind && (rule.attempts == Attempts::All || asked.attempt == 1);
            (in_scope && self.selects(rule, prepared, asked.request_id)).then_some(rule)
        })
    }

    fn selects(&self, rule: &NodeRule, prepared: &PreparedRule, request_id: Option<&str>) -> bool {
        match (&rule.select, request_id) {
            (Select::All(all), _) => *all,
            (Select::Fraction(fraction), Some(id)) => {
                selected(self.config.seed, &rule.id, FAULT_PURPOSE, id, *fraction)
            }
            (Select::Ids(_), Some(id)) => prepared.ids.as_ref().is_some_and(|ids| ids.contains(id)),
            (Select::Fraction(_) | Select::Ids(_) | Select::Calls(_), _) => false,
        }
    }
}

/// `omit_done: false` and the like are written to switch a rule off.
fn takes_effect(action: &NodeFault) -> bool {
    !matches!(
        action,
        NodeFault::DropFirstContent(false)
            | NodeFault::OmitDone(false)
            | NodeFault::OmitUsage(false)
            | NodeFault::MalformedJson(false)
            | NodeFault::MalformedSse(false)
            | NodeFault::ErrorEvent(false)
            | NodeFault::ResetBeforeHeaders(false)
            | NodeFault::CloseBeforeHeaders(false)
            | NodeFault::WrongContentType(false)
    )
}

fn check(config: &OpenaiConfig) -> Result<(), String> {
    if config.v != CONTROL_VERSION {
        return Err(format!("`v` is {}, this build reads {CONTROL_VERSION}", config.v));
    }
    if config.nodes.is_empty() {
        return Err("`nodes` is empty: there is nothing to serve".to_owned());
    }
    let mut names = BTreeSet::new();
    for node in &config.nodes {
        let name = &node.name;
        if !valid_name(name) {
            return Err(format!("node {name:?}: a name is [a-z0-9-], at most 40 characters"));
        }
        if !names.insert(name.as_str()) {
            return Err(format!("node {name:?} is there twice: give every instance its own name"));
        }
        if node.behaviour.workers == 0 {
            return Err(format!("node {name:?}: `workers` is 0, nothing would ever be answered"));
        }
        for (key, timing) in
            [("ttft", node.behaviour.ttft), ("token_interval", node.behaviour.token_interval)]
        {
            check_timing(name, key, timing)?;
        }
    }
    config.rules.iter().try_for_each(|rule| check_rule(rule, &names))
}

fn check_timing(node: &str, key: &str, timing: Timing) -> Result<(), String> {
    if timing.min > timing.max {
        return Err(format!("node {node:?}: `{key}` has min {} above max {}", timing.min, timing.max));
    }
    Ok(())
}

fn check_rule(rule: &NodeRule, names: &BTreeSet<&str>) -> Result<(), String> {
    let id = &rule.id;
    if rule.nodes.is_empty() {
        return Err(format!("rule {id:?}: `nodes` is empty, name the instances it applies to"));
    }
    if let Some(unknown) = rule.nodes.iter().find(|node| !names.contains(node.as_str())) {
        let known: Vec<&str> = names.iter().copied().collect();
        return Err(format!("rule {id:?}: there is no node {unknown:?}, only {}", known.join(", ")));
    }
    if matches!(rule.select, Select::Calls(_)) {
        return Err(format!("rule {id:?}: nodes select by `fraction`, `ids` or `all`, not by `calls`"));
    }
    match &rule.action {
        NodeFault::Status(status) if !(400..=599).contains(status) => {
            Err(format!("rule {id:?}: `status` is {status}, use 400 to 599"))
        }
        NodeFault::OversizeEvent(bytes) if *bytes > OVERSIZE_BYTES_MAX => {
            Err(format!("rule {id:?}: `oversize_event` is {bytes}, at most {OVERSIZE_BYTES_MAX}"))
        }
        _ => Ok(()),
    }
}

/// Checks that `new` may replace `old`: the topology is fixed after the start, because listeners are.
///
/// # Errors
/// Which names differ.
pub fn check_replacement(old: &OpenaiConfig, new: &OpenaiConfig) -> Result<(), String> {
    let names = |config: &OpenaiConfig| config.nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
    let (before, after) = (names(old), names(new));
    if before != after {
        return Err(format!("node names can't change after the start: {before:?} became {after:?}"));
    }
    Ok(())
}
