//! The mocks in the state in which the captured stack was when a call was made.

use scenario::control::{
    BlockPace, ChainAct, ChainConfig, ChainEscrow, ChainGrant, ChainParams, ChainParticipant, DapiConfig,
    DapiNode, EpochPhase, MockConfig, NodeConfig, OpenaiConfig, Oracle, OracleParticipant, RuntimeParams,
};
use scenario::model::Policy;
use scenario::profile::{Profile, Timing};
use scenario::units::Micros;
use tokio::net::TcpStream;

use mocks::process::Running;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;

use crate::raw::{self, Socket};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Test key 1: the creator of the captured escrows.
const USER: &str = "gonka1w508d6qejxtdg4y5r3zarvary0c5xw7k2gsyg6";
/// Test keys 2, 3 and 5: the hosts.
const HOSTS: [(u8, &str); 3] = [
    (2, "gonka1q6hag67dl53wl99vzg42z8eyzfz2xlkvqkpz3w"),
    (3, "gonka10ht9tyks4vh7p5p904t340cr9nvahy7uhvqtp8"),
    (5, "gonka1gar7sarvmkenkrmljk5slz0cn7ec0jaks6egat"),
];
/// Test key 4: whom the first host lets act.
const WARM: &str = "gonka1csh8a7f0mdsr47zy6pj04tv4mwdumlfaksp3yu";

/// Chain, allocator and one ML node.
pub struct World {
    chain: Running,
    dapi: Running,
    openai: Running,
    /// The allocator's configuration as it was last put.
    dapi_config: Mutex<DapiConfig>,
}

impl World {
    /// `A`, `P`: two hosts, the first with a grant. `V`: one host. `S`, `S2`: three hosts with known keys, no grant.
    pub async fn start(name: &str) -> Self {
        let hosts = match name {
            "V" => 1,
            "S" | "S2" => 3,
            _ => 2,
        };
        let stub = name.starts_with('S');
        let dapi_config = dapi_config();
        let chain = MockConfig::Chain(chain_config(hosts, stub));
        let openai = OpenaiConfig { v: 1, seed: 42, nodes: vec![node()], rules: Vec::new() };
        Self {
            chain: mocks::chain::start(chain, None, LOOPBACK).await.unwrap(),
            dapi: mocks::dapi::start(MockConfig::Dapi(dapi_config.clone()), LOOPBACK).await.unwrap(),
            openai: mocks::openai::start(MockConfig::Openai(openai), 100, LOOPBACK).await.unwrap(),
            dapi_config: Mutex::new(dapi_config),
        }
    }

    /// Listener that serves a gRPC path.
    pub fn grpc(&self, path: &str) -> &str {
        if path.starts_with("/nodemanager.") {
            &self.dapi.ready()["grpc:host-0"]
        } else {
            &self.chain.ready()["grpc"]
        }
    }

    /// Listener of a plain HTTP call.
    pub fn http(&self, listener: &str) -> &str {
        match listener {
            "rpc" => &self.chain.ready()["rpc"],
            "node" => &self.openai.ready()["node:mock-openai"],
            _ => &self.dapi.ready()["http"],
        }
    }

    pub async fn subscriber(&self) -> Socket {
        let address = self.http("rpc");
        let stream = TcpStream::connect(address).await.unwrap();
        tokio_tungstenite::client_async(format!("ws://{address}/websocket"), stream).await.unwrap().0
    }

    /// Sends the captured creation of another escrow, and the block that holds it.
    pub async fn create(&self) {
        let captured = crate::captured();
        let path = "/cosmos.tx.v1beta1.Service/BroadcastTx";
        let call = captured.grpc.iter().find(|call| call.path == path).unwrap();
        let request = hex::decode(&call.request).unwrap();
        assert_eq!(raw::unary(self.grpc(path), path, request).await.0, "OK");
        self.bring_about(&["blocks 1".to_owned()]).await;
    }

    /// Carries out steps in words.
    pub async fn bring_about(&self, steps: &[String]) {
        for step in steps {
            let words: Vec<&str> = step.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            match words[0] {
                "blocks" => self.act(ChainAct::Blocks { count: number(1) }).await,
                "to-block" => {
                    let now: u64 = self.height().await;
                    self.act(ChainAct::Blocks { count: number(1) - now }).await;
                }
                "epoch" => self.act(ChainAct::AdvanceEpoch { pace: BlockPace::Burst }).await,
                "settle" => self.act(ChainAct::Settle { escrow: number(1) }).await,
                "dapi" => {
                    let runtime = |runtime: &mut RuntimeParams| {
                        runtime.params_block_height = i64::try_from(number(1)).unwrap();
                        runtime.epoch = number(2);
                        runtime.max_nonce = u32::try_from(number(3)).unwrap();
                        runtime.refusal_timeout_s = i64::try_from(number(4)).unwrap();
                        runtime.execution_timeout_s = i64::try_from(number(5)).unwrap();
                    };
                    self.dapi(|config| runtime(&mut config.runtime)).await;
                }
                "runtime-epoch" => self.dapi(|config| config.runtime.epoch = number(1)).await,
                "oracle" => self.dapi(|config| config.oracle = oracle(number(1), words[2], number(3))).await,
                "oracle-none" => {
                    self.dapi(|config| {
                        config.oracle = Oracle::default();
                        config.runtime.epoch = 1;
                    })
                    .await;
                }
                other => panic!("no such step: {other}"),
            }
        }
    }

