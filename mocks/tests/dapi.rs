//! `mock-dapi` over its real listeners, with the generated clients.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::{LOOPBACK, captured, channel, eventually, get, hits, put};
use mocks::process::{MockError, Running};
use scenario::control::{
    DapiCallRecord, DapiConfig, DapiNode, DapiRule, DapiStats, EpochPhase, MockConfig, Oracle,
    OracleParticipant, OracleVersion, Page, RuntimeParams,
};
use scenario::fault::{DapiCall, DapiFault, Refusal, Select};
use scenario::model::Policy;
use scenario::units::Micros;
use serde_json::Value;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::Channel;
use wire::proto::nodemanager::node_manager_client::NodeManagerClient;
use wire::proto::nodemanager::{
    AcquireMlNodeRequest, AcquireMlNodeResponse, GetRuntimeConfigRequest, GetRuntimeConfigResponse,
    ReleaseMlNodeRequest, ReleaseOutcome,
};

type Client = NodeManagerClient<Channel>;

fn config() -> DapiConfig {
    let node = |name: &str| DapiNode {
        name: name.to_owned(),
        base_url: format!("http://127.0.0.1:1/{name}"),
        weight: 1,
        available: true,
    };
    DapiConfig {
        v: 1,
        seed: 42,
        hosts: vec!["host-1".to_owned(), "host-2".to_owned()],
        nodes: vec![node("a"), node("b"), node("c")],
        policy: Policy::RoundRobin,
        order: Vec::new(),
        lease: Micros::from_s(60),
        runtime: RuntimeParams {
            params_block_height: 152,
            epoch: 1,
            requests_enabled: true,
            max_nonce: 500,
            logprobs_mode: "raw".to_owned(),
            refusal_timeout_s: 61,
            execution_timeout_s: 1_201,
            validation_rate: 10_000,
            vote_threshold_factor: 50,
            model: "test-model".to_owned(),
            threshold_value: 95,
            threshold_exponent: -2,
        },
        oracle: Oracle::default(),
        rules: Vec::new(),
    }
}

fn rule(id: &str, call: DapiCall, host: Option<&str>, select: Select, action: DapiFault) -> DapiRule {
    DapiRule { id: id.to_owned(), call, host: host.map(str::to_owned), select, action }
}

async fn start(config: DapiConfig) -> Running {
    mocks::dapi::start(MockConfig::Dapi(config), LOOPBACK).await.unwrap()
}

async fn client(running: &Running, host: &str) -> Client {
    NodeManagerClient::new(channel(running, &format!("grpc:{host}")).await)
}

async fn acquire(client: &mut Client, excluded: &[&str]) -> Result<AcquireMlNodeResponse, Code> {
    let excluded_nodes = excluded.iter().map(ToString::to_string).collect();
    let request =
        AcquireMlNodeRequest { model: "test-model".to_owned(), excluded_nodes, ..Default::default() };
    client.acquire_ml_node(request).await.map(tonic::Response::into_inner).map_err(|status| status.code())
}

async fn release(client: &mut Client, lock: &str) -> Result<(), Code> {
    let request =
        ReleaseMlNodeRequest { lock_id: lock.to_owned(), outcome: ReleaseOutcome::TransportError.into() };
    client.release_ml_node(request).await.map(drop).map_err(|status| status.code())
}

async fn poll(client: &mut Client, height: i64, wait: i32) -> Result<GetRuntimeConfigResponse, Code> {
    let request = GetRuntimeConfigRequest { client_params_block_height: height, max_wait_seconds: wait };
    client.get_runtime_config(request).await.map(tonic::Response::into_inner).map_err(|status| status.code())
}

async fn stats(running: &Running) -> DapiStats {
    get(running, "control", "/control/v1/stats").await
}

async fn calls(running: &Running) -> Vec<DapiCallRecord> {
    get::<Page<DapiCallRecord>>(running, "control", "/control/v1/calls").await.items
}

