//! Undelivered items, and the record of taken ones: the two ends of a stream of numbered frames that outlives its
//! connection. Pure: no socket, no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{RangeBounds, RangeInclusive};

/// An item with a size in memory while kept.
pub trait Weigh {
    /// Bytes.
    fn weight(&self) -> usize;

    /// Whether it may be dropped when too much is kept: outputs may, replies and notes may not.
    fn droppable(&self) -> bool;
}

/// The sending end: keeps each item until the peer acknowledges it.
#[derive(Debug)]
pub struct Retained<T> {
    items: BTreeMap<u64, T>,
    last: u64,
    bytes: usize,
    limit: usize,
}

impl<T: Weigh + Clone> Retained<T> {
    /// Keeps about `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            items: BTreeMap::new(),
            last: 0,
            bytes: 0,
            limit,
        }
    }

    /// Numbers and keeps an item.
    pub fn push(&mut self, item: T) -> u64 {
        self.last += 1;
        self.bytes += item.weight();
        self.items.insert(self.last, item);
        self.last
    }

    /// The other side has dealt with these.
    pub fn done(&mut self, range: RangeInclusive<u64>) {
        let seqs: Vec<u64> = self.items.range(range).map(|(seq, _)| *seq).collect();
        for seq in seqs {
            self.remove(seq);
        }
    }

    fn remove(&mut self, seq: u64) -> usize {
        let weight = self.items.remove(&seq).map_or(0, |item| item.weight());
        self.bytes -= weight;
        weight
    }

    /// Drops the oldest outputs until the limit is kept, but never the newest item. Returns their numbers and weights.
    pub fn enforce(&mut self) -> Vec<(u64, usize)> {
        let mut dropped = Vec::new();
        while self.bytes > self.limit {
            let oldest = self
                .items
                .iter()
                .find(|(seq, item)| item.droppable() && **seq != self.last);
            let Some(seq) = oldest.map(|(seq, _)| *seq) else {
                break;
            };
            dropped.push((seq, self.remove(seq)));
        }
        dropped
    }

    /// The item of this number, if it is kept.
    pub fn get(&self, seq: u64) -> Option<&T> {
        self.items.get(&seq)
    }

    /// The oldest kept item behind this number.
    pub fn after(&self, seq: u64) -> Option<(u64, &T)> {
        let (seq, item) = self.items.range(seq + 1..).next()?;
        Some((*seq, item))
    }

    /// Returns the items to send again: all after `taken`, and those listed in `again`. The peer is still working on
    /// the others and acknowledges them with `Done`.
    pub fn lacking(&self, taken: u64, again: &[u64]) -> Vec<(u64, T)> {
        let old = again
            .iter()
            .filter(|seq| **seq <= taken)
            .filter_map(|seq| self.items.get_key_value(seq));
        let new = self.items.range(taken + 1..);
        old.chain(new).map(|(seq, item)| (*seq, item.clone())).collect()
    }

    /// Forgets the items that a new peer, with `taken` and `again` of its predecessor, need not see.
    pub fn settle(&mut self, taken: u64, again: &[u64]) {
        let again: BTreeSet<u64> = again.iter().copied().collect();
        self.take_out(..=taken, |seq, _| !again.contains(&seq));
    }

    /// Forgets those of the items up to `taken` that the present peer has dealt with.
    pub fn settle_if(&mut self, taken: u64, done: impl Fn(&T) -> bool) {
        self.take_out(..=taken, |_, item| done(item));
    }

    /// Takes out the items that match, the oldest first.
    pub fn extract(&mut self, matches: impl Fn(&T) -> bool) -> Vec<T> {
        self.take_out(.., |_, item| matches(item))
    }

    fn take_out(&mut self, range: impl RangeBounds<u64>, matches: impl Fn(u64, &T) -> bool) -> Vec<T> {
        let out = self.items.extract_if(range, |seq, item| matches(*seq, item));
        let out: Vec<T> = out.map(|(_, item)| item).collect();
        self.bytes -= out.iter().map(Weigh::weight).sum::<usize>();
        out
    }

    /// What is kept, the oldest first.
    pub fn items(&self) -> impl Iterator<Item = &T> {
        self.items.values()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// What must hold after every call.
    pub fn sanity_check(&self) {
        assert_eq!(self.bytes, self.items.values().map(Weigh::weight).sum::<usize>());
        assert!(self.items.keys().all(|seq| (1..=self.last).contains(seq)));
    }
}

/// The receiving end: the frames taken, to deal with no frame twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    upto: u64,
    again: BTreeSet<u64>,
}

impl Taken {
    /// State of a successor: its predecessor had taken frames up to `upto`, but not dealt with those in `again`.
    pub fn resume(upto: u64, again: impl IntoIterator<Item = u64>) -> Self {
        Self {
            upto,
            again: again.into_iter().collect(),
        }
    }

