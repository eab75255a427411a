//! Planted defects of the gateway, all in this place (selftest, layer M). Without the feature
//! `planted-defects` the only value is [`Defect::None`], and the flag does not exist.
//!
//! What each does and which assertion it must trip stands in `crate::defects`.

#[cfg(feature = "planted-defects")]
use std::sync::atomic::{AtomicU64, Ordering};

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
    LostAccounting,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    #[value(name = "record-failed-on-200")]
    RecordFailedOn200,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    ReuseNonce,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    DropIdOnError,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    #[value(name = "lookup-404")]
    Lookup404,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    DoubleDone,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    FailUnselected,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    StuckGauge,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    HideTruncation,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    WrongShape,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    CrossTalk,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    NonceBack,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    FutureNonce,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    ForeignHost,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    TimeoutOnSuccess,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    FlappingGauge,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    SlowAnswers,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    SlowEnd,
}

/// Races that a scenario of the self-test asks for before its recovery step, and a few more: canaries are races too.
#[cfg(feature = "planted-defects")]
const USUAL_RACES: u64 = 130;

#[cfg(feature = "planted-defects")]
impl Defect {
    /// Whether this defect is planted and its turn has come; then it says so in the log.
    fn acts(self, defect: Self, turn: bool) -> bool {
        let acts = self == defect && turn;
        if acts {
            crate::defects::took_effect(&defect);
        }
        acts
    }

    /// `lost-accounting`.
    pub(super) fn loses_outcome(self, race: u64) -> bool {
        self.acts(Self::LostAccounting, race.is_multiple_of(5))
    }

    /// `record-failed-on-200`.
    pub(super) fn records_failed(self, race: u64) -> bool {
        self.acts(Self::RecordFailedOn200, race.is_multiple_of(7))
    }

    /// `reuse-nonce`.
    pub(super) fn reuses_nonce(self, nonce: u64) -> bool {
        self.acts(Self::ReuseNonce, nonce.is_multiple_of(10))
    }

    /// `drop-id-on-error`.
    pub(super) fn drops_id(self) -> bool {
        self.acts(Self::DropIdOnError, true)
    }

    /// `lookup-404`.
    pub(super) fn hides(self, outcome: &str) -> bool {
        self.acts(Self::Lookup404, outcome == "failed")
    }

    /// `double-done`.
    pub(super) fn repeats_done(self, race: u64) -> bool {
        self.acts(Self::DoubleDone, race.is_multiple_of(10))
    }

    /// `fail-unselected`.
    pub(super) fn fails(self, race: u64) -> bool {
        self.acts(Self::FailUnselected, race.is_multiple_of(50))
    }

    /// `stuck-gauge`: the shown gauge.
    pub(super) fn shown_inflight(self, inflight: f64, races: u64) -> f64 {
        if self.acts(Self::StuckGauge, races > 0) { inflight.max(1.0) } else { inflight }
    }

    /// `hide-truncation`.
    pub(super) fn hides_truncation(self) -> bool {
        self.acts(Self::HideTruncation, true)
    }

    /// `wrong-shape`.
    pub(super) fn breaks_shape(self) -> bool {
        // JSON answers are counted by themselves: by chance no one of them is such a race.
        static ANSWERS: AtomicU64 = AtomicU64::new(1);
        self.acts(Self::WrongShape, ANSWERS.fetch_add(1, Ordering::Relaxed).is_multiple_of(10))
    }

    /// `cross-talk`.
    pub(super) fn crosses_talk(self, race: u64) -> bool {
        self.acts(Self::CrossTalk, race.is_multiple_of(12))
    }

    /// `nonce-back`.
    pub(super) fn shows_nonce_back(self) -> bool {
        static READS: AtomicU64 = AtomicU64::new(0);
        self.acts(Self::NonceBack, READS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2))
    }

    /// `future-nonce`.
    pub(super) fn shows_future_nonce(self, nonce: u64) -> bool {
        self.acts(Self::FutureNonce, nonce.is_multiple_of(6))
    }

    /// `foreign-host`.
    pub(super) fn names_foreign_host(self, outcome: &str) -> bool {
        self.acts(Self::ForeignHost, outcome == "failed")
    }

    /// `timeout-on-success`.
    pub(super) fn times_out(self, race: u64) -> bool {
        self.acts(Self::TimeoutOnSuccess, race.is_multiple_of(7))
    }

    /// `flapping-gauge`.
    pub(super) fn flaps(self) -> bool {
        static READS: AtomicU64 = AtomicU64::new(0);
        self.acts(Self::FlappingGauge, READS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2))
    }

    /// `slow-answers` and `slow-end`.
    pub(super) fn is_slow(self, races: u64) -> bool {
        self.acts(Self::SlowAnswers, true) || self.acts(Self::SlowEnd, races > USUAL_RACES)
    }
}

#[cfg(not(feature = "planted-defects"))]
#[expect(clippy::unused_self, reason = "same interface as with the feature; the calls compile to nothing")]
impl Defect {
    pub(super) const fn loses_outcome(self, _race: u64) -> bool {
        false
    }

    pub(super) const fn records_failed(self, _race: u64) -> bool {
        false
    }

    pub(super) const fn reuses_nonce(self, _nonce: u64) -> bool {
        false
    }

    pub(super) const fn drops_id(self) -> bool {
        false
    }

    pub(super) const fn hides(self, _outcome: &str) -> bool {
        false
    }

    pub(super) const fn repeats_done(self, _race: u64) -> bool {
        false
    }

    pub(super) const fn fails(self, _race: u64) -> bool {
        false
    }

    pub(super) const fn shown_inflight(self, inflight: f64, _races: u64) -> f64 {
        inflight
    }

    pub(super) const fn hides_truncation(self) -> bool {
        false
    }

    pub(super) const fn breaks_shape(self) -> bool {
        false
    }

    pub(super) const fn crosses_talk(self, _race: u64) -> bool {
        false
    }

    pub(super) const fn shows_nonce_back(self) -> bool {
        false
    }

    pub(super) const fn shows_future_nonce(self, _nonce: u64) -> bool {
        false
    }

    pub(super) const fn names_foreign_host(self, _outcome: &str) -> bool {
        false
    }

    pub(super) const fn times_out(self, _race: u64) -> bool {
        false
    }

    pub(super) const fn flaps(self) -> bool {
        false
    }

    pub(super) const fn is_slow(self, _races: u64) -> bool {
        false
    }
}
