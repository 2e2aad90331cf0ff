//! Clients and the kernel's answers: the destination of each message, the messages kept for absent clients and for the
//! next replica, and the news to clients of the kernel's death. The core acts through [`Wire`] and has no socket and no
//! clock; [`crate::life`] decides on the replica.

mod answered;
mod audience;
mod before;
mod control;
mod losses;
mod marks;
mod requests;
mod seating;
mod texts;
mod told;
mod unseen;

use self::answered::Answered;
use self::audience::Audience;
use self::before::Before;
pub(crate) use self::control::is_request_of;
pub use self::control::{Asked, Interrupt, Shutdown};
pub use self::marks::Mark;
use self::marks::{Idle, Marks};
use self::requests::Open;
pub use self::seating::SeatWaits;
use self::seating::Seating;
pub(crate) use self::seating::{NO_SLURMCTLD, NO_STEP};
use self::told::Told;
pub use self::unseen::Records;
use self::unseen::{Change, Unseen};
use bytes::Bytes;
use hop_log::{CellNumber, Ledger};
use hop_protocol::comm::CommContent;
use hop_protocol::jupyter::{Author, Channel, Envelope, Header, can_be_asked_again, date};
use hop_protocol::link::Item;
use hop_protocol::meanwhile::{self, Meanwhile, Unsaved};
use hop_protocol::message::{Note, Over};
use hop_words::id::{CellId, Tenure};
use hop_words::time::Timestamp as Time;
use hop_zmtp::Message;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};

/// Bytes kept for absent clients. Beyond them the oldest outputs go first.
const KEEP: usize = 64 << 20;

/// Whether a client still waits for the cell's reply.
fn is_open(open: &[Open], cell: &CellId) -> bool {
    open.iter().any(|o| o.id == *cell)
}

/// The things that the front can do.
pub trait Wire {
    /// Sends to one client. `mark` comes to [`Front::have_left`] when the message has left; the message comes back when
    /// the client is away.
    fn reply(
        &mut self,
        channel: Channel,
        identity: &[u8],
        message: Message,
        mark: Option<Mark>,
    ) -> Result<(), Message>;
    /// Sends to all subscribers; false if there is none. [`Front::have_left`] gets `mark` when the message has left.
    fn publish(&mut self, message: &Message, mark: Option<Mark>) -> bool;
    /// Number of clients subscribed to outputs.
    fn subscribers(&self) -> usize;
    fn send(&mut self, item: Item);
    /// The item is dealt with.
    fn done(&mut self, seq: u64);
}

/// How the kernel ended, as far as the front is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Shutdown,
    Dead { reason: String },
}

#[derive(Debug)]
struct Waiting {
    /// `None`: nothing depends on it.
    mark: Option<Mark>,
    message: Message,
}

/// The state of one kernel's front.
#[derive(Debug)]
pub struct Front {
    author: Author,
    /// The kernel keeps a log, and begins no cell without our word.
    durable: bool,
    /// Time of the kernel's launch. `None` means a launch by an earlier front.
    launched: Option<Timestamp>,
    /// The tenure whose replica gets the requests.
    tenure: Tenure,
    /// Requests without a reply, the oldest first.
    open: Vec<Open>,
    /// Requests of a killed front wait for the replica's word: it may have them.
    requests_wait: bool,
    /// Interrupts behind the requests of a killed front.
    interrupts: Vec<Interrupt>,
    /// Cells with a reply, the oldest first.
    answered: Vec<Answered>,
    /// Requests with a reply from the replica, which a killed front may have handed over.
    maybe_read: Vec<CellId>,
    marks: Marks,
    audience: Audience,
    outputs: VecDeque<Waiting>,
    replies: HashMap<(Channel, Bytes), Vec<Waiting>>,
    kept: usize,
    dropped: u64,
    /// Answered cells not known to be in the store.
    ledger: Ledger,
    heard: CellNumber,
    /// The answered cells that the replica doesn't know to be heard.
    unheard: Vec<(CellNumber, CellId)>,
    /// The answers and the tenure's losses that the replica knows to be heard.
    heard_told: (CellNumber, Tenure),
    /// The execution counts of the last answered cells, the oldest first.
    counts: VecDeque<(CellId, i64)>,
    /// The last execution count that clients have read.
    last_count: Option<i64>,
    /// Notices to show before the next reply.
    notices: Vec<Notice>,
    /// Notices shown at a cell that has not run yet.
    told: Told,
    before: Before,
    /// Facts and answers while the kernel has no node.
    seating: Seating,
    /// Outputs of cells, for pages that may be away.
    unseen: Unseen,
    /// The server has gone: the cells' further outputs are kept for the notebook's next opening.
    meanwhile: Option<Meanwhile>,
    /// Replies on the kernel's death, sent a little after the death was told.
    obituaries: Vec<(Channel, Bytes, Message)>,
    end: Option<End>,
}