#[tokio::test]
async fn locks_are_given_counted_and_taken_back_once() {
    let running = start(config()).await;
    let mut one = client(&running, "host-1").await;
    let mut two = client(&running, "host-2").await;
    let first = acquire(&mut one, &[]).await.unwrap();
    assert_eq!(first.node_id, "a");
    assert_eq!(first.endpoint, format!("http://127.0.0.1:1/a/l/{}", first.lock_id));
    let second = acquire(&mut two, &["b"]).await.unwrap();
    assert_eq!(second.node_id, "c");
    assert_ne!(first.lock_id, second.lock_id);
    release(&mut one, &first.lock_id).await.unwrap();
    release(&mut one, &first.lock_id).await.unwrap();
    release(&mut one, "nobody-1").await.unwrap();
    let now = stats(&running).await;
    assert_eq!((now.acquisitions, now.releases, now.active), (2, 1, 1));
    assert_eq!((now.double_releases, now.unknown_releases, now.rejections), (1, 1, 0));
    assert_eq!(now.per_node.into_values().collect::<Vec<_>>(), [1, 0, 1]);
    let log = calls(&running).await;
    let results: Vec<&str> = log.iter().map(|call| call.result.as_str()).collect();
    assert_eq!(results, ["granted", "granted", "released", "released-twice", "unknown-lock"]);
    assert_eq!((log[1].host.as_str(), log[1].ordinal, log[1].seq), ("host-2", 2, 2));
    assert_eq!(log[1].excluded, ["b"]);
    assert_eq!((log[2].node.as_deref(), log[2].outcome.as_deref()), (Some("a"), Some("transport-error")));
    running.stop().await;
}

#[tokio::test]
async fn every_policy_answers_over_the_wire() {
    let given = async |policy, order: &[&str]| {
        let mut config = config();
        config.policy = policy;
        config.order = order.iter().map(ToString::to_string).collect();
        let running = start(config).await;
        let mut client = client(&running, "host-1").await;
        let mut nodes = String::new();
        for _ in 0..6 {
            nodes += &acquire(&mut client, &[]).await.unwrap().node_id;
        }
        running.stop().await;
        nodes
    };
    assert_eq!(given(Policy::RoundRobin, &[]).await, "abcabc");
    assert_eq!(given(Policy::LeastActive, &[]).await, "abcabc");
    assert_eq!(given(Policy::FixedOrder, &["c", "c", "a"]).await, "ccacca");
    let seeded = given(Policy::SeededWeighted, &[]).await;
    assert_eq!(seeded, given(Policy::SeededWeighted, &[]).await);
}

#[tokio::test]
async fn nothing_left_is_resource_exhausted_and_availability_counts_at_once() {
    let mut config = config();
    let running = start(config.clone()).await;
    let mut client = client(&running, "host-1").await;
    assert_eq!(acquire(&mut client, &["a", "b", "c"]).await, Err(Code::ResourceExhausted));
    config.nodes[1].available = false;
    put(&running, &MockConfig::Dapi(config.clone())).await.unwrap();
    for _ in 0..6 {
        assert_ne!(acquire(&mut client, &[]).await.unwrap().node_id, "b");
    }
    assert_eq!(acquire(&mut client, &["a", "c"]).await, Err(Code::ResourceExhausted));
    config.nodes[1].available = true;
    put(&running, &MockConfig::Dapi(config)).await.unwrap();
    assert_eq!(acquire(&mut client, &["a", "c"]).await.unwrap().node_id, "b");
    let now = stats(&running).await;
    assert_eq!((now.rejections, now.active), (2, 7), "locks and counters outlive a new configuration");
    running.stop().await;
}

