//! Requests without a reply: which replica gets them, and their record for the kernel's next front.
//!
//! A front may be killed together with the replica of its requests: nobody else knows of them then. Each open request
//! is recorded, and so is the front's word before that word leaves. The next front hands out the requests that the
//! replica lacks, under the first tenure in which the cell may have begun (docs/replication.md, "Why each attempt is on
//! one replica").

use super::losses::account;
use super::marks::{Idle, Mark};
use super::texts::Text;
use super::unseen::{Answer, Change, Request};
use super::{Front, INFO, Records, Wire, failure, is_open};
use bytes::Bytes;
use hop_protocol::jupyter::{Channel, Envelope, Header};
use hop_protocol::link::Item;
use hop_protocol::message::{Behind, InFlight, Note};
use hop_words::id::{CellId, Tenure};
use hop_words::time::Timestamp as Time;
use hop_zmtp::Message;
use serde_json::Value;

/// A request without a reply.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: CellId,
    pub(super) channel: Channel,
    pub(super) identity: Bytes,
    pub(super) header: Bytes,
    pub(super) is_cell: bool,
    /// The whole request, for another replica. `None` means that an earlier front took the request, and has left no
    /// record.
    pub(super) message: Option<Message>,
    /// The first tenure under which the cell may have begun.
    pub(super) first: Option<Tenure>,
    /// The cell begins only with the front's word.
    pub(super) asks: bool,
    /// The replica of this tenure may have begun the cell.
    pub(super) may_have_begun: bool,
    /// The replica has the request, or will.
    pub(super) sent: bool,
    /// An executor has said that it runs the code.
    pub(super) runs: bool,
    /// The text of its wait.
    pub(super) text: Text,
    pub(super) idle: Idle,
    /// `true` if a killed front had the cell's reply: the client may have read that reply.
    may_be_read: bool,
}

impl Front {
    /// Whether a client waits for a request that wakes the kernel.
    pub fn is_wanted(&self) -> bool {
        let wants = |o: &Open| o.asks_for_info() || (o.is_cell && !self.before.has(&o.id));
        self.end.is_none() && self.open.iter().any(wants)
    }

    /// A request is open from now on, and goes to the replica unless it waits behind an earlier front's.
    pub(super) fn opens(
        &mut self,
        envelope: Envelope,
        header: &Header,
        open: (Channel, &Bytes, &Message),
        wire: &mut impl Wire,
    ) {
        let (channel, identity, message) = open;
        // A subshell's cell goes to the kernel at once.
        let asks = self.durable && header.subshell_id.is_none();
        let is_cell = header.msg_type == "execute_request";
        let mut open = Open {
            id: header.msg_id.as_str().into(),
            channel,
            identity: identity.clone(),
            header: envelope.header,
            is_cell,
            message: Some(message.clone()),
            first: None,
            asks,
            may_have_begun: !asks,
            sent: false,
            runs: false,
            text: Text::default(),
            idle: if is_cell { Idle::Due } else { Idle::Left },
            may_be_read: false,
        };
        // A client may use an id again before its last reply is read.
        self.is_asked_again(&open.id);
        self.unseen.note(open.record(self.tenure));
        if !self.requests_wait {
            open.send(None, wire);
        }
        self.open.push(open);
    }

    /// Goes on with an earlier front's open requests and its records for pages. From now on changes are recorded.
    pub fn take_up(&mut self, records: &[u8], at: Time) {
        for change in self.unseen.take_up(records) {
            match change {
                Change::Answered(answer) => self.takes_answer(&answer),
                Change::Open(request) => {
                    let Some(open) = Open::recorded(request, self.durable) else {
                        continue;
                    };
                    match self.open.iter_mut().find(|o| o.id == open.id) {
                        Some(old) => *old = open,
                        None => self.open.push(open),
                    }
                }
                Change::Closed(id) => self.closes(&id),
                Change::Audience(count) => self.audience.awaits(count),
                Change::Count(count) => self.last_count = Some(count),
                Change::Account(change) => self.takes_account(change),
                _ => {}
            }
        }
        let ledger = &self.ledger;
        for open in &mut self.open {
            open.may_be_read = ledger.cells().any(|cell| *cell == open.id);
        }
        self.takes_on_debts(at);
        self.requests_wait = !self.open.is_empty();
    }

    /// An earlier front has recorded that nothing is left to do for a request.
    fn closes(&mut self, id: &CellId) {
        self.open.retain(|o| o.id != *id);
        self.forgets_answer(id);
    }

