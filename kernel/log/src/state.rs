//! The state of the machine, and its readings.

use crate::entry::{Entry, Settled};
use crate::id::{CellNumber, Generation, Index, RecordNumber, Sequence};
use crate::record::Record;
use bytes::Bytes;
use hop_words::id::{CellId, Incarnation, JobId, NodeName, Tenure};
use hop_words::lease::Outcome;
use hop_words::replica::ReplicaRole;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The kernel's state after some entry, equal on all members at the same entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub(crate) applied: Index,
    pub(crate) generation: Generation,
    pub(crate) highest: Incarnation,
    /// Unused incarnations below the highest: replicas that start together join in any order.
    pub(crate) skipped: BTreeSet<Incarnation>,
    pub(crate) members: BTreeMap<Incarnation, Member>,
    pub(crate) office: Office,
    /// How many cells were answered, by their end or by their loss.
    pub(crate) cells: CellNumber,
    /// Answers not yet heard by the front, the oldest first.
    pub(crate) answers: VecDeque<Answer>,
    /// Ended cells with effects that are not settled, the oldest first.
    pub(crate) unsettled: VecDeque<Unsettled>,
    pub(crate) settled_through: CellNumber,
    /// The last committed record.
    pub(crate) records: RecordNumber,
    /// Committed records before their settling, the oldest first.
    pub(crate) tail: VecDeque<Tail>,
    pub(crate) settled: Option<Settled>,
    pub(crate) fresh: Fresh,
    /// Losses not yet named by the front, the oldest first.
    pub(crate) losses: VecDeque<Loss>,
}

/// A replica in the kernel's group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    pub seat: JobId,
    pub node: NodeName,
    /// The member keeps a namespace up to the last record.
    pub hot: bool,
}

impl Member {
    /// The entry by which the member becomes hot, or warm.
    pub fn entry(&self, incarnation: Incarnation, hot: bool) -> Entry {
        Entry::Join {
            incarnation,
            seat: self.seat,
            node: self.node.clone(),
            hot,
        }
    }
}

/// Who executes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "office", rename_all = "kebab-case")]
pub enum Office {
    /// Nobody. `last` is the tenure before, or the number before the generation's first.
    Vacant { last: Tenure },
    /// The executor, and nobody else, may begin cells.
    Held {
        tenure: Tenure,
        executor: Incarnation,
        /// The last evaluated act.
        sequence: Sequence,
    },
    /// Nobody: the kernel hibernates, and its state is in the store.
    Asleep { last: Tenure },
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

/// The final answer to one cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub number: CellNumber,
    pub cell: CellId,
    pub end: End,
}

/// How a cell was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum End {
    /// The cell ran to its end in this tenure.
    Ended {
        tenure: Tenure,
        outcome: Outcome,
        /// The client's `execute_reply`.
        #[serde(skip)]
        reply: Bytes,
        last_output: u64,
    },
    /// The cell was lost in its middle. `why` is a sentence for the user.
    Lost { why: String },
}

impl End {
    /// Whether the client reads an error.
    pub fn is_error(&self) -> bool {
        !matches!(
            self,
            Self::Ended {
                outcome: Outcome::Ok,
                ..
            }
        )
    }
}

/// Answered cells without effects: the tenure began from an earlier durable record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    pub tenure: Tenure,
    pub cells: Vec<CellId>,
}

/// A cell whose effects are not in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unsettled {
    pub(crate) number: CellNumber,
    pub(crate) cell: CellId,
}

/// A committed record that is not in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tail {
    pub(crate) record: Record,
    /// The last cell completed by the record.
    pub(crate) through: CellNumber,
}

/// The user's last restart of the kernel. Records up to `records` are not in the namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fresh {
    pub(crate) records: RecordNumber,
}

/// The source of a new executor's namespace: the settled state first, then the records in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restore<'a> {
    /// `None`: the namespace begins empty.
    pub settled: Option<&'a Settled>,
    pub records: Vec<&'a Record>,
}

