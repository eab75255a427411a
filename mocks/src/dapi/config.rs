//! What a configuration of the allocator must fulfil before it replaces the one in force.

use std::collections::BTreeSet;

use scenario::control::{CONTROL_VERSION, DapiConfig, DapiRule};
use scenario::fault::{DapiCall, DapiFault};
use scenario::model::Policy;

use crate::ordinal;

/// Listener name of the gateway; no host may be called so.
pub const GATEWAY: &str = "gateway";

/// Checks a configuration on its own.
///
/// # Errors
/// What is wrong, where, and what to write instead.
pub fn check(config: &DapiConfig) -> Result<(), String> {
    if config.v != CONTROL_VERSION {
        return Err(format!("`v` is {}, this build reads {CONTROL_VERSION}", config.v));
    }
    check_names("hosts", config.hosts.iter().map(String::as_str))?;
    if config.hosts.iter().any(|host| host == GATEWAY) {
        return Err(format!("`hosts`: {GATEWAY:?} is the gateway's own listener, use another name"));
    }
    check_names("nodes", config.nodes.iter().map(|node| node.name.as_str()))?;
    if config.nodes.is_empty() {
        return Err("`nodes` is empty: there is nothing to give out".to_owned());
    }
    for node in &config.nodes {
        let url = &node.base_url;
        if !(url.starts_with("http://") || url.starts_with("https://")) || url.ends_with('/') {
            return Err(format!(
                "node {:?}: `base_url` is {url:?}, write http://host:port without a slash at the end",
                node.name
            ));
        }
    }
    if config.lease.us() == 0 {
        return Err("`lease` is zero: a lock would expire before it is used".to_owned());
    }
    if config.runtime.params_block_height < 0 {
        return Err("`runtime.params_block_height` is negative".to_owned());
    }
    check_policy(config)?;
    config.rules.iter().try_for_each(|rule| check_rule(config, rule))
}

/// Checks that `new` may replace `old`: the topology is fixed after the start, because listeners are.
///
/// # Errors
/// Which names differ.
pub fn check_replacement(old: &DapiConfig, new: &DapiConfig) -> Result<(), String> {
    if old.hosts != new.hosts {
        return Err(format!("`hosts` can't change after the start: {:?} became {:?}", old.hosts, new.hosts));
    }
    let names = |config: &DapiConfig| config.nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
    if names(old) != names(new) {
        return Err(format!(
            "node names can't change after the start: {:?} became {:?}; set `available` instead",
            names(old),
            names(new)
        ));
    }
    Ok(())
}

fn check_names<'a>(place: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return Err(format!("`{place}` holds an empty name"));
        }
        if !seen.insert(name) {
            return Err(format!("`{place}` names {name:?} twice"));
        }
    }
    Ok(())
}

fn check_policy(config: &DapiConfig) -> Result<(), String> {
    match config.policy {
        Policy::FixedOrder if config.order.is_empty() => {
            Err("`order` is empty: fixed-order needs at least one node name".to_owned())
        }
        Policy::FixedOrder => {
            let unknown =
                config.order.iter().find(|name| config.nodes.iter().all(|node| node.name != **name));
            unknown.map_or(Ok(()), |name| Err(format!("`order` names {name:?}, which is no node")))
        }
        Policy::SeededWeighted if config.nodes.iter().all(|node| node.weight == 0) => {
            Err("every `weight` is 0: seeded-weighted could never give a node".to_owned())
        }
        Policy::RoundRobin | Policy::LeastActive | Policy::SeededWeighted => Ok(()),
    }
}

fn check_rule(config: &DapiConfig, rule: &DapiRule) -> Result<(), String> {
    let id = &rule.id;
    ordinal::check(id, &rule.select)?;
    if let Some(host) = &rule.host
        && host != GATEWAY
        && !config.hosts.contains(host)
    {
        return Err(format!(
            "rule {id:?}: {host:?} is no host, known are {:?} and {GATEWAY:?}",
            config.hosts
        ));
    }
    if matches!(rule.action, DapiFault::LoseRelease(_)) && rule.call != DapiCall::Release {
        return Err(format!("rule {id:?}: `lose_release` works on ReleaseMLNode only"));
    }
    Ok(())
}
