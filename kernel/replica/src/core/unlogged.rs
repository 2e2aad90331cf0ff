//! Answers to cells that never ran: they were aborted, refused, or interrupted in their wait. The log has none of them,
//! because nothing captured would ever make them durable. They leave behind the replies of earlier cells: some clients
//! read replies in the order of their requests.

use super::durable::{Durable, Grouped, Unlogged};
use super::journal::answered_by;
use super::{Core, Phase};
use bytes::Bytes;
use hop_protocol::jupyter::Channel;
use hop_words::id::CellId;
use hop_zmtp::Message;

impl Durable {
    /// Whether the cell's answer waits for the log, or for the cell's effects.
    pub(super) fn waits_for_log(&self, cell: &CellId) -> bool {
        self.journal.is_answering(cell) || self.held_replies.iter().any(|held| held.cell == *cell)
    }

    /// The last cell whose answer waits.
    fn last_waiting(&self) -> Option<&CellId> {
        let proposed = self.journal.proposed().filter_map(answered_by);
        let answering = proposed.filter(|cell| self.journal.is_answering(cell)).last();
        answering.or_else(|| self.held_replies.back().map(|held| &held.cell))
    }
}

impl Core {
    pub(super) fn answer_unlogged(&mut self, cell: &CellId, identity: Bytes, message: Message) {
        if let Some(durable) = &mut self.durable
            && let Some(behind) = durable.last_waiting().cloned()
        {
            return durable.unlogged.push_back(Unlogged {
                behind,
                cell: cell.clone(),
                identity,
                message,
            });
        }
        self.send_front(Channel::Shell, identity, message);
    }

    /// Sends the answers behind none any more. The next replica answers in place of an executor that was deposed, or
    /// that leaves a group without a majority.
    pub(super) fn send_unlogged(&mut self) {
        let is_over = matches!(self.phase, Phase::Over);
        let Some(durable) = &mut self.durable else {
            return;
        };
        let mut ready = Vec::new();
        while let Some(next) = durable.unlogged.pop_front() {
            if durable.waits_for_log(&next.behind) {
                durable.unlogged.push_front(next);
                break;
            }
            ready.push(next);
        }
        if is_over || durable.grouped == Grouped::GivenUp {
            return;
        }
        for Unlogged {
            identity, message, ..
        } in ready
        {
            self.send_front(Channel::Shell, identity, message);
        }
    }
}
