//! Cells of a kernel that keeps a log: their ends and captured effects go into the log, and their answers to the front.

use super::answers;
use super::cells::{Cell, StageName};
use super::durable::{CAPTURED_MAX, Durable, Grouped, HeldReply, Unsaved};
use super::journal::{Answering, Journal, answered_by, unpack};
use super::{Core, Output, wording};
use crate::agent::Parcel;
use bytes::Bytes;
use hop_api::message::{Outcome, Request as ToHopd};
use hop_log::{Act, CellNumber, Effect, End, Entry, Fate, Index, Record, Refusal};
use hop_protocol::jupyter::{Channel, Envelope, Header};
use hop_protocol::message::{Behind, Note};
use hop_words::id::{CellId, Tenure};
use hop_zmtp::Message;
use serde::Deserialize;
use serde_json::Value;
use std::collections::VecDeque;

/// The most bytes of a record in one entry with its cell's end, before the answer. A larger record follows in its own
/// entry.
const WITH_ITS_CELL: usize = 1 << 20;

/// The body of `state.cell` and `state.record`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Capture {
    /// The cell's request, in `state.cell`.
    msg_id: Option<CellId>,
    /// The cells completed by a later record, the oldest first.
    cells: Vec<Completed>,
    /// `whole`, `later` or `failed`, in `state.cell`.
    status: String,
    /// The record's number by the kernel's count.
    record: Option<u64>,
    /// The execution count of a cell whose reply will say no more than this and `ok`, in `state.cell`.
    plain: Option<i64>,
    unmovable: Vec<String>,
    /// Why nothing was captured, or not all beside a record of cells: a sentence for the user.
    why: String,
    /// The execution count of the first cell without a capture, after a failure.
    since: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct Completed {
    msg_id: CellId,
}

impl Capture {
    fn failure(&self) -> Unsaved {
        Unsaved {
            why: self.why.clone(),
            since: self.since,
        }
    }
}

impl Durable {
    /// Whether a capture goes into the log with the end of its cell: in a group it is then as safe as the answer, at no
    /// further commit.
    fn goes_with_its_cell(&self, parcel: &Parcel) -> bool {
        let size: usize = parcel.attachments.iter().map(Bytes::len).sum();
        self.is_grouped() && self.broken.is_none() && size <= WITH_ITS_CELL
    }

    /// The record of a capture, and the order to write it to the store.
    fn stored(&self, parcel: Parcel) -> Option<(Record, Output)> {
        let mut attachments = parcel.attachments.into_iter();
        let (text, body) = (attachments.next()?, attachments.next()?);
        let record = self.journal.record(self.payload(&text, &body));
        let append = Output::Append {
            number: record.number,
            text,
            body,
            behind: self.journal.state().restore().settled.cloned(),
        };
        Some((record, append))
    }
}

impl Core {
    /// A cell begins to run in the kernel.
    pub(super) fn begins(&mut self, said: Value) {
        if let Ok(cell) = serde_json::from_value::<Completed>(said) {
            self.cells.begun(&cell.msg_id);
        }
    }

    pub(super) fn act(&mut self, act: Act) {
        if let Some(durable) = &mut self.durable {
            let entry = durable.journal.act(act);
            self.out.push(Output::Propose(entry));
        }
    }

    pub(super) fn propose(&mut self, entry: Entry) {
        if let Some(durable) = &mut self.durable {
            let entry = durable.journal.propose(entry);
            self.out.push(Output::Propose(entry));
        }
    }

    /// A cell ran to its end. The answer leaves once the log has it; without a log, at once.
    pub(super) fn answer_cell(
        &mut self,
        cell: &CellId,
        identity: Bytes,
        message: Message,
        outcome: Outcome,
        count: Option<i64>,
    ) {
        let Some(durable) = &self.durable else {
            return self.send_front(Channel::Shell, identity, message);
        };
        let is_ahead = durable.journal.is_ahead(cell);
        let answer = Answering {
            identity,
            message,
            count,
        };
        if is_ahead {
            return self.reply_ahead(cell, Some(answer));
        }
        let end = (outcome, self.logged(&answer.message));
        self.propose_end(cell, |journal, record| journal.ended(cell, end, answer, record));
    }

