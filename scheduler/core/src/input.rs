//! The core's inputs, in one enum. `hopd` and the simulator are the only sources.

use crate::config::{Limits, PoolConfig, Shares};
pub use hop_words::cell::{CancelTarget, EndedCell, ParkedCell, WaitingCell};
pub use hop_words::gpu::GpuSlot;
use hop_words::id::{
    AccountName, CellId, GpuIndex, GpuType, Incarnation, JobId, KernelId, LeaseId, NodeName, PoolName,
    Tenure, UserName,
};
use hop_words::lease::{EndCause, Outcome};
use hop_words::need::{Class, Need};
use hop_words::replica::MoveCause;
use hop_words::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Something that happened. Handled by [`crate::Core::handle`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "input", rename_all = "kebab-case")]
pub enum Input {
    /// A new pool, or a new configuration of a known pool.
    Pool(PoolConfig),
    /// The limits of users, accounts and pools, all of them: replaces what was told before.
    Limits(Limits),
    /// Shares, and the usage of jobs beside our leases (Slurm's `sshare`), for all users and accounts: replaces the
    /// last report.
    Shares(Shares),

    /// A node is known to Slurm and belongs to a pool's partition, whether or not a pilot is there. Optional:
    /// a node is also learnt from its pilot.
    Node(NodeFacts),
    /// A node of a burst partition of its pool: a place for pilots while the pool's own nodes have no room.
    BurstNode {
        facts: NodeFacts,
        partition: String,
    },
    /// A node is down or drained, by Slurm's word: no placement and no new pilot there. A pilot that is late for it is
    /// given up.
    NodeDown {
        node: NodeName,
    },
    /// A node is in no pool's partition any more, by Slurm's word: no placement there, and no pilot can start. Its pilots
    /// drain.
    NodeGone {
        node: NodeName,
    },
    /// The room that jobs other than the pools' pilots leave on a node, by Slurm's word. Optional: until this input
    /// comes, the node counts as free of such jobs.
    NodeRoom {
        node: NodeName,
        room: Room,
    },
    /// slurmctld doesn't answer, or answers again; until then no lease's step starts. Optional: without this input a
    /// late lease is given up.
    SlurmAway {
        away: bool,
    },
    /// Most that the nodes of a pool could ever offer, up or down, as far as known. Optional: without this input a
    /// cell waits even if its need fits no node.
    PoolOffers(PoolOffers),

    /// `sbatch` answered: the pilot asked for by [`crate::Output::SubmitPilot`] is this Slurm job.
    PilotQueued {
        ticket: u64,
        job: JobId,
    },
    /// `sbatch` refused, or the pilot's job ended before its agent came up.
    PilotFailed {
        ticket: u64,
        reason: String,
    },
    /// `sbatch` refused the pilot: the pilot can't run on the node named by [`crate::Output::SubmitPilot`].
    PilotRefused {
        ticket: u64,
        reason: String,
    },
    /// An agent started or came back. The message lists every living lease of the pilot.
    PilotUp(PilotUp),
    /// The pilot takes no new leases; its agent exits after the last one.
    PilotDraining {
        pilot: JobId,
    },
    /// The agent's connection broke; the leases may live. After [`crate::Config::silent_grace`] it is lost.
    PilotSilent {
        pilot: JobId,
    },
    /// The pilot is over, with every lease in it.
    PilotLost {
        pilot: JobId,
        cause: EndCause,
    },
    /// A GPU can't be lent. `lost` means for good: the pilot must be replaced.
    SlotBlocked {
        pilot: JobId,
        index: GpuIndex,
        reason: String,
        lost: bool,
    },
    SlotUnblocked {
        pilot: JobId,
        index: GpuIndex,
    },

    /// A front wants a replica of its kernel placed. Answered by [`crate::Output::Place`] or
    /// [`crate::Output::PlaceRefused`].
    PlaceKernel(PlaceReplica),
    /// The kernel is closed for good.
    CloseKernel {
        kernel: KernelId,
    },
    SeatUp(SeatUp),
    SeatGone {
        job: JobId,
    },
    /// The seat's time limit comes near, or no longer: nothing new sits in a seat that ends.
    SeatEnds {
        job: JobId,
        soon: bool,
    },
    /// A replica is up, or came back.
    ReplicaUp(ReplicaFacts),
    /// The replica's connection broke: nothing can be asked of the replica before the next report. Optional:
    /// without this input, moves of the replica are planned and fail.
    ReplicaAway {
        kernel: KernelId,
        incarnation: Incarnation,
    },
    /// A replica is gone for good: its process or seat ended, or the absence was too long.
    ReplicaLost {
        kernel: KernelId,
        incarnation: Incarnation,
    },
    /// The executor's process is bound to the GPUs of `incarnation`'s node (CUDA can't let go), or no longer.
    KernelBound {
        kernel: KernelId,
        incarnation: Option<Incarnation>,
    },

