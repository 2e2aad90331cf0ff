//! What the core knows. Private: everything outside speaks by names, everything inside by dense indices.

use crate::config::PoolConfig;
use crate::id::{
    AccountName, CellId, GpuIndex, GpuType, Incarnation, JobId, KernelId, LeaseId, NodeName, UserName,
};
use crate::input::PoolOffers;
use crate::lease::EndCause;
use crate::need::{Class, Need};
use crate::predict::Habit;
use crate::time::{Span, Timestamp};
use std::collections::BTreeSet;

/// A place in the queue; the least goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// 0: has waited so long that only age counts; 2: has run already and was parked.
    pub band: u8,
    pub account: i16,
    pub user: i16,
    pub class: Class,
    /// By when it must start to be done by its deadline; the end of time where it has none.
    pub latest: Timestamp,
    pub submitted: Timestamp,
    pub seq: u64,
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub config: PoolConfig,
    pub queue: BTreeSet<(Rank, u32)>,
    pub pilots: BTreeSet<u32>,
    pub nodes: Vec<u32>,
    /// GPUs of live leases.
    pub held: u32,
    /// GPUs of cells that run.
    pub running: u32,
    /// How long submission to first word takes, as seen: by burst partition, and on the pool's own nodes.
    pub boots: Vec<(Option<String>, Habit)>,
    pub moves: Habit,
    /// All its kernels' think times and run times: what stands in for a kernel without a past.
    pub think: Habit,
    /// The think times by how many cells came before since the kernel was last away for long.
    pub thinks: Vec<Habit>,
    pub runs: Habit,
    /// GPUs that the kernels with a replica could ask for.
    pub demand: u32,
    /// How much kernels of each size use of what they could ask for.
    pub loads: Vec<Load>,
    /// When it is looked next whether pilots should be started ahead of need.
    pub foreseeing: Option<Timestamp>,
    /// When GPUs of it were last taken, or gone, or asked for by somebody new.
    pub stirred: Timestamp,
    /// What its nodes could ever have; none: not known yet.
    pub offers: Option<PoolOffers>,
}

/// The kernels of one size: GPU-seconds that they used of those that they were there to ask for.
#[derive(Debug)]
pub(crate) struct Load {
    pub gpus: u16,
    pub kernels: u32,
    pub since: Timestamp,
    pub open: f64,
    pub busy: f64,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub name: NodeName,
    pub pool: u32,
    pub rack: String,
    /// GPUs, cores as known from Slurm or from its pilots.
    pub gpus: u16,
    pub gpu_type: GpuType,
    pub gpu_mem_mib: u64,
    pub down: bool,
    /// The burst partition that it is in; none: the pool's own.
    pub burst: Option<String>,
    pub pilots: Vec<u32>,
    pub queue: BTreeSet<(Rank, u32)>,
    /// GPUs that the replicas placed here could ask for.
    pub subscribed: u32,
    pub replicas: u32,
    /// The kernels whose last cell ran here, or whose first is expected to.
    pub homes: BTreeSet<u32>,
    /// The kernels with a replica here.
    pub sitting: BTreeSet<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PilotState {
    Up,
    /// No new leases.
    Draining,
    /// Its agent is away since then. `draining`: what it was before.
    Silent {
        since: Timestamp,
        draining: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub index: GpuIndex,
    pub blocked: Option<String>,
    pub lease: Option<LeaseId>,
}

/// The GPUs of one type in a pilot: what Slurm can tell apart.
#[derive(Debug)]
pub(crate) struct Group {
    pub gpu_type: GpuType,
    pub mem_mib: u64,
    pub slots: Vec<Slot>,
    /// GPUs of live leases, including those whose devices are not known yet.
    pub used: u16,
}

impl Group {
    pub(crate) fn lendable(&self) -> u16 {
        self.slots
            .iter()
            .filter(|s| s.blocked.is_none() || s.lease.is_some())
            .count() as u16
    }

    pub(crate) fn free(&self) -> u16 {
        self.lendable().saturating_sub(self.used)
    }

    pub(crate) fn fits(&self, need: &Need) -> bool {
        need.gpu_type.as_ref().is_none_or(|t| *t == self.gpu_type) && self.mem_mib >= need.gpu_mem_mib
    }
}

#[derive(Debug)]
pub(crate) struct Pilot {
    pub job: JobId,
    pub node: u32,
    pub pool: u32,
    pub state: PilotState,
    pub groups: Vec<Group>,
    pub cpus: u16,
    pub cpus_used: u16,
    pub ends: Option<Timestamp>,
    pub steps_left: u32,
    /// The burst partition that it is in.
    pub partition: Option<String>,
    pub leases: Vec<LeaseId>,
    /// Leases that live there and that nobody knows any longer: told to end, their GPUs blocked until they have.
    pub strangers: Vec<(LeaseId, Vec<GpuIndex>)>,
    /// The cell for which this pilot's GPUs are held back.
    pub reserved: Option<u32>,
    /// Since when no lease has been here.
    pub idle_since: Option<Timestamp>,
    /// When it is given back if it stays idle.
    pub keep_until: Timestamp,
}

impl Pilot {
    pub(crate) fn free_gpus(&self) -> u16 {
        self.groups.iter().map(Group::free).sum()
    }

    pub(crate) fn gpus(&self) -> u16 {
        self.groups.iter().map(|g| g.slots.len() as u16).sum()
    }

    pub(crate) fn used_gpus(&self) -> u16 {
        self.groups.iter().map(|g| g.used).sum()
    }

    pub(crate) fn cpus_free(&self) -> u16 {
        self.cpus.saturating_sub(self.cpus_used)
    }
}

/// A pilot that was asked for and isn't up.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub pool: u32,
    pub partition: Option<String>,
    pub node: Option<u32>,
    pub gpus: u16,
    pub job: Option<JobId>,
    pub at: Timestamp,
    /// The waiting cell that it was started for, by index and sequence number.
    pub cell: Option<(u32, u64)>,
}

#[derive(Debug)]
pub(crate) struct User {
    pub name: UserName,
    pub usage: Usage,
    pub held: u32,
    /// GPUs held by pool, for limits of users within pools.
    pub held_in: Vec<(u32, u32)>,
    pub cells: BTreeSet<u32>,
}

#[derive(Debug)]
pub(crate) struct Account {
    pub name: Option<AccountName>,
    pub usage: Usage,
    pub held: u32,
}

/// GPU-seconds, decaying. Kept as if all had been used at the origin, so that the order of two users changes only
/// when one of them uses something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub inflated: f64,
    pub weight: f64,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            inflated: 0.0,
            weight: 1.0,
        }
    }
}

