//! The executor's side of the kernel's log: proposed entries, and their effects once applied.
//!
//! With one replica the shell applies each proposal at once; with three, proposals go through the kernel's Raft group.
//! The rules are hop-log's (docs/replication.md); this module knows which cells wait for an answer of the log.

mod logged;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hop_log::{
    Act, CellNumber, Effect, Entry, Index, Payload, Record, RecordNumber, Refusal, Sequence, State,
};
use hop_words::id::{CellId, Tenure};
use hop_words::lease::Outcome;
use hop_zmtp::Message;
use std::collections::{HashMap, VecDeque};

/// An answer that waits for its entry.
#[derive(Debug)]
pub(super) struct Answering {
    pub(super) identity: Bytes,
    pub(super) message: Message,
    /// The cell's execution count.
    pub(super) count: Option<i64>,
}

/// An answer that was written into the log while the kernel still makes the reply itself.
#[derive(Debug)]
struct Ahead {
    written: Answering,
    /// The cell's number, once the log has the answer.
    number: Option<CellNumber>,
}

#[derive(Debug)]
pub(super) struct Journal {
    state: State,
    /// Entries that were proposed and aren't applied yet, the oldest first.
    proposed: VecDeque<Entry>,
    answering: HashMap<CellId, Answering>,
    /// Cells whose answer was written ahead of the kernel's reply.
    ahead: HashMap<CellId, Ahead>,
    /// Requests that the front has handed out before, with the first tenure; and whether it may lack outputs.
    handed_before: HashMap<CellId, (Tenure, bool)>,
}

