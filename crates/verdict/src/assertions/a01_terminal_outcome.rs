//! A1 `terminal-outcome`: an accepted request has one terminal outcome after sync (moment (c)).
//!
//! Reasons: `no-terminal-outcome` (the row is still `running`, or says a word that is no end), `not-completed` (a
//! terminal word without a completion time), `two-outcomes` (two rows that contradict each other),
//! `planned-but-unaccounted` (a planned id without a client record). A row that can't be found is A10's. Source: contract gateway 5.3, 5.4 and 10.2.

use evidence::assertion::AssertionId;
use evidence::rundir::{ACCOUNTING, PLAN, REQUESTS};

use super::{Assertion, Case, about_request};
use crate::rules;
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion = Assertion {
    id: AssertionId::A1,
    inputs: &[PLAN, REQUESTS, ACCOUNTING],
    unit: "accepted requests",
    judge,
};

/// Outcomes after which nothing more happens.
const TERMINAL: [&str; 3] = ["success", "failed", "cached"];

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    let evidence = case.evidence;
    for index in evidence.plan.indexes().filter(|index| !evidence.records.has(*index)) {
        let id = evidence.planned_id(index);
        let text = format!("{id} is planned but has no client record");
        sheet.witness(about_request("planned-but-unaccounted", text, &id, PLAN));
    }
    for rival in &evidence.joined.rivals {
        let kept = evidence.joined.get(rival.index).and_then(|joined| evidence.names.maybe(joined.outcome));
        let other = rival.accounting.as_ref().map_or("none", |row| row.outcome.as_str());
        let text = format!("{} is {} and {other} in accounting", rival.id, kept.unwrap_or("none"));
        let mut witness = about_request("two-outcomes", text, &rival.id, ACCOUNTING);
        witness.escrow = rival.escrow.clone();
        sheet.witness(witness);
    }
    for (index, joined) in evidence.joined.iter().filter(|(_, joined)| joined.accepted) {
        let Some(outcome) = evidence.names.maybe(joined.outcome) else { continue };
        sheet.looked(1);
        if evidence.is_prepare_failure(index) && case.rule_on(rules::PREPARE_FAILURE) {
            sheet.rule(rules::PREPARE_FAILURE, 1);
            continue;
        }
        let (reason, words) = if !TERMINAL.contains(&outcome) {
            ("no-terminal-outcome", "after sync")
        } else if !joined.completed && outcome != "cached" {
            ("not-completed", "without a completion time")
        } else {
            continue;
        };
        let id = evidence.joined_id(index);
        let text = format!("{id} is {outcome:?} in accounting {words}");
        let mut witness = about_request(reason, text, &id, ACCOUNTING);
        witness.escrow = evidence.names.maybe(joined.row_escrow).map(str::to_owned);
        witness.nonce = evidence.joined.nonce(joined);
        sheet.witness(witness);
    }
}
