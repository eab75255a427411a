//! Buffers of requests that have been sent, for the next ones.

/// Buffers that are kept; more were in use at once only in a burst.
const KEPT_MAX: usize = 1024;
/// A larger buffer is given back to the allocator.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// A pool of empty buffers.
#[derive(Debug, Default)]
pub struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// An empty buffer.
    pub fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    pub fn put(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < KEPT_MAX && (1..=KEPT_BYTES_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}
