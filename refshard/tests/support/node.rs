//! A model server that does what it is told for the next call, else answers well.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, Uri};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::bind;

/// What to do with one call.
#[derive(Clone, Debug)]
pub enum Act {
    /// This status with an error document.
    Status(u16),
    /// Wait before the answer.
    Delay(Duration),
    /// These bytes as a stream, then a clean end or, with `true`, a broken connection.
    Stream(Vec<String>, bool),
    /// This JSON document.
    Json(Value),
}

/// One call as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub request_id: String,
    pub body: Value,
}

#[derive(Default)]
pub struct Node {
    pub acts: Mutex<VecDeque<Act>>,
    /// Milliseconds that every replay waits.
    pub replay_delay_ms: std::sync::atomic::AtomicU64,
    pub calls: Mutex<Vec<Seen>>,
}

impl Node {
    pub fn next(&self, act: Act) {
        self.acts.lock().unwrap().push_back(act);
    }

    pub fn calls(&self) -> Vec<Seen> {
        self.calls.lock().unwrap().clone()
    }
}

pub async fn start_node() -> (Arc<Node>, String) {
    let (listener, address) = bind().await;
    let node = Arc::new(Node::default());
    let router = Router::new().fallback(answer).with_state(node.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (node, format!("http://{address}"))
}

pub fn chunk(text: &str) -> String {
    let entry = json!({"token": "12", "logprob": -0.1, "top_logprobs": [{"token": "12", "logprob": -0.1}]});
    let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": null,
        "logprobs": {"content": [entry]}});
    format!("data: {}\n\n", json!({"id": "x", "object": "chat.completion.chunk", "choices": [choice]}))
}

pub fn last_chunk() -> String {
    let choice = json!({"index": 0, "delta": {}, "finish_reason": "stop"});
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5});
    format!("data: {}\n\n", json!({"id": "x", "choices": [choice], "usage": usage}))
}

pub fn good_stream() -> Vec<String> {
    vec![chunk("a"), chunk("b"), last_chunk(), "data: [DONE]\n\n".into()]
}

async fn answer(State(node): State<Arc<Node>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let request_id = headers.get("x-request-id").map(|id| id.to_str().unwrap().to_owned());
    node.calls.lock().unwrap().push(Seen {
        path: uri.path().into(),
        request_id: request_id.unwrap_or_default(),
        body: body.clone(),
    });
    if body.get("enforced_tokens").is_some() {
        let delay = node.replay_delay_ms.load(std::sync::atomic::Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    let mut act = node.acts.lock().unwrap().pop_front();
    if let Some(Act::Delay(time)) = act {
        tokio::time::sleep(time).await;
        act = None;
    }
    match act {
        Some(Act::Status(status)) => Response::builder()
            .status(status)
            .body(Body::from(r#"{"error":{"message":"told to","code":1}}"#))
            .unwrap(),
        Some(Act::Stream(events, broken)) => stream(events, broken),
        Some(Act::Json(document)) => json_response(&document),
        Some(Act::Delay(_)) | None if body["stream"] == true => stream(good_stream(), false),
        Some(Act::Delay(_)) | None => json_response(&good_document(&body)),
    }
}

fn stream(events: Vec<String>, broken: bool) -> Response<Body> {
    let end = broken.then(|| Err(std::io::Error::other("broken")));
    let events = events.into_iter().map(Ok).chain(end);
    let paced = futures_util::stream::iter(events).then(|event: Result<String, std::io::Error>| async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        event
    });
    Response::builder().header("content-type", "text/event-stream").body(Body::from_stream(paced)).unwrap()
}

fn json_response(document: &Value) -> Response<Body> {
    Response::builder()
        .header("content-type", "application/json")
        .body(Body::from(document.to_string()))
        .unwrap()
}

/// Honours `enforced_tokens`, else gives two tokens.
pub fn good_document(body: &Value) -> Value {
    let tokens: Vec<String> = match body.pointer("/enforced_tokens/tokens").and_then(Value::as_array) {
        Some(tokens) => tokens.iter().map(|token| token["token"].as_str().unwrap().to_owned()).collect(),
        None => vec!["12".into(), "12".into()],
    };
    let entry = |token: &String| json!({"token": token, "logprob": -0.1, "top_logprobs": [{"token": token, "logprob": -0.1}]});
    let content: Vec<Value> = tokens.iter().map(entry).collect();
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop",
        "logprobs": {"content": content}});
    json!({"id": "x", "object": "chat.completion", "choices": [choice],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})
}
