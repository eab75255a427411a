//! A10 `correlation`: an accepted request can be followed from its client id to accounting, attempts, hosts and nodes.
//! The walk is made for every accepted request, so that a clean run shows that it could have been followed.
//!
//! Reasons: `no-escrow`, `no-accounting-row` (a whole answer from the cache has the named rule `july-cache-hit`), `no-attempts`, `call-not-in-accounting` (a node worked for a nonce that
//! no attempt names), `unknown-host`, `other-escrow` (the row is another escrow's), `shared-row` (two requests share one
//! row), `split-id` (only with `--no-rule july-id-split`), `answered-but-not-accepted` (a 2xx answer that nothing accepted), `hit-not-joined` (a fault hit it, and none of
//! its calls shows that), `nameless-answer` (named rule `nameless-failure`), `rejected-without-reason`. Source: design section 5, contract gateway 10.2, hosts 9.4.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use evidence::accounting::ROW_UNREAD;
use evidence::assertion::AssertionId;
use evidence::record::ClientClass;
use evidence::rundir::{ACCOUNTING, HITS, NODE_CALLS, REQUESTS};

use super::{Assertion, Case, about_request};
use crate::requests::{Attempt, Call, Joined};
use crate::rules;
use crate::sheet::Sheet;
use crate::table::Name;

pub(super) const ASSERTION: Assertion = Assertion {
    id: AssertionId::A10,
    inputs: &[REQUESTS, ACCOUNTING, NODE_CALLS, HITS],
    unit: "walks from client to node",
    judge,
};

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let evidence = case.evidence;
    let cached = evidence.name("cached");
    let groups = groups(case);
    // A row that could not be read is no row that is not there.
    let (mut unread, mut first_unread) = (0_u64, None);
    for (index, joined) in evidence.joined.iter() {
        if !joined.accepted {
            not_accepted(case, index, sheet);
            continue;
        }
        sheet.looked(1);
        let Some(escrow) = joined.escrow else {
            fail(case, index, joined, ("no-escrow", not_found(case, joined)), sheet);
            continue;
        };
        nameless(case, index, joined, sheet);
        let (Some(row_escrow), true) = (joined.row_escrow, joined.outcome.is_some()) else {
            let why = not_found(case, joined);
            if hit_excused(case, index, joined) {
                sheet.rule(rules::CACHE_HIT, 1);
            } else if why.contains(ROW_UNREAD) {
                unread += 1;
                first_unread.get_or_insert_with(|| format!("{}: {why}", evidence.joined_id(index)));
            } else {
                let hit = if joined.cached { "the cache answered, " } else { "" };
                fail(case, index, joined, ("no-accounting-row", format!("{hit}{why}")), sheet);
            }
            continue;
        };
        if joined.outcome == cached {
            continue;
        }
        if joined.split {
            if case.rule_on(rules::SPLIT_ID) {
                sheet.rule(rules::SPLIT_ID, 1);
            } else {
                let text = "its row stands under another id than the answer named".to_owned();
                fail(case, index, joined, ("split-id", text), sheet);
            }
        }
        if row_escrow != escrow {
            let text = format!("the row belongs to escrow {}", evidence.names.word(row_escrow));
            fail(case, index, joined, ("other-escrow", text), sheet);
        }
        let seen = |rule: &Name| own_calls(case, index, joined).any(|call| call.rule == Some(*rule));
        let unseen = evidence.hits_of(index).map(|hit| hit.rule).find(|rule| !seen(rule));
        if let Some(rule) = unseen
            && !case.oracle.disputed.contains(&evidence.joined_id(index))
        {
            let text = format!("{} hit it, no joined call shows it", evidence.names.word(rule));
            fail(case, index, joined, ("hit-not-joined", text), sheet);
        }
        if let Some(found) = attempts(case, joined).or_else(|| stranger(joined, &groups, case)) {
            fail(case, index, joined, found, sheet);
        }
    }
    if let Some(first) = first_unread {
        sheet.missing(format!("{unread} accounting rows could not be read, the first: {first}"));
    }
    shared_rows(case, sheet);
}

