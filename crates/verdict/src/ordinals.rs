//! Rules at the allocator and on the chain: their calls carry no request id, so that a rule selects by ordinal. What the
//! hit log tells is held against the scenario and against the log of calls; where they disagree nothing may be concluded.
//!
//! Ordinals are given when a call arrives, and with them the decision about its fault: their order is the order of the
//! decisions, whatever the order in which calls end and are logged.

use std::collections::{BTreeMap, BTreeSet};

use scenario::fault::{ChainFault, DapiCall, DapiFault, FaultAction, Select};
use scenario::model::{FaultRule, Resolved};

use crate::calls::Hits;
use crate::lines::Text;
use crate::table::Names;

/// Of `faults/dapi-calls.jsonl`: read a second time, and only where a rule is about it.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct DapiLine<'a> {
    call: DapiCall,
    #[serde(borrow)]
    host: Text<'a>,
    ordinal: u64,
    #[serde(borrow)]
    rule: Option<Text<'a>>,
}

/// Of `faults/chain-calls.jsonl`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct ChainLine<'a> {
    #[serde(borrow)]
    method: Text<'a>,
    ordinal: u64,
    #[serde(borrow)]
    rule: Option<Text<'a>>,
}

/// Ordinals of the calls of one kind that a rule is about.
#[derive(Debug, Default)]
struct Seen {
    /// Those that it hit.
    hit: BTreeSet<u64>,
    /// Those that no rule hit.
    free: BTreeSet<u64>,
}

/// A rule and its calls.
#[derive(Debug)]
struct Watched<'a> {
    rule: &'a FaultRule,
    /// By name of the call.
    calls: BTreeMap<String, Seen>,
    /// Calls in the log that name the rule.
    logged: u64,
    /// Its mock began anew during the run, and its ordinals with it.
    anew: bool,
}

impl Watched<'_> {
    fn take(&mut self, call: &str, ordinal: u64, rule: Option<&str>) {
        let seen = self.calls.entry(call.to_owned()).or_default();
        match rule {
            Some(id) if id == self.rule.id => {
                self.logged += 1;
                seen.hit.insert(ordinal);
            }
            Some(_) => {}
            None => drop(seen.free.insert(ordinal)),
        }
    }

    /// Where the calls are those that the allocator holds open: an outage reaches them in the middle, so that their
    /// order says nothing.
    fn dapi(&mut self, line: &DapiLine<'_>) {
        let outage = is_outage(self.rule);
        let place = &self.rule.place;
        let hit = line.rule.as_deref() == Some(self.rule.id.as_str());
        let here = place.host.as_deref().is_none_or(|host| host == &*line.host);
        let of_call =
            if outage { line.call != DapiCall::RuntimeConfig } else { place.dapi == Some(line.call) };
        if here && of_call {
            self.take(&format!("{:?}", line.call), line.ordinal, line.rule.as_deref());
        } else if hit {
            self.logged += 1;
        }
    }

    fn chain(&mut self, line: &ChainLine<'_>) {
        let method = self.rule.place.chain.as_deref();
        if is_outage(self.rule) || method == Some("*") || method == Some(&*line.method) {
            self.take(&line.method, line.ordinal, line.rule.as_deref());
        }
    }

    /// What is not as the scenario selects. `attempts` are the ordinals of the hit log.
    fn differences(&self, attempts: &[u64]) -> Vec<String> {
        let id = &self.rule.id;
        let mut found = Vec::new();
        if acts_by_call(self.rule) && self.logged != attempts.len() as u64 {
            found.push(format!("{} hits of {id}, {} calls that show it", attempts.len(), self.logged));
        }
        if is_outage(self.rule) || !acts_by_call(self.rule) {
            return found.into_iter().chain(self.passed_by()).collect();
        }
        if let Select::Calls(listed) = &self.rule.select {
            let stray = attempts.iter().filter(|attempt| !listed.contains(attempt));
            found.extend(stray.map(|attempt| format!("{id} hit call {attempt}, which it does not select")));
            let due = listed.iter().filter(|ordinal| !attempts.contains(ordinal));
            found.extend(due.map(|ordinal| {
                format!("{id} did not hit call {ordinal}: none came, or it came before the rules were on")
            }));
            return found;
        }
        found.into_iter().chain(self.passed_by()).collect()
    }

    /// Calls that arrived between two that the rule hit and were let through.
    fn passed_by(&self) -> Option<String> {
        if self.anew || !matches!(self.rule.select, Select::All(true)) {
            return None;
        }
        self.calls.iter().find_map(|(call, seen)| {
            let (first, last) = (*seen.hit.first()?, *seen.hit.last()?);
            let free = seen.free.range(first..last).next()?;
            Some(format!("{} hit {call} {first} and {last} and let {free} through", self.rule.id))
        })
    }
}

