//! Each fault action: the bytes and the end of the connection that its documentation promises.

use std::time::{Duration, Instant};

use scenario::control::NodeOutcome;
use scenario::fault::{Attempts, CallKind, Close, Cut, NodeFault, Select, Stall};
use scenario::identity::RequestId;
use scenario::units::Ppb;

use crate::support::{End, Seen, Stand, config, fast, marked, ms, rule};

/// Plays one action against SSE and JSON, and checks that each call was hit once and logged with this outcome.
async fn both(action: NodeFault, outcome: NodeOutcome) -> (Seen, Seen) {
    let name = scenario::fault::FaultAction::Node(action.clone()).name();
    let stand = Stand::faulty(action).await;
    let sse = stand.chat("node-0", &marked(1, true)).await;
    let json = stand.chat("node-0", &marked(1, false)).await;
    let ended = stand.ended(2).await;
    let hits = stand.hits().await;
    assert_eq!(hits.len(), 2, "{hits:?}");
    for ((call, hit), attempt) in ended.iter().zip(&hits).zip([1, 2]) {
        assert_eq!((call.outcome, call.rule.as_deref()), (outcome, Some("r")), "{call:?}");
        assert_eq!(
            (hit.action.as_str(), hit.place.as_str(), hit.rule.as_str()),
            (name.as_str(), "node-0", "r")
        );
        assert_eq!((hit.attempt, hit.call_seq, hit.kind), (attempt, call.call, Some(CallKind::Execution)));
        assert_eq!(hit.request_id.as_deref(), Some("t-42-000001"));
    }
    let counters = &stand.stats().await.nodes[0].execution;
    let failed = u64::from(outcome == NodeOutcome::Faulted) * 2;
    assert_eq!(counters.failed.get(&name).copied().unwrap_or(0), failed);
    assert_eq!((counters.completed, counters.active), (2 - failed, 0));
    (sse, json)
}

async fn clean_pair() -> (Seen, Seen) {
    let stand = Stand::new(config(vec![fast()], vec![])).await;
    (stand.chat("node-0", &marked(1, true)).await, stand.chat("node-0", &marked(1, false)).await)
}

#[tokio::test]
async fn status_answers_an_error_document() {
    let (sse, json) = both(NodeFault::Status(503), NodeOutcome::Faulted).await;
    for seen in [sse, json] {
        assert_eq!((seen.status, seen.end), (Some(503), End::Open));
        assert!(seen.head.contains("Content-Type: application/json"));
        assert_eq!(seen.json()["error"]["code"], 503);
    }
}

#[tokio::test]
async fn nothing_is_answered_before_a_reset_or_close() {
    for (action, end) in
        [(NodeFault::ResetBeforeHeaders(true), End::Rst), (NodeFault::CloseBeforeHeaders(true), End::Fin)]
    {
        let (sse, json) = both(action, NodeOutcome::Faulted).await;
        for seen in [sse, json] {
            assert_eq!((seen.status, seen.body.len(), seen.end), (None, 0, end));
        }
    }
}

#[tokio::test]
async fn a_cut_stream_has_so_many_events_and_ends_as_asked() {
    for (close, end, whole) in
        [(Close::Clean, End::Open, true), (Close::Fin, End::Fin, false), (Close::Rst, End::Rst, false)]
    {
        let cut = NodeFault::CutAfterEvents(Cut { events: 3, close });
        let (sse, json) = both(cut, NodeOutcome::Faulted).await;
        assert_eq!((sse.status, sse.end, sse.whole), (Some(200), end, whole), "{close:?}");
        assert_eq!(sse.events().len(), 3);
        assert!(!sse.text().contains("[DONE]") && !sse.text().contains("stop"));
        assert_eq!((json.end, json.whole), (end, whole), "{close:?}");
        assert!(serde_json::from_slice::<serde_json::Value>(&json.body).is_err());
        let (_, clean) = clean_pair().await;
        assert_eq!(json.body[..], clean.body[..clean.body.len() / 2]);
    }
}

#[tokio::test]
async fn a_cut_beyond_the_last_event_keeps_all_content_and_no_ending() {
    let cut = NodeFault::CutAfterEvents(Cut { events: 99, close: Close::Fin });
    let (sse, _) = both(cut, NodeOutcome::Faulted).await;
    assert_eq!((sse.events().len(), sse.end), (12, End::Fin));
    assert!(!sse.text().contains("stop"));
}

