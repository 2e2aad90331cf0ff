//! The messages of the control plane. `docs/control-wire.md` describes them with their framing.
//!
//! Rules: every frame carries one JSON value of these types; the first of a connection is [`Hello`], in
//! plain, and everything after it is authenticated with the key that the credential carried. Both sides refuse another
//! [`VERSION`] with [`Refusal::Version`]. New fields are optional; a changed meaning is a new version.

use hop_core::id::{
    AccountName, CellId, Epoch, GpuIndex, GpuType, Incarnation, JobId, KernelId, LeaseId, NodeName, PoolName,
    Term, UserName,
};
pub use hop_core::lease::{EndCause, Outcome};
use hop_core::need::{Class, Need};
use hop_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The version of this protocol, in every [`Hello`].
pub const VERSION: u32 = 1;

/// The first frame of a connection, client to `hopd`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    /// A MUNGE credential that only the service account (or root) can decode; its payload is the connection's
    /// 32-byte session key. It proves the caller's uid and gid. MUNGE itself refuses a replay.
    pub credential: String,
    pub role: Role,
}

/// What the caller is. The role decides which requests are heard; the uid decides whose things they touch.
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

/// Everything that flows to `hopd` after the hello. `id` is echoed in the answer; 0 where none is wanted.
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
    /// Where should this kernel's replicas sit?
    PlaceKernel(PlaceKernel),
    /// The kernel is closed for good; its leases end, its replicas were told.
    CloseKernel {
        kernel: KernelId,
    },

    // Seats.
    /// A seat is up (its batch step says so).
    SeatUp {
        job: JobId,
        node: NodeName,
        mem_mib: u64,
        cpus: u16,
    },

    // Replicas.
    /// A replica is up; also after every reconnection, with what it holds.
    ReplicaUp(ReplicaUp),
    /// A cell asks for what it needs. Answered by events: any number of [`Event::Queued`], then one of
    /// [`Event::Granted`], [`Event::Refused`].
    Submit {
        kernel: KernelId,
        cell: CellId,
        need: Need,
        class: Class,
    },
    /// The cell was interrupted or its kernel is going: forget it if it waits, end it if it runs.
    CancelCell {
        kernel: KernelId,
        cell: CellId,
    },
    /// A cell that had a lease ended. The lease lingers or goes back, as the core decides.
    CellEnded {
        kernel: KernelId,
        cell: CellId,
        lease: LeaseId,
        started: Timestamp,
        ended: Timestamp,
        outcome: Outcome,
    },
    /// The kernel doesn't want its lease any longer, or, after [`Event::Revoked`], nothing of it leaves the devices any
    /// more: they may be taken back.
    ReleaseLease {
        kernel: KernelId,
        lease: LeaseId,
    },
    /// Answers [`Event::Park`]: the cell stands still, nothing of the kernel is on the lease's GPUs, and it goes on with
    /// the next lease that it is granted. The lease is over with that; the cell waits.
    CellParked {
        kernel: KernelId,
        cell: CellId,
        lease: LeaseId,
    },
    /// Answers [`Event::Park`]: it can't be, and runs on.
    ParkRefused {
        kernel: KernelId,
        lease: LeaseId,
        reason: String,
    },

    // Agents.
    /// An agent is up; also after every reconnection, with the leases that live on its node.
    AgentUp(AgentUp),
    /// The plugin has confirmed the handover.
    LeaseStarted {
        lease: LeaseId,
        handover: Handover,
    },
    /// The lease never came to be; nothing is held. `device_lost`: this slot can't be lent any more in this pilot.
    LeaseFailed {
        lease: LeaseId,
        reason: String,
        device_lost: bool,
    },
    /// This GPU can't be lent any more by its pilot: Slurm or the plugin keeps it. The pilot is to be replaced.
    SlotBlocked {
        index: GpuIndex,
        reason: String,
    },
    /// The lease is over and the take-back is done (`clean`), or the device stays blocked (`!clean`).
    LeaseEnded {
        lease: LeaseId,
        end: LeaseEnd,
    },

    // Clients.
    Acct(AcctQuery),
    Queue(QueueQuery),
    Info,
    /// Why does this cell (or the kernel's waiting cell) wait, or why did it wait?
    Explain {
        kernel: KernelId,
        cell: Option<CellId>,
    },
    /// End a lease, cancel a waiting cell, or close a kernel: one's own, or anybody's for an operator.
    Cancel(CancelTarget),
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
    },
    Queue {
        rows: Vec<QueueRow>,
        /// What each of [`QueueQuery::expect`] would wait if it came now; none: nobody can say.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        expected: Vec<Option<Span>>,
    },
    Info(InfoReport),
    Explanation(Explanation),
    Refused(Refusal),
}

