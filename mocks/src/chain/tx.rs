//! Reads a transaction as the gateway sends it (fixture wire-july, "Transaction bytes"). Signature, fee and sequence
//! are not checked, as upstream.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use wire::proto::inference::{MsgCreateDevshardEscrow, MsgSettleDevshardEscrow};
use wire::proto::secp256k1::PubKey;
use wire::proto::tx::{AuthInfo, TxBody, TxRaw};

/// Largest transaction accepted; a settlement of many slots has some tens of kilobytes.
pub const TX_BYTES_MAX: usize = 1 << 20;

/// What a transaction asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A new escrow.
    Create {
        /// Who pays.
        creator: String,
        /// Deposit.
        amount: u64,
        /// Model.
        model: String,
    },
    /// The end of an escrow.
    Settle {
        /// Who settles.
        settler: String,
        /// Escrow.
        escrow: u64,
        /// Last nonce.
        nonce: u64,
        /// Fees.
        fees: u64,
    },
}

/// A transaction that could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Upper-case hex of the SHA-256 of its bytes.
    pub hash: String,
    /// What it asks for.
    pub work: Work,
    /// Base64 of the signer's compressed key; empty when there is none.
    pub pubkey: String,
}

/// Upper-case hex of the SHA-256 of a transaction's bytes.
#[must_use]
pub fn hash(bytes: &[u8]) -> String {
    hex::encode_upper(Sha256::digest(bytes))
}

/// Reads the bytes of a `TxRaw`.
///
/// # Errors
/// The text for `raw_log`.
pub fn read(bytes: &[u8]) -> Result<Transaction, String> {
    if bytes.len() > TX_BYTES_MAX {
        return Err(format!("the transaction has {} bytes, at most {TX_BYTES_MAX} are read", bytes.len()));
    }
    let raw = TxRaw::decode(bytes).map_err(|error| format!("not a TxRaw: {error}"))?;
    let body = TxBody::decode(raw.body_bytes.as_slice()).map_err(|error| format!("not a TxBody: {error}"))?;
    let [message] = body.messages.as_slice() else {
        return Err(format!(
            "exactly one message is carried out, this transaction has {}",
            body.messages.len()
        ));
    };
    let value = message.value.as_slice();
    let work = match message.type_url.as_str() {
        "/inference.inference.MsgCreateDevshardEscrow" => {
            let create = MsgCreateDevshardEscrow::decode(value).map_err(|error| error.to_string())?;
            Work::Create { creator: create.creator, amount: create.amount, model: create.model_id }
        }
        "/inference.inference.MsgSettleDevshardEscrow" => {
            let settle = MsgSettleDevshardEscrow::decode(value).map_err(|error| error.to_string())?;
            Work::Settle {
                settler: settle.settler,
                escrow: settle.escrow_id,
                nonce: settle.nonce,
                fees: settle.fees,
            }
        }
        other => return Err(format!("messages of type {other:?} are not carried out")),
    };
    Ok(Transaction { hash: hash(bytes), work, pubkey: signer_key(&raw.auth_info_bytes).unwrap_or_default() })
}

/// The key is a courtesy to later questions for the account, so what can't be read is left out.
fn signer_key(auth_info: &[u8]) -> Option<String> {
    let info = AuthInfo::decode(auth_info).ok()?;
    let key = info.signer_infos.first()?.public_key.as_ref()?;
    if key.type_url != "/cosmos.crypto.secp256k1.PubKey" {
        return None;
    }
    let key = PubKey::decode(key.value.as_slice()).ok()?;
    Some(STANDARD.encode(key.key))
}