#[tokio::test]
async fn a_lease_runs_out() {
    let mut config = config();
    config.lease = Micros::from_ms(50);
    let running = start(config).await;
    let mut client = client(&running, "host-1").await;
    let lock = acquire(&mut client, &[]).await.unwrap().lock_id;
    eventually("the lease runs out", async || stats(&running).await.expired == 1).await;
    assert_eq!(stats(&running).await.active, 0);
    release(&mut client, &lock).await.unwrap();
    let now = stats(&running).await;
    assert_eq!((now.releases, now.double_releases, now.unknown_releases), (0, 0, 0));
    assert_eq!(calls(&running).await.last().unwrap().result, "expired");
    running.stop().await;
}

#[tokio::test]
async fn a_long_poll_waits_for_news_and_never_answers_unchanged_early() {
    let mut config = config();
    let running = start(config.clone()).await;
    let mut client = client(&running, "gateway").await;
    assert!(poll(&mut client, 0, 60).await.unwrap().config.is_some());
    assert!(poll(&mut client, 151, 60).await.unwrap().config.is_some());
    assert!(poll(&mut client, 152, 0).await.unwrap().unchanged);
    let held = poll(&mut client, 152, 1);
    assert!(timeout(Duration::from_millis(900), held).await.is_err(), "unchanged came early");
    let held = timeout(Duration::from_secs(3), poll(&mut client, 152, 1)).await.unwrap().unwrap();
    assert_eq!(held, GetRuntimeConfigResponse { unchanged: true, config: None });

    let waiting = tokio::spawn({
        let mut client = client.clone();
        async move { poll(&mut client, 152, 60).await }
    });
    // The same content again is no news; other content is, although its height did not grow.
    put(&running, &MockConfig::Dapi(config.clone())).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    config.runtime.max_nonce = 7;
    put(&running, &MockConfig::Dapi(config)).await.unwrap();
    let news = timeout(Duration::from_secs(3), waiting).await.unwrap().unwrap().unwrap().config.unwrap();
    assert_eq!((news.params_block_height, news.max_nonce), (153, 7));
    running.stop().await;
}

