//! A kernel that outlives its process: its state is captured after each cell, written to the user's store, and brought back
//! into the next process (docs/replication.md; the messages are those of docs/agent-wire.md, `state.*`).

use super::answers;
use super::cells::{Cell, LostCell, StageName};
use super::group::Grouped;
use super::journal::{Answering, Journal, answered_by, unpack};
use super::lease::{Kind, Lease};
use super::memory::Park;
use super::moving::Move;
use super::{Core, Exit, Output, Phase, wording};
use crate::agent::Parcel;
use bytes::Bytes;
use hop_api::message::{Bound, Outcome, Request as ToHopd};
use hop_log::{Act, CellNumber, Effect, End, Entry, Fate, Index, RecordNumber, Refusal, Settled, State};
use hop_protocol::jupyter::{Channel, Envelope, Header};
use hop_protocol::message::Note;
use hop_words::id::{CellId, Incarnation, Tenure};
use hop_words::time::{Span, Timestamp};
use hop_zmtp::Message;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

/// An agent that says nothing for so long after the kernel is heard doesn't capture.
const AGENT_SPEAKS: Span = Span::from_secs(10);

/// A kernel that hibernates gives the running cell so long, and then its last capture. Fronts and provisioners wait for
/// the kernel's end longer than both.
const LAST_CELL: Span = Span::from_secs(15);
const LAST_CAPTURE: Span = Span::from_secs(20);

/// A seat that Slurm ends holds out for so long at most ([`crate::seat`]), less what leaving takes.
const SEAT_HOLDS: Span = Span::from_secs(25);
const LEAVING: Span = Span::from_secs(1);

/// The part of a seat's last seconds that is kept for the last capture.
const KEPT_FOR_CAPTURE: Span = Span::from_secs(10);

/// Deaths of the kernel's process within [`DEATHS_WITHIN`] that are too many.
const DEATHS_MAX: usize = 5;
const DEATHS_WITHIN: Span = Span::from_secs(60);

/// A state whose restore has killed the process so often is left alone.
const RESTORE_DEATHS_MAX: u32 = 2;

/// Captures that wait for the reply of their cell.
const CAPTURED_MAX: usize = 64;

/// Facts of a kernel that keeps a log.
#[derive(Debug, Clone)]
pub struct Durably {
    /// The state in which the front has opened the kernel's tenure.
    pub state: State,
    /// The kernel's group has elected this replica: its tenure's folder isn't open yet.
    pub elected: bool,
    /// The folder of all the kernel's tenures.
    pub folder: PathBuf,
    /// The user's content-addressed store of chunks.
    pub store: PathBuf,
    /// The reply of a cell waits until its effects are in the store.
    pub before_reply: bool,
    /// Why nothing can be captured in the kernel's process, if it can't.
    pub silent: Option<String>,
    /// The kernel belongs to a notebook whose next opening finds it.
    pub found_again: bool,
    /// The kernel's process has the state already, since it has followed the log: what it said of it
    /// ([`super::following`]).
    pub restored: Option<Value>,
}

/// The conversation with the agent inside the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Talk {
    /// It hasn't said hello. After this time the kernel is used without captures.
    Silent {
        until: Option<Timestamp>,
    },
    Greeted,
    /// A request is under way, with this id: the store is named, the state is read, captures begin.
    Opening(u64),
    Restoring(u64),
    Beginning(u64),
    /// Captures come after each cell.
    Captures,
    /// The last capture is under way.
    Flushing(u64),
    /// Nothing is captured in this process.
    Off,
}

/// The end that the replica makes by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Farewell {
    /// The seat ends: the kernel goes on elsewhere.
    Leave(String),
    /// The kernel goes on in the waiting replica of this incarnation.
    Move(Incarnation),
    /// The kernel hibernates.
    Sleep(String),
}

#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) farewell: Farewell,
    /// The cell that runs, and then the last capture, is waited for until then. `None` means as long as it takes.
    pub(super) until: Option<Timestamp>,
    /// The seat ends: the kernel leaves in time, even without a capture.
    pub(super) in_haste: bool,
    /// When it has left at the latest. `None` means that nobody ends it.
    by: Option<Timestamp>,
    /// All savable content is on its way to the store.
    pub(super) flushed: bool,
    /// The group was asked for another executor.
    handed_over: bool,
}

