//! The pool: instances, profiles, overrides, weights, and the failures that a profile brings along as rules.

use std::collections::{BTreeMap, BTreeSet};

use super::bounds::{self, within};
use super::{check_name, expects};
use crate::error::nearest;
use crate::fault::{Attempts, CallKind, FaultAction, NodeFault, Place, Select};
use crate::model::{FaultRule, Node, Policy, PoolEntry, Scenario};
use crate::profile::Profile;
use crate::read::Problems;

/// Services that a node can't be named after.
const SERVICES: [&str; 9] =
    ["gateway", "router", "loadgen", "runner", "postgres", "mock-openai", "mock-dapi", "mock-chain", "guard"];

/// Checks what a profile says by itself.
pub(crate) fn check_profile(profile: &Profile, problems: &mut Problems<'_>) {
    if profile.version != 1 {
        problems
            .add("version", format!("version is {}, but this build reads version 1 only", profile.version));
    }
    within("workers", profile.workers.into(), (1, bounds::WORKERS_MAX), problems);
    within("queue", profile.queue.into(), (0, bounds::QUEUE_MAX), problems);
    for (index, failure) in profile.failures.iter().enumerate() {
        let path = format!("failures[{index}].http_status");
        within(&path, failure.http_status.into(), (400, 599), problems);
    }
    if !profile.expect.is_empty() {
        expects::check(&profile.expect, "expect", "the profile", problems);
    }
}

/// Makes the instances, in the order of the pool.
pub(super) fn expand(
    scenario: &Scenario,
    profiles: &BTreeMap<String, Profile>,
    problems: &mut Problems<'_>,
) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut names = BTreeSet::new();
    for (index, entry) in scenario.pool.iter().enumerate() {
        let path = format!("pool[{index}]");
        check_name(&entry.name, &format!("{path}.name"), problems);
        let profile = profiles.get(&entry.profile);
        if profile.is_none() {
            let path = format!("{path}.profile");
            let text = format!("{path}: there is no ML profile {:?}", entry.profile);
            problems.add_near(&path, text, nearest(&entry.profile, profiles.keys().map(String::as_str)));
        }
        check_sizes(entry, &path, problems);
        for name in instance_names(entry) {
            let taken = SERVICES.contains(&name.as_str()) || name.starts_with("host-");
            if taken || !names.insert(name.clone()) {
                let why = if taken { "the name of a service" } else { "named twice" };
                problems.add(&format!("{path}.name"), format!("{path}.name: the node {name:?} is {why}"));
            }
            let Some(profile) = profile else { continue };
            let mut behaviour = profile.clone();
            behaviour.workers = entry.workers.unwrap_or(behaviour.workers);
            behaviour.queue = entry.queue.unwrap_or(behaviour.queue);
            nodes.push(Node {
                weight: weight(scenario, entry, &name),
                name,
                entry: entry.name.clone(),
                profile: entry.profile.clone(),
                behaviour,
            });
        }
    }
    check_entries(&scenario.pool, &names, problems);
    let count: u64 = scenario.pool.iter().map(|entry| u64::from(entry.count)).sum();
    if !(bounds::NODES_MIN..=bounds::NODES_MAX).contains(&count) {
        let text = format!(
            "the pool has {count} node{}, but must have from {} to {}: with one node nothing can rotate",
            if count == 1 { "" } else { "s" },
            bounds::NODES_MIN,
            bounds::NODES_MAX
        );
        problems.add("pool", text);
    }
    check_allocator(scenario, &names, problems);
    nodes
}

/// `name`, or `name-0`, `name-1`, … when there are several. Bounded, whatever the file says.
fn instance_names(entry: &PoolEntry) -> Vec<String> {
    let count = u64::from(entry.count).min(bounds::NODES_MAX);
    match entry.count {
        1 => vec![entry.name.clone()],
        _ => (0..count).map(|index| format!("{}-{index}", entry.name)).collect(),
    }
}

fn check_sizes(entry: &PoolEntry, path: &str, problems: &mut Problems<'_>) {
    within(&format!("{path}.count"), entry.count.into(), (1, bounds::NODES_MAX), problems);
    if let Some(workers) = entry.workers {
        within(&format!("{path}.workers"), workers.into(), (1, bounds::WORKERS_MAX), problems);
    }
    if let Some(queue) = entry.queue {
        within(&format!("{path}.queue"), queue.into(), (0, bounds::QUEUE_MAX), problems);
    }
}

