//! ZMTP 3.0 endpoints as far as Jupyter needs them, on tokio: ROUTER, XPUB and REP that bind, DEALER and SUB that
//! connect, the NULL mechanism, TCP and unix sockets.
//!
//! Differences from a general ZeroMQ library:
//! * Queues are bounded in bytes, and a peer that doesn't read is cut off, never awaited.
//! * A peer back under its identity replaces its old connection, whose end then removes nothing.
//! * Both ends of a socket belong to the same user ([`Admit::SameUser`]), on unix sockets and on loopback TCP.
//! * A message over the limits is dropped, and the connection stays. [`Event::Oversized`] tells a connecting socket's
//!   owner.
//! * A [`Receipt`] tells when a message has left the process: undelivered messages can be kept.
//!
//! The meaning of messages (Jupyter's envelope, signatures) is left to `hop-protocol`.

mod admit;
mod client;
mod frame;
mod handshake;
pub mod log_sampler;
mod outbox;
mod server;
mod stream;

pub use admit::Admit;
pub use client::{Client, ClientKind, ConnectError};
pub use frame::{Decoder, FrameError, Item, MAX_FRAMES, MAX_MESSAGE, encode};
pub use handshake::HandshakeError;
pub use outbox::{Receipt, Receipts};
pub use server::{BindError, Server, ServerKind};
pub use stream::Endpoint;

use bytes::Bytes;
use std::time::Duration;

/// The frames of one message. Cloning it copies no payload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message(pub Vec<Bytes>);

impl Message {
    /// The payload's size in bytes.
    pub fn size(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }
}

/// What an endpoint puts up with.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From accept to READY. A peer that says nothing must not hold a descriptor.
    pub handshake: Duration,
    /// The largest accepted frame, in bytes.
    pub max_frame: u64,
    /// Most bytes in wait for one peer. A single message may be larger: it is cut off only when the peer takes nothing
    /// of it while more comes.
    pub queue_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            max_frame: 2 << 30,
            queue_bytes: 256 << 20,
        }
    }
}

/// A peer's identity, and the generation of its connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    pub identity: Bytes,
    pub generation: u64,
}

/// What happens on an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Connected(Peer),
    Message(Peer, Message),
    /// DEALER and SUB: a message over the limits was dropped. Here are at most its first frames.
    Oversized(Peer, Message),
    /// XPUB: the peer wants messages whose first frame starts with this.
    Subscribed(Peer, Bytes),
    Unsubscribed(Peer, Bytes),
    /// The connection is over. `superseded`: the identity has a newer one.
    Disconnected {
        peer: Peer,
        superseded: bool,
    },
}
