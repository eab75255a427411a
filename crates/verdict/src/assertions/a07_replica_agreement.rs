//! A7 `replica-agreement`: hosts report the same durable state at the same nonce.
//!
//! Compared per (escrow, nonce): state hash and state root. Not compared: signatures (every host signs with its own
//! key), order of mempools, times. Reasons: `state-differs`, `lag` (after finalize, whose closing rounds reach every
//! host, a log is shorter than another's). Source: contract hosts 6.5.

use std::collections::HashMap;

use evidence::assertion::AssertionId;
use evidence::event::EventKind;
use evidence::snapshot::{Moment, Snapshot};

use super::{Assertion, Case, about_nonce, is_host_log, snapshot_file, unread};
use crate::applicability::not_applicable;
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::A7, inputs: &[], unit: "nonces held by two hosts or more", judge };

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    if let Some(why) = not_applicable(&case.evidence.run, AssertionId::A7, "") {
        sheet.not_applicable(why);
        return;
    }
    for moment in [Moment::DrainPassive, Moment::DrainSynced, Moment::DrainFinal] {
        match case.evidence.snapshot(moment) {
            Ok(snapshot) => {
                every_host(case, snapshot, moment, sheet);
                compare(snapshot, moment, sheet);
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

fn compare(snapshot: &Snapshot, moment: Moment, sheet: &mut Sheet) {
    let file = snapshot_file(moment);
    let mut seen: HashMap<(&str, u64), (&str, &str, &str)> = HashMap::new();
    for host in &snapshot.hosts {
        for log in &host.escrows {
            let mut reported = false;
            for diff in &log.diffs {
                let key = (log.escrow.as_str(), diff.nonce);
                let Some((other, hash, root)) = seen.get(&key).copied() else {
                    seen.insert(key, (&host.service, &diff.state_hash, &diff.post_state_root));
                    continue;
                };
                sheet.looked(1);
                // One divergence changes every later state: the first nonce is the witness.
                if (hash != diff.state_hash || root != diff.post_state_root) && !reported {
                    reported = true;
                    let field = if hash == diff.state_hash { "post_state_root" } else { "state_hash" };
                    let text = format!(
                        "escrow {} nonce {}: {field} of {other} and {} differ",
                        log.escrow, diff.nonce, host.service
                    );
                    let mut witness = about_nonce("state-differs", text, &log.escrow, diff.nonce, &file);
                    witness.service = Some(host.service.clone());
                    witness.subject = Some(field.to_owned());
                    sheet.witness(witness);
                }
            }
        }
    }
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
        let lengths: Vec<(&str, usize)> = snapshot
            .hosts
            .iter()
            .filter_map(|host| {
                let log = host.escrows.iter().find(|log| log.escrow == *escrow)?;
                Some((host.service.as_str(), log.diffs.len()))
            })
            .collect();
        let longest = lengths.iter().map(|(_, length)| *length).max().unwrap_or_default();
        for (service, length) in lengths {
            if length < longest {
                let text =
                    format!("{service} has {length} of {longest} diffs of escrow {escrow} after finalize");
                let file = snapshot_file(Moment::DrainFinal);
                let mut witness = about_nonce("lag", text, escrow, length as u64, &file);
                witness.service = Some(service.to_owned());
                sheet.witness(witness);
            }
        }
    }
}
