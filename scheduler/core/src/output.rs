//! What the core decides. The driver carries it out in the order given.

use crate::id::{
    AccountName, CellId, GpuIndex, GpuType, Incarnation, JobId, KernelId, LeaseId, NodeName, PoolName,
    UserName,
};
use crate::journal::Entry;
use crate::lease::{EndCause, Outcome};
use crate::reason::{Reason, RefusedBecause};
use crate::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

/// A decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "output", rename_all = "kebab-case")]
pub enum Output {
    /// To the pilot's agent: start this lease.
    StartLease(StartLease),
    /// To the pilot's agent: end it. `grace` is how long holders get.
    EndLease {
        lease: LeaseId,
        pilot: JobId,
        cause: EndCause,
        grace: Span,
    },
    /// To the pilot's agent: the end is in the books.
    EndAcknowledged { lease: LeaseId, pilot: JobId },
    /// To the pilot's agent: no more leases, exit after the last.
    DrainPilot { pilot: JobId },
    /// To Slurm: a new pilot. Answered by [`crate::Input::PilotQueued`] or [`crate::Input::PilotFailed`].
    SubmitPilot {
        ticket: u64,
        pool: PoolName,
        /// A burst partition; none: the pool's own.
        partition: Option<String>,
        /// The node that it should be on; none: any.
        node: Option<NodeName>,
        /// Its GPUs, with cores in proportion; none: as the pool is configured.
        gpus: Option<u16>,
    },
    /// To Slurm: cancel a pilot that is not up yet.
    CancelPilot { ticket: u64, job: Option<JobId> },

    /// To the kernel's replicas: this cell runs on this lease. The driver adds the handover's particulars.
    Granted {
        kernel: KernelId,
        cell: CellId,
        lease: LeaseId,
        node: NodeName,
        executor: Incarnation,
        /// It lay there from an earlier cell.
        lingering: bool,
        waited: Span,
    },
    /// To the kernel's replicas: the cell waits.
    Queued {
        kernel: KernelId,
        cell: CellId,
        /// From 1, among those that wait for the same GPUs.
        position: u32,
        reason: Reason,
        estimate: Option<Span>,
    },
    /// To the kernel's replicas: the cell won't be served.
    Refused {
        kernel: KernelId,
        cell: CellId,
        reason: RefusedBecause,
    },
    /// To the kernel's replicas: a lease that they hold is over, or gone (`grace` zero). The GPUs are taken back when the
    /// kernel answers with [`crate::Input::ReleaseLease`], or after `grace`.
    Revoked {
        kernel: KernelId,
        lease: LeaseId,
        cause: EndCause,
        reason: String,
        grace: Span,
    },
    /// To the kernel's replicas: this cell should be parked in its middle, if it can be. Answered by
    /// [`crate::Input::CellParked`] or [`crate::Input::ParkRefused`]; nothing is taken from it meanwhile.
    Park {
        kernel: KernelId,
        lease: LeaseId,
        cell: CellId,
        reason: String,
    },
    /// To the kernel's front and replicas: it was ended.
    CloseKernel { kernel: KernelId, reason: String },
    /// To the front: where the kernel's new replicas sit.
    Place { kernel: KernelId, seats: Vec<SeatPlan> },
    PlaceRefused {
        kernel: KernelId,
        reason: RefusedBecause,
    },
    /// To the kernel: move this replica there. A cell that waits for it then runs there, or one that is to come.
    Migrate {
        kernel: KernelId,
        victim: Incarnation,
        seat: SeatPlan,
    },
    /// Nothing is known of the kernel any longer: the driver may forget it.
    Forget { kernel: KernelId },

    /// For the accounting store.
    Record(Record),
    /// For the journal; to be on disk before anything else of the same call is carried out.
    Journal(Entry),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartLease {
    pub lease: LeaseId,
    pub pilot: JobId,
    pub node: NodeName,
    pub user: UserName,
    pub kernel: KernelId,
    pub cell: CellId,
    pub executor: Incarnation,
    pub gpus: u16,
    /// Named where the need names one or the pilot has several.
    pub gpu_type: Option<GpuType>,
    pub cpus: u16,
}

/// Where one replica sits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatPlan {
    pub incarnation: Incarnation,
    pub node: NodeName,
    /// A seat of the user's there that has room.
    pub existing: Option<JobId>,
    pub mem_mib: u64,
    pub cpus: u16,
}

/// Rows of the accounting store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The lease is ordered. `start` of its row is still empty.
    LeaseOpened {
        lease: LeaseId,
        kernel: KernelId,
        name: String,
        user: UserName,
        account: Option<AccountName>,
        pool: PoolName,
        node: NodeName,
        pilot: JobId,
        gpus: u16,
        cpus: u16,
        submit: Timestamp,
        at: Timestamp,
    },
    /// The handover is confirmed.
    LeaseStarted {
        lease: LeaseId,
        devices: Vec<GpuIndex>,
        at: Timestamp,
    },
    /// A cell that the lease served is over.
    CellServed {
        lease: LeaseId,
        cell: CellId,
        submit: Timestamp,
        start: Timestamp,
        end: Timestamp,
        wait: Span,
        outcome: Outcome,
    },
    /// The lease is over and its device free or blocked. The last word on the lease.
    LeaseClosed {
        lease: LeaseId,
        cause: EndCause,
        clean: bool,
        at: Timestamp,
        /// From the handover to the end; zero if it never started.
        held: Span,
        run: Span,
        linger: Span,
        wait: Span,
        cells: u32,
        detail: String,
    },
}
