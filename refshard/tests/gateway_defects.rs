//! Every planted defect of the gateway shows where it must, and nowhere without the flag.

#![cfg(feature = "planted-defects")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail the test; the lint exempts only test functions"
)]

mod gateway_support;

use gateway_support::{Behaviour, Stack, header};
use refshard::gateway::Defect;
use serde_json::{Value, json};

async fn answers(stack: &Stack, count: usize, stream: bool) -> Vec<(u16, String, String)> {
    let mut all = Vec::new();
    for number in 0..count {
        let answer = stack.chat(&format!("chat {number}"), stream).await;
        let (status, id) = (answer.status().as_u16(), header(&answer, "x-request-id"));
        all.push((status, id, answer.text().await.unwrap()));
    }
    all
}

async fn outcome(stack: &Stack, id: &str) -> Value {
    // The outcome is written just after the answer.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    stack.get(&format!("/devshard/1/v1/requests/{id}")).await.1["outcome"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn accounting_that_is_lost_or_wrong() {
    for (defect, number, word) in
        [(Defect::LostAccounting, 5, "running"), (Defect::RecordFailedOn200, 7, "failed")]
    {
        let stack = Stack::with_defect(defect).await;
        let all = answers(&stack, number, false).await;
        assert!(all.iter().all(|(status, ..)| *status == 200));
        assert_eq!(outcome(&stack, &all[0].1).await, "success");
        assert_eq!(outcome(&stack, &all[number - 1].1).await, word);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_requests_that_nobody_finds() {
    let stack = Stack::with_defect(Defect::DropIdOnError).await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Http(500)));
    assert_eq!(answers(&stack, 1, true).await[0].1, "");

    let stack = Stack::with_defect(Defect::Lookup404).await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Http(500)));
    let all = answers(&stack, 1, true).await;
    assert_eq!(all[0].0, 502);
    let (status, _) = stack.get(&format!("/devshard/1/v1/requests/{}", all[0].1)).await;
    assert_eq!(status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_with_two_markers() {
    let stack = Stack::with_defect(Defect::DoubleDone).await;
    let all = answers(&stack, 10, true).await;
    let markers: Vec<usize> = all.iter().map(|(.., text)| text.matches("[DONE]").count()).collect();
    assert_eq!(markers, [1, 1, 1, 1, 1, 1, 1, 1, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_that_nothing_explains() {
    let stack = Stack::with_defect(Defect::FailUnselected).await;
    let all = answers(&stack, 50, false).await;
    let failed: Vec<usize> = (0..50).filter(|place| all[*place].0 != 200).collect();
    assert_eq!((failed, all[49].0), (vec![49], 502));
    assert_eq!(outcome(&stack, &all[49].1).await, "failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gauge_that_never_falls() {
    let stack = Stack::with_defect(Defect::StuckGauge).await;
    assert_eq!(stack.metric("devshard_gateway_inflight_requests").await, 0.0);
    answers(&stack, 1, false).await;
    assert_eq!(stack.metric("devshard_gateway_inflight_requests").await, 1.0);
}

/// The step has the same root under both contents, so that the session goes on and only the logs differ.
#[tokio::test(flavor = "multi_thread")]
async fn one_nonce_with_two_contents() {
    for (defect, differing) in [(Defect::ReuseNonce, vec![10]), (Defect::None, vec![])] {
        let stack = Stack::with_defect(defect).await;
        let all = answers(&stack, 12, false).await;
        assert!(all.iter().all(|(status, ..)| *status == 200));
        assert_eq!(stack.post("/devshard/1/v1/debug/sync-hosts", json!({})).await.0, 200);
        let logs: Vec<_> = stack.hosts.iter().map(|host| host.diffs("1")).collect();
        let differs = |nonce: &u64| {
            let of = |log: usize| &logs[log][usize::try_from(*nonce).unwrap() - 1];
            of(0) != of(1) || of(1) != of(2)
        };
        assert_eq!((1..=12).filter(differs).collect::<Vec<u64>>(), differing);
        let roots = |log: &Vec<refshard::transport::Diff>| log[9].post_state_root.clone();
        assert!(logs.iter().all(|log| roots(log) == roots(&logs[0])));
    }
}
