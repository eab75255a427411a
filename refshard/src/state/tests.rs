//! Rules of single entries, with real signatures.

use wire::devshard::{
    DevshardTx, MsgConfirmStart, MsgFinalizeRound, MsgFinishInference, MsgStartInference,
    MsgTimeoutInference, MsgValidation, MsgValidationVote, TimeoutReason, TimeoutVote, Tx,
    proposer_signed_bytes, receipt_signed_bytes, timeout_vote_signed_bytes,
};
use wire::proto::inference::{DevshardSettlementHostStats, MsgSettleDevshardEscrow};
use wire::settlement::settlement_root;

use super::*;
use crate::personality::Waits;
use crate::signing::Signer;

const ESCROW: &str = "42";

fn host(slot: u32) -> Signer {
    Signer::from_hex(&format!("{:064x}", slot + 1)).unwrap()
}

fn session(group_size: u32) -> Session {
    let config = SessionConfig { fee_per_nonce: 10, ..SessionConfig::defaults(group_size, Waits::default()) };
    Session::new(SessionParams {
        escrow_id: ESCROW.into(),
        creator: "user".into(),
        group: (0..group_size).map(|slot| host(slot).address().to_owned()).collect(),
        initial_balance: 1_000_000,
        protocol_version: "v2".into(),
        config,
    })
}

fn start(id: u64) -> MsgStartInference {
    MsgStartInference {
        inference_id: id,
        prompt_hash: vec![1; 32],
        model: "m".into(),
        input_length: 10,
        max_tokens: 20,
        started_at: 1000,
    }
}

fn confirm(id: u64, signer: &Signer) -> Tx {
    let signed = receipt_signed_bytes(&start(id), ESCROW, 1001);
    Tx::ConfirmStart(MsgConfirmStart {
        inference_id: id,
        executor_sig: signer.sign(&signed),
        confirmed_at: 1001,
    })
}

fn signed_by(signer: &Signer, tx: Tx) -> Tx {
    let signature = signer.sign(&proposer_signed_bytes(&tx).unwrap());
    match tx {
        Tx::FinishInference(tx) => Tx::FinishInference(MsgFinishInference { proposer_sig: signature, ..tx }),
        Tx::Validation(tx) => Tx::Validation(MsgValidation { proposer_sig: signature, ..tx }),
        Tx::ValidationVote(tx) => Tx::ValidationVote(MsgValidationVote { proposer_sig: signature, ..tx }),
        other => other,
    }
}

fn finish(id: u64, slot: u32) -> Tx {
    let tx = MsgFinishInference {
        inference_id: id,
        response_hash: vec![2; 32],
        input_tokens: 3,
        output_tokens: 4,
        executor_slot: slot,
        proposer_sig: Vec::new(),
        escrow_id: ESCROW.into(),
    };
    signed_by(&host(slot), Tx::FinishInference(tx))
}

fn validation(id: u64, slot: u32, valid: bool) -> Tx {
    let tx = MsgValidation {
        inference_id: id,
        validator_slot: slot,
        valid,
        proposer_sig: Vec::new(),
        escrow_id: ESCROW.into(),
    };
    signed_by(&host(slot), Tx::Validation(tx))
}

fn vote(id: u64, slot: u32, vote_valid: bool) -> Tx {
    let tx = MsgValidationVote {
        inference_id: id,
        voter_slot: slot,
        vote_valid,
        proposer_sig: Vec::new(),
        escrow_id: ESCROW.into(),
    };
    signed_by(&host(slot), Tx::ValidationVote(tx))
}

fn timeout(id: u64, reason: TimeoutReason, slots: &[u32]) -> Tx {
    let vote = |slot: &u32| TimeoutVote {
        voter_slot: *slot,
        accept: true,
        signature: host(*slot).sign(&timeout_vote_signed_bytes(ESCROW, id, reason, true)),
    };
    let votes = slots.iter().map(vote).collect();
    Tx::TimeoutInference(MsgTimeoutInference { inference_id: id, reason: reason.into(), votes })
}

fn apply(session: &mut Session, txs: Vec<Tx>) -> Result<bool, StateError> {
    let txs: Vec<DevshardTx> = txs.into_iter().map(DevshardTx::from).collect();
    session.apply(session.nonce() + 1, &txs, None, Trust::Verify)
}

/// Inference 1 (executor slot 1 of 3), finished at nonce 2.
fn finished() -> Session {
    let mut session = session(3);
    apply(&mut session, vec![Tx::StartInference(start(1))]).unwrap();
    apply(&mut session, vec![confirm(1, &host(1)), finish(1, 1)]).unwrap();
    session
}

