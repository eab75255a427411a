//! The catalogue of planted defects. Each names every assertion that must fire, with its reason, and the planted
//! thing that a witness of the first one must name. Nothing else may fire.

use evidence::assertion::AssertionId;
use evidence::record::{AnswerFacts, ClientClass};
use evidence::snapshot::{Moment, Snapshot, Tx};

use super::Files;

/// One defect: it spoils a good run and says what it planted.
pub struct Defect {
    pub name: &'static str,
    /// All that must fire, the assertion that it is for first.
    pub fires: &'static [(AssertionId, &'static str)],
    /// Spoils the run; gives the words that a witness must hold.
    pub plant: fn(&mut Files) -> String,
}

/// Every defect.
pub fn all() -> Vec<&'static Defect> {
    let parts =
        [super::defects_request::DEFECTS, super::defects_session::DEFECTS, super::defects_run::DEFECTS];
    parts.into_iter().flatten().collect()
}

/// The answer of a request that failed with an HTTP status: JSON with `error.message`.
pub fn http_error(files: &mut Files, index: usize, status: u16) -> String {
    let record = &mut files.records[index];
    record.client_class = ClientClass::HttpError;
    record.status = Some(status);
    record.content_type = Some("application/json".to_owned());
    record.answer = Some(AnswerFacts {
        json_object: Some(true),
        error_message: Some("no host answered".to_owned()),
        body_complete: true,
        ..AnswerFacts::default()
    });
    record.id.as_str().to_owned()
}

/// What accounting says about a request.
pub fn account(files: &mut Files, index: usize, outcome: &str) {
    files.joined[index].accounting.as_mut().expect("the story has rows").outcome = outcome.to_owned();
}

/// A request that the gateway refused before a race: nothing behind the gateway knows it.
pub fn refused(files: &mut Files, index: usize) -> String {
    let id = http_error(files, index, 429);
    let joined = &mut files.joined[index];
    joined.accepted = false;
    joined.escrow = None;
    joined.accounting = None;
    joined.calls.clear();
    files.from(Moment::DrainPassive, |snapshot| {
        snapshot.gateway_metrics.values_mut().for_each(|value| *value -= 1.0);
    });
    id
}

/// Changes the facts of one answer and leaves the rest of the record as it was.
pub fn answer(files: &mut Files, index: usize, change: impl Fn(&mut AnswerFacts)) -> String {
    let record = &mut files.records[index];
    change(record.answer.as_mut().expect("the story has answers"));
    record.id.as_str().to_owned()
}

/// Changes every copy of the diff of a nonce, at every host and moment that has it.
pub fn in_diff(files: &mut Files, escrow: &str, nonce: u64, change: impl Fn(&mut Vec<Tx>)) {
    for snapshot in files.snapshots.values_mut() {
        for log in logs(snapshot, escrow) {
            if let Some(diff) = log.diffs.iter_mut().find(|diff| diff.nonce == nonce) {
                change(&mut diff.txs);
            }
        }
    }
}

/// Removes a transaction from every log.
pub fn without_tx(files: &mut Files, escrow: &str, kind: &str, inference: u64) {
    for snapshot in files.snapshots.values_mut() {
        for diff in logs(snapshot, escrow).flat_map(|log| &mut log.diffs) {
            diff.txs.retain(|tx| tx.kind != kind || tx.inference != Some(inference));
        }
    }
}

pub fn logs<'s>(
    snapshot: &'s mut Snapshot,
    escrow: &'s str,
) -> impl Iterator<Item = &'s mut evidence::snapshot::HostEscrow> {
    let logs = snapshot.hosts.iter_mut().flat_map(|host| &mut host.escrows);
    logs.filter(move |log| log.escrow == escrow)
}

/// Escrow and winning nonce of a request.
pub fn place(files: &Files, index: usize) -> (String, u64) {
    let row = files.joined[index].accounting.as_ref().expect("the story has rows");
    (row.escrow.clone(), row.winner_nonce.expect("the story has winners"))
}

/// Last nonce of an escrow at a moment.
pub fn last_nonce(files: &Files, moment: Moment, escrow: &str) -> u64 {
    let escrows = &files.snapshots[&moment].escrows;
    escrows.iter().find(|state| state.escrow == escrow).expect("a known escrow").nonce
}
