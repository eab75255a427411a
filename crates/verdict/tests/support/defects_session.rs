//! Defects of sessions: A4, A5, A6, A7.

use evidence::assertion::AssertionId::{A4, A5, A6, A7};
use evidence::leases::LeaseSeen;
use evidence::snapshot::{Lease, Moment};

use super::Files;
use super::catalogue::{Defect, in_diff, last_nonce, logs, place, without_tx};
use super::log::{SLOTS, owner, tx, validator};
use super::story::TWO_ATTEMPTS;

pub fn lease(owner_slot: u64, epoch: u64, status: &str, claimed_unix_us: u64) -> Lease {
    Lease {
        epoch,
        escrow: "11".to_owned(),
        inference: 5,
        owner: owner(owner_slot),
        status: status.to_owned(),
        claimed_unix_us,
    }
}

/// The losing attempt of the request with two gets a receipt; no node was ever asked for it.
pub fn late_receipt(files: &mut Files) {
    let row = files.joined[TWO_ATTEMPTS as usize].accounting.as_ref().expect("the story has it");
    let (escrow, nonce) = (row.escrow.clone(), row.attempts[0].nonce);
    in_diff(files, &escrow, nonce + 1, |txs| txs.insert(0, tx("confirm_start", Some(nonce), None, None)));
}

/// The run used Postgres; every snapshot shows these leases.
fn with_leases(files: &mut Files, leases: &[Lease]) {
    files.run.stack.storage = "postgres".to_owned();
    files.from(Moment::Before, |snapshot| snapshot.leases = Some(leases.to_vec()));
}

/// The watch sees one row of the first participant change like this.
pub fn seen_as(rows: &[Lease]) -> Vec<LeaseSeen> {
    let line = |lease: &Lease| LeaseSeen::Changed {
        participant: "host-0".to_owned(),
        seen_unix_us: lease.claimed_unix_us + 10,
        lease: lease.clone(),
    };
    rows.iter().map(line).collect()
}

