//! Every captured call of real gateways and hosts on what surrounds them, replayed against our mocks: answers are
//! byte-equal, or equal but for paths that stand with their reason in [`reasons::REASONS`], which docs/fidelity.md shows.
//!
//! Fixture: reduced from the recordings "wire-july" (all keys in them are test keys). What is not replayed: transport
//! between gateway and hosts, which no mock takes part in (crate `wire` reads and verifies those captures), calls of
//! a third party's mock on another's admin port, and polls that were held for a minute.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod compare;
mod page;
mod raw;
mod reasons;
mod worlds;

use compare::{Difference, json_paths, message};
use raw::Exchange;
use reasons::Ledger;
use serde::Deserialize;
use serde_json::{Value, json};
use worlds::World;

/// A gRPC call as captured, and what had happened before it.
#[derive(Debug, Deserialize)]
struct GrpcCall {
    world: String,
    name: String,
    path: String,
    request: String,
    code: String,
    response: String,
    #[serde(default)]
    before: Vec<String>,
}

/// A plain HTTP call as captured.
#[derive(Debug, Deserialize)]
struct HttpCall {
    listener: String,
    name: String,
    method: String,
    target: String,
    body: Option<String>,
    status: u16,
    content_type: String,
    answer: String,
    #[serde(default)]
    before: Vec<String>,
}

/// A call of a host at an ML node.
#[derive(Debug, Deserialize)]
struct NodeCall {
    name: String,
    request_id: String,
    body: String,
    status: u16,
    content_type: String,
    answer: String,
}

/// A text frame of a subscriber's connection.
#[derive(Debug, Deserialize)]
struct Frame {
    dir: String,
    payload: String,
}

#[derive(Debug, Deserialize)]
struct Captured {
    grpc: Vec<GrpcCall>,
    http: Vec<HttpCall>,
    node: Vec<NodeCall>,
    websocket: Vec<Frame>,
}

fn captured() -> Captured {
    serde_json::from_str(include_str!("../fixtures/wire-july/contract.json")).unwrap()
}

#[tokio::test]
async fn every_captured_call_is_answered_as_it_was() {
    let captured = captured();
    let mut ledger = Ledger::default();
    for name in ["A", "V", "S", "S2", "P"] {
        let world = World::start(name).await;
        for call in captured.grpc.iter().filter(|call| call.world == name) {
            world.bring_about(&call.before).await;
            ledger.take(&call.name, grpc(&world, call).await);
        }
        world.stop().await;
    }
    let world = World::start("P").await;
    for call in &captured.http {
        world.bring_about(&call.before).await;
        ledger.take(&call.name, http(&world, call).await);
    }
    for call in &captured.node {
        ledger.take(&call.name, node(&world, call).await);
    }
    world.stop().await;
    let world = World::start("A").await;
    ledger.take("A websocket", websocket(&world, &captured.websocket).await);
    world.stop().await;
    page::check(&ledger.finish());
}

async fn grpc(world: &World, call: &GrpcCall) -> Exchange {
    let method = call.path.rsplit('/').next().unwrap();
    let request = hex::decode(&call.request).unwrap();
    let (code, answer) = raw::unary(world.grpc(&call.path), &call.path, request).await;
    let mut found = Vec::new();
    if code == call.code {
        message("", &hex::decode(&call.response).unwrap(), &answer, &mut found);
    } else {
        found.push(Difference::new("status", &call.code, &code));
    }
    Exchange { call: method.to_owned(), found }
}

async fn http(world: &World, call: &HttpCall) -> Exchange {
    let method = reqwest::Method::from_bytes(call.method.as_bytes()).unwrap();
    let url = format!("http://{}{}", world.http(&call.listener), call.target);
    let request = reqwest::Client::new().request(method, url).body(call.body.clone().unwrap_or_default());
    let answer = request.send().await.unwrap();
    let mut found = Vec::new();
    if answer.status().as_u16() != call.status {
        found.push(Difference::new("status", &call.status.to_string(), answer.status().as_str()));
    }
    let content_type = raw::content_type(answer.headers());
    if content_type != call.content_type {
        found.push(Difference::new("content-type", &call.content_type, &content_type));
    }
    bodies(&call.answer, &answer.text().await.unwrap(), &mut found);
    let target = call.target.split('?').next().unwrap();
    Exchange { call: format!("{} {} {target}", call.listener, call.method), found }
}

