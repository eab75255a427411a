//! A4 `nonce-order`: a session neither reuses nor regresses a nonce.
//!
//! Reasons: `nonce-gap` (a host's log is not 1, 2, 3, …), `nonce-regressed` (a log or the gateway's nonce is shorter
//! than before), `diff-rewritten` (a nonce holds other content than before), `nonce-reused` (two hosts hold different
//! content at one nonce), `start-id` (a start whose id is not its nonce, or two in one diff), `inference-changed` (an
//! inference's key fields changed), `nonce-in-two-requests`, `nonce-in-two-attempts`, `nonce-above-latest`
//! (a transaction about an inference that does not exist yet). Source: contract hosts 4.2, gateway 10.2.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use evidence::assertion::AssertionId;
use evidence::rundir::ACCOUNTING;
use evidence::snapshot::{Diff, Moment, Snapshot};

use super::{Assertion, Case, about_nonce, is_host_log, snapshot_file, unread};
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::A4, inputs: &[ACCOUNTING], unit: "diffs of host logs", judge };

const MOMENTS: [Moment; 4] = [Moment::Before, Moment::DrainPassive, Moment::DrainSynced, Moment::DrainFinal];

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let mut earlier: Logs<'_> = BTreeMap::new();
    let mut gateway: BTreeMap<String, u64> = BTreeMap::new();
    for moment in MOMENTS {
        let snapshot = match case.evidence.snapshot(moment) {
            Ok(snapshot) => snapshot,
            Err(missing) => {
                sheet.missing(missing);
                continue;
            }
        };
        unread(snapshot, moment, is_host_log, sheet);
        logs(snapshot, moment, &mut earlier, sheet);
        across_hosts(snapshot, moment, sheet);
        for escrow in &snapshot.escrows {
            let status = format!("gateway/{}/status", escrow.escrow);
            if let Some(missing) = snapshot.missing.iter().find(|missing| missing.what == status) {
                sheet.missing(format!("{status} at {}: {}", moment.dir(), missing.why));
                continue;
            }
            let before = gateway.insert(escrow.escrow.clone(), escrow.nonce).unwrap_or_default();
            // After finalize a runtime may be unloaded and show no nonce; that is not a regression of the session.
            if escrow.nonce < before && moment != Moment::DrainFinal {
                let text = format!("escrow {}: gateway nonce {before}, then {}", escrow.escrow, escrow.nonce);
                let file = snapshot_file(moment);
                sheet.witness(about_nonce("nonce-regressed", text, &escrow.escrow, escrow.nonce, &file));
            }
        }
    }
    inferences(case, sheet);
    rows(case, sheet);
}

/// Contents of the diffs by host and escrow, as an earlier snapshot has them.
type Logs<'s> = BTreeMap<(&'s str, &'s str), Vec<&'s str>>;

fn logs<'s>(snapshot: &'s Snapshot, moment: Moment, earlier: &mut Logs<'s>, sheet: &mut Sheet) {
    let file = snapshot_file(moment);
    for host in &snapshot.hosts {
        for escrow in &host.escrows {
            let who = format!("{} escrow {}", host.service, escrow.escrow);
            sheet.looked(escrow.diffs.len() as u64);
            for (position, diff) in escrow.diffs.iter().enumerate() {
                if diff.nonce != position as u64 + 1 {
                    let text = format!("{who}: nonce {} stands at place {}", diff.nonce, position + 1);
                    sheet.witness(about_nonce("nonce-gap", text, &escrow.escrow, diff.nonce, &file));
                    break;
                }
                start_id(&who, &escrow.escrow, diff, &file, sheet);
            }
            let key = (host.service.as_str(), escrow.escrow.as_str());
            let contents: Vec<&str> = escrow.diffs.iter().map(|diff| diff.content.as_str()).collect();
            let before = earlier.entry(key).or_default();
            if contents.len() < before.len() {
                let text = format!("{who}: {} diffs, {} before", contents.len(), before.len());
                let nonce = contents.len() as u64;
                sheet.witness(about_nonce("nonce-regressed", text, &escrow.escrow, nonce, &file));
            }
            let changed = contents.iter().zip(before.iter()).position(|(now, then)| now != then);
            if let Some(position) = changed {
                let nonce = position as u64 + 1;
                let text = format!("{who}: nonce {nonce} holds other content than before");
                sheet.witness(about_nonce("diff-rewritten", text, &escrow.escrow, nonce, &file));
            }
            *before = contents;
        }
    }
}

