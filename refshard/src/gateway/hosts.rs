//! Calls of hosts (contract hosts 2.2): signed POSTs, open GETs, and the lines of an event stream.

use std::time::Duration;

use bytes::BytesMut;
use reqwest::{Client, Response, StatusCode};
use serde::de::DeserializeOwned;

use super::escrow::{Escrow, Participant};
use crate::clock;
use crate::signing::Signer;
use crate::transport::{
    ChatRequest, Mempool, MetaEvent, ReceiptEvent, SIGNATURE_HEADER, TIMESTAMP_HEADER, VerifyTimeoutRequest,
    VerifyTimeoutResponse,
};

/// Longest chat call (contract gateway 4.8).
const CHAT_TIMEOUT: Duration = Duration::from_secs(1800);
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
const VERIFY_TIMEOUT: Duration = Duration::from_secs(180);
/// Longest event line, and longest whole answer outside a chat.
const LINE_MAX: usize = 4 << 20;

/// Why a call of a host failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No connection, or it was lost before the headers.
    #[error("{0}")]
    Transport(String),
    /// The connection was lost inside the answer.
    #[error("read SSE stream: {0}")]
    Cut(String),
    /// The host refused.
    #[error("host answered {status}: {body}")]
    Status {
        /// HTTP status.
        status: u16,
        /// Bounded excerpt.
        body: String,
    },
    /// What came is no answer of a host.
    #[error("host answer cannot be read: {0}")]
    Malformed(String),
}

impl CallError {
    /// Label of the failure (contract gateway 7.4).
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Transport(_) => "transport_error",
            Self::Cut(_) => "eof_transport",
            Self::Status { status: 429, .. } => "http_429",
            Self::Status { status: 503, .. } => "http_503",
            Self::Status { status: 401, .. } => "http_timestamp_drift",
            Self::Status { status: 403, .. } => "http_forbidden",
            Self::Status { status: 404, .. } => "http_not_found",
            Self::Status { .. } => "http_error",
            Self::Malformed(_) => "sse_truncated",
        }
    }

    /// Status for the transport error metric, 0 without an answer.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Status { status, .. } => *status,
            _ => 0,
        }
    }
}

/// Client of all hosts.
#[derive(Clone, Debug)]
pub struct Hosts {
    client: Client,
    signer: Signer,
}

impl Hosts {
    /// A client that signs with the creator's key.
    ///
    /// # Errors
    /// When the TLS-less client cannot be made.
    pub fn new(signer: Signer) -> Result<Self, reqwest::Error> {
        let client = Client::builder().connect_timeout(Duration::from_secs(5)).no_proxy().build()?;
        Ok(Self { client, signer })
    }

    /// Sends a chat request and waits for the headers.
    ///
    /// # Errors
    /// When the host can't be reached or refuses.
    pub async fn chat(
        &self,
        escrow: &Escrow,
        to: &Participant,
        request: &ChatRequest,
    ) -> Result<Events, CallError> {
        let body = serde_json::to_vec(request).expect("requests are plain data");
        let response = self.post(escrow, to, "chat/completions", body, CHAT_TIMEOUT).await?;
        Ok(Events { response, buffer: BytesMut::new() })
    }

    /// Delivers steps without work, and takes in receipt and mempool.
    ///
    /// # Errors
    /// When the host can't be reached, refuses, or signs another state.
    pub async fn deliver(&self, escrow: &Escrow, to: &Participant, nonce: u64) -> Result<(), CallError> {
        let request = ChatRequest { diffs: escrow.catch_up(to, nonce), nonce, payload: None, stream: false };
        let mut events = self.chat(escrow, to, &request).await?;
        let mut seen = false;
        while let Some(line) = events.next().await? {
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if let Ok(event) = serde_json::from_str::<ReceiptEvent>(data) {
                seen = true;
                if !escrow.receipt(to, &event.devshard_receipt, None) {
                    let text = format!("invalid state signature from host {}", to.slot);
                    return Err(CallError::Malformed(text));
                }
            } else if let Ok(event) = serde_json::from_str::<MetaEvent>(data) {
                escrow.absorb(&event.devshard_meta.mempool);
            }
        }
        if seen { Ok(()) } else { Err(CallError::Malformed("no receipt".to_owned())) }
    }

