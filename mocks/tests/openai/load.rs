//! Workers, queue, counters, and clients that go away.

use std::time::Duration;

use scenario::control::{NodeOutcome, OpenaiStats};
use scenario::fault::{CallKind, NodeFault};
use scenario::profile::{Profile, Timing};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Stand, chat_bytes, config, fast, marked, ms, read_answer, rule};

fn narrow(workers: u32, queue: u32, ttft_ms: u64) -> Profile {
    Profile { workers, queue, ttft: Timing::constant(ms(ttft_ms)), ..fast() }
}

async fn until(stand: &Stand, what: impl Fn(&OpenaiStats) -> bool) -> OpenaiStats {
    for _ in 0..500 {
        let stats = stand.stats().await;
        if what(&stats) {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never seen: {:?}", stand.stats().await);
}

#[tokio::test]
async fn one_worker_answers_in_order_and_one_too_many_is_refused() {
    let stand = Stand::new(config(vec![narrow(1, 2, 60)], vec![])).await;
    let mut connections = Vec::new();
    for index in 0..3 {
        let mut connection = stand.connect("node-0").await;
        connection.write_all(&chat_bytes(&marked(index, false), "")).await.unwrap();
        connections.push(connection);
        until(&stand, |stats| stats.nodes[0].execution.active + stats.nodes[0].execution.queued == index + 1)
            .await;
    }
    let refused = stand.chat("node-0", &marked(9, false)).await;
    assert_eq!(refused.status, Some(503));
    assert!(refused.head.contains("Retry-After: 1"));
    assert_eq!(refused.json()["error"]["type"], "overloaded");
    for connection in &mut connections {
        assert_eq!(read_answer(connection).await.status, Some(200));
    }
    let ended = stand.ended(4).await;
    let order: Vec<_> = ended.iter().map(|call| call.request_id.as_deref().unwrap()).collect();
    assert_eq!(order, ["t-42-000009", "t-42-000000", "t-42-000001", "t-42-000002"]);
    assert_eq!((ended[0].outcome, ended[0].status), (NodeOutcome::Rejected, Some(503)));
    let node = &stand.stats().await.nodes[0];
    assert_eq!((node.execution.completed, node.execution.rejected, node.execution.queued), (3, 1, 0));
    assert!(node.saturated_us >= 100_000, "{}", node.saturated_us);
    assert_eq!((node.workers, node.queue), (1, 2));
}

#[tokio::test]
async fn a_fault_that_answers_at_once_needs_no_worker() {
    let profile = narrow(1, 0, 0);
    let mut slow = rule(NodeFault::DelayHeaders(ms(200)));
    slow.select = scenario::fault::Select::Ids(vec![scenario::identity::RequestId::new("t", 42, 1)]);
    let stand = Stand::new(config(vec![profile], vec![slow, rule(NodeFault::Status(500))])).await;
    let mut busy = stand.connect("node-0").await;
    busy.write_all(&chat_bytes(&marked(1, false), "")).await.unwrap();
    until(&stand, |stats| stats.nodes[0].execution.active == 1).await;
    assert_eq!(stand.chat("node-0", &marked(2, false)).await.status, Some(500));
    assert_eq!(read_answer(&mut busy).await.status, Some(200));
}

#[tokio::test]
async fn a_client_that_closes_is_counted_wherever_the_call_is() {
    let profile = Profile { token_interval: Timing::constant(ms(30_000)), ..narrow(1, 4, 0) };
    let stand = Stand::new(config(vec![profile], vec![])).await;
    let mut streaming = stand.connect("node-0").await;
    streaming.write_all(&chat_bytes(&marked(1, true), "")).await.unwrap();
    let mut first = [0_u8; 64];
    streaming.read_exact(&mut first).await.unwrap();
    let mut queued = stand.connect("node-0").await;
    queued.write_all(&chat_bytes(&marked(2, true), "")).await.unwrap();
    until(&stand, |stats| stats.nodes[0].execution.queued == 1).await;
    drop(queued);
    let stats = until(&stand, |stats| stats.nodes[0].execution.client_cancelled == 1).await;
    assert_eq!((stats.nodes[0].execution.active, stats.nodes[0].execution.queued), (1, 0));
    drop(streaming);
    until(&stand, |stats| stats.nodes[0].execution.client_cancelled == 2).await;
    let ended = stand.ended(2).await;
    assert!(ended.iter().all(|call| call.outcome == NodeOutcome::ClientCancelled));
    assert_eq!((ended[0].status, ended[0].first_content_us), (None, None));
    assert_eq!((ended[1].status, ended[1].content_events), (Some(200), 1));
    let node = &stand.stats().await.nodes[0].execution;
    assert_eq!((node.active, node.completed), (0, 0));
}

#[tokio::test]
async fn replays_have_counters_of_their_own() {
    let stand = Stand::new(config(vec![fast()], vec![])).await;
    stand.chat("node-0", &marked(1, false)).await;
    for _ in 0..2 {
        let replay = chat_bytes(&marked(1, false), "X-Request-Id: validate-5\r\n");
        stand.exchange("node-0", &replay).await;
    }
    let ended = stand.ended(3).await;
    let kinds: Vec<_> = ended.iter().map(|call| (call.kind, call.attempt)).collect();
    assert_eq!(kinds, [(CallKind::Execution, 1), (CallKind::Validation, 1), (CallKind::Validation, 2)]);
    let node = &stand.stats().await.nodes[0];
    assert_eq!((node.execution.completed, node.validation.completed), (1, 2));
}

#[tokio::test]
async fn the_end_of_the_process_lets_running_answers_finish() {
    let stand = Stand::new(config(vec![narrow(4, 0, 150)], vec![])).await;
    let mut connection = stand.connect("node-0").await;
    let idle = stand.connect("node-0").await;
    connection.write_all(&chat_bytes(&marked(1, false), "")).await.unwrap();
    until(&stand, |stats| stats.nodes[0].execution.active == 1).await;
    let address = stand.address("node:node-0").to_owned();
    let stopping = tokio::spawn(stand.running.stop());
    assert_eq!(read_answer(&mut connection).await.status, Some(200));
    tokio::time::timeout(Duration::from_secs(2), stopping).await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(&address).await.is_err());
    drop(idle);
}
