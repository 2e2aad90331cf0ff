//! Messages between `hopd` and a kernel's front, and between `hopd` and the executing replica.

use hop_words::cell::{EndedCell, ParkedCell, WaitingCell};
use hop_words::id::{AccountName, CellId, Incarnation, KernelId, LeaseId, NodeName, PoolName, Tenure};
use hop_words::lease::{EndCause, Handover};
use hop_words::need::{Class, Need};
use hop_words::replica::{Bound, MoveCause, ReplicaRow, SeatPlan, SeatStep};
use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

/// A front's question before it starts a replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlaceKernel {
    pub kernel: KernelId,
    pub account: Option<AccountName>,
    pub pool: Option<PoolName>,
    /// The lowest number that the new replica may have, by the kernel's own log. `hopd` gives this number or a higher one.
    #[serde(default)]
    pub first: Option<Incarnation>,
    /// Usual need of the kernel's cells: a hint for the placement.
    pub default_need: Need,
    /// Memory of the replica's step in MiB, and its cores. 0 means the site's default.
    pub mem_mib: u64,
    pub cpus: u16,
    /// Nodes that just failed this kernel.
    pub avoid: Vec<NodeName>,
    /// The new replica takes the place of this front's executor, which is lost or has left.
    #[serde(default)]
    pub replaces: bool,
    /// The user's name for the notebook, until a replica tells it. Empty means that it stays as before.
    #[serde(default)]
    pub name: String,
}

/// Answers [`PlaceKernel`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Placement {
    pub seat: SeatPlan,
    /// The highest tenure that has spoken for the kernel. 0 means none. After a restart of the kernel there may be no
    /// other record of the number.
    #[serde(default)]
    pub tenure: Tenure,
}

/// The executor's report after each (re)connection, and whenever its tenure, its standbys or their leader change. It
/// names further lagging standbys at most once a second, and tells other numbers of theirs every five seconds at most.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplicaUp {
    pub kernel: KernelId,
    /// The kernel's tenure as this replica knows it.
    #[serde(default)]
    pub tenure: Tenure,
    /// The number that [`SeatPlan::incarnation`] gave it.
    pub incarnation: Incarnation,
    pub account: Option<AccountName>,
    pub pool: Option<PoolName>,
    pub node: NodeName,
    pub seat: SeatStep,
    /// The user's name for the notebook, for `hop queue`; may be empty.
    pub name: String,
    /// The replica's lease, with the lease's running cell.
    pub holds: Option<(LeaseId, Option<CellId>)>,
    /// The last cell that ended on a lease here, in case `hopd` was away then.
    #[serde(default)]
    pub ended: Option<EndedCell>,
    /// Submitted cells without a lease, all of the kernel's.
    pub waiting: Vec<WaitingCell>,
    /// `true` if the replica knows [`Event::Park`]. Other replicas are never asked to park.
    #[serde(default)]
    pub parks: bool,
    /// The cell among `waiting` that was parked during its run.
    #[serde(default)]
    pub parked: Option<ParkedCell>,
    /// The kernel's state is captured, and it knows [`Event::Move`] and [`Event::Hibernate`].
    #[serde(default)]
    pub captured: bool,
    /// Why nothing of a kernel that captures is saved now: its captures or its log can't be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsaved: Option<String>,
    /// Obstacles to moving the replica, as in [`super::Request::KernelBound`].
    #[serde(default)]
    pub bound: Bound,
    /// Replicas that the kernel should have.
    #[serde(default)]
    pub wanted: u16,
    /// The kernel's other replicas, by the executor's word: they don't speak to `hopd` themselves.
    #[serde(default)]
    pub standbys: Vec<ReplicaRow>,
    /// The replica that leads the kernel's log. `None` means a kernel with one replica, or an unknown leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<Incarnation>,
}

/// Messages to a replica or a front that answer no request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The cell waits.
    Queued {
        kernel: KernelId,
        cell: CellId,
        position: u32,
        reason: String,
        estimate: Option<Span>,
        /// The likely range of the wait, by how earlier estimates turned out. `None` means that too few did yet.
        #[serde(default)]
        range: Option<(Span, Span)>,
    },
    /// The cell has a lease, on the replica that [`Grant::executor`] names.
    Granted {
        kernel: KernelId,
        cell: CellId,
        grant: Grant,
    },
    /// The cell won't be served.
    Refused {
        kernel: KernelId,
        cell: CellId,
        reason: String,
    },
    /// A lease that the kernel holds is over (or is gone already: `grace` zero). Its devices are taken back when the
    /// kernel answers with [`super::Request::ReleaseLease`], or after `grace`.
    Revoked {
        kernel: KernelId,
        lease: LeaseId,
        cause: EndCause,
        reason: String,
        grace: Span,
        /// A kernel unable to let go of the devices may answer [`super::Request::StillHeld`].
        #[serde(default)]
        may_hold: bool,
    },
    /// Answers [`super::Request::StillHeld`].
    Held {
        kernel: KernelId,
        lease: LeaseId,
        /// Why the devices must go all the same, as half a sentence. `None` means that nobody waits for them: the lease
        /// stays with the kernel.
        wanted: Option<String>,
        /// Time until the devices' holders are ended; without `wanted`, the time they will have later.
        within: Span,
    },
    /// The lease stays with the kernel for its next cell, until then at most.
    Kept {
        kernel: KernelId,
        lease: LeaseId,
        until: Timestamp,
    },
    /// Other cells wait for this long-running cell's GPUs: park the cell, if possible. The answer is
    /// [`super::Request::CellParked`] or [`super::Request::ParkRefused`]; until then the cell keeps its GPUs. Sent
    /// only to the replica that runs the cell.
    Park {
        kernel: KernelId,
        lease: LeaseId,
        cell: CellId,
        reason: String,
    },
    /// Replica `victim` moves into `seat`. Ended by [`super::Request::ReplicaUp`] of the seat's replica, or by
    /// [`super::Request::MigrationFailed`]. Only the executor is told.
    Move {
        kernel: KernelId,
        victim: Incarnation,
        seat: SeatPlan,
        cause: MoveCause,
    },
    /// The move to this incarnation has taken too long, or the reason is gone: `hopd` no longer waits for the end.
    MoveWithdrawn {
        kernel: KernelId,
        incarnation: Incarnation,
    },
    /// Save everything and end all replicas. Answered by [`super::Request::Hibernated`] or
    /// [`super::Request::HibernateRefused`]. Only the executor is told.
    Hibernate { kernel: KernelId, reason: String },
    /// Somebody with the right to do so wants the hibernated kernel back. Only its front is told.
    Wake { kernel: KernelId },
    /// An entitled user ended this kernel.
    Close { kernel: KernelId, reason: String },
}

/// What a cell runs with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Grant {
    pub lease: LeaseId,
    pub node: NodeName,
    /// The replica that runs the cell: no other can use the lease.
    pub executor: Incarnation,
    pub handover: Handover,
    /// From the submission to the grant.
    pub waited: Span,
    /// The lease lingered from an earlier cell.
    pub lingering: bool,
    /// By class, the run time of a cell until it may be parked for others. A missing class is never parked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quanta: Vec<(Class, Span)>,
}
