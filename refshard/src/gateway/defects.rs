//! Planted defects of the gateway, all in this place (selftest, layer M). Without the feature
//! `planted-defects` the only value is [`Defect::None`], and the flag does not exist.
//!
//! What each does and which assertion it must trip stands in `crate::defects`.

#[cfg(feature = "planted-defects")]
use std::sync::atomic::{AtomicU64, Ordering};

use crate::planted::On;

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
    CutJson,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    #[value(name = "bad-utf8")]
    BadUtf8,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    ErrorInStream,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    HoldAnswer,
    /// See `crate::defects`.
    #[cfg(feature = "planted-defects")]
    ForgetCancelled,
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

/// Escrow and nonce of the streams whose clients have left.
#[cfg(feature = "planted-defects")]
static LEFT: std::sync::Mutex<std::collections::BTreeSet<(String, u64)>> =
    std::sync::Mutex::new(std::collections::BTreeSet::new());

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

    /// `lost-accounting`.
    pub(super) fn loses_outcome(self, race: u64, on: On<'_>) -> bool {
        self.acts(Self::LostAccounting, race.is_multiple_of(5), on)
    }

    /// `record-failed-on-200`.
    pub(super) fn records_failed(self, race: u64, on: On<'_>) -> bool {
        self.acts(Self::RecordFailedOn200, race.is_multiple_of(7), on)
    }

    /// `reuse-nonce`.
    pub(super) fn reuses_nonce(self, escrow: &str, nonce: u64) -> bool {
        self.acts(Self::ReuseNonce, nonce.is_multiple_of(10), On::Nonce(escrow, nonce))
    }

    /// `drop-id-on-error`: the body that the log will name.
    pub(super) fn keeps(self, body: &[u8]) -> Vec<u8> {
        if self == Self::DropIdOnError { body.to_vec() } else { Vec::new() }
    }

    /// `drop-id-on-error`.
    pub(super) fn drops_id(self, on: On<'_>) -> bool {
        self.acts(Self::DropIdOnError, true, on)
    }

    /// `lookup-404`.
    pub(super) fn hides(self, outcome: &str, on: On<'_>) -> bool {
        self.acts(Self::Lookup404, outcome == "failed", on)
    }

    /// `double-done`.
    pub(super) fn repeats_done(self, race: u64, on: On<'_>) -> bool {
        self.acts(Self::DoubleDone, race.is_multiple_of(10), on)
    }

    /// `fail-unselected`.
    pub(super) fn fails(self, race: u64, on: On<'_>) -> bool {
        self.acts(Self::FailUnselected, race.is_multiple_of(50), on)
    }

    /// `stuck-gauge`: the shown gauge.
    pub(super) fn shown_inflight(self, inflight: f64, races: u64) -> f64 {
        if self.acts(Self::StuckGauge, races > 0, On::Program) { inflight.max(1.0) } else { inflight }
    }

    /// `hide-truncation`.
    pub(super) fn hides_truncation(self, on: On<'_>) -> bool {
        self.acts(Self::HideTruncation, true, on)
    }

    /// `wrong-shape`.
    pub(super) fn breaks_shape(self, on: On<'_>) -> bool {
        // JSON answers are counted by themselves: by chance no one of them is such a race.
        static ANSWERS: AtomicU64 = AtomicU64::new(1);
        self.acts(Self::WrongShape, ANSWERS.fetch_add(1, Ordering::Relaxed).is_multiple_of(10), on)
    }

    /// `cut-json`.
    pub(super) fn cuts_json(self, on: On<'_>) -> bool {
        static ANSWERS: AtomicU64 = AtomicU64::new(1);
        self == Self::CutJson
            && self.acts(Self::CutJson, ANSWERS.fetch_add(1, Ordering::Relaxed).is_multiple_of(10), on)
    }

    /// `bad-utf8`.
    pub(super) fn breaks_text(self, race: u64, on: On<'_>) -> bool {
        self.acts(Self::BadUtf8, race.is_multiple_of(12), on)
    }

    /// `error-in-stream`.
    pub(super) fn adds_error(self, race: u64, on: On<'_>) -> bool {
        self.acts(Self::ErrorInStream, race.is_multiple_of(10), on)
    }

    /// `hold-answer`.
    pub(super) fn holds_answer(self, on: On<'_>) -> bool {
        static STREAMS: AtomicU64 = AtomicU64::new(1);
        self == Self::HoldAnswer
            && self.acts(Self::HoldAnswer, STREAMS.fetch_add(1, Ordering::Relaxed) == 40, on)
    }

    /// `forget-cancelled`: the client of this stream has left.
    pub(super) fn client_left(self, escrow: &str, nonce: u64) {
        if self == Self::ForgetCancelled {
            let mut left = LEFT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if left.insert((escrow.to_owned(), nonce)) {
                self.acts(Self::ForgetCancelled, true, On::Nonce(escrow, nonce));
            }
        }
    }

    /// `forget-cancelled`: whether a finish is not taken in.
    pub(super) fn forgets(self, escrow: &str, nonce: u64) -> bool {
        let left = LEFT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self == Self::ForgetCancelled && left.contains(&(escrow.to_owned(), nonce))
    }

    /// `cross-talk`.
    pub(super) fn crosses_talk(self, race: u64, on: On<'_>) -> bool {
        self.acts(Self::CrossTalk, race.is_multiple_of(12), on)
    }

    /// `nonce-back`.
    pub(super) fn shows_nonce_back(self, on: On<'_>) -> bool {
        static READS: AtomicU64 = AtomicU64::new(0);
        self.acts(Self::NonceBack, READS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2), on)
    }

    /// `future-nonce`.
    pub(super) fn shows_future_nonce(self, escrow: &str, nonce: u64) -> bool {
        self.acts(Self::FutureNonce, nonce.is_multiple_of(6), On::Nonce(escrow, nonce))
    }

    /// `foreign-host`.
    pub(super) fn names_foreign_host(self, outcome: &str, on: On<'_>) -> bool {
        self.acts(Self::ForeignHost, outcome == "failed", on)
    }

    /// `timeout-on-success`.
    pub(super) fn times_out(self, race: u64, on: On<'_>) -> bool {
        self.acts(Self::TimeoutOnSuccess, race.is_multiple_of(7), on)
    }

    /// `flapping-gauge`.
    pub(super) fn flaps(self) -> bool {
        static READS: AtomicU64 = AtomicU64::new(0);
        self.acts(Self::FlappingGauge, READS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2), On::Program)
    }

    /// `slow-answers` and `slow-end`.
    pub(super) fn is_slow(self, races: u64) -> bool {
        self.acts(Self::SlowAnswers, true, On::Program)
            || self.acts(Self::SlowEnd, races > USUAL_RACES, On::Program)
    }
}

