//! The groups of kernels kept by a seat: the founding and joining of groups, and the pairing of replicas with groups.
//! Each group has a task of its own ([`super::tend`]).

use super::spares::Spares;
use super::tend::{self, Command, Tended};
use super::wire::{FrameError, FromSeat, Lack, ToSeat};
use hop_api::config::Config;
use hop_keeper::{Book, Event, Keeper, Kernel, Need, Settings, StartError};
use hop_log::{Generation, State};
use hop_protocol::file::{FrontFile, kernel_dir, seats_dir};
use hop_words::id::{Incarnation, JobId, KernelId, NodeName};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Groups of a user in one seat. Beyond them a kernel stays with its present replicas.
const GROUPS_MAX: usize = 1024;

/// How long a seat keeps its part of a group whose other seats have all gone.
const ABANDONED_AFTER: Duration = Duration::from_secs(600);

/// Why a seat keeps no groups.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostError {
    #[error("there is no home folder (HOME is not set)")]
    NoHome,
    #[error("the folder of the user's seats can't be used")]
    Book(#[source] io::Error),
    #[error("the log's folder can't be made in {}", parent.display())]
    Folder {
        parent: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Keeper(#[from] StartError),
}

/// The seat that a host belongs to.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub job: JobId,
    pub node: NodeName,
    /// `hop-replica` on this node.
    pub program: PathBuf,
    /// Spare interpreters that are kept at most.
    pub spares: u32,
}

/// The groups of one seat.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) seat: Seat,
    pub(super) keeper: Keeper,
    pub(super) spares: Spares,
    table: Mutex<Table>,
    visits: AtomicU64,
    /// How many groups are kept, and replicas sit here.
    busy: watch::Sender<Busy>,
}

/// What holds the seat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Busy {
    pub replicas: usize,
    pub groups: usize,
}

#[derive(Debug, Default)]
struct Table {
    kept: BTreeMap<String, Kept>,
    /// Groups that this seat has left. A member without memory of its vote must not come back.
    left: BTreeSet<String>,
}

#[derive(Debug)]
struct Kept {
    kernel: KernelId,
    me: Incarnation,
    commands: mpsc::UnboundedSender<Command>,
}

/// The group's name: kernel and generation.
pub(super) fn group_name(kernel: &KernelId, generation: Generation) -> String {
    format!("{kernel}.{generation}")
}

fn parse(group: &str) -> Option<(KernelId, u32)> {
    let (kernel, generation) = group.rsplit_once('.')?;
    Some((kernel.into(), generation.parse().ok()?))
}

impl Host {
    /// Starts the keeper of a seat, listening on this address. The log's folder is removed when the last value is
    /// dropped.
    ///
    /// # Errors
    /// The keeper's folders can't be used, or it can't listen.
    pub(super) async fn start(
        seat: Seat,
        listen: IpAddr,
    ) -> Result<(Arc<Self>, mpsc::UnboundedReceiver<Event>, TempDir), HostError> {
        let parent = std::env::var_os("TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        // The log has what the user's cells computed and answered.
        let log = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o700))
            .prefix("gresshopper-seat-")
            .tempdir_in(&parent)
            .map_err(|source| HostError::Folder { parent, source })?;
        let book = Book::open(&seats_dir().ok_or(HostError::NoHome)?).map_err(HostError::Book)?;
        let settings = Settings {
            me: seat.job,
            listen,
            ports: Config::load().ok().and_then(|config| config.port_range),
            log: log.path(),
            wal: hop_wal::Options::default(),
            book,
            abandoned_after: ABANDONED_AFTER,
        };
        let (keeper, events) = Keeper::start(settings).await?;
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

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to an event of the keeper's.
    pub(super) async fn handle(self: &Arc<Self>, event: Event) {
        match event {
            Event::Need(Need {
                group,
                replicas,
                gone,
            }) => self.command(&group, Command::Need(Lack { replicas, gone })),
            Event::Closed { group } => self.command(&group, Command::Leave),
            Event::Invited { group, me } => {
                if let Err(why) = self.join(&group, me).await {
                    tracing::debug!(group, %me, why, "an invitation is not followed");
                }
            }
        }
    }

    fn command(&self, group: &str, command: Command) {
        if let Some(kept) = self.table().kept.get(group) {
            // The group may be at its end.
            let _ = kept.commands.send(command);
        }
    }

    /// Joins a group whose leader has a message for us.
    async fn join(self: &Arc<Self>, group: &str, me: Incarnation) -> Result<(), String> {
        let (kernel, _) = parse(group).ok_or("no group of a kernel")?;
        {
            let table = self.table();
            if table.left.contains(group) || table.kept.contains_key(group) {
                return Err("it was left, or is kept already".into());
            }
        }
        let dir = kernel_dir(&kernel).ok_or("there is no home folder")?;
        let read = tokio::task::spawn_blocking(move || FrontFile::read(&dir));
        let file = read.await.map_err(|e| e.to_string())?;
        let wanted = file.map_err(|e| e.to_string())?.launch.replicas.count();
        let joining = Kernel {
            group: group.to_owned(),
            me,
            wanted,
        };
        let member = self.keeper.join(joining).await.map_err(|e| e.to_string())?;
        self.keep(group, kernel, me, member, None);
        Ok(())
    }

