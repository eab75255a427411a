//! Actions on the chain and at the allocator: orders to the mocks, and a look afterwards whether they took effect.

use std::time::Duration;

use evidence::event::EventKind;
use scenario::control::{
    ChainAct, ChainConfig, ChainGrant, ChainStats, DapiConfig, MockConfig, basis_points,
};
use scenario::model::{AllocatorAction, ChainAction, GrantChange, ParamsChange};

use super::actions::{Deed, escrow_id};
use crate::collect::snapshot::ABSENT;
use crate::control::Control;
use crate::error::RunnerError;
use crate::stack::{Context, Running};

/// Message type for which hosts look grants up (contract mocks 5.3).
const GRANTED: &str = "/inference.inference.MsgStartInference";
/// Looks until a websocket has ended, and the pause between.
const LOOKS_MAX: u32 = 50;
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// An action on the chain.
///
/// # Errors
/// [`RunnerError`] when the run can't go on; what the stack can't do is a refusal in words.
pub async fn on_chain(
    action: &ChainAction,
    running: &Running,
    context: &mut Context<'_>,
) -> Result<Deed, RunnerError> {
    let Some(chain) = &running.mocks.chain else { return Ok(Err(ABSENT.to_owned())) };
    context.dispatcher.through(chain_deed(action, chain, running)).await
}

async fn chain_deed(action: &ChainAction, chain: &Control, running: &Running) -> Deed {
    let before: ChainStats = chain.stats().await?;
    match action {
        ChainAction::SwitchEpoch(pace) => {
            let after = act(chain, &ChainAct::AdvanceEpoch { pace: *pace }).await?;
            if after.epoch != before.epoch + 1 {
                return Err(format!("reading back: the epoch is {} after {}", after.epoch, before.epoch));
            }
            announce(running, |dapi| {
                dapi.runtime.epoch = after.epoch;
                // The height of the epoch document is again that of its epoch.
                dapi.oracle.block_height = None;
            })
            .await?;
            let (from, to) = (before.height, after.height);
            Ok(Some(format!("epoch {} to {}, height {from} to {to}", before.epoch, after.epoch)))
        }
        ChainAction::Blocks(count) => {
            let after = act(chain, &ChainAct::Blocks { count: *count }).await?;
            if after.height < before.height + count {
                return Err(format!("reading back: height {} after {}", after.height, before.height));
            }
            Ok(Some(format!("height {} to {}", before.height, after.height)))
        }
        ChainAction::HoldBlocks(on) => {
            let after = act(chain, &ChainAct::Hold { on: *on }).await?;
            let shown = if after.held { "held" } else { "running" };
            if after.held == *on {
                Ok(Some(format!("blocks are {shown} at height {}", after.height)))
            } else {
                Err(format!("reading back: blocks are {shown}"))
            }
        }
        ChainAction::Settle(ordinal) => {
            let id = escrow_id(*ordinal, running)?;
            let escrow = id.parse().map_err(|_| format!("escrow {id:?} has no number"))?;
            let after = act(chain, &ChainAct::Settle { escrow }).await?;
            is_settled(&id, &after)
        }
        ChainAction::CutWebsocket(_) => websockets(chain, &ChainAct::CutWebsockets, &before).await,
        ChainAction::CloseWebsocket(code) => {
            websockets(chain, &ChainAct::CloseWebsockets { code: *code }, &before).await
        }
        ChainAction::Params(change) => params(change, chain, running).await,
        ChainAction::Grant(change) => grants(change, true, chain).await,
        ChainAction::Revoke(change) => grants(change, false, chain).await,
    }
}

/// Whether the chain shows an escrow as settled.
///
/// # Errors
/// As [`on_chain`].
pub async fn settled(id: &str, running: &Running, context: &mut Context<'_>) -> Result<Deed, RunnerError> {
    let stats = context.dispatcher.through(running.mocks.chain_stats()).await?;
    Ok(match stats {
        Ok(stats) => is_settled(id, &stats),
        Err(why) if why == ABSENT => Ok(None),
        Err(why) => Err(format!("reading back: {why}")),
    })
}

/// What actions left on at the chain goes off for the drain: blocks that are held.
///
/// # Errors
/// [`RunnerError::Environment`] when the chain does not obey.
pub async fn undo(running: &Running, context: &mut Context<'_>) -> Result<(), RunnerError> {
    let Some(chain) = &running.mocks.chain else { return Ok(()) };
    // A chain that does not answer is down, and the provider brings it back; it starts without a hold.
    let stats: Result<ChainStats, String> = context.dispatcher.through(chain.stats()).await?;
    if !stats.is_ok_and(|stats| stats.held) {
        return Ok(());
    }
    context.dispatcher.log(EventKind::Note { text: "for the drain: blocks go on".to_owned() })?;
    let done = context.dispatcher.through(act(chain, &ChainAct::Hold { on: false })).await?;
    done.map(drop).map_err(|why| RunnerError::environment(format!("for the drain: blocks go on: {why}")))
}

/// An action at the allocator.
///
/// # Errors
/// As [`on_chain`].
pub async fn at_allocator(
    action: &AllocatorAction,
    running: &Running,
    context: &mut Context<'_>,
) -> Result<Deed, RunnerError> {
    if running.mocks.dapi.is_none() {
        return Ok(Err(ABSENT.to_owned()));
    }
    let change = |dapi: &mut DapiConfig| match action {
        AllocatorAction::Unavailable(node) => available(dapi, node, false),
        AllocatorAction::Available(node) => available(dapi, node, true),
        AllocatorAction::BlockHeight(height) => dapi.oracle.block_height = Some(*height),
    };
    let done = context.dispatcher.through(announce(running, change)).await?;
    let text = match action {
        AllocatorAction::Unavailable(node) => format!("{node} is not given out"),
        AllocatorAction::Available(node) => format!("{node} is given out"),
        AllocatorAction::BlockHeight(height) => format!("the epoch document names height {height}"),
    };
    Ok(done.map(|()| Some(text)))
}

