//! The entries of the log.

use crate::id::{CellNumber, RecordNumber, Sequence};
use crate::record::Record;
use bytes::Bytes;
use hop_words::id::{CellId, Incarnation, JobId, NodeName, Tenure};
use hop_words::lease::Outcome;
use serde::{Deserialize, Serialize};

/// An entry of a kernel's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Entry {
    /// A replica becomes a member, or a member becomes hot or warm.
    Join {
        incarnation: Incarnation,
        seat: JobId,
        node: NodeName,
        /// The member keeps a namespace up to the last record. A warm member keeps the log alone.
        hot: bool,
    },
    /// A replica is no member any more. Its incarnation never comes back.
    Left { incarnation: Incarnation },
    /// The executor was lost, or its ipykernel: this tenure begins from the durable records.
    Tenure { tenure: Tenure, executor: Incarnation },
    /// The tenure's executor does something.
    Act {
        tenure: Tenure,
        /// The act's place among the tenure's acts. Each place is evaluated once, in order.
        sequence: Sequence,
        act: Act,
    },
    /// The shared store has the records up to one. Said by the tenure in whose folder they are.
    Settled { settled: Settled },
    /// The front has the answers up to `cells`, and has named the losses up to the tenure `losses`.
    Heard { cells: CellNumber, losses: Tenure },
}

impl Entry {
    /// The record in the entry.
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::Act {
                act: Act::Record { record, .. },
                ..
            } => Some(record),
            Self::Act {
                act: Act::Ended { record, .. },
                ..
            } => record.as_ref(),
            _ => None,
        }
    }
}

/// A deed of the executor in office.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Act {
    /// A cell ran to its end.
    Ended {
        cell: CellId,
        outcome: Outcome,
        /// The client's `execute_reply`.
        #[serde(skip)]
        reply: Bytes,
        /// The count of the cell's outputs, where the executor counts them; 0 otherwise. Nobody relies on the
        /// count: a cell's `idle` proves to a front that no output is missing.
        last_output: u64,
        /// The effects of the cell and of all before it. `None`: they follow in an [`Act::Record`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<Record>,
    },
    /// A record taken later than at its cell's end, or by an audit.
    Record {
        record: Record,
        /// The last cell completed by the record: the effects of this cell and of all cells before are in the records
        /// up to this record. `None`: no cell waited for the record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        through: Option<CellId>,
    },
    /// A cell was lost in its middle with an older tenure, and is answered by an error.
    Lost {
        cell: CellId,
        /// A sentence for the user.
        why: String,
    },
    /// The user restarted the kernel: the namespace is empty.
    Fresh,
    /// The executor hands over between two cells: the next tenure begins, and nothing is lost.
    Moved { to: Incarnation },
    /// Everything is settled, and the kernel's processes end. The next tenure wakes it.
    Hibernated,
}

/// A state in the shared store: the log in a folder, up to a length proven by its MAC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settled {
    /// The tenure of the folder.
    pub tenure: Tenure,
    /// The tenure's folders are numbered from 0; compaction begins the next one.
    #[serde(default)]
    pub part: u32,
    /// The last record in it.
    pub upto: RecordNumber,
    /// Valid bytes of the folder's `log`.
    pub length: u64,
    /// The last record's MAC, in hexadecimal.
    pub mac: String,
}

/// The beginning of the name in an [`Entry::presence`].
const PRESENCE: &str = "presence-";

impl Settled {
    /// The order of settling: within a folder the log only grows.
    pub(crate) fn order(&self) -> (Tenure, u32, RecordNumber) {
        (self.tenure, self.part, self.upto)
    }
}

impl Entry {
    /// A proof of the executor's presence: an act at place 0, which no tenure evaluates. The entry changes nothing.
    /// Once it is applied without a refusal, its proposer knows that it was still in office after the proposal.
    /// Proofs of a tenure have different numbers: an entry that was proposed before may be applied late, or twice.
    pub fn presence(tenure: Tenure, number: u64) -> Self {
        let (cell, why) = (format!("{PRESENCE}{number}").as_str().into(), String::new());
        Self::Act {
            tenure,
            sequence: Sequence(0),
            act: Act::Lost { cell, why },
        }
    }

    /// The tenure and number of an [`Entry::presence`].
    pub fn as_presence(&self) -> Option<(Tenure, u64)> {
        match self {
            Self::Act {
                tenure,
                sequence: Sequence(0),
                act: Act::Lost { cell, .. },
            } => {
                let number = cell.as_str().strip_prefix(PRESENCE)?;
                Some((*tenure, number.parse().ok()?))
            }
            _ => None,
        }
    }

    /// The tenure in office at the making of the entry. `None` for `Join`, `Left`, `Tenure` and `Heard`.
    pub fn tenure(&self) -> Option<Tenure> {
        match self {
            Self::Act { tenure, .. } => Some(*tenure),
            Self::Settled { settled } => Some(settled.tenure),
            Self::Join { .. } | Self::Left { .. } | Self::Tenure { .. } | Self::Heard { .. } => None,
        }
    }
}
