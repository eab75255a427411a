//! The fault oracle from two independent sources (design section 6): the rules as the scenario and the seed select
//! them, and what the nodes say they did. Where they disagree nothing may be concluded.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use scenario::control::{Hit, NodeCall, NodeOutcome};
use scenario::draw::selected;
use scenario::fault::{Attempts, FaultAction, Select};
use scenario::model::{FaultRule, Resolved};

/// Purpose of the selection draw of fault rules.
pub const SELECT_PURPOSE: &str = "fault";

/// What the oracle found.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// Differences between the two sources, in words.
    pub differences: Vec<String>,
    /// Request ids that the differences are about: nothing may be concluded about what hit them.
    pub disputed: BTreeSet<String>,
    /// Calls on which both sources were compared.
    pub compared: u64,
    /// Distinct executed request ids hit, by rule.
    pub hit_ids: BTreeMap<String, BTreeSet<String>>,
}

/// Node instances that a rule applies to.
#[must_use]
pub fn rule_nodes<'a>(resolved: &'a Resolved, rule: &FaultRule) -> Vec<&'a str> {
    let Some(place) = rule.place.node.as_deref() else { return Vec::new() };
    let nodes = resolved.nodes.iter().filter(|node| node.name == place || node.entry == place);
    nodes.map(|node| node.name.as_str()).collect()
}

/// Whether a rule selects a request id.
#[must_use]
pub fn selects(seed: u64, rule: &FaultRule, id: &str) -> bool {
    match &rule.select {
        Select::Fraction(fraction) => selected(seed, &rule.id, SELECT_PURPOSE, id, *fraction),
        Select::Ids(ids) => ids.iter().any(|listed| listed.as_str() == id),
        Select::All(all) => *all,
        Select::Calls(_) => false,
    }
}

/// Compares both sources over every ended call of a planned request.
#[must_use]
pub fn compare(resolved: &Resolved, salt: &str, calls: &[NodeCall], hits: &[Hit]) -> Oracle {
    let rules: Vec<(&FaultRule, Vec<&str>)> = resolved
        .scenario
        .faults
        .iter()
        .filter(|rule| matches!(rule.action, FaultAction::Node(_)))
        .map(|rule| (rule, rule_nodes(resolved, rule)))
        .collect();
    let mut oracle = Oracle::default();
    let mut logged: HashMap<(&str, &str, &str, u64), u64> = HashMap::new();
    for hit in hits {
        if let Some(id) = hit.request_id.as_deref() {
            *logged.entry((hit.place.as_str(), hit.rule.as_str(), id, hit.attempt)).or_default() += 1;
        }
    }
    for call in calls {
        let ours = call.salt.as_deref() == Some(salt);
        let (true, Some(id)) = (ours, call.request_id.as_deref()) else { continue };
        if matches!(call.outcome, NodeOutcome::Running | NodeOutcome::Rejected | NodeOutcome::BadRequest) {
            continue;
        }
        oracle.compared += 1;
        let expected = expected_rule(resolved.scenario.seed, &rules, call, id);
        let hit = call.rule.as_deref();
        if expected != hit
            && !(hit.is_none() && matches!(call.outcome, NodeOutcome::ClientCancelled | NodeOutcome::Killed))
        {
            oracle.disputed.insert(id.to_owned());
            let text = |rule: Option<&str>| rule.unwrap_or("no rule").to_owned();
            oracle.differences.push(format!(
                "call {} of {id} at {}: selected by {}, carried out {}",
                call.call,
                call.node,
                text(expected),
                text(hit)
            ));
        }
        if let Some(rule) = hit {
            let in_log = logged.get_mut(&(call.node.as_str(), rule, id, call.attempt));
            match in_log {
                Some(count) if *count > 0 => *count -= 1,
                _ => {
                    let text = format!("call {} of {id} at {}: no hit logged", call.call, call.node);
                    oracle.differences.push(text);
                    oracle.disputed.insert(id.to_owned());
                }
            }
            if call.kind == scenario::fault::CallKind::Execution {
                oracle.hit_ids.entry(rule.to_owned()).or_default().insert(id.to_owned());
            }
        }
    }
    for ((place, rule, id, _), count) in logged {
        if count > 0 {
            oracle.disputed.insert(id.to_owned());
            oracle.differences.push(format!("hit of {rule} on {id} at {place} without a call"));
        }
    }
    oracle.differences.sort_unstable();
    oracle
}

/// The first rule in order that matches, as `OpenaiConfig` defines it.
fn expected_rule<'a>(
    seed: u64,
    rules: &[(&'a FaultRule, Vec<&str>)],
    call: &NodeCall,
    id: &str,
) -> Option<&'a str> {
    rules
        .iter()
        .find(|(rule, nodes)| {
            rule.on == call.kind
                && nodes.contains(&call.node.as_str())
                && (rule.attempts == Attempts::All || call.attempt == 1)
                && selects(seed, rule, id)
        })
        .map(|(rule, _)| rule.id.as_str())
}
