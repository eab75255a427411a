//! A host that runs the real session rules and answers as it is told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use refshard::personality::Waits;
use refshard::signing::{Signer, sender_of_request, sha256};
use refshard::state::{Session, SessionConfig, SessionParams, Status, Trust};
use refshard::transport::{
    Base64, ChatRequest, Diff, Mempool, Meta, MetaEvent, Receipt, ReceiptEvent, VerifyTimeoutRequest,
    VerifyTimeoutResponse,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use wire::devshard::{
    DevshardTx, MsgConfirmStart, MsgFinishInference, MsgStartInference, TimeoutReason, Tx, decode_diff,
    encode_tx, proposer_signed_bytes, receipt_signed_bytes, state_signed_bytes, timeout_vote_signed_bytes,
};

/// How a host answers executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Three chunks or one document.
    Normal,
    /// A receipt and nothing more.
    Empty,
    /// Two chunks, then an error event.
    Truncated,
    /// Two chunks, then the connection is lost.
    Lost,
    /// An error document of the model server, with this code.
    Refused(u16),
    /// Normal, but the content comes this many milliseconds late.
    Slow(u64),
    /// The receipt comes this many milliseconds late.
    SlowReceipt(u64),
    /// HTTP status instead of an answer.
    Http(u16),
    /// A whole completion, also when a stream was asked for.
    Whole,
    /// Normal, but what the host holds is told this many milliseconds after the end marker.
    LateMeta(u64),
    /// A document with three alternatives for its one token.
    Logprobs,
}

struct Escrow {
    state: Session,
    mempool: Vec<Vec<u8>>,
    diffs: Vec<Diff>,
}

pub struct FakeHost {
    pub url: String,
    pub executed: Mutex<Vec<(u64, Value)>>,
    signer: Signer,
    behaviour: Mutex<Behaviour>,
    escrows: Mutex<BTreeMap<String, Escrow>>,
    group: Vec<String>,
}

type Shared = Arc<FakeHost>;