#[tokio::test]
async fn a_cut_in_utf8_leaves_half_a_character_of_the_named_event() {
    for close in [Close::Clean, Close::Fin, Close::Rst] {
        let (sse, json) = both(NodeFault::CutInUtf8(Cut { events: 4, close }), NodeOutcome::Faulted).await;
        for (seen, whole_events) in [(&sse, Some(3)), (&json, None)] {
            let error = std::str::from_utf8(&seen.body).unwrap_err();
            assert_eq!(error.error_len(), None, "the bytes end inside a character");
            let valid = std::str::from_utf8(&seen.body[..error.valid_up_to()]).unwrap();
            if let Some(count) = whole_events {
                assert_eq!(valid.matches("\n\n").count(), count);
            }
        }
        let (_, clean) = clean_pair().await;
        assert!(clean.body.starts_with(&json.body));
        assert_eq!(sse.whole, close == Close::Clean);
    }
}

#[tokio::test]
async fn what_is_left_out_is_missing_and_nothing_else() {
    let (clean_sse, clean_json) = clean_pair().await;
    let clean_events = clean_sse.events();
    let without = |missing: usize| {
        let mut events = clean_events.clone();
        events.remove(missing);
        strip(&events)
    };
    let (sse, json) = both(NodeFault::OmitDone(true), NodeOutcome::Faulted).await;
    assert_eq!((strip(&sse.events()), sse.whole), (without(14), true));
    assert_eq!(json.content(), clean_json.content());
    let (sse, json) = both(NodeFault::OmitUsage(true), NodeOutcome::Faulted).await;
    assert_eq!(strip(&sse.events()), without(13));
    assert!(json.json().get("usage").is_none());
    assert_eq!(json.content(), clean_json.content());
    let (sse, json) = both(NodeFault::DropFirstContent(true), NodeOutcome::Faulted).await;
    assert_eq!(strip(&sse.events()), without(0));
    assert_eq!(json.content(), sse.joined());
    assert_eq!(json.json()["usage"], clean_json.json()["usage"]);
}

/// Events without their second.
fn strip(events: &[String]) -> Vec<String> {
    let cut = |event: &String| match (event.find("\"created\":"), event.find(",\"id\":")) {
        (Some(from), Some(to)) => format!("{}{}", &event[..from], &event[to..]),
        _ => event.clone(),
    };
    events.iter().map(cut).collect()
}

#[tokio::test]
async fn malformed_answers_do_not_parse_and_are_framed_well() {
    for action in [NodeFault::MalformedJson(true), NodeFault::MalformedSse(true)] {
        let (sse, json) = both(action, NodeOutcome::Faulted).await;
        assert!(json.whole && serde_json::from_slice::<serde_json::Value>(&json.body).is_err());
        let events = sse.events();
        let broken = |event: &&String| serde_json::from_str::<serde_json::Value>(event).is_err();
        let broken: Vec<_> = events[..events.len() - 1].iter().filter(broken).collect();
        assert_eq!((broken.len(), events.len(), sse.whole), (1, 15, true));
    }
}

#[tokio::test]
async fn an_error_event_is_a_stream_for_every_caller() {
    let (sse, json) = both(NodeFault::ErrorEvent(true), NodeOutcome::Faulted).await;
    for seen in [sse, json] {
        assert!(seen.head.contains("Content-Type: text/event-stream"));
        let events = seen.events();
        assert_eq!((seen.status, events.len(), events[1].as_str()), (Some(200), 2, "[DONE]"));
        assert!(events[0].contains("EngineCore") && events[0].contains("\"error\""));
    }
}

#[tokio::test]
async fn a_wrong_content_type_has_the_right_body() {
    let (clean_sse, clean_json) = clean_pair().await;
    let (sse, json) = both(NodeFault::WrongContentType(true), NodeOutcome::Faulted).await;
    assert!(sse.head.contains("Content-Type: text/plain") && json.head.contains("Content-Type: text/plain"));
    assert_eq!(strip(&sse.events()), strip(&clean_sse.events()));
    assert_eq!(json.content(), clean_json.content());
}

#[tokio::test]
async fn an_oversize_event_has_exactly_the_bytes() {
    let (sse, json) = both(NodeFault::OversizeEvent(300_000), NodeOutcome::Faulted).await;
    let first = sse.text().find("\n\n").unwrap() + 2;
    assert_eq!((first, sse.events().len(), sse.whole), (300_000, 15, true));
    assert!(serde_json::from_str::<serde_json::Value>(&sse.events()[0]).is_ok());
    assert_eq!(json.body.len(), 300_000);
    assert_eq!(json.json()["choices"][0]["finish_reason"], "stop");
}

