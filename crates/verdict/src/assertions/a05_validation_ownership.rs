//! A5 `validation-ownership`: no validation work is committed twice (from diffs, any storage) or owned twice (leases,
//! Postgres only).
//!
//! Reasons: `committed-twice`, `executor-validated-itself`, `owned-twice` (two leases of one participant for one
//! inference, as around an epoch switch), `leased-after-submit` (a submitted lease is claimed again), `taken-over-early`
//! (claimed again although its time had not passed). Leases are read at each snapshot and watched in between. Source:
//! contract hosts 5.2, 5.4, 12.1 Q3.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use evidence::assertion::{AssertionId, Status};
use evidence::rundir::DIFFS;
use evidence::snapshot::{HostEscrow, Moment, Snapshot};

use super::{
    Assertion, Case, about_nonce, escrows_in_use, is_host_log, log_len, longest_log, snapshot_file, unread,
};
use crate::applicability::not_applicable;
use crate::leases;
use crate::sessions::{Kind, Tx};
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::A5, inputs: &[DIFFS], unit: "committed validations", judge };

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
    let minimum = run.resolved.scenario.minimum.validations.unwrap_or(1);
    sheet.set_minimum(minimum.max(1));
    unread(snapshot, moment, is_host_log, sheet);
    let failed = commits(case, snapshot, sheet);
    sheet.part("commits", if failed { Status::Fail } else { Status::Pass });
    match not_applicable(run, AssertionId::A5, "ownership") {
        Some(_) => sheet.part("ownership", Status::NotApplicable),
        None => ownership(case, snapshot, sheet),
    }
}

/// Looks through the longest log of each escrow. True when something was committed twice.
fn commits(case: &Case<'_>, snapshot: &Snapshot, sheet: &mut Sheet) -> bool {
    let file = snapshot_file(Moment::DrainFinal);
    let mut failed = false;
    for escrow in escrows_in_use(case.evidence) {
        // A runtime that was finalized or deactivated may show no group any more: an earlier snapshot has it.
        let states = case.evidence.snapshots.values().rev().flat_map(|snapshot| &snapshot.escrows);
        let mut groups = states.filter(|e| e.escrow == escrow).map(|e| e.group.as_slice());
        let Some(group) = groups.find(|group| !group.is_empty()) else {
            sheet.missing(format!("who owns the slots of escrow {escrow}"));
            continue;
        };
        let Some(log) = longest_log(snapshot, escrow) else {
            sheet.missing(format!("no host log of escrow {escrow}"));
            continue;
        };
        failed |= commits_of(case, escrow, log, group, &file, sheet);
    }
    failed
}

/// Which owners committed which inferences. Owners are told apart by their first slot.
#[derive(Debug, Default)]
struct Commits {
    /// A bit per owner below 64, by inference.
    masks: Vec<u64>,
    others: HashSet<(u64, usize)>,
    told: BTreeSet<(u64, usize)>,
}

impl Commits {
    /// True when this owner commits this inference for the second time.
    fn again(&mut self, inference: u64, owner: usize, cap: u64) -> bool {
        let known = if owner < 64 && inference < cap {
            let at = inference as usize;
            if at >= self.masks.len() {
                self.masks.resize(at + 1, 0);
            }
            let known = self.masks[at] & (1 << owner) != 0;
            self.masks[at] |= 1 << owner;
            known
        } else {
            !self.others.insert((inference, owner))
        };
        known && self.told.insert((inference, owner))
    }
}

