//! Key files that hosts open (`KEYRING_BACKEND=test`), made without the chain's own tools.
//!
//! Layout and steps: fixtures "wire-july", section 9. The passphrase of this backend is a
//! constant, so the files are as secret as the keys inside: they belong into the private folder
//! of a stack and never into a run directory.

mod jwe;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::keys::{KeyError, PrivateKey};
use crate::proto::Any;
use crate::proto::keyring_record::{Record, record::Local};
use crate::proto::secp256k1::{PrivKey, PubKey};

/// Folder below `KEYRING_DIR` in which the `test` backend looks.
pub const TEST_FOLDER: &str = "keyring-test";
/// Passphrase of the `test` backend.
pub const TEST_PASSPHRASE: &str = "test";
/// Random bytes that one key's files take: salt, content key and IV for each of the two.
pub const RANDOM_BYTES: usize = 2 * RANDOM_BYTES_PER_FILE;

const RANDOM_BYTES_PER_FILE: usize = 12 + 32 + 12;
/// Fewest rounds that hosts were seen to accept; with a known passphrase more protect nothing.
const ROUNDS: u32 = 1000;
/// Longer key names would need longer length fields in the record than hosts were tested with.
const NAME_CHARS_MAX: usize = 100;
/// A key's file has less than 1 kB.
const FILE_BYTES_MAX: usize = 64 * 1024;

const PUBLIC_KEY_URL: &str = "/cosmos.crypto.secp256k1.PubKey";
const PRIVATE_KEY_URL: &str = "/cosmos.crypto.secp256k1.PrivKey";

/// Why a keyring file can't be made or read. Never contains key material.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    /// The name of a key becomes a file name.
    #[error("key name {0:?} must be 1 to {NAME_CHARS_MAX} of the characters a-z A-Z 0-9 - _ .")]
    Name(String),
    /// Larger than any file of a keyring.
    #[error("keyring file of {length} bytes is larger than {FILE_BYTES_MAX}")]
    TooLarge {
        /// Its size.
        length: usize,
    },
    /// The encrypted envelope is not in order.
    #[error("keyring file is no envelope that can be opened: {0}")]
    Envelope(&'static str),
    /// The passphrase is another one, or the wrapped key was changed.
    #[error("keyring file does not open with this passphrase")]
    Passphrase,
    /// What is in the envelope is not in order.
    #[error("keyring file holds no record of a local secp256k1 key: {0}")]
    Record(&'static str),
    /// The key in the record is not in order.
    #[error("key in the keyring file: {0}")]
    Key(#[from] KeyError),
}

/// One file of a keyring. `Debug` does not show the content, which is as good as the key.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyringFile {
    /// Name inside [`TEST_FOLDER`].
    pub name: String,
    /// Content, ASCII without a line end.
    pub content: String,
}

impl fmt::Debug for KeyringFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "KeyringFile({:?}, {} bytes hidden)", self.name, self.content.len())
    }
}

/// The item inside an envelope, in the order in which it is written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Item {
    key: String,
    data: String,
    label: String,
    description: String,
    keychain_not_trust_application: bool,
    keychain_not_synchronizable: bool,
}

/// Files of the `test` backend for one key: `<name>.info` with the key, and
/// `<account in hex>.address`, which points back to it (without that one hosts start and serve,
/// but never validate). The random bytes must be new for every key.
///
/// # Errors
/// When the name can't be a file's name.
pub fn test_backend_files(
    name: &str,
    key: &PrivateKey,
    random: &[u8; RANDOM_BYTES],
) -> Result<[KeyringFile; 2], KeyringError> {
    let in_name = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    if name.is_empty() || name.len() > NAME_CHARS_MAX || name.starts_with('.') || !name.chars().all(in_name) {
        return Err(KeyringError::Name(name.chars().take(NAME_CHARS_MAX).collect()));
    }
    let info = format!("{name}.info");
    let pointer = format!("{}.address", key.address().account_hex());
    let (first, second) = random.split_at(RANDOM_BYTES_PER_FILE);
    let record = record_of(name, key).encode_to_vec();
    Ok([seal_file(&info, &record, first), seal_file(&pointer, info.as_bytes(), second)])
}

