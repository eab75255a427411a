//! The envelope of a keyring file: JWE in compact form with PBES2-HS256+A128KW and A256GCM.
//!
//! Five base64url parts joined by dots: header, wrapped content key, IV, ciphertext, tag. The
//! passphrase gives a key by PBKDF2, that key wraps a random content key, and the content key
//! encrypts the text with the header as associated data (fixtures "wire-july", section 9).

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit};
use aes_kw::KwAes128;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pbkdf2::pbkdf2_hmac_array;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::KeyringError;

const ALGORITHM: &str = "PBES2-HS256+A128KW";
const ENCRYPTION: &str = "A256GCM";
const TAG_BYTES: usize = 16;
/// A file that asks for more rounds is refused: it would only hold the reader up.
const ROUNDS_MAX: u32 = 1_000_000;

/// Random values of one envelope, drawn by the caller.
#[derive(Clone, Copy)]
pub(super) struct Material {
    pub salt: [u8; 12],
    pub content_key: [u8; 32],
    pub iv: [u8; 12],
}

/// The header, in the order in which it is written.
#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    /// Free text of other writers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    enc: String,
    p2c: u32,
    p2s: String,
}

/// Puts a text into an envelope.
pub(super) fn seal(
    text: &[u8],
    passphrase: &str,
    rounds: u32,
    created: Option<String>,
    material: &Material,
) -> String {
    let header = Header {
        alg: ALGORITHM.to_owned(),
        created,
        enc: ENCRYPTION.to_owned(),
        p2c: rounds,
        p2s: URL_SAFE_NO_PAD.encode(material.salt),
    };
    let header = serde_json::to_vec(&header).expect("a header of texts and numbers is valid JSON");
    let protected = URL_SAFE_NO_PAD.encode(header);

    let wrapping_key = wrapping_key(passphrase, &material.salt, rounds);
    let mut wrapped = [0; 40];
    KwAes128::new(&wrapping_key.into())
        .wrap_key(&material.content_key, &mut wrapped)
        .expect("32 bytes wrap into 40");

    let sealed = Aes256Gcm::new(&material.content_key.into())
        .encrypt(&material.iv.into(), Payload { msg: text, aad: protected.as_bytes() })
        .expect("a keyring item is far below the limit of AES-GCM");
    let (ciphertext, tag) = sealed.split_at(sealed.len() - TAG_BYTES);

    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    [protected, encode(&wrapped), encode(&material.iv), encode(ciphertext), encode(tag)].join(".")
}

/// Takes the text out of an envelope.
pub(super) fn open(envelope: &str, passphrase: &str) -> Result<Vec<u8>, KeyringError> {
    let parts: Vec<&str> = envelope.trim_end().split('.').collect();
    let &[protected, wrapped, iv, ciphertext, tag] = parts.as_slice() else {
        return Err(KeyringError::Envelope("it does not have five parts"));
    };
    let header: Header = serde_json::from_slice(&part(protected)?)
        .map_err(|_| KeyringError::Envelope("its header is not the JSON object wanted"))?;
    if header.alg != ALGORITHM || header.enc != ENCRYPTION {
        return Err(KeyringError::Envelope("its header names other algorithms"));
    }
    if header.p2c == 0 || header.p2c > ROUNDS_MAX {
        return Err(KeyringError::Envelope("its header asks for no or too many rounds"));
    }

    let wrapping_key = wrapping_key(passphrase, &part(&header.p2s)?, header.p2c);
    let mut content_key = [0; 32];
    KwAes128::new(&wrapping_key.into())
        .unwrap_key(&part(wrapped)?, &mut content_key)
        .map_err(|_| KeyringError::Passphrase)?;

    let iv: [u8; 12] =
        part(iv)?.try_into().map_err(|_| KeyringError::Envelope("its IV does not have 12 bytes"))?;
    let tag = part(tag)?;
    if tag.len() != TAG_BYTES {
        return Err(KeyringError::Envelope("its tag does not have 16 bytes"));
    }
    let sealed = [part(ciphertext)?, tag].concat();
    Aes256Gcm::new(&content_key.into())
        .decrypt(&iv.into(), Payload { msg: &sealed, aad: protected.as_bytes() })
        .map_err(|_| KeyringError::Envelope("its content was changed"))
}

