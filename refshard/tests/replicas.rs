//! Replicas of one participant: one database file, leases in Postgres, fail-over; and what a host hears of
//! its chain.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail the test; the lint exempts only test functions"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use futures_util::{SinkExt as _, StreamExt as _};
use refshard::host::{HostConfig, LeaseError, Leases, Work};
use refshard::personality::Personality;
use serde_json::json;
use support::node::Node;
use support::user::User;
use support::{Running, Urls, dapi, eventually, host_config, signer, start_apart, start_host};
use tempfile::TempDir;
use tokio_postgres::NoTls;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use wire::devshard::TxKind;

async fn sql(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Status by inference.
async fn rows(client: &tokio_postgres::Client) -> Vec<(i64, String, String, SystemTime)> {
    let query = "SELECT inference_id, instance_address, status, claimed_at FROM devshard_validation_leases
        ORDER BY inference_id";
    let Ok(rows) = client.query(query, &[]).await else { return Vec::new() };
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
}

/// What is published with a submit that counts.
fn counted(published: &mut i32) -> Result<(), LeaseError> {
    *published += 1;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_has_one_owner_until_its_time_has_passed() {
    let Some(postgres) = support::postgres::start() else { return };
    let leases = |owner: &str| {
        let ttl = Duration::from_millis(400);
        Leases::new(postgres.url.clone(), owner.to_owned(), ttl, ttl)
    };
    let (a, b) = (leases("a"), leases("b"));
    a.prepare().await.unwrap();
    b.prepare().await.unwrap();
    let work = Work { epoch_id: 1, escrow_id: "42".into(), inference_id: 7 };
    let held = a.acquire(&work).await.unwrap().unwrap();
    assert_eq!(b.acquire(&work).await.unwrap(), None, "one owner");
    assert_eq!(b.take_over().await.unwrap(), None, "not before its time");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let taken = b.take_over().await.unwrap().unwrap();
    assert_eq!(taken.work, work);
    // The late one is refused, and what it wanted to publish is not published.
    let mut published = 0;
    let late = a.submit(&held, || counted(&mut published)).await.unwrap();
    assert_eq!((late, published), (false, 0));
    let submitted = b.submit(&taken, || counted(&mut published)).await.unwrap();
    assert_eq!((submitted, published), (true, 1));
    let again = b.submit(&taken, || counted(&mut published)).await.unwrap();
    assert_eq!((again, published), (false, 1), "no second commit");
    let client = sql(&postgres.url).await;
    let seen = rows(&client).await;
    assert_eq!((seen.len(), seen[0].1.as_str(), seen[0].2.as_str()), (1, "b", "submitted"));

    let other = Work { inference_id: 8, ..work.clone() };
    let held = a.acquire(&other).await.unwrap().unwrap();
    a.release(&held).await.unwrap();
    let held = b.acquire(&other).await.unwrap().unwrap();
    b.skip(&held).await.unwrap();
    assert_eq!(rows(&client).await[1].2, "skipped");
    // A publication that fails leaves the row as it was.
    let third = a.acquire(&Work { inference_id: 9, ..work }).await.unwrap().unwrap();
    let failed = a.submit(&third, || Err(LeaseError::Silent(0))).await;
    assert!(failed.is_err());
    assert_eq!(rows(&client).await[2].2, "pending");
    a.prune(4).await.unwrap();
    assert_eq!(rows(&client).await.len(), 0, "epoch 1 is gone three epochs later");
}

/// Host 1 executes; two replicas of participant 2 share database and leases.
struct Pair {
    user: User,
    executor: Running,
    replicas: Vec<Running>,
    node: Arc<Node>,
    _directory: TempDir,
}

async fn pair(postgres: &str, personality: Personality) -> Pair {
    let group: Vec<String> = (1..=2).map(|number| signer(number).address().to_owned()).collect();
    let urls = Urls::default();
    let chain = support::chain::start_chain(group.clone(), urls.clone()).await;
    let (node, url) = support::node::start_node().await;
    let directory = TempDir::new().unwrap();
    let (_, dapi) = dapi::start_dapi(vec![("node".to_owned(), url.clone())]).await;
    let config = |name: &str| -> HostConfig {
        let mut config = host_config(&directory.path().join(name), &chain, &dapi);
        config.personality = personality;
        config
    };
    let executor = start_host(config("1.db"), 1).await;
    urls.lock().unwrap().insert(group[0].clone(), executor.url.clone());
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let config = HostConfig { postgres_url: Some(postgres.to_owned()), ..config("2.db") };
        replicas.push(start_apart(config, 2).await);
    }
    urls.lock().unwrap().insert(group[1].clone(), replicas[0].url.clone());
    Pair { user: User::new(group), executor, replicas, node, _directory: directory }
}

impl Pair {
    /// Inferences of the executor alone, each put into a step, until `count` are finished.
    async fn finished(&mut self, count: usize) {
        for _ in 0..2 * count {
            let (id, payload) = self.user.start(true);
            let first = id.is_multiple_of(2);
            let url = if first { self.executor.url.clone() } else { self.replicas[0].url.clone() };
            assert_eq!(self.user.chat(&url, id, Some(payload)).await.done, 1);
        }
    }

    /// Brings every step to both replicas.
    async fn deliver(&mut self) {
        let nonce = self.user.step(Vec::new());
        for url in [self.replicas[0].url.clone(), self.replicas[1].url.clone()] {
            assert_eq!(self.user.chat(&url, nonce, None).await.status, 200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_share_the_work_and_nothing_is_validated_twice() {
    let Some(postgres) = support::postgres::start() else { return };
    let mut pair = pair(&postgres.url, Personality::Intended).await;
    pair.finished(4).await;
    pair.deliver().await;
    pair.deliver().await;
    let client = sql(&postgres.url).await;
    eventually("every lease is submitted", async || {
        let rows = rows(&client).await;
        !rows.is_empty() && rows.iter().all(|(.., status, _)| status == "submitted")
    })
    .await;
    let owner = signer(2).address().to_owned();
    assert!(rows(&client).await.iter().all(|(_, address, ..)| *address == owner));
    // What one replica proposes the other one delivers, too.
    let mempools = [
        pair.user.get(&pair.replicas[0].url, "mempool").await,
        pair.user.get(&pair.replicas[1].url, "mempool").await,
    ];
    assert_eq!(mempools[0], mempools[1]);
    let replays: Vec<String> = pair
        .node
        .calls()
        .into_iter()
        // Even ids are the executor's; their replays are the replicas'.
        .filter(|call| {
            let id = call.request_id.strip_prefix("validate-").and_then(|id| id.parse::<u64>().ok());
            id.is_some_and(|id| id.is_multiple_of(2))
        })
        .map(|call| call.request_id)
        .collect();
    let mut once = replays.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), replays.len(), "{replays:?}");
    assert_eq!(replays.len(), rows(&client).await.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn work_of_a_killed_owner_is_taken_over_once() {
    let Some(postgres) = support::postgres::start() else { return };
    let mut pair = pair(&postgres.url, Personality::Intended).await;
    pair.node.replay_delay_ms.store(600, Ordering::SeqCst);
    pair.finished(1).await;
    // Only the first replica hears of the finish; it is killed while it holds the lease.
    let nonce = pair.user.step(Vec::new());
    pair.user.chat(&pair.replicas[0].url.clone(), nonce, None).await;
    let client = sql(&postgres.url).await;
    eventually("the lease is held", async || !rows(&client).await.is_empty()).await;
    let held = rows(&client).await[0].3;
    // A killed process takes its validations along: the replay never comes back to it.
    pair.replicas[0].kill();
    eventually("it was taken over and submitted", async || {
        let rows = rows(&client).await;
        rows[0].2 == "submitted" && rows[0].3 > held
    })
    .await;
    let age = rows(&client).await[0].3.duration_since(held).unwrap();
    assert!(age >= Duration::from_millis(1000), "only after its time: {age:?}");
    let mempool = pair.user.get(&pair.replicas[1].url, "mempool").await;
    let kinds: Vec<_> = mempool["txs"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|tx| wire::devshard::decode_tx_base64(tx.as_str().unwrap()).unwrap().kind())
        .filter(|kind| *kind == TxKind::Validation)
        .collect();
    assert_eq!(kinds.len(), 1, "one validation: {kinds:?}");
}

/// The sibling goes on where the other one was; July's has a stale memory (finding J11).
#[tokio::test(flavor = "multi_thread")]
async fn the_sibling_goes_on_with_the_shared_log() {
    let Some(postgres) = support::postgres::start() else { return };
    for personality in [Personality::Intended, Personality::July] {
        let mut pair = pair(&postgres.url, personality).await;
        pair.finished(2).await;
        pair.user.step(Vec::new());
        let nonce = pair.user.step(Vec::new());
        let url = pair.replicas[0].url.clone();
        assert_eq!(pair.user.chat(&url, nonce, None).await.status, 200);
        let (id, payload) = pair.user.start(true);
        assert!(!id.is_multiple_of(2));
        // The router has moved the escrow; the gateway sends only what is new.
        let request = refshard::transport::ChatRequest {
            diffs: pair.user.diffs.iter().filter(|diff| diff.nonce == id).cloned().collect(),
            nonce: id,
            payload: Some(payload),
            stream: true,
        };
        let body = serde_json::to_vec(&request).unwrap();
        let sent = pair.user.post(&pair.replicas[1].url, "chat/completions", body).send().await.unwrap();
        let (status, text) = (sent.status().as_u16(), sent.text().await.unwrap());
        if personality == Personality::Intended {
            assert_eq!(status, 200, "{text}");
            assert!(text.contains("[DONE]"), "{text}");
        } else {
            assert_eq!(status, 500, "{text}");
            assert!(text.contains("must be sequential: expected 1, got 7"), "{text}");
        }
    }
}

/// A chain's websocket that does as it is told: frames, a cut, a close.
struct Socket {
    address: String,
    frames: tokio::sync::broadcast::Sender<Told>,
    connections: Arc<std::sync::atomic::AtomicU64>,
}

#[derive(Clone, Debug)]
enum Told {
    Say(String),
    Close(u16),
    Cut,
}

async fn socket() -> Socket {
    let (listener, address) = support::bind().await;
    let (frames, _) = tokio::sync::broadcast::channel(64);
    let connections = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (orders, count) = (frames.clone(), connections.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (mut told, count) = (orders.subscribe(), count.clone());
            tokio::spawn(async move {
                let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                loop {
                    tokio::select! {
                        heard = socket.next() => if !matches!(heard, Some(Ok(_))) { return },
                        order = told.recv() => match order.unwrap() {
                            Told::Say(text) => socket.send(Message::text(text)).await.unwrap(),
                            Told::Close(code) => {
                                let frame = CloseFrame { code: code.into(), reason: "".into() };
                                let _ = socket.send(Message::Close(Some(frame))).await;
                                return;
                            }
                            Told::Cut => return,
                        }
                    }
                }
            });
        }
    });
    Socket { address, frames, connections }
}

fn settled(escrow: &str) -> String {
    let attributes = json!([{ "key": "escrow_id", "value": escrow }]);
    let events = json!([{ "type": "devshard_escrow_settled", "attributes": attributes }]);
    json!({ "result": { "query": "tm.event='Tx' AND devshard_escrow_settled.escrow_id EXISTS",
        "data": { "value": { "TxResult": { "result": { "events": events } } } } } })
    .to_string()
}

/// Findings J21 and J22 on July; both are repaired here.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_and_a_closed_socket_do_no_harm_unless_it_is_july() {
    for personality in [Personality::Intended, Personality::July] {
        let group = vec![signer(1).address().to_owned()];
        let chain = support::chain::start_chain(group.clone(), Urls::default()).await;
        let (_, url) = support::node::start_node().await;
        let (_, dapi) = dapi::start_dapi(vec![("node".to_owned(), url)]).await;
        let directory = TempDir::new().unwrap();
        let socket = socket().await;
        let mut config = host_config(&directory.path().join("host.db"), &chain, &dapi);
        config.personality = personality;
        config.chain_rpc = Some(socket.address.clone());
        let host = start_host(config, 1).await;
        let connected = async |count: u64| {
            eventually("connected", async || socket.connections.load(Ordering::SeqCst) >= count).await;
        };
        connected(1).await;
        let mut user = User::new(group);
        let (id, payload) = user.start(true);
        assert_eq!(user.chat(&host.url, id, Some(payload)).await.done, 1);
        // An epoch is heard of with the next block.
        let epoch = support::chain::EPOCH.fetch_add(1, Ordering::SeqCst) + 1;
        let block = json!({ "result": { "query": "tm.event='NewBlock'", "data": {} } }).to_string();
        socket.frames.send(Told::Say(block)).unwrap();
        eventually("the epoch is followed", async || {
            let url = format!("{}/stats/shards", host.url);
            let shards: serde_json::Value = user.http.get(url).send().await.unwrap().json().await.unwrap();
            shards["current_epoch_id"] == epoch
        })
        .await;
        // A cut is repaired by both.
        socket.frames.send(Told::Cut).unwrap();
        connected(2).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        socket.frames.send(Told::Say(settled("42"))).unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let shard = user.http.get(format!("{}/stats/shards/42", host.url)).send().await.unwrap();
        assert_eq!(shard.status(), 404);
        let (id, payload) = user.start(true);
        let mut request = user.request(id, Some(payload));
        request.diffs.retain(|diff| diff.nonce == id);
        let body = serde_json::to_vec(&request).unwrap();
        let sent = user.post(&host.url, "chat/completions", body).send().await.unwrap();
        let (status, text) = (sent.status().as_u16(), sent.text().await.unwrap());
        socket.frames.send(Told::Close(1000)).unwrap();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let connections = socket.connections.load(Ordering::SeqCst);
        if personality == Personality::Intended {
            assert_eq!((status, connections), (200, 3), "{text}");
        } else {
            assert_eq!((status, connections), (500, 2), "{text}");
            assert!(text.contains("expected 1, got 2"), "{text}");
        }
    }
}
