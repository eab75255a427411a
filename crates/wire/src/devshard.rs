//! The session protocol in its bytes: steps ("diffs"), their entries, and what is signed for each.
//!
//! Encoding is deterministic: fields in number order, zero values left out. The real programs
//! write the same bytes, so a decoded message encodes to what it came from (fixtures
//! "wire-july", `transport/`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message;

pub use crate::proto::devshard::devshard_tx::Tx;
pub use crate::proto::devshard::{
    DevshardTx, DiffContent, ExecutorReceiptContent, MsgConfirmStart, MsgFinalizeRound, MsgFinishInference,
    MsgRevealSeed, MsgStartInference, MsgTimeoutInference, MsgValidation, MsgValidationVote,
    StateSignatureContent, TimeoutReason, TimeoutVote, TimeoutVoteContent,
};

/// Bytes that are not what the session protocol says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DevshardError {
    /// The text is not standard base64 with padding.
    #[error("{what} is not base64: {reason}")]
    Base64 {
        /// Which message was wanted.
        what: &'static str,
        /// What the decoder said.
        reason: String,
    },
    /// The bytes are not the protobuf message.
    #[error("{what} of {length} bytes is not a protobuf message of that type: {reason}")]
    Protobuf {
        /// Which message was wanted.
        what: &'static str,
        /// Size of the refused input.
        length: usize,
        /// What the decoder said.
        reason: String,
    },
}

/// Kind of an entry, under the short name that records and reports use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TxKind {
    /// `start_inference`, by the user.
    Start,
    /// `confirm_start`, by the executor.
    ConfirmStart,
    /// `finish_inference`, by the executor.
    Finish,
    /// `timeout_inference`, by the user with votes.
    Timeout,
    /// `validation`, by another host.
    Validation,
    /// `validation_vote`, by any host.
    Vote,
    /// `reveal_seed`, out of use.
    RevealSeed,
    /// `finalize_round`, by the user.
    FinalizeRound,
}

impl TxKind {
    /// All kinds, in the order of their field numbers.
    pub const ALL: [Self; 8] = [
        Self::Start,
        Self::ConfirmStart,
        Self::Finish,
        Self::Timeout,
        Self::Validation,
        Self::Vote,
        Self::RevealSeed,
        Self::FinalizeRound,
    ];

    /// The short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::ConfirmStart => "confirm_start",
            Self::Finish => "finish",
            Self::Timeout => "timeout",
            Self::Validation => "validation",
            Self::Vote => "vote",
            Self::RevealSeed => "reveal_seed",
            Self::FinalizeRound => "finalize_round",
        }
    }

    /// The kind with this short name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl std::fmt::Display for TxKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

impl From<Tx> for DevshardTx {
    fn from(tx: Tx) -> Self {
        Self { tx: Some(tx) }
    }
}

impl Tx {
    /// Kind of the entry.
    #[must_use]
    pub const fn kind(&self) -> TxKind {
        match self {
            Self::StartInference(_) => TxKind::Start,
            Self::ConfirmStart(_) => TxKind::ConfirmStart,
            Self::FinishInference(_) => TxKind::Finish,
            Self::TimeoutInference(_) => TxKind::Timeout,
            Self::Validation(_) => TxKind::Validation,
            Self::ValidationVote(_) => TxKind::Vote,
            Self::RevealSeed(_) => TxKind::RevealSeed,
            Self::FinalizeRound(_) => TxKind::FinalizeRound,
        }
    }

    /// The request the entry is about; none for `reveal_seed` and `finalize_round`.
    #[must_use]
    pub const fn inference_id(&self) -> Option<u64> {
        match self {
            Self::StartInference(tx) => Some(tx.inference_id),
            Self::ConfirmStart(tx) => Some(tx.inference_id),
            Self::FinishInference(tx) => Some(tx.inference_id),
            Self::TimeoutInference(tx) => Some(tx.inference_id),
            Self::Validation(tx) => Some(tx.inference_id),
            Self::ValidationVote(tx) => Some(tx.inference_id),
            Self::RevealSeed(_) | Self::FinalizeRound(_) => None,
        }
    }
}

impl DevshardTx {
    /// Kind of the entry; none when it is of a kind that this build does not know.
    #[must_use]
    pub fn kind(&self) -> Option<TxKind> {
        self.tx.as_ref().map(Tx::kind)
    }

    /// The request the entry is about, see [`Tx::inference_id`].
    #[must_use]
    pub fn inference_id(&self) -> Option<u64> {
        self.tx.as_ref().and_then(Tx::inference_id)
    }
}

/// `diffs[].txs` of the transport: a [`DiffContent`] with nonce and entries alone.
#[must_use]
pub fn encode_diff_txs(nonce: u64, txs: &[DevshardTx]) -> Vec<u8> {
    DiffContent { nonce, txs: txs.to_vec(), ..DiffContent::default() }.encode_to_vec()
}

/// Reads a [`DiffContent`], in the transport's form or in the signed one.
///
/// # Errors
/// When the bytes are not such a message.
pub fn decode_diff(bytes: &[u8]) -> Result<DiffContent, DevshardError> {
    decode("DiffContent", bytes)
}

