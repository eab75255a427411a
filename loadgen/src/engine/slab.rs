//! Values by small stable numbers; numbers of removed values are used again.

/// A vector with holes.
#[derive(Debug)]
pub struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Adds a value; gives its number.
    pub fn insert(&mut self, value: T) -> usize {
        if let Some(key) = self.free.pop() {
            self.values[key] = Some(value);
            return key;
        }
        self.values.push(Some(value));
        self.values.len() - 1
    }

    /// Takes a value out.
    pub fn remove(&mut self, key: usize) -> Option<T> {
        let value = self.values.get_mut(key)?.take();
        if value.is_some() {
            self.free.push(key);
        }
        value
    }

    /// The value of a number.
    pub fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        self.values.get_mut(key)?.as_mut()
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers in use, ascending.
    #[must_use]
    pub fn keys(&self) -> Vec<usize> {
        (0..self.values.len()).filter(|key| self.values[*key].is_some()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_stable_and_used_again() {
        let mut slab = Slab::default();
        let keys: Vec<usize> = (0..4).map(|value| slab.insert(value)).collect();
        assert_eq!(keys, [0, 1, 2, 3]);
        assert_eq!((slab.remove(1), slab.remove(1), slab.remove(9)), (Some(1), None, None));
        assert_eq!((slab.len(), slab.keys()), (3, vec![0, 2, 3]));
        assert_eq!(slab.insert(7), 1);
        assert_eq!(slab.get_mut(1), Some(&mut 7));
        assert!(slab.get_mut(4).is_none());
    }
}
