//! What the core knows. Private: everything outside speaks by names, everything inside by dense indices.

mod failed_moves;
mod overtaking;
mod shape;
mod standing;
mod tickets;

pub(crate) use failed_moves::FailedMoves;
pub(crate) use overtaking::{Arena, Overtaking};
pub(crate) use shape::{Shape, Size};
pub(crate) use standing::{Failing, Shunned, Standing};
pub(crate) use tickets::{Ticket, Tickets, Waiting};

use crate::config::{Limit, PoolConfig};
use crate::index::{Idx, Places, Slab, Table};
use crate::input::{PoolOffers, Room};
use crate::predict::Habit;
use crate::price::Price;
use crate::usage::Usage;
use hop_words::id::{
    AccountName, CellId, GpuIndex, GpuType, Incarnation, JobId, KernelId, LeaseId, NodeName, PoolName,
    Tenure, UserName,
};
use hop_words::lease::{EndCause, ParkAsk};
use hop_words::need::{Class, Need};
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Resources to lend, and where they come from.
#[derive(Debug, Default)]
pub(crate) struct Supply {
    pub pools: Table<Pool>,
    pub nodes: Table<Node>,
    pub pilots: Slab<Pilot>,
    pub tickets: Tickets,
    pub next_ticket: u64,
    /// Nodes held for a cell.
    pub held: Places<Node>,
    /// Nodes where a pilot has free GPUs.
    pub free: Places<Node>,
    /// The nodes among them without a hold.
    pub open: Places<Node>,
    /// slurmctld doesn't answer: no step starts meanwhile.
    pub slurm_away: bool,
    // Looked up, never iterated: their order is not deterministic.
    pub pool_by_name: HashMap<PoolName, Idx<Pool>>,
    pub node_by_name: HashMap<NodeName, Idx<Node>>,
    pub pilot_by_job: HashMap<JobId, Idx<Pilot>>,
}

/// Users, their accounts, and the limits on them.
#[derive(Debug)]
pub(crate) struct People {
    pub users: Table<User>,
    pub accounts: Table<Account>,
    pub limits: Table<Limit>,
    /// GPUs in people's own Slurm jobs.
    pub elsewhere: Vec<(UserName, AccountName, u32)>,
    /// Cells held up by a limit, by what the limit counts.
    pub limited: BTreeMap<Scope, BTreeSet<Idx<Cell>>>,
    /// What limits on associations count.
    pub members: Members,
    /// What each user has used in each account, for limits on associations.
    pub used_in: BTreeMap<Association, Usage>,
    /// The mean weights of users and accounts in fair share.
    pub user_weight: f64,
    pub account_weight: f64,
    // Looked up, never iterated.
    pub user_by_name: HashMap<UserName, Idx<User>>,
    pub account_by_name: HashMap<Option<AccountName>, Idx<Account>>,
}

impl Default for People {
    fn default() -> Self {
        Self {
            users: Table::default(),
            accounts: Table::default(),
            limits: Table::default(),
            elsewhere: Vec::new(),
            limited: BTreeMap::new(),
            members: Members::default(),
            used_in: BTreeMap::new(),
            user_weight: 1.0,
            account_weight: 1.0,
            user_by_name: HashMap::new(),
            account_by_name: HashMap::new(),
        }
    }
}

/// The users' work: kernels, waiting cells, and leases that serve them.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub kernels: Slab<Kernel>,
    pub cells: Slab<Cell>,
    pub leases: BTreeMap<LeaseId, Lease>,
    pub seats: BTreeMap<JobId, Seat>,
    pub next_lease: u64,
    pub next_seq: u64,
    /// Nodes whose reservations or ranks have changed: cells waiting there may be able to start now.
    pub stale: BTreeSet<Idx<Node>>,
    /// Number of reservations given up so far. Each may let a cell start, and many are given up without an output.
    pub unreserved: u64,
    /// Nodes after the end of a hold or, beside a hold, of a lease: cells waiting there may need a pilot.
    pub demanding: BTreeSet<Idx<Node>>,
    /// Pools whose due cells have changed: the holds for these cells are looked at again.
    pub unheld: BTreeSet<Idx<Pool>>,
    /// [`Timer::Renew`] runs.
    pub renewing: bool,
    /// Counts of overtaken cells, by the nodes for which the cells compete.
    pub arenas: BTreeMap<Arena, Overtaking>,
    // Looked up, never iterated.
    pub kernel_by_id: HashMap<KernelId, Idx<Kernel>>,
}