    /// Whether this frame is new. It counts as taken from now on.
    pub fn take(&mut self, seq: u64) -> bool {
        if seq > self.upto {
            self.upto = seq;
            return true;
        }
        self.again.remove(&seq)
    }

    pub fn upto(&self) -> u64 {
        self.upto
    }

    pub fn again(&self) -> Vec<u64> {
        self.again.iter().copied().collect()
    }
}

/// Joins numbers to ranges, for a short acknowledgement.
pub fn ranges(mut seqs: Vec<u64>) -> Vec<RangeInclusive<u64>> {
    seqs.sort_unstable();
    let mut out: Vec<RangeInclusive<u64>> = Vec::new();
    for seq in seqs {
        match out.last_mut() {
            Some(last) if *last.end() + 1 >= seq => *last = *last.start()..=seq,
            _ => out.push(seq..=seq),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Load(usize, bool);

    impl Weigh for Load {
        fn weight(&self) -> usize {
            self.0
        }

        fn droppable(&self) -> bool {
            self.1
        }
    }

    #[test]
    fn the_oldest_outputs_go_first_and_replies_stay() {
        let mut kept = Retained::new(100);
        for load in [Load(60, true), Load(60, false), Load(30, true), Load(500, true)] {
            kept.push(load);
        }
        assert_eq!(kept.enforce(), [(1, 60), (3, 30)]);
        kept.sanity_check();
        let left: Vec<u64> = kept.lacking(0, &[]).into_iter().map(|(s, _)| s).collect();
        assert_eq!(left, [2, 4], "the newest stays although it is too large alone");
        assert_eq!(kept.after(2), Some((4, &Load(500, true))));
        assert_eq!((kept.get(3), kept.after(4)), (None, None));
    }

    #[test]
    fn items_that_are_taken_out_are_not_sent_and_the_others_keep_their_numbers() {
        let mut kept = Retained::new(1000);
        for load in [Load(1, true), Load(2, false), Load(3, true), Load(4, false)] {
            kept.push(load);
        }
        assert_eq!(kept.extract(|l| l.1), [Load(1, true), Load(3, true)]);
        kept.sanity_check();
        assert_eq!(kept.lacking(0, &[]), [(2, Load(2, false)), (4, Load(4, false))]);
        assert_eq!((kept.bytes(), kept.push(Load(1, true))), (6, 5));
    }

    #[test]
    fn a_new_other_side_gets_what_the_old_one_had_not_dealt_with() {
        let mut kept = Retained::new(1000);
        for _ in 0..6 {
            kept.push(Load(1, true));
        }
        kept.done(1..=1);
        kept.settle(4, &[3]);
        kept.sanity_check();
        let again: Vec<u64> = kept.lacking(4, &[3]).into_iter().map(|(s, _)| s).collect();
        assert_eq!(again, [3, 5, 6]);
        let mut taken = Taken::resume(4, [3]);
        let news: Vec<bool> = [3, 3, 4, 5, 6, 6].map(|seq| taken.take(seq)).to_vec();
        assert_eq!(news, [true, false, false, true, true, false]);
    }

    proptest! {
        /// Whatever breaks when: each item is dealt with exactly once.
        #[test]
        fn nothing_is_lost_and_nothing_comes_twice(steps in proptest::collection::vec((0u8..4, any::<proptest::sample::Index>()), 1..200)) {
            let mut kept = Retained::new(usize::MAX);
            let mut taken = Taken::default();
            let mut wire: Vec<u64> = Vec::new();
            let (mut in_hand, mut dealt) = (Vec::<u64>::new(), Vec::<u64>::new());
            for (step, at) in steps {
                match step {
                    0 => wire.push(kept.push(Load(1, true))),
                    1 if !wire.is_empty() => {
                        let seq = wire.remove(0);
                        if taken.take(seq) {
                            in_hand.push(seq);
                        }
                    }
                    2 if !in_hand.is_empty() => {
                        let seq = in_hand.remove(at.index(in_hand.len()));
                        dealt.push(seq);
                        kept.done(seq..=seq);
                    }
                    _ => {
                        // The receiver dies. The successor knows the frames in hand, and the frames requested again.
                        let again: Vec<u64> = in_hand.drain(..).chain(taken.again()).collect();
                        taken = Taken::resume(taken.upto(), again.clone());
                        kept.settle(taken.upto(), &again);
                        wire = kept.lacking(taken.upto(), &taken.again()).into_iter().map(|(s, _)| s).collect();
                    }
                }
                kept.sanity_check();
            }
            for seq in wire {
                if taken.take(seq) {
                    in_hand.push(seq);
                }
            }
            dealt.extend(in_hand);
            dealt.sort_unstable();
            prop_assert_eq!(dealt, (1..=kept.last).collect::<Vec<_>>());
        }
    }

    #[test]
    fn neighbours_are_joined() {
        assert_eq!(ranges(vec![3, 1, 2, 7, 9, 8]), [1..=3, 7..=9]);
    }
}