/// Why a request was not done. `Display` of each is what the user reads.
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
    #[error("{reason}")]
    Invalid { reason: String },
    #[error("hopd can't do that now: {reason}")]
    Unavailable { reason: String },
}

/// What a front asks before it starts replicas.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlaceKernel {
    pub kernel: KernelId,
    pub account: Option<AccountName>,
    pub pool: Option<PoolName>,
    pub replicas: u16,
    /// What the kernel's cells usually ask for: a hint for the placement.
    pub default_need: Need,
    /// Memory of one replica's step in MiB, and its cores.
    pub mem_mib: u64,
    pub cpus: u16,
    /// Nodes that just failed this kernel and should be avoided.
    pub avoid: Vec<NodeName>,
}

/// One seat per replica, on distinct nodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Placement {
    pub seats: Vec<SeatPlan>,
}

/// Where one replica sits: in a seat that the user has there already, or in one that the front submits with these
/// parameters, under the user's own identity.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SeatPlan {
    pub incarnation: Incarnation,
    pub node: NodeName,
    pub existing: Option<JobId>,
    pub partition: String,
    pub mem_mib: u64,
    pub cpus: u16,
    /// Slurm time limit of the seat in minutes; 0: the partition's.
    pub time_limit_min: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplicaUp {
    pub kernel: KernelId,
    pub incarnation: Incarnation,
    pub account: Option<AccountName>,
    pub pool: Option<PoolName>,
    pub node: NodeName,
    pub seat: SeatStep,
    /// What the user calls the notebook, for `hop queue`; may be empty.
    pub name: String,
    /// A lease that it holds (after a reconnection), with the cell that runs on it.
    pub holds: Option<(LeaseId, Option<CellId>)>,
    /// Cells that were submitted before the connection broke and still wait.
    pub waiting: Vec<(CellId, Need, Class)>,
    /// It knows [`Event::Park`]. One that doesn't isn't asked.
    #[serde(default)]
    pub parks: bool,
    /// The one among `waiting` that stands still in its middle.
    #[serde(default)]
    pub parked: Option<ParkedCell>,
}

/// A cell that was parked, as [`Request::CellParked`] says it, for whoever didn't hear that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedCell {
    pub cell: CellId,
    /// The lease on which it ran last.
    pub lease: LeaseId,
    /// How long it has run, over all its leases.
    pub ran: Span,
}

/// Where a kernel's process is, so that the plugin can find its cgroup and refuse any other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatStep {
    pub job: JobId,
    pub step: u32,
    /// The replica's own pid, in the node's pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`, in clock ticks since boot: the same pid later is not the same process.
    pub start_time: u64,
    /// Its uid. `hopd` refuses one that is not the caller's.
    pub uid: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AgentUp {
    pub node: NodeName,
    pub pilot: JobId,
    pub pool: PoolName,
    pub gpus: Vec<GpuSlot>,
    /// Cores that the pilot may lend.
    pub cpus: u16,
    /// When the pilot ends by its Slurm time limit, if it has one.
    pub ends: Option<Timestamp>,
    /// Steps started so far, of Slurm's MaxStepCount.
    pub steps_used: u32,
    pub steps_max: u32,
    /// The highest `hopd` term that this node has seen.
    pub term: Term,
    /// Leases that live here.
    pub leases: Vec<LiveLease>,
    /// Leases that ended while `hopd` was away and that it has not acknowledged.
    pub ended: Vec<(LeaseId, LeaseEnd)>,
    /// It was told to drain before.
    #[serde(default)]
    pub draining: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSlot {
    pub index: GpuIndex,
    pub gpu_type: GpuType,
    pub mem_mib: u64,
    /// Why it can't be lent, where it can't.
    pub blocked: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LiveLease {
    pub lease: LeaseId,
    pub kernel: KernelId,
    pub handover: Handover,
}

/// What the plugin confirmed, and where Slurm shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    pub epoch: Epoch,
    pub pilot: JobId,
    /// The lease's step in the pilot: `squeue -s` and `sacct` show it.
    pub step: u32,
    pub devices: Vec<Device>,
    /// The cores lent, as a Linux cpu list ("2-5,8"); empty where the site doesn't constrain cores.
    pub cores: String,
    pub at: Timestamp,
}

/// A device file that was handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub index: GpuIndex,
    pub path: PathBuf,
    pub major: u32,
    pub minor: u32,
}

/// How a lease ended on its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseEnd {
    pub cause: EndCause,
    /// The take-back was confirmed: no process on the node holds the device.
    pub clean: bool,
    /// Processes that had to be ended for it.
    pub ended_pids: Vec<u32>,
    pub at: Timestamp,
    /// One sentence for the user, empty where the end was ordinary.
    pub detail: String,
}

