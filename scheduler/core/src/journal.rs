//! State that survives a restart of the driver. The core emits an entry at each change. [`crate::Core::restore`]
//! rebuilds the state from the last entry of each key, and from the reports of agents and replicas. Of waiting cells the
//! journal has the times of submission alone: their replicas report them again.

use crate::predict::Habit;
use hop_words::id::{
    AccountName, CellId, GpuIndex, GpuType, Incarnation, JobId, KernelId, LeaseId, NodeName, PoolName,
    UserName,
};
use hop_words::lease::EndCause;
use hop_words::need::{Class, Need};
use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

/// The key under which the last entry counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Key {
    Counters,
    Lease(LeaseId),
    Kernel(KernelId),
    Ticket(u64),
    Pilot(JobId),
    User(UserName),
    Account(AccountName),
    /// A user in an account.
    Association(UserName, Option<AccountName>),
}

/// One entry. `value` none: the key is gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub key: Key,
    pub value: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    Counters(Counters),
    Lease(Box<LeaseImage>),
    Kernel(Box<KernelImage>),
    Ticket(TicketImage),
    Pilot {
        node: NodeName,
        pool: PoolName,
    },
    /// GPU-seconds that leases used, decayed to `at`.
    Usage {
        usage: f64,
        at: Timestamp,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub next_lease: u64,
    pub next_ticket: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeaseImage {
    pub lease: LeaseId,
    pub kernel: KernelId,
    pub node: NodeName,
    pub pilot: JobId,
    pub pool: PoolName,
    pub executor: Incarnation,
    pub gpus: u16,
    pub gpu_type: Option<GpuType>,
    pub cpus: u16,
    pub devices: Vec<GpuIndex>,
    pub phase: Phase,
    pub submit: Timestamp,
    pub ordered: Timestamp,
    pub started: Option<Timestamp>,
    pub run: Span,
    pub linger: Span,
    pub wait: Span,
    pub cells: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    Starting {
        cell: CellId,
        need: Need,
        class: Class,
        submitted: Timestamp,
    },
    Running {
        cell: CellId,
        submitted: Timestamp,
        since: Timestamp,
        #[serde(default)]
        class: Class,
        /// Run time of the cell before its park.
        #[serde(default)]
        ran: Span,
    },
    Lingering {
        since: Timestamp,
    },
    Ending {
        cause: EndCause,
        since: Timestamp,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelImage {
    pub user: UserName,
    pub account: Option<AccountName>,
    pub pool: PoolName,
    pub name: String,
    pub next_incarnation: u32,
    pub last_executor: Option<Incarnation>,
    pub last_node: Option<NodeName>,
    pub default_need: Need,
    pub think: Habit,
    pub runs: Habit,
    /// GPU-seconds used, decayed to the time of the write.
    #[serde(default)]
    pub usage: f64,
    /// The time of the write. `None`: an earlier release has written it.
    #[serde(default)]
    pub at: Option<Timestamp>,
    /// The cells that waited, and since when.
    #[serde(default)]
    pub waiting: Vec<(CellId, Timestamp)>,
    /// Memory and cores of one replica's step.
    #[serde(default)]
    pub mem_mib: u64,
    #[serde(default)]
    pub cpus: u16,
    /// Seats of the kernel's replicas, by the last report.
    #[serde(default)]
    pub seats: Vec<JobId>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TicketImage {
    pub pool: PoolName,
    pub partition: Option<String>,
    pub node: Option<NodeName>,
    #[serde(default)]
    pub gpus: u16,
    pub job: Option<JobId>,
    pub at: Timestamp,
    /// The waiting cell for which the pilot was started.
    #[serde(default)]
    pub cell: Option<(KernelId, CellId)>,
    #[serde(default)]
    pub gpu_type: Option<GpuType>,
}
