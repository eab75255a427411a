//! Sealing: old records leave the live set for the accumulator (contract hosts 6.4).

use super::machine::Session;
use super::types::Status;

impl Session {
    /// At multiples of the interval, seals what has outlived its grace.
    pub(super) fn auto_seal(&mut self, nonce: u64) {
        let config = &self.params.config;
        let every = u64::from(config.auto_seal_every_n_nonces);
        if every == 0 || !nonce.is_multiple_of(every) {
            return;
        }
        let Some(clock_s) = self.state_clock_s() else { return };
        let grace_nonces = u64::from(config.inference_seal_grace_nonces);
        let grace_s = i64::from(config.inference_seal_grace_seconds);
        let due: Vec<u64> = self
            .live
            .iter()
            .filter(|(id, record)| {
                record.status.is_terminal()
                    && nonce >= *id + grace_nonces
                    && (record.status != Status::Finished || clock_s - record.confirmed_at >= grace_s)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.seal_one(nonce, id);
        }
    }

    /// At settlement everything is sealed with whatever status it has.
    pub(super) fn seal_everything(&mut self, nonce: u64) {
        let ids: Vec<u64> = self.live.keys().copied().collect();
        for id in ids {
            self.seal_one(nonce, id);
        }
    }

    /// Newest receipt among the live inferences in the tail of three groups: the state has no other clock.
    fn state_clock_s(&self) -> Option<i64> {
        let tail = 3 * self.params.group.len() as u64;
        let newest = *self.live.keys().next_back()?;
        self.live
            .range(newest.saturating_sub(tail)..)
            .map(|(_, record)| record.confirmed_at)
            .filter(|at| *at > 0)
            .max()
    }
}
