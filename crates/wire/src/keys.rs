//! secp256k1 keys, `gonka1…` addresses and the two forms of signature that Devshard uses.
//!
//! Rules: fixtures "wire-july", `vectors.json`. Every signature is ECDSA over the SHA-256 of its
//! message with the nonce of RFC 6979 and a low `s`, so the same key and message always give the
//! same bytes. The session protocol takes 65 bytes (r, s, v), payload requests and chain
//! transactions take 64 (r, s).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bech32::primitives::decode::CheckedHrpstring;
use bech32::{Bech32, Hrp};
use k256::ecdsa::signature::hazmat::PrehashVerifier;
use k256::ecdsa::{RecoveryId, Signature, SigningKey, VerifyingKey};
use ripemd::Ripemd160;
use sha2::{Digest, Sha256};

/// Prefix of all addresses.
pub const ADDRESS_PREFIX: &str = "gonka";

/// Keeps seeded keys apart from every other use of SHA-256.
const SEED_DOMAIN: &[u8] = b"proofload/key/v1";

/// What is wrong with a key, an address or a signature. Never contains key material.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not 32 bytes, zero, or not below the order of the curve.
    #[error("private key is not 32 bytes that form a number of the secp256k1 group")]
    PrivateKey,
    /// No point of the curve.
    #[error("public key of {length} bytes is not a point of secp256k1 in SEC1 form")]
    PublicKey {
        /// Size of the refused input.
        length: usize,
    },
    /// Not bech32, another prefix, or not 20 bytes.
    #[error("address {text:?} is not bech32 with prefix gonka over 20 bytes: {reason}")]
    Address {
        /// The refused text, shortened.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The size or a number in it is wrong.
    #[error("signature of {length} bytes is not a valid one of {wanted} bytes")]
    Signature {
        /// Size of the refused input.
        length: usize,
        /// Size of this form: 65 or 64.
        wanted: usize,
    },
    /// No key can have made this signature for this message.
    #[error("no public key can be recovered from the signature for this message")]
    NoKeyRecovered,
    /// The signature was made by another key or for another message.
    #[error("signature does not belong to this key and message")]
    WrongSignature,
    /// Text that is not hex or not base64.
    #[error("{what} is not {encoding}")]
    Encoding {
        /// What was to be read.
        what: &'static str,
        /// `hex` or `base64`.
        encoding: &'static str,
    },
}

/// A private key. Neither `Debug` nor any error shows it; the `expose_…` functions do.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(SigningKey);

impl PrivateKey {
    /// Reads 32 big-endian bytes.
    ///
    /// # Errors
    /// When they are no number of the group.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        // the library pads what is a little too short, which would hide a cut key
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| KeyError::PrivateKey)?;
        SigningKey::from_bytes(&bytes.into()).map(Self).map_err(|_| KeyError::PrivateKey)
    }

    /// Reads 64 hex digits, as the environment of the real programs has them.
    ///
    /// # Errors
    /// When it is not hex or no number of the group.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let bytes =
            hex::decode(text).map_err(|_| KeyError::Encoding { what: "private key", encoding: "hex" })?;
        Self::from_bytes(&bytes)
    }

    /// The 32 bytes themselves. Keep them out of logs and of the run directory.
    #[must_use]
    pub fn expose_bytes(&self) -> [u8; 32] {
        self.0.to_bytes().into()
    }

    /// 64 lower-case hex digits. Keep them out of logs and of the run directory.
    #[must_use]
    pub fn expose_hex(&self) -> String {
        hex::encode(self.0.to_bytes())
    }

    /// The public key.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        PublicKey(*self.0.verifying_key())
    }

    /// Address of the public key.
    #[must_use]
    pub fn address(&self) -> Address {
        self.public_key().address()
    }

    /// 65 bytes over the SHA-256 of the message.
    #[must_use]
    pub fn sign_recoverable(&self, message: &[u8]) -> RecoverableSignature {
        let (signature, recovery) = self.0.sign_prehash_recoverable(&Sha256::digest(message));
        RecoverableSignature { signature, recovery }
    }

    /// 64 bytes over the SHA-256 of the message.
    #[must_use]
    pub fn sign_plain(&self, message: &[u8]) -> PlainSignature {
        PlainSignature(self.sign_recoverable(message).signature)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PrivateKey(of {})", self.address())
    }
}