/// Time to headers, to the first body byte, and to the end, of a raw exchange.
async fn timed(stand: &Stand, stream: bool) -> [Duration; 3] {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut connection = stand.connect("node-0").await;
    let start = Instant::now();
    connection
        .write_all(&crate::support::chat_bytes(&marked(1, stream), "Connection: close\r\n"))
        .await
        .unwrap();
    let (mut bytes, mut times) = (Vec::new(), [Duration::ZERO; 3]);
    while connection.read_buf(&mut bytes).await.unwrap() > 0 {
        let head = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let reached = [head.is_some(), head.is_some_and(|head| bytes.len() > head + 4), false];
        for (time, reached) in times.iter_mut().zip(reached) {
            if reached && time.is_zero() {
                *time = start.elapsed();
            }
        }
    }
    times[2] = start.elapsed();
    times
}

#[tokio::test]
async fn delays_happen_where_they_are_named() {
    const WAIT: Duration = Duration::from_millis(80);
    let stand = Stand::faulty(NodeFault::DelayHeaders(ms(80))).await;
    for stream in [true, false] {
        assert!(timed(&stand, stream).await[0] >= WAIT);
    }
    let stand = Stand::faulty(NodeFault::DelayFirstContent(ms(80))).await;
    for stream in [true, false] {
        let [head, content, _] = timed(&stand, stream).await;
        assert!(head < WAIT && content >= WAIT, "{head:?} {content:?}");
    }
    let stall = Stall { after_events: 2, pause: ms(80) };
    let stand = Stand::faulty(NodeFault::Stall(stall)).await;
    for stream in [true, false] {
        let [_, content, end] = timed(&stand, stream).await;
        assert!(content < WAIT && end >= WAIT, "{content:?} {end:?}");
    }
    let stand = Stand::faulty(NodeFault::SlowTokens(ms(10))).await;
    assert!(timed(&stand, true).await[2] >= Duration::from_millis(110));
    assert!(timed(&stand, false).await[1] >= Duration::from_millis(110));
}

#[tokio::test]
async fn delays_are_hits_of_completed_calls() {
    let (clean_sse, clean_json) = clean_pair().await;
    for action in [
        NodeFault::DelayHeaders(ms(1)),
        NodeFault::DelayFirstContent(ms(1)),
        NodeFault::SlowTokens(ms(1)),
        NodeFault::Stall(Stall { after_events: 99, pause: ms(1) }),
    ] {
        let (sse, json) = both(action, NodeOutcome::Completed).await;
        assert_eq!(strip(&sse.events()), strip(&clean_sse.events()));
        assert_eq!(json.content(), clean_json.content());
    }
}

#[tokio::test]
async fn calls_are_selected_by_draw_id_attempt_and_kind() {
    let status = |select, attempts| {
        let rule = scenario::control::NodeRule { select, attempts, ..rule(NodeFault::Status(500)) };
        Stand::new(config(vec![fast()], vec![rule]))
    };
    let quarter = Ppb::parse("0.25").unwrap();
    let stand = status(Select::Fraction(quarter), Attempts::All).await;
    let mut selected = 0;
    for index in 0..60 {
        let expected = scenario::draw::selected(42, "r", "fault", &format!("t-42-{index:06}"), quarter);
        let seen = stand.chat("node-0", &marked(index, index % 2 == 0)).await;
        assert_eq!(seen.status == Some(500), expected, "{index}");
        selected += u32::from(expected);
    }
    assert!(selected > 5, "the draw selects some");
    let ids = Select::Ids(vec![RequestId::new("t", 42, 7)]);
    let stand = status(ids, Attempts::First).await;
    let mut answered = Vec::new();
    for index in [7, 8, 7] {
        answered.push(stand.chat("node-0", &marked(index, false)).await.status.unwrap());
    }
    assert_eq!(answered, [500, 200, 200]);
    // A replay of the selected id is another kind of call.
    let mut replay = marked(7, false);
    replay["enforced_tokens"] = serde_json::json!({ "tokens": null });
    assert_eq!(stand.chat("node-0", &replay).await.status, Some(200));
    // Without a marker only `all` selects.
    let plain = serde_json::json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let stand = status(Select::Fraction(Ppb::ONE), Attempts::All).await;
    assert_eq!(stand.chat("node-0", &plain).await.status, Some(200));
    let stand = status(Select::All(true), Attempts::All).await;
    assert_eq!(stand.chat("node-0", &plain).await.status, Some(500));
}

#[tokio::test]
async fn a_rule_switched_off_or_for_another_node_does_nothing() {
    let off = rule(NodeFault::OmitDone(false));
    let elsewhere =
        scenario::control::NodeRule { nodes: vec!["node-1".to_owned()], ..rule(NodeFault::Status(500)) };
    let stand = Stand::new(config(vec![fast(), fast()], vec![off, elsewhere])).await;
    assert!(stand.chat("node-0", &marked(1, true)).await.text().contains("[DONE]"));
    assert_eq!(stand.chat("node-1", &marked(1, true)).await.status, Some(500));
    assert_eq!(stand.hits().await.len(), 1);
}
