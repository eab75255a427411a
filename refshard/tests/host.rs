//! A host between a chain, an allocator, model servers and a user.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail the test; the lint exempts only test functions"
)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use refshard::personality::Personality;
use refshard::state::Status;
use refshard::transport::{Payload, VerifyTimeoutRequest};
use serde_json::{Value, json};
use support::node::{Act, Node, chunk, good_stream, last_chunk};
use support::user::User;
use support::{Running, Urls, dapi, eventually, host_config, signer, start_host};
use tempfile::TempDir;
use wire::devshard::{MsgTimeoutInference, TimeoutReason, TimeoutVote, Tx, TxKind};
use wire::proto::nodemanager::ReleaseOutcome;

/// One host with all slots, two nodes, one user.
struct World {
    user: User,
    host: Running,
    dapi: Arc<dapi::Dapi>,
    node_a: Arc<Node>,
    node_b: Arc<Node>,
    chain: String,
    dapi_address: String,
    directory: TempDir,
    payloads: BTreeMap<u64, Payload>,
}

async fn world(personality: Personality) -> World {
    let group = vec![signer(1).address().to_owned()];
    let chain = support::chain::start_chain(group.clone(), Urls::default()).await;
    let (node_a, url_a) = support::node::start_node().await;
    let (node_b, url_b) = support::node::start_node().await;
    let nodes = vec![("node-a".to_owned(), url_a), ("node-b".to_owned(), url_b)];
    let (dapi, dapi_address) = dapi::start_dapi(nodes).await;
    let directory = TempDir::new().unwrap();
    let mut config = host_config(&directory.path().join("host.db"), &chain, &dapi_address);
    config.personality = personality;
    let host = start_host(config, 1).await;
    World {
        user: User::new(group),
        host,
        dapi,
        node_a,
        node_b,
        chain,
        dapi_address,
        directory,
        payloads: BTreeMap::new(),
    }
}

impl World {
    async fn chat(&mut self, stream: bool) -> (u64, support::user::Answer) {
        let (id, payload) = self.user.start(stream);
        self.payloads.insert(id, payload.clone());
        (id, self.user.chat(&self.host.url, id, Some(payload)).await)
    }

    fn payload(&self, id: u64) -> Payload {
        self.payloads[&id].clone()
    }

    async fn metric(&self, line: &str) -> bool {
        let url = format!("{}/metrics", self.host.url);
        self.user.http.get(url).send().await.unwrap().text().await.unwrap().contains(line)
    }

    async fn diffs(&self) -> Value {
        self.user.get(&self.host.url, "diffs?from=1&to=99").await
    }

    fn kinds(&self) -> Vec<TxKind> {
        self.user.pending.iter().map(Tx::kind).collect()
    }
}

#[tokio::test]
async fn a_chat_gives_receipt_answer_end_and_mempool_in_this_order() {
    let mut world = world(Personality::Intended).await;
    let (id, answer) = world.chat(false).await;
    assert_eq!((id, answer.status, answer.done), (1, 200, 1));
    let receipt = answer.receipt.as_ref().unwrap();
    assert_eq!(receipt.state_hash.0, world.user.session.root());
    assert!(receipt.receipt.is_some() && receipt.confirmed_at.is_some() && receipt.nonce == 1);
    assert_eq!(answer.data[0]["id"], "devshard-42-1");
    let places = ["devshard_receipt", "choices", "[DONE]", "devshard_meta"].map(|key| answer.text.find(key));
    assert!(places.is_sorted() && places[0].is_some(), "{}", answer.text);
    assert_eq!(world.kinds(), [TxKind::ConfirmStart, TxKind::Finish]);

    let calls = world.node_a.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].path, "/l/lock-1/v1/chat/completions");
    assert_eq!(calls[0].request_id, answer.request_id);
    assert!(calls[0].request_id.starts_with("req-"));
    assert_eq!((&calls[0].body["seed"], &calls[0].body["logprobs"]), (&json!(1), &json!(true)));

    // The finish rides in the next step and then leaves the mempool.
    let (_, next) = world.chat(true).await;
    assert_eq!(world.user.session.inference(1).unwrap().status, Status::Finished);
    assert_eq!(next.meta.unwrap().mempool.len(), 2, "only what belongs to the second");
    assert_eq!((next.data.len(), next.done), (3, 1));
    let diffs = world.diffs().await;
    assert_eq!(diffs[1]["state_hash"], diffs[1]["diff"]["post_state_root"]);
    assert!(world.metric("devshard_inflight{stage=\"request\"} 0\n").await);
    let terminal = "devshard_request_terminal_total{reason=\"ok\",terminal=\"finish_published\"} 2\n";
    assert!(world.metric(terminal).await);
}

