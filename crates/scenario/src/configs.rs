//! Configurations of the mocks, made from a resolved scenario. With and without rules they differ in nothing else.

use std::collections::BTreeMap;

use crate::control::{
    CONTROL_VERSION, ChainRule, DapiConfig, DapiNode, DapiRule, NodeConfig, NodeRule, OpenaiConfig, Oracle,
    RuntimeParams, basis_points,
};
use crate::fault::{CallKind, FaultAction};
use crate::model::Resolved;
use crate::units::Micros;

/// Lifetime of a lock when the scenario names none (contract: 1200 s on a real allocator).
pub const LEASE_DEFAULT: Micros = Micros::from_s(1_200);
/// Model that is announced.
pub const MODEL: &str = "test-model";
/// Highest nonce of a session: above what any committed plan reaches.
const NONCE_MAX: u32 = 1_000_000;

/// For `mock-openai`.
#[must_use]
pub fn openai_config(resolved: &Resolved, with_rules: bool) -> OpenaiConfig {
    let nodes = resolved
        .nodes
        .iter()
        .map(|node| NodeConfig { name: node.name.clone(), behaviour: node.behaviour.clone() })
        .collect();
    let rules = if with_rules { node_rules(resolved) } else { Vec::new() };
    OpenaiConfig { v: CONTROL_VERSION, seed: resolved.scenario.seed, nodes, rules }
}

fn node_rules(resolved: &Resolved) -> Vec<NodeRule> {
    resolved
        .scenario
        .faults
        .iter()
        .filter_map(|rule| {
            let FaultAction::Node(action) = &rule.action else { return None };
            let place = rule.place.node.as_deref()?;
            let nodes = resolved.nodes.iter().filter(|node| node.name == place || node.entry == place);
            Some(NodeRule {
                id: rule.id.clone(),
                nodes: nodes.map(|node| node.name.clone()).collect(),
                on: rule.on,
                select: rule.select.clone(),
                attempts: rule.attempts,
                action: action.clone(),
            })
        })
        .collect()
}

/// For `mock-dapi`. `node_urls` gives the base URL of each instance.
#[must_use]
pub fn dapi_config(
    resolved: &Resolved,
    node_urls: &BTreeMap<String, String>,
    with_rules: bool,
) -> DapiConfig {
    let scenario = &resolved.scenario;
    let nodes = resolved.nodes.iter().map(|node| DapiNode {
        name: node.name.clone(),
        base_url: node_urls.get(&node.name).cloned().unwrap_or_default(),
        weight: node.weight,
        available: true,
    });
    let rules = scenario.faults.iter().filter(|_| with_rules).filter_map(|rule| {
        let FaultAction::Dapi(action) = &rule.action else { return None };
        Some(DapiRule {
            id: rule.id.clone(),
            call: rule.place.dapi?,
            host: rule.place.host.clone(),
            select: rule.select.clone(),
            action: action.clone(),
        })
    });
    DapiConfig {
        v: CONTROL_VERSION,
        seed: scenario.seed,
        hosts: (0..scenario.devshard.participants).map(|index| format!("host-{index}")).collect(),
        nodes: nodes.collect(),
        policy: scenario.allocator.policy,
        order: scenario.allocator.order.clone(),
        lease: scenario.allocator.lease.unwrap_or(LEASE_DEFAULT),
        runtime: runtime(resolved),
        oracle: Oracle::default(),
        rules: rules.collect(),
    }
}

fn runtime(resolved: &Resolved) -> RuntimeParams {
    RuntimeParams {
        params_block_height: 1,
        epoch: 1,
        requests_enabled: true,
        max_nonce: NONCE_MAX,
        logprobs_mode: "raw".to_owned(),
        refusal_timeout_s: 60,
        execution_timeout_s: 1_200,
        validation_rate: basis_points(resolved.scenario.devshard.validation_rate),
        vote_threshold_factor: 50,
        model: MODEL.to_owned(),
        // 95 · 10^−2: the default of a seed chain makes every vote invalid (july-findings J15).
        threshold_value: 95,
        threshold_exponent: -2,
    }
}

/// Rules of `mock-chain`.
#[must_use]
pub fn chain_rules(resolved: &Resolved) -> Vec<ChainRule> {
    let rules = resolved.scenario.faults.iter().filter(|rule| rule.on == CallKind::Execution);
    rules
        .filter_map(|rule| {
            let FaultAction::Chain(action) = &rule.action else { return None };
            Some(ChainRule {
                id: rule.id.clone(),
                method: rule.place.chain.clone()?,
                select: rule.select.clone(),
                action: action.clone(),
            })
        })
        .collect()
}
