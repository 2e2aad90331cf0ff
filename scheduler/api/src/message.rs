//! The messages of the control plane. `docs/control-wire.md` describes them with their framing.
//!
//! Every frame carries one JSON value of these types. A connection begins with [`Hello`], in plain; all later frames
//! are authenticated with the key from the credential. Both sides refuse another [`VERSION`] with
//! [`Refusal::Version`]. New fields are optional; a changed meaning is a new version.
//!
//! Messages of agents, of kernels and of people are in modules of their own.

mod agent;
mod explanation;
mod query;
mod replica;
mod sums;

pub use agent::*;
pub use explanation::*;
pub use query::*;
pub use replica::*;
pub use sums::*;

pub use hop_words::cell::{CancelTarget, EndedCell, ParkedCell, WaitingCell};
pub use hop_words::gpu::{Device, GpuSlot};
use hop_words::id::{
    CellId, GpuIndex, Incarnation, JobId, KernelId, LeaseId, NodeName, Tenure, Term, UserName,
};
pub use hop_words::lease::{EndCause, Handover, LeaseEnd, Outcome};
use hop_words::need::{Class, Need};
pub use hop_words::replica::{Bound, MoveCause, ReplicaRole, ReplicaRow, SeatPlan, SeatStep};
use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

/// The version of this protocol, in every [`Hello`].
pub const VERSION: u32 = 3;

/// The first frame of a connection, client to `hopd`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    /// A MUNGE credential that only the service account (or root) can decode; its payload is the connection's
    /// 32-byte session key. It proves the caller's uid and gid. MUNGE itself refuses a replay.
    pub credential: String,
    pub role: Role,
}

/// The caller's role decides the accepted requests; the uid decides the reachable objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// `hop`, the hub's spawner, anybody who asks and hangs up.
    Client,
    /// A kernel's front, for as long as the kernel is open.
    Front,
    /// A kernel's replica, for its life.
    Replica,
    /// The batch step of a user's seat, for the seat's life.
    Seat,
    /// The batch step of a pilot. Only the service account may say so.
    Agent,
}

/// `hopd`'s answer to [`Hello`], the first authenticated frame.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Welcome {
    pub version: u32,
    pub term: Term,
    /// The caller as `hopd` sees it.
    pub user: UserName,
    pub operator: bool,
}

/// All messages to `hopd` after the hello. The answer repeats `id`; 0 means that no answer is wanted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToHopd {
    pub id: u64,
    pub body: Request,
}

/// Everything that flows from `hopd`. `id` is that of the request answered, 0 for an event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FromHopd {
    pub id: u64,
    pub body: Response,
}