#[tokio::test]
async fn a_5xx_rotates_to_the_other_node_with_exclusion() {
    let mut world = world(Personality::Intended).await;
    world.node_a.next(Act::Status(503));
    let (_, answer) = world.chat(true).await;
    assert_eq!((answer.done, answer.error()), (1, None));
    assert_eq!((world.node_a.calls().len(), world.node_b.calls().len()), (1, 1));
    assert_eq!(*world.dapi.excluded.lock().unwrap(), [vec![], vec!["node-a".to_owned()]]);
    eventually("both leases returned", async || world.dapi.releases.lock().unwrap().len() == 2).await;
    let mut releases = world.dapi.releases.lock().unwrap().clone();
    releases.sort();
    assert_eq!(
        releases,
        [
            ("lock-1".to_owned(), ReleaseOutcome::TransportError),
            ("lock-2".to_owned(), ReleaseOutcome::Success)
        ]
    );
}

#[tokio::test]
async fn without_any_good_node_the_answer_ends_silently_and_the_receipt_is_an_orphan() {
    let mut world = world(Personality::Intended).await;
    world.node_a.next(Act::Status(500));
    world.node_b.next(Act::Status(502));
    let (id, answer) = world.chat(true).await;
    assert!(answer.receipt.as_ref().unwrap().receipt.is_some());
    assert_eq!((answer.data.len(), answer.done, &answer.meta), (0, 0, &None));
    assert_eq!(world.dapi.excluded.lock().unwrap().len(), 10, "ten acquires, then the end");
    assert!(world.metric("devshard_receipt_orphan_total{reason=\"acquire_err\"} 1\n").await);

    // The same request again executes again, with the same receipt.
    let payload = world.payload(id);
    let again = world.user.chat(&world.host.url, id, Some(payload)).await;
    assert_eq!((again.done, world.kinds().len()), (1, 2), "one receipt, one finish");
}

#[tokio::test]
async fn a_truncated_stream_is_an_error_event_and_no_success() {
    let mut world = world(Personality::Intended).await;
    let broken = "data: {\"choices\":[".to_owned();
    let cases = [
        (vec![chunk("a")], false),
        (vec![chunk("a")], true),
        (vec![chunk("a"), last_chunk()], false),
        (vec![chunk("a"), "data: [DONE]\n\n".into()], false),
        (vec![chunk("a"), broken.clone()], false),
        (vec![chunk("a"), format!("{broken}\n\n")], false),
        (vec![chunk("a"), "data: {\"error\":{\"message\":\"boom\"}}\n\n".into()], false),
    ];
    for (events, reset) in cases {
        world.node_a.next(Act::Stream(events.clone(), reset));
        world.user.pending.clear();
        let (id, answer) = world.chat(true).await;
        assert_eq!(answer.data[0]["choices"][0]["delta"]["content"], "a", "{events:?}");
        assert!(answer.error().is_some(), "{events:?}: {}", answer.text);
        assert_eq!((answer.done, &answer.meta), (0, &None), "{events:?}");
        let mempool = world.user.get(&world.host.url, "mempool").await;
        let finish = mempool["txs"].as_array().unwrap().iter().any(|tx| {
            let tx = wire::devshard::decode_tx_base64(tx.as_str().unwrap()).unwrap();
            tx.kind() == Some(TxKind::Finish) && tx.inference_id() == Some(id)
        });
        assert!(!finish, "{events:?}");
    }
}

#[tokio::test]
async fn july_takes_a_truncated_stream_for_an_answer() {
    let mut world = world(Personality::July).await;
    world.node_a.next(Act::Stream(vec![chunk("a")], true));
    let (_, answer) = world.chat(true).await;
    assert_eq!((answer.done, answer.error()), (1, None));
    assert_eq!(world.kinds(), [TxKind::ConfirmStart, TxKind::Finish]);
}

