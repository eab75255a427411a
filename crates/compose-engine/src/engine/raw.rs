//! Reading calls as plain JSON: an enum word that a newer engine invents must not break an inspect (report 30).

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use super::Answer;
use crate::error::EngineError;

/// Largest answer that is read whole; an inspect is a few KiB, a long list some MiB.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest line of a stream.
const LINE_BYTES_MAX: usize = 1024 * 1024;

/// A reader of one socket.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    pub(super) socket: PathBuf,
    pub(super) limit: Duration,
}

impl Raw {
    fn broken(what: &str, reason: &dyn std::fmt::Display) -> EngineError {
        EngineError::Broken { what: what.to_owned(), reason: reason.to_string() }
    }

    async fn open(&self, what: &str, path: &str) -> Answer<hyper::Response<Incoming>> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| EngineError::Unreachable {
            address: self.socket.display().to_string(),
            reason: error.to_string(),
        })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Self::broken(what, &error))?;
        // The connection ends when the answer's body is dropped.
        tokio::spawn(connection);
        let request = Request::get(path)
            .header("host", "engine")
            .body(Empty::<Bytes>::new())
            .map_err(|error| Self::broken(what, &error))?;
        let response = sender.send_request(request).await.map_err(|error| Self::broken(what, &error))?;
        let status = response.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(response);
        }
        let body = Self::body(what, response).await?;
        let text = String::from_utf8_lossy(&body);
        let json: Option<Value> = serde_json::from_str(&text).ok();
        let message = json.as_ref().and_then(|json| json.get("message")?.as_str()).unwrap_or(&text);
        Err(EngineError::from_answer(what, status, message))
    }

    async fn body(what: &str, response: hyper::Response<Incoming>) -> Answer<Bytes> {
        let limited = http_body_util::Limited::new(response.into_body(), BODY_BYTES_MAX);
        limited.collect().await.map(|body| body.to_bytes()).map_err(|error| Self::broken(what, &error))
    }

    /// One JSON answer.
    pub(super) async fn get(&self, what: &str, path: &str) -> Answer<Value> {
        let call = async {
            let response = self.open(what, path).await?;
            let body = Self::body(what, response).await?;
            serde_json::from_slice(&body).map_err(|error| Self::broken(what, &format!("no JSON: {error}")))
        };
        match tokio::time::timeout(self.limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(timeout(what, self.limit)),
        }
    }

    /// JSON lines until the engine ends the stream.
    pub(super) fn lines(&self, what: &'static str, path: String) -> BoxStream<'static, Answer<Value>> {
        let own = self.clone();
        let opened = async move {
            match tokio::time::timeout(own.limit, own.open(what, &path)).await {
                Ok(answer) => answer,
                Err(_) => Err(timeout(what, own.limit)),
            }
        };
        stream::once(opened)
            .flat_map(move |answer| match answer {
                Ok(response) => split(what, response.into_body()),
                Err(error) => stream::iter([Err(error)]).boxed(),
            })
            .boxed()
    }
}

pub(super) fn timeout(what: &str, limit: Duration) -> EngineError {
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    EngineError::Timeout { what: what.to_owned(), limit_ms }
}

fn split(what: &'static str, body: Incoming) -> BoxStream<'static, Answer<Value>> {
    stream::unfold((body, Vec::new(), false), move |(mut body, mut left, ended)| async move {
        if ended {
            return None;
        }
        loop {
            if let Some(end) = left.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = left.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(value) => return Some((Ok(value), (body, left, false))),
                    // An undecodable line is skipped: inspect is the truth (report 30).
                    Err(_) => continue,
                }
            }
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        left.extend_from_slice(&data);
                    }
                    if left.len() > LINE_BYTES_MAX {
                        left.clear();
                    }
                }
                Some(Err(error)) => return Some((Err(Raw::broken(what, &error)), (body, left, true))),
                None => return None,
            }
        }
    })
    .boxed()
}
