//! Binding sockets: ROUTER, XPUB, and an echoing REP.
//!
//! One task accepts. Each connection has a reading task, and a task that writes the bytes not taken at once by the
//! socket. Events go to the owner's channel; a full channel stops reading from the peers, never from the owner.

use crate::admit::Admit;
use crate::frame::{Item, encode, encode_command};
use crate::handshake::{HandshakeError, Ready, handshake};
use crate::log_sampler::LogSampler;
use crate::outbox::{Outbox, Receipt, lock};
use crate::stream::{Endpoint, ReadHalf, Stream};
use crate::{Event, Limits, Message, Peer};
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// The sockets of a Jupyter kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    Router,
    XPub,
    /// Answers each message with itself: Jupyter's heartbeat.
    Echo,
}

impl ServerKind {
    fn name(self) -> &'static str {
        match self {
            Self::Router => "ROUTER",
            Self::XPub => "XPUB",
            Self::Echo => "REP",
        }
    }

    fn accepts(self) -> &'static [&'static str] {
        match self {
            Self::Router => &["DEALER", "REQ", "ROUTER"],
            Self::XPub => &["SUB", "XSUB"],
            Self::Echo => &["REQ", "DEALER"],
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("can't listen on {endpoint:?}")]
pub struct BindError {
    pub endpoint: Endpoint,
    #[source]
    pub source: io::Error,
}

/// A bound socket. Dropping the value closes the socket and all connections.
#[derive(Debug)]
pub struct Server {
    local: Endpoint,
    peers: Arc<Mutex<Peers>>,
    accept: AbortHandle,
}

#[derive(Debug, Default)]
struct Peers {
    live: HashMap<Bytes, Live>,
    generation: u64,
}

#[derive(Debug)]
struct Live {
    generation: u64,
    outbox: Arc<Outbox>,
    topics: Vec<Bytes>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// What every connection of a server shares.
struct Context<T> {
    kind: ServerKind,
    limits: Limits,
    admit: Admit,
    tag: T,
    events: mpsc::Sender<(T, Event)>,
    peers: Arc<Mutex<Peers>>,
    refused: LogSampler,
    oversized: LogSampler,
}

impl Server {
    /// Binds and starts to accept. Events come with `tag`. TCP port 0 takes a free one: see [`Server::local`].
    pub async fn bind<T: Clone + Send + Sync + 'static>(
        kind: ServerKind,
        endpoint: &Endpoint,
        limits: Limits,
        admit: Admit,
        tag: T,
        events: mpsc::Sender<(T, Event)>,
    ) -> Result<Self, BindError> {
        let failed = |source| BindError {
            endpoint: endpoint.clone(),
            source,
        };
        let (listener, local) = listen(endpoint).map_err(failed)?;
        let peers = Arc::<Mutex<Peers>>::default();
        let context = Arc::new(Context {
            kind,
            limits,
            admit,
            tag,
            events,
            peers: Arc::clone(&peers),
            refused: LogSampler::default(),
            oversized: LogSampler::default(),
        });
        let accept = tokio::spawn(accept(listener, context)).abort_handle();
        Ok(Self { local, peers, accept })
    }

    /// Where it listens.
    pub fn local(&self) -> &Endpoint {
        &self.local
    }

    /// Sends to one peer. The message comes back if the peer is gone.
    pub fn send(&self, identity: &[u8], message: Message, receipt: Option<&Receipt>) -> Result<(), Message> {
        let outbox = lock(&self.peers)
            .live
            .get(identity)
            .map(|live| Arc::clone(&live.outbox));
        match outbox {
            Some(outbox) if outbox.push(&encode(&message), receipt) => Ok(()),
            _ => Err(message),
        }
    }

    /// Sends to every peer that subscribed to a prefix of the first frame. How many there were.
    pub fn publish(&self, message: &Message, receipt: Option<&Receipt>) -> usize {
        let topic = message.0.first().map_or(&[][..], |f| &f[..]);
        let chunks = encode(message);
        let peers = lock(&self.peers);
        let wanting = peers
            .live
            .values()
            .filter(|l| l.topics.iter().any(|t| topic.starts_with(t)));
        wanting.filter(|l| l.outbox.push(&chunks, receipt)).count()
    }

    /// Number of peers subscribed to anything.
    pub fn subscribers(&self) -> usize {
        let peers = lock(&self.peers);
        peers.live.values().filter(|l| !l.topics.is_empty()).count()
    }

    /// Whether a peer of this identity is connected.
    pub fn has_peer(&self, identity: &[u8]) -> bool {
        lock(&self.peers).live.contains_key(identity)
    }

    /// Bytes that wait for peers, all together.
    pub fn waiting(&self) -> usize {
        lock(&self.peers).live.values().map(|l| l.outbox.waiting()).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accept.abort();
        for live in lock(&self.peers).live.values() {
            live.outbox.close();
        }
        if let Endpoint::Ipc(path) = &self.local {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn listen(endpoint: &Endpoint) -> io::Result<(Listener, Endpoint)> {
    match endpoint {
        Endpoint::Tcp(addr) => {
            let listener = listen_tcp(*addr)?;
            let local = Endpoint::Tcp(listener.local_addr()?);
            Ok((Listener::Tcp(listener), local))
        }
        Endpoint::Ipc(path) => Ok((Listener::Unix(UnixListener::bind(path)?), endpoint.clone())),
    }
}

fn listen_tcp(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // A restarted front must get the ports of the killed one.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(128)
}

async fn accept<T: Clone + Send + Sync + 'static>(listener: Listener, context: Arc<Context<T>>) {
    loop {
        let stream = match &listener {
            Listener::Tcp(l) => l.accept().await.map(|(s, _)| {
                // Fails only on a connection that is gone already.
                let _ = s.set_nodelay(true);
                Stream::Tcp(s)
            }),
            Listener::Unix(l) => l.accept().await.map(|(s, _)| Stream::Unix(s)),
        };
        match stream {
            Ok(stream) => {
                tokio::spawn(serve(stream, Arc::clone(&context)));
            }
            Err(error) => {
                // Out of descriptors, most likely: wait for some to be closed.
                tracing::warn!(%error, "can't accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// One connection from accept to end.
async fn serve<T: Clone + Send + Sync>(stream: Stream, context: Arc<Context<T>>) {
    if let Err(error) = context.admit.check(&stream) {
        if let Some(count) = context.refused.count() {
            tracing::warn!(%error, count, "refused a connection");
        }
        return;
    }
    let (mut read, write) = stream.split();
    let (ours, accepts) = (context.kind.name(), context.kind.accepts());
    let limits = context.limits;
    let shaken = tokio::time::timeout(
        limits.handshake,
        handshake(&mut read, &write, ours, accepts, b"", limits.max_frame),
    );
    let ready = match shaken.await.unwrap_or(Err(HandshakeError::Timeout)) {
        Ok(ready) => ready,
        Err(error) => {
            tracing::debug!(%error, "a peer didn't get through the handshake");
            return;
        }
    };
    let outbox = Arc::new(Outbox::new(write, limits.queue_bytes));
    let peer = context.register(&ready.identity, Arc::clone(&outbox));
    if context.tell(Event::Connected(peer.clone())).await {
        let pump = outbox.pump();
        let read = context.read(read, ready, &peer, &outbox);
        tokio::join!(pump, read);
    }
    let superseded = context.unregister(&peer);
    outbox.close();
    context.tell(Event::Disconnected { peer, superseded }).await;
}

impl<T: Clone> Context<T> {
    /// The identity now belongs to this newest connection.
    fn register(&self, identity: &Bytes, outbox: Arc<Outbox>) -> Peer {
        let mut peers = lock(&self.peers);
        peers.generation += 1;
        let generation = peers.generation;
        let identity = if identity.is_empty() {
            Bytes::from([&[0u8], &generation.to_be_bytes()[..]].concat())
        } else {
            identity.clone()
        };
        let live = Live {
            generation,
            outbox,
            topics: Vec::new(),
        };
        if let Some(old) = peers.live.insert(identity.clone(), live) {
            old.outbox.close();
        }
        Peer { identity, generation }
    }

    /// Whether a newer connection had taken the identity over.
    fn unregister(&self, peer: &Peer) -> bool {
        let mut peers = lock(&self.peers);
        let current = peers
            .live
            .get(&peer.identity)
            .is_some_and(|l| l.generation == peer.generation);
        if current {
            peers.live.remove(&peer.identity);
        }
        !current
    }

    async fn tell(&self, event: Event) -> bool {
        self.events.send((self.tag.clone(), event)).await.is_ok()
    }

    async fn read(&self, mut half: ReadHalf, ready: Ready, peer: &Peer, outbox: &Outbox) {
        let mut items = Items::new(ready);
        loop {
            match items.next(&mut half).await {
                Ok(Some(item)) => {
                    if !self.handle(item, peer, outbox).await {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "a connection broke");
                    break;
                }
            }
        }
        outbox.close();
    }

    async fn handle(&self, item: Item, peer: &Peer, outbox: &Outbox) -> bool {
        match item {
            Item::Command { name, body } => match &name[..] {
                b"PING" => outbox.push(&[pong(&body)], None),
                b"SUBSCRIBE" => self.subscribe(peer, body).await,
                b"CANCEL" => self.unsubscribe(peer, body).await,
                _ => true,
            },
            Item::Oversized(_) => {
                if let Some(count) = self.oversized.count() {
                    tracing::warn!(count, "dropped a message of a client's that is too large");
                }
                true
            }
            Item::Message(message) => match self.kind {
                ServerKind::Router => self.tell(Event::Message(peer.clone(), message)).await,
                ServerKind::Echo => outbox.push(&encode(&message), None),
                ServerKind::XPub => match message.0.as_slice() {
                    [frame] if frame.first() == Some(&1) => self.subscribe(peer, frame.slice(1..)).await,
                    [frame] if frame.first() == Some(&0) => self.unsubscribe(peer, frame.slice(1..)).await,
                    _ => true,
                },
            },
        }
    }

    async fn subscribe(&self, peer: &Peer, topic: Bytes) -> bool {
        if let Some(live) = self.current(&mut lock(&self.peers), peer) {
            live.topics.push(topic.clone());
        }
        self.tell(Event::Subscribed(peer.clone(), topic)).await
    }

    async fn unsubscribe(&self, peer: &Peer, topic: Bytes) -> bool {
        if let Some(live) = self.current(&mut lock(&self.peers), peer)
            && let Some(at) = live.topics.iter().position(|t| *t == topic)
        {
            live.topics.remove(at);
        }
        self.tell(Event::Unsubscribed(peer.clone(), topic)).await
    }

    fn current<'a>(&self, peers: &'a mut Peers, peer: &Peer) -> Option<&'a mut Live> {
        peers
            .live
            .get_mut(&peer.identity)
            .filter(|l| l.generation == peer.generation)
    }
}

/// PONG with PING's context, behind two bytes of TTL.
fn pong(ping: &Bytes) -> Bytes {
    encode_command(b"PONG", ping.get(2..).unwrap_or(&[]))
}

/// The stream of messages and commands of one connection.
pub(crate) struct Items {
    decoder: crate::frame::Decoder,
    buf: BytesMut,
}

impl Items {
    pub(crate) fn new(ready: Ready) -> Self {
        Self {
            decoder: ready.decoder,
            buf: ready.rest,
        }
    }

    /// None: the peer closed the connection.
    pub(crate) async fn next(&mut self, half: &mut ReadHalf) -> Result<Option<Item>, HandshakeError> {
        loop {
            if let Some(item) = self.decoder.next(&mut self.buf)? {
                return Ok(Some(item));
            }
            self.buf.reserve(self.decoder.wants(self.buf.len()).max(64 << 10));
            if half.read_buf(&mut self.buf).await? == 0 {
                return Ok(None);
            }
        }
    }
}