impl Usage {
    /// Half-octaves of usage over share: coarse, so that small change doesn't reorder the queue.
    pub(crate) fn level(&self) -> i16 {
        if self.inflated <= 0.0 {
            return i16::MIN;
        }
        (2.0 * (self.inflated / self.weight).log2()).floor() as i16
    }
}

#[derive(Debug)]
pub(crate) struct Seat {
    pub user: u32,
    pub node: u32,
    pub mem_mib: u64,
    pub mem_used: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replica {
    pub incarnation: Incarnation,
    pub node: u32,
    pub seat: JobId,
}

/// A replica that was placed and isn't up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    pub incarnation: Incarnation,
    pub node: u32,
    pub at: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Kernel {
    pub id: KernelId,
    pub user: u32,
    pub account: u32,
    pub pool: u32,
    pub name: String,
    pub default_need: Need,
    pub mem_mib: u64,
    pub cpus: u16,
    pub replicas: Vec<Replica>,
    pub planned: Vec<Planned>,
    pub next_incarnation: u32,
    pub last_executor: Option<Incarnation>,
    pub last_node: Option<u32>,
    /// The only replica that may run GPU cells, while its process can't let go of its device.
    pub bound: Option<Incarnation>,
    /// The replica that has a waiting cell of it parked.
    pub parked: Option<Incarnation>,
    /// Closed for good: it goes when its last lease is over.
    pub closed: bool,
    pub leases: Vec<LeaseId>,
    pub cells: Vec<u32>,
    pub last_end: Option<Timestamp>,
    /// Its last sign of life: a cell's end, or its opening.
    pub quiet_since: Timestamp,
    /// When a replica of it was last moved.
    pub moved: Timestamp,
    /// GPUs of its last cell, or of those expected.
    pub last_gpus: u16,
    /// What its cells asked for lately: GPUs and weight.
    pub sizes: Vec<(u16, f32)>,
    pub home: Option<u32>,
    /// The node that it was given for its own when it was placed: where a pilot is started for it.
    pub base: Option<u32>,
    pub think: Habit,
    /// Cells since it was last away for long.
    pub streak: u32,
    pub runs: Habit,
    /// Run times of its cells by print, the latest last.
    pub prints: Vec<(u64, Habit)>,
    pub migrating: Option<Moving>,
    /// Since when it has had no replica.
    pub alone_since: Option<Timestamp>,
}

/// A replica on its way to another node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moving {
    pub victim: Incarnation,
    pub incarnation: Incarnation,
    pub to: u32,
    pub since: Timestamp,
}

