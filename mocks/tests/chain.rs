//! `mock-chain` over its real listeners, with the generated clients.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::{Captured, LOOPBACK, captured, channel, eventually, get, hits, put};
use mocks::process::{MockError, Running};
use scenario::control::{
    BlockPace, ChainAct, ChainCallRecord, ChainConfig, ChainEscrow, ChainGrant, ChainParams,
    ChainParticipant, ChainRule, ChainStats, MockConfig, Page,
};
use scenario::fault::{ChainFault, Select};
use scenario::units::Micros;
use serde_json::Value;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::Channel;
use wire::proto::auth::query_client::QueryClient as AuthClient;
use wire::proto::auth::{BaseAccount, QueryAccountRequest};
use wire::proto::inference::query_client::QueryClient;
use wire::proto::inference::{
    QueryAccountByAddressRequest, QueryEpochInfoRequest, QueryGetCurrentEpochRequest,
    QueryGetDevshardEscrowRequest, QueryGranteesByMessageTypeRequest, QueryParamsRequest,
    QueryPreservedNodesSnapshotRequest,
};
use wire::proto::tendermint::service_client::ServiceClient as BlockClient;
use wire::proto::tendermint::{GetLatestBlockRequest, GetNodeInfoRequest};
use wire::proto::tx::service_client::ServiceClient as TxClient;
use wire::proto::tx::{BroadcastTxRequest, BroadcastTxResponse, GetTxRequest, GetTxResponse};

const USER: &str = "gonka1w508d6qejxtdg4y5r3zarvary0c5xw7k2gsyg6";
const HOST_0: &str = "gonka1q6hag67dl53wl99vzg42z8eyzfz2xlkvqkpz3w";
const HOST_1: &str = "gonka10ht9tyks4vh7p5p904t340cr9nvahy7uhvqtp8";

fn config() -> ChainConfig {
    let participant = |address: &str| ChainParticipant {
        address: address.to_owned(),
        inference_url: "http://127.0.0.1:23500".to_owned(),
        pubkey: String::new(),
    };
    let escrow = ChainEscrow {
        id: 1,
        creator: USER.to_owned(),
        amount: 50_000_000,
        slots: vec![HOST_0.to_owned(), HOST_1.to_owned()],
        model: "test-model".to_owned(),
        epoch: 1,
        token_price: 100,
        fee_per_nonce: 10,
        validation_rate: 10_000,
        vote_threshold_factor: 50,
        settled: false,
    };
    ChainConfig {
        v: 1,
        chain_id: "gonka-test".to_owned(),
        participants: vec![participant(HOST_0), participant(HOST_1)],
        escrows: vec![escrow],
        epoch: 1,
        block_interval: Micros::from_ms(20),
        params: ChainParams::default(),
        grants: Vec::new(),
        rules: Vec::new(),
    }
}

/// A chain whose blocks come only by actions.
fn still() -> ChainConfig {
    ChainConfig { block_interval: Micros::from_s(3_600), ..config() }
}

fn rule(id: &str, method: &str, select: Select, action: ChainFault) -> ChainRule {
    ChainRule { id: id.to_owned(), method: method.to_owned(), select, action }
}

async fn start(config: ChainConfig) -> Running {
    mocks::chain::start(MockConfig::Chain(config), None, LOOPBACK).await.unwrap()
}

async fn query(running: &Running) -> QueryClient<Channel> {
    QueryClient::new(channel(running, "grpc").await)
}

async fn stats(running: &Running) -> ChainStats {
    get(running, "control", "/control/v1/stats").await
}

async fn act(running: &Running, act: &ChainAct) -> u16 {
    let request = reqwest::Client::new().post(common::url(running, "control", "/control/v1/act")).json(act);
    request.send().await.unwrap().status().as_u16()
}

async fn broadcast(running: &Running, captured: &Captured) -> BroadcastTxResponse {
    let mut client = TxClient::new(channel(running, "grpc").await);
    client.broadcast_tx(captured.request::<BroadcastTxRequest>()).await.unwrap().into_inner()
}

