//! A1 `terminal-outcome`: an accepted request has one terminal outcome after sync (moment (c)).
//!
//! Reasons: `no-terminal-outcome` (the row is still `running`, or says a word that is no end), `not-completed` (a
//! terminal word without a completion time), `two-outcomes` (two rows that contradict each other),
//! `planned-but-unaccounted` (a planned id without a client record). A row that can't be found is A10's. Source: contract gateway 5.3, 5.4 and 10.2.

use evidence::accounting::AccountingRow;
use evidence::assertion::AssertionId;
use evidence::rundir::{ACCOUNTING, PLAN, REQUESTS};

use super::{Assertion, Case, about_request};
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
    for line in &evidence.plan {
        if !evidence.records.contains_key(&line.index) {
            let text = format!("{} is planned but has no client record", line.id);
            sheet.witness(about_request("planned-but-unaccounted", text, line.id.as_str(), PLAN));
        }
    }
    for rival in &evidence.rival_rows {
        let outcome = |row: Option<&AccountingRow>| row.map_or("none", |row| row.outcome.as_str()).to_owned();
        let kept = outcome(evidence.joined.get(&rival.index).and_then(|row| row.accounting.as_ref()));
        let text = format!("{} is {kept} and {} in accounting", rival.id, outcome(rival.accounting.as_ref()));
        let mut witness = about_request("two-outcomes", text, &rival.id, ACCOUNTING);
        witness.escrow = rival.escrow.clone();
        sheet.witness(witness);
    }
    for joined in evidence.joined.values().filter(|joined| joined.accepted) {
        let Some(row) = &joined.accounting else { continue };
        sheet.looked(1);
        let mut witness = if !TERMINAL.contains(&row.outcome.as_str()) {
            let text = format!("{} is {:?} in accounting after sync", joined.id, row.outcome);
            about_request("no-terminal-outcome", text, &joined.id, ACCOUNTING)
        } else if row.completed_at.is_none() && row.outcome != "cached" {
            let text = format!("{} is {:?} in accounting without a completion time", joined.id, row.outcome);
            about_request("not-completed", text, &joined.id, ACCOUNTING)
        } else {
            continue;
        };
        witness.escrow = Some(row.escrow.clone());
        witness.nonce = row.winner_nonce.or_else(|| row.attempts.first().map(|attempt| attempt.nonce));
        sheet.witness(witness);
    }
}
