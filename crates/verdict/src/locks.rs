//! Locks of the allocator: which node each was granted for, and whether a call carried it. A lock is a prefix and a
//! number on every stack of ours, so that a million of them take two bytes each; any other text works too.

use std::collections::BTreeMap;

use crate::table::{Name, Names, Table};

/// What became of a lock, as far as calls tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Used {
    /// No call carried it.
    No,
    /// No call carried it, and it was given back as one that did not reach its node.
    GivenBack,
    /// A call carried it.
    Yes,
}

/// A granted lock.
#[derive(Clone, Copy, Debug)]
struct Grant {
    node: Name,
    used: Used,
}

/// Granted locks.
#[derive(Clone, Debug)]
pub(crate) struct LockBook {
    cap: u64,
    prefixes: Names,
    numbered: BTreeMap<Name, Table<Grant>>,
    others: BTreeMap<String, Grant>,
}

/// Prefix and number, when the number is written in the one ordinary way.
fn split(lock: &str) -> Option<(&str, u64)> {
    let digits = lock.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (prefix, number) = lock.split_at(lock.len() - digits);
    let plain = number == "0" || !number.starts_with('0');
    Some((prefix, number.parse().ok().filter(|_| plain)?))
}

impl LockBook {
    /// No lock yet; `cap` is more than a file can hold.
    pub(crate) fn new(cap: u64) -> Self {
        Self { cap, prefixes: Names::default(), numbered: BTreeMap::new(), others: BTreeMap::new() }
    }

    /// A lock was granted for a node.
    pub(crate) fn grant(&mut self, lock: &str, node: Name) {
        let grant = Grant { node, used: Used::No };
        match split(lock) {
            Some((prefix, number)) => {
                let prefix = self.prefixes.name(prefix);
                let table = self.numbered.entry(prefix).or_insert_with(|| Table::new(self.cap));
                table.insert(number, grant);
            }
            None => drop(self.others.insert(lock.to_owned(), grant)),
        }
    }

    /// A call carried a lock: the node that it was granted for.
    pub(crate) fn carry(&mut self, lock: &str) -> Option<Name> {
        let grant = self.find(lock)?;
        grant.used = Used::Yes;
        Some(grant.node)
    }

    /// A lock was given back because its node was not reached.
    pub(crate) fn give_back(&mut self, lock: &str) {
        if let Some(grant) = self.find(lock).filter(|grant| grant.used == Used::No) {
            grant.used = Used::GivenBack;
        }
    }

    fn find(&mut self, lock: &str) -> Option<&mut Grant> {
        match split(lock) {
            Some((prefix, number)) => {
                let prefix = self.prefixes.find(prefix)?;
                self.numbered.get_mut(&prefix)?.get_mut(number)
            }
            None => self.others.get_mut(lock),
        }
    }

    /// How many were granted.
    pub(crate) fn len(&self) -> u64 {
        self.numbered.values().map(Table::len).sum::<u64>() + self.others.len() as u64
    }

    /// Locks that no call carried, with their nodes and whether they were given back for that.
    pub(crate) fn unused(&self) -> impl Iterator<Item = (String, Name, bool)> {
        let numbered = self.numbered.iter().flat_map(|(prefix, table)| {
            let prefix = self.prefixes.word(*prefix);
            let unused = table.iter().filter(|(_, grant)| grant.used != Used::Yes);
            unused.map(move |(number, grant)| (format!("{prefix}{number}"), *grant))
        });
        let others = self.others.iter().filter(|(_, grant)| grant.used != Used::Yes);
        let all = numbered.chain(others.map(|(lock, grant)| (lock.clone(), *grant)));
        all.map(|(lock, grant)| (lock, grant.node, grant.used == Used::GivenBack))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_any_form_are_told_apart() {
        let mut names = Names::default();
        let (a, b) = (names.name("node-a"), names.name("node-b"));
        let mut book = LockBook::new(100);
        let locks = ["k1f-7", "k1f-07", "k1f-", "7", "", "k1f-18446744073709551616", "k1f-99999", "é8"];
        for lock in locks {
            book.grant(lock, if lock == "k1f-7" { a } else { b });
        }
        assert_eq!(book.len(), locks.len() as u64);
        assert_eq!((book.carry("k1f-7"), book.carry("k1f-8"), book.carry("other-7")), (Some(a), None, None));
        ["k1f-7", "é8", "other-7"].iter().for_each(|lock| book.give_back(lock));
        let back: Vec<String> = book.unused().filter(|(.., back)| *back).map(|(lock, ..)| lock).collect();
        assert_eq!(back, ["é8"], "one that was used stays used");
        let unused: std::collections::BTreeSet<String> = book.unused().map(|(lock, ..)| lock).collect();
        assert_eq!(unused, locks[1..].iter().map(|lock| (*lock).to_owned()).collect());
    }
}
