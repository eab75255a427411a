//! Reactions to failing participants: strikes, probation, shadow and probe quarantine (contract gateway 4.11).
//! Process-wide, by participant, kept in the database: a restart does not forgive.
//!
//! What a mode means for a race differs. July burns the nonces of a probed host as ghosts and lets no host in
//! shadow or probation win. Here a quarantined host is passed by as long as another one is there, and one
//! request a second is sent to it all the same, whose success ends the quarantine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::settings::ParticipantThrottle;
use super::store::Store;

/// Time between two requests to a quarantined host, when it is not July's.
const PROBE_EVERY_NS: u64 = 1_000_000_000;
/// Failed winners in a row that count as a stalled host.
const STALLED_STRIKES: u64 = 3;
/// Participants that are remembered; more than any stack has.
const ENTRIES_MAX: usize = 10_000;

/// What is done about a participant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    #[default]
    None,
    /// It has failed lately.
    Probation,
    /// It gave nothing several times.
    Shadow,
    /// It refuses or cannot be reached.
    Probe,
}

impl Mode {
    /// Label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Probation => "probation",
            Self::Shadow => "shadow",
            Self::Probe => "probe",
        }
    }

    /// The mode with this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "probation" => Self::Probation,
            "shadow" => Self::Shadow,
            "probe" => Self::Probe,
            _ => Self::None,
        }
    }
}

/// What is known of one participant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub mode: Mode,
    pub reason: String,
    /// End of shadow and probe, Unix nanoseconds.
    pub until_ns: u64,
    pub strikes: u64,
    empty: u64,
    cut: u64,
    stalled: u64,
    probed_ns: u64,
}

/// A change of mode, for log and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    pub mode: Mode,
    pub reason: &'static str,
}

/// How one attempt ended, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// Label of contract gateway 7.4; none for success.
    pub failure: Option<&'static str>,
    /// It had been given to the client.
    pub was_winner: bool,
}

/// All participants.
#[derive(Debug)]
pub struct Quarantine {
    entries: Mutex<BTreeMap<String, Entry>>,
    store: Arc<Store>,
}