fn commits_of(
    case: &Case<'_>,
    escrow: &str,
    log: &HostEscrow,
    group: &[String],
    file: &str,
    sheet: &mut Sheet,
) -> bool {
    let sessions = &case.evidence.sessions;
    let cap = log_len(log) + 1;
    let mut commits = Commits::default();
    let mut failed = false;
    let txs = sessions.log(&log.log).flat_map(|(line, nonce)| sessions.txs(line).map(move |tx| (nonce, tx)));
    let firsts: Vec<usize> =
        group.iter().map(|owner| group.iter().position(|other| other == owner).unwrap_or_default()).collect();
    for (nonce, tx) in txs {
        let Tx { kind: Kind::Validation | Kind::Vote, inference: Some(inference), slot: Some(slot), .. } = tx
        else {
            continue;
        };
        sheet.looked(1);
        let slot = slot as usize;
        let owner = group.get(slot).map_or("", String::as_str);
        if commits.again(inference, firsts.get(slot).copied().unwrap_or(usize::MAX), cap) {
            failed = true;
            let text = format!(
                "escrow {escrow}: {owner} committed its validation of {inference} again in nonce {nonce}"
            );
            let mut witness = about_nonce("committed-twice", text, escrow, inference, file);
            witness.subject = Some(owner.to_owned());
            sheet.witness(witness);
        }
        let executor = group.get(usize::try_from(inference).unwrap_or(usize::MAX) % group.len().max(1));
        let own = executor.is_some_and(|executor| executor == owner) && !owner.is_empty();
        if tx.kind == Kind::Validation && own {
            failed = true;
            let text = format!("escrow {escrow}: {owner} validated its own inference {inference}");
            sheet.witness(about_nonce("executor-validated-itself", text, escrow, inference, file));
        }
    }
    failed
}

/// Each participant leases for itself, so that only two leases of one owner contradict each other (contract hosts 5.2).
fn ownership(case: &Case<'_>, snapshot: &Snapshot, sheet: &mut Sheet) {
    let Some(leases) = &snapshot.leases else {
        sheet.missing("validation leases were not read");
        sheet.part("ownership", Status::Unknown);
        return;
    };
    let file = snapshot_file(Moment::DrainFinal);
    let mut seen: BTreeMap<(&str, u64, &str), u64> = BTreeMap::new();
    let mut failed = false;
    for lease in leases {
        if let Some(epoch) = seen.insert((&lease.escrow, lease.inference, &lease.owner), lease.epoch) {
            failed = true;
            let text = format!(
                "{} holds inference {} in epoch {epoch} and in epoch {}",
                lease.owner, lease.inference, lease.epoch
            );
            let mut witness = about_nonce("owned-twice", text, &lease.escrow, lease.inference, &file);
            witness.subject = Some(lease.owner.clone());
            sheet.witness(witness);
        }
    }
    let mut submitted: BTreeMap<(u64, &str, u64, &str), u64> = BTreeMap::new();
    for (moment, snapshot) in &case.evidence.snapshots {
        for lease in snapshot.leases.iter().flatten() {
            let key = (lease.epoch, lease.escrow.as_str(), lease.inference, lease.owner.as_str());
            if submitted.get(&key).is_some_and(|claimed| *claimed < lease.claimed_unix_us) {
                failed = true;
                let text =
                    format!("{} claimed inference {} again after its submit", lease.owner, lease.inference);
                let file = snapshot_file(*moment);
                let mut witness =
                    about_nonce("leased-after-submit", text, &lease.escrow, lease.inference, &file);
                witness.subject = Some(lease.owner.clone());
                sheet.witness(witness);
            }
            if lease.status == "submitted" {
                submitted.insert(key, lease.claimed_unix_us);
            }
        }
    }
    let history = leases::follow(case.evidence, sheet);
    failed |= history.failed;
    let wanted = case.evidence.run.resolved.scenario.minimum.take_overs.unwrap_or_default();
    if history.there && history.take_overs < wanted {
        let seen = history.take_overs;
        sheet.missing(format!("{seen} leases were taken over, minimum.take_overs wants {wanted}"));
    }
    let status = match (failed, history.there) {
        (true, _) => Status::Fail,
        (false, true) => Status::Pass,
        (false, false) => Status::Unknown,
    };
    sheet.part("ownership", status);
}
