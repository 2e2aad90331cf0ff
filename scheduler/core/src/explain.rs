//! Answers to people and tools: why a cell waits, for how long, and what is lent to whom.

use crate::core::Core;
use crate::foretell::{Basis, UNKNOWN, UNSEEN};
use crate::index::Idx;
use crate::line::{Line, Place};
use crate::reason::{Reason, Yours, plural, spell};
use crate::state::{Cell, Kernel, Lease, LeaseState, Node, Pilot, PilotState, Pool, Rank, Ticket};
use hop_words::id::{
    AccountName, CellId, GpuIndex, GpuType, Incarnation, JobId, KernelId, LeaseId, NodeName, PoolName,
    UserName,
};
use hop_words::need::{Class, Need};
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

    /// Sentences on why this cell (or the kernel's first waiting cell) waits, the most important first. If the cell
    /// runs, the sentences describe its lease. `None` means that the kernel or the cell is unknown.
    pub fn explain(&self, kernel: &KernelId, cell: Option<&CellId>) -> Option<Vec<String>> {
        let k = self.find_kernel(kernel)?;
        let kernel = &self.work.kernels[k];
        let wanted = |id: &CellId| cell.is_none_or(|c| c == id);
        if let Some(&c) = kernel.cells.iter().find(|&&c| wanted(&self.work.cells[c].id)) {
            return Some(self.explain_waiting(c));
        }
        kernel.leases.iter().find_map(|id| {
            let l = &self.work.leases[id];
            let view = self.lease_view(l);
            let mine = cell.is_none() || view.cell.as_ref() == cell;
            mine.then(|| {
                let mut said = vec![self.explain_lease(&view)];
                said.extend(self.explain_quantum(l));
                said
            })
        })
    }

    fn explain_waiting(&self, cell: Idx<Cell>) -> Vec<String> {
        let c = &self.work.cells[cell];
        let mut said = Vec::from_iter(self.explain_free_elsewhere(cell));
        said.push(format!("The cell waits because {}.", self.reason(cell)));
        match self.position(cell) {
            1 => said.push("It is the next in line for these GPUs.".to_owned()),
            2 => said.push("One cell goes before it.".to_owned()),
            n => said.push(format!("{} cells go before it.", n - 1)),
        }
        if let Some(estimate) = self.foreseen_wait(cell) {
            said.push(format!("It is expected to start in {}.", spell(estimate)));
        } else if self.estimate(cell).is_some() {
            said.push(
                "How long it waits is not known yet: that is told once cells like those before it were seen a few times."
                    .to_owned(),
            );
        }
        if let Some((_, ran)) = c.parked {
            said.push(format!(
                "It ran for {} and was parked for others; it goes on where its memory lies.",
                spell(ran)
            ));
        }
        said.push(format!(
            "It has waited for {}.",
            spell(self.now.since(c.submitted))
        ));
        if c.due {
            said.push("It has waited so long that it goes before all that came later.".to_owned());
        } else if self.config.fair_share {
            let user = &self.people.users[self.work.kernels[c.kernel].user];
            let hours = self.usage_left(&user.usage) / 3600.0;
            said.push(format!(
                "User {} has used {hours:.1} GPU-hours lately; who has used less of their share goes first.",
                user.name
            ));
        }
        said
    }

    /// The first sentence for a cell that could start at once if its kernel sat on another node, with the user's
    /// options.
    fn explain_free_elsewhere(&self, cell: Idx<Cell>) -> Option<String> {
        const NAMED: usize = 3;
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        // Other reasons hold on every node: a limit, for instance.
        if !matches!(
            self.reason(cell),
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
        let name = |n: Idx<Node>| self.supply.nodes[n].name.to_string();
        let free = self.rooms_anywhere(cell).map(|p| self.supply.pilots[p].node);
        let free: BTreeSet<String> = free.filter(|&n| self.takes_in(c.kernel, n)).map(name).collect();
        let here = k.replicas.first().map(|r| name(r.node))?;
        let more = free.len().saturating_sub(NAMED);
        let mut named: Vec<String> = free.into_iter().take(NAMED).collect();
        if more > 0 {
            named.push(format!("{more} more nodes"));
        }
        let (last, rest) = named.split_last()?;
        let nodes = match rest {
            [] => last.clone(),
            _ => format!("{} and {last}", rest.join(", ")),
        };
        Some(format!(
            "What it needs is free on {nodes}, but its kernel sits on {here}: `hop migrate {}` takes the kernel there \
             with its variables, a restarted kernel goes there without them.",
            k.id
        ))
    }

    fn explain_lease(&self, l: &LeaseView) -> String {
        let what = if l.gpus > 0 {
            format!("{} GPU{}", l.gpus, plural(l.gpus))
        } else {
            format!("{} core{}", l.cpus, plural(l.cpus))
        };
        let since = spell(self.now.since(l.since));
        let node = &l.node;
        if let Some((held, why)) = &l.held {
            let held = spell(self.now.since(*held));
            let then = match l.state {
                "LINGERING" => {
                    "Nobody waits for it, so it stays there, and counts as used. Once somebody waits, the kernel is warned first"
                }
                _ => "It is warned",
            };
            return format!(
                "No cell runs; the kernel can't let go of lease {} of {what} on {node} since {held} ({why}). {then}, and \
                 ended if it still holds on.",
                l.lease
            );
        }
        match l.state {
            "STARTING" if self.supply.slurm_away && l.started.is_none() => format!(
                "Lease {} of {what} on {node} is to be started since {since}: Slurm's controller does not answer.",
                l.lease
            ),
            "STARTING" => format!(
                "Lease {} of {what} on {node} is being started since {since}.",
                l.lease
            ),
            "RUNNING" => format!(
                "The cell has run on lease {} of {what} on {node} for {since}.",
                l.lease
            ),
            "LINGERING" => format!(
                "No cell waits; lease {} of {what} on {node} is kept for the next.",
                l.lease
            ),
            _ => format!(
                "Lease {} of {what} on {node} is being ended since {since}.",
                l.lease
            ),
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
            position: self.position_by(i, |node| ahead(node).0),
            reason: self.reason(i),
            estimate: self.foreseen_wait_by(i, |node| ahead(node).1),
            parked: c.parked.map(|(_, ran)| ran),
        }
    }

    fn lease_view(&self, l: &Lease) -> LeaseView {
        let k = &self.work.kernels[l.kernel];
        let p = &self.supply.pilots[l.pilot];
        let (state, since, cell) = match &l.state {
            LeaseState::Starting { cell } => ("STARTING", l.ordered, Some((&cell.id, &cell.need))),
            LeaseState::Running(r) => ("RUNNING", r.since, Some((&r.cell, &r.need))),
            LeaseState::Lingering { since, .. } => ("LINGERING", *since, None),
            LeaseState::Ending { since, .. } => ("ENDING", *since, None),
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
            since,
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

    // --- why, and for how long ---

    /// Place from 1 among the cells for the same GPUs, on the node with the smallest number.
    pub(crate) fn position(&self, cell: Idx<Cell>) -> u32 {
        self.position_by(cell, |node| self.ahead_on(node, self.place(cell)))
    }

    fn position_by(&self, cell: Idx<Cell>, ahead: impl Fn(Idx<Node>) -> u64) -> u32 {
        let nodes = self.work.kernels[self.work.cells[cell].kernel].able();
        1 + nodes.map(|r| ahead(r.node) as u32).min().unwrap_or(0)
    }

    fn place(&self, cell: Idx<Cell>) -> Place {
        (self.work.cells[cell].rank, cell)
    }

    /// The reason that the kernel's nodes give: no pilot, wrong type, busy, held back.
    pub(crate) fn reason_on_nodes(&self, cell: Idx<Cell>) -> Reason {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let mut pilots = 0;
        let mut best: Option<Reason> = None;
        for r in k.able() {
            let node = &self.supply.nodes[r.node];
            for &p in &node.pilots {
                let pilot = &self.supply.pilots[p];
                if pilot.pool != k.pool || pilot.state != PilotState::Up {
                    continue;
                }
                pilots += 1;
                let reason = self.reason_on_pilot(pilot, node.name.clone(), c);
                if best.as_ref().is_none_or(|b| tells(b) < tells(&reason)) {
                    best = Some(reason);
                }
            }
        }
        // A larger pilot comes.
        let larger = || self.supply.tickets.for_cell((cell, c.seq)).next().is_some();
        if pilots == 0 || matches!(best, Some(Reason::PilotsSmall { .. })) && larger() {
            return self.reason_without_pilot(k);
        }
        best.unwrap_or(Reason::NoReplica)
    }

    fn reason_without_pilot(&self, k: &Kernel) -> Reason {
        let tickets = &self.supply.tickets;
        let here = k.able().flat_map(|r| tickets.on(r.node)).map(|(_, t)| t);
        let asked = here.chain(tickets.anywhere()).filter(|t| t.pool == k.pool);
        let (late, coming): (Vec<&Ticket>, Vec<&Ticket>) =
            asked.partition(|t| !t.bursts && self.is_late_to_boot(t));
        let late = late.iter().find_map(|t| t.node);
        match late.filter(|_| coming.is_empty()) {
            Some(node) => Reason::PilotLate {
                node: self.supply.nodes[node].name.clone(),
            },
            None => Reason::NoPilot {
                pool: self.supply.pools[k.pool].config.name.clone(),
                coming: !coming.is_empty(),
            },
        }
    }

    fn reason_on_pilot(&self, pilot: &Pilot, node: NodeName, c: &Cell) -> Reason {
        let fitting: Vec<_> = pilot.groups.iter().filter(|g| g.fits(&c.need)).collect();
        if c.need.gpus > 0 && fitting.is_empty() {
            return Reason::WrongType {
                gpu_type: c.need.gpu_type.clone(),
                mem_mib: c.need.gpu_mem_mib,
            };
        }
        if c.need.gpus > 0 && !fitting.iter().any(|g| g.could_serve(&c.need)) {
            return self.reason_of_small_pilots(pilot, node, c);
        }
        let lendable = fitting.iter().map(|g| g.lendable()).max().unwrap_or(0);
        if lendable < c.need.gpus {
            let why = fitting
                .iter()
                .flat_map(|g| &g.slots)
                .find_map(|s| s.blocked.clone());
            return Reason::Blocked {
                node,
                why: why.unwrap_or_default(),
            };
        }
        if !fitting.iter().any(|g| g.free() >= c.need.gpus) && c.need.gpus > 0 {
            return Reason::GpusBusy {
                node,
                gpus: c.need.gpus,
                fitting: fitting.iter().map(|g| g.slots.len() as u16).sum(),
                yours: self.yours(c, pilot.leases.iter().map(|l| &self.work.leases[l])),
            };
        }
        if pilot.cpus_free() < c.cpus {
            return Reason::CoresBusy {
                node,
                cpus: c.cpus,
                free: pilot.cpus_free(),
            };
        }
        Reason::HeldBack { node }
    }

    /// The node's pilots are as large as what others asked for.
    fn reason_of_small_pilots(&self, pilot: &Pilot, node: NodeName, c: &Cell) -> Reason {
        let here = || self.lending_of(pilot.node, pilot.pool);
        let leases = here().flat_map(|p| &p.leases);
        Reason::PilotsSmall {
            node,
            gpus: c.need.gpus,
            used: here().map(Pilot::used_gpus).sum(),
            of: self.supply.nodes[pilot.node]
                .gpus
                .max(here().map(Pilot::gpus).sum()),
            yours: self.yours(c, leases.map(|l| &self.work.leases[l])),
        }
    }

    /// Notebooks of the cell's user with GPUs by these leases, without the cell's own notebook.
    pub(crate) fn yours<'a>(&'a self, c: &Cell, leases: impl Iterator<Item = &'a Lease>) -> Yours {
        let user = self.work.kernels[c.kernel].user;
        let mut yours = Yours::default();
        for lease in leases.filter(|l| l.user == user && l.kernel != c.kernel && l.gpus > 0) {
            let kernel = &self.work.kernels[lease.kernel];
            let named = match kernel.name.as_str() {
                "" => kernel.id.to_string(),
                name => name.to_owned(),
            };
            yours.notebooks.insert(named);
            yours.gpus += lease.gpus;
        }
        yours
    }

    /// Expected wait. The cell starts when its GPUs are free behind cells of better rank, when its booting pilot is up,
    /// or when its kernel's replica has moved, whichever comes first.
    pub(crate) fn estimate(&self, cell: Idx<Cell>) -> Option<Span> {
        self.estimate_by(cell, Basis::Guess, self.line_of(cell, Basis::Guess))
    }

    /// The time until the cells before the cell on a node have let it through.
    fn line_of(&self, cell: Idx<Cell>, basis: Basis) -> impl Fn(Idx<Node>) -> Span {
        let c = &self.work.cells[cell];
        let pool = self.work.kernels[c.kernel].pool;
        let line = move |node| self.line_before((c.rank, cell), node, pool, basis);
        move |node| line(node).lets_through_in(&c.need)
    }

    /// Expected wait for people. `None` means that too few cells like the running ones were seen.
    pub(crate) fn foreseen_wait(&self, cell: Idx<Cell>) -> Option<Span> {
        self.foreseen_wait_by(cell, self.line_of(cell, Basis::Seen))
    }

    fn foreseen_wait_by(&self, cell: Idx<Cell>, line: impl Fn(Idx<Node>) -> Span) -> Option<Span> {
        self.estimate_by(cell, Basis::Seen, line)
            .filter(|wait| wait.0 < UNKNOWN.0 / 2)
    }

    fn estimate_by(&self, cell: Idx<Cell>, basis: Basis, line: impl Fn(Idx<Node>) -> Span) -> Option<Span> {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let booting = self.supply.tickets.for_cell((cell, c.seq)).next();
        let boots = booting.map(|(_, t)| self.up_in(t));
        let mut best = [boots, self.move_left(c.kernel)].into_iter().flatten().min();
        for r in k.able() {
            let there = self.wait_behind((line(r.node), c.rank), basis, r.node, k.pool, &c.need, c.cpus);
            best = [best, there].into_iter().flatten().min();
        }
        best
    }

    /// Expected wait of a cell at this place in the queue, on the pool's pilots that are up on the node. `None` means
    /// that it never starts there.
    pub(crate) fn wait_on(
        &self,
        node: Idx<Node>,
        place: Place,
        pool: Idx<Pool>,
        need: &Need,
        cpus: u16,
    ) -> Option<Span> {
        let line = self.line_before(place, node, pool, Basis::Guess);
        let line = line.lets_through_in(need);
        self.wait_behind((line, place.0), Basis::Guess, node, pool, need, cpus)
    }

    fn wait_behind(
        &self,
        (line, rank): (Span, Rank),
        basis: Basis,
        node: Idx<Node>,
        pool: Idx<Pool>,
        need: &Need,
        cpus: u16,
    ) -> Option<Span> {
        let up = self.lending_of(node, pool);
        let spans = up.filter_map(|pilot| self.free_for(pilot, basis, need, cpus));
        let free = spans.min()?.max(line);
        match self.held_before(node, rank, need, cpus) {
            // The holder gets the next free GPUs and cores on the node first.
            Some(holder) => {
                let first = self.node_free_in(node, holder)?;
                Some(free.max(first + self.run_of_cell(holder, basis)))
            }
            None => Some(free),
        }
    }

    /// The due cell of better rank with a hold on the node, if the hold delays a cell of this need.
    fn held_before(&self, node: Idx<Node>, rank: Rank, need: &Need, cpus: u16) -> Option<&Cell> {
        let holder = &self.work.cells[self.supply.nodes[node].held_for?];
        let both = holder.cpus.saturating_add(cpus);
        let beside = || need.gpus == 0 && self.lending(node).any(|p| p.cpus_free() >= both);
        (holder.rank < rank && !beside()).then_some(holder)
    }

    /// Expected time until the lease ends.
    pub(crate) fn lease_left(&self, lease: &Lease, basis: Basis) -> Span {
        match basis {
            Basis::Guess => self.remaining(lease),
            Basis::Seen => self.seen_remaining(lease),
        }
    }

    /// Expected run of a cell about to start, at the median.
    fn run_at_start(&self, cell: &Cell) -> Span {
        let ran = cell.parked.map_or(Span::ZERO, |(_, ran)| ran);
        let run = self.run_left(cell.kernel, cell.print, ran);
        run.unwrap_or_else(|| ran.max(UNSEEN))
    }

    /// Expected time until the lease ends, for decisions.
    pub(crate) fn remaining(&self, lease: &Lease) -> Span {
        match &lease.state {
            LeaseState::Running(r) => {
                let expected = lease.expected.get();
                if expected > self.now {
                    return expected.since(self.now);
                }
                let span = self.reckon(lease, r);
                if self.decides {
                    lease.expected.set(self.now + span);
                }
                span
            }
            LeaseState::Starting { cell } => self.run_at_start(cell),
            // The pool's grace once before the take-back, and once during it.
            LeaseState::Lingering { .. }
            | LeaseState::Ending {
                leaves_by: Some(_), ..
            } if lease.holding.is_some() => Span(2 * self.supply.pools[lease.pool].config.grace.0),
            LeaseState::Lingering { .. } | LeaseState::Ending { .. } => Span::from_millis(100),
        }
    }

    /// Expected time until the lease ends, from runs that were seen. A running cell's is reckoned anew each second: a
    /// guess that is counted down says "at once" in the end, however long the cell goes on.
    fn seen_remaining(&self, lease: &Lease) -> Span {
        let LeaseState::Running(r) = &lease.state else {
            return match &lease.state {
                LeaseState::Starting { cell } if !self.has_seen(cell.kernel, cell.print, Span::ZERO) => {
                    UNKNOWN
                }
                _ => self.remaining(lease),
            };
        };
        let (at, end) = lease.foreseen.get();
        if end > self.now && self.now.since(at) < Span::from_secs(1) {
            return end.since(self.now);
        }
        let elapsed = Span(r.ran.0 + self.now.since(r.since).0);
        let left = if self.has_seen(lease.kernel, r.print, elapsed) {
            self.run_left(lease.kernel, r.print, elapsed)
        } else {
            None
        };
        let left = left.unwrap_or(UNKNOWN);
        if self.decides {
            lease.foreseen.set((self.now, self.now + left));
        }
        left
    }

    fn reckon(&self, lease: &Lease, r: &crate::state::Running) -> Span {
        let elapsed = Span(r.ran.0 + self.now.since(r.since).0);
        let left = self.run_left(lease.kernel, r.print, elapsed);
        // A cell that outran all runs seen is expected to run as long again.
        left.unwrap_or_else(|| elapsed.max(Span::from_secs(1)))
    }

    /// Expected time until the pilot has room for the cell, if nobody else takes it. `None` means never.
    pub(crate) fn free_in(&self, p: &Pilot, c: &Cell) -> Option<Span> {
        self.free_for(p, Basis::Guess, &c.need, c.cpus)
    }

    fn free_for(&self, p: &Pilot, basis: Basis, need: &Need, cores: u16) -> Option<Span> {
        let groups: Vec<Option<usize>> = if need.gpus == 0 {
            vec![None]
        } else {
            (0..p.groups.len())
                .filter(|&g| p.groups[g].fits(need))
                .map(Some)
                .collect()
        };
        let mut ends: Vec<(Span, &Lease)> = p
            .leases
            .iter()
            .map(|id| &self.work.leases[id])
            .map(|l| (self.lease_left(l, basis), l))
            .collect();
        ends.sort_by_key(|(span, l)| (*span, l.id));
        let first = |group: Option<usize>| {
            let mut gpus = group.map_or(0, |g| p.groups[g].free());
            let mut cpus = p.cpus_free();
            let enough = |gpus: u16, cpus: u16| gpus >= need.gpus && cpus >= cores;
            if enough(gpus, cpus) {
                return Some(Span::ZERO);
            }
            for (span, l) in &ends {
                gpus += if l.group == group { l.gpus } else { 0 };
                cpus += l.cpus;
                if enough(gpus, cpus) {
                    return Some(*span);
                }
            }
            None
        };
        groups.into_iter().filter_map(first).min()
    }
}

/// How much the reason of one of several pilots tells of the wait.
fn tells(reason: &Reason) -> u8 {
    match reason {
        Reason::WrongType { .. } => 0,
        Reason::PilotsSmall { .. } => 1,
        _ => 2,
    }
}
