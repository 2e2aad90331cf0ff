//! The groups of kernels kept by a seat: the state shared by all tasks. Groups are founded and joined, and replicas
//! paired with them, in [`super::visits`]; each group has a task of its own ([`super::tend`]).

use super::Seat;
use super::leftovers;
use super::log_folder;
use super::spares::Spares;
use super::wire::FromSeat;
use crate::core::Lack;
use hop_api::config::{Config, LogSync};
use hop_keeper::{Book, Event, Keeper, Patience, Settings, StartError, Wire};
use hop_log::{Entry, Generation};
use hop_protocol::file::seats_dir;
use hop_wal::Sync;
use hop_words::id::{Incarnation, KernelId};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};

/// Groups of a user in one seat. Beyond them a kernel stays with its present replicas.
pub(super) const GROUPS_MAX: usize = 1024;

/// Why a seat keeps no groups.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostError {
    #[error("there is no home folder (HOME is not set)")]
    NoHome,
    #[error("the folder of the user's seats can't be used")]
    Book(#[source] io::Error),
    #[error(transparent)]
    Folder(#[from] log_folder::Nowhere),
    #[error(transparent)]
    Keeper(#[from] StartError),
}

/// This seat's part of a group.
pub(super) type Member = Arc<hop_raft::Member<Wire>>;

/// A word to a group's task.
#[derive(Debug)]
pub(super) enum Command {
    /// A replica of this seat asks for its part: executor, follower, or founder of the group.
    Attach {
        visit: u64,
        out: mpsc::UnboundedSender<FromSeat>,
        /// As the kernel's hot standby.
        hot: bool,
    },
    /// That replica's connection is closed.
    Detach {
        visit: u64,
    },
    Propose(Entry),
    /// The replica says whether the kernel is at rest.
    Rests(bool),
    /// The replica asks whether the processes of all earlier executors have ended.
    AskFormer,
    /// The group lacks members.
    Need(Lack),
    /// The kernel is over.
    Over,
    /// The group is over, or this seat's part of it.
    Leave,
}

/// The groups of one seat.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) seat: Seat,
    pub(super) keeper: Keeper,
    pub(super) spares: Spares,
    table: Mutex<Table>,
    pub(super) visits: AtomicU64,
    /// How many groups are kept, and replicas sit here.
    pub(super) busy: watch::Sender<Busy>,
}

/// What holds the seat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Busy {
    pub replicas: usize,
    pub groups: usize,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) kept: BTreeMap<String, Kept>,
    /// The last member here of each group that this seat has left. A member without memory of its vote must not come
    /// back; a later incarnation is another member.
    pub(super) left: BTreeMap<String, Incarnation>,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) kernel: KernelId,
    pub(super) me: Incarnation,
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

/// The group's name: kernel and generation.
pub(super) fn group_name(kernel: &KernelId, generation: Generation) -> String {
    format!("{kernel}.{generation}")
}

pub(super) fn parse(group: &str) -> Option<(KernelId, u32)> {
    let (kernel, generation) = group.rsplit_once('.')?;
    Some((kernel.into(), generation.parse().ok()?))
}

fn sync_of(site: LogSync) -> Sync {
    match site {
        LogSync::Always => Sync::Always,
        LogSync::Second => Sync::Every(Duration::from_secs(1)),
    }
}

impl Host {
    /// Starts the keeper of a seat, listening on this address. The log's folder is removed when the last value is
    /// dropped.
    ///
    /// # Errors
    /// The keeper's folders can't be used, or the keeper can't listen.
    pub(super) async fn start(
        seat: Seat,
        listen: IpAddr,
        config: &Config,
    ) -> Result<(Arc<Self>, mpsc::UnboundedReceiver<Event>, TempDir), HostError> {
        let folders = log_folder::candidates(config.seat.log_dir.as_deref());
        let log = log_folder::make(folders, &seat.node)?;
        let book = Book::open(&seats_dir().ok_or(HostError::NoHome)?).map_err(HostError::Book)?;
        let settings = Settings {
            me: seat.job,
            listen,
            ports: config.port_range,
            log: log.path(),
            wal: hop_wal::Options {
                sync: sync_of(config.seat.log_sync),
                ..hop_wal::Options::default()
            },
            book: book.clone(),
            patience: Patience::default(),
        };
        let (keeper, events) = Keeper::start(settings).await?;
        tokio::spawn(leftovers::strike(book, seat.job));
        let host = Self {
            spares: Spares::new(seat.clone()),
            seat,
            keeper,
            table: Mutex::default(),
            visits: AtomicU64::new(0),
            busy: watch::Sender::new(Busy::default()),
        };
        Ok((Arc::new(host), events, log))
    }

    /// What holds the seat, as it changes.
    pub(super) fn busy(&self) -> watch::Receiver<Busy> {
        self.busy.subscribe()
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn command(&self, group: &str, command: Command) {
        if let Some(kept) = self.table().kept.get(group) {
            // The group may be at its end.
            let _ = kept.commands.send(command);
        }
    }

    /// The kernel was opened anew, and has left its older groups behind.
    pub(super) fn leave_older(&self, kernel: &KernelId, generation: Generation) {
        for (name, kept) in &self.table().kept {
            let older = parse(name).is_some_and(|(_, of)| of < generation.0);
            if kept.kernel == *kernel && older {
                let _ = kept.commands.send(Command::Leave);
            }
        }
    }

    /// The group's task has ended.
    pub(super) async fn left(&self, group: &str) {
        self.spares.unwant(group);
        self.keeper.leave(group).await;
        let mut table = self.table();
        if let Some(kept) = table.kept.remove(group) {
            table.left.insert(group.to_owned(), kept.me);
        }
        drop(table);
        self.count();
    }

    pub(super) fn count(&self) {
        let groups = self.table().kept.len();
        self.busy.send_modify(|busy| busy.groups = groups);
    }

    /// The task of the group that may have elected this replica.
    pub(super) fn desk(&self, kernel: &KernelId, me: Incarnation) -> Option<mpsc::UnboundedSender<Command>> {
        let table = self.table();
        let mut ours = table.kept.values().filter(|k| k.kernel == *kernel && k.me == me);
        ours.next_back().map(|kept| kept.commands.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_name_tells_kernel_and_generation() {
        let kernel: KernelId = "a.b-1".into();
        let name = group_name(&kernel, Generation(4));
        assert_eq!(parse(&name), Some((kernel, 4)));
        assert_eq!(parse("nothing"), None);
    }
}
