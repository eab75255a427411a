//! What a race knows about participants: whom it passes by, who may not win, what it plans, what it teaches
//! (contract gateway 4.8 and 4.11).

use std::collections::HashSet;

use super::super::log::host_label;
use super::super::perf::{Pair, RaceSample, Sample};
use super::super::policy::{self, Known, Plan};
use super::super::quarantine::{Ending, Mode};
use super::Race;
use crate::clock;

impl Race {
    /// Participants whose nonces are passed by. July sends nothing to a probed host; here a quarantined host
    /// gets one request a second, and all of them when nobody else is left.
    pub(super) fn avoided(&self, exclude: &HashSet<String>) -> HashSet<String> {
        let now_ns = clock::unix_ns();
        let july = self.gateway.is_july();
        let candidates: Vec<&String> = self
            .escrow
            .participants()
            .into_iter()
            .map(|participant| &participant.address)
            .filter(|address| !exclude.contains(*address))
            .collect();
        let mut avoided = HashSet::new();
        for address in &candidates {
            let mode = self.gateway.quarantine.of(address, now_ns).mode;
            let blocked = match mode {
                Mode::Probe if july => true,
                Mode::Shadow | Mode::Probe if !july => !self.gateway.quarantine.is_probe_due(address, now_ns),
                _ => false,
            };
            if blocked {
                avoided.insert((*address).clone());
            }
        }
        if !july && avoided.len() == candidates.len() { HashSet::new() } else { avoided }
    }

    /// Notes what is held against the participant of an attempt that has its nonce.
    pub(super) fn judge_participant(&mut self, place: usize) {
        let Some(started) = &self.attempts[place].started else { return };
        let address = started.participant.address.clone();
        let now_ns = clock::unix_ns();
        let mode = self.gateway.quarantine.of(&address, now_ns).mode;
        self.gateway.quarantine.sent(&address, now_ns);
        let listed = self.gateway.is_suspicious(&address);
        let throttled = self.gateway.is_july() && matches!(mode, Mode::Shadow | Mode::Probation);
        self.attempts[place].mode = mode;
        self.attempts[place].no_winner = listed || throttled;
        if !self.attempts[place].no_winner {
            return;
        }
        let reason = match mode {
            _ if listed => "manual_suspicious",
            Mode::Shadow => "shadow_quarantine",
            _ => "probation",
        };
        let labels = [
            ("participant_key", address.as_str()),
            ("model", self.model()),
            ("reason", reason),
            ("quarantine_mode", mode.name()),
        ];
        self.gateway.metrics.count("devshard_gateway_no_winner_attempts_total", &labels);
    }

    /// The plan, once the primary has its nonce.
    pub(super) fn plan(&self) -> Plan {
        let Some(started) = &self.attempts[0].started else {
            return Plan { decision: "receipt_timeout", at_once: false };
        };
        let settings = self.gateway.settings();
        let now_ns = clock::unix_ns();
        let primary = started.participant.address.as_str();
        let record = |address: &str| self.gateway.perf.record(address, &settings, now_ns);
        let next = self.escrow.next_after(started.nonce, primary).map(|one| one.address.as_str());
        let pair = next.map_or_else(Pair::default, |next| {
            self.gateway.perf.pair(self.model(), self.input_length(), primary, next)
        });
        let known = Known {
            suspicious: self.attempts[0].no_winner,
            primary: record(primary),
            next: next.map(record),
            pair,
        };
        policy::plan(&self.settings, &known, self.escrow.id(), started.nonce)
    }

    /// Whether an attempt must not win now: its participant may not, and somebody else still could. July
    /// gives a whole JSON answer of such a host to nobody (finding J4).
    pub(super) fn is_held_back(&self, place: usize) -> bool {
        if !self.attempts[place].no_winner {
            return false;
        }
        let rival = |(other, attempt): (usize, &super::Attempt)| {
            other != place && attempt.end.is_none() && !attempt.no_winner
        };
        self.attempts.iter().enumerate().any(rival) || (self.gateway.is_july() && !self.chat.stream)
    }