/// A private key that depends on nothing but its label. For test stacks: whoever knows the
/// label has the key, so it must never guard anything of value.
#[must_use]
pub fn key_from_seed(label: &str) -> PrivateKey {
    for attempt in 0..=u8::MAX {
        let digest = Sha256::new()
            .chain_update(SEED_DOMAIN)
            .chain_update([attempt])
            .chain_update(label.as_bytes())
            .finalize();
        if let Ok(key) = PrivateKey::from_bytes(&digest) {
            return key;
        }
    }
    // each attempt misses the group with a chance of about 2^-128
    unreachable!("256 digests in a row outside of the secp256k1 group")
}

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Reads a point in SEC1 form: 33 bytes compressed or 65 bytes uncompressed.
    ///
    /// # Errors
    /// When it is no point of the curve.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        VerifyingKey::from_sec1_bytes(bytes)
            .map(Self)
            .map_err(|_| KeyError::PublicKey { length: bytes.len() })
    }

    /// Reads the base64 text that `AccountByAddress` and grantee lists carry.
    ///
    /// # Errors
    /// When it is not base64 or no point of the curve.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        Self::from_bytes(&from_base64("public key", text)?)
    }

    /// The compressed form.
    #[must_use]
    pub fn compressed(&self) -> [u8; 33] {
        let point = self.0.to_sec1_point(true);
        point.as_bytes().try_into().expect("a compressed point of secp256k1 has 33 bytes")
    }

    /// Base64 of the compressed form, as `AccountByAddress` and grantee lists carry it.
    #[must_use]
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.compressed())
    }

    /// The account of this key.
    #[must_use]
    pub fn address(&self) -> Address {
        let account = Ripemd160::digest(Sha256::digest(self.compressed()));
        Address::from_account(account.into())
    }

    /// Checks a 64-byte signature over the SHA-256 of the message.
    ///
    /// # Errors
    /// When the signature belongs to another key or message.
    pub fn verify_plain(&self, message: &[u8], signature: &PlainSignature) -> Result<(), KeyError> {
        self.0.verify_prehash(&Sha256::digest(message), &signature.0).map_err(|_| KeyError::WrongSignature)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PublicKey({})", hex::encode(self.compressed()))
    }
}

/// An account: RIPEMD-160 of the SHA-256 of a compressed public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address([u8; 20]);

impl Address {
    /// The account with these 20 bytes.
    #[must_use]
    pub const fn from_account(account: [u8; 20]) -> Self {
        Self(account)
    }

    /// Reads the `gonka1…` text.
    ///
    /// # Errors
    /// When it is not bech32, has another prefix or another size.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let refuse = |reason: String| KeyError::Address { text: text.chars().take(64).collect(), reason };
        let decoded = CheckedHrpstring::new::<Bech32>(text).map_err(|error| refuse(error.to_string()))?;
        if decoded.hrp().to_lowercase() != ADDRESS_PREFIX {
            return Err(refuse(format!("prefix is {:?}", decoded.hrp().to_lowercase())));
        }
        let bytes: Vec<u8> = decoded.byte_iter().collect();
        let account =
            bytes.try_into().map_err(|bytes: Vec<u8>| refuse(format!("it has {} bytes", bytes.len())))?;
        Ok(Self(account))
    }

    /// The 20 bytes.
    #[must_use]
    pub const fn account(&self) -> [u8; 20] {
        self.0
    }

    /// The bytes in lower-case hex, as keyring files are named.
    #[must_use]
    pub fn account_hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = Hrp::parse_unchecked(ADDRESS_PREFIX);
        let text = bech32::encode::<Bech32>(prefix, &self.0).map_err(|_| fmt::Error)?;
        formatter.pad(&text)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Address({self})")
    }
}