/// The fate of an execute request at the executor.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate<'a> {
    /// The cell has not begun in any tenure: run it.
    Run,
    /// The cell has its answer already.
    Answered(&'a Answer),
    /// The cell may have begun in an older tenure, or even have ended there, and has no effects. Only `%%retry` lets it
    /// begin again.
    LostInTheMiddle,
}

impl State {
    /// A kernel that has run nothing yet.
    pub fn new() -> Self {
        Self {
            applied: Index(0),
            generation: Generation(0),
            highest: Incarnation(0),
            skipped: BTreeSet::new(),
            members: BTreeMap::new(),
            office: Office::Vacant { last: Tenure(0) },
            cells: CellNumber(0),
            answers: VecDeque::new(),
            unsettled: VecDeque::new(),
            settled_through: CellNumber(0),
            records: RecordNumber(0),
            tail: VecDeque::new(),
            settled: None,
            fresh: Fresh::default(),
            losses: VecDeque::new(),
        }
    }

    /// The last applied entry.
    pub fn applied(&self) -> Index {
        self.applied
    }

    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub fn office(&self) -> &Office {
        &self.office
    }

    /// The current tenure, or the last one where nobody executes.
    pub fn tenure(&self) -> Tenure {
        match self.office {
            Office::Vacant { last } | Office::Asleep { last } => last,
            Office::Held { tenure, .. } => tenure,
        }
    }

    /// The executor of the current tenure.
    pub fn executor(&self) -> Option<Incarnation> {
        match self.office {
            Office::Held { executor, .. } => Some(executor),
            Office::Vacant { .. } | Office::Asleep { .. } => None,
        }
    }

    /// The last evaluated act of the current tenure. 0 without an executor.
    pub fn sequence(&self) -> Sequence {
        match self.office {
            Office::Held { sequence, .. } => sequence,
            Office::Vacant { .. } | Office::Asleep { .. } => Sequence(0),
        }
    }

    pub fn members(&self) -> &BTreeMap<Incarnation, Member> {
        &self.members
    }

    /// The member's role. `None`: the incarnation is no member.
    pub fn role(&self, incarnation: Incarnation) -> Option<ReplicaRole> {
        let member = self.members.get(&incarnation)?;
        Some(match self.executor() {
            Some(executor) if executor == incarnation => ReplicaRole::Executor,
            _ if member.hot => ReplicaRole::Hot,
            _ => ReplicaRole::Warm,
        })
    }

    /// The member to keep a namespace, if the kernel is to have a hot standby: a member that is hot already, else the
    /// member of longest standing. Every member names the same one.
    pub fn hot_standby(&self) -> Option<Incarnation> {
        let executor = self.executor();
        let standbys = self.members.iter().filter(|(m, _)| executor != Some(**m));
        standbys
            .min_by_key(|(m, member)| (!member.hot, **m))
            .map(|(m, _)| *m)
    }

    /// The highest incarnation of any member so far: a new replica takes a higher number.
    pub fn highest_incarnation(&self) -> Incarnation {
        self.highest
    }

    /// Whether the incarnation was a member and is none any more.
    pub fn has_left(&self, incarnation: Incarnation) -> bool {
        let never = incarnation > self.highest || self.skipped.contains(&incarnation);
        !never && !self.members.contains_key(&incarnation)
    }

    /// The last record before the last restart. Records up to this record are missing in the namespace.
    pub fn fresh_after(&self) -> RecordNumber {
        self.fresh.records
    }

    /// The number of the last answered cell.
    pub fn cells(&self) -> CellNumber {
        self.cells
    }

    /// The number of the last committed record.
    pub fn records(&self) -> RecordNumber {
        self.records
    }

    /// The state in the shared store.
    pub fn settled(&self) -> Option<&Settled> {
        self.settled.as_ref()
    }

    /// Committed records before their settling, the oldest first.
    pub fn unsettled_records(&self) -> impl ExactSizeIterator<Item = &Record> {
        self.tail.iter().map(|t| &t.record)
    }