    /// Nobody better is left: an attempt that was held back wins after all. True when the client has its
    /// answer.
    pub(super) async fn promote(&mut self) -> bool {
        for place in 0..self.attempts.len() {
            let attempt = &self.attempts[place];
            let complete = attempt.succeeded();
            let speaks = attempt.content_after.is_some() && (complete || attempt.end.is_none());
            if !attempt.no_winner || !(complete || speaks) || self.is_held_back(place) {
                continue;
            }
            if self.chat.stream {
                self.forward(place).await;
            } else {
                self.win(place);
            }
            if complete {
                self.deliver(place).await;
            }
            return complete;
        }
        false
    }

    /// July lets a JSON client wait for its limit although every attempt is over, unless one of them has
    /// said something that merely lacks its finish (finding J6).
    pub(super) fn waits_for_nothing(&self) -> bool {
        let said = |attempt: &super::Attempt| {
            attempt.end.as_ref().is_some_and(|end| end.has_content && end.failure.is_some())
        };
        self.gateway.is_july()
            && !self.chat.stream
            && self.attempts.iter().any(|attempt| attempt.started.is_some())
            && !self.attempts.iter().any(said)
    }

    /// A complete answer that July holds back until its client gives up.
    pub(super) fn deferred(&self) -> Option<usize> {
        self.attempts.iter().position(|attempt| attempt.no_winner && attempt.succeeded())
    }

    /// A chunk as it is, unless another request's id or a broken letter is a planted defect.
    pub(super) fn planted_talk(&self, place: usize, frame: axum::body::Bytes) -> axum::body::Bytes {
        const TEXT: &[u8] = b"\"content\":\"";
        if let Some(at) = frame.windows(TEXT.len()).position(|window| window == TEXT)
            && self.gateway.defect.breaks_text(self.number, self.planted_on())
        {
            let (head, tail) = frame.split_at(at + TEXT.len());
            return [head, b"\xff", tail].concat().into();
        }
        if !self.gateway.defect.crosses_talk(self.number, self.planted_on()) {
            return frame;
        }
        let nonce = self.nonce_of(place);
        let of = |nonce: u64| format!("\"devshard-{}-{nonce}\"", self.escrow.id());
        String::from_utf8_lossy(&frame).replace(&of(nonce), &of(nonce + 1)).into()
    }

    /// Tells the quarantine how an attempt ended.
    pub(super) fn learn(&self, place: usize) {
        let attempt = &self.attempts[place];
        let (Some(started), Some(end)) = (&attempt.started, &attempt.end) else { return };
        let ending = Ending { failure: end.failure, was_winner: self.winner == Some(place) };
        let settings = self.gateway.settings();
        let key = started.participant.address.as_str();
        let transition =
            self.gateway.quarantine.note(key, ending, &settings.participant_throttle, clock::unix_ns());
        let Some(transition) = transition else { return };
        let labels = [
            ("participant_key", key),
            ("model", "all"),
            ("mode", transition.mode.name()),
            ("reason", transition.reason),
        ];
        self.gateway.metrics.count("devshard_gateway_participant_quarantine_transitions_total", &labels);
        self.line("participant_quarantine_started")
            .field("host", host_label(key))
            .field("mode", transition.mode.name())
            .field("reason", transition.reason)
            .emit();
    }

    /// Tells the tracker what the race was like.
    pub(super) fn teach(&self, won: bool) {
        let milliseconds = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let sample = |(place, attempt): (usize, &super::Attempt)| {
            let (started, end) = (attempt.started.as_ref()?, attempt.end.as_ref()?);
            Some(Sample {
                host_idx: started.slot,
                participant: started.participant.address.clone(),
                nonce: started.nonce,
                output_chunks: attempt.chunks,
                receipt_ms: attempt.receipt_after.map(milliseconds),
                first_token_ms: attempt.content_after.map(milliseconds),
                total_ms: milliseconds(attempt.took),
                responsive: end.failure.is_none() || end.has_content,
                finished: end.finished,
                winner: self.winner == Some(place),
            })
        };
        let race = RaceSample {
            at_ns: clock::unix_ns(),
            model: self.model().to_owned(),
            input: self.input_length(),
            decision: self.decision,
            won,
            hosts: self.attempts.iter().enumerate().filter_map(sample).collect(),
        };
        self.gateway.perf.learn(race, &self.gateway.settings());
    }
}
