//! Answered cells that are not saved, and cells lost with their effects: the user reads their numbers. A killed front
//! leaves its account to the next front, since no log and no store names what was lost behind the last save.

use super::unseen::{Account, Change};
use super::{Front, Notice, Wire, is_open};
use hop_log::{CellNumber, Ledger, State};
use hop_protocol::meanwhile::Unsaved;
use hop_words::id::CellId;
use hop_words::time::Timestamp as Time;
use std::collections::{HashMap, VecDeque};

/// Number of remembered execution counts, for the names of lost cells.
const COUNTS: usize = 1000;

impl Front {
    /// Writes a change of the account down for the next front.
    fn notes(&mut self, change: Account) {
        self.unseen.note(Some(Change::Account(change)));
    }

    /// A cell is answered, and its effects would be lost with the kernel.
    pub(super) fn is_at_stake(&mut self, number: CellNumber, cell: CellId, count: Option<i64>) {
        self.notes(Account::AtStake {
            number,
            cell: cell.clone(),
            count,
        });
        self.counts_at_stake(number, cell, count);
    }

    fn counts_at_stake(&mut self, number: CellNumber, cell: CellId, count: Option<i64>) {
        if let Some(count) = count {
            self.counts.push_back((cell.clone(), count));
            if self.counts.len() > COUNTS {
                self.counts.pop_front();
            }
        }
        self.ledger.answered(number, cell);
    }

    /// The store has the effects of all cells up to this one.
    pub(super) fn is_saved(&mut self, through: CellNumber) {
        self.notes(Account::Saved(through));
        self.ledger.settled(through);
    }

    /// The kernel goes on from a state without some answered cells: the user reads their names.
    pub fn reopened(&mut self, state: &State, at: Time, wire: &mut impl Wire) {
        let open = &self.open;
        let before = self.ledger.clone();
        let lost = self.ledger.reopened(state, |cell| is_open(open, cell));
        self.name_lost(&before, &lost, at, wire);
    }

    /// The log says that these cells are lost.
    pub(super) fn lost(&mut self, cells: Vec<CellId>, at: Time, wire: &mut impl Wire) {
        let open = &self.open;
        let before = self.ledger.clone();
        let lost = self.ledger.lost(cells, |cell| is_open(open, cell));
        self.name_lost(&before, &lost, at, wire);
    }

    /// A cell as its user knows it.
    fn name_of(&self, cell: &CellId) -> String {
        let count = self.counts.iter().find(|(c, _)| c == cell);
        count.map_or_else(|| "one without a number".to_owned(), |(_, n)| format!("[{n}]"))
    }

    fn unsaved(&self, cell: &CellId, is_lost: bool) -> Unsaved {
        let name = self.name_of(cell);
        let cell = cell.clone();
        Unsaved { cell, name, is_lost }
    }

    /// The answered cells that would be lost with the kernel now.
    pub(super) fn at_stake(&self) -> Vec<Unsaved> {
        let cells = self.ledger.cells();
        cells.map(|cell| self.unsaved(cell, false)).collect()
    }

    /// Names the lost cells to the user, except for those whose reply is still to come and tells of the loss.
    fn name_lost(&mut self, before: &Ledger, lost: &[CellId], at: Time, wire: &mut impl Wire) {
        let left = |cell: &&CellId| !lost.contains(cell) && !self.ledger.cells().any(|c| c == *cell);
        let by_reply: Vec<CellId> = before.cells().filter(left).cloned().collect();
        if !by_reply.is_empty() {
            self.notes(Account::ToldByReply(by_reply));
        }
        if lost.is_empty() {
            return;
        }
        let lost: Vec<Unsaved> = lost.iter().map(|cell| self.unsaved(cell, true)).collect();
        self.notes(Account::Lost(lost.clone()));
        match &mut self.meanwhile {
            Some(meanwhile) => meanwhile.unsaved.extend(lost),
            None => self.notices.push(Notice::Lost(lost)),
        }
        self.tell_at_open_cell(at, wire);
    }

    /// The user has read of these cells.
    pub(super) fn has_read(&mut self, notice: &Notice) {
        if let Notice::Lost(lost) = notice {
            let cells = lost.iter().map(|unsaved| unsaved.cell.clone());
            self.notes(Account::Read(cells.collect()));
        }
    }

    /// Goes on with an earlier front's account.
    pub(super) fn takes_account(&mut self, change: Account) {
        match change {
            Account::AtStake { number, cell, count } => self.counts_at_stake(number, cell, count),
            Account::Saved(through) => self.ledger.settled(through),
            Account::ToldByReply(cells) => drop(self.ledger.lost(cells, |_| true)),
            Account::Lost(lost) => {
                self.ledger.lost(lost.iter().map(|l| l.cell.clone()), |_| false);
                self.notices.push(Notice::Lost(lost));
            }
            Account::Read(cells) => {
                self.ledger.lost(cells.iter().cloned(), |_| false);
                let unread = |n: &Notice| !matches!(n, Notice::Lost(lost) if lost.iter().all(|l| cells.contains(&l.cell)));
                self.notices.retain(unread);
            }
        }
    }
}

/// A front's account, for the next front.
pub(super) fn account(ledger: &Ledger, counts: &VecDeque<(CellId, i64)>, notices: &[Notice]) -> Vec<Change> {
    let counts: HashMap<&CellId, i64> = counts.iter().map(|(cell, count)| (cell, *count)).collect();
    let at_stake = ledger.numbered().map(|(number, cell)| Account::AtStake {
        number,
        cell: cell.clone(),
        count: counts.get(cell).copied(),
    });
    let unread = notices.iter().filter_map(|notice| match notice {
        Notice::Lost(lost) => Some(Account::Lost(lost.clone())),
        _ => None,
    });
    let named: Vec<CellId> = ledger.named().cloned().collect();
    let named = (!named.is_empty()).then_some(Account::Read(named));
    // The cells that nobody has read of are among the named ones.
    let changes = at_stake.chain(named).chain(unread);
    changes.map(Change::Account).collect()
}
