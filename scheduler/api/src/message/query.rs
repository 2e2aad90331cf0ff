//! Requests of people through `hop`, and the rows of the answers.

use hop_words::id::{
    AccountName, CellId, GpuIndex, GpuType, Incarnation, JobId, KernelId, LeaseId, NodeName, PoolName,
    Tenure, Term, UserName,
};
use hop_words::need::{Class, Need};
use hop_words::replica::{MoveCause, ReplicaRow};
use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most rows of one answer to [`AcctQuery`]; fewer where they are long.
pub const ACCT_ROWS: usize = 100_000;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AcctQuery {
    /// Whatever the caller may see: everybody's for operators, their own for others.
    pub visible: bool,
    /// Whose rows; empty: the caller's own. Others' need an operator.
    pub users: Vec<UserName>,
    pub all_users: bool,
    pub accounts: Vec<AccountName>,
    pub kernels: Vec<KernelId>,
    pub leases: Vec<LeaseId>,
    pub nodes: Vec<NodeName>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// Leases that go on, alone.
    pub open: bool,
    /// Also the cells, each by its own times.
    pub cells: bool,
    /// Each lease with all cells, whatever their times, and no cell without the lease: a lease's cells can then be
    /// numbered.
    pub whole: bool,
}

/// A lease (`cell` is `None`), or a cell on a lease. Times are in microseconds since the epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AcctRow {
    pub lease: LeaseId,
    pub cell: Option<CellId>,
    pub user: UserName,
    pub account: Option<AccountName>,
    pub pool: PoolName,
    pub kernel: KernelId,
    pub name: String,
    pub node: NodeName,
    pub gpus: Vec<GpuIndex>,
    pub cpus: u16,
    pub pilot: JobId,
    pub step: u32,
    /// RUNNING, LINGERING, COMPLETED, CANCELLED, FAILED, NODE_FAIL, PREEMPTED: Slurm's words where possible.
    pub state: String,
    pub submit: Timestamp,
    pub start: Option<Timestamp>,
    pub end: Option<Timestamp>,
    pub wait: Span,
    /// Held time of the lease, or run time of the cell.
    pub held: Span,
    /// Time of running cells within the lease, and time of lingering.
    pub run: Span,
    pub linger: Span,
    pub cells: u32,
    pub reason: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueQuery {
    pub users: Vec<UserName>,
    pub all_users: bool,
    /// Cells that the caller may submit later, at most [`EXPECT_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expect>,
}

/// Most cells for which one query may ask the expected wait.
pub const EXPECT_MAX: usize = 16;

/// A cell that may be submitted later.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Expect {
    /// Kernel of the cell; `None` means a new one.
    pub kernel: Option<KernelId>,
    pub pool: Option<PoolName>,
    /// The need that would decide a new kernel's placement.
    pub default_need: Need,
    pub need: Need,
    pub class: Class,
}

/// A waiting cell or a lease in use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct QueueRow {
    pub kernel: KernelId,
    pub cell: Option<CellId>,
    pub lease: Option<LeaseId>,
    pub user: UserName,
    pub name: String,
    pub state: String,
    pub need: Need,
    pub node: Option<NodeName>,
    pub gpus: Vec<GpuIndex>,
    pub submit: Timestamp,
    /// How long in this state.
    pub time: Span,
    pub position: Option<u32>,
    pub estimate: Option<Span>,
    pub reason: String,
    /// The reason in one word, for scripts.
    #[serde(default)]
    pub why: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InfoReport {
    pub version: String,
    pub term: Term,
    pub started: Timestamp,
    pub nodes: Vec<NodeInfo>,
    pub kernels: u32,
    pub waiting: u32,
    /// Sentences on the obstacles to lending a pool, or to `hopd`'s work.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// One node's pilot and its lent resources.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeInfo {
    pub node: NodeName,
    pub pool: PoolName,
    pub pilot: JobId,
    pub state: String,
    pub gpus: u16,
    pub gpus_leased: u16,
    pub gpus_lingering: u16,
    pub gpus_blocked: u16,
    pub gpu_types: Vec<GpuType>,
    pub cpus: u16,
    pub cpus_leased: u16,
    pub reason: String,
    /// Seconds for which cells of a class run undisturbed on the node; cells of a missing class run to the end.
    #[serde(default)]
    pub quantum: Vec<(Class, u32)>,
    /// The node's way to prove a GPU free after its lease: counted, scanned, none; empty before its plugin's first
    /// report.
    #[serde(default)]
    pub isolation: String,
    /// The GPUs that can't be lent.
    #[serde(default)]
    pub blocked: Vec<GpuIndex>,
    /// The newest [`Request::Release`](super::Request::Release) after which the plugin has looked at them.
    #[serde(default)]
    pub asked: Option<Timestamp>,
}

/// Whose kernels `hop kernels` lists.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelsQuery {
    /// Whatever the caller may see: everybody's for operators, their own for others.
    pub visible: bool,
    /// Empty means the caller's own. Others' need an operator.
    pub users: Vec<UserName>,
    pub all_users: bool,
    /// Kernels with a replica on one of these nodes. Empty means any node.
    pub nodes: Vec<NodeName>,
}