#[tokio::test]
async fn a_4xx_is_passed_on_without_rotation() {
    let mut world = world(Personality::Intended).await;
    world.node_a.next(Act::Status(400));
    let (_, answer) = world.chat(false).await;
    assert_eq!(answer.error().unwrap()["error"]["message"], "told to");
    assert_eq!((answer.done, answer.meta), (0, None));
    assert_eq!(world.node_b.calls().len(), 0);
    assert!(world.metric("outcome=\"http_4xx\",path=\"execute\"} 1\n").await);
}

#[tokio::test]
async fn json_without_usage_is_no_answer() {
    let mut world = world(Personality::Intended).await;
    world.node_a.next(Act::Json(json!({"choices": [{"index": 0, "finish_reason": "stop"}]})));
    let (_, answer) = world.chat(false).await;
    assert_eq!((answer.data.len(), answer.done, answer.meta), (0, 0, None));
}

#[tokio::test]
async fn work_outlives_the_client_and_a_repeat_gets_the_stored_answer() {
    let mut world = world(Personality::Intended).await;
    world.node_a.next(Act::Delay(Duration::from_millis(150)));
    let (id, payload) = world.user.start(true);
    let body = serde_json::to_vec(&world.user.request(id, Some(payload.clone()))).unwrap();
    let mut response = world.user.post(&world.host.url, "chat/completions", body).send().await.unwrap();
    assert!(response.chunk().await.unwrap().is_some(), "the receipt");
    drop(response);

    let repeat = world.user.chat(&world.host.url, id, Some(payload.clone())).await;
    assert!(repeat.receipt.unwrap().receipt.is_some(), "running: a receipt again");
    assert_eq!((repeat.data.len(), repeat.done), (0, 0), "and nothing else");
    world.user.pending.clear();
    let terminal = "devshard_request_terminal_total{reason=\"ok\",terminal=\"finish_published\"} 1\n";
    eventually("the finish is published", async || world.metric(terminal).await).await;

    let cached = world.user.chat(&world.host.url, id, Some(payload)).await;
    assert_eq!((cached.data.len(), cached.done), (3, 1));
    assert_eq!(world.kinds(), [TxKind::ConfirmStart, TxKind::Finish]);
    assert_eq!(world.node_a.calls().len(), 1, "executed once");
    assert!(world.metric("terminal=\"receipt_no_execution_expected\"} 1\n").await);
}

#[tokio::test]
async fn nodes_are_remembered_while_the_allocator_is_away() {
    let mut world = world(Personality::Intended).await;
    world.chat(true).await;
    eventually("the lease is returned", async || world.dapi.releases.lock().unwrap().len() == 1).await;
    world.dapi.away.store(true, Ordering::SeqCst);
    let (_, answer) = world.chat(true).await;
    assert_eq!(answer.done, 1);
    assert_eq!(world.node_a.calls()[1].path, "/l/lock-1/v1/chat/completions", "the old lock shows it");
    assert_eq!(world.dapi.releases.lock().unwrap().len(), 1, "and nothing is returned for it");
}

#[tokio::test]
async fn a_crash_loses_neither_steps_nor_finishes() {
    let mut world = world(Personality::Intended).await;
    for _ in 0..3 {
        world.chat(true).await;
    }
    let before = (world.diffs().await, world.user.get(&world.host.url, "mempool").await);
    assert_eq!(before.1["txs"].as_array().unwrap().len(), 2, "the last finish is in no step yet");
    let database = world.directory.path().join("host.db");
    let restarted = host_config(&database, &world.chain, &world.dapi_address);
    world.host.crash();
    world.host = start_host(restarted, 1).await;
    assert_eq!((world.diffs().await, world.user.get(&world.host.url, "mempool").await), before);

    let answer = world.user.start(true);
    let answer = world.user.chat(&world.host.url, answer.0, Some(answer.1)).await;
    assert_eq!(answer.receipt.unwrap().state_hash.0, world.user.session.root());
    assert_eq!(world.user.session.inference(3).unwrap().status, Status::Finished);
}

