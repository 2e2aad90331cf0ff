//! The reasons to refuse an entry.

use crate::id::{CellNumber, RecordNumber, Sequence};
use hop_words::id::{Incarnation, Tenure};

/// The state machine refused an entry. The entry stays in the log without effect, on every member alike.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("tenure {named} is not the current one, {current}")]
    OtherTenure { named: Tenure, current: Tenure },
    #[error("tenure {current} has no executor any more")]
    Vacant { current: Tenure },
    #[error("act {named} of the tenure came before act {next}")]
    OutOfOrder { named: Sequence, next: Sequence },
    #[error("tenure {named} can't follow tenure {current}")]
    NotNextTenure { named: Tenure, current: Tenure },
    #[error("replica {0} is no member")]
    NoMember(Incarnation),
    #[error("incarnation {0} was used before")]
    UsedIncarnation(Incarnation),
    #[error("record {named} is not the next one, {next}")]
    NotNextRecord { named: RecordNumber, next: RecordNumber },
    #[error("{0} bytes of records wait to be settled")]
    TailFull(usize),
    #[error("record {upto} can't be settled when {records} records are committed")]
    SettledAhead {
        upto: RecordNumber,
        records: RecordNumber,
    },
    #[error("{0} answered cells are not durable yet")]
    NotDurable(usize),
    #[error("{0} records are not settled yet")]
    NotSettled(usize),
    #[error("the front can't have heard of cell {cells} or of tenure {losses} yet")]
    HeardAhead { cells: CellNumber, losses: Tenure },
    #[error("the generation has no tenure left")]
    GenerationSpent,
}
