//! Records for a kernel's next front: all outputs that are kept and all open requests, and each change since. Each
//! record is a line of JSON.

use super::{Cell, Follower, Unseen};
use crate::core::texts::Text;
use bytes::Bytes;
use hop_log::CellNumber;
use hop_protocol::jupyter::Channel;
use hop_protocol::meanwhile::Unsaved;
use hop_words::id::{CellId, Incarnation, Tenure};
use hop_words::line;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most bytes of recorded changes beyond the kept content, before all of it is written anew.
const SLACK: usize = 1 << 20;

/// Bytes for the front's successor.
#[derive(Debug, PartialEq, Eq)]
pub enum Records {
    /// The changes follow the recorded ones.
    More(Vec<u8>),
    /// The changes take the place of all records.
    All(Vec<u8>),
}

/// A part of a message: a text in JSON, in memory of its own. A part of a larger read would keep all of it in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::core) struct Json(Bytes);

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
pub(in crate::core) enum Change {
    /// Items of a new process of this replica come from now on, numbered from 1.
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
    /// These cells' final states are in the notebook's file.
    Seen(Vec<CellId>),
    /// A page asks for the notebook's cells, and has shown some.
    Wanted {
        notebook: String,
        shown: Vec<CellId>,
        page: Follower,
    },
    /// A request without a reply, new or changed.
    Open(Request),
    /// The client of an answered cell lacks a part of the answer.
    Answered(Answer),
    /// The request's client lacks nothing.
    Closed(CellId),
    /// So many clients are subscribed to outputs.
    Audience(usize),
    /// The last execution count that clients have read.
    Count(i64),
    /// A change of the account of cells that are not saved, or lost.
    Account(Account),
}

/// What changes a front's account.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::core) enum Account {
    /// A cell is answered and not known to be saved. `count` is its execution count.
    AtStake {
        number: CellNumber,
        cell: CellId,
        count: Option<i64>,
    },
    /// The store has the effects of all cells up to this one.
    Saved(CellNumber),
    /// Cells are lost whose replies are still to come, and tell of the loss.
    ToldByReply(Vec<CellId>),
    /// Answered cells are lost, and their user has not read so.
    Lost(Vec<Unsaved>),
    /// Users have read that these cells are lost.
    Read(Vec<CellId>),
}

/// A part of a cell's answer that its client lacks. The bytes are in hex.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::core) struct Answer {
    pub(in crate::core) cell: CellId,
    pub(in crate::core) channel: Channel,
    pub(in crate::core) identity: String,
    /// The request's header.
    pub(in crate::core) header: String,
    /// The frames of the reply, if no replica sends it again.
    pub(in crate::core) reply: Option<Vec<String>>,
    /// The client lacks the word that nothing more comes, and no replica sends this word again.
    pub(in crate::core) owes_idle: bool,
    /// The client has that word.
    pub(in crate::core) is_idle: bool,
}

/// A request that has no reply. Its bytes are in hex.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::core) struct Request {
    pub(in crate::core) channel: Channel,
    pub(in crate::core) identity: String,
    pub(in crate::core) frames: Vec<String>,
    /// The first tenure under which the cell may have begun.
    pub(in crate::core) first: Option<Tenure>,
    /// The cell may have begun in the last tenure.
    pub(in crate::core) may_have_begun: bool,
    /// An executor has said that it runs the code.
    pub(in crate::core) runs: bool,
    /// The text of the cell's wait.
    #[serde(default)]
    pub(in crate::core) text: Text,
    /// The client has the word that nothing more comes.
    #[serde(default)]
    pub(in crate::core) is_idle: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(in crate::core) enum Came {
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
    /// Goes on with an earlier front's records, and records from now on. Returns the changes of its requests and
    /// clients.
    pub(in crate::core) fn take_up(&mut self, records: &[u8]) -> Vec<Change> {
        let mut requests = Vec::new();
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
                Ok(
                    change @ (Change::Open(_)
                    | Change::Answered(_)
                    | Change::Closed(_)
                    | Change::Audience(_)
                    | Change::Count(_)
                    | Change::Account(_)),
                ) => requests.push(change),
                Ok(change) => drop(self.apply(change)),
                Err(error) => {
                    tracing::warn!(%error, "a record of the earlier front can't be read");
                    break;
                }
            }
        }
        self.enforce();
        self.log.is_on = true;
        requests
    }

    /// Records a change of the front's own.
    pub(in crate::core) fn note(&mut self, change: Option<Change>) {
        change.iter().for_each(|change| self.log.add(change));
    }

    /// The records to write now. `open` returns all open requests, which have so many bytes.
    pub(in crate::core) fn records<R: Iterator<Item = Change>>(
        &mut self,
        size: usize,
        open: impl FnOnce() -> R,
    ) -> Option<Records> {
        if self.log.lines.is_empty() {
            return None;
        }
        let lines = std::mem::take(&mut self.log.lines);
        let grown = self.log.grown.map(|grown| grown + lines.len());
        if grown.is_some_and(|grown| grown <= self.kept + 2 * size + SLACK) {
            self.log.grown = grown;
            return Some(Records::More(lines));
        }
        self.log.grown = Some(0);
        let mut all = Vec::with_capacity(self.kept);
        line(&mut all, &self);
        open().for_each(|request| line(&mut all, &request));
        Some(Records::All(all))
    }
}

fn line(lines: &mut Vec<u8>, what: &impl Serialize) {
    if let Err(error) = line::append(lines, what) {
        tracing::warn!(%error, "a change can't be recorded");
    }
}
