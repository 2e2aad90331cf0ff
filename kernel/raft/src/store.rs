//! openraft's log in the seat's WAL.
//!
//! A leader's entry is reported as stored after its write, before its sync. openraft 0.9 sends entries to followers
//! only after the leader's own report, and two fdatasyncs in series would double the wait. The group waits for the
//! leader's sync before an entry's effects are shown (`machine.rs`). A written entry survives the process's death. A
//! member whose node lost power never comes back under its incarnation: no voting member can forget anything.
//! Followers report after their fdatasync.

use crate::types::{Entry, LogId, Parts, Storage, Types, Vote};
use bytes::Bytes;
use hop_wal::{AppendError, Position};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader, StorageIOError};
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{oneshot, watch};

/// The slots of a group in the WAL.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Slot {
    Vote = 0,
    /// The last purged entry, with its term.
    Purged = 1,
    Snapshot = 2,
}

/// Bytes of entries in one message. A single entry of any size goes through.
const BATCH: usize = 1 << 20;

/// One member's part of the WAL.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) group: hop_wal::Group,
    me: u32,
    written: Arc<Mutex<Written>>,
    /// Why an entry that openraft took for stored isn't: openraft doesn't hear of it, because a leader's entries count
    /// as stored before the WAL is synced.
    pub(crate) unsynced: watch::Sender<Option<String>>,
}

#[derive(Debug)]
struct Written {
    vote: Option<Vote>,
    /// Behind the group's last entry.
    position: Position,
}

impl Store {
    pub(crate) fn open(group: hop_wal::Group, me: u32) -> io::Result<Self> {
        let position = group.written();
        let store = Self {
            group,
            me,
            written: Arc::new(Mutex::new(Written { vote: None, position })),
            unsynced: watch::Sender::new(None),
        };
        let vote = store.get::<Vote>(Slot::Vote)?;
        store.locked(|w| w.vote = vote);
        Ok(store)
    }

    fn locked<R>(&self, look: impl FnOnce(&mut Written) -> R) -> R {
        look(&mut self.written.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn get<T: Parts>(&self, slot: Slot) -> io::Result<Option<T>> {
        let value = self.group.read(|g| g.slot(slot as u64).cloned());
        value.flatten().map(T::unpack).transpose()
    }

    pub(crate) fn put(&self, slot: Slot, value: impl Parts) -> Result<Position, AppendError> {
        self.group.put(slot as u64, value.pack())
    }

    /// The position behind the group's last entry.
    pub(crate) fn position(&self) -> Position {
        self.locked(|w| w.position)
    }

    /// Waits until the position is synced.
    pub(crate) async fn synced(&self, position: Position) -> io::Result<()> {
        let (tell, told) = oneshot::channel();
        self.group.on_synced(position, move |synced| {
            let _ = tell.send(synced);
        });
        let synced = match told.await {
            Ok(synced) => synced.map_err(io::Error::other),
            Err(_) => Err(io::Error::other("the log is closed")),
        };
        synced.inspect_err(|error| drop(self.unsynced.send_replace(Some(error.to_string()))))
    }

    /// Whether this member leads, by its last stored vote.
    fn leads(&self) -> bool {
        self.locked(|w| w.vote)
            .is_some_and(|v| v.committed && v.leader_id.node_id == self.me)
    }

    fn entries(&self, range: impl RangeBounds<u64>, budget: usize) -> io::Result<Vec<Entry>> {
        let read = |g: &hop_wal::GroupState| {
            let mut left = budget;
            let fits = |bytes: &Bytes, first: bool| {
                let fits = first || bytes.len() <= left;
                left = left.saturating_sub(bytes.len());
                fits
            };
            within(g.entries(range), fits)
        };
        let entries = self.group.read(read).unwrap_or_default();
        entries.into_iter().map(Entry::unpack).collect()
    }
}

/// The entries from the start that fit.
fn within<'a>(
    entries: impl Iterator<Item = (u64, &'a Bytes)>,
    mut fits: impl FnMut(&Bytes, bool) -> bool,
) -> Vec<Bytes> {
    let mut taken = Vec::new();
    for (_, bytes) in entries {
        if !fits(bytes, taken.is_empty()) {
            break;
        }
        taken.push(bytes.clone());
    }
    taken
}

impl RaftLogReader<Types> for Store {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, Storage> {
        let entries = self.entries(range, usize::MAX);
        Ok(entries.map_err(|e| StorageIOError::read_logs(&e))?)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, Storage> {
        let entries = self.entries(start..end, BATCH);
        Ok(entries.map_err(|e| StorageIOError::read_logs(&e))?)
    }
}

impl RaftLogStorage<Types> for Store {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, Storage> {
        let purged = self
            .get::<LogId>(Slot::Purged)
            .map_err(|e| StorageIOError::read_logs(&e))?;
        // A purge of which only the slot was written is done again.
        if let Some(purged) = &purged
            && self.group.read(|g| g.purged()).flatten() < Some(purged.index)
        {
            self.group
                .purge(purged.index)
                .map_err(|e| StorageIOError::write_logs(&e))?;
        }
        let last = self
            .group
            .read(|g| g.entries(..).last().map(|(_, bytes)| bytes.clone()));
        let last = last.flatten().map(Entry::unpack).transpose();
        let last = last.map_err(|e| StorageIOError::read_logs(&e))?;
        Ok(LogState {
            last_purged_log_id: purged,
            last_log_id: last.map(|e| e.log_id).or(purged),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), Storage> {
        let put = self
            .put(Slot::Vote, *vote)
            .map_err(|e| StorageIOError::write_vote(&e))?;
        self.locked(|w| w.vote = Some(*vote));
        self.synced(put)
            .await
            .map_err(|e| StorageIOError::write_vote(&e))?;
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, Storage> {
        Ok(self.locked(|w| w.vote))
    }

    async fn append<I>(&mut self, entries: I, stored: LogFlushed<Types>) -> Result<(), Storage>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let Some(first) = entries.first().map(|e| e.log_id.index) else {
            stored.log_io_completed(Ok(()));
            return Ok(());
        };
        let entries: Vec<Bytes> = entries.into_iter().map(Parts::pack).collect();
        let position = self.group.append(first, &entries);
        let position = position.map_err(|e| StorageIOError::write_logs(&e))?;
        self.locked(|w| w.position = position);
        if self.leads() {
            stored.log_io_completed(Ok(()));
        } else {
            let tell = move |synced: Result<(), _>| stored.log_io_completed(synced.map_err(io::Error::other));
            self.group.on_synced(position, tell);
        }
        Ok(())
    }

    async fn truncate(&mut self, from: LogId) -> Result<(), Storage> {
        self.group
            .truncate(from.index)
            .map_err(|e| StorageIOError::write_logs(&e))?;
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), Storage> {
        self.put(Slot::Purged, upto)
            .map_err(|e| StorageIOError::write_logs(&e))?;
        self.group
            .purge(upto.index)
            .map_err(|e| StorageIOError::write_logs(&e))?;
        Ok(())
    }
}