impl Quarantine {
    /// What the database remembers.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn open(store: Arc<Store>) -> Result<Self, super::store::StoreError> {
        let mut entries = BTreeMap::new();
        for (key, mode, reason, until_ns, strikes) in store.throttles()? {
            let mode = Mode::named(&mode);
            entries.insert(key, Entry { mode, reason, until_ns, strikes, ..Entry::default() });
        }
        Ok(Self { entries: Mutex::new(entries), store })
    }

    /// What is known of a participant now. An ended quarantine turns into probation with two strikes.
    #[must_use]
    pub fn of(&self, participant: &str, now_ns: u64) -> Entry {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(participant) else { return Entry::default() };
        if matches!(entry.mode, Mode::Shadow | Mode::Probe) && now_ns >= entry.until_ns {
            *entry = Entry {
                mode: Mode::Probation,
                reason: "quarantine_expired".to_owned(),
                strikes: 2,
                ..Entry::default()
            };
            let changed = entry.clone();
            drop(entries);
            self.keep(participant, &changed);
            return changed;
        }
        entry.clone()
    }

    /// Whether a quarantined participant is due for the one request of this second.
    #[must_use]
    pub fn is_probe_due(&self, participant: &str, now_ns: u64) -> bool {
        let due = |entry: &Entry| now_ns.saturating_sub(entry.probed_ns) >= PROBE_EVERY_NS;
        self.lock().get(participant).is_some_and(due)
    }

    /// A request goes to a participant.
    pub fn sent(&self, participant: &str, now_ns: u64) {
        if let Some(entry) = self.lock().get_mut(participant) {
            entry.probed_ns = now_ns;
        }
    }

    /// Learns how an attempt ended. Returns a change of mode that is counted.
    #[must_use]
    pub fn note(
        &self,
        participant: &str,
        ending: Ending,
        settings: &ParticipantThrottle,
        now_ns: u64,
    ) -> Option<Transition> {
        let mut entries = self.lock();
        if entries.len() >= ENTRIES_MAX && !entries.contains_key(participant) {
            return None;
        }
        let entry = entries.entry(participant.to_owned()).or_default();
        let before = entry.clone();
        let transition = entry.learn(ending, settings, now_ns);
        let after = entry.clone();
        drop(entries);
        if (before.mode, before.until_ns, before.strikes) != (after.mode, after.until_ns, after.strikes) {
            self.keep(participant, &after);
        }
        transition
    }

    /// Forgets a participant; true when there was something to forget.
    #[must_use]
    pub fn clear(&self, participant: &str) -> bool {
        let known = self.lock().remove(participant).is_some_and(|entry| entry.mode != Mode::None);
        self.keep(participant, &Entry::default());
        known
    }

    fn keep(&self, participant: &str, entry: &Entry) {
        let row = (entry.mode.name(), entry.reason.as_str(), entry.until_ns, entry.strikes);
        if let Err(error) = self.store.put_throttle(participant, row) {
            // The mode holds in memory; only a restart would forget it.
            super::log::Line::process("participant_quarantine_not_stored").field("error", error).emit();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn learn(&mut self, ending: Ending, settings: &ParticipantThrottle, now_ns: u64) -> Option<Transition> {
        let Some(failure) = ending.failure else {
            // A success ends probation and every streak; it also answers a probe.
            *self = Self { probed_ns: self.probed_ns, ..Self::default() };
            return None;
        };
        let threshold = settings.empty_stream_threshold.min(settings.eof_transport_failure_threshold);
        let (mode, reason, ms) = match failure {
            "http_429" | "http_503" => (Mode::Probe, "http_throttle_quarantine", settings.http_quarantine_ms),
            "http_timestamp_drift" | "http_forbidden" | "http_not_found" => {
                (Mode::Probe, failure, settings.transport_failure_quarantine_ms)
            }
            "transport_error" => {
                (Mode::Probe, "transport_failure_quarantine", settings.transport_failure_quarantine_ms)
            }
            "eof_transport" => {
                self.cut += 1;
                if self.cut < settings.eof_transport_failure_threshold {
                    return self.strike();
                }
                (Mode::Probe, "eof_transport_quarantine", settings.transport_failure_quarantine_ms)
            }
            "empty_stream" => {
                self.empty += 1;
                if self.empty < threshold {
                    return self.strike();
                }
                (Mode::Shadow, "empty_stream_quarantine", settings.empty_stream_quarantine_ms)
            }
            _ if ending.was_winner => {
                self.stalled += 1;
                if self.stalled < STALLED_STRIKES {
                    return self.strike();
                }
                (Mode::Shadow, "stalled_winner_quarantine", settings.stalled_winner_quarantine_ms)
            }
            // A router's 502, a cancelled loser: nothing is held against the host.
            "http_error" | "client_cancelled" | "phase_transition_aborted" | "unknown" => return None,
            _ => return self.strike(),
        };
        let fresh = self.mode != mode;
        self.mode = mode;
        reason.clone_into(&mut self.reason);
        self.until_ns = now_ns.saturating_add(ms.saturating_mul(1_000_000));
        self.probed_ns = now_ns;
        fresh.then_some(Transition { mode, reason })
    }

    /// Probation, unless something worse holds already.
    fn strike(&mut self) -> Option<Transition> {
        self.strikes += 1;
        if self.mode == Mode::None {
            self.mode = Mode::Probation;
            "failed_attempt".clone_into(&mut self.reason);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;

    fn open() -> (tempfile::TempDir, Arc<Store>) {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&directory.path().join("gateway.db")).unwrap());
        (directory, store)
    }

    fn failed(failure: &'static str) -> Ending {
        Ending { failure: Some(failure), was_winner: false }
    }

    #[test]
    fn one_429_is_a_quarantine_that_a_restart_remembers_until_it_ends() {
        let (_directory, store) = open();
        let throttle = Settings::defaults("", "", "m").participant_throttle;
        let quarantine = Quarantine::open(store.clone()).unwrap();
        let transition = quarantine.note("a", failed("http_429"), &throttle, 5);
        assert_eq!(transition.unwrap().reason, "http_throttle_quarantine");
        assert_eq!(quarantine.note("a", failed("http_429"), &throttle, 6), None, "it holds already");
        let again = Quarantine::open(store).unwrap();
        let hour_ns = 3_600_000_000_000;
        assert_eq!(again.of("a", hour_ns).mode, Mode::Probe);
        let expired = again.of("a", hour_ns + 10);
        assert_eq!((expired.mode, expired.strikes), (Mode::Probation, 2));
        let success = Ending { failure: None, was_winner: true };
        assert_eq!(again.note("a", success, &throttle, hour_ns + 11), None);
        assert_eq!(again.of("a", hour_ns + 12).mode, Mode::None);
    }

    #[test]
    fn streaks_end_in_shadow_and_a_routers_502_is_held_against_nobody() {
        let (_directory, store) = open();
        let throttle = Settings::defaults("", "", "m").participant_throttle;
        let quarantine = Quarantine::open(store).unwrap();
        for _ in 0..2 {
            assert_eq!(quarantine.note("a", failed("empty_stream"), &throttle, 1), None);
            assert_eq!(quarantine.of("a", 1).mode, Mode::Probation);
        }
        let transition = quarantine.note("a", failed("empty_stream"), &throttle, 1).unwrap();
        assert_eq!(transition, Transition { mode: Mode::Shadow, reason: "empty_stream_quarantine" });
        for _ in 0..9 {
            assert_eq!(quarantine.note("b", failed("http_error"), &throttle, 1), None);
        }
        assert_eq!(quarantine.of("b", 1), Entry::default());
        let winner = Ending { failure: Some("not_finished"), was_winner: true };
        for _ in 0..2 {
            assert_eq!(quarantine.note("c", winner, &throttle, 1), None);
        }
        assert_eq!(quarantine.note("c", winner, &throttle, 1).unwrap().mode, Mode::Shadow);
        assert!(quarantine.clear("c") && !quarantine.clear("c"));
    }

    #[test]
    fn a_probe_is_due_once_a_second() {
        let (_directory, store) = open();
        let throttle = Settings::defaults("", "", "m").participant_throttle;
        let quarantine = Quarantine::open(store).unwrap();
        assert!(!quarantine.is_probe_due("a", 0), "nobody is quarantined");
        let _ = quarantine.note("a", failed("http_503"), &throttle, 10);
        assert!(!quarantine.is_probe_due("a", 10 + PROBE_EVERY_NS - 1));
        assert!(quarantine.is_probe_due("a", 10 + PROBE_EVERY_NS));
        quarantine.sent("a", 10 + PROBE_EVERY_NS);
        assert!(!quarantine.is_probe_due("a", 11 + PROBE_EVERY_NS));
    }
}
