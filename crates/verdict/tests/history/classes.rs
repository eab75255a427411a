//! The class of a request: each client class, hit or not, expected or not.

use crate::support::catalogue::http_error;
use crate::support::{Files, good};
use evidence::record::ClientClass;
use scenario::fault::RequestClass::{
    Cancelled, Dropped, ExpectedFailure, MaskedFault, NotOffered, Rejected, Success, UnexpectedFailure,
};
use scenario::fault::{Because, Expect, RequestClass};
use verdict::classify::Decided;

/// Client class, class when nothing hit it, class when a hit was declared to fail, reason when nothing hit it.
const TABLE: &[(ClientClass, RequestClass, RequestClass, Option<Because>)] = &[
    (ClientClass::Ok, Success, MaskedFault, None),
    (ClientClass::HttpError, UnexpectedFailure, ExpectedFailure, Some(Because::GatewayError)),
    (ClientClass::InBandError, UnexpectedFailure, ExpectedFailure, Some(Because::ErrorEvent)),
    (ClientClass::Truncated, UnexpectedFailure, ExpectedFailure, Some(Because::Truncated)),
    (ClientClass::Malformed, UnexpectedFailure, ExpectedFailure, None),
    (ClientClass::CheckFailed, UnexpectedFailure, ExpectedFailure, None),
    (ClientClass::ConnectTimeout, UnexpectedFailure, ExpectedFailure, Some(Because::ClientTimeout)),
    (ClientClass::HeadersTimeout, UnexpectedFailure, ExpectedFailure, Some(Because::ClientTimeout)),
    (ClientClass::FirstByteTimeout, UnexpectedFailure, ExpectedFailure, Some(Because::ClientTimeout)),
    (ClientClass::IdleTimeout, UnexpectedFailure, ExpectedFailure, Some(Because::ClientTimeout)),
    (ClientClass::TotalTimeout, UnexpectedFailure, ExpectedFailure, Some(Because::ClientTimeout)),
    (ClientClass::ConnectRefused, UnexpectedFailure, ExpectedFailure, Some(Because::Unreachable)),
    (ClientClass::DnsFailed, UnexpectedFailure, ExpectedFailure, None),
    (ClientClass::TlsFailed, UnexpectedFailure, ExpectedFailure, None),
    (ClientClass::ProxyFailed, UnexpectedFailure, ExpectedFailure, Some(Because::Unreachable)),
    (ClientClass::ConnectionLost, UnexpectedFailure, ExpectedFailure, Some(Because::ConnectionLost)),
    (ClientClass::Cancelled, Cancelled, Cancelled, Some(Because::ClientCancelled)),
    (ClientClass::Interrupted, Cancelled, Cancelled, None),
    (ClientClass::Dropped, Dropped, Dropped, None),
    (ClientClass::NotOffered, NotOffered, NotOffered, None),
    (ClientClass::GeneratorPorts, Dropped, Dropped, None),
    (ClientClass::GeneratorFds, Dropped, Dropped, None),
];

/// The decision about one request of a spoilt run.
fn decided(files: &Files, index: usize) -> Decided {
    files.judge().decided[&(index as u64)]
}

fn with_class(class: ClientClass, index: usize, expect: &[RequestClass]) -> Files {
    let mut files = good();
    if class == ClientClass::HttpError {
        http_error(&mut files, index, 502);
    }
    files.records[index].client_class = class;
    let entries =
        expect.iter().map(|class| Expect { class: *class, because: None, ending: None, status: None });
    files.run.resolved.scenario.faults[0].expect = entries.collect();
    files
}

#[test]
fn every_client_class_has_its_class() {
    let files = good();
    let (plain, hit) = (files.untouched(true, 0), files.first_hit());
    for (client, untouched, expected, because) in TABLE {
        let found = decided(&with_class(*client, plain, &[ExpectedFailure]), plain);
        assert_eq!((found.class, found.because), (*untouched, *because), "{client:?}, not hit");
        let fine = matches!(untouched, Success | Dropped | NotOffered) || *client == ClientClass::Interrupted;
        assert_eq!(found.allowed, fine, "{client:?}, not hit: a rule of others allows nothing");
        let found = decided(&with_class(*client, hit, &[*expected]), hit);
        assert_eq!((found.class, found.allowed), (*expected, true), "{client:?}, hit and expected");
        let found = decided(&with_class(*client, hit, &[RequestClass::Rejected]), hit);
        let raw = if *client == ClientClass::Ok { MaskedFault } else { *untouched };
        assert_eq!((found.class, found.allowed), (raw, false), "{client:?}, hit and not expected");
    }
    assert_eq!(TABLE.len(), 22, "a new client class needs a row here");
}

#[test]
fn an_error_status_before_acceptance_is_a_rejection() {
    let mut files = good();
    let index = files.untouched(false, 0);
    crate::support::catalogue::refused(&mut files, index);
    let found = decided(&files, index);
    assert_eq!((found.class, found.because, found.allowed), (Rejected, Some(Because::Overloaded), false));
    assert!(!found.touched);
}

#[test]
fn reason_status_and_ending_of_an_expect_must_be_met() {
    let index = good().first_hit();
    type Change = fn(&mut Expect);
    let cases: [(Change, bool); 6] = [
        (|_| {}, true),
        (|expect| expect.because = Some(Because::GatewayError), true),
        (|expect| expect.because = Some(Because::ClientTimeout), false),
        (|expect| expect.status = Some(502), true),
        (|expect| expect.status = Some(503), false),
        (|expect| expect.ending = Some(scenario::fault::EndingKind::Truncated), false),
    ];
    for (at, (change, allowed)) in cases.into_iter().enumerate() {
        let mut files = with_class(ClientClass::HttpError, index, &[ExpectedFailure]);
        change(&mut files.run.resolved.scenario.faults[0].expect[0]);
        assert_eq!(decided(&files, index).allowed, allowed, "case {at}");
    }
}

#[test]
fn the_proof_of_a_masked_fault_is_a_call() {
    let index = good().first_hit();
    let masked = |change: fn(&mut evidence::accounting::JoinedRequest)| {
        let mut files = good();
        change(&mut files.joined[index]);
        decided(&files, index).because
    };
    assert_eq!(masked(|_| {}), Some(Because::RotatedToOtherNode));
    assert_eq!(
        masked(|joined| joined.calls[1].node = joined.calls[0].node.clone()),
        Some(Because::SameNodeLater)
    );
    assert_eq!(masked(|joined| joined.calls[1].nonce = Some(99)), Some(Because::RetriedOnOtherHost));
    assert_eq!(masked(|joined| joined.calls.truncate(1)), Some(Because::Invisible));
    assert_eq!(masked(|joined| joined.calls.clear()), None);
    assert_eq!(
        masked(|joined| joined.calls[1].outcome = "client-cancelled".to_owned()),
        Some(Because::Invisible)
    );
}