/// Reads an `<name>.info` file: the name in its record and the key.
///
/// # Errors
/// When it does not open, or holds something else than a local secp256k1 key.
pub fn read_key_file(content: &str, passphrase: &str) -> Result<(String, PrivateKey), KeyringError> {
    let data = open_file(content, passphrase)?;
    let record = Record::decode(data.as_slice()).map_err(|_| KeyringError::Record("it is not protobuf"))?;
    let private = record.local.and_then(|local| local.priv_key);
    let private = private.ok_or(KeyringError::Record("it has no private key"))?;
    if private.type_url != PRIVATE_KEY_URL {
        return Err(KeyringError::Record("its private key is of another type"));
    }
    let private = PrivKey::decode(private.value.as_slice())
        .map_err(|_| KeyringError::Record("its private key is not protobuf"))?;
    let key = PrivateKey::from_bytes(&private.key)?;
    let public = record.pub_key.ok_or(KeyringError::Record("it has no public key"))?;
    if public != public_any(&key) {
        return Err(KeyringError::Record("its public key belongs to another private key"));
    }
    Ok((record.name, key))
}

/// Reads an `.address` file: the name of the file with the key.
///
/// # Errors
/// When it does not open, or holds no text.
pub fn read_address_file(content: &str, passphrase: &str) -> Result<String, KeyringError> {
    let data = open_file(content, passphrase)?;
    String::from_utf8(data).map_err(|_| KeyringError::Record("its pointer is not text"))
}

fn record_of(name: &str, key: &PrivateKey) -> Record {
    let private = PrivKey { key: key.expose_bytes().to_vec() };
    let private = Any { type_url: PRIVATE_KEY_URL.to_owned(), value: private.encode_to_vec() };
    Record {
        name: name.to_owned(),
        pub_key: Some(public_any(key)),
        local: Some(Local { priv_key: Some(private) }),
    }
}

fn public_any(key: &PrivateKey) -> Any {
    let public = PubKey { key: key.public_key().compressed().to_vec() };
    Any { type_url: PUBLIC_KEY_URL.to_owned(), value: public.encode_to_vec() }
}

fn seal_file(name: &str, data: &[u8], random: &[u8]) -> KeyringFile {
    let item = item_text(name, data);
    let (salt, rest) = random.split_at(12);
    let (content_key, iv) = rest.split_at(32);
    let material = jwe::Material {
        salt: salt.try_into().expect("split at 12"),
        content_key: content_key.try_into().expect("split at 32"),
        iv: iv.try_into().expect("12 bytes are left of 56"),
    };
    let content = jwe::seal(&item, TEST_PASSPHRASE, ROUNDS, None, &material);
    KeyringFile { name: name.to_owned(), content }
}

fn item_text(name: &str, data: &[u8]) -> Vec<u8> {
    let item = Item {
        key: name.to_owned(),
        data: STANDARD.encode(data),
        label: String::new(),
        description: String::new(),
        keychain_not_trust_application: false,
        keychain_not_synchronizable: false,
    };
    serde_json::to_vec(&item).expect("an item of texts and flags is valid JSON")
}

