//! Captured requests of the gateway to hosts: every step, entry and signature in them is read,
//! written again to the same bytes, and traced to the key that must have made it.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use std::collections::BTreeMap;

use prost::Message;
use serde_json::Value;
use wire::devshard::{
    self, DevshardTx, ExecutorReceiptContent, MsgStartInference, TimeoutReason, Tx, TxKind,
};
use wire::keys::{Address, PrivateKey, RecoverableSignature};
use wire::transport::{self, SignedHeaders};

/// Private keys behind the slots of the captured groups, and behind their user.
const SLOT_KEYS: [u8; 3] = [2, 3, 5];
const USER_KEY: u8 = 1;

fn address(key: u8) -> Address {
    let mut bytes = [0; 32];
    bytes[31] = key;
    PrivateKey::from_bytes(&bytes).unwrap().address()
}

/// The address of a slot. One capture has a single host, whose key has two slots.
fn slot_address(sample: &Value, slot: u32) -> Address {
    let slot = if sample["capture"] == "capture-V" { 0 } else { slot as usize };
    address(SLOT_KEYS[slot])
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

fn signer(signature: &[u8], message: &[u8]) -> Address {
    RecoverableSignature::from_bytes(signature).unwrap().recover_address(message).unwrap()
}

fn signer_base64(signature: &str, message: &[u8]) -> Address {
    RecoverableSignature::from_base64(signature).unwrap().recover_address(message).unwrap()
}

/// One captured request with what its checks need.
struct Session<'a> {
    sample: &'a Value,
    escrow_id: &'a str,
    /// Starts that the sample knows: from its steps, and from the receipts recorded with it for
    /// requests whose step was sent earlier.
    starts: BTreeMap<u64, MsgStartInference>,
    /// How many entries of each kind had their signature checked.
    checked: BTreeMap<TxKind, usize>,
}

impl<'a> Session<'a> {
    fn new(sample: &'a Value) -> Self {
        let mut starts = BTreeMap::new();
        for content in sample["confirmed_receipts_hex"].as_array().unwrap() {
            let bytes = hex::decode(content.as_str().unwrap()).unwrap();
            let content = ExecutorReceiptContent::decode(bytes.as_slice()).unwrap();
            let start = MsgStartInference {
                inference_id: content.inference_id,
                prompt_hash: content.prompt_hash.clone(),
                model: content.model.clone(),
                input_length: content.input_length,
                max_tokens: content.max_tokens,
                started_at: content.started_at,
            };
            let again = devshard::receipt_signed_bytes(&start, &content.escrow_id, content.confirmed_at);
            assert_eq!(again, bytes);
            starts.insert(start.inference_id, start);
        }
        Self { sample, escrow_id: text(sample, "escrow_id"), starts, checked: BTreeMap::new() }
    }

    /// The signatures inside one entry belong to the slots that the entry names.
    fn check_entry(&mut self, entry: &DevshardTx) {
        let tx = entry.tx.as_ref().unwrap();
        let proposer = match tx {
            Tx::StartInference(start) => {
                self.starts.insert(start.inference_id, start.clone());
                None
            }
            Tx::ConfirmStart(confirm) => {
                let start = &self.starts[&confirm.inference_id];
                let signed = devshard::receipt_signed_bytes(start, self.escrow_id, confirm.confirmed_at);
                let slots = if self.sample["capture"] == "capture-S4" { 3 } else { 2 };
                let executor = u32::try_from(confirm.inference_id % slots).unwrap();
                let wanted = slot_address(self.sample, executor);
                assert_eq!(signer(&confirm.executor_sig, &signed), wanted);
                None
            }
            Tx::TimeoutInference(timeout) => {
                for vote in &timeout.votes {
                    let signed = devshard::timeout_vote_signed_bytes(
                        self.escrow_id,
                        timeout.inference_id,
                        timeout.reason(),
                        vote.accept,
                    );
                    let wanted = slot_address(self.sample, vote.voter_slot);
                    assert_eq!(signer(&vote.signature, &signed), wanted);
                }
                None
            }
            Tx::FinishInference(message) => Some((&message.proposer_sig, message.executor_slot)),
            Tx::Validation(message) => Some((&message.proposer_sig, message.validator_slot)),
            Tx::ValidationVote(message) => Some((&message.proposer_sig, message.voter_slot)),
            Tx::RevealSeed(message) => Some((&message.proposer_sig, message.slot_id)),
            Tx::FinalizeRound(_) => None,
        };
        let signed = devshard::proposer_signed_bytes(tx);
        assert_eq!(signed.is_some(), proposer.is_some());
        if let (Some(signed), Some((signature, slot))) = (signed, proposer) {
            assert_eq!(signer(signature, &signed), slot_address(self.sample, slot));
        }
        *self.checked.entry(tx.kind()).or_default() += 1;
    }

