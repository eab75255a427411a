//! What the July build does wrong, on hosts that answer as they are told (design, July findings). The other
//! findings are in the replayed cases of `fidelity`.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

mod gateway_support;

use std::time::Duration;

use gateway_support::{Behaviour, Stack, frames, header};
use serde_json::{Value, json};

/// Ids of races in order, out of the database: the client's ids lead nowhere.
fn races(stack: &Stack) -> Vec<String> {
    let database = rusqlite::Connection::open(stack.files().join("perf.db")).unwrap();
    let mut select =
        database.prepare("SELECT request_id FROM request_accounting ORDER BY started_ns").unwrap();
    let rows = select.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

async fn row(stack: &Stack, place: usize) -> Value {
    stack.get(&format!("/devshard/1/v1/requests/{}", races(stack)[place])).await.1
}

/// J20, and J16 of a prepare failure.
#[tokio::test(flavor = "multi_thread")]
async fn ids_are_split_and_a_prepare_failure_runs_for_ever() {
    let stack = Stack::july(9, json!({ "redundancy": { "speed_policy": "legacy" } })).await;
    let answer = stack.chat_at("/devshard/1/v1/chat/completions", "one", false).await;
    let id = header(&answer, "x-request-id");
    answer.text().await.unwrap();
    assert_eq!(stack.get(&format!("/devshard/1/v1/requests/{id}")).await.0, 404);
    assert_eq!(row(&stack, 0).await["outcome"], "success");
    let mut poor = gateway_support::body("two", false);
    poor["max_tokens"] = json!(3000);
    let request = stack.client.post(format!("{}/devshard/9/v1/chat/completions", stack.base));
    let answer = request.json(&poor).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), header(&answer, "x-request-id").as_str()), (502, ""));
    let id = &races(&stack)[1];
    tokio::time::sleep(Duration::from_millis(200)).await;
    let request = stack.client.get(format!("{}/devshard/9/v1/requests/{id}", stack.base));
    let answer = request.bearer_auth(gateway_support::ADMIN).send().await.unwrap();
    let row: Value = answer.json().await.unwrap();
    assert_eq!((&row["outcome"], row["attempts"].as_array().map(Vec::len)), (&json!("running"), Some(0)));
}

/// J3: the finish came with another answer and a step has taken it in before the own meta arrived.
#[tokio::test(flavor = "multi_thread")]
async fn a_perfect_stream_is_accounted_as_failed() {
    let stack = Stack::july(1, json!({ "redundancy": { "speed_policy": "legacy" } })).await;
    stack.hosts[1].behave(Behaviour::LateMeta(900));
    let late = stack.chat("the late one", true);
    let others = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        stack.hosts[1].behave(Behaviour::Normal);
        // The fourth goes to the same host and brings the finish, the fifth puts it into a step.
        for number in 2..=5 {
            stack.chat(&format!("other {number}"), false).await.text().await.unwrap();
        }
    };
    let (late, ()) = futures_util::future::join(async { late.await.text().await.unwrap() }, others).await;
    let events = frames(&late);
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{late}");
    assert!(!late.contains("error"), "{late}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(row(&stack, 0).await["outcome"], "failed");
    let (_, inferences) = stack.get("/devshard/1/v1/debug/inferences").await;
    assert_eq!(inferences["inferences"]["1"]["status"], "finished");
}

/// J4: the answer is there and paid, the client gets 504.
#[tokio::test(flavor = "multi_thread")]
async fn a_complete_answer_of_hosts_in_probation_is_held_back() {
    let limits = json!({ "redundancy": { "speed_policy": "legacy", "non_stream_no_content_timeout_ms": 700,
        "non_stream_max_attempt_wait_ms": 800 } });
    let stack = Stack::july(1, limits).await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Empty));
    assert_eq!(stack.chat("strikes", true).await.status(), 502);
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Normal));
    let answer = stack.chat("held back", false).await;
    assert_eq!(answer.status(), 504);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(row(&stack, 1).await["outcome"], "success");
}

/// J5 and J10: nonces of a quarantined host become ghosts; without any host nothing gets through.
#[tokio::test(flavor = "multi_thread")]
async fn throttled_hosts_leave_ghosts_and_then_nothing() {
    let stack = Stack::july(1, json!({ "redundancy": { "speed_policy": "legacy" } })).await;
    stack.hosts[1].behave(Behaviour::Http(429));
    for number in 0..4 {
        assert_eq!(stack.chat(&format!("chat {number}"), true).await.status(), 200);
    }
    let (_, inferences) = stack.get("/devshard/1/v1/debug/inferences").await;
    let ghost = |record: &Value| record["input_length"] == 59 && record["max_tokens"] == 1;
    let ghosts: Vec<Value> =
        inferences["inferences"].as_object().unwrap().values().filter(|one| ghost(one)).cloned().collect();
    assert!(!ghosts.is_empty());
    assert!(ghosts.iter().all(|one| one["status"] == "pending"));
    assert_eq!(ghosts[0]["prompt_hash"], "48808fa46173e7fbca42ea98965dc6d8be18107425af188b38fb6c31d51ad0a2");
    assert!(ghosts[0]["started_at"].as_u64() > Some(1_000_000_000_000), "milliseconds: {ghosts:?}");
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Http(429)));
    let _ = tokio::time::timeout(Duration::from_secs(3), stack.chat("the last", true)).await;
    assert_eq!(stack.metric("devshard_gateway_effective_max_concurrent_requests").await, 0.0);
    let answer = stack.chat("too late", true).await;
    assert_eq!(answer.status(), 429);
}

/// A stop ends everything at once, and nothing is tidied up afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_leaves_rows_running() {
    let mut stack = Stack::july(1, json!({ "redundancy": { "speed_policy": "legacy" } })).await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Slow(20_000)));
    let sent = tokio::time::timeout(Duration::from_millis(300), stack.chat("cut", true)).await;
    assert!(sent.is_err());
    stack.restart().await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Normal));
    assert_eq!(stack.chat("after", false).await.status(), 200);
    assert_eq!(row(&stack, 0).await["outcome"], "running");
    assert_eq!(row(&stack, 1).await["outcome"], "success");
}
