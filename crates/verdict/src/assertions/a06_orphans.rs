//! A6 `orphans`: no receipt, execution, validation or finish stays without its partner (moment (d)).
//!
//! Reasons: `pending-for-ever` (a start without receipt), `started-without-finish`, `finish-without-start`,
//! `receipt-without-start`, `receipt-without-execution` (a receipt, no call at any node, and a timeout that nothing explains),
//! `finish-of-another-escrow`, `validation-of-unknown-inference`, `waiting-in-mempool` (a host transaction that would
//! still apply after finalize), `execution-without-finish` (a node completed a call whose nonce never ended).
//! An escrow whose finalize got no answer that could be read was perhaps not closed by us: what is open there is unknown.
//! Residue that would not apply is information. Named rule `ghost`. Source: contract hosts 3.2, 10, 11.1; gateway 6.5.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use evidence::assertion::AssertionId;
use evidence::event::EventKind;
use evidence::rundir::{ACCOUNTING, DIFFS, INFERENCES, NODE_CALLS};
use evidence::snapshot::{HostEscrow, Moment, Snapshot, Tx};
use scenario::control::NodeOutcome;
use scenario::fault::FaultAction;

use super::{
    Assertion, Case, about_nonce, about_request, escrows_in_use, is_host_state, log_len, longest_log,
    snapshot_file, unread,
};
use crate::applicability::not_applicable;
use crate::format::cut_by_client;
use crate::rules;
use crate::sessions::{Kind, Sessions};
use crate::sheet::Sheet;
use crate::table::{Bits, Name, Table};

pub(super) const ASSERTION: Assertion = Assertion {
    id: AssertionId::A6,
    inputs: &[ACCOUNTING, NODE_CALLS, DIFFS, INFERENCES],
    unit: "inferences and waiting transactions",
    judge,
};

/// Life of one inference as a log tells it.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    confirmed: bool,
    finished: bool,
    timed_out: bool,
}

/// Inferences of an escrow that came to an end.
#[derive(Debug)]
struct Ended {
    all: Bits,
    /// Those with a receipt that ended by timeout alone.
    given_up: Bits,
}

impl Ended {
    fn new(cap: u64) -> Self {
        Self { all: Bits::new(cap), given_up: Bits::new(cap) }
    }
}

/// All lives of a log, and who validated the inferences that somebody asks about.
#[derive(Debug)]
struct Lives {
    table: Table<Life>,
    validators: BTreeMap<u64, BTreeSet<u32>>,
}

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    if let Some(why) = not_applicable(&case.evidence.run, AssertionId::A6, "") {
        sheet.not_applicable(why);
        return;
    }
    let snapshot = match case.evidence.snapshot(Moment::DrainFinal) {
        Ok(snapshot) => snapshot,
        Err(missing) => {
            sheet.missing(missing);
            return;
        }
    };
    unread(snapshot, Moment::DrainFinal, is_host_state, sheet);
    let settled = settled_under_load(case);
    let unanswered = unanswered(case);
    let callers = Callers { case, sorted: OnceCell::new() };
    // `None`: no log tells what became of the inferences of this escrow.
    let mut ended: BTreeMap<&str, Option<Ended>> = BTreeMap::new();
    for escrow in escrows_in_use(case.evidence) {
        let closed = !unanswered.contains(escrow);
        if !closed {
            sheet.missing(format!(
                "finalize of escrow {escrow}: no answer that could be read, so what is open may end yet"
            ));
        }
        let Some(log) = longest_log(snapshot, escrow) else {
            sheet.missing(format!("no host log of escrow {escrow}"));
            ended.insert(escrow, None);
            continue;
        };
        let lives = replay(&case.evidence.sessions, log, asked(snapshot, escrow), sheet);
        let mut here = Ended::new(log_len(log) + 1);
        let name = case.evidence.name(escrow);
        for (id, life) in lives.table.iter() {
            sheet.looked(1);
            if life.finished || life.timed_out {
                here.all.insert(id);
                if life.confirmed && !life.finished {
                    here.given_up.insert(id);
                }
            } else if closed {
                unended(&callers, (escrow, name), id, *life, sheet);
            }
        }
        let closing = Closing { answered: closed, settled: settled.contains(escrow) };
        mempools(snapshot, escrow, &lives, closing, sheet);
        ended.insert(escrow, closed.then_some(here));
    }
    executions(case, &ended, sheet);
    unexecuted(case, &ended, sheet);
}

