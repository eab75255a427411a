//! Everything that is signed or checked, in one place, over the keys of crate `wire`.

use sha2::{Digest, Sha256};
use wire::keys::{PrivateKey, RecoverableSignature};
use wire::transport::{SignedHeaders, request_sender, sign_request, timestamp_is_near};

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
    key: PrivateKey,
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
        let key = PrivateKey::from_hex(text.trim()).map_err(|_| SigningError::Key)?;
        let address = key.address().to_string();
        Ok(Self { key, address })
    }

    /// Address of the key, `gonka1…`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The key, for what `wire` signs itself.
    #[must_use]
    pub const fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// Signs `message`: r, s and recovery id, 65 bytes, over its SHA-256.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.key.sign_recoverable(message).to_bytes().to_vec()
    }

    /// Another valid signature of the same message: other bytes, same signer. The planted defect
    /// `double-validation` needs it to publish one entry twice.
    #[cfg(feature = "planted-defects")]
    #[must_use]
    pub fn sign_variant(&self, message: &[u8]) -> Vec<u8> {
        use k256::ecdsa::signature::hazmat::RandomizedPrehashSigner;
        use k256::ecdsa::{RecoveryId, Signature, SigningKey, VerifyingKey};
        let key = SigningKey::from_bytes(&self.key.expose_bytes().into()).expect("a private key is a scalar");
        let digest = sha256(message);
        let signature: Signature =
            key.sign_prehash_with_rng(&mut FixedBytes, &digest).expect("a 32-byte digest can be signed");
        let fits = |recovery: &RecoveryId| {
            VerifyingKey::recover_from_prehash(&digest, &signature, *recovery).ok().as_ref()
                == Some(key.verifying_key())
        };
        let recovery = [false, true].map(|odd| RecoveryId::new(odd, false)).into_iter().find(fits);
        let mut bytes = signature.to_bytes().to_vec();
        bytes.push(u8::from(recovery.is_some_and(|recovery| recovery.is_y_odd())));
        bytes
    }

    /// Signs a POST between gateway and host: hex for the signature header.
    #[must_use]
    pub fn sign_request(&self, escrow_id: &str, body: &[u8], timestamp_s: i64) -> String {
        sign_request(&self.key, escrow_id, body, timestamp_s).signature
    }
}

/// "Randomness" for [`Signer::sign_variant`]: any fixed bytes give another signature than none do.
#[cfg(feature = "planted-defects")]
struct FixedBytes;

#[cfg(feature = "planted-defects")]
impl k256::elliptic_curve::rand_core::TryRng for FixedBytes {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        Ok(7)
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(7)
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        bytes.fill(7);
        Ok(())
    }
}

#[cfg(feature = "planted-defects")]
impl k256::elliptic_curve::rand_core::TryCryptoRng for FixedBytes {}

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
    RecoverableSignature::from_bytes(signature)
        .and_then(|signature| signature.recover_address(message))
        .map(|address| address.to_string())
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
    if !timestamp_is_near(timestamp_s, now_s) {
        return Err(SigningError::Drift);
    }
    let headers = SignedHeaders { signature: signature_hex.to_owned(), timestamp: timestamp_s.to_string() };
    request_sender(escrow_id, body, &headers)
        .map(|(address, _)| address.to_string())
        .map_err(|_| SigningError::Signature)
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

    #[cfg(feature = "planted-defects")]
    #[test]
    fn a_variant_differs_and_has_the_same_signer() {
        for number in 1..20 {
            let (first, second) = (signer(number).sign(b"message"), signer(number).sign_variant(b"message"));
            assert_ne!(first, second);
            assert_eq!(signer_of(b"message", &second).as_deref(), Ok(signer(number).address()));
        }
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