/// Key that wraps the content key. The algorithm's name is part of the salt.
fn wrapping_key(passphrase: &str, salt: &[u8], rounds: u32) -> [u8; 16] {
    let salt = [ALGORITHM.as_bytes(), &[0], salt].concat();
    pbkdf2_hmac_array::<Sha256, 16>(passphrase.as_bytes(), &salt, rounds)
}

fn part(text: &str) -> Result<Vec<u8>, KeyringError> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| KeyringError::Envelope("a part of it is not base64url"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn recorded() -> Vec<Value> {
        let text = include_str!("../../tests/fixtures/keyring.json");
        let fixture: Value = serde_json::from_str(text).unwrap();
        fixture["files"].as_array().unwrap().clone()
    }

    fn bytes(file: &Value, key: &str) -> Vec<u8> {
        hex::decode(file[key].as_str().unwrap()).unwrap()
    }

    fn material(file: &Value) -> Material {
        let header: Header = serde_json::from_str(file["protected_header"].as_str().unwrap()).unwrap();
        Material {
            salt: part(&header.p2s).unwrap().try_into().unwrap(),
            content_key: bytes(file, "cek_hex").try_into().unwrap(),
            iv: bytes(file, "iv_hex").try_into().unwrap(),
        }
    }

    #[test]
    fn recorded_files_are_rebuilt_step_by_step() {
        let files = recorded();
        assert_eq!(files.len(), 12);
        for file in &files {
            let name = file["file"].as_str().unwrap();
            let passphrase = file["passphrase"].as_str().unwrap();
            let header: Header = serde_json::from_str(file["protected_header"].as_str().unwrap()).unwrap();
            let material = material(file);
            let wrapping = wrapping_key(passphrase, &material.salt, header.p2c);
            assert_eq!(wrapping.as_slice(), bytes(file, "kek_hex"), "{name}");

            let text = file["plaintext"].as_str().unwrap();
            let sealed = seal(text.as_bytes(), passphrase, header.p2c, header.created, &material);
            let parts: Vec<Vec<u8>> = sealed.split('.').map(|text| part(text).unwrap()).collect();
            assert_eq!(parts[0], file["protected_header"].as_str().unwrap().as_bytes(), "{name}");
            assert_eq!(parts[1], bytes(file, "encrypted_key_hex"), "{name}");
            assert_eq!(parts[2], bytes(file, "iv_hex"), "{name}");
            assert_eq!(parts[3], bytes(file, "ciphertext_hex"), "{name}");
            assert_eq!(parts[4], bytes(file, "tag_hex"), "{name}");
            assert_eq!(sealed, file["content"].as_str().unwrap(), "{name}");
        }
    }

    #[test]
    fn recorded_files_are_opened() {
        for file in recorded() {
            let content = file["content"].as_str().unwrap();
            let text = open(content, file["passphrase"].as_str().unwrap()).unwrap();
            assert_eq!(text, file["plaintext"].as_str().unwrap().as_bytes());
            assert_eq!(open(content, "other"), Err(KeyringError::Passphrase));
        }
    }

    #[test]
    fn a_changed_or_broken_envelope_is_refused() {
        let material = Material { salt: [1; 12], content_key: [2; 32], iv: [3; 12] };
        let good = seal(b"text", "test", 10, None, &material);
        assert_eq!(open(&format!("{good}\n"), "test").unwrap(), b"text");
        let parts: Vec<&str> = good.split('.').collect();
        for position in 0..5 {
            let mut changed: Vec<String> = parts.iter().map(ToString::to_string).collect();
            let first = if changed[position].starts_with('A') { "B" } else { "A" };
            changed[position].replace_range(0..1, first);
            assert!(open(&changed.join("."), "test").is_err(), "part {position}");
            let mut cut: Vec<&str> = parts.clone();
            cut[position] = "";
            assert!(open(&cut.join("."), "test").is_err(), "part {position}");
        }
        assert!(open("", "test").is_err());
        assert!(open(&parts[..4].join("."), "test").is_err());

        let slow = seal(b"text", "test", 10, None, &material);
        let header = String::from_utf8(part(parts[0]).unwrap()).unwrap();
        let endless = URL_SAFE_NO_PAD.encode(header.replace("\"p2c\":10", "\"p2c\":4000000000"));
        let error = open(&slow.replace(parts[0], &endless), "test").unwrap_err();
        assert!(error.to_string().contains("too many rounds"), "{error}");
    }
}
