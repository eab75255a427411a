//! The committed Rust of `src/generated/` is what the `.proto` files give.
//!
//! `PROOFLOAD_REGENERATE=1 cargo test -p wire --test generated` writes it anew.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Every `.proto` file, as named by the others in their imports.
const PROTO_FILES: [&str; 9] = [
    "nodemanager.proto",
    "inference.proto",
    "devshard.proto",
    "cosmos/abci.proto",
    "cosmos/auth.proto",
    "cosmos/keyring.proto",
    "cosmos/secp256k1.proto",
    "cosmos/tendermint.proto",
    "cosmos/tx.proto",
];

/// Messages that can hold a private key: `src/proto.rs` gives them a `Debug` that does not show it.
const SECRET_MESSAGES: [&str; 3] = [
    "cosmos.crypto.secp256k1.PrivKey",
    "cosmos.crypto.keyring.v1.Record",
    "cosmos.crypto.keyring.v1.Record.Local",
];

fn crate_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Names and texts of the Rust files in a folder.
fn rust_files(folder: &Path) -> BTreeMap<String, String> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect()
}

fn generate_into(folder: &Path) {
    let descriptors = protox::compile(PROTO_FILES, [crate_folder().join("proto")]).unwrap();
    tonic_prost_build::configure()
        .skip_debug(SECRET_MESSAGES)
        .out_dir(folder)
        .compile_fds(descriptors)
        .unwrap();
}

#[test]
fn committed_rust_equals_the_proto_files() {
    let fresh_folder = tempfile::tempdir().unwrap();
    generate_into(fresh_folder.path());
    let fresh = rust_files(fresh_folder.path());

    let committed_folder = crate_folder().join("src/generated");
    if std::env::var_os("PROOFLOAD_REGENERATE").is_some() {
        for name in rust_files(&committed_folder).keys().filter(|name| !fresh.contains_key(*name)) {
            fs::remove_file(committed_folder.join(name)).unwrap();
        }
        for (name, text) in &fresh {
            fs::write(committed_folder.join(name), text).unwrap();
        }
    }

    let committed = rust_files(&committed_folder);
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&committed), names(&fresh), "see the head of this file for how to regenerate");
    for (name, text) in &fresh {
        similar_asserts::assert_eq!(committed: committed[name], fresh: *text, "{}", name);
    }
}

#[test]
fn every_proto_file_is_listed() {
    let mut found = Vec::new();
    let root = crate_folder().join("proto");
    for folder in [root.clone(), root.join("cosmos")] {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                found.push(path.strip_prefix(&root).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    let mut listed = PROTO_FILES.map(String::from).to_vec();
    listed.sort();
    assert_eq!(found, listed);
}