    /// A cell ran well to its end, and the reply is known before the kernel has made it: the group writes the reply
    /// down in the meantime. Cells with a lease wait for their reply, which tells of the lease.
    fn end_ahead(&mut self, cell: &CellId, count: i64) {
        let may = |c: &&Cell| c.stage() == StageName::Running && self.lease.running_cell() != Some(cell);
        let Some((identity, header)) = self
            .cells
            .find(cell)
            .filter(may)
            .map(|c| (c.identity.clone(), c.header.clone()))
        else {
            return;
        };
        let grouped = self.group().is_some();
        if !grouped || self.durable.as_ref().is_some_and(|d| d.journal.is_ahead(cell)) {
            return;
        }
        let message = self.write_ahead(&header, count);
        let written = Answering {
            identity,
            message,
            count: Some(count),
        };
        self.propose_end(cell, |journal, record| journal.ended_ahead(cell, written, record));
    }

    /// The reply to a cell whose answer was written ahead leaves once the log has that; `None` is the written one
    /// itself.
    pub(super) fn reply_ahead(&mut self, cell: &CellId, reply: Option<Answering>) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        if let Some((number, answer)) = durable.journal.replied(cell, reply) {
            self.answered(number, cell.clone(), answer);
        }
    }

    /// Proposes the end of a cell. The log gets a capture from before the reply with this end, or else right behind it.
    fn propose_end(&mut self, cell: &CellId, end: impl FnOnce(&mut Journal, Option<Record>) -> Entry) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let at = durable.captured.iter().position(|(c, _)| c == cell);
        let captured = at.and_then(|at| durable.captured.remove(at));
        let (with, behind) = match captured {
            Some((_, parcel)) if durable.goes_with_its_cell(&parcel) => {
                durable.next_is_whole = false;
                (durable.stored(parcel), None)
            }
            other => (None, other),
        };
        let (record, append) = with.unzip();
        let entry = end(&mut durable.journal, record);
        self.out.push(Output::Propose(entry));
        self.out.extend(append);
        if let Some((cell, parcel)) = behind {
            self.keep(parcel, Some(cell));
        }
    }

    fn keep(&mut self, parcel: Parcel, through: Option<CellId>) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        if durable.broken.is_some() {
            return self.try_store_in_use();
        }
        if let Some((record, append)) = durable.stored(parcel) {
            let whole = std::mem::take(&mut durable.next_is_whole);
            let last = durable.journal.last_ended().filter(|_| whole).cloned();
            let through = through.or(last);
            let entry = durable.journal.act(Act::Record { record, through });
            self.out.extend([Output::Propose(entry), append]);
        }
    }

    /// The agent captured something: `state.cell` at a cell's end, `state.record` later.
    pub(super) fn captured(&mut self, parcel: Parcel) {
        let Ok(mut capture) = Capture::deserialize(&parcel.wire.body) else {
            return;
        };
        self.note_bound(std::mem::take(&mut capture.unmovable));
        match &*capture.status {
            "failed" => self.capture_failed(capture.failure()),
            "later" => {}
            _ => self.captured_again((!capture.why.is_empty()).then(|| capture.failure())),
        }
        let plain = capture.msg_id.clone().zip(capture.plain);
        self.captured_record(parcel, capture);
        if let Some((cell, count)) = plain {
            self.end_ahead(&cell, count);
        }
    }

    /// Captures fail from now on, by the agent's word between two cells.
    pub(super) fn captures_fail(&mut self, said: Value) {
        if let Ok(capture) = serde_json::from_value::<Capture>(said) {
            self.capture_failed(capture.failure());
        }
    }

    fn captured_record(&mut self, parcel: Parcel, capture: Capture) {
        if parcel.attachments.is_empty() {
            return;
        }
        // The log has no cell of a subshell: the cells before it count all the same.
        let runs = |cell: &CellId| {
            self.cells
                .find(cell)
                .is_some_and(|c| c.stage() == StageName::Running)
        };
        let durable = self.durable.as_ref();
        let awaits = |cell: &CellId| durable.is_some_and(|d| d.journal.awaits_record(cell));
        let completed = capture.cells.into_iter().map(|c| c.msg_id);
        let completed: Vec<CellId> = completed.chain(capture.msg_id).collect();
        let last = completed.iter().rfind(|cell| runs(cell) || awaits(cell)).cloned();
        let in_log = durable.and_then(|d| d.journal.last_of(&completed)).cloned();
        // A cell whose missing reply was given up ended, by the log's count, behind later ones.
        let last = last.filter(|cell| runs(cell)).or(in_log);
        // A cell whose end is proposed waits for its reply alone.
        let ahead = |cell: &CellId| durable.is_some_and(|d| d.journal.is_ahead(cell));
        let waits = last.clone().filter(|cell| runs(cell) && !ahead(cell));
        for cell in self.cells.with_kernel_mut() {
            cell.signs.recorded |= completed.contains(&cell.id) && last.as_ref() != Some(&cell.id);
        }
        let (Some(durable), Some(cell)) = (&mut self.durable, waits) else {
            return self.keep(parcel, last);
        };
        // Its cell is answered in a moment.
        durable.captured.push_back((cell, parcel));
        if durable.captured.len() > CAPTURED_MAX {
            durable.captured.pop_front();
        }
    }

    pub(super) fn note_bound(&mut self, holds: Vec<String>) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        if durable.bound != holds {
            durable.bound = holds;
            let bound = durable.bound();
            let (kernel, tenure) = self.office();
            self.tell_hopd(ToHopd::KernelBound {
                kernel,
                tenure,
                bound,
            });
        }
    }

    /// An entry of ours is in the log.
    pub(super) fn applied(&mut self, index: Index, entry: &Entry) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        durable.commits_since = None;
        let applied = durable.journal.apply(index, entry);
        if let Some(presence) = entry.as_presence() {
            return self.presence_applied(presence, applied.is_ok());
        }
        let (effect, answer) = match applied {
            Ok(applied) => applied,
            // The entry overtook another entry, and is proposed again behind it.
            Err(Refusal::OutOfOrder { .. }) => return,
            Err(refusal) => return self.entry_refused(entry, &refusal),
        };
        match effect {
            Effect::Answered { number, .. } => {
                if let (Some(answer), Some(cell)) = (answer, answered_by(entry)) {
                    self.answered(number, cell.clone(), answer);
                }
            }
            Effect::Settled { .. } => {
                self.write_state();
                self.open_store_if_ready();
            }
            Effect::Opened { executor, .. } if executor != self.identity.incarnation => self.succeeded(),
            Effect::Opened { lost, .. } => {
                // The tenure before may have had no time to tell its own.
                durable.lost.extend(lost);
                durable.opening = true;
                let state = durable.journal.state().clone();
                self.out.push(Output::OpenTenure { state });
                self.lose_held_replies();
            }
            Effect::Left { executor: true } => self.deposed(),
            Effect::Asleep => self.write_state(),
            Effect::Joined => self.standby_changed(entry),
            Effect::Recorded => self.send_durable(),
            Effect::Again | Effect::Left { .. } | Effect::Fresh | Effect::Heard => {}
        }
        self.go_if_settled();
    }

    /// The log refuses an entry of ours.
    fn entry_refused(&mut self, entry: &Entry, why: &Refusal) {
        let me = self.identity.incarnation;
        let Some(durable) = &mut self.durable else {
            return;
        };
        let tenure = durable.journal.tenure();
        let executes = durable.journal.state().executor() == Some(me);
        match entry {
            // The process died while the entry was on its way, and the next tenure came first.
            Entry::Act {
                tenure: then,
                act: act @ Act::Lost { .. },
                ..
            } if executes && *then < tenure => self.act(act.clone()),
            // The same, and the new tenure's state has no effect of the cell.
            Entry::Act {
                tenure: then,
                act: Act::Ended { cell, .. },
                ..
            } if executes && *then < tenure => {
                if let Some(answer) = durable.journal.take_answer(cell) {
                    self.lose_answered(cell.clone(), answer);
                }
            }
            Entry::Act {
                act: Act::Moved { .. } | Act::Hibernated,
                ..
            } if executes => self.leave_or_stay(why),
            // The entry is of a deposed executor: its answers must not leave.
            _ => durable.journal.forget_answer(entry),
        }
    }

    /// The answer of a cell didn't get into the log before the process's death did.
    fn lose_answered(&mut self, cell: CellId, answer: Answering) {
        let asked = Envelope::parse(&answer.message).map(|reply| reply.parent);
        let why = wording::cell_lost("the kernel's process was lost right after the cell had ended");
        self.lose_request(cell, answer.identity, asked.unwrap_or_default(), why);
    }

    /// A lost cell's answer goes to its client once the log has the loss.
    pub(super) fn answer_lost(&mut self, cell: &CellId, identity: Bytes, message: Message, why: String) {
        let Some(durable) = &mut self.durable else {
            return self.send_front(Channel::Shell, identity, message);
        };
        let answer = Answering {
            identity,
            message,
            count: None,
        };
        let entry = durable.journal.lost(cell, why, answer);
        self.out.push(Output::Propose(entry));
    }

    /// Replies that waited for the store, of cells whose effects the new tenure lacks, must not leave.
    fn lose_held_replies(&mut self) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let lost = &mut durable.lost;
        let (mut gone, mut kept) = (Vec::new(), VecDeque::new());
        for held in durable.held_replies.drain(..) {
            match lost.iter().position(|l| *l == held.cell) {
                Some(at) => gone.push((lost.remove(at), held.answer)),
                None => kept.push_back(held),
            }
        }
        durable.held_replies = kept;
        for (cell, answer) in gone {
            self.lose_answered(cell, answer);
        }
    }

    /// The log has a cell's answer.
    fn answered(&mut self, number: CellNumber, cell: CellId, answer: Answering) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        if durable.grouped == Grouped::GivenUp {
            return;
        }
        let has_effects = durable.journal.state().is_unsettled(&cell);
        let waits = has_effects || !durable.held_replies.is_empty();
        if durable.before_reply && durable.captures() && waits {
            durable.held_replies.push_back(HeldReply {
                number,
                cell,
                answer,
                has_effects,
            });
            self.sync();
            // The record of a cell whose end was written ahead may be in the log before its reply is made.
            self.send_durable();
            return;
        }
        self.send_answer(number, cell, answer);
    }

    pub(super) fn send_answer(&mut self, number: CellNumber, cell: CellId, answer: Answering) {
        let count = answer.count;
        let log = self.durable.as_ref().map(|d| d.journal.state());
        let logged = log.and_then(|log| log.answer(&cell));
        let lost = logged.is_some_and(|logged| matches!(logged.end, End::Lost { .. }));
        self.note(Note::Answered {
            cell,
            number: number.0,
            count,
            lost,
        });
        self.send_front(Channel::Shell, answer.identity, answer.message);
    }

    /// The front has the answers up to a number.
    pub(super) fn heard(&mut self, cells: u64, losses: Tenure) {
        let Some(durable) = &self.durable else {
            return;
        };
        let cells = CellNumber(cells.min(durable.journal.state().cells().0));
        let losses = losses.min(durable.tenure());
        self.propose(Entry::Heard { cells, losses });
    }

    // Requests of earlier tenures.

    pub(super) fn handed_before(&mut self, cell: CellId, how: (Tenure, bool), behind: Option<Behind>) {
        if let Some(durable) = &mut self.durable {
            if behind.is_some() {
                durable.behind.insert(cell.clone());
            }
            if behind != Some(Behind::New) {
                durable.journal.was_handed(cell, how);
            }
        }
    }

    /// Answers a request if the log has the answer, or if the cell may have begun with an earlier executor. Returns
    /// whether it did.
    pub(super) fn was_answered(&mut self, identity: &Bytes, envelope: &Envelope, header: &Header) -> bool {
        let cell: CellId = header.msg_id.as_str().into();
        let Some(durable) = &mut self.durable else {
            return false;
        };
        let behind = durable.behind.remove(&cell);
        // An error stops the cells in wait behind the failed cell, and no later ones.
        durable.stops &= behind;
        // Clients may use an id again: a later cell with an earlier cell's id is a new cell.
        let handed = durable.journal.first_handed(&cell);
        let fate = handed.map_or(Fate::Run, |(first, _)| durable.journal.state().fate(&cell, first));
        let lacks = handed.is_some_and(|(_, lacks)| lacks);
        if durable.stops && !matches!(fate, Fate::Answered(_)) {
            self.abort_request(&cell, identity.clone(), &envelope.header);
            return true;
        }
        let stops = envelope.execute().is_some_and(|e| e.stop_on_error);
        // The front is told of earlier executors' elections, and then hands the request out as a new one.
        match fate {
            Fate::Run => false,
            Fate::Answered(answer) => {
                durable.stops |= stops && answer.end.is_error();
                let number = answer.number;
                match answer.end.clone() {
                    End::Ended { reply, .. } => {
                        let message = unpack(reply);
                        if lacks || answers::is_ahead(&message) {
                            self.tell_may_be_missing(&envelope.header);
                        }
                        if lacks {
                            self.show_error(&envelope.header, &message);
                        }
                        let (identity, count) = (identity.clone(), answers::count(&message));
                        let answer = Answering {
                            identity,
                            message,
                            count,
                        };
                        // The front keeps an account of the cells that would be lost with the kernel.
                        self.send_answer(number, cell, answer);
                        self.idle(&envelope.header);
                    }
                    End::Lost { why } => self.say_lost(identity.clone(), envelope.header.clone(), &why),
                }
                true
            }
            Fate::LostInTheMiddle => {
                let retried = crate::need::is_retried_request(envelope);
                if !retried {
                    durable.stops |= stops;
                    let why = wording::cell_lost("the kernel's node or its supervisor was lost");
                    self.lose_request(cell, identity.clone(), envelope.header.clone(), why);
                }
                !retried
            }
        }
    }
}
