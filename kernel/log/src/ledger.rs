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
    /// cells unknown to the state, and the losses of the state itself.
    pub fn reopened(&mut self, state: &State) -> Vec<CellId> {
        let unknown = self.answered.split_off(&state.cells().next());
        let mut lost = self.lost(unknown.into_values());
        lost.extend(self.losses_of(state));
        lost
    }

    /// The losses of the state that the user was not told of yet.
    pub fn losses_of(&mut self, state: &State) -> Vec<CellId> {
        let cells: Vec<_> = state.losses().flat_map(|l| l.cells.iter().cloned()).collect();
        self.lost(cells)
    }

    /// Marks cells as lost. Returns the ones to name to the user, each once.
    pub fn lost(&mut self, cells: impl IntoIterator<Item = CellId>) -> Vec<CellId> {
        let new: Vec<_> = cells
            .into_iter()
            .filter(|cell| self.named.insert(cell.clone()))
            .collect();
        self.answered.retain(|_, cell| !new.contains(cell));
        new
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
