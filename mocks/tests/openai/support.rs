//! A pool under test and a client that sees every byte and how a connection ends.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use mocks::process::Running;
use scenario::control::{
    ConfigApplied, Hit, MockConfig, NodeCall, NodeConfig, NodeOutcome, NodeRule, OpenaiConfig, OpenaiStats,
    Page,
};
use scenario::fault::{Attempts, CallKind, NodeFault, Select};
use scenario::profile::{Profile, Timing};
use scenario::units::Micros;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(10);

/// A profile without waits.
pub fn fast() -> Profile {
    Profile {
        version: 1,
        description: String::new(),
        ttft: Timing::default(),
        token_interval: Timing::default(),
        workers: 64,
        queue: 64,
        failures: Vec::new(),
        expect: Vec::new(),
    }
}

/// A configuration of nodes `node-0`, `node-1`, … with these profiles.
pub fn config(profiles: Vec<Profile>, rules: Vec<NodeRule>) -> MockConfig {
    let node = |(index, behaviour)| NodeConfig { name: format!("node-{index}"), behaviour };
    let nodes = profiles.into_iter().enumerate().map(node).collect();
    MockConfig::Openai(OpenaiConfig { v: 1, seed: 42, nodes, rules })
}

/// A rule for every execution at `node-0`.
pub fn rule(action: NodeFault) -> NodeRule {
    NodeRule {
        id: "r".to_owned(),
        nodes: vec!["node-0".to_owned()],
        on: CallKind::Execution,
        select: Select::All(true),
        attempts: Attempts::All,
        action,
    }
}

/// How a connection stood when the client stopped reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The answer was whole and the connection open.
    Open,
    /// FIN.
    Fin,
    /// RST.
    Rst,
}

/// What a client saw.
#[derive(Clone, Debug)]
pub struct Seen {
    pub status: Option<u16>,
    pub head: String,
    pub body: Vec<u8>,
    /// The framing (length or last chunk) was complete.
    pub whole: bool,
    pub end: End,
}

impl Seen {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// `data:` payloads of the events.
    pub fn events(&self) -> Vec<String> {
        events(self.text())
    }

    /// Content of the deltas, joined.
    pub fn joined(&self) -> String {
        let content = |event: &String| {
            let event: Value = serde_json::from_str(event).ok()?;
            event["choices"][0]["delta"]["content"].as_str().map(str::to_owned)
        };
        self.events().iter().filter_map(content).collect()
    }

    pub fn content(&self) -> String {
        self.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }
}

pub fn events(text: &str) -> Vec<String> {
    text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).map(str::to_owned).collect()
}

/// A pool under test.
pub struct Stand {
    pub running: Running,
    http: reqwest::Client,
}

impl Stand {
    pub async fn new(config: MockConfig) -> Self {
        Self::with_log(config, 10_000).await
    }

    pub async fn with_log(config: MockConfig, log_max: usize) -> Self {
        let running = mocks::openai::start(config, log_max, IpAddr::V4(Ipv4Addr::LOCALHOST)).await.unwrap();
        Self { running, http: reqwest::Client::new() }
    }

    /// One fast node with one rule for everything.
    pub async fn faulty(action: NodeFault) -> Self {
        Self::new(config(vec![fast()], vec![rule(action)])).await
    }

    pub fn address(&self, name: &str) -> &str {
        &self.running.ready()[name]
    }

    pub async fn connect(&self, node: &str) -> TcpStream {
        TcpStream::connect(self.address(&format!("node:{node}"))).await.unwrap()
    }

    /// One chat on a connection of its own.
    pub async fn chat(&self, node: &str, body: &Value) -> Seen {
        self.exchange(node, &chat_bytes(body, "")).await
    }

    /// Sends bytes on a connection of its own and reads one answer.
    pub async fn exchange(&self, node: &str, bytes: &[u8]) -> Seen {
        let mut stream = self.connect(node).await;
        stream.write_all(bytes).await.unwrap();
        read_answer(&mut stream).await
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address("control"))
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        self.http.get(self.url(path)).send().await.unwrap().json().await.unwrap()
    }

    pub async fn get_text(&self, path: &str) -> String {
        self.http.get(self.url(path)).send().await.unwrap().text().await.unwrap()
    }

    /// PUT of anything: status and answer.
    pub async fn put(&self, body: String) -> (u16, Value) {
        let answer = self.http.put(self.url("/control/v1/config")).body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    pub async fn put_config(&self, config: &MockConfig) -> ConfigApplied {
        let (status, answer) = self.put(serde_json::to_string(config).unwrap()).await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_value(answer).unwrap()
    }

    pub async fn hits(&self) -> Vec<Hit> {
        self.get::<Page<Hit>>("/control/v1/hits").await.items
    }

    pub async fn calls(&self) -> Vec<NodeCall> {
        self.get::<Page<NodeCall>>("/control/v1/calls").await.items
    }

    /// The last entries of ended calls; waits until there are `count`.
    pub async fn ended(&self, count: usize) -> Vec<NodeCall> {
        for _ in 0..500 {
            let mut calls = self.calls().await;
            calls.retain(|call| call.outcome != NodeOutcome::Running);
            if calls.len() >= count {
                return calls;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{count} calls did not end: {:?}", self.calls().await);
    }

    pub async fn stats(&self) -> OpenaiStats {
        self.get("/control/v1/stats").await
    }
}

/// A chat body with a marker.
pub fn marked(index: u64, stream: bool) -> Value {
    let text = format!("[load-request:t-42-{index:06}][run:abcdefghijkl] hello");
    json!({ "messages": [{ "role": "user", "content": text }], "model": "m", "stream": stream, "max_tokens": 12 })
}

/// Bytes of a chat request; `headers` are whole lines.
pub fn chat_bytes(body: &Value, headers: &str) -> Vec<u8> {
    post_bytes("/v1/chat/completions", body.to_string().as_bytes(), headers)
}

pub fn post_bytes(path: &str, body: &[u8], headers: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Reads one answer, or what there is of it.
pub async fn read_answer(stream: &mut TcpStream) -> Seen {
    tokio::time::timeout(PATIENCE, read_patiently(stream)).await.expect("an answer, an end, or a reset")
}

async fn read_patiently(stream: &mut TcpStream) -> Seen {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(seen) = parse(&bytes, End::Open)
            && seen.whole
        {
            return seen;
        }
        match stream.read_buf(&mut bytes).await {
            Ok(0) => break End::Fin,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break End::Rst,
            Err(error) => panic!("{error}"),
        }
    };
    let nothing = Seen { status: None, head: String::new(), body: bytes.clone(), whole: false, end };
    parse(&bytes, end).unwrap_or(nothing)
}

fn parse(bytes: &[u8], end: End) -> Option<Seen> {
    let split = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
    let rest = &bytes[split + 4..];
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let (body, whole) = match length {
        Some(length) => {
            let length: usize = length.parse().unwrap();
            (rest[..rest.len().min(length)].to_vec(), rest.len() >= length)
        }
        None => unchunk(rest),
    };
    Some(Seen { status: Some(status), head, body, whole, end })
}

fn unchunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(line) = rest.windows(2).position(|two| two == b"\r\n") else { return (body, false) };
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        rest = &rest[line + 2..];
        if size == 0 {
            return (body, rest.starts_with(b"\r\n"));
        }
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        if rest.len() < size + 2 {
            return (body, false);
        }
        rest = &rest[size + 2..];
    }
}

pub const fn ms(ms: u64) -> Micros {
    Micros::from_ms(ms)
}
