//! Answers to people and tools: why a cell waits, for how long, and what is lent to whom.
//!
//! Answers are typed items and rows: their wording is left to whoever shows them.

use crate::core::Core;
use crate::foretell::Basis;
use crate::index::Idx;
use crate::line::Line;
use crate::state::{Cell, Lease, LeaseState, Node, Pilot, PilotState};
use hop_words::explain::{Item, LeasePhase};
use hop_words::id::{
    AccountName, CellId, GpuIndex, GpuType, Incarnation, JobId, KernelId, LeaseId, NodeName, PoolName,
    UserName,
};
use hop_words::need::{Class, Need};
use hop_words::reason::Reason;
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// A waiting cell, for `hop queue`.
#[derive(Debug, Clone, PartialEq)]
pub struct CellView {
    pub kernel: KernelId,
    pub name: String,
    pub cell: CellId,
    pub user: UserName,
    pub pool: PoolName,
    pub need: Need,
    pub class: Class,
    pub submitted: Timestamp,
    pub position: u32,
    pub reason: Reason,
    pub estimate: Option<Span>,
    /// Run time of the cell before its park.
    pub parked: Option<Span>,
}

/// A live lease, for `hop queue` and `hop acct`.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseView {
    pub lease: LeaseId,
    pub kernel: KernelId,
    pub name: String,
    /// Cell starting or running on the lease.
    pub cell: Option<CellId>,
    /// This cell's need. `None` without such a cell.
    pub need: Option<Need>,
    pub user: UserName,
    pub account: Option<AccountName>,
    pub pool: PoolName,
    pub node: NodeName,
    pub pilot: JobId,
    pub executor: Incarnation,
    pub gpus: u16,
    pub devices: Vec<GpuIndex>,
    pub cpus: u16,
    /// STARTING, RUNNING, LINGERING, ENDING.
    pub state: &'static str,
    /// Time of the lease's change into this state.
    pub since: Timestamp,
    pub submit: Timestamp,
    pub started: Option<Timestamp>,
    pub run: Span,
    pub linger: Span,
    pub wait: Span,
    pub cells: u32,
    /// The kernel can't let go of its GPUs: time and reason of the news. `None` means no such news.
    pub held: Option<(Timestamp, String)>,
}

/// A pilot, for `hop info`.
#[derive(Debug, Clone, PartialEq)]
pub struct PilotView {
    pub pilot: JobId,
    pub node: NodeName,
    pub pool: PoolName,
    /// UP, DRAINING, SILENT.
    pub state: &'static str,
    pub gpus: u16,
    pub leased: u16,
    pub lingering: u16,
    pub blocked: Vec<GpuIndex>,
    pub gpu_types: Vec<GpuType>,
    pub cpus: u16,
    pub cpus_leased: u16,
    /// Reasons for which some of the pilot's GPUs can't be lent; empty if all can.
    pub reason: String,
}

/// Number of cells before a cell on a node, and the time until the cell is let through.
type Ahead = (u64, Span);

/// For each node, the line before each cell of its queue.
type Places = BTreeMap<Idx<Node>, BTreeMap<Idx<Cell>, Ahead>>;

impl Core {
    /// All waiting cells in the order of the queue.
    pub fn waiting(&self) -> Vec<CellView> {
        self.waiting_where(|_| true)
    }

    /// Waiting cells of these users in the order of the queue.
    pub fn waiting_where(&self, wanted: impl Fn(&UserName) -> bool) -> Vec<CellView> {
        let places = self.places();
        let queues = self.supply.pools.values().flat_map(|p| p.queue.iter());
        let cells = queues.map(|&(_, c)| c);
        let theirs = cells.filter(|&c| {
            let user = self.work.kernels[self.work.cells[c].kernel].user;
            wanted(&self.people.users[user].name)
        });
        theirs.map(|c| self.cell_view(c, &places)).collect()
    }

    /// How many cells wait.
    pub fn waiting_count(&self) -> usize {
        self.supply.pools.values().map(|p| p.queue.len()).sum()
    }

    /// The line before each cell on each node, in one pass.
    fn places(&self) -> Places {
        let nodes = self.supply.nodes.iter().filter(|(_, n)| !n.queue.is_empty());
        let places = nodes.map(|(i, node)| {
            let mut line = Line::new(self, i, node.pool, Basis::Seen);
            let ahead = node.queue.iter().map(|&(_, cell)| {
                let need = &self.work.cells[cell].need;
                let ahead = (line.cells(), line.lets_through_in(need));
                line.add(cell);
                (cell, ahead)
            });
            (i, ahead.collect())
        });
        places.collect()
    }

    /// All live leases, oldest first.
    pub fn leases(&self) -> Vec<LeaseView> {
        self.work.leases.values().map(|l| self.lease_view(l)).collect()
    }

