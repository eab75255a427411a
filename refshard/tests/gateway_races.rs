//! Races over three hosts in this process: who answers, what the client sees, what accounting says.

mod gateway_support;

use std::time::{Duration, Instant};

use gateway_support::{Behaviour, Stack, frames, header};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_and_a_document_are_answered_and_accounted() {
    let stack = Stack::start(1).await;
    let answer = stack.chat("one", true).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(header(&answer, "content-type"), "text/event-stream");
    assert_eq!(header(&answer, "cache-control"), "no-cache");
    assert_eq!(header(&answer, "x-devshard-id"), "1");
    let id = header(&answer, "x-request-id");
    let text = answer.text().await.unwrap();
    let events = frames(&text);
    assert_eq!(events.len(), 4, "{text}");
    assert!(events[0].contains(r#""role":"assistant""#), "the role chunk comes first: {text}");
    assert!(events[1].contains(r#""id":"devshard-1-1""#));
    assert_eq!(events[3], "[DONE]");
    let (_, row) = stack.get(&format!("/devshard/1/v1/requests/{id}")).await;
    assert_eq!((row["outcome"].as_str(), row["winner_nonce"].as_u64()), (Some("success"), Some(1)));
    assert!(row["completed_at"].is_string(), "without losers the outcome is there before the last byte");

    let answer = stack.chat("two", false).await;
    assert_eq!((answer.status().as_u16(), header(&answer, "content-type")), (200, "application/json".into()));
    let id = header(&answer, "x-request-id");
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["id"], "devshard-1-2");
    assert_eq!(stack.accounting(&id, "1").await["outcome"], "success");

    // Finishes are applied lazily: the first by the second start, the second by a sync.
    let (_, inferences) = stack.get("/devshard/1/v1/debug/inferences").await;
    assert_eq!(inferences["inferences"]["1"]["status"], "finished");
    assert_eq!(inferences["inferences"]["2"]["status"], "pending");
    let (status, synced) = stack.post("/devshard/1/v1/debug/sync-hosts", json!({})).await;
    assert_eq!((status, synced["nonce"].as_u64()), (200, Some(3)));
    let (_, again) = stack.post("/devshard/1/v1/debug/sync-hosts", json!({})).await;
    assert_eq!(again["nonce"], 3, "an idle sync takes no nonce");
    let (_, row) = stack.get(&format!("/devshard/1/v1/requests/{id}")).await;
    assert_eq!(row["winner"]["status"], "finished");
    assert_eq!(row["cost"]["winner_actual_cost"], 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_content_is_replaced_and_voted_out() {
    let stack = Stack::start(1).await;
    stack.hosts[1].behave(Behaviour::Empty);
    let answer = stack.chat("one", true).await;
    assert_eq!(answer.status(), 200);
    let id = header(&answer, "x-request-id");
    assert!(answer.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    let row = stack.accounting(&id, "1").await;
    assert_eq!((row["outcome"].as_str(), row["winner_nonce"].as_u64()), (Some("success"), Some(2)));
    let hosts: Vec<_> =
        row["attempts"].as_array().unwrap().iter().map(|one| one["participant_key"].clone()).collect();
    assert_ne!(hosts[0], hosts[1]);
    assert_eq!(
        stack.metric("devshard_speculative_attempt_starts_total{reason=\"attempt_failed\"}").await,
        1.0
    );
    // The failed one is timed out by the votes of the others, although the escrow is idle.
    let mut status = Value::Null;
    for _ in 0..200 {
        let (_, inferences) = stack.get("/devshard/1/v1/debug/inferences").await;
        status = inferences["inferences"]["1"]["status"].clone();
        if status == "timed_out" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(status, "timed_out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_stream_ends_with_an_error_event_and_is_neither_success_nor_cached() {
    for behaviour in [Behaviour::Truncated, Behaviour::Lost] {
        let stack = Stack::start(1).await;
        stack.hosts.iter().for_each(|host| host.behave(behaviour));
        let answer = stack.chat("one", true).await;
        assert_eq!(answer.status(), 200);
        let id = header(&answer, "x-request-id");
        let text = answer.text().await.unwrap();
        let events = frames(&text);
        let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
        assert!(last["error"]["message"].is_string(), "{text}");
        assert!(!text.contains("[DONE]"), "{text}");
        let row = stack.accounting(&id, "1").await;
        assert_eq!(row["outcome"], "failed");
        assert!(row.get("winner_nonce").is_none());
        stack.hosts.iter().for_each(|host| host.behave(Behaviour::Normal));
        let again = stack.chat("one", true).await.text().await.unwrap();
        assert!(again.ends_with("data: [DONE]\n\n"), "a broken answer must not be replayed: {again}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_nobody_answers_the_timeouts_come_first_and_the_error_names_the_request() {
    let stack = Stack::start(1).await;
    for (behaviour, status) in
        [(Behaviour::Empty, 502), (Behaviour::Refused(400), 400), (Behaviour::Http(503), 429)]
    {
        stack.hosts.iter().for_each(|host| host.behave(behaviour));
        for stream in [true, false] {
            let answer = stack.chat(&format!("{behaviour:?} {stream}"), stream).await;
            assert_eq!(answer.status().as_u16(), status, "{behaviour:?}");
            assert_eq!(header(&answer, "content-type"), "application/json");
            let id = header(&answer, "x-request-id");
            let body: Value = answer.json().await.unwrap();
            assert!(body["error"]["message"].is_string(), "{body}");
            let row = stack.accounting(&id, "1").await;
            assert_eq!(
                (row["outcome"].as_str(), row["attempts"].as_array().unwrap().len()),
                (Some("failed"), 3)
            );
        }
    }
    assert_eq!(stack.metric("devshard_gateway_inflight_requests").await, 0.0);
    let started = stack.metric("devshard_inference_timeouts_total{reason=\"execution\"}").await;
    assert_eq!(started, 12.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_receipt_and_a_late_first_token_start_a_second_attempt() {
    let redundancy =
        json!({ "redundancy": { "receipt_timeout_ms": 300, "secondary_wait_after_winner_ms": 6000 } });
    let stack = Stack::with(1, redundancy).await;
    stack.hosts[1].behave(Behaviour::SlowReceipt(2000));
    let begun = Instant::now();
    let answer = stack.chat("one", false).await;
    let id = header(&answer, "x-request-id");
    assert_eq!(answer.status(), 200);
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    // The outcome waits for the loser, which runs on to its end.
    let (_, row) = stack.get(&format!("/devshard/1/v1/requests/{id}")).await;
    assert_eq!(row["outcome"], "running");
    let row = stack.accounting(&id, "1").await;
    assert_eq!((row["outcome"].as_str(), row["attempts"].as_array().unwrap().len()), (Some("success"), 2));
    assert_eq!(
        stack.metric("devshard_speculative_attempt_starts_total{reason=\"receipt_timeout\"}").await,
        1.0
    );

    let (_, status) = stack.get("/devshard/1/v1/status").await;
    let next = usize::try_from((status["nonce"].as_u64().unwrap() + 1) % 3).unwrap();
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Normal));
    stack.hosts[next].behave(Behaviour::Slow(4000));
    let begun = Instant::now();
    assert_eq!(stack.chat("two", true).await.status(), 200);
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(1600) && took < Duration::from_millis(3500), "{took:?}");
    assert_eq!(
        stack.metric("devshard_speculative_attempt_starts_total{reason=\"first_token_timeout\"}").await,
        1.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_nothing() {
    let stack = Stack::start(1).await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Slow(600)));
    let request = stack.client.post(format!("{}/v1/chat/completions", stack.base));
    let sent =
        request.json(&gateway_support::body("one", true)).timeout(Duration::from_millis(200)).send().await;
    assert!(sent.unwrap_err().is_timeout());
    let active = stack.metric("devshard_runtime_active_requests").await;
    assert_eq!(active, 1.0, "the race goes on");
    for _ in 0..200 {
        if stack.metric("devshard_runtime_active_requests").await == 0.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let successes =
        stack.metric("devshard_gateway_requests_total{model=\"test-model\",outcome=\"success\"").await;
    assert_eq!(successes, 1.0);
    let begun = Instant::now();
    stack.chat("one", true).await.text().await.unwrap();
    assert!(begun.elapsed() > Duration::from_millis(500), "what nobody has read is not cached");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_completion_becomes_a_stream() {
    let stack = Stack::start(1).await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Whole));
    let text = stack.chat("one", true).await.text().await.unwrap();
    let events = frames(&text);
    assert_eq!((events.len(), events.last().map(String::as_str)), (5, Some("[DONE]")), "{text}");
    assert!(text.contains("chat.completion.chunk") && !text.contains("\"chat.completion\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identical_request_is_replayed_with_a_fresh_id() {
    let stack = Stack::start(2).await;
    let first = stack.chat_at("/devshard/1/v1/chat/completions", "same", true).await;
    let source = header(&first, "x-request-id");
    let first = first.text().await.unwrap();
    let second = stack.chat_at("/devshard/2/v1/chat/completions", "same", true).await;
    assert_eq!(header(&second, "x-devshard-id"), "1", "the escrow that answered");
    let id = header(&second, "x-request-id");
    assert_ne!(id, source);
    assert_eq!(second.text().await.unwrap(), first);
    let row = stack.accounting(&id, "1").await;
    assert_eq!((row["outcome"].as_str(), row["decision"].as_str()), (Some("cached"), Some("cache_hit")));
    assert_eq!(row["cached_from_request_id"], json!(source));
    assert_eq!(stack.get("/devshard/2/v1/status").await.1["nonce"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_continues_the_nonces_and_ends_what_was_running() {
    let mut stack = Stack::start(1).await;
    stack.chat("one", false).await.text().await.unwrap();
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Slow(20_000)));
    let request = stack.client.post(format!("{}/v1/chat/completions", stack.base));
    let sent =
        request.json(&gateway_support::body("two", true)).timeout(Duration::from_millis(300)).send().await;
    assert!(sent.is_err());
    let file = stack.files().join("perf.db");
    stack.restart().await;
    let database = rusqlite::Connection::open(file).unwrap();
    let count = |outcome: &str| -> i64 {
        let sql = "SELECT count(*) FROM request_accounting WHERE outcome = ?1";
        database.query_row(sql, [outcome], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("running"), count("failed"), count("success")), (0, 1, 1));
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Normal));
    let answer = stack.chat("three", false).await;
    let id = header(&answer, "x-request-id");
    assert_eq!(answer.status(), 200);
    assert_eq!(stack.accounting(&id, "1").await["winner_nonce"], 3);
    let diffs = stack.hosts[0].diffs("1");
    let nonces: Vec<u64> = diffs.iter().map(|diff| diff.nonce).collect();
    assert_eq!(nonces, (1..=3).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_at_once_share_the_nonces_without_a_gap() {
    let stack = Stack::start(2).await;
    let chats =
        (0..60).map(|number| stack.chat_at("/v1/chat/completions", LONG[number % 3], number % 2 == 0));
    // Equal texts share an answer or race, whatever comes first; every one must be complete.
    for answer in futures_util::future::join_all(chats).await {
        assert_eq!(answer.status(), 200);
        answer.text().await.unwrap();
    }
    for escrow in ["1", "2"] {
        let (status, _) = stack.post(&format!("/devshard/{escrow}/v1/debug/sync-hosts"), json!({})).await;
        assert_eq!(status, 200);
        let (_, state) = stack.get(&format!("/devshard/{escrow}/v1/debug/state")).await;
        let counts = state["live_status_counts"].as_object().unwrap();
        assert_eq!(counts.keys().collect::<Vec<_>>(), ["finished"], "{counts:?}");
        let logs: Vec<_> = stack.hosts.iter().map(|host| host.diffs(escrow)).collect();
        assert!(logs.iter().all(|log| *log == logs[0]));
        assert_eq!(logs[0].len() as u64, state["nonce"].as_u64().unwrap());
    }
}

const LONG: [&str; 3] = ["alpha", "beta", "gamma"];