/// Something for the user at the next cell.
#[derive(Debug)]
enum Notice {
    Text(String),
    /// Answered cells whose effects are gone.
    Lost(Vec<Unsaved>),
    /// An output of a cell during the absence of all clients.
    Output(meanwhile::Output),
}

/// A client's questions before it accepts a kernel.
const INFO: &str = "kernel_info_request";

impl Front {
    pub fn new(signing_key: &[u8], session: String) -> Self {
        Self {
            author: Author::new(signing_key, session),
            durable: false,
            launched: None,
            tenure: Tenure(0),
            open: Vec::new(),
            requests_wait: false,
            interrupts: Vec::new(),
            answered: Vec::new(),
            maybe_read: Vec::new(),
            marks: Marks::default(),
            audience: Audience::default(),
            outputs: VecDeque::new(),
            replies: HashMap::new(),
            kept: 0,
            dropped: 0,
            ledger: Ledger::default(),
            heard: CellNumber(0),
            unheard: Vec::new(),
            heard_told: (CellNumber(0), Tenure(0)),
            counts: VecDeque::new(),
            last_count: None,
            notices: Vec::new(),
            told: Told::default(),
            before: Before::default(),
            seating: Seating::default(),
            unseen: Unseen::default(),
            meanwhile: None,
            obituaries: Vec::new(),
            end: None,
        }
    }

    /// Notes the time of the kernel's launch, on the ports of a kernel that may have ended before.
    #[must_use]
    pub fn launched(mut self, at: Timestamp) -> Self {
        self.launched = Some(at);
        self
    }

    /// Its kernel keeps a log.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// How the kernel ended, once it has.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// The tenure whose replica gets the requests.
    pub fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// The last execution count that clients have read.
    pub fn last_count(&self) -> Option<i64> {
        self.last_count
    }

    /// Clients read this execution count. A front that follows tells it to the replica that is elected then.
    fn clients_read(&mut self, count: Option<i64>) {
        if count.is_some() && count != self.last_count {
            self.last_count = count;
            self.unseen.note(count.map(Change::Count));
        }
    }

    /// A client sent a request.
    pub fn request(
        &mut self,
        channel: Channel,
        identity: &Bytes,
        message: Message,
        at: Time,
        wire: &mut impl Wire,
    ) -> Asked {
        let Some((header, envelope)) = self.verified(&message) else {
            return Asked::Nothing;
        };
        if let Some(asked) = self.order((channel, identity), (&header, &envelope), &message) {
            return asked;
        }
        if self.end.is_some() {
            return Asked::Nothing;
        }
        if header.msg_type.starts_with("comm_")
            && let Ok(content) = serde_json::from_slice::<CommContent>(&envelope.content)
        {
            if self.page_says(&header, &envelope, &content, at, wire) {
                return Asked::Nothing;
            }
            self.seating.comm(identity, &header, &envelope, content, &message);
        }
        if header.msg_type == INFO && self.is_informed((channel, identity), &envelope.header, at, wire) {
            return Asked::Kernel;
        }
        let is_cell = header.msg_type == "execute_request";
        if is_cell || can_be_asked_again(channel, &header.msg_type) {
            let id = CellId::from(header.msg_id.as_str());
            if self.open.iter().any(|o| o.id == id && o.identity != *identity) {
                self.refuse_second(channel, identity, &envelope.header, at, wire);
                return Asked::Nothing;
            }
            if is_cell {
                self.cell_asked(&header, &envelope, at, wire);
                self.before.asked(&id);
                if !envelope.execute().is_some_and(|e| e.is_hidden()) {
                    self.tell_notices(&envelope.header, at, wire);
                }
                // A client may count its ids from the beginning. The log keeps an answer by the cell's id until the
                // front has heard the answer.
                if self.unheard.iter().any(|(_, cell)| *cell == id) {
                    self.acknowledge_upto(self.heard, wire);
                }
            }
            self.opens(envelope, &header, (channel, identity, &message), wire);
        } else {
            wire.send(Item::Jupyter {
                channel,
                identity: identity.clone(),
                message,
            });
        }
        if is_cell {
            self.cell_waits(at, wire);
        }
        match is_cell || header.msg_type == INFO {
            true => Asked::Kernel,
            false => Asked::Nothing,
        }
    }

