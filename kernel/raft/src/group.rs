//! The log as its users see it.

use crate::machine::News;
use hop_log::{Entry, Index, State};
use hop_words::id::Incarnation;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::mpsc;

/// A replicated log of one kernel.
pub trait Group: Send + Sync {
    /// Has the log take in an entry, and returns its index once the entry is on the disks of a majority. The effect
    /// comes by [`Group::subscribe`]. A member other than the leader passes the entry on.
    ///
    /// # Errors
    /// If the entry isn't known to be committed. The entry may be in the log all the same, now or later: the caller
    /// proposes the entry again, unchanged, until [`Group::subscribe`] brings the entry.
    fn propose(&self, entry: Entry) -> impl Future<Output = Result<Index, ProposeError>> + Send;

    /// The state, and everything after it.
    fn subscribe(&self) -> Feed;

    /// Voters and leader, as known to this member.
    fn standing(&self) -> Standing;

    /// Returns once [`Group::standing`] is another one. `false`: the member is closed, and nothing changes any more.
    fn standing_changed(&self, from: &Standing) -> impl Future<Output = bool> + Send;

    /// Begins to send the log to a new member, which votes later.
    ///
    /// # Errors
    /// If this member doesn't lead, or another change is under way.
    fn add_learner(&self, member: Incarnation) -> impl Future<Output = Result<(), ChangeError>> + Send;

    /// Makes these the voters, in a single joint step. Removed voters get nothing any more. Also ends a step that an
    /// earlier leader has begun.
    ///
    /// # Errors
    /// If this member doesn't lead, another change is under way, or the rules forbid the set: two voters, or a set
    /// without the leader.
    fn set_voters(
        &self,
        voters: BTreeSet<Incarnation>,
    ) -> impl Future<Output = Result<(), ChangeError>> + Send;
}

/// Voters and leader, as known to one member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// The leader; it may have been deposed already.
    pub leader: Option<Incarnation>,
    pub voters: BTreeSet<Incarnation>,
    /// Members that receive the log and have no vote. `true`: the member has nearly all of the log. Only the leader
    /// knows; others say `false`.
    pub learners: BTreeMap<Incarnation, bool>,
    /// Voters that lack many entries of the log: only the leader knows. A voter whose disk hangs is heard all the same.
    pub behind: BTreeSet<Incarnation>,
    /// A change of voters is under way: these become the voters.
    pub next_voters: Option<BTreeSet<Incarnation>>,
    /// The term of Raft's, for logs.
    pub term: u64,
    /// The member can't go on: its disk failed.
    pub stopped: Option<String>,
}

/// How much of the log each voter is known to have. Only the leader knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of the log's last entry, in openraft's count.
    pub last: u64,
    /// The number of the last entry on each other voter's disk. `None`: the voter hasn't answered this leader.
    pub stored: BTreeMap<Incarnation, Option<u64>>,
}

impl Standing {
    pub fn is_changing(&self) -> bool {
        self.next_voters.is_some()
    }
}

/// The state at some entry, and the news after it.
#[derive(Debug)]
pub struct Feed {
    /// `None`: the group's state comes as the first news.
    pub state: Option<State>,
    pub news: mpsc::UnboundedReceiver<News>,
}

/// An entry isn't known to be committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    #[error("this member doesn't lead, and no leader can be reached")]
    NoLeader,
    #[error("the outcome isn't known: no majority answered in time")]
    Unknown,
    #[error("this member has stopped: {0}")]
    Stopped(String),
}

/// The members can't be changed like this, or not now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error("this member doesn't lead")]
    NotLeader,
    #[error("another change is under way")]
    Busy,
    #[error("voter {0} receives no log yet")]
    NoLearner(Incarnation),
    #[error("a group never has two voters")]
    TwoVoters,
    #[error("the leader can't be removed")]
    WithoutLeader,
    #[error("the outcome isn't known: no majority answered in time")]
    Unknown,
    #[error("this member has stopped: {0}")]
    Stopped(String),
}