fn available(dapi: &mut DapiConfig, name: &str, is: bool) {
    for node in dapi.nodes.iter_mut().filter(|node| node.name == name) {
        node.available = is;
    }
}

async fn act(chain: &Control, act: &ChainAct) -> Result<ChainStats, String> {
    chain.act(act).await?;
    chain.stats().await.map_err(|why| format!("reading back: {why}"))
}

fn is_settled(id: &str, stats: &ChainStats) -> Deed {
    if stats.settled.iter().any(|settled| settled.to_string() == id) {
        return Ok(Some(format!("the chain shows escrow {id} as settled")));
    }
    Err(format!("reading back: the chain does not show escrow {id} as settled"))
}

/// The connections end on their own tasks, a moment after the order.
async fn websockets(chain: &Control, order: &ChainAct, before: &ChainStats) -> Deed {
    let mut after = act(chain, order).await?;
    for _ in 1..LOOKS_MAX {
        if after.websockets_ended > before.websockets_ended {
            break;
        }
        tokio::time::sleep(LOOK_PAUSE).await;
        after = chain.stats().await?;
    }
    match after.websockets_ended.saturating_sub(before.websockets_ended) {
        0 => Err("reading back: no websocket has ended".to_owned()),
        ended => Ok(Some(format!("{ended} websockets ended at height {}", after.height))),
    }
}

/// The chain answers who asks it, the allocator pushes: both say the same afterwards.
async fn params(change: &ParamsChange, chain: &Control, running: &Running) -> Deed {
    replace_chain(chain, |config| {
        let params = &mut config.params;
        set(&mut params.max_nonce, change.max_nonce);
        set(&mut params.requests_enabled, change.requests_enabled);
        set(&mut params.validation_rate, change.validation_rate.map(basis_points));
        set(&mut params.vote_threshold_factor, change.vote_threshold_factor);
    })
    .await?;
    announce(running, |dapi| {
        let params = &mut dapi.runtime;
        set(&mut params.max_nonce, change.max_nonce);
        set(&mut params.requests_enabled, change.requests_enabled);
        set(&mut params.validation_rate, change.validation_rate.map(basis_points));
        set(&mut params.vote_threshold_factor, change.vote_threshold_factor);
    })
    .await?;
    let text = serde_json::to_string(change).unwrap_or_default();
    Ok(Some(format!("chain and allocator hold {text}")))
}

fn set<T>(field: &mut T, to: Option<T>) {
    if let Some(to) = to {
        *field = to;
    }
}

async fn grants(change: &GrantChange, give: bool, chain: &Control) -> Deed {
    let now = read_chain(chain).await?;
    // The chain lists participants in the order of their names.
    let participant = |host: &str| {
        let number = host.strip_prefix("host-").and_then(|number| number.parse::<usize>().ok());
        let found = number.and_then(|number| now.participants.get(number));
        found.cloned().ok_or_else(|| format!("the chain knows no participant {host}"))
    };
    let (granter, grantee) = (participant(&change.granter)?, participant(&change.grantee)?);
    let grant = ChainGrant {
        granter: granter.address,
        message_type: GRANTED.to_owned(),
        grantee: grantee.address,
        pubkey: grantee.pubkey,
    };
    if give == now.grants.contains(&grant) {
        let stands = if give { "stands already" } else { "does not stand" };
        return Err(format!("the grant of {} to {} {stands}", change.granter, change.grantee));
    }
    let held = replace_chain(chain, |config| {
        config.grants.retain(|known| *known != grant);
        if give {
            config.grants.push(grant.clone());
        }
    })
    .await?;
    Ok(Some(format!("the chain holds {} grants", held.grants.len())))
}

async fn read_chain(chain: &Control) -> Result<ChainConfig, String> {
    match chain.config().await? {
        MockConfig::Chain(config) => Ok(config),
        _ => Err("mock-chain shows the configuration of another mock".to_owned()),
    }
}

/// Changes the chain's configuration and gives what is read back, which must be what was sent.
async fn replace_chain(
    chain: &Control,
    change: impl FnOnce(&mut ChainConfig),
) -> Result<ChainConfig, String> {
    let mut config = read_chain(chain).await?;
    change(&mut config);
    let wanted = MockConfig::Chain(config.clone());
    chain.put_config(&wanted).await?;
    if chain.config().await? == wanted {
        return Ok(config);
    }
    Err("reading back: mock-chain holds another configuration than was sent".to_owned())
}

/// Changes the allocator's configuration, where there is one, and reads it back.
async fn announce(running: &Running, change: impl FnOnce(&mut DapiConfig)) -> Result<(), String> {
    let Some(dapi) = &running.mocks.dapi else { return Ok(()) };
    let MockConfig::Dapi(mut config) = dapi.config().await? else {
        return Err("mock-dapi shows the configuration of another mock".to_owned());
    };
    change(&mut config);
    let wanted = MockConfig::Dapi(config);
    dapi.put_config(&wanted).await?;
    if dapi.config().await? == wanted {
        return Ok(());
    }
    Err("reading back: mock-dapi holds another configuration than was sent".to_owned())
}
