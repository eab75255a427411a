//! What a settlement transaction proves: the root that follows from its parts, and who signed it.
//!
//! Rule: fixtures "wire-july", `vectors.json` (`settlement_root`); contract hosts 6.1.

use prost::Message;
use sha2::{Digest, Sha256};

use crate::devshard::state_signed_bytes;
use crate::keys::{Address, KeyError, RecoverableSignature};
use crate::proto::inference::{DevshardSettlementHostStats, MsgSettleDevshardEscrow};

/// Tag of field 1, length-delimited: the statistics are hashed as a list in that field.
const HOST_STATS_TAG: u8 = 0x0a;

/// A session is settled in this phase; the root names it.
const PHASE_SETTLEMENT: u8 = 2;

/// The state root that follows from the parts which the message gives. A message is consistent
/// when this equals its `state_root`.
#[must_use]
pub fn settlement_root(message: &MsgSettleDevshardEscrow) -> [u8; 32] {
    let mut stats: Vec<&DevshardSettlementHostStats> = message.host_stats.iter().collect();
    stats.sort_by_key(|entry| entry.slot_id);
    let mut listed = Vec::new();
    for entry in stats {
        listed.push(HOST_STATS_TAG);
        listed.extend(entry.encode_length_delimited_to_vec());
    }
    Sha256::new()
        .chain_update(Sha256::digest(&listed))
        .chain_update(message.fees.to_be_bytes())
        .chain_update(&message.rest_hash)
        .chain_update(Sha256::digest(&message.state_root_and_protocol_version))
        .chain_update([PHASE_SETTLEMENT])
        .finalize()
        .into()
}

/// Who signed the message's root, per slot in the message's order.
#[must_use]
pub fn settlement_signers(message: &MsgSettleDevshardEscrow) -> Vec<(u32, Result<Address, KeyError>)> {
    let signed = state_signed_bytes(&message.state_root, &message.escrow_id.to_string(), message.nonce);
    message
        .signatures
        .iter()
        .map(|slot| {
            let signer = RecoverableSignature::from_bytes(&slot.signature);
            (slot.slot_id, signer.and_then(|signature| signature.recover_address(&signed)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_statistics_does_not_matter_but_their_content_does() {
        let stats = |slot_id, cost| DevshardSettlementHostStats { slot_id, cost, ..Default::default() };
        let message = |host_stats| MsgSettleDevshardEscrow { host_stats, ..Default::default() };
        let root = settlement_root(&message(vec![stats(0, 5), stats(1, 6)]));
        assert_eq!(settlement_root(&message(vec![stats(1, 6), stats(0, 5)])), root);
        assert_ne!(settlement_root(&message(vec![stats(0, 6), stats(1, 5)])), root);
    }
}
