//! Answered cells, until their clients have the reply and the word `idle`: nothing more comes of the cell.
//!
//! A client waits for both, in any order. Reply or `idle` may still be on its way when the replica or the front is
//! lost. The replica sends again the messages that a lost front had not delivered; the front says what a lost replica
//! leaves unsaid. The front's own debts are recorded for the kernel's next front.

use super::marks::{Idle, Mark};
use super::requests::Open;
use super::unseen::{Answer, Change, state_in};
use super::{Front, Waiting, Wire};
use bytes::Bytes;
use hop_protocol::jupyter::Envelope;
use hop_words::id::{CellId, Tenure};
use hop_words::time::Timestamp as Time;
use hop_zmtp::Message;
use serde_json::json;

/// Most answered cells to keep: a kernel that breaks the protocol may never say `idle`.
const MOST: usize = 100;

/// Bytes of a status message's content at most.
const STATUS: usize = 64;

/// A cell with a reply.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) open: Open,
    /// The reply with its number. `None` means that the reply has left.
    reply: Option<(Mark, Message)>,
    /// The replica is lost, and so can't send the front's undelivered messages again.
    is_ours: bool,
}

impl Answered {
    /// Bytes of its record, without the hex.
    pub(super) fn size(&self) -> usize {
        let reply = self.reply.as_ref().map_or(0, |(_, reply)| reply.size());
        reply + self.open.message.as_ref().map_or(0, Message::size)
    }

    /// A message has left. Returns whether the message is a part of the answer.
    fn leaves(&mut self, mark: Mark) -> bool {
        let reply = self.reply.take_if(|(m, _)| *m == mark).is_some();
        let idle = self.open.idle == Idle::OnItsWay(mark);
        if idle {
            self.open.idle = Idle::Left;
        }
        reply || idle
    }

    fn is_over(&self) -> bool {
        self.reply.is_none() && self.open.idle == Idle::Left
    }

    fn is_unheard(&self, cell: &CellId) -> bool {
        self.open.id == *cell && self.reply.is_some()
    }

    /// A reply that the replica would send again is as open as before.
    pub(super) fn record(&self, tenure: Tenure) -> Option<Change> {
        if self.reply.is_some() && !self.is_ours {
            return self.open.record(tenure);
        }
        let frames = |(_, reply): &(Mark, Message)| reply.0.iter().map(hex::encode).collect();
        Some(Change::Answered(Answer {
            cell: self.open.id.clone(),
            channel: self.open.channel,
            identity: hex::encode(&self.open.identity),
            header: hex::encode(&self.open.header),
            reply: self.reply.as_ref().map(frames),
            owes_idle: self.is_ours && self.open.idle != Idle::Left,
            is_idle: self.open.idle == Idle::Left,
        }))
    }
}

impl Front {
    /// The cell's id stands for another request from now on.
    pub(super) fn is_asked_again(&mut self, cell: &CellId) {
        for old in self.answered.extract_if(.., |a| a.open.id == *cell) {
            self.unseen.note(Some(Change::Closed(old.open.id)));
        }
    }

    pub(super) fn forgets_answer(&mut self, cell: &CellId) {
        self.answered.retain(|a| a.open.id != *cell);
    }

    /// A message of the replica says that nothing more comes of a request. The message has this number.
    pub(super) fn hears_idle(&mut self, message: &Message, mark: Mark) {
        let waits = |o: &Open| o.idle == Idle::Due;
        if !self.open.iter().any(waits) && !self.answered.iter().any(|a| waits(&a.open)) {
            return;
        }
        let Ok(envelope) = Envelope::parse(message) else {
            return;
        };
        let says = |content: &Bytes| content.len() < STATUS && state_in(content).is_some_and(|s| s == "idle");
        if !says(&envelope.content) || envelope.header().is_ok_and(|h| h.msg_type != "status") {
            return;
        }
        let Some(parent) = envelope.parent() else {
            return;
        };
        let answered = self.answered.iter_mut().map(|a| &mut a.open);
        let mut all = answered.chain(&mut self.open);
        if let Some(open) = all.find(|o| o.id.as_str() == parent.msg_id && waits(o)) {
            open.idle = Idle::OnItsWay(mark);
        }
    }

    /// A request's reply is on its way, by the replica, or by this front if `is_ours`.
    pub(super) fn answers(&mut self, open: Open, (mark, reply): (Mark, &Message), is_ours: bool) {
        let answered = Answered {
            open,
            reply: Some((mark, reply.clone())),
            is_ours,
        };
        if is_ours {
            self.unseen.note(answered.record(self.tenure));
        }
        self.answered.push(answered);
        if self.answered.len() > MOST
            && let Some(oldest) = self.answered.iter().position(|a| a.reply.is_none())
        {
            let oldest = self.answered.remove(oldest);
            self.unseen.note(Some(Change::Closed(oldest.open.id)));
        }
    }

