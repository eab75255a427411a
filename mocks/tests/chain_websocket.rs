//! Event subscriptions of `mock-chain`, and its end as a program.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{LOOPBACK, captured, channel, eventually, hits, put};
use futures_util::{SinkExt as _, StreamExt as _};
use mocks::process::Running;
use scenario::control::{ChainConfig, ChainEscrow, ChainParams, ChainParticipant, ChainRule, MockConfig};
use scenario::fault::{ChainFault, Select};
use scenario::ready::ReadyLine;
use scenario::units::Micros;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};
use wire::proto::tx::BroadcastTxRequest;
use wire::proto::tx::service_client::ServiceClient;

const NEW_BLOCK: &str = "tm.event='NewBlock'";
const CREATED: &str = "tm.event='Tx' AND devshard_escrow_created.escrow_id EXISTS";

type Socket = WebSocketStream<TcpStream>;

fn config(interval: Micros) -> ChainConfig {
    let address = "gonka1q6hag67dl53wl99vzg42z8eyzfz2xlkvqkpz3w".to_owned();
    let escrow = ChainEscrow {
        id: 1,
        creator: "user".to_owned(),
        amount: 1,
        slots: vec![address.clone()],
        model: "test-model".to_owned(),
        epoch: 1,
        token_price: 100,
        fee_per_nonce: 10,
        validation_rate: 0,
        vote_threshold_factor: 50,
        settled: false,
    };
    ChainConfig {
        v: 1,
        chain_id: "gonka-test".to_owned(),
        participants: vec![ChainParticipant {
            address,
            inference_url: "http://127.0.0.1:1".to_owned(),
            pubkey: String::new(),
        }],
        escrows: vec![escrow],
        epoch: 1,
        block_interval: interval,
        params: ChainParams::default(),
        grants: Vec::new(),
        rules: Vec::new(),
    }
}

fn with(mut config: ChainConfig, action: ChainFault) -> MockConfig {
    config.rules =
        vec![ChainRule { id: "ws".to_owned(), method: "*".to_owned(), select: Select::All(true), action }];
    MockConfig::Chain(config)
}

async fn start(config: ChainConfig) -> Running {
    mocks::chain::start(MockConfig::Chain(config), None, LOOPBACK).await.unwrap()
}

async fn connect(running: &Running) -> Socket {
    let address = &running.ready()["rpc"];
    let stream = TcpStream::connect(address).await.unwrap();
    client_async(format!("ws://{address}/websocket"), stream).await.unwrap().0
}

async fn subscribe(socket: &mut Socket, id: u64, query: &str) {
    let ask = json!({ "jsonrpc": "2.0", "id": id, "method": "subscribe", "params": { "query": query } });
    socket.send(Message::text(format!("{ask}\n"))).await.unwrap();
    loop {
        let frame = next(socket).await;
        if frame["result"] == json!({}) {
            assert_eq!(frame["id"], id);
            return;
        }
    }
}

async fn next(socket: &mut Socket) -> Value {
    let message = timeout(Duration::from_secs(3), socket.next()).await.unwrap().unwrap().unwrap();
    serde_json::from_str(message.to_text().unwrap()).unwrap()
}