    fn check_diffs(&mut self, diffs: &[Value]) {
        use base64::Engine as _;
        let standard = base64::engine::general_purpose::STANDARD;
        for diff in diffs {
            let bytes = standard.decode(text(diff, "txs")).unwrap();
            let content = devshard::decode_diff_base64(text(diff, "txs")).unwrap();
            assert_eq!(content.nonce, diff["nonce"].as_u64().unwrap());
            assert_eq!(devshard::encode_diff_txs(content.nonce, &content.txs), bytes);
            let root = standard.decode(text(diff, "post_state_root")).unwrap();
            let signed = devshard::diff_signed_bytes(&bytes, self.escrow_id, &root);
            assert_eq!(signer_base64(text(diff, "user_sig"), &signed), address(USER_KEY));
            for entry in &content.txs {
                self.check_entry(entry);
            }
        }
    }

    /// The receipt, the mempool and the vote in the host's answer.
    fn check_answer(&mut self, request: &Value) {
        use base64::Engine as _;
        let host = slot_address(self.sample, u32::try_from(self.sample["host"].as_u64().unwrap()).unwrap());
        if let Some(receipt) = self.sample.get("receipt") {
            let root = base64::engine::general_purpose::STANDARD.decode(text(receipt, "state_hash")).unwrap();
            let nonce = receipt["nonce"].as_u64().unwrap();
            let signed = devshard::state_signed_bytes(&root, self.escrow_id, nonce);
            assert_eq!(signer_base64(text(receipt, "state_sig"), &signed), host);
            if let Some(confirmed_at) = receipt.get("confirmed_at") {
                let start = &self.starts[&request["nonce"].as_u64().unwrap()];
                let signed =
                    devshard::receipt_signed_bytes(start, self.escrow_id, confirmed_at.as_i64().unwrap());
                assert_eq!(signer_base64(text(receipt, "receipt"), &signed), host);
            }
        }
        for entry in self.sample.get("mempool").map_or(&[][..], |list| list.as_array().unwrap()) {
            let entry = entry.as_str().unwrap();
            let tx = devshard::decode_tx_base64(entry).unwrap();
            assert_eq!(devshard::encode_tx_base64(&tx), entry);
            self.check_entry(&tx);
        }
        if let Some(vote) = self.sample.get("vote") {
            let signed = devshard::timeout_vote_signed_bytes(
                self.escrow_id,
                request["inference_id"].as_u64().unwrap(),
                TimeoutReason::Refused,
                vote["accept"].as_bool().unwrap(),
            );
            assert_eq!(text(request, "reason"), "refused");
            assert_eq!(signer_base64(text(vote, "signature"), &signed), host);
        }
    }
}

#[test]
fn captured_requests_are_signed_throughout() {
    let path = format!("{}/tests/fixtures/transport.json", env!("CARGO_MANIFEST_DIR"));
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut checked: BTreeMap<TxKind, usize> = BTreeMap::new();
    let samples = fixture["samples"].as_array().unwrap();
    for sample in samples {
        let mut session = Session::new(sample);
        let body = text(sample, "body");
        let headers = SignedHeaders {
            signature: text(sample, "signature").to_owned(),
            timestamp: text(sample, "timestamp").to_owned(),
        };
        let (sender, _) = transport::request_sender(session.escrow_id, body.as_bytes(), &headers).unwrap();
        assert_eq!(sender, address(USER_KEY), "{}", text(sample, "source"));

        let request: Value = serde_json::from_str(body).unwrap();
        session.check_diffs(request["diffs"].as_array().unwrap());
        session.check_answer(&request);
        for (kind, count) in session.checked {
            *checked.entry(kind).or_default() += count;
        }
    }
    assert_eq!(samples.len(), 20);
    let kinds: Vec<_> = checked.keys().copied().collect();
    assert_eq!(
        kinds,
        [
            TxKind::Start,
            TxKind::ConfirmStart,
            TxKind::Finish,
            TxKind::Timeout,
            TxKind::Validation,
            TxKind::FinalizeRound
        ]
    );
}
