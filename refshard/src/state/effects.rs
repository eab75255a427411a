//! What each kind of entry does to the state, and what it is refused for (contract hosts 3.2).

use std::collections::BTreeSet;

use wire::devshard::{
    MsgConfirmStart, MsgFinishInference, MsgStartInference, MsgTimeoutInference, MsgValidation,
    MsgValidationVote, TimeoutReason, Tx, proposer_signed_bytes, receipt_signed_bytes,
    timeout_vote_signed_bytes,
};

use super::machine::{Session, Trust};
use super::types::{Inference, Phase, StateError, Status, VoteCount};
use crate::signing::signer_of;

impl Session {
    pub(super) fn effect(&mut self, nonce: u64, tx: &Tx, trust: Trust) -> Result<(), StateError> {
        match tx {
            Tx::StartInference(start) => self.start(nonce, start),
            Tx::ConfirmStart(confirm) => self.confirm(confirm, trust),
            Tx::FinishInference(finish) => {
                self.check_escrow("finish", &finish.escrow_id)?;
                self.check_proposer("finish", tx, finish.executor_slot, &finish.proposer_sig, trust)?;
                self.finish(finish)
            }
            Tx::TimeoutInference(timeout) => self.timeout(timeout, trust),
            Tx::Validation(validation) => {
                self.check_escrow("validation", &validation.escrow_id)?;
                let slot = validation.validator_slot;
                self.check_proposer("validation", tx, slot, &validation.proposer_sig, trust)?;
                self.validation(validation)
            }
            Tx::ValidationVote(vote) => {
                self.check_escrow("validation_vote", &vote.escrow_id)?;
                self.check_proposer("validation_vote", tx, vote.voter_slot, &vote.proposer_sig, trust)?;
                self.vote(vote)
            }
            Tx::RevealSeed(_) => Ok(()),
            Tx::FinalizeRound(_) => self.finalize_round(nonce),
        }
    }

    fn start(&mut self, nonce: u64, start: &MsgStartInference) -> Result<(), StateError> {
        self.only_active("start_inference")?;
        let id = start.inference_id;
        if id != nonce {
            return Err(StateError::StartId { id, nonce });
        }
        if self.inference(id).is_some() {
            return Err(StateError::Duplicate(id));
        }
        let reserved_cost = self.price_of(start.input_length, start.max_tokens);
        self.take(reserved_cost)?;
        let record = Inference {
            status: Status::Pending,
            executor_slot: self.params.executor_slot(id),
            model: start.model.clone(),
            prompt_hash: start.prompt_hash.clone(),
            response_hash: Vec::new(),
            input_length: start.input_length,
            max_tokens: start.max_tokens,
            input_tokens: 0,
            output_tokens: 0,
            reserved_cost,
            actual_cost: 0,
            started_at: start.started_at,
            confirmed_at: 0,
            votes: VoteCount::default(),
            validated_by: BTreeSet::new(),
            sealed_nonce: None,
        };
        self.put(id, record);
        Ok(())
    }

    fn confirm(&mut self, confirm: &MsgConfirmStart, trust: Trust) -> Result<(), StateError> {
        let id = confirm.inference_id;
        let mut record = self.live_in(id, Status::Pending, "confirm_start", "pending")?;
        if trust == Trust::Verify {
            let start = start_of(id, &record);
            let signed = receipt_signed_bytes(&start, &self.params.escrow_id, confirm.confirmed_at);
            self.check_signer("confirm_start", &signed, &confirm.executor_sig, record.executor_slot)?;
        }
        record.status = Status::Started;
        record.confirmed_at = confirm.confirmed_at;
        self.put(id, record);
        Ok(())
    }

    fn finish(&mut self, finish: &MsgFinishInference) -> Result<(), StateError> {
        let id = finish.inference_id;
        let mut record = self.live_in(id, Status::Started, "finish_inference", "started")?;
        if finish.executor_slot != record.executor_slot {
            return Err(StateError::Slot { what: "finish_inference", slot: finish.executor_slot });
        }
        let cost = self.price_of(finish.input_tokens, finish.output_tokens).min(record.reserved_cost);
        self.now.balance += record.reserved_cost - cost;
        self.now.stats[record.executor_slot as usize].cost += cost;
        record.status = Status::Finished;
        record.actual_cost = cost;
        record.input_tokens = finish.input_tokens;
        record.output_tokens = finish.output_tokens;
        record.response_hash.clone_from(&finish.response_hash);
        self.put(id, record);
        Ok(())
    }

    fn timeout(&mut self, timeout: &MsgTimeoutInference, trust: Trust) -> Result<(), StateError> {
        let id = timeout.inference_id;
        let reason = TimeoutReason::try_from(timeout.reason).unwrap_or(TimeoutReason::Unspecified);
        let mut record = match reason {
            TimeoutReason::Refused => self.live_in(id, Status::Pending, "timeout", "pending")?,
            TimeoutReason::Execution => self.live_in(id, Status::Started, "timeout", "started")?,
            TimeoutReason::Unspecified => return Err(StateError::Reason(timeout.reason)),
        };
        let mut voters = BTreeSet::new();
        let mut weight = 0;
        for vote in &timeout.votes {
            let slot = vote.voter_slot;
            let wrong = StateError::Slot { what: "timeout", slot };
            let address = self.params.address_of(slot).ok_or(wrong)?.to_owned();
            if trust == Trust::Verify {
                let signed = timeout_vote_signed_bytes(&self.params.escrow_id, id, reason, vote.accept);
                self.check_signer("timeout vote", &signed, &vote.signature, slot)?;
            }
            if vote.accept {
                weight += self.params.weight_of(&address);
            }
            if !voters.insert(address) {
                return Err(StateError::DuplicateVote(slot));
            }
        }
        let threshold = self.params.config.vote_threshold;
        if weight <= threshold {
            return Err(StateError::Votes { id, weight, threshold });
        }
        self.now.balance += record.reserved_cost;
        self.now.stats[record.executor_slot as usize].missed += 1;
        record.status = Status::TimedOut;
        self.put(id, record);
        Ok(())
    }