#[tokio::test]
async fn seeded_answers_equal_the_captured_ones() {
    let captured = captured();
    let running = start(still()).await;
    let mut client = query(&running).await;
    let case = &captured["DevshardEscrow"];
    assert_eq!(
        client.devshard_escrow(case.request::<QueryGetDevshardEscrowRequest>()).await.unwrap().into_inner(),
        case.response()
    );
    let case = &captured["UnknownEscrow"];
    assert_eq!(
        client.devshard_escrow(case.request::<QueryGetDevshardEscrowRequest>()).await.unwrap().into_inner(),
        case.response()
    );
    for name in ["Participant", "UnknownParticipant"] {
        let case = &captured[name];
        assert_eq!(
            client
                .participant(case.request::<wire::proto::inference::QueryGetParticipantRequest>())
                .await
                .unwrap()
                .into_inner(),
            case.response()
        );
    }
    for name in ["EpochGroupData", "UnknownGroup"] {
        let case = &captured[name];
        let answer =
            client.epoch_group_data(case.request::<wire::proto::inference::QueryGetEpochGroupDataRequest>());
        assert_eq!(answer.await.unwrap().into_inner(), case.response());
    }
    let epoch = client.get_current_epoch(QueryGetCurrentEpochRequest {}).await.unwrap().into_inner();
    assert_eq!(epoch, captured["GetCurrentEpoch"].response());
    let info = client.epoch_info(QueryEpochInfoRequest {}).await.unwrap().into_inner();
    let theirs: wire::proto::inference::QueryEpochInfoResponse = captured["EpochInfo"].response();
    assert_eq!((info.block_height, info.latest_epoch), (150, theirs.latest_epoch));
    let params = client.params(QueryParamsRequest {}).await.unwrap().into_inner().params;
    assert_eq!(params, info.params);
    let (mine, theirs) = (params.unwrap(), theirs.params.unwrap());
    assert_eq!((mine.epoch_params, mine.validation_params), (theirs.epoch_params, theirs.validation_params));
    assert!(mine.devshard_escrow_params.unwrap().devshard_requests_enabled);
    running.stop().await;
}

