//! Captured bytes of the July 2026 build are read, written and verified as that build did it.
//!
//! Fixtures: reduced from the recordings "wire-july" (all keys in them are test keys).

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde_json::Value;
use sha2::{Digest, Sha256};
use wire::keys::{Address, PlainSignature, PrivateKey, PublicKey, RecoverableSignature};
use wire::proto::{auth, inference, nodemanager, secp256k1, tendermint, tx};
use wire::settlement::{settlement_root, settlement_signers};
use wire::transport;

fn fixture(name: &str) -> Value {
    let path = format!("{}/tests/fixtures/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

fn bytes(value: &Value, key: &str) -> Vec<u8> {
    hex::decode(text(value, key)).unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{key} of {value}"))
}

/// Decodes as `M`, encodes again, and says whether the bytes are the same.
fn comes_back<M: Message + Default>(bytes: &[u8]) -> bool {
    M::decode(bytes).unwrap().encode_to_vec() == bytes
}

/// Decodes as `M`, encodes, decodes: nothing that `M` knows is lost on the way.
fn means_the_same<M: Message + Default + PartialEq>(bytes: &[u8]) -> bool {
    let message = M::decode(bytes).unwrap();
    M::decode(message.encode_to_vec().as_slice()).unwrap() == message
}

/// Request and answer of a method in its message types; none for methods that we do not offer.
fn exchange_comes_back(method: &str, request: &[u8], response: &[u8]) -> Option<bool> {
    use inference as q;
    use nodemanager as n;
    macro_rules! pair {
        ($request:ty, $response:ty) => {
            comes_back::<$request>(request) && comes_back::<$response>(response)
        };
    }
    Some(match method {
        "/nodemanager.NodeManager/AcquireMLNode" => pair!(n::AcquireMlNodeRequest, n::AcquireMlNodeResponse),
        "/nodemanager.NodeManager/ReleaseMLNode" => pair!(n::ReleaseMlNodeRequest, n::ReleaseMlNodeResponse),
        "/nodemanager.NodeManager/GetRuntimeConfig" => {
            pair!(n::GetRuntimeConfigRequest, n::GetRuntimeConfigResponse)
        }
        "/inference.inference.Query/Params" => pair!(q::QueryParamsRequest, q::QueryParamsResponse),
        "/inference.inference.Query/EpochInfo" => pair!(q::QueryEpochInfoRequest, q::QueryEpochInfoResponse),
        "/inference.inference.Query/GetCurrentEpoch" => {
            pair!(q::QueryGetCurrentEpochRequest, q::QueryGetCurrentEpochResponse)
        }
        "/inference.inference.Query/DevshardEscrow" => {
            pair!(q::QueryGetDevshardEscrowRequest, q::QueryGetDevshardEscrowResponse)
        }
        "/inference.inference.Query/Participant" => {
            pair!(q::QueryGetParticipantRequest, q::QueryGetParticipantResponse)
        }
        "/inference.inference.Query/AccountByAddress" => {
            pair!(q::QueryAccountByAddressRequest, q::QueryAccountByAddressResponse)
        }
        "/inference.inference.Query/GranteesByMessageType" => {
            pair!(q::QueryGranteesByMessageTypeRequest, q::QueryGranteesByMessageTypeResponse)
        }
        "/inference.inference.Query/EpochGroupData" => {
            pair!(q::QueryGetEpochGroupDataRequest, q::QueryGetEpochGroupDataResponse)
        }
        "/inference.inference.Query/PreservedNodesSnapshot" => {
            pair!(q::QueryPreservedNodesSnapshotRequest, q::QueryPreservedNodesSnapshotResponse)
        }
        "/cosmos.auth.v1beta1.Query/Account" => pair!(auth::QueryAccountRequest, auth::QueryAccountResponse),
        "/cosmos.tx.v1beta1.Service/BroadcastTx" => pair!(tx::BroadcastTxRequest, tx::BroadcastTxResponse),
        "/cosmos.tx.v1beta1.Service/GetTx" => pair!(tx::GetTxRequest, tx::GetTxResponse),
        // The captured answer holds empty messages which nobody reads and we do not list.
        "/cosmos.base.tendermint.v1beta1.Service/GetLatestBlock" => {
            comes_back::<tendermint::GetLatestBlockRequest>(request)
                && means_the_same::<tendermint::GetLatestBlockResponse>(response)
        }
        "/cosmos.base.tendermint.v1beta1.Service/GetNodeInfo" => {
            pair!(tendermint::GetNodeInfoRequest, tendermint::GetNodeInfoResponse)
        }
        _ => return None,
    })
}

#[test]
fn every_captured_grpc_message_comes_back() {
    let grpc = fixture("grpc");
    let mut not_offered = Vec::new();
    let samples = list(&grpc, "samples");
    for sample in samples {
        let method = text(sample, "method");
        let (request, response) = (bytes(sample, "request_hex"), bytes(sample, "response_hex"));
        match exchange_comes_back(method, &request, &response) {
            Some(same) => assert!(same, "{sample}"),
            None => not_offered.push(method),
        }
    }
    assert_eq!(not_offered, ["/no.such.Service/Nothing", "/nodemanager.NodeManager/ListNodeCapacity"]);
    assert!(samples.len() > 50, "{}", samples.len());
}

#[test]
fn captured_answers_mean_what_the_recording_says() {
    let grpc = fixture("grpc");
    let answer = |method: &str| {
        let sample = list(&grpc, "samples").iter().find(|sample| text(sample, "method").ends_with(method));
        bytes(sample.unwrap(), "response_hex")
    };
    let block = tendermint::GetLatestBlockResponse::decode(answer("/GetLatestBlock").as_slice()).unwrap();
    let header = block.sdk_block.unwrap().header.unwrap();
    assert_eq!(header.chain_id, "gonka-test");
    assert!(header.height > 0);

    let account = auth::QueryAccountResponse::decode(answer("Query/Account").as_slice()).unwrap().account;
    let account = account.unwrap();
    assert_eq!(account.type_url, "/cosmos.auth.v1beta1.BaseAccount");
    auth::BaseAccount::decode(account.value.as_slice()).unwrap();

    let escrow =
        inference::QueryGetDevshardEscrowResponse::decode(answer("/DevshardEscrow").as_slice()).unwrap();
    assert!(escrow.found);
    for slot in escrow.escrow.unwrap().slots {
        Address::parse(&slot).unwrap();
    }

    let params =
        inference::QueryParamsResponse::decode(answer("/Params").as_slice()).unwrap().params.unwrap();
    let escrow_params = params.devshard_escrow_params.unwrap();
    assert!(escrow_params.devshard_requests_enabled);
    assert_eq!((escrow_params.refusal_timeout, escrow_params.execution_timeout), (61, 1201));
    assert_eq!(params.validation_params.unwrap().logprobs_mode, "raw");
}

#[test]
fn keys_give_the_recorded_addresses() {
    for entry in list(&fixture("vectors"), "keys") {
        let key = PrivateKey::from_hex(text(entry, "private_key_hex")).unwrap();
        assert_eq!(key.address().to_string(), text(entry, "address"));
        assert_eq!(hex::encode(key.public_key().compressed()), text(entry, "pubkey_compressed_hex"));
        assert_eq!(key.public_key().to_base64(), text(entry, "pubkey_compressed_base64"));
        let uncompressed = PublicKey::from_bytes(&bytes(entry, "pubkey_uncompressed_hex")).unwrap();
        assert_eq!(uncompressed, key.public_key());
    }
}

#[test]
fn signing_gives_the_recorded_signatures() {
    let vectors = fixture("vectors");
    for entry in list(&vectors, "signatures") {
        let key = PrivateKey::from_hex(text(entry, "private_key_hex")).unwrap();
        let message = bytes(entry, "message_hex");
        let signature = key.sign_recoverable(&message);
        assert_eq!(signature.to_hex(), text(entry, "signature_hex"));
        assert_eq!(
            signature.recover_address(&message).unwrap().to_string(),
            text(entry, "recovered_address")
        );
    }
    for entry in list(&vectors, "transport_auth") {
        let key = PrivateKey::from_hex(text(entry, "private_key_hex")).unwrap();
        let (escrow_id, body) = (text(entry, "escrow_id"), bytes(entry, "body_hex"));
        let timestamp_s = entry["timestamp"].as_i64().unwrap();
        let headers = transport::sign_request(&key, escrow_id, &body, timestamp_s);
        assert_eq!(headers.signature, text(entry, "header_X-Devshard-Signature"));
        assert_eq!(headers.timestamp, text(entry, "header_X-Devshard-Timestamp"));
        assert_eq!(transport::request_sender(escrow_id, &body, &headers), Ok((key.address(), timestamp_s)));
    }
    for entry in list(&vectors, "payload_auth") {
        let key = PrivateKey::from_hex(text(entry, "private_key_hex")).unwrap();
        let (epoch, time) = (entry["epoch_id"].as_u64().unwrap(), entry["timestamp"].as_i64().unwrap());
        let signed = transport::payload_request_text(text(entry, "payload"), epoch, time, &key.address());
        assert_eq!(key.sign_plain(signed.as_bytes()).to_base64(), text(entry, "signature_base64"));
    }
}

#[test]
fn captured_session_signatures_have_their_signers() {
    let vectors = fixture("vectors");
    for entry in list(&vectors, "session") {
        let message = bytes(entry, "message_hex");
        let signature = RecoverableSignature::from_bytes(&bytes(entry, "signature_hex")).unwrap();
        let signer = signature.recover_address(&message).unwrap();
        assert_eq!(signer.to_string(), text(entry, "recovered_address"), "{entry}");
        // ECDSA here is deterministic: the test key gives the same bytes.
        let key = key_of(&vectors, &signer);
        assert_eq!(key.sign_recoverable(&message), signature);
    }
}

#[test]
fn captured_payload_requests_and_answers_verify() {
    let vectors = fixture("vectors");
    for entry in list(&vectors, "payload_request") {
        let validator = Address::parse(text(entry, "address")).unwrap();
        let (epoch, time) = (entry["epoch_id"].as_u64().unwrap(), text(entry, "timestamp").parse().unwrap());
        let signed = transport::payload_request_text(text(entry, "inference_id"), epoch, time, &validator);
        assert_eq!(signed, text(entry, "signed_text"));
        let key = key_of(&vectors, &validator).public_key();
        transport::verify_payload_text(&signed, text(entry, "signature_base64"), &key).unwrap();
    }
    for entry in list(&vectors, "payload_response") {
        let executor = Address::parse(text(entry, "address")).unwrap();
        let payload = |key| STANDARD.decode(text(entry, key)).unwrap();
        let signed = transport::payload_response_text(
            text(entry, "inference_id"),
            &payload("prompt_payload_base64"),
            &payload("response_payload_base64"),
            &executor,
        );
        assert_eq!(signed, text(entry, "signed_text"));
        let key = key_of(&vectors, &executor).public_key();
        transport::verify_payload_text(&signed, text(entry, "signature_base64"), &key).unwrap();
    }
}

#[test]
fn captured_transactions_are_signed_documents() {
    let vectors = fixture("vectors");
    for entry in list(&vectors, "transactions") {
        let raw = bytes(entry, "tx_bytes_hex");
        assert_eq!(hex::encode_upper(Sha256::digest(&raw)), text(entry, "tx_hash"));
        assert!(comes_back::<tx::TxRaw>(&raw));
        let raw = tx::TxRaw::decode(raw.as_slice()).unwrap();
        assert!(comes_back::<tx::TxBody>(&raw.body_bytes));
        assert!(comes_back::<tx::AuthInfo>(&raw.auth_info_bytes));

        let document = tx::SignDoc {
            body_bytes: raw.body_bytes.clone(),
            auth_info_bytes: raw.auth_info_bytes.clone(),
            chain_id: text(entry, "chain_id").to_owned(),
            account_number: entry["account_number"].as_u64(),
        }
        .encode_to_vec();
        assert_eq!(hex::encode(&document), text(entry, "sign_doc_hex"));

        let info = tx::AuthInfo::decode(raw.auth_info_bytes.as_slice()).unwrap();
        let key = info.signer_infos[0].public_key.clone().unwrap();
        assert_eq!(key.type_url, "/cosmos.crypto.secp256k1.PubKey");
        let key = secp256k1::PubKey::decode(key.value.as_slice()).unwrap().key;
        assert_eq!(hex::encode(&key), text(entry, "signer_pubkey_hex"));
        let signature = PlainSignature::from_bytes(&raw.signatures[0]).unwrap();
        PublicKey::from_bytes(&key).unwrap().verify_plain(&document, &signature).unwrap();
        assert_eq!(hex::encode(signature.to_bytes()), text(entry, "signature_hex"));

        let body = tx::TxBody::decode(raw.body_bytes.as_slice()).unwrap();
        assert_eq!(body.messages[0].type_url, text(entry, "message_type"));
    }
}

#[test]
fn captured_settlements_follow_from_their_parts() {
    let vectors = fixture("vectors");
    let mut settlements = 0;
    for entry in list(&vectors, "transactions") {
        let raw = tx::TxRaw::decode(bytes(entry, "tx_bytes_hex").as_slice()).unwrap();
        let body = tx::TxBody::decode(raw.body_bytes.as_slice()).unwrap();
        let content = body.messages[0].value.as_slice();
        let Some(expected) = entry.get("settlement") else {
            assert!(comes_back::<inference::MsgCreateDevshardEscrow>(content));
            continue;
        };
        settlements += 1;
        // The gateway writes the zeros of the statistics out, which no encoder of proto3 does.
        assert!(means_the_same::<inference::MsgSettleDevshardEscrow>(content));
        let message = inference::MsgSettleDevshardEscrow::decode(content).unwrap();
        assert_eq!(hex::encode(&message.state_root), text(expected, "state_root_hex"));
        assert_eq!(settlement_root(&message).as_slice(), message.state_root);
        let signers = settlement_signers(&message);
        let recorded = list(expected, "signatures");
        assert_eq!(signers.len(), recorded.len());
        for ((slot, signer), wanted) in signers.into_iter().zip(recorded) {
            assert_eq!(u64::from(slot), wanted["slot_id"].as_u64().unwrap());
            assert_eq!(signer.unwrap().to_string(), text(wanted, "recovered_address"));
        }
    }
    assert_eq!(settlements, 4);
}

/// The recorded test key with this address.
fn key_of(vectors: &Value, address: &Address) -> PrivateKey {
    let wanted = address.to_string();
    let entry = list(vectors, "keys").iter().find(|entry| text(entry, "address") == wanted);
    PrivateKey::from_hex(text(entry.unwrap(), "private_key_hex")).unwrap()
}
