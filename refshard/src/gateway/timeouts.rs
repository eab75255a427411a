//! Protocol timeouts of attempts that ended without finish: wait, ask the other participants for votes, put
//! the verdict into a step (contract gateway 6.3, hosts 7.2).

use std::time::Duration;

use futures_util::future::join_all;
use wire::devshard::{MsgTimeoutInference, TimeoutReason, TimeoutVote, Tx};

use super::attempt::until;
use super::escrow::Started;
use super::log::Line;
use super::race::{Attempt, Race};
use crate::clock;
use crate::state::{Session, Status};
use crate::transport::{VerifyTimeoutRequest, VoteReason};

/// Handles every failed attempt of a race; their waits overlap. An answer that was delivered is not voted
/// against, even if its finish is missing.
pub async fn settle(race: &Race) {
    join_all(race.attempts.iter().map(|attempt| one(race, attempt))).await;
}

async fn one(race: &Race, attempt: &Attempt) {
    let Some(started) = &attempt.started else { return };
    if attempt.succeeded() {
        return;
    }
    let reason = if attempt.confirmed_at.is_some() { VoteReason::Execution } else { VoteReason::Refused };
    let mut case = Case { race, started, reason };
    if race.escrow.has_finish(started.nonce) {
        case.skip("nonce_already_finished");
        return;
    }
    // July takes the text of an error for content and asks for no vote (fixture ml-400-nonstream).
    if race.gateway.is_july() && attempt.failure() == "error_stream" {
        case.skip("long_response_after_content");
        return;
    }
    let config = &race.escrow.params.config;
    let due_s = match attempt.confirmed_at {
        Some(confirmed_at) => confirmed_at + i64::from(config.execution_timeout),
        None => attempt.sent_s + i64::from(config.refusal_timeout),
    };
    let due_s = due_s + i64::from(race.gateway.config.waits.grace_s);
    let wait = until(due_s, clock::unix_s());
    case.line("timeout_waiting").field("reason", case.word()).field("remaining_ms", wait.as_millis()).emit();
    tokio::time::sleep(wait + Duration::from_millis(200)).await;
    // The receipt of a host that fell silent may come from its replica. Nobody votes for a refusal then, and the inference
    // has its whole execution time; July insists on the refusal and leaves it started.
    let confirmed = || {
        let record = |state: &Session| state.inference(started.nonce).cloned();
        race.escrow.with_state(record).filter(|record| record.status == Status::Started)
    };
    if case.reason == VoteReason::Refused
        && !race.gateway.is_july()
        && let Some(record) = confirmed()
    {
        case.reason = VoteReason::Execution;
        let due_s = record.confirmed_at
            + i64::from(config.execution_timeout)
            + i64::from(race.gateway.config.waits.grace_s);
        tokio::time::sleep(until(due_s, clock::unix_s()) + Duration::from_millis(200)).await;
    }
    if race.escrow.has_finish(started.nonce) {
        case.skip("nonce_already_finished");
        return;
    }
    case.count("started", "none");
    case.line("timeout_started").field("reason", case.word()).emit();
    race.gateway.metrics.count("devshard_inference_timeouts_total", &[("reason", case.word())]);
    match case.vote().await {
        // July counts an applied timeout as a failed one (contract gateway 7.1).
        Ok(()) if race.gateway.is_july() => {
            case.count("failed", "timeout_collection_error");
            case.line("timeout_completed").emit();
        }
        Ok(()) => {
            case.count("completed", "none");
            case.line("timeout_completed").emit();
        }
        Err(error) => {
            case.count("failed", "timeout_collection_error");
            case.line("timeout_failed").field("error", error).emit();
        }
    }
}

struct Case<'a> {
    race: &'a Race,
    started: &'a Started,
    reason: VoteReason,
}

impl Case<'_> {
    const fn word(&self) -> &'static str {
        match self.reason {
            VoteReason::Refused => "refused",
            VoteReason::Execution => "execution",
        }
    }

    fn line(&self, stage: &str) -> Line {
        Line::request(&self.race.id, stage)
            .field("escrow", self.race.escrow.id())
            .field("nonce", self.started.nonce)
    }

    fn count(&self, action: &str, reason: &str) {
        let labels = [
            ("participant_key", self.started.participant.address.as_str()),
            ("model", self.race.model()),
            ("kind", self.word()),
            ("action", action),
            ("reason", reason),
        ];
        self.race.gateway.metrics.count("devshard_gateway_timeout_actions_total", &labels);
    }

    fn skip(&self, reason: &str) {
        self.count("skipped", reason);
        self.line("timeout_skipped").field("reason", reason).emit();
    }

    async fn vote(&self) -> Result<(), String> {
        let Self { race, started, reason } = self;
        let escrow = &race.escrow;
        let (id, executor) = (started.nonce, &started.participant);
        // Verifiers look at applied state, so a confirmation that still waits needs a step first. July makes
        // none, and on an idle escrow every vote fails (finding J7).
        let is_pending = |status| status == Some(Status::Pending);
        let status = escrow.with_state(|state| state.inference(id).map(|record| record.status));
        if *reason == VoteReason::Execution && is_pending(status) && !race.gateway.is_july() {
            escrow.compose(Vec::new()).map_err(|error| error.to_string())?;
        }
        let nonce = escrow.with_state(crate::state::Session::nonce);
        let verifiers = escrow.participants().into_iter().filter(|one| *one != executor);
        let votes = join_all(verifiers.map(async |verifier| {
            let request = VerifyTimeoutRequest {
                inference_id: id,
                reason: self.word().to_owned(),
                payload: (*reason == VoteReason::Refused).then(|| started.payload.clone()),
                diffs: escrow.catch_up(verifier, nonce),
            };
            let answer = race.gateway.hosts.verify_timeout(escrow, verifier, &request).await;
            let line = self.line("timeout_vote_result").field("verifier", verifier.slot);
            match answer {
                Ok(vote) => {
                    line.field("accept", vote.accept).emit();
                    vote.accept.then_some(TimeoutVote {
                        voter_slot: vote.voter_slot,
                        accept: true,
                        signature: vote.signature.0,
                    })
                }
                Err(error) => {
                    race.gateway.count_transport_error(&verifier.address, "verify_timeout", error.status());
                    line.field("error", error).emit();
                    None
                }
            }
        }))
        .await;
        let votes: Vec<TimeoutVote> = votes.into_iter().flatten().collect();
        self.line("timeout_vote_tally").field("accept", votes.len()).emit();
        let code = match reason {
            VoteReason::Refused => TimeoutReason::Refused,
            VoteReason::Execution => TimeoutReason::Execution,
        };
        if votes.is_empty() {
            return Err("timeout_insufficient_votes: nobody accepts".to_owned());
        }
        let timeout = MsgTimeoutInference { inference_id: id, reason: code.into(), votes };
        let nonce = escrow.compose(vec![Tx::TimeoutInference(timeout)]).map_err(|error| error.to_string())?;
        // The verdict stands once the step is stored; whoever misses it now gets it with the next contact.
        let to = &escrow.by_slot[escrow.params.executor_slot(nonce) as usize];
        if let Err(error) = race.gateway.hosts.deliver(escrow, to, nonce).await {
            self.line("timeout_diff_send_failed").field("error", error).emit();
        }
        Ok(())
    }
}
