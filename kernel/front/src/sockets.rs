//! The five sockets on which clients reach a kernel, and the numbered stream of items to the kernel's replica.

use crate::core::{Interrupt, Mark, Wire, is_request_of};
use crate::owner::{Ports, Start};
use crate::rekey::Rekey;
use anyhow::Result;
use hop_protocol::jupyter::{Channel, Envelope};
use hop_protocol::link::{Frame, Item};
use hop_protocol::retain::Retained;
use hop_words::id::CellId;
use hop_zmtp::{Admit, Endpoint, Event, Limits, Message, Receipt, Receipts, Server, ServerKind};
use std::net::SocketAddr;
use tokio::sync::mpsc;

/// Bytes of requests that are kept for a replica whose connection broke.
const KEEP: usize = 256 << 20;

/// The five sockets, and the stream of items to the replica.
pub(crate) struct Sockets {
    shell: Server,
    control: Server,
    stdin: Server,
    iopub: Server,
    _heartbeat: Server,
    pub(crate) receipts: Receipts,
    finished: Vec<u64>,
    pub(crate) kept: Retained<Item>,
    /// The replica's connection, with the number of its visit.
    pub(crate) out: Option<(u64, mpsc::UnboundedSender<Frame>)>,
    /// `None` means that clients and replicas have the same key.
    pub(crate) rekey: Option<Rekey>,
}

impl Sockets {
    fn router(&self, channel: Channel) -> &Server {
        match channel {
            Channel::Shell | Channel::Iopub => &self.shell,
            Channel::Control => &self.control,
            Channel::Stdin => &self.stdin,
        }
    }

    fn receipt(&self, mark: Option<Mark>) -> Option<Receipt> {
        mark.map(|mark| self.receipts.issue(mark.0))
    }

    /// Another replica gets the requests from now on: nothing was sent to it yet. Open requests are handed to it by the
    /// core.
    pub(crate) fn new_stream(&mut self) {
        self.kept = handed_on(&self.kept);
        self.out = None;
        self.finished.clear();
    }

    /// Takes back the interrupts that the replica hasn't taken.
    pub(crate) fn untaken_interrupts(&mut self) -> Vec<Interrupt> {
        let items = self.kept.extract(|item| Interrupt::of(item).is_some());
        items.iter().filter_map(Interrupt::of).collect()
    }

    /// Takes back the requests of these cells, before a replica has a connection.
    pub(crate) fn take_back(&mut self, cells: &[CellId]) {
        if !cells.is_empty() {
            self.kept.extract(|item| is_request_of(item, cells));
        }
    }

    /// The messages that have left for clients since the last call.
    pub(crate) fn take_left(&mut self) -> Vec<Mark> {
        self.receipts.take().into_iter().map(Mark).collect()
    }

    /// The items of the replica that nothing is left to do with since the last call.
    pub(crate) fn take_finished(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.finished)
    }

    /// Messages that clients haven't taken yet.
    pub(crate) fn waiting(&self) -> usize {
        self.shell.waiting() + self.control.waiting() + self.iopub.waiting()
    }
}

/// The messages of widgets that the replica before hasn't dealt with, in their order, for the next replica: nobody
/// answers them, so the core doesn't know them.
fn handed_on(before: &Retained<Item>) -> Retained<Item> {
    let mut next = Retained::new(KEEP);
    for item in before.items().filter(|item| is_of_widget(item)) {
        next.push(item.clone());
    }
    next
}

pub(crate) fn is_of_widget(item: &Item) -> bool {
    let Item::Jupyter {
        channel: Channel::Shell,
        message,
        ..
    } = item
    else {
        return false;
    };
    let header = Envelope::parse(message).and_then(|e| e.header());
    header.is_ok_and(|h| matches!(h.msg_type.as_str(), "comm_open" | "comm_msg" | "comm_close"))
}

impl Wire for Sockets {
    fn reply(
        &mut self,
        channel: Channel,
        identity: &[u8],
        message: Message,
        mark: Option<Mark>,
    ) -> Result<(), Message> {
        let router = self.router(channel);
        if !router.has_peer(identity) {
            return Err(message);
        }
        router.send(identity, message, self.receipt(mark).as_ref())
    }

