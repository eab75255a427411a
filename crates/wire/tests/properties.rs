//! What must hold for any input.

use proptest::prelude::*;
use wire::devshard;
use wire::keyring;
use wire::keys::{Address, PlainSignature, PrivateKey, PublicKey, RecoverableSignature, key_from_seed};
use wire::transport::{self, SignedHeaders};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(diff) = devshard::decode_diff(&bytes) {
            let again = devshard::diff_signed_bytes(
                &devshard::encode_diff_txs(diff.nonce, &diff.txs), &diff.escrow_id, &diff.post_state_root);
            prop_assert_eq!(devshard::decode_diff(&again), Ok(diff));
        }
        let _ = (devshard::decode_tx(&bytes), PrivateKey::from_bytes(&bytes), PublicKey::from_bytes(&bytes));
        let _ = (RecoverableSignature::from_bytes(&bytes), PlainSignature::from_bytes(&bytes));
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,120}") {
        let headers = SignedHeaders { signature: text.clone(), timestamp: text.clone() };
        prop_assert!(transport::request_sender(&text, text.as_bytes(), &headers).is_err());
        prop_assert!(keyring::read_key_file(&text, &text).is_err());
        let _ = (Address::parse(&text), devshard::decode_tx_base64(&text));
    }

    #[test]
    fn any_request_has_its_sender(
        label in ".{0,20}", escrow_id in "[0-9]{1,6}", body in proptest::collection::vec(any::<u8>(), 0..200),
        timestamp_s in any::<i64>(),
    ) {
        let key = key_from_seed(&label);
        let headers = transport::sign_request(&key, &escrow_id, &body, timestamp_s);
        let sender = transport::request_sender(&escrow_id, &body, &headers);
        prop_assert_eq!(sender, Ok((key.address(), timestamp_s)));
    }

    #[test]
    fn any_account_has_an_address_that_reads_back(account in any::<[u8; 20]>()) {
        let address = Address::from_account(account);
        prop_assert_eq!(Address::parse(&address.to_string()), Ok(address));
    }
}
