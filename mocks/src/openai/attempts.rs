//! Attempts: the ordinal of calls of one request id of one run and kind at one node, in bounded memory.

use std::collections::{HashMap, VecDeque};

use scenario::draw::{Field, draw};
use scenario::fault::CallKind;

/// Ids that are remembered; the oldest is forgotten first, and that is counted.
pub const IDS_MAX: usize = 1 << 20;

/// Ordinals by id, kind and node.
#[derive(Debug)]
pub struct AttemptBook {
    ordinals: HashMap<u64, u64>,
    order: VecDeque<u64>,
    ids_max: usize,
    forgotten: u64,
}

impl AttemptBook {
    /// A book for at most `ids_max` ids.
    #[must_use]
    pub fn new(ids_max: usize) -> Self {
        Self { ordinals: HashMap::new(), order: VecDeque::new(), ids_max: ids_max.max(1), forgotten: 0 }
    }

    /// Counts a call and answers its ordinal, from 1. The salt tells the run: the same plan may be sent again and again
    /// to mocks that keep standing, and each time its first call is the first.
    pub fn next(&mut self, node: usize, kind: CallKind, id: &str, salt: Option<&str>) -> u64 {
        // A 64-bit hash stands for the id: two of a million collide with a chance below one in ten million.
        let key = draw(&[
            Field::Text("attempt"),
            Field::Integer(node as u64),
            Field::Integer(u64::from(kind == CallKind::Validation)),
            Field::Text(id),
            Field::Text(salt.unwrap_or_default()),
        ]);
        if let Some(ordinal) = self.ordinals.get_mut(&key) {
            *ordinal += 1;
            return *ordinal;
        }
        if self.order.len() >= self.ids_max
            && let Some(oldest) = self.order.pop_front()
        {
            self.ordinals.remove(&oldest);
            self.forgotten += 1;
        }
        self.order.push_back(key);
        self.ordinals.insert(key, 1);
        1
    }

    /// Ids that were forgotten to stay bounded.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_are_apart_by_id_kind_and_node() {
        let mut book = AttemptBook::new(100);
        assert_eq!(book.next(0, CallKind::Execution, "a", None), 1);
        assert_eq!(book.next(0, CallKind::Execution, "a", None), 2);
        assert_eq!(book.next(0, CallKind::Validation, "a", None), 1);
        assert_eq!(book.next(1, CallKind::Execution, "a", None), 1);
        assert_eq!(book.next(0, CallKind::Execution, "b", None), 1);
        // The same request of two runs.
        assert_eq!(book.next(0, CallKind::Execution, "a", Some("one")), 1);
        assert_eq!(book.next(0, CallKind::Execution, "a", Some("two")), 1);
        assert_eq!(book.next(0, CallKind::Execution, "a", Some("one")), 2);
    }

    #[test]
    fn the_oldest_id_is_forgotten_and_counted() {
        let mut book = AttemptBook::new(2);
        for id in ["a", "b", "c"] {
            assert_eq!(book.next(0, CallKind::Execution, id, None), 1);
        }
        assert_eq!((book.forgotten(), book.ordinals.len()), (1, 2));
        assert_eq!(book.next(0, CallKind::Execution, "c", None), 2);
        assert_eq!(book.next(0, CallKind::Execution, "a", None), 1);
    }
}
