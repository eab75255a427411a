//! Every planted defect of a host shows what it is there to show.
#![cfg(feature = "planted-defects")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail the test; the lint exempts only test functions"
)]

mod support;

use std::sync::Arc;

use refshard::host::{Defect, Host};
use serde_json::{Value, json};
use support::node::Node;
use support::user::User;
use support::{Urls, dapi, eventually, host_config, signer};
use tempfile::TempDir;
use wire::devshard::{Tx, TxKind};

struct World {
    user: User,
    urls: Vec<String>,
    node: Arc<Node>,
    _directory: TempDir,
}

/// Hosts of these participants, all with the defect.
async fn world(defect: Defect, participants: u8) -> World {
    let group: Vec<String> = (1..=participants).map(|number| signer(number).address().to_owned()).collect();
    let known = Urls::default();
    let chain = support::chain::start_chain(group.clone(), known.clone()).await;
    let (node, node_url) = support::node::start_node().await;
    let directory = TempDir::new().unwrap();
    let mut urls = Vec::new();
    for number in 1..=participants {
        let (_, dapi) = dapi::start_dapi(vec![("node".to_owned(), node_url.clone())]).await;
        let config = host_config(&directory.path().join(format!("{number}.db")), &chain, &dapi);
        let host = Host::open(config, signer(number), defect).unwrap();
        let (listener, address) = host.listen().await.unwrap();
        tokio::spawn(host.serve(listener, std::future::pending()));
        known.lock().unwrap().insert(group[usize::from(number) - 1].clone(), format!("http://{address}"));
        urls.push(format!("http://{address}"));
    }
    World { user: User::new(group), urls, node, _directory: directory }
}

impl World {
    async fn chats(&mut self, count: usize) {
        for _ in 0..count {
            let (id, payload) = self.user.start(true);
            let url = self.urls[usize::try_from(id).unwrap() % self.urls.len()].clone();
            assert_eq!(self.user.chat(&url, id, Some(payload)).await.done, 1);
        }
    }

    async fn log(&self, url: &str) -> Vec<Value> {
        self.user.get(url, "diffs?from=1&to=999").await.as_array().unwrap().clone()
    }
}

#[tokio::test]
async fn drop_finish_leaves_every_seventh_started() {
    let mut world = world(Defect::DropFinish, 1).await;
    world.chats(9).await;
    let started: Vec<u64> = world
        .user
        .session
        .live()
        .iter()
        .filter(|(id, record)| **id < 9 && record.status != refshard::state::Status::Finished)
        .map(|(id, _)| *id)
        .collect();
    assert_eq!(started, [7]);
}

#[tokio::test]
async fn double_validation_lands_twice_in_the_log() {
    let mut world = world(Defect::DoubleValidation, 3).await;
    let seen = |user: &User| {
        let mut seen = std::collections::BTreeMap::new();
        for diff in &user.diffs {
            for tx in wire::devshard::decode_diff(&diff.txs.0).unwrap().txs {
                if let Some(Tx::Validation(validation)) = tx.tx {
                    *seen.entry((validation.inference_id, validation.validator_slot)).or_insert(0) += 1;
                }
            }
        }
        seen
    };
    for _ in 0..20 {
        world.chats(3).await;
        if !seen(&world.user).is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(seen(&world.user).values().any(|count| *count == 2), "{:?}", seen(&world.user));
}

#[tokio::test]
async fn a_stale_replica_shows_three_steps_too_few() {
    let mut world = world(Defect::StaleReplica, 1).await;
    world.chats(5).await;
    assert_eq!(world.log(&world.urls[0]).await.len(), 2);
    let url = format!("{}/v2/stats/shards/42", world.urls[0]);
    let shard: Value = world.user.http.get(url).send().await.unwrap().json().await.unwrap();
    assert_eq!(shard["nonce"], 2);
}

#[tokio::test]
async fn flip_balance_shows_different_hashes_on_different_hosts() {
    let mut world = world(Defect::FlipBalance, 2).await;
    world.chats(6).await;
    let (a, b) = (world.log(&world.urls[0]).await, world.log(&world.urls[1]).await);
    let differ: Vec<&Value> = a
        .iter()
        .zip(&b)
        .filter(|(a, b)| a["state_hash"] != b["state_hash"])
        .map(|(a, _)| &a["diff"]["nonce"])
        .collect();
    assert_eq!(differ, [&json!(5)]);
}

#[tokio::test]
async fn stuck_inflight_never_falls_to_zero() {
    let mut world = world(Defect::StuckInflight, 1).await;
    world.chats(1).await;
    let url = format!("{}/metrics", world.urls[0]);
    for _ in 0..3 {
        let text = world.user.http.get(&url).send().await.unwrap().text().await.unwrap();
        assert!(text.contains("devshard_inflight{stage=\"request\"} 1\n"), "{text}");
    }
}

#[tokio::test]
async fn unlocked_call_has_no_lock_in_its_path() {
    let mut world = world(Defect::UnlockedCall, 1).await;
    world.chats(6).await;
    eventually("six calls", async || world.node.calls().len() == 6).await;
    let unlocked: Vec<Value> = world
        .node
        .calls()
        .into_iter()
        .filter(|call| !call.path.starts_with("/l/"))
        .map(|call| call.body["seed"].clone())
        .collect();
    assert_eq!(unlocked, [json!(5)]);
    assert_eq!(world.user.pending.iter().filter(|tx| tx.kind() == TxKind::Finish).count(), 1);
}
