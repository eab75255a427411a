//! One execution: a node, the call, the answer piece by piece, and at the end the finish.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{StatusCode, header};
use serde_json::{Map, Value, json};
use wire::devshard::{MsgFinishInference, Tx, proposer_signed_bytes};

use super::Host;
use super::answer::{ANSWER_MAX, Answer, AnswerError, LINE_MAX, Line, StreamReader, read_json};
use super::body::{execution_body, sorted_bytes};
use super::chat::Frames;
use super::nodes::{AcquireError, Node};
use super::session::HostSession;
use super::track::Terminal;
use crate::clock;
use crate::personality::Personality;
use crate::planted::On;
use crate::signing::sha256;
use crate::transport::{Payload, REQUEST_ID_HEADER};

/// Acquires for one call, rotations and refusals together (contract mocks 4.3).
const ACQUIRES_MAX: usize = 10;

/// What is to be executed.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Where.
    pub host: &'a Arc<Host>,
    /// For whom.
    pub session: &'a Arc<HostSession>,
    /// Which.
    pub id: u64,
    /// What.
    pub payload: &'a Payload,
    /// Id that goes to the model server.
    pub request_id: &'a str,
}

impl Job<'_> {
    /// What a planted defect of this work takes effect on.
    fn planted_on(&self) -> On<'_> {
        On::Nonce(&self.session.params.escrow_id, self.id)
    }
}

/// Executes, relays, stores the payload, proposes the finish, in this order.
///
/// # Errors
/// The terminal of a receipt without a finish.
pub async fn execute(job: &Job<'_>, frames: &mut Frames) -> Result<(), Terminal> {
    let Job { host, session, id, payload, request_id } = *job;
    let body = execution_body(&payload.prompt.0, id, &host.nodes.settings().logprobs_mode)
        .map_err(|error| Terminal::orphan("modify_request_err", "runtime.execute", error.to_string()))?;
    if host.defect.leaves_receipt(&host.occasions, job.planted_on()) {
        return Err(Terminal::orphan("process_response_err", "runtime.execute", "not executed".to_owned()));
    }
    let unlocked = host
        .defect
        .calls_unlocked(&host.occasions, job.planted_on())
        .then(|| host.nodes.recall_unlocked())
        .flatten();
    let call = Call { host, path: "execute", model: &payload.model, body: &body, request_id };
    let response = call.run(unlocked).await?;
    let rewritten = format!("devshard-{}-{id}", session.params.escrow_id);
    let mut relayed = false;
    let answer = relay(response, &rewritten, host.config.personality, frames, &mut relayed).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            // Before the first event the gateway can still go elsewhere; after it the client must learn
            // that no more will come.
            if relayed && host.config.personality == Personality::Intended {
                frames.line(&error_line(&error.to_string(), error.reason())).await;
            }
            return Err(Terminal::orphan(error.reason(), "runtime.execute", error.to_string()));
        }
    };
    // The marker says "complete", so it goes out only after the finish is durable. July sends it first.
    let july = host.config.personality == Personality::July;
    if july {
        frames.line("data: [DONE]").await;
    }
    publish(job, &answer)?;
    if !july {
        frames.line("data: [DONE]").await;
    }
    Ok(())
}

fn publish(job: &Job<'_>, answer: &Answer) -> Result<(), Terminal> {
    let Job { host, session, id, payload, .. } = *job;
    for (kind, tokens) in [("prompt", answer.input_tokens), ("completion", answer.output_tokens)] {
        let labels = [("path", "execute"), ("node_id", ""), ("kind", kind)];
        host.metrics.observe("devshard_mlnode_tokens", &labels, counted(tokens));
    }
    let escrow_id = &session.params.escrow_id;
    host.store
        .add_payload(escrow_id, id, &payload.prompt.0, &answer.stored)
        .map_err(|error| Terminal::orphan("payload_store_err", "runtime.execute", error.to_string()))?;
    if host.defect.drops_finish(&host.occasions, job.planted_on()) {
        return Ok(());
    }
    propose_foreign(job, answer);
    let finish = MsgFinishInference {
        inference_id: id,
        response_hash: sha256(&answer.stored).to_vec(),
        input_tokens: answer.input_tokens,
        output_tokens: answer.output_tokens,
        executor_slot: session.params.executor_slot(id),
        proposer_sig: Vec::new(),
        escrow_id: escrow_id.clone(),
    };
    let signed = proposer_signed_bytes(&Tx::FinishInference(finish.clone())).unwrap_or_default();
    let finish = MsgFinishInference { proposer_sig: host.signer.sign(&signed), ..finish };
    session
        .propose(Tx::FinishInference(finish))
        .map_err(|error| Terminal::orphan("sign_finish_err", "host.publish_finish", error.to_string()))?;
    let waiting = u64::try_from(session.mempool_len()).unwrap_or(u64::MAX);
    host.metrics.set("devshard_mempool_size", &[("escrow_id", escrow_id)], counted(waiting));
    Ok(())
}

