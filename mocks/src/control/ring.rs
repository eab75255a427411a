//! A bounded log with sequence numbers: what falls out before it is read is counted, never silent.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use scenario::control::Page;
use serde::Serialize;

/// Most entries of one page.
pub const PAGE_MAX: usize = 10_000;

/// The log. Entries are numbered from 1 in order of arrival.
#[derive(Debug)]
pub struct Ring<T> {
    inner: Mutex<Inner<T>>,
    capacity: usize,
}

#[derive(Debug)]
struct Inner<T> {
    items: VecDeque<T>,
    next_seq: u64,
    journal: Option<File>,
}

impl<T: Clone + Serialize> Ring<T> {
    /// An empty log that keeps the newest `capacity` entries.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let inner = Inner { items: VecDeque::new(), next_seq: 1, journal: None };
        Self { inner: Mutex::new(inner), capacity }
    }

    /// Writes every entry from now on into this file too, one JSON line each, before anybody can read it: an end of
    /// the process at any moment loses none.
    ///
    /// # Errors
    /// When the file can't be made.
    pub fn keep_in(&self, path: &Path) -> std::io::Result<()> {
        self.lock().journal = Some(File::create_new(path)?);
        Ok(())
    }

    /// Adds the entry that `make` builds from its sequence number, and answers that number.
    pub fn push(&self, make: impl FnOnce(u64) -> T) -> u64 {
        let mut inner = self.lock();
        let seq = inner.next_seq;
        inner.next_seq += 1;
        if inner.items.len() >= self.capacity {
            inner.items.pop_front();
        }
        let entry = make(seq);
        if let Some(journal) = &mut inner.journal {
            let mut line = serde_json::to_vec(&entry).expect("a log entry is plain data");
            line.push(b'\n');
            // One call for a line: the kernel has it whole, whatever happens to this process next.
            if let Err(error) = journal.write_all(&line) {
                tracing::error!(%error, "the journal of a log can't be written and ends here");
                inner.journal = None;
            }
        }
        inner.items.push_back(entry);
        seq
    }

    /// Entries with a sequence number above `after`, at most `limit` and [`PAGE_MAX`] of them.
    #[must_use]
    pub fn page(&self, after: u64, limit: usize, started_unix_us: u64) -> Page<T> {
        let inner = self.lock();
        let kept = u64::try_from(inner.items.len()).expect("the log is bounded");
        let dropped = inner.next_seq - 1 - kept;
        let skip = usize::try_from(after.saturating_sub(dropped).min(kept)).expect("at most the length");
        let items: Vec<T> = inner.items.iter().skip(skip).take(limit.min(PAGE_MAX)).cloned().collect();
        let given = u64::try_from(items.len()).expect("a page is bounded");
        // A reader that got nothing keeps its place; one that was left behind jumps over what fell out.
        let next = if given == 0 { after } else { after.max(dropped) + given };
        Page { items, next, dropped, started_unix_us }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        // Every step under the lock leaves the log whole, so a panic elsewhere can't have spoilt it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(capacity: usize, entries: u64) -> Ring<u64> {
        let ring = Ring::new(capacity);
        for expected in 1..=entries {
            assert_eq!(ring.push(|seq| seq), expected);
        }
        ring
    }

    #[test]
    fn pages_follow_each_other_without_gap() {
        let ring = filled(100, 5);
        let first = ring.page(0, 2, 7);
        assert_eq!((first.items, first.next, first.dropped, first.started_unix_us), (vec![1, 2], 2, 0, 7));
        let second = ring.page(2, 100, 7);
        assert_eq!((second.items, second.next), (vec![3, 4, 5], 5));
        let last = ring.page(5, 100, 7);
        assert_eq!((last.items.len(), last.next), (0, 5));
        assert_eq!(ring.page(99, 100, 7).next, 99);
    }

    #[test]
    fn the_journal_has_what_the_memory_has_lost() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("log.jsonl");
        let ring = Ring::new(1);
        ring.keep_in(&path).expect("a new file");
        for _ in 0..3 {
            ring.push(|seq| seq * 10);
        }
        assert_eq!(std::fs::read_to_string(&path).expect("the journal"), "10\n20\n30\n");
        assert!(ring.keep_in(&path).is_err(), "another process's journal is never written over");
    }

    #[test]
    fn what_falls_out_is_counted() {
        let ring = filled(3, 5);
        let page = ring.page(0, 100, 0);
        assert_eq!((page.items, page.dropped, page.next), (vec![3, 4, 5], 2, 5));
        assert_eq!(ring.page(3, 1, 0).items, [4]);
    }

    #[test]
    fn a_page_is_bounded() {
        let ring = filled(PAGE_MAX + 10, PAGE_MAX as u64 + 10);
        assert_eq!(ring.page(0, usize::MAX, 0).items.len(), PAGE_MAX);
    }
}
