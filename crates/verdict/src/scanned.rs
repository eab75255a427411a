//! The quick way through each kind of line: its keys in the order of the whole type in crate `evidence` or `scenario`.

use crate::lines::{
    AnswerPart, AttemptPart, CallPart, DapiLine, DiffLine, DiffPart, Entries, InferenceLine, InferencePart,
    JoinedLine, NodeCallLine, PlanLine, PromptPart, RecordLine, RowPart, Text, TxPart,
};
use crate::scan::{Scan, Scanned};

fn text<'a>(scan: &mut Scan<'a>) -> Option<Text<'a>> {
    scan.text().map(Text::from)
}

fn or_text<'a>(scan: &mut Scan<'a>) -> Option<Option<Text<'a>>> {
    scan.or_null(text)
}

/// Whether there is anything, whatever it is.
fn or_there(scan: &mut Scan<'_>) -> Option<Option<serde::de::IgnoredAny>> {
    Some(scan.or_null(Scan::pass)?.map(|()| serde::de::IgnoredAny))
}

fn or_number(scan: &mut Scan<'_>) -> Option<Option<u64>> {
    scan.or_null(Scan::number)
}

fn or_small<T: TryFrom<u64>>(scan: &mut Scan<'_>) -> Option<Option<T>> {
    scan.or_null(Scan::small)
}

impl<'a> Scanned<'a> for PlanLine<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self {
            v: scan.field("v", Scan::small)?,
            index: scan.field("index", Scan::number)?,
            id: scan.field("id", text)?,
            prompt: scan.field("prompt", Scan::object)?,
        })
    }
}

impl<'a> Scanned<'a> for PromptPart {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self { input_tokens: scan.field("input_tokens", Scan::small)? })
    }
}

impl<'a> Scanned<'a> for RecordLine<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self {
            v: scan.field("v", Scan::small)?,
            index: scan.field("index", Scan::number)?,
            id: scan.field("id", text)?,
            step: scan.field("step", or_small)?,
            stream: scan.field("stream", Scan::truth)?,
            planned_us: scan.field("planned_us", or_number)?,
            first_content_us: scan.field("first_content_us", or_number)?,
            end_us: scan.field("end_us", or_number)?,
            status: scan.field("status", or_small)?,
            content_type: scan.field("content_type", or_text)?,
            response_request_id: scan.field("response_request_id", or_there)?,
            response_devshard_id: scan.field("response_devshard_id", or_text)?,
            response_body_id: scan.field("response_body_id", or_text)?,
            answer: scan.field("answer", |scan| scan.or_null(Scan::object))?,
            client_class: scan.field("client_class", Scan::word)?,
        })
    }
}

impl<'a> Scanned<'a> for AnswerPart<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self {
            ending: scan.field("ending", or_text)?,
            content_events: scan.field("content_events", Scan::number)?,
            done_count: scan.field("done_count", Scan::number)?,
            events_after_done: scan.field("events_after_done", Scan::number)?,
            unfinished_bytes: scan.field("unfinished_bytes", Scan::number)?,
            json_errors: scan.field("json_errors", Scan::number)?,
            utf8_errors: scan.field("utf8_errors", Scan::number)?,
            oversize_events: scan.field("oversize_events", Scan::number)?,
            shape_errors: scan.field("shape_errors", Scan::number)?,
            id_changed: scan.field("id_changed", Scan::truth)?,
            error_message: scan.field("error_message", or_text)?,
            finish_reasons: Entries(scan.field("finish_reasons", Scan::entries)?),
            choices: scan.field("choices", Scan::small)?,
            json_object: scan.field("json_object", |scan| scan.or_null(Scan::truth))?,
            body_complete: scan.field("body_complete", Scan::truth)?,
        })
    }
}

impl<'a> Scanned<'a> for JoinedLine<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self {
            v: scan.field("v", Scan::small)?,
            index: scan.field("index", Scan::number)?,
            id: scan.field("id", text)?,
            accepted: scan.field("accepted", Scan::truth)?,
            cached: scan.field("cached", Scan::truth)?,
            escrow: scan.field("escrow", or_text)?,
            accounting: scan.field("accounting", |scan| scan.or_null(Scan::object))?,
            calls: scan.field("calls", Scan::list)?,
            ways: scan.field("ways", |scan| scan.each(Scan::word))?,
        })
    }
}

impl<'a> Scanned<'a> for RowPart<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        let request_id = scan.field("request_id", text)?;
        let escrow = scan.field("escrow", text)?;
        let outcome = scan.field("outcome", text)?;
        let decision = scan.field("decision", or_text)?;
        let winner_nonce = scan.field("winner_nonce", or_number)?;
        let attempts = scan.field("attempts", Scan::list)?;
        let completed_at = scan.field("completed_at", or_there)?;
        Some(Self { request_id, escrow, outcome, decision, winner_nonce, attempts, completed_at })
    }
}