    /// The last durable cell. Committed inline records count, and settled ones.
    pub fn durable_through(&self) -> CellNumber {
        let safe = self.tail.iter().take_while(|t| t.record.is_inline());
        safe.map(|t| t.through)
            .max()
            .map_or(self.settled_through, |t| t.max(self.settled_through))
    }

    /// How many answered cells would lose their effects with the executor.
    pub fn cells_at_stake(&self) -> usize {
        let durable = self.durable_through();
        self.unsettled.iter().filter(|u| u.number > durable).count()
    }

    /// Whether the cell ran to its end, and the shared store lacks its effects.
    pub fn is_unsettled(&self, cell: &CellId) -> bool {
        self.unsettled.iter().any(|u| u.cell == *cell)
    }

    /// Cells run to the end whose effects the shared store lacks, the first to end first.
    pub fn unsettled(&self) -> impl DoubleEndedIterator<Item = &CellId> {
        self.unsettled.iter().map(|u| &u.cell)
    }

    /// The last cell with its effects in the shared store.
    pub fn settled_through(&self) -> CellNumber {
        self.settled_through
    }

    /// Answers not yet heard by the front, the oldest first.
    pub fn answers(&self) -> impl ExactSizeIterator<Item = &Answer> {
        self.answers.iter()
    }

    /// The answer to a cell, until the front has it.
    pub fn answer(&self, cell: &CellId) -> Option<&Answer> {
        self.answers.iter().find(|a| a.cell == *cell)
    }

    /// Answered cells with lost effects, until the front has named them to the user.
    pub fn losses(&self) -> impl ExactSizeIterator<Item = &Loss> {
        self.losses.iter()
    }

    /// The fate of a request. `first` is the tenure under which the front handed the request out for the first time.
    pub fn fate(&self, cell: &CellId, first: Tenure) -> Fate<'_> {
        match self.answer(cell) {
            Some(answer) => Fate::Answered(answer),
            None if first < self.tenure() => Fate::LostInTheMiddle,
            None => Fate::Run,
        }
    }

    /// The source of the namespace for an executor that takes office.
    pub fn restore(&self) -> Restore<'_> {
        let counts = |record: RecordNumber| record > self.fresh.records;
        Restore {
            settled: self.settled.as_ref().filter(|s| counts(s.upto)),
            records: self
                .tail
                .iter()
                .map(|t| &t.record)
                .filter(|r| counts(r.number))
                .collect(),
        }
    }

    /// The state as the store brings it back after the loss of all members: without members, and with the settled
    /// records alone. Written as [`crate::store::STATE_FILE`] beside the settled log.
    #[must_use]
    pub fn at_rest(&self) -> Self {
        let office = match self.office {
            Office::Asleep { last } => Office::Asleep { last },
            _ => Office::Vacant { last: self.tenure() },
        };
        Self {
            members: BTreeMap::new(),
            office,
            tail: VecDeque::new(),
            ..self.clone()
        }
    }

    /// The first state of a new group, made of a state from the store. The old group has lost its majority, or was left
    /// behind. `generation` is a later one than that of any earlier group, `highest` the highest incarnation seen by
    /// anybody.
    #[must_use]
    pub fn reopened(self, generation: Generation, highest: Incarnation) -> Self {
        let last = generation.before_first_tenure();
        Self {
            applied: Index(0),
            generation,
            highest: self.highest.max(highest),
            skipped: BTreeSet::new(),
            office: Office::Vacant { last },
            ..self.at_rest()
        }
    }

    /// The first state of a kernel that is begun anew in this generation: its next tenure is the one after `last`.
    #[must_use]
    pub fn begun_after(generation: Generation, last: Tenure) -> Self {
        Self {
            generation,
            office: Office::Vacant { last },
            ..Self::new()
        }
    }

    /// The first state of a kernel that was begun anew, and may have had groups of earlier generations.
    #[must_use]
    pub fn begun_again(generation: Generation) -> Self {
        Self::begun_after(generation, generation.before_first_tenure())
    }
}
