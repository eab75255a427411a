//! Invariants of contract hosts 12.2 over random histories.

use proptest::prelude::*;
use wire::devshard::{
    DevshardTx, MsgConfirmStart, MsgFinalizeRound, MsgFinishInference, MsgStartInference,
    MsgTimeoutInference, MsgValidation, MsgValidationVote, TimeoutVote, Tx,
};

use super::*;
use crate::personality::Waits;

const ESCROW: &str = "7";

fn params(group: &[u8]) -> SessionParams {
    let size = u32::try_from(group.len()).unwrap();
    SessionParams {
        escrow_id: ESCROW.into(),
        creator: "user".into(),
        group: group.iter().map(|owner| format!("host-{owner}")).collect(),
        initial_balance: 60_000,
        protocol_version: "v2".into(),
        config: SessionConfig {
            fee_per_nonce: 7,
            inference_seal_grace_nonces: 4,
            inference_seal_grace_seconds: 3,
            auto_seal_every_n_nonces: 5,
            ..SessionConfig::defaults(size, Waits::default())
        },
    }
}

/// One random entry; ids reach a little beyond what exists.
fn entry() -> impl Strategy<Value = Tx> {
    let id = 1..20_u64;
    prop_oneof![
        (id.clone(), 0..8_i64).prop_map(|(inference_id, confirmed_at)| Tx::ConfirmStart(MsgConfirmStart {
            inference_id,
            executor_sig: Vec::new(),
            confirmed_at,
        })),
        (id.clone(), 0..4_u32, 0..60_u64).prop_map(|(inference_id, executor_slot, output_tokens)| {
            Tx::FinishInference(MsgFinishInference {
                inference_id,
                output_tokens,
                executor_slot,
                escrow_id: ESCROW.into(),
                ..MsgFinishInference::default()
            })
        }),
        (id.clone(), 0..4_i32, prop::collection::vec((0..5_u32, any::<bool>()), 0..4)).prop_map(
            |(inference_id, reason, votes)| {
                let vote = |(voter_slot, accept)| TimeoutVote { voter_slot, accept, signature: Vec::new() };
                let votes = votes.into_iter().map(vote).collect();
                Tx::TimeoutInference(MsgTimeoutInference { inference_id, reason, votes })
            }
        ),
        (id.clone(), 0..5_u32, any::<bool>()).prop_map(|(inference_id, validator_slot, valid)| {
            Tx::Validation(MsgValidation {
                inference_id,
                validator_slot,
                valid,
                escrow_id: ESCROW.into(),
                ..MsgValidation::default()
            })
        }),
        (id, 0..5_u32, any::<bool>()).prop_map(|(inference_id, voter_slot, vote_valid)| {
            Tx::ValidationVote(MsgValidationVote {
                inference_id,
                voter_slot,
                vote_valid,
                escrow_id: ESCROW.into(),
                ..MsgValidationVote::default()
            })
        }),
    ]
}

/// One step: does it start an inference of this size, does it finalize, what do hosts propose.
type Step = (Option<u64>, bool, Vec<Tx>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (
        proptest::option::weighted(0.7, 1..80_u64),
        prop::bool::weighted(0.02),
        prop::collection::vec(entry(), 0..4),
    );
    prop::collection::vec(step, 1..40)
}

fn own(nonce: u64, start: Option<u64>, finalize: bool) -> Vec<Tx> {
    let start = start.map(|max_tokens| {
        Tx::StartInference(MsgStartInference {
            inference_id: nonce,
            model: "m".into(),
            input_length: 3,
            max_tokens,
            started_at: 1,
            ..MsgStartInference::default()
        })
    });
    start.into_iter().chain(finalize.then_some(Tx::FinalizeRound(MsgFinalizeRound {}))).collect()
}

fn check_money(session: &Session) {
    let all = || session.live().values().chain(session.sealed().values());
    let held: u64 = all()
        .map(|record| match record.status {
            Status::Pending | Status::Started => record.reserved_cost,
            Status::Finished | Status::Challenged | Status::Validated => record.actual_cost,
            Status::Invalidated | Status::TimedOut => 0,
        })
        .sum();
    assert_eq!(session.balance() + session.fees() + held, session.params().initial_balance);
    for (slot, stats) in session.host_stats().iter().enumerate() {
        let mine = || all().filter(|record| record.executor_slot as usize == slot);
        let earned: u64 = mine()
            .filter(|r| matches!(r.status, Status::Finished | Status::Challenged | Status::Validated))
            .map(|r| r.actual_cost)
            .sum();
        assert_eq!(stats.cost, earned);
        assert_eq!(stats.missed as usize, mine().filter(|r| r.status == Status::TimedOut).count());
        assert_eq!(stats.invalid as usize, mine().filter(|r| r.status == Status::Invalidated).count());
    }
}

fn observable(session: &Session) -> String {
    format!("{:?} {:?} {:?} {}", session.now, session.live, session.sealed, hex::encode(session.root()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Money is conserved at every nonce, refused steps leave no trace, and whoever applies the composed
    /// steps gets the same state; nothing in a step is applied twice.
    #[test]
    fn any_history_conserves_money_and_is_followed_exactly(
        group in prop::collection::vec(0..3_u8, 1..4),
        history in steps(),
    ) {
        let mut user = Session::new(params(&group));
        let mut host = Session::new(params(&group));
        let mut confirmed = std::collections::BTreeSet::new();
        let mut ended = std::collections::BTreeSet::new();
        for (start, finalize, proposed) in history {
            let nonce = user.nonce() + 1;
            let before = observable(&user);
            let Ok(step) = user.compose(proposed, own(nonce, start, finalize), Trust::OwnLog) else {
                prop_assert_eq!(observable(&user), before);
                continue;
            };
            check_money(&user);
            for tx in &step.txs {
                match tx.tx.as_ref().unwrap() {
                    Tx::ConfirmStart(tx) => {
                        prop_assert!(tx.inference_id < nonce && confirmed.insert(tx.inference_id));
                    }
                    Tx::FinishInference(tx) => prop_assert!(ended.insert(tx.inference_id)),
                    Tx::TimeoutInference(tx) => prop_assert!(ended.insert(tx.inference_id)),
                    _ => {}
                }
            }
            prop_assert_eq!(host.apply(nonce, &step.txs, Some(&step.root), Trust::OwnLog), Ok(true));
            prop_assert_eq!(observable(&host), observable(&user));
        }
    }

    /// A step with any entries either applies whole or changes nothing.
    #[test]
    fn any_step_is_atomic(group in prop::collection::vec(0..3_u8, 1..4), history in steps()) {
        let mut session = Session::new(params(&group));
        for (start, finalize, mut txs) in history {
            let nonce = session.nonce() + 1;
            txs.extend(own(nonce, start, finalize));
            let txs: Vec<DevshardTx> = txs.into_iter().map(DevshardTx::from).collect();
            let before = observable(&session);
            match session.apply(nonce, &txs, None, Trust::OwnLog) {
                Ok(_) => check_money(&session),
                Err(_) => prop_assert_eq!(observable(&session), before),
            }
        }
    }
}
