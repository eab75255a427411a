//! Planted defects of the gateway, all in this place (selftest, layer M). Without the feature
//! `planted-defects` the only value is [`Defect::None`], and the flag does not exist.
//!
//! | id | what it does | must fire |
//! |---|---|---|
//! | `lost-accounting` | every fifth race never gets a terminal outcome | A1 |
//! | `record-failed-on-200` | every seventh success is accounted as failed | A11 |
//! | `reuse-nonce` | shows one step in ten under two contents, one to the executor, one to the others | A4 |
//! | `drop-id-on-error` | the answer of a failed race names no request | A10 |
//! | `lookup-404` | a failed race is not found in accounting | A10 |
//! | `double-done` | every tenth stream ends with two markers | A3 |
//! | `fail-unselected` | every fiftieth request is answered 502 without a race's fault | A2 |
//! | `stuck-gauge` | the in-flight gauge never falls below 1 after the first request | A8 |

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
    LostAccounting,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    #[value(name = "record-failed-on-200")]
    RecordFailedOn200,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    ReuseNonce,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    DropIdOnError,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    #[value(name = "lookup-404")]
    Lookup404,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    DoubleDone,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    FailUnselected,
    /// See the table above.
    #[cfg(feature = "planted-defects")]
    StuckGauge,
}

#[cfg(feature = "planted-defects")]
impl Defect {
    /// `lost-accounting`.
    pub(super) fn loses_outcome(self, race: u64) -> bool {
        self == Self::LostAccounting && race.is_multiple_of(5)
    }

    /// `record-failed-on-200`.
    pub(super) fn records_failed(self, race: u64) -> bool {
        self == Self::RecordFailedOn200 && race.is_multiple_of(7)
    }

    /// `reuse-nonce`.
    pub(super) fn reuses_nonce(self, nonce: u64) -> bool {
        self == Self::ReuseNonce && nonce.is_multiple_of(10)
    }

    /// `drop-id-on-error`.
    pub(super) fn drops_id(self) -> bool {
        self == Self::DropIdOnError
    }

    /// `lookup-404`.
    pub(super) fn hides(self, outcome: &str) -> bool {
        self == Self::Lookup404 && outcome == "failed"
    }

    /// `double-done`.
    pub(super) fn repeats_done(self, race: u64) -> bool {
        self == Self::DoubleDone && race.is_multiple_of(10)
    }

    /// `fail-unselected`.
    pub(super) fn fails(self, race: u64) -> bool {
        self == Self::FailUnselected && race.is_multiple_of(50)
    }

    /// `stuck-gauge`: the shown gauge.
    pub(super) fn shown_inflight(self, inflight: f64, races: u64) -> f64 {
        if self == Self::StuckGauge && races > 0 { inflight.max(1.0) } else { inflight }
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
}
