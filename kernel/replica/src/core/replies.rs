//! Replies to cells: the kernel's own, and errors in place of replies that never come.
//!
//! A kernel may end a cell without a reply. ipykernel does so after an interrupt outside of the cell's code, and after
//! an error of its own: it says `idle`, and goes on with the next request. Later cells with a need, moves and
//! hibernation wait for such a cell, hence the cell is answered here. Reply and `idle` come by different sockets and
//! threads of the kernel: a reply that other code's hold of the interpreter delays is not given up ([`super::signs`]).

use super::answers::error_content;
use super::cells::{Cell, StageName};
use super::{Core, wording};
use bytes::Bytes;
use hop_api::message::Outcome;
use hop_protocol::jupyter::{Channel, Envelope, with_key};
use hop_words::id::CellId;
use hop_words::time::Timestamp;
use hop_zmtp::Message;
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

#[derive(Deserialize)]
struct ReplyContent<'a> {
    #[serde(borrow, default)]
    status: Cow<'a, str>,
    execution_count: Option<i64>,
}

impl Core {
    /// A reply on shell. Only replies to cells are looked into, and only those of cells with a lease are changed.
    pub(super) fn reply(&mut self, identity: Bytes, message: Message) {
        let envelope = Envelope::parse(&message).ok();
        let is_cell = |e: &Envelope| e.header().is_ok_and(|h| h.msg_type == "execute_reply");
        let Some(mut envelope) = envelope.filter(is_cell) else {
            return self.send_front(Channel::Shell, identity, message);
        };
        let Some(parent) = envelope.parent() else {
            return self.send_front(Channel::Shell, identity, message);
        };
        let id: CellId = parent.msg_id.as_str().into();
        if self.cells.is_given_up(&id) {
            // The client has an answer.
            return;
        }
        let content = serde_json::from_slice::<ReplyContent<'_>>(&envelope.content).ok();
        let outcome = match content.as_ref().map(|c| &*c.status) {
            Some("ok") => Outcome::Ok,
            Some("aborted" | "abort") => Outcome::Aborted,
            _ => Outcome::Error,
        };
        let count = content.and_then(|c| c.execution_count);
        self.cells.count = count.unwrap_or(self.cells.count);
        if outcome != Outcome::Aborted {
            self.note_overtaken(&id);
        }
        let cell = self.cells.close(&id);
        // A request aborted by the kernel before the start has no effects: no capture would ever name the request.
        let ran = |c: &Cell| outcome != Outcome::Aborted || c.has_begun();
        let logged = cell
            .as_ref()
            .is_some_and(|c| c.stage() == StageName::Running && ran(c));
        let aborts = outcome == Outcome::Error && cell.as_ref().is_some_and(Cell::stops_on_error);
        let message = match cell.and_then(Cell::into_metadata) {
            Some(value) => {
                envelope.metadata = with_key(&envelope.metadata, "gresshopper", value);
                self.author.signer().sign(&mut envelope);
                envelope.message()
            }
            None => message,
        };
        if logged {
            self.answer_cell(&id, identity, message, outcome, count);
        } else {
            self.answer_unlogged(&id, identity, message);
        }
        self.after_reply(&id, outcome, aborts);
    }

    /// Goes on after a cell's end.
    fn after_reply(&mut self, id: &CellId, outcome: Outcome, aborts: bool) {
        self.lease_used(id, outcome);
        if aborts {
            self.abort_held();
        }
        self.advance();
        self.leave_after(id);
        self.let_go_if_held();
        self.leave_if_idle();
    }

    // Signs of a reply that never comes.

    /// The kernel published something for its clients.
    pub(super) fn published(&mut self, message: Message) {
        if self.cells.is_any_with_kernel() {
            self.note_published(&message);
        }
        self.publish(message);
    }