fn start_id(who: &str, escrow: &str, diff: &Diff, file: &str, sheet: &mut Sheet) {
    let starts: Vec<Option<u64>> =
        diff.txs.iter().filter(|tx| tx.kind == "start").map(|tx| tx.inference).collect();
    if starts.len() > 1 || starts.iter().any(|id| *id != Some(diff.nonce)) {
        let text = format!("{who}: nonce {} starts {starts:?}", diff.nonce);
        sheet.witness(about_nonce("start-id", text, escrow, diff.nonce, file));
    }
    let above = diff.txs.iter().filter(|tx| tx.kind != "start" && tx.inference > Some(diff.nonce));
    for tx in above {
        let inference = tx.inference.unwrap_or_default();
        let text = format!("{who}: nonce {} holds {} of inference {inference}", diff.nonce, tx.kind);
        sheet.witness(about_nonce("nonce-above-latest", text, escrow, inference, file));
    }
}

fn across_hosts(snapshot: &Snapshot, moment: Moment, sheet: &mut Sheet) {
    let mut seen: HashMap<(&str, u64), (&str, &str)> = HashMap::new();
    for host in &snapshot.hosts {
        for escrow in &host.escrows {
            for diff in &escrow.diffs {
                let key = (escrow.escrow.as_str(), diff.nonce);
                let (other, content) = *seen.entry(key).or_insert((&host.service, &diff.content));
                if content != diff.content {
                    let text = format!(
                        "escrow {} nonce {}: {other} and {} hold different content",
                        escrow.escrow, diff.nonce, host.service
                    );
                    let file = snapshot_file(moment);
                    let mut witness = about_nonce("nonce-reused", text, &escrow.escrow, diff.nonce, &file);
                    witness.service = Some(host.service.clone());
                    sheet.witness(witness);
                }
            }
        }
    }
}

/// Key fields of an inference never change once it is there.
fn inferences(case: &Case<'_>, sheet: &mut Sheet) {
    let mut seen = HashMap::new();
    for moment in MOMENTS {
        let Ok(snapshot) = case.evidence.snapshot(moment) else { continue };
        for escrow in &snapshot.escrows {
            for (nonce, inference) in &escrow.inferences {
                let key = (
                    inference.prompt_hash.as_deref(),
                    inference.executor_slot,
                    inference.started_at,
                    inference.max_tokens,
                );
                let first = seen.entry((escrow.escrow.as_str(), *nonce)).or_insert(key);
                if *first != key {
                    let text = format!("escrow {} inference {nonce}: its key fields changed", escrow.escrow);
                    let file = snapshot_file(moment);
                    sheet.witness(about_nonce("inference-changed", text, &escrow.escrow, *nonce, &file));
                }
            }
        }
    }
}

/// One nonce belongs to one request.
fn rows(case: &Case<'_>, sheet: &mut Sheet) {
    let mut owner: BTreeMap<(&str, u64), &str> = BTreeMap::new();
    for joined in case.evidence.joined.values() {
        let Some(row) = joined.accounting.as_ref().filter(|row| row.outcome != "cached") else { continue };
        let mut own = BTreeSet::new();
        for attempt in &row.attempts {
            if !own.insert(attempt.nonce) {
                let text = format!("nonce {} belongs to two attempts of {}", attempt.nonce, joined.id);
                let mut witness =
                    about_nonce("nonce-in-two-attempts", text, &row.escrow, attempt.nonce, ACCOUNTING);
                witness.request_id = Some(joined.id.clone());
                sheet.witness(witness);
            }
            let first = *owner.entry((&row.escrow, attempt.nonce)).or_insert(&row.request_id);
            if first != row.request_id {
                let text = format!("nonce {} belongs to {first} and to {}", attempt.nonce, row.request_id);
                let mut witness =
                    about_nonce("nonce-in-two-requests", text, &row.escrow, attempt.nonce, ACCOUNTING);
                witness.request_id = Some(joined.id.clone());
                sheet.witness(witness);
            }
        }
    }
}
