//! Clients' requests to the kernel's process besides cells, and the process's connections.

use super::cells::no_header;
use super::{Core, Early, Interrupt, Output, Phase, SHUTDOWN, wording};
use bytes::Bytes;
use hop_protocol::jupyter::{Channel, Envelope, Header, can_be_asked_again, with_key};
use hop_words::time::{Span, Timestamp};
use hop_zmtp::Message;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};

/// Most questions to remember. A client that asks more of a busy kernel has given up on the oldest.
const OPEN_MAX: usize = 1000;

/// A request without a connection waits for this long, as the cause may be the process's end.
const UNREACHED: Span = Span::from_secs(5);

/// Requests of clients to the kernel's present process.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Questions without an answer, the oldest first. The next process is asked them again.
    open: VecDeque<Question>,
    /// Requests that the process didn't get, with the time of their answer if the process lives until then.
    unreached: VecDeque<(Timestamp, (Channel, Bytes, Message))>,
    /// The process's subshells.
    subshells: BTreeSet<String>,
}

#[derive(Debug)]
struct Question {
    channel: Channel,
    identity: Bytes,
    id: String,
    message: Message,
}

#[derive(Deserialize)]
struct OfSubshell {
    subshell_id: String,
}

impl Asked {
    /// Begins anew for another process, which knows no earlier request. Returns the former process's open questions.
    pub(super) fn process_is_new(&mut self) -> Early {
        self.subshells.clear();
        self.unreached.clear();
        let open = std::mem::take(&mut self.open).into_iter();
        open.map(|q| (q.channel, q.identity, q.message)).collect()
    }

    /// The process is asked something. False: the process has the question already, for instance from an earlier front.
    fn note(&mut self, channel: Channel, identity: &Bytes, header: &Header, message: &Message) -> bool {
        if !can_be_asked_again(channel, &header.msg_type) {
            return true;
        }
        if self.open.iter().any(|q| q.is(channel, identity, &header.msg_id)) {
            return false;
        }
        if self.open.len() == OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back(Question {
            channel,
            identity: identity.clone(),
            id: header.msg_id.clone(),
            message: message.clone(),
        });
        true
    }

    /// The time at which a request is given up.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.unreached.front().map(|(at, _)| *at)
    }

    fn answered(&mut self, channel: Channel, identity: &Bytes, id: &str) {
        self.open.retain(|q| !q.is(channel, identity, id));
    }

    /// The process has made a subshell, or is to end one.
    fn note_subshell(&mut self, msg_type: &str, content: &Bytes) {
        let of = || serde_json::from_slice::<OfSubshell>(content).map(|of| of.subshell_id);
        match (msg_type, of()) {
            ("create_subshell_reply", Ok(id)) => drop(self.subshells.insert(id)),
            ("delete_subshell_request", Ok(id)) => drop(self.subshells.remove(&id)),
            _ => {}
        }
    }
}

impl Question {
    fn is(&self, channel: Channel, identity: &Bytes, id: &str) -> bool {
        (self.channel, &self.identity, &*self.id) == (channel, identity, id)
    }
}

impl Core {
    /// A client's request, through the front.
    pub(super) fn request(&mut self, channel: Channel, identity: Bytes, message: Message) {
        let Ok(envelope) = Envelope::parse(&message) else {
            return;
        };
        let Ok(header) = envelope.header() else {
            return;
        };
        if channel == Channel::Shell && header.msg_type == "execute_request" {
            return self.execute_request(identity, message, &envelope, &header);
        }
        if channel == Channel::Shell && self.announcement(&envelope, &header) {
            return;
        }
        if channel == Channel::Shell && self.keeps_back() {
            return self.keep_back(identity, message);
        }
        let controls = matches!(channel, Channel::Control | Channel::Shell);
        if controls && header.msg_type == "interrupt_request" && self.interrupt_waiting() {
            return self.answer_interrupt(channel, identity, &envelope.header);
        }
        if let Phase::Starting { early, .. } | Phase::Preparing { early, .. } = &mut self.phase {
            return early.push((channel, identity, message));
        }
        match (channel, header.msg_type.as_str()) {
            (Channel::Control | Channel::Shell, "interrupt_request") => {
                if self.identity.launch.interrupt == Interrupt::Signal {
                    self.interrupt_kernel();
                    return self.answer_interrupt(channel, identity, &envelope.header);
                }
                self.cells.note_interrupt(self.now);
                self.standing_interrupted();
            }
            (Channel::Control | Channel::Shell, "shutdown_request") => {
                self.shutting_down = true;
                self.kill_at = Some(self.now + SHUTDOWN);
            }
            _ => {}
        }
        if !self.asked.note(channel, &identity, &header, &message) {
            return;
        }
        if channel == Channel::Control {
            self.asked.note_subshell(&header.msg_type, &envelope.content);
        }
        self.widget_sends(&header.msg_type, &header.msg_id);
        let message = self.for_process(message);
        self.out.push(Output::ToKernel {
            channel,
            identity,
            message,
        });
    }