impl std::str::FromStr for Address {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

/// Signature of the session protocol: r (32 bytes), s (32 bytes), v (0 or 1). The signer's key
/// follows from it and the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoverableSignature {
    signature: Signature,
    recovery: RecoveryId,
}

impl RecoverableSignature {
    /// Reads the 65 bytes.
    ///
    /// # Errors
    /// When the size is another one, a number is out of range, or v is neither 0 nor 1.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let refuse = || KeyError::Signature { length: bytes.len(), wanted: 65 };
        let (&[v @ (0 | 1)], Some(numbers)) = (bytes.get(64..).unwrap_or_default(), bytes.get(..64)) else {
            return Err(refuse());
        };
        let signature = Signature::from_slice(numbers).map_err(|_| refuse())?;
        Ok(Self { signature, recovery: RecoveryId::new(v == 1, false) })
    }

    /// Reads hex text, as transport headers carry it.
    ///
    /// # Errors
    /// When it is not hex or not a signature.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let bytes =
            hex::decode(text).map_err(|_| KeyError::Encoding { what: "signature", encoding: "hex" })?;
        Self::from_bytes(&bytes)
    }

    /// Reads base64 text, as JSON documents carry it.
    ///
    /// # Errors
    /// When it is not base64 or not a signature.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        Self::from_bytes(&from_base64("signature", text)?)
    }

    /// The 65 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 65] {
        let mut bytes = [0; 65];
        bytes[..64].copy_from_slice(&self.signature.to_bytes());
        bytes[64] = u8::from(self.recovery.is_y_odd());
        bytes
    }

    /// The 65 bytes in lower-case hex.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex::encode(self.to_bytes())
    }

    /// The 65 bytes in standard base64.
    #[must_use]
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.to_bytes())
    }

    /// The key that signed this message. Another message gives another key, not an error.
    ///
    /// # Errors
    /// When no key fits.
    pub fn recover(&self, message: &[u8]) -> Result<PublicKey, KeyError> {
        VerifyingKey::recover_from_prehash(&Sha256::digest(message), &self.signature, self.recovery)
            .map(PublicKey)
            .map_err(|_| KeyError::NoKeyRecovered)
    }

    /// Address of the key that signed this message.
    ///
    /// # Errors
    /// When no key fits.
    pub fn recover_address(&self, message: &[u8]) -> Result<Address, KeyError> {
        self.recover(message).map(|key| key.address())
    }
}

/// Signature of payload requests and chain transactions: r and s, 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainSignature(Signature);

impl PlainSignature {
    /// Reads the 64 bytes.
    ///
    /// # Errors
    /// When the size is another one or a number is out of range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        Signature::from_slice(bytes)
            .map(Self)
            .map_err(|_| KeyError::Signature { length: bytes.len(), wanted: 64 })
    }

    /// Reads base64 text.
    ///
    /// # Errors
    /// When it is not base64 or not a signature.
    pub fn from_base64(text: &str) -> Result<Self, KeyError> {
        Self::from_bytes(&from_base64("signature", text)?)
    }

    /// The 64 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 64] {
        self.0.to_bytes().into()
    }

    /// The 64 bytes in standard base64.
    #[must_use]
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.0.to_bytes())
    }
}

