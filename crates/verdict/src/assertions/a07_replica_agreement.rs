//! A7 `replica-agreement`: hosts report the same durable state at the same nonce.
//!
//! Compared per (escrow, nonce): [`COMPARED`]. Not compared: [`IGNORED`], each with its reason. Reasons: `state-differs`, `lag` (after finalize, whose closing rounds reach every
//! host, a log is shorter than another's). Source: contract hosts 6.5.

use std::collections::{BTreeMap, BTreeSet};

use evidence::assertion::AssertionId;
use evidence::event::EventKind;
use evidence::rundir::DIFFS;
use evidence::snapshot::{Moment, Snapshot};

use super::{Assertion, Case, about_nonce, held, is_host_log, log_len, snapshot_file, unread};
use crate::applicability::not_applicable;
use crate::sheet::Sheet;
use crate::table::Bits;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::A7, inputs: &[DIFFS], unit: "nonces held by two hosts or more", judge };

/// Fields of a host's view that must be equal at one nonce.
const COMPARED: [&str; 2] = ["state_hash", "post_state_root"];

/// Fields that may differ, or are held against each other elsewhere, and why.
pub(crate) const IGNORED: [(&str, &str); 7] = [
    ("escrow", "names what is compared"),
    ("nonce", "names what is compared"),
    ("content", "what was signed at a nonce is A4's: two contents are a reused nonce, not a diverged state"),
    ("txs", "decoded from `content`: equal whenever that is"),
    ("log", "where the diffs are kept; its length is compared after finalize, as `lag`"),
    ("diffs", "the same in version 1"),
    ("mempool", "memory of one process, filled in the order of arrival, lost with it (contract hosts 10)"),
];

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    if let Some(why) = not_applicable(&case.evidence.run, AssertionId::A7, "") {
        sheet.not_applicable(why);
        return;
    }
    for moment in [Moment::DrainPassive, Moment::DrainSynced, Moment::DrainFinal] {
        match case.evidence.snapshot(moment) {
            Ok(snapshot) => {
                every_host(case, snapshot, moment, sheet);
                compare(case, snapshot, moment, sheet);
            }
            Err(missing) => sheet.missing(missing),
        }
    }
    if let Ok(snapshot) = case.evidence.snapshot(Moment::DrainFinal) {
        lag(case, snapshot, sheet);
    }
}

/// A host that is not seen can't agree: it is missing, whatever the others say.
fn every_host(case: &Case<'_>, snapshot: &Snapshot, moment: Moment, sheet: &mut Sheet) {
    unread(snapshot, moment, is_host_log, sheet);
    let seen = snapshot.hosts.len() as u64;
    let wanted = u64::from(case.evidence.run.resolved.scenario.devshard.participants);
    if seen < wanted {
        sheet.missing(format!("{seen} of {wanted} hosts at {}", moment.dir()));
    }
    for escrow in snapshot.escrows.iter().filter(|escrow| escrow.nonce > 0) {
        let without = snapshot.hosts.iter().filter(|host| {
            escrow.group.contains(&host.participant)
                && !host.escrows.iter().any(|log| log.escrow == escrow.escrow)
        });
        for host in without {
            let text = format!("no log of escrow {} at {}, {}", escrow.escrow, host.service, moment.dir());
            sheet.missing(text);
        }
    }
}

