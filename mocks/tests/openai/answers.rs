//! Well-behaved answers: one text in two forms, usage, log probabilities, replays, timing.

use std::collections::BTreeSet;
use std::time::Instant;

use mocks::openai::script::Pace;
use scenario::control::{NodeCall, NodeOutcome};
use scenario::fault::{CallKind, NodeFault, Select};
use scenario::profile::{Profile, Timing};
use scenario::units::Ppb;
use serde_json::{Value, json};

use crate::support::{End, Stand, chat_bytes, config, fast, marked, ms, post_bytes, rule};

async fn plain() -> Stand {
    Stand::new(config(vec![fast(), fast()], vec![])).await
}

#[tokio::test]
async fn joined_deltas_equal_the_json_content_at_every_node() {
    let stand = plain().await;
    let mut texts = BTreeSet::new();
    for index in 0..20 {
        let json = stand.chat("node-0", &marked(index, false)).await;
        let sse = stand.chat("node-1", &marked(index, true)).await;
        assert_eq!(json.content(), sse.joined());
        assert!(!json.content().is_ascii(), "a multi-byte character is in every text");
        assert_eq!(json.json()["id"], serde_json::from_str::<Value>(&sse.events()[0]).unwrap()["id"]);
        texts.insert(json.content());
    }
    assert_eq!(texts.len(), 20, "each id has its own text");
    let plain = json!({ "messages": [{ "role": "user", "content": "no marker" }] });
    let mut streamed = plain.clone();
    streamed["stream"] = true.into();
    let json = stand.chat("node-0", &plain).await;
    assert_eq!(json.content(), stand.chat("node-0", &streamed).await.joined());
    assert_eq!(json.json()["usage"]["completion_tokens"], 16);
}

#[tokio::test]
async fn a_stream_has_the_documented_events() {
    let stand = plain().await;
    let seen = stand.chat("node-0", &marked(3, true)).await;
    assert!(
        seen.head.contains("Content-Type: text/event-stream")
            && seen.head.contains("Cache-Control: no-cache")
    );
    assert!(seen.text().lines().all(|line| line.is_empty() || line.starts_with("data: ")));
    let events = seen.events();
    assert_eq!(events.len(), 12 + 3);
    assert_eq!(events[14], "[DONE]");
    let parsed: Vec<Value> = events[..14].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    for (event, value) in events[..14].iter().zip(&parsed) {
        // Keys in alphabetical order at every depth: the canonical text is the text.
        assert_eq!(&scenario::digest::canonical_json(value), event);
    }
    for event in &parsed[..12] {
        assert_eq!(event["choices"][0]["finish_reason"], Value::Null);
        assert!(!event["choices"][0]["delta"]["content"].as_str().unwrap().is_empty());
    }
    assert_eq!(parsed[12]["choices"][0]["finish_reason"], "stop");
    assert_eq!(parsed[13]["choices"], json!([]));
    let usage = &parsed[13]["usage"];
    assert_eq!(usage["completion_tokens"], 12);
    let json = stand.chat("node-0", &marked(3, false)).await;
    assert_eq!(&json.json()["usage"], usage);
    assert_eq!(scenario::digest::canonical_json(&json.json()), json.text());
}

/// What a host enforces in a replay, taken from an answer as contract mocks 3.10 says.
fn enforced(entries: &[Value]) -> Value {
    let token = |entry: &Value| {
        let top: Vec<&Value> =
            entry["top_logprobs"].as_array().unwrap().iter().map(|top| &top["token"]).collect();
        json!({ "token": entry["token"], "top_tokens": top })
    };
    json!({ "tokens": entries.iter().map(token).collect::<Vec<_>>() })
}