impl<'a> Scanned<'a> for AttemptPart<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self {
            nonce: scan.field("nonce", Scan::number)?,
            host_idx: scan.field("host_idx", Scan::small)?,
            participant: scan.field("participant", or_text)?,
            winner: scan.field("winner", Scan::truth)?,
        })
    }
}

impl<'a> Scanned<'a> for CallPart<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self {
            call: scan.field("call", Scan::number)?,
            node: scan.field("node", text)?,
            nonce: scan.field("nonce", or_number)?,
            outcome: scan.field("outcome", Scan::word)?,
            status: scan.field("status", or_small)?,
            rule: scan.field("rule", or_text)?,
        })
    }
}

impl<'a> Scanned<'a> for NodeCallLine<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self {
            call: scan.field("call", Scan::number)?,
            node: scan.field("node", text)?,
            started_us: scan.field("started_us", Scan::number)?,
            ended_us: scan.field("ended_us", or_number)?,
            request_id: scan.field("request_id", or_text)?,
            salt: scan.field("salt", or_text)?,
            seed: scan.field("seed", or_number)?,
            lock: scan.field("lock", or_text)?,
            kind: scan.field("kind", Scan::word)?,
            attempt: scan.field("attempt", Scan::number)?,
            status: scan.field("status", or_small)?,
            outcome: scan.field("outcome", Scan::word)?,
            rule: scan.field("rule", or_text)?,
            content_events: scan.field("content_events", Scan::number)?,
        })
    }
}

impl<'a> Scanned<'a> for DapiLine<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self {
            seq: scan.field("seq", Scan::number)?,
            call: scan.field("call", Scan::word)?,
            lock: scan.field("lock", or_text)?,
            node: scan.field("node", or_text)?,
            result: scan.field("result", text)?,
            outcome: scan.field("outcome", or_text)?,
        })
    }
}

impl<'a> Scanned<'a> for DiffLine<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self {
            v: scan.field("v", Scan::small)?,
            n: scan.field("n", Scan::number)?,
            escrow: scan.field("escrow", text)?,
            diff: scan.field("diff", Scan::object)?,
        })
    }
}

impl<'a> Scanned<'a> for DiffPart<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self { nonce: scan.field("nonce", Scan::number)?, txs: scan.field("txs", Scan::list)? })
    }
}

impl<'a> Scanned<'a> for TxPart<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        let kind = scan.field("kind", text)?;
        let inference = scan.maybe("inference", Scan::number)?;
        let slot = scan.maybe("slot", Scan::small)?;
        scan.maybe("valid", Scan::truth)?;
        let escrow = scan.maybe("escrow", text)?;
        // Left-out keys are only seen as such when what follows is what must.
        scan.field_next("digest", Scan::pass)?;
        Some(Self { kind, inference, slot, escrow })
    }
}

impl<'a> Scanned<'a> for InferenceLine<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self {
            v: scan.field("v", Scan::small)?,
            n: scan.field("n", Scan::number)?,
            escrow: scan.field("escrow", text)?,
            nonce: scan.field("nonce", Scan::number)?,
            inference: scan.field("inference", |scan| scan.or_null(Scan::object))?,
        })
    }
}

