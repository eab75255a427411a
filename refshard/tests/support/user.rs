//! A user: composes and signs steps as a gateway does, and reads answers event by event.

use refshard::clock;
use refshard::personality::Waits;
use refshard::signing::{Signer, sha256};
use refshard::state::{Session, SessionConfig, SessionParams, Trust};
use refshard::transport::{
    Base64, ChatRequest, Diff, Meta, Payload, Receipt, SIGNATURE_HEADER, TIMESTAMP_HEADER,
};
use serde_json::{Value, json};
use wire::devshard::{MsgStartInference, Tx, decode_tx, diff_signed_bytes, encode_diff_txs};

use super::{ESCROW, user_signer};

pub struct User {
    pub signer: Signer,
    pub session: Session,
    pub diffs: Vec<Diff>,
    pub pending: Vec<Tx>,
    pub http: reqwest::Client,
}

/// An answer, taken apart.
#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub request_id: String,
    pub receipt: Option<Receipt>,
    pub data: Vec<Value>,
    pub done: usize,
    pub meta: Option<Meta>,
    pub text: String,
}

impl Answer {
    pub fn error(&self) -> Option<&Value> {
        self.data.iter().find(|event| event.get("error").is_some())
    }
}

impl User {
    pub fn new(group: Vec<String>) -> Self {
        let size = u32::try_from(group.len()).unwrap();
        let waits = Waits { refusal_s: 1, execution_s: 1, grace_s: 0 };
        let config = SessionConfig { validation_rate: 10_000, ..SessionConfig::defaults(size, waits) };
        let signer = user_signer();
        let session = Session::new(SessionParams {
            escrow_id: ESCROW.into(),
            creator: signer.address().into(),
            group,
            initial_balance: 100_000_000,
            protocol_version: "v2".into(),
            config,
        });
        Self { signer, session, diffs: Vec::new(), pending: Vec::new(), http: reqwest::Client::new() }
    }

    /// Makes and signs the next step out of what hosts proposed and `own`.
    pub fn step(&mut self, own: Vec<Tx>) -> u64 {
        let pending = std::mem::take(&mut self.pending);
        let step = self.session.compose(pending, own, Trust::Verify).unwrap();
        let txs = encode_diff_txs(step.nonce, &step.txs);
        let user_sig = self.signer.sign(&diff_signed_bytes(&txs, ESCROW, &step.root));
        self.diffs.push(Diff {
            nonce: step.nonce,
            txs: txs.into(),
            user_sig: user_sig.into(),
            post_state_root: step.root.to_vec().into(),
        });
        step.nonce
    }

    /// Starts an inference; its id is the nonce of its step.
    pub fn start(&mut self, stream: bool) -> (u64, Payload) {
        let id = self.session.nonce() + 1;
        let prompt = json!({"model": "m", "messages": [{"role": "user", "content": format!("prompt {id}")}],
            "max_tokens": 32, "stream": stream})
        .to_string();
        let payload = Payload {
            prompt: prompt.clone().into_bytes().into(),
            model: "m".into(),
            input_length: prompt.len() as u64,
            max_tokens: 32,
            started_at: clock::unix_s(),
        };
        self.step(vec![Tx::StartInference(MsgStartInference {
            inference_id: id,
            prompt_hash: sha256(prompt.as_bytes()).to_vec(),
            model: payload.model.clone(),
            input_length: payload.input_length,
            max_tokens: payload.max_tokens,
            started_at: payload.started_at,
        })]);
        (id, payload)
    }

    /// The whole log up to `nonce` with an optional payload.
    pub fn request(&self, nonce: u64, payload: Option<Payload>) -> ChatRequest {
        let diffs = self.diffs.iter().filter(|diff| diff.nonce <= nonce).cloned().collect();
        ChatRequest { diffs, nonce, payload, stream: false }
    }

    pub fn post(&self, url: &str, route: &str, body: Vec<u8>) -> reqwest::RequestBuilder {
        let timestamp = clock::unix_s();
        self.http
            .post(format!("{url}/devshard/v2/sessions/{ESCROW}/{route}"))
            .header(SIGNATURE_HEADER, self.signer.sign_request(ESCROW, &body, timestamp))
            .header(TIMESTAMP_HEADER, timestamp)
            .header("content-type", "application/json")
            .body(body)
    }

    /// Sends a chat and reads the answer to its end; what the host proposes is kept for the next step.
    pub async fn chat(&mut self, url: &str, nonce: u64, payload: Option<Payload>) -> Answer {
        let body = serde_json::to_vec(&self.request(nonce, payload)).unwrap();
        let answer = read(self.post(url, "chat/completions", body).send().await.unwrap()).await;
        if let Some(meta) = &answer.meta {
            self.pending.extend(meta.mempool.iter().filter_map(|tx: &Base64| decode_tx(&tx.0).unwrap().tx));
        }
        answer
    }

    pub async fn get(&self, url: &str, route: &str) -> Value {
        let url = format!("{url}/devshard/v2/sessions/{ESCROW}/{route}");
        self.http.get(url).send().await.unwrap().json().await.unwrap()
    }
}

pub async fn read(response: reqwest::Response) -> Answer {
    let header = |name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let mut answer = Answer {
        status: response.status().as_u16(),
        request_id: header("x-request-id").unwrap_or_default(),
        ..Answer::default()
    };
    answer.text = response.text().await.unwrap();
    for event in answer.text.split("\n\n").filter(|event| event.starts_with("data: ")) {
        let data = &event["data: ".len()..];
        if data == "[DONE]" {
            answer.done += 1;
            continue;
        }
        let value: Value = serde_json::from_str(data).unwrap();
        if let Some(receipt) = value.get("devshard_receipt") {
            answer.receipt = Some(serde_json::from_value(receipt.clone()).unwrap());
        } else if let Some(meta) = value.get("devshard_meta") {
            answer.meta = Some(serde_json::from_value(meta.clone()).unwrap());
        } else {
            answer.data.push(value);
        }
    }
    answer
}
