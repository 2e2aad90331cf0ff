//! openraft's types for this log, and their bytes: JSON, and behind it the raw bytes of the log's own entries.
//!
//! ```text
//! version u8 | length of the JSON u32 | the JSON | for each raw part: length u32, bytes
//! ```
//! Numbers are little-endian. The same form serves the WAL and the links between members. A reader refuses another version:
//! a member that guesses would differ from the others.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hop_log::Index;
use openraft::EntryPayload;
use serde::de::DeserializeOwned;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::io;

/// The version of the form.
const VERSION: u8 = 1;

const HEAD: usize = 5;

openraft::declare_raft_types!(
    /// A kernel's group.
    pub(crate) Types:
        D = Command,
        R = (),
        NodeId = u32,
        Node = (),
        Entry = openraft::Entry<Self>,
        SnapshotData = Bytes,
        AsyncRuntime = crate::runtime::Tickless,
);

pub(crate) type Entry = openraft::Entry<Types>;
pub(crate) type LogId = openraft::LogId<u32>;
pub(crate) type Vote = openraft::Vote<u32>;
pub(crate) type Meta = openraft::SnapshotMeta<u32, ()>;
pub(crate) type Membership = openraft::StoredMembership<u32, ()>;
pub(crate) type Storage = openraft::StorageError<u32>;

/// An entry of `hop-log`, or the state at a group's beginning, in serialised form. The JSON has an empty list in its place:
/// the bytes are a raw part. (serde's `skip` does nothing for the one field of a tuple struct.)
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Command(pub(crate) Bytes);

impl Serialize for Command {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_seq(Some(0))?.end()
    }
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <[u8; 0]>::deserialize(deserializer).map(|_| Self::default())
    }
}

/// A type of openraft with raw parts.
pub(crate) trait Parts: Serialize + DeserializeOwned {
    /// The raw parts, in an order that the JSON alone decides.
    fn parts(&mut self) -> Vec<&mut Bytes>;

    fn pack(mut self) -> Bytes {
        let json = serde_json::to_vec(&self).expect("plain data");
        let parts = self.parts();
        let size: usize = parts.iter().map(|p| 4 + p.len()).sum();
        let mut out = BytesMut::with_capacity(HEAD + json.len() + size);
        out.put_u8(VERSION);
        out.put_u32_le(length(json.len()));
        out.put_slice(&json);
        for part in parts {
            out.put_u32_le(length(part.len()));
            out.put_slice(part);
        }
        out.freeze()
    }

    /// Reads the bytes of [`Parts::pack`]. Raw parts share the memory of `bytes`.
    fn unpack(mut bytes: Bytes) -> io::Result<Self> {
        let mut head = take(&mut bytes, HEAD)?;
        if head.get_u8() != VERSION {
            return Err(invalid("another version of the group's form"));
        }
        let json = take(&mut bytes, head.get_u32_le() as usize)?;
        let mut value: Self = serde_json::from_slice(&json)?;
        for part in value.parts() {
            let size = take(&mut bytes, 4)?.get_u32_le();
            *part = take(&mut bytes, size as usize)?;
        }
        if bytes.is_empty() {
            Ok(value)
        } else {
            Err(invalid("bytes behind the end"))
        }
    }
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a message is far below 4 GiB: large content is in the store")
}

fn take(bytes: &mut Bytes, size: usize) -> io::Result<Bytes> {
    if bytes.len() < size {
        return Err(invalid("cut off"));
    }
    Ok(bytes.split_to(size))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn part(entry: &mut Entry) -> Option<&mut Bytes> {
    match &mut entry.payload {
        EntryPayload::Normal(command) => Some(&mut command.0),
        EntryPayload::Blank | EntryPayload::Membership(_) => None,
    }
}

impl Parts for Entry {
    fn parts(&mut self) -> Vec<&mut Bytes> {
        part(self).into_iter().collect()
    }
}

/// A question of one member to another.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Append(openraft::raft::AppendEntriesRequest<Types>),
    Vote(openraft::raft::VoteRequest<u32>),
    Snapshot {
        vote: Vote,
        snapshot: Snapshot,
    },
    /// The leader should take in this entry.
    Propose {
        command: Command,
    },
}