    /// A cell asks for what it needs. Answered by any number of [`crate::Output::Queued`], then one of
    /// [`crate::Output::Granted`] and [`crate::Output::Refused`].
    Submit(Submit),
    /// Forgets a waiting cell, or ends a running cell's time on its lease.
    CancelCell {
        kernel: KernelId,
        cell: CellId,
    },
    /// The kernel's pool takes no cells of it any more: refuses those that wait. A parked cell has begun, and waits on.
    CellsRefused {
        kernel: KernelId,
        why: String,
    },
    CellEnded {
        kernel: KernelId,
        cell: CellId,
        lease: LeaseId,
        outcome: Outcome,
    },
    /// The kernel gives its lease back, or no longer leaves anything on the GPUs of an ended lease.
    ReleaseLease {
        kernel: KernelId,
        lease: LeaseId,
    },
    /// The kernel can't let go of the lease's GPUs: a process of it holds them. Answered by [`crate::Output::Held`].
    StillHeld {
        kernel: KernelId,
        lease: LeaseId,
        why: String,
    },

    /// The answer to [`crate::Output::Park`]: the cell can't be parked, and runs on.
    ParkRefused {
        kernel: KernelId,
        lease: LeaseId,
    },
    /// The cell is parked in its middle: the lease's GPUs hold none of its memory. Another grant resumes the cell.
    CellParked {
        kernel: KernelId,
        cell: CellId,
        lease: LeaseId,
    },

    /// The plugin has confirmed the handover of these devices.
    LeaseStarted {
        lease: LeaseId,
        pilot: JobId,
        devices: Vec<GpuIndex>,
    },
    /// The lease never came to be; nothing is held.
    LeaseFailed {
        lease: LeaseId,
        pilot: JobId,
        reason: String,
        /// A GPU of this pilot can't be lent any more.
        device_lost: bool,
    },
    /// The lease is over on its node.
    LeaseEnded {
        pilot: JobId,
        #[serde(flatten)]
        ended: ReportedEnd,
    },

    /// Somebody with the right to do so (the driver has checked) ends a lease, a cell or a kernel.
    Cancel {
        target: CancelTarget,
        by: UserName,
    },
    /// Why policy leaves the kernel where it is, in place of the last reason. `None` means that policy may move it.
    KernelFixed {
        kernel: KernelId,
        why: Option<String>,
    },
    /// Move the kernel's replica on `from` (else its last executor) to `to`, or (none) to the best node. Answered by
    /// [`crate::Output::Migrate`] or [`crate::Output::MoveRefused`].
    Migrate {
        kernel: KernelId,
        from: Option<NodeName>,
        to: Option<NodeName>,
        cause: MoveCause,
    },
    /// The kernel's state is saved whole and its replicas end.
    Hibernated {
        kernel: KernelId,
    },
    /// A replica was not moved as [`crate::Output::Migrate`] asked. A move that succeeds ends by its successor's
    /// [`Input::ReplicaUp`].
    MigrationFailed {
        kernel: KernelId,
        incarnation: Incarnation,
    },
    /// Time has passed: [`crate::Core::next_wake`] is due.
    Tick,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    pub node: NodeName,
    pub pool: PoolName,
    pub gpus: u16,
    pub gpu_type: GpuType,
    pub gpu_mem_mib: u64,
    pub cpus: u16,
}

/// The room on a node beside jobs of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// GPUs that no pilot can have; all, if nothing is left of something else that a pilot needs.
    pub taken: u16,
    /// A new seat finds cores and memory.
    pub seat: bool,
}

impl Default for Room {
    fn default() -> Self {
        Self { taken: 0, seat: true }
    }
}

