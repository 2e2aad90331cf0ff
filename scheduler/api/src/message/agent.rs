//! Reports of agents, and orders to them.

use hop_words::gpu::GpuSlot;
use hop_words::id::{
    AccountName, CellId, GpuIndex, GpuType, JobId, KernelId, LeaseId, NodeName, PoolName, Term, UserName,
};
use hop_words::lease::{EndCause, Handover, LeaseEnd};
use hop_words::replica::SeatStep;
use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

/// An agent's report after each (re)connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AgentUp {
    pub node: NodeName,
    pub pilot: JobId,
    pub pool: PoolName,
    pub gpus: Vec<GpuSlot>,
    /// Cores that the pilot may lend.
    pub cpus: u16,
    /// When the pilot ends by its Slurm time limit. `None` means that it has none.
    pub ends: Option<Timestamp>,
    /// Steps started so far, of Slurm's MaxStepCount.
    pub steps_used: u32,
    pub steps_max: u32,
    /// The highest `hopd` term seen on this node.
    pub term: Term,
    /// Leases that live here.
    pub leases: Vec<LiveLease>,
    /// Leases that are being started here, or ended before their start: their GPUs are spoken for.
    #[serde(default)]
    pub starting: Vec<LeaseId>,
    /// Ended leases that `hopd` has not acknowledged.
    pub ended: Vec<EndedLease>,
    /// `hopd` told it to drain before.
    #[serde(default)]
    pub draining: bool,
    /// The plugin's last report on the node, if any.
    #[serde(default)]
    pub standing: Option<NodeStanding>,
    /// The report goes on: the next one has more of `ended`, and all parts count together.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// A node's state, by its plugin's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStanding {
    /// The node's way to prove a GPU free after its lease: counted, scanned, none.
    pub isolation: String,
    /// Reason for not counting; empty if the node counts.
    pub why: String,
    /// GPUs blocked before the look, each with the lease that left it blocked.
    pub freed: Vec<(GpuIndex, LeaseId)>,
    /// The newest [`Order::Release`] answered by a look.
    #[serde(default)]
    pub asked: Option<Timestamp>,
}

/// A lease as its node holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveLease {
    pub order: StartLease,
    pub handover: Handover,
}

/// A lease that is over on its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLease {
    pub order: StartLease,
    /// `None` means that nothing was handed over.
    pub handover: Option<Handover>,
    pub end: LeaseEnd,
}

/// Orders to an agent. The agent refuses orders of a term below the highest seen.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum Order {
    StartLease(StartLease),
    /// End the lease; `grace` is how long holders get before they are ended.
    EndLease {
        term: Term,
        lease: LeaseId,
        cause: EndCause,
        grace: Span,
    },
    /// The end is on `hopd`'s disk: the agent may forget it.
    EndAcknowledged {
        term: Term,
        lease: LeaseId,
    },
    /// Start no more leases; after the last one is over, exit, and so end the pilot.
    Drain {
        term: Term,
    },
    /// Have the plugin look at blocked GPUs (none named: all) once more, on an operator's word.
    Release {
        term: Term,
        gpus: Vec<GpuIndex>,
        operator: UserName,
        /// The instant of the operator's request by `hopd`'s clock. No two requests have the same.
        asked: Timestamp,
    },
}

/// A lease to start. The order holds everything that the accounting records of a lease: a node's report replaces rows
/// that `hopd` lost in a crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartLease {
    pub term: Term,
    pub lease: LeaseId,
    pub pilot: JobId,
    pub user: UserName,
    pub account: Option<AccountName>,
    pub pool: PoolName,
    pub kernel: KernelId,
    /// What the user calls the notebook.
    pub name: String,
    pub cell: CellId,
    /// When the cell was submitted.
    pub submit: Timestamp,
    pub executor: SeatStep,
    pub gpus: u16,
    /// `None` means any type.
    pub gpu_type: Option<GpuType>,
    pub cpus: u16,
    /// The name of the Slurm step.
    pub step_name: String,
}