/// Orders to an agent. It refuses those of a lower term than it has seen.
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
    /// `hopd` has the end in its books: the agent may forget it.
    EndAcknowledged {
        term: Term,
        lease: LeaseId,
    },
    /// Start no more leases; exit (ending the pilot) when the last one is over.
    Drain {
        term: Term,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartLease {
    pub term: Term,
    pub lease: LeaseId,
    pub user: UserName,
    pub kernel: KernelId,
    pub cell: CellId,
    pub executor: SeatStep,
    pub gpus: u16,
    pub gpu_type: Option<GpuType>,
    pub cpus: u16,
    /// The name of the Slurm step: user, kernel and first cell.
    pub step_name: String,
}

/// What a replica or a front is told unasked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    Queued {
        kernel: KernelId,
        cell: CellId,
        position: u32,
        reason: String,
        estimate: Option<Span>,
    },
    Granted {
        kernel: KernelId,
        cell: CellId,
        grant: Grant,
    },
    Refused {
        kernel: KernelId,
        cell: CellId,
        reason: String,
    },
    /// A lease that the kernel holds is over (or is gone already: `grace` zero). Its devices are taken back when the
    /// kernel answers with [`Request::ReleaseLease`], or after `grace`.
    Revoked {
        kernel: KernelId,
        lease: LeaseId,
        cause: EndCause,
        reason: String,
        grace: Span,
    },
    /// Others wait for what this cell runs on, and it has run for long: it should stand still and leave its GPUs, if it
    /// can. Answered by [`Request::CellParked`] or [`Request::ParkRefused`]; nothing is taken from it meanwhile. Told
    /// only to the replica that runs it.
    Park {
        kernel: KernelId,
        lease: LeaseId,
        cell: CellId,
        reason: String,
    },
    /// Somebody with the right to do so ended this kernel.
    Close { kernel: KernelId, reason: String },
}

/// What a cell runs with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Grant {
    pub lease: LeaseId,
    pub node: NodeName,
    pub handover: Handover,
    /// From the submission to the grant.
    pub waited: Span,
    /// It lay there already from an earlier cell.
    pub lingering: bool,
}

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
    /// Also the cells below each lease.
    pub cells: bool,
}

/// One lease (`cell` none), or one cell that a lease served (`cell` some). Times in microseconds since the epoch.
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
    /// RUNNING, LINGERING, COMPLETED, CANCELLED, FAILED, NODE_FAIL, PREEMPTED: Slurm's words where it has one.
    pub state: String,
    pub submit: Timestamp,
    pub start: Option<Timestamp>,
    pub end: Option<Timestamp>,
    pub wait: Span,
    /// Held time of the lease, or run time of the cell.
    pub held: Span,
    /// Time that cells ran within it, and time that it lingered.
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
    /// Cells of the caller's that are not there yet, at most [`EXPECT_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expect>,
}

/// The most cells that one query may ask the wait of.
pub const EXPECT_MAX: usize = 16;

/// A cell that may be submitted later.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Expect {
    /// The kernel that it would come from; none: a new one.
    pub kernel: Option<KernelId>,
    pub pool: Option<PoolName>,
    /// By what a new kernel would be placed.
    pub default_need: Need,
    pub need: Need,
    pub class: Class,
}

/// One waiting cell or one lease in use.
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
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InfoReport {
    pub version: String,
    pub term: Term,
    pub started: Timestamp,
    pub nodes: Vec<NodeInfo>,
    pub kernels: u32,
    pub waiting: u32,
    /// What keeps pools from being lent or `hopd` from its work, whole sentences.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// One node's pilot and what of it is lent.
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
    /// For how many seconds cells of a class run undisturbed there; a class that isn't among them runs to its end.
    #[serde(default)]
    pub quantum: Vec<(Class, u32)>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Explanation {
    pub kernel: KernelId,
    pub cell: Option<CellId>,
    /// Whole sentences, the most important first.
    pub sentences: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "target", rename_all = "kebab-case")]
pub enum CancelTarget {
    Lease { lease: LeaseId },
    Cell { kernel: KernelId, cell: CellId },
    Kernel { kernel: KernelId },
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
            Response::Placement(Placement { seats: vec![] }),
            Response::Event(Event::Close {
                kernel: kernel(),
                reason: "r".into(),
            }),
            Response::Order(Order::Drain { term: Term(1) }),
            Response::Acct { rows: vec![] },
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
            Response::Explanation(Explanation {
                kernel: kernel(),
                cell: None,
                sentences: vec![],
            }),
            Response::Refused(Refusal::Version { server: 1, client: 2 }),
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
