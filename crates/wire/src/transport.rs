//! How requests between gateway and hosts prove who sent them.
//!
//! Session requests carry a signature and a time in Unix seconds (contract hosts 2.1). Payload
//! requests between hosts and their answers have a form of their own, with nanoseconds.

use sha2::{Digest, Sha256};

use crate::keys::{Address, KeyError, PlainSignature, PrivateKey, PublicKey, RecoverableSignature};

/// Header with the signature: 65 bytes in lower-case hex.
pub const SIGNATURE_HEADER: &str = "X-Devshard-Signature";
/// Header with the time: Unix seconds in decimal.
pub const TIMESTAMP_HEADER: &str = "X-Devshard-Timestamp";
/// Most that a request's time may be away from the host's clock, in seconds.
pub const TIMESTAMP_TOLERANCE_S: u64 = 30;

/// Why a signed request does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The header with the time is no decimal number.
    #[error("{TIMESTAMP_HEADER} is not a decimal number of Unix seconds")]
    Timestamp,
    /// The header with the signature is not usable.
    #[error("{SIGNATURE_HEADER}: {0}")]
    Signature(#[from] KeyError),
}

/// Values of the two headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedHeaders {
    /// For [`SIGNATURE_HEADER`].
    pub signature: String,
    /// For [`TIMESTAMP_HEADER`].
    pub timestamp: String,
}

/// Signs a request body for an escrow; the time is in Unix seconds.
#[must_use]
pub fn sign_request(key: &PrivateKey, escrow_id: &str, body: &[u8], timestamp_s: i64) -> SignedHeaders {
    let message = request_message(escrow_id, body, timestamp_s);
    SignedHeaders { signature: key.sign_recoverable(&message).to_hex(), timestamp: timestamp_s.to_string() }
}

/// Address that signed the request, and the time that it signed. Whether the address may send
/// it and the time is near enough ([`TIMESTAMP_TOLERANCE_S`]) is for the caller to say: a body
/// or an escrow other than the signed ones gives another address, not an error.
///
/// # Errors
/// When a header is not in its form or no address fits.
pub fn request_sender(
    escrow_id: &str,
    body: &[u8],
    headers: &SignedHeaders,
) -> Result<(Address, i64), TransportError> {
    let timestamp_s: i64 = headers.timestamp.parse().map_err(|_| TransportError::Timestamp)?;
    let message = request_message(escrow_id, body, timestamp_s);
    let signature = RecoverableSignature::from_hex(&headers.signature)?;
    Ok((signature.recover_address(&message)?, timestamp_s))
}

/// Whether a request's time is close enough to the receiver's clock.
#[must_use]
pub const fn timestamp_is_near(timestamp_s: i64, now_s: i64) -> bool {
    timestamp_s.abs_diff(now_s) <= TIMESTAMP_TOLERANCE_S
}

/// The 32 bytes that are signed. The signature hashes them once more.
fn request_message(escrow_id: &str, body: &[u8], timestamp_s: i64) -> [u8; 32] {
    Sha256::new()
        .chain_update(escrow_id.as_bytes())
        .chain_update(body)
        .chain_update(timestamp_s.to_be_bytes())
        .finalize()
        .into()
}

/// Text that a validator signs (64-byte form, base64) to fetch the payloads of a request from
/// its executor. Epoch and time (Unix nanoseconds) are left out when they are 0.
#[must_use]
pub fn payload_request_text(
    inference_id: &str,
    epoch_id: u64,
    timestamp_ns: i64,
    validator: &Address,
) -> String {
    let mut text = inference_id.to_owned();
    if epoch_id > 0 {
        text.push_str(&epoch_id.to_string());
    }
    if timestamp_ns > 0 {
        text.push_str(&timestamp_ns.to_string());
    }
    text.push_str(&validator.to_string());
    text
}

/// Text that an executor signs (64-byte form, base64) below the payloads it hands out.
#[must_use]
pub fn payload_response_text(
    inference_id: &str,
    prompt: &[u8],
    response: &[u8],
    executor: &Address,
) -> String {
    let prompt_digest = hex::encode(Sha256::digest(prompt));
    let response_digest = hex::encode(Sha256::digest(response));
    format!("{inference_id}{prompt_digest}{response_digest}{executor}")
}

/// Checks the base64 signature of a payload request or answer against the signer's key.
///
/// # Errors
/// When it is not a signature, or one of another key or text.
pub fn verify_payload_text(text: &str, signature_base64: &str, signer: &PublicKey) -> Result<(), KeyError> {
    signer.verify_plain(text.as_bytes(), &PlainSignature::from_base64(signature_base64)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::key_from_seed;

    #[test]
    fn the_sender_follows_from_what_was_signed() {
        let key = key_from_seed("user");
        let headers = sign_request(&key, "42", b"{}", 1_784_500_000);
        assert_eq!(request_sender("42", b"{}", &headers), Ok((key.address(), 1_784_500_000)));
        for (escrow_id, body) in [("43", &b"{}"[..]), ("42", b"{} ")] {
            let sender = request_sender(escrow_id, body, &headers).map(|(address, _)| address);
            assert_ne!(sender, Ok(key.address()));
        }
        let later = SignedHeaders { timestamp: "1784500001".into(), ..headers };
        assert_ne!(request_sender("42", b"{}", &later).map(|(address, _)| address), Ok(key.address()));
    }

    #[test]
    fn headers_of_a_wrong_form_are_refused() {
        let good = sign_request(&key_from_seed("user"), "42", b"{}", 7);
        for timestamp in ["", "7.0", "0x7", "99999999999999999999"] {
            let headers = SignedHeaders { timestamp: timestamp.into(), ..good.clone() };
            assert_eq!(request_sender("42", b"{}", &headers), Err(TransportError::Timestamp));
        }
        for signature in ["", "zz", &good.signature[2..]] {
            let headers = SignedHeaders { signature: signature.into(), ..good.clone() };
            let error = request_sender("42", b"{}", &headers).unwrap_err();
            assert!(error.to_string().starts_with("X-Devshard-Signature: "), "{error}");
        }
    }

    #[test]
    fn the_clock_may_be_half_a_minute_off() {
        assert!(timestamp_is_near(100, 130) && timestamp_is_near(130, 100));
        assert!(!timestamp_is_near(100, 131) && !timestamp_is_near(131, 100));
        assert!(!timestamp_is_near(i64::MIN, i64::MAX));
    }
}