    /// These messages to clients are dealt with. Returns the replica's numbers of its own messages among them, to be
    /// recorded before the replica forgets them.
    pub fn have_left(&mut self, marks: &[Mark]) -> Vec<u64> {
        let tenure = self.tenure;
        for mark in marks {
            for open in self.open.iter_mut().filter(|o| o.idle == Idle::OnItsWay(*mark)) {
                open.idle = Idle::Left;
                self.unseen.note(open.record(tenure));
            }
            for answered in &mut self.answered {
                if answered.leaves(*mark) && !answered.is_over() {
                    self.unseen.note(answered.record(tenure));
                }
            }
        }
        for over in self.answered.extract_if(.., |a| a.is_over()) {
            self.unseen.note(Some(Change::Closed(over.open.id)));
        }
        marks.iter().flat_map(|mark| self.marks.take(*mark)).collect()
    }

    /// A message is given up.
    pub(super) fn gives_up(&mut self, mark: Option<Mark>, wire: &mut impl Wire) {
        let marks: Vec<Mark> = mark.into_iter().collect();
        for seq in self.have_left(&marks) {
            wire.done(seq);
        }
    }

    /// The replica is lost: it says nothing more of its answered cells, and sends nothing again.
    pub(super) fn owes_answers(&mut self, at: Time, wire: &mut impl Wire) {
        let due = |a: &Answered| a.open.idle == Idle::Due;
        let headers: Vec<(CellId, Bytes)> = self
            .answered
            .iter()
            .filter(|a| due(a))
            .map(|a| (a.open.id.clone(), a.open.header.clone()))
            .collect();
        for (cell, header) in headers {
            let mark = self.say_idle(&header, at, wire);
            let answered = self.answered.iter_mut().filter(|a| a.open.id == cell);
            answered.for_each(|a| a.open.idle = Idle::OnItsWay(mark));
        }
        for answered in self.answered.iter_mut().filter(|a| !a.is_ours) {
            answered.is_ours = true;
            self.unseen.note(answered.record(self.tenure));
        }
    }

    /// Says that nothing more comes of a request.
    pub(super) fn say_idle(&mut self, header: &Bytes, at: Time, wire: &mut impl Wire) -> Mark {
        let idle = self.author.status(header, "idle", &json!({}), at);
        let mark = self.marks.give(None);
        self.show(idle, Some(mark), at, wire);
        mark
    }

    /// An earlier front's answer, which its client may lack in part.
    pub(super) fn takes_answer(&mut self, answer: &Answer) {
        self.open.retain(|o| o.id != answer.cell);
        self.forgets_answer(&answer.cell);
        let frames = |frames: &Vec<String>| frames.iter().map(|f| hex::decode(f).map(Bytes::from)).collect();
        let reply = answer.reply.as_ref().map(frames).and_then(Result::ok);
        let reply = reply.map(|frames| (self.marks.give(None), Message(frames)));
        self.answered.extend(Open::answered(answer).map(|open| Answered {
            open,
            is_ours: answer.owes_idle || reply.is_some(),
            reply,
        }));
    }

    /// Keeps replies and `idle`s that the earlier front still owed, until their clients are here.
    pub(super) fn takes_on_debts(&mut self, at: Time) {
        for answered in &mut self.answered {
            let open = &mut answered.open;
            if answered.is_ours && open.idle == Idle::Due {
                let message = self.author.status(&open.header, "idle", &json!({}), at);
                let mark = self.marks.give(None);
                open.idle = Idle::OnItsWay(mark);
                self.kept += message.size();
                self.outputs.push_back(Waiting {
                    mark: Some(mark),
                    message,
                });
            }
            if let Some((mark, reply)) = &answered.reply {
                self.kept += reply.size();
                let to = (open.channel, open.identity.clone());
                self.replies.entry(to).or_default().push(Waiting {
                    mark: Some(*mark),
                    message: reply.clone(),
                });
            }
        }
    }

    /// The last of the numbered answers that the replica's log may forget: a reply on its way may be wanted once more.
    pub(super) fn may_be_forgotten(&self) -> hop_log::CellNumber {
        let lacks = |cell: &CellId| {
            self.open.iter().any(|o| o.id == *cell)
                || self.answered.iter().any(|a| !a.is_ours && a.is_unheard(cell))
        };
        let first = self.unheard.iter().find(|(_, cell)| lacks(cell));
        first.map_or(self.heard, |(number, _)| hop_log::CellNumber(number.0 - 1))
    }
}

#[cfg(test)]
mod tests;