#[tokio::test]
async fn what_no_configuration_holds_is_empty_and_ok() {
    let running = start(still()).await;
    let mut client = query(&running).await;
    let grantees = QueryGranteesByMessageTypeRequest::default();
    assert!(client.grantees_by_message_type(grantees).await.unwrap().into_inner().grantees.is_empty());
    let account = QueryAccountByAddressRequest { address: HOST_0.to_owned() };
    assert_eq!(client.account_by_address(account).await.unwrap().into_inner().pubkey, "");
    let nodes =
        client.preserved_nodes_snapshot(QueryPreservedNodesSnapshotRequest {}).await.unwrap().into_inner();
    assert!(!nodes.found);
    let mut blocks = BlockClient::new(channel(&running, "grpc").await);
    let block = blocks.get_latest_block(GetLatestBlockRequest {}).await.unwrap().into_inner();
    let header = block.sdk_block.unwrap().header.unwrap();
    assert_eq!((header.chain_id.as_str(), header.height), ("gonka-test", 150));
    let node = blocks.get_node_info(GetNodeInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(node.default_node_info.unwrap().network, "gonka-test");
    running.stop().await;
}

#[tokio::test]
async fn an_escrow_is_created_found_and_settled() {
    let captured = captured();
    let running = start(still()).await;
    let mut txs = TxClient::new(channel(&running, "grpc").await);
    let created = broadcast(&running, &captured["BroadcastCreate"]).await;
    assert_eq!(created, captured["BroadcastCreate"].response());
    assert_eq!(
        broadcast(&running, &captured["BroadcastCreate"]).await,
        created,
        "the same bytes are one transaction"
    );

    let ask: GetTxRequest = captured["GetTx"].request();
    assert_eq!(txs.get_tx(ask.clone()).await.unwrap_err().code(), Code::NotFound, "in no block yet");
    assert_eq!(act(&running, &ChainAct::Blocks { count: 1 }).await, 200);
    let mut found = txs.get_tx(ask).await.unwrap().into_inner();
    assert_eq!(found.tx_response.as_mut().map(|response| std::mem::take(&mut response.height)), Some(151));
    assert_eq!(found, captured["GetTx"].response::<GetTxResponse>());
    assert_eq!(txs.get_tx(GetTxRequest::default()).await.unwrap_err().code(), Code::InvalidArgument);

    let mut client = query(&running).await;
    let get_two = QueryGetDevshardEscrowRequest { id: 2 };
    let escrow = client.devshard_escrow(get_two).await.unwrap().into_inner().escrow.unwrap();
    assert_eq!(
        (escrow.amount, escrow.slots.len(), escrow.token_price, escrow.settled),
        (30_000_000, 2, 100, false)
    );
    let key =
        client.account_by_address(QueryAccountByAddressRequest { address: USER.to_owned() }).await.unwrap();
    assert_eq!(key.into_inner().pubkey, "Anm+Zn753LusVaBilc6HCwcCm/zbLc4o2VnygVsW+BeY");

    let settled = broadcast(&running, &captured["BroadcastSettle"]).await;
    assert_eq!(settled, captured["BroadcastSettle"].response());
    assert!(client.devshard_escrow(get_two).await.unwrap().into_inner().escrow.unwrap().settled);
    let now = stats(&running).await;
    assert_eq!((now.transactions, now.settled), (2, vec![2]));

    let mut accounts = AuthClient::new(channel(&running, "grpc").await);
    let account =
        accounts.account(QueryAccountRequest { address: USER.to_owned() }).await.unwrap().into_inner();
    let any = account.account.unwrap();
    assert_eq!(any.type_url, "/cosmos.auth.v1beta1.BaseAccount");
    let account = <BaseAccount as prost::Message>::decode(any.value.as_slice()).unwrap();
    assert_eq!((account.address.as_str(), account.account_number, account.sequence), (USER, 0, 2));
    running.stop().await;
}

#[tokio::test]
async fn a_bad_transaction_is_refused_by_its_code() {
    let captured = captured();
    let running = start(still()).await;
    let mut txs = TxClient::new(channel(&running, "grpc").await);
    let unknown = captured["BroadcastSettle"].request::<BroadcastTxRequest>().tx_bytes;
    for tx_bytes in [Vec::new(), vec![0xff; 9], vec![0x0a, 0x00], unknown] {
        let answer = txs.broadcast_tx(BroadcastTxRequest { tx_bytes, mode: 2 }).await.unwrap().into_inner();
        let response = answer.tx_response.unwrap();
        assert_eq!((response.code, response.codespace.as_str()), (1, "mockchain"));
        assert!(!response.raw_log.is_empty());
    }
    assert_eq!(stats(&running).await.transactions, 0);
    running.stop().await;
}

#[tokio::test]
async fn blocks_advance_and_can_be_held_and_burst() {
    let mut config = config();
    let running = start(config.clone()).await;
    eventually("blocks are produced", async || stats(&running).await.height > 153).await;
    config.rules = vec![rule("hold", "*", Select::All(true), ChainFault::HoldBlocks(true))];
    put(&running, &MockConfig::Chain(config.clone())).await.unwrap();
    let held = stats(&running).await.height;
    tokio::time::sleep(Duration::from_millis(120)).await;
    assert_eq!(stats(&running).await.height, held);
    config.rules.push(rule("burst", "*", Select::All(true), ChainFault::BurstBlocks(100)));
    put(&running, &MockConfig::Chain(config.clone())).await.unwrap();
    put(&running, &MockConfig::Chain(config)).await.unwrap();
    assert_eq!(stats(&running).await.height, held + 100, "a burst happens once");
    let actions: Vec<String> = hits(&running).await.into_iter().map(|hit| hit.action).collect();
    assert_eq!(actions, ["hold_blocks", "burst_blocks"]);
    running.stop().await;
}

#[tokio::test]
async fn actions_move_the_epoch_and_settle() {
    let running = start(still()).await;
    assert_eq!(act(&running, &ChainAct::AdvanceEpoch { pace: BlockPace::Burst }).await, 200);
    let now = stats(&running).await;
    assert_eq!((now.epoch, now.height), (2, 500));
    assert_eq!(act(&running, &ChainAct::Settle { escrow: 1 }).await, 200);
    assert_eq!(stats(&running).await.settled, [1]);
    assert_eq!(act(&running, &ChainAct::Settle { escrow: 9 }).await, 400);
    assert_eq!(act(&running, &ChainAct::Blocks { count: 0 }).await, 400);
    assert_eq!(act(&running, &ChainAct::AdvanceEpoch { pace: BlockPace::OneByOne }).await, 200);
    let now = stats(&running).await;
    assert_eq!((now.epoch, now.height), (3, 900), "a walk ends where a jump ends");
    running.stop().await;
}

#[tokio::test]
async fn an_action_holds_blocks_and_ends_websockets() {
    let running = start(config()).await;
    assert_eq!(act(&running, &ChainAct::Hold { on: true }).await, 200);
    let held = stats(&running).await;
    tokio::time::sleep(Duration::from_millis(120)).await;
    assert_eq!((held.held, stats(&running).await.height), (true, held.height));
    assert_eq!(act(&running, &ChainAct::Hold { on: false }).await, 200);
    eventually("blocks go on", async || stats(&running).await.height > held.height).await;
    // Nothing is open: an order that reaches nobody is refused, and so is a code that can't be sent.
    assert_eq!(act(&running, &ChainAct::CutWebsockets).await, 400);
    assert_eq!(act(&running, &ChainAct::CloseWebsockets { code: 1000 }).await, 400);
    let stream = tokio::net::TcpStream::connect(&running.ready()["rpc"]).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("ws://chain/websocket", stream).await.unwrap();
    assert_eq!(act(&running, &ChainAct::CloseWebsockets { code: 999 }).await, 400);
    assert_eq!(act(&running, &ChainAct::CloseWebsockets { code: 1000 }).await, 200);
    let frame = futures_util::StreamExt::next(&mut socket).await.unwrap().unwrap();
    let tokio_tungstenite::tungstenite::Message::Close(Some(frame)) = frame else { panic!("{frame:?}") };
    assert_eq!(u16::from(frame.code), 1000);
    eventually("the end is counted", async || stats(&running).await.websockets_ended == 1).await;
    assert!(hits(&running).await.is_empty(), "an action is no fault rule");
    running.stop().await;
}

#[tokio::test]
async fn rules_hit_by_method_and_ordinal() {
    let mut config = still();
    config.rules = vec![
        rule("second", "GetCurrentEpoch", Select::Calls(vec![2]), ChainFault::Fail(true)),
        rule("slow", "Params", Select::All(true), ChainFault::Delay(Micros::from_ms(80))),
    ];
    let running = start(config.clone()).await;
    let mut client = query(&running).await;
    let mut codes = Vec::new();
    for _ in 0..3 {
        let answer = client.get_current_epoch(QueryGetCurrentEpochRequest {}).await;
        codes.push(answer.map_or_else(|status| status.code(), |_| Code::Ok));
    }
    assert_eq!(codes, [Code::Ok, Code::Unavailable, Code::Ok]);
    let short = Duration::from_millis(40);
    assert!(timeout(short, client.params(QueryParamsRequest {})).await.is_err());
    assert!(client.params(QueryParamsRequest {}).await.is_ok());
    client.devshard_escrow(QueryGetDevshardEscrowRequest { id: 77 }).await.unwrap();
    config.rules = vec![rule("dark", "*", Select::All(true), ChainFault::Outage(true))];
    put(&running, &MockConfig::Chain(config)).await.unwrap();
    assert_eq!(client.params(QueryParamsRequest {}).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(reqwest::get(common::url(&running, "rpc", "/health")).await.unwrap().status(), 503);
    let log = get::<Page<ChainCallRecord>>(&running, "control", "/control/v1/calls").await.items;
    let lines: Vec<String> = log
        .iter()
        .map(|call| {
            format!(
                "{} {} {} {} {}",
                call.method,
                call.ordinal,
                call.argument,
                call.code,
                call.rule.as_deref().unwrap_or("-")
            )
        })
        .collect();
    assert_eq!(
        lines,
        [
            "GetCurrentEpoch 1  OK -",
            "GetCurrentEpoch 2  UNAVAILABLE second",
            "GetCurrentEpoch 3  OK -",
            "Params 1  CANCELLED slow",
            "Params 2  OK slow",
            "DevshardEscrow 1 77 OK -",
            "Params 3  UNAVAILABLE dark",
        ]
    );
    let seen: Vec<(String, u64)> =
        hits(&running).await.into_iter().map(|hit| (hit.rule, hit.attempt)).collect();
    let expected =
        [("second", 2), ("slow", 1), ("slow", 2), ("dark", 3)].map(|(rule, n)| (rule.to_owned(), n));
    assert_eq!(seen[..3], expected[..3]);
    assert_eq!(seen[3].0, "dark");
    running.stop().await;
}

#[tokio::test]
async fn the_state_survives_a_restart_when_asked_to() {
    let captured = captured();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chain.json");
    let begin =
        async |file: Option<PathBuf>| mocks::chain::start(MockConfig::Chain(still()), file, LOOPBACK).await;
    let running = begin(Some(file.clone())).await.unwrap();
    broadcast(&running, &captured["BroadcastCreate"]).await;
    broadcast(&running, &captured["BroadcastSettle"]).await;
    act(&running, &ChainAct::AdvanceEpoch { pace: BlockPace::Burst }).await;
    let before = stats(&running).await;
    // What is on disk at this moment is what a kill would leave: everything answered is there already.
    let file_after_kill = dir.path().join("killed.json");
    std::fs::copy(&file, &file_after_kill).unwrap();
    running.stop().await;

    let running = begin(Some(file_after_kill)).await.unwrap();
    let after = stats(&running).await;
    assert_eq!((after.height, after.epoch, after.settled), (before.height, before.epoch, before.settled));
    let mut txs = TxClient::new(channel(&running, "grpc").await);
    assert!(txs.get_tx(captured["GetTx"].request::<GetTxRequest>()).await.is_ok());
    running.stop().await;

    let fresh = begin(None).await.unwrap();
    assert_eq!(stats(&fresh).await.height, 150);
    fresh.stop().await;

    std::fs::write(&file, "{\"v\":1").unwrap();
    let refused = begin(Some(file)).await.unwrap_err();
    assert!(matches!(refused, MockError::Io { .. }));
    assert_eq!(refused.exit_code(), 5);
    assert!(begin(Some(dir.path().join("missing/chain.json"))).await.is_err());
}

#[tokio::test]
async fn what_is_put_is_read_back_and_what_is_wrong_changes_nothing() {
    let running = start(still()).await;
    let mut next = still();
    next.escrows[0].amount = 7;
    let next = MockConfig::Chain(next);
    let applied = put(&running, &next).await.unwrap();
    assert_eq!((applied.hash, applied.revision), (next.hash(), 2));
    let bad: [fn(&mut ChainConfig); 9] = [
        |c| c.v = 0,
        |c| c.chain_id = "other".to_owned(),
        |c| c.block_interval = Micros::ZERO,
        |c| c.escrows[0].id = 0,
        |c| c.escrows.push(c.escrows[0].clone()),
        |c| c.participants.truncate(1),
        |c| c.participants[0].address.clear(),
        |c| c.rules = vec![rule("r", "Prams", Select::All(true), ChainFault::Fail(true))],
        |c| c.rules = vec![rule("r", "*", Select::All(true), ChainFault::CloseWebsocket(1_005))],
    ];
    for spoil in bad {
        let mut config = still();
        spoil(&mut config);
        assert!(!put(&running, &MockConfig::Chain(config)).await.unwrap_err().error.is_empty());
        assert_eq!(get::<MockConfig>(&running, "control", "/control/v1/config").await.hash(), next.hash());
    }
    let wrong = MockConfig::Chain(ChainConfig { chain_id: String::new(), ..still() });
    assert_eq!(mocks::chain::start(wrong, None, LOOPBACK).await.unwrap_err().exit_code(), 2);
    running.stop().await;
}

#[tokio::test]
async fn the_rpc_face_answers_health_status_and_blocks() {
    let running = start(still()).await;
    let health: Value = get(&running, "rpc", "/health").await;
    assert_eq!(health, serde_json::json!({ "jsonrpc": "2.0", "id": -1, "result": {} }));
    let status: Value = get(&running, "rpc", "/status").await;
    assert_eq!(status["result"]["node_info"]["network"], "gonka-test");
    assert_eq!(status["result"]["sync_info"]["latest_block_height"], "150");
    let block: Value = get(&running, "rpc", "/block?height=10").await;
    assert_eq!(block["result"]["block"]["header"]["height"], "10");
    for bad in ["0", "99999", "x"] {
        let answer =
            reqwest::get(common::url(&running, "rpc", &format!("/block?height={bad}"))).await.unwrap();
        assert_eq!(answer.status(), 500, "{bad}");
    }
    running.stop().await;
}

/// Keys 2 and 4 of the captured set: a host, and whom it lets act.
fn granted() -> ChainConfig {
    let key = |byte: u8| {
        let mut bytes = [0_u8; 32];
        bytes[31] = byte;
        wire::keys::PrivateKey::from_bytes(&bytes).unwrap().public_key()
    };
    let mut config = still();
    config.participants[0].pubkey = key(2).to_base64();
    config.grants = vec![ChainGrant {
        granter: HOST_0.to_owned(),
        message_type: "/inference.inference.MsgStartInference".to_owned(),
        grantee: key(4).address().to_string(),
        pubkey: key(4).to_base64(),
    }];
    config
}

#[tokio::test]
async fn keys_grants_and_parameters_are_those_of_the_configuration() {
    let running = start(granted()).await;
    let mut client = query(&running).await;
    let account = |address: &str| QueryAccountByAddressRequest { address: address.to_owned() };
    let key = client.account_by_address(account(HOST_0)).await.unwrap().into_inner().pubkey;
    assert_eq!(key, granted().participants[0].pubkey);
    let ask = QueryGranteesByMessageTypeRequest {
        granter_address: HOST_0.to_owned(),
        message_type_url: "/inference.inference.MsgStartInference".to_owned(),
    };
    let grantees = client.grantees_by_message_type(ask.clone()).await.unwrap().into_inner().grantees;
    assert_eq!(grantees.len(), 1);
    assert_eq!(grantees[0].pub_key, granted().grants[0].pubkey);
    let other = QueryGranteesByMessageTypeRequest { granter_address: HOST_1.to_owned(), ..ask.clone() };
    assert!(client.grantees_by_message_type(other).await.unwrap().into_inner().grantees.is_empty());

    let mut changed = granted();
    changed.grants.clear();
    changed.params.max_nonce = 7;
    changed.params.threshold_value = 50;
    changed.params.threshold_exponent = 0;
    changed.epoch = 2;
    put(&running, &MockConfig::Chain(changed)).await.unwrap();
    assert!(client.grantees_by_message_type(ask).await.unwrap().into_inner().grantees.is_empty());
    let params = client.params(QueryParamsRequest {}).await.unwrap().into_inner().params.unwrap();
    assert_eq!(params.devshard_escrow_params.unwrap().max_nonce, 7);
    let group = wire::proto::inference::QueryGetEpochGroupDataRequest {
        epoch_index: 2,
        model_id: "test-model".to_owned(),
    };
    let group = client.epoch_group_data(group).await.unwrap().into_inner().epoch_group_data.unwrap();
    let threshold = group.model_snapshot.unwrap().validation_threshold.unwrap();
    assert_eq!((threshold.value, threshold.exponent), (50, 0));
    running.stop().await;
}

#[tokio::test]
async fn a_key_of_somebody_else_is_refused() {
    let mut swapped = granted();
    swapped.participants[0].pubkey = swapped.grants[0].pubkey.clone();
    let refused = mocks::chain::start(MockConfig::Chain(swapped), None, LOOPBACK).await;
    assert!(matches!(refused, Err(MockError::Config { .. })));
}
