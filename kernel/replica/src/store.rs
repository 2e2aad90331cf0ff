//! Writes the kernel's state to the user's store, in a thread of its own: a file system that hangs never holds up the
//! kernel. Records go behind each other into the log of the tenure's folder, and are on disk within a quarter of a
//! second.

use crate::core::Durably;
use bytes::Bytes;
use hop_log::{RecordNumber, Settled, State};
use hop_protocol::states::{self, OpenError};
use hop_state::writer::{Key, WriteError, Writer};
use hop_words::error::chain;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// A record is synced at once; records within this time afterwards are synced together.
const SYNC_EVERY: Duration = Duration::from_millis(250);

/// Work for the thread, done in order.
#[derive(Debug)]
pub(crate) enum StoreJob {
    Append {
        number: RecordNumber,
        text: Bytes,
        body: Bytes,
        behind: Option<Settled>,
    },
    Sync,
    WriteState(Bytes),
    OpenTenure(Box<State>),
}

/// The thread's answers.
#[derive(Debug)]
pub(crate) enum StoreEvent {
    /// The log is on disk up to this record.
    Synced {
        upto: RecordNumber,
        length: u64,
        mac: String,
    },
    /// Nothing waited to be synced.
    InSync,
    /// The state beside the log is on disk.
    Rested,
    /// The next tenure's folder is there.
    Opened,
    /// Another front or replica has opened the next tenure.
    Taken,
    /// The store can't be written any more, for this reason.
    Failed(String),
}

/// Why the store can't be written.
#[derive(Debug, thiserror::Error)]
enum StoreError {
    #[error("the user's store can't be written")]
    Write(#[from] WriteError),
    #[error("the kernel's folder can't be written")]
    Folder(#[from] std::io::Error),
    #[error("the kernel's next folder can't be made")]
    Open(#[source] OpenError),
}

/// The thread's other end.
#[derive(Debug)]
pub(crate) struct StoreThread {
    jobs: Sender<StoreJob>,
}

impl StoreThread {
    pub(crate) fn start(durably: &Durably, events: UnboundedSender<StoreEvent>) -> Self {
        let (jobs, work) = channel();
        let store = Store {
            kernel: durably.folder.clone(),
            folder: states::folder(&durably.folder, durably.state.tenure(), 0),
            log: None,
            unsynced: None,
            synced_at: None,
            failed: false,
            events,
        };
        std::thread::spawn(move || store.run(&work));
        Self { jobs }
    }

    pub(crate) fn send(&self, job: StoreJob) {
        // The thread lives as long as this end.
        let _ = self.jobs.send(job);
    }
}

struct Store {
    /// The folder of all the kernel's tenures, and of this tenure.
    kernel: PathBuf,
    folder: PathBuf,
    /// `None` until the first record of the tenure.
    log: Option<Writer>,
    /// The last record not yet on disk.
    unsynced: Option<RecordNumber>,
    synced_at: Option<Instant>,
    failed: bool,
    events: UnboundedSender<StoreEvent>,
}

impl Store {
    fn run(mut self, work: &Receiver<StoreJob>) {
        loop {
            let done = match work.recv_timeout(self.patience()) {
                Ok(job) => self.work(job),
                Err(RecvTimeoutError::Timeout) => self.sync(),
                Err(RecvTimeoutError::Disconnected) => {
                    // Received records reach the disk before the replica ends, if possible.
                    drop(self.sync());
                    return;
                }
            };
            if let Err(error) = done {
                self.failed = true;
                self.unsynced = None;
                self.tell(StoreEvent::Failed(chain(&error)));
            }
        }
    }

    /// The time until the next sync.
    fn patience(&self) -> Duration {
        match (self.unsynced, self.synced_at) {
            (None, _) => Duration::MAX,
            (Some(_), None) => Duration::ZERO,
            (Some(_), Some(at)) => SYNC_EVERY.saturating_sub(at.elapsed()),
        }
    }

    fn tell(&self, event: StoreEvent) {
        // The replica may be at its end.
        let _ = self.events.send(event);
    }

    fn work(&mut self, job: StoreJob) -> Result<(), StoreError> {
        match job {
            // A log with a gap is none: nothing follows a record that couldn't be written.
            StoreJob::Append { .. } if self.failed => Ok(()),
            StoreJob::Append {
                number,
                text,
                body,
                behind,
            } => {
                self.append(&text, &body, behind.as_ref())?;
                self.unsynced = Some(number);
                Ok(())
            }
            StoreJob::Sync => self.sync(),
            StoreJob::WriteState(state) => {
                states::write_bytes(&self.folder, &state)?;
                self.tell(StoreEvent::Rested);
                Ok(())
            }
            StoreJob::OpenTenure(state) => self.open(&state),
        }
    }

    fn append(&mut self, text: &[u8], body: &[u8], behind: Option<&Settled>) -> Result<(), StoreError> {
        let log = match &mut self.log {
            Some(log) => log,
            None => self.log.insert(begin(&self.kernel, &self.folder, behind)?),
        };
        log.append(text, body)?;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        let (Some(upto), Some(log)) = (self.unsynced.take(), &mut self.log) else {
            self.tell(StoreEvent::InSync);
            return Ok(());
        };
        let at = log.commit()?;
        self.synced_at = Some(Instant::now());
        self.tell(StoreEvent::Synced {
            upto,
            length: at.length,
            mac: at.mac,
        });
        Ok(())
    }

    fn open(&mut self, state: &State) -> Result<(), StoreError> {
        match states::open(&self.kernel, state) {
            Ok(folder) => {
                states::remove_older(&self.kernel, state);
                (self.folder, self.log) = (folder, None);
                self.tell(StoreEvent::Opened);
                Ok(())
            }
            Err(OpenError::Taken(_)) => {
                self.tell(StoreEvent::Taken);
                Ok(())
            }
            Err(error) => Err(StoreError::Open(error)),
        }
    }
}

/// Begins the tenure's log, behind the records of the state from which the tenure goes on.
fn begin(kernel: &Path, folder: &Path, behind: Option<&Settled>) -> Result<Writer, WriteError> {
    let key = Key::of_owner()?;
    match behind {
        Some(settled) => {
            let source = states::folder(kernel, settled.tenure, settled.part);
            Writer::go_on_compactly(folder, &key, &source, settled.length, &settled.mac)
        }
        None => Writer::create(folder, &key),
    }
}