/// Reads `diffs[].txs` as it stands in JSON (standard base64).
///
/// # Errors
/// When the text is not base64 or not such a message.
pub fn decode_diff_base64(text: &str) -> Result<DiffContent, DevshardError> {
    decode_diff(&from_base64("DiffContent", text)?)
}

/// What the user signs for a step: the transport's bytes, then escrow id and state root.
///
/// The bytes are taken as they came, so that a signature can be checked even when another
/// encoder wrote them.
#[must_use]
pub fn diff_signed_bytes(diff_txs: &[u8], escrow_id: &str, post_state_root: &[u8]) -> Vec<u8> {
    let tail = DiffContent {
        escrow_id: escrow_id.to_owned(),
        post_state_root: post_state_root.to_vec(),
        ..DiffContent::default()
    };
    let mut message = diff_txs.to_vec();
    message.extend(tail.encode_to_vec());
    message
}

/// Bytes of one entry, as hosts list them in their mempool.
#[must_use]
pub fn encode_tx(tx: &DevshardTx) -> Vec<u8> {
    tx.encode_to_vec()
}

/// One entry as it stands in JSON (standard base64).
#[must_use]
pub fn encode_tx_base64(tx: &DevshardTx) -> String {
    STANDARD.encode(tx.encode_to_vec())
}

/// Reads one entry.
///
/// # Errors
/// When the bytes are not such a message.
pub fn decode_tx(bytes: &[u8]) -> Result<DevshardTx, DevshardError> {
    decode("DevshardTx", bytes)
}

/// Reads one entry as it stands in JSON, for instance in `devshard_meta.mempool`.
///
/// # Errors
/// When the text is not base64 or not such a message.
pub fn decode_tx_base64(text: &str) -> Result<DevshardTx, DevshardError> {
    decode_tx(&from_base64("DevshardTx", text)?)
}

/// What the proposing slot signs for an entry: the entry's own message without its
/// `proposer_sig`. None for the kinds that carry no such signature.
#[must_use]
pub fn proposer_signed_bytes(tx: &Tx) -> Option<Vec<u8>> {
    match tx {
        Tx::FinishInference(message) => {
            Some(MsgFinishInference { proposer_sig: Vec::new(), ..message.clone() }.encode_to_vec())
        }
        Tx::Validation(message) => {
            Some(MsgValidation { proposer_sig: Vec::new(), ..message.clone() }.encode_to_vec())
        }
        Tx::ValidationVote(message) => {
            Some(MsgValidationVote { proposer_sig: Vec::new(), ..message.clone() }.encode_to_vec())
        }
        Tx::RevealSeed(message) => {
            Some(MsgRevealSeed { proposer_sig: Vec::new(), ..message.clone() }.encode_to_vec())
        }
        Tx::StartInference(_) | Tx::ConfirmStart(_) | Tx::TimeoutInference(_) | Tx::FinalizeRound(_) => None,
    }
}

/// What a slot signs for the state at a nonce (`state_sig` of a receipt, settlement signatures).
#[must_use]
pub fn state_signed_bytes(state_root: &[u8], escrow_id: &str, nonce: u64) -> Vec<u8> {
    StateSignatureContent { state_root: state_root.to_vec(), escrow_id: escrow_id.to_owned(), nonce }
        .encode_to_vec()
}

/// What the executor signs as its receipt: the start it took, its escrow, and when it took it
/// (`confirmed_at` in Unix seconds).
#[must_use]
pub fn receipt_signed_bytes(start: &MsgStartInference, escrow_id: &str, confirmed_at: i64) -> Vec<u8> {
    ExecutorReceiptContent {
        inference_id: start.inference_id,
        prompt_hash: start.prompt_hash.clone(),
        model: start.model.clone(),
        input_length: start.input_length,
        max_tokens: start.max_tokens,
        started_at: start.started_at,
        escrow_id: escrow_id.to_owned(),
        confirmed_at,
    }
    .encode_to_vec()
}

/// What a slot signs when it votes on a timeout.
#[must_use]
pub fn timeout_vote_signed_bytes(
    escrow_id: &str,
    inference_id: u64,
    reason: TimeoutReason,
    accept: bool,
) -> Vec<u8> {
    TimeoutVoteContent { escrow_id: escrow_id.to_owned(), inference_id, reason: reason.into(), accept }
        .encode_to_vec()
}

fn decode<M: Message + Default>(what: &'static str, bytes: &[u8]) -> Result<M, DevshardError> {
    M::decode(bytes).map_err(|error| DevshardError::Protobuf {
        what,
        length: bytes.len(),
        reason: error.to_string(),
    })
}

