//! Records for a kernel's next front: all outputs that are kept, and each change since. Each record is a line of JSON.

use super::{Cell, Follower, Unseen};
use bytes::Bytes;
use hop_words::id::{CellId, Incarnation};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Changes that are recorded before all is written anew, in bytes beyond what is kept.
const SLACK: usize = 1 << 20;

/// Bytes for the front's successor.
#[derive(Debug, PartialEq, Eq)]
pub enum Records {
    /// They follow what is recorded.
    More(Vec<u8>),
    /// They take the place of all records.
    All(Vec<u8>),
}

/// A part of a message: a text in JSON, in memory of its own. A part of a larger read would keep all of it in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Json(Bytes);

impl Json {
    pub(super) fn copy(part: &Bytes) -> Self {
        Self(Bytes::copy_from_slice(part))
    }
}

impl std::ops::Deref for Json {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.0
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&String::from_utf8_lossy(&self.0))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(|text| Self(text.into()))
    }
}

/// What changes the things that are kept.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Change {
    /// Items of this replica come from now on.
    Stream(Incarnation),
    /// A page names its notebook.
    Page { session: String, notebook: String },
    /// A client of that session asks for the cell.
    Asked { session: String, cell: Cell },
    /// Something is published for the cell, or the cell is answered. `seq` is the replica's number of the message.
    Came {
        cell: CellId,
        seq: Option<u64>,
        what: Came,
    },
    /// These cells are in the notebook's file as they ended.
    Seen(Vec<CellId>),
    /// A page asks for the notebook's cells, and has shown some.
    Wanted {
        notebook: String,
        shown: Vec<CellId>,
        page: Follower,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Came {
    Published { msg_type: String, content: Json },
    Reply(Json),
}

/// The changes that nobody has written yet.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Somebody writes the records.
    is_on: bool,
    lines: Vec<u8>,
    /// Bytes of changes since all was written. `None` means that nothing was written yet.
    grown: Option<usize>,
}

impl Log {
    pub(super) fn add(&mut self, change: &Change) {
        if self.is_on {
            line(&mut self.lines, change);
        }
    }
}

impl Unseen {
    /// Goes on with what an earlier front has left, and records from now on.
    pub(super) fn take_up(&mut self, records: &[u8]) {
        let whole = records.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let mut lines = records[..whole].split_inclusive(|b| *b == b'\n');
        if let Some(all) = lines.next() {
            match serde_json::from_slice(all) {
                Ok(all) => *self = all,
                Err(error) => tracing::warn!(%error, "what the earlier front kept can't be read"),
            }
        }
        for line in lines {
            match serde_json::from_slice(line) {
                Ok(change) => drop(self.apply(change)),
                Err(error) => return tracing::warn!(%error, "a record of the earlier front can't be read"),
            }
        }
        self.log.is_on = true;
    }

    /// What is to be written now.
    pub(super) fn records(&mut self) -> Option<Records> {
        if self.log.lines.is_empty() {
            return None;
        }
        let lines = std::mem::take(&mut self.log.lines);
        let grown = self.log.grown.map(|grown| grown + lines.len());
        if grown.is_some_and(|grown| grown <= self.kept + SLACK) {
            self.log.grown = grown;
            return Some(Records::More(lines));
        }
        self.log.grown = Some(0);
        let mut all = Vec::with_capacity(self.kept);
        line(&mut all, &self);
        Some(Records::All(all))
    }
}

fn line(lines: &mut Vec<u8>, what: &impl Serialize) {
    let before = lines.len();
    match serde_json::to_writer(&mut *lines, what) {
        Ok(()) => lines.push(b'\n'),
        Err(error) => {
            tracing::warn!(%error, "a change can't be recorded");
            lines.truncate(before);
        }
    }
}