    fn validation(&mut self, validation: &MsgValidation) -> Result<(), StateError> {
        let (id, slot) = (validation.inference_id, validation.validator_slot);
        let mut record = self.live_record(id, "validation")?;
        let address = self.address("validation", slot)?;
        if self.params.address_of(record.executor_slot) == Some(address.as_str()) {
            return Err(StateError::Slot { what: "validation by the executor", slot });
        }
        if matches!(record.status, Status::Pending | Status::Started | Status::TimedOut) {
            return Err(StateError::WrongStatus { id, expected: "finished", got: record.status as u8 });
        }
        if self.has_spoken(&record, &address) {
            return Ok(());
        }
        record.validated_by.insert(slot);
        if record.status == Status::Finished {
            let weight = self.params.weight_of(&address);
            if validation.valid {
                record.votes.valid += weight;
            } else {
                record.status = Status::Challenged;
                record.votes.invalid += weight;
                self.resolve(&mut record);
            }
        }
        self.put(id, record);
        Ok(())
    }

    fn vote(&mut self, vote: &MsgValidationVote) -> Result<(), StateError> {
        let (id, slot) = (vote.inference_id, vote.voter_slot);
        let mut record = self.live_record(id, "vote")?;
        let address = self.address("validation_vote", slot)?;
        match record.status {
            Status::Validated | Status::Invalidated => return Ok(()),
            Status::Challenged => {}
            other => {
                return Err(StateError::WrongStatus { id, expected: "challenged", got: other as u8 });
            }
        }
        if self.has_spoken(&record, &address) {
            return Err(StateError::DuplicateVote(slot));
        }
        record.validated_by.insert(slot);
        let weight = self.params.weight_of(&address);
        if vote.vote_valid {
            record.votes.valid += weight;
        } else {
            record.votes.invalid += weight;
        }
        self.resolve(&mut record);
        self.put(id, record);
        Ok(())
    }

    /// Ends a challenge once one side has more than the threshold.
    fn resolve(&mut self, record: &mut Inference) {
        let threshold = self.params.config.vote_threshold;
        if record.votes.invalid > threshold {
            record.status = Status::Invalidated;
            self.now.balance += record.actual_cost;
            let stats = &mut self.now.stats[record.executor_slot as usize];
            stats.cost -= record.actual_cost;
            stats.invalid += 1;
        } else if record.votes.valid > threshold {
            record.status = Status::Validated;
        }
    }

    fn finalize_round(&mut self, nonce: u64) -> Result<(), StateError> {
        self.only_active("finalize_round")?;
        self.now.phase = Phase::Finalizing;
        self.now.finalize_nonce = Some(nonce);
        Ok(())
    }

    fn only_active(&self, what: &'static str) -> Result<(), StateError> {
        match self.now.phase {
            Phase::Active => Ok(()),
            phase => Err(StateError::WrongPhase { what, phase: phase.name() }),
        }
    }

    const fn price_of(&self, input: u64, output: u64) -> u64 {
        input.saturating_add(output).saturating_mul(self.params.config.token_price)
    }

    fn live_record(&self, id: u64, what: &'static str) -> Result<Inference, StateError> {
        if self.sealed.contains_key(&id) {
            return Err(StateError::Sealed(what));
        }
        self.live.get(&id).cloned().ok_or(StateError::Unknown(id))
    }

    fn live_in(
        &self,
        id: u64,
        status: Status,
        what: &'static str,
        expected: &'static str,
    ) -> Result<Inference, StateError> {
        let record = self.live_record(id, what)?;
        if record.status == status {
            Ok(record)
        } else {
            Err(StateError::WrongStatus { id, expected, got: record.status as u8 })
        }
    }

    fn has_spoken(&self, record: &Inference, address: &str) -> bool {
        record.validated_by.iter().any(|slot| self.params.address_of(*slot) == Some(address))
    }

    fn address(&self, what: &'static str, slot: u32) -> Result<String, StateError> {
        self.params.address_of(slot).map(str::to_owned).ok_or(StateError::Slot { what, slot })
    }

    fn check_escrow(&self, what: &'static str, escrow_id: &str) -> Result<(), StateError> {
        if escrow_id == self.params.escrow_id {
            Ok(())
        } else {
            Err(StateError::Escrow { what, got: escrow_id.to_owned() })
        }
    }

    fn check_proposer(
        &self,
        what: &'static str,
        tx: &Tx,
        slot: u32,
        signature: &[u8],
        trust: Trust,
    ) -> Result<(), StateError> {
        match proposer_signed_bytes(tx) {
            Some(signed) if trust == Trust::Verify => self.check_signer(what, &signed, signature, slot),
            _ => Ok(()),
        }
    }

    fn check_signer(
        &self,
        what: &'static str,
        signed: &[u8],
        signature: &[u8],
        slot: u32,
    ) -> Result<(), StateError> {
        let address = self.params.address_of(slot).ok_or(StateError::Slot { what, slot })?;
        match signer_of(signed, signature) {
            Ok(signer) if signer == address => Ok(()),
            _ => Err(StateError::Signer(what)),
        }
    }
}

/// The start that a record came from.
fn start_of(id: u64, record: &Inference) -> MsgStartInference {
    MsgStartInference {
        inference_id: id,
        prompt_hash: record.prompt_hash.clone(),
        model: record.model.clone(),
        input_length: record.input_length,
        max_tokens: record.max_tokens,
        started_at: record.started_at,
    }
}