/// An inference with neither finish nor timeout.
fn unended(
    callers: &Callers<'_>,
    (escrow, name): (&str, Option<Name>),
    id: u64,
    life: Life,
    sheet: &mut Sheet,
) {
    let case = callers.case;
    let ghost = name.is_some_and(|name| case.evidence.sessions.is_ghost(name, id));
    if ghost && case.rule_on(rules::GHOST) {
        sheet.rule(rules::GHOST, 1);
        return;
    }
    let (reason, words) = if life.confirmed {
        ("started-without-finish", "has a receipt and neither finish nor timeout")
    } else {
        ("pending-for-ever", "has neither receipt nor timeout")
    };
    let text = format!("escrow {escrow} inference {id} {words}");
    let mut witness = about_nonce(reason, text, escrow, id, &snapshot_file(Moment::DrainFinal));
    if sheet.wants_request(reason) {
        witness.request_id = name.and_then(|name| callers.request(name, id));
    }
    sheet.witness(witness);
}

/// Which request nodes worked for under a nonce; sorted when first asked, because a run in order never asks.
struct Callers<'a> {
    case: &'a Case<'a>,
    sorted: OnceCell<Vec<(Name, u64, u64)>>,
}

impl Callers<'_> {
    fn request(&self, escrow: Name, nonce: u64) -> Option<String> {
        let sorted = self.sorted.get_or_init(|| {
            let joined = &self.case.evidence.joined;
            let rows = joined.iter().filter_map(|(index, row)| Some((index, row, row.escrow?)));
            let calls = rows.flat_map(|(index, row, escrow)| {
                joined.calls(row).filter_map(move |call| Some((escrow, call.nonce?, index)))
            });
            let mut calls: Vec<_> = calls.collect();
            calls.sort_unstable();
            calls
        });
        let at = sorted.partition_point(|(of, number, _)| (*of, *number) < (escrow, nonce));
        let (of, number, index) = sorted.get(at)?;
        ((*of, *number) == (escrow, nonce)).then(|| self.case.evidence.joined_id(*index))
    }
}

/// Inferences of which a host still has a validation.
fn asked(snapshot: &Snapshot, escrow: &str) -> BTreeSet<u64> {
    let logs = snapshot.hosts.iter().flat_map(|host| &host.escrows).filter(|log| log.escrow == escrow);
    logs.flat_map(|log| &log.mempool).filter_map(|tx| tx.inference).collect()
}

