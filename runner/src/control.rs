//! Client of the mocks' control API (`scenario::control`).

use std::time::Duration;

use scenario::control::{ConfigApplied, ControlError, MockConfig, Page};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::RunnerError;

/// Time limit of one control call.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Largest answer accepted.
const ANSWER_LEN_MAX: usize = 64 * 1024 * 1024;
/// Log entries asked for at once.
pub const PAGE_LEN: u64 = 5_000;

/// An HTTP client for the run's own services: no proxy, no redirect, bounded times.
///
/// # Errors
/// When the client can't be built (no file descriptors, for example).
pub fn client() -> Result<reqwest::Client, String> {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(CALL_LIMIT)
        .connect_timeout(Duration::from_secs(2))
        .pool_max_idle_per_host(4)
        .build()
        .map_err(|error| error.to_string())
}

/// One mock's control address.
#[derive(Clone, Debug)]
pub struct Control {
    client: reqwest::Client,
    base: String,
}

impl Control {
    /// The control API at `host:port`.
    #[must_use]
    pub fn new(client: reqwest::Client, address: &str) -> Self {
        Self { client, base: format!("http://{address}/control/v1") }
    }

    /// Replaces the configuration.
    ///
    /// # Errors
    /// The mock's refusal or the failure of the call, in words.
    pub async fn put_config(&self, config: &MockConfig) -> Result<ConfigApplied, String> {
        let url = format!("{}/config", self.base);
        let answer = self.client.put(&url).json(config).send().await.map_err(|e| e.to_string())?;
        if answer.status().is_success() {
            return decode(answer).await;
        }
        let status = answer.status();
        let why = decode::<ControlError>(answer).await.map_or_else(|e| e, |refusal| refusal.error);
        Err(format!("{status}: {why}"))
    }

    /// Reads the configuration in force.
    ///
    /// # Errors
    /// The failure of the call, in words.
    pub async fn config(&self) -> Result<MockConfig, String> {
        self.get("config").await
    }

    /// Reads statistics.
    ///
    /// # Errors
    /// The failure of the call, in words.
    pub async fn stats<T: DeserializeOwned>(&self) -> Result<T, String> {
        self.get("stats").await
    }

    /// Carries out an admin action.
    ///
    /// # Errors
    /// The mock's refusal or the failure of the call, in words.
    pub async fn act<T: Serialize + Sync>(&self, act: &T) -> Result<(), String> {
        let url = format!("{}/act", self.base);
        let answer = self.client.post(&url).json(act).send().await.map_err(|e| e.to_string())?;
        if answer.status().is_success() {
            return Ok(());
        }
        let status = answer.status();
        let why = decode::<ControlError>(answer).await.map_or_else(|e| e, |refusal| refusal.error);
        Err(format!("{status}: {why}"))
    }

    /// Reads a page of `hits` or `calls` after a sequence number.
    ///
    /// # Errors
    /// The failure of the call, in words.
    pub async fn page<T: DeserializeOwned>(&self, log: &str, after: u64) -> Result<Page<T>, String> {
        self.get(&format!("{log}?after={after}&limit={PAGE_LEN}")).await
    }

    async fn get<T: DeserializeOwned>(&self, what: &str) -> Result<T, String> {
        let answer =
            self.client.get(format!("{}/{what}", self.base)).send().await.map_err(|e| e.to_string())?;
        if !answer.status().is_success() {
            return Err(format!("{what}: {}", answer.status()));
        }
        decode(answer).await
    }
}

/// Sends a configuration and compares the hash that was answered with ours.
///
/// # Errors
/// [`RunnerError::Environment`] when the mock refuses or answers another hash.
pub async fn put(control: &Control, config: &MockConfig, mock: &str) -> Result<String, RunnerError> {
    let applied =
        control.put_config(config).await.map_err(|e| RunnerError::environment(format!("{mock}: {e}")))?;
    if applied.hash != config.hash() {
        let text = format!("{mock} answered hash {} for a configuration of {}", applied.hash, config.hash());
        return Err(RunnerError::environment(text));
    }
    Ok(applied.hash)
}

async fn decode<T: DeserializeOwned>(answer: reqwest::Response) -> Result<T, String> {
    let bytes = bounded_body(answer, ANSWER_LEN_MAX).await?;
    serde_json::from_slice(&bytes).map_err(|error| format!("the answer does not parse: {error}"))
}

/// Reads a body up to a bound: a service that sends 100 MB is a finding, not our end.
///
/// # Errors
/// In words, when the body is longer or the connection breaks.
pub async fn bounded_body(mut answer: reqwest::Response, len_max: usize) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| error.to_string())? {
        if body.len() + chunk.len() > len_max {
            return Err(format!("the answer is longer than {len_max} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