#[derive(Debug)]
pub(super) struct Durable {
    folder: PathBuf,
    store: PathBuf,
    before_reply: bool,
    silent: Option<String>,
    found_again: bool,
    restored: Option<Value>,
    pub(super) journal: Journal,
    pub(super) grouped: Grouped,
    /// The tenure's folder is being opened: nothing can be read from it yet.
    pub(super) opening: bool,
    talk: Talk,
    last_request: u64,
    /// Captures whose cell hasn't been answered yet.
    captured: VecDeque<(CellId, Parcel)>,
    /// Replies that wait for the store, with the number of their cell.
    held_replies: VecDeque<(CellNumber, CellId, Answering)>,
    /// Answered cells whose effects the newest tenure lacks, until the front is told.
    lost: Vec<CellId>,
    deaths: VecDeque<Timestamp>,
    restore_deaths: u32,
    /// The next tenure is opened once all records are on disk.
    reopens: bool,
    /// States on their way to the store.
    resting: u32,
    /// Since when the group has taken nothing, although something is proposed.
    pub(super) commits_since: Option<Timestamp>,
    bound: Vec<String>,
    pub(super) moving: Option<Move>,
    pub(super) leaving: Option<Leaving>,
    /// Failed captures since the last good one.
    failed_captures: u32,
    /// Sentences that the user reads at the next cell.
    notices: Vec<String>,
    /// Why nothing can be written to the store, once the user has been told.
    broken: Option<String>,
}

/// The body of `state.cell` and `state.record`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Capture {
    /// The cell's request, in `state.cell`.
    msg_id: Option<CellId>,
    /// The cells that a later record completes, the oldest first.
    cells: Vec<Completed>,
    /// `whole`, `later` or `failed`, in `state.cell`.
    status: String,
    /// The record's number by the kernel's count.
    record: Option<u64>,
    /// The execution count of a cell whose reply will say no more than this and `ok`, in `state.cell`.
    plain: Option<i64>,
    unmovable: Vec<String>,
    /// Why nothing was captured: a sentence for the user.
    why: String,
}

#[derive(Debug, Deserialize)]
struct Completed {
    msg_id: CellId,
}

/// The answer to `state.restore`, and the body of `state.notice`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Restored {
    /// Variables in whose place a placeholder stands, and why.
    lost: BTreeMap<String, String>,
    notices: Vec<String>,
    unmovable: Vec<String>,
}

impl Durable {
    pub(super) fn new(given: Durably) -> Self {
        Self {
            journal: Journal::new(given.state),
            grouped: if given.elected {
                Grouped::Yes {
                    voters: BTreeSet::new(),
                }
            } else {
                Grouped::Alone
            },
            opening: false,
            folder: given.folder,
            store: given.store,
            before_reply: given.before_reply,
            silent: given.silent,
            found_again: given.found_again,
            talk: match given.restored {
                Some(_) => Talk::Greeted,
                None => Talk::Silent { until: None },
            },
            restored: given.restored,
            last_request: 0,
            captured: VecDeque::new(),
            held_replies: VecDeque::new(),
            lost: Vec::new(),
            deaths: VecDeque::new(),
            restore_deaths: 0,
            reopens: false,
            resting: 0,
            commits_since: None,
            bound: Vec::new(),
            moving: None,
            leaving: None,
            failed_captures: 0,
            notices: Vec::new(),
            broken: None,
        }
    }

    pub(super) fn tenure(&self) -> Tenure {
        self.journal.tenure()
    }

    pub(super) fn applied_index(&self) -> Index {
        self.journal.state().applied()
    }