#[cfg(not(feature = "planted-defects"))]
#[expect(clippy::unused_self, reason = "same interface as with the feature; the calls compile to nothing")]
impl Defect {
    pub(super) const fn loses_outcome(self, _race: u64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn records_failed(self, _race: u64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn reuses_nonce(self, _escrow: &str, _nonce: u64) -> bool {
        false
    }

    pub(super) const fn keeps(self, _body: &[u8]) -> Vec<u8> {
        Vec::new()
    }

    pub(super) const fn drops_id(self, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn hides(self, _outcome: &str, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn repeats_done(self, _race: u64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn fails(self, _race: u64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn shown_inflight(self, inflight: f64, _races: u64) -> f64 {
        inflight
    }

    pub(super) const fn hides_truncation(self, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn breaks_shape(self, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn cuts_json(self, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn breaks_text(self, _race: u64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn adds_error(self, _race: u64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn holds_answer(self, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn client_left(self, _escrow: &str, _nonce: u64) {}

    pub(super) const fn forgets(self, _escrow: &str, _nonce: u64) -> bool {
        false
    }

    pub(super) const fn crosses_talk(self, _race: u64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn shows_nonce_back(self, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn shows_future_nonce(self, _escrow: &str, _nonce: u64) -> bool {
        false
    }

    pub(super) const fn names_foreign_host(self, _outcome: &str, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn times_out(self, _race: u64, _on: On<'_>) -> bool {
        false
    }

    pub(super) const fn flaps(self) -> bool {
        false
    }

    pub(super) const fn is_slow(self, _races: u64) -> bool {
        false
    }
}