fn open_file(content: &str, passphrase: &str) -> Result<Vec<u8>, KeyringError> {
    if content.len() > FILE_BYTES_MAX {
        return Err(KeyringError::TooLarge { length: content.len() });
    }
    let text = jwe::open(content, passphrase)?;
    let item: Item =
        serde_json::from_slice(&text).map_err(|_| KeyringError::Record("its item is not the JSON wanted"))?;
    STANDARD.decode(item.data).map_err(|_| KeyringError::Record("its data is not base64"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::keys::key_from_seed;

    fn random(first: u8) -> [u8; RANDOM_BYTES] {
        std::array::from_fn(|position| first.wrapping_add(u8::try_from(position).unwrap()))
    }

    #[test]
    fn recorded_keyrings_hold_the_test_keys() {
        let fixture: Value = serde_json::from_str(include_str!("../tests/fixtures/keyring.json")).unwrap();
        for file in fixture["files"].as_array().unwrap() {
            let path = file["file"].as_str().unwrap();
            let (content, passphrase) =
                (file["content"].as_str().unwrap(), file["passphrase"].as_str().unwrap());
            let name = path.rsplit('/').next().unwrap();
            let wanted = file["plaintext"].as_str().unwrap().as_bytes();
            if name.ends_with(".address") {
                let info = read_address_file(content, passphrase).unwrap();
                assert!(info == "versiond-0.info" || info == "versiond-1.info", "{path}");
                assert_eq!(item_text(name, info.as_bytes()), wanted, "{path}");
                assert!(read_key_file(content, passphrase).is_err(), "{path}");
            } else {
                let (key_name, key) = read_key_file(content, passphrase).unwrap();
                assert_eq!(format!("{key_name}.info"), name);
                let number = if key_name == "versiond-0" { 2 } else { 3 };
                assert_eq!(key.expose_bytes()[31], number, "{path}");
                assert_eq!(item_text(name, &record_of(&key_name, &key).encode_to_vec()), wanted, "{path}");
            }
        }
    }

    #[test]
    fn written_files_come_back_and_point_at_each_other() {
        let key = key_from_seed("host-0");
        let [info, address] = test_backend_files("host-0", &key, &random(1)).unwrap();
        assert_eq!(info.name, "host-0.info");
        assert_eq!(address.name, format!("{}.address", key.address().account_hex()));
        assert_eq!(read_key_file(&info.content, TEST_PASSPHRASE), Ok(("host-0".to_owned(), key.clone())));
        assert_eq!(read_address_file(&address.content, TEST_PASSPHRASE).as_ref(), Ok(&info.name));
        assert_eq!(read_key_file(&info.content, "tset"), Err(KeyringError::Passphrase));

        let again = test_backend_files("host-0", &key, &random(1)).unwrap();
        assert!(again == [info.clone(), address.clone()], "the random bytes are all that varies");
        let [other, _] = test_backend_files("host-0", &key, &random(2)).unwrap();
        assert!(other.content != info.content);
        // no part of one file's material is used again in the other
        let parts = |file: &KeyringFile| file.content.split('.').map(str::to_owned).collect::<Vec<_>>();
        for (one, two) in parts(&info).iter().zip(parts(&address)) {
            assert_ne!(*one, two);
        }
    }

    #[test]
    fn nothing_prints_a_key() {
        let key = key_from_seed("host-0");
        let [info, _] = test_backend_files("host-0", &key, &random(1)).unwrap();
        let record = record_of("host-0", &key);
        let private = PrivKey { key: key.expose_bytes().to_vec() };
        let shown = format!("{info:?} {record:?} {private:?} {:?}", record.local);
        assert!(shown.contains("hidden"));
        for secret in [&key.expose_hex(), &info.content, &format!("{:?}", key.expose_bytes())[1..30]] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    #[test]
    fn names_that_are_no_file_names_are_refused() {
        let key = key_from_seed("x");
        for name in ["", ".", "..", ".a", "a/b", "a b", "ä", "a\n", &"x".repeat(101)] {
            let refused = test_backend_files(name, &key, &random(1));
            assert!(matches!(refused, Err(KeyringError::Name(_))), "{name:?}");
        }
        assert!(test_backend_files(&"x".repeat(100), &key, &random(1)).is_ok());
    }

    #[test]
    fn files_with_another_content_are_refused() {
        let key = key_from_seed("x");
        let sealed = |record: &Record| seal_file("x.info", &record.encode_to_vec(), &random(1)[..56]).content;
        let read = |record: &Record| read_key_file(&sealed(record), TEST_PASSPHRASE).unwrap_err().to_string();
        let good = record_of("x", &key);
        assert!(read_key_file(&sealed(&good), TEST_PASSPHRASE).is_ok());

        let without_key = Record { local: None, ..good.clone() };
        assert!(read(&without_key).contains("no private key"));
        let of_another = Record { pub_key: Some(public_any(&key_from_seed("y"))), ..good.clone() };
        assert!(read(&of_another).contains("belongs to another"));
        let other_type = Any { type_url: "/other".into(), value: Vec::new() };
        let other_type = Record { local: Some(Local { priv_key: Some(other_type) }), ..good };
        assert!(read(&other_type).contains("another type"));

        let huge = "x".repeat(FILE_BYTES_MAX + 1);
        assert!(matches!(read_key_file(&huge, "test"), Err(KeyringError::TooLarge { .. })));
    }
}