#[tokio::test]
async fn the_end_of_the_process_ends_held_calls() {
    let running = start(config()).await;
    let mut client = client(&running, "host-1").await;
    let waiting = tokio::spawn(async move { poll(&mut client, 152, 60).await });
    eventually("the poll is held", async || !waiting.is_finished()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    timeout(Duration::from_secs(3), running.stop()).await.unwrap();
    assert!(timeout(Duration::from_secs(1), waiting).await.unwrap().unwrap().is_err());
}

#[tokio::test]
async fn rules_hit_by_ordinal_and_are_logged() {
    let mut config = config();
    let reject = |refusal| DapiFault::Reject(refusal);
    config.rules = vec![
        rule("busy", DapiCall::Acquire, None, Select::Calls(vec![2]), reject(Refusal::ResourceExhausted)),
        rule("gone", DapiCall::Acquire, Some("host-2"), Select::Calls(vec![1]), reject(Refusal::Unavailable)),
        rule("slow", DapiCall::Acquire, None, Select::Calls(vec![4]), DapiFault::Delay(Micros::from_ms(120))),
        rule("lost", DapiCall::Release, None, Select::All(true), DapiFault::LoseRelease(true)),
    ];
    let running = start(config).await;
    let mut one = client(&running, "host-1").await;
    let mut two = client(&running, "host-2").await;
    let lock = acquire(&mut one, &[]).await.unwrap().lock_id;
    assert_eq!(acquire(&mut one, &[]).await, Err(Code::ResourceExhausted));
    assert_eq!(acquire(&mut two, &[]).await, Err(Code::Unavailable));
    assert!(timeout(Duration::from_millis(60), acquire(&mut one, &[])).await.is_err());
    release(&mut one, &lock).await.unwrap();
    // The caller of the delayed acquire has gone: no lock, but a line in the log.
    eventually("the cancelled call is logged", async || {
        calls(&running).await.iter().any(|call| call.result == "cancelled")
    })
    .await;
    let now = stats(&running).await;
    assert_eq!((now.acquisitions, now.rejections, now.releases, now.active), (1, 2, 0, 1));
    let mut seen: Vec<(String, String, u64, String)> =
        hits(&running).await.into_iter().map(|hit| (hit.rule, hit.action, hit.attempt, hit.place)).collect();
    seen.sort();
    let expected = [
        ("busy", "reject", 2, "host-1"),
        ("gone", "reject", 1, "host-2"),
        ("lost", "lose_release", 1, "host-1"),
        ("slow", "delay", 4, "host-1"),
    ];
    let expected: Vec<_> =
        expected.map(|(r, a, n, p)| (r.to_owned(), a.to_owned(), n, p.to_owned())).to_vec();
    assert_eq!(seen, expected);
    let log = calls(&running).await;
    for hit in hits(&running).await {
        let call = log.iter().find(|call| call.seq == hit.call_seq).unwrap();
        assert_eq!(call.rule.as_deref(), Some(hit.rule.as_str()));
    }
    running.stop().await;
}

#[tokio::test]
async fn an_outage_fails_every_call_of_its_host_also_held_ones() {
    let mut config = config();
    let running = start(config.clone()).await;
    let mut one = client(&running, "host-1").await;
    let mut two = client(&running, "host-2").await;
    let waiting = tokio::spawn({
        let mut one = one.clone();
        async move { poll(&mut one, 152, 60).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let outage = rule("out", DapiCall::Acquire, Some("host-1"), Select::All(true), DapiFault::Outage(true));
    config.rules = vec![outage];
    put(&running, &MockConfig::Dapi(config.clone())).await.unwrap();
    assert_eq!(timeout(Duration::from_secs(3), waiting).await.unwrap().unwrap(), Err(Code::Unavailable));
    assert_eq!(acquire(&mut one, &[]).await, Err(Code::Unavailable));
    assert_eq!(release(&mut one, "x").await, Err(Code::Unavailable));
    assert!(acquire(&mut two, &[]).await.is_ok());
    assert_eq!(hits(&running).await.len(), 3);
    config.rules.clear();
    put(&running, &MockConfig::Dapi(config)).await.unwrap();
    assert!(acquire(&mut one, &[]).await.is_ok());
    running.stop().await;
}

#[tokio::test]
async fn what_is_put_is_read_back_and_what_is_wrong_changes_nothing() {
    let running = start(config()).await;
    let mut next = config();
    next.policy = Policy::LeastActive;
    let next = MockConfig::Dapi(next);
    let applied = put(&running, &next).await.unwrap();
    assert_eq!((applied.hash, applied.revision), (next.hash(), 2));
    let bad: [fn(&mut DapiConfig); 10] = [
        |c| c.v = 9,
        |c| c.hosts.push("host-3".to_owned()),
        |c| c.nodes[0].name = "z".to_owned(),
        |c| c.nodes[1].name = "a".to_owned(),
        |c| c.nodes[0].base_url.push('/'),
        |c| c.lease = Micros::ZERO,
        |c| c.policy = Policy::FixedOrder,
        |c| {
            c.rules =
                vec![rule("r", DapiCall::Acquire, None, Select::Ids(Vec::new()), DapiFault::Outage(true))];
        },
        |c| {
            c.rules =
                vec![rule("r", DapiCall::Acquire, Some("x"), Select::All(true), DapiFault::Outage(true))];
        },
        |c| {
            c.rules =
                vec![rule("r", DapiCall::Acquire, None, Select::All(true), DapiFault::LoseRelease(true))];
        },
    ];
    for spoil in bad {
        let mut config = config();
        spoil(&mut config);
        let refused = put(&running, &MockConfig::Dapi(config)).await.unwrap_err();
        assert!(!refused.error.is_empty());
        assert_eq!(get::<MockConfig>(&running, "control", "/control/v1/config").await.hash(), next.hash());
    }
    running.stop().await;
}

#[tokio::test]
async fn a_bad_configuration_does_not_start() {
    let mut config = config();
    config.nodes.clear();
    let refused = mocks::dapi::start(MockConfig::Dapi(config), LOOPBACK).await.unwrap_err();
    assert!(matches!(refused, MockError::Config { .. }));
    assert_eq!(refused.exit_code(), 2);
}

#[tokio::test]
async fn the_runtime_configuration_equals_the_captured_one() {
    let captured = captured();
    let running = start(config()).await;
    let mut client = client(&running, "host-1").await;
    let request: GetRuntimeConfigRequest = captured["RuntimeConfig"].request();
    let answer = client.get_runtime_config(request).await.unwrap().into_inner();
    let mut expected: GetRuntimeConfigResponse = captured["RuntimeConfig"].response();
    let (mine, theirs) = (answer.config.unwrap(), expected.config.as_mut().unwrap());
    assert!(mine.served_at_unix > 1_700_000_000);
    theirs.served_at_unix = mine.served_at_unix;
    // The stand-in left thresholds to a chain query; giving them here is what newer allocators do.
    theirs.validation_thresholds.clone_from(&mine.validation_thresholds);
    assert_eq!(mine, *theirs);
    running.stop().await;
}

#[tokio::test]
async fn the_http_face_serves_versions_epochs_and_metrics() {
    let running = start(config()).await;
    let versions: Value = get(&running, "http", "/versions").await;
    assert_eq!(versions["versions"][0]["name"], "v2");
    let participants: Value = get(&running, "http", "/v1/epochs/current/participants").await;
    assert_eq!(participants["active_participants"]["participants"], serde_json::json!([]));
    let epoch: Value = get(&running, "http", "/v1/epochs/latest").await;
    assert_eq!((&epoch["phase"], &epoch["latest_epoch"]["index"]), (&"Inference".into(), &"1".into()));
    for name in ["http", "control"] {
        let health = reqwest::get(common::url(&running, name, "/healthz")).await.unwrap();
        assert_eq!(health.text().await.unwrap(), "ok");
    }
    acquire(&mut client(&running, "host-1").await, &[]).await.unwrap();
    let metrics =
        reqwest::get(common::url(&running, "control", "/metrics")).await.unwrap().text().await.unwrap();
    assert!(metrics.contains("proofload_dapi_active{node=\"a\"} 1\n"), "{metrics}");
    running.stop().await;
}

#[tokio::test]
async fn the_documents_of_the_http_face_move_with_the_configuration() {
    let running = start(config()).await;
    let versions: serde_json::Value = get(&running, "http", "/versions").await;
    assert_eq!(versions["versions"][0]["name"], "v2");
    assert_eq!((&versions["schema"], &versions["revision"]), (&1.into(), &1.into()));
    let mut moved = config();
    moved.runtime.epoch = 2;
    moved.oracle = Oracle {
        versions: vec![OracleVersion {
            name: "v3".to_owned(),
            binary: "file:///x".to_owned(),
            sha256: "1".repeat(64),
        }],
        block_height: Some(900),
        phase: Some(EpochPhase::PoCGenerate),
        participants: vec![OracleParticipant {
            address: "gonka1x".to_owned(),
            inference_url: "http://127.0.0.1:1".to_owned(),
            weight: 30_000,
        }],
    };
    put(&running, &MockConfig::Dapi(moved)).await.unwrap();
    let versions: serde_json::Value = get(&running, "http", "/versions").await;
    assert_eq!((&versions["versions"][0]["name"], &versions["revision"]), (&"v3".into(), &2.into()));
    let epoch: serde_json::Value = get(&running, "http", "/v1/epochs/latest").await;
    assert_eq!((&epoch["latest_epoch"]["index"], &epoch["block_height"]), (&"2".into(), &"900".into()));
    assert_eq!(epoch["phase"], "PoCGenerate");
    let listed: serde_json::Value = get(&running, "http", "/v1/epochs/current/participants").await;
    assert_eq!(listed["active_participants"]["participants"][0]["weight"], 30_000);
    running.stop().await;
}