#[tokio::test]
async fn strangers_gaps_and_forgeries_are_refused() {
    let mut world = world(Personality::Intended).await;
    let url = format!("{}/devshard/v2/sessions/42", world.host.url);
    let http = world.user.http.clone();
    let status = |response: reqwest::Response| response.status().as_u16();
    let read = http.get(format!("{url}/mempool")).send().await.unwrap();
    assert_eq!(status(read), 404, "a read makes no session");
    let bare = http.post(format!("{url}/chat/completions")).body("{}").send().await.unwrap();
    assert_eq!(bare.status(), 401);
    assert_eq!(bare.text().await.unwrap(), "{\"message\":\"missing auth headers\"}\n");

    let (id, payload) = world.user.start(false);
    world.user.signer = signer(7);
    let body = serde_json::to_vec(&world.user.request(id, Some(payload.clone()))).unwrap();
    let stranger = world.user.post(&world.host.url, "chat/completions", body).send().await.unwrap();
    assert_eq!(stranger.status(), 403);
    world.user.signer = support::user_signer();

    // A gap, a step signed by nobody, another payload than the started one.
    world.user.start(false);
    let mut request = world.user.request(2, None);
    request.diffs.remove(0);
    let gap = post(&world, &request).await;
    assert_eq!(gap.0, 500);
    assert!(
        gap.1.contains("apply diff nonce 2: invalid nonce: must be sequential: expected 1, got 2"),
        "{}",
        gap.1
    );
    let mut request = world.user.request(1, None);
    request.diffs[0].user_sig.0[0] ^= 1;
    assert!(post(&world, &request).await.1.contains("invalid user signature"));
    let mut request = world.user.request(1, Some(payload.clone()));
    request.payload.as_mut().unwrap().prompt.0.push(b' ');
    assert!(post(&world, &request).await.1.contains("prompt_hash"));
    // Nothing of this has spoilt the session.
    assert_eq!(world.user.chat(&world.host.url, 1, Some(payload)).await.done, 1);
    assert_eq!(http.get(format!("{url}/diffs")).send().await.unwrap().status(), 400);
    assert_eq!(http.get(format!("{url}/payloads?inference_id=1")).send().await.unwrap().status(), 400);
}