/// A second finish under another session's name, when that defect is planted; else nothing.
fn propose_foreign(job: &Job<'_>, answer: &Answer) {
    let Some(escrow_id) = job.host.defect.foreign_escrow(&job.host.occasions, job.planted_on()) else {
        return;
    };
    let finish = MsgFinishInference {
        inference_id: job.id,
        response_hash: sha256(&answer.stored).to_vec(),
        input_tokens: answer.input_tokens,
        output_tokens: answer.output_tokens,
        executor_slot: job.session.params.executor_slot(job.id),
        proposer_sig: Vec::new(),
        escrow_id: escrow_id.to_owned(),
    };
    let signed = proposer_signed_bytes(&Tx::FinishInference(finish.clone())).unwrap_or_default();
    let finish = MsgFinishInference { proposer_sig: job.host.signer.sign(&signed), ..finish };
    let _ = job.session.propose(Tx::FinishInference(finish));
}

/// One call at a model server, with rotation over nodes.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Where.
    pub host: &'a Arc<Host>,
    /// `execute` or `validate`.
    pub path: &'static str,
    /// Wanted model.
    pub model: &'a str,
    /// JSON body.
    pub body: &'a [u8],
    /// Value of `X-Request-Id`.
    pub request_id: &'a str,
}

impl Call<'_> {
    /// Calls nodes until one answers below 500; that one's lease is returned at once, since a lease
    /// covers the time to the headers only. `preset` replaces the first acquire.
    ///
    /// # Errors
    /// When no node could be had, or the last of ten failed.
    pub async fn run(&self, preset: Option<Node>) -> Result<reqwest::Response, Terminal> {
        let mut excluded = Vec::new();
        let mut preset = preset;
        let mut last = None;
        for _ in 0..ACQUIRES_MAX {
            let node = match preset.take() {
                Some(node) => node,
                None => match self.host.nodes.acquire(self.model, &excluded).await {
                    Ok(node) => node,
                    Err(error) => {
                        self.attempt("", "acquire_err");
                        let unavailable = matches!(error, AcquireError::Unavailable(_));
                        let failed = ("acquire_err", "engine.mlnode_call", error.to_string());
                        last = Some(failed);
                        if unavailable {
                            break;
                        }
                        tokio::time::sleep(Duration::from_millis(self.host.config.acquire_pause_ms)).await;
                        continue;
                    }
                },
            };
            match self.once(&node).await {
                Ok(response) => return Ok(response),
                Err((reason, error)) => last = Some((reason, "engine.mlnode_call", error)),
            }
            if !excluded.contains(&node.node_id) {
                excluded.push(node.node_id);
            }
        }
        let (reason, failure_where, error) =
            last.expect("the loop runs at least once and records why it went on");
        Err(Terminal::orphan(reason, failure_where, error))
    }

    async fn once(&self, node: &Node) -> Result<reqwest::Response, (&'static str, String)> {
        let begun = clock::instant();
        let sent = self
            .host
            .http
            .post(format!("{}/v1/chat/completions", node.endpoint))
            .header(header::CONTENT_TYPE, "application/json")
            .header(REQUEST_ID_HEADER, self.request_id)
            .body(self.body.to_vec())
            .send()
            .await;
        let labels = [("path", self.path), ("node_id", &node.node_id), ("phase", "total")];
        let took_s = clock::instant().duration_since(begun).as_secs_f64();
        self.host.metrics.observe("devshard_mlnode_call_seconds", &labels, took_s);
        let (outcome, result) = match sent {
            Ok(response) if response.status().is_server_error() => {
                let text = format!("node {} answered {}", node.node_id, response.status());
                ("http_5xx", Err(("http_5xx", text)))
            }
            Ok(response) if response.status().is_client_error() => ("http_4xx", Ok(response)),
            Ok(response) => ("ok", Ok(response)),
            Err(error) => {
                let reason = if error.is_timeout() { "timeout" } else { "transport_err" };
                (reason, Err((reason, format!("node {}: {error}", node.node_id))))
            }
        };
        self.attempt(&node.node_id, outcome);
        self.give_back(node.clone(), result.is_ok());
        result
    }

    /// In a task of its own: a slow allocator must not hold up the answer.
    fn give_back(&self, node: Node, success: bool) {
        let (host, path) = (self.host.clone(), self.path);
        tokio::spawn(async move {
            if !host.nodes.release(&node, success).await {
                let labels = [("path", path), ("outcome", "release_err"), ("node_id", &node.node_id)];
                host.metrics.count("devshard_mlnode_attempts_total", &labels);
            }
        });
    }

    fn attempt(&self, node_id: &str, outcome: &'static str) {
        let labels = [("path", self.path), ("outcome", outcome), ("node_id", node_id)];
        self.host.metrics.count("devshard_mlnode_attempts_total", &labels);
    }
}