    /// One live lease.
    pub fn lease(&self, id: LeaseId) -> Option<LeaseView> {
        self.work.leases.get(&id).map(|l| self.lease_view(l))
    }

    /// All pilots.
    pub fn pilots(&self) -> Vec<PilotView> {
        self.supply
            .pilots
            .iter()
            .map(|(_, p)| self.pilot_view(p))
            .collect()
    }

    /// The user whom a kernel belongs to.
    pub fn owner(&self, kernel: &KernelId) -> Option<&UserName> {
        let k = &self.work.kernels[self.find_kernel(kernel)?];
        Some(&self.people.users[k.user].name)
    }

    /// Pool of the kernel's cells.
    pub fn pool_of(&self, kernel: &KernelId) -> Option<&PoolName> {
        let k = &self.work.kernels[self.find_kernel(kernel)?];
        Some(&self.supply.pools[k.pool].config.name)
    }

    /// How many kernels are known.
    pub fn kernel_count(&self) -> usize {
        self.work.kernels.len()
    }

    /// Why this cell (or the kernel's first waiting cell) waits, the most important item first. If the cell runs, the
    /// items describe its lease. `None` means that the kernel or the cell is unknown.
    pub fn explain(&self, kernel: &KernelId, cell: Option<&CellId>) -> Option<Vec<Item>> {
        let k = self.find_kernel(kernel)?;
        let kernel = &self.work.kernels[k];
        let wanted = |id: &CellId| cell.is_none_or(|c| c == id);
        if let Some(&c) = kernel.cells.iter().find(|&&c| wanted(&self.work.cells[c].id)) {
            return Some(self.explain_waiting(c));
        }
        let mut leases = kernel.leases.iter().map(|id| &self.work.leases[id]);
        let lease = leases.find(|l| cell.is_none() || l.cell() == cell)?;
        let quantum = self.explain_quantum(lease);
        Some([self.explain_lease(lease)].into_iter().chain(quantum).collect())
    }

    fn explain_waiting(&self, cell: Idx<Cell>) -> Vec<Item> {
        let c = &self.work.cells[cell];
        let reason = self.reason(cell);
        let mut items = Vec::from_iter(self.explain_free_elsewhere(cell, &reason));
        items.push(Item::Waits(reason));
        let ahead = self.position(cell).saturating_sub(1);
        items.push(Item::Position { ahead });
        let within = self.foreseen_wait(cell);
        if within.is_some() || self.estimate(cell).is_some() {
            items.push(Item::Expected { within });
        }
        if let Some((_, ran)) = c.parked {
            items.push(Item::Parked { ran });
        }
        let time = self.now.since(c.submitted);
        items.push(Item::Waited { time });
        if c.due {
            items.push(Item::Due);
        } else if self.config.fair_share {
            let user = &self.people.users[self.work.kernels[c.kernel].user];
            items.push(Item::FairShare {
                user: user.name.clone(),
                gpu_hours: self.usage_left(&user.usage) / 3600.0,
            });
        }
        items
    }

    /// The first item on a cell that could start at once if its kernel sat on another node.
    fn explain_free_elsewhere(&self, cell: Idx<Cell>, reason: &Reason) -> Option<Item> {
        const NAMED: usize = 3;
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        // Other reasons hold on every node: a limit, for instance.
        if !matches!(
            reason,
            Reason::GpusBusy { .. }
                | Reason::PilotsSmall { .. }
                | Reason::CoresBusy { .. }
                | Reason::WrongType { .. }
                | Reason::Blocked { .. }
                | Reason::NoPilot { coming: false, .. }
                | Reason::PilotLate { .. }
        ) {
            return None;
        }
        let name = |n: Idx<Node>| self.supply.nodes[n].name.clone();
        let free = self.rooms_anywhere(cell).map(|p| self.supply.pilots[p].node);
        let free: BTreeSet<NodeName> = free.filter(|&n| self.takes_in(c.kernel, n)).map(name).collect();
        let here = k.replicas.first().map(|r| name(r.node))?;
        (!free.is_empty()).then(|| Item::FreeElsewhere {
            kernel: k.id.clone(),
            here,
            more: free.len().saturating_sub(NAMED) as u32,
            on: free.into_iter().take(NAMED).collect(),
        })
    }