    /// The time at which something is due.
    pub(super) fn due(&self) -> Option<Timestamp> {
        let silent = match self.talk {
            Talk::Silent { until } => until,
            _ => None,
        };
        let leaving = self.leaving.as_ref().and_then(|l| l.until);
        let elects = self.moving.as_ref().and_then(|m| m.elects_at);
        [silent, leaving, elects, self.commits_due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the kernel could be another process without its user's noticing.
    pub(super) fn captures(&self) -> bool {
        matches!(self.talk, Talk::Captures | Talk::Flushing(_)) && self.broken.is_none()
    }

    pub(super) fn bound(&self) -> Bound {
        Bound {
            gpu: false,
            holds: self.bound.clone(),
        }
    }

    /// Whether the store has everything from which the kernel goes on.
    fn may_restore(&self) -> bool {
        let waits = self.opening || self.reopens || !self.journal.state().restore().records.is_empty();
        !waits || self.broken.is_some()
    }

    fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// The kernel doesn't go on in this replica, whatever happens.
    fn is_at_its_end(&self) -> bool {
        let stays = |l: &Leaving| matches!(l.farewell, Farewell::Move(_)) && !l.in_haste;
        self.leaving.as_ref().is_some_and(|l| !stays(l))
    }

    pub(super) fn sanity_check(&self) {
        self.journal.sanity_check();
        assert!(self.captured.len() <= CAPTURED_MAX);
        let kept = |(cell, _): &(CellId, Parcel)| !self.journal.is_ahead(cell);
        assert!(self.captured.iter().all(kept), "a record follows its cell's end");
    }
}

impl Core {
    // The beginning: a process is heard, and gets the state.

    /// The kernel's process is heard, and the agent may have said hello.
    pub(super) fn prepare(&mut self) {
        let now = self.now;
        let Some(durable) = &mut self.durable else {
            return self.up();
        };
        match durable.talk {
            Talk::Greeted => self.open_store(),
            Talk::Silent { .. } => {
                if let Some(why) = durable.silent.clone() {
                    return self.without_captures(&why);
                }
                durable.talk = Talk::Silent {
                    until: Some(now + AGENT_SPEAKS),
                }
            }
            _ => self.up(),
        }
    }

    /// The agent said hello.
    pub(super) fn greeted(&mut self) {
        let preparing = matches!(self.phase, Phase::Preparing { .. });
        if let Some(durable) = &mut self.durable {
            durable.talk = Talk::Greeted;
            if preparing {
                self.open_store();
            }
        }
    }

    /// Reads the state once everything that is known of it is in the store.
    fn open_store_if_ready(&mut self) {
        let preparing = matches!(self.phase, Phase::Preparing { .. });
        if preparing && self.durable.as_ref().is_some_and(|d| d.talk == Talk::Greeted) {
            self.open_store();
        }
    }

    /// Names the store to the agent. Restored content is then known to be in the log, and isn't captured again.
    fn open_store(&mut self) {
        if let Some(durable) = self.durable.as_mut().filter(|d| d.restored.is_some()) {
            if !durable.opening
                && let Some(said) = durable.restored.take()
            {
                self.restored(said);
            }
            return;
        }
        if !self.durable.as_ref().is_some_and(Durable::may_restore) {
            return;
        }
        if !self.has_state() {
            return self.begin_capturing();
        }
        let id = self.ask_agent("state.begin", self.begin_with("nothing"));
        self.talk(Talk::Opening(id));
    }

    fn begin_capturing(&mut self) {
        let id = self.ask_agent("state.begin", self.begin_with("cells"));
        self.talk(Talk::Beginning(id));
    }

    fn begin_with(&self, capture: &str) -> Value {
        self.durable.as_ref().map_or(Value::Null, |durable| {
            begin_with(capture, durable.journal.next_record(), &durable.store)
        })
    }

    fn talk(&mut self, talk: Talk) {
        if let Some(durable) = &mut self.durable {
            durable.talk = talk;
        }
    }

    fn ask_agent(&mut self, op: &str, body: Value) -> u64 {
        let id = self.durable.as_mut().map_or(0, |durable| {
            durable.last_request += 1;
            durable.last_request
        });
        self.out.push(Output::ToAgent(Parcel::request(id, op, body)));
        id
    }

    /// The agent answered a request of ours.
    pub(super) fn agent_answered(&mut self, id: u64, answer: Result<Value, String>) {
        let Some(durable) = &self.durable else {
            return;
        };
        match (durable.talk, answer) {
            (Talk::Opening(asked), Ok(_)) if asked == id => self.restore(),
            (Talk::Opening(asked), Err(why)) if asked == id => self.not_restored(&why),
            (Talk::Beginning(asked), Ok(_)) if asked == id => self.ready(),
            (Talk::Beginning(asked), Err(why)) if asked == id => self.without_captures(&why),
            (Talk::Restoring(asked), Ok(answer)) if asked == id => self.restored(answer),
            (Talk::Restoring(asked), Err(why)) if asked == id => self.not_restored(&why),
            (Talk::Flushing(asked), _) if asked == id => self.flushed(),
            _ => {}
        }
    }

    /// Has the agent read the state from which the kernel goes on.
    fn restore(&mut self) {
        let Some(durable) = &self.durable else {
            return;
        };
        if durable.restore_deaths >= RESTORE_DEATHS_MAX {
            return self.not_restored("the kernel's process died while its variables were read");
        }
        let Some(settled) = durable.journal.state().restore().settled else {
            return self.begin_capturing();
        };
        let body = restore_with(settled, &durable.folder, true);
        let id = self.ask_agent("state.restore", body);
        self.talk(Talk::Restoring(id));
    }

    fn restored(&mut self, answer: Value) {
        self.tell_restored(answer);
        if let Some(durable) = &mut self.durable {
            durable.restore_deaths = 0;
        }
        self.begin_capturing();
    }

    /// The user reads at the next cell which variables didn't come back, or came back otherwise.
    pub(super) fn tell_restored(&mut self, said: Value) {
        let restored: Restored = serde_json::from_value(said).unwrap_or_default();
        if let Some(durable) = &mut self.durable {
            let lost = restored.lost.iter().map(|(name, why)| format!("{name} ({why})"));
            let lost: Vec<String> = lost.collect();
            if !lost.is_empty() {
                durable.notices.push(wording::could_not_come_back(&lost));
            }
            durable
                .notices
                .extend(restored.notices.iter().map(|n| wording::notice(n)));
        }
        self.note_bound(restored.unmovable);
    }

    /// The state can't be brought back: the kernel is an empty one, and the state stays where it is.
    fn not_restored(&mut self, why: &str) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let kept = durable.journal.state().restore().settled.map(|s| {
            let name = hop_log::store::folder_name(s.tenure, s.part);
            durable.folder.join(name)
        });
        durable.notices.push(wording::not_restored(why, kept.as_deref()));
        durable.restore_deaths = 0;
        self.act(Act::Fresh);
        self.begin_capturing();
    }

    fn ready(&mut self) {
        self.talk(Talk::Captures);
        self.up();
        self.found_group();
        self.leave_if_idle();
    }

    fn without_captures(&mut self, why: &str) {
        if let Some(durable) = &mut self.durable {
            durable.talk = Talk::Off;
            durable.notices.push(wording::not_captured(why));
        }
        self.up();
    }

    /// Tells the user what has to be read before the next reply.
    pub(super) fn tell_notices(&mut self, header: &Bytes) {
        let notices = self.durable.as_mut().map(|d| std::mem::take(&mut d.notices));
        for notice in notices.unwrap_or_default() {
            self.stderr(header, &notice);
        }
    }

    // Cells and their effects.

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

    /// A cell ran to its end. Its answer leaves once the log has it; without a log, at once.
    pub(super) fn answer_cell(
        &mut self,
        cell: &CellId,
        identity: Bytes,
        message: Message,
        outcome: Outcome,
        count: Option<i64>,
    ) {
        let Some(durable) = &mut self.durable else {
            return self.send_front(Channel::Shell, identity, message);
        };
        let answer = Answering {
            identity,
            message,
            count,
        };
        if durable.journal.is_ahead(cell) {
            return self.reply_ahead(cell, Some(answer));
        }
        let entry = durable.journal.ended(cell, outcome, answer);
        self.out.push(Output::Propose(entry));
        self.keep_capture_of(cell);
    }

    /// A cell ran well to its end, and its reply can be told before the kernel has made it: the group writes it down in
    /// the meantime. Cells with a lease wait for their reply, which tells of the lease.
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
        let grouped = self.durable.as_ref().is_some_and(Durable::is_grouped);
        if !grouped || self.durable.as_ref().is_some_and(|d| d.journal.is_ahead(cell)) {
            return;
        }
        let message = self.write_ahead(&header, count);
        let written = Answering {
            identity,
            message,
            count: Some(count),
        };
        if let Some(durable) = &mut self.durable {
            let entry = durable.journal.ended_ahead(cell, written);
            self.out.push(Output::Propose(entry));
        }
        self.keep_capture_of(cell);
    }