/// An association of Slurm's: a user in an account.
pub(crate) type Association = (Idx<User>, Idx<Account>);

/// Whose usage counts for a limit's GPU-minutes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct UsedBy {
    pub associations: BTreeSet<Association>,
    pub accounts: BTreeSet<Idx<Account>>,
}

/// Limits on Slurm's associations, made quick to look up.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Members {
    /// Limits on a user in an account. Looked up, never iterated.
    pub binding: HashMap<Association, Vec<Idx<Limit>>>,
    /// GPUs held, by the limit and its members.
    pub held: BTreeMap<(Idx<Limit>, Member), u32>,
    /// Associations and accounts whose usage counts for a limit's GPU-minutes.
    pub used_by: BTreeMap<Idx<Limit>, UsedBy>,
}

impl Members {
    pub(crate) fn binding(&self, user: Idx<User>, account: Idx<Account>) -> &[Idx<Limit>] {
        self.binding.get(&(user, account)).map_or(&[], Vec::as_slice)
    }
}

/// The first thing that orders the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Band {
    /// The cell has waited for long, or many later ones of its shape have started: only age counts.
    Due,
    Ordinary,
    /// The cell has run already and was parked for others.
    Parked,
}

/// A place in the queue; the least goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub band: Band,
    /// Past service of its kernel, user and account, in steps of four times as much.
    pub service: i16,
    pub class: Class,
    /// Latest start for the deadline; the end of time if the cell has no deadline.
    pub latest: Timestamp,
    /// The same service in finer steps.
    pub fine: i16,
    pub submitted: Timestamp,
    pub seq: u64,
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub config: PoolConfig,
    pub queue: BTreeSet<(Rank, Idx<Cell>)>,
    /// The same cells by what they need.
    pub shapes: BTreeMap<Shape, BTreeSet<(Rank, Idx<Cell>)>>,
    pub pilots: BTreeSet<Idx<Pilot>>,
    pub nodes: Vec<Idx<Node>>,
    /// GPUs of live leases.
    pub held: u32,
    /// GPUs of cells that run.
    pub running: u32,
    /// How long submission to first word takes, as seen: by burst partition, and on the pool's own nodes.
    pub boots: Vec<(Option<String>, Habit)>,
    pub moves: Habit,
    /// All its kernels' think times and run times: the estimate for a kernel without a past.
    pub think: Habit,
    /// The think times by how many cells came before since the kernel was last away for long.
    pub thinks: Vec<Habit>,
    /// Present price for sparing a cell the wait for a pilot. `None` before the first cell.
    pub price: Option<Price>,
    pub runs: Habit,
    /// The same run times over thousands of cells: the rare long one counts for when a cell is due.
    pub long_runs: Habit,
    /// Most GPUs that the kernels with a replica could ask for.
    pub demand: u32,
    /// Use of their GPUs by kernels of each size.
    pub loads: Vec<Load>,
    /// Time of the next look whether pilots should be started ahead of need.
    pub foreseeing: Option<Timestamp>,
    /// Last time that GPUs of the pool were taken or given up, or that a new kernel asked for some.
    pub stirred: Timestamp,
    /// When crowded nodes were last looked for.
    pub looked_apart: Option<Timestamp>,
    /// The time of the last count, the GPUs of the pool's pilots, and the most GPUs that all kernels could ask for.
    /// `None` means that the pilots have changed since.
    pub balance: Option<(Timestamp, u32, u32)>,
    /// Most that the pool's nodes could ever offer; `None` means unknown yet.
    pub offers: Option<PoolOffers>,
    pub lanes: Lanes,
    pub tally: Tally,
    /// Of the due cells that may run anywhere in the pool, the first of each shape: nodes are held for them.
    pub holders: Vec<Idx<Cell>>,
    /// The nodes without a hold.
    pub unheld: Places<Node>,
    /// The cells with holds on the other nodes, and the number of nodes of each.
    pub held_for: BTreeMap<Idx<Cell>, usize>,
}

/// Pilots and nodes of one pool by their free GPUs: a place is found without a look at each.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// Pilots that lend, by their free GPUs.
    pub free: BTreeSet<(u16, Idx<Pilot>)>,
    /// Lending pilots, by their GPUs that are free or held by lingering leases.
    pub idle: BTreeSet<(u16, Idx<Pilot>)>,
    /// Nodes in service, by the GPUs outside all present and coming pilots.
    pub spare: BTreeSet<(u16, Idx<Node>)>,
}