    async fn height(&self) -> u64 {
        let url = format!("http://{}/control/v1/stats", self.chain.ready()["control"]);
        let stats: scenario::control::ChainStats = reqwest::get(url).await.unwrap().json().await.unwrap();
        stats.height
    }

    async fn act(&self, act: ChainAct) {
        let url = format!("http://{}/control/v1/act", self.chain.ready()["control"]);
        let answer = reqwest::Client::new().post(url).json(&act).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{act:?}");
    }

    async fn dapi(&self, change: impl FnOnce(&mut DapiConfig)) {
        let config = {
            let mut config = self.dapi_config.lock().unwrap();
            change(&mut config);
            MockConfig::Dapi(config.clone())
        };
        let url = format!("http://{}/control/v1/config", self.dapi.ready()["control"]);
        let answer = reqwest::Client::new().put(url).json(&config).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }

    pub async fn stop(self) {
        self.chain.stop().await;
        self.dapi.stop().await;
        self.openai.stop().await;
    }
}

fn chain_config(hosts: usize, stub: bool) -> ChainConfig {
    let key = |byte: u8| {
        let mut bytes = [0_u8; 32];
        bytes[31] = byte;
        wire::keys::PrivateKey::from_bytes(&bytes).unwrap().public_key()
    };
    let participant = |(index, (byte, address)): (usize, &(u8, &str))| ChainParticipant {
        address: (*address).to_owned(),
        inference_url: format!("http://127.0.0.1:{}", 23_500 + index),
        pubkey: if stub { key(*byte).to_base64() } else { String::new() },
    };
    let grant = ChainGrant {
        granter: HOSTS[0].1.to_owned(),
        message_type: "/inference.inference.MsgStartInference".to_owned(),
        grantee: WARM.to_owned(),
        pubkey: key(4).to_base64(),
    };
    // The third host of the captures is a participant without a slot in the escrow that was captured.
    let slots = HOSTS[..hosts.min(2)].iter().map(|(_, address)| (*address).to_owned()).collect();
    let escrow = ChainEscrow {
        id: 1,
        creator: USER.to_owned(),
        amount: 50_000_000,
        slots,
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
        participants: HOSTS[..hosts].iter().enumerate().map(participant).collect(),
        escrows: vec![escrow],
        epoch: 1,
        block_interval: Micros::from_s(3_600),
        params: ChainParams {
            max_nonce: 500,
            refusal_timeout_s: 61,
            execution_timeout_s: 1_201,
            validation_rate: 10_000,
            ..ChainParams::default()
        },
        grants: if stub { Vec::new() } else { vec![grant] },
        rules: Vec::new(),
    }
}

fn dapi_config() -> DapiConfig {
    DapiConfig {
        v: 1,
        seed: 42,
        hosts: vec!["host-0".to_owned()],
        nodes: vec![DapiNode {
            name: "mock-openai".to_owned(),
            base_url: "http://127.0.0.1:23089".to_owned(),
            weight: 1,
            available: true,
        }],
        policy: Policy::RoundRobin,
        order: Vec::new(),
        lease: Micros::from_s(60),
        runtime: RuntimeParams {
            params_block_height: 150,
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

fn oracle(block_height: u64, phase: &str, weight: u64) -> Oracle {
    let participant = |(index, (_, address)): (usize, &(u8, &str))| OracleParticipant {
        address: (*address).to_owned(),
        inference_url: format!("http://127.0.0.1:{}", 23_500 + index),
        weight,
    };
    Oracle {
        versions: Vec::new(),
        block_height: Some(block_height),
        phase: Some(if phase == "Inference" { EpochPhase::Inference } else { EpochPhase::PoCGenerate }),
        participants: HOSTS[..2].iter().enumerate().map(participant).collect(),
    }
}

fn node() -> NodeConfig {
    let behaviour = Profile {
        version: 1,
        description: String::new(),
        ttft: Timing::default(),
        token_interval: Timing::default(),
        workers: 8,
        queue: 8,
        failures: Vec::new(),
        expect: Vec::new(),
    };
    NodeConfig { name: "mock-openai".to_owned(), behaviour }
}