/// An entry must not bear the name of another entry or of another entry's instance: rules name either.
fn check_entries(pool: &[PoolEntry], instances: &BTreeSet<String>, problems: &mut Problems<'_>) {
    let mut entries = BTreeSet::new();
    for (index, entry) in pool.iter().enumerate() {
        let twice = !entries.insert(&entry.name) && entry.count != 1;
        let instance = entry.count != 1 && instances.contains(&entry.name);
        if twice || instance {
            let path = format!("pool[{index}].name");
            problems.add(&path, format!("{path}: the node {:?} is named twice", entry.name));
        }
    }
}

fn weight(scenario: &Scenario, entry: &PoolEntry, instance: &str) -> u32 {
    let weights = &scenario.allocator.weights;
    weights.get(instance).or_else(|| weights.get(&entry.name)).copied().unwrap_or(1)
}

fn check_allocator(scenario: &Scenario, instances: &BTreeSet<String>, problems: &mut Problems<'_>) {
    let allocator = &scenario.allocator;
    let entries: BTreeSet<&str> = scenario.pool.iter().map(|entry| entry.name.as_str()).collect();
    let known = || entries.iter().copied().chain(instances.iter().map(String::as_str));
    for (name, weight) in &allocator.weights {
        let path = format!("allocator.weights.{name}");
        if !known().any(|known| known == name) {
            let text = format!("allocator.weights names {name:?}, which is no node of the pool");
            problems.add_near(&path, text, nearest(name, known()));
        }
        within(&path, (*weight).into(), (1, bounds::WEIGHT_MAX), problems);
    }
    if !allocator.weights.is_empty() && allocator.policy != Policy::SeededWeighted {
        let text =
            "allocator.weights works with policy: seeded-weighted only; leave it out or change the policy";
        problems.add("allocator.weights", text.to_owned());
    }
    for (index, name) in allocator.order.iter().enumerate() {
        if !instances.contains(name) {
            let path = format!("allocator.order[{index}]");
            let text = format!("{path} names {name:?}, which is no instance of the pool");
            problems.add_near(&path, text, nearest(name, instances.iter().map(String::as_str)));
        }
    }
    if allocator.order.is_empty() == (allocator.policy == Policy::FixedOrder) {
        let text = "allocator.order belongs to policy: fixed-order, and that policy needs it";
        problems.add("allocator", text.to_owned());
    }
    if allocator.lease.is_some_and(|lease| lease.us() == 0) {
        problems
            .add("allocator.lease", "allocator.lease is zero: a lock would end before its use".to_owned());
    }
}

/// The failures of the profiles as rules, named `<profile>/<n>` and in the order of the pool. Two entries of one
/// profile share the name but not the place, so that the second one gets the entry's name too.
pub(super) fn failure_rules(
    scenario: &Scenario,
    nodes: &[Node],
    problems: &mut Problems<'_>,
) -> Vec<FaultRule> {
    let mut rules: Vec<FaultRule> = Vec::new();
    for (index, entry) in scenario.pool.iter().enumerate() {
        let Some(node) = nodes.iter().find(|node| node.entry == entry.name) else { continue };
        let profile = &node.behaviour;
        let path = format!("pool[{index}].expect");
        let expect = if entry.expect.is_empty() { &profile.expect } else { &entry.expect };
        match (profile.failures.is_empty(), expect.is_empty()) {
            (true, _) if !entry.expect.is_empty() => {
                let text =
                    format!("{path} is for the failures of the profile, but {:?} has none", entry.profile);
                problems.add(&path, text);
            }
            (true, _) => {}
            (false, _) => {
                let whose =
                    format!("the profile {:?} of node {:?} has failures, but", entry.profile, entry.name);
                expects::check(expect, &path, &whose, problems);
            }
        }
        for (n, failure) in profile.failures.iter().enumerate() {
            let mut id = format!("{}/{n}", entry.profile);
            if rules.iter().any(|rule| rule.id == id) {
                id = format!("{id}/{}", entry.name);
            }
            rules.push(FaultRule {
                id,
                place: Place { node: Some(entry.name.clone()), ..Place::default() },
                on: CallKind::Execution,
                select: Select::Fraction(failure.request_id_hash_fraction),
                attempts: Attempts::All,
                action: FaultAction::Node(NodeFault::Status(failure.http_status)),
                expect: expect.clone(),
            });
        }
    }
    rules
}
