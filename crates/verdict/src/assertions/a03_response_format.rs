//! A3 `response-format`: JSON bodies parse and have the right shape, streams keep their grammar and end well. Only an
//! ending that a matched `expect` declares is exempt.
//!
//! Reasons: `wrong-ending`, `after-done`, `repeated-done`, `unfinished-event`, `bad-json`, `bad-utf8`,
//! `oversize-event`, `wrong-shape`, `foreign-id`, `body-cut`, `no-finish-reason`, `wrong-content-type`,
//! `error-body`. Source: contract gateway 4.5, 4.6 and 10.2.

use evidence::assertion::AssertionId;
use evidence::record::{AnswerFacts, ClientClass, RequestRecord};
use evidence::rundir::{ACCOUNTING, HITS, REQUESTS};
use scenario::fault::EndingKind;

use super::{Assertion, Case, about_request};
use crate::classify::{Decided, ending};
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::A3, inputs: &[REQUESTS], unit: "answers", judge };

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    for (index, record) in &case.evidence.records {
        // An answer that the client itself cut short says nothing about its end.
        let cut_by_client = matches!(
            record.client_class,
            ClientClass::Cancelled
                | ClientClass::Interrupted
                | ClientClass::FirstByteTimeout
                | ClientClass::IdleTimeout
                | ClientClass::TotalTimeout
        );
        let (Some(answer), Some(status), false) = (&record.answer, record.status, cut_by_client) else {
            continue;
        };
        sheet.looked(1);
        let decided = case.decided.get(index);
        let found = if !(200..300).contains(&status) {
            error_body(answer)
        } else if record.stream {
            stream(case, record, answer, decided)
        } else {
            json(record, answer)
        };
        if let Some((reason, text)) = found {
            // Whether an ending was declared depends on what hit the request: that must be known first.
            let mut unknown = case.evidence.missing_of(&[HITS, ACCOUNTING]);
            if case.oracle.disputed.contains(record.id.as_str()) {
                unknown.push(format!("what hit {}", record.id));
            }
            if reason == "wrong-ending" && !unknown.is_empty() {
                unknown.into_iter().for_each(|input| sheet.missing(input));
                continue;
            }
            let text = format!("{}: {text}", record.id);
            let mut witness = about_request(reason, text, record.id.as_str(), REQUESTS);
            witness.escrow = record.response_devshard_id.clone();
            witness.subject = decided.and_then(|decided| decided.rules.first().cloned());
            sheet.witness(witness);
        }
    }
}

type Found = Option<(&'static str, String)>;

/// Every error body of the gateway is JSON with `error.message`, whatever its content type says (contract 2.2).
fn error_body(answer: &AnswerFacts) -> Found {
    if answer.json_object == Some(true) && answer.error_message.is_some() {
        return None;
    }
    Some(("error-body", "an error status without a JSON body that has error.message".to_owned()))
}

fn common(answer: &AnswerFacts) -> Found {
    if answer.utf8_errors > 0 {
        return Some(("bad-utf8", "illegal UTF-8".to_owned()));
    }
    if answer.json_errors > 0 {
        return Some(("bad-json", format!("{} events or bodies are not JSON", answer.json_errors)));
    }
    if answer.oversize_events > 0 {
        return Some(("oversize-event", format!("{} events above the size bound", answer.oversize_events)));
    }
    if answer.shape_errors > 0 {
        return Some(("wrong-shape", format!("{} events or bodies of the wrong shape", answer.shape_errors)));
    }
    None
}

fn json(record: &RequestRecord, answer: &AnswerFacts) -> Found {
    if !answer.body_complete {
        return Some(("body-cut", "the body ended before its framing says so".to_owned()));
    }
    if answer.json_object != Some(true) {
        return Some(("bad-json", "the body is no JSON object".to_owned()));
    }
    if let Some(found) = common(answer) {
        return Some(found);
    }
    if answer.choices == 0 || answer.finish_reasons.len() < answer.choices as usize {
        return Some(("no-finish-reason", "a choice without finish reason, or no choice".to_owned()));
    }
    content_type(record, "application/json")
}

fn stream(case: &Case<'_>, record: &RequestRecord, answer: &AnswerFacts, decided: Option<&Decided>) -> Found {
    if let Some(found) = common(answer) {
        return Some(found);
    }
    if answer.id_changed {
        return Some(("foreign-id", "the id changes inside the stream".to_owned()));
    }
    if answer.done_count > 1 {
        return Some(("repeated-done", format!("{} [DONE] markers", answer.done_count)));
    }
    if answer.events_after_done > 0 {
        return Some(("after-done", format!("{} events after [DONE]", answer.events_after_done)));
    }
    if let Some(kind) = ending(record) {
        if exempt(case, decided, kind) {
            return None;
        }
        let ending = answer.ending.as_deref().unwrap_or("unknown");
        return Some(("wrong-ending", format!("the stream ended as {ending}")));
    }
    if answer.unfinished_bytes > 0 {
        return Some((
            "unfinished-event",
            format!("{} bytes of an unfinished event", answer.unfinished_bytes),
        ));
    }
    if answer.ending.as_deref() != Some("done") || !answer.body_complete {
        let ending = answer.ending.as_deref().unwrap_or("unknown");
        return Some(("wrong-ending", format!("the stream ended as {ending}")));
    }
    content_type(record, "text/event-stream")
}

fn content_type(record: &RequestRecord, wanted: &str) -> Found {
    let given = record.content_type.as_deref().unwrap_or("");
    let kind = given.split(';').next().unwrap_or("").trim();
    if kind.eq_ignore_ascii_case(wanted) {
        return None;
    }
    Some(("wrong-content-type", format!("content type {given:?} instead of {wanted}")))
}

/// Whether an `expect` of a rule that hit the request, and whose class is the one decided, declares this ending.
fn exempt(case: &Case<'_>, decided: Option<&Decided>, kind: EndingKind) -> bool {
    let Some(decided) = decided.filter(|decided| decided.allowed && decided.touched) else { return false };
    let scenario = &case.evidence.run.resolved.scenario;
    let of_rules = scenario
        .faults
        .iter()
        .filter(|rule| decided.rules.contains(&rule.id) || rule.place.node.is_none())
        .flat_map(|rule| rule.expect.iter());
    let of_actions = scenario.actions.iter().flat_map(|action| action.expect.iter());
    of_rules.chain(of_actions).any(|expect| expect.class == decided.class && expect.ending == Some(kind))
}
