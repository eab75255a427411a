//! A model server that obeys marks in the prompt, such as `[ml:partial=3]`, as the one of the captures did.
//! Written on the socket, since it must break off in ways that a web framework does not offer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Seconds of a capture become so many milliseconds here.
pub const SECOND_MS: u64 = 500;
/// Milliseconds of a gap between chunks are divided by this.
const GAP_BY: u64 = 10;

/// Marks by name; a mark without a value has none.
type Marks = BTreeMap<String, u64>;

pub struct Node {
    pub url: String,
    /// Marks that hold for every execution, beside those of the prompt.
    pub mode: Mutex<Marks>,
}

/// Reads `[ml:a=1,b]`.
pub fn marks(text: &str) -> Marks {
    let inside = text.split("[ml:").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    inside
        .split(',')
        .filter(|mark| !mark.is_empty())
        .map(|mark| {
            let (name, value) = mark.split_once('=').unwrap_or((mark, "0"));
            (name.to_owned(), value.parse().unwrap_or(0))
        })
        .collect()
}

pub async fn start() -> Arc<Node> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let node = Arc::new(Node { url, mode: Mutex::default() });
    let serving = node.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let node = serving.clone();
            tokio::spawn(async move {
                // A host that hangs up ends the answer, nothing else.
                let _ = answer(&node, stream).await;
            });
        }
    });
    node
}

async fn read(stream: &mut TcpStream) -> std::io::Result<Value> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let head = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(head) = head {
            let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if bytes.len() >= head + 4 + length.unwrap_or(0_usize) {
                return Ok(serde_json::from_slice(&bytes[head + 4..]).unwrap_or_default());
            }
        }
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&buffer[..count]);
    }
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

async fn answer(node: &Node, mut stream: TcpStream) -> std::io::Result<()> {
    let body = read(&mut stream).await?;
    let enforced = body.get("enforced_tokens").is_some();
    let prompt = body["messages"][0]["content"].as_str().unwrap_or_default();
    let mut marks = marks(prompt);
    if !enforced {
        marks.extend(node.mode.lock().unwrap().clone());
    }
    if enforced {
        // A replay is quick and never broken; only what tokens look like stays.
        marks.retain(|name, _| ["nolp", "texttok", "bigtok"].contains(&name.as_str()));
    }
    let mark = |name: &str| marks.get(name).copied();
    if mark("rst0").is_some() {
        return Ok(());
    }
    if let Some(seconds) = mark("slow") {
        pause(seconds * SECOND_MS).await;
    }
    for status in [400, 503] {
        if mark(&status.to_string()).is_some() {
            let error =
                json!({ "error": { "code": status, "message": "told to", "type": "BadRequestError" } });
            return whole(&mut stream, status, &error).await;
        }
    }
    if body["stream"] == true {
        return streamed(&mut stream, &marks).await;
    }
    whole(&mut stream, 200, &document(&body, &marks)).await
}

async fn whole(stream: &mut TcpStream, status: u16, document: &Value) -> std::io::Result<()> {
    let text = document.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

async fn chunk(stream: &mut TcpStream, data: impl std::fmt::Display) -> std::io::Result<()> {
    let line = format!("data: {data}\n\n");
    stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).await
}

async fn streamed(stream: &mut TcpStream, marks: &Marks) -> std::io::Result<()> {
    let mark = |name: &str| marks.get(name).copied();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    if let Some(seconds) = mark("slowtok") {
        pause(seconds * SECOND_MS).await;
    }
    if mark("errevt").is_some() {
        chunk(stream, json!({ "error": { "code": 500, "message": "told to", "type": "server_error" } }))
            .await?;
        chunk(stream, "[DONE]").await?;
        stream.write_all(b"0\r\n\r\n").await?;
        return stream.shutdown().await;
    }
    let event = |delta: Value, finish: Value, logprobs: Value| {
        json!({ "choices": [{ "delta": delta, "finish_reason": finish, "index": 0, "logprobs": logprobs }],
            "created": 1, "id": "x", "model": "test-model", "object": "chat.completion.chunk" })
    };
    if mark("role").is_some() {
        chunk(stream, event(json!({ "role": "assistant" }), Value::Null, Value::Null)).await?;
    }
    let broken = ["partial", "cut", "partialrst"].into_iter().find_map(|name| Some((name, mark(name)?)));
    let count = broken.map_or(mark("chunks").unwrap_or(8), |(_, count)| count);
    for index in 0..count {
        let entry = json!({ "content": [entry(index, marks)] });
        let logprobs = if mark("nolp").is_some() { Value::Null } else { entry };
        chunk(stream, event(json!({ "content": format!("w{index} ") }), Value::Null, logprobs)).await?;
        pause(mark("gap").unwrap_or(50) / GAP_BY).await;
    }
    match broken {
        Some(("partial", _)) => {
            stream.write_all(b"0\r\n\r\n").await?;
            return stream.shutdown().await;
        }
        // Without the last chunk the answer is visibly cut.
        Some(_) => return Ok(()),
        None => {}
    }
    chunk(stream, event(json!({}), json!("stop"), Value::Null)).await?;
    if mark("nousage").is_none() {
        let usage = json!({ "completion_tokens": count, "prompt_tokens": 3, "total_tokens": count + 3 });
        chunk(
            stream,
            json!({ "choices": [], "created": 1, "id": "x", "model": "test-model",
                "object": "chat.completion.chunk", "usage": usage }),
        )
        .await?;
    }
    if mark("nodone").is_none() {
        chunk(stream, "[DONE]").await?;
    }
    stream.write_all(b"0\r\n\r\n").await?;
    stream.shutdown().await
}

fn entry(index: u64, marks: &Marks) -> Value {
    let token = if marks.contains_key("texttok") {
        format!("w{index}")
    } else if marks.contains_key("bigtok") {
        format!("{}", 10_000_000 + index)
    } else {
        format!("{}", 100 + index)
    };
    entry_of(&token)
}

fn entry_of(token: &str) -> Value {
    let alternative = |rank: u32| {
        let token = if rank == 0 { token.to_owned() } else { format!("{}", 5000 + rank) };
        json!({ "bytes": [65], "logprob": -0.1 - f64::from(rank), "token": token })
    };
    let top: Vec<Value> = (0..5).map(alternative).collect();
    json!({ "bytes": [119], "logprob": -0.1, "token": token, "top_logprobs": top })
}

fn document(body: &Value, marks: &Marks) -> Value {
    let enforced = body.pointer("/enforced_tokens/tokens").and_then(Value::as_array);
    let tokens: Vec<Value> = match (enforced, body.get("enforced_tokens").is_some()) {
        (Some(tokens), _) => {
            tokens.iter().map(|token| entry_of(token["token"].as_str().unwrap_or_default())).collect()
        }
        // Null logprobs leave nothing to enforce, and the answer has no token then.
        (None, true) => Vec::new(),
        (None, false) => (0..8).map(|index| entry(index, marks)).collect(),
    };
    let count = tokens.len();
    let logprobs = if marks.contains_key("nolp") { Value::Null } else { json!({ "content": tokens }) };
    let choice = json!({ "finish_reason": "stop", "index": 0, "logprobs": logprobs,
        "message": { "content": "w0 w1 ", "role": "assistant" } });
    let mut document = json!({ "choices": [choice], "created": 1, "id": "x", "model": "test-model",
        "object": "chat.completion" });
    if !marks.contains_key("nousage") {
        document["usage"] =
            json!({ "completion_tokens": count, "prompt_tokens": 3, "total_tokens": count + 3 });
    }
    document
}
