//! A6 `orphans`: no receipt, execution, validation or finish stays without its partner (moment (d)).
//!
//! Reasons: `pending-for-ever` (a start without receipt), `started-without-finish`, `finish-without-start`,
//! `receipt-without-start`,
//! `finish-of-another-escrow`, `validation-of-unknown-inference`, `waiting-in-mempool` (a host transaction that would
//! still apply after finalize), `execution-without-finish` (a node completed a call whose nonce never ended).
//! Residue that would not apply is information. Named rule `ghost`. Source: contract hosts 3.2, 10, 11.1; gateway 6.5.

use std::collections::{BTreeMap, BTreeSet};

use evidence::assertion::AssertionId;
use evidence::rundir::{ACCOUNTING, NODE_CALLS};
use evidence::snapshot::{HostEscrow, Moment, Snapshot, Tx};

use super::{
    Assertion, Case, about_nonce, about_request, escrows_in_use, is_host_state, longest_log, snapshot_file,
    unread,
};
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion = Assertion {
    id: AssertionId::A6,
    inputs: &[ACCOUNTING, NODE_CALLS],
    unit: "inferences and waiting transactions",
    judge,
};

/// Fingerprint of a ghost: the constant body that the gateway signs for it (contract gateway 6.5).
const GHOST_PROMPT_HASH: &str = "48808fa46173e7fbca42ea98965dc6d8be18107425af188b38fb6c31d51ad0a2";
const GHOST_INPUT_LENGTH: u64 = 59;
const GHOST_MAX_TOKENS: u64 = 1;

/// Life of one inference as a log tells it.
#[derive(Clone, Debug, Default)]
struct Life {
    started: bool,
    confirmed: bool,
    finished: bool,
    timed_out: bool,
    validators: BTreeSet<u32>,
}

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let snapshot = match case.evidence.snapshot(Moment::DrainFinal) {
        Ok(snapshot) => snapshot,
        Err(missing) => {
            sheet.missing(missing);
            return;
        }
    };
    unread(snapshot, Moment::DrainFinal, is_host_state, sheet);
    let ghosts = ghosts(case);
    // `None`: no log tells what became of the inferences of this escrow.
    let mut ended: BTreeMap<&str, Option<BTreeSet<u64>>> = BTreeMap::new();
    for escrow in escrows_in_use(case.evidence) {
        let Some(log) = longest_log(snapshot, escrow) else {
            sheet.missing(format!("no host log of escrow {escrow}"));
            ended.insert(escrow, None);
            continue;
        };
        let lives = replay(log, sheet);
        let mut ended_here = BTreeSet::new();
        for (id, life) in &lives {
            sheet.looked(1);
            if life.finished || life.timed_out {
                ended_here.insert(*id);
                continue;
            }
            if case.rule_on("ghost") && ghosts.contains(&(log.escrow.clone(), *id)) {
                sheet.rule("ghost", "contract gateway 6.5");
                continue;
            }
            let (reason, words) = if life.confirmed {
                ("started-without-finish", "has a receipt and neither finish nor timeout")
            } else {
                ("pending-for-ever", "has neither receipt nor timeout")
            };
            let text = format!("escrow {} inference {id} {words}", log.escrow);
            let mut witness = about_nonce(reason, text, &log.escrow, *id, &snapshot_file(Moment::DrainFinal));
            witness.request_id = request_of(case, &log.escrow, *id);
            sheet.witness(witness);
        }
        mempools(snapshot, escrow, &lives, sheet);
        ended.insert(escrow, Some(ended_here));
    }
    executions(case, &ended, sheet);
}

fn ghosts(case: &Case<'_>) -> BTreeSet<(String, u64)> {
    let Ok(snapshot) = case.evidence.snapshot(Moment::DrainSynced) else { return BTreeSet::new() };
    let mut found = BTreeSet::new();
    for escrow in &snapshot.escrows {
        for (nonce, inference) in &escrow.inferences {
            if inference.prompt_hash.as_deref() == Some(GHOST_PROMPT_HASH)
                && inference.input_length == GHOST_INPUT_LENGTH
                && inference.max_tokens == GHOST_MAX_TOKENS
            {
                found.insert((escrow.escrow.clone(), *nonce));
            }
        }
    }
    found
}

fn request_of(case: &Case<'_>, escrow: &str, nonce: u64) -> Option<String> {
    let mut rows = case.evidence.joined.values();
    let has = |row: &&evidence::accounting::JoinedRequest| {
        row.escrow.as_deref() == Some(escrow) && row.calls.iter().any(|call| call.nonce == Some(nonce))
    };
    rows.find(has).map(|row| row.id.clone())
}