/// Follows a log and reports transactions without a partner.
fn replay(sessions: &Sessions, log: &HostEscrow, asked: BTreeSet<u64>, sheet: &mut Sheet) -> Lives {
    let file = snapshot_file(Moment::DrainFinal);
    let mut table: Table<Life> = Table::new(log_len(log) + 1);
    let mut validators: BTreeMap<u64, BTreeSet<u32>> =
        asked.into_iter().map(|id| (id, BTreeSet::new())).collect();
    let txs = sessions.log(&log.log).flat_map(|(line, nonce)| sessions.txs(line).map(move |tx| (nonce, tx)));
    for (nonce, tx) in txs {
        let Some(id) = tx.inference else { continue };
        let about = |reason: &str, words: &str| {
            let text = format!("escrow {} nonce {nonce}: {words} {id}", log.escrow);
            about_nonce(reason, text, &log.escrow, id, &file)
        };
        if tx.foreign {
            sheet.witness(about("finish-of-another-escrow", "names another escrow, inference"));
            continue;
        }
        let life = table.get_mut(id);
        match (tx.kind, life) {
            (Kind::Start, None) => drop(table.insert(id, Life::default())),
            (Kind::Start | Kind::Other, _) | (Kind::Timeout, None) => {}
            (Kind::ConfirmStart, None) => {
                sheet.witness(about("receipt-without-start", "holds a receipt of unknown inference"));
            }
            (Kind::Finish, None) => {
                sheet.witness(about("finish-without-start", "finishes unknown inference"));
            }
            (Kind::Validation | Kind::Vote, None) => {
                sheet.witness(about("validation-of-unknown-inference", "validates unknown inference"));
            }
            (Kind::ConfirmStart, Some(life)) => life.confirmed = true,
            (Kind::Finish, Some(life)) => life.finished = true,
            (Kind::Timeout, Some(life)) => life.timed_out = true,
            (Kind::Validation | Kind::Vote, Some(_)) => {
                if let (Some(slot), Some(known)) = (tx.slot, validators.get_mut(&id)) {
                    known.insert(slot);
                }
            }
        }
    }
    Lives { table, validators }
}

/// Escrows that were settled before the load was drained: a replay that ends after that has nobody to tell.
fn settled_under_load(case: &Case<'_>) -> BTreeSet<String> {
    let passive = case.evidence.snapshot(Moment::DrainPassive).ok();
    let chain = passive.and_then(|snapshot| snapshot.chain.as_ref());
    chain.into_iter().flat_map(|chain| &chain.settled).map(u64::to_string).collect()
}

/// Escrows whose finalize was asked for and had no answer of the known form. An answer of failure is Devshard's own word
/// and excuses nothing.
fn unanswered<'c>(case: &Case<'c>) -> BTreeSet<&'c str> {
    let mut found = BTreeSet::new();
    for event in &case.evidence.events {
        if let EventKind::DrainStep { what, escrow, status, .. } = &event.event
            && what == "finalize"
        {
            match status {
                None => found.insert(escrow.as_str()),
                Some(_) => found.remove(escrow.as_str()),
            };
        }
    }
    found
}

/// How an escrow came to its end.
#[derive(Clone, Copy, Debug)]
struct Closing {
    /// Finalize had an answer.
    answered: bool,
    /// It was settled under the load.
    settled: bool,
}

/// What is left in mempools after finalize: work that would apply is an orphan, the rest is residue.
fn mempools(snapshot: &Snapshot, escrow: &str, lives: &Lives, closing: Closing, sheet: &mut Sheet) {
    for host in &snapshot.hosts {
        for log in host.escrows.iter().filter(|log| log.escrow == escrow) {
            for tx in &log.mempool {
                sheet.looked(1);
                let other = tx.escrow.as_deref().filter(|named| !named.is_empty() && *named != escrow);
                if let Some(other) = other {
                    let text = format!("{} holds {} of escrow {other}", host.service, tx.kind);
                    let nonce = tx.inference.unwrap_or_default();
                    let file = snapshot_file(Moment::DrainFinal);
                    let mut witness = about_nonce("finish-of-another-escrow", text, escrow, nonce, &file);
                    witness.service = Some(host.service.clone());
                    sheet.witness(witness);
                } else if closing.settled && tx.kind == "validation" {
                    let text = "validations that ended after the settlement of their escrow";
                    sheet.information("validated-after-settlement", text, 1);
                } else if would_apply(tx, lives) && closing.answered {
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
                } else if closing.answered {
                    sheet.information("mempool-residue", "host transactions that would no longer apply", 1);
                }
            }
        }
    }
}

fn would_apply(tx: &Tx, lives: &Lives) -> bool {
    let Some((id, life)) = tx.inference.and_then(|id| Some((id, lives.table.get(id)?))) else { return false };
    let validated = |slot| lives.validators.get(&id).is_some_and(|known| known.contains(&slot));
    match tx.kind.as_str() {
        "confirm_start" => !life.confirmed && !life.timed_out,
        "finish" => life.confirmed && !life.finished && !life.timed_out,
        "validation" => life.finished && tx.slot.is_some_and(|slot| !validated(slot)),
        _ => false,
    }
}

