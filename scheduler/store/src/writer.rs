//! The thread that saves: group commit, and a backlog of unsaved changes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long after a failure the backlog is tried again when nothing new comes.
const RETRY: Duration = Duration::from_secs(1);

/// Why something is not durable (yet).
#[derive(Debug, Clone, thiserror::Error)]
pub enum SaveError {
    #[error("no space is left for {}; it is kept in memory and tried again every second: make room", .path.display())]
    Full {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    #[error("{} could not be written; it is kept in memory and tried again every second", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    #[error("{} could not be written: {reason}; it is kept in memory and tried again every second", .path.display())]
    Database { path: PathBuf, reason: String },
    #[error("another hopd has taken {} over (its term is {term}): this one must end", .path.display())]
    Superseded { path: PathBuf, term: u64 },
    #[error("an entry can't be encoded")]
    Encode(#[source] Arc<serde_json::Error>),
    #[error("the store is closed")]
    Closed,
}

impl SaveError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        use io::ErrorKind as K;
        let full = matches!(source.kind(), K::StorageFull | K::QuotaExceeded | K::FileTooLarge);
        let (path, source) = (path.to_owned(), Arc::new(source));
        match full {
            true => Self::Full { path, source },
            false => Self::Io { path, source },
        }
    }

    /// The disk is full: no bug, and it goes away by making room.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// No later try can help.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Superseded { .. } | Self::Encode(_) | Self::Closed => true,
            Self::Full { .. } | Self::Io { .. } | Self::Database { .. } => false,
        }
    }
}

/// How the store is doing.
#[derive(Debug, Clone, Default)]
pub struct Health {
    /// Entries that are in memory alone.
    pub unsaved: usize,
    /// Why, after a failure.
    pub error: Option<SaveError>,
}

/// Resolves when the posted changes are durable, or with the reason for a delay. May be dropped.
#[derive(Debug)]
#[must_use = "await it, or drop it where durability may come later"]
pub struct Ticket(pub(crate) oneshot::Receiver<Result<(), SaveError>>);

impl Ticket {
    /// Waits for durability.
    pub async fn durable(self) -> Result<(), SaveError> {
        self.0.await.unwrap_or(Err(SaveError::Closed))
    }

    /// The same for a thread that may block.
    pub fn durable_blocking(self) -> Result<(), SaveError> {
        self.0.blocking_recv().unwrap_or(Err(SaveError::Closed))
    }

    pub(crate) fn failed(error: SaveError) -> Self {
        let (tx, rx) = oneshot::channel();
        let _ = tx.send(Err(error));
        Self(rx)
    }
}

type Waiter = oneshot::Sender<Result<(), SaveError>>;

/// Storage of the writer's thread; all entries of a call are a single transaction.
pub(crate) trait Sink<K, V>: Send + 'static {
    fn save(&mut self, entries: &BTreeMap<K, V>) -> Result<(), SaveError>;
}

#[derive(Debug)]
struct Post<K, V> {
    entries: Vec<(K, V)>,
    waiter: Waiter,
}

/// The sender's side. Dropping it saves the queue and ends the thread.
#[derive(Debug)]
pub(crate) struct Writer<K, V> {
    queue: Option<Sender<Post<K, V>>>,
    health: Arc<Mutex<Health>>,
    thread: Option<JoinHandle<()>>,
}

impl<K: Ord + Send + 'static, V: Send + 'static> Writer<K, V> {
    pub(crate) fn start(name: &str, sink: impl Sink<K, V>) -> io::Result<Self> {
        // Unbounded: it holds the core's decisions, whose number the cells bound. A bound here would make the lease
        // path wait for the disk.
        let (queue, incoming) = channel();
        let health = Arc::new(Mutex::new(Health::default()));
        let state = State {
            sink,
            backlog: BTreeMap::new(),
            waiters: Vec::new(),
            health: health.clone(),
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || state.run(&incoming))?;
        Ok(Self {
            queue: Some(queue),
            health,
            thread: Some(thread),
        })
    }

    /// Queues entries. Later ones of the same key replace earlier ones that are not saved yet.
    pub(crate) fn post(&self, entries: Vec<(K, V)>) -> Ticket {
        let (waiter, ticket) = oneshot::channel();
        if let Some(queue) = &self.queue {
            // If the thread is gone the waiter is dropped with the post, and the ticket says `Closed`.
            let _ = queue.send(Post { entries, waiter });
        }
        Ticket(ticket)
    }

    pub(crate) fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<K, V> Drop for Writer<K, V> {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct State<S, K, V> {
    sink: S,
    backlog: BTreeMap<K, V>,
    waiters: Vec<Waiter>,
    health: Arc<Mutex<Health>>,
}

impl<K: Ord, V, S: Sink<K, V>> State<S, K, V> {
    fn run(mut self, incoming: &Receiver<Post<K, V>>) {
        loop {
            let open = self.collect(incoming);
            let saved = self.save();
            if !open {
                if let Err(error) = saved {
                    tracing::error!(%error, unsaved = self.backlog.len(), "ended with entries that could not be saved");
                }
                return;
            }
        }
    }

    /// Waits for a post, then takes all that are queued. `false` means that no post can come any more.
    fn collect(&mut self, incoming: &Receiver<Post<K, V>>) -> bool {
        let first = match self.backlog.is_empty() {
            true => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => incoming.recv_timeout(RETRY),
        };
        match first {
            Ok(post) => self.take(post),
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        while let Ok(post) = incoming.try_recv() {
            self.take(post);
        }
        true
    }

    fn take(&mut self, post: Post<K, V>) {
        self.backlog.extend(post.entries);
        self.waiters.push(post.waiter);
    }

    fn save(&mut self) -> Result<(), SaveError> {
        let result = match self.backlog.is_empty() {
            true => Ok(()),
            false => self.sink.save(&self.backlog),
        };
        if result.is_ok() {
            self.backlog.clear();
        }
        self.note(result.as_ref().err());
        for waiter in self.waiters.drain(..) {
            let _ = waiter.send(result.clone());
        }
        result
    }

    fn note(&self, error: Option<&SaveError>) {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        match (&health.error, error) {
            (None, Some(error)) => tracing::error!(%error, unsaved = self.backlog.len(), "could not save"),
            (Some(_), None) => tracing::info!("saving works again, nothing was lost"),
            _ => {}
        }
        *health = Health {
            unsaved: self.backlog.len(),
            error: error.cloned(),
        };
    }
}
