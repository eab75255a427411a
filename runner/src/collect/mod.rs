//! Reading what gateway, hosts and mocks show, into the normalised types of crate `evidence`.
//!
//! A surface that doesn't answer is never an error of the run: it becomes a `Missing` entry, and the assertions that
//! need it answer unknown.

pub mod ask;
pub mod counters;
pub mod gateway;
pub mod health;
pub mod host;
pub mod join;
pub mod leases;
pub mod metrics;
pub mod mocks;
pub mod perf;
pub mod snapshot;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evidence::snapshot::Missing;
use serde_json::Value;

use ask::{Ask, Refusal, begin, bound};

/// Escrows of one run that are followed; rotation opens a few at each epoch.
const ESCROWS_MAX: usize = 1_024;

/// Where the surfaces of one Devshard are.
#[derive(Clone, Debug)]
pub struct Surfaces {
    /// HTTP client of the run.
    pub ask: Ask,
    /// Gateway base URL.
    pub gateway: String,
    /// Admin bearer of the gateway.
    pub admin_key: String,
    /// Host base URLs by service, in host order, with the participant's address.
    pub hosts: Vec<HostSurface>,
    /// Path prefix of sessions on hosts, for example `/devshard/v2`; empty for bare hosts.
    pub session_prefix: String,
    /// Escrows of this run.
    pub escrows: Escrows,
    /// Length of the plan: some answers grow with it, and so do their bounds.
    pub requests_max: u64,
    /// Where a gateway on this machine keeps its perf database, if it may have one (contract gateway 1.4).
    pub perf_db: Option<PathBuf>,
}

/// Escrow ids in the order in which they became known: those of the start, then those that were opened later.
#[derive(Clone, Debug, Default)]
pub struct Escrows(Arc<Mutex<Vec<String>>>);

impl Escrows {
    /// The ids of the start, from 1.
    #[must_use]
    pub fn first(count: u32) -> Self {
        Self(Arc::new(Mutex::new((1..=count).map(|id| id.to_string()).collect())))
    }

    /// All that are known now.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds ids that are new.
    pub fn add(&self, ids: impl IntoIterator<Item = String>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            if !known.contains(&id) && known.len() < ESCROWS_MAX {
                known.push(id);
            }
        }
    }
}

/// One host's surface.
#[derive(Clone, Debug)]
pub struct HostSurface {
    /// Service, `host-0`.
    pub service: String,
    /// Base URL.
    pub base: String,
    /// Participant address.
    pub participant: String,
}

impl Surfaces {
    /// GET with the admin bearer when `admin`, at most `len_max` bytes, decoded as JSON and read into what it is.
    ///
    /// # Errors
    /// [`Missed`]; what `read` finds wrong with the form of the answer is a refusal.
    pub async fn json<T>(
        &self,
        url: &str,
        admin: bool,
        len_max: usize,
        read: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<(T, Value), Missed> {
        let mut request = self.ask.client().get(url);
        if admin {
            request = request.bearer_auth(&self.admin_key);
        }
        let (status, body) = self.ask.send(request, len_max).await?;
        if status >= 300 {
            return Err(Missed::Status(status, begin(&body)));
        }
        let refused = |refusal| Missed::Refused(self.ask.count(url, refusal));
        let value: Value = serde_json::from_slice(&body)
            .map_err(|error| refused(Refusal::Unreadable(format!("JSON: {error}"))))?;
        drop(body);
        match read(&value) {
            Ok(read) => Ok((read, value)),
            Err(why) => Err(refused(Refusal::Form(why))),
        }
    }

    /// A page of Prometheus text, as text and as series.
    ///
    /// # Errors
    /// As [`Surfaces::json`].
    pub async fn metrics(&self, base: &str) -> Result<(String, metrics::Series), Missed> {
        let url = format!("{base}/metrics");
        let request = self.ask.client().get(&url);
        let (status, body) = self.ask.send(request, bound::METRICS).await?;
        if status >= 300 {
            return Err(Missed::Status(status, begin(&body)));
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        let series = metrics::series(&text).map_err(|why| {
            let refusal = Refusal::Unreadable(format!("a page of metrics: {why}"));
            self.ask.count(&url, refusal)
        })?;
        Ok((text, series))
    }

    /// POST without a body, with the admin bearer and a time limit of its own; gives status and body text.
    ///
    /// # Errors
    /// Refusal in words.
    pub async fn post(&self, url: &str, limit: Duration) -> Result<(u16, String), String> {
        self.send(self.ask.client().post(url), limit).await
    }

    /// As [`Surfaces::post`], with a JSON body.
    ///
    /// # Errors
    /// Refusal in words.
    pub async fn post_json(&self, url: &str, body: &Value, limit: Duration) -> Result<(u16, String), String> {
        self.send(self.ask.client().post(url).json(body), limit).await
    }

    async fn send(&self, request: reqwest::RequestBuilder, limit: Duration) -> Result<(u16, String), String> {
        let request = request.bearer_auth(&self.admin_key).timeout(limit);
        let answer = self.ask.send(request, bound::SMALL).await;
        let (status, body) = answer.map_err(|refusal| refusal.to_string())?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// The same for an order that a good answer confirms with the nonce it came to (sync and finalize, contract gateway
    /// 2.4.5 and 2.5): a page of something else is no confirmation.
    ///
    /// # Errors
    /// Refusal in words.
    pub async fn order(&self, url: &str, limit: Duration) -> Result<(u16, String), String> {
        let (status, text) = self.post(url, limit).await?;
        let confirmed = || serde_json::from_str::<Value>(&text).ok()?["nonce"].as_u64();
        if status < 300 && confirmed().is_none() {
            return Err(self.ask.count(url, Refusal::Form("no nonce".to_owned())).to_string());
        }
        Ok((status, text))
    }

    /// Service at a `host:port`.
    #[must_use]
    pub fn service_at(&self, origin: &str) -> Option<&str> {
        if ask::origin(&self.gateway) == origin {
            return Some("gateway");
        }
        let host = self.hosts.iter().find(|host| ask::origin(&host.base) == origin);
        host.map(|host| host.service.as_str())
    }
}

/// Why something was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missed {
    /// The service answered with a status of failure and this text.
    #[error("{0}: {1}")]
    Status(u16, String),
    /// There was no answer that could be used.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Keeps an answer, or notes that it is missing.
pub fn keep<T>(
    missing: &mut Vec<Missing>,
    what: &str,
    answer: Result<T, impl std::fmt::Display>,
) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(why) => {
            let why = why.to_string().chars().take(300).collect();
            missing.push(Missing { what: what.to_owned(), why });
            None
        }
    }
}
