//! The lock table: what is out, what came back, what ran out of its lease. Time enters as microseconds since start.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Ended locks that are remembered to tell a second release from an unknown one; older ones count as unknown.
const ENDED_MAX: usize = 200_000;

/// How a lock was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Return {
    /// It was out; now it is back. Carries the node.
    Released(String),
    /// It had come back before. Carries the node.
    Twice(String),
    /// Its lease had run out before. Carries the node.
    Expired(String),
    /// Never given by this process, or forgotten.
    Unknown,
}

#[derive(Clone, Debug)]
struct Lock {
    node: String,
    expires_us: u64,
}

#[derive(Clone, Debug)]
struct Ended {
    node: String,
    expired: bool,
}

/// All locks of one process. Ids are `<tag>-<number>`; the tag differs between processes, so that a release that
/// outlives a restart can't free somebody else's lock.
#[derive(Debug)]
pub struct Locks {
    tag: String,
    next: u64,
    out: BTreeMap<u64, Lock>,
    by_expiry: BTreeSet<(u64, u64)>,
    active_by_node: BTreeMap<String, u64>,
    ended: BTreeMap<u64, Ended>,
    ended_order: VecDeque<u64>,
    expired: u64,
}

impl Locks {
    /// An empty table whose ids begin with `tag`.
    #[must_use]
    pub fn new(tag: String) -> Self {
        Self {
            tag,
            next: 1,
            out: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            active_by_node: BTreeMap::new(),
            ended: BTreeMap::new(),
            ended_order: VecDeque::new(),
            expired: 0,
        }
    }

    /// Gives a lock on `node` until `expires_us` and answers its id.
    pub fn grant(&mut self, node: &str, expires_us: u64) -> String {
        let number = self.next;
        self.next += 1;
        self.out.insert(number, Lock { node: node.to_owned(), expires_us });
        self.by_expiry.insert((expires_us, number));
        *self.active_by_node.entry(node.to_owned()).or_default() += 1;
        format!("{}-{number}", self.tag)
    }

    /// Takes a lock back. Call [`Self::expire`] first: a lease that has run out is no lock any more.
    pub fn release(&mut self, id: &str) -> Return {
        let Some(number) = self.number(id) else { return Return::Unknown };
        if let Some(node) = self.take(number, false) {
            return Return::Released(node);
        }
        match self.ended.get(&number) {
            Some(ended) if ended.expired => Return::Expired(ended.node.clone()),
            Some(ended) => Return::Twice(ended.node.clone()),
            None => Return::Unknown,
        }
    }

    /// The node of a lock that is out.
    #[must_use]
    pub fn node_of(&self, id: &str) -> Option<&str> {
        self.out.get(&self.number(id)?).map(|lock| lock.node.as_str())
    }

    /// Ends every lease that has run out by `now_us`.
    pub fn expire(&mut self, now_us: u64) {
        while let Some((expires_us, number)) = self.by_expiry.first().copied() {
            if expires_us > now_us {
                return;
            }
            self.take(number, true);
            self.expired += 1;
        }
    }

    /// Locks out now.
    #[must_use]
    pub fn active(&self) -> u64 {
        self.active_by_node.values().sum()
    }

    /// Locks out on one node.
    #[must_use]
    pub fn active_on(&self, node: &str) -> u64 {
        self.active_by_node.get(node).copied().unwrap_or_default()
    }

    /// Leases that ran out since start.
    #[must_use]
    pub fn expired(&self) -> u64 {
        self.expired
    }

    fn number(&self, id: &str) -> Option<u64> {
        id.strip_prefix(self.tag.as_str())?.strip_prefix('-')?.parse().ok()
    }

    fn take(&mut self, number: u64, expired: bool) -> Option<String> {
        let lock = self.out.remove(&number)?;
        self.by_expiry.remove(&(lock.expires_us, number));
        if let Some(active) = self.active_by_node.get_mut(&lock.node) {
            *active -= 1;
        }
        self.ended.insert(number, Ended { node: lock.node.clone(), expired });
        self.ended_order.push_back(number);
        if self.ended_order.len() > ENDED_MAX {
            let oldest = self.ended_order.pop_front();
            oldest.map(|number| self.ended.remove(&number));
        }
        Some(lock.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_comes_back_once() {
        let mut locks = Locks::new("t".to_owned());
        let id = locks.grant("a", 100);
        assert_eq!((locks.active(), locks.active_on("a")), (1, 1));
        assert_eq!(locks.release(&id), Return::Released("a".to_owned()));
        assert_eq!(locks.release(&id), Return::Twice("a".to_owned()));
        for unknown in ["t-9", "u-1", "", "t-", "t--1", "t-01x"] {
            assert_eq!(locks.release(unknown), Return::Unknown, "{unknown}");
        }
        assert_eq!((locks.active(), locks.active_on("a")), (0, 0));
    }

    #[test]
    fn a_lease_runs_out_at_its_instant() {
        let mut locks = Locks::new("t".to_owned());
        let short = locks.grant("a", 100);
        let long = locks.grant("a", 200);
        locks.expire(99);
        assert_eq!(locks.expired(), 0);
        locks.expire(100);
        assert_eq!((locks.expired(), locks.active()), (1, 1));
        assert_eq!(locks.release(&short), Return::Expired("a".to_owned()));
        assert_eq!(locks.release(&long), Return::Released("a".to_owned()));
        locks.expire(1_000);
        assert_eq!(locks.expired(), 1);
    }
}
