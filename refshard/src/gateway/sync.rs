//! Work over a whole session: sync of hosts, finalization, collection of signatures (contract gateway 2.4.5,
//! 2.4.7).

use serde_json::{Value, json};
use wire::devshard::{MsgFinalizeRound, Tx};

use super::Gateway;
use super::escrow::Escrow;
use super::log::Line;
use crate::state::{HostStats, Phase, Session};
use crate::transport::Base64;

/// Rounds of one sync: a receipt can bring a finish, and that a validation.
const CYCLES_MAX: u32 = 8;

/// Brings pending entries into steps and every participant up to date. Does nothing when nothing is pending
/// and nobody is behind.
///
/// # Errors
/// The text for the client.
pub async fn sync_hosts(gateway: &Gateway, escrow: &Escrow) -> Result<(), String> {
    let phase = escrow.with_state(Session::phase);
    if phase != Phase::Active {
        return Err(format!("sync hosts: session is not active: phase {}", phase.name()));
    }
    Line::process("sync hosts started").field("escrow", escrow.id()).emit();
    for cycle in 1..=CYCLES_MAX {
        if escrow.pending().is_empty() && !escrow.participants().into_iter().any(|one| escrow.is_behind(one))
        {
            break;
        }
        if !escrow.pending().is_empty() {
            escrow.compose(Vec::new()).map_err(|error| format!("sync hosts cycle {cycle}: {error}"))?;
        }
        let nonce = escrow.with_state(Session::nonce);
        for participant in escrow.participants() {
            if escrow.is_behind(participant) {
                let delivered = gateway.hosts.deliver(escrow, participant, nonce).await;
                delivered.map_err(|error| {
                    format!("sync hosts cycle {cycle} catch-up host {}: {error}", participant.slot)
                })?;
            }
        }
    }
    let nonce = escrow.with_state(Session::nonce);
    Line::process("sync hosts complete").field("escrow", escrow.id()).field("end_nonce", nonce).emit();
    Ok(())
}

/// Runs the finalization rounds: group size + 1 steps, each delivered to its host, leftovers of all mempools
/// included; then every participant signs the last state. Repeatable.
///
/// # Errors
/// The text for the client.
pub async fn finalize(gateway: &Gateway, escrow: &Escrow) -> Result<Value, String> {
    if escrow.with_state(Session::phase) == Phase::Active {
        for participant in escrow.participants() {
            let collected = gateway.hosts.collect(escrow, participant).await;
            collected.map_err(|error| format!("collect mempool of host {}: {error}", participant.slot))?;
        }
        round(gateway, escrow, vec![Tx::FinalizeRound(MsgFinalizeRound {})]).await?;
    }
    while escrow.with_state(Session::phase) == Phase::Finalizing {
        round(gateway, escrow, Vec::new()).await?;
    }
    let nonce = escrow.with_state(Session::nonce);
    for participant in escrow.participants() {
        if !escrow.signatures_at(nonce).contains_key(&participant.slot)
            && let Err(error) = gateway.hosts.deliver(escrow, participant, nonce).await
        {
            // A missing signature counts at the quorum below.
            Line::process("finalize signature failed")
                .field("escrow", escrow.id())
                .field("error", error)
                .emit();
        }
    }
    let total = escrow.by_slot.len();
    let weight = escrow.signatures_at(nonce).len();
    if weight < quorum(total) {
        return Err(format!("insufficient signatures: {weight}/{total} weight"));
    }
    Ok(settlement(escrow))
}

async fn round(gateway: &Gateway, escrow: &Escrow, own: Vec<Tx>) -> Result<(), String> {
    let nonce = escrow.compose(own).map_err(|error| error.to_string())?;
    let to = &escrow.by_slot[escrow.params.executor_slot(nonce) as usize];
    // A host that is down leaves out its round; the quorum decides in the end.
    if let Err(error) = gateway.hosts.deliver(escrow, to, nonce).await {
        Line::process("finalize round failed").field("escrow", escrow.id()).field("error", error).emit();
    }
    Ok(())
}

/// Slots that must have signed.
#[must_use]
pub const fn quorum(total: usize) -> usize {
    2 * total / 3 + 1
}

/// What a settlement transaction says, as the finalize answer shows it (fixture finalize-settle).
fn settlement(escrow: &Escrow) -> Value {
    let nonce = escrow.with_state(Session::nonce);
    let signatures: Vec<Value> = escrow
        .signatures_at(nonce)
        .into_iter()
        .map(|(slot, sig)| json!({ "slot_id": slot, "signature": Base64(sig) }))
        .collect();
    escrow.with_state(|state| {
        let stats: Vec<Value> =
            (0_u32..).zip(state.host_stats()).map(|(slot, stats)| stats_of(slot, stats)).collect();
        json!({
            "escrow_id": escrow.id(),
            "version": escrow.params.protocol_version,
            "state_root": Base64(state.root().to_vec()),
            "nonce": nonce,
            "fees": state.fees(),
            "rest_hash": Base64(state.rest_hash().to_vec()),
            "host_stats": stats,
            "signatures": signatures,
        })
    })
}

fn stats_of(slot: u32, stats: &HostStats) -> Value {
    json!({ "slot_id": slot, "missed": stats.missed, "invalid": stats.invalid, "cost": stats.cost })
}