    /// Changes to be recorded now for the kernel's next front.
    pub fn records(&mut self) -> Option<Records> {
        let (answered, open, audience, tenure) = (&self.answered, &self.open, &self.audience, self.tenure);
        let count = self.last_count;
        let (ledger, counts, notices) = (&self.ledger, &self.counts, &self.notices);
        let requests = open.iter().filter_map(|o| o.message.as_ref());
        let size =
            requests.map(Message::size).sum::<usize>() + answered.iter().map(|a| a.size()).sum::<usize>();
        let all = || {
            let answered = answered.iter().filter_map(move |a| a.record(tenure));
            let requests = answered.chain(open.iter().filter_map(move |o| o.record(tenure)));
            requests
                .chain([audience.record()])
                .chain(count.map(Change::Count))
                .chain(account(ledger, counts, notices))
        };
        self.unseen.records(size, all)
    }

    /// The replica is to begin the cell, or gives back the front's word for it. The word leaves after its record.
    pub fn may_begin(&mut self, cell: &CellId, may: bool) {
        let tenure = self.tenure;
        if let Some(open) = self
            .open
            .iter_mut()
            .find(|o| o.id == *cell && o.may_have_begun != may)
        {
            open.may_have_begun = may;
            self.unseen.note(open.record(tenure));
        }
    }

    /// A replica came back to a new front, with its requests in work. It also has replies on their way to the requests
    /// in `answered`. No other request ever reached the replica.
    pub fn resume(
        &mut self,
        in_flight: Vec<InFlight>,
        answered: Option<&[CellId]>,
        tenure: Tenure,
        wire: &mut impl Wire,
    ) {
        self.tenure = tenure;
        self.requests_wait = false;
        let has = |id: &CellId| answered.is_none_or(|a| a.contains(id)) || in_flight.iter().any(|f| f.is(id));
        for open in &mut self.open {
            open.sent |= has(&open.id);
        }
        self.maybe_read = answered.unwrap_or_default().to_vec();
        let flights = in_flight.into_iter().filter_map(Open::from_flight);
        let is_known =
            |id: &CellId| is_open(&self.open, id) || self.answered.iter().any(|a| a.open.id == *id);
        let unknown: Vec<Open> = flights.filter(|f| !is_known(&f.id)).collect();
        self.open.splice(0..0, unknown);
        for open in self.open.iter_mut().filter(|o| !o.sent) {
            open.send(None, wire);
        }
        self.send_interrupts(wire);
    }

    /// The reply, as another message if the client may have read it: a killed front's note of it may be missing.
    pub(super) fn renewed(&mut self, reply: Message) -> Message {
        if self.maybe_read.is_empty() {
            return reply;
        }
        let Ok(mut envelope) = Envelope::parse(&reply) else {
            return reply;
        };
        let parent = envelope.parent().map(|p| CellId::from(p.msg_id.as_str()));
        let Some(at) = self
            .maybe_read
            .iter()
            .position(|cell| Some(cell) == parent.as_ref())
        else {
            return reply;
        };
        self.maybe_read.swap_remove(at);
        match self.author.renew(&mut envelope) {
            Ok(()) => envelope.message(),
            Err(_) => reply,
        }
    }

    // From one replica to the next.

    /// Sends the requests to this tenure's replica from now on, the oldest first. `met` says whether the earlier
    /// replica ever had a connection to this front. If not, only an earlier front's requests can have begun there, and
    /// the others wait for this replica.
    pub fn next_tenure(&mut self, tenure: Tenure, met: bool, at: Time, wire: &mut impl Wire) {
        self.hide_executors_texts(at, wire);
        let last = std::mem::replace(&mut self.tenure, tenure);
        let waited = std::mem::take(&mut self.requests_wait);
        self.marks.new_stream();
        self.owes_answers(at, wire);
        if !met && !waited {
            return;
        }
        if met {
            self.seating.introduce(wire);
        }
        let (mut unknown, mut is_behind) = (Vec::new(), false);
        for open in self.open.iter_mut().filter(|o| met || !o.sent) {
            if open.is_cell && open.may_have_begun {
                open.first.get_or_insert(last);
            }
            open.may_have_begun = !open.asks;
            self.unseen.note(open.record(tenure));
            let waits = is_behind && open.waits_in_line();
            // A client reads no loss of a cell that it has an answer to, so the later cells run.
            is_behind |= open.is_cell && !open.may_be_read;
            let how = if open.first.is_some() {
                Behind::Queued
            } else {
                Behind::New
            };
            let behind = waits.then_some((how, tenure));
            if !open.send(behind, wire) {
                unknown.push(open.id.clone());
            }
        }
        for cell in unknown {
            self.lose(&cell, at, wire);
        }
        self.send_interrupts(wire);
    }

