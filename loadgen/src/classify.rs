//! What the client saw, as one word: the only place where a class is decided.

use std::io;

use evidence::record::{AnswerFacts, ClientClass};
use rustix::io::Errno;
use sse::Ending;

use crate::connection::timeouts::{Expiry, Phase};

/// Longest sentence of a record.
const DETAIL_BYTES_MAX: usize = 300;

/// Why an exchange ended before its answer was complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A limit passed. (The own cancel point is [`Failure::Cancelled`].)
    TimedOut(Expiry),
    /// No connection: nobody listens or no way there.
    Refused(String),
    /// The connection ended before the headers were complete.
    Lost(String),
    /// The connection ended inside the body.
    BodyCut(String),
    /// HTTP that breaks its grammar.
    BadHttp(String),
    /// The name of the target does not resolve.
    NoName(String),
    /// TLS was not agreed on.
    NoTls(String),
    /// The proxy can't be reached or opens no tunnel.
    NoProxy(String),
    /// No local port left.
    NoPorts,
    /// No file descriptor left.
    NoFds,
    /// Cut at the own cancel point.
    Cancelled,
    /// Cut by the end of the run.
    Interrupted,
}

/// Where a socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// While connecting.
    Connect,
    /// Before complete headers.
    Head,
    /// In the body.
    Body,
}

impl Failure {
    /// The failure that an error of the socket means.
    #[must_use]
    pub fn of_io(error: &io::Error, stage: Stage) -> Self {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE | Errno::NFILE) => return Self::NoFds,
            Some(Errno::ADDRNOTAVAIL) if stage == Stage::Connect => return Self::NoPorts,
            _ => {}
        }
        let text = match error.kind() {
            io::ErrorKind::ConnectionReset => "reset by the peer".to_owned(),
            io::ErrorKind::BrokenPipe => "closed by the peer while sending".to_owned(),
            _ => error.to_string(),
        };
        match (stage, error.kind()) {
            (Stage::Connect, io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted) => {
                Self::Lost(text)
            }
            (Stage::Connect, io::ErrorKind::TimedOut) => Self::TimedOut(Expiry::Phase(Phase::Connect)),
            (Stage::Connect, _) => Self::Refused(text),
            (Stage::Head, _) => Self::Lost(text),
            (Stage::Body, _) => Self::BodyCut(text),
        }
    }
}

/// Everything that a class depends on.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Why it ended early, if it did.
    pub failure: Option<&'a Failure>,
    /// Status.
    pub status: Option<u16>,
    /// A stream was asked for.
    pub stream: bool,
    /// Content type of the answer.
    pub content_type: Option<&'a str>,
    /// Facts of the body.
    pub answer: Option<&'a AnswerFacts>,
    /// The ending of a stream.
    pub ending: Option<Ending>,
    /// The JSON body was too large to be parsed.
    pub too_large: bool,
    /// Checks that failed.
    pub failed_checks: &'a [String],
}

/// Whether a content type is that of an event stream.
#[must_use]
pub fn is_event_stream(content_type: &str) -> bool {
    essence(content_type).eq_ignore_ascii_case("text/event-stream")
}

fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Class and a sentence for people, `None` for `ok`.
#[must_use]
pub fn classify(seen: Seen<'_>) -> (ClientClass, Option<String>) {
    let (class, detail) = decide(seen);
    if class == ClientClass::Ok {
        return (class, None);
    }
    let cut = detail.floor_char_boundary(DETAIL_BYTES_MAX);
    (class, Some(detail[..cut].to_owned()))
}

fn decide(seen: Seen<'_>) -> (ClientClass, String) {
    if let Some(decided) = seen.failure.and_then(of_failure) {
        return decided;
    }
    let status = seen.status.unwrap_or_default();
    if !(200..300).contains(&status) {
        let message =
            seen.answer.and_then(|answer| answer.error_message.as_deref()).unwrap_or("no error message");
        return (ClientClass::HttpError, format!("status {status}: {message}"));
    }
    let nothing = AnswerFacts::default();
    let answer = seen.answer.unwrap_or(&nothing);
    if let Some(Failure::BodyCut(how)) = seen.failure
        && answer.error_message.is_none()
    {
        return (ClientClass::Truncated, format!("the body was cut: {how}"));
    }
    if status != 200 {
        return (ClientClass::Malformed, format!("status {status} is no answer to a chat call"));
    }
    if let Some(wrong) = wrong_content_type(seen) {
        return (ClientClass::Malformed, wrong);
    }
    if let Some(broken) = broken_grammar(answer, seen.too_large) {
        return (ClientClass::Malformed, broken);
    }
    if let Some(message) = &answer.error_message {
        return (ClientClass::InBandError, in_band_error(answer, message));
    }
    if let Some(decided) = of_ending(seen, answer) {
        return decided;
    }
    if seen.failed_checks.is_empty() {
        (ClientClass::Ok, String::new())
    } else {
        (ClientClass::CheckFailed, format!("failed checks: {}", seen.failed_checks.join(", ")))
    }
}

