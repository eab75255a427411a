//! Chain, allocators, model servers, hosts behind a door each, and a gateway: all in this process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use refshard::gateway::{Defect, Gateway, GatewayConfig, GatewayKeys};
use refshard::host::{Defect as HostDefect, Host, HostConfig};
use refshard::personality::{Personality, Waits};
use refshard::signing::Signer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use wire::proto::nodemanager::node_manager_server::{NodeManager, NodeManagerServer};
use wire::proto::nodemanager::*;

use super::chain::FakeChain;
use super::node::{self, Node};

pub const ADMIN: &str = "admin-key-of-the-test";
pub const CREATOR: &str = "0000000000000000000000000000000000000000000000000000000000000007";

/// An allocator that leases its one node whatever is excluded, as the one of the captures.
pub struct Allocator {
    url: String,
    pub max_nonce: Arc<AtomicU32>,
    ordinal: AtomicU32,
}

#[tonic::async_trait]
impl NodeManager for Allocator {
    async fn acquire_ml_node(
        &self,
        _: Request<AcquireMlNodeRequest>,
    ) -> Result<Response<AcquireMlNodeResponse>, Status> {
        let lock_id = format!("lock-{}", self.ordinal.fetch_add(1, Ordering::SeqCst) + 1);
        Ok(Response::new(AcquireMlNodeResponse {
            endpoint: format!("{}/l/{lock_id}", self.url),
            lock_id,
            node_id: "mock-openai".into(),
        }))
    }

    async fn release_ml_node(
        &self,
        _: Request<ReleaseMlNodeRequest>,
    ) -> Result<Response<ReleaseMlNodeResponse>, Status> {
        Ok(Response::new(ReleaseMlNodeResponse {}))
    }

    async fn get_runtime_config(
        &self,
        request: Request<GetRuntimeConfigRequest>,
    ) -> Result<Response<GetRuntimeConfigResponse>, Status> {
        let known = request.into_inner().client_params_block_height;
        let max_nonce = self.max_nonce.load(Ordering::SeqCst);
        if known == i64::from(max_nonce) + 1 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let config = RuntimeConfig {
            params_block_height: i64::from(max_nonce) + 1,
            devshard_requests_enabled: true,
            max_nonce,
            ..RuntimeConfig::default()
        };
        Ok(Response::new(GetRuntimeConfigResponse { unchanged: false, config: Some(config) }))
    }
}

/// What stands in front of a host: passes on, or has lost its host and says 502.
pub struct Door {
    pub url: String,
    state: Arc<AtomicU8>,
    changed: Arc<tokio::sync::Notify>,
}

