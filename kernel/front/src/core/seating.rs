//! Answers to clients while the kernel has no node, so that no client gives up. Also the clients that announced
//! themselves, for the kernel's next replica (docs/wiring.md, "While the kernel has no replica").

use super::unseen::Change;
use super::{Front, Open, Wire};
use crate::life::{Then, Unanswered};
use bytes::Bytes;
use hop_protocol::comm::{ANNOUNCED_MAX, CommContent};
use hop_protocol::jupyter::{Channel, Envelope, Header};
use hop_protocol::link::Item;
use hop_words::id::{CellId, Tenure};
use hop_words::time::{Timestamp as Time, spell};
use hop_zmtp::Message;
use serde_json::{Value, json};

/// Most remembered requests with an answer in the kernel's place.
const ANSWERED_MAX: usize = 1000;

/// The reason for the wait of the kernel's seat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeatWaits {
    /// Slurm's word for the reason, such as `Resources`.
    pub reason: String,
    /// When Slurm expects to start the seat.
    pub start: Option<Time>,
}

/// The reason if Slurm can't say one.
pub(crate) const NO_SLURMCTLD: &str = "Slurm's controller doesn't answer";
/// The reason if the seat runs, and Slurm doesn't start the kernel's step in it.
pub(crate) const NO_STEP: &str = "Slurm has not started its process in its seat yet";

impl SeatWaits {
    /// Slurm's reason in a person's words.
    pub fn sentence(&self) -> String {
        // `ReqNodeNotAvail, UnavailableNodes:...` has its detail behind the word.
        let word = self.reason.split(',').next().unwrap_or_default().trim();
        let said = match word {
            "Priority" => "other jobs come first",
            "Resources" => "no node has room",
            "PartitionDown" | "PartitionInactive" => "the partition is down",
            "ReqNodeNotAvail" => "the nodes are not available",
            "QOSMaxJobsPerUserLimit" => "you have as many jobs as your QOS allows",
            "AssocMaxJobsLimit" => "your account has as many jobs as it may",
            "AssocGrpCpuLimit" => "your account uses as many cores as it may",
            "None" | "BeginTime" | "" => "Slurm is about to start it",
            known @ (NO_SLURMCTLD | NO_STEP) => known,
            other => return format!("Slurm's reason is {other}"),
        };
        said.to_owned()
    }
}

/// Why the kernel has no replica.
#[derive(Debug, PartialEq, Eq)]
enum Why {
    Seat(SeatWaits),
    /// The replica's connection broke.
    Unanswered(Unanswered),
    /// The replica was lost, and another one is started.
    Lost,
}

impl Why {
    fn sentence(&self) -> String {
        let (node, within, then) = match self {
            Self::Seat(seat) => return seat.sentence(),
            Self::Lost => return "its replica was lost, and another one is started".to_owned(),
            Self::Unanswered(Unanswered { node, within, then }) => (node, spell(*within), then),
        };
        let silent = match node {
            Some(node) => format!("its node {node} doesn't answer"),
            None => "its replica doesn't answer".to_owned(),
        };
        match then {
            Then::Elected => {
                format!(
                    "{silent}; another replica takes over, or one is started after {within} at the latest"
                )
            }
            Then::Started => format!("{silent}; another replica is started after {within} at the latest"),
            Then::Ends => format!("{silent}; the kernel ends if that lasts for {within}"),
        }
    }

    fn text(&self) -> String {
        let what = match self {
            Self::Seat(_) => "a node for this notebook's kernel",
            Self::Unanswered(_) | Self::Lost => "this notebook's kernel",
        };
        format!("Waiting for {what}: {}", self.sentence())
    }
}

/// The wait for a replica.
#[derive(Debug)]
struct Wait {
    why: Why,
    since: Time,
    /// The tenure in which the wait began.
    tenure: Tenure,
}

/// A client that shows notices.
#[derive(Debug)]
struct Announced {
    session: String,
    comm: String,
    identity: Bytes,
    header: Bytes,
    /// The client's `comm_open`, and its last word on the notebook's default need.
    messages: Vec<Message>,
}

#[derive(Debug, Default)]
pub(super) struct Seating {
    /// The answer of the kernelspec's last kernel to a `kernel_info_request`.
    info: Option<Value>,
    /// What the present kernel says.
    learnt: Option<Value>,
    wait: Option<Wait>,
    /// Requests already answered in the kernel's place.
    answered: Vec<CellId>,
    /// The oldest first.
    announced: Vec<Announced>,
}

impl Seating {
    fn notice(&self) -> Option<Value> {
        let Wait { why, since, .. } = self.wait.as_ref()?;
        let mut notice = json!({"state": "seat", "reason": why.sentence(), "since": seconds(*since)});
        if let Why::Seat(SeatWaits {
            start: Some(start), ..
        }) = why
        {
            notice["start"] = json!(seconds(*start));
        }
        Some(notice)
    }

