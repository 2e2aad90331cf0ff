//! One replica's part of a group.

use crate::group::{ChangeError, Feed, Group, Progress, ProposeError, Standing};
use crate::machine::{Machine, News, ToShow};
use crate::network::{self, Network, Transport};
use crate::store::Store;
use crate::types::{Command, Parts, Request, Response, Snapshot, Types};
use bytes::Bytes;
use hop_log::{Entry, Form, Index, State};
use hop_wal::{AppendError, Wal};
use hop_words::id::Incarnation;
use openraft::error::{ChangeMembershipError, ClientWriteError, Fatal, RaftError};
use openraft::{Config, Raft, RaftMetrics, SnapshotPolicy};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// openraft gives up a message of entries after this time. A slow disk needs longer than a round trip.
const APPEND_PATIENCE_MS: u64 = 250;
/// Voters refuse a candidate for so long after the leader's last entry.
const LEASE_MS: u64 = 500;
const SNAPSHOT_PATIENCE_MS: u64 = 10_000;
/// A proposal without a commit for so long has an unknown outcome.
const PROPOSAL_PATIENCE: Duration = Duration::from_secs(2);
/// A member with at most this many missing entries has nearly all of the log.
const NEARLY: u64 = 32;
/// Entries, or bytes of them, between two snapshots.
const SNAPSHOT_ENTRIES: usize = 512;
const SNAPSHOT_BYTES: usize = 4 << 20;
/// Entries kept behind a snapshot for members that lag.
const KEPT: u64 = 64;

/// A member to open.
#[derive(Debug)]
pub struct Opening<'a, T> {
    pub wal: &'a Wal,
    /// The group's name: its kernel and generation. Members of two generations never speak with each other.
    pub name: &'a str,
    /// Given by the group's log, and never used before.
    pub me: Incarnation,
    pub transport: Arc<T>,
}

