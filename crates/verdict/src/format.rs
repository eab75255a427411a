//! The form of one answer, judged from the facts of its record (A3). Whether a wrong ending was declared is decided
//! later, when it is known what hit the request.

use evidence::record::ClientClass;
use scenario::fault::EndingKind;

use crate::lines::{AnswerPart, RecordLine};

/// What is wrong with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Reason of the witness.
    pub reason: &'static str,
    /// In words.
    pub text: String,
    /// The ending that an `expect` may declare.
    pub ending: Option<EndingKind>,
}

impl Finding {
    fn new(reason: &'static str, text: impl Into<String>) -> Self {
        Self { reason, text: text.into(), ending: None }
    }
}

/// How a stream ended when it did not end well.
pub(crate) fn ending(answer: &AnswerPart<'_>) -> Option<EndingKind> {
    match answer.ending.as_deref()? {
        "error-event" | "error-then-done" => Some(EndingKind::ErrorEvent),
        "done-without-finish" => Some(EndingKind::DoneWithoutFinish),
        "truncated" | "finished-without-done" | "empty" => Some(EndingKind::Truncated),
        _ => None,
    }
}

/// An answer that the client itself cut short says nothing about its end.
pub(crate) const fn cut_by_client(class: ClientClass) -> bool {
    matches!(
        class,
        ClientClass::Cancelled
            | ClientClass::Interrupted
            | ClientClass::FirstByteTimeout
            | ClientClass::IdleTimeout
            | ClientClass::TotalTimeout
    )
}

/// What is wrong with the answer of a record, if it has one and anything is.
pub(crate) fn finding(record: &RecordLine<'_>) -> Option<Finding> {
    let (answer, status) = (record.answer.as_ref()?, record.status?);
    if cut_by_client(record.client_class) {
        None
    } else if !(200..300).contains(&status) {
        error_body(answer)
    } else if record.stream {
        stream(record, answer)
    } else {
        json(record, answer)
    }
}

/// Every error body of the gateway is JSON with `error.message`, whatever its content type says (contract 2.2).
fn error_body(answer: &AnswerPart<'_>) -> Option<Finding> {
    if answer.json_object == Some(true) && answer.error_message.is_some() {
        return None;
    }
    Some(Finding::new("error-body", "an error status without a JSON body that has error.message"))
}

fn common(answer: &AnswerPart<'_>) -> Option<Finding> {
    if answer.utf8_errors > 0 {
        return Some(Finding::new("bad-utf8", "illegal UTF-8"));
    }
    if answer.json_errors > 0 {
        return Some(Finding::new(
            "bad-json",
            format!("{} events or bodies are not JSON", answer.json_errors),
        ));
    }
    if answer.oversize_events > 0 {
        let text = format!("{} events above the size bound", answer.oversize_events);
        return Some(Finding::new("oversize-event", text));
    }
    if answer.shape_errors > 0 {
        let text = format!("{} events or bodies of the wrong shape", answer.shape_errors);
        return Some(Finding::new("wrong-shape", text));
    }
    None
}

fn json(record: &RecordLine<'_>, answer: &AnswerPart<'_>) -> Option<Finding> {
    if !answer.body_complete {
        return Some(Finding::new("body-cut", "the body ended before its framing says so"));
    }
    if answer.json_object != Some(true) {
        return Some(Finding::new("bad-json", "the body is no JSON object"));
    }
    if let Some(found) = common(answer) {
        return Some(found);
    }
    if answer.choices == 0 || answer.finish_reasons.0 < answer.choices as usize {
        return Some(Finding::new("no-finish-reason", "a choice without finish reason, or no choice"));
    }
    content_type(record, "application/json")
}

fn stream(record: &RecordLine<'_>, answer: &AnswerPart<'_>) -> Option<Finding> {
    if let Some(found) = common(answer) {
        return Some(found);
    }
    if answer.id_changed {
        return Some(Finding::new("foreign-id", "the id changes inside the stream"));
    }
    if answer.done_count > 1 {
        return Some(Finding::new("repeated-done", format!("{} [DONE] markers", answer.done_count)));
    }
    if answer.events_after_done > 0 {
        let text = format!("{} events after [DONE]", answer.events_after_done);
        return Some(Finding::new("after-done", text));
    }
    let words = answer.ending.as_deref().unwrap_or("unknown");
    let wrong = || Finding::new("wrong-ending", format!("the stream ended as {words}"));
    if let Some(kind) = ending(answer) {
        return Some(Finding { ending: Some(kind), ..wrong() });
    }
    if answer.unfinished_bytes > 0 {
        let text = format!("{} bytes of an unfinished event", answer.unfinished_bytes);
        return Some(Finding::new("unfinished-event", text));
    }
    if words != "done" || !answer.body_complete {
        return Some(wrong());
    }
    content_type(record, "text/event-stream")
}

fn content_type(record: &RecordLine<'_>, wanted: &str) -> Option<Finding> {
    let given = record.content_type.as_deref().unwrap_or("");
    let kind = given.split(';').next().unwrap_or("").trim();
    if kind.eq_ignore_ascii_case(wanted) {
        return None;
    }
    Some(Finding::new("wrong-content-type", format!("content type {given:?} instead of {wanted}")))
}