    /// Founds the group of a kernel that has run with a single replica until now.
    async fn found(
        self: &Arc<Self>,
        kernel: &KernelId,
        me: Incarnation,
        wanted: usize,
        state: &State,
        attach: Command,
    ) -> Result<mpsc::UnboundedSender<Command>, String> {
        if self.table().kept.len() >= GROUPS_MAX {
            return Err(format!("this seat keeps {GROUPS_MAX} groups already"));
        }
        let group = group_name(kernel, state.generation());
        self.leave_older(kernel, state.generation());
        let founding = Kernel {
            group: group.clone(),
            me,
            wanted,
        };
        let member = self
            .keeper
            .found(founding, state)
            .await
            .map_err(|e| e.to_string())?;
        Ok(self.keep(&group, kernel.clone(), me, member, Some(attach)))
    }

    /// A kernel opened anew has left its older groups behind.
    fn leave_older(&self, kernel: &KernelId, generation: Generation) {
        for (name, kept) in &self.table().kept {
            let older = parse(name).is_some_and(|(_, of)| of < generation.0);
            if kept.kernel == *kernel && older {
                let _ = kept.commands.send(Command::Leave);
            }
        }
    }

    /// `first`: the founder executes already, and must be known before anything is decided.
    fn keep(
        self: &Arc<Self>,
        group: &str,
        kernel: KernelId,
        me: Incarnation,
        member: tend::Member,
        first: Option<Command>,
    ) -> mpsc::UnboundedSender<Command> {
        let (commands, queue) = mpsc::unbounded_channel();
        let kept = Kept {
            kernel: kernel.clone(),
            me,
            commands: commands.clone(),
        };
        self.table().kept.insert(group.to_owned(), kept);
        self.count();
        let tended = Tended {
            host: Arc::clone(self),
            group: group.to_owned(),
            kernel,
            me,
            member,
            commands: queue,
        };
        tokio::spawn(tended.run(first));
        commands
    }

    /// The group's task has ended.
    pub(super) async fn left(&self, group: &str) {
        self.spares.unwant(group);
        self.keeper.leave(group).await;
        let mut table = self.table();
        table.kept.remove(group);
        table.left.insert(group.to_owned());
        drop(table);
        self.count();
    }

    fn count(&self) {
        let groups = self.table().kept.len();
        self.busy.send_modify(|busy| busy.groups = groups);
    }

    /// The task of the group that may have elected this replica.
    fn desk(&self, kernel: &KernelId, me: Incarnation) -> Option<mpsc::UnboundedSender<Command>> {
        let table = self.table();
        let mut ours = table.kept.values().filter(|k| k.kernel == *kernel && k.me == me);
        ours.next_back().map(|kept| kept.commands.clone())
    }

    /// Serves a replica of this seat until it leaves.
    pub(super) async fn serve(self: Arc<Self>, stream: UnixStream) {
        self.busy.send_modify(|busy| busy.replicas += 1);
        let visit = self.visits.fetch_add(1, Ordering::Relaxed);
        let (mut desk, mut spare) = (None, None);
        if let Err(error) = self.converse(stream, visit, &mut desk, &mut spare).await {
            tracing::debug!(%error, "a replica has left");
        }
        if let Some(desk) = desk {
            let _ = desk.send(Command::Detach { visit });
        }
        match spare {
            Some(number) => self.spares.gone(number),
            None => self.busy.send_modify(|busy| busy.replicas -= 1),
        }
    }

    async fn converse(
        self: &Arc<Self>,
        stream: UnixStream,
        visit: u64,
        desk: &mut Option<mpsc::UnboundedSender<Command>>,
        spare: &mut Option<u32>,
    ) -> Result<(), FrameError> {
        let (mut read, mut write) = stream.into_split();
        let (out, mut queue) = mpsc::unbounded_channel::<FromSeat>();
        // Ends with the conversation.
        let mut writer = JoinSet::new();
        writer.spawn(async move {
            while let Some(word) = queue.recv().await {
                // The reader sees that the replica is gone.
                let _ = write.write_all(&word.encode()).await;
            }
        });
        loop {
            let word = ToSeat::read(&mut read).await?;
            match word {
                // The spare holds no seat until it is a replica.
                ToSeat::Spare { number } if spare.is_none() && desk.is_none() => {
                    *spare = Some(number);
                    self.busy.send_modify(|busy| busy.replicas -= 1);
                    self.spares.ready(number, out.clone());
                }
                ToSeat::Spare { .. } => return Ok(()),
                ToSeat::Attach { kernel, incarnation } => {
                    if let Some(number) = *spare {
                        if !self.spares.goes(number).await {
                            let _ = out.send(FromSeat::Alone);
                            continue;
                        }
                        *spare = None;
                        self.busy.send_modify(|busy| busy.replicas += 1);
                    }
                    *desk = self.desk(&kernel, incarnation);
                    let attach = Command::Attach {
                        visit,
                        out: out.clone(),
                    };
                    if desk.as_ref().is_none_or(|desk| desk.send(attach).is_err()) {
                        let _ = out.send(FromSeat::Alone);
                    }
                }
                ToSeat::Found {
                    kernel,
                    incarnation,
                    wanted,
                    state,
                } => {
                    let attach = Command::Attach {
                        visit,
                        out: out.clone(),
                    };
                    match self.found(&kernel, incarnation, wanted, &state, attach).await {
                        Ok(founded) => *desk = Some(founded),
                        Err(why) => drop(out.send(FromSeat::Failed(why))),
                    }
                }
                ToSeat::Propose(entry) => tell(desk.as_ref(), Command::Propose(entry)),
                ToSeat::Over => tell(desk.as_ref(), Command::Over),
            }
        }
    }
}

/// A replica without a group has nothing to tell one.
fn tell(desk: Option<&mpsc::UnboundedSender<Command>>, command: Command) {
    if let Some(desk) = desk {
        let _ = desk.send(command);
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