    fn publish(&mut self, message: &Message, mark: Option<Mark>) -> bool {
        self.iopub.subscribers() > 0 && self.iopub.publish(message, self.receipt(mark).as_ref()) > 0
    }

    fn subscribers(&self) -> usize {
        self.iopub.subscribers()
    }

    fn send(&mut self, item: Item) {
        let item = match &self.rekey {
            Some(keys) => keys.to_replica(item),
            None => item,
        };
        let seq = self.kept.push(item.clone());
        if let Some((_, out)) = &self.out {
            // A link broken just now keeps the item for the next connection.
            let _ = out.send(Frame::Item(seq, item));
        }
    }

    fn done(&mut self, seq: u64) {
        self.finished.push(seq);
    }
}

/// Binds the five sockets where clients look for them.
pub(crate) async fn bind(
    start: &Start,
    tx: mpsc::Sender<(Option<Channel>, Event)>,
) -> Result<(Sockets, Ports)> {
    let at = |port| Endpoint::Tcp(SocketAddr::new(start.ip, port));
    let admit = if start.ip.is_loopback() {
        Admit::SameUser
    } else {
        Admit::Anyone
    };
    let bind = async |kind, port, channel| {
        Server::bind(kind, &at(port), Limits::default(), admit, channel, tx.clone()).await
    };
    // iopub first: a client wants to hear all output of its own requests.
    let iopub = bind(ServerKind::XPub, start.ports.iopub_port, Some(Channel::Iopub)).await?;
    let shell = bind(ServerKind::Router, start.ports.shell_port, Some(Channel::Shell)).await?;
    let control = bind(
        ServerKind::Router,
        start.ports.control_port,
        Some(Channel::Control),
    )
    .await?;
    let stdin = bind(ServerKind::Router, start.ports.stdin_port, Some(Channel::Stdin)).await?;
    let heartbeat = bind(ServerKind::Echo, start.ports.hb_port, None).await?;
    let ports = Ports {
        shell_port: port(&shell),
        iopub_port: port(&iopub),
        stdin_port: port(&stdin),
        control_port: port(&control),
        hb_port: port(&heartbeat),
    };
    let sockets = Sockets {
        shell,
        control,
        stdin,
        iopub,
        _heartbeat: heartbeat,
        receipts: Receipts::default(),
        finished: Vec::new(),
        kept: Retained::new(KEEP),
        out: None,
        rekey: None,
    };
    Ok((sockets, ports))
}

fn port(server: &Server) -> u16 {
    match server.local() {
        Endpoint::Tcp(addr) => addr.port(),
        Endpoint::Ipc(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use hop_protocol::jupyter::Author;
    use hop_protocol::message::Note;
    use hop_words::time::Timestamp;
    use serde_json::json;

    #[test]
    fn the_next_replica_gets_the_widgets_messages_that_the_last_one_left() {
        let mut client = Author::new(b"key", "client".into());
        let mut of = |kind: &str, channel| {
            let none = Bytes::from_static(b"{}");
            let said = client.write(kind, &none, &json!({}), &json!({}), Timestamp(0));
            Item::Jupyter {
                channel,
                identity: Bytes::from_static(b"me"),
                message: said.message(),
            }
        };
        let mut kept = Retained::new(KEEP);
        let items = [
            of("comm_open", Channel::Shell),
            of("execute_request", Channel::Shell),
            of("comm_msg", Channel::Shell),
            of("comm_info_request", Channel::Shell),
            of("shutdown_request", Channel::Control),
            Item::Note(Note::Interrupt),
            of("comm_close", Channel::Shell),
        ];
        for item in &items {
            kept.push(item.clone());
        }
        kept.done(1..=1);
        let next = handed_on(&kept);
        next.sanity_check();
        assert_eq!(next.items().collect::<Vec<_>>(), [&items[2], &items[6]]);
        assert_eq!(next.after(0).map(|(seq, _)| seq), Some(1), "numbered anew");
    }
}
