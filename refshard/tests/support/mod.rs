//! A small world around a host under test: chain, allocator, model servers and a user, all in this process.

#![expect(dead_code, reason = "each test file uses a part of it")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail the test; the lint exempts only test functions"
)]

pub mod chain;
pub mod dapi;
pub mod node;
pub mod postgres;
pub mod user;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use refshard::host::{Defect, Host, HostConfig};
use refshard::personality::{Personality, Waits};
use refshard::signing::Signer;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub const ESCROW: &str = "42";

/// Key of a host by number, or of the user (100).
pub fn key(number: u8) -> String {
    format!("{number:064x}")
}

pub fn signer(number: u8) -> Signer {
    Signer::from_hex(&key(number)).unwrap()
}

pub fn user_signer() -> Signer {
    signer(100)
}

/// Addresses by participant, filled when hosts have bound.
pub type Urls = Arc<Mutex<HashMap<String, String>>>;

/// One host that runs in this process.
pub struct Running {
    pub url: String,
    pub host: Arc<Host>,
    task: JoinHandle<()>,
    /// A runtime of its own, where all its tasks end together.
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Running {
    /// Ends it with everything that it has begun, if it runs apart from the others.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Ends it without a shutdown, as a crash would: tasks are dropped where they stand.
    pub fn crash(&self) {
        self.task.abort();
    }
}

pub fn host_config(database: &Path, chain: &str, dapi: &str) -> HostConfig {
    HostConfig {
        host: "host".into(),
        listen: "127.0.0.1:0".into(),
        chain_grpc: chain.into(),
        dapi_grpc: dapi.into(),
        database: database.to_owned(),
        chain_rpc: None,
        postgres_url: None,
        lease_ttl_ms: 1000,
        lease_retry_ms: 100,
        validation_concurrency: 2,
        personality: Personality::Intended,
        waits: Waits { refusal_s: 1, execution_s: 1, grace_s: 0 },
        acquire_pause_ms: 5,
        route_prefix: "/devshard/v2".into(),
    }
}

pub async fn start_host(config: HostConfig, number: u8) -> Running {
    start_defect(config, number, Defect::default()).await
}

pub async fn start_defect(config: HostConfig, number: u8, defect: Defect) -> Running {
    let host = Host::open(config, signer(number), defect).unwrap();
    let (listener, address) = host.listen().await.unwrap();
    let serving = host.clone();
    let task = tokio::spawn(async move {
        serving.serve(listener, std::future::pending()).await.unwrap();
    });
    Running { url: format!("http://{address}"), host, task, runtime: None }
}

/// A host that can be killed: it runs apart from everything else.
pub async fn start_apart(config: HostConfig, number: u8) -> Running {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let started = runtime.spawn(async move {
        let host = Host::open(config, signer(number), Defect::default()).unwrap();
        let (listener, address) = host.listen().await.unwrap();
        (host, listener, address)
    });
    let (host, listener, address) = started.await.unwrap();
    let serving = host.clone();
    let task = runtime.spawn(async move {
        serving.serve(listener, std::future::pending()).await.unwrap();
    });
    Running { url: format!("http://{address}"), host, task, runtime: Some(runtime) }
}

/// Binds a port of the kernel's choice.
pub async fn bind() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Waits up to five seconds for something to become true.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..500 {
        if holds().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("not within five seconds: {what}");
}