/// A kernel known to `hopd`: open, or hibernated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelRow {
    pub kernel: KernelId,
    pub name: String,
    pub user: UserName,
    pub pool: PoolName,
    pub state: KernelState,
    /// Since when in this state.
    pub since: Timestamp,
    pub tenure: Tenure,
    /// Replicas that the kernel should have.
    pub wanted: u16,
    pub replicas: Vec<ReplicaRow>,
    pub lease: Option<LeaseId>,
    /// The move under way.
    pub moving: Option<MoveRow>,
    /// The last failed move, until another succeeds.
    pub move_failed: Option<MoveFailure>,
    /// `true` if the kernel's state is captured: the kernel can then be moved and hibernated.
    pub captured: bool,
    /// Why a kernel that captures is not saved now.
    #[serde(default)]
    pub unsaved: Option<String>,
    /// Why policy neither moves nor hibernates it, in sentences.
    pub bound: Vec<String>,
    /// The replica that speaks for it.
    #[serde(default)]
    pub executor: Option<Incarnation>,
    #[serde(default)]
    pub account: Option<AccountName>,
    /// The replica that leads the kernel's log. `None` means a kernel with one replica, or an unknown leader.
    #[serde(default)]
    pub leader: Option<Incarnation>,
    /// Memory of the steps of the kernel's replicas, in MiB.
    #[serde(default)]
    pub mem_mib: u64,
    /// Cores of these steps. 0 means unknown.
    #[serde(default)]
    pub cpus: u32,
    /// Why the kernel did not hibernate when last asked to.
    #[serde(default)]
    pub stayed: Option<String>,
    /// The loss of the executor, until a replica reports.
    #[serde(default)]
    pub lost: Option<LossRow>,
}

/// What a kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelState {
    /// No replica is up yet.
    Starting,
    /// The executor's connection broke a moment ago.
    Silent,
    /// The executor is lost, and no other replica has reported.
    Lost,
    /// The executor is gone, and the kernel's front starts another replica.
    Replacing,
    /// No cell of it waits, or runs on a lease.
    Idle,
    /// A cell waits for its lease.
    Waiting,
    /// A cell of it starts or runs on a lease.
    Running,
    /// A replica of it moves.
    Moving,
    /// The kernel was asked to hibernate and saves its state.
    Hibernating,
    /// The kernel's state is in its user's home, and no process of the kernel is left.
    Asleep,
}

impl KernelState {
    pub const ALL: [Self; 10] = [
        Self::Starting,
        Self::Silent,
        Self::Lost,
        Self::Replacing,
        Self::Idle,
        Self::Waiting,
        Self::Running,
        Self::Moving,
        Self::Hibernating,
        Self::Asleep,
    ];

    /// As `hop kernels` writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "STARTING",
            Self::Silent => "SILENT",
            Self::Lost => "LOST",
            Self::Replacing => "REPLACING",
            Self::Idle => "IDLE",
            Self::Waiting => "WAITING",
            Self::Running => "RUNNING",
            Self::Moving => "MOVING",
            Self::Hibernating => "SAVING",
            Self::Asleep => "ASLEEP",
        }
    }
}

/// The loss of a kernel's executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossRow {
    /// The executor's node.
    pub node: NodeName,
    pub stage: LossStage,
    /// Since when in this stage.
    pub since: Timestamp,
}

/// What is known of an executor's loss. A later stage follows an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossStage {
    /// Its connection broke a moment ago.
    Silent,
    /// It did not come back in time, or Slurm has ended its seat.
    Lost,
    /// The kernel's front starts another replica in its place.
    Replacing,
}

impl LossStage {
    /// The kernel's state in this stage.
    pub const fn state(self) -> KernelState {
        match self {
            Self::Silent => KernelState::Silent,
            Self::Lost => KernelState::Lost,
            Self::Replacing => KernelState::Replacing,
        }
    }
}

/// A clause for `hop kernels`.
impl fmt::Display for LossRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.node;
        match self.stage {
            LossStage::Silent => write!(f, "its process on {node} does not answer"),
            LossStage::Lost => write!(f, "its process on {node} is lost, and no other one has reported"),
            LossStage::Replacing => {
                write!(
                    f,
                    "its process on {node} is gone, and another one is being started"
                )
            }
        }
    }
}

/// A move under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRow {
    pub to: NodeName,
    pub cause: MoveCause,
    pub since: Timestamp,
}

/// A move that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveFailure {
    pub to: NodeName,
    pub reason: String,
    pub at: Timestamp,
}

/// Which kernels to hibernate.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "target", rename_all = "kebab-case")]
pub enum HibernateTarget {
    Kernel {
        kernel: KernelId,
    },
    /// All of the caller's, or of everybody's for an operator, that have a replica on the node. `None` means on any
    /// node.
    All {
        node: Option<NodeName>,
    },
}
