//! The thread that saves: group commit, and a backlog of unsaved changes.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::panic::AssertUnwindSafe;
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
    #[error(
        "a bug or a damaged file stopped the writing: {reason}; it is kept in memory and tried again every second, and lost with hopd's end"
    )]
    Panicked { reason: String },
    #[error("the thread that writes has ended: this hopd must end")]
    ThreadEnded,
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
            Self::Superseded { .. } | Self::ThreadEnded | Self::Encode(_) | Self::Closed => true,
            Self::Full { .. } | Self::Io { .. } | Self::Database { .. } | Self::Panicked { .. } => false,
        }
    }

    /// Nothing will be saved any more: another process may save it.
    pub fn must_end(&self) -> bool {
        matches!(self, Self::Superseded { .. } | Self::ThreadEnded)
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

    /// The thread's last word, unless the thread has ended: its last word may then be a good one.
    pub(crate) fn health(&self) -> Health {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            health.error = Some(SaveError::ThreadEnded);
        }
        health
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

/// Saves. A panic is a failure that keeps the entries: a dead thread would drop them, and all later ones, in silence.
fn save_or_panic<K, V>(sink: &mut impl Sink<K, V>, entries: &BTreeMap<K, V>) -> Result<(), SaveError> {
    // The journal is opened anew by its next save, and SQLite's transaction is rolled back as the panic drops it.
    let saved = std::panic::catch_unwind(AssertUnwindSafe(|| sink.save(entries)));
    saved.unwrap_or_else(|panic| {
        Err(SaveError::Panicked {
            reason: words_of(&*panic),
        })
    })
}

/// The words of a panic.
fn words_of(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let words = literal.or_else(|| panic.downcast_ref::<String>().cloned());
    let words = words.unwrap_or_else(|| "it panicked".to_owned());
    words.split_whitespace().collect::<Vec<_>>().join(" ")
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
            false => save_or_panic(&mut self.sink, &self.backlog),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A disk that panics while `broken`, and that tells what it has.
    struct Sickly {
        broken: Arc<AtomicBool>,
        saved: Arc<Mutex<BTreeMap<u8, u8>>>,
    }

    impl Sink<u8, u8> for Sickly {
        fn save(&mut self, entries: &BTreeMap<u8, u8>) -> Result<(), SaveError> {
            assert!(!self.broken.load(Ordering::SeqCst), "page 7 is\n odd");
            self.saved.lock().unwrap().extend(entries);
            Ok(())
        }
    }

    #[test]
    fn a_panic_of_the_store_is_told_and_loses_nothing() {
        let (broken, saved) = (Arc::new(AtomicBool::new(true)), Arc::default());
        let sink = Sickly {
            broken: Arc::clone(&broken),
            saved: Arc::clone(&saved),
        };
        let writer = Writer::start("sickly", sink).unwrap();
        let error = writer.post(vec![(1, 1)]).durable_blocking().unwrap_err();
        assert!(error.to_string().contains("page 7 is odd"), "{error}");
        assert!(!error.is_lasting());
        let health = writer.health();
        assert_eq!(health.unsaved, 1);
        assert!(
            matches!(health.error, Some(SaveError::Panicked { .. })),
            "{health:?}"
        );
        broken.store(false, Ordering::SeqCst);
        writer.post(vec![(2, 2)]).durable_blocking().unwrap();
        assert!(writer.health().error.is_none());
        assert_eq!(*saved.lock().unwrap(), BTreeMap::from([(1, 1), (2, 2)]));
    }

    #[test]
    fn a_thread_that_has_ended_is_an_error() {
        let thread = std::thread::spawn(|| {});
        while !thread.is_finished() {
            std::thread::yield_now();
        }
        let writer = Writer::<u8, u8> {
            queue: Some(channel().0),
            health: Arc::default(),
            thread: Some(thread),
        };
        let error = writer.health().error.unwrap();
        assert!(error.must_end(), "{error}");
        assert!(writer.post(vec![(1, 1)]).durable_blocking().is_err());
    }
}