/// Calls of a request, and of those that repeat its body: a hit names the marker that they share.
fn own_calls<'c>(case: &'c Case<'_>, index: u64, joined: &'c Joined) -> impl Iterator<Item = Call> {
    let evidence = case.evidence;
    let duplicates = &evidence.run.resolved.scenario.workload.duplicates;
    let repeats = duplicates.iter().filter(move |repeat| repeat.duplicate_of == index);
    let others = repeats.filter_map(|repeat| evidence.joined.get(repeat.index));
    std::iter::once(joined).chain(others).flat_map(|joined| evidence.joined.calls(joined))
}

fn fail(case: &Case<'_>, index: u64, joined: &Joined, (reason, text): (&str, String), sheet: &mut Sheet) {
    let id = case.evidence.joined_id(index);
    let mut witness = about_request(reason, format!("{id}: {text}"), &id, ACCOUNTING);
    witness.escrow = case.evidence.names.maybe(joined.escrow).map(str::to_owned);
    witness.nonce = case.evidence.joined.calls(joined).next().and_then(|call| call.nonce);
    sheet.witness(witness);
}

/// A hit without a row is normal where the ids of answers lead to no row, and only when the client got a whole answer:
/// a failure has to be followed to accounting, whoever answered it (finding J2). Who planned no repetition must see no
/// hit at all (contract gateway 10).
fn hit_excused(case: &Case<'_>, index: u64, joined: &Joined) -> bool {
    let whole = case.evidence.records.get(index).is_some_and(|record| record.client_class == ClientClass::Ok);
    let split = || case.evidence.joined.iter().any(|(_, other)| other.split);
    let duplicates = &case.evidence.run.resolved.scenario.workload.duplicates;
    let planned = duplicates.iter().any(|pair| pair.index == index || pair.duplicate_of == index);
    joined.cached && whole && planned && case.rule_on(rules::CACHE_HIT) && split()
}

/// What the join looked for and did not find, in its own words.
fn not_found(case: &Case<'_>, joined: &Joined) -> String {
    let whole = case.evidence.joined.whole(&case.evidence.reader, joined);
    whole.map(|joined| joined.missing.join("; ")).unwrap_or_default()
}

fn attempts(case: &Case<'_>, joined: &Joined) -> Option<(&'static str, String)> {
    let (attempts, mut calls) = (case.evidence.joined.attempts(joined), case.evidence.joined.calls(joined));
    if attempts.is_empty() && calls.len() > 0 {
        return Some(("no-attempts", "nodes worked for it, its row names no attempt".to_owned()));
    }
    let known = |nonce| attempts.iter().any(|attempt| attempt.nonce == nonce);
    let stray = calls.find_map(|call| Some((call, call.nonce.filter(|nonce| !known(*nonce))?)));
    if let Some((call, nonce)) = stray {
        let node = case.evidence.names.word(call.node);
        return Some((
            "call-not-in-accounting",
            format!("{node} worked for nonce {nonce}, no attempt has it"),
        ));
    }
    let devshard = &case.evidence.run.resolved.scenario.devshard;
    let slots = devshard.slots.unwrap_or(devshard.participants);
    let unknown = attempts.iter().find(|attempt| u32::from(attempt.host_idx) >= slots)?;
    Some(("unknown-host", format!("attempt {} names host {} of {slots}", unknown.nonce, unknown.host_idx)))
}

/// Owners of the slots of each escrow, as any snapshot shows them: a runtime that was unloaded shows none.
type Groups = BTreeMap<Name, BTreeSet<Name>>;