/// Requests and reports, by role.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Request {
    /// Any role: still there. `hopd` answers with [`Response::Pong`].
    Ping,

    // Fronts.
    /// Where should the kernel's next replica sit? The caller hears the kernel's events from then on.
    PlaceKernel(PlaceKernel),
    /// The kernel's front is up and asks for the kernel's events.
    FrontUp {
        kernel: KernelId,
    },
    /// The kernel is closed for good: its leases end, and its replicas have been told.
    CloseKernel {
        kernel: KernelId,
    },

    /// The kernel is dead by its front's word, and its state is kept in its user's home. Ignored while one of its
    /// replicas is connected: the replica speaks for the kernel.
    LeaveKernel {
        kernel: KernelId,
    },
    /// The notebook of a hibernated kernel has another name. Ignored for a kernel that is awake: its executor tells the
    /// name.
    RenameKernel {
        kernel: KernelId,
        name: String,
    },

    // Seats.
    /// A seat is up, as its batch step reports.
    SeatUp {
        job: JobId,
        node: NodeName,
        mem_mib: u64,
        cpus: u16,
    },

    // Replicas. Each request carries its sender's tenure: see `docs/control-wire.md`, "Who speaks for a kernel".
    /// A replica is up. Sent again after every reconnection, with the replica's lease and cells.
    ReplicaUp(Box<ReplicaUp>),
    /// A cell asks for what it needs. Answered by events: any number of [`Event::Queued`], then one of
    /// [`Event::Granted`], [`Event::Refused`].
    Submit {
        kernel: KernelId,
        tenure: Tenure,
        cell: CellId,
        need: Need,
        class: Class,
        /// As in [`WaitingCell`]. Only the kernel's own keys tell whether it is a given text's.
        #[serde(default)]
        print: u64,
    },
    /// The cell was interrupted, or its kernel ends: forget a waiting cell, end a running one.
    CancelCell {
        kernel: KernelId,
        tenure: Tenure,
        cell: CellId,
    },
    /// A cell that had a lease ended. The lease lingers or goes back, as the core decides.
    CellEnded {
        kernel: KernelId,
        tenure: Tenure,
        cell: CellId,
        lease: LeaseId,
        started: Timestamp,
        ended: Timestamp,
        outcome: Outcome,
    },
    /// The kernel doesn't want its lease any longer. After [`Event::Revoked`]: no memory of the kernel is on the
    /// devices any more, and they may be taken back.
    ReleaseLease {
        kernel: KernelId,
        tenure: Tenure,
        lease: LeaseId,
    },
    /// Answers [`Event::Revoked`] with `may_hold`: the kernel can't let go of the lease's devices. Answered by
    /// [`Event::Held`].
    StillHeld {
        kernel: KernelId,
        tenure: Tenure,
        lease: LeaseId,
        why: String,
    },
    /// Answers [`Event::Park`]: the cell stands still, nothing of the kernel is on the lease's GPUs, and it goes on
    /// with the next lease that it is granted. The lease is over with that; the cell waits.
    CellParked {
        kernel: KernelId,
        tenure: Tenure,
        cell: CellId,
        lease: LeaseId,
    },
    /// Answers [`Event::Park`]: it can't be, and runs on.
    ParkRefused {
        kernel: KernelId,
        tenure: Tenure,
        lease: LeaseId,
        reason: String,
    },
    /// The obstacles to moving the kernel have changed. Replaces the last report.
    KernelBound {
        kernel: KernelId,
        tenure: Tenure,
        bound: Bound,
    },
    /// Answers [`Event::Move`]: everything is as before. A move that succeeds ends by its new replica's
    /// [`Request::ReplicaUp`].
    MigrationFailed {
        kernel: KernelId,
        tenure: Tenure,
        incarnation: Incarnation,
        reason: String,
    },
    /// The kernel's state is saved whole and its replicas end: asked for by [`Event::Hibernate`], or of the kernel's
    /// own accord.
    Hibernated {
        kernel: KernelId,
        tenure: Tenure,
    },
    /// The executor closes its kernel in the front's place: front and client are gone, and no notebook leads back to the
    /// kernel.
    KernelEnded {
        kernel: KernelId,
        tenure: Tenure,
    },
    /// Answers [`Event::Hibernate`]: the kernel goes on.
    HibernateRefused {
        kernel: KernelId,
        tenure: Tenure,
        reason: String,
    },

    // Agents.
    /// An agent is up. Sent again after every reconnection, with the leases on its node.
    AgentUp(Box<AgentUp>),
    /// The pilot's agent can't start, and ends: it lends nothing.
    AgentFailed {
        pilot: JobId,
        node: NodeName,
        reason: String,
    },
    /// The plugin has confirmed the handover.
    LeaseStarted {
        lease: LeaseId,
        handover: Handover,
    },
    /// The lease never started, and holds nothing. `device_lost` means that this pilot can't lend the slot again.
    LeaseFailed {
        lease: LeaseId,
        reason: String,
        device_lost: bool,
    },
    /// Slurm or the plugin keeps this GPU from being lent. `lost` means that the GPU's pilot can never lend the
    /// GPU again, and is to be replaced.
    SlotBlocked {
        index: GpuIndex,
        reason: String,
        #[serde(default = "yes")]
        lost: bool,
    },
    /// This GPU was blocked and is free.
    SlotUnblocked {
        index: GpuIndex,
    },
    /// How the node stands, as its plugin says: once after an agent's start, and after each look at blocked GPUs.
    NodeStands(NodeStanding),
    /// The lease is over and the take-back is done (`clean`), or the device stays blocked (`!clean`).
    LeaseEnded(Box<EndedLease>),

    // Clients.
    Acct(AcctQuery),
    /// Sums of the accounting. Answered by [`Response::Sums`].
    Sums(SumsQuery),
    Queue(QueueQuery),
    Info,
    /// Why does this cell (or the kernel's waiting cell) wait, or why did it wait?
    Explain {
        kernel: KernelId,
        cell: Option<CellId>,
    },
    /// End a lease, cancel a waiting cell, or close a kernel: one's own, or anybody's for an operator.
    Cancel(CancelTarget),
    Kernels(KernelsQuery),
    /// Move the kernel's executor.
    Migrate {
        kernel: KernelId,
        /// `None` lets `hopd` choose the node.
        to: Option<NodeName>,
        /// Moves the kernel even if it holds uncapturable objects. These objects are lost.
        force: bool,
    },
    Hibernate {
        target: HibernateTarget,
        /// As in `Migrate`.
        force: bool,
    },
    /// Have the front of a hibernated kernel bring it back.
    Wake {
        kernel: KernelId,
    },
    /// Forgets a hibernated kernel: its id no longer wakes it.
    Forget {
        kernel: KernelId,
    },
    /// Have the node's blocked GPUs (none named: all) looked at again, and lent if they are free. Operators alone.
    Release {
        node: NodeName,
        gpus: Vec<GpuIndex>,
    },
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Response {
    Pong,
    Done,
    Placement(Placement),
    Event(Event),
    Order(Order),
    Acct {
        rows: Vec<AcctRow>,
        /// The rest is missing: an answer is of bounded length.
        #[serde(default)]
        more: bool,
        /// Entries of the accounting that are not written yet, and may be missing.
        #[serde(default, skip_serializing_if = "is_zero")]
        behind: usize,
    },
    Sums {
        rows: Vec<Sums>,
        /// Waits are missing: an answer is of bounded length.
        #[serde(default)]
        more: bool,
        /// Entries of the accounting that are not written yet, and may be missing.
        #[serde(default, skip_serializing_if = "is_zero")]
        behind: usize,
    },
    Queue {
        rows: Vec<QueueRow>,
        /// Expected wait of each of [`QueueQuery::expect`], were it submitted now. `None` means that no estimate is
        /// possible.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        expected: Vec<Option<Span>>,
    },
    Info(InfoReport),
    Explanation(Explanation),
    Kernels {
        rows: Vec<KernelRow>,
    },
    /// Answers [`Request::Release`]: the node's agents were told. The answer of an agent is
    /// [`NodeInfo::asked`](query::NodeInfo::asked).
    Looking {
        asked: Timestamp,
    },
    /// Answers [`Request::Hibernate`].
    Asked {
        /// Kernels that were told.
        kernels: Vec<KernelId>,
        /// Kernels that weren't, and why.
        refused: Vec<(KernelId, String)>,
    },
    Refused(Refusal),
}