    fn note_published(&mut self, message: &Message) {
        let Ok(envelope) = Envelope::parse(message) else {
            return;
        };
        // Outputs come by the thousand.
        let names = |word: &[u8]| envelope.header.windows(word.len()).any(|w| w == word);
        if !names(b"\"status\"") && !names(b"\"error\"") {
            return;
        }
        let (Ok(header), Some(parent)) = (envelope.header(), envelope.parent()) else {
            return;
        };
        let (is_error, now) = (header.msg_type == "error", self.now);
        let content = || serde_json::from_slice::<Value>(&envelope.content).unwrap_or_default();
        let is_idle = header.msg_type == "status" && content()["execution_state"] == "idle";
        let id: CellId = parent.msg_id.as_str().into();
        if let Some(cell) = self.cells.with_kernel_mut().find(|c| c.id == id) {
            cell.signs.error_shown |= is_error;
            if is_idle {
                cell.signs.idle.get_or_insert(now);
            }
        }
    }

    /// The kernel replies to the cell: it is past all cells before.
    fn note_overtaken(&mut self, by: &CellId) {
        let now = self.now;
        let of_order = |c: &Cell| c.stage() == StageName::Running;
        if !self.cells.find(by).is_some_and(of_order) {
            return;
        }
        let before = self.cells.with_kernel_mut().take_while(|c| c.id != *by);
        for cell in before.filter(|c| of_order(c)) {
            cell.signs.overtaken.get_or_insert(now);
        }
    }

    /// When to look for a missing reply.
    pub(super) fn missing_due(&self) -> Option<Timestamp> {
        let (alone, in_order) = (self.cells.is_kernel_past_all(), self.cells.knows_magics);
        let sent = self.cells.iter().filter(|c| c.is_with_kernel());
        sent.filter_map(|c| c.signs.given_up_at(alone, in_order)).min()
    }

    /// Gives up replies that were missing twice.
    pub(super) fn missing_tick(&mut self) {
        let (alone, in_order, now) = (self.cells.is_kernel_past_all(), self.cells.knows_magics, self.now);
        let mut missing = Vec::new();
        for cell in self.cells.with_kernel_mut() {
            if cell
                .signs
                .given_up_at(alone, in_order)
                .is_some_and(|at| at <= now)
            {
                match cell.signs.missed {
                    Some(_) => missing.push(cell.id.clone()),
                    None => cell.signs.missed = Some(now),
                }
            }
        }
        for id in missing {
            self.answer_missing(&id);
        }
    }

    /// Answers a cell in place of the kernel, once.
    fn answer_missing(&mut self, id: &CellId) {
        let Some(cell) = self.cells.give_up(id) else {
            return;
        };
        let journal = self.durable.as_ref().map(|d| &d.journal);
        if journal.is_some_and(|journal| journal.is_ahead(id)) {
            // The cell ran well to its end, and the log has the answer.
            self.reply_ahead(id, None);
            return self.after_reply(id, Outcome::Ok, false);
        }
        let (header, count) = (cell.header.clone(), self.cells.count_of_lost(&cell));
        let (name, why) = match cell.signs.struck {
            true => ("KeyboardInterrupt", wording::INTERRUPTED_WITHOUT_REPLY),
            false => ("RequestFailed", wording::ENDED_WITHOUT_REPLY),
        };
        let content = match cell.signs.error_shown {
            true => error_content(name, why, count),
            false => self.failure_at(&header, name, why, count),
        };
        let ran = cell.stage() == StageName::Running && cell.has_begun() && !cell.signs.recorded;
        let (identity, aborts, said_idle) = (
            cell.identity.clone(),
            cell.stops_on_error(),
            cell.signs.idle.is_some(),
        );
        let ours = cell.into_metadata().unwrap_or_default();
        let message = self.write_reply_with(&header, &content, &ours);
        match ran {
            true => self.answer_cell(id, identity, message, Outcome::Error, Some(count)),
            // No capture would ever name the request.
            false => self.answer_unlogged(id, identity, message),
        }
        if !said_idle {
            self.idle(&header);
        }
        self.after_reply(id, Outcome::Error, aborts);
    }
}
