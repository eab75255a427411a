//! Everything that is signed or checked, in one place: 65-byte recoverable secp256k1 signatures over
//! SHA-256, and addresses (contract mocks 6.1).

use bech32::{Bech32, Hrp};
use k256::ecdsa::{RecoveryId, Signature, SigningKey, VerifyingKey};
use ripemd::Ripemd160;
use sha2::{Digest, Sha256};

use crate::transport::CLOCK_DRIFT_MAX_S;

/// Why a key or a signature was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SigningError {
    /// The key is not 32 bytes of hex that form a scalar of the curve. Never quotes the key.
    #[error("the private key is not 64 hex digits of a secp256k1 key")]
    Key,
    /// The signature does not have 65 bytes, or no key could have made it.
    #[error("invalid signature")]
    Signature,
    /// The signed time is too far from the clock.
    #[error("timestamp drift too large")]
    Drift,
}

/// A private key with its address. `Debug` shows the address alone.
#[derive(Clone)]
pub struct Signer {
    key: SigningKey,
    address: String,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Signer({})", self.address)
    }
}

impl Signer {
    /// Reads a key of 64 hex digits.
    ///
    /// # Errors
    /// When the text is no such key.
    pub fn from_hex(text: &str) -> Result<Self, SigningError> {
        let bytes = hex::decode(text.trim()).map_err(|_| SigningError::Key)?;
        let key = SigningKey::from_slice(&bytes).map_err(|_| SigningError::Key)?;
        let address = address_of(key.verifying_key());
        Ok(Self { key, address })
    }

    /// Address of the key, `gonka1…`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Signs `message`: r, s and recovery id, 65 bytes, over its SHA-256.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let (signature, recovery) = self.key.sign_prehash_recoverable(&sha256(message));
        let mut bytes = signature.to_bytes().to_vec();
        bytes.push(recovery.to_byte());
        bytes
    }

    /// Signs a POST between gateway and host: hex for the signature header.
    #[must_use]
    pub fn sign_request(&self, escrow_id: &str, body: &[u8], timestamp_s: i64) -> String {
        hex::encode(self.sign(&request_message(escrow_id, body, timestamp_s)))
    }
}

/// SHA-256 of `bytes`.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Address that signed `message`, recovered from a 65-byte signature.
///
/// # Errors
/// When the signature is malformed.
pub fn signer_of(message: &[u8], signature: &[u8]) -> Result<String, SigningError> {
    let (body, recovery) = match signature {
        [body @ .., recovery] if body.len() == 64 => (body, *recovery),
        _ => return Err(SigningError::Signature),
    };
    let recovery = RecoveryId::from_byte(recovery).ok_or(SigningError::Signature)?;
    let body = Signature::from_slice(body).map_err(|_| SigningError::Signature)?;
    VerifyingKey::recover_from_prehash(&sha256(message), &body, recovery)
        .map(|key| address_of(&key))
        .map_err(|_| SigningError::Signature)
}

/// Sender of a POST between gateway and host; `now_s` is the receiver's clock in Unix seconds.
///
/// # Errors
/// When the signature is malformed or the timestamp more than 30 s off.
pub fn sender_of_request(
    escrow_id: &str,
    body: &[u8],
    signature_hex: &str,
    timestamp_s: i64,
    now_s: i64,
) -> Result<String, SigningError> {
    if now_s.abs_diff(timestamp_s) > CLOCK_DRIFT_MAX_S.unsigned_abs() {
        return Err(SigningError::Drift);
    }
    let signature = hex::decode(signature_hex).map_err(|_| SigningError::Signature)?;
    signer_of(&request_message(escrow_id, body, timestamp_s), &signature)
}

fn request_message(escrow_id: &str, body: &[u8], timestamp_s: i64) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(escrow_id.as_bytes());
    hash.update(body);
    hash.update(timestamp_s.to_be_bytes());
    hash.finalize().to_vec()
}

fn address_of(key: &VerifyingKey) -> String {
    let compressed = key.to_sec1_point(true);
    let payload = Ripemd160::digest(Sha256::digest(compressed.as_bytes()));
    bech32::encode::<Bech32>(Hrp::parse_unchecked("gonka"), &payload).expect("20 bytes fit a bech32 address")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(number: u8) -> Signer {
        Signer::from_hex(&format!("{number:064x}")).unwrap()
    }

    #[test]
    fn the_address_of_key_one_is_the_published_one() {
        assert_eq!(signer(1).address(), "gonka1w508d6qejxtdg4y5r3zarvary0c5xw7k2gsyg6");
        assert_eq!(format!("{:?}", signer(1)), format!("Signer({})", signer(1).address()));
    }

    #[test]
    fn a_signature_names_its_signer_and_covers_the_message() {
        let signature = signer(7).sign(b"message");
        assert_eq!(signer_of(b"message", &signature).as_deref(), Ok(signer(7).address()));
        assert_ne!(signer_of(b"massage", &signature).ok().as_deref(), Some(signer(7).address()));
        assert_eq!(signer_of(b"message", &signature[..64]), Err(SigningError::Signature));
        assert_eq!(Signer::from_hex("zz").unwrap_err(), SigningError::Key);
    }

    #[test]
    fn a_request_signature_ages() {
        let header = signer(3).sign_request("42", b"{}", 1000);
        assert_eq!(sender_of_request("42", b"{}", &header, 1000, 1030).as_deref(), Ok(signer(3).address()));
        assert_eq!(sender_of_request("42", b"{}", &header, 1000, 1031), Err(SigningError::Drift));
        assert_ne!(
            sender_of_request("43", b"{}", &header, 1000, 1000).ok().as_deref(),
            Some(signer(3).address())
        );
    }
}
