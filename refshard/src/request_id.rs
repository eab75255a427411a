//! Request ids in the shape that Devshard programs invent: `req-<unix ns>-<ordinal>`.

use std::sync::atomic::{AtomicU64, Ordering};

/// Source of request ids, unique within one process (contract hosts 2.1).
#[derive(Debug, Default)]
pub struct RequestIds {
    ordinal: AtomicU64,
}

impl RequestIds {
    /// The next id; `now_ns` is the Unix time in nanoseconds.
    pub fn next(&self, now_ns: u64) -> String {
        format!("req-{now_ns}-{}", self.ordinal.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
