//! The front's own list of answered cells before their settling.
//!
//! After the loss of a majority, or of an executor without standbys, a kernel is opened anew from the store. The stored
//! state can't name the cells answered after its writing; the front can. The same cell may be lost by the log's word
//! and once more by the store's, so the front also remembers the named cells.

use crate::id::CellNumber;
use crate::state::State;
use hop_words::id::CellId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Cells answered to the client and not known to be settled, and lost cells that the user was told of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    answered: BTreeMap<CellNumber, CellId>,
    named: BTreeSet<CellId>,
}

impl Ledger {
    /// The client has the reply of this cell.
    pub fn answered(&mut self, number: CellNumber, cell: CellId) {
        if !self.named.contains(&cell) {
            self.answered.insert(number, cell);
        }
    }

    /// The shared store has the effects of all cells up to `through`.
    pub fn settled(&mut self, through: CellNumber) {
        self.answered = self.answered.split_off(&through.next());
    }

    /// The kernel was opened anew with this state from the store. Returns the lost cells to name to the user: answered
    /// cells unknown to the state, and the losses of the state itself. A cell that still `waits` for its reply is left
    /// out: the reply reports the loss.
    pub fn reopened(&mut self, state: &State, waits: impl Fn(&CellId) -> bool) -> Vec<CellId> {
        let unknown = self.answered.split_off(&state.cells().next());
        let known = state.losses().flat_map(|l| l.cells.iter().cloned());
        self.lost(unknown.into_values().chain(known), waits)
    }

    /// Marks cells as lost. Returns the ones to name to the user, each once, without those that still `waits` for their
    /// reply.
    pub fn lost(
        &mut self,
        cells: impl IntoIterator<Item = CellId>,
        waits: impl Fn(&CellId) -> bool,
    ) -> Vec<CellId> {
        let cells: Vec<_> = cells.into_iter().collect();
        self.answered.retain(|_, cell| !cells.contains(cell));
        let new = |cell: &CellId| !waits(cell) && self.named.insert(cell.clone());
        cells.into_iter().filter(new).collect()
    }

    /// The cells that would be lost with the kernel now, the oldest first.
    pub fn cells(&self) -> impl ExactSizeIterator<Item = &CellId> {
        self.answered.values()
    }

    /// The same, with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (CellNumber, &CellId)> {
        self.answered.iter().map(|(number, cell)| (*number, cell))
    }

    /// The lost cells that the user was told of.
    pub fn named(&self) -> impl Iterator<Item = &CellId> {
        self.named.iter()
    }

    /// Cells that would be lost with the kernel now.
    pub fn len(&self) -> usize {
        self.answered.len()
    }

    /// Whether every answered cell is settled.
    pub fn is_empty(&self) -> bool {
        self.answered.is_empty()
    }
}