impl Door {
    async fn open(host: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (state, changed) = (Arc::new(AtomicU8::new(0)), Arc::new(tokio::sync::Notify::new()));
        let (at, news) = (state.clone(), changed.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                if at.load(Ordering::SeqCst) == 1 {
                    // A request that is not read would be reset.
                    let mut request = [0; 65536];
                    let _ = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut request)).await;
                    let text = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                    let _ = stream.write_all(text).await;
                    continue;
                }
                let (host, news) = (host.clone(), news.clone());
                tokio::spawn(async move {
                    let closed = news.notified();
                    let Ok(mut other) = TcpStream::connect(&host).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut stream, &mut other) => {}
                        () = closed => {}
                    }
                });
            }
        });
        Self { url, state, changed }
    }

    /// The host behind it is gone: running answers break off, new ones are 502.
    pub fn lose(&self) {
        self.state.store(1, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
}

pub struct World {
    pub base: String,
    pub client: reqwest::Client,
    pub chain: FakeChain,
    pub doors: Vec<Door>,
    pub nodes: Vec<Arc<Node>>,
    pub max_nonce: Vec<Arc<AtomicU32>>,
    pub hosts: Vec<String>,
    pub directory: tempfile::TempDir,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn waits() -> Waits {
    Waits { refusal_s: 3, execution_s: 8, grace_s: 2 }
}

fn host_config(
    directory: &Path,
    index: usize,
    chain: &str,
    dapi: &str,
    personality: Personality,
) -> HostConfig {
    serde_json::from_value(json!({
        "host": format!("host-{index}"),
        "chain_grpc": chain,
        "dapi_grpc": dapi,
        "database": directory.join(format!("host-{index}.db")),
        "personality": personality,
        "waits": waits(),
        "acquire_pause_ms": 1,
    }))
    .unwrap()
}

impl World {
    /// `participants` hosts with one node each, escrows 1 to 15, the model open.
    pub async fn start(personality: Personality, participants: usize, settings: Value) -> Self {
        let signer = |number: usize| Signer::from_hex(&format!("{:064x}", 100 + number)).unwrap();
        let slots: Vec<String> =
            (0..participants).map(|number| signer(number).address().to_owned()).collect();
        let creator = Signer::from_hex(CREATOR).unwrap();
        let ids: Vec<u64> = (1..=15).collect();
        let chain = FakeChain::start(&ids, creator.address(), &slots).await;
        // Escrow 5 of the captures is too poor for one request of 3000 tokens.
        chain.escrows.lock().unwrap().get_mut(&9).unwrap().amount = 1_000_000_000;
        chain.escrows.lock().unwrap().get_mut(&5).unwrap().amount =
            if participants == 1 { 200_000 } else { 1_000_000_000 };
        let directory = tempfile::tempdir().unwrap();
        let mut world = Self {
            base: String::new(),
            client: reqwest::Client::builder().timeout(Duration::from_secs(60)).build().unwrap(),
            chain,
            doors: Vec::new(),
            nodes: Vec::new(),
            max_nonce: Vec::new(),
            hosts: Vec::new(),
            directory,
            tasks: Vec::new(),
        };
        for (index, slot) in slots.iter().enumerate() {
            world.add_host(index, personality, signer(index), slot).await;
        }
        world.start_gateway(personality, settings).await;
        world
    }

    async fn add_host(&mut self, index: usize, personality: Personality, signer: Signer, address: &str) {
        let node = node::start().await;
        let max_nonce = Arc::new(AtomicU32::new(0));
        let allocator =
            Allocator { url: node.url.clone(), max_nonce: max_nonce.clone(), ordinal: AtomicU32::new(0) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dapi = listener.local_addr().unwrap().to_string();
        let service = NodeManagerServer::new(allocator);
        let serving = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        self.tasks.push(tokio::spawn(async move { drop(serving.await) }));
        let chain = self.chain.address.to_string();
        let config = host_config(self.directory.path(), index, &chain, &dapi, personality);
        let host = Host::open(config, signer, HostDefect::default()).unwrap();
        let (listener, at) = host.listen().await.unwrap();
        self.tasks.push(tokio::spawn(async move {
            host.serve(listener, std::future::pending()).await.unwrap();
        }));
        let door = Door::open(at.to_string()).await;
        self.chain.urls.lock().unwrap().insert(address.to_owned(), door.url.clone());
        self.hosts.push(format!("http://{at}"));
        self.doors.push(door);
        self.nodes.push(node);
        self.max_nonce.push(max_nonce);
    }

    async fn start_gateway(&mut self, personality: Personality, extra: Value) {
        let mut settings = json!({
            "model_limits": [{ "model_id": "test-model", "access_mode": "open", "max_concurrent_requests": 500 }],
            "redundancy": { "speed_policy": "legacy", "receipt_timeout_ms": 3000,
                "secondary_wait_after_winner_ms": 15000 },
        });
        for (key, value) in extra.as_object().unwrap() {
            match (settings.get_mut(key), value) {
                (Some(Value::Object(known)), Value::Object(new)) => known.extend(new.clone()),
                _ => settings[key] = value.clone(),
            }
        }
        let config: GatewayConfig = serde_json::from_value(json!({
            "escrow_ids": (1..=15).collect::<Vec<u64>>(),
            "model": "test-model",
            "chain_grpc": self.chain.address.to_string(),
            "database_dir": self.directory.path(),
            "personality": personality,
            "waits": waits(),
            "settings": settings,
        }))
        .unwrap();
        let keys = GatewayKeys::new(CREATOR, Some(ADMIN.into()), Vec::new()).unwrap();
        let gateway = Gateway::open(config, keys, Defect::default()).await.unwrap();
        let (listener, at) = gateway.listen().await.unwrap();
        self.tasks.push(tokio::spawn(async move {
            gateway.serve(listener, std::future::pending()).await.unwrap();
        }));
        self.base = format!("http://{at}");
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.client.get(format!("{}{path}", self.base)).bearer_auth(ADMIN).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap_or_default())
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let request = self.client.post(format!("{}{path}", self.base)).bearer_auth(ADMIN);
        let answer = request.json(&body).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap_or_default())
    }

    /// Texts of `/metrics` of the gateway and of every host.
    pub async fn metrics(&self) -> Vec<String> {
        let mut texts = Vec::new();
        for base in std::iter::once(&self.base).chain(&self.hosts) {
            let answer = self.client.get(format!("{base}/metrics")).send().await.unwrap();
            texts.push(answer.text().await.unwrap());
        }
        texts
    }
}