fn groups(case: &Case<'_>) -> Groups {
    let mut groups = Groups::new();
    for escrow in case.evidence.snapshots.values().flat_map(|snapshot| &snapshot.escrows) {
        let Some(name) = case.evidence.name(&escrow.escrow) else { continue };
        // An owner whom no attempt names has no name here, and needs none.
        let owners = escrow.group.iter().filter_map(|owner| case.evidence.name(owner));
        if !escrow.group.is_empty() {
            groups.entry(name).or_default().extend(owners);
        }
    }
    groups
}

/// An attempt names a host that owns no slot of its escrow.
fn stranger(joined: &Joined, groups: &Groups, case: &Case<'_>) -> Option<(&'static str, String)> {
    let group = groups.get(&joined.row_escrow?)?;
    let outside = |attempt: &&Attempt| attempt.participant.is_some_and(|owner| !group.contains(&owner));
    let attempt = case.evidence.joined.attempts(joined).iter().find(outside)?;
    let owner = case.evidence.names.maybe(attempt.participant).unwrap_or_default();
    Some(("unknown-host", format!("attempt {} names {owner}, who owns no slot of the escrow", attempt.nonce)))
}

/// An answer that names no request can only be followed through the gateway's own records. Builds that do not name
/// failures are excused by a rule; the reference of the intended behaviour names every one.
fn nameless(case: &Case<'_>, index: u64, joined: &Joined, sheet: &mut Sheet) {
    let Some(record) = case.evidence.records.get(index) else { return };
    let Some(status) = record.status.filter(|_| !record.named) else { return };
    let names_all = case.evidence.run.stack.personality.as_deref() == Some("intended");
    if status >= 400 && !names_all && case.rule_on(rules::NAMELESS_FAILURE) {
        sheet.rule(rules::NAMELESS_FAILURE, 1);
        return;
    }
    let text = format!("its answer of status {status} has no X-Request-Id");
    fail(case, index, joined, ("nameless-answer", text), sheet);
}

/// Two accepted requests never share a row.
fn shared_rows(case: &Case<'_>, sheet: &mut Sheet) {
    let evidence = case.evidence;
    let cached = evidence.name("cached");
    let walked = || {
        evidence.joined.iter().filter(|(_, joined)| {
            joined.accepted && joined.escrow.is_some() && joined.outcome.is_some() && joined.outcome != cached
        })
    };
    let mut marks: Vec<u64> = walked().map(|(_, joined)| joined.row_mark).collect();
    marks.sort_unstable();
    let twice: HashSet<u64> =
        marks.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    if twice.is_empty() {
        return;
    }
    let mut rows: HashMap<(Option<Name>, String), u64> = HashMap::new();
    for (index, joined) in walked().filter(|(_, joined)| twice.contains(&joined.row_mark)) {
        let row = evidence.joined.whole(&evidence.reader, joined).and_then(|whole| whole.accounting);
        let Some(row) = row else { continue };
        if let Some(other) = rows.insert((joined.row_escrow, row.request_id.clone()), index) {
            let other = evidence.joined_id(other);
            let text = format!("{other} has the same accounting row {}", row.request_id);
            fail(case, index, joined, ("shared-row", text), sheet);
        }
    }
}

fn not_accepted(case: &Case<'_>, index: u64, sheet: &mut Sheet) {
    let Some(record) = case.evidence.records.get(index) else { return };
    match record.status {
        Some(status) if (200..300).contains(&status) => {
            sheet.looked(1);
            let id = case.evidence.joined_id(index);
            let text = format!("{id} was answered with {status}, and no node and no escrow knows it");
            sheet.witness(about_request("answered-but-not-accepted", text, &id, ACCOUNTING));
        }
        Some(_) if record.client_class == ClientClass::HttpError => {
            sheet.looked(1);
            // Refused before acceptance: the client id and a reason are all there can be.
            if !record.reason_given {
                let id = case.evidence.joined_id(index);
                let text = format!("{id} was refused without a reason in the body");
                sheet.witness(about_request("rejected-without-reason", text, &id, REQUESTS));
            }
        }
        _ => {}
    }
}
