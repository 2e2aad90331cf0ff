//! Typed places: an index into the table of nodes is no index into the table of pilots.
//!
//! [`Idx`] names an entry of one kind, [`Table`] never removes entries, [`Slab`] reuses the places of removed
//! entries. All three iterate in a fixed order, so that equal inputs have equal outputs.
//!
//! ```compile_fail
//! use hop_core::index::{Idx, Table};
//! struct Node;
//! struct Pilot;
//! let mut nodes = Table::default();
//! let mut pilots = Table::default();
//! let node: Idx<Node> = nodes.push(Node);
//! let pilot: Idx<Pilot> = pilots.push(Pilot);
//! let _: &Node = &nodes[pilot]; // an index of the other table
//! ```

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// The place of a `T` in its table.
pub struct Idx<T> {
    at: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Idx<T> {
    fn new(at: usize) -> Self {
        let at = u32::try_from(at).expect("fewer than 2^32 entries fit into memory");
        Self { at, of: PhantomData }
    }

    /// The first place of all: where a search begins.
    pub const FIRST: Self = Self {
        at: 0,
        of: PhantomData,
    };

    /// No entry has this place. It sorts after all others.
    pub const NONE: Self = Self {
        at: u32::MAX,
        of: PhantomData,
    };

    fn at(self) -> usize {
        self.at as usize
    }
}

impl<T> Clone for Idx<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Idx<T> {}

impl<T> PartialEq for Idx<T> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<T> Eq for Idx<T> {}

impl<T> PartialOrd for Idx<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Idx<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl<T> Hash for Idx<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.at.hash(state);
    }
}

impl<T> fmt::Debug for Idx<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.at)
    }
}

/// A set of places, one bit each: in the places' order, and quick if it has many places.
#[derive(Debug)]
pub struct Places<T> {
    words: Vec<u64>,
    len: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self {
            words: Vec::new(),
            len: 0,
            of: PhantomData,
        }
    }
}

impl<T> Clone for Places<T> {
    fn clone(&self) -> Self {
        Self {
            words: self.words.clone(),
            ..*self
        }
    }
}

impl<T> Places<T> {
    /// Word and bit of a place.
    fn bit(i: Idx<T>) -> (usize, u64) {
        (i.at() / 64, 1 << (i.at() % 64))
    }

    /// Returns whether the place is new.
    pub fn insert(&mut self, i: Idx<T>) -> bool {
        let (word, bit) = Self::bit(i);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.len += usize::from(new);
        new
    }

    /// Returns whether the place was there.
    pub fn remove(&mut self, i: Idx<T>) -> bool {
        let there = self.contains(i);
        if there {
            let (word, bit) = Self::bit(i);
            self.words[word] &= !bit;
            self.len -= 1;
        }
        there
    }

    pub fn contains(&self, i: Idx<T>) -> bool {
        let (word, bit) = Self::bit(i);
        self.words.get(word).is_some_and(|w| w & bit != 0)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All places, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Idx<T>> + '_ {
        let words = self.words.iter().enumerate();
        words.flat_map(|(word, &bits)| {
            let mut left = bits;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(Idx::new(word * 64 + bit))
            })
        })
    }
}

/// Entries that are never removed.
#[derive(Debug, Clone)]
pub struct Table<T> {
    items: Vec<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { items: Vec::new() }
    }
}

impl<T> Table<T> {
    pub fn push(&mut self, item: T) -> Idx<T> {
        self.items.push(item);
        Idx::new(self.items.len() - 1)
    }

    /// `None` for [`Idx::NONE`].
    pub fn get(&self, i: Idx<T>) -> Option<&T> {
        self.items.get(i.at())
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Idx<T>, &T)> {
        self.items.iter().enumerate().map(|(i, x)| (Idx::new(i), x))
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut()
    }

    /// All places, in their order.
    pub fn places(&self) -> impl Iterator<Item = Idx<T>> + use<T> {
        (0..self.items.len()).map(Idx::new)
    }
}

impl<T> Index<Idx<T>> for Table<T> {
    type Output = T;

    fn index(&self, i: Idx<T>) -> &T {
        &self.items[i.at()]
    }
}

impl<T> IndexMut<Idx<T>> for Table<T> {
    fn index_mut(&mut self, i: Idx<T>) -> &mut T {
        &mut self.items[i.at()]
    }
}

/// Entries that come and go; a new entry takes the place of a removed one.
#[derive(Debug, Clone)]
pub struct Slab<T> {
    items: Vec<Option<T>>,
    holes: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            holes: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, item: T) -> Idx<T> {
        if let Some(at) = self.holes.pop() {
            self.items[at as usize] = Some(item);
            return Idx::new(at as usize);
        }
        self.items.push(Some(item));
        Idx::new(self.items.len() - 1)
    }

    pub fn remove(&mut self, i: Idx<T>) -> Option<T> {
        let item = self.items.get_mut(i.at())?.take()?;
        self.holes.push(i.at);
        Some(item)
    }

    pub fn get(&self, i: Idx<T>) -> Option<&T> {
        self.items.get(i.at())?.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Idx<T>, &T)> {
        let items = self.items.iter().enumerate();
        items.filter_map(|(i, x)| x.as_ref().map(|x| (Idx::new(i), x)))
    }

    pub fn len(&self) -> usize {
        self.items.len() - self.holes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Index<Idx<T>> for Slab<T> {
    type Output = T;

    fn index(&self, i: Idx<T>) -> &T {
        self.items[i.at()]
            .as_ref()
            .expect("an index is kept only while its entry lives")
    }
}

impl<T> IndexMut<Idx<T>> for Slab<T> {
    fn index_mut(&mut self, i: Idx<T>) -> &mut T {
        self.items[i.at()]
            .as_mut()
            .expect("an index is kept only while its entry lives")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_a_set_in_order() {
        let (mut places, mut set) = (Places::<()>::default(), std::collections::BTreeSet::new());
        assert!(places.is_empty() && places.iter().next().is_none());
        // Of each two steps of 37 modulo 200, the third takes the first back.
        for step in 0..400usize {
            let i = Idx::new(step * 37 % 200);
            match step % 3 {
                2 => assert_eq!(places.remove(i), set.remove(&i)),
                _ => assert_eq!(places.insert(i), set.insert(i)),
            }
            assert_eq!(places.len(), set.len());
            assert!(places.iter().eq(set.iter().copied()));
            assert_eq!(places.contains(i), set.contains(&i));
        }
        assert!(!places.contains(Idx::NONE) && !places.remove(Idx::NONE));
    }
}