/// Why a request was not done. `Display` gives the user's text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "kebab-case")]
pub enum Refusal {
    #[error("hopd speaks protocol version {server}, the caller {client}: install the same release on both")]
    Version { server: u32, client: u32 },
    #[error("who is calling could not be proven: {reason}")]
    Unauthenticated { reason: String },
    #[error("not allowed: {reason}")]
    Forbidden { reason: String },
    #[error("there is no {what}")]
    NotFound { what: String },
    #[error("tenure {tenure} speaks for kernel {kernel} now")]
    Superseded { kernel: KernelId, tenure: Tenure },
    #[error("{reason}")]
    Invalid { reason: String },
    #[error("hopd can't do that now: {reason}")]
    Unavailable { reason: String },
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tag within a tag of the same name would write a message that nobody can read.
    #[test]
    fn every_kind_of_answer_is_read_as_it_was_written() {
        let kernel = || KernelId::from("k");
        let answers = [
            Response::Pong,
            Response::Done,
            Response::Placement(Placement {
                seat: SeatPlan {
                    incarnation: Incarnation(1),
                    node: "n".into(),
                    existing: None,
                    partition: None,
                    mem_mib: 1,
                    cpus: 1,
                },
                tenure: Tenure(2),
            }),
            Response::Event(Event::Close {
                kernel: kernel(),
                reason: "r".into(),
            }),
            Response::Order(Order::Drain { term: Term(1) }),
            Response::Acct {
                rows: vec![],
                more: false,
                behind: 0,
            },
            Response::Sums {
                rows: vec![],
                more: false,
                behind: 3,
            },
            Response::Queue {
                rows: vec![],
                expected: vec![Some(Span(1)), None],
            },
            Response::Info(InfoReport {
                version: "v".into(),
                term: Term(1),
                started: Timestamp(2),
                nodes: vec![],
                kernels: 0,
                waiting: 0,
                problems: vec![],
            }),
            Response::Explanation(Explanation::new(kernel(), None, vec![KernelItem::NoCell.into()])),
            Response::Kernels { rows: vec![] },
            Response::Asked {
                kernels: vec![kernel()],
                refused: vec![(kernel(), "r".into())],
            },
            Response::Refused(Refusal::Version { server: 1, client: 2 }),
            Response::Refused(Refusal::Superseded {
                kernel: kernel(),
                tenure: Tenure(3),
            }),
            Response::Refused(Refusal::Invalid { reason: "r".into() }),
        ];
        for body in answers {
            let text = serde_json::to_string(&FromHopd { id: 1, body }).unwrap();
            let read: FromHopd = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
    }

    #[test]
    fn every_target_of_a_cancel_is_read_as_it_was_written() {
        for target in [
            CancelTarget::Lease { lease: LeaseId(1) },
            CancelTarget::Kernel { kernel: "k".into() },
        ] {
            let body = Request::Cancel(target);
            let text = serde_json::to_string(&ToHopd { id: 1, body }).unwrap();
            serde_json::from_str::<ToHopd>(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        }
    }
}