    /// A request with the signature of a client that has the kernel's key.
    fn verified(&self, message: &Message) -> Option<(Header, Envelope)> {
        let Ok(envelope) = Envelope::parse(message) else {
            tracing::warn!("dropped something that is no message of Jupyter's");
            return None;
        };
        let signed = self.author.signer().verify(&envelope);
        let header = signed.and_then(|()| envelope.header());
        let header = header.inspect_err(|error| tracing::warn!(%error, "dropped a message"));
        Some((header.ok()?, envelope))
    }

    /// Whether the request predates this kernel's launch. A manager of a dead kernel asks for a shutdown all the same
    /// before a restart. The manager's socket holds the request back for a second, and then gives it to the present
    /// listener. Managers run on the fronts' hosts, so the clocks agree.
    fn is_older(&self, request: &Envelope) -> bool {
        request
            .date()
            .zip(self.launched)
            .is_some_and(|(made, launched)| made < launched)
    }

    /// Greets a client with a subscription to iopub (JEP 65), and sends the outputs without any subscriber before.
    pub fn subscribed(&mut self, topic: &Bytes, at: Time, wire: &mut impl Wire) {
        let parent = Bytes::from_static(b"{}");
        let content = json!({"subscription": String::from_utf8_lossy(topic)});
        let mut welcome = self
            .author
            .write("iopub_welcome", &parent, &json!({}), &content, at);
        if !topic.is_empty() {
            welcome.identities = vec![topic.clone()];
        }
        wire.publish(&welcome.message(), None);
        if self.dropped > 0 {
            let text = format!(
                "gresshopper: {} outputs were dropped while no client was connected\n",
                self.dropped
            );
            self.dropped = 0;
            wire.publish(&self.author.stderr(&parent, &text, at), None);
        }
        self.audience_changes(at, wire);
        self.flush(wire);
    }

    /// Sends the outputs that found no subscriber. A client may be subscribed before the front hears of it. So these
    /// outputs also go before each later message: a client that has heard `idle` waits for no more outputs.
    fn flush(&mut self, wire: &mut impl Wire) {
        if self.audience.is_awaited() {
            return;
        }
        while let Some(waiting) = self.outputs.pop_front() {
            if !wire.publish(&waiting.message, waiting.mark) {
                self.outputs.push_front(waiting);
                return;
            }
            self.kept -= waiting.message.size();
        }
    }

    /// A client has a connection (again): the client gets the replies of its absence.
    pub fn connected(&mut self, channel: Channel, identity: &Bytes, wire: &mut impl Wire) {
        let key = (channel, identity.clone());
        let mut waiting = self.replies.remove(&key).unwrap_or_default().into_iter();
        for Waiting { mark, message } in waiting.by_ref() {
            let size = message.size();
            match wire.reply(channel, identity, message, mark) {
                Ok(()) => self.kept -= size,
                Err(message) => {
                    let rest = std::iter::once(Waiting { mark, message })
                        .chain(waiting)
                        .collect();
                    self.replies.insert(key, rest);
                    return;
                }
            }
        }
    }

    /// A client is gone for good: nobody will fetch its replies.
    pub fn gone(&mut self, identity: &Bytes, wire: &mut impl Wire) {
        for channel in Channel::ALL {
            for waiting in self
                .replies
                .remove(&(channel, identity.clone()))
                .unwrap_or_default()
            {
                self.kept -= waiting.message.size();
                self.gives_up(waiting.mark, wire);
            }
        }
        self.seating.client_gone(identity);
        let identity = hex::encode(identity);
        wire.send(Item::Note(Note::ClientGone { identity }));
    }

    /// Whether a reply is due to a client, or will be.
    pub fn owes(&self, identity: &Bytes) -> bool {
        self.open.iter().any(|o| o.identity == *identity) || self.replies.keys().any(|(_, to)| to == identity)
    }

