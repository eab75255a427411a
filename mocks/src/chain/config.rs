//! What a configuration of the chain must fulfil before it replaces the one in force.

use std::collections::BTreeSet;

use scenario::control::{CONTROL_VERSION, ChainConfig, ChainRule};
use scenario::fault::ChainFault;
use wire::keys::PublicKey;

use crate::ordinal;

/// gRPC methods that a rule may name; `*` names them all.
pub const METHODS: [&str; 13] = [
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
];

/// Answered too, but asked by no program that has a chain id of its own.
const NODE_INFO: &str = "GetNodeInfo";

/// Most blocks of one burst; more would only fill logs.
pub const BURST_MAX: u64 = 10_000;

/// Checks a configuration.
///
/// # Errors
/// What is wrong, where, and what to write instead.
pub fn check(config: &ChainConfig) -> Result<(), String> {
    if config.v != CONTROL_VERSION {
        return Err(format!("`v` is {}, this build reads {CONTROL_VERSION}", config.v));
    }
    if config.chain_id.is_empty() {
        return Err("`chain_id` is empty".to_owned());
    }
    if config.block_interval.us() < 1_000 {
        return Err(format!("`block_interval` is {}, at least 1ms is needed", config.block_interval));
    }
    let mut addresses = BTreeSet::new();
    for participant in &config.participants {
        let address = participant.address.as_str();
        // The gateway ends at boot when a participant has no address (contract mocks 5.3).
        if address.is_empty() {
            return Err("`participants` holds an empty address".to_owned());
        }
        if !addresses.insert(address) {
            return Err(format!("`participants` names {address:?} twice"));
        }
        check_key(address, &participant.pubkey)?;
    }
    let mut ids = BTreeSet::new();
    for escrow in &config.escrows {
        let id = escrow.id;
        if id == 0 {
            return Err("escrow id 0 stands for \"no escrow\", ids start at 1".to_owned());
        }
        if !ids.insert(id) {
            return Err(format!("`escrows` names id {id} twice"));
        }
        if escrow.creator.is_empty() {
            return Err(format!("escrow {id}: `creator` is empty"));
        }
        if let Some(slot) = escrow.slots.iter().find(|slot| !addresses.contains(slot.as_str())) {
            return Err(format!("escrow {id}: slot owner {slot:?} is not among `participants`"));
        }
    }
    for grant in &config.grants {
        if grant.granter.is_empty() || grant.message_type.is_empty() || grant.grantee.is_empty() {
            return Err("`grants`: granter, message type and grantee are all needed".to_owned());
        }
        // A grantee without a key makes every payload check fail (fixture wire-july, gotcha 7).
        if grant.pubkey.is_empty() {
            return Err(format!("`grants`: the key of grantee {:?} is needed", grant.grantee));
        }
        check_key(&grant.grantee, &grant.pubkey)?;
    }
    config.rules.iter().try_for_each(check_rule)
}

/// A key must be that of its address: a host that gets another one refuses all validations without saying why.
fn check_key(address: &str, pubkey: &str) -> Result<(), String> {
    if pubkey.is_empty() {
        return Ok(());
    }
    let key =
        PublicKey::from_base64(pubkey).map_err(|error| format!("public key of {address:?}: {error}"))?;
    if key.address().to_string() == address {
        Ok(())
    } else {
        Err(format!("the public key given for {address:?} is that of {}", key.address()))
    }
}

fn check_rule(rule: &ChainRule) -> Result<(), String> {
    let id = &rule.id;
    ordinal::check(id, &rule.select)?;
    let by_call = matches!(rule.action, ChainFault::Delay(_) | ChainFault::Fail(_));
    let method = rule.method.as_str();
    if by_call && method != "*" && method != NODE_INFO && !METHODS.contains(&method) {
        return Err(format!(
            "rule {id:?}: {method:?} is no chain method; known are * and {}",
            METHODS.join(", ")
        ));
    }
    match rule.action {
        ChainFault::BurstBlocks(count) if count > BURST_MAX => {
            Err(format!("rule {id:?}: `burst_blocks` is {count}, at most {BURST_MAX}"))
        }
        ChainFault::CloseWebsocket(code) => {
            check_close_code(code).map_err(|error| format!("rule {id:?}: {error}"))
        }
        _ => Ok(()),
    }
}

/// Codes below 1000 and some above can't travel in a close frame (RFC 6455 section 7.4).
///
/// # Errors
/// What to write instead.
pub fn check_close_code(code: u16) -> Result<(), String> {
    if matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Ok(());
    }
    Err(format!("{code} is no close code that may be sent, use 1001, 1011 or 3000 to 4999"))
}