    /// The reply to a cell whose answer was written ahead leaves once the log has that; `None` is the written one itself.
    fn reply_ahead(&mut self, cell: &CellId, reply: Option<Answering>) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        if let Some((number, answer)) = durable.journal.replied(cell, reply) {
            self.answered(number, cell.clone(), answer);
        }
    }

    /// The capture that came before the cell's reply goes to the store, behind the cell's own entry.
    fn keep_capture_of(&mut self, cell: &CellId) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let Some(at) = durable.captured.iter().position(|(c, _)| c == cell) else {
            return;
        };
        if let Some((cell, parcel)) = durable.captured.remove(at) {
            self.keep(parcel, Some(cell));
        }
    }

    fn keep(&mut self, parcel: Parcel, through: Option<CellId>) {
        let Some(durable) = self.durable.as_mut().filter(|d| d.broken.is_none()) else {
            return;
        };
        let mut attachments = parcel.attachments.into_iter();
        let (Some(text), Some(body)) = (attachments.next(), attachments.next()) else {
            return;
        };
        let payload = durable.payload(&text, &body);
        let (number, entry) = durable.journal.record(through, payload);
        let behind = durable.journal.state().restore().settled.cloned();
        self.out.push(Output::Propose(entry));
        self.out.push(Output::Append {
            number,
            text,
            body,
            behind,
        });
    }

    /// The agent captured something: `state.cell` at a cell's end, `state.record` later.
    pub(super) fn captured(&mut self, parcel: Parcel) {
        let Ok(capture) = serde_json::from_value::<Capture>(parcel.wire.body.clone()) else {
            return;
        };
        self.note_bound(capture.unmovable.clone());
        let Some(durable) = &mut self.durable else {
            return;
        };
        if capture.status == "failed" && durable.failed_captures == 0 {
            durable.notices.push(wording::not_captured(&capture.why));
        }
        durable.failed_captures = match capture.status.as_str() {
            "failed" => durable.failed_captures + 1,
            _ => 0,
        };
        let plain = capture.msg_id.clone().zip(capture.plain);
        self.captured_record(parcel, capture);
        if let Some((cell, count)) = plain {
            self.end_ahead(&cell, count);
        }
    }

    fn captured_record(&mut self, parcel: Parcel, capture: Capture) {
        if parcel.attachments.is_empty() {
            return;
        }
        let last = capture.cells.into_iter().next_back().map(|c| c.msg_id);
        let last = capture.msg_id.or(last);
        // A cell whose end is proposed waits for its reply alone.
        let ahead = |cell: &CellId| self.durable.as_ref().is_some_and(|d| d.journal.is_ahead(cell));
        let waits = last
            .clone()
            .filter(|cell| self.cells.find(cell).is_some() && !ahead(cell));
        let (Some(durable), Some(cell)) = (&mut self.durable, waits) else {
            return self.keep(parcel, last);
        };
        // Its cell is answered in a moment.
        durable.captured.push_back((cell, parcel));
        if durable.captured.len() > CAPTURED_MAX {
            durable.captured.pop_front();
        }
    }

    fn note_bound(&mut self, holds: Vec<String>) {
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
        let (effect, answer) = match durable.journal.apply(index, entry) {
            Ok(applied) => applied,
            // The entry overtook another one, and is proposed again behind it.
            Err(Refusal::OutOfOrder { .. }) => return,
            Err(_) => return self.entry_refused(entry),
        };
        match effect {
            Effect::Answered { number, .. } => {
                if let (Some(answer), Some(cell)) = (answer, answered_by(entry)) {
                    self.answered(number, cell.clone(), answer);
                }
            }
            Effect::Settled { .. } => {
                let bytes = hop_log::Form::encode(&durable.journal.state().at_rest());
                durable.resting += 1;
                self.out.push(Output::WriteState { state: bytes });
                self.open_store_if_ready();
            }
            Effect::Opened { executor, .. } if executor != self.identity.incarnation => self.deposed(),
            Effect::Opened { lost, .. } => {
                durable.lost = lost;
                durable.opening = true;
                let state = durable.journal.state().clone();
                self.out.push(Output::OpenTenure { state });
            }
            Effect::Left { executor: true } => self.deposed(),

            Effect::Asleep => {
                let bytes = hop_log::Form::encode(&durable.journal.state().at_rest());
                durable.resting += 1;
                self.out.push(Output::WriteState { state: bytes });
            }
            Effect::Again
            | Effect::Joined
            | Effect::Left { .. }
            | Effect::Elected
            | Effect::Recorded
            | Effect::Fresh
            | Effect::Heard => {}
        }
        self.go_if_settled();
    }

    /// The log refuses an entry of ours.
    fn entry_refused(&mut self, entry: &Entry) {
        let me = self.identity.incarnation;
        let Some(durable) = &mut self.durable else {
            return;
        };
        let tenure = durable.journal.tenure();
        let executes = durable.journal.state().executor() == Some(me);
        match entry {
            // It was on its way when this replica's process died, and its next tenure came first.
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
                act: Act::Moved { .. },
                ..
            } if executes => self.leave_by_word(),
            // Of a deposed executor: its answers must not leave.
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

    /// The log has a cell's answer.
    fn answered(&mut self, number: CellNumber, cell: CellId, answer: Answering) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        if durable.grouped == Grouped::GivenUp {
            return;
        }
        if durable.before_reply && durable.captures() {
            durable.held_replies.push_back((number, cell, answer));
            self.out.push(Output::Sync);
            return;
        }
        self.send_answer(number, cell, answer);
    }

    fn send_answer(&mut self, number: CellNumber, cell: CellId, answer: Answering) {
        let count = answer.count;
        self.note(Note::Answered {
            cell,
            number: number.0,
            count,
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

    pub(super) fn handed_before(&mut self, cell: CellId, tenure: Tenure) {
        if let Some(durable) = &mut self.durable {
            durable.journal.was_handed(cell, tenure);
        }
    }

    /// Answers a request that the log has an answer for, or that may have begun with an earlier executor. Returns whether
    /// it did.
    pub(super) fn was_answered(&mut self, identity: &Bytes, envelope: &Envelope, header: &Header) -> bool {
        let cell: CellId = header.msg_id.as_str().into();
        let Some(durable) = &mut self.durable else {
            return false;
        };
        // Clients may use an id again: a cell that answers to an earlier one's id is a new one.
        let Some(first) = durable.journal.first_handed(&cell) else {
            return false;
        };
        // Elections of earlier executors are told to the front, which then hands the request out as a new one.
        match durable.journal.state().fate(&cell, first, false) {
            Fate::Run => false,
            Fate::Answered(answer) => {
                match answer.end.clone() {
                    End::Ended { reply, .. } => {
                        let message = unpack(reply);
                        if answers::is_ahead(&message) {
                            self.tell_may_be_missing(&envelope.header);
                        }
                        self.send_front(Channel::Shell, identity.clone(), message);
                        self.idle(&envelope.header);
                    }
                    End::Lost { why } => self.say_lost(identity.clone(), envelope.header.clone(), &why),
                }
                true
            }
            Fate::LostInTheMiddle => {
                let retried = crate::need::is_retried_request(envelope);
                if !retried {
                    let why = wording::cell_lost("the kernel's node or its supervisor was lost");
                    self.lose_request(cell, identity.clone(), envelope.header.clone(), why);
                }
                !retried
            }
        }
    }

    /// Whether there is a state to come back from.
    pub(super) fn has_state(&self) -> bool {
        let durable = self.durable.as_ref();
        durable.is_some_and(|d| d.journal.state().restore().settled.is_some())
    }

    /// `hopd` wants the kernel saved and ended.
    pub(super) fn asked_to_sleep(&mut self, reason: String) {
        let moves = self.durable.as_ref().is_some_and(|d| d.moving.is_some());
        let waits = self.cells.iter().next().is_some();
        if self.comes_back() && !waits && !moves {
            return self.go_to_sleep(reason);
        }
        let (kernel, tenure) = self.office();
        let reason = match (waits, moves) {
            (true, _) => "a cell of it runs or waits".to_owned(),
            (false, true) => "it is being moved".to_owned(),
            (false, false) => "its state is not kept".to_owned(),
        };
        self.tell_hopd(ToHopd::HibernateRefused {
            kernel,
            tenure,
            reason,
        });
    }

    // The store.

    /// The log in the tenure's folder is on disk up to there.
    pub(super) fn synced(&mut self, upto: RecordNumber, length: u64, mac: String) {
        let Some(durable) = &self.durable else {
            return;
        };
        let tenure = durable.tenure();
        let settled = Settled {
            tenure,
            part: 0,
            upto,
            length,
            mac,
        };
        self.propose(Entry::Settled { settled });
        self.in_sync();
    }

    /// All records that came are on disk: a dead kernel's next tenure misses none of them.
    pub(super) fn in_sync(&mut self) {
        let reopens = self
            .durable
            .as_mut()
            .is_some_and(|d| std::mem::take(&mut d.reopens));
        if reopens {
            let tenure = Tenure(self.office().1.0 + 1);
            let executor = self.identity.incarnation;
            self.propose(Entry::Tenure { tenure, executor });
        }
        self.go_if_settled();
    }

    /// The state beside the log is on disk, up to a settled cell.
    pub(super) fn rested(&mut self) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        durable.resting = durable.resting.saturating_sub(1);
        let through = durable.journal.state().settled_through();
        let mut ready = Vec::new();
        while durable
            .held_replies
            .front()
            .is_some_and(|(number, ..)| *number <= through)
        {
            ready.extend(durable.held_replies.pop_front());
        }
        self.note(Note::Settled { through: through.0 });
        for (number, cell, answer) in ready {
            self.send_answer(number, cell, answer);
        }
        self.go_if_settled();
    }

    /// Nothing can be written to the store: the user is told once, and the kernel goes on without it.
    pub(super) fn store_failed(&mut self, why: String) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        if durable.broken.is_none() {
            durable.notices.push(wording::not_captured(&why));
            durable.broken = Some(why);
        }
        durable.opening = false;
        for (number, cell, answer) in std::mem::take(&mut durable.held_replies) {
            self.send_answer(number, cell, answer);
        }
        if durable_stays(self.durable.as_ref()) {
            self.give_up_move("nothing can be written to its user's store");
        }
        self.in_sync();
        self.open_store_if_ready();
    }

    // The end of a process, and the next one.

    /// Whether the kernel goes on in another process after this one has ended.
    pub(super) fn comes_back(&self) -> bool {
        self.durable
            .as_ref()
            .is_some_and(|d| !d.is_at_its_end() && !matches!(d.talk, Talk::Off) && d.broken.is_none())
            && !matches!(self.phase, Phase::Over)
    }

    /// Whether a kernel that nobody uses is worth being saved.
    pub(super) fn is_found_again(&self) -> bool {
        self.durable.as_ref().is_some_and(|d| d.found_again)
    }

    /// The kernel's process has died. The cell in its middle is lost, and the kernel goes on in a new process from its last
    /// captured state.
    pub(super) fn come_back(&mut self, exit: Exit) {
        let restoring = matches!(self.phase, Phase::Preparing { .. });
        let reason = self.reason_of(exit);
        let now = self.now;
        let Some(durable) = &mut self.durable else {
            return;
        };
        durable.deaths.push_back(now);
        while durable
            .deaths
            .front()
            .is_some_and(|at| now.since(*at) > DEATHS_WITHIN)
        {
            durable.deaths.pop_front();
        }
        if durable.deaths.len() > DEATHS_MAX {
            return self.over(wording::died_too_often(&reason, DEATHS_MAX));
        }
        durable.restore_deaths += u32::from(restoring);
        // A cell that is lost with its process says why itself.
        if self.cells.running().is_none() && !restoring {
            durable.notices.push(wording::process_is_new(&reason));
        }
        // The move goes on once the process is back: no cell runs before.
        if let Some(leaving) = &mut durable.leaving {
            (leaving.until, leaving.flushed) = (leaving.by, false);
        }
        durable.talk = Talk::Silent { until: None };
        durable.restored = None;
        durable.reopens = true;
        durable.captured.clear();
        self.forget_process();
        self.lose_running_cells(&reason);
        self.phase = Phase::Starting {
            early: self.phase.take_early(),
            until: now + super::START,
        };
        self.say_restarting();
        self.out.push(Output::StartKernel);
        self.out.push(Output::Sync);
    }

    /// The process is gone, with its GPU memory.
    fn forget_process(&mut self) {
        self.gpu.park = Park::Home;
        self.gpu.doomed = None;
        self.gpu.last = None;
        if let Some(held) = self.gpu.held.take() {
            self.release_lease(held.lease);
        }
        if let Some((_, lease)) = self.gpu.after.take() {
            self.release_lease(lease);
        }
        self.release_left();
        let seeker = self.lease.seeker().map(|s| (s.id.clone(), s.kind == Kind::Cell));
        let Some((id, is_cell)) = seeker else {
            return;
        };
        // A cell that hasn't begun keeps its place in the queue, or its lease: the lease's GPUs are this replica's.
        let waits = is_cell && self.cells.seeking() == Some(&id);
        match &self.lease {
            Lease::Returning(..) if waits => self.proceed(),
            _ if waits => {}
            Lease::Asked(..) | Lease::Returning(..) => {
                self.lease = Lease::None;
                self.withdraw(&id);
            }
            _ => {
                self.lease_used(&id, Outcome::Lost);
                self.gpu.park = Park::Home;
            }
        }
    }

    /// The cell in whose middle the process died is lost, and those behind it are aborted as behind any error.
    fn lose_running_cells(&mut self, reason: &str) {
        let mut aborts = false;
        let ahead: BTreeSet<CellId> = self
            .durable
            .as_ref()
            .map_or_else(BTreeSet::new, |d| d.journal.ahead().cloned().collect());
        for lost in self.cells.take_sent(|cell| ahead.contains(cell)) {
            match lost {
                LostCell::Ended(cell) => {
                    self.tell_may_be_missing(&cell.header);
                    self.reply_ahead(&cell.id, None);
                    self.idle(&cell.header);
                }
                LostCell::Again(cell) => self.tell_retry(&cell, reason),
                LostCell::Lost(cell) => {
                    aborts |= cell.stops_on_error();
                    self.lose(cell, wording::cell_lost(reason));
                }
                LostCell::Behind(cell) => self.abort_sent(cell),
            }
        }
        if aborts {
            self.abort_held();
        }
    }

    /// The tenure's folder is open: what is captured from now on is written there.
    pub(super) fn tenure_opened(&mut self) {
        if let Some(durable) = &mut self.durable {
            let (tenure, lost) = (durable.tenure(), std::mem::take(&mut durable.lost));
            durable.opening = false;
            self.note(Note::Tenure { tenure, lost });
            self.register();
            self.carry_over();
            self.open_store_if_ready();
        }
    }

    // The end of the replica.

    pub(super) fn is_leaving(&self) -> bool {
        self.durable.as_ref().is_some_and(Durable::is_leaving)
    }

    /// The seat ends. The running cell is given as long as Slurm's grace allows, and the state is captured once more.
    pub(super) fn leave_seat(&mut self, reason: String, grace: Span) {
        let (for_cell, for_all) = shares(grace);
        let (until, by) = (self.now + for_cell, Some(self.now + for_all));
        if self.durable.as_ref().is_some_and(|d| d.leaving.is_none()) {
            return self.bid_farewell(Farewell::Leave(reason), Some(until), by);
        }
        if let Some(leaving) = self.durable.as_mut().and_then(|d| d.leaving.as_mut()) {
            leaving.in_haste = true;
            leaving.by = leaving.by.or(by);
            if !leaving.flushed {
                leaving.until = Some(leaving.until.map_or(until, |at| at.min(until)));
            }
        }
    }

    /// The kernel hibernates.
    pub(super) fn go_to_sleep(&mut self, reason: String) {
        self.give_up_move("the kernel hibernates");
        self.say_farewell(Farewell::Sleep(reason));
    }

    pub(super) fn say_farewell(&mut self, farewell: Farewell) {
        let until = match farewell {
            Farewell::Move(_) => None,
            Farewell::Leave(_) | Farewell::Sleep(_) => Some(self.now + LAST_CELL),
        };
        self.bid_farewell(farewell, until, None);
    }

    /// Leaves once no cell runs; the running one is waited for until `until`, and without it however long it takes.
    pub(super) fn bid_farewell(
        &mut self,
        farewell: Farewell,
        until: Option<Timestamp>,
        by: Option<Timestamp>,
    ) {
        let in_haste = matches!(farewell, Farewell::Leave(_));
        if let Some(durable) = &mut self.durable
            && durable.leaving.is_none()
        {
            durable.leaving = Some(Leaving {
                farewell,
                until,
                in_haste,
                by,
                flushed: false,
                handed_over: false,
            });
        }
        self.leave_if_idle();
    }

    /// Captures for the last time once no cell runs.
    pub(super) fn leave_if_idle(&mut self) {
        let now = self.now;
        let idle = self.cells.running().is_none() && !self.runs_first();
        let Some(durable) = &mut self.durable else {
            return;
        };
        let Some(leaving) = durable.leaving.as_mut().filter(|l| !l.flushed) else {
            return;
        };
        if durable.talk == Talk::Captures && idle {
            let captured = now + LAST_CAPTURE;
            leaving.until = Some(leaving.by.map_or(captured, |by| by.min(captured)));
            let id = self.ask_agent("state.flush", json!({"audit": true}));
            self.talk(Talk::Flushing(id));
        }
    }

    fn flushed(&mut self) {
        // A cell that got its lease meanwhile runs first.
        let idle = !self.runs_first();
        if let Some(durable) = &mut self.durable {
            durable.talk = Talk::Captures;
            if let Some(leaving) = durable.leaving.as_mut().filter(|_| idle) {
                leaving.flushed = true;
            }
        }
        self.out.push(Output::Sync);
        self.go_if_settled();
    }

    /// Leaves once everything that was captured is in the store.
    fn go_if_settled(&mut self) {
        let Some(durable) = &self.durable else {
            return;
        };
        let leaving = durable.leaving.as_ref();
        let Some(leaving) = leaving.filter(|l| l.flushed && !l.handed_over) else {
            return;
        };
        let state = durable.journal.state();
        let committed = state.unsettled_records().len() == 0 && durable.journal.is_settled();
        let settled = committed && durable.resting == 0;
        let awake = !matches!(state.office(), hop_log::Office::Asleep { .. });
        if settled && awake && matches!(leaving.farewell, Farewell::Sleep(_)) {
            self.act(Act::Hibernated);
        } else if settled || (durable.broken.is_some() && !matches!(leaving.farewell, Farewell::Move(_))) {
            self.go();
        }
    }

    pub(super) fn go(&mut self) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let Some(mut leaving) = durable.leaving.take() else {
            return;
        };
        let heir = self.heir(&leaving.farewell);
        if let Some(durable) = &mut self.durable {
            durable.moving = None;
        }
        // A cell that the front lets begin in this moment is the next replica's.
        for cell in self.cells.not_begun() {
            self.note(Note::NotBegun { cell });
        }
        if let Some(to) = heir
            && !leaving.handed_over
        {
            if matches!(leaving.farewell, Farewell::Move(_)) {
                self.leave_devices();
            }
            self.act(Act::Moved { to });
            leaving.handed_over = true;
            if let Some(durable) = &mut self.durable {
                durable.leaving = Some(leaving);
            }
            return;
        }
        match leaving.farewell {
            Farewell::Leave(reason) => self.note(Note::Leaving { reason }),
            Farewell::Move(incarnation) => {
                self.leave_devices();
                // The next tenure is opened in the store, and begins a group of its own.
                self.disband();
                self.note(Note::Moving { incarnation });
            }
            Farewell::Sleep(reason) => {
                let (kernel, tenure) = self.office();
                self.tell_hopd(ToHopd::Hibernated { kernel, tenure });
                self.note(Note::Asleep { reason });
            }
        }
        self.phase = Phase::Over;
        self.out.push(Output::KillKernel);
        self.out.push(Output::Leave);
    }

    /// The group refuses to hand the kernel to another member: the front starts the next replica.
    fn leave_by_word(&mut self) {
        if self.is_leaving() {
            self.go();
        }
    }

    /// Time passes.
    pub(super) fn durable_tick(&mut self) {
        let now = self.now;
        self.give_up_group();
        self.elect_unprepared();
        let Some(durable) = &self.durable else {
            return;
        };
        if matches!(durable.talk, Talk::Silent { until: Some(at) } if at <= now) {
            self.without_captures("its agent doesn't answer");
            return;
        }
        let late = |l: &&Leaving| l.until.is_some_and(|at| at <= now);
        if let Some(leaving) = durable.leaving.as_ref().filter(late) {
            match leaving.farewell {
                Farewell::Move(_) if !leaving.in_haste => self.give_up_move(wording::NOT_SAVED_IN_TIME),
                _ => self.go(),
            }
        }
    }
}

/// The body of `state.begin`.
pub(super) fn begin_with(capture: &str, record: RecordNumber, store: &Path) -> Value {
    json!({
        "capture": capture, "patience_ms": null, "record": record,
        "store": store, "form": hop_state::form::VERSION,
    })
}

/// The body of `state.restore`. `folder` has all the kernel's tenures.
pub(super) fn restore_with(settled: &Settled, folder: &Path, lazy: bool) -> Value {
    let folder = hop_protocol::states::folder(folder, settled.tenure, settled.part);
    json!({"folder": folder, "length": settled.length, "mac": settled.mac, "lazy": lazy})
}

/// How long the running cell may go on in a seat that Slurm kills after `grace`, and how long all may take.
fn shares(grace: Span) -> (Span, Span) {
    let all = Span(grace.min(SEAT_HOLDS).0.saturating_sub(LEAVING.0));
    let capture = Span(all.0 / 2).min(KEPT_FOR_CAPTURE);
    (Span(all.0 - capture.0), all)
}

/// A kernel whose seat doesn't end stays where its state is.
fn durable_stays(durable: Option<&Durable>) -> bool {
    let leaving = durable.and_then(|d| d.leaving.as_ref());
    leaving.is_none_or(|l| !l.in_haste)
}