#[test]
fn the_happy_path_moves_money_once() {
    let session = finished();
    let record = session.inference(1).unwrap();
    assert_eq!((record.status, record.executor_slot), (Status::Finished, 1));
    assert_eq!((record.reserved_cost, record.actual_cost), (3000, 700));
    assert_eq!(session.balance(), 1_000_000 - 10_000 - 2 * 10 - 700);
    assert_eq!(session.host_stats()[1].cost, 700);
}

#[test]
fn nonces_are_sequential_and_old_ones_are_skipped_unread() {
    let mut session = finished();
    let root = session.root();
    assert_eq!(session.apply(1, &[], Some(&[0; 32]), Trust::Verify), Ok(false));
    assert_eq!(
        session.apply(4, &[], None, Trust::Verify).unwrap_err().to_string(),
        "invalid nonce: must be sequential: expected 3, got 4"
    );
    assert_eq!(session.root(), root);
}

#[test]
fn a_refused_entry_rolls_the_whole_step_back() {
    let mut session = finished();
    let before = (session.root(), session.nonce(), session.balance());
    let refused = apply(&mut session, vec![validation(1, 0, false), finish(1, 1)]);
    assert_eq!(refused, Err(StateError::WrongStatus { id: 1, expected: "started", got: 3 }));
    assert_eq!((session.root(), session.nonce(), session.balance()), before);
    assert!(matches!(session.apply(3, &[], Some(&[7; 32]), Trust::Verify), Err(StateError::Root { .. })));
    assert_eq!((session.root(), session.nonce(), session.balance()), before);
}

#[test]
fn starts_are_bound_to_their_nonce_and_to_the_money() {
    let mut session = session(3);
    assert_eq!(
        apply(&mut session, vec![Tx::StartInference(start(2))]),
        Err(StateError::StartId { id: 2, nonce: 1 })
    );
    assert_eq!(
        apply(&mut session, vec![Tx::StartInference(start(1)), Tx::StartInference(start(1))]),
        Err(StateError::TwoStarts(1))
    );
    let dear = MsgStartInference { max_tokens: 1_000_000, ..start(1) };
    assert!(matches!(apply(&mut session, vec![Tx::StartInference(dear)]), Err(StateError::Balance { .. })));
    apply(&mut session, vec![Tx::FinalizeRound(MsgFinalizeRound {})]).unwrap();
    assert!(matches!(
        apply(&mut session, vec![Tx::StartInference(start(2))]),
        Err(StateError::WrongPhase { .. })
    ));
}

#[test]
fn entries_of_the_wrong_signer_are_refused() {
    let mut session = session(3);
    apply(&mut session, vec![Tx::StartInference(start(1))]).unwrap();
    assert_eq!(apply(&mut session, vec![confirm(1, &host(2))]), Err(StateError::Signer("confirm_start")));
    apply(&mut session, vec![confirm(1, &host(1))]).unwrap();
    assert!(apply(&mut session, vec![finish(1, 2)]).is_err());
    let Tx::FinishInference(mut forged) = finish(1, 1) else { unreachable!() };
    forged.output_tokens = 5;
    assert_eq!(apply(&mut session, vec![Tx::FinishInference(forged)]), Err(StateError::Signer("finish")));
}

#[test]
fn a_second_validation_is_silent_and_a_second_vote_is_not() {
    let mut session = finished();
    apply(&mut session, vec![validation(1, 0, true)]).unwrap();
    let votes = session.inference(1).unwrap().votes;
    assert_eq!(votes, VoteCount { valid: 1, invalid: 0 });
    apply(&mut session, vec![validation(1, 0, false)]).unwrap();
    assert_eq!(session.inference(1).unwrap().votes, votes);
    assert!(apply(&mut session, vec![validation(1, 1, true)]).is_err(), "the executor may not");
    apply(&mut session, vec![validation(1, 2, false)]).unwrap();
    assert_eq!(session.inference(1).unwrap().status, Status::Challenged);
    assert_eq!(apply(&mut session, vec![vote(1, 2, false)]), Err(StateError::DuplicateVote(2)));
}

#[test]
fn thresholds_are_strict() {
    // three slots: the threshold is 1, so one opinion decides nothing and two do
    let mut session = finished();
    apply(&mut session, vec![validation(1, 0, false)]).unwrap();
    assert_eq!(session.inference(1).unwrap().status, Status::Challenged);
    let balance = session.balance();
    apply(&mut session, vec![vote(1, 2, false)]).unwrap();
    assert_eq!(session.inference(1).unwrap().status, Status::Invalidated);
    assert_eq!(session.balance(), balance + 700 - 10);
    assert_eq!((session.host_stats()[1].cost, session.host_stats()[1].invalid), (0, 1));
    apply(&mut session, vec![vote(1, 0, true)]).unwrap();
    assert_eq!(session.inference(1).unwrap().status, Status::Invalidated);
}

