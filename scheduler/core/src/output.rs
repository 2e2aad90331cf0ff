//! The core's decisions. The driver carries them out in the order given.

use crate::journal::Entry;
use hop_words::id::{
    AccountName, CellId, GpuIndex, GpuType, Incarnation, JobId, KernelId, LeaseId, NodeName, PoolName,
    UserName,
};
use hop_words::lease::{EndCause, Outcome};
use hop_words::reason::{MoveRefused, ParkBecause, Reason, RefusedBecause, RevokedBecause, Wanted};
pub use hop_words::replica::{MoveCause, SeatPlan};
use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

/// A decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "output", rename_all = "kebab-case")]
pub enum Output {
    /// To the pilot's agent: start this lease.
    StartLease(DecidedLease),
    /// To the pilot's agent: end it. `grace` is how long holders get.
    EndLease {
        lease: LeaseId,
        pilot: JobId,
        cause: EndCause,
        grace: Span,
    },
    /// To the pilot's agent, after everything before this output is on disk: the agent may forget the lease.
    EndAcknowledged { lease: LeaseId, pilot: JobId },
    /// To the pilot's agent: no more leases, exit after the last.
    DrainPilot { pilot: JobId },
    /// To Slurm: a new pilot. Answered by [`crate::Input::PilotQueued`] or [`crate::Input::PilotFailed`].
    SubmitPilot {
        ticket: u64,
        pool: PoolName,
        /// A burst partition; none: the pool's own.
        partition: Option<String>,
        /// Node to start on; `None` means any.
        node: Option<NodeName>,
        /// GPUs of the pilot, with cores in proportion. `None` means as the pool is configured.
        gpus: Option<u16>,
        /// Type of the pilot's GPUs, as Slurm names it. `None` means any of the pool's.
        gpu_type: Option<GpuType>,
    },
    /// To Slurm: cancel a pilot before its agent is up.
    CancelPilot { ticket: u64, job: Option<JobId> },

    /// To the kernel's replicas: this cell runs on this lease. The driver adds the details of the handover.
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
        /// Place among the cells that wait for the same GPUs, from 1.
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
    /// To the kernel's replicas: a lease of theirs is over, or gone (`grace` zero). The GPUs are taken back when the
    /// kernel answers with [`crate::Input::ReleaseLease`], or after `grace`.
    Revoked {
        kernel: KernelId,
        lease: LeaseId,
        cause: EndCause,
        reason: RevokedBecause,
        grace: Span,
    },
    /// To a kernel unable to let go of a lease's GPUs: the fate of the GPUs.
    Held {
        kernel: KernelId,
        lease: LeaseId,
        /// Why the GPUs must go. `None` means that nobody waits for them: the lease lingers on.
        wanted: Option<Wanted>,
        /// Time until the processes still holding the GPUs are ended. Without `wanted`, the time left to them once a
        /// cell waits.
        within: Span,
    },
    /// To the kernel's replicas: park this cell in its middle, if possible. The answer is
    /// [`crate::Input::CellParked`] or [`crate::Input::ParkRefused`]; until then the cell keeps its GPUs.
    Park {
        kernel: KernelId,
        lease: LeaseId,
        cell: CellId,
        reason: ParkBecause,
    },
    /// To the kernel's front and replicas: the kernel was ended.
    CloseKernel {
        kernel: KernelId,
        reason: RefusedBecause,
    },
    /// To the front: where the kernel's new replica sits.
    Place { kernel: KernelId, seat: SeatPlan },
    PlaceRefused {
        kernel: KernelId,
        reason: RefusedBecause,
    },
    /// To the kernel: move this replica to a node, for a waiting cell or for the next one.
    Migrate {
        kernel: KernelId,
        victim: Incarnation,
        seat: SeatPlan,
        cause: MoveCause,
    },
    /// To whoever asked by [`crate::Input::Migrate`]: the kernel stays where it is.
    MoveRefused {
        kernel: KernelId,
        cause: MoveCause,
        reason: MoveRefused,
    },
    /// To the kernel: the move to this replica isn't waited for any more.
    MoveWithdrawn {
        kernel: KernelId,
        incarnation: Incarnation,
        to: NodeName,
        why: Withdrawal,
    },
    /// Nothing is known of the kernel any longer: the driver may forget it.
    Forget { kernel: KernelId },

    /// For the accounting store.
    Record(Record),
    /// For the journal, which is written later, in order. Only [`Output::EndAcknowledged`] waits until all before it is
    /// on disk.
    Journal(Entry),
}

/// A lease by the policy's decision. The order to the node's agent adds the term and the executor's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidedLease {
    pub lease: LeaseId,
    pub pilot: JobId,
    pub node: NodeName,
    pub pool: PoolName,
    pub user: UserName,
    pub account: Option<AccountName>,
    pub kernel: KernelId,
    /// What the user calls the notebook.
    pub name: String,
    pub cell: CellId,
    /// When the cell was submitted.
    pub submit: Timestamp,
    pub executor: Incarnation,
    pub gpus: u16,
    /// Named where the need names one or the pilot has several.
    pub gpu_type: Option<GpuType>,
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
    /// A cell of the lease is over.
    CellServed {
        lease: LeaseId,
        cell: CellId,
        submit: Timestamp,
        start: Timestamp,
        end: Timestamp,
        wait: Span,
        outcome: Outcome,
        /// The lease is ended with the cell on it: why the cell was lost is the cause of the lease's end.
        with_lease: bool,
    },
    /// A cell left the queue without a lease. Its row in the accounting needs a lease's number.
    CellWithdrawn {
        lease: LeaseId,
        cell: CellId,
        kernel: KernelId,
        name: String,
        user: UserName,
        account: Option<AccountName>,
        pool: PoolName,
        gpus: u16,
        cpus: u16,
        submit: Timestamp,
        at: Timestamp,
        /// `None` means that the kernel itself withdrew the cell.
        reason: Option<RefusedBecause>,
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
        /// Its kernel couldn't let go of the GPUs: for how long, and why.
        held_on: Option<(Span, String)>,
    },
}

/// Why a move isn't waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Withdrawal {
    #[error("it took too long")]
    Late,
    /// This replica executes the kernel now. Users know no replicas by their numbers.
    #[error(
        "its process was lost or restarted meanwhile, and the new one has to be asked again (`hop migrate`)"
    )]
    Overtaken(Incarnation),
}