    fn explain_lease(&self, l: &Lease) -> Item {
        let node = &self.supply.nodes[self.supply.pilots[l.pilot].node].name;
        if let Some(holding) = &l.holding {
            return Item::Holds {
                lease: l.id,
                gpus: l.gpus,
                cpus: l.cpus,
                node: node.clone(),
                time: self.now.since(holding.since),
                why: holding.why.clone(),
                lingers: matches!(l.state, LeaseState::Lingering { .. }),
            };
        }
        let phase = match &l.state {
            LeaseState::Starting { .. } if self.supply.slurm_away && l.started.is_none() => {
                LeasePhase::Delayed
            }
            LeaseState::Starting { .. } => LeasePhase::Starting,
            LeaseState::Running(_) => LeasePhase::Running,
            LeaseState::Lingering { .. } => LeasePhase::Lingering,
            LeaseState::Ending { .. } => LeasePhase::Ending,
        };
        Item::Lease {
            lease: l.id,
            gpus: l.gpus,
            cpus: l.cpus,
            node: node.clone(),
            phase,
            time: self.now.since(l.in_state_since()),
        }
    }

    fn cell_view(&self, i: Idx<Cell>, places: &Places) -> CellView {
        let c = &self.work.cells[i];
        let k = &self.work.kernels[c.kernel];
        let ahead = |node: Idx<Node>| {
            let place = places.get(&node).and_then(|cells| cells.get(&i));
            place.copied().unwrap_or_default()
        };
        CellView {
            kernel: k.id.clone(),
            name: k.name.clone(),
            cell: c.id.clone(),
            user: self.people.users[k.user].name.clone(),
            pool: self.supply.pools[k.pool].config.name.clone(),
            need: c.need.clone(),
            class: c.class,
            submitted: c.submitted,
            position: self.work.position_by(i, |node| ahead(node).0),
            reason: self.reason(i),
            estimate: self.foreseen_wait_by(i, |node| ahead(node).1),
            parked: c.parked.map(|(_, ran)| ran),
        }
    }

    fn lease_view(&self, l: &Lease) -> LeaseView {
        let k = &self.work.kernels[l.kernel];
        let p = &self.supply.pilots[l.pilot];
        let (state, cell) = match &l.state {
            LeaseState::Starting { cell } => ("STARTING", Some((&cell.id, &cell.need))),
            LeaseState::Running(r) => ("RUNNING", Some((&r.cell, &r.need))),
            LeaseState::Lingering { .. } => ("LINGERING", None),
            LeaseState::Ending { .. } => ("ENDING", None),
        };
        LeaseView {
            lease: l.id,
            kernel: k.id.clone(),
            name: k.name.clone(),
            cell: cell.map(|(id, _)| id.clone()),
            need: cell.map(|(_, need)| need.clone()),
            user: self.people.users[l.user].name.clone(),
            account: self.people.accounts[l.account].name.clone(),
            pool: self.supply.pools[l.pool].config.name.clone(),
            node: self.supply.nodes[p.node].name.clone(),
            pilot: p.job,
            executor: l.executor,
            gpus: l.gpus,
            devices: l.devices.clone(),
            cpus: l.cpus,
            state,
            since: l.in_state_since(),
            submit: l.submit,
            started: l.started,
            run: l.run,
            linger: l.linger,
            wait: l.wait,
            cells: l.cells,
            held: l.holding.as_ref().map(|held| (held.since, held.why.clone())),
        }
    }

    fn pilot_view(&self, p: &Pilot) -> PilotView {
        let slots = || p.groups.iter().flat_map(|g| &g.slots);
        let lingering = |id: &LeaseId| {
            let l = &self.work.leases[id];
            if matches!(l.state, LeaseState::Lingering { .. }) {
                l.gpus
            } else {
                0
            }
        };
        let why: Vec<&str> = slots().filter_map(|s| s.blocked.as_deref()).collect();
        PilotView {
            pilot: p.job,
            node: self.supply.nodes[p.node].name.clone(),
            pool: self.supply.pools[p.pool].config.name.clone(),
            state: match p.state {
                PilotState::Up => "UP",
                PilotState::Draining => "DRAINING",
                PilotState::Silent { .. } => "SILENT",
            },
            gpus: p.gpus(),
            leased: p.used_gpus(),
            lingering: p.leases.iter().map(lingering).sum(),
            blocked: slots().filter(|s| s.blocked.is_some()).map(|s| s.index).collect(),
            gpu_types: p.groups.iter().map(|g| g.gpu_type.clone()).collect(),
            cpus: p.cpus,
            cpus_leased: p.cpus_used,
            reason: why.join("; "),
        }
    }
}

impl Lease {
    /// Time of the lease's change into its state.
    fn in_state_since(&self) -> Timestamp {
        match &self.state {
            LeaseState::Starting { .. } => self.ordered,
            LeaseState::Running(r) => r.since,
            LeaseState::Lingering { since, .. } | LeaseState::Ending { since, .. } => *since,
        }
    }

    /// The cell that starts or runs on the lease.
    pub(crate) fn cell(&self) -> Option<&CellId> {
        match &self.state {
            LeaseState::Starting { cell } => Some(&cell.id),
            LeaseState::Running(r) => Some(&r.cell),
            LeaseState::Lingering { .. } | LeaseState::Ending { .. } => None,
        }
    }
}
