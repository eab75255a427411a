//! A5 `validation-ownership`: no validation work is committed twice (from diffs, any storage) or owned twice (leases,
//! Postgres only).
//!
//! Reasons: `committed-twice`, `executor-validated-itself`, `owned-twice`. Source: contract hosts 5.4, 12.1 Q3.

use std::collections::BTreeMap;

use evidence::assertion::{AssertionId, Status};
use evidence::snapshot::{Moment, Snapshot};

use super::{Assertion, Case, about_nonce, snapshot_file};
use crate::applicability::not_applicable;
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::A5, inputs: &[], unit: "committed validations", judge };

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let run = &case.evidence.run;
    if let Some(why) = not_applicable(run, AssertionId::A5, "") {
        sheet.not_applicable(why);
        return;
    }
    let moment = Moment::DrainFinal;
    let snapshot = match case.evidence.snapshot(moment) {
        Ok(snapshot) => snapshot,
        Err(missing) => {
            sheet.missing(missing);
            return;
        }
    };
    let before = case.evidence.snapshot(Moment::DrainSynced).ok();
    let minimum = run.resolved.scenario.minimum.validations.unwrap_or(1);
    sheet.set_minimum(minimum.max(1));
    let failed = commits(snapshot, before, sheet);
    sheet.part("commits", if failed { Status::Fail } else { Status::Pass });
    match not_applicable(run, AssertionId::A5, "ownership") {
        Some(_) => sheet.part("ownership", Status::NotApplicable),
        None => ownership(snapshot, sheet),
    }
}

/// Looks through the longest log of each escrow. True when something was committed twice.
fn commits(snapshot: &Snapshot, before: Option<&Snapshot>, sheet: &mut Sheet) -> bool {
    let file = snapshot_file(Moment::DrainFinal);
    let mut failed = false;
    for gateway in &snapshot.escrows {
        // A finalized runtime may show no group any more: the earlier snapshot has it.
        let earlier = before.and_then(|s| s.escrows.iter().find(|e| e.escrow == gateway.escrow));
        let group = if gateway.group.is_empty() {
            earlier.map_or(&gateway.group, |e| &e.group)
        } else {
            &gateway.group
        };
        let logs = snapshot.hosts.iter().flat_map(|host| host.escrows.iter());
        let longest = logs.filter(|log| log.escrow == gateway.escrow).max_by_key(|log| log.diffs.len());
        let Some(log) = longest else {
            if gateway.nonce > 0 {
                sheet.missing(format!("no host log of escrow {}", gateway.escrow));
            }
            continue;
        };
        let mut commits: BTreeMap<(u64, &str), u64> = BTreeMap::new();
        for (diff, tx) in log.diffs.iter().flat_map(|diff| diff.txs.iter().map(move |tx| (diff, tx))) {
            if !matches!(tx.kind.as_str(), "validation" | "vote") {
                continue;
            }
            let (Some(inference), Some(slot)) = (tx.inference, tx.slot) else { continue };
            sheet.looked(1);
            let owner = group.get(slot as usize).map_or("", String::as_str);
            let count = commits.entry((inference, owner)).or_default();
            *count += 1;
            if *count == 2 {
                failed = true;
                let text = format!(
                    "escrow {}: {owner} committed its validation of {inference} again in nonce {}",
                    gateway.escrow, diff.nonce
                );
                let mut witness = about_nonce("committed-twice", text, &gateway.escrow, inference, &file);
                witness.subject = Some(owner.to_owned());
                sheet.witness(witness);
            }
            let executor = group.get(usize::try_from(inference).unwrap_or(usize::MAX) % group.len().max(1));
            if tx.kind == "validation"
                && executor.is_some_and(|executor| executor == owner)
                && !owner.is_empty()
            {
                failed = true;
                let text =
                    format!("escrow {}: {owner} validated its own inference {inference}", gateway.escrow);
                sheet.witness(about_nonce(
                    "executor-validated-itself",
                    text,
                    &gateway.escrow,
                    inference,
                    &file,
                ));
            }
        }
    }
    failed
}

fn ownership(snapshot: &Snapshot, sheet: &mut Sheet) {
    let Some(leases) = &snapshot.leases else {
        sheet.missing("validation leases were not read");
        sheet.part("ownership", Status::Unknown);
        return;
    };
    let file = snapshot_file(Moment::DrainFinal);
    let mut seen: BTreeMap<(&str, u64), &str> = BTreeMap::new();
    let mut failed = false;
    for lease in leases {
        if let Some(other) = seen.insert((&lease.escrow, lease.inference), &lease.owner) {
            failed = true;
            let text = format!("inference {} is leased to {other} and to {}", lease.inference, lease.owner);
            sheet.witness(about_nonce("owned-twice", text, &lease.escrow, lease.inference, &file));
        }
    }
    sheet.part("ownership", if failed { Status::Fail } else { Status::Pass });
}