    /// A cell whose request this front never had can't be handed to another replica.
    fn lose(&mut self, cell: &CellId, at: Time, wire: &mut impl Wire) {
        let Some(index) = self.open.iter().position(|o| o.id == *cell) else {
            return;
        };
        let open = self.open.remove(index);
        if self.loses_before(&open, at, wire) {
            self.unseen.note(Some(Change::Closed(open.id)));
            return;
        }
        let reason = "the kernel and its front were lost while the cell was under way: run it again";
        let content = failure("CellLost", reason);
        self.answer_open(open, content, at, wire);
    }

    /// Refuses a request with the id of another client's open request: kernel, log and outputs tell requests by
    /// their ids. The refusal is the reply alone: an output would be shown at the other request.
    pub(super) fn refuse_second(
        &mut self,
        channel: Channel,
        identity: &Bytes,
        request: &Bytes,
        at: Time,
        wire: &mut impl Wire,
    ) {
        let why = "a request of another client has the same msg_id and has no reply yet: send it again with its own";
        if let Some(reply) = self.refusal(request, "DuplicateRequest", why, at) {
            let mark = self.marks.give(None);
            self.reply((channel, identity.clone()), reply, mark, wire);
        }
    }

    /// An error in the place of a request's reply. `None` means that clients expect no error, and learn of a dead
    /// kernel by other means.
    pub(super) fn refusal(&mut self, request: &Bytes, name: &str, why: &str, at: Time) -> Option<Message> {
        let asked = serde_json::from_slice::<Header>(request).ok()?.msg_type;
        let kind = asked.strip_suffix("_request").filter(|_| asked != INFO)?;
        let mut content = failure(name, why);
        content["status"] = "error".into();
        let kind = format!("{kind}_reply");
        let reply = self
            .author
            .write(&kind, request, &serde_json::json!({}), &content, at);
        Some(reply.message())
    }

    /// Closes the request that this reply answers. False: the request was answered in the kernel's place.
    pub(super) fn close(&mut self, mark: Mark, reply: &Message) -> bool {
        if self.open.is_empty() && !self.seating.has_answered() {
            return true;
        }
        let Ok(envelope) = Envelope::parse(reply) else {
            return true;
        };
        let Some(Header { msg_id, msg_type, .. }) = envelope.parent() else {
            return true;
        };
        if msg_type == INFO {
            self.seating.learns(&envelope.content);
        }
        let of_it = |o: &mut Open| o.id.as_str() == msg_id;
        let open: Vec<Open> = self.open.extract_if(.., of_it).collect();
        for mut open in open {
            // Nobody waits for a cell of an earlier server.
            if self.before.has(&open.id) {
                open.idle = Idle::Left;
            }
            self.answers(open, (mark, reply), false);
        }
        !self.seating.is_answered(&msg_id)
    }
}

impl Open {
    /// Hands the request out. False: the request is not known. `tenure` is the present one.
    fn send(&mut self, behind: Option<(Behind, Tenure)>, wire: &mut impl Wire) -> bool {
        let Some(message) = self.message.clone() else {
            return false;
        };
        let tenure = self.first.or_else(|| behind.map(|(_, tenure)| tenure));
        if let Some(tenure) = tenure {
            let cell = self.id.clone();
            let behind = behind.map(|(how, _)| how);
            let lacks = self.idle == Idle::Due;
            wire.send(Item::Note(Note::HandedBefore {
                cell,
                tenure,
                behind,
                lacks,
            }));
        }
        let (channel, identity) = (self.channel, self.identity.clone());
        wire.send(Item::Jupyter {
            channel,
            identity,
            message,
        });
        self.sent = true;
        true
    }

    /// Whether the request is a cell that its user sees.
    pub(super) fn is_shown(&self) -> bool {
        let is_hidden = |e: Envelope| e.execute().is_some_and(|e| e.is_hidden());
        self.is_cell && !self.envelope().is_some_and(is_hidden)
    }