pub static DEFECTS: &[Defect] = &[
    Defect {
        name: "A4.1 two requests share a nonce",
        fires: &[(A4, "nonce-in-two-requests")],
        plant: |files| {
            let attempt = files.joined[7].accounting.as_ref().expect("the story has it").attempts[0].clone();
            files.joined[9].accounting.as_mut().expect("the story has it").attempts.push(attempt);
            files.joined[9].id.clone()
        },
    },
    Defect {
        name: "A4.1 two attempts of one request share a nonce",
        fires: &[(A4, "nonce-in-two-attempts")],
        plant: |files| {
            let row = files.joined[7].accounting.as_mut().expect("the story has it");
            row.attempts.push(row.attempts[0].clone());
            files.joined[7].id.clone()
        },
    },
    Defect {
        name: "A4.2 durable order 5, 7, 6",
        fires: &[(A4, "nonce-gap")],
        plant: |files| {
            files.snapshot(Moment::DrainFinal).hosts[1].escrows[0].diffs.swap(5, 6);
            "host-1 escrow 11: nonce 7 stands at place 6".to_owned()
        },
    },
    Defect {
        name: "A4.4 one nonce, two contents on two hosts",
        fires: &[(A4, "nonce-reused"), (A7, "state-differs")],
        plant: |files| {
            files.from(Moment::DrainPassive, |snapshot| {
                let diff = &mut snapshot.hosts[1].escrows[0].diffs[4];
                diff.content = "other".to_owned();
                diff.state_hash = "other".to_owned();
            });
            "escrow 11 nonce 5".to_owned()
        },
    },
    Defect {
        name: "A4 a diff is rewritten after the load",
        fires: &[(A4, "diff-rewritten")],
        plant: |files| {
            files.from(Moment::DrainSynced, |snapshot| {
                logs(snapshot, "11").for_each(|log| log.diffs[4].content = "other".to_owned());
            });
            "nonce 5 holds other content".to_owned()
        },
    },
    Defect {
        name: "A4.5 a receipt above the session's latest nonce",
        fires: &[(A4, "nonce-above-latest"), (A6, "receipt-without-start")],
        plant: |files| {
            in_diff(files, "11", 4, |txs| txs.push(tx("confirm_start", Some(777), None, None)));
            "inference 777".to_owned()
        },
    },
    Defect {
        name: "A4 the gateway's nonce goes back",
        fires: &[(A4, "nonce-regressed")],
        plant: |files| {
            files.snapshot(Moment::DrainSynced).escrows[0].nonce = 2;
            "escrow 11: gateway nonce".to_owned()
        },
    },
    Defect {
        name: "A4 the gateway has lost its last nonce, a host has it",
        fires: &[(A4, "nonce-behind-hosts")],
        plant: |files| {
            files.from(Moment::DrainPassive, |snapshot| snapshot.escrows[0].nonce -= 1);
            let shown = last_nonce(files, Moment::DrainPassive, "11");
            format!("escrow 11: the gateway shows nonce {shown} at drain-passive")
        },
    },
    Defect {
        name: "A4 a host's log gets shorter",
        fires: &[(A4, "nonce-regressed")],
        plant: |files| {
            files.snapshot(Moment::DrainSynced).hosts[0].escrows[0].diffs.truncate(3);
            "host-0 escrow 11: 3 diffs".to_owned()
        },
    },
    Defect {
        name: "A4 key fields of an inference change",
        fires: &[(A4, "inference-changed")],
        plant: |files| {
            let state = &mut files.snapshot(Moment::DrainSynced).escrows[0];
            state.inferences.get_mut(&3).expect("the story has it").prompt_hash = Some("other".to_owned());
            "escrow 11 inference 3".to_owned()
        },
    },
    Defect {
        name: "A4 a start whose id is not its nonce",
        fires: &[(A4, "start-id")],
        plant: |files| {
            in_diff(files, "11", 4, |txs| txs.push(txs[0].clone()));
            "nonce 4 starts".to_owned()
        },
    },
    Defect {
        name: "A5.2 a second commit of one validation",
        fires: &[(A5, "committed-twice")],
        plant: |files| {
            let last = last_nonce(files, Moment::DrainFinal, "11");
            let again = tx("validation", Some(5), Some(validator(5)), Some("11"));
            in_diff(files, "11", last, |txs| txs.push(again.clone()));
            format!("{} committed its validation of 5", owner(validator(5)))
        },
    },
    Defect {
        name: "A5 a validation and a vote of one owner",
        fires: &[(A5, "committed-twice")],
        plant: |files| {
            let last = last_nonce(files, Moment::DrainFinal, "12");
            let vote = tx("vote", Some(5), Some(validator(5)), Some("12"));
            in_diff(files, "12", last, |txs| txs.push(vote.clone()));
            "escrow 12".to_owned()
        },
    },
    Defect {
        name: "A5 the executor validates its own work",
        fires: &[(A5, "executor-validated-itself")],
        plant: |files| {
            let last = last_nonce(files, Moment::DrainFinal, "11");
            let own = tx("validation", Some(5), Some(5 % SLOTS), Some("11"));
            in_diff(files, "11", last, |txs| txs.push(own.clone()));
            "its own inference 5".to_owned()
        },
    },
    Defect {
        name: "A5.1 one owner holds one inference in two epochs",
        fires: &[(A5, "owned-twice")],
        plant: |files| {
            with_leases(files, &[lease(0, 1, "submitted", 1), lease(0, 2, "submitted", 2)]);
            "participant-0 holds inference 5".to_owned()
        },
    },
    Defect {
        name: "A5.4 a lease is claimed again after its submit",
        fires: &[(A5, "leased-after-submit")],
        plant: |files| {
            with_leases(files, &[lease(0, 1, "submitted", 1)]);
            files.snapshot(Moment::DrainFinal).leases = Some(vec![lease(0, 1, "submitted", 9)]);
            "participant-0 claimed inference 5".to_owned()
        },
    },
    Defect {
        name: "A5.5 a lease is taken over while it holds",
        fires: &[(A5, "taken-over-early")],
        plant: |files| {
            with_leases(files, &[lease(0, 1, "submitted", 2_000_000)]);
            files.leases = seen_as(&[lease(0, 1, "pending", 1), lease(0, 1, "submitted", 2_000_000)]);
            "inference 5 was claimed".to_owned()
        },
    },
    Defect {
        name: "A5.6 a lease is claimed again after its submit, and no snapshot shows it",
        fires: &[(A5, "leased-after-submit")],
        plant: |files| {
            with_leases(files, &[lease(0, 1, "submitted", 9_000_000)]);
            files.leases = seen_as(&[lease(0, 1, "submitted", 1), lease(0, 1, "submitted", 9_000_000)]);
            "participant-0 claimed inference 5".to_owned()
        },
    },
    Defect {
        name: "A6.1 a receipt without its start",
        fires: &[(A6, "receipt-without-start")],
        plant: |files| {
            let (escrow, nonce) = place(files, 7);
            without_tx(files, &escrow, "start", nonce);
            format!("receipt of unknown inference {nonce}")
        },
    },
    Defect {
        name: "A6.1 a receipt that nobody executed, and a timeout that closed it",
        fires: &[(A6, "receipt-without-execution")],
        plant: |files| {
            late_receipt(files);
            files.joined[TWO_ATTEMPTS as usize].id.clone()
        },
    },
    Defect {
        name: "A6.5 a finish of another session waits in a mempool",
        fires: &[(A6, "finish-of-another-escrow")],
        plant: |files| {
            let foreign = tx("finish", Some(5), Some(5 % SLOTS), Some("99"));
            files.snapshot(Moment::DrainFinal).hosts[2].escrows[0].mempool.push(foreign);
            "host-2 holds finish of escrow 99".to_owned()
        },
    },
    Defect {
        name: "A6.2 an execution without finish or timeout",
        fires: &[(A6, "started-without-finish")],
        plant: |files| {
            let (escrow, nonce) = place(files, 7);
            without_tx(files, &escrow, "finish", nonce);
            files.joined[7].id.clone()
        },
    },
    Defect {
        name: "A6.4 a node worked and no session knows the end",
        fires: &[(A6, "execution-without-finish")],
        plant: |files| {
            let (escrow, nonce) = place(files, 7);
            without_tx(files, &escrow, "finish", nonce);
            files.joined[7].id.clone()
        },
    },
    Defect {
        name: "A6 a start that got neither receipt nor timeout",
        fires: &[(A6, "pending-for-ever")],
        plant: |files| {
            let row = files.joined[3].accounting.as_ref().expect("the story has it");
            let (escrow, lost) = (row.escrow.clone(), row.attempts[0].nonce);
            without_tx(files, &escrow, "timeout", lost);
            format!("escrow {escrow} inference {lost}")
        },
    },
    Defect {
        name: "A6.3 a validation of an unknown inference",
        fires: &[(A6, "validation-of-unknown-inference")],
        plant: |files| {
            let (closing, last) =
                (last_nonce(files, Moment::DrainSynced, "11"), last_nonce(files, Moment::DrainFinal, "11"));
            let stray = tx("validation", Some(closing), Some(validator(closing)), Some("11"));
            in_diff(files, "11", last, |txs| txs.push(stray.clone()));
            format!("validates unknown inference {closing}")
        },
    },
    Defect {
        name: "A6 a finish of an unknown inference",
        fires: &[(A6, "finish-without-start")],
        plant: |files| {
            let (closing, last) =
                (last_nonce(files, Moment::DrainSynced, "11"), last_nonce(files, Moment::DrainFinal, "11"));
            let stray = tx("finish", Some(closing), Some(0), Some("11"));
            in_diff(files, "11", last, |txs| txs.push(stray.clone()));
            format!("finishes unknown inference {closing}")
        },
    },
    Defect {
        name: "A6.5 a finish that points to another session",
        fires: &[(A6, "finish-of-another-escrow")],
        plant: |files| {
            let (escrow, nonce) = place(files, 7);
            files.from(Moment::Before, |snapshot| {
                for tx in
                    logs(snapshot, &escrow).flat_map(|log| &mut log.diffs).flat_map(|diff| &mut diff.txs)
                {
                    if tx.kind == "finish" && tx.inference == Some(nonce) {
                        tx.escrow = Some("99".to_owned());
                    }
                }
            });
            format!("names another escrow, inference {nonce}")
        },
    },
    Defect {
        name: "A6 work waits in a mempool after finalize",
        fires: &[(A6, "waiting-in-mempool")],
        plant: |files| {
            let waiting = tx("validation", Some(5), Some((5 + 2) % SLOTS), Some("11"));
            files.snapshot(Moment::DrainFinal).hosts[2].escrows[0].mempool.push(waiting);
            "host-2 still holds validation of inference 5".to_owned()
        },
    },
    Defect {
        name: "A7.1 one balance flipped: the state hash differs",
        fires: &[(A7, "state-differs")],
        plant: |files| {
            files.snapshot(Moment::DrainFinal).hosts[2].escrows[1].diffs[6].state_hash = "other".to_owned();
            "state_hash".to_owned()
        },
    },
    Defect {
        name: "A7.4 one status differs: the state root differs",
        fires: &[(A7, "state-differs")],
        plant: |files| {
            files.snapshot(Moment::DrainSynced).hosts[1].escrows[1].diffs[6].post_state_root =
                "other".to_owned();
            "escrow 12 nonce 7: post_state_root".to_owned()
        },
    },
    Defect {
        name: "A7.2 one replica is behind after finalize",
        fires: &[(A7, "lag")],
        plant: |files| {
            files.snapshot(Moment::DrainFinal).hosts[2].escrows[0].diffs.pop();
            "host-2".to_owned()
        },
    },
];