    /// The wait in a cell's text.
    pub(super) fn text(&self) -> Option<String> {
        self.wait.as_ref().map(|wait| wait.why.text())
    }

    /// Whether the client of this session shows notices.
    pub(super) fn has_announced(&self, session: &str) -> bool {
        self.announced.iter().any(|a| a.session == session)
    }

    /// Whether this request was already answered in the kernel's place: the kernel's own reply is then superfluous.
    pub(super) fn is_answered(&mut self, request: &str) -> bool {
        let at = self.answered.iter().position(|id| id.as_str() == request);
        at.map(|at| self.answered.swap_remove(at)).is_some()
    }

    pub(super) fn has_answered(&self) -> bool {
        !self.answered.is_empty()
    }

    /// The kernel says what it is.
    pub(super) fn learns(&mut self, reply: &Bytes) {
        let content = serde_json::from_slice::<Value>(reply).ok();
        if let Some(content) = content.filter(|c| c["status"] == "ok") {
            self.learnt = (self.info.as_ref() != Some(&content)).then_some(content);
        }
    }

    /// A client announces itself, changes its announcement, or leaves.
    pub(super) fn comm(
        &mut self,
        identity: &Bytes,
        header: &Header,
        envelope: &Envelope,
        content: CommContent,
        message: &Message,
    ) {
        let known = self.announced.iter().position(|a| a.comm == content.comm_id);
        match (header.msg_type.as_str(), known) {
            ("comm_open", _) if content.announces() => {
                self.announced.retain(|a| a.session != header.session);
                if self.announced.len() == ANNOUNCED_MAX {
                    self.announced.remove(0);
                }
                self.announced.push(Announced {
                    session: header.session.clone(),
                    comm: content.comm_id,
                    identity: identity.clone(),
                    header: envelope.header.clone(),
                    messages: vec![message.clone()],
                });
            }
            ("comm_msg", Some(at)) if content.data.get("default_need").is_some() => {
                let messages = &mut self.announced[at].messages;
                messages.truncate(1);
                messages.push(message.clone());
            }
            ("comm_close", Some(at)) => {
                self.announced.remove(at);
            }
            _ => {}
        }
    }

    pub(super) fn client_gone(&mut self, identity: &Bytes) {
        self.announced.retain(|a| a.identity != *identity);
    }

    /// Introduces the clients to another replica.
    pub(super) fn introduce(&self, wire: &mut impl Wire) {
        for announced in &self.announced {
            for message in &announced.messages {
                wire.send(Item::Jupyter {
                    channel: Channel::Shell,
                    identity: announced.identity.clone(),
                    message: message.clone(),
                });
            }
        }
    }

    pub(super) fn check(&self) {
        assert!(self.announced.len() <= ANNOUNCED_MAX);
        assert!(self.answered.len() <= ANSWERED_MAX);
    }
}

impl Front {
    /// Notes the `kernel_info_reply` of the kernelspec's last kernel.
    #[must_use]
    pub fn knowing(mut self, info: Option<Value>) -> Self {
        self.seating.info = info;
        self
    }

    /// The present kernel's information, if it differs from the last kernel's.
    pub fn take_learnt(&mut self) -> Option<Value> {
        let learnt = self.seating.learnt.take()?;
        self.seating.info = Some(learnt.clone());
        Some(learnt)
    }

    /// The kernel's seat waits in Slurm's queue, for this reason.
    pub fn seat_waits(&mut self, seat: SeatWaits, at: Time, wire: &mut impl Wire) {
        self.waits(Why::Seat(seat), at, wire);
    }

    /// The replica's connection broke, and clients should know.
    pub fn is_unanswered(&mut self, replica: Unanswered, at: Time, wire: &mut impl Wire) {
        self.waits(Why::Unanswered(replica), at, wire);
    }

    /// Another replica is started. Clients were told if the last one didn't answer.
    pub fn is_started_again(&mut self, at: Time, wire: &mut impl Wire) {
        let wait = self.seating.wait.as_ref();
        if wait.is_some_and(|w| matches!(w.why, Why::Unanswered(_))) {
            self.waits(Why::Lost, at, wire);
        }
    }

    fn waits(&mut self, why: Why, at: Time, wire: &mut impl Wire) {
        let before = self.seating.wait.take();
        let news = before.as_ref().is_none_or(|b| b.why != why);
        let (since, tenure) = before.map_or((at, self.tenure), |b| (b.since, b.tenure));
        self.seating.wait = Some(Wait { why, since, tenure });
        if news && self.end.is_none() {
            self.answer_in_its_place(at, wire);
            self.tell_notice(at, wire);
            self.tell_wait(at, wire);
        }
    }

    /// A client asks for a cell, and the kernel may have no replica.
    pub(super) fn cell_waits(&mut self, at: Time, wire: &mut impl Wire) {
        if let Some(notice) = self.seating.notice() {
            self.tell_standing("starting", &notice, at, wire);
        }
        self.tell_wait(at, wire);
    }