/// Follows a log and reports transactions without a partner.
fn replay(log: &HostEscrow, sheet: &mut Sheet) -> BTreeMap<u64, Life> {
    let file = snapshot_file(Moment::DrainFinal);
    let mut lives: BTreeMap<u64, Life> = BTreeMap::new();
    for (diff, tx) in log.diffs.iter().flat_map(|diff| diff.txs.iter().map(move |tx| (diff, tx))) {
        let Some(id) = tx.inference else { continue };
        let known = lives.contains_key(&id);
        let about = |reason: &str, words: &str| {
            let text = format!("escrow {} nonce {}: {words} {id}", log.escrow, diff.nonce);
            about_nonce(reason, text, &log.escrow, id, &file)
        };
        if tx.escrow.as_deref().is_some_and(|named| !named.is_empty() && named != log.escrow) {
            sheet.witness(about("finish-of-another-escrow", "names another escrow, inference"));
            continue;
        }
        match tx.kind.as_str() {
            "start" => lives.entry(id).or_default().started = true,
            "confirm_start" if !known => {
                sheet.witness(about("receipt-without-start", "holds a receipt of unknown inference"));
            }
            "finish" if !known => sheet.witness(about("finish-without-start", "finishes unknown inference")),
            "validation" | "vote" if !known => {
                sheet.witness(about("validation-of-unknown-inference", "validates unknown inference"));
            }
            kind if known => {
                let life = lives.entry(id).or_default();
                match kind {
                    "confirm_start" => life.confirmed = true,
                    "finish" => life.finished = true,
                    "timeout" => life.timed_out = true,
                    "validation" | "vote" => drop(tx.slot.map(|slot| life.validators.insert(slot))),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    lives
}

/// What is left in mempools after finalize: work that would apply is an orphan, the rest is residue.
fn mempools(snapshot: &Snapshot, escrow: &str, lives: &BTreeMap<u64, Life>, sheet: &mut Sheet) {
    for host in &snapshot.hosts {
        for log in host.escrows.iter().filter(|log| log.escrow == escrow) {
            for tx in &log.mempool {
                sheet.looked(1);
                if would_apply(tx, lives) {
                    let text = format!(
                        "{} still holds {} of inference {} after finalize",
                        host.service,
                        tx.kind,
                        tx.inference.unwrap_or_default()
                    );
                    let file = snapshot_file(Moment::DrainFinal);
                    let nonce = tx.inference.unwrap_or_default();
                    let mut witness = about_nonce("waiting-in-mempool", text, escrow, nonce, &file);
                    witness.service = Some(host.service.clone());
                    sheet.witness(witness);
                } else {
                    sheet.information("mempool-residue", "host transactions that would no longer apply", 1);
                }
            }
        }
    }
}

fn would_apply(tx: &Tx, lives: &BTreeMap<u64, Life>) -> bool {
    let Some(life) = tx.inference.and_then(|id| lives.get(&id)) else { return false };
    match tx.kind.as_str() {
        "confirm_start" => !life.confirmed && !life.timed_out,
        "finish" => life.confirmed && !life.finished && !life.timed_out,
        "validation" => life.finished && tx.slot.is_some_and(|slot| !life.validators.contains(&slot)),
        _ => false,
    }
}

/// Every call that a node completed ends as finish or timeout of its nonce.
fn executions(case: &Case<'_>, ended: &BTreeMap<&str, Option<BTreeSet<u64>>>, sheet: &mut Sheet) {
    for joined in case.evidence.joined.values() {
        let Some(escrow) = &joined.escrow else { continue };
        let known = match ended.get(escrow.as_str()) {
            Some(Some(known)) => known,
            Some(None) => continue,
            None => {
                sheet.missing(format!("no snapshot shows escrow {escrow} in use"));
                continue;
            }
        };
        for call in joined.calls.iter().filter(|call| call.outcome == "completed" && call.rule.is_none()) {
            let Some(nonce) = call.nonce else { continue };
            sheet.looked(1);
            if !known.contains(&nonce) {
                let text =
                    format!("{} completed call {} of nonce {nonce}, which never ended", call.node, call.call);
                let mut witness = about_request("execution-without-finish", text, &joined.id, NODE_CALLS);
                witness.escrow = Some(escrow.clone());
                witness.nonce = Some(nonce);
                witness.service = Some(call.node.clone());
                sheet.witness(witness);
            }
        }
    }
}
