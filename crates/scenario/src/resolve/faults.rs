//! Rules about fault rules: ids, places, selections, values of actions.

use std::collections::BTreeSet;

use super::bounds::{self, within};
use super::{View, check_name, expects};
use crate::error::nearest;
use crate::fault::{
    Attempts, CallKind, ChainFault, DapiCall, DapiFault, FaultAction, NodeFault, Place, Select,
};
use crate::identity::RequestId;
use crate::model::FaultRule;
use crate::read::Problems;
use crate::units::Micros;

/// Methods of the chain that a rule may name (contract mocks 5).
pub const CHAIN_METHODS: [&str; 14] = [
    "Params",
    "EpochInfo",
    "GetCurrentEpoch",
    "DevshardEscrow",
    "Participant",
    "AccountByAddress",
    "GranteesByMessageType",
    "EpochGroupData",
    "PreservedNodesSnapshot",
    "Account",
    "BroadcastTx",
    "GetTx",
    "GetLatestBlock",
    "GetNodeInfo",
];

pub(super) fn check(view: &View<'_>, problems: &mut Problems<'_>) {
    let faults = &view.scenario.faults;
    if faults.len() as u64 > bounds::RULES_MAX {
        problems
            .add("faults", format!("there are {} fault rules, at most {}", faults.len(), bounds::RULES_MAX));
        return;
    }
    let mut ids = BTreeSet::new();
    for (index, rule) in faults.iter().enumerate() {
        let path = format!("faults[{index}]");
        check_name(&rule.id, &format!("{path}.id"), problems);
        if !ids.insert(&rule.id) {
            problems.add(&format!("{path}.id"), format!("{path}.id: the rule {:?} is named twice", rule.id));
        }
        check_place(view, rule, &path, problems);
        check_select(view, &rule.select, &format!("{path}.select"), problems);
        check_action(&rule.action, &rule.place, &path, problems);
        expects::check(&rule.expect, &format!("{path}.expect"), &format!("the rule {:?}", rule.id), problems);
    }
}

fn check_place(view: &View<'_>, rule: &FaultRule, path: &str, problems: &mut Problems<'_>) {
    let place = &rule.place;
    let at = format!("{path}.where");
    if let Some(node) = &place.node {
        view.check_node(node, &format!("{at}.node"), problems);
        if matches!(rule.select, Select::Calls(_)) {
            let text = format!("{path}.select: `calls` is for dapi and chain; a node rule selects requests");
            problems.add(&format!("{path}.select"), text);
        }
    } else {
        // Calls of the allocator and of the chain carry no request id (design section 8).
        if matches!(rule.select, Select::Fraction(_) | Select::Ids(_)) {
            let text = format!(
                "{path}.select: dapi and chain calls carry no request id; select `calls: [1, 2]` or `all: true`"
            );
            problems.add(&format!("{path}.select"), text);
        }
        if rule.on != CallKind::Execution {
            problems.add(&format!("{path}.on"), format!("{path}.on is for node rules only"));
        }
        if rule.attempts != Attempts::All {
            problems.add(&format!("{path}.attempts"), format!("{path}.attempts is for node rules only"));
        }
    }
    if let Some(host) = &place.host {
        check_host(view, place, host, &at, problems);
    }
    if let Some(method) = &place.chain
        && method != "*"
        && !CHAIN_METHODS.contains(&method.as_str())
    {
        let at = format!("{at}.chain");
        let text =
            format!("{at}: the chain has no query {method:?}; known are *, {}", CHAIN_METHODS.join(", "));
        problems.add_near(&at, text, nearest(method, CHAIN_METHODS));
    }
}

fn check_host(view: &View<'_>, place: &Place, host: &str, at: &str, problems: &mut Problems<'_>) {
    let at = format!("{at}.host");
    if place.dapi.is_none() {
        problems.add(&at, format!("{at} goes with `dapi` only"));
        return;
    }
    let participants = view.scenario.devshard.participants;
    let known: Vec<String> =
        (0..participants).map(|i| format!("host-{i}")).chain(["gateway".to_owned()]).collect();
    if !known.iter().any(|known| known == host) {
        let text = format!("{at}: there is no host {host:?}; known are {}", known.join(", "));
        problems.add_near(&at, text, nearest(host, known.iter().map(String::as_str)));
    }
}

/// Rules of every selection, of faults and of cancels.
pub(super) fn check_select(view: &View<'_>, select: &Select, path: &str, problems: &mut Problems<'_>) {
    let length = |len: usize, problems: &mut Problems<'_>| {
        within(path, len as u64, (1, bounds::LIST_MAX), problems);
    };
    match select {
        Select::All(false) => {
            problems.add(path, format!("{path}: `all: false` selects nothing; leave the rule out"));
        }
        Select::All(true) | Select::Fraction(_) => {}
        Select::Ids(ids) => {
            length(ids.len(), problems);
            for (index, id) in ids.iter().enumerate() {
                check_id(view, id, &format!("{path}.ids[{index}]"), problems);
            }
        }
        Select::Calls(calls) => {
            length(calls.len(), problems);
            let rising = calls.windows(2).all(|pair| pair[0] < pair[1]);
            if calls.contains(&0) || !rising {
                problems.add(path, format!("{path}.calls counts from 1, each once and in rising order"));
            }
        }
    }
}

