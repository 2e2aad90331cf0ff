//! Interrupts and ends that clients ask for. While no replica has the kernel's requests, the front answers in the
//! kernel's place, as the replica answers for a kernel that is being started (docs/kernel.md, "Cells with a need").

use super::requests::Open;
use super::{End, Front, Wire, failure};
use bytes::Bytes;
use hop_protocol::jupyter::{Channel, Envelope, Header};
use hop_protocol::link::Item;
use hop_protocol::message::Note;
use hop_words::id::CellId;
use hop_words::time::Timestamp as Time;
use hop_zmtp::Message;
use serde_json::{Value, json};

/// The caller's part after a client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// None: the request was passed on, answered or dropped.
    Nothing,
    /// The kernel has to be there.
    Kernel,
    Interrupt(Interrupt),
    Shutdown(Shutdown),
}

/// A user's interrupt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interrupt {
    /// By a signal to the front (`KernelManager.interrupt_kernel` in mode `signal`).
    Signal,
    Request(Control),
}

/// A client's request for the kernel's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    pub restart: bool,
    request: Control,
}

/// A verified request about the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    channel: Channel,
    identity: Bytes,
    message: Message,
}

impl Interrupt {
    pub fn item(self) -> Item {
        match self {
            Self::Signal => Item::Note(Note::Interrupt),
            Self::Request(request) => request.item(),
        }
    }

    /// The interrupt in an item for a replica, if it is one.
    pub fn of(item: &Item) -> Option<Self> {
        match item {
            Item::Note(Note::Interrupt) => Some(Self::Signal),
            Item::Note(_) => None,
            Item::Jupyter {
                channel,
                identity,
                message,
            } => {
                let interrupts = controls(*channel, message, "interrupt_request");
                interrupts.then(|| Self::Request(Control::new(*channel, identity, message)))
            }
        }
    }
}

impl Shutdown {
    pub fn item(self) -> Item {
        self.request.item()
    }
}

impl Control {
    fn new(channel: Channel, identity: &Bytes, message: &Message) -> Self {
        let (identity, message) = (identity.clone(), message.clone());
        Self {
            channel,
            identity,
            message,
        }
    }

    fn item(self) -> Item {
        Item::Jupyter {
            channel: self.channel,
            identity: self.identity,
            message: self.message,
        }
    }
}

/// Whether an item hands a replica the request of one of these cells.
pub(crate) fn is_request_of(item: &Item, cells: &[CellId]) -> bool {
    match item {
        Item::Jupyter { message, .. } => {
            let header = Envelope::parse(message).and_then(|e| e.header());
            header.is_ok_and(|h| cells.iter().any(|cell| cell.as_str() == h.msg_id))
        }
        Item::Note(Note::HandedBefore { cell, .. }) => cells.contains(cell),
        Item::Note(_) => false,
    }
}

fn controls(channel: Channel, message: &Message, msg_type: &str) -> bool {
    takes_control(channel)
        && Envelope::parse(message)
            .and_then(|e| e.header())
            .is_ok_and(|h| h.msg_type == msg_type)
}

fn takes_control(channel: Channel) -> bool {
    matches!(channel, Channel::Control | Channel::Shell)
}

impl Front {
    /// The order in a verified request. `None` means another request.
    pub(super) fn order(
        &self,
        (channel, identity): (Channel, &Bytes),
        (header, envelope): (&Header, &Envelope),
        message: &Message,
    ) -> Option<Asked> {
        if !takes_control(channel) {
            return None;
        }
        let request = || Control::new(channel, identity, message);
        match header.msg_type.as_str() {
            "interrupt_request" if self.end.is_some() => Some(Asked::Nothing),
            "interrupt_request" => Some(Asked::Interrupt(Interrupt::Request(request()))),
            "shutdown_request" if self.is_older(envelope) => {
                tracing::info!("dropped a request to shut down the kernel that was here before");
                Some(Asked::Nothing)
            }
            "shutdown_request" => {
                let content = serde_json::from_slice::<Value>(&envelope.content).unwrap_or_default();
                Some(Asked::Shutdown(Shutdown {
                    restart: content["restart"].as_bool().unwrap_or(false),
                    request: request(),
                }))
            }
            _ => None,
        }
    }

