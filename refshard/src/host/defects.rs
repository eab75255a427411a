//! Planted defects of a host, all in this place (selftest, layer M). Without the feature
//! `planted-defects` the only value is [`Defect::None`], and the flag does not exist.
//!
//! | id | what it does | must fire |
//! |---|---|---|
//! | `drop-finish` | never publishes the finish of an id that is a multiple of 7 | A1, A6 |
//! | `double-validation` | publishes every validation a second time under another signature | A5 (commit half) |
//! | `stale-replica` | shows diffs and statistics three steps late | A7 (lag) |
//! | `flip-balance` | shows a wrong state hash at multiples of 5 | A7 (divergence) |
//! | `stuck-inflight` | the in-flight gauge never falls below 1 after the first request | A8 |
//! | `unlocked-call` | calls a known node without an acquisition for every fifth id | A11 |

use crate::signing::Signer;

/// The defect of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "planted-defects", derive(clap::ValueEnum))]
pub enum Defect {
    /// None: the twin.
    #[default]
    #[cfg_attr(feature = "planted-defects", value(skip))]
    None,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    DropFinish,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    DoubleValidation,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    StaleReplica,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    FlipBalance,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    StuckInflight,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    UnlockedCall,
}

#[cfg(feature = "planted-defects")]
impl Defect {
    /// `drop-finish`.
    #[must_use]
    pub fn drops_finish(self, inference_id: u64) -> bool {
        self == Self::DropFinish && inference_id.is_multiple_of(7)
    }

    /// `double-validation`.
    #[must_use]
    pub fn second_signature(self, signer: &Signer, message: &[u8]) -> Option<Vec<u8>> {
        (self == Self::DoubleValidation).then(|| signer.sign_variant(message))
    }

    /// `stale-replica`: steps that are hidden at the end of the log.
    #[must_use]
    pub fn hidden_nonces(self) -> u64 {
        if self == Self::StaleReplica { 3 } else { 0 }
    }

    /// `flip-balance`: what is shown instead of `state_hash`. Depends on the address, so that several
    /// hosts with this defect do not agree by accident.
    #[must_use]
    pub fn shown_hash(self, nonce: u64, mut state_hash: Vec<u8>, address: &str) -> Vec<u8> {
        if self == Self::FlipBalance && nonce.is_multiple_of(5) {
            let mask = crate::signing::sha256(address.as_bytes())[0] | 1;
            if let Some(first) = state_hash.first_mut() {
                *first ^= mask;
            }
        }
        state_hash
    }

    /// `stuck-inflight`: the shown gauge.
    #[must_use]
    pub fn shown_inflight(self, inflight: f64) -> f64 {
        if self == Self::StuckInflight { inflight.max(1.0) } else { inflight }
    }

    /// `unlocked-call`.
    #[must_use]
    pub fn calls_unlocked(self, inference_id: u64) -> bool {
        self == Self::UnlockedCall && inference_id.is_multiple_of(5)
    }
}

#[cfg(not(feature = "planted-defects"))]
#[expect(clippy::unused_self, reason = "same interface as with the feature; the calls compile to nothing")]
impl Defect {
    pub(super) const fn drops_finish(self, _inference_id: u64) -> bool {
        false
    }

    pub(super) const fn second_signature(self, _signer: &Signer, _message: &[u8]) -> Option<Vec<u8>> {
        None
    }

    pub(super) const fn hidden_nonces(self) -> u64 {
        0
    }

    pub(super) fn shown_hash(self, _nonce: u64, state_hash: Vec<u8>, _address: &str) -> Vec<u8> {
        state_hash
    }

    pub(super) const fn shown_inflight(self, inflight: f64) -> f64 {
        inflight
    }

    pub(super) const fn calls_unlocked(self, _inference_id: u64) -> bool {
        false
    }
}