/// A pilot's numbers of GPUs in [`Lanes`], and further facts in frequent use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed {
    pub free: u16,
    pub idle: u16,
    /// A lease lingers there.
    pub lingers: bool,
}

/// Nodes held for a due cell.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub since: Timestamp,
    pub nodes: Places<Node>,
}

/// Kernels of one size: GPU-seconds used, and GPU-seconds of their presence.
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
    pub pool: Idx<Pool>,
    /// GPUs, cores as known from Slurm or from its pilots.
    pub gpus: u16,
    /// Slurm has told the number of GPUs. Until then the node has at least as many as a pilot of it had.
    pub sized: bool,
    pub gpu_type: GpuType,
    /// Types that Slurm has refused to pilots on the node.
    pub lacks: BTreeSet<GpuType>,
    pub gpu_mem_mib: u64,
    pub standing: Standing,
    /// The node's burst partition; `None` means the pool's own.
    pub burst: Option<String>,
    pub pilots: Vec<Idx<Pilot>>,
    pub queue: BTreeSet<(Rank, Idx<Cell>)>,
    /// Consecutive failures of pilots on this node, since the last success.
    pub failing: Option<Failing>,
    pub shunned: Option<Shunned>,
    pub room: Room,
    /// The due cell with a hold on the node.
    pub held_for: Option<Idx<Cell>>,
    /// GPUs that no pilot has or will have, as [`Lanes`] lists them.
    pub listed: u16,
    /// Most GPUs that the replicas placed here could ask for.
    pub subscribed: u32,
    pub replicas: u32,
    /// The kernels whose last cell ran here, or whose first is expected to.
    pub homes: BTreeSet<Idx<Kernel>>,
    /// How many of them there are of each default need with GPUs.
    pub home_sizes: Vec<(u16, u32)>,
    /// The kernels with a replica here.
    pub sitting: BTreeSet<Idx<Kernel>>,
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

/// GPUs of one type in a pilot, as Slurm tells types apart.
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

    /// Whether its GPUs would be enough, free or not.
    pub(crate) fn could_serve(&self, need: &Need) -> bool {
        self.fits(need) && self.slots.len() as u16 >= need.gpus
    }

    pub(crate) fn fits(&self, need: &Need) -> bool {
        need.gpu_type.as_ref().is_none_or(|t| *t == self.gpu_type) && self.mem_mib >= need.gpu_mem_mib
    }
}

#[derive(Debug)]
pub(crate) struct Pilot {
    pub job: JobId,
    pub node: Idx<Node>,
    pub pool: Idx<Pool>,
    pub state: PilotState,
    pub groups: Vec<Group>,
    pub cpus: u16,
    pub cpus_used: u16,
    pub ends: Option<Timestamp>,
    pub steps_left: u32,
    /// The burst partition that it is in.
    pub partition: Option<String>,
    pub leases: Vec<LeaseId>,
    /// Unknown leases alive in the pilot: their end was ordered, and their GPUs are blocked until then.
    pub strangers: Vec<(LeaseId, Vec<GpuIndex>)>,
    /// Cells with reserved GPUs of this pilot: the GPUs are being freed, or the cell's kernel moves here.
    pub reserved: Vec<Idx<Cell>>,
    /// The pilot's place in [`Lanes`]; `None` means not listed.
    pub listed: Option<Listed>,
    /// The pilot's GPUs in the pool's [`Tally`]; `None` means not counted.
    pub tallied: Option<u16>,
    /// Since when no lease has been here.
    pub idle_since: Option<Timestamp>,
    /// Time for giving the pilot back, if still idle then.
    pub keep_until: Timestamp,
}

impl Pilot {
    pub(crate) fn free_gpus(&self) -> u16 {
        self.groups.iter().map(Group::free).sum()
    }

    pub(crate) fn gpus(&self) -> u16 {
        self.groups.iter().map(|g| g.slots.len() as u16).sum()
    }

    /// Its GPUs that are not blocked.
    pub(crate) fn lendable(&self) -> u16 {
        self.groups.iter().map(Group::lendable).sum()
    }