/// Code and place are what tells a refusal at the start from an answer that broke in the middle.
fn in_band_error(answer: &AnswerFacts, message: &str) -> String {
    let code = answer.error_code.as_ref().map_or_else(String::new, |code| format!(" {code}"));
    let place = if answer.json_object.is_some() {
        String::new()
    } else {
        format!(" after {} events with content", answer.content_events)
    };
    format!("status 200 with an error{code}{place}: {message}")
}

/// Failures that decide alone. A cut body does not: the status may say more.
fn of_failure(failure: &Failure) -> Option<(ClientClass, String)> {
    let say = |class, text: &str| Some((class, text.to_owned()));
    match failure {
        Failure::BodyCut(_) => None,
        Failure::TimedOut(Expiry::Phase(Phase::Connect)) => {
            say(ClientClass::ConnectTimeout, "the connection did not stand in time")
        }
        Failure::TimedOut(Expiry::Phase(Phase::Headers)) => {
            say(ClientClass::HeadersTimeout, "no complete headers in time")
        }
        Failure::TimedOut(Expiry::Phase(Phase::FirstByte)) => {
            say(ClientClass::FirstByteTimeout, "no body byte in time")
        }
        Failure::TimedOut(Expiry::Phase(Phase::Idle)) => say(ClientClass::IdleTimeout, "silence in the body"),
        Failure::TimedOut(Expiry::Total) => {
            say(ClientClass::TotalTimeout, "the request took longer than its total limit")
        }
        Failure::TimedOut(Expiry::Cancel) | Failure::Cancelled => {
            say(ClientClass::Cancelled, "cut at its cancel point")
        }
        Failure::Interrupted => say(ClientClass::Interrupted, "cut by the end of the run"),
        Failure::Refused(why) => say(ClientClass::ConnectRefused, &format!("no connection: {why}")),
        Failure::Lost(why) => {
            say(ClientClass::ConnectionLost, &format!("the connection ended before the headers: {why}"))
        }
        Failure::BadHttp(why) => say(ClientClass::Malformed, why),
        Failure::NoName(why) => say(ClientClass::DnsFailed, why),
        Failure::NoTls(why) => say(ClientClass::TlsFailed, &format!("no TLS: {why}")),
        Failure::NoProxy(why) => say(ClientClass::ProxyFailed, &format!("the proxy: {why}")),
        Failure::NoPorts => say(
            ClientClass::GeneratorPorts,
            "no local port left; lower the rate of new connections or widen net.ipv4.ip_local_port_range",
        ),
        Failure::NoFds => say(
            ClientClass::GeneratorFds,
            "no file descriptor left; raise the limit of open files (ulimit -n)",
        ),
    }
}

/// A missing content type is left to the body to tell.
fn wrong_content_type(seen: Seen<'_>) -> Option<String> {
    let got = seen.content_type?;
    let good = if seen.stream {
        is_event_stream(got)
    } else {
        essence(got).eq_ignore_ascii_case("application/json")
    };
    let asked = if seen.stream { "an event stream" } else { "JSON" };
    (!good).then(|| format!("asked for {asked}, the answer is {got:?}"))
}

fn broken_grammar(answer: &AnswerFacts, too_large: bool) -> Option<String> {
    if too_large {
        return Some(format!("the JSON body is larger than {} bytes", crate::answer::JSON_BYTES_MAX));
    }
    let parts = [
        (answer.json_errors, "not JSON"),
        (answer.utf8_errors, "illegal UTF-8"),
        (answer.oversize_events, "too large"),
        (answer.shape_errors, "of the wrong shape"),
    ];
    let what = if answer.json_object.is_some() { "body" } else { "event(s)" };
    let (count, how) = parts.into_iter().find(|(count, _)| *count > 0)?;
    Some(if answer.json_object.is_some() {
        format!("the {what} is {how}")
    } else {
        format!("{count} {what} {how}")
    })
}

fn of_ending(seen: Seen<'_>, answer: &AnswerFacts) -> Option<(ClientClass, String)> {
    let truncated = |text: &str| Some((ClientClass::Truncated, text.to_owned()));
    if !answer.body_complete {
        return truncated("the body did not end as its framing says");
    }
    if !seen.stream {
        let finished = answer.finish_reasons.len() == usize::try_from(answer.choices).unwrap_or(usize::MAX);
        return if finished { None } else { truncated("a choice has no finish reason") };
    }
    match seen.ending {
        Some(Ending::Done) if answer.id_changed => Some((
            ClientClass::Malformed,
            "the stream carries chunks of two answers (its id changed)".to_owned(),
        )),
        Some(Ending::Done) => None,
        Some(Ending::DoneWithoutFinish) => truncated("[DONE] came, a finish reason did not"),
        Some(Ending::FinishedWithoutDone) => truncated("the stream ended without [DONE]"),
        Some(Ending::Empty) => truncated("the stream has no event"),
        Some(Ending::RepeatedDone) => Some((ClientClass::Malformed, "[DONE] came more than once".to_owned())),
        Some(Ending::DataAfterDone) => Some((ClientClass::Malformed, "data came after [DONE]".to_owned())),
        Some(Ending::ErrorEvent | Ending::ErrorThenDone) => {
            Some((ClientClass::InBandError, "status 200 with an error event".to_owned()))
        }
        Some(Ending::Truncated) | None => truncated("the stream ended early"),
    }
}

#[cfg(test)]
mod tests;
