//! Entries that this host proposes: keyed by content, delivered on contact, gone only when an applied
//! step carries the same bytes (contract hosts 3.3).

use std::collections::{BTreeMap, HashMap};

use wire::devshard::{DevshardTx, Tx, encode_tx};

use crate::transport::Base64;

/// The mempool of one session, in order of arrival.
#[derive(Debug, Default)]
pub struct Mempool {
    entries: BTreeMap<u64, (Vec<u8>, Tx)>,
    places: HashMap<Vec<u8>, u64>,
    next: u64,
}

impl Mempool {
    /// Adds an entry; returns its bytes when it was new.
    pub fn insert(&mut self, tx: Tx) -> Option<Vec<u8>> {
        let bytes = encode_tx(&DevshardTx::from(tx.clone()));
        if self.places.contains_key(&bytes) {
            return None;
        }
        self.places.insert(bytes.clone(), self.next);
        self.entries.insert(self.next, (bytes.clone(), tx));
        self.next += 1;
        Some(bytes)
    }

    /// Takes out the entry with these bytes; returns whether it was there.
    pub fn remove(&mut self, bytes: &[u8]) -> bool {
        match self.places.remove(bytes) {
            Some(place) => self.entries.remove(&place).is_some(),
            None => false,
        }
    }

    /// Entries in order of arrival.
    pub fn txs(&self) -> impl Iterator<Item = &Tx> {
        self.entries.values().map(|(_, tx)| tx)
    }

    /// Bytes of the entries, in order of arrival.
    #[must_use]
    pub fn encoded(&self) -> Vec<Base64> {
        self.entries.values().map(|(bytes, _)| Base64(bytes.clone())).collect()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
