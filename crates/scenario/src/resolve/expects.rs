//! Rules of `expect`: an outcome that the verdict can never reach would make a rule that silently allows nothing.

use crate::fault::{Because, EndingKind, Expect, RequestClass};
use crate::read::Problems;

/// Checks one `expect` list. `whose` says in words what it belongs to.
pub(super) fn check(list: &[Expect], path: &str, whose: &str, problems: &mut Problems<'_>) {
    if list.is_empty() {
        let text = format!(
            "{whose} has no `expect`: say how the requests it touches may end, \
             for example expect: [{{ class: expected-failure }}]"
        );
        problems.add(path, text);
    }
    for (index, expect) in list.iter().enumerate() {
        if let Some(why) = contradiction(expect) {
            let path = format!("{path}[{index}]");
            let text = format!("{path} can never happen: {why}");
            problems.add(&path, text);
        }
    }
}

/// Why no request can end like this; `None` when one can.
fn contradiction(expect: &Expect) -> Option<String> {
    let class = expect.class;
    let word = word(&class);
    match class {
        RequestClass::UnexpectedFailure => {
            return Some("an expected failure is `expected-failure`".to_owned());
        }
        RequestClass::Dropped | RequestClass::NotOffered => {
            return Some(format!("`{word}` is about the generator and is no effect of a fault"));
        }
        _ => {}
    }
    let failed = matches!(class, RequestClass::ExpectedFailure);
    if let Some(ending) = expect.ending
        && !failed
        && class != RequestClass::Cancelled
    {
        return Some(format!("`{word}` has no broken `ending` such as `{}`", self::word(&ending)));
    }
    if let Some(because) = expect.because
        && !reasons(class).contains(&because)
    {
        let known: Vec<String> = reasons(class).iter().map(self::word).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Some(format!("`{word}` has no reason `{}`; reasons of it: {known}", self::word(&because)));
    }
    if let (Some(ending), Some(because)) = (expect.ending, expect.because) {
        let fits = match ending {
            EndingKind::ErrorEvent => because == Because::ErrorEvent,
            EndingKind::Truncated | EndingKind::DoneWithoutFinish => because == Because::Truncated,
        };
        if failed && !fits {
            return Some(format!(
                "a stream with the ending `{}` has not the reason `{}`",
                self::word(&ending),
                self::word(&because)
            ));
        }
    }
    status(expect, &word)
}

fn status(expect: &Expect, word: &str) -> Option<String> {
    let status = expect.status?;
    if !(100..=599).contains(&status) {
        return Some(format!("{status} is no HTTP status (100 to 599)"));
    }
    let error = status >= 400;
    match expect.class {
        RequestClass::Success | RequestClass::MaskedFault if error => {
            Some(format!("`{word}` does not have the status {status}"))
        }
        RequestClass::Rejected if !error => {
            Some(format!("`{word}` is a refusal with a status from 400, not {status}"))
        }
        _ if error && expect.ending.is_some() => {
            Some(format!("an answer with the status {status} is no stream, so it has no `ending`"))
        }
        _ if !error && matches!(expect.because, Some(Because::GatewayError | Because::Overloaded)) => {
            Some(format!("a gateway error has a status from 400, not {status}"))
        }
        _ => None,
    }
}

/// The reasons that the verdict can observe for a class.
fn reasons(class: RequestClass) -> &'static [Because] {
    match class {
        RequestClass::MaskedFault => &[
            Because::RotatedToOtherNode,
            Because::RetriedOnOtherHost,
            Because::SameNodeLater,
            Because::DelayedOnly,
            Because::Invisible,
        ],
        RequestClass::ExpectedFailure => &[
            Because::GatewayError,
            Because::ErrorEvent,
            Because::Truncated,
            Because::ClientTimeout,
            Because::Overloaded,
            Because::Unreachable,
            Because::ConnectionLost,
        ],
        RequestClass::Rejected => &[Because::GatewayError, Because::Overloaded],
        RequestClass::Cancelled => &[Because::ClientCancelled],
        _ => &[],
    }
}

/// A unit enum's word in the file.
fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn possible_and_impossible_outcomes() {
        for (value, possible) in [
            (json!({"class": "success"}), true),
            (json!({"class": "success", "ending": "truncated"}), false),
            (json!({"class": "success", "because": "invisible"}), false),
            (json!({"class": "success", "status": 503}), false),
            (json!({"class": "masked-fault", "because": "rotated-to-other-node"}), true),
            (json!({"class": "masked-fault", "because": "error-event"}), false),
            (json!({"class": "masked-fault", "ending": "error-event"}), false),
            (json!({"class": "expected-failure", "because": "error-event", "ending": "error-event"}), true),
            (json!({"class": "expected-failure", "because": "truncated", "ending": "error-event"}), false),
            (json!({"class": "expected-failure", "ending": "truncated", "status": 502}), false),
            (json!({"class": "expected-failure", "because": "gateway-error", "status": 502}), true),
            (json!({"class": "expected-failure", "because": "gateway-error", "status": 200}), false),
            (json!({"class": "rejected", "status": 429}), true),
            (json!({"class": "rejected", "status": 200}), false),
            (json!({"class": "cancelled", "because": "client-cancelled"}), true),
            (json!({"class": "unexpected-failure"}), false),
            (json!({"class": "dropped"}), false),
            (json!({"class": "expected-failure", "status": 999}), false),
        ] {
            let expect: Expect = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(contradiction(&expect).is_none(), possible, "{value}: {:?}", contradiction(&expect));
        }
    }
}
