//! The state root: deterministic, over the same parts in the same order as the real one (contract hosts
//! 6.1), except that the live inferences enter as a sum of record digests. That keeps a step's cost
//! independent of how many inferences are alive; roots of the two systems are never compared.

use prost::Message as _;
use sha2::{Digest, Sha256};
use wire::proto::inference::DevshardSettlementHostStats;

use super::types::{HostStats, Inference, Phase, SessionParams, StateRoot};

/// Sum of record digests, lane by lane, wrapping: order of insertion does not matter, and a record can
/// be taken out again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveSum([u64; 4]);

impl LiveSum {
    pub fn add(&mut self, id: u64, record: &Inference) {
        for (lane, part) in self.0.iter_mut().zip(lanes(id, record)) {
            *lane = lane.wrapping_add(part);
        }
    }

    pub fn remove(&mut self, id: u64, record: &Inference) {
        for (lane, part) in self.0.iter_mut().zip(lanes(id, record)) {
            *lane = lane.wrapping_sub(part);
        }
    }
}

fn lanes(id: u64, record: &Inference) -> [u64; 4] {
    let digest: [u8; 32] = record_digest(id, record);
    std::array::from_fn(|lane| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest[lane * 8..lane * 8 + 8]);
        u64::from_be_bytes(bytes)
    })
}

/// Digest of one record; every field enters with a fixed width or its length.
pub fn record_digest(id: u64, record: &Inference) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(id.to_be_bytes());
    hash.update([record.status as u8]);
    hash.update(record.executor_slot.to_be_bytes());
    for bytes in [record.model.as_bytes(), &record.prompt_hash, &record.response_hash] {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    }
    for number in [
        record.input_length,
        record.max_tokens,
        record.input_tokens,
        record.output_tokens,
        record.reserved_cost,
        record.actual_cost,
        u64::from(record.votes.valid),
        u64::from(record.votes.invalid),
    ] {
        hash.update(number.to_be_bytes());
    }
    hash.update(record.started_at.to_be_bytes());
    hash.update(record.confirmed_at.to_be_bytes());
    for slot in &record.validated_by {
        hash.update(slot.to_be_bytes());
    }
    hash.finalize().into()
}

/// Folds a sealed record into the accumulator.
pub fn fold_sealed(acc: &[u8; 32], nonce: u64, id: u64, record: &Inference) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(acc);
    hash.update(nonce.to_be_bytes());
    hash.update(id.to_be_bytes());
    hash.update(record_digest(id, record));
    hash.finalize().into()
}

/// The part of the root that a settlement gives as one value: balance and inferences.
pub fn rest_hash(balance: u64, sealed_acc: &[u8; 32], live: LiveSum) -> [u8; 32] {
    let mut inferences = Sha256::new();
    inferences.update(sealed_acc);
    for lane in live.0 {
        inferences.update(lane.to_be_bytes());
    }
    let mut hash = Sha256::new();
    hash.update(balance.to_be_bytes());
    hash.update(inferences.finalize());
    // No warm keys in this stack: their part is the hash of nothing.
    hash.update(Sha256::digest([]));
    hash.finalize().into()
}

/// The root over statistics, fees, rest, protocol tag and phase.
pub fn state_root(
    params: &SessionParams,
    stats: &[HostStats],
    fees: u64,
    rest: &[u8; 32],
    phase: Phase,
) -> StateRoot {
    let mut listed = Vec::new();
    for (slot, host) in stats.iter().enumerate() {
        let entry = DevshardSettlementHostStats {
            slot_id: u32::try_from(slot).unwrap_or(u32::MAX),
            missed: host.missed,
            invalid: host.invalid,
            cost: host.cost,
            required_validations: host.required_validations,
            completed_validations: host.completed_validations,
        };
        // Field 1, length-delimited: the chain checks a settlement by the same bytes.
        listed.push(0x0a);
        listed.extend(entry.encode_length_delimited_to_vec());
    }
    let mut hash = Sha256::new();
    hash.update(Sha256::digest(&listed));
    hash.update(fees.to_be_bytes());
    hash.update(rest);
    hash.update(Sha256::digest(params.protocol_version.as_bytes()));
    hash.update([phase as u8]);
    hash.finalize().into()
}
