//! Containers that stay small with a million entries: what is numbered lies in a vector by its number, what is named is
//! kept once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;

/// Hasher of tables with an entry for each request or word.
pub(crate) type Fast = foldhash::fast::FixedState;

/// Values by number. Numbers below a cap lie in a vector; what evidence calls by a number beyond it is kept apart, so
/// that one wild number costs nothing.
#[derive(Clone, Debug)]
pub struct Table<T> {
    dense: Vec<Option<T>>,
    strays: BTreeMap<u64, T>,
    cap: u64,
    len: u64,
}

impl<T> Table<T> {
    /// An empty table; numbers below `cap` are the usual ones.
    #[must_use]
    pub fn new(cap: u64) -> Self {
        Self { dense: Vec::new(), strays: BTreeMap::new(), cap, len: 0 }
    }

    /// The value of a number.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&T> {
        if number < self.cap { self.dense.get(number as usize)?.as_ref() } else { self.strays.get(&number) }
    }

    /// The value of a number, to be changed.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        if number < self.cap {
            self.dense.get_mut(number as usize)?.as_mut()
        } else {
            self.strays.get_mut(&number)
        }
    }

    /// Sets a value; gives the one that stood there.
    pub fn insert(&mut self, number: u64, value: T) -> Option<T> {
        let before = if number < self.cap {
            let at = number as usize;
            if at >= self.dense.len() {
                self.dense.resize_with(at + 1, || None);
            }
            self.dense[at].replace(value)
        } else {
            self.strays.insert(number, value)
        };
        self.len += u64::from(before.is_none());
        before
    }

    /// Takes a value out.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let gone = if number < self.cap {
            self.dense.get_mut(number as usize)?.take()
        } else {
            self.strays.remove(&number)
        };
        self.len -= u64::from(gone.is_some());
        gone
    }

    /// Whether a number has a value.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.get(number).is_some()
    }

    /// Values.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// No value at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Numbers and values in order of number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let dense = self.dense.iter().zip(0..).filter_map(|(value, number)| Some((number, value.as_ref()?)));
        dense.chain(self.strays.iter().map(|(number, value)| (*number, value)))
    }

    /// Values in order of number.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }
}

impl<T> std::ops::Index<&u64> for Table<T> {
    type Output = T;

    fn index(&self, number: &u64) -> &T {
        self.get(*number).expect("the caller knows that the number has a value")
    }
}

/// A set of numbers, one bit each below a cap.
#[derive(Clone, Debug)]
pub struct Bits {
    words: Vec<u64>,
    strays: BTreeSet<u64>,
    cap: u64,
    len: u64,
}

impl Bits {
    /// An empty set; numbers below `cap` are the usual ones.
    #[must_use]
    pub fn new(cap: u64) -> Self {
        Self { words: Vec::new(), strays: BTreeSet::new(), cap, len: 0 }
    }

    /// Adds a number; true when it is new.
    pub fn insert(&mut self, number: u64) -> bool {
        let new = if number < self.cap {
            let (at, bit) = ((number / 64) as usize, 1 << (number % 64));
            if at >= self.words.len() {
                self.words.resize(at + 1, 0);
            }
            let new = self.words[at] & bit == 0;
            self.words[at] |= bit;
            new
        } else {
            self.strays.insert(number)
        };
        self.len += u64::from(new);
        new
    }

    /// Whether a number is in it.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        if number < self.cap {
            self.words.get((number / 64) as usize).is_some_and(|word| word & (1 << (number % 64)) != 0)
        } else {
            self.strays.contains(&number)
        }
    }

    /// Numbers in it that are below a limit.
    #[must_use]
    pub fn below(&self, limit: u64) -> u64 {
        self.iter().take_while(|number| *number < limit).count() as u64
    }

    /// Its numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let of_word = |(at, word): (u64, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| at * 64 + bit)
        };
        (0..).zip(&self.words).flat_map(of_word).chain(self.strays.iter().copied())
    }

    /// Numbers in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// No number at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A word that is kept once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(NonZeroU32);

