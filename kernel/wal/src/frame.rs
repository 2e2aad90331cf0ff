//! Frames, the units of the log, as bytes.
//!
//! ```text
//! length u32 | crc u32 | kind u8 | group u32 | number u64 | payload
//! ```
//! Numbers are little-endian. `length` counts from `kind` on; 0 ends the segment's content so far. The checksum covers
//! the number of the segment first and then all bytes but itself, so frames of the segment's earlier use don't count.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// A place in the log: bytes ever written to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub(crate) u64);

/// Bytes before a frame's payload.
pub(crate) const HEAD: usize = 8 + FIXED;
/// Bytes of the body before the payload.
const FIXED: usize = 1 + 4 + 8;

/// A group's number within this log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupNumber(pub(crate) u32);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The group's number stands for this name from here on.
    Open { group: GroupNumber, name: Bytes },
    /// Nothing of the group counts any more.
    Close { group: GroupNumber },
    /// The slot's value.
    Put {
        group: GroupNumber,
        slot: u64,
        value: Bytes,
    },
    /// The entry at an index.
    Entry {
        group: GroupNumber,
        index: u64,
        entry: Bytes,
    },
    /// Entries from this index on are gone.
    Truncate { group: GroupNumber, from: u64 },
    /// Entries up to this index are gone.
    Purge { group: GroupNumber, upto: u64 },
    /// The log goes on in the next segment.
    End,
}

impl Frame {
    fn parts(&self) -> (u8, u32, u64, &[u8]) {
        match self {
            Self::Open { group, name } => (1, group.0, 0, name),
            Self::Close { group } => (2, group.0, 0, &[]),
            Self::Put { group, slot, value } => (3, group.0, *slot, value),
            Self::Entry { group, index, entry } => (4, group.0, *index, entry),
            Self::Truncate { group, from } => (5, group.0, *from, &[]),
            Self::Purge { group, upto } => (6, group.0, *upto, &[]),
            Self::End => (7, 0, 0, &[]),
        }
    }

    /// The frame's group.
    pub(crate) fn group(&self) -> Option<GroupNumber> {
        match self {
            Self::Open { group, .. }
            | Self::Close { group }
            | Self::Put { group, .. }
            | Self::Entry { group, .. }
            | Self::Truncate { group, .. }
            | Self::Purge { group, .. } => Some(*group),
            Self::End => None,
        }
    }

    /// Bytes of the frame.
    pub(crate) fn size(&self) -> usize {
        HEAD + self.parts().3.len()
    }

    /// Writes the frame behind `out`, for the segment with this number.
    pub(crate) fn encode(&self, segment: u64, out: &mut BytesMut) {
        let (kind, group, number, payload) = self.parts();
        let start = out.len();
        let length = u32::try_from(FIXED + payload.len()).expect("a frame is far below 4 GiB");
        out.reserve(HEAD + payload.len());
        out.put_u32_le(length);
        out.put_u32_le(0);
        out.put_u8(kind);
        out.put_u32_le(group);
        out.put_u64_le(number);
        out.put_slice(payload);
        let sum = checksum(segment, length, &out[start + 8..]);
        out[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads the frame at the start of `bytes`. `None`: no frame, or a torn one.
    pub(crate) fn decode(segment: u64, bytes: &Bytes) -> Option<(Self, usize)> {
        let mut head = bytes.get(..8)?;
        let (length, sum) = (head.get_u32_le(), head.get_u32_le());
        let size = length as usize;
        if size < FIXED || bytes.len() < 8 + size {
            return None;
        }
        let mut body = bytes.slice(8..8 + size);
        if checksum(segment, length, &body) != sum {
            return None;
        }
        let (kind, group, number) = (body.get_u8(), GroupNumber(body.get_u32_le()), body.get_u64_le());
        let frame = match kind {
            1 => Self::Open { group, name: body },
            2 => Self::Close { group },
            3 => Self::Put {
                group,
                slot: number,
                value: body,
            },
            4 => Self::Entry {
                group,
                index: number,
                entry: body,
            },
            5 => Self::Truncate { group, from: number },
            6 => Self::Purge { group, upto: number },
            7 => Self::End,
            _ => return None,
        };
        Some((frame, 8 + size))
    }
}

fn checksum(segment: u64, length: u32, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&segment.to_le_bytes());
    hasher.update(&length.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}
