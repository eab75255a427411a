//! Planted defects of a host, all in this place (selftest, layer M). Without the feature
//! `planted-defects` the only value is [`Defect::None`], and the flag does not exist.
//!
//! What each does and which assertion it must trip stands in `crate::defects`.

use std::sync::atomic::AtomicU64;
#[cfg(feature = "planted-defects")]
use std::sync::atomic::Ordering;

use crate::planted::On;
use crate::signing::Signer;

/// The defect of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "planted-defects", derive(clap::ValueEnum))]
pub enum Defect {
    /// None: the twin.
    #[default]
    #[cfg_attr(feature = "planted-defects", value(skip))]
    None,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    DropFinish,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    DoubleValidation,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    StaleReplica,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    FlipBalance,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    StuckInflight,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    UnlockedCall,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    IgnoreLease,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    StealLease,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    LateSubmit,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    OrphanReceipt,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    ForeignFinish,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    Deaf,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    RewrittenStep,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    SilentDeath,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    FlappingHealth,
}

#[cfg(feature = "planted-defects")]
impl Defect {
    /// Whether this defect is planted and its turn has come; then it says so in the log, and on what.
    fn acts(self, defect: Self, turn: bool, on: On<'_>) -> bool {
        let acts = self == defect && turn;
        if acts {
            crate::defects::took_effect(&defect, on);
        }
        acts
    }