/// Words that evidence repeats: nodes, hosts, escrows, rules, outcomes.
#[derive(Clone, Debug, Default)]
pub struct Names {
    words: Vec<String>,
    numbers: HashMap<String, Name, Fast>,
}

/// So many words are found faster by looking at each.
const FEW: usize = 12;

/// Whether two words are the same. Most have up to sixteen bytes: two loads each are faster than a call.
#[inline]
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    fn ends<const N: usize>(word: &[u8]) -> Option<([u8; N], [u8; N])> {
        Some((*word.first_chunk()?, *word.last_chunk()?))
    }
    a.len() == b.len()
        && match a.len() {
            0 => true,
            1..=3 => ends::<1>(a) == ends::<1>(b) && a[a.len() / 2] == b[a.len() / 2],
            4..=7 => ends::<4>(a) == ends::<4>(b),
            8..=16 => ends::<8>(a) == ends::<8>(b),
            _ => a == b,
        }
}

impl Names {
    /// The name of a word.
    ///
    /// # Panics
    /// Never: four billion different words don't fit in memory.
    pub fn name(&mut self, word: &str) -> Name {
        if let Some(known) = self.find(word) {
            return known;
        }
        self.words.push(word.to_owned());
        let number = u32::try_from(self.words.len()).ok().and_then(NonZeroU32::new);
        let name = Name(number.expect("fewer words than memory holds"));
        self.numbers.insert(word.to_owned(), name);
        name
    }

    /// The name of a word that was met before.
    #[must_use]
    pub fn find(&self, word: &str) -> Option<Name> {
        let few = &self.words[..self.words.len().min(FEW)];
        if let Some(at) = few.iter().position(|known| same(known.as_bytes(), word.as_bytes())) {
            return u32::try_from(at + 1).ok().and_then(NonZeroU32::new).map(Name);
        }
        self.numbers.get(word).copied()
    }

    /// The word.
    #[must_use]
    pub fn word(&self, name: Name) -> &str {
        self.words.get(name.0.get() as usize - 1).map_or("", String::as_str)
    }

    /// The word of a name that may be absent.
    #[must_use]
    pub fn maybe(&self, name: Option<Name>) -> Option<&str> {
        name.map(|name| self.word(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wild_number_costs_nothing_and_order_is_kept() {
        let mut table = Table::new(4);
        for number in [u64::MAX, 2, 0, 4] {
            assert_eq!(table.insert(number, number), None);
        }
        assert_eq!(table.insert(2, 7), Some(2));
        assert_eq!(table.iter().map(|(number, _)| number).collect::<Vec<_>>(), [0, 2, 4, u64::MAX]);
        assert_eq!((table.len(), table.get(3), table.get(u64::MAX)), (4, None, Some(&u64::MAX)));
        assert_eq!((table.remove(2), table.remove(2), table.len()), (Some(7), None, 3));
        let mut bits = Bits::new(100);
        assert!(bits.insert(99) && bits.insert(u64::MAX) && !bits.insert(99));
        assert!(bits.contains(99) && bits.contains(u64::MAX) && !bits.contains(98));
        assert_eq!(bits.len(), 2);
    }

    #[test]
    fn a_word_has_one_name() {
        let mut names = Names::default();
        let all: Vec<Name> = (0..40).map(|number| names.name(&format!("word-{number}"))).collect();
        for (number, name) in all.iter().enumerate() {
            let word = format!("word-{number}");
            assert_eq!((names.name(&word), names.word(*name)), (*name, word.as_str()));
        }
        assert_eq!(names.find("unknown"), None);
        // Words of every length that differ in one byte.
        for len in 1..24 {
            let word = "w".repeat(len);
            for at in 0..len {
                let mut other = word.clone();
                other.replace_range(at..=at, "x");
                assert!(same(word.as_bytes(), word.as_bytes()) && !same(word.as_bytes(), other.as_bytes()));
            }
        }
    }
}
