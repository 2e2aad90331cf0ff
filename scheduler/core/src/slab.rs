//! A vector with holes: dense indices that are reused, iterated in a fixed order.

use std::ops::{Index, IndexMut};

#[derive(Debug, Clone)]
pub(crate) struct Slab<T> {
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
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(i) = self.holes.pop() {
            self.items[i as usize] = Some(item);
            return i;
        }
        self.items.push(Some(item));
        u32::try_from(self.items.len() - 1).expect("fewer than 2^32 entries fit into memory")
    }

    pub(crate) fn remove(&mut self, i: u32) -> Option<T> {
        let item = self.items.get_mut(i as usize)?.take()?;
        self.holes.push(i);
        Some(item)
    }

    pub(crate) fn get(&self, i: u32) -> Option<&T> {
        self.items.get(i as usize)?.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items
            .iter()
            .enumerate()
            .filter_map(|(i, x)| x.as_ref().map(|x| (i as u32, x)))
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.holes.len()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, i: u32) -> &T {
        self.items[i as usize]
            .as_ref()
            .expect("an index is kept only while its entry lives")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, i: u32) -> &mut T {
        self.items[i as usize]
            .as_mut()
            .expect("an index is kept only while its entry lives")
    }
}