#[test]
fn timeouts_need_the_right_status_and_enough_weight() {
    let mut session = session(3);
    apply(&mut session, vec![Tx::StartInference(start(1))]).unwrap();
    let few = apply(&mut session, vec![timeout(1, TimeoutReason::Refused, &[0])]);
    assert_eq!(few, Err(StateError::Votes { id: 1, weight: 1, threshold: 1 }));
    let twice = apply(&mut session, vec![timeout(1, TimeoutReason::Refused, &[0, 0])]);
    assert_eq!(twice, Err(StateError::DuplicateVote(0)));
    let early = apply(&mut session, vec![timeout(1, TimeoutReason::Execution, &[0, 2])]);
    assert_eq!(early, Err(StateError::WrongStatus { id: 1, expected: "started", got: 0 }));
    let balance = session.balance();
    apply(&mut session, vec![timeout(1, TimeoutReason::Refused, &[0, 2])]).unwrap();
    assert_eq!(session.balance(), balance + 3000 - 10);
    assert_eq!(session.host_stats()[1].missed, 1);
    assert!(apply(&mut session, vec![confirm(1, &host(1))]).is_err());
}

#[test]
fn finalizing_ends_in_settlement_with_everything_sealed() {
    let mut session = finished();
    apply(&mut session, vec![Tx::FinalizeRound(MsgFinalizeRound {})]).unwrap();
    assert_eq!((session.phase(), session.finalize_nonce()), (Phase::Finalizing, Some(3)));
    let fees = session.fees();
    for _ in 0..2 {
        apply(&mut session, Vec::new()).unwrap();
        assert_eq!(session.phase(), Phase::Finalizing);
    }
    apply(&mut session, Vec::new()).unwrap();
    assert_eq!(session.phase(), Phase::Settlement);
    assert_eq!(session.fees(), fees, "only active steps cost a fee");
    assert_eq!((session.live().len(), session.sealed().len()), (0, 1));
    let stats = session.host_stats().iter().enumerate().map(|(slot, stats)| DevshardSettlementHostStats {
        slot_id: u32::try_from(slot).unwrap(),
        missed: stats.missed,
        invalid: stats.invalid,
        cost: stats.cost,
        ..DevshardSettlementHostStats::default()
    });
    let settlement = MsgSettleDevshardEscrow {
        rest_hash: session.rest_hash().to_vec(),
        host_stats: stats.collect(),
        fees: session.fees(),
        state_root_and_protocol_version: "v2".into(),
        ..MsgSettleDevshardEscrow::default()
    };
    assert_eq!(settlement_root(&settlement), session.root(), "the chain can check it");
    let late = apply(&mut session, vec![validation(1, 0, true)]);
    assert_eq!(late.unwrap_err().to_string(), "inference sealed: late validation not accepted");
}

#[test]
fn composing_takes_what_fits_and_orders_it() {
    let mut session = session(3);
    session.compose(Vec::new(), vec![Tx::StartInference(start(1))], Trust::Verify).unwrap();
    let proposed = vec![finish(1, 1), validation(9, 0, true), confirm(1, &host(1))];
    let step = session.compose(proposed, vec![Tx::StartInference(start(2))], Trust::Verify).unwrap();
    let kinds: Vec<_> = step.txs.iter().map(|tx| tx.kind().unwrap().name()).collect();
    assert_eq!(kinds, ["confirm_start", "finish", "start"]);
    assert_eq!(step.dropped.len(), 1);
    assert_eq!(step.root, session.root());

    let mut other = self::session(3);
    apply(&mut other, vec![Tx::StartInference(start(1))]).unwrap();
    assert_eq!(other.apply(2, &step.txs, Some(&step.root), Trust::Verify), Ok(true));
}

#[test]
fn residue_is_told_from_pending_work() {
    let mut session = finished();
    let root = session.root();
    assert!(!session.would_apply(&finish(1, 1), Trust::Verify));
    assert!(session.would_apply(&validation(1, 0, true), Trust::Verify));
    apply(&mut session, vec![validation(1, 0, true)]).unwrap();
    assert!(!session.would_apply(&validation(1, 0, true), Trust::Verify));
    assert_ne!(session.root(), root);
}