    /// Whether the cell runs in its turn. A subshell's cell doesn't, and a kernel without a log asks no front.
    pub(super) fn is_in_line(&self) -> bool {
        self.is_cell && self.asks
    }

    /// Whether the cell is in line, and can't have begun.
    pub(super) fn waits(&self) -> bool {
        self.is_in_line() && !self.may_have_begun && self.first.is_none()
    }

    /// Whether an error of the cell aborts the cells behind it.
    pub(super) fn stops_on_error(&self) -> bool {
        self.content()["stop_on_error"] != false
    }

    /// The cell's text.
    pub(super) fn code(&self) -> String {
        self.content()["code"].as_str().unwrap_or_default().to_owned()
    }

    fn envelope(&self) -> Option<Envelope> {
        Envelope::parse(self.message.as_ref()?).ok()
    }

    fn content(&self) -> Value {
        let envelope = self.envelope();
        let content = envelope.and_then(|e| serde_json::from_slice(&e.content).ok());
        content.unwrap_or_default()
    }

    /// Whether there is no word yet that the cell runs. A silent cell sends none.
    fn waits_in_line(&self) -> bool {
        let says = |e: Envelope| e.execute().is_some_and(|e| !e.silent);
        self.is_in_line() && !self.runs && self.envelope().is_some_and(says)
    }

    pub(super) fn asks_for_info(&self) -> bool {
        serde_json::from_slice::<Header>(&self.header).is_ok_and(|h| h.msg_type == INFO)
    }

    /// Whether `hop run` has sent it.
    pub(super) fn is_unattended(&self) -> bool {
        let metadata = self
            .envelope()
            .and_then(|e| serde_json::from_slice::<Value>(&e.metadata).ok());
        metadata.is_some_and(|m| !m["gresshopper"]["run"].is_null())
    }

    /// The request as the next front gets it.
    pub(super) fn record(&self, tenure: Tenure) -> Option<Change> {
        let message = self.message.as_ref()?;
        Some(Change::Open(Request {
            channel: self.channel,
            identity: hex::encode(&self.identity),
            frames: message.0.iter().map(hex::encode).collect(),
            first: self
                .first
                .or_else(|| (self.is_cell && self.may_have_begun).then_some(tenure)),
            may_have_begun: self.may_have_begun,
            runs: self.runs,
            text: self.text.clone(),
            is_idle: self.idle == Idle::Left,
        }))
    }

    fn recorded(request: Request, durable: bool) -> Option<Self> {
        let frames: Result<Vec<Bytes>, _> = request
            .frames
            .iter()
            .map(|f| hex::decode(f).map(Bytes::from))
            .collect();
        let message = Message(frames.ok()?);
        let envelope = Envelope::parse(&message).ok()?;
        let header = envelope.header().ok()?;
        Some(Self {
            id: header.msg_id.as_str().into(),
            channel: request.channel,
            identity: hex::decode(request.identity).ok()?.into(),
            header: envelope.header,
            is_cell: header.msg_type == "execute_request",
            message: Some(message),
            first: request.first,
            asks: durable && header.subshell_id.is_none(),
            may_have_begun: request.may_have_begun,
            sent: false,
            runs: request.runs,
            text: request.text,
            idle: if request.is_idle { Idle::Left } else { Idle::Due },
            may_be_read: false,
        })
    }

    /// An answered cell whose client may lack a part of the answer.
    pub(super) fn answered(answer: &Answer) -> Option<Self> {
        let (identity, header) = (
            hex::decode(&answer.identity).ok()?,
            hex::decode(&answer.header).ok()?,
        );
        let mut open = Self::taken((answer.channel, identity), answer.cell.clone(), header.into());
        if answer.is_idle {
            open.idle = Idle::Left;
        }
        Some(open)
    }

    fn from_flight(flight: InFlight) -> Option<Self> {
        let header: Header = serde_json::from_str(&flight.header).ok()?;
        let to = (Channel::Shell, hex::decode(flight.identity).ok()?);
        Some(Self::taken(to, header.msg_id.into(), flight.header.into()))
    }

    /// A cell that an earlier front has taken, and whose request isn't here.
    fn taken((channel, identity): (Channel, Vec<u8>), id: CellId, header: Bytes) -> Self {
        Self {
            id,
            channel,
            identity: identity.into(),
            header,
            is_cell: true,
            message: None,
            first: None,
            asks: false,
            may_have_begun: true,
            sent: true,
            runs: true,
            text: Text::default(),
            idle: Idle::Due,
            may_be_read: false,
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