/// Every call that a node completed ends as finish or timeout of its nonce.
fn executions(case: &Case<'_>, ended: &BTreeMap<&str, Option<Ended>>, sheet: &mut Sheet) {
    let (joined, names) = (&case.evidence.joined, &case.evidence.names);
    let of_name: BTreeMap<Name, &Option<Ended>> =
        ended.iter().filter_map(|(escrow, known)| Some((names.find(escrow)?, known))).collect();
    for (index, row) in joined.iter() {
        let Some(name) = row.escrow else { continue };
        let known = match of_name.get(&name) {
            Some(Some(known)) => known,
            Some(None) => continue,
            None => {
                sheet.missing(format!("no snapshot shows escrow {} in use", names.word(name)));
                continue;
            }
        };
        let completed =
            |call: &crate::requests::Call| call.outcome == NodeOutcome::Completed && call.rule.is_none();
        for call in joined.calls(row).filter(completed) {
            let Some(nonce) = call.nonce else { continue };
            sheet.looked(1);
            if !known.all.contains(nonce) {
                let node = names.word(call.node);
                let text = format!("{node} completed call {} of nonce {nonce}, which never ended", call.call);
                let id = case.evidence.joined_id(index);
                let mut witness = about_request("execution-without-finish", text, &id, NODE_CALLS);
                witness.escrow = Some(names.word(name).to_owned());
                witness.nonce = Some(nonce);
                witness.service = Some(node.to_owned());
                sheet.witness(witness);
            }
        }
    }
}

/// A receipt is given by whoever will execute. Where nothing stands between host and node, a receipt whose inference
/// no node was ever asked for is an orphan, though the protocol's timeout closed it: the client's race hid it.
fn unexecuted(case: &Case<'_>, ended: &BTreeMap<&str, Option<Ended>>, sheet: &mut Sheet) {
    let (evidence, scenario) = (case.evidence, &case.evidence.run.resolved.scenario);
    let explained = !scenario.actions.is_empty()
        || scenario.faults.iter().any(|rule| !matches!(rule.action, FaultAction::Node(_)))
        || evidence.allocator.refused() > 0
        || evidence.calls.ended.values().sum::<u64>() < evidence.calls.looked;
    let duplicates = &scenario.workload.duplicates;
    for (escrow, known) in ended {
        let (Some(known), Some(name)) = (known, evidence.name(escrow)) else { continue };
        if known.given_up.is_empty() {
            continue;
        }
        for (index, row) in evidence.joined.iter().filter(|(_, row)| row.row_escrow == Some(name)) {
            // Calls of a repeated body bear the marker of the request that it repeats.
            let shared = duplicates.iter().any(|pair| pair.index == index || pair.duplicate_of == index);
            let left = evidence.records.get(index).is_none_or(|record| cut_by_client(record.client_class));
            let called = |nonce| evidence.joined.calls(row).any(|call| call.nonce == Some(nonce));
            let nonces = evidence.joined.attempts(row).iter().map(|attempt| attempt.nonce);
            for nonce in nonces.filter(|nonce| known.given_up.contains(*nonce) && !called(*nonce)) {
                sheet.looked(1);
                if explained || shared || left {
                    let text = "receipts without a call at a node while a fault, an action or a leaving client explains it";
                    sheet.information("receipts-not-executed", text, 1);
                    continue;
                }
                let id = evidence.joined_id(index);
                let text = format!(
                    "escrow {escrow} inference {nonce} of {id} has a receipt, no node was asked for it"
                );
                let file = snapshot_file(Moment::DrainFinal);
                let mut witness = about_nonce("receipt-without-execution", text, escrow, nonce, &file);
                witness.request_id = Some(id);
                sheet.witness(witness);
            }
        }
    }
}