impl<'a> Scanned<'a> for InferencePart<'a> {
    fn scan(scan: &mut Scan<'a>) -> Option<Self> {
        Some(Self {
            status: scan.field("status", text)?,
            executor_slot: scan.field("executor_slot", Scan::small)?,
            prompt_hash: scan.field("prompt_hash", or_text)?,
            input_length: scan.field("input_length", Scan::number)?,
            max_tokens: scan.field("max_tokens", Scan::number)?,
            started_at: scan.field("started_at", Scan::number)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evidence::accounting::{AccountingRow, Attempt, JoinWay, JoinedCall, JoinedRequest};
    use evidence::record::{AnswerFacts, ClientClass, RequestRecord};
    use evidence::sessions::{DiffLine as WholeDiff, InferenceLine as WholeInference};
    use evidence::snapshot::{Diff, Inference, Tx};
    use scenario::control::{DapiCallRecord, NodeCall, NodeOutcome};
    use scenario::fault::{CallKind, DapiCall};
    use scenario::identity::RequestId;
    use scenario::plan::{PlanLine as WholePlan, PromptRecipe};

    use super::*;

    /// Both ways give the same, and the quick one is taken.
    #[track_caller]
    fn both<'a, T>(text: &'a str)
    where
        T: Scanned<'a> + serde::Deserialize<'a> + std::fmt::Debug,
    {
        let quick: T = crate::scan::line(text.as_bytes()).expect("our own writers' lines are scanned");
        let slow: T = serde_json::from_str(text).expect("a good line");
        assert_eq!(format!("{quick:?}"), format!("{slow:?}"), "{text}");
    }

    fn json<T: serde::Serialize>(value: &T) -> String {
        serde_json::to_string(value).expect("evidence is JSON")
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn plans_and_records() {
        let id = RequestId::new("story", 42, 7);
        let prompt = PromptRecipe { seed: 1, index: 7, input_tokens: 64 };
        let plan = WholePlan {
            v: 1,
            index: 7,
            id: id.clone(),
            stream: true,
            max_tokens: 32,
            cancel: None,
            rules: vec!["node-b-503".to_owned()],
            prompt,
            prompt_digest: "d".to_owned(),
            duplicate_of: Some(3),
            checks: Vec::new(),
        };
        both::<PlanLine<'_>>(&json(&plan));
        let mut record = RequestRecord::blank(7, id, true);
        both::<RecordLine<'_>>(&json(&record));
        record.client_class = ClientClass::InBandError;
        record.status = Some(200);
        record.end_us = Some(90);
        record.response_request_id = some("rid");
        record.response_body_id = some("devshard-11-5");
        record.answer = Some(AnswerFacts {
            ending: some("done"),
            finish_reasons: BTreeMap::from([(0, "stop".to_owned()), (1, "length".to_owned())]),
            json_object: Some(false),
            ..AnswerFacts::default()
        });
        both::<RecordLine<'_>>(&json(&record));
    }

    #[test]
    fn joined_requests() {
        let mut joined = JoinedRequest {
            v: 1,
            index: 7,
            id: "story-42-000007".to_owned(),
            accepted: true,
            cached: false,
            escrow: None,
            accounting: None,
            calls: Vec::new(),
            inferences: vec![(5, "finished".to_owned())],
            ways: vec![JoinWay::Marker, JoinWay::SeedNonce],
            missing: vec!["a \"quoted\" word".to_owned()],
        };
        both::<JoinedLine<'_>>(&json(&joined));
        let attempt =
            Attempt { nonce: 5, host_idx: 2, participant: some("p"), winner: true, status: some("finished") };
        joined.escrow = some("11");
        joined.accounting = Some(AccountingRow {
            request_id: "rid".to_owned(),
            escrow: "11".to_owned(),
            outcome: "success".to_owned(),
            decision: None,
            winner_nonce: Some(5),
            attempts: vec![attempt.clone(), Attempt { participant: None, status: None, ..attempt }],
            started_at: some("2026-01-01T00:00:00Z"),
            completed_at: some("2026-01-01T00:00:01Z"),
        });
        joined.calls = vec![JoinedCall {
            call: 3,
            node: "node-b".to_owned(),
            nonce: Some(5),
            lock: some("lock-3"),
            host: None,
            outcome: "completed".to_owned(),
            status: Some(200),
            rule: None,
            started_us: 3_000,
        }];
        both::<JoinedLine<'_>>(&json(&joined));
    }

    #[test]
    fn calls_at_nodes_and_at_the_allocator() {
        let call = NodeCall {
            seq: 1,
            call: 1,
            node: "node-b".to_owned(),
            started_us: 10,
            ended_us: None,
            first_content_us: None,
            request_id: None,
            salt: None,
            seed: Some(5),
            x_request_id: some("x"),
            lock: some("lock-1"),
            kind: CallKind::Validation,
            attempt: 1,
            stream: true,
            status: Some(503),
            outcome: NodeOutcome::ClientCancelled,
            rule: some("node-b-503"),
            content_events: 0,
        };
        both::<NodeCallLine<'_>>(&json(&call));
        let acquire = DapiCallRecord {
            seq: 1,
            at_us: 10,
            call: DapiCall::Acquire,
            host: "host-1".to_owned(),
            ordinal: 1,
            lock: some("lock-1"),
            node: some("node-b"),
            excluded: vec!["node-a-0".to_owned()],
            result: "granted".to_owned(),
            outcome: None,
            rule: None,
        };
        both::<DapiLine<'_>>(&json(&acquire));
    }

    #[test]
    fn diffs_and_inferences() {
        let tx = |kind: &str, slot| Tx {
            kind: kind.to_owned(),
            inference: Some(5),
            slot,
            valid: slot.map(|_| true),
            escrow: slot.and(some("11")),
            digest: "d".to_owned(),
        };
        let diff = Diff {
            nonce: 6,
            content: "c".to_owned(),
            state_hash: "h".to_owned(),
            post_state_root: "r".to_owned(),
            txs: vec![tx("start", None), tx("validation", Some(2)), Tx { inference: None, ..tx("x", None) }],
        };
        both::<DiffLine<'_>>(&json(&WholeDiff { v: 1, n: 6, escrow: "11".to_owned(), diff }));
        for inference in [None, Some(Inference { prompt_hash: some("p"), ..Inference::default() })] {
            let line = WholeInference { v: 1, n: 6, escrow: "11".to_owned(), nonce: 5, inference };
            both::<InferenceLine<'_>>(&json(&line));
        }
    }
}
