//! A bounded log with sequence numbers: what falls out before it is read is counted, never silent.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use scenario::control::Page;

/// Entries of one answer at most.
pub const PAGE_MAX: usize = 10_000;

#[derive(Debug)]
struct Inner<T> {
    items: VecDeque<T>,
    /// Sequence number of the next entry.
    next: u64,
}

/// The log. Entries are numbered from 1 in order of arrival.
#[derive(Debug)]
pub struct Ring<T> {
    inner: Mutex<Inner<T>>,
    capacity: usize,
}

impl<T: Clone> Ring<T> {
    /// An empty log of at most `capacity` entries.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { inner: Mutex::new(Inner { items: VecDeque::new(), next: 1 }), capacity }
    }

    /// Adds what `make` gives for the next sequence number, which is answered.
    pub fn push(&self, make: impl FnOnce(u64) -> T) -> u64 {
        let mut inner = self.inner();
        let seq = inner.next;
        inner.next += 1;
        inner.items.push_back(make(seq));
        if inner.items.len() > self.capacity {
            inner.items.pop_front();
        }
        seq
    }

    /// Entries after a sequence number, at most `limit` and [`PAGE_MAX`].
    #[must_use]
    pub fn page(&self, after: u64, limit: usize, started_unix_us: u64) -> Page<T> {
        let inner = self.inner();
        let kept = u64::try_from(inner.items.len()).expect("the log is bounded");
        let dropped = inner.next - 1 - kept;
        let skip = usize::try_from(after.saturating_sub(dropped).min(kept)).expect("at most the length");
        let items: Vec<T> = inner.items.iter().skip(skip).take(limit.min(PAGE_MAX)).cloned().collect();
        let given = u64::try_from(items.len()).expect("the page is bounded");
        // A reader that is ahead, or that gets nothing, keeps its place.
        let next = if given == 0 { after } else { after.max(dropped) + given };
        Page { items, next, dropped, started_unix_us }
    }

    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_without_gap() {
        let ring = Ring::new(100);
        for _ in 0..5 {
            ring.push(|seq| seq);
        }
        let first = ring.page(0, 2, 7);
        assert_eq!((first.items, first.next, first.dropped, first.started_unix_us), (vec![1, 2], 2, 0, 7));
        let second = ring.page(2, 100, 7);
        assert_eq!((second.items, second.next), (vec![3, 4, 5], 5));
        let last = ring.page(5, 100, 7);
        assert_eq!((last.items.len(), last.next), (0, 5));
        assert_eq!(ring.page(99, 100, 7).next, 99);
    }

    #[test]
    fn what_falls_out_is_counted() {
        let ring = Ring::new(3);
        for _ in 0..5 {
            ring.push(|seq| seq);
        }
        let page = ring.page(0, 100, 0);
        assert_eq!((page.items, page.dropped, page.next), (vec![3, 4, 5], 2, 5));
        assert_eq!(ring.page(3, 1, 0).items, [4]);
    }
}