    /// The user interrupts the kernel. `away` means that no replica has the requests, nor will before it connects.
    /// Returns the cells answered here: they must not reach a replica.
    pub fn interrupt(
        &mut self,
        interrupt: Interrupt,
        away: bool,
        at: Time,
        wire: &mut impl Wire,
    ) -> Vec<CellId> {
        // The only replica in the life of a kernel without a log answers all requests.
        if !away || !self.durable {
            self.pass_on(interrupt, wire);
            return Vec::new();
        }
        let first = self.open.iter().find(|o| o.is_in_line());
        if first.is_some_and(|o| !o.waits()) {
            // The next replica knows the cell's fate, and interrupts what is left to run.
            self.pass_on(interrupt, wire);
            return Vec::new();
        }
        let ended = self.end_waiting(at, wire);
        if let Interrupt::Request(request) = &interrupt {
            self.answer(request, "interrupt_reply", &json!({"status": "ok"}), at, wire);
        }
        // Clients show the newest state, whatever its request.
        self.tell_notice(at, wire);
        self.tell_wait(at, wire);
        ended
    }

    /// The replica is lost or has left, without having taken these interrupts. Returns the cells answered here.
    pub fn replica_is_gone(
        &mut self,
        untaken: Vec<Interrupt>,
        at: Time,
        wire: &mut impl Wire,
    ) -> Vec<CellId> {
        let mut interrupts = std::mem::take(&mut self.interrupts);
        interrupts.extend(untaken);
        let ended = interrupts.into_iter().map(|i| self.interrupt(i, true, at, wire));
        ended.collect::<Vec<_>>().concat()
    }

    /// Sends an interrupt to the replica, behind the cells for which it may be.
    fn pass_on(&mut self, interrupt: Interrupt, wire: &mut impl Wire) {
        if self.requests_wait {
            self.interrupts.push(interrupt);
        } else {
            wire.send(interrupt.item());
        }
    }

    /// Sends the interrupts that waited with the requests of an earlier front.
    pub(super) fn send_interrupts(&mut self, wire: &mut impl Wire) {
        for interrupt in std::mem::take(&mut self.interrupts) {
            wire.send(interrupt.item());
        }
    }

    /// Ends the first cell in line with `KeyboardInterrupt`, and aborts the cells behind it.
    fn end_waiting(&mut self, at: Time, wire: &mut impl Wire) -> Vec<CellId> {
        let Some(first) = self.open.iter().position(Open::waits) else {
            return Vec::new();
        };
        let most = if self.open[first].stops_on_error() {
            usize::MAX
        } else {
            1
        };
        self.hide_texts(at, wire);
        let waiting = self.open.extract_if(first.., |o| o.waits()).take(most);
        let ended: Vec<Open> = waiting.collect();
        let ids = ended.iter().map(|o| o.id.clone()).collect();
        for (i, open) in ended.into_iter().enumerate() {
            self.end_unrun(open, i == 0, at, wire);
        }
        ids
    }

    /// Answers a cell that was not run, as the replica does.
    fn end_unrun(&mut self, mut open: Open, interrupted: bool, at: Time, wire: &mut impl Wire) {
        const WHY: &str = "the cell was interrupted while it waited for its kernel";
        let busy = self.author.status(&open.header, "busy", &json!({}), at);
        self.show(busy, None, at, wire);
        let mut content = json!({"status": "aborted"});
        if interrupted {
            // Notebooks show no number for 0, as if the cell had never run.
            let count = self.last_count.map_or(1, |count| count.max(1));
            let input = json!({"code": open.code(), "execution_count": count});
            content = failure("KeyboardInterrupt", WHY);
            for (kind, shown) in [("execute_input", &input), ("error", &content)] {
                let message = self.author.publish(kind, &open.header, &json!({}), shown, at);
                self.show(message, None, at, wire);
            }
            content["status"] = "error".into();
            content["execution_count"] = count.into();
            content["user_expressions"] = json!({});
            content["payload"] = json!([]);
        }
        let reply = self.final_reply(&mut open, &content, at, wire);
        self.send_final(open, reply, wire);
    }

    /// Ends a kernel that has no replica, as a client asks.
    pub fn shut_down(&mut self, asked: &Shutdown, at: Time, wire: &mut impl Wire) {
        if self.end.is_some() {
            return;
        }
        self.hide_texts(at, wire);
        let content = json!({"status": "ok", "restart": asked.restart});
        if let Some(header) = self.answer(&asked.request, "shutdown_reply", &content, at, wire) {
            // ipykernel tells all its clients, too.
            let told = self
                .author
                .publish("shutdown_reply", &header, &json!({}), &content, at);
            wire.publish(&told, None);
        }
        self.end = Some(End::Shutdown);
    }

    /// Answers a request in the kernel's place. Returns the request's header.
    fn answer(
        &mut self,
        request: &Control,
        kind: &str,
        content: &Value,
        at: Time,
        wire: &mut impl Wire,
    ) -> Option<Bytes> {
        let header = Envelope::parse(&request.message).ok()?.header;
        self.says(
            (request.channel, &request.identity, &header),
            (kind, content),
            at,
            wire,
        );
        Some(header)
    }
}

#[cfg(test)]
mod tests;
