//! The fault oracle from two independent sources (design section 6): the rules as the scenario and the seed select
//! them, and what the nodes say they did. Where they disagree nothing may be concluded.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use scenario::control::NodeOutcome;
use scenario::draw::selected;
use scenario::fault::{Attempts, CallKind, FaultAction, Select};
use scenario::model::{FaultRule, Resolved};

use crate::calls::{Hits, Who};
use crate::lines::NodeCallLine;
use crate::requests::Ids;
use crate::table::{Fast, Name, Names};

/// Purpose of the selection draw of fault rules.
pub const SELECT_PURPOSE: &str = "fault";

/// What the oracle found.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// Differences between the two sources, in words; bounded.
    pub differences: Vec<String>,
    /// All differences, kept or not.
    pub differences_total: u64,
    /// Request ids that the differences are about: nothing may be concluded about what hit them.
    pub disputed: BTreeSet<String>,
    /// Calls on which both sources were compared.
    pub compared: u64,
    /// Distinct executed request ids hit, by rule.
    pub hit_ids: BTreeMap<String, HashSet<Who, Fast>>,
}

/// Differences that are kept in words.
const DIFFERENCES_MAX: usize = 1_000;

impl Oracle {
    fn differ(&mut self, id: &str, text: String) {
        self.disputed.insert(id.to_owned());
        self.differences_total += 1;
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(text);
        }
    }

    /// Differences about calls that belong to no request.
    pub(crate) fn differ_in_all(&mut self, texts: Vec<String>) {
        self.differences_total += texts.len() as u64;
        let room = DIFFERENCES_MAX.saturating_sub(self.differences.len());
        self.differences.extend(texts.into_iter().take(room));
    }
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

/// A rule that acts at nodes, with its nodes.
#[derive(Debug)]
struct NodeRule<'a> {
    rule: &'a FaultRule,
    nodes: Vec<&'a str>,
}

/// Compares both sources, call by call.
#[derive(Debug)]
pub(crate) struct OracleFold<'a> {
    seed: u64,
    rules: Vec<NodeRule<'a>>,
    logged: HashMap<(Name, Name, Who, u64), u64, Fast>,
    oracle: Oracle,
}

impl<'a> OracleFold<'a> {
    pub(crate) fn new(resolved: &'a Resolved, hits: &Hits) -> Self {
        let rules =
            resolved.scenario.faults.iter().filter(|rule| matches!(rule.action, FaultAction::Node(_)));
        let mut logged = HashMap::default();
        for hit in hits.iter() {
            if let Some(who) = hit.who {
                *logged.entry((hit.place, hit.rule, who, hit.attempt)).or_default() += 1;
            }
        }
        Self {
            seed: resolved.scenario.seed,
            rules: rules.map(|rule| NodeRule { rule, nodes: rule_nodes(resolved, rule) }).collect(),
            logged,
            oracle: Oracle::default(),
        }
    }

    /// An ended call of a planned request.
    pub(crate) fn take(
        &mut self,
        call: &NodeCallLine<'_>,
        node: Name,
        id: &str,
        ids: &Ids,
        names: &mut Names,
    ) {
        if matches!(call.outcome, NodeOutcome::Running | NodeOutcome::Rejected | NodeOutcome::BadRequest) {
            return;
        }
        self.oracle.compared += 1;
        let expected = self.expected_rule(call, id);
        let hit = call.rule.as_deref();
        let cut = matches!(call.outcome, NodeOutcome::ClientCancelled | NodeOutcome::Killed);
        if expected != hit && !(hit.is_none() && cut) {
            let text = format!(
                "call {} of {id} at {}: selected by {}, carried out {}",
                call.call,
                &*call.node,
                expected.unwrap_or("no rule"),
                hit.unwrap_or("no rule")
            );
            self.oracle.differ(id, text);
        }
        let Some(rule) = hit else { return };
        let who = Who::of(id, ids, names);
        match self.logged.get_mut(&(node, names.name(rule), who, call.attempt)) {
            Some(count) if *count > 0 => *count -= 1,
            _ => {
                let text = format!("call {} of {id} at {}: no hit logged", call.call, &*call.node);
                self.oracle.differ(id, text);
            }
        }
        if call.kind == CallKind::Execution {
            match self.oracle.hit_ids.get_mut(rule) {
                Some(known) => drop(known.insert(who)),
                None => {
                    self.oracle.hit_ids.entry(rule.to_owned()).or_default().insert(who);
                }
            }
        }
    }

    /// The first rule in order that matches, as `OpenaiConfig` defines it.
    fn expected_rule(&self, call: &NodeCallLine<'_>, id: &str) -> Option<&'a str> {
        let matching = self.rules.iter().find(|NodeRule { rule, nodes }| {
            rule.on == call.kind
                && nodes.contains(&&*call.node)
                && (rule.attempts == Attempts::All || call.attempt == 1)
                && selects(self.seed, rule, id)
        });
        matching.map(|matching| matching.rule.id.as_str())
    }

    pub(crate) fn finish(mut self, ids: &Ids, names: &Names) -> Oracle {
        let left = self.logged.into_iter().filter(|(_, count)| *count > 0);
        let mut left: Vec<(Name, Name, Who)> =
            left.map(|((place, rule, who, _), _)| (place, rule, who)).collect();
        left.sort_unstable();
        for (place, rule, who) in left {
            let id = who.id(ids, names);
            let (rule, place) = (names.word(rule), names.word(place));
            self.oracle.differ(&id, format!("hit of {rule} on {id} at {place} without a call"));
        }
        self.oracle.differences.sort_unstable();
        self.oracle
    }
}
