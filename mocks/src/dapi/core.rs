//! State of the allocator without any transport: config in force, locks, counters, ordinals, rules.
//! Time enters as microseconds since start; every method is a plain step, so a test can walk through it.

use std::collections::BTreeMap;

use scenario::control::{CONTROL_VERSION, DapiConfig, DapiRule, DapiStats, RuntimeParams};
use scenario::fault::{DapiCall, DapiFault, Select};

use crate::dapi::config;
use crate::dapi::locks::{Locks, Return};
use crate::dapi::policy::{Candidate, Question, pick};
use crate::ordinal::selects;

/// A rule that matched a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Rule id.
    pub rule: String,
    /// What is done.
    pub action: DapiFault,
    /// Ordinal by which the rule matched: per host when the rule names one, else over all hosts.
    pub ordinal: u64,
}

/// A call that has been counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Ordinal of this call over all hosts, from 1.
    pub ordinal: u64,
    /// Ordinal of this call at its host, from 1.
    pub ordinal_at_host: u64,
    /// The first rule that matches, if any.
    pub fault: Option<Fault>,
}

/// A node that was given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Lock id.
    pub lock: String,
    /// Base URL that carries the lock.
    pub endpoint: String,
    /// Instance name.
    pub node: String,
}

/// Everything the allocator knows.
#[derive(Debug)]
pub struct Core {
    config: DapiConfig,
    /// Change marker served; grows with every change of content even when the config's own marker did not.
    height: i64,
    locks: Locks,
    /// Calls so far, by call and by host (`None`: over all hosts).
    ordinals: BTreeMap<(&'static str, Option<String>), u64>,
    counts: DapiStats,
}

impl Core {
    /// Starts with a checked configuration. `tag` begins every lock id and differs between processes.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: DapiConfig, tag: String) -> Result<Self, String> {
        config::check(&config)?;
        let counts = DapiStats {
            v: CONTROL_VERSION,
            // A node that was never chosen is evidence too, so every node has its line from the start.
            per_node: config.nodes.iter().map(|node| (node.name.clone(), 0)).collect(),
            ..DapiStats::default()
        };
        let height = config.runtime.params_block_height;
        Ok(Self { config, height, locks: Locks::new(tag), ordinals: BTreeMap::new(), counts })
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &DapiConfig {
        &self.config
    }

    /// Replaces the configuration; locks, counters and ordinals stay. On an error nothing has changed.
    ///
    /// # Errors
    /// Why the configuration was refused.
    pub fn apply(&mut self, new: DapiConfig) -> Result<(), String> {
        config::check(&new)?;
        config::check_replacement(&self.config, &new)?;
        let content = |params: &RuntimeParams| RuntimeParams { params_block_height: 0, ..params.clone() };
        let changed = content(&self.config.runtime) != content(&new.runtime);
        // Clients that already hold this height would never see a change under the same height.
        let least = if changed { self.height.saturating_add(1) } else { self.height };
        self.height = least.max(new.runtime.params_block_height);
        self.config = new;
        Ok(())
    }

    /// Change marker and content of the runtime configuration.
    #[must_use]
    pub fn runtime(&self) -> (i64, &RuntimeParams) {
        (self.height, &self.config.runtime)
    }

    /// Counts a call and finds the rule that it meets. An outage comes before all others: it hits every call of its
    /// host, whatever call its rule names.
    pub fn arrive(&mut self, call: DapiCall, host: &str) -> Arrival {
        let ordinal = self.count(call, None);
        let at_host = self.count(call, Some(host));
        let fault = self.outage(host, ordinal, at_host).or_else(|| {
            let rule = self.config.rules.iter().find(|rule| {
                rule.call == call
                    && at_place(rule, host)
                    && is_on(rule)
                    && selects(&rule.select, rule_ordinal(rule, ordinal, at_host))
            })?;
            Some(fault(rule, rule_ordinal(rule, ordinal, at_host)))
        });
        Arrival { ordinal, ordinal_at_host: at_host, fault }
    }