#[tokio::test]
async fn blocks_and_created_escrows_reach_their_subscribers() {
    let running = start(config(Micros::from_ms(100))).await;
    let mut socket = connect(&running).await;
    subscribe(&mut socket, 0, CREATED).await;
    subscribe(&mut socket, 2, NEW_BLOCK).await;
    let mut txs = ServiceClient::new(channel(&running, "grpc").await);
    let create = &captured()["BroadcastCreate"];
    let answer = txs.broadcast_tx(create.request::<BroadcastTxRequest>()).await.unwrap().into_inner();
    assert_eq!(answer, create.response());
    let (mut heights, mut created) = (Vec::new(), None);
    while heights.len() < 3 || created.is_none() {
        let frame = next(&mut socket).await;
        let result = &frame["result"];
        if result["query"] == NEW_BLOCK {
            assert_eq!(
                (&frame["id"], &result["data"]["type"]),
                (&json!(2), &json!("tendermint/event/NewBlock"))
            );
            let height = result["data"]["value"]["block"]["header"]["height"].as_str().unwrap();
            heights.push(height.parse::<u64>().unwrap());
        } else {
            created = Some(frame);
        }
    }
    assert!(heights.windows(2).all(|pair| pair[1] == pair[0] + 1), "{heights:?}");
    let frame = created.unwrap();
    assert_eq!((&frame["id"], &frame["result"]["query"]), (&json!(0), &json!(CREATED)));
    let event = &frame["result"]["data"]["value"]["TxResult"]["result"]["events"][0];
    assert_eq!(event["type"], "devshard_escrow_created");
    let keys: Vec<&str> =
        event["attributes"].as_array().unwrap().iter().map(|pair| pair["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["escrow_id", "creator", "amount", "epoch_index"]);
    assert_eq!(frame["result"]["events"]["devshard_escrow_created.escrow_id"], json!(["2"]));
    running.stop().await;
}

#[tokio::test]
async fn a_repeated_subscription_replaces_and_a_burst_drops_nothing() {
    let config = config(Micros::from_s(3_600));
    let running = start(config.clone()).await;
    let mut socket = connect(&running).await;
    subscribe(&mut socket, 1, NEW_BLOCK).await;
    subscribe(&mut socket, 7, NEW_BLOCK).await;
    put(&running, &with(config, ChainFault::BurstBlocks(400))).await.unwrap();
    for height in 151..=550_u64 {
        let frame = next(&mut socket).await;
        assert_eq!(frame["id"], 7);
        let found = &frame["result"]["data"]["value"]["block"]["header"]["height"];
        assert_eq!(found, &json!(height.to_string()));
    }
    running.stop().await;
}

#[tokio::test]
async fn a_rule_cuts_or_closes_what_is_open_and_nothing_later() {
    let config = config(Micros::from_s(3_600));
    let running = start(config.clone()).await;
    let mut socket = connect(&running).await;
    subscribe(&mut socket, 1, NEW_BLOCK).await;
    put(&running, &with(config.clone(), ChainFault::CutWebsocket(true))).await.unwrap();
    let end = timeout(Duration::from_secs(3), socket.next()).await.unwrap();
    assert!(matches!(end, None | Some(Err(Error::Protocol(_) | Error::Io(_)))), "no close frame: {end:?}");

    let mut socket = connect(&running).await;
    subscribe(&mut socket, 1, NEW_BLOCK).await;
    put(&running, &with(config, ChainFault::CloseWebsocket(1_011))).await.unwrap();
    let end = timeout(Duration::from_secs(3), socket.next()).await.unwrap();
    let Some(Ok(Message::Close(Some(frame)))) = end else { panic!("no close frame: {end:?}") };
    assert_eq!(u16::from(frame.code), 1_011);
    let actions: Vec<String> = hits(&running).await.into_iter().map(|hit| hit.action).collect();
    assert_eq!(actions, ["cut_websocket", "close_websocket"]);
    eventually("subscriptions are given back", async || {
        common::get::<Value>(&running, "control", "/control/v1/stats").await["subscriptions"] == 0
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn the_end_of_the_process_never_says_1000() {
    let running = start(config(Micros::from_s(3_600))).await;
    let mut socket = connect(&running).await;
    subscribe(&mut socket, 1, NEW_BLOCK).await;
    timeout(Duration::from_secs(4), running.stop()).await.unwrap();
    let end = timeout(Duration::from_secs(3), socket.next()).await.unwrap();
    if let Some(Ok(Message::Close(frame))) = end {
        assert_eq!(frame.map(|frame| u16::from(frame.code)), Some(1_001));
    }
}

fn program(config: &MockConfig, dir: &tempfile::TempDir) -> Command {
    let file = dir.path().join("config.json");
    std::fs::write(&file, serde_json::to_vec(config).unwrap()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mock-chain"));
    command.arg("--config").arg(file).arg("--exit-with-stdin");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn wait(mut child: Child) -> std::process::ExitStatus {
    for _ in 0..150 {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("the program did not end within 3 s");
}

#[test]
fn the_program_says_where_it_listens_and_ends_with_its_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = program(&MockConfig::Chain(config(Micros::from_ms(50))), &dir).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: ReadyLine = serde_json::from_str(&line).unwrap();
    assert_eq!(ready.program, "mock-chain");
    assert_eq!(ready.ready.keys().collect::<Vec<_>>(), ["control", "grpc", "rpc"]);
    drop(child.stdin.take());
    assert!(wait(child).success());
}

#[test]
fn the_program_refuses_a_bad_configuration_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let bad = MockConfig::Chain(ChainConfig { v: 99, ..config(Micros::from_ms(50)) });
    let child = program(&bad, &dir).spawn().unwrap();
    assert_eq!(wait(child).code(), Some(2));
}