    pub(crate) fn used_gpus(&self) -> u16 {
        self.groups.iter().map(|g| g.used).sum()
    }

    /// Whether the pilot lends nothing and no cell has GPUs reserved on it.
    pub(crate) fn is_idle(&self) -> bool {
        self.state == PilotState::Up && self.leases.is_empty() && self.reserved.is_empty()
    }

    /// Cores without a lease, and without the agent's step on a blocked GPU.
    pub(crate) fn cpus_free(&self) -> u16 {
        u16::saturating_sub(self.cpus, self.cpus_used + self.gpus() - self.lendable())
    }

    /// Groups for a lease with this need. `None` among them is for cores alone.
    pub(crate) fn groups_for(&self, need: &Need) -> Vec<Option<usize>> {
        if need.gpus == 0 {
            return vec![None];
        }
        let fits = |g: &usize| self.groups[*g].fits(need);
        (0..self.groups.len()).filter(fits).map(Some).collect()
    }

    /// The pilot's groups of GPUs that would do for this need.
    pub(crate) fn fitting<'a>(&'a self, need: &'a Need) -> impl Iterator<Item = &'a Group> {
        self.groups.iter().filter(|g| g.fits(need))
    }
}

#[derive(Debug)]
pub(crate) struct User {
    pub name: UserName,
    pub usage: Usage,
    pub held: u32,
    /// GPUs held by pool, for limits of users within pools.
    pub held_in: Vec<(Idx<Pool>, u32)>,
    pub leases: BTreeSet<LeaseId>,
    pub cells: BTreeSet<Idx<Cell>>,
    pub seats: BTreeSet<JobId>,
}

#[derive(Debug)]
pub(crate) struct Account {
    pub name: Option<AccountName>,
    pub usage: Usage,
    pub held: u32,
}

#[derive(Debug)]
pub(crate) struct Seat {
    pub user: Idx<User>,
    /// By name: the seat may report itself before anybody has named its node.
    pub node: NodeName,
    pub mem_mib: u64,
    /// Memory of the replicas there. A sum of users' figures may exceed 64 bits.
    pub mem_used: u128,
    /// Its time limit comes near.
    pub ends: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replica {
    pub incarnation: Incarnation,
    pub node: Idx<Node>,
    pub seat: JobId,
    /// The tenure of its election as executor. `None` means not elected.
    pub executes: Option<Tenure>,
    /// Its connection is broken: it can't be asked for anything.
    pub away: bool,
}

/// A placed replica, not up yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    pub incarnation: Incarnation,
    pub node: Idx<Node>,
    pub at: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Kernel {
    pub id: KernelId,
    pub user: Idx<User>,
    pub account: Idx<Account>,
    pub pool: Idx<Pool>,
    pub name: String,
    pub default_need: Need,
    pub mem_mib: u64,
    pub cpus: u16,
    pub replicas: Vec<Replica>,
    /// Members of the kernel's log without a process: an election makes a member the executor.
    pub standbys: Vec<Replica>,
    pub planned: Vec<Planned>,
    pub next_incarnation: u32,
    pub last_executor: Option<Incarnation>,
    pub last_node: Option<Idx<Node>>,
    /// The only replica allowed to run GPU cells, while its process can't let go of its device.
    pub bound: Option<Incarnation>,
    /// The replica with a parked cell in wait.
    pub parked: Option<Incarnation>,
    /// Closed for good: the kernel is forgotten after its last lease.
    pub closed: bool,
    pub leases: Vec<LeaseId>,
    pub cells: Vec<Idx<Cell>>,
    /// Cells that waited before the driver's restart and haven't been asked for since, and since when they wait.
    pub waited: Vec<(CellId, Timestamp)>,
    pub last_end: Option<Timestamp>,
    /// Last sign of life: a cell's end, or the kernel's opening.
    pub quiet_since: Timestamp,
    /// Time of the kernel's last move.
    pub moved: Timestamp,
    /// How long the kernel's last move took, or how long it was awaited in vain. `None` means no move so far.
    pub move_took: Option<Span>,
    pub failed_moves: FailedMoves,
    /// GPU-seconds of the kernel's cells, decaying.
    pub usage: Usage,
    /// GPUs of the last cell, or the expected number before any.
    pub last_gpus: u16,
    /// Recent needs of the kernel's cells: GPUs and weight.
    pub sizes: Vec<(u16, f32)>,
    pub home: Option<Idx<Node>>,
    /// Own node, given to the kernel at its placement. The kernel's pilots are started there.
    pub base: Option<Idx<Node>>,
    pub think: Habit,
    /// Cells since the kernel was last away for long.
    pub streak: u32,
    pub runs: Habit,
    /// Run times of the kernel's cells by print, the latest last.
    pub prints: Vec<(u64, Habit)>,
    pub migrating: Option<Moving>,
    /// The reason against moving the kernel by policy; `None` means movable.
    pub fixed: Option<String>,
    /// Since when the kernel has had no replica.
    pub alone_since: Option<Timestamp>,
    /// Seats of the kernel's replicas and standbys, by the last report. They outlast the loss of these.
    pub seats: Vec<JobId>,
    /// The kernel's part in a pool's [`Tally`].
    pub tallied: Option<Part>,
}

impl Kernel {
    /// `true` without plans, leases and waiting cells.
    pub(crate) fn is_empty(&self) -> bool {
        self.planned.is_empty() && self.leases.is_empty() && self.cells.is_empty()
    }
}

/// Sums and short lists over a pool, kept as its kernels and pilots change (`tally.rs`).
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Pilots on the pool's own nodes that lend, or will once their agent is back.
    pub pilots: u32,
    /// Their GPUs.
    pub gpus: u32,
    /// GPUs that the kernels with a replica could ask for at once.
    pub asked: u32,
    /// GPUs that the kernels expected on a node are likely to ask for at once, by node.
    pub asked_on: BTreeMap<Idx<Node>, u32>,
    /// Kernels at home on another node than their own.
    pub away: BTreeSet<Idx<Kernel>>,
    /// Kernels with a place that may not be moved elsewhere.
    pub stuck: BTreeSet<Idx<Kernel>>,
}