    /// The outage that is on for calls of `host` now, asked again by calls that are held open.
    #[must_use]
    pub fn outage(&self, host: &str, ordinal: u64, at_host: u64) -> Option<Fault> {
        let on = |rule: &&DapiRule| {
            let off = matches!(rule.select, Select::All(false));
            matches!(rule.action, DapiFault::Outage(true)) && !off && at_place(rule, host)
        };
        self.config.rules.iter().find(on).map(|rule| fault(rule, rule_ordinal(rule, ordinal, at_host)))
    }

    /// Gives out a node, or nothing when none is left.
    pub fn acquire(&mut self, ordinal: u64, excluded: &[String], now_us: u64) -> Option<Grant> {
        self.locks.expire(now_us);
        let candidates: Vec<Candidate<'_>> = self
            .config
            .nodes
            .iter()
            .map(|node| Candidate {
                name: &node.name,
                weight: node.weight,
                eligible: node.available && !excluded.contains(&node.name),
                active: self.locks.active_on(&node.name),
            })
            .collect();
        let chosen = pick(&Question {
            policy: self.config.policy,
            seed: self.config.seed,
            ordinal,
            nodes: &candidates,
            order: &self.config.order,
        });
        let Some(index) = chosen else {
            self.counts.rejections += 1;
            return None;
        };
        let node = &self.config.nodes[index];
        let lock = self.locks.grant(&node.name, now_us.saturating_add(self.config.lease.us()));
        self.counts.acquisitions += 1;
        *self.counts.per_node.entry(node.name.clone()).or_default() += 1;
        Some(Grant { endpoint: format!("{}/l/{lock}", node.base_url), node: node.name.clone(), lock })
    }

    /// Counts an acquire that a rule refused.
    pub fn refuse_acquire(&mut self) {
        self.counts.rejections += 1;
    }

    /// Takes a lock back.
    pub fn release(&mut self, lock: &str, now_us: u64) -> Return {
        self.locks.expire(now_us);
        let back = self.locks.release(lock);
        match &back {
            Return::Released(_) => self.counts.releases += 1,
            Return::Twice(_) => self.counts.double_releases += 1,
            Return::Unknown => self.counts.unknown_releases += 1,
            // The expiry itself has been counted when the lease ran out.
            Return::Expired(_) => {}
        }
        back
    }

    /// Node of a lock that is out.
    #[must_use]
    pub fn node_of(&self, lock: &str) -> Option<String> {
        self.locks.node_of(lock).map(str::to_owned)
    }

    /// Counters, without CPU time.
    pub fn stats(&mut self, now_us: u64) -> DapiStats {
        self.locks.expire(now_us);
        DapiStats { active: self.locks.active(), expired: self.locks.expired(), ..self.counts.clone() }
    }

    /// Locks out by node, for the metrics page.
    pub fn active_by_node(&mut self, now_us: u64) -> Vec<(String, u64)> {
        self.locks.expire(now_us);
        let name = |name: &String| (name.clone(), self.locks.active_on(name));
        self.config.nodes.iter().map(|node| name(&node.name)).collect()
    }

    fn count(&mut self, call: DapiCall, host: Option<&str>) -> u64 {
        let ordinal = self.ordinals.entry((call_name(call), host.map(str::to_owned))).or_default();
        *ordinal += 1;
        *ordinal
    }
}

/// Method name of a call.
#[must_use]
pub fn call_name(call: DapiCall) -> &'static str {
    match call {
        DapiCall::Acquire => "AcquireMLNode",
        DapiCall::Release => "ReleaseMLNode",
        DapiCall::RuntimeConfig => "GetRuntimeConfig",
    }
}

fn at_place(rule: &DapiRule, host: &str) -> bool {
    rule.host.as_deref().is_none_or(|named| named == host)
}

/// An action written as `false` is switched off and must not shadow a later rule.
fn is_on(rule: &DapiRule) -> bool {
    !matches!(rule.action, DapiFault::LoseRelease(false) | DapiFault::Outage(false))
}

fn rule_ordinal(rule: &DapiRule, over_all: u64, at_host: u64) -> u64 {
    if rule.host.is_some() { at_host } else { over_all }
}

fn fault(rule: &DapiRule, ordinal: u64) -> Fault {
    Fault { rule: rule.id.clone(), action: rule.action.clone(), ordinal }
}
