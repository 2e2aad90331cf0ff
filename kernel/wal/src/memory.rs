//! The log's content in memory: the entries and slots of each group, with their segments.
//!
//! Pure. A frame is applied after its writing, and again at the log's next opening. Both give the same content.

use crate::frame::{Frame, GroupNumber};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The number of a segment.
pub(crate) type SegmentNumber = u64;

/// A value, and the segment of its frame.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stored<T> {
    value: T,
    segment: SegmentNumber,
}

/// The content of one group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupState {
    slots: BTreeMap<u64, Stored<Bytes>>,
    entries: BTreeMap<u64, Stored<Bytes>>,
    purged: Option<Stored<u64>>,
}

impl GroupState {
    /// The slot's value. `None`: never put.
    pub fn slot(&self, slot: u64) -> Option<&Bytes> {
        self.slots.get(&slot).map(|s| &s.value)
    }

    /// The entries with these indexes, in order.
    pub fn entries(&self, indexes: impl std::ops::RangeBounds<u64>) -> impl Iterator<Item = (u64, &Bytes)> {
        self.entries.range(indexes).map(|(index, s)| (*index, &s.value))
    }

    /// The index of the last entry, or of the last purged entry. `None`: the group never had an entry.
    pub fn last(&self) -> Option<u64> {
        let purged = self.purged.as_ref().map(|p| p.value);
        self.entries.last_key_value().map(|(index, _)| *index).max(purged)
    }

    /// The last purged index. `None`: nothing was purged.
    pub fn purged(&self) -> Option<u64> {
        self.purged.as_ref().map(|p| p.value)
    }

    fn apply(&mut self, frame: &Frame, segment: SegmentNumber) {
        match frame {
            Frame::Put { slot, value, .. } => {
                let value = value.clone();
                self.slots.insert(*slot, Stored { value, segment });
            }
            Frame::Entry { index, entry, .. } => {
                let value = entry.clone();
                self.entries.insert(*index, Stored { value, segment });
            }
            Frame::Truncate { from, .. } => {
                self.entries.split_off(from);
            }
            Frame::Purge { upto, .. } => {
                self.entries = self.entries.split_off(&(upto + 1));
                self.purged = Some(Stored {
                    value: *upto,
                    segment,
                });
            }
            Frame::Open { .. } | Frame::Close { .. } | Frame::End => {}
        }
    }
}

/// The content of all groups.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    groups: BTreeMap<GroupNumber, Named>,
    last_number: u32,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    /// `None` while the log is read: cleaning has written the name again, behind other frames of the group.
    name: Option<Stored<Bytes>>,
    state: GroupState,
}

impl Memory {
    pub(crate) fn apply(&mut self, frame: &Frame, segment: SegmentNumber) {
        let Some(number) = frame.group() else {
            return;
        };
        self.last_number = self.last_number.max(number.0);
        if matches!(frame, Frame::Close { .. }) {
            self.groups.remove(&number);
            return;
        }
        let named = self.groups.entry(number).or_default();
        if let Frame::Open { name, .. } = frame {
            let value = name.clone();
            named.name = Some(Stored { value, segment });
        }
        named.state.apply(frame, segment);
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<GroupNumber> {
        let is = |named: &Named| named.name.as_ref().is_some_and(|n| n.value == name);
        self.groups
            .iter()
            .find(|(_, named)| is(named))
            .map(|(number, _)| *number)
    }

    pub(crate) fn group(&self, number: GroupNumber) -> Option<&GroupState> {
        self.groups.get(&number).map(|named| &named.state)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &Bytes> {
        self.groups
            .values()
            .filter_map(|named| named.name.as_ref())
            .map(|n| &n.value)
    }

    /// A number unused by all frames of the log.
    pub(crate) fn next_number(&self) -> GroupNumber {
        GroupNumber(self.last_number + 1)
    }

    /// The frames to write again, for the segment's content to live on elsewhere.
    pub(crate) fn living_in(&self, segment: SegmentNumber) -> Vec<Frame> {
        let mut frames = Vec::new();
        for (group, Named { name, state }) in &self.groups {
            let group = *group;
            if let Some(name) = name.as_ref().filter(|n| n.segment == segment) {
                let name = name.value.clone();
                frames.push(Frame::Open { group, name });
            }
            let slots = state.slots.iter().filter(|(_, s)| s.segment == segment);
            frames.extend(slots.map(|(slot, s)| Frame::Put {
                group,
                slot: *slot,
                value: s.value.clone(),
            }));
            if let Some(purged) = state.purged.as_ref().filter(|p| p.segment == segment) {
                frames.push(Frame::Purge {
                    group,
                    upto: purged.value,
                });
            }
            let entries = state.entries.iter().filter(|(_, s)| s.segment == segment);
            frames.extend(entries.map(|(index, s)| Frame::Entry {
                group,
                index: *index,
                entry: s.value.clone(),
            }));
        }
        frames
    }
}
