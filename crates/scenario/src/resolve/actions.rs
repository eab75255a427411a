//! What a scenario's actions may name: services, escrows, nodes, and numbers within their bounds.

use super::View;
use super::bounds::{self, within};
use crate::error::nearest;
use crate::model::{Action, AllocatorAction, ChainAction, GrantChange, ParamsChange, ServiceAction, Storage};
use crate::read::Problems;

/// Checks one action at `path`.
pub(super) fn check(view: &View<'_>, action: &ServiceAction, path: &str, problems: &mut Problems<'_>) {
    match action {
        ServiceAction::Stop(name)
        | ServiceAction::Start(name)
        | ServiceAction::Kill(name)
        | ServiceAction::Pause(name)
        | ServiceAction::Unpause(name)
        | ServiceAction::Restart(name)
        | ServiceAction::Disconnect(name)
        | ServiceAction::Connect(name) => known(name, &services(view), "service", path, problems),
        ServiceAction::Deactivate(ordinal) | ServiceAction::Settle(ordinal) => {
            escrow(view, *ordinal, path, problems);
        }
        ServiceAction::CreateEscrow(amount) => drop(within(path, *amount, (1, u64::MAX), problems)),
        ServiceAction::Chain(action) => on_chain(view, action, &format!("{path}.chain"), problems),
        ServiceAction::Allocator(action) => {
            at_allocator(view, action, &format!("{path}.allocator"), problems);
        }
    }
}

fn on_chain(view: &View<'_>, action: &ChainAction, path: &str, problems: &mut Problems<'_>) {
    match action {
        ChainAction::SwitchEpoch(_) | ChainAction::HoldBlocks(_) => {}
        ChainAction::Blocks(count) => drop(within(path, *count, (1, bounds::BURST_BLOCKS_MAX), problems)),
        ChainAction::Settle(ordinal) => escrow(view, *ordinal, path, problems),
        ChainAction::CutWebsocket(on) => {
            if !on {
                problems.add(path, format!("{path}: cut_websocket: false does nothing; leave it out"));
            }
        }
        // What a close frame may carry (RFC 6455 section 7.4).
        ChainAction::CloseWebsocket(code) => {
            if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                let text =
                    format!("{path}: {code} is no close code that may be sent; 1000, 1001 or 1011 are");
                problems.add(path, text);
            }
        }
        ChainAction::Params(change) => {
            if *change == ParamsChange::default() {
                problems.add(path, format!("{path}: params changes nothing; name one"));
            }
        }
        ChainAction::Grant(change) | ChainAction::Revoke(change) => grant(view, change, path, problems),
    }
}

/// Escrows of the start, and those that actions open.
fn escrow(view: &View<'_>, ordinal: u32, path: &str, problems: &mut Problems<'_>) {
    let opens = |action: &&Action| matches!(action.action, ServiceAction::CreateEscrow(_));
    let opened = view.scenario.actions.iter().filter(opens).count() as u64;
    within(path, ordinal.into(), (1, u64::from(view.scenario.devshard.escrows) + opened), problems);
}

fn grant(view: &View<'_>, change: &GrantChange, path: &str, problems: &mut Problems<'_>) {
    let hosts = hosts(view);
    known(&change.granter, &hosts, "participant", path, problems);
    known(&change.grantee, &hosts, "participant", path, problems);
    if change.granter == change.grantee {
        problems.add(path, format!("{path}: {:?} needs no grant to act for itself", change.granter));
    }
}

fn at_allocator(view: &View<'_>, action: &AllocatorAction, path: &str, problems: &mut Problems<'_>) {
    match action {
        AllocatorAction::Unavailable(node) | AllocatorAction::Available(node) => {
            let nodes: Vec<String> = view.nodes.iter().map(|node| node.name.clone()).collect();
            known(node, &nodes, "node", path, problems);
        }
        AllocatorAction::BlockHeight(height) => drop(within(path, *height, (1, u64::MAX), problems)),
    }
}

fn known(name: &str, known: &[String], what: &str, path: &str, problems: &mut Problems<'_>) {
    if !known.iter().any(|known| known == name) {
        let text = format!("{path}: there is no {what} {name:?}; known are {}", known.join(", "));
        problems.add_near(path, text, nearest(name, known.iter().map(String::as_str)));
    }
}

fn hosts(view: &View<'_>) -> Vec<String> {
    let participants = u64::from(view.scenario.devshard.participants).min(bounds::PARTICIPANTS_MAX);
    (0..participants).map(|host| format!("host-{host}")).collect()
}

fn services(view: &View<'_>) -> Vec<String> {
    let devshard = &view.scenario.devshard;
    let mut known: Vec<String> =
        ["gateway", "router", "mock-chain", "mock-dapi", "mock-openai"].map(str::to_owned).to_vec();
    for host in hosts(view) {
        // With several processes a participant each can be named (design section 4).
        if devshard.replicas > 1 {
            let replicas = u64::from(devshard.replicas).min(bounds::REPLICAS_MAX);
            known.extend((0..replicas).map(|replica| format!("{host}-{replica}")));
        }
        known.push(host);
    }
    if devshard.storage == Storage::Postgres {
        known.push("postgres".to_owned());
    }
    known.extend(view.nodes.iter().map(|node| node.name.clone()));
    known
}