/// The member can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the group can't be written to the WAL")]
    Write(#[from] AppendError),
    #[error("the group can't be read from the WAL")]
    Read(#[source] io::Error),
    #[error("the group can't be started")]
    Start(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A message of another member couldn't be answered.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("the message isn't of this version")]
    Form(#[source] io::Error),
    #[error("the member has stopped")]
    Stopped(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// One replica's part of a group. It does nothing by itself but answer.
pub struct Member<T> {
    me: u32,
    raft: Raft<Types>,
    store: Store,
    machine: Machine,
    transport: Arc<T>,
    metrics: watch::Receiver<RaftMetrics<u32, ()>>,
    shown: Arc<Mutex<Shown>>,
    /// Held during a change of members: two at once could leave a joint step behind.
    changes: tokio::sync::Mutex<()>,
    shower: JoinHandle<()>,
}

/// The state shown last, and its followers.
#[derive(Debug, Default)]
struct Shown {
    state: Option<State>,
    followers: Vec<mpsc::UnboundedSender<News>>,
}

impl<T> std::fmt::Debug for Member<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

impl<T> Drop for Member<T> {
    fn drop(&mut self) {
        self.shower.abort();
    }
}

fn config(name: &str) -> Arc<Config> {
    Arc::new(Config {
        cluster_name: name.to_owned(),
        heartbeat_interval: APPEND_PATIENCE_MS,
        election_timeout_min: LEASE_MS - 1,
        election_timeout_max: LEASE_MS,
        install_snapshot_timeout: SNAPSHOT_PATIENCE_MS,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: KEPT,
        enable_tick: false,
        ..Config::default()
    })
}

impl<T: Transport> Member<T> {
    /// Opens the member, with the WAL's content of the member.
    ///
    /// # Errors
    /// If the WAL has damaged or foreign content, or can't be written.
    pub async fn open(opening: Opening<'_, T>) -> Result<Self, OpenError> {
        let Opening {
            wal,
            name,
            me,
            transport,
        } = opening;
        let store = Store::open(wal.group(name.as_bytes())?, me.0).map_err(OpenError::Read)?;
        let (to_show, queue) = mpsc::unbounded_channel();
        let machine = Machine::open(store.clone(), to_show).map_err(OpenError::Read)?;
        let shown = Arc::new(Mutex::new(Shown {
            state: machine.state(),
            followers: Vec::new(),
        }));
        let network = Network(Arc::clone(&transport));
        let raft = Raft::new(me.0, config(name), network, store.clone(), machine.clone());
        let raft = raft.await.map_err(|e| OpenError::Start(e.into()))?;
        let shower = tokio::spawn(show(queue, store.clone(), Arc::clone(&shown), raft.clone()));
        Ok(Self {
            me: me.0,
            metrics: raft.metrics(),
            raft,
            store,
            machine,
            transport,
            shown,
            changes: tokio::sync::Mutex::new(()),
            shower,
        })
    }

    /// Begins the group, with this member as the only voter. The founder of a group that has begun already stands for
    /// election instead. The state counts only for a new group.
    ///
    /// # Errors
    /// If the state isn't known to be committed.
    pub async fn found(&self, state: &State) -> Result<(), ProposeError> {
        match self.raft.initialize(BTreeSet::from([self.me])).await {
            Ok(()) => {}
            Err(RaftError::APIError(_)) => self.campaign().await,
            Err(RaftError::Fatal(fatal)) => return Err(ProposeError::Stopped(fatal.to_string())),
        }
        let leads = |m: &RaftMetrics<u32, ()>| m.current_leader == Some(self.me);
        let mut metrics = self.metrics.clone();
        let led = tokio::time::timeout(PROPOSAL_PATIENCE, metrics.wait_for(leads)).await;
        led.map_err(|_| ProposeError::Unknown)?
            .map_err(|_| ProposeError::Stopped("it was closed".to_owned()))?;
        self.write(Command(state.encode())).await?;
        // Applied entries are shown a moment later.
        let Feed { state, mut news } = self.subscribe();
        if state.is_none() {
            let shown = tokio::time::timeout(PROPOSAL_PATIENCE, news.recv()).await;
            shown
                .map_err(|_| ProposeError::Unknown)?
                .ok_or_else(|| ProposeError::Stopped("it was closed".to_owned()))?;
        }
        Ok(())
    }

    /// Stands for election. Voters refuse for half a second after they heard of the leader's last entry; the keeper
    /// then tries again. The leader itself does nothing.
    pub async fn campaign(&self) {
        // A stopped member is recognised by its standing.
        let _ = self.raft.trigger().elect().await;
    }

    /// Has the leader tell the others how far the log is committed: a message may have been lost, and no later one
    /// comes.
    pub async fn remind(&self) {
        let _ = self.raft.trigger().heartbeat().await;
    }

    /// Answers a message of another member.
    ///
    /// # Errors
    /// If the message is of another version, or the member has stopped.
    pub async fn receive(&self, message: Bytes) -> Result<Bytes, ReceiveError> {
        let stopped = |e: RaftError<u32>| ReceiveError::Stopped(Box::new(e));
        let response = match Request::unpack(message).map_err(ReceiveError::Form)? {
            Request::Append(append) => Response::Append {
                response: self.raft.append_entries(append).await.map_err(stopped)?,
            },
            Request::Vote(vote) => Response::Vote {
                response: self.raft.vote(vote).await.map_err(stopped)?,
            },
            Request::Snapshot {
                vote,
                snapshot: Snapshot { meta, data },
            } => {
                let snapshot = openraft::Snapshot {
                    meta,
                    snapshot: Box::new(data),
                };
                let taken = self.raft.install_full_snapshot(vote, snapshot).await;
                let taken = taken.map_err(|e| ReceiveError::Stopped(Box::new(e)))?;
                Response::Snapshot { vote: taken.vote }
            }
            Request::Propose { command } => {
                // An entry that no member could read would stop them all.
                Entry::decode(command.0.clone()).map_err(|e| ReceiveError::Form(io::Error::other(e)))?;
                self.proposed(command).await
            }
        };
        Ok(response.pack())
    }

    async fn proposed(&self, command: Command) -> Response {
        match self.write(command).await {
            Ok(index) => Response::Proposed { index },
            Err(ProposeError::NoLeader) => Response::NotLeader {
                leader: self.metrics.borrow().current_leader,
            },
            Err(ProposeError::Unknown | ProposeError::Stopped(_)) => Response::Unknown,
        }
    }

    /// Writes a command as the leader.
    async fn write(&self, command: Command) -> Result<Index, ProposeError> {
        let writing = async {
            let written = match self.raft.client_write(command).await {
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {
                    return Err(ProposeError::NoLeader);
                }
                Err(error) => return Err(ProposeError::Stopped(error.to_string())),
                Ok(written) => written,
            };
            let synced = self.store.synced(self.store.position()).await;
            synced.map_err(|e| ProposeError::Stopped(e.to_string()))?;
            Ok(self.machine.index(written.log_id.index))
        };
        let written = tokio::time::timeout(PROPOSAL_PATIENCE, writing).await;
        written.unwrap_or(Err(ProposeError::Unknown))
    }

    /// Whether this member leads the group, to the member's own knowledge.
    pub fn leads(&self) -> bool {
        self.metrics.borrow().current_leader == Some(self.me)
    }

    /// How much of the log the other voters have. `None`: this member doesn't lead, and doesn't know.
    pub fn progress(&self) -> Option<Progress> {
        progress_of(&self.metrics.borrow())
    }

    /// Whether the member `incarnation` has left the group, to the local member's knowledge: the `Left` is
    /// applied, and `incarnation` has no vote.
    pub fn has_left(&self, incarnation: Incarnation) -> bool {
        let voters = standing_of(&self.metrics.borrow());
        let next = voters.next_voters.unwrap_or_default();
        let votes = voters.voters.contains(&incarnation) || next.contains(&incarnation);
        !votes && self.shown(|shown| shown.state.as_ref().is_some_and(|s| s.has_left(incarnation)))
    }

    /// Closes the member; its part of the WAL stays.
    pub async fn close(&self) {
        // The only error is a panic of the task, which was logged.
        let _ = self.raft.shutdown().await;
    }

    /// Removes the closed member from the WAL.
    ///
    /// # Errors
    /// If the WAL can't be written.
    pub fn forget(&self) -> Result<(), AppendError> {
        self.store.group.close().map(drop)
    }

    fn shown<R>(&self, look: impl FnOnce(&mut Shown) -> R) -> R {
        look(&mut self.shown.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Shows applied entries, in order, once synced; and has snapshots taken.
async fn show(
    mut queue: mpsc::UnboundedReceiver<ToShow>,
    store: Store,
    shown: Arc<Mutex<Shown>>,
    raft: Raft<Types>,
) {
    let (mut entries, mut bytes) = (0, 0);
    while let Some(ToShow { position, news, size }) = queue.recv().await {
        if store.synced(position).await.is_err() {
            // The store says so to the member's standing.
            return;
        }
        if let Some(news) = news {
            let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
            shown.show(news);
        }
        (entries, bytes) = (entries + 1, bytes + size);
        if entries >= SNAPSHOT_ENTRIES || bytes >= SNAPSHOT_BYTES {
            (entries, bytes) = (0, 0);
            let _ = raft.trigger().snapshot().await;
        }
    }
}

impl Shown {
    fn show(&mut self, news: News) {
        match &news {
            News::State(state) => self.state = Some((**state).clone()),
            News::Applied { index, entry, .. } => {
                if let Some(state) = &mut self.state {
                    // The refusal is in the news.
                    let _ = state.apply(*index, entry);
                }
            }
        }
        self.followers.retain(|f| f.send(news.clone()).is_ok());
    }
}

fn set(voters: impl IntoIterator<Item = u32>) -> BTreeSet<Incarnation> {
    voters.into_iter().map(Incarnation).collect()
}

/// The last entry known to be on the member's disk. `None`: only the leader knows, and hears it from the member.
fn stored_by(member: u32, metrics: &RaftMetrics<u32, ()>) -> Option<u64> {
    let replication = metrics.replication.as_ref()?;
    replication.get(&member).copied().flatten().map(|id| id.index)
}

fn voters_of(metrics: &RaftMetrics<u32, ()>) -> BTreeSet<u32> {
    let configs = metrics.membership_config.membership().get_joint_config();
    configs.first().cloned().unwrap_or_default()
}

fn progress_of(metrics: &RaftMetrics<u32, ()>) -> Option<Progress> {
    let leads = metrics.replication.is_some() && metrics.current_leader == Some(metrics.id);
    let others = voters_of(metrics).into_iter().filter(|v| *v != metrics.id);
    leads.then(|| Progress {
        last: metrics.last_log_index.unwrap_or_default(),
        stored: others.map(|v| (Incarnation(v), stored_by(v, metrics))).collect(),
    })
}

fn standing_of(metrics: &RaftMetrics<u32, ()>) -> Standing {
    let membership = metrics.membership_config.membership();
    let configs = membership.get_joint_config();
    let last = metrics.last_log_index.unwrap_or_default();
    let has_nearly_all = |member: u32| stored_by(member, metrics).is_some_and(|m| m + NEARLY >= last);
    let voters = voters_of(metrics);
    let behind = voters
        .iter()
        .copied()
        .filter(|v| *v != metrics.id && metrics.replication.is_some() && !has_nearly_all(*v));
    Standing {
        leader: metrics.current_leader.map(Incarnation),
        behind: set(behind),
        voters: set(voters.iter().copied()),
        learners: membership
            .learner_ids()
            .map(|l| (Incarnation(l), has_nearly_all(l)))
            .collect(),
        next_voters: configs.get(1).map(|next| set(next.iter().copied())),
        term: metrics.current_term,
        stopped: match &metrics.running_state {
            // It was closed.
            Ok(()) | Err(Fatal::Stopped) => None,
            Err(fatal) => Some(fatal.to_string()),
        },
    }
}

type Changed = Result<(), ChangeError>;

impl<T: Transport> Member<T> {
    fn must_lead(&self) -> Result<Standing, ChangeError> {
        let standing = self.standing();
        if let Some(why) = standing.stopped {
            return Err(ChangeError::Stopped(why));
        }
        if standing.leader != Some(Incarnation(self.me)) {
            return Err(ChangeError::NotLeader);
        }
        Ok(standing)
    }

    /// Waits for a change. A change that takes too long may go on by itself.
    async fn change<R>(
        &self,
        change: impl Future<Output = Result<R, RaftError<u32, ClientWriteError<u32, ()>>>> + Send,
    ) -> Changed {
        match tokio::time::timeout(PROPOSAL_PATIENCE, change).await {
            Err(_) => Err(ChangeError::Unknown),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::Fatal(fatal))) => Err(ChangeError::Stopped(fatal.to_string())),
            Ok(Err(RaftError::APIError(error))) => Err(match error {
                ClientWriteError::ForwardToLeader(_) => ChangeError::NotLeader,
                ClientWriteError::ChangeMembershipError(error) => match error {
                    ChangeMembershipError::LearnerNotFound(e) => {
                        ChangeError::NoLearner(Incarnation(e.node_id))
                    }
                    ChangeMembershipError::InProgress(_) | ChangeMembershipError::EmptyMembership(_) => {
                        ChangeError::Busy
                    }
                },
            }),
        }
    }
}

impl<T: Transport> Group for Member<T> {
    async fn propose(&self, entry: Entry) -> Result<Index, ProposeError> {
        let command = Command(entry.encode());
        match self.write(command.clone()).await {
            Ok(index) => return Ok(index),
            Err(ProposeError::NoLeader) => {}
            Err(error) => return Err(error),
        }
        let leader = self.metrics.borrow().current_leader.filter(|l| *l != self.me);
        let leader = leader.ok_or(ProposeError::NoLeader)?;
        let asked = network::propose(&*self.transport, leader, command);
        match tokio::time::timeout(PROPOSAL_PATIENCE, asked).await {
            Ok(Some(Response::Proposed { index })) => Ok(index),
            Ok(Some(Response::NotLeader { .. })) => Err(ProposeError::NoLeader),
            _ => Err(ProposeError::Unknown),
        }
    }

    fn subscribe(&self) -> Feed {
        let (follower, news) = mpsc::unbounded_channel();
        let state = self.shown(|shown| {
            shown.followers.push(follower);
            shown.state.clone()
        });
        Feed { state, news }
    }

    fn standing(&self) -> Standing {
        let standing = standing_of(&self.metrics.borrow());
        Standing {
            stopped: standing.stopped.or_else(|| self.store.unsynced.borrow().clone()),
            ..standing
        }
    }

    async fn standing_changed(&self, from: &Standing) -> bool {
        let (mut metrics, mut unsynced) = (self.metrics.clone(), self.store.unsynced.subscribe());
        while self.standing() == *from {
            let changed = tokio::select! {
                changed = metrics.changed() => changed,
                changed = unsynced.changed() => changed,
            };
            if changed.is_err() {
                return false;
            }
        }
        true
    }

    async fn add_learner(&self, member: Incarnation) -> Changed {
        let _one = self.changes.try_lock().map_err(|_| ChangeError::Busy)?;
        if self.must_lead()?.is_changing() {
            return Err(ChangeError::Busy);
        }
        self.change(self.raft.add_learner(member.0, (), false)).await
    }

    async fn set_voters(&self, voters: BTreeSet<Incarnation>) -> Changed {
        let _one = self.changes.try_lock().map_err(|_| ChangeError::Busy)?;
        let standing = self.must_lead()?;
        if voters.len() == 2 {
            return Err(ChangeError::TwoVoters);
        }
        if !voters.contains(&Incarnation(self.me)) {
            return Err(ChangeError::WithoutLeader);
        }
        if standing.next_voters.as_ref().is_some_and(|next| *next != voters) {
            return Err(ChangeError::Busy);
        }
        let ids: BTreeSet<u32> = voters.iter().map(|v| v.0).collect();
        self.change(self.raft.change_membership(ids, false)).await
    }
}
