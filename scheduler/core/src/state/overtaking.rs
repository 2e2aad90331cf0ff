//! Counts of the later cells that overtake a waiting one, and the number from which the waiting cell is due. `queue.rs`
//! reports each arrival, start and departure of a cell.

use super::{Cell, Node, Pool, Size};
use crate::index::Idx;
use hop_words::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// The nodes for which cells compete: the whole pool if kernels can move, else one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arena {
    Pool(Idx<Pool>),
    Node(Idx<Node>),
}

/// Counts, for the cells of an arena, of later cells that overtook them: of those with as many GPUs, in a place that
/// would have done. Other cells mostly start rightly, on GPUs that wouldn't do.
#[derive(Debug, Default)]
pub(crate) struct Overtaking {
    pub classes: BTreeMap<Size, SizeClass>,
}

/// The waiting cells of one size in an arena.
#[derive(Debug, Default)]
pub(crate) struct SizeClass {
    /// In the order of their submission.
    pub waiting: BTreeMap<(Timestamp, u64), Waiter>,
    /// The part of `cells` that may become due by the number of later starts, and is not due yet.
    pub pending: BTreeSet<(Timestamp, u64)>,
    /// How many wait before the first pending one; all of them if none is pending.
    pub settled: usize,
    /// Starts of this size in the arena since the class exists.
    pub passed: u64,
}

/// A waiting cell among the cells of its size.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub cell: Idx<Cell>,
    /// Earlier cells of the same size, in the queue at the time or arriving later: their starts don't count.
    pub ahead: u64,
    /// Starts after which the cell is due, the starts of the cells ahead not counted. `None` means due by age alone.
    pub due_at: Option<u64>,
    /// Later cells of other sizes that started in a place that would have done.
    pub by_others: u64,
}

impl Overtaking {
    /// Adds a waiting cell of this size, at this place by submission. The cell is due `most` later cells from now; `None`
    /// means due by age alone.
    pub(crate) fn enter(&mut self, cell: Idx<Cell>, size: Size, place: (Timestamp, u64), most: Option<u32>) {
        let class = self.classes.entry(size).or_default();
        let due_at = most.map(|most| class.passed + u64::from(most));
        class.enter(cell, place, due_at);
    }

    /// The cell waits no longer.
    pub(crate) fn leave(&mut self, size: &Size, place: (Timestamp, u64)) {
        let Some(class) = self.classes.get_mut(size) else {
            return;
        };
        class.leave(place);
        if class.waiting.is_empty() {
            self.classes.remove(size);
        }
    }

    /// A cell of this size and this place by submission starts where cells of the sizes `would_do` would have, too.
    /// Returns the cells that are due from now on.
    pub(crate) fn started(
        &mut self,
        size: &Size,
        place: (Timestamp, u64),
        would_do: &dyn Fn(&Size) -> bool,
    ) -> Vec<Idx<Cell>> {
        let mut due = Vec::new();
        for (waits, class) in &mut self.classes {
            if waits == size {
                class.passed += 1;
            } else if would_do(waits) {
                let earlier = class.waiting.range_mut(..place);
                earlier.for_each(|(_, w)| w.by_others += 1);
            } else {
                continue;
            }
            due.extend(class.pop_due());
        }
        due
    }
}

impl SizeClass {
    fn enter(&mut self, cell: Idx<Cell>, place: (Timestamp, u64), due_at: Option<u64>) {
        if self.waiting.contains_key(&place) {
            return;
        }
        let newest = self
            .waiting
            .last_key_value()
            .is_none_or(|(&last, _)| last < place);
        let before = match newest {
            true => self.waiting.len(),
            false => self.waiting.range(..place).count(),
        };
        let first = self.pending.first().is_none_or(|&first| place < first);
        match due_at {
            Some(_) if first => self.settled = before,
            None if first => self.settled += 1,
            _ => {}
        }
        if due_at.is_some() {
            self.pending.insert(place);
        }
        if !newest {
            // After a restart of `hopd` cells return in any order.
            let later = self.waiting.range_mut(place..);
            later.for_each(|(_, w)| w.ahead += 1);
        }
        let ahead = before as u64;
        let waiter = Waiter {
            cell,
            ahead,
            due_at,
            by_others: 0,
        };
        self.waiting.insert(place, waiter);
    }

    fn leave(&mut self, place: (Timestamp, u64)) {
        if self.waiting.remove(&place).is_none() {
            return;
        }
        let first = self.pending.first().copied();
        if first == Some(place) {
            self.settle_first();
        } else if !self.pending.remove(&place) && first.is_none_or(|first| place < first) {
            self.settled -= 1;
        }
    }

    /// The first pending cell is due, or waits no longer: the next one is the first.
    fn settle_first(&mut self) {
        let Some(first) = self.pending.pop_first() else {
            return;
        };
        let passed_over = match self.pending.first() {
            Some(&next) => self.waiting.range(first..next).count(),
            None => self.waiting.range(first..).count(),
        };
        self.settled += passed_over;
    }

    /// Cells newly due. Earlier cells have been overtaken at least as often as later ones: the first cell that isn't
    /// due ends the search.
    fn pop_due(&mut self) -> Vec<Idx<Cell>> {
        let mut due = Vec::new();
        while let Some(waiter) = self.pending.first().and_then(|first| self.waiting.get(first)) {
            if waiter
                .overtaken_since_due(self.passed, self.settled as u64)
                .is_none()
            {
                break;
            }
            due.push(waiter.cell);
            self.settle_first();
        }
        due
    }

    /// How many later cells have started since the cell was due by their number.
    pub(crate) fn overtaken_since_due(&self, place: (Timestamp, u64)) -> u64 {
        let waiter = self.waiting.get(&place);
        let before = self.waiting.range(..place).count();
        let since = waiter.and_then(|w| w.overtaken_since_due(self.passed, before as u64));
        since.unwrap_or(0)
    }
}

impl Waiter {
    /// The same, given the number `before` of earlier cells of its size still in wait. `None` means not due by number.
    fn overtaken_since_due(&self, passed: u64, before: u64) -> Option<u64> {
        (passed + before + self.by_others).checked_sub(self.due_at? + self.ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::need::Need;

    /// After a restart of `hopd` the replicas report their cells in any order.
    #[test]
    fn cells_that_start_in_the_order_of_their_submission_overtake_nobody() {
        let size = Size::of(&Need::gpus(1), 1);
        let places: Vec<(Timestamp, u64)> = (0..40).map(|i| (Timestamp(i), i)).collect();
        let mut overtaking = Overtaking::default();
        for i in 0..40 {
            overtaking.enter(Idx::FIRST, size.clone(), places[(i * 17 + 39) % 40], Some(12));
        }
        for (i, &place) in places.iter().enumerate() {
            overtaking.leave(&size, place);
            assert_eq!(overtaking.started(&size, place, &|_| false), [], "at start {i}");
        }
    }
}