    /// Asks for a vote on a timeout.
    ///
    /// # Errors
    /// When the host can't be reached or refuses.
    pub async fn verify_timeout(
        &self,
        escrow: &Escrow,
        to: &Participant,
        request: &VerifyTimeoutRequest,
    ) -> Result<VerifyTimeoutResponse, CallError> {
        let body = serde_json::to_vec(request).expect("requests are plain data");
        read_json(self.post(escrow, to, "verify-timeout", body, VERIFY_TIMEOUT).await?).await
    }

    /// Takes in a host's mempool.
    ///
    /// # Errors
    /// When the host can't be reached or refuses.
    pub async fn collect(&self, escrow: &Escrow, from: &Participant) -> Result<(), CallError> {
        let url = format!("{}/sessions/{}/mempool", from.url, escrow.id());
        let sent = self.client.get(url).timeout(QUERY_TIMEOUT).send().await;
        let mempool: Mempool = read_json(checked(sent).await?).await?;
        escrow.absorb(&mempool.txs);
        Ok(())
    }

    async fn post(
        &self,
        escrow: &Escrow,
        to: &Participant,
        route: &str,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        let now_s = clock::unix_s();
        let signature = self.signer.sign_request(escrow.id(), &body, now_s);
        let sent = self
            .client
            .post(format!("{}/sessions/{}/{route}", to.url, escrow.id()))
            .header("content-type", "application/json")
            .header(SIGNATURE_HEADER, signature)
            .header(TIMESTAMP_HEADER, now_s)
            .timeout(timeout)
            .body(body)
            .send()
            .await;
        checked(sent).await
    }
}

async fn checked(sent: Result<Response, reqwest::Error>) -> Result<Response, CallError> {
    let response = sent.map_err(|error| CallError::Transport(cause_of(&error)))?;
    if response.status() == StatusCode::OK {
        return Ok(response);
    }
    let status = response.status().as_u16();
    let body = read_all(response).await.unwrap_or_default();
    let body = String::from_utf8_lossy(&body).chars().take(300).collect();
    Err(CallError::Status { status, body })
}

async fn read_json<T: DeserializeOwned>(response: Response) -> Result<T, CallError> {
    let bytes = read_all(response).await?;
    serde_json::from_slice(&bytes).map_err(|error| CallError::Malformed(error.to_string()))
}

async fn read_all(mut response: Response) -> Result<Vec<u8>, CallError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| CallError::Cut(cause_of(&error)))? {
        if bytes.len() + chunk.len() > LINE_MAX {
            return Err(CallError::Malformed(format!("more than {LINE_MAX} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The innermost cause says more than the URL around it.
fn cause_of(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Lines of a host's answer.
#[derive(Debug)]
pub struct Events {
    response: Response,
    buffer: BytesMut,
}

impl Events {
    /// The next line that is not empty; `None` at the clean end.
    ///
    /// # Errors
    /// When the connection is lost, a line is too long or not UTF-8.
    pub async fn next(&mut self) -> Result<Option<String>, CallError> {
        loop {
            if let Some(length) = memchr_newline(&self.buffer) {
                let line = self.buffer.split_to(length + 1);
                let line = line[..length].strip_suffix(b"\r").unwrap_or(&line[..length]);
                if line.is_empty() {
                    continue;
                }
                let line =
                    std::str::from_utf8(line).map_err(|error| CallError::Malformed(error.to_string()))?;
                return Ok(Some(line.to_owned()));
            }
            if self.buffer.len() > LINE_MAX {
                return Err(CallError::Malformed(format!("an event line of more than {LINE_MAX} bytes")));
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
                Ok(None) => return Ok(None),
                // How the connection went down is of no use to a client; the real text is this one.
                Err(_) => return Err(CallError::Cut("unexpected EOF".to_owned())),
            }
        }
    }
}

fn memchr_newline(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}