/// A kernel's part in the [`Tally`] of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub pool: Idx<Pool>,
    pub asked: u32,
    /// The node where the kernel's next cell is expected, and the cell's likely number of GPUs.
    pub asks: Option<(Idx<Node>, u16)>,
    pub away: bool,
    pub stuck: bool,
}

/// A replica on its way to another node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moving {
    pub victim: Incarnation,
    pub incarnation: Incarnation,
    pub to: Idx<Node>,
    pub since: Timestamp,
    /// Time for giving the move up.
    pub until: Timestamp,
    /// The tenure of the executor that is to carry the move out.
    pub tenure: Option<Tenure>,
}

/// The last news to a waiting cell's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    pub position: u32,
    pub kind: std::mem::Discriminant<hop_words::reason::Reason>,
    /// GPUs for the cell that notebooks of the user's own hold.
    pub of_own: u16,
    /// When the cell was expected to start. `None` means unknown.
    pub starts: Option<Timestamp>,
    /// Until then nobody looks whether the expectation has changed.
    pub holds_until: Timestamp,
}

/// A cell that waits.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    pub kernel: Idx<Kernel>,
    pub id: CellId,
    pub need: Need,
    /// Cores of its lease.
    pub cpus: u16,
    pub class: Class,
    pub print: u64,
    /// Expected run at its next start: the mean, since cells behind it wait for a sum of runs.
    pub runs_for: Span,
    pub submitted: Timestamp,
    pub seq: u64,
    /// Number of failed leases for the cell.
    pub failures: u8,
    /// Pilots that failed to start a lease, and the end of the pause on each.
    pub failed_on: Vec<(JobId, Timestamp)>,
    /// Why the last lease failed.
    pub why_failed: String,
    pub vain: Vain,
    pub rank: Rank,
    /// Pilot with GPUs reserved for this cell.
    pub reserved: Option<Idx<Pilot>>,
    pub due: bool,
    /// Time of the next look whether the cell is due by its age. `None` before its wait has begun.
    pub due_at: Option<Timestamp>,
    /// Nodes held for this cell: no start on them may delay the cell. `None` unless the cell is due.
    pub hold: Option<Hold>,
    /// Arenas in which the cell competes.
    pub arenas: Vec<Arena>,
    pub(crate) told: Option<Told>,
    /// The limit against the cell's start.
    pub limited: Option<Scope>,
    /// Set for a cell parked in its middle: the cell's replica, and the run so far.
    pub parked: Option<(Incarnation, Span)>,
    /// The kernel has another executor now, and this executor must ask for the cell before this time. The cell keeps
    /// its place, and starts later: no replica would run the cell now.
    pub unasked: Option<Timestamp>,
}