impl Parts for Request {
    fn parts(&mut self) -> Vec<&mut Bytes> {
        match self {
            Self::Append(append) => append.entries.iter_mut().filter_map(part).collect(),
            Self::Vote(_) => Vec::new(),
            Self::Snapshot { snapshot, .. } => snapshot.parts(),
            Self::Propose { command } => vec![&mut command.0],
        }
    }
}

/// The answer to a [`Request`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Response {
    Append {
        response: openraft::raft::AppendEntriesResponse<u32>,
    },
    Vote {
        response: openraft::raft::VoteResponse<u32>,
    },
    Snapshot {
        vote: Vote,
    },
    /// The entry is committed at this index of the log.
    Proposed {
        index: Index,
    },
    /// The member doesn't lead. It believes that this one does.
    NotLeader {
        leader: Option<u32>,
    },
    /// The outcome is not known: the entry may be committed, now or later.
    Unknown,
}

impl Parts for Response {
    fn parts(&mut self) -> Vec<&mut Bytes> {
        Vec::new()
    }
}

/// The state machine after an entry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) meta: Meta,
    #[serde(skip)]
    pub(crate) data: Bytes,
}

impl Parts for Snapshot {
    fn parts(&mut self) -> Vec<&mut Bytes> {
        vec![&mut self.data]
    }
}

/// The raw content of a [`Snapshot`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Content {
    /// The log's index is Raft's plus this. `None`: the group has no state yet.
    pub(crate) offset: Option<u64>,
    #[serde(skip)]
    pub(crate) state: Bytes,
}

impl Parts for Content {
    fn parts(&mut self) -> Vec<&mut Bytes> {
        vec![&mut self.state]
    }
}

macro_rules! without_parts {
    ($($type:ty),*) => {$(
        impl Parts for $type {
            fn parts(&mut self) -> Vec<&mut Bytes> {
                Vec::new()
            }
        }
    )*};
}
without_parts!(LogId, Vote);

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::{CommittedLeaderId, Membership};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn entry(index: u64, payload: EntryPayload<Types>) -> Entry {
        let log_id = LogId::new(CommittedLeaderId::new(3, 7), index);
        Entry { log_id, payload }
    }

    #[test]
    fn a_request_comes_back_whole() {
        let voters = BTreeSet::from([7, 8, 9]);
        let entries = vec![
            entry(4, EntryPayload::Blank),
            entry(5, EntryPayload::Normal(Command(Bytes::from_static(b"five")))),
            entry(6, EntryPayload::Membership(Membership::new(vec![voters], None))),
            entry(7, EntryPayload::Normal(Command(Bytes::new()))),
        ];
        let request = openraft::raft::AppendEntriesRequest {
            vote: Vote::new_committed(3, 7),
            prev_log_id: None,
            entries: entries.clone(),
            leader_commit: Some(entries[1].log_id),
        };
        let Request::Append(back) = Request::unpack(Request::Append(request).pack()).unwrap() else {
            panic!("another request came back");
        };
        assert_eq!(
            (back.entries, back.leader_commit),
            (entries.clone(), Some(entries[1].log_id))
        );
    }

    #[test]
    fn an_entrys_bytes_are_written_once() {
        let command = Command(Bytes::from(vec![b'x'; 1000]));
        let propose = Request::Propose {
            command: command.clone(),
        };
        assert!(propose.pack().len() < 1050);
        let whole = entry(5, EntryPayload::Normal(command)).pack();
        assert!(whole.len() < 1150, "{}", whole.len());
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_refused(cut in 0usize..60, flip in 0usize..60) {
            let whole = entry(5, EntryPayload::Normal(Command(Bytes::from_static(b"five")))).pack();
            let cut = cut.min(whole.len() - 1);
            prop_assert!(Entry::unpack(whole.slice(..cut)).is_err());
            let mut other = whole.to_vec();
            let at = flip.min(4);
            other[at] ^= 0x55;
            prop_assert!(Entry::unpack(other.into()).is_err());
        }
    }
}
