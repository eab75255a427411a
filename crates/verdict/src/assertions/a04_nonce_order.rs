//! A4 `nonce-order`: a session neither reuses nor regresses a nonce.
//!
//! Reasons: `nonce-gap` (a host's log is not 1, 2, 3, …), `nonce-regressed` (a log or the gateway's nonce is shorter
//! than before), `nonce-behind-hosts` (a host holds more diffs than the gateway's nonce says), `diff-rewritten` (a nonce holds other content than before), `nonce-reused` (two hosts hold different
//! content at one nonce), `start-id` (a start whose id is not its nonce, or two in one diff), `inference-changed` (an
//! inference's key fields changed), `nonce-in-two-requests`, `nonce-in-two-attempts`, `nonce-above-latest`
//! (a transaction about an inference that does not exist yet). Source: contract hosts 4.2, gateway 10.2.

use std::collections::BTreeMap;

use evidence::assertion::AssertionId;
use evidence::rundir::{ACCOUNTING, DIFFS, INFERENCES};
use evidence::sessions::Span;
use evidence::snapshot::{GatewayEscrow, Moment, Snapshot};

use super::{
    Assertion, Case, about_nonce, deactivated, is_host_log, log_len, longest_log, snapshot_file, unread,
};
use crate::rules;
use crate::sessions::{Kind, Sessions};
use crate::sheet::Sheet;
use crate::table::{Bits, Name};

pub(super) const ASSERTION: Assertion = Assertion {
    id: AssertionId::A4,
    inputs: &[ACCOUNTING, DIFFS, INFERENCES],
    unit: "diffs of host logs",
    judge,
};

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
        logs(&case.evidence.sessions, snapshot, moment, &mut earlier, sheet);
        across_hosts(case, snapshot, moment, sheet);
        for escrow in &snapshot.escrows {
            let status = format!("gateway/{}/status", escrow.escrow);
            if let Some(missing) = snapshot.missing.iter().find(|missing| missing.what == status) {
                sheet.missing(format!("{status} at {}: {}", moment.dir(), missing.why));
                continue;
            }
            let before = gateway.insert(escrow.escrow.clone(), escrow.nonce).unwrap_or_default();
            let ended = moment == Moment::DrainFinal || deactivated(case, &escrow.escrow);
            let lower = lower(snapshot, escrow, before, moment);
            if lower.is_some() && ended && case.rule_on(rules::UNLOADED) {
                sheet.rule(rules::UNLOADED, 1);
            } else if let Some((reason, text)) = lower {
                let file = snapshot_file(moment);
                sheet.witness(about_nonce(reason, text, &escrow.escrow, escrow.nonce, &file));
            }
        }
    }
    inferences(case, sheet);
    rows(case, sheet);
    // Gaps in the ids of inferences are normal: rounds of sync and finalize take nonces, and so do heartbeats.
    let text = "nonces whose diff is about no inference: rounds of sync and finalize, heartbeats of newer builds, which the \
                contract calls normal (contract gateway 6.1 and 6.2)";
    sheet.information("idle-nonces", text, case.evidence.sessions.idle());
}

/// The gateway's nonce is lower than it was, or than what a host has. The gateway composes every diff, and is asked again
/// after its hosts when one of them has more: a nonce that is still lower is one that it would give out twice.
fn lower(
    snapshot: &Snapshot,
    escrow: &GatewayEscrow,
    before: u64,
    moment: Moment,
) -> Option<(&'static str, String)> {
    let (id, nonce) = (&escrow.escrow, escrow.nonce);
    if nonce < before {
        return Some(("nonce-regressed", format!("escrow {id}: gateway nonce {before}, then {nonce}")));
    }
    let longest = longest_log(snapshot, id).map_or(0, log_len);
    let text = || {
        format!(
            "escrow {id}: the gateway shows nonce {nonce} at {}, a host has {longest} diffs",
            moment.dir()
        )
    };
    (nonce < longest).then(|| ("nonce-behind-hosts", text()))
}

/// Logs by host and escrow, as an earlier snapshot has them.
type Logs<'s> = BTreeMap<(&'s str, &'s str), &'s [Span]>;

fn logs<'s>(
    sessions: &Sessions,
    snapshot: &'s Snapshot,
    moment: Moment,
    earlier: &mut Logs<'s>,
    sheet: &mut Sheet,
) {
    let file = snapshot_file(moment);
    for host in &snapshot.hosts {
        for escrow in &host.escrows {
            let who = format!("{} escrow {}", host.service, escrow.escrow);
            let len = log_len(escrow);
            sheet.looked(len);
            for ((line, nonce), place) in sessions.log(&escrow.log).zip(1_u64..) {
                if nonce != place {
                    let text = format!("{who}: nonce {nonce} stands at place {place}");
                    sheet.witness(about_nonce("nonce-gap", text, &escrow.escrow, nonce, &file));
                    break;
                }
                if sessions.bad_starts.contains(&line) {
                    start_id(sessions, &who, &escrow.escrow, (line, nonce), &file, sheet);
                }
            }
            let key = (host.service.as_str(), escrow.escrow.as_str());
            let before = earlier.insert(key, &escrow.log).unwrap_or_default();
            let len_before: u64 = before.iter().map(|span| span.count).sum();
            if len < len_before {
                let text = format!("{who}: {len} diffs, {len_before} before");
                sheet.witness(about_nonce("nonce-regressed", text, &escrow.escrow, len, &file));
            }
            let both = sessions.log(&escrow.log).zip(sessions.log(before)).zip(1_u64..);
            let mut changed = both.filter(|((now, then), _)| differ(sessions, now.0, then.0));
            if let Some((_, nonce)) = changed.next() {
                let text = format!("{who}: nonce {nonce} holds other content than before");
                sheet.witness(about_nonce("diff-rewritten", text, &escrow.escrow, nonce, &file));
            }
        }
    }
}