/// JSON by its paths, anything else as it is.
fn bodies(theirs: &str, ours: &str, found: &mut Vec<Difference>) {
    match (serde_json::from_str::<Value>(theirs), serde_json::from_str::<Value>(ours)) {
        (Ok(theirs), Ok(ours)) => json_paths("", &theirs, &ours, found),
        _ if theirs.trim_end() == ours.trim_end() => {}
        _ => found.push(Difference::new("body", theirs, ours)),
    }
}

async fn node(world: &World, call: &NodeCall) -> Exchange {
    let url = format!("http://{}/v1/chat/completions", world.http("node"));
    let request = reqwest::Client::new().post(url).header("X-Request-Id", &call.request_id);
    let request = request.header("Content-Type", "application/json").body(call.body.clone());
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status().as_u16(), call.status, "{}", call.name);
    assert_eq!(raw::content_type(answer.headers()), call.content_type, "{}", call.name);
    let ours = answer.text().await.unwrap();
    let mut found = Vec::new();
    json_paths("", &document(&call.answer), &document(&ours), &mut found);
    let kind = if call.request_id.starts_with("validate-") { "node replay" } else { "node chat" };
    Exchange { call: kind.to_owned(), found }
}

/// A JSON answer as it is; of a stream the first piece of content, the piece with the finish reason, the one with
/// usage, and its last words.
fn document(text: &str) -> Value {
    if let Ok(whole) = serde_json::from_str(text) {
        return whole;
    }
    let events: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    let parsed: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    let first = |wanted: &dyn Fn(&Value) -> bool| parsed.iter().find(|event| wanted(event)).cloned();
    json!({
        "content": first(&|event| event["choices"][0]["delta"]["content"].is_string()),
        "finish": first(&|event| event["choices"][0]["finish_reason"].is_string()),
        "usage": first(&|event| event["usage"].is_object()),
        "end": events.last(),
    })
}

/// Subscribes as the host did, brings about what it saw, and compares frame by frame.
async fn websocket(world: &World, frames: &[Frame]) -> Exchange {
    world.bring_about(&["to-block 152".to_owned()]).await;
    let mut socket = world.subscriber().await;
    let mut found = Vec::new();
    for frame in frames {
        let theirs: Value = serde_json::from_str(&frame.payload).unwrap();
        if frame.dir == "client" {
            raw::say(&mut socket, &frame.payload).await;
            continue;
        }
        let query = theirs["result"]["query"].as_str();
        match query {
            Some(query) if query.contains("NewBlock") => {
                world.bring_about(&["to-block 153".to_owned()]).await;
            }
            Some(query) if query.contains("created") => world.create().await,
            Some(_) => world.bring_about(&[format!("settle {}", settled(&theirs))]).await,
            None if theirs["error"]["code"] == json!(-32000) => {
                found.push(Difference::new("/overflow", &frame.payload, "none"));
                continue;
            }
            None => {}
        }
        // Blocks that were made meanwhile are of no interest to the other two subscriptions.
        let same = |ours: &Value| match query {
            Some(query) => ours["result"]["query"] == query,
            None => ours["id"] == theirs["id"],
        };
        let ours = raw::hear(&mut socket, same).await;
        json_paths("", &theirs, &ours, &mut found);
    }
    Exchange { call: "websocket".to_owned(), found }
}

fn settled(frame: &Value) -> String {
    let events = &frame["result"]["events"]["devshard_escrow_settled.escrow_id"];
    events[0].as_str().unwrap().to_owned()
}