async fn post(world: &World, request: &refshard::transport::ChatRequest) -> (u16, String) {
    let body = serde_json::to_vec(request).unwrap();
    let response = world.user.post(&world.host.url, "chat/completions", body).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn surfaces_have_the_captured_shapes() {
    let mut world = world(Personality::Intended).await;
    world.chat(false).await;
    let get = async |path: &str| -> Value {
        let url = format!("{}{path}", world.host.url);
        world.user.http.get(url).send().await.unwrap().json().await.unwrap()
    };
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let shard = get("/v2/stats/shards/42").await;
    let expected = [
        "escrow_id",
        "epoch_id",
        "nonce",
        "version",
        "state_root_and_protocol_version",
        "cached_at",
        "cache_ttl_seconds",
        "host_stats",
        "validation_observability",
        "group",
    ];
    assert_eq!(keys(&shard), expected);
    assert_eq!(shard["group"][0]["SlotID"], 0);
    let shards = get("/devshard/v2/stats/shards").await;
    assert_eq!(shards["active_escrows"], json!(["42"]));
    assert_eq!(get("/stats/shards/9").await, json!({"message": "shard not found"}));
    assert_eq!(get("/sessions/42/signatures?nonce=9").await, json!({"signatures": {}}));
    assert!(get("/sessions/42/signatures?nonce=1").await["signatures"]["0"].is_string());
    assert_eq!(get("/nothing").await, json!({"message": "Not Found"}));
}

/// Three hosts, three participants.
async fn three_hosts(directory: &TempDir) -> (User, Vec<Running>, Arc<Node>) {
    let group: Vec<String> = (1..=3).map(|number| signer(number).address().to_owned()).collect();
    let urls = Urls::default();
    let chain = support::chain::start_chain(group.clone(), urls.clone()).await;
    let (node, url) = support::node::start_node().await;
    let mut hosts = Vec::new();
    for number in 1..=3_u8 {
        let (_, dapi) = dapi::start_dapi(vec![("node".to_owned(), url.clone())]).await;
        let database = directory.path().join(format!("{number}.db"));
        let host = start_host(host_config(&database, &chain, &dapi), number).await;
        urls.lock().unwrap().insert(group[usize::from(number) - 1].clone(), host.url.clone());
        hosts.push(host);
    }
    (User::new(group), hosts, node)
}

#[tokio::test]
async fn hosts_validate_each_other() {
    let directory = TempDir::new().unwrap();
    let (mut user, hosts, node) = three_hosts(&directory).await;
    // Two rounds over the group bring every finish to every host.
    for _ in 0..9 {
        let (id, payload) = user.start(id_is_even(&user));
        let url = hosts[usize::try_from(id).unwrap() % 3].url.clone();
        assert_eq!(user.chat(&url, id, Some(payload)).await.done, 1);
    }
    eventually("somebody has validated", async || {
        let seen = user.session.live().values().any(|record| !record.validated_by.is_empty());
        if !seen {
            let (id, payload) = user.start(true);
            let url = hosts[usize::try_from(id).unwrap() % 3].url.clone();
            user.chat(&url, id, Some(payload)).await;
        }
        seen
    })
    .await;
    let records: Vec<_> = user.session.live().values().collect();
    assert!(records.iter().all(|record| record.votes.invalid == 0), "honest answers are valid");
    let validated = records.iter().find(|record| !record.validated_by.is_empty()).unwrap();
    assert!(!validated.validated_by.contains(&validated.executor_slot));
    let replays: Vec<_> =
        node.calls().into_iter().filter(|call| call.request_id.starts_with("validate-")).collect();
    assert!(!replays.is_empty());
    for replay in replays {
        assert!(replay.body.get("enforced_tokens").is_some() && replay.body["stream"] == false);
    }
}

fn id_is_even(user: &User) -> bool {
    user.session.nonce().is_multiple_of(2)
}

#[tokio::test]
async fn others_vote_on_a_request_that_nobody_took() {
    let directory = TempDir::new().unwrap();
    let (mut user, hosts, _) = three_hosts(&directory).await;
    let (id, payload) = user.start(true);
    assert_eq!(id, 1, "slot 1 executes, and is never asked");
    let ask = async |user: &User, url: &str, reason: &str| {
        let diffs = user.diffs.clone();
        let request = VerifyTimeoutRequest {
            inference_id: id,
            reason: reason.into(),
            payload: Some(payload.clone()),
            diffs,
        };
        let body = serde_json::to_vec(&request).unwrap();
        let response = user.post(url, "verify-timeout", body).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    // The hosts get to know the session by a step without payload.
    for host in [&hosts[0], &hosts[2]] {
        assert_eq!(user.chat(&host.url, id, None).await.status, 200);
    }
    assert_eq!(ask(&user, &hosts[0].url, "nonsense").await.0, 400);
    let wrong = ask(&user, &hosts[0].url, "execution").await;
    assert_eq!(wrong, (500, json!({"message": "inference 1: expected started, got 0"})));
    let mut votes = Vec::new();
    for host in [&hosts[0], &hosts[2]] {
        let mut vote = json!(null);
        eventually("the vote is given", async || {
            vote = ask(&user, &host.url, "refused").await.1;
            vote["accept"] == true
        })
        .await;
        let vote: refshard::transport::VerifyTimeoutResponse = serde_json::from_value(vote).unwrap();
        votes.push(TimeoutVote { voter_slot: vote.voter_slot, accept: true, signature: vote.signature.0 });
    }
    let reason = TimeoutReason::Refused.into();
    user.step(vec![Tx::TimeoutInference(MsgTimeoutInference { inference_id: id, reason, votes })]);
    assert_eq!(user.session.inference(id).unwrap().status, Status::TimedOut);
    let applied = user.chat(&hosts[0].url, 2, None).await;
    assert_eq!(applied.receipt.unwrap().state_hash.0, user.session.root());
}

#[tokio::test]
async fn the_end_of_a_stream_is_not_waited_for_after_its_marker() {
    let mut world = world(Personality::Intended).await;
    let mut events = good_stream();
    events.push("data: {\"late\":1}\n\n".into());
    world.node_a.next(Act::Stream(events, true));
    let (_, answer) = world.chat(true).await;
    assert_eq!((answer.data.len(), answer.done), (3, 1));
}