/// Sends the answer on as it comes; `relayed` tells whether anything has gone out.
async fn relay(
    response: reqwest::Response,
    id: &str,
    personality: Personality,
    frames: &mut Frames,
    relayed: &mut bool,
) -> Result<Answer, AnswerError> {
    let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let streamed = content_type.is_some_and(|value| value.starts_with("text/event-stream"));
    let status = response.status();
    if streamed && status.is_success() {
        return relay_stream(response, StreamReader::new(id.to_owned(), personality), frames, relayed).await;
    }
    // A body that ends early is a document that can't be read, not a lost connection (July build, host metrics).
    let unreadable = |error| match error {
        AnswerError::Truncated(why) => AnswerError::Malformed(why.to_owned()),
        other => other,
    };
    let bytes = read_body(response, ANSWER_MAX).await.map_err(unreadable)?;
    let answer = if status.is_success() {
        read_json(&bytes, id, personality)
    } else {
        // The node's own words go on; in July as if they were an answer, here as the error they are.
        frames.line(&refused_line(&bytes, status, id)).await;
        if personality == Personality::July {
            frames.line("data: [DONE]").await;
        }
        return Err(AnswerError::Malformed(format!("model server answered {status}")));
    };
    if let (Err(AnswerError::NoUsage), Personality::July) = (&answer, personality)
        && let Ok(document) = serde_json::from_slice::<Map<String, Value>>(&bytes)
    {
        // July gives the answer to the client and has no finish for it (fixture ml-nousage-nonstream).
        let mut document = document;
        document.insert("id".into(), id.into());
        let bytes = sorted_bytes(Value::Object(document));
        frames.line(&format!("data: {}", String::from_utf8_lossy(&bytes))).await;
        frames.line("data: [DONE]").await;
    }
    let answer = answer?;
    *relayed = true;
    frames.line(&format!("data: {}", String::from_utf8_lossy(&answer.stored))).await;
    Ok(answer)
}

async fn relay_stream(
    mut response: reqwest::Response,
    mut reader: StreamReader,
    frames: &mut Frames,
    relayed: &mut bool,
) -> Result<Answer, AnswerError> {
    let mut buffer: Vec<u8> = Vec::new();
    let cut = loop {
        match response.chunk().await {
            Ok(Some(chunk)) => buffer.extend_from_slice(&chunk),
            Ok(None) => break None,
            Err(error) if error.is_timeout() => break Some("timeout"),
            Err(_) => break Some("connection lost"),
        }
        let mut begun = 0;
        while let Some(length) = buffer[begun..].iter().position(|byte| *byte == b'\n') {
            let line = reader.line(&buffer[begun..begun + length])?;
            begun += length + 1;
            if let Line::Relay(line) = line {
                *relayed = true;
                frames.line(&line).await;
            }
        }
        buffer.drain(..begun);
        if buffer.len() > LINE_MAX {
            return Err(AnswerError::TooLarge(LINE_MAX));
        }
        // What a server still says after the marker does not matter, and it may keep the line open.
        if reader.is_done() {
            break None;
        }
    };
    if !buffer.is_empty() && !reader.is_done() {
        // An unfinished last line is no event.
        return reader.finish(Some(cut.unwrap_or("unfinished line")));
    }
    reader.finish(cut)
}

/// Reads a whole body, up to `max` bytes.
///
/// # Errors
/// When it is longer or the connection is lost.
pub async fn read_body(mut response: reqwest::Response, max: usize) -> Result<Vec<u8>, AnswerError> {
    let mut bytes = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if bytes.len() + chunk.len() > max => return Err(AnswerError::TooLarge(max)),
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
            Ok(None) => return Ok(bytes),
            Err(_) => return Err(AnswerError::Truncated("connection lost")),
        }
    }
}

/// Lines of a stored answer, for a request that asks again: its events, or its one document.
pub fn replay_lines(stored: &[u8]) -> Vec<String> {
    let document: Map<String, Value> = serde_json::from_slice(stored).unwrap_or_default();
    let mut lines: Vec<String> = match document.get("events").and_then(Value::as_array) {
        Some(events) => events.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        None => vec![format!("data: {}", String::from_utf8_lossy(stored))],
    };
    lines.push("data: [DONE]".to_owned());
    lines
}

fn refused_line(bytes: &[u8], status: StatusCode, id: &str) -> String {
    let document: Result<Map<String, Value>, _> = serde_json::from_slice(bytes);
    match document {
        Ok(mut document) if document.contains_key("error") => {
            document.insert("id".into(), id.into());
            format!("data: {}", String::from_utf8_lossy(&sorted_bytes(Value::Object(document))))
        }
        _ => error_line(&format!("model server answered {status}"), "http_4xx"),
    }
}

fn error_line(message: &str, code: &str) -> String {
    let error = json!({ "error": { "code": code, "message": message, "type": "upstream_error" } });
    format!("data: {error}")
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
const fn counted(number: u64) -> f64 {
    number as f64
}