fn from_base64(what: &'static str, text: &str) -> Result<Vec<u8>, DevshardError> {
    STANDARD.decode(text).map_err(|error| DevshardError::Base64 { what, reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One entry of every kind, with every field set, and the names it must have.
    fn samples() -> Vec<(Tx, &'static str, Option<u64>)> {
        let escrow_id = String::from("9");
        let start = MsgStartInference {
            inference_id: 1,
            prompt_hash: vec![1; 32],
            model: "m".into(),
            input_length: 2,
            max_tokens: 3,
            started_at: 4,
        };
        let confirm = MsgConfirmStart { inference_id: 2, executor_sig: vec![2; 65], confirmed_at: 5 };
        let finish = MsgFinishInference {
            inference_id: 3,
            response_hash: vec![3; 32],
            input_tokens: 4,
            output_tokens: 5,
            executor_slot: 1,
            proposer_sig: vec![3; 65],
            escrow_id: escrow_id.clone(),
        };
        let votes = vec![TimeoutVote { voter_slot: 2, accept: true, signature: vec![7; 65] }];
        let timeout = MsgTimeoutInference { inference_id: 4, reason: TimeoutReason::Refused.into(), votes };
        let validation = MsgValidation {
            inference_id: 5,
            validator_slot: 1,
            valid: true,
            proposer_sig: vec![5; 65],
            escrow_id: escrow_id.clone(),
        };
        let vote = MsgValidationVote {
            inference_id: 6,
            voter_slot: 1,
            vote_valid: true,
            proposer_sig: vec![6; 65],
            escrow_id: escrow_id.clone(),
        };
        let seed = MsgRevealSeed { slot_id: 1, signature: vec![7; 8], proposer_sig: vec![7; 65], escrow_id };
        vec![
            (Tx::StartInference(start), "start", Some(1)),
            (Tx::ConfirmStart(confirm), "confirm_start", Some(2)),
            (Tx::FinishInference(finish), "finish", Some(3)),
            (Tx::TimeoutInference(timeout), "timeout", Some(4)),
            (Tx::Validation(validation), "validation", Some(5)),
            (Tx::ValidationVote(vote), "vote", Some(6)),
            (Tx::RevealSeed(seed), "reveal_seed", None),
            (Tx::FinalizeRound(MsgFinalizeRound {}), "finalize_round", None),
        ]
    }

    #[test]
    fn kinds_have_their_names_and_ids() {
        for ((tx, name, id), kind) in samples().into_iter().zip(TxKind::ALL) {
            let entry = DevshardTx::from(tx);
            assert_eq!(entry.kind(), Some(kind));
            assert_eq!(kind.to_string(), name);
            assert_eq!(TxKind::from_name(name), Some(kind));
            assert_eq!(entry.inference_id(), id);
        }
        assert_eq!(TxKind::from_name("Start"), None);
        assert_eq!(DevshardTx::default().kind(), None);
        assert_eq!(DevshardTx::default().inference_id(), None);
    }

    #[test]
    fn entries_and_steps_come_back() {
        let txs: Vec<_> = samples().into_iter().map(|(tx, ..)| DevshardTx::from(tx)).collect();
        for tx in &txs {
            assert_eq!(decode_tx(&encode_tx(tx)).as_ref(), Ok(tx));
            assert_eq!(decode_tx_base64(&encode_tx_base64(tx)).as_ref(), Ok(tx));
        }
        let bytes = encode_diff_txs(8, &txs);
        let diff = decode_diff(&bytes).unwrap();
        assert_eq!((diff.nonce, &diff.txs), (8, &txs));
        assert_eq!((diff.escrow_id.as_str(), diff.post_state_root.len()), ("", 0));

        let signed = decode_diff(&diff_signed_bytes(&bytes, "42", &[9; 32])).unwrap();
        assert_eq!((signed.escrow_id.as_str(), signed.post_state_root), ("42", vec![9; 32]));
        assert_eq!((signed.nonce, signed.txs), (8, txs));
    }

    #[test]
    fn an_empty_finalize_round_has_the_captured_bytes() {
        let tx = DevshardTx::from(Tx::FinalizeRound(MsgFinalizeRound {}));
        assert_eq!(encode_diff_txs(3, &[tx]), [0x08, 0x03, 0x12, 0x02, 0x42, 0x00]);
    }

    #[test]
    fn what_a_proposer_signs_depends_on_all_but_the_signature() {
        for (tx, name, _) in samples() {
            let signed = proposer_signed_bytes(&tx);
            let carries_one = matches!(name, "finish" | "validation" | "vote" | "reveal_seed");
            assert_eq!(signed.is_some(), carries_one, "{name}");
            let Some(signed) = signed else { continue };
            // around the message: tag and length; left out of it: tag, length and 65 bytes
            let whole = DevshardTx::from(tx).encode_to_vec();
            assert_eq!(signed.len() + 67 + 2, whole.len(), "{name}");
        }
    }

    #[test]
    fn refusals_name_the_message_and_its_size() {
        let error = decode_diff(&[0xff, 0xff]).unwrap_err();
        assert!(error.to_string().starts_with("DiffContent of 2 bytes is not a protobuf message"), "{error}");
        let error = decode_tx_base64("*").unwrap_err();
        assert!(error.to_string().starts_with("DevshardTx is not base64"), "{error}");
    }
}
