//! The replica's connections to the kernel: a subscriber to its iopub, and on each other channel a DEALER per client,
//! with the client's own identity.

use bytes::Bytes;
use hop_protocol::jupyter::{Author, Channel, Envelope};
use hop_words::clock::now;
use hop_zmtp::{Admit, Client, ClientKind, Endpoint, Event, Limits, Message};
use serde_json::json;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// ipykernel's publisher drops unread messages, so the queue is as good as unbounded. The messages kept for the front
/// are bounded.
const QUEUE: usize = 1 << 20;

const PROBE: &[u8] = b"gresshopper-probe";

/// A socket of the kernel's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Socket {
    Iopub,
    Dealer(Channel, Bytes),
}

pub(crate) type Events = mpsc::Receiver<(Socket, Event)>;

/// A message of the kernel's, as far as it concerns others.
#[derive(Debug)]
pub(crate) enum FromKernel {
    Published(Message),
    Answer {
        channel: Channel,
        identity: Bytes,
        message: Message,
    },
    /// The kernel's iopub is heard, now for the first time.
    Heard,
}

pub(crate) struct Sockets {
    folder: PathBuf,
    /// Writes probes alone: its session tells them from everybody else's messages.
    author: Author,
    events: mpsc::Sender<(Socket, Event)>,
    dealers: HashMap<(Channel, Bytes), Client>,
    iopub: Option<Client>,
    probed: bool,
    heard: bool,
}

impl Sockets {
    /// `folder` has the kernel's unix sockets.
    pub(crate) fn new(folder: &Path, author: Author) -> (Self, Events) {
        let (events, incoming) = mpsc::channel(QUEUE);
        let sockets = Self {
            folder: folder.to_owned(),
            author,
            events,
            dealers: HashMap::new(),
            iopub: None,
            probed: false,
            heard: false,
        };
        (sockets, incoming)
    }

    fn endpoint(&self, channel: Channel) -> Endpoint {
        let port = match channel {
            Channel::Shell => 1,
            Channel::Iopub => 2,
            Channel::Stdin => 3,
            Channel::Control => 4,
        };
        Endpoint::Ipc(self.folder.join(format!("k-{port}")))
    }

    /// Subscribes to everything as soon as the kernel listens. If the kernel dies, the caller ends the wait.
    pub(crate) fn connect_iopub(&self) -> impl Future<Output = Client> + use<> {
        let (endpoint, events) = (self.endpoint(Channel::Iopub), self.events.clone());
        async move {
            loop {
                let connect = Client::connect(
                    &ClientKind::Sub,
                    &endpoint,
                    Limits::default(),
                    Admit::SameUser,
                    Socket::Iopub,
                    events.clone(),
                );
                match connect.await {
                    Ok(client) => return client,
                    Err(_) => sleep(Duration::from_millis(10)).await,
                }
            }
        }
    }

    pub(crate) fn iopub_is_connected(&mut self, client: Client) {
        self.iopub = Some(client);
    }

    /// Whether iopub may still say something.
    pub(crate) fn iopub_is_open(&self) -> bool {
        self.iopub.is_some()
    }

    /// Sends a client's request. Shell and stdin have the same identity, for `input()` to find its way back.
    pub(crate) async fn send(&mut self, channel: Channel, identity: &Bytes, message: &Message) {
        if channel == Channel::Shell {
            self.dealer(Channel::Stdin, identity).await;
        }
        if let Some(dealer) = self.dealer(channel, identity).await {
            dealer.send(message, None);
        }
    }

    /// A client is gone for good.
    pub(crate) fn forget(&mut self, identity: &Bytes) {
        self.dealers.retain(|(_, id), _| id != identity);
    }

    async fn dealer(&mut self, channel: Channel, identity: &Bytes) -> Option<&Client> {
        let key = (channel, identity.clone());
        if !self.dealers.contains_key(&key) {
            let kind = ClientKind::Dealer {
                identity: identity.clone(),
            };
            let (endpoint, tag) = (self.endpoint(channel), Socket::Dealer(channel, identity.clone()));
            let connect = Client::connect(
                &kind,
                &endpoint,
                Limits::default(),
                Admit::SameUser,
                tag,
                self.events.clone(),
            );
            match connect.await {
                Ok(client) => drop(self.dealers.insert(key.clone(), client)),
                // The end of a kernel's process is told by the process.
                Err(error) => tracing::warn!(%error, "can't reach the kernel"),
            }
        }
        self.dealers.get(&key)
    }

    /// Asks a kernel without a welcome on iopub (before ipykernel 7) for a sign of life: the echo is heard on iopub.
    pub(crate) async fn probe(&mut self) {
        self.probed = true;
        let nothing = json!({});
        let parent = Bytes::from_static(b"{}");
        let request = self
            .author
            .write("kernel_info_request", &parent, &nothing, &nothing, now());
        if let Some(dealer) = self.dealer(Channel::Shell, &Bytes::from_static(PROBE)).await {
            dealer.send(&request.message(), None);
        }
    }

    /// Sorts what came from a socket. `None` means that nobody else is concerned.
    pub(crate) fn sort(&mut self, socket: Socket, event: Event) -> Option<FromKernel> {
        let Event::Message(_, message) = event else {
            if let Event::Disconnected { .. } = event {
                self.disconnected(socket);
            }
            return None;
        };
        match socket {
            Socket::Iopub if self.is_ours(&message) => {
                let first = !std::mem::replace(&mut self.heard, true);
                if first {
                    tracing::info!("the kernel's process is heard");
                }
                first.then_some(FromKernel::Heard)
            }
            Socket::Iopub => Some(FromKernel::Published(message)),
            Socket::Dealer(_, identity) if &identity[..] == PROBE => None,
            Socket::Dealer(channel, identity) => Some(FromKernel::Answer {
                channel,
                identity,
                message,
            }),
        }
    }

    fn disconnected(&mut self, socket: Socket) {
        match socket {
            Socket::Iopub => self.iopub = None,
            Socket::Dealer(channel, identity) => drop(self.dealers.remove(&(channel, identity))),
        }
    }

    /// Whether a message on iopub answers our own subscription or probe, which is nobody else's business.
    fn is_ours(&self, message: &Message) -> bool {
        // The welcome comes before the first request of a client; after that only a probe's echo is ours.
        if self.heard && !self.probed {
            return false;
        }
        let Ok(envelope) = Envelope::parse(message) else {
            return false;
        };
        let session = self.author.session().as_bytes();
        let probe = envelope.parent.windows(session.len()).any(|w| w == session);
        probe || envelope.header().is_ok_and(|h| h.msg_type == "iopub_welcome")
    }
}