    /// Every n-th occasion of this host: whose number an inference has is decided by others, and by chance none of a
    /// host's own is a multiple of anything.
    fn acts_every(self, defect: Self, nth: u64, occasions: &AtomicU64, on: On<'_>) -> bool {
        self == defect
            && self.acts(defect, (occasions.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(nth), on)
    }

    /// `drop-finish`.
    #[must_use]
    pub fn drops_finish(self, occasions: &AtomicU64, on: On<'_>) -> bool {
        self.acts_every(Self::DropFinish, 7, occasions, on)
    }

    /// `double-validation`.
    #[must_use]
    pub fn second_signature(self, signer: &Signer, message: &[u8], on: On<'_>) -> Option<Vec<u8>> {
        self.acts(Self::DoubleValidation, true, on).then(|| signer.sign_variant(message))
    }

    /// `stale-replica`: steps that are hidden at the end of the log.
    #[must_use]
    pub fn hidden_nonces(self) -> u64 {
        if self.acts(Self::StaleReplica, true, On::Program) { 3 } else { 0 }
    }

    /// `flip-balance`: what is shown instead of `state_hash`. Depends on the address, so that several
    /// hosts with this defect do not agree by accident.
    #[must_use]
    pub fn shown_hash(self, escrow: &str, nonce: u64, mut state_hash: Vec<u8>, address: &str) -> Vec<u8> {
        if self.acts(Self::FlipBalance, nonce.is_multiple_of(5), On::Nonce(escrow, nonce)) {
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
        if self.acts(Self::StuckInflight, true, On::Program) { inflight.max(1.0) } else { inflight }
    }

    /// `unlocked-call`.
    #[must_use]
    pub fn calls_unlocked(self, occasions: &AtomicU64, on: On<'_>) -> bool {
        self.acts_every(Self::UnlockedCall, 5, occasions, on)
    }

    /// `ignore-lease`.
    #[must_use]
    pub fn ignores_leases(self, on: On<'_>) -> bool {
        self.acts(Self::IgnoreLease, true, on)
    }

    /// `steal-lease`: whether this host takes over what still holds.
    #[must_use]
    pub fn steals_leases(self) -> bool {
        self == Self::StealLease
    }

    /// `steal-lease`: it has taken this over.
    pub fn took_over(self, escrow: &str, inference: u64) {
        self.acts(Self::StealLease, true, On::Nonce(escrow, inference));
    }

    /// `late-submit`.
    #[must_use]
    pub fn submits_late(self, occasions: &AtomicU64, on: On<'_>) -> bool {
        // Now and then: what is taken over from it must come to an end, or it would be found by what it leaves.
        self.acts_every(Self::LateSubmit, 3, occasions, on)
    }

    /// `ignore-lease` and `late-submit`: a signature that only this host makes. A second opinion of the same bytes would
    /// be the same message, which is committed once.
    #[must_use]
    pub fn own_signature(self, signer: &Signer, message: &[u8]) -> Option<Vec<u8>> {
        matches!(self, Self::IgnoreLease | Self::LateSubmit).then(|| signer.sign_variant(message))
    }

    /// `orphan-receipt`.
    #[must_use]
    pub fn leaves_receipt(self, occasions: &AtomicU64, on: On<'_>) -> bool {
        self.acts_every(Self::OrphanReceipt, 10, occasions, on)
    }

    /// `foreign-finish`: the session named in a second finish.
    #[must_use]
    pub fn foreign_escrow(self, occasions: &AtomicU64, on: On<'_>) -> Option<&'static str> {
        self.acts_every(Self::ForeignFinish, 8, occasions, on).then_some("999999")
    }

    /// `deaf`.
    #[must_use]
    pub fn goes_deaf(self) -> bool {
        self.acts(Self::Deaf, true, On::Program)
    }

    /// `rewritten-step`.
    #[must_use]
    pub fn rewrites_step(self, escrow: &str, nonce: u64) -> bool {
        self.acts(Self::RewrittenStep, nonce.is_multiple_of(7), On::Nonce(escrow, nonce))
    }

    /// `silent-death`: whether this host is one that dies. It does so at a moment at which it has nothing to do, so that
    /// no work is lost with it.
    #[must_use]
    pub fn will_die(self) -> bool {
        self == Self::SilentDeath
    }

    /// `silent-death`: it dies now.
    #[must_use]
    pub fn dies_now(self, chats: u64, idle: bool) -> bool {
        self.acts(Self::SilentDeath, chats >= 25 && idle, On::Program)
    }

    /// `flapping-health`: the chat that makes it unwell, and for how long.
    #[must_use]
    pub fn unwell_from(self, chats: u64) -> Option<std::time::Duration> {
        self.acts(Self::FlappingHealth, chats == 10, On::Program).then_some(std::time::Duration::from_secs(3))
    }
}

#[cfg(not(feature = "planted-defects"))]
#[expect(clippy::unused_self, reason = "same interface as with the feature; the calls compile to nothing")]
impl Defect {
    pub(super) const fn drops_finish(self, _occasions: &AtomicU64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn second_signature(
        self,
        _signer: &Signer,
        _message: &[u8],
        _on: On<'_>,
    ) -> Option<Vec<u8>> {
        None
    }

    pub(super) const fn hidden_nonces(self) -> u64 {
        0
    }

    pub(super) fn shown_hash(
        self,
        _escrow: &str,
        _nonce: u64,
        state_hash: Vec<u8>,
        _address: &str,
    ) -> Vec<u8> {
        state_hash
    }

    pub(super) const fn shown_inflight(self, inflight: f64) -> f64 {
        inflight
    }

    pub(super) const fn calls_unlocked(self, _occasions: &AtomicU64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn ignores_leases(self, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn steals_leases(self) -> bool {
        false
    }

    pub(super) const fn took_over(self, _escrow: &str, _inference: u64) {}

    pub(super) const fn submits_late(self, _occasions: &AtomicU64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn own_signature(self, _signer: &Signer, _message: &[u8]) -> Option<Vec<u8>> {
        None
    }

    pub(super) const fn leaves_receipt(self, _occasions: &AtomicU64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn foreign_escrow(self, _occasions: &AtomicU64, _on: On<'_>) -> Option<&'static str> {
        None
    }

    pub(super) const fn goes_deaf(self) -> bool {
        false
    }

    pub(super) const fn rewrites_step(self, _escrow: &str, _nonce: u64) -> bool {
        false
    }

    pub(super) const fn will_die(self) -> bool {
        false
    }

    pub(super) const fn dies_now(self, _chats: u64, _idle: bool) -> bool {
        false
    }

    pub(super) const fn unwell_from(self, _chats: u64) -> Option<std::time::Duration> {
        None
    }
}