    /// The replica has a connection: the kernel is there, or about to come.
    pub fn replica_is_there(&mut self, at: Time, wire: &mut impl Wire) {
        self.hide_wait(at, wire);
        if self.runs_before().is_some() {
            self.answer_in_its_place(at, wire);
        }
        let Some(wait) = self.seating.wait.take() else {
            return;
        };
        self.tell_standing("idle", &json!({"state": "cpu"}), at, wire);
        // The next tenure's replica was introduced to the clients, and tells them how the kernel stands.
        if matches!(wait.why, Why::Unanswered(_)) && wait.tenure == self.tenure {
            self.seating.introduce(wire);
        }
    }

    /// The replica is lost or leaves, and another one is started.
    pub fn goes_elsewhere(&mut self, at: Time, wire: &mut impl Wire) {
        self.tell_comms(&json!({"state": "moving"}), at, wire);
    }

    pub(super) fn tell_notice(&mut self, at: Time, wire: &mut impl Wire) {
        if let Some(notice) = self.seating.notice() {
            self.tell_standing("starting", &notice, at, wire);
            self.tell_comms(&notice, at, wire);
        }
    }

    /// Tells all clients how the kernel stands: `busy` at a waiting cell, or else in this `state`. A client takes any
    /// other state for the end of its turn, and a culler for a kernel without a cell.
    fn tell_standing(&mut self, state: &str, notice: &Value, at: Time, wire: &mut impl Wire) {
        let cell = self.open.iter().find(|o| o.is_cell).map(|o| o.header.clone());
        let state = if cell.is_some() { "busy" } else { state };
        let metadata = json!({"gresshopper": notice});
        let status = self
            .author
            .status(&cell.unwrap_or_else(none), state, &metadata, at);
        self.publish(&status, None, at, wire);
    }

    fn tell_comms(&mut self, notice: &Value, at: Time, wire: &mut impl Wire) {
        for announced in &self.seating.announced {
            let content = json!({"comm_id": announced.comm, "data": notice});
            let said = self
                .author
                .publish("comm_msg", &announced.header, &json!({}), &content, at);
            wire.publish(&said, None);
        }
    }

    // A client's questions before it accepts a kernel.

    /// Answers the open questions for the kernel's information.
    fn answer_in_its_place(&mut self, at: Time, wire: &mut impl Wire) {
        if self.seating.info.is_none() {
            return;
        }
        let (asked, rest) = std::mem::take(&mut self.open)
            .into_iter()
            .partition::<Vec<_>, _>(Open::asks_for_info);
        self.open = rest;
        for open in asked {
            self.unseen.note(Some(Change::Closed(open.id.clone())));
            // The replica has the request already, or will.
            if self.seating.answered.len() == ANSWERED_MAX {
                self.seating.answered.remove(0);
            }
            self.seating.answered.push(open.id.clone());
            self.inform(open.channel, &open.identity, &open.header, at, wire);
        }
    }

    /// Whether a new question was answered in the kernel's place. The kernel then never sees it.
    pub(super) fn is_informed(
        &mut self,
        (channel, identity): (Channel, &Bytes),
        header: &Bytes,
        at: Time,
        wire: &mut impl Wire,
    ) -> bool {
        // An earlier server's cell may run for hours, and a client gives up a kernel that doesn't answer.
        let engaged = self.seating.wait.is_some() || self.runs_before().is_some();
        let answers = engaged && self.seating.info.is_some();
        if answers {
            self.inform(channel, identity, header, at, wire);
            // A new client hears why the kernel isn't there.
            self.tell_notice(at, wire);
        }
        answers
    }

    fn inform(&mut self, channel: Channel, identity: &Bytes, header: &Bytes, at: Time, wire: &mut impl Wire) {
        let Some(info) = self.seating.info.clone() else {
            return;
        };
        self.says(
            (channel, identity, header),
            ("kernel_info_reply", &info),
            at,
            wire,
        );
        if let Some(before) = self.runs_before() {
            let busy = self.author.status(&before, "busy", &json!({}), at);
            wire.publish(&busy, None);
        }
    }

    /// Answers a request that isn't a cell, in the kernel's place.
    pub(super) fn says(
        &mut self,
        (channel, identity, header): (Channel, &Bytes, &Bytes),
        (kind, content): (&str, &Value),
        at: Time,
        wire: &mut impl Wire,
    ) {
        let nothing = json!({});
        let busy = self.author.status(header, "busy", &nothing, at);
        let reply = self.author.write(kind, header, &nothing, content, at);
        let idle = self.author.status(header, "idle", &nothing, at);
        wire.publish(&busy, None);
        // A client that is away asks again.
        let _ = wire.reply(channel, identity, reply.message(), None);
        wire.publish(&idle, None);
    }
}

/// The parent of messages without a request.
fn none() -> Bytes {
    Bytes::from_static(b"{}")
}

/// Seconds since the epoch.
fn seconds(at: Time) -> f64 {
    at.0 as f64 / 1e6
}

#[cfg(test)]
mod tests;