/// An id must be one of the plan; else the rule would silently select nothing.
pub(super) fn check_id(view: &View<'_>, id: &RequestId, path: &str, problems: &mut Problems<'_>) {
    let scenario = view.scenario;
    let index = id.as_str().rsplit_once('-').and_then(|(_, digits)| digits.parse::<u64>().ok());
    let planned = index.is_some_and(|index| {
        index < view.requests_max && *id == RequestId::new(&scenario.name, scenario.seed, index)
    });
    if !planned {
        let first = RequestId::new(&scenario.name, scenario.seed, 0);
        let last = RequestId::new(&scenario.name, scenario.seed, view.requests_max.saturating_sub(1));
        let shown: String = id.as_str().chars().take(60).collect();
        problems
            .add(path, format!("{path}: {shown:?} is not in the plan, which goes from {first} to {last}"));
    }
}

fn check_action(action: &FaultAction, place: &Place, path: &str, problems: &mut Problems<'_>) {
    let path = format!("{path}.do");
    match action {
        FaultAction::Node(fault) => check_node_fault(fault, &path, problems),
        FaultAction::Dapi(fault) => check_dapi_fault(fault, place, &path, problems),
        FaultAction::Chain(fault) => check_chain_fault(fault, &path, problems),
    }
}

fn check_node_fault(fault: &NodeFault, path: &str, problems: &mut Problems<'_>) {
    match fault {
        NodeFault::Status(status) => {
            within(&format!("{path}.status"), (*status).into(), (400, 599), problems);
        }
        NodeFault::DelayHeaders(time) | NodeFault::DelayFirstContent(time) | NodeFault::SlowTokens(time) => {
            not_zero(*time, path, problems);
        }
        NodeFault::Stall(stall) => not_zero(stall.pause, path, problems),
        NodeFault::OversizeEvent(bytes) => {
            within(&format!("{path}.oversize_event"), *bytes, (1, bounds::EVENT_BYTES_MAX), problems);
        }
        NodeFault::CutInUtf8(cut) if cut.events == 0 => {
            problems.add(path, format!("{path}.cut_in_utf8.events counts from 1: it cuts inside that event"));
        }
        NodeFault::CutAfterEvents(_) | NodeFault::CutInUtf8(_) => {}
        NodeFault::DropFirstContent(on)
        | NodeFault::OmitDone(on)
        | NodeFault::OmitUsage(on)
        | NodeFault::MalformedJson(on)
        | NodeFault::MalformedSse(on)
        | NodeFault::ErrorEvent(on)
        | NodeFault::ResetBeforeHeaders(on)
        | NodeFault::CloseBeforeHeaders(on)
        | NodeFault::WrongContentType(on) => is_on(*on, path, problems),
    }
}

fn check_dapi_fault(fault: &DapiFault, place: &Place, path: &str, problems: &mut Problems<'_>) {
    match fault {
        DapiFault::Reject(_) => {}
        DapiFault::Delay(time) => not_zero(*time, path, problems),
        DapiFault::LoseRelease(on) => {
            is_on(*on, path, problems);
            if place.dapi != Some(DapiCall::Release) {
                problems.add(path, format!("{path}: lose_release goes with `dapi: ReleaseMLNode` only"));
            }
        }
        DapiFault::Outage(on) => is_on(*on, path, problems),
    }
}

fn check_chain_fault(fault: &ChainFault, path: &str, problems: &mut Problems<'_>) {
    match fault {
        ChainFault::Delay(time) => not_zero(*time, path, problems),
        ChainFault::Fail(on)
        | ChainFault::Outage(on)
        | ChainFault::CutWebsocket(on)
        | ChainFault::HoldBlocks(on) => is_on(*on, path, problems),
        // Only these codes may travel in a close frame (RFC 6455 section 7.4).
        ChainFault::CloseWebsocket(code) if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) => {
            let text = format!("{path}: {code} is no close code; use 1001, 1011 or 3000 to 4999");
            problems.add(path, text);
        }
        ChainFault::CloseWebsocket(_) => {}
        ChainFault::BurstBlocks(count) => {
            within(&format!("{path}.burst_blocks"), *count, (1, bounds::BURST_BLOCKS_MAX), problems);
        }
    }
}

fn is_on(on: bool, path: &str, problems: &mut Problems<'_>) {
    if !on {
        problems.add(path, format!("{path}: an action that is false does nothing; leave the rule out"));
    }
}

fn not_zero(time: Micros, path: &str, problems: &mut Problems<'_>) {
    if time == Micros::ZERO {
        problems.add(path, format!("{path}: a wait of zero does nothing; leave the rule out"));
    }
}
