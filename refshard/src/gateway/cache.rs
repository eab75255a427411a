//! The response cache: complete answers by model and normalised body, in memory (contract gateway 4.4).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use sha2::{Digest as _, Sha256};

/// How long an answer is replayed.
pub const TTL: Duration = Duration::from_secs(3600);
const BYTES_MAX: usize = 256 << 20;
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// SHA-256 of model, NUL, body, intent. The escrow is no part of it.
pub type Key = [u8; 32];

/// Key of a request. `intent` is what a client asked for and the normalised body does not show; July has none.
#[must_use]
pub fn key(model: &str, body: &[u8], intent: &str) -> Key {
    let key = Sha256::new().chain_update(model).chain_update([0]).chain_update(body);
    key.chain_update(intent).finalize().into()
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub content_type: &'static str,
    pub body: Bytes,
    pub escrow_id: String,
    pub request_id: String,
}

#[derive(Debug)]
struct Inner {
    entries: HashMap<Key, (Instant, Stored)>,
    bytes: usize,
    swept: Option<Instant>,
}

/// The cache.
#[derive(Debug)]
pub struct Cache {
    inner: Mutex<Inner>,
}

impl Default for Cache {
    fn default() -> Self {
        Self { inner: Mutex::new(Inner { entries: HashMap::new(), bytes: 0, swept: None }) }
    }
}

impl Cache {
    /// The answer, when there is a fresh one.
    #[must_use]
    pub fn get(&self, key: &Key, now: Instant) -> Option<Stored> {
        let inner = self.lock();
        let (at, stored) = inner.entries.get(key)?;
        (now.saturating_duration_since(*at) < TTL).then(|| stored.clone())
    }

    /// Keeps an answer. When there is no room for it, it is not kept.
    pub fn put(&self, key: Key, stored: Stored, now: Instant) {
        let mut inner = self.lock();
        if inner.swept.is_none_or(|at| now.saturating_duration_since(at) >= SWEEP_EVERY) {
            inner.swept = Some(now);
            inner.entries.retain(|_, (at, _)| now.saturating_duration_since(*at) < TTL);
            inner.bytes = inner.entries.values().map(|(_, stored)| stored.body.len()).sum();
        }
        let size = stored.body.len();
        if inner.bytes + size > BYTES_MAX {
            return;
        }
        inner.bytes += size;
        if let Some((_, old)) = inner.entries.insert(key, (now, stored)) {
            inner.bytes -= old.body.len();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_age_and_models_are_apart() {
        let cache = Cache::default();
        let now = crate::clock::instant();
        let stored = Stored {
            content_type: "application/json",
            body: Bytes::from_static(b"{}"),
            escrow_id: "9".into(),
            request_id: "req-1".into(),
        };
        cache.put(key("m", b"x", ""), stored.clone(), now);
        assert_eq!(cache.get(&key("m", b"x", ""), now), Some(stored));
        assert_eq!(cache.get(&key("mx", b"", ""), now), None);
        assert_eq!(cache.get(&key("m", b"x", ""), now + TTL), None);
    }

    #[test]
    fn a_full_cache_keeps_nothing_new_until_a_sweep() {
        let cache = Cache::default();
        let now = crate::clock::instant();
        let stored = |size: usize| Stored {
            content_type: "application/json",
            body: Bytes::from(vec![0; size]),
            escrow_id: String::new(),
            request_id: String::new(),
        };
        cache.put([1; 32], stored(BYTES_MAX), now);
        cache.put([2; 32], stored(1), now);
        assert!(cache.get(&[2; 32], now).is_none());
        cache.put([2; 32], stored(1), now + TTL);
        assert!(cache.get(&[2; 32], now + TTL).is_some());
    }
}