impl FakeHost {
    pub async fn start(number: u8) -> Shared {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let signer = |number: u8| Signer::from_hex(&format!("{:064x}", 100 + u32::from(number))).unwrap();
        let host = Arc::new(Self {
            url,
            executed: Mutex::default(),
            signer: signer(number),
            behaviour: Mutex::new(Behaviour::Normal),
            escrows: Mutex::default(),
            group: (1..=3).map(|number| signer(number).address().to_owned()).collect(),
        });
        let router = Router::new()
            .route("/devshard/v2/sessions/{id}/chat/completions", post(chat))
            .route("/devshard/v2/sessions/{id}/verify-timeout", post(verify))
            .route("/devshard/v2/sessions/{id}/mempool", get(mempool))
            .with_state(host.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        host
    }

    pub fn address(&self) -> &str {
        self.signer.address()
    }

    pub fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    /// Steps of an escrow as this host has them.
    pub fn diffs(&self, escrow: &str) -> Vec<Diff> {
        self.escrows.lock().unwrap().get(escrow).map(|escrow| escrow.diffs.clone()).unwrap_or_default()
    }

    fn with<T>(&self, id: &str, act: impl FnOnce(&mut Escrow) -> T) -> T {
        let mut escrows = self.escrows.lock().unwrap();
        let escrow = escrows.entry(id.to_owned()).or_insert_with(|| {
            let creator = Signer::from_hex(super::CREATOR).unwrap();
            let chain = wire::proto::inference::DevshardEscrow {
                token_price: 100,
                validation_rate: 10_000,
                ..wire::proto::inference::DevshardEscrow::default()
            };
            let waits = Waits { refusal_s: 1, execution_s: 1, grace_s: 0 };
            let params = SessionParams {
                escrow_id: id.to_owned(),
                creator: creator.address().to_owned(),
                group: self.group.clone(),
                initial_balance: if id == "9" { 30_000 } else { 1_000_000_000 },
                protocol_version: "v2".into(),
                config: SessionConfig::of_escrow(&chain, 3, waits),
            };
            Escrow { state: Session::new(params), mempool: Vec::new(), diffs: Vec::new() }
        });
        act(escrow)
    }

    fn apply(&self, id: &str, diffs: &[Diff]) -> Result<(), String> {
        self.with(id, |escrow| {
            for diff in diffs {
                let content = decode_diff(&diff.txs.0).unwrap();
                let root = Some(diff.post_state_root.0.as_slice());
                let new = escrow.state.apply(diff.nonce, &content.txs, root, Trust::Verify);
                if new.map_err(|error| error.to_string())? {
                    escrow.diffs.push(diff.clone());
                    let sequenced: Vec<_> = content.txs.iter().map(encode_tx).collect();
                    escrow.mempool.retain(|tx| !sequenced.contains(tx));
                }
            }
            Ok(())
        })
    }

    fn propose(&self, id: &str, tx: Tx) {
        self.with(id, |escrow| escrow.mempool.push(encode_tx(&DevshardTx::from(tx))));
    }

    fn pool(&self, id: &str) -> Vec<Base64> {
        self.with(id, |escrow| escrow.mempool.iter().cloned().map(Base64).collect())
    }

    fn receipt(&self, id: &str, request: &ChatRequest) -> Receipt {
        let (nonce, root) = self.with(id, |escrow| (escrow.state.nonce(), escrow.state.root()));
        let confirm = request.payload.as_ref().map(|payload| {
            let now = refshard::clock::unix_s();
            let start = MsgStartInference {
                inference_id: request.nonce,
                prompt_hash: sha256(&payload.prompt.0).to_vec(),
                model: payload.model.clone(),
                input_length: payload.input_length,
                max_tokens: payload.max_tokens,
                started_at: payload.started_at,
            };
            let executor_sig = self.signer.sign(&receipt_signed_bytes(&start, id, now));
            let confirm = MsgConfirmStart { inference_id: request.nonce, executor_sig, confirmed_at: now };
            self.propose(id, Tx::ConfirmStart(confirm.clone()));
            confirm
        });
        let (receipt, confirmed_at) = confirm.map(|one| (Base64(one.executor_sig), one.confirmed_at)).unzip();
        Receipt {
            state_sig: Some(Base64(self.signer.sign(&state_signed_bytes(&root, id, nonce)))),
            state_hash: Base64(root.to_vec()),
            nonce,
            receipt,
            confirmed_at,
        }
    }

    fn finish(&self, id: &str, nonce: u64) {
        let finish = MsgFinishInference {
            inference_id: nonce,
            response_hash: vec![1; 32],
            input_tokens: 3,
            output_tokens: 3,
            executor_slot: u32::try_from(nonce % 3).unwrap(),
            proposer_sig: Vec::new(),
            escrow_id: id.to_owned(),
        };
        let signed = proposer_signed_bytes(&Tx::FinishInference(finish.clone())).unwrap();
        let proposer_sig = self.signer.sign(&signed);
        self.propose(id, Tx::FinishInference(MsgFinishInference { proposer_sig, ..finish }));
    }
}

fn refuse(status: u16, message: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    (status, axum::Json(json!({ "message": message }))).into_response()
}

async fn chat(
    State(host): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = |name: &str| headers.get(name).unwrap().to_str().unwrap().to_owned();
    let stamp: i64 = text("x-devshard-timestamp").parse().unwrap();
    let creator = Signer::from_hex(super::CREATOR).unwrap();
    let sender = sender_of_request(&id, &body, &text("x-devshard-signature"), stamp, stamp);
    assert_eq!(sender.unwrap(), creator.address());
    let request: ChatRequest = serde_json::from_slice(&body).unwrap();
    let behaviour =
        if request.payload.is_some() { *host.behaviour.lock().unwrap() } else { Behaviour::Normal };
    if let Behaviour::Http(status) = behaviour {
        return refuse(status, "told to");
    }
    if let Err(error) = host.apply(&id, &request.diffs) {
        return refuse(500, &error);
    }
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(answer(host, id, request, behaviour, sender));
    Response::new(Body::from_stream(
        ReceiverStream::new(receiver).map(|line: Result<String, std::io::Error>| line),
    ))
}

type Lines = mpsc::Sender<Result<String, std::io::Error>>;

async fn line(lines: &Lines, data: impl std::fmt::Display) {
    let _ = lines.send(Ok(format!("data: {data}\n\n"))).await;
}

async fn answer(host: Shared, id: String, request: ChatRequest, behaviour: Behaviour, lines: Lines) {
    if let Behaviour::SlowReceipt(ms) = behaviour {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    let event = ReceiptEvent { devshard_receipt: host.receipt(&id, &request) };
    line(&lines, serde_json::to_string(&event).unwrap()).await;
    if let Some(payload) = &request.payload {
        let prompt: Value = serde_json::from_slice(&payload.prompt.0).unwrap();
        host.executed.lock().unwrap().push((request.nonce, prompt.clone()));
        if let Behaviour::Slow(ms) = behaviour {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        if !execute(&id, request.nonce, &prompt, behaviour, &lines).await {
            return;
        }
        host.finish(&id, request.nonce);
        line(&lines, "[DONE]").await;
        if let Behaviour::LateMeta(ms) = behaviour {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }
    let event = MetaEvent { devshard_meta: Meta { mempool: host.pool(&id) } };
    line(&lines, serde_json::to_string(&event).unwrap()).await;
}

/// Content; false when the answer ends without a finish.
async fn execute(escrow: &str, nonce: u64, prompt: &Value, behaviour: Behaviour, lines: &Lines) -> bool {
    let name = format!("devshard-{escrow}-{nonce}");
    match behaviour {
        Behaviour::Empty => return false,
        Behaviour::Refused(code) => {
            let error =
                json!({ "error": { "code": code, "message": "no", "type": "BadRequestError" }, "id": name });
            line(lines, error).await;
            return false;
        }
        _ => {}
    }
    if prompt["stream"] != true || behaviour == Behaviour::Whole {
        let message = json!({ "content": "w1 w2 ", "role": "assistant" });
        let top: Vec<Value> =
            (0..3).map(|rank| json!({ "token": rank.to_string(), "logprob": -0.1 })).collect();
        let entry = json!({ "token": "0", "logprob": -0.1, "top_logprobs": top });
        let shown =
            if behaviour == Behaviour::Logprobs { json!({ "content": [entry] }) } else { Value::Null };
        let whole = json!({
            "choices": [{ "finish_reason": "stop", "index": 0, "logprobs": shown, "message": message }],
            "created": 1, "id": name, "model": prompt["model"], "object": "chat.completion",
            "usage": { "completion_tokens": 3, "prompt_tokens": 3, "total_tokens": 6 }
        });
        line(lines, whole).await;
        return true;
    }
    let chunk = |delta: Value, finish: Value| {
        json!({
            "choices": [{ "delta": delta, "finish_reason": finish, "index": 0 }],
            "created": 1, "id": name, "model": prompt["model"], "object": "chat.completion.chunk"
        })
    };
    line(lines, chunk(json!({ "role": "assistant" }), Value::Null)).await;
    line(lines, chunk(json!({ "content": "w1 " }), Value::Null)).await;
    match behaviour {
        Behaviour::Truncated => {
            let error =
                json!({ "error": { "code": "transport_err", "message": "cut", "type": "upstream_error" } });
            line(lines, error).await;
            return false;
        }
        Behaviour::Lost => {
            // What has been said must be on its way before the connection goes.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _ = lines.send(Err(std::io::Error::other("lost"))).await;
            return false;
        }
        _ => {}
    }
    line(lines, chunk(json!({ "content": "w2 " }), json!("stop"))).await;
    true
}

async fn verify(State(host): State<Shared>, Path(id): Path<String>, body: Bytes) -> Response {
    let request: VerifyTimeoutRequest = serde_json::from_slice(&body).unwrap();
    let _ = host.apply(&id, &request.diffs);
    let (wanted, reason) = match request.reason.as_str() {
        "refused" => (Status::Pending, TimeoutReason::Refused),
        _ => (Status::Started, TimeoutReason::Execution),
    };
    let status = host.with(&id, |escrow| escrow.state.inference(request.inference_id).map(|one| one.status));
    if status != Some(wanted) {
        return refuse(500, &format!("inference {}: wrong status {status:?}", request.inference_id));
    }
    let signed = timeout_vote_signed_bytes(&id, request.inference_id, reason, true);
    let slot = host.group.iter().position(|address| address == host.address()).unwrap();
    let answer = VerifyTimeoutResponse {
        accept: true,
        signature: Base64(host.signer.sign(&signed)),
        voter_slot: u32::try_from(slot).unwrap(),
    };
    axum::Json(answer).into_response()
}

async fn mempool(State(host): State<Shared>, Path(id): Path<String>) -> Response {
    axum::Json(Mempool { txs: host.pool(&id) }).into_response()
}