/// Most GPUs and cores of a pool on one node, now or ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolOffers {
    pub pool: PoolName,
    /// GPUs by type; the empty type: Slurm names none.
    pub gpus: Vec<(GpuType, u16)>,
    /// `true` if every node of the pool is known, so that `gpus` is complete.
    pub types_known: bool,
    /// Memory of each GPU in MiB; 0: unknown, so none can be asked for.
    pub gpu_mem_mib: u64,
    /// Cores; `u16::MAX`: unknown.
    pub cpus: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PilotUp {
    pub node: NodeName,
    pub pilot: JobId,
    pub pool: PoolName,
    pub gpus: Vec<GpuSlot>,
    /// Cores that the pilot may lend.
    pub cpus: u16,
    /// Time of the pilot's end by Slurm's time limit.
    pub ends: Option<Timestamp>,
    /// Steps that the pilot may still start before MaxStepCount.
    pub steps_left: u32,
    /// Leases that live there now.
    pub leases: Vec<ReportedLease>,
    /// Leases being started there, or ended before their start.
    #[serde(default)]
    pub starting: Vec<LeaseId>,
    /// Leases that ended there while nobody listened.
    pub ended: Vec<ReportedEnd>,
    /// The pilot was told to drain before.
    pub draining: bool,
    /// Slurm drains the pilot's node: the pilot is told to drain, and lends nothing.
    #[serde(default)]
    pub node_drains: bool,
}

/// A node's report of a lease, with the fields that the policy needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedLease {
    pub lease: LeaseId,
    pub kernel: KernelId,
    pub devices: Vec<GpuIndex>,
}

/// A node's report of a lease's end, with the fields that the policy needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedEnd {
    pub lease: LeaseId,
    pub cause: EndCause,
    /// No process holds the devices; else they stay blocked.
    pub clean: bool,
    pub detail: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatUp {
    pub job: JobId,
    pub user: UserName,
    pub node: NodeName,
    pub mem_mib: u64,
    pub cpus: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submit {
    pub kernel: KernelId,
    pub cell: CellId,
    pub need: Need,
    pub class: Class,
    /// Fingerprint of the cell's text: cells of one print run for about as long. 0 means unknown.
    #[serde(default)]
    pub print: u64,
}

/// The question for a place for a kernel's next replica. User and pool are named: the asking front proves the one and
/// may leave out the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceReplica {
    pub kernel: KernelId,
    pub user: UserName,
    pub account: Option<AccountName>,
    pub pool: PoolName,
    /// The lowest permitted number for the new replica. `None` leaves the number to the core.
    #[serde(default)]
    pub first: Option<Incarnation>,
    /// What its cells usually ask for.
    pub default_need: Need,
    /// Memory and cores of one replica's step.
    pub mem_mib: u64,
    pub cpus: u16,
    pub avoid: Vec<NodeName>,
    /// What the user calls the notebook.
    pub name: String,
}

/// A replica as `hopd` knows it after its report: user, pool and obstacles to moves are settled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaFacts {
    pub kernel: KernelId,
    pub incarnation: Incarnation,
    pub user: UserName,
    pub account: Option<AccountName>,
    pub pool: PoolName,
    pub node: NodeName,
    /// The seat's job.
    pub seat: JobId,
    pub name: String,
    /// The replica's lease, with the lease's running cell.
    pub holds: Option<(LeaseId, Option<CellId>)>,
    /// The replica's last cell that ended on a lease.
    #[serde(default)]
    pub ended: Option<EndedCell>,
    /// Cells of this kernel that still wait.
    pub waiting: Vec<WaitingCell>,
    /// The waiting cell parked in its middle by the replica.
    #[serde(default)]
    pub parked: Option<ParkedCell>,
    /// As [`Input::KernelFixed`] says it.
    #[serde(default)]
    pub fixed: Option<String>,
    /// Members of the kernel's log elsewhere, all of them: replaces what was told before.
    #[serde(default)]
    pub standbys: Vec<Standby>,
    /// The tenure in which the replica executes the kernel; 0 for a kernel without a log. `None`: it wasn't elected. A
    /// tenure deposes the executors of lower tenures, even living ones: their leases and cells end as with
    /// [`Input::ReplicaLost`]. The kernel's waiting cells keep their places for the new executor, which asks for them
    /// again.
    #[serde(default)]
    pub executes: Option<Tenure>,
}

/// A member of a kernel's log without a process so far, able to become its executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standby {
    pub incarnation: Incarnation,
    pub node: NodeName,
    /// The seat's job.
    pub seat: JobId,
}
