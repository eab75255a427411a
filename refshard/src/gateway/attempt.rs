//! One attempt: a nonce sent to its host, the answer read to its end, everything told to the race.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use super::Gateway;
use super::content::{Progress, as_chunks, trim_logprobs};
use super::escrow::{Escrow, Started, StepError};
use super::hosts::CallError;
use crate::transport::{ChatRequest, MetaEvent, ReceiptEvent};

/// What an attempt tells its race. The number is the attempt's place in the race.
#[derive(Debug)]
pub enum Event {
    /// It has its nonce.
    Started(usize, Box<Started>),
    /// It could get none.
    NotStarted(usize, StepError),
    /// The executor has taken the work.
    Receipt(usize, i64),
    /// One event line of a stream, with its blank line; and whether the answer has content by now.
    Chunk(usize, Bytes, bool),
    /// The host has sent its end marker.
    Done(usize),
    /// It is over.
    Ended(usize, End),
}

/// How an attempt ended.
#[derive(Debug)]
pub struct End {
    /// `None` for a complete answer, else the label of contract gateway 7.4.
    pub failure: Option<&'static str>,
    /// For people.
    pub message: String,
    /// The host's error document.
    pub error: Option<Value>,
    /// The answer of a request that is not streamed.
    pub document: Option<Bytes>,
    /// Whether a finish of this nonce is known.
    pub finished: bool,
    /// Whether anything was said.
    pub has_content: bool,
}

/// What an attempt needs.
#[derive(Clone, Debug)]
pub struct Context {
    pub gateway: Arc<Gateway>,
    pub escrow: Arc<Escrow>,
    pub place: usize,
    pub stream: bool,
    /// Logprobs that the client gets to see (see [`trim_logprobs`]); July shows all.
    pub logprobs: Option<usize>,
    pub events: mpsc::Sender<Event>,
}

impl Context {
    async fn tell(&self, event: Event) {
        // The race outlives its attempts; when it has cut this one, nobody needs to know.
        let _ = self.events.send(event).await;
    }

    /// Sends the work and reads the answer to its end.
    pub async fn run(self, started: Started) {
        let mut progress = Progress::default();
        let mut document = None;
        let result = self.converse(&started, &mut progress, &mut document).await;
        let finished = if self.gateway.is_july() {
            self.escrow.awaits_finish(started.nonce)
        } else {
            self.escrow.has_finish(started.nonce)
        };
        let (failure, message) = self.judge(result, &progress, &started, finished);
        let document = if failure.is_none() { document } else { None };
        let has_content = progress.has_content;
        let end = End { failure, message, error: progress.error, document, finished, has_content };
        self.tell(Event::Ended(self.place, end)).await;
    }

    async fn converse(
        &self,
        started: &Started,
        progress: &mut Progress,
        document: &mut Option<Bytes>,
    ) -> Result<(), CallError> {
        let to = &started.participant;
        let request = ChatRequest {
            diffs: self.escrow.catch_up(to, started.nonce),
            nonce: started.nonce,
            payload: Some(started.payload.clone()),
            stream: self.stream,
        };
        let mut events = self.gateway.hosts.chat(&self.escrow, to, &request).await?;
        while let Some(line) = events.next().await? {
            // Anything that is no data line is dropped (contract gateway 4.5).
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                progress.done = true;
                self.tell(Event::Done(self.place)).await;
            } else if data.starts_with(r#"{"devshard_receipt""#) {
                self.receipt(started, data).await?;
            } else if data.starts_with(r#"{"devshard_meta""#) {
                if let Ok(event) = serde_json::from_str::<MetaEvent>(data) {
                    self.escrow.absorb(&event.devshard_meta.mempool);
                }
            } else {
                self.data(data, progress, document).await?;
            }
        }
        Ok(())
    }

    async fn receipt(&self, started: &Started, data: &str) -> Result<(), CallError> {
        let event: ReceiptEvent =
            serde_json::from_str(data).map_err(|error| CallError::Malformed(error.to_string()))?;
        let receipt = event.devshard_receipt;
        self.escrow.receipt(&started.participant, &receipt, Some(started));
        if let (Some(_), Some(confirmed_at)) = (&receipt.receipt, receipt.confirmed_at) {
            self.tell(Event::Receipt(self.place, confirmed_at)).await;
        }
        Ok(())
    }

    async fn data(
        &self,
        data: &str,
        progress: &mut Progress,
        document: &mut Option<Bytes>,
    ) -> Result<(), CallError> {
        if !progress.take(data) {
            return Err(CallError::Malformed("an event is not JSON".to_owned()));
        }
        if progress.error.is_some() {
            return Ok(());
        }
        let trimmed = if self.gateway.is_july() { None } else { trim_logprobs(data, self.logprobs) };
        let data = trimmed.as_deref().unwrap_or(data);
        if !self.stream {
            *document = Some(Bytes::copy_from_slice(data.as_bytes()));
            return Ok(());
        }
        match as_chunks(data) {
            None => self.chunk(format!("data: {data}\n\n"), progress.has_content).await,
            Some(chunks) => {
                for chunk in chunks {
                    self.chunk(format!("data: {chunk}\n\n"), progress.has_content).await;
                }
            }
        }
        Ok(())
    }

    async fn chunk(&self, frame: String, has_content: bool) {
        self.tell(Event::Chunk(self.place, Bytes::from(frame), has_content)).await;
    }

    fn judge(
        &self,
        result: Result<(), CallError>,
        progress: &Progress,
        started: &Started,
        finished: bool,
    ) -> (Option<&'static str>, String) {
        // July asks for content and a finish, never for a finish reason (findings J1 and J3).
        let july = self.gateway.is_july();
        let complete = if july {
            progress.error.is_none() && progress.has_content && finished
        } else {
            progress.is_complete()
        };
        if complete {
            // What happens to the connection after the end of the answer does not matter.
            return (None, String::new());
        }
        if let Some(error) = &progress.error {
            let text = error.pointer("/error/message").and_then(Value::as_str).unwrap_or("error event");
            return (Some("error_stream"), text.to_owned());
        }
        if let Err(error) = result {
            self.gateway.count_transport_error(&started.participant.address, "inference", error.status());
            return (Some(error.reason()), error.to_string());
        }
        let incomplete = if july {
            "inference: winner inference incomplete (nonce_finished=false)".to_owned()
        } else {
            format!("inference: answer of nonce {} ended before its end", started.nonce)
        };
        let reason = if progress.has_content { "not_finished" } else { "empty_stream" };
        (Some(reason), incomplete)
    }
}

/// Unix seconds plus a wait, as a duration from now.
#[must_use]
pub fn until(at_s: i64, now_s: i64) -> Duration {
    Duration::from_secs(u64::try_from(at_s.saturating_sub(now_s)).unwrap_or_default())
}
