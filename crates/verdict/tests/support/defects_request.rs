//! Defects of single requests: A1, A2, A3, A10, A11.

use evidence::assertion::AssertionId::{A1, A2, A3, A4, A10, A11, T};
use evidence::event::EventKind;
use evidence::record::ClientClass;
use evidence::snapshot::Moment;
use scenario::control::DapiCallRecord;

use super::Files;
use super::catalogue::{Defect, account, answer, http_error, place, refused};
use super::twins::expected_failure;

fn id(files: &Files, index: usize) -> String {
    files.joined[index].id.clone()
}

pub static DEFECTS: &[Defect] = &[
    Defect {
        name: "A1.1 outcome and completion deleted from one row",
        fires: &[(A1, "no-terminal-outcome")],
        plant: |files| {
            let row = files.joined[7].accounting.as_mut().expect("the story has it");
            row.outcome = "running".to_owned();
            row.completed_at = None;
            id(files, 7)
        },
    },
    Defect {
        name: "A1 a terminal word without completion",
        fires: &[(A1, "not-completed")],
        plant: |files| {
            files.joined[7].accounting.as_mut().expect("the story has it").completed_at = None;
            id(files, 7)
        },
    },
    Defect {
        name: "A1.4 a planned id that the generator never recorded",
        fires: &[(A1, "planned-but-unaccounted"), (A11, "class-sum")],
        plant: |files| {
            let gone = files.records.remove(7);
            files.joined.remove(7);
            for event in &mut files.events {
                if let EventKind::LoadEnded { records, .. } = &mut event.event {
                    *records -= 1;
                }
            }
            gone.id.as_str().to_owned()
        },
    },
    Defect {
        name: "A1.5 two terminal outcomes",
        fires: &[(A1, "two-outcomes")],
        plant: |files| {
            let mut second = files.joined[7].clone();
            second.accounting.as_mut().expect("the story has it").outcome = "failed".to_owned();
            files.joined.push(second);
            id(files, 7)
        },
    },
    Defect {
        name: "A2.1 an injected 503 recorded as success without a second call",
        fires: &[(A2, "outside-expect")],
        plant: |files| {
            let index = files.first_hit();
            files.joined[index].calls.truncate(1);
            id(files, index)
        },
    },
    Defect {
        name: "A2.2 a client cancel that nobody planned",
        fires: &[(A2, "outside-expect")],
        plant: |files| {
            files.records[7].client_class = ClientClass::Cancelled;
            id(files, 7)
        },
    },
    Defect {
        name: "A2.3 a request outside the fault set fails",
        fires: &[(A2, "untouched-failed"), (T, "above-limit")],
        plant: |files| {
            account(files, 7, "failed");
            http_error(files, 7, 502)
        },
    },
    Defect {
        name: "A2 a request outside the fault set is refused",
        fires: &[(A2, "untouched-rejected"), (T, "above-limit")],
        plant: |files| refused(files, 7),
    },
    Defect {
        name: "A2.6 a hit request that ends with another class",
        fires: &[(A2, "outside-expect"), (T, "above-limit")],
        plant: |files| {
            let index = files.first_hit();
            account(files, index, "failed");
            http_error(files, index, 502)
        },
    },
    Defect {
        name: "A3.1 a cut JSON body",
        fires: &[(A3, "body-cut"), (A2, "untouched-failed"), (T, "above-limit")],
        plant: |files| {
            let index = files.untouched(false, 0);
            files.records[index].client_class = ClientClass::Truncated;
            account(files, index, "failed");
            answer(files, index, |answer| answer.body_complete = false)
        },
    },
    Defect {
        name: "A3.2 a stream without terminal marker outside the fault set",
        fires: &[(A3, "wrong-ending"), (A2, "untouched-failed"), (T, "above-limit")],
        plant: |files| {
            let index = files.untouched(true, 0);
            files.records[index].client_class = ClientClass::Truncated;
            account(files, index, "failed");
            answer(files, index, |answer| {
                answer.ending = Some("truncated".to_owned());
                answer.done_count = 0;
            })
        },
    },
    Defect {
        name: "A3.3 data after the marker",
        fires: &[(A3, "after-done")],
        plant: |files| {
            let index = files.untouched(true, 1);
            answer(files, index, |answer| answer.events_after_done = 1)
        },
    },
    Defect {
        name: "A3.3 two markers",
        fires: &[(A3, "repeated-done")],
        plant: |files| {
            let index = files.untouched(true, 1);
            answer(files, index, |answer| answer.done_count = 2)
        },
    },
    Defect {
        name: "A3.4 valid JSON of the wrong shape",
        fires: &[(A3, "wrong-shape")],
        plant: |files| {
            let index = files.untouched(false, 1);
            answer(files, index, |answer| answer.shape_errors = 1)
        },
    },
    Defect {
        name: "A3.4 no finish reason",
        fires: &[(A3, "no-finish-reason")],
        plant: |files| {
            let index = files.untouched(false, 1);
            answer(files, index, |answer| answer.finish_reasons.clear())
        },
    },
    Defect {
        name: "A3.5 illegal UTF-8",
        fires: &[(A3, "bad-utf8")],
        plant: |files| {
            let index = files.untouched(true, 2);
            answer(files, index, |answer| answer.utf8_errors = 1)
        },
    },
    Defect {
        name: "A3.6 an error object inside a 200 stream",
        fires: &[(A3, "wrong-ending"), (A2, "untouched-failed"), (T, "above-limit")],
        plant: |files| {
            let index = files.untouched(true, 0);
            files.records[index].client_class = ClientClass::InBandError;
            account(files, index, "failed");
            answer(files, index, |answer| {
                answer.ending = Some("error-event".to_owned());
                answer.done_count = 0;
            })
        },
    },
    Defect {
        name: "A3.7 a chunk of another request's stream",
        fires: &[(A3, "foreign-id")],
        plant: |files| {
            let index = files.untouched(true, 0);
            answer(files, index, |answer| answer.id_changed = true)
        },
    },
    Defect {
        name: "A3.7 the whole answer of another request",
        fires: &[(A3, "foreign-id")],
        plant: |files| {
            let theirs = files.records[9].response_body_id.clone();
            files.records[7].response_body_id = theirs;
            id(files, 7)
        },
    },
    Defect {
        name: "A3.7 an answer out of another escrow",
        fires: &[(A3, "foreign-id")],
        plant: |files| {
            let (_, nonce) = place(files, 7);
            files.records[7].response_body_id = Some(format!("devshard-99-{nonce}"));
            id(files, 7)
        },
    },
    Defect {
        name: "A3 an event that is not JSON",
        fires: &[(A3, "bad-json")],
        plant: |files| {
            let index = files.untouched(true, 0);
            answer(files, index, |answer| answer.json_errors = 1)
        },
    },
    Defect {
        name: "A3 an event above the bound",
        fires: &[(A3, "oversize-event")],
        plant: |files| {
            let index = files.untouched(true, 0);
            answer(files, index, |answer| answer.oversize_events = 1)
        },
    },
    Defect {
        name: "A3 bytes of an unfinished event after the marker",
        fires: &[(A3, "unfinished-event")],
        plant: |files| {
            let index = files.untouched(true, 0);
            answer(files, index, |answer| answer.unfinished_bytes = 9)
        },
    },
    Defect {
        name: "A3 a stream under text/plain",
        fires: &[(A3, "wrong-content-type")],
        plant: |files| {
            let index = files.untouched(true, 0);
            files.records[index].content_type = Some("text/plain; charset=utf-8".to_owned());
            id(files, index)
        },
    },
    Defect {
        name: "A3 an error status without a JSON error",
        fires: &[(A3, "error-body"), (A2, "untouched-failed"), (T, "above-limit")],
        plant: |files| {
            account(files, 7, "failed");
            http_error(files, 7, 500);
            answer(files, 7, |answer| answer.json_object = Some(false))
        },
    },
    Defect {
        name: "A10.1 no escrow can be found",
        fires: &[(A10, "no-escrow")],
        plant: |files| {
            files.joined[7].escrow = None;
            files.joined[7].accounting = None;
            id(files, 7)
        },
    },
    Defect {
        name: "A10.2 accounting does not know the id",
        fires: &[(A10, "no-accounting-row")],
        plant: |files| {
            files.joined[7].accounting = None;
            id(files, 7)
        },
    },
    Defect {
        name: "A10.3 two requests map to one row",
        fires: &[(A10, "shared-row")],
        plant: |files| {
            files.joined[9].accounting = files.joined[7].accounting.clone();
            id(files, 7)
        },
    },
    Defect {
        name: "A10.4 an attempt names a host outside the topology",
        fires: &[(A10, "unknown-host")],
        plant: |files| {
            files.joined[7].accounting.as_mut().expect("the story has it").attempts[0].host_idx = 7;
            id(files, 7)
        },
    },
    Defect {
        name: "A10.4 an attempt names a participant who owns no slot",
        fires: &[(A10, "unknown-host")],
        plant: |files| {
            files.joined[7].accounting.as_mut().expect("the story has it").attempts[0].participant =
                Some("nobody".to_owned());
            "names nobody".to_owned()
        },
    },
    Defect {
        name: "A10.1 the answer of a failed request names no request",
        fires: &[(A10, "nameless-answer")],
        plant: |files| {
            let index = expected_failure(files);
            files.records[index].response_request_id = None;
            id(files, index)
        },
    },
    Defect {
        name: "A10.5 the row stands under another escrow",
        fires: &[(A10, "other-escrow"), (A4, "nonce-in-two-requests")],
        plant: |files| {
            files.joined[7].accounting.as_mut().expect("the story has it").escrow = "11".to_owned();
            id(files, 7)
        },
    },
    Defect {
        name: "A10.6 refused with neither reason nor JSON",
        fires: &[
            (A10, "rejected-without-reason"),
            (A2, "untouched-rejected"),
            (A3, "error-body"),
            (T, "above-limit"),
        ],
        plant: |files| {
            refused(files, 7);
            answer(files, 7, |answer| answer.error_message = None)
        },
    },
    Defect {
        name: "A10 a good answer that nothing behind the gateway knows",
        fires: &[(A10, "answered-but-not-accepted"), (A11, "race-sum")],
        plant: |files| {
            files.joined[7].accepted = false;
            id(files, 7)
        },
    },
    Defect {
        name: "A10 a node worked for a nonce that no attempt has",
        fires: &[(A10, "call-not-in-accounting")],
        plant: |files| {
            files.joined[7].accounting.as_mut().expect("the story has it").attempts[0].nonce = 9_999;
            id(files, 7)
        },
    },
    Defect {
        name: "A10 a row without attempts",
        fires: &[(A10, "no-attempts")],
        plant: |files| {
            files.joined[7].accounting.as_mut().expect("the story has it").attempts.clear();
            id(files, 7)
        },
    },
    Defect {
        name: "A10 a hit that no joined call shows",
        fires: &[(A10, "hit-not-joined"), (A2, "outside-expect")],
        plant: |files| {
            let index = files.first_hit();
            files.joined[index].calls.remove(0);
            id(files, index)
        },
    },
    Defect {
        name: "A11 there is one record more than loadgen wrote",
        fires: &[(A11, "record-count")],
        plant: |files| {
            for event in &mut files.events {
                if let EventKind::LoadEnded { records, .. } = &mut event.event {
                    *records -= 1;
                }
            }
            "23 records, 24".to_owned()
        },
    },
    Defect {
        name: "A11.2 the gateway answers 200 and records failed",
        fires: &[(A11, "outcome-pair")],
        plant: |files| {
            account(files, 7, "failed");
            id(files, 7)
        },
    },
    Defect {
        name: "A11.3 the gateway answers 504 and records success",
        fires: &[(A11, "outcome-pair"), (A2, "untouched-failed"), (T, "above-limit")],
        plant: |files| http_error(files, 7, 504),
    },
    Defect {
        name: "A11.4 a call that no acquisition covers",
        fires: &[(A11, "call-without-lock")],
        plant: |files| {
            let own = id(files, 7);
            for call in files.calls.iter_mut().filter(|call| call.request_id.as_ref() == Some(&own)) {
                call.lock = Some("lock-nobody-gave".to_owned());
            }
            "lock-nobody-gave".to_owned()
        },
    },
    Defect {
        name: "A11 a lock for another node",
        fires: &[(A11, "lock-for-another-node")],
        plant: |files| {
            let lock = files.joined[7].calls[0].lock.clone();
            let acquire = |call: &&mut DapiCallRecord| call.lock == lock;
            files.dapi.iter_mut().filter(acquire).for_each(|call| call.node = Some("node-b".to_owned()));
            id(files, 7)
        },
    },
    Defect {
        name: "A11 a lock that nobody used",
        fires: &[(A11, "lock-without-call")],
        plant: |files| {
            let unused = DapiCallRecord { lock: Some("lock-unused".to_owned()), ..files.dapi[0].clone() };
            files.dapi.push(unused);
            "lock-unused".to_owned()
        },
    },
    Defect {
        name: "A11.5 one request in two classes",
        fires: &[(A11, "two-records")],
        plant: |files| {
            let mut second = files.records[7].clone();
            second.step = Some(1);
            files.records.push(second);
            id(files, 7)
        },
    },
    Defect {
        name: "A11 a record of a request that was not planned",
        fires: &[(A11, "unplanned-record")],
        plant: |files| {
            let stranger = scenario::identity::RequestId::new("story", 43, 7);
            files.records[7].id = stranger.clone();
            stranger.as_str().to_owned()
        },
    },
    Defect {
        name: "A11 the gateway counted one race more",
        fires: &[(A11, "race-sum")],
        plant: |files| {
            let _ = place(files, 7);
            files.from(Moment::DrainPassive, |snapshot| {
                snapshot.gateway_metrics.values_mut().for_each(|value| *value += 1.0);
            });
            "25 races, 24".to_owned()
        },
    },
];