fn compare(case: &Case<'_>, snapshot: &Snapshot, moment: Moment, sheet: &mut Sheet) {
    sheet.looked(shared(case, snapshot));
    let (sessions, names) = (&case.evidence.sessions, &case.evidence.names);
    let file = snapshot_file(moment);
    // One divergence changes every later state: the first nonce of a log is the witness.
    let mut reported = BTreeSet::new();
    for ((escrow, nonce), lines) in &sessions.variants {
        let escrow = names.word(*escrow);
        let mut first: Option<(&str, u64)> = None;
        for host in &snapshot.hosts {
            for line in held(host, escrow, lines) {
                let (other, of_other) = *first.get_or_insert((&host.service, line));
                let (one, two) = (sessions.texts(of_other), sessions.texts(line));
                let same_hash = one.map(|texts| &texts.state_hash) == two.map(|texts| &texts.state_hash);
                let same_root =
                    one.map(|texts| &texts.post_state_root) == two.map(|texts| &texts.post_state_root);
                if (same_hash && same_root) || !reported.insert((host.service.as_str(), escrow)) {
                    continue;
                }
                let field = COMPARED[usize::from(same_hash)];
                let text =
                    format!("escrow {escrow} nonce {nonce}: {field} of {other} and {} differ", host.service);
                let mut witness = about_nonce("state-differs", text, escrow, *nonce, &file);
                witness.service = Some(host.service.clone());
                witness.subject = Some(field.to_owned());
                sheet.witness(witness);
            }
        }
    }
}

/// Diffs whose nonce another host of the same snapshot holds too, or the same host once more.
fn shared(case: &Case<'_>, snapshot: &Snapshot) -> u64 {
    let mut seen: BTreeMap<&str, Bits> = BTreeMap::new();
    let mut shared = 0;
    for log in snapshot.hosts.iter().flat_map(|host| &host.escrows) {
        let nonces = seen.entry(&log.escrow).or_insert_with(|| Bits::new(case.evidence.sessions.lines() + 2));
        for (_, nonce) in case.evidence.sessions.log(&log.log) {
            shared += u64::from(!nonces.insert(nonce));
        }
    }
    shared
}

/// Only where finalize succeeded: its closing rounds bring every host to the last nonce.
fn lag(case: &Case<'_>, snapshot: &Snapshot, sheet: &mut Sheet) {
    for event in &case.evidence.events {
        let EventKind::DrainStep { what, escrow, status: Some(200..300), .. } = &event.event else {
            continue;
        };
        if what != "finalize" {
            continue;
        }
        let lengths: Vec<(&str, u64)> = snapshot
            .hosts
            .iter()
            .filter_map(|host| {
                let log = host.escrows.iter().find(|log| log.escrow == *escrow)?;
                Some((host.service.as_str(), log_len(log)))
            })
            .collect();
        let longest = lengths.iter().map(|(_, length)| *length).max().unwrap_or_default();
        for (service, length) in lengths {
            if length < longest {
                let text =
                    format!("{service} has {length} of {longest} diffs of escrow {escrow} after finalize");
                let file = snapshot_file(Moment::DrainFinal);
                let mut witness = about_nonce("lag", text, escrow, length, &file);
                witness.service = Some(service.to_owned());
                sheet.witness(witness);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use evidence::snapshot::{Diff, HostEscrow, Tx};

    use super::*;

    #[test]
    fn every_field_is_compared_or_has_a_reason() {
        let tx = Tx {
            kind: "start".to_owned(),
            inference: None,
            slot: None,
            valid: None,
            escrow: None,
            digest: String::new(),
        };
        let diff = Diff {
            nonce: 1,
            content: String::new(),
            state_hash: String::new(),
            post_state_root: String::new(),
            txs: vec![tx],
        };
        let span = evidence::sessions::Span { first: 1, count: 1 };
        let log = HostEscrow { diffs: vec![diff.clone()], log: vec![span], ..HostEscrow::default() };
        let keys = |value: serde_json::Value| -> Vec<String> {
            value.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
        };
        let fields = [serde_json::to_value(&diff), serde_json::to_value(&log)];
        for field in fields.into_iter().flat_map(|value| keys(value.expect("evidence is JSON"))) {
            let ignored = IGNORED.iter().any(|(name, why)| *name == field && !why.is_empty());
            assert!(ignored != COMPARED.contains(&field.as_str()), "{field}: compare it, or say why not");
        }
    }
}
