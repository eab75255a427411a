//! Client of the mocks' control API (`scenario::control`).

use scenario::control::{ConfigApplied, ControlError, MockConfig, Page};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::collect::ask::{Ask, Refusal, begin, bound};
use crate::error::RunnerError;

/// Log entries asked for at once.
pub const PAGE_LEN: u64 = 5_000;

/// One mock's control address.
#[derive(Clone, Debug)]
pub struct Control {
    ask: Ask,
    base: String,
}

impl Control {
    /// The control API at `host:port`.
    #[must_use]
    pub fn new(ask: Ask, address: &str) -> Self {
        Self { ask, base: format!("http://{address}/control/v1") }
    }

    /// Its `host:port`.
    #[must_use]
    pub fn origin(&self) -> String {
        crate::collect::ask::origin(&self.base)
    }

    /// Replaces the configuration.
    ///
    /// # Errors
    /// The mock's refusal or the failure of the call, in words.
    pub async fn put_config(&self, config: &MockConfig) -> Result<ConfigApplied, String> {
        let url = format!("{}/config", self.base);
        let body = self.send(&url, self.ask.client().put(&url).json(config), bound::SMALL).await?;
        self.decode(&url, &body)
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
        self.send(&url, self.ask.client().post(&url).json(act), bound::SMALL).await.map(drop)
    }

    /// Reads a page of `hits` or `calls` after a sequence number.
    ///
    /// # Errors
    /// The failure of the call, in words.
    pub async fn page<T: DeserializeOwned>(&self, log: &str, after: u64) -> Result<Page<T>, String> {
        self.get(&format!("{log}?after={after}&limit={PAGE_LEN}")).await
    }

    async fn get<T: DeserializeOwned>(&self, what: &str) -> Result<T, String> {
        let url = format!("{}/{what}", self.base);
        let body = self.send(&url, self.ask.client().get(&url), bound::PAGE).await?;
        self.decode(&url, &body)
    }

    /// The body of a good answer; a refusal of the mock in its words.
    async fn send(
        &self,
        url: &str,
        request: reqwest::RequestBuilder,
        len_max: usize,
    ) -> Result<Vec<u8>, String> {
        let (status, body) = self.ask.send(request, len_max).await.map_err(|refusal| refusal.to_string())?;
        if status < 300 {
            return Ok(body);
        }
        let why = serde_json::from_slice::<ControlError>(&body);
        let why = why.map_or_else(|_| begin(&body), |refusal| refusal.error);
        Err(format!("{url}: {status}: {why}"))
    }

    fn decode<T: DeserializeOwned>(&self, url: &str, body: &[u8]) -> Result<T, String> {
        serde_json::from_slice(body).map_err(|error| {
            let refusal = if error.is_data() {
                Refusal::Form(error.to_string())
            } else {
                Refusal::Unreadable(format!("JSON: {error}"))
            };
            self.ask.count(url, refusal).to_string()
        })
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
