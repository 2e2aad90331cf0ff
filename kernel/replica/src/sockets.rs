//! The replica's connections to the kernel: a subscriber to its iopub, and on each other channel a DEALER per client,
//! with the client's own identity.

use crate::core::Input;
use bytes::Bytes;
use hop_protocol::jupyter::{Author, Channel, Envelope};
use hop_words::clock::now;
use hop_zmtp::{Admit, Client, ClientKind, Endpoint, Event, Limits, Message, Peer};
use rustix::fs::{Mode, OFlags};
use serde_json::json;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// ipykernel's publisher drops unread messages, so the queue is as good as unbounded. The messages kept for the front
/// are bounded.
const QUEUE: usize = 1 << 20;

/// A living process whose iopub can't be connected again for so long is given up.
const DEAF: Duration = Duration::from_secs(30);

const PROBE: &[u8] = b"gresshopper-probe";

/// A socket of the kernel's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Socket {
    Iopub,
    Dealer(Channel, Bytes),
    /// The request in the event found no connection to the process.
    Unreached(Channel, Bytes),
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
    /// A message of this channel's was over the limits, and dropped. `head` has its first frames.
    Oversized {
        channel: Channel,
        identity: Bytes,
        head: Message,
    },
    /// This request couldn't be given to the kernel.
    Unreached(Channel, Bytes, Message),
    /// The kernel's iopub is heard, now for the first time.
    Heard,
}

impl FromKernel {
    /// The message as the core takes it. `pid` is the kernel's.
    pub(crate) fn input(self, pid: u32) -> Input {
        match self {
            Self::Published(message) => Input::Published(message),
            Self::Answer {
                channel,
                identity,
                message,
            } => Input::FromKernel {
                channel,
                identity,
                message,
            },
            Self::Oversized {
                channel,
                identity,
                head,
            } => Input::Oversized {
                channel,
                identity,
                head,
            },
            Self::Unreached(channel, identity, message) => Input::Unreached(channel, identity, message),
            Self::Heard => Input::KernelUp { pid },
        }
    }
}

/// News of the connection to the kernel's iopub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    First,
    /// A connection was lost, and what the kernel published until now with it.
    Again,
    /// A lost connection can't be made again.
    Never,
}

impl Reached {
    /// The news as the core takes them. The first connection is no news: the kernel isn't heard yet.
    pub(crate) fn input(self) -> Option<Input> {
        match self {
            Self::First => None,
            Self::Again => Some(Input::HeardAgain),
            Self::Never => Some(Input::Deaf),
        }
    }
}

type Connecting = Pin<Box<dyn Future<Output = Option<Client>> + Send>>;

pub(crate) struct Sockets {
    folder: PathBuf,
    /// The kernel's unix sockets as files. They can be connected to after a user's code has removed the folder.
    held: HashMap<Channel, OwnedFd>,
    /// Writes probes alone: its session tells them from everybody else's messages.
    author: Author,
    events: mpsc::Sender<(Socket, Event)>,
    dealers: HashMap<(Channel, Bytes), Client>,
    iopub: Option<Client>,
    /// The connection to iopub that is being made.
    connecting: Option<Connecting>,
    /// A connection to iopub was lost.
    lost: bool,
    probed: bool,
    heard: bool,
}

impl Sockets {
    /// `folder` has the kernel's unix sockets.
    pub(crate) fn new(folder: &Path, author: Author) -> (Self, Events) {
        let (events, incoming) = mpsc::channel(QUEUE);
        let mut sockets = Self {
            folder: folder.to_owned(),
            held: HashMap::new(),
            author,
            events,
            dealers: HashMap::new(),
            iopub: None,
            connecting: None,
            lost: false,
            probed: false,
            heard: false,
        };
        // If the kernel dies before it listens, the caller ends the wait.
        let first = sockets.connect_iopub();
        sockets.connecting = Some(Box::pin(async { Some(first.await) }));
        (sockets, incoming)
    }

    fn endpoint(&self, channel: Channel) -> Endpoint {
        let port = match channel {
            Channel::Shell => 1,
            Channel::Iopub => 2,
            Channel::Stdin => 3,
            Channel::Control => 4,
        };
        Endpoint::Ipc(match self.held.get(&channel) {
            Some(socket) => format!("/proc/self/fd/{}", socket.as_raw_fd()).into(),
            None => self.folder.join(format!("k-{port}")),
        })
    }

    /// Holds the kernel's sockets that exist by now.
    fn hold(&mut self) {
        for channel in Channel::ALL {
            if !self.held.contains_key(&channel)
                && let Endpoint::Ipc(path) = self.endpoint(channel)
                && let Ok(socket) = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            {
                self.held.insert(channel, socket);
            }
        }
    }