    /// The replica has dropped outputs on their way here.
    fn lacks(&mut self, messages: u64, at: Time, wire: &mut impl Wire) {
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.dropped += messages;
        }
        let more = "more came than the connection to the kernel's node could carry";
        self.tell(&format!("{messages} outputs were dropped: {more}"), at, wire);
    }

    /// The user should read a sentence, at an open cell or at the next cell.
    pub fn tell(&mut self, sentence: &str, at: Time, wire: &mut impl Wire) {
        self.notices
            .push(Notice::Text(format!("gresshopper: {sentence}.\n")));
        self.tell_at_open_cell(at, wire);
    }

    /// Shows a text at the open cell, whose reader sees the text before the reply; without an open cell the next cell
    /// shows the text.
    fn tell_at_open_cell(&mut self, at: Time, wire: &mut impl Wire) {
        let open = self.open.iter().find(|o| o.is_shown() && !self.before.has(&o.id));
        if let Some(open) = open {
            let header = open.header.clone();
            self.tell_notices(&header, at, wire);
        }
    }

    // While the notebook has no server.

    /// The server has gone. Outputs not yet taken, and all later ones, are kept for the notebook's next opening.
    pub fn part(&mut self) {
        let mut meanwhile = self.take_untold();
        for waiting in &self.outputs {
            meanwhile.keep(&waiting.message);
        }
        self.meanwhile = Some(meanwhile);
    }

    /// The losses and the earlier news that nobody has read: the next opening tells them.
    fn take_untold(&mut self) -> Meanwhile {
        let mut meanwhile = self.before.take_untold();
        for unread in &mut meanwhile.unsaved {
            unread.is_lost = true;
        }
        for notice in &mut self.notices {
            if let Notice::Lost(lost) = notice {
                meanwhile.unsaved.append(lost);
            }
        }
        self.notices.retain(|notice| !matches!(notice, Notice::Lost(_)));
        meanwhile
    }

    /// The kernel has ended, with this message for its next front. `None` means that the kernel ended at its user's
    /// wish.
    pub fn parted(&mut self) -> Option<Meanwhile> {
        let unsaved = self.at_stake();
        if self.meanwhile.is_none() && matches!(self.end, Some(End::Dead { .. })) {
            self.meanwhile = Some(self.take_untold());
        }
        let mut meanwhile = self.meanwhile.take()?;
        meanwhile.unsaved.extend(unsaved);
        // Cells run in their order: cells behind the first have not begun, whatever the front allowed.
        let cells = self.open.iter().filter(|o| o.is_cell).enumerate();
        for (i, open) in cells.filter(|(_, o)| o.is_shown()) {
            let name = open.message.as_ref().map(meanwhile::name_of).unwrap_or_default();
            match i == 0 && open.may_have_begun {
                true => meanwhile.lost.push(name),
                false => meanwhile.not_run.push(name),
            }
        }
        Some(meanwhile)
    }

    /// A reply goes to its client, or waits for the client's return.
    fn reply(&mut self, to: (Channel, Bytes), message: Message, mark: Mark, wire: &mut impl Wire) {
        let mark = Some(mark);
        if let Err(message) = wire.reply(to.0, &to.1, message, mark) {
            self.kept += message.size();
            self.replies
                .entry(to)
                .or_default()
                .push(Waiting { mark, message });
            self.enforce(wire);
        }
    }

    /// Shows an error at a cell, and answers the cell.
    fn answer_open(&mut self, mut open: Open, shown: Value, at: Time, wire: &mut impl Wire) {
        let reply = self.error_reply(&mut open, shown, at, wire);
        self.send_final(open, reply, wire);
    }

    /// Sends the front's own answer to a cell.
    fn send_final(&mut self, open: Open, reply: Message, wire: &mut impl Wire) {
        let (to, mark) = ((Channel::Shell, open.identity.clone()), self.marks.give(None));
        self.answers(open, (mark, &reply), true);
        // After a front's death its clients may not be back yet.
        self.reply(to, reply, mark, wire);
    }

    /// Shows something of the front's own, now or once somebody is there.
    fn show(&mut self, message: Message, mark: Option<Mark>, at: Time, wire: &mut impl Wire) {
        if !self.publish(&message, mark, at, wire) {
            self.keep(message, mark, wire);
        }
    }

    fn error_reply(&mut self, open: &mut Open, shown: Value, at: Time, wire: &mut impl Wire) -> Message {
        let message = self.author.publish("error", &open.header, &json!({}), &shown, at);
        self.show(message, None, at, wire);
        let mut content = shown;
        content["status"] = "error".into();
        // Notebooks show no number for 0, as if the cell had never run.
        let count = self.last_count.filter(|_| open.runs).unwrap_or(0);
        content["execution_count"] = count.into();
        self.final_reply(open, &content, at, wire)
    }

    fn final_reply(&mut self, open: &mut Open, content: &Value, at: Time, wire: &mut impl Wire) -> Message {
        open.idle = Idle::OnItsWay(self.say_idle(&open.header, at, wire));
        let metadata =
            json!({"started": date(at), "dependencies_met": true, "engine": "", "status": content["status"]});
        let reply = self
            .author
            .write("execute_reply", &open.header, &metadata, content, at);
        let reply = reply.message();
        self.has_answered(&reply, None, at, wire);
        reply
    }

    /// Something came from the replica.
    pub fn item(&mut self, seq: u64, item: Item, at: Time, wire: &mut impl Wire) {
        match item {
            Item::Jupyter {
                channel: Channel::Iopub,
                message,
                ..
            } => {
                self.hears_of_cell(&message);
                if self.show_before(&message, at, wire) {
                    return wire.done(seq);
                }
                let clears = self.told.are_cleared_by(&message);
                self.output(seq, message, at, wire);
                if clears {
                    self.tell_again(at, wire);
                }
            }
            Item::Jupyter {
                channel,
                identity,
                message,
            } => {
                let message = self.renewed(message);
                if channel == Channel::Shell {
                    self.has_answered(&message, Some(seq), at, wire);
                }
                let mark = match channel {
                    Channel::Shell => self.marks.give_reply(seq),
                    _ => self.marks.give(Some(seq)),
                };
                let answered = channel != Channel::Stdin && !self.close(mark, &message);
                let of_before = self.before.is_of(&message);
                if answered || of_before {
                    if of_before && channel == Channel::Stdin {
                        self.asks_before(at, wire);
                    }
                    return self.gives_up(Some(mark), wire);
                }
                self.reply((channel, identity), message, mark, wire);
            }
            Item::Note(note) => {
                let done = match note {
                    Note::Answered { .. } => self.marks.announces(seq),
                    _ => Some(seq),
                };
                self.note(note, at, wire);
                done.into_iter().for_each(|seq| wire.done(seq));
            }
        }
    }

    fn note(&mut self, note: Note, at: Time, wire: &mut impl Wire) {
        match note {
            Note::KernelOver { over: Over::Shutdown } => self.end = Some(End::Shutdown),
            Note::KernelOver {
                over: Over::Died { reason } | Over::NotStarted { reason },
            } => {
                self.die(reason, at, wire);
            }
            Note::Dropped { messages, .. } => self.lacks(messages, at, wire),
            Note::Begins { cell } => {
                self.may_begin(&cell, true);
                wire.send(Item::Note(Note::MayBegin { cell }));
            }
            Note::NotBegun { cell } => self.may_begin(&cell, false),
            Note::Answered {
                cell,
                number,
                count,
                lost,
            } => {
                self.heard = CellNumber(number);
                self.unheard.push((self.heard, cell.clone()));
                self.clients_read(count);
                if !lost {
                    self.is_at_stake(self.heard, cell, count);
                }
            }
            Note::Settled { through } => self.is_saved(CellNumber(through)),
            Note::Tenure { tenure, lost } => {
                self.tenure = tenure;
                self.lost(lost, at, wire);
            }
            Note::ClientGone { .. }
            | Note::Interrupt
            | Note::End
            | Note::Sleep { .. }
            | Note::Renamed { .. }
            | Note::HandedBefore { .. }
            | Note::MayBegin { .. }
            | Note::Heard { .. }
            | Note::KernelUp { .. }
            | Note::MoveReady { .. }
            | Note::MoveFailed { .. }
            | Note::MoveAsked { .. }
            | Note::MoveOff { .. }
            | Note::Moving { .. }
            | Note::Grow { .. }
            | Note::Grown { .. }
            | Note::Members { .. }
            | Note::Leaving { .. }
            | Note::Asleep { .. } => {}
        }
    }

    /// Tells the replica of the answers and losses free to forget.
    pub fn acknowledge(&mut self, wire: &mut impl Wire) {
        self.acknowledge_upto(self.may_be_forgotten(), wire);
    }

    fn acknowledge_upto(&mut self, answer: CellNumber, wire: &mut impl Wire) {
        let heard = (answer, self.tenure);
        if heard > self.heard_told && self.tenure > Tenure(0) {
            self.heard_told = heard;
            self.unheard.retain(|(number, _)| *number > answer);
            let (cells, losses) = (heard.0.0, heard.1);
            wire.send(Item::Note(Note::Heard { cells, losses }));
        }
    }

    fn output(&mut self, seq: u64, message: Message, at: Time, wire: &mut impl Wire) {
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.keep(&message);
        }
        let mark = self.marks.give(Some(seq));
        self.hears_idle(&message, mark);
        let mark = Some(mark);
        if self.publish(&message, mark, at, wire) {
            return;
        }
        if !is_worth_keeping(&message) {
            return self.gives_up(mark, wire);
        }
        self.keep(message, mark, wire);
    }

    /// Keeps an output until there are subscribers.
    pub(super) fn keep(&mut self, message: Message, mark: Option<Mark>, wire: &mut impl Wire) {
        self.kept += message.size();
        self.outputs.push_back(Waiting { mark, message });
        self.enforce(wire);
    }

    fn enforce(&mut self, wire: &mut impl Wire) {
        while self.kept > KEEP && self.outputs.len() > 1 {
            let oldest = self.outputs.pop_front().expect("there are two");
            self.kept -= oldest.message.size();
            self.dropped += 1;
            self.gives_up(oldest.mark, wire);
        }
    }

    /// The kernel died. The reason shows at the running cell at once. The cell's reply follows by
    /// [`Self::send_obituaries`]: clients that watch the kernel's process should notice its death first, as with a
    /// plain kernel.
    pub fn die(&mut self, reason: String, at: Time, wire: &mut impl Wire) {
        if self.end.is_some() {
            return;
        }
        self.hide_texts(at, wire);
        let mut open = std::mem::take(&mut self.open);
        let questions: Vec<Open> = open.extract_if(.., |o| !o.is_cell).collect();
        open.retain(|cell| !self.before.has(&cell.id));
        for (i, mut open) in open.into_iter().enumerate() {
            let reply = if i == 0 {
                self.error_reply(&mut open, failure("KernelDied", &reason), at, wire)
            } else {
                self.final_reply(&mut open, &json!({"status": "aborted"}), at, wire)
            };
            self.obituaries.push((Channel::Shell, open.identity, reply));
        }
        for open in questions {
            if let Some(reply) = self.refusal(&open.header, "KernelDied", &reason, at) {
                self.obituaries.push((open.channel, open.identity, reply));
            }
        }
        self.end = Some(End::Dead { reason });
    }

    /// Answers what the dead kernel was asked.
    pub fn send_obituaries(&mut self, wire: &mut impl Wire) {
        for (channel, identity, reply) in std::mem::take(&mut self.obituaries) {
            // A client away now will find another kernel on its return.
            let _ = wire.reply(channel, &identity, reply, None);
        }
    }

    /// What must hold after every call.
    pub fn sanity_check(&self) {
        let outputs: usize = self.outputs.iter().map(|w| w.message.size()).sum();
        let replies: usize = self.replies.values().flatten().map(|w| w.message.size()).sum();
        assert_eq!(self.kept, outputs + replies);
        assert!(self.obituaries.is_empty() || self.end.is_some());
        self.seating.check();
        self.unseen.check();
    }
}

fn failure(name: &str, reason: &str) -> Value {
    json!({"ename": name, "evalue": reason, "traceback": [format!("{name}: {reason}")]})
}

/// Whether an output is for a cell or a widget. A kernel's own states, long past, are of no use to who comes later.
fn is_worth_keeping(message: &Message) -> bool {
    let Ok(envelope) = Envelope::parse(message) else {
        return false;
    };
    envelope
        .parent()
        .is_some_and(|p| p.msg_type == "execute_request" || p.msg_type.starts_with("comm_"))
}

#[cfg(test)]
pub(crate) mod tests;