fn from_base64(what: &'static str, text: &str) -> Result<Vec<u8>, KeyError> {
    STANDARD.decode(text).map_err(|_| KeyError::Encoding { what, encoding: "base64" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> PrivateKey {
        let mut bytes = [0; 32];
        bytes[31] = number;
        PrivateKey::from_bytes(&bytes).unwrap()
    }

    #[test]
    fn a_private_key_does_not_print_itself() {
        let key = key_from_seed("secret");
        let shown = format!("{key:?} {:?}", Some(&key));
        assert!(!shown.contains(&key.expose_hex()), "{shown}");
        let wrong = format!("{:?} {0}", PrivateKey::from_hex(&key.expose_hex()[2..]).unwrap_err());
        assert!(!wrong.contains(&key.expose_hex()[4..12]), "{wrong}");
    }

    #[test]
    fn private_keys_outside_the_group_are_refused() {
        for bytes in [vec![], vec![1; 31], vec![0; 32], vec![0xff; 32], vec![1; 33]] {
            assert_eq!(PrivateKey::from_bytes(&bytes), Err(KeyError::PrivateKey));
        }
        assert!(matches!(PrivateKey::from_hex("0x01"), Err(KeyError::Encoding { .. })));
        assert_eq!(PrivateKey::from_hex(&key(7).expose_hex()), Ok(key(7)));
    }

    #[test]
    fn seeded_keys_are_fixed() {
        // A change here changes the addresses of every stored stack.
        let address = key_from_seed("host-0").address().to_string();
        assert_eq!(address, "gonka1df38ngdvecg7jfqps25c5dy6aret5rg9lt3u3z");
        assert_ne!(key_from_seed("host-0"), key_from_seed("host-1"));
        assert_ne!(key_from_seed(""), key_from_seed("\0"));
    }

    #[test]
    fn an_address_with_a_fault_is_refused() {
        let good = key(1).address();
        let text = good.to_string();
        assert_eq!(text.parse(), Ok(good));
        assert_eq!(Address::parse(&text.to_uppercase()), Ok(good));
        assert_eq!(format!("{good:>50}").len(), 50);
        let other_prefix = bech32::encode::<Bech32>(Hrp::parse("cosmos").unwrap(), &good.account()).unwrap();
        let short = bech32::encode::<Bech32>(Hrp::parse("gonka").unwrap(), &[1; 19]).unwrap();
        let newer = bech32::encode::<bech32::Bech32m>(Hrp::parse("gonka").unwrap(), &good.account()).unwrap();
        let mistyped = text.replace("w508", "w509");
        for wrong in [other_prefix, short, newer, mistyped, String::new(), "x".repeat(10_000)] {
            let error = Address::parse(&wrong).unwrap_err().to_string();
            assert!(error.len() < 300, "{error}");
        }
    }

    #[test]
    fn a_changed_byte_changes_or_breaks_the_signer() {
        let signature = key(1).sign_recoverable(b"message");
        assert_eq!(signature.recover_address(b"message"), Ok(key(1).address()));
        assert_ne!(signature.recover_address(b"Message"), Ok(key(1).address()));
        for position in 0..64 {
            let mut bytes = signature.to_bytes();
            bytes[position] ^= 1;
            let signer = RecoverableSignature::from_bytes(&bytes).and_then(|s| s.recover_address(b"message"));
            assert_ne!(signer, Ok(key(1).address()), "byte {position}");
        }
    }

    #[test]
    fn signatures_of_a_wrong_form_are_refused() {
        let good = key(1).sign_recoverable(b"x").to_bytes();
        let mut other_v = good;
        other_v[64] = 27;
        for bytes in [&good[..64], &[&good[..], &[0]].concat()[..], &other_v, &[0; 65], &[]] {
            assert!(RecoverableSignature::from_bytes(bytes).is_err(), "{}", bytes.len());
        }
        assert!(PlainSignature::from_bytes(&good).is_err());
        assert!(RecoverableSignature::from_hex("zz").is_err());
        assert!(RecoverableSignature::from_base64("zz").is_err());
        assert_eq!(RecoverableSignature::from_bytes(&good).unwrap().to_bytes(), good);
    }

    #[test]
    fn a_plain_signature_fits_one_key_and_message() {
        let signature = key(2).sign_plain(b"text");
        let read = PlainSignature::from_base64(&signature.to_base64()).unwrap();
        assert_eq!(key(2).public_key().verify_plain(b"text", &read), Ok(()));
        assert_eq!(key(2).public_key().verify_plain(b"Text", &read), Err(KeyError::WrongSignature));
        assert_eq!(key(3).public_key().verify_plain(b"text", &read), Err(KeyError::WrongSignature));
    }

    #[test]
    fn public_keys_are_read_in_both_forms() {
        let public = key(5).public_key();
        assert_eq!(PublicKey::from_base64(&public.to_base64()), Ok(public));
        assert_eq!(PublicKey::from_bytes(&[0; 33]), Err(KeyError::PublicKey { length: 33 }));
        assert!(PublicKey::from_base64("").is_err());
    }
}