    /// Subscribes to everything as soon as the kernel listens.
    fn connect_iopub(&self) -> impl Future<Output = Client> + use<> {
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

    /// Waits for news of the connection to iopub. A wait that is dropped loses nothing.
    pub(crate) async fn reaches_iopub(&mut self) -> Reached {
        let Some(connecting) = &mut self.connecting else {
            return std::future::pending().await;
        };
        self.iopub = connecting.await;
        self.connecting = None;
        self.hold();
        match (self.iopub.is_some(), self.lost) {
            (false, _) => Reached::Never,
            (true, true) => Reached::Again,
            (true, false) => Reached::First,
        }
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
        let dealer = self.dealer(channel, identity).await;
        if !dealer.is_some_and(|d| d.send(message, None)) {
            let (socket, generation) = (Socket::Unreached(channel, identity.clone()), 0);
            let (identity, message) = (identity.clone(), message.clone());
            let event = Event::Message(Peer { identity, generation }, message);
            // A queue without room means a flood of requests.
            let _ = self.events.try_send((socket, event));
        }
    }

    /// A client is gone for good.
    pub(crate) fn forget(&mut self, identity: &Bytes) {
        self.dealers.retain(|(_, id), _| id != identity);
    }

    async fn dealer(&mut self, channel: Channel, identity: &Bytes) -> Option<&Client> {
        let key = (channel, identity.clone());
        if !self.dealers.contains_key(&key) {
            self.hold();
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
        let message = match event {
            Event::Message(_, message) => message,
            Event::Oversized(_, head) => return Some(oversized(socket, head)),
            Event::Disconnected { .. } => {
                self.disconnected(socket);
                return None;
            }
            Event::Connected(_) | Event::Subscribed(..) | Event::Unsubscribed(..) => return None,
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
            Socket::Unreached(channel, identity) => Some(FromKernel::Unreached(channel, identity, message)),
            Socket::Dealer(channel, identity) => Some(FromKernel::Answer {
                channel,
                identity,
                message,
            }),
        }
    }

    fn disconnected(&mut self, socket: Socket) {
        match socket {
            Socket::Iopub => {
                (self.iopub, self.lost) = (None, true);
                let again = timeout(DEAF, self.connect_iopub());
                self.connecting = Some(Box::pin(async { again.await.ok() }));
            }
            Socket::Dealer(channel, identity) => drop(self.dealers.remove(&(channel, identity))),
            Socket::Unreached(..) => {}
        }
    }

    /// Whether a message on iopub answers our own subscription or probe, which is nobody else's business.
    fn is_ours(&self, message: &Message) -> bool {
        // The welcome comes before the first request of a client; after that only a probe's echo is ours, and the
        // welcome of a later connection.
        if self.heard && !self.probed && !self.lost {
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

fn oversized(socket: Socket, head: Message) -> FromKernel {
    tracing::warn!(?socket, "dropped a message of the kernel's that is too large");
    let (channel, identity) = match socket {
        Socket::Iopub => (Channel::Iopub, Bytes::new()),
        Socket::Dealer(channel, identity) | Socket::Unreached(channel, identity) => (channel, identity),
    };
    FromKernel::Oversized {
        channel,
        identity,
        head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_zmtp::{Server, ServerKind};

    /// Whether a client's first message reaches a kernel whose folder is gone by then.
    async fn reaches(channel: Channel, port: u8, held: bool) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let (tx, mut at_kernel) = mpsc::channel(100);
        let (kind, limits) = (ServerKind::Router, Limits::default());
        let at = Endpoint::Ipc(folder.path().join(format!("k-{port}")));
        let _kernel = Server::bind(kind, &at, limits, Admit::SameUser, (), tx)
            .await
            .unwrap();
        let (mut sockets, mut events) = Sockets::new(folder.path(), Author::new(b"key", "s".into()));
        if held {
            sockets.hold();
        }
        folder.close().unwrap();
        let message = Message(vec![Bytes::from_static(b"hello")]);
        sockets.send(channel, &Bytes::from_static(b"me"), &message).await;
        let came = async {
            while let Some(((), event)) = at_kernel.recv().await {
                if matches!(&event, Event::Message(_, came) if *came == message) {
                    return;
                }
            }
        };
        let told = async {
            while let Some((socket, event)) = events.recv().await {
                if let Some(FromKernel::Unreached(to, _, what)) = sockets.sort(socket, event) {
                    assert_eq!((to, &what), (channel, &message));
                    return;
                }
            }
        };
        tokio::select! {
            () = came => true,
            () = told => false,
        }
    }

    #[tokio::test]
    async fn a_kernel_is_reached_without_its_folder_and_else_the_request_comes_back() {
        for (channel, port) in [(Channel::Shell, 1), (Channel::Control, 4)] {
            assert!(reaches(channel, port, true).await, "{channel:?}");
            assert!(!reaches(channel, port, false).await, "{channel:?}");
        }
    }
}
