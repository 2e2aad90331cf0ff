//! The kernel's state machine under openraft: it applies committed entries, and queues their effects to be shown.
//!
//! Effects are shown in order, each once this member's own WAL is synced up to it (`member.rs`). Together with the
//! followers' report after their fdatasync, a shown entry is on the disks of a majority.

use crate::store::{Slot, Store};
use crate::types::{Command, Content, Entry, LogId, Membership, Meta, Parts, Snapshot, Storage, Types};
use bytes::Bytes;
use hop_log::{Effect, Form, Index, Refusal, State};
use hop_wal::Position;
use openraft::storage::RaftStateMachine;
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder, StorageIOError};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// News of a group's log.
#[derive(Debug, Clone)]
pub enum News {
    /// An entry is committed, and was applied.
    Applied {
        index: Index,
        entry: hop_log::Entry,
        effect: Result<Effect, Refusal>,
    },
    /// The whole state: the group begins with it, or this member was behind by more than the log goes back.
    State(Box<State>),
}

/// News to show once the WAL is synced up to the position.
#[derive(Debug)]
pub(crate) struct ToShow {
    pub(crate) position: Position,
    pub(crate) news: Option<News>,
    /// Bytes of the entry.
    pub(crate) size: usize,
}

/// The state machine. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    store: Store,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    /// `None` before the group's first command.
    state: Option<State>,
    /// The log's index is Raft's plus this.
    offset: u64,
    last: Option<LogId>,
    membership: Membership,
    to_show: mpsc::UnboundedSender<ToShow>,
}

impl Machine {
    /// Opens the machine of the last snapshot. openraft applies the later entries again.
    pub(crate) fn open(store: Store, to_show: mpsc::UnboundedSender<ToShow>) -> io::Result<Self> {
        let mut inner = Inner {
            state: None,
            offset: 0,
            last: None,
            membership: Membership::default(),
            to_show,
        };
        if let Some(snapshot) = store.get::<Snapshot>(Slot::Snapshot)? {
            inner.take(&snapshot.meta, snapshot.data)?;
        }
        let inner = Arc::new(Mutex::new(inner));
        Ok(Self { store, inner })
    }

    fn locked<R>(&self, look: impl FnOnce(&mut Inner) -> R) -> R {
        look(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The state after the last applied entry. `None`: the group has none yet.
    pub(crate) fn state(&self) -> Option<State> {
        self.locked(|inner| inner.state.clone())
    }

    /// The log's index of an entry with this index of Raft's.
    pub(crate) fn index(&self, raft: u64) -> Index {
        self.locked(|inner| Index(raft + inner.offset))
    }
}

impl Inner {
    fn take(&mut self, meta: &Meta, data: Bytes) -> io::Result<()> {
        let content = Content::unpack(data)?;
        self.state = match content.offset {
            Some(_) => Some(State::decode(content.state).map_err(io::Error::other)?),
            None => None,
        };
        self.offset = content.offset.unwrap_or_default();
        self.last = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        Ok(())
    }

    fn apply(&mut self, entry: Entry) -> Result<Option<News>, hop_log::FormError> {
        self.last = Some(entry.log_id);
        match entry.payload {
            EntryPayload::Blank => Ok(None),
            EntryPayload::Membership(membership) => {
                self.membership = Membership::new(Some(entry.log_id), membership);
                Ok(None)
            }
            EntryPayload::Normal(Command(bytes)) => self.command(entry.log_id.index, bytes),
        }
    }

    fn command(&mut self, raft: u64, bytes: Bytes) -> Result<Option<News>, hop_log::FormError> {
        let Some(state) = &mut self.state else {
            // The group's first command is its initial state.
            let state = State::decode(bytes)?;
            self.offset = state.applied().0;
            self.state = Some(state.clone());
            return Ok(Some(News::State(Box::new(state))));
        };
        if is_state(&bytes) {
            // Somebody was late to found the group.
            return Ok(None);
        }
        let entry = hop_log::Entry::decode(bytes)?;
        let index = Index(raft + self.offset);
        let effect = state.apply(index, &entry);
        Ok(Some(News::Applied { index, entry, effect }))
    }
}

/// Whether the command is a state, by the kind in its serialised form.
fn is_state(bytes: &Bytes) -> bool {
    bytes.get(1) == Some(&b's')
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), Storage> {
        Ok(self.locked(|inner| (inner.last, inner.membership.clone())))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, Storage>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut applied = Vec::new();
        let position = self.store.position();
        for entry in entries {
            let id = entry.log_id;
            let size = match &entry.payload {
                EntryPayload::Normal(command) => command.0.len(),
                EntryPayload::Blank | EntryPayload::Membership(_) => 0,
            };
            let shown = self.locked(|inner| {
                let news = inner.apply(entry)?;
                // Without a receiver the member is being closed.
                let _ = inner.to_show.send(ToShow { position, news, size });
                Ok::<(), hop_log::FormError>(())
            });
            shown.map_err(|e| StorageIOError::apply(id, &e))?;
            applied.push(());
        }
        Ok(applied)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        self.locked(|inner| Builder {
            store: self.store.clone(),
            meta: Meta {
                last_log_id: inner.last,
                last_membership: inner.membership.clone(),
                snapshot_id: inner.last.map(|l| l.to_string()).unwrap_or_default(),
            },
            state: inner.state.clone(),
            offset: inner.offset,
        })
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Bytes>, Storage> {
        Ok(Box::default())
    }

    async fn install_snapshot(&mut self, meta: &Meta, snapshot: Box<Bytes>) -> Result<(), Storage> {
        let failed = |e: &io::Error| StorageIOError::write_snapshot(Some(meta.signature()), e);
        let taken = Snapshot {
            meta: meta.clone(),
            data: (*snapshot).clone(),
        };
        let put = self.store.put(Slot::Snapshot, taken);
        let position = put.map_err(|e| failed(&io::Error::other(e)))?;
        self.locked(|inner| {
            inner.take(meta, *snapshot)?;
            let news = inner.state.clone().map(|state| News::State(Box::new(state)));
            let _ = inner.to_show.send(ToShow {
                position,
                news,
                size: 0,
            });
            Ok(())
        })
        .map_err(|e| failed(&e))?;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<openraft::Snapshot<Types>>, Storage> {
        let snapshot = self.store.get::<Snapshot>(Slot::Snapshot);
        let snapshot = snapshot.map_err(|e| StorageIOError::read_snapshot(None, &e))?;
        Ok(snapshot.map(|s| openraft::Snapshot {
            meta: s.meta,
            snapshot: Box::new(s.data),
        }))
    }
}

/// A snapshot to be, of the state at one entry.
#[derive(Debug)]
pub(crate) struct Builder {
    store: Store,
    meta: Meta,
    state: Option<State>,
    offset: u64,
}

impl RaftSnapshotBuilder<Types> for Builder {
    async fn build_snapshot(&mut self) -> Result<openraft::Snapshot<Types>, Storage> {
        let content = Content {
            offset: self.state.is_some().then_some(self.offset),
            state: self.state.as_ref().map(Form::encode).unwrap_or_default(),
        };
        let data = content.pack();
        let snapshot = Snapshot {
            meta: self.meta.clone(),
            data: data.clone(),
        };
        let put = self.store.put(Slot::Snapshot, snapshot);
        put.map_err(|e| StorageIOError::write_snapshot(Some(self.meta.signature()), &e))?;
        Ok(openraft::Snapshot {
            meta: self.meta.clone(),
            snapshot: Box::new(data),
        })
    }
}