fn is_outage(rule: &FaultRule) -> bool {
    matches!(rule.action, FaultAction::Dapi(DapiFault::Outage(_)) | FaultAction::Chain(ChainFault::Outage(_)))
}

/// Whether the rule acts on calls; what it does to websockets and blocks happens once, when it is switched on.
const fn acts_by_call(rule: &FaultRule) -> bool {
    match &rule.action {
        FaultAction::Node(_) => false,
        FaultAction::Dapi(_) => true,
        FaultAction::Chain(fault) => {
            matches!(fault, ChainFault::Delay(_) | ChainFault::Fail(_) | ChainFault::Outage(_))
        }
    }
}

/// All such rules of a scenario.
#[derive(Debug)]
pub(crate) struct OrdinalFold<'a> {
    rules: Vec<Watched<'a>>,
}

impl<'a> OrdinalFold<'a> {
    pub(crate) fn new(resolved: &'a Resolved) -> Self {
        let ends =
            |mock: &str| resolved.scenario.actions.iter().any(|action| action.action.service() == Some(mock));
        let (dapi, chain) = (ends("mock-dapi"), ends("mock-chain"));
        let watched = |rule: &'a FaultRule| {
            let anew = match rule.action {
                FaultAction::Node(_) => return None,
                FaultAction::Dapi(_) => dapi,
                FaultAction::Chain(_) => chain,
            };
            Some(Watched { rule, calls: BTreeMap::new(), logged: 0, anew })
        };
        Self { rules: resolved.scenario.faults.iter().filter_map(watched).collect() }
    }

    /// Whether a rule is about the allocator.
    pub(crate) fn needs_dapi(&self) -> bool {
        self.rules.iter().any(|watched| matches!(watched.rule.action, FaultAction::Dapi(_)))
    }

    /// Whether a rule is about the chain: a run without such rules may have no log of its calls.
    pub(crate) fn needs_chain(&self) -> bool {
        self.rules.iter().any(|watched| matches!(watched.rule.action, FaultAction::Chain(_)))
    }

    pub(crate) fn take_dapi(&mut self, line: &DapiLine<'_>) {
        let at_dapi = |watched: &&mut Watched<'_>| matches!(watched.rule.action, FaultAction::Dapi(_));
        self.rules.iter_mut().filter(at_dapi).for_each(|watched| watched.dapi(line));
    }

    pub(crate) fn take_chain(&mut self, line: &ChainLine<'_>) {
        let on_chain = |watched: &&mut Watched<'_>| matches!(watched.rule.action, FaultAction::Chain(_));
        self.rules.iter_mut().filter(on_chain).for_each(|watched| watched.chain(line));
    }

    /// Everything that is not as it was selected, in words.
    pub(crate) fn finish(self, hits: &Hits, names: &Names) -> Vec<String> {
        let mut attempts: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for hit in hits.iter() {
            attempts.entry(names.word(hit.rule)).or_default().push(hit.attempt);
        }
        let of = |watched: &Watched<'_>| {
            watched.differences(attempts.get(watched.rule.id.as_str()).map_or(&[], Vec::as_slice))
        };
        self.rules.iter().flat_map(of).collect()
    }
}