    /// The kernel answers a client, or asks it for input.
    pub(super) fn answer(&mut self, channel: Channel, identity: Bytes, message: Message) {
        if matches!(channel, Channel::Control | Channel::Shell)
            && let Ok(envelope) = Envelope::parse(&message)
        {
            if let Some(request) = envelope.parent() {
                self.asked.answered(channel, &identity, &request.msg_id);
            }
            if let (Channel::Control, Ok(header)) = (channel, envelope.header()) {
                self.asked.note_subshell(&header.msg_type, &envelope.content);
            }
        }
        match channel {
            Channel::Shell => self.reply(identity, message),
            _ => self.send_front(channel, identity, message),
        }
    }

    /// A request as the present process takes it. The process knows none of an earlier process's subshells, and has no
    /// answer to a message for one: such a message goes to the main shell.
    pub(super) fn for_process(&self, message: Message) -> Message {
        let Ok(mut envelope) = Envelope::parse(&message) else {
            return message;
        };
        let subshell = envelope.header().ok().and_then(|h| h.subshell_id);
        if subshell.is_none_or(|id| self.asked.subshells.contains(&id)) {
            return message;
        }
        envelope.header = with_key(&envelope.header, "subshell_id", Value::Null);
        self.author.signer().sign(&mut envelope);
        envelope.message()
    }

    /// A message of the kernel's never came. A reply is made up for, with an error; the user reads of the loss of
    /// another message.
    pub(super) fn oversized(&mut self, channel: Channel, identity: Bytes, head: &Message) {
        let Ok(envelope) = Envelope::parse(head) else {
            return;
        };
        if channel == Channel::Iopub {
            return self.stderr(&envelope.parent, wording::OVERSIZED_OUTPUT);
        }
        if let Ok(header) = envelope.header() {
            if let Some(request) = envelope.parent() {
                self.asked.answered(channel, &identity, &request.msg_id);
            }
            let why = wording::OVERSIZED_REPLY;
            self.fail_request((channel, identity), &header.msg_type, &envelope.parent, why);
        }
    }

    /// A request found no connection to the process. A signal interrupts all the same.
    pub(super) fn unreached(&mut self, channel: Channel, identity: Bytes, message: Message) {
        let Ok(envelope) = Envelope::parse(&message) else {
            return;
        };
        if envelope.header().is_ok_and(|h| h.msg_type == "interrupt_request") {
            self.interrupt_kernel();
            return self.answer_interrupt(channel, identity, &envelope.header);
        }
        let request = (channel, identity, message);
        self.asked.unreached.push_back((self.now + UNREACHED, request));
    }

    /// The process lives, and can't be reached: the clients read so.
    pub(super) fn answer_unreached(&mut self) {
        if matches!(self.phase, Phase::Over) {
            // The front answers for a dead kernel.
            self.asked.unreached.clear();
        }
        while let Some((_, (channel, identity, message))) =
            self.asked.unreached.pop_front_if(|(at, _)| *at <= self.now)
        {
            let Ok(envelope) = Envelope::parse(&message) else {
                continue;
            };
            let Ok(header) = envelope.header() else {
                continue;
            };
            // A reply without the kernel's information is no answer to its clients.
            let Some(kind) = header
                .msg_type
                .strip_suffix("_request")
                .filter(|k| *k != "kernel_info")
            else {
                continue;
            };
            self.asked.answered(channel, &identity, &header.msg_id);
            let kind = format!("{kind}_reply");
            self.fail_request((channel, identity), &kind, &envelope.header, wording::UNREACHABLE);
            self.idle(&envelope.header);
        }
    }

    /// Something was published while nobody heard the process.
    pub(super) fn heard_again(&mut self) {
        let running = self.cells.running().cloned();
        let header = running.map_or_else(no_header, |cell| self.cells.header(&cell));
        self.stderr(&header, wording::NOT_HEARD);
    }

    /// The process is given up. A kernel with a log goes on in another one.
    pub(super) fn deaf(&mut self) {
        if !matches!(self.phase, Phase::Over) {
            self.gpu.doomed = Some(wording::DEAF.into());
            self.out.push(Output::KillKernel);
        }
    }
}