/// Pilots that came up for a waiting cell in vain.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Vain {
    pub pilots: u32,
    /// Earliest time for the next pilot.
    pub next: Timestamp,
}

impl Cell {
    /// End of the pause on this pilot, after a failed lease of the cell.
    pub(crate) fn avoids(&self, pilot: JobId, now: Timestamp) -> Option<Timestamp> {
        let here = self
            .failed_on
            .iter()
            .find(|(job, until)| *job == pilot && *until > now);
        here.map(|(_, until)| *until)
    }

    /// The cell begins, or goes on.
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

/// The members of a limit that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Member {
    All,
    User(Idx<User>),
    Account(Idx<Account>),
}

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    User(Idx<User>),
    Account(Idx<Account>),
    Pool(Idx<Pool>),
    UserInPool(Idx<User>, Idx<Pool>),
    /// A limit on associations, by its index, and the user or account counted by the limit.
    Members(Idx<Limit>, Member),
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
    /// The cell's run before the park.
    pub ran: Span,
}

/// Stage of a lease. A cell is in exactly one place: the queue, or the state of one lease.
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
    /// Over for the kernel, not yet confirmed by the node.
    Ending {
        cause: EndCause,
        since: Timestamp,
        /// The kernel's deadline to leave the GPUs and report so. `None` means that the take-back is ordered.
        leaves_by: Option<Timestamp>,
    },
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub id: LeaseId,
    pub kernel: Idx<Kernel>,
    pub user: Idx<User>,
    pub account: Idx<Account>,
    pub pool: Idx<Pool>,
    pub pilot: Idx<Pilot>,
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
    /// Time for giving the lease up, if it has not started.
    pub start_by: Timestamp,
    pub started: Option<Timestamp>,
    pub run: Span,
    pub linger: Span,
    pub wait: Span,
    pub cells: u32,
    /// The lease started on a node held for a due cell, though its own cell comes after that cell.
    pub backfills: bool,
    /// The kernel can't let go of the GPUs, though no cell runs. `None` means no such news.
    pub holding: Option<Holding>,
    /// Expected end of the lease's cell, as last reckoned for a decision ([`crate::Core`]'s `decides`): believed until
    /// then.
    pub expected: std::cell::Cell<Timestamp>,
    /// The same for people, without guesses: the time of the reckoning, and the end.
    pub foreseen: std::cell::Cell<(Timestamp, Timestamp)>,
    pub asked: ParkAsk,
}

/// Why a kernel keeps GPUs between two cells, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holding {
    pub since: Timestamp,
    pub why: String,
}

impl Lease {
    /// Time since which no cell runs on the lease; `None` if a cell runs or the lease ends.
    pub(crate) fn lingers_since(&self) -> Option<Timestamp> {
        match self.state {
            LeaseState::Lingering { since, .. } => Some(since),
            LeaseState::Starting { .. } | LeaseState::Running(_) | LeaseState::Ending { .. } => None,
        }
    }

    /// GPUs of the lease in this group.
    pub(crate) fn gpus_in(&self, group: Option<usize>) -> u16 {
        if self.group == group { self.gpus } else { 0 }
    }
}

/// A timer. A stale timer names a thing of the past, and is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Linger(LeaseId),
    StartTimeout(LeaseId),
    TakeBack(LeaseId),
    Quantum(LeaseId),
    Silent(JobId),
    Rotate(JobId),
    /// A waiting cell, by index and sequence number.
    Due(Idx<Cell>, u64),
    Widen(Idx<Cell>, u64),
    Late(Idx<Cell>, u64),
    Report(Idx<Cell>, u64),
    /// Time to try pilots again after a cell's lease failed on them.
    Retry(Idx<Cell>, u64),
    Scale(Idx<Pool>),
    Foresee(Idx<Pool>),
    Idle(JobId),
    Moving(Idx<Kernel>, Incarnation),
    /// End of a pause after a failed move.
    MoveAgain(Idx<Kernel>),
    Planned(Idx<Kernel>, Incarnation),
    /// A kernel without replicas.
    Alone(Idx<Kernel>),
    /// A cell whose kernel's new executor has not asked for it.
    Unasked(Idx<Cell>, u64),
    Renew,
    /// A coming pilot that Slurm may not start.
    Stuck(u64),
}
