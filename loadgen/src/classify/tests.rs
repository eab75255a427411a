//! The table of classes: every way an exchange can end.

use super::*;

const STREAM: &str = "text/event-stream";
const JSON: &str = "application/json; charset=utf-8";

fn good() -> AnswerFacts {
    AnswerFacts {
        events: 3,
        content_events: 1,
        done_count: 1,
        choices: 1,
        finish_reasons: [(0, "stop".to_owned())].into(),
        body_complete: true,
        ..AnswerFacts::default()
    }
}

fn document() -> AnswerFacts {
    AnswerFacts { events: 0, done_count: 0, json_object: Some(true), ..good() }
}

struct Case {
    failure: Option<Failure>,
    status: Option<u16>,
    stream: bool,
    content_type: Option<&'static str>,
    answer: Option<AnswerFacts>,
    ending: Option<Ending>,
    failed_checks: Vec<String>,
}

fn stream(ending: Ending) -> Case {
    Case {
        failure: None,
        status: Some(200),
        stream: true,
        content_type: Some(STREAM),
        answer: Some(good()),
        ending: Some(ending),
        failed_checks: Vec::new(),
    }
}

fn json() -> Case {
    Case {
        stream: false,
        content_type: Some(JSON),
        answer: Some(document()),
        ending: None,
        ..stream(Ending::Done)
    }
}

fn failed(failure: Failure) -> Case {
    Case { failure: Some(failure), status: None, content_type: None, answer: None, ending: None, ..json() }
}

fn class_of(case: &Case) -> (ClientClass, Option<String>) {
    classify(Seen {
        failure: case.failure.as_ref(),
        status: case.status,
        stream: case.stream,
        content_type: case.content_type,
        answer: case.answer.as_ref(),
        ending: case.ending,
        too_large: false,
        failed_checks: &case.failed_checks,
    })
}

fn check(name: &str, case: &Case, class: ClientClass) {
    let (got, detail) = class_of(case);
    assert_eq!(got, class, "{name}: {detail:?}");
    assert_eq!(detail.is_none(), class == ClientClass::Ok, "{name}: {detail:?}");
}

#[test]
fn endings_of_streams() {
    for (ending, class) in [
        (Ending::Done, ClientClass::Ok),
        (Ending::DoneWithoutFinish, ClientClass::Truncated),
        (Ending::FinishedWithoutDone, ClientClass::Truncated),
        (Ending::Truncated, ClientClass::Truncated),
        (Ending::Empty, ClientClass::Truncated),
        (Ending::RepeatedDone, ClientClass::Malformed),
        (Ending::DataAfterDone, ClientClass::Malformed),
        (Ending::ErrorEvent, ClientClass::InBandError),
        (Ending::ErrorThenDone, ClientClass::InBandError),
    ] {
        check(&format!("{ending:?}"), &stream(ending), class);
    }
}

#[test]
fn answers_of_streams() {
    let with = |answer: AnswerFacts| Case { answer: Some(answer), ..stream(Ending::Done) };
    let error = || Some("boom".to_owned());
    for (name, case, class) in [
        ("cut", with(AnswerFacts { body_complete: false, ..good() }), ClientClass::Truncated),
        ("bad json", with(AnswerFacts { json_errors: 1, ..good() }), ClientClass::Malformed),
        ("bad utf-8", with(AnswerFacts { utf8_errors: 1, ..good() }), ClientClass::Malformed),
        ("oversize", with(AnswerFacts { oversize_events: 1, ..good() }), ClientClass::Malformed),
        ("shape", with(AnswerFacts { shape_errors: 1, ..good() }), ClientClass::Malformed),
        ("two ids", with(AnswerFacts { id_changed: true, ..good() }), ClientClass::Malformed),
        ("error", with(AnswerFacts { error_message: error(), ..good() }), ClientClass::InBandError),
        ("json instead", Case { content_type: Some(JSON), ..stream(Ending::Done) }, ClientClass::Malformed),
        (
            "text instead",
            Case { content_type: Some("text/plain"), ..stream(Ending::Done) },
            ClientClass::Malformed,
        ),
        ("no type", Case { content_type: None, ..stream(Ending::Done) }, ClientClass::Ok),
        ("206", Case { status: Some(206), ..stream(Ending::Done) }, ClientClass::Malformed),
        ("500", Case { status: Some(500), ..stream(Ending::Empty) }, ClientClass::HttpError),
        ("no body", Case { answer: None, ..stream(Ending::Empty) }, ClientClass::Truncated),
        (
            "check",
            Case { failed_checks: vec!["contains".to_owned()], ..stream(Ending::Done) },
            ClientClass::CheckFailed,
        ),
        (
            "a truncated answer is no failed check",
            Case { failed_checks: vec!["contains".to_owned()], ..stream(Ending::Truncated) },
            ClientClass::Truncated,
        ),
        (
            "cut after an error event",
            Case {
                failure: Some(Failure::BodyCut("x".to_owned())),
                answer: Some(AnswerFacts { error_message: error(), body_complete: false, ..good() }),
                ..stream(Ending::ErrorEvent)
            },
            ClientClass::InBandError,
        ),
    ] {
        check(name, &case, class);
    }
}

