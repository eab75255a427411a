//! Lease history (A5, the ownership half): what the watch saw of each row, judged in the order in which it was seen.
//!
//! All replicas of a participant share one owner, so that a take-over shows only as a later claim (contract hosts 5.2).
//! It is right after the time of the lease has passed, and never after a submit.

use std::collections::BTreeMap;

use evidence::assertion::{EvidenceRef, Witness};
use evidence::leases::{LeaseLine, LeaseSeen};
use evidence::rundir::LEASES;
use evidence::snapshot::Lease;

use crate::load::Evidence;
use crate::sheet::Sheet;

/// What the watch saw.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Rows are claimed again although they were held, or submitted already.
    pub failed: bool,
    /// Claims of rows whose time had passed.
    pub take_overs: u64,
    /// There is a watch to judge by.
    pub there: bool,
}

/// Follows every row through the file.
pub(crate) fn follow(evidence: &Evidence, sheet: &mut Sheet) -> History {
    let mut history = History::default();
    let Some(lines) = evidence.reader.lines::<LeaseLine>(LEASES) else {
        sheet.missing(format!("{LEASES}: leases were not watched"));
        return history;
    };
    let mut ttl = None;
    let mut held: BTreeMap<(String, u64, String, u64), Lease> = BTreeMap::new();
    for line in lines {
        match line.map(|line| line.seen) {
            Err(bad) => sheet.missing(format!("{LEASES} line {}: {}", bad.line, bad.why)),
            Ok(LeaseSeen::Begin { ttl_us, .. }) => ttl = ttl_us,
            Ok(LeaseSeen::Changed { participant, lease, .. }) => {
                sheet.looked(1);
                let key = (participant, lease.epoch, lease.escrow.clone(), lease.inference);
                if let Some(before) = held.get(&key) {
                    claimed_again(before, &lease, ttl, &mut history, sheet);
                }
                held.insert(key, lease);
            }
            // A released row may be claimed by anybody.
            Ok(LeaseSeen::Gone { participant, lease, .. }) => {
                held.remove(&(participant, lease.epoch, lease.escrow, lease.inference));
            }
            Ok(LeaseSeen::End { participant, looks, failed, why, dropped }) => {
                history.there |= looks > 0;
                sheet.information("lease-looks", "looks at the lease tables while the run went on", looks);
                if looks == 0 || dropped > 0 {
                    let why = why.unwrap_or_default();
                    let text = format!("{looks} looks, {failed} failed, {dropped} lines dropped {why}");
                    sheet.missing(format!("leases of {participant}: {text}"));
                }
            }
        }
    }
    if !history.there {
        sheet.missing(format!("{LEASES} has no end: what happened after its last line is not known"));
    }
    sheet.information("lease-take-overs", "leases whose time had passed were taken over", history.take_overs);
    history
}

fn claimed_again(before: &Lease, now: &Lease, ttl: Option<u64>, history: &mut History, sheet: &mut Sheet) {
    if now.claimed_unix_us <= before.claimed_unix_us && now.owner == before.owner {
        return;
    }
    let after_us = now.claimed_unix_us.saturating_sub(before.claimed_unix_us);
    let (reason, text) = if before.status == "submitted" {
        (
            "leased-after-submit",
            format!("{} claimed inference {} again after its submit", now.owner, now.inference),
        )
    } else if ttl.is_some_and(|ttl| after_us < ttl) {
        let text = format!(
            "inference {} was claimed by {} {} ms after the claim of {}, whose lease still held",
            now.inference,
            now.owner,
            after_us / 1_000,
            before.owner
        );
        ("taken-over-early", text)
    } else {
        history.take_overs += 1;
        return;
    };
    history.failed = true;
    let mut witness = Witness::new(reason, text);
    witness.escrow = Some(now.escrow.clone());
    witness.nonce = Some(now.inference);
    witness.subject = Some(now.owner.clone());
    let at = format!("escrow={} inference={}", now.escrow, now.inference);
    witness.evidence.push(EvidenceRef { file: LEASES.to_owned(), at });
    sheet.witness(witness);
}
