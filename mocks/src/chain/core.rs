//! The chain with its faults: ordinals of calls, the rule that a call meets, counters. No transport in here.

use std::collections::BTreeMap;

use scenario::control::{BlockPace, CONTROL_VERSION, ChainAct, ChainConfig, ChainRule, ChainStats};
use scenario::fault::{ChainFault, Select};

use crate::chain::config::{self, BURST_MAX};
use crate::chain::ledger::Ledger;
use crate::ordinal::selects;

/// A rule that matched a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Rule id.
    pub rule: String,
    /// What is done.
    pub action: ChainFault,
    /// Ordinal by which it matched: of the method, or over all methods when the rule names `*`.
    pub ordinal: u64,
}

/// A call that has been counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Ordinal of this method, from 1.
    pub ordinal: u64,
    /// The first rule that matches, if any.
    pub fault: Option<Fault>,
}

/// What the websocket side has to do because a rule came into force. Such a rule acts once, at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Cut every open connection.
    Cut(String),
    /// Close every open connection with this code.
    Close(String, u16),
    /// Blocks stop.
    Hold(String),
    /// This many blocks were produced at once.
    Burst(String, u64),
}

/// Ledger, rules in force and counters.
#[derive(Debug)]
pub struct Core {
    /// The chain itself.
    pub ledger: Ledger,
    calls: BTreeMap<String, u64>,
    calls_total: u64,
    /// Blocks are held by an admin action.
    held: bool,
}

impl Core {
    /// Around a ledger.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        Self { ledger, calls: BTreeMap::new(), calls_total: 0, held: false }
    }

    /// Counts a call and finds the rule that it meets. An outage comes before all others.
    pub fn arrive(&mut self, method: &str) -> Arrival {
        let of_method = self.calls.entry(method.to_owned()).or_default();
        *of_method += 1;
        let ordinal = *of_method;
        self.calls_total += 1;
        let total = self.calls_total;
        let by = |rule: &ChainRule| if rule.method == "*" { total } else { ordinal };
        let meets = |rule: &&ChainRule| {
            let on = matches!(rule.action, ChainFault::Delay(_) | ChainFault::Fail(true));
            on && (rule.method == "*" || rule.method == method) && selects(&rule.select, by(rule))
        };
        let rules = &self.ledger.config().rules;
        let found = rules.iter().find(|rule| is_outage(rule)).or_else(|| rules.iter().find(meets));
        let fault =
            found.map(|rule| Fault { rule: rule.id.clone(), action: rule.action.clone(), ordinal: by(rule) });
        Arrival { ordinal, fault }
    }

    /// Whether every call fails now.
    #[must_use]
    pub fn in_outage(&self) -> bool {
        self.ledger.config().rules.iter().any(is_outage)
    }

    /// Whether a rule or an admin action holds the blocks.
    #[must_use]
    pub fn holds_blocks(&self) -> bool {
        self.held || self.ledger.config().rules.iter().any(|rule| is_on(rule, &ChainFault::HoldBlocks(true)))
    }

    /// Replaces the configuration and says what came into force by it. Bursts have been produced on return.
    ///
    /// # Errors
    /// Why it was refused; nothing has changed then.
    pub fn apply(&mut self, new: ChainConfig) -> Result<Vec<Edge>, String> {
        let old = self.ledger.config().rules.clone();
        self.ledger.apply(new)?;
        // A rule that stood there before, under any position, does not act again.
        let fresh = self.ledger.config().rules.iter().filter(|rule| !old.contains(rule));
        let edges: Vec<Edge> =
            fresh.filter(|rule| rule.select != Select::All(false)).filter_map(edge).collect();
        for edge in &edges {
            if let Edge::Burst(_, count) = edge {
                self.ledger.produce(*count);
            }
        }
        Ok(edges)
    }

    /// The part of an admin action that is done at once; the transports of [`super::shared`] do the rest.
    ///
    /// # Errors
    /// Why it can't be done.
    pub fn act(&mut self, act: &ChainAct) -> Result<(), String> {
        match act {
            ChainAct::AdvanceEpoch { pace: BlockPace::Burst } => self.ledger.advance_epoch(),
            ChainAct::AdvanceEpoch { pace: BlockPace::OneByOne } => {}
            ChainAct::Hold { on } => self.held = *on,
            ChainAct::CutWebsockets => {}
            ChainAct::CloseWebsockets { code } => config::check_close_code(*code)?,
            ChainAct::Blocks { count } if *count == 0 || *count > BURST_MAX => {
                return Err(format!("`count` is {count}, 1 to {BURST_MAX} blocks can be produced at once"));
            }
            ChainAct::Blocks { count } => self.ledger.produce(*count),
            ChainAct::Settle { escrow } => {
                self.ledger.settle_by_admin(*escrow).map_err(|refused| refused.0)?;
            }
        }
        Ok(())
    }

    /// Counters, without subscriptions and CPU time.
    #[must_use]
    pub fn stats(&self) -> ChainStats {
        let saved = self.ledger.saved();
        ChainStats {
            v: CONTROL_VERSION,
            height: saved.height,
            epoch: saved.epoch,
            calls: self.calls.clone(),
            transactions: saved.transactions_total,
            settled: self.ledger.settled(),
            held: self.held,
            ..ChainStats::default()
        }
    }
}

fn is_on(rule: &ChainRule, action: &ChainFault) -> bool {
    rule.action == *action && rule.select != Select::All(false)
}

fn is_outage(rule: &ChainRule) -> bool {
    is_on(rule, &ChainFault::Outage(true))
}

fn edge(rule: &ChainRule) -> Option<Edge> {
    let id = rule.id.clone();
    match rule.action {
        ChainFault::CutWebsocket(true) => Some(Edge::Cut(id)),
        ChainFault::CloseWebsocket(code) => Some(Edge::Close(id, code)),
        ChainFault::HoldBlocks(true) => Some(Edge::Hold(id)),
        ChainFault::BurstBlocks(count) => Some(Edge::Burst(id, count)),
        _ => None,
    }
}
