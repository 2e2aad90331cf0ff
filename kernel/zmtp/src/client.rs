//! Sockets that connect: a DEALER under an identity of our choice, a SUB for everything.

use crate::admit::Admit;
use crate::frame::{Item, encode, encode_command};
use crate::handshake::{HandshakeError, handshake};
use crate::outbox::{Outbox, Receipt};
use crate::server::Items;
use crate::stream::{Endpoint, Stream};
use crate::{Event, Limits, Message, Peer};
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

#[derive(Debug, Clone)]
pub enum ClientKind {
    Dealer {
        identity: Bytes,
    },
    /// Subscribed to everything.
    Sub,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("can't connect to {endpoint:?}")]
    Connect {
        endpoint: Endpoint,
        #[source]
        source: io::Error,
    },
    #[error("another user listens on {endpoint:?}")]
    Stranger {
        endpoint: Endpoint,
        #[source]
        source: io::Error,
    },
    #[error("the ZMTP handshake with {endpoint:?} failed")]
    Handshake {
        endpoint: Endpoint,
        #[source]
        source: HandshakeError,
    },
}

/// A connected socket without reconnection: [`Event::Disconnected`] ends it.
#[derive(Debug)]
pub struct Client {
    outbox: Arc<Outbox>,
    task: AbortHandle,
}

impl Client {
    /// Connects. Messages go to `events` with `tag`; the peer in them is always the same.
    pub async fn connect<T: Clone + Send + Sync + 'static>(
        kind: &ClientKind,
        endpoint: &Endpoint,
        limits: Limits,
        admit: Admit,
        tag: T,
        events: mpsc::Sender<(T, Event)>,
    ) -> Result<Self, ConnectError> {
        let endpoint = endpoint.clone();
        let stream = match Stream::connect(&endpoint).await {
            Ok(stream) => stream,
            Err(source) => return Err(ConnectError::Connect { endpoint, source }),
        };
        if let Err(source) = admit.check(&stream) {
            return Err(ConnectError::Stranger { endpoint, source });
        }
        let (ours, accepts, identity) = match kind {
            ClientKind::Dealer { identity } => ("DEALER", &["ROUTER", "DEALER"][..], identity.clone()),
            ClientKind::Sub => ("SUB", &["PUB", "XPUB"][..], Bytes::new()),
        };
        let (mut read, write) = stream.split();
        let shaken = tokio::time::timeout(
            limits.handshake,
            handshake(&mut read, &write, ours, accepts, &identity, limits.max_frame),
        );
        let ready = match shaken.await.unwrap_or(Err(HandshakeError::Timeout)) {
            Ok(ready) => ready,
            Err(source) => return Err(ConnectError::Handshake { endpoint, source }),
        };
        let outbox = Arc::new(Outbox::new(write, limits.queue_bytes));
        if matches!(kind, ClientKind::Sub) {
            let everything = Message(vec![Bytes::from_static(&[1])]);
            outbox.push(&encode(&everything), None);
        }
        let peer = Peer {
            identity,
            generation: 1,
        };
        let task = tokio::spawn(run(read, ready, Arc::clone(&outbox), peer, tag, events)).abort_handle();
        Ok(Self { outbox, task })
    }

    /// Sends. False: the connection is over.
    pub fn send(&self, message: &Message, receipt: Option<&Receipt>) -> bool {
        self.outbox.push(&encode(message), receipt)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.outbox.close();
        self.task.abort();
    }
}

async fn run<T: Clone>(
    mut half: crate::stream::ReadHalf,
    ready: crate::handshake::Ready,
    outbox: Arc<Outbox>,
    peer: Peer,
    tag: T,
    events: mpsc::Sender<(T, Event)>,
) {
    let read = async {
        let mut items = Items::new(ready);
        while let Ok(Some(item)) = items.next(&mut half).await {
            let alive = match item {
                Item::Command { name, body } if &name[..] == b"PING" => {
                    let pong = encode_command(b"PONG", body.get(2..).unwrap_or(&[]));
                    outbox.push(&[pong], None)
                }
                Item::Command { .. } => true,
                Item::Message(message) => {
                    let event = Event::Message(peer.clone(), message);
                    events.send((tag.clone(), event)).await.is_ok()
                }
                Item::Oversized(head) => {
                    let event = Event::Oversized(peer.clone(), head);
                    events.send((tag.clone(), event)).await.is_ok()
                }
            };
            if !alive {
                break;
            }
        }
        outbox.close();
    };
    tokio::join!(outbox.pump(), read);
    let over = Event::Disconnected {
        peer: peer.clone(),
        superseded: false,
    };
    // The owner may have gone first.
    let _ = events.send((tag.clone(), over)).await;
}
