//! The keeper as the seat's process sees it.

use crate::book::Book;
use crate::event::Event;
use crate::group::Group;
use crate::links::{Hosted, Links, Wire};
use crate::lock::lock;
use crate::patience::Patience;
use hop_log::State;
use hop_protocol::tls::TlsError;
use hop_raft::{Member, OpenError, Opening, ProposeError};
use hop_wal::{Options, Wal};
use hop_words::id::{Incarnation, JobId};
use hop_words::net::PortRange;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// A keeper to start.
#[derive(Debug)]
pub struct Settings<'a> {
    /// The seat.
    pub me: JobId,
    /// The address to listen on, and its ports; `None` means any free port.
    pub listen: IpAddr,
    pub ports: Option<PortRange>,
    /// The folder of the log, on a disk of the node.
    pub log: &'a Path,
    pub wal: Options,
    pub book: Book,
    pub patience: Patience,
}

/// The keeper can't be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the log of the user's kernels can't be opened")]
    Log(#[from] hop_wal::OpenError),
    #[error("the keys of the user's keepers can't be used")]
    Keys(#[source] io::Error),
    #[error("the keys of the user's keepers can't be used")]
    Tls(#[from] TlsError),
    #[error("the keeper can't listen on {address}")]
    Listen {
        address: IpAddr,
        #[source]
        source: io::Error,
    },
    #[error("the keeper's address can't be written to the user's home")]
    Book(#[source] io::Error),
}

/// A kernel's group can't be kept.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("group {0} is kept here already")]
    Known(String),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the group can't be founded")]
    Found(#[from] ProposeError),
}

/// A kernel to keep.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The group: kernel and generation.
    pub group: String,
    /// This seat's member.
    pub me: Incarnation,
    /// Number of replicas for the kernel: 1 or 3.
    pub wanted: usize,
}

/// The keeper of a seat. Dropping it ends all links and groups; the log stays.
#[derive(Debug)]
pub struct Keeper {
    links: Arc<Links>,
    wal: Wal,
    address: SocketAddr,
    events: mpsc::UnboundedSender<Event>,
    patience: Patience,
}

impl Keeper {
    /// Opens the log, listens, and enters the address in the book. Events come by the receiver.
    ///
    /// # Errors
    /// If the log, the keys or the address can't be used.
    pub async fn start(settings: Settings<'_>) -> Result<(Self, mpsc::UnboundedReceiver<Event>), StartError> {
        let Settings {
            me,
            listen,
            ports,
            log,
            wal,
            book,
            patience,
        } = settings;
        let wal = Wal::open(log, wal)?;
        let (events, happened) = mpsc::unbounded_channel();
        let keys = book.keys().map_err(StartError::Keys)?;
        let links = Links::new(me, &keys, book.clone(), events.clone())?;
        let listen_error = |source| StartError::Listen {
            address: listen,
            source,
        };
        let listener = hop_words::net::listen(listen, ports).and_then(|listener| {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        });
        let listener = listener.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        book.enter(me, address).map_err(StartError::Book)?;
        links.spawn(Arc::clone(&links).accept(listener));
        links.spawn(Arc::clone(&links).ping());
        let keeper = Self {
            links,
            wal,
            address,
            events,
            patience,
        };
        Ok((keeper, happened))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins a kernel's group here, with the kernel's present state.
    ///
    /// # Errors
    /// If the group is kept already, or can't be written.
    pub async fn found(&self, kernel: Kernel, state: &State) -> Result<Arc<Member<Wire>>, KernelError> {
        let (group, member) = self.open(kernel).await?;
        member.found(state).await?;
        self.links.spawn(group.run());
        Ok(member)
    }

    /// Joins a kernel's group. The leader learns of the member by a `Join` in the log.
    ///
    /// # Errors
    /// If the group is kept already, or can't be written.
    pub async fn join(&self, kernel: Kernel) -> Result<Arc<Member<Wire>>, KernelError> {
        let (group, member) = self.open(kernel).await?;
        self.links.spawn(group.run());
        Ok(member)
    }

    async fn open(&self, kernel: Kernel) -> Result<(Group, Arc<Member<Wire>>), KernelError> {
        let Kernel { group, me, wanted } = kernel;
        if lock(&self.links.hosted).contains_key(&group) {
            return Err(KernelError::Known(group));
        }
        let seats = Arc::new(Mutex::new(BTreeMap::new()));
        let wire = Wire {
            links: Arc::clone(&self.links),
            group: group.clone(),
            seats: Arc::clone(&seats),
        };
        let opening = Opening {
            wal: &self.wal,
            name: &group,
            me,
            transport: Arc::new(wire),
        };
        let member = Arc::new(Member::open(opening).await?);
        let hosted = Hosted {
            me,
            member: Arc::clone(&member),
        };
        lock(&self.links.hosted).insert(group.clone(), hosted);
        let group = Group {
            links: Arc::clone(&self.links),
            name: group,
            me,
            member: Arc::clone(&member),
            seats,
            wanted,
            events: self.events.clone(),
            patience: self.patience,
        };
        Ok((group, member))
    }

    /// Ends this seat's part of a group, because its member has left or the kernel is over. Removes its log.
    pub async fn leave(&self, group: &str) {
        let hosted = lock(&self.links.hosted).remove(group);
        self.links.share(group, BTreeSet::new());
        self.links.rests(group, false);
        self.links.failed(group, None);
        if let Some(hosted) = hosted {
            hosted.member.close().await;
            // Leavings in an unwritable log end with the seat.
            let _ = hosted.member.forget();
        }
    }

    /// The executor here says whether its kernel is at rest: another member could go on, and the user would lose
    /// nothing.
    pub fn rests(&self, group: &str, rests: bool) {
        self.links.rests(group, rests);
    }

    /// Tells the group's other seats that the kernel is over. A seat out of reach finds out by itself
    /// ([`Event::Leaderless`]).
    pub fn close(&self, group: &str) {
        self.links.tell_closed(group);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.links.close();
    }
}