impl Journal {
    pub(super) fn new(state: State) -> Self {
        Self {
            state,
            proposed: VecDeque::new(),
            answering: HashMap::new(),
            ahead: HashMap::new(),
            handed_before: HashMap::new(),
        }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn tenure(&self) -> Tenure {
        self.state.tenure()
    }

    /// The number of the next record.
    pub(super) fn next_record(&self) -> RecordNumber {
        let records = self.proposed.iter().filter_map(Entry::record);
        RecordNumber(self.state.records().0 + records.count() as u64 + 1)
    }

    /// The state as the group has it. Proposed entries missing in the state are still to come.
    pub(super) fn adopt(&mut self, state: State) {
        self.state = state;
    }

    /// Bytes of records that were committed or proposed, and aren't in the store.
    pub(super) fn unsettled_bytes(&self) -> usize {
        let proposed = self.proposed.iter().filter_map(Entry::record).map(Record::weight);
        let committed = self.state.unsettled_records().map(Record::weight);
        committed.chain(proposed).sum()
    }

    /// An act of this executor, behind the earlier proposals.
    pub(super) fn act(&mut self, act: Act) -> Entry {
        let now = self.tenure();
        let before = self
            .proposed
            .iter()
            .filter(|e| matches!(e, Entry::Act { tenure, .. } if *tenure == now));
        let sequence = Sequence(self.state.sequence().0 + before.count() as u64 + 1);
        self.propose(Entry::Act {
            tenure: self.tenure(),
            sequence,
            act,
        })
    }

    /// A cell ran to its end with this reply; the answer waits for the entry. `record` has the effects of the cell and
    /// of all cells before, if they were captured already.
    pub(super) fn ended(
        &mut self,
        cell: &CellId,
        (outcome, reply): (Outcome, Bytes),
        answer: Answering,
        record: Option<Record>,
    ) -> Entry {
        let act = ended(cell, outcome, reply, record);
        self.answering.insert(cell.clone(), answer);
        self.act(act)
    }

    /// A cell ran well to its end, and the reply is still being made: the log gets this answer. `record` as for
    /// [`Journal::ended`].
    pub(super) fn ended_ahead(&mut self, cell: &CellId, written: Answering, record: Option<Record>) -> Entry {
        let act = ended(cell, Outcome::Ok, pack(&written.message), record);
        let number = None;
        self.ahead.insert(cell.clone(), Ahead { written, number });
        self.act(act)
    }

    /// Cells whose reply waits for the log.
    pub(super) fn answering(&self) -> impl Iterator<Item = &CellId> {
        self.answering.keys().chain(self.ahead.keys())
    }

    /// Whether the cell's own reply waits for the log.
    pub(super) fn is_answering(&self, cell: &CellId) -> bool {
        self.answering.contains_key(cell)
    }

    /// Cells with an end in the log, or on its way there, and without a place in the store, in the log's order.
    fn ends(&self) -> impl DoubleEndedIterator<Item = &CellId> {
        let ended = |entry| match entry {
            &Entry::Act {
                act: Act::Ended { ref cell, .. },
                ..
            } => Some(cell),
            _ => None,
        };
        self.state
            .unsettled()
            .chain(self.proposed.iter().filter_map(ended))
    }

    /// Whether a record is to complete the cell.
    pub(super) fn awaits_record(&self, cell: &CellId) -> bool {
        self.ends().any(|ended| ended == cell)
    }

    /// The last cell that a record with the effects of these cells completes. A cell between them without its effects
    /// in the record stops the count.
    pub(super) fn last_of(&self, recorded: &[CellId]) -> Option<&CellId> {
        let has = |cell: &&CellId| recorded.contains(cell);
        self.ends().skip_while(|cell| !has(cell)).take_while(has).last()
    }

    /// The last cell that a record of everything completes.
    pub(super) fn last_ended(&self) -> Option<&CellId> {
        self.ends().next_back()
    }

    pub(super) fn is_ahead(&self, cell: &CellId) -> bool {
        self.ahead.contains_key(cell)
    }

    /// The reply to a cell with an answer written ahead; `None` stands for the written answer. Returns the answer if
    /// the log already has the cell's end. Otherwise the answer waits for the entry.
    pub(super) fn replied(
        &mut self,
        cell: &CellId,
        reply: Option<Answering>,
    ) -> Option<(CellNumber, Answering)> {
        let Ahead { written, number } = self.ahead.remove(cell)?;
        let answer = reply.unwrap_or(written);
        match number {
            Some(number) => Some((number, answer)),
            None => {
                self.answering.insert(cell.clone(), answer);
                None
            }
        }
    }

    /// A cell was lost in its middle; the answer waits for the entry.
    pub(super) fn lost(&mut self, cell: &CellId, why: String, answer: Answering) -> Entry {
        self.answering.insert(cell.clone(), answer);
        self.act(Act::Lost {
            cell: cell.clone(),
            why,
        })
    }

    /// The next record.
    pub(super) fn record(&self, payload: Payload) -> Record {
        let number = self.next_record();
        Record { number, payload }
    }

    pub(super) fn propose(&mut self, entry: Entry) -> Entry {
        self.proposed.push_back(entry.clone());
        entry
    }

    /// Applies an entry. Returns the entry's effect, with the answer waiting for the entry.
    ///
    /// # Errors
    /// The log refuses the entry; the waiting answer must not leave.
    pub(super) fn apply(
        &mut self,
        index: Index,
        entry: &Entry,
    ) -> Result<(Effect, Option<Answering>), Refusal> {
        if self.proposed.front() == Some(entry) {
            self.proposed.pop_front();
        }
        let effect = self.state.apply(index, entry);
        let effect = effect?;
        let Some(cell) = answered_by(entry) else {
            return Ok((effect, None));
        };
        if let (Some(ahead), Effect::Answered { number, .. }) = (self.ahead.get_mut(cell), &effect) {
            ahead.number = Some(*number);
        }
        Ok((effect, self.answering.remove(cell)))
    }

    /// The answer in wait of the cell's entry.
    pub(super) fn take_answer(&mut self, cell: &CellId) -> Option<Answering> {
        self.answering.remove(cell)
    }

    /// The log refuses the entry: the answer waiting for the entry never leaves.
    pub(super) fn forget_answer(&mut self, entry: &Entry) {
        if let Some(cell) = answered_by(entry) {
            self.answering.remove(cell);
            self.ahead.remove(cell);
        }
    }

    /// The front has handed out the request before. `how` is the first tenure, and whether the front may lack
    /// outputs.
    pub(super) fn was_handed(&mut self, cell: CellId, how: (Tenure, bool)) {
        self.handed_before.insert(cell, how);
    }

    /// Forgets and returns how a request was handed out. `None`: this is the first time.
    pub(super) fn first_handed(&mut self, cell: &CellId) -> Option<(Tenure, bool)> {
        self.handed_before.remove(cell)
    }

    /// Puts the kernel's own replies, as far as present, into unapplied proposals in place of the replies written
    /// ahead.
    pub(super) fn take_in_replies(&mut self) {
        for entry in &mut self.proposed {
            if let Entry::Act {
                act: Act::Ended { cell, reply, .. },
                ..
            } = entry
                && let Some(answer) = self.answering.get(cell)
            {
                *reply = pack(&answer.message);
            }
        }
    }

    /// Proposals not yet applied, the oldest first.
    pub(super) fn proposed(&self) -> impl Iterator<Item = &Entry> {
        self.proposed.iter()
    }

    /// Whether the next tenure is proposed and not committed: a new process must not take cells in the present tenure.
    pub(super) fn has_proposed_tenure(&self) -> bool {
        self.proposed
            .iter()
            .any(|entry| matches!(entry, Entry::Tenure { .. }))
    }

    /// Whether every proposal was applied.
    pub(super) fn is_settled(&self) -> bool {
        self.proposed.is_empty()
    }

    pub(super) fn sanity_check(&self) {
        self.state.sanity_check().expect("the log's invariants hold");
        assert!(
            self.answering.len() <= self.proposed.len(),
            "an answer waits for its entry"
        );
        let both = self.ahead.keys().any(|cell| self.answering.contains_key(cell));
        assert!(!both, "a cell has one answer");
    }

    /// The cells whose answer was written ahead.
    pub(super) fn ahead(&self) -> impl Iterator<Item = &CellId> {
        self.ahead.keys()
    }
}

fn ended(cell: &CellId, outcome: Outcome, reply: Bytes, record: Option<Record>) -> Act {
    Act::Ended {
        cell: cell.clone(),
        outcome,
        reply,
        last_output: 0,
        record,
    }
}

/// The cell that an entry answers.
pub(super) fn answered_by(entry: &Entry) -> Option<&CellId> {
    match entry {
        Entry::Act {
            act: Act::Ended { cell, .. } | Act::Lost { cell, .. },
            ..
        } => Some(cell),
        _ => None,
    }
}

/// A message as bytes: the frames, each behind its length (u32, big endian).
pub(super) fn pack(message: &Message) -> Bytes {
    let size: usize = message.0.iter().map(|f| 4 + f.len()).sum();
    let mut out = BytesMut::with_capacity(size);
    for frame in &message.0 {
        out.put_u32(u32::try_from(frame.len()).expect("a frame of a reply is far below 4 GiB"));
        out.put_slice(frame);
    }
    out.freeze()
}

/// Reads a message of [`pack`]. Other bytes give the frames read so far.
pub(super) fn unpack(mut bytes: Bytes) -> Message {
    let mut frames = Vec::new();
    while bytes.len() >= 4 {
        let length = bytes.get_u32() as usize;
        if bytes.len() < length {
            break;
        }
        frames.push(bytes.split_to(length));
    }
    Message(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_message_is_unpacked_whole() {
        let message = Message(vec![
            Bytes::from_static(b"a"),
            Bytes::new(),
            Bytes::from_static(b"<IDS|MSG>"),
        ]);
        assert_eq!(unpack(pack(&message)), message);
        assert_eq!(unpack(Bytes::from_static(b"\0\0\0\x09x")).0.len(), 0);
    }
}
