//! Reading what gateway, hosts and mocks show, into the normalised types of crate `evidence`.
//!
//! A surface that doesn't answer is never an error of the run: it becomes a `Missing` entry, and the assertions that
//! need it answer unknown.

pub mod gateway;
pub mod host;
pub mod join;
pub mod metrics;
pub mod mocks;
pub mod snapshot;

use std::time::Duration;

use evidence::snapshot::Missing;
use serde_json::Value;

use crate::control::bounded_body;

/// Largest answer of a surface that is read.
pub const ANSWER_LEN_MAX: usize = 256 * 1024 * 1024;

/// Where the surfaces of one Devshard are.
#[derive(Clone, Debug)]
pub struct Surfaces {
    /// HTTP client of the run.
    pub client: reqwest::Client,
    /// Gateway base URL.
    pub gateway: String,
    /// Admin bearer of the gateway.
    pub admin_key: String,
    /// Host base URLs by service, in host order, with the participant's address.
    pub hosts: Vec<HostSurface>,
    /// Path prefix of sessions on hosts, for example `/devshard/v2`.
    pub session_prefix: String,
    /// Escrow ids.
    pub escrows: Vec<String>,
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
    /// GET with the admin bearer when `admin`, decoded as JSON.
    ///
    /// # Errors
    /// Status, transport or parse failure in words.
    pub async fn json(&self, url: &str, admin: bool) -> Result<Value, String> {
        let mut request = self.client.get(url);
        if admin {
            request = request.bearer_auth(&self.admin_key);
        }
        let answer = request.send().await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let body = bounded_body(answer, ANSWER_LEN_MAX).await?;
        if !status.is_success() {
            let text = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
            return Err(format!("{status}: {text}"));
        }
        serde_json::from_slice(&body).map_err(|error| format!("the answer is not JSON: {error}"))
    }

    /// GET as text.
    ///
    /// # Errors
    /// As [`Surfaces::json`].
    pub async fn text(&self, url: &str) -> Result<String, String> {
        let answer = self.client.get(url).send().await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let body = bounded_body(answer, ANSWER_LEN_MAX).await?;
        if !status.is_success() {
            return Err(status.to_string());
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// POST without a body, with the admin bearer and a time limit of its own; gives status and body text.
    ///
    /// # Errors
    /// Transport failure in words.
    pub async fn post(&self, url: &str, limit: Duration) -> Result<(u16, String), String> {
        let request = self.client.post(url).bearer_auth(&self.admin_key).timeout(limit);
        let answer = request.send().await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let body = bounded_body(answer, ANSWER_LEN_MAX).await?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

/// Keeps an answer, or notes that it is missing.
pub fn keep<T>(missing: &mut Vec<Missing>, what: &str, answer: Result<T, String>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(why) => {
            let why = why.chars().take(300).collect();
            missing.push(Missing { what: what.to_owned(), why });
            None
        }
    }
}