#[test]
fn answers_of_json() {
    let with = |answer: AnswerFacts| Case { answer: Some(answer), ..json() };
    for (name, case, class) in [
        ("good", json(), ClientClass::Ok),
        ("not json", with(AnswerFacts { json_errors: 1, ..document() }), ClientClass::Malformed),
        ("no choices", with(AnswerFacts { shape_errors: 1, ..document() }), ClientClass::Malformed),
        ("no finish", with(AnswerFacts { choices: 2, ..document() }), ClientClass::Truncated),
        (
            "error in 200",
            with(AnswerFacts { error_message: Some(String::new()), ..document() }),
            ClientClass::InBandError,
        ),
        ("sse instead", Case { content_type: Some(STREAM), ..json() }, ClientClass::Malformed),
        (
            "429",
            Case { status: Some(429), content_type: Some("text/plain"), ..json() },
            ClientClass::HttpError,
        ),
        (
            "cut 503",
            Case { status: Some(503), failure: Some(Failure::BodyCut("x".to_owned())), ..json() },
            ClientClass::HttpError,
        ),
        (
            "cut 200",
            Case { failure: Some(Failure::BodyCut("x".to_owned())), ..json() },
            ClientClass::Truncated,
        ),
        ("302", Case { status: Some(302), ..json() }, ClientClass::HttpError),
    ] {
        check(name, &case, class);
    }
}

#[test]
fn failures_of_the_connection() {
    for (failure, class) in [
        (Failure::TimedOut(Expiry::Phase(Phase::Connect)), ClientClass::ConnectTimeout),
        (Failure::TimedOut(Expiry::Phase(Phase::Headers)), ClientClass::HeadersTimeout),
        (Failure::TimedOut(Expiry::Phase(Phase::FirstByte)), ClientClass::FirstByteTimeout),
        (Failure::TimedOut(Expiry::Phase(Phase::Idle)), ClientClass::IdleTimeout),
        (Failure::TimedOut(Expiry::Total), ClientClass::TotalTimeout),
        (Failure::Refused("x".to_owned()), ClientClass::ConnectRefused),
        (Failure::NoProxy("x".to_owned()), ClientClass::ProxyFailed),
        (Failure::Lost("x".to_owned()), ClientClass::ConnectionLost),
        (Failure::BadHttp("x".to_owned()), ClientClass::Malformed),
        (Failure::NoPorts, ClientClass::GeneratorPorts),
        (Failure::NoFds, ClientClass::GeneratorFds),
        (Failure::Cancelled, ClientClass::Cancelled),
        (Failure::Interrupted, ClientClass::Interrupted),
    ] {
        check(&format!("{failure:?}"), &failed(failure.clone()), class);
        // A status that came before does not change what ended the exchange.
        check("after a status", &Case { status: Some(200), ..failed(failure) }, class);
    }
}

#[test]
fn errors_of_the_system_are_told_apart() {
    let os = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
    for (errno, stage, failure) in [
        (Errno::MFILE, Stage::Connect, Failure::NoFds),
        (Errno::NFILE, Stage::Connect, Failure::NoFds),
        (Errno::ADDRNOTAVAIL, Stage::Connect, Failure::NoPorts),
        (Errno::TIMEDOUT, Stage::Connect, Failure::TimedOut(Expiry::Phase(Phase::Connect))),
    ] {
        assert_eq!(Failure::of_io(&os(errno), stage), failure, "{errno:?}");
    }
    let is = |errno, stage, wanted: fn(&Failure) -> bool| assert!(wanted(&Failure::of_io(&os(errno), stage)));
    is(Errno::CONNREFUSED, Stage::Connect, |failure| matches!(failure, Failure::Refused(_)));
    is(Errno::HOSTUNREACH, Stage::Connect, |failure| matches!(failure, Failure::Refused(_)));
    is(Errno::CONNRESET, Stage::Connect, |failure| matches!(failure, Failure::Lost(_)));
    is(Errno::CONNRESET, Stage::Head, |failure| matches!(failure, Failure::Lost(_)));
    is(Errno::PIPE, Stage::Head, |failure| matches!(failure, Failure::Lost(_)));
    is(Errno::CONNRESET, Stage::Body, |failure| matches!(failure, Failure::BodyCut(_)));
}

#[test]
fn a_detail_is_bounded_at_a_character() {
    let long = "ü".repeat(1000);
    let (_, detail) = class_of(&failed(Failure::Refused(long)));
    assert!(detail.unwrap().len() <= 300);
}

#[test]
fn an_error_in_a_good_answer_is_told_with_code_and_place() {
    let answer = AnswerFacts {
        content_events: 2,
        error_message: Some("overloaded".to_owned()),
        error_code: Some("503".to_owned()),
        ..good()
    };
    let case = Case { answer: Some(answer), ..stream(Ending::ErrorThenDone) };
    let text = "status 200 with an error 503 after 2 events with content: overloaded";
    assert_eq!(class_of(&case), (ClientClass::InBandError, Some(text.to_owned())));
    let answer = AnswerFacts { error_message: Some("no".to_owned()), ..document() };
    let case = Case { answer: Some(answer), ..json() };
    assert_eq!(class_of(&case).1.unwrap(), "status 200 with an error: no");
}