/// A cell that waits.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    pub kernel: u32,
    pub id: CellId,
    pub need: Need,
    /// Cores of its lease.
    pub cpus: u16,
    pub class: Class,
    pub print: u64,
    pub submitted: Timestamp,
    pub seq: u64,
    pub failures: u8,
    pub rank: Rank,
    /// The pilot that is held back for it.
    pub reserved: Option<u32>,
    /// What was told last: position and a hash-free copy of the reason's kind.
    pub told: Option<(u32, std::mem::Discriminant<crate::reason::Reason>)>,
    /// The limit that holds it up.
    pub limited: Option<Scope>,
    /// It was parked in its middle: the replica that has it, and how long it has run.
    pub parked: Option<(Incarnation, Span)>,
}

impl Cell {
    /// It begins, or goes on.
    pub(crate) fn running(&self, since: Timestamp) -> Running {
        Running {
            cell: self.id.clone(),
            need: self.need.clone(),
            class: self.class,
            submitted: self.submitted,
            since,
            print: self.print,
            ran: self.parked.map_or(Span::ZERO, |(_, ran)| ran),
        }
    }
}

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    User(u32),
    Account(u32),
    Pool(u32),
    UserInPool(u32, u32),
    /// A limit on associations, by its index, and the user or account that it counts there.
    Members(u32, u32),
}

/// A cell that runs.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub cell: CellId,
    pub need: Need,
    pub class: Class,
    pub submitted: Timestamp,
    pub since: Timestamp,
    pub print: u64,
    /// How long it ran before it was parked.
    pub ran: Span,
}

/// Whether the cell on a lease was asked to park.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ParkAsk {
    #[default]
    No,
    Asked,
    /// It can't.
    Refused,
}

/// Where a lease is in its life. Cells live in exactly one place: the queue, or the state of one lease.
#[derive(Debug, Clone)]
pub(crate) enum LeaseState {
    /// Ordered, not confirmed.
    Starting {
        cell: Box<Cell>,
    },
    Running(Running),
    Lingering {
        since: Timestamp,
        until: Timestamp,
    },
    /// Over for its kernel, not confirmed by its node.
    Ending {
        cause: EndCause,
        since: Timestamp,
        /// Its kernel has until then to get off the GPUs and say so; none: the take-back is ordered.
        leaves_by: Option<Timestamp>,
    },
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub id: LeaseId,
    pub kernel: u32,
    pub user: u32,
    pub account: u32,
    pub pool: u32,
    pub pilot: u32,
    /// Index into the pilot's groups; none for cores alone.
    pub group: Option<usize>,
    pub gpus: u16,
    pub gpu_type: Option<GpuType>,
    pub cpus: u16,
    pub executor: Incarnation,
    pub devices: Vec<GpuIndex>,
    pub state: LeaseState,
    pub submit: Timestamp,
    pub ordered: Timestamp,
    /// When it is given up if it has not started.
    pub start_by: Timestamp,
    pub started: Option<Timestamp>,
    pub run: Span,
    pub linger: Span,
    pub wait: Span,
    pub cells: u32,
    /// Up to when its GPU-seconds are in its user's usage.
    pub charged: Timestamp,
    /// When its cell is expected to end, as last reckoned: holds until then.
    pub expected: std::cell::Cell<Timestamp>,
    pub asked: ParkAsk,
}

/// Something that becomes due. Stale ones are recognised by what they name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Linger(LeaseId),
    StartTimeout(LeaseId),
    TakeBack(LeaseId),
    Quantum(LeaseId),
    Silent(JobId),
    Rotate(JobId),
    /// A waiting cell, by index and sequence number.
    Reserve(u32, u64),
    Age(u32, u64),
    Report(u32, u64),
    Charge,
    Scale(u32),
    Foresee(u32),
    Idle(JobId),
    Moving(u32, Incarnation),
    Planned(u32, Incarnation),
    /// A kernel without replicas.
    Alone(u32),
}
