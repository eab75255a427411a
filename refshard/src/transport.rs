//! JSON shapes between gateway and hosts (contract hosts 2.3), checked against the captures "wire-july".

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Header with the hex signature of a POST between gateway and host.
pub const SIGNATURE_HEADER: &str = "x-devshard-signature";
/// Header with the Unix seconds that the signature covers.
pub const TIMESTAMP_HEADER: &str = "x-devshard-timestamp";
/// Header that names the class of a refusal.
pub const ERROR_HEADER: &str = "x-devshard-error";
/// Header with the id of one request.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// Bytes that stand in JSON as standard base64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Base64(pub Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'_, str>::deserialize(deserializer)?;
        STANDARD.decode(text.as_ref()).map(Self).map_err(serde::de::Error::custom)
    }
}

impl From<Vec<u8>> for Base64 {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// One signed step of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diff {
    /// Its number, from 1.
    pub nonce: u64,
    /// Protobuf `DiffContent` with nonce and entries alone.
    pub txs: Base64,
    /// The user's signature over the content with escrow id and root.
    pub user_sig: Base64,
    /// State root after the step.
    pub post_state_root: Base64,
}

/// What is to be executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// Canonical JSON of the client's body.
    pub prompt: Base64,
    /// Model name.
    pub model: String,
    /// Prompt size that is paid for.
    pub input_length: u64,
    /// Most tokens that are paid for.
    pub max_tokens: u64,
    /// Unix seconds.
    pub started_at: i64,
}

/// `POST /sessions/:id/chat/completions`: catch-up steps and, with `payload`, one execution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatRequest {
    /// Steps that the host may lack, ascending.
    #[serde(default, deserialize_with = "null_as_default")]
    pub diffs: Vec<Diff>,
    /// The step this request is about; with a payload, the inference id.
    pub nonce: u64,
    /// Present when something is to be executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload>,
    /// Accepted and ignored: the prompt decides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
}

/// First event of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The host's signature over root and nonce; absent when withheld.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_sig: Option<Base64>,
    /// Root at the host's latest nonce.
    pub state_hash: Base64,
    /// The host's latest nonce; may exceed the requested one.
    pub nonce: u64,
    /// The executor's receipt; absent from everybody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Base64>,
    /// Unix seconds of the receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed_at: Option<i64>,
}

/// `data:` line of the first event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptEvent {
    /// The receipt.
    pub devshard_receipt: Receipt,
}

/// Last event of an answer that reached its normal end: the host's whole mempool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Protobuf `DevshardTx`, of any request of the session.
    #[serde(default, deserialize_with = "null_as_default")]
    pub mempool: Vec<Base64>,
}

/// `data:` line of the last event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaEvent {
    /// The meta.
    pub devshard_meta: Meta,
}

/// `reason` of a vote request: no receipt, or no finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VoteReason {
    /// The executor never gave a receipt.
    Refused,
    /// The executor gave a receipt and no finish.
    Execution,
}

/// `POST /sessions/:id/verify-timeout`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyTimeoutRequest {
    /// The request in question.
    pub inference_id: u64,
    /// `refused` or `execution`; kept as text, since an unknown one is answered with 400.
    pub reason: String,
    /// Needed for `refused`: what the executor was asked to do.
    #[serde(default)]
    pub payload: Option<Payload>,
    /// Catch-up steps.
    #[serde(default, deserialize_with = "null_as_default")]
    pub diffs: Vec<Diff>,
}

/// A host's vote on a timeout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyTimeoutResponse {
    /// The opinion.
    pub accept: bool,
    /// Signature over it.
    #[serde(default)]
    pub signature: Base64,
    /// First slot of the voter.
    pub voter_slot: u32,
}

/// Element of `GET /sessions/:id/diffs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffRecord {
    /// The step.
    pub diff: Diff,
    /// Root that this host computed.
    pub state_hash: Base64,
}

/// `GET /sessions/:id/mempool`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mempool {
    /// Protobuf `DevshardTx`.
    pub txs: Vec<Base64>,
}

/// `GET /sessions/:id/signatures`: by slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signatures {
    /// State signatures of one nonce; empty when none is stored.
    pub signatures: BTreeMap<u32, Base64>,
}

/// `GET /sessions/:id/payloads`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayloadResponse {
    /// The request, as text.
    pub inference_id: String,
    /// Canonical prompt; its SHA-256 is the start's `prompt_hash`.
    pub prompt_payload: Base64,
    /// Stored answer; its SHA-256 is the finish's `response_hash`.
    pub response_payload: Base64,
    /// The executor's signature over both.
    pub executor_signature: Base64,
}

/// Body of every refusal of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What went wrong.
    pub message: String,
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_as_captured() {
        let text = r#"{"diffs":[{"nonce":5,"txs":"CAUSAkIA","user_sig":"AQ==","post_state_root":"Ag=="}],"nonce":5}"#;
        let request: ChatRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.diffs[0].txs.0, [8, 5, 18, 2, 66, 0]);
        assert_eq!(request.payload, None);
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        let empty: ChatRequest = serde_json::from_str(r#"{"diffs":null,"nonce":0,"payload":null}"#).unwrap();
        assert_eq!(empty, ChatRequest::default());
        assert!(serde_json::from_str::<Base64>(r#""not base64!""#).is_err());
    }

    #[test]
    fn a_receipt_leaves_out_what_only_the_executor_gives() {
        let mut receipt = Receipt {
            state_sig: Some(Base64(vec![1])),
            state_hash: Base64(vec![2]),
            nonce: 17,
            receipt: None,
            confirmed_at: None,
        };
        let event = ReceiptEvent { devshard_receipt: receipt.clone() };
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            r#"{"devshard_receipt":{"state_sig":"AQ==","state_hash":"Ag==","nonce":17}}"#
        );
        receipt.receipt = Some(Base64(vec![3]));
        receipt.confirmed_at = Some(9);
        let text = serde_json::to_string(&receipt).unwrap();
        assert!(text.ends_with(r#""receipt":"Aw==","confirmed_at":9}"#), "{text}");
    }
}