#[tokio::test]
async fn a_replay_echoes_the_enforced_tokens_with_the_same_logprobs() {
    let stand = plain().await;
    for stream in [false, true] {
        let mut body = marked(5, stream);
        body["logprobs"] = true.into();
        body["top_logprobs"] = 5.into();
        let original = stand.chat("node-0", &body).await;
        let (entries, content): (Vec<Value>, String) = if stream {
            let events = original.events();
            let first = |event: &String| {
                let event: Value = serde_json::from_str(event).unwrap();
                let entries = event["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
                assert_eq!(entries.len(), 1, "exactly one entry per content chunk");
                entries[0].clone()
            };
            (events[..12].iter().map(first).collect(), original.joined())
        } else {
            let json = original.json();
            (json["choices"][0]["logprobs"]["content"].as_array().unwrap().clone(), original.content())
        };
        assert_eq!(entries.len(), 12);
        for entry in &entries {
            let small = |token: &Value| token.as_str().unwrap().parse::<u32>().unwrap() < 100_000;
            let top = entry["top_logprobs"].as_array().unwrap();
            assert!(small(&entry["token"]) && top.len() == 5 && top.iter().all(|top| small(&top["token"])));
            assert_eq!(top[0]["token"], entry["token"]);
        }
        // Another seed of the mock would give another text: the replay has to come from the tokens.
        let mut replay = marked(6, false);
        replay["logprobs"] = true.into();
        replay["top_logprobs"] = 5.into();
        replay["enforced_tokens"] = enforced(&entries);
        let replayed = stand.chat("node-1", &replay).await;
        assert_eq!(replayed.json()["choices"][0]["logprobs"]["content"], Value::from(entries));
        assert_eq!(replayed.content(), content);
        assert_eq!(replayed.json()["usage"]["completion_tokens"], 12);
    }
    let kinds: Vec<CallKind> = stand.ended(4).await.iter().map(|call| call.kind).collect();
    assert_eq!(kinds, [CallKind::Execution, CallKind::Validation, CallKind::Execution, CallKind::Validation]);
}

#[tokio::test]
async fn prompt_tokens_of_a_replay_equal_those_of_the_execution() {
    let stand = plain().await;
    let execution = stand.chat("node-0", &marked(5, false)).await.json();
    let mut replay = marked(5, false);
    replay["enforced_tokens"] = json!({ "tokens": null });
    let replayed = stand.chat("node-0", &replay).await;
    assert_eq!(replayed.json()["usage"]["prompt_tokens"], execution["usage"]["prompt_tokens"]);
    // Null tokens: an answer of none (fixture validation-null-logprobs).
    assert_eq!((replayed.status, replayed.content().as_str()), (Some(200), ""));
    assert_eq!(replayed.json()["usage"]["completion_tokens"], 0);
}

#[tokio::test]
async fn foreign_and_empty_tokens_are_echoed_too() {
    let stand = plain().await;
    let mut replay = marked(5, false);
    replay["logprobs"] = true.into();
    let tokens = json!([{ "token": "1245", "top_tokens": ["2245", "1245"] }, { "token": "<EMPTY>" },
        { "token": "a\"b\n", "top_tokens": [] }]);
    replay["enforced_tokens"] = json!({ "tokens": tokens });
    let seen = stand.chat("node-0", &replay).await.json();
    let entries = seen["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(
        entries.iter().map(|entry| &entry["token"]).collect::<Vec<_>>(),
        ["1245", "<EMPTY>", "a\"b\n"]
    );
    // The chosen token stands at rank 1 of its list, so it has that rank's value.
    assert_eq!(
        (&entries[0]["logprob"], &entries[0]["top_logprobs"][0]["logprob"]),
        (&json!(-1.1), &json!(-0.1))
    );
    assert_eq!(seen["choices"][0]["message"]["content"], "1245a\"b\n");
}

/// Bytes of an answer without the second it was made in.
fn without_created(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("\"created\":") {
        let end = at + 10;
        out.push_str(&rest[..end]);
        rest = rest[end..].trim_start_matches(|c: char| c.is_ascii_digit());
    }
    out + rest
}

#[tokio::test]
async fn rules_that_select_nothing_leave_every_byte_as_it_is() {
    let nothing = scenario::control::NodeRule {
        select: Select::Fraction(Ppb::ZERO),
        ..rule(NodeFault::ResetBeforeHeaders(true))
    };
    let with_rule = Stand::new(config(vec![fast()], vec![nothing])).await;
    let without = Stand::new(config(vec![fast()], vec![])).await;
    for index in 0..10 {
        let body = marked(index, index % 2 == 0);
        let (one, other) = (with_rule.chat("node-0", &body).await, without.chat("node-0", &body).await);
        assert_eq!(one.head, other.head);
        assert_eq!(without_created(one.text()), without_created(other.text()));
    }
    assert!(with_rule.hits().await.is_empty());
}

#[tokio::test]
async fn a_connection_is_kept_and_pipelined_requests_are_answered_in_order() {
    use tokio::io::AsyncWriteExt as _;
    let stand = plain().await;
    let mut connection = stand.connect("node-0").await;
    let both =
        [chat_bytes(&marked(1, true), ""), post_bytes("/l/k9/v1/chat/completions", b"{}", "")].concat();
    connection.write_all(&both).await.unwrap();
    let bytes = crate::support::read_answer(&mut connection).await;
    assert_eq!((bytes.status, bytes.end), (Some(200), End::Open));
    connection.write_all(&chat_bytes(&marked(2, false), "")).await.unwrap();
    let ended = stand.ended(3).await;
    assert_eq!(ended.iter().map(|call| call.status).collect::<Vec<_>>(), [Some(200), Some(400), Some(200)]);
    assert_eq!(ended[1].lock.as_deref(), Some("k9"));
    assert_eq!(ended[1].outcome, NodeOutcome::BadRequest);
}

#[tokio::test]
async fn a_call_is_logged_at_its_start_and_at_its_end() {
    let stand = plain().await;
    let mut body = marked(7, true);
    body["seed"] = 31.into();
    let bytes =
        post_bytes("/l/k1-4/v1/chat/completions", body.to_string().as_bytes(), "X-Request-Id: req-9\r\n");
    stand.exchange("node-1", &bytes).await;
    stand.ended(1).await;
    let calls = stand.calls().await;
    let [start, end]: &[NodeCall; 2] = calls.as_slice().try_into().unwrap();
    assert_eq!((start.seq, end.seq, start.call == end.call), (1, 2, true));
    assert_eq!((start.outcome, start.ended_us, start.status), (NodeOutcome::Running, None, None));
    assert_eq!((end.outcome, end.status, end.content_events), (NodeOutcome::Completed, Some(200), 12));
    assert!(end.first_content_us.unwrap() >= end.started_us && end.ended_us >= end.first_content_us);
    for call in [start, end] {
        assert_eq!((call.node.as_str(), call.stream, call.attempt), ("node-1", true, 1));
        assert_eq!(call.request_id.as_deref(), Some("t-42-000007"));
        assert_eq!(call.salt.as_deref(), Some("abcdefghijkl"));
        assert_eq!((call.seed, call.lock.as_deref()), (Some(31), Some("k1-4")));
        assert_eq!(call.x_request_id.as_deref(), Some("req-9"));
    }
}

#[tokio::test]
async fn a_marker_in_a_later_message_counts() {
    let stand = plain().await;
    let body = json!({ "messages": [{ "role": "system", "content": "be brief" },
        { "role": "user", "content": "[load-request:t-42-000011][run:abcdefghijkl] hi" }] });
    stand.chat("node-0", &body).await;
    let call = &stand.ended(1).await[0];
    assert_eq!(call.request_id.as_deref(), Some("t-42-000011"));
}

#[tokio::test]
async fn timing_is_drawn_from_seed_node_id_and_attempt() {
    let ttft = Timing { min: ms(40), max: ms(120) };
    let interval = Timing { min: ms(2), max: ms(6) };
    let slow = Profile { ttft, token_interval: interval, ..fast() };
    let stand = Stand::new(config(vec![slow], vec![])).await;
    let mut waits = BTreeSet::new();
    for index in [1, 2] {
        for attempt in [1, 2] {
            let key = format!("t-42-{index:06}");
            let pace = Pace { seed: 42, node: "node-0", key: &key, attempt, ttft, token_interval: interval };
            let start = Instant::now();
            stand.chat("node-0", &marked(index, true)).await;
            let took_us = u64::try_from(start.elapsed().as_micros()).unwrap();
            let planned_us = pace.ttft_us() + (1..12).map(|event| pace.interval_us(event)).sum::<u64>();
            assert!(took_us >= planned_us, "{took_us} is below {planned_us}");
            let call = stand.ended(waits.len() + 1).await.pop().unwrap();
            assert!(call.first_content_us.unwrap() - call.started_us >= pace.ttft_us());
            assert!((40_000..=120_000).contains(&pace.ttft_us()));
            waits.insert(planned_us);
        }
    }
    assert_eq!(waits.len(), 4, "each attempt has its own draw");
}