/// Whether two lines hold other content. Lines of different nonces do.
fn differ(sessions: &Sessions, one: u64, other: u64) -> bool {
    let content = |line| sessions.texts(line).map(|texts| &texts.content);
    one != other && (content(one).is_none() || content(one) != content(other))
}

fn start_id(
    sessions: &Sessions,
    who: &str,
    escrow: &str,
    (line, nonce): (u64, u64),
    file: &str,
    sheet: &mut Sheet,
) {
    let starts: Vec<Option<u64>> =
        sessions.txs(line).filter(|tx| tx.kind == Kind::Start).map(|tx| tx.inference).collect();
    if starts.len() > 1 || starts.iter().any(|id| *id != Some(nonce)) {
        let text = format!("{who}: nonce {nonce} starts {starts:?}");
        sheet.witness(about_nonce("start-id", text, escrow, nonce, file));
    }
    for tx in sessions.txs(line).filter(|tx| tx.kind != Kind::Start && tx.inference > Some(nonce)) {
        let inference = tx.inference.unwrap_or_default();
        let text = format!("{who}: nonce {nonce} holds {} of inference {inference}", tx.kind.word());
        sheet.witness(about_nonce("nonce-above-latest", text, escrow, inference, file));
    }
}

/// Only a nonce that has more than one line can hold different content.
fn across_hosts(case: &Case<'_>, snapshot: &Snapshot, moment: Moment, sheet: &mut Sheet) {
    let sessions = &case.evidence.sessions;
    let file = snapshot_file(moment);
    for ((escrow, nonce), lines) in &sessions.variants {
        let escrow = case.evidence.names.word(*escrow);
        let mut first: Option<(&str, u64)> = None;
        for host in &snapshot.hosts {
            for line in super::held(host, escrow, lines) {
                let (other, of_other) = *first.get_or_insert((&host.service, line));
                if differ(sessions, of_other, line) {
                    let text = format!(
                        "escrow {escrow} nonce {nonce}: {other} and {} hold different content",
                        host.service
                    );
                    let mut witness = about_nonce("nonce-reused", text, escrow, *nonce, &file);
                    witness.service = Some(host.service.clone());
                    sheet.witness(witness);
                }
            }
        }
    }
}

/// Key fields of an inference never change once it is there.
fn inferences(case: &Case<'_>, sheet: &mut Sheet) {
    for changed in &case.evidence.sessions.changed {
        let (escrow, nonce) = (case.evidence.names.word(changed.escrow), changed.nonce);
        let text = format!("escrow {escrow} inference {nonce}: its key fields changed");
        let file = snapshot_file(changed.moment);
        sheet.witness(about_nonce("inference-changed", text, escrow, nonce, &file));
    }
}

/// One nonce belongs to one request.
fn rows(case: &Case<'_>, sheet: &mut Sheet) {
    let (evidence, names) = (case.evidence, &case.evidence.names);
    let cached = evidence.name("cached");
    let uncached = || {
        let rows = evidence.joined.iter();
        rows.filter(|(_, joined)| joined.outcome.is_some() && joined.outcome != cached)
    };
    let mut seen: BTreeMap<Option<Name>, Bits> = BTreeMap::new();
    let mut twice: BTreeMap<(Option<Name>, u64), Option<u64>> = BTreeMap::new();
    for (index, joined) in uncached() {
        let attempts = evidence.joined.attempts(joined);
        let nonces = seen.entry(joined.row_escrow).or_insert_with(|| Bits::new(evidence.joined.nonce_cap()));
        for (at, attempt) in attempts.iter().enumerate() {
            let own = attempts[..at].iter().any(|earlier| earlier.nonce == attempt.nonce);
            if own {
                let id = evidence.joined_id(index);
                let text = format!("nonce {} belongs to two attempts of {id}", attempt.nonce);
                let escrow = names.maybe(joined.row_escrow).unwrap_or_default();
                let mut witness =
                    about_nonce("nonce-in-two-attempts", text, escrow, attempt.nonce, ACCOUNTING);
                witness.request_id = Some(id);
                sheet.witness(witness);
            } else if !nonces.insert(attempt.nonce) {
                twice.insert((joined.row_escrow, attempt.nonce), None);
            }
        }
    }
    if twice.is_empty() {
        return;
    }
    // Who they belong to is asked only about the few that more than one row has. One row twice is not two requests.
    for (index, joined) in uncached() {
        for attempt in evidence.joined.attempts(joined) {
            let Some(owner) = twice.get_mut(&(joined.row_escrow, attempt.nonce)) else { continue };
            let first = *owner.get_or_insert(index);
            let mark = |index| evidence.joined.get(index).map(|joined| joined.row_mark);
            if mark(first) != mark(index) {
                let row = |index| {
                    evidence.joined.get(index).and_then(|row| evidence.joined.whole(&evidence.reader, row))
                };
                let name = |index| {
                    row(index).and_then(|row| row.accounting).map(|row| row.request_id).unwrap_or_default()
                };
                let text =
                    format!("nonce {} belongs to {} and to {}", attempt.nonce, name(first), name(index));
                let escrow = names.maybe(joined.row_escrow).unwrap_or_default();
                let mut witness =
                    about_nonce("nonce-in-two-requests", text, escrow, attempt.nonce, ACCOUNTING);
                witness.request_id = Some(evidence.joined_id(index));
                sheet.witness(witness);
            }
        }
    }
}
