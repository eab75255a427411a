//! Helpers of the gRPC mocks' tests.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use mocks::process::Running;
use scenario::control::{ConfigApplied, ControlError, Hit, MockConfig, Page};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tonic::transport::{Channel, Endpoint};

/// Every listener of a test is here.
pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Request and answer as captured, in hex.
#[derive(Debug, Deserialize)]
pub struct Captured {
    pub request_hex: String,
    pub response_hex: String,
}

/// Captured calls by name.
pub fn captured() -> BTreeMap<String, Captured> {
    serde_json::from_str(include_str!("../fixtures/wire-july/grpc.json")).expect("the fixture is JSON")
}

impl Captured {
    /// The request, decoded.
    pub fn request<M: prost::Message + Default>(&self) -> M {
        M::decode(hex::decode(&self.request_hex).unwrap().as_slice()).unwrap()
    }

    /// The answer, decoded.
    pub fn response<M: prost::Message + Default>(&self) -> M {
        M::decode(hex::decode(&self.response_hex).unwrap().as_slice()).unwrap()
    }
}

/// A channel to a listener by its name.
pub async fn channel(running: &Running, name: &str) -> Channel {
    let address = &running.ready()[name];
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// URL of a path at a listener.
pub fn url(running: &Running, name: &str, path: &str) -> String {
    format!("http://{}{path}", running.ready()[name])
}

/// GET, as JSON.
pub async fn get<T: DeserializeOwned>(running: &Running, name: &str, path: &str) -> T {
    reqwest::get(url(running, name, path)).await.unwrap().json().await.unwrap()
}

/// PUT of a configuration.
pub async fn put(running: &Running, config: &MockConfig) -> Result<ConfigApplied, ControlError> {
    let request = reqwest::Client::new().put(url(running, "control", "/control/v1/config")).json(config);
    let answer = request.send().await.unwrap();
    if answer.status() == 200 {
        return Ok(answer.json().await.unwrap());
    }
    assert_eq!(answer.status(), 400);
    Err(answer.json().await.unwrap())
}

/// All hits.
pub async fn hits(running: &Running) -> Vec<Hit> {
    get::<Page<Hit>>(running, "control", "/control/v1/hits?after=0&limit=1000").await.items
}

/// Waits until something holds, at most five seconds.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..250 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("did not happen within 5 s: {what}");
}
