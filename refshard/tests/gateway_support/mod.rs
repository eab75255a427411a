//! A chain and three hosts in this process, and a gateway in front of them.

#![allow(dead_code, clippy::allow_attributes, reason = "each test file uses its part of the helpers")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail the test; the lint exempts only test functions"
)]

pub mod chain;
pub mod compare;
pub mod host;
pub mod public_api;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use refshard::gateway::{Defect, Gateway, GatewayConfig, GatewayKeys};
use refshard::personality::{Personality, Waits};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub use host::{Behaviour, FakeHost};

pub const ADMIN: &str = "admin-key-of-the-test";
pub const CREATOR: &str = "0000000000000000000000000000000000000000000000000000000000000007";
pub const MODEL: &str = "test-model";

/// A whole stack; everything ends with it.
pub struct Stack {
    pub base: String,
    pub hosts: Vec<Arc<FakeHost>>,
    pub chain: chain::FakeChain,
    pub client: reqwest::Client,
    pub directory: Arc<tempfile::TempDir>,
    config: GatewayConfig,
    server: JoinHandle<()>,
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Stack {
    /// Three hosts, escrows 1 to `escrows`, the model open to everybody.
    pub async fn start(escrows: u64) -> Self {
        Self::with(escrows, json!({})).await
    }

    /// One escrow behind a gateway with a planted defect.
    pub async fn with_defect(defect: Defect) -> Self {
        Self::build(1, json!({}), defect, Personality::Intended).await
    }

    /// With settings over the open model.
    pub async fn with(escrows: u64, extra: Value) -> Self {
        Self::build(escrows, extra, Defect::default(), Personality::Intended).await
    }

    async fn build(escrows: u64, extra: Value, defect: Defect, personality: Personality) -> Self {
        let mut hosts = Vec::new();
        for number in 1..=3 {
            hosts.push(FakeHost::start(number).await);
        }
        let ids: Vec<u64> = (1..=escrows).collect();
        let creator = refshard::signing::Signer::from_hex(CREATOR).unwrap();
        let slots: Vec<String> = hosts.iter().map(|host| host.address().to_owned()).collect();
        let chain = chain::FakeChain::start(&ids, creator.address(), &slots).await;
        let urls = hosts.iter().map(|host| (host.address().to_owned(), host.url.clone()));
        chain.urls.lock().unwrap().extend(urls);
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let mut settings = json!({
            "model_limits": [{ "model_id": MODEL, "access_mode": "open", "max_concurrent_requests": 500 }],
            "redundancy": { "secondary_wait_after_winner_ms": 2000, "speed_policy": "legacy" }
        });
        for (key, value) in extra.as_object().unwrap() {
            match (settings.get_mut(key), value) {
                (Some(Value::Object(known)), Value::Object(new)) => known.extend(new.clone()),
                _ => settings[key] = value.clone(),
            }
        }
        let config = GatewayConfig {
            escrow_ids: ids,
            model: MODEL.into(),
            chain_grpc: chain.address.to_string(),
            database_dir: directory.path().to_owned(),
            listen: "127.0.0.1:0".into(),
            public_api: None,
            route_prefix: "/devshard/v2".into(),
            personality,
            waits: Waits { refusal_s: 1, execution_s: 1, grace_s: 0 },
            settings: Some(settings),
        };
        let (server, address) = serve(config.clone(), defect).await;
        let client = reqwest::Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
        let base = format!("http://{address}");
        Self { base, hosts, chain, client, directory, config, server }
    }

    /// Kills the gateway's tasks and starts another on the same files, as after a crash.
    pub async fn restart(&mut self) {
        self.server.abort();
        let (server, address) = serve(self.config.clone(), Defect::default()).await;
        self.server = server;
        self.base = format!("http://{address}");
    }

    /// As [`Stack::restart`], with nobody at the chain's address.
    pub async fn restart_without_chain(&mut self) {
        self.config.chain_grpc = "127.0.0.1:1".into();
        self.restart().await;
    }

    /// Starts another gateway on a fresh directory; the old files are given back.
    pub async fn move_files(&mut self) -> Arc<tempfile::TempDir> {
        self.server.abort();
        let fresh = Arc::new(tempfile::tempdir().unwrap());
        let old = std::mem::replace(&mut self.directory, fresh);
        self.config.database_dir = self.directory.path().to_owned();
        let (server, address) = serve(self.config.clone(), Defect::default()).await;
        self.server = server;
        self.base = format!("http://{address}");
        old
    }

    /// Another personality, on fresh files.
    pub async fn july(escrows: u64, extra: Value) -> Self {
        Self::build(escrows, extra, Defect::default(), Personality::July).await
    }

    pub fn files(&self) -> &Path {
        self.directory.path()
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

    pub async fn chat(&self, text: &str, stream: bool) -> reqwest::Response {
        self.chat_at("/v1/chat/completions", text, stream).await
    }

    pub async fn chat_at(&self, path: &str, text: &str, stream: bool) -> reqwest::Response {
        self.client.post(format!("{}{path}", self.base)).json(&body(text, stream)).send().await.unwrap()
    }

    pub async fn metric(&self, series: &str) -> f64 {
        let text =
            self.client.get(format!("{}/metrics", self.base)).send().await.unwrap().text().await.unwrap();
        let line = text.lines().find(|line| line.starts_with(series));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }

    /// The accounting of an answer, once it has an outcome.
    pub async fn accounting(&self, id: &str, escrow: &str) -> Value {
        let path = format!("/devshard/{escrow}/v1/requests/{id}");
        for _ in 0..400 {
            let (status, row) = self.get(&path).await;
            if status == 200 && row["outcome"] != "running" {
                return row;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("no outcome of {id} within 8 s");
    }
}

async fn serve(config: GatewayConfig, defect: Defect) -> (JoinHandle<()>, SocketAddr) {
    let keys = GatewayKeys::new(CREATOR, Some(ADMIN.into()), vec!["client-key".into()]).unwrap();
    let gateway = Gateway::open(config, keys, defect).await.unwrap();
    let (listener, address) = gateway.listen().await.unwrap();
    let server = tokio::spawn(async move {
        gateway.serve(listener, std::future::pending()).await.unwrap();
    });
    (server, address)
}

/// A chat body.
pub fn body(text: &str, stream: bool) -> Value {
    json!({
        "model": MODEL, "max_tokens": 32, "stream": stream,
        "messages": [{ "role": "user", "content": text }]
    })
}

/// One header as text.
pub fn header(answer: &reqwest::Response, name: &str) -> String {
    answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

/// Payloads of the `data:` lines.
pub fn frames(text: &str) -> Vec<String> {
    text.split("\n\n").filter_map(|event| Some(event.strip_prefix("data: ")?.to_owned())).collect()
}
