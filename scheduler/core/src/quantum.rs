//! Parking at a quantum. If a cell has run for longer than its class's quantum, and another waits for its GPUs, the
//! cell is asked to park. Nothing is taken from a running cell: it is asked once for each lease, and may refuse and run
//! on. A parked cell waits for GPUs again on its own node, beside its memory.

use crate::core::Core;
use crate::index::Idx;
use crate::input::WaitingCell;
use crate::output::Output;
use crate::state::{Cell, Kernel, Lease, LeaseState, Pilot, PilotState, Replica, Timer};
use hop_words::explain::Item;
use hop_words::id::{CellId, GpuType, Incarnation, KernelId, LeaseId};
use hop_words::lease::{EndCause, Outcome, ParkAsk};
use hop_words::need::Need;
use hop_words::reason::{ParkBecause, RefusedBecause};
use hop_words::time::Span;

/// The longest run believed of a replica's word about an otherwise unknown cell.
const MOST_RUN: Span = Span::from_secs(7 * 86_400);

impl Kernel {
    /// The only replica allowed to run the kernel's GPU cells: the replica's process can't let go of its device, or has
    /// a parked cell.
    pub(crate) fn only(&self) -> Option<Incarnation> {
        self.bound.or(self.parked)
    }

    /// Replicas permitted to run the kernel's GPU cells.
    pub(crate) fn able(&self) -> impl Iterator<Item = &Replica> {
        let only = self.only();
        self.replicas
            .iter()
            .filter(move |r| only.is_none_or(|o| o == r.incarnation))
    }

    /// Replicas of [`Self::able`] that no move takes away. On a node that the kernel is about to leave, nothing is set
    /// aside.
    pub(crate) fn staying(&self) -> impl Iterator<Item = &Replica> {
        let leaves = self.migrating.map(|m| m.victim);
        self.able().filter(move |r| leaves != Some(r.incarnation))
    }
}

impl Core {
    /// How long the lease's cell may run undisturbed; none: for ever.
    fn quantum(&self, lease: &Lease) -> Option<Span> {
        match &lease.state {
            LeaseState::Running(r) if lease.gpus > 0 => {
                self.supply.pools[lease.pool].config.quantum.of(r.class)
            }
            _ => None,
        }
    }

    /// Arms the timer of the quantum as the lease's cell begins.
    pub(crate) fn arm_quantum(&mut self, id: LeaseId) {
        let lease = &self.work.leases[&id];
        if let (Some(quantum), LeaseState::Running(r)) = (self.quantum(lease), &lease.state) {
            self.at(r.since + quantum, Timer::Quantum(id));
        }
    }

    fn outran(&self, lease: &Lease) -> bool {
        let since = |r: &crate::state::Running| self.now.since(r.since);
        let LeaseState::Running(r) = &lease.state else {
            return false;
        };
        self.quantum(lease).is_some_and(|q| since(r) >= q)
    }

    pub(crate) fn quantum_due(&mut self, id: LeaseId, out: &mut Vec<Output>) {
        if self.work.leases.get(&id).is_some_and(|l| self.outran(l)) {
            let pilot = self.work.leases[&id].pilot;
            self.ask_for_first(pilot, out);
        }
    }

    /// Asks on behalf of the first in the queue for whom it is worth while.
    fn ask_for_first(&mut self, pilot: Idx<Pilot>, out: &mut Vec<Output>) {
        let node = self.supply.pilots[pilot].node;
        let waiting: Vec<Idx<Cell>> = self.supply.nodes[node].queue.iter().map(|&(_, c)| c).collect();
        for cell in waiting {
            if self.ask_to_park(cell, out) {
                return;
            }
        }
    }

    /// Asks cells past their quantum to make room for this cell, on the pilot with the fewest GPUs to park. Returns
    /// whether any were asked, now or before.
    pub(crate) fn ask_to_park(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) -> bool {
        let Some(c) = self.work.cells.get(cell) else {
            return false;
        };
        let k = &self.work.kernels[c.kernel];
        let quantum = self.supply.pools[k.pool].config.quantum;
        if quantum.is_off() || c.need.gpus == 0 || k.migrating.is_some() || self.over_limit(c).is_some() {
            return false;
        }
        if self.expected_wait(cell) <= quantum.worth_waiting {
            return false;
        }
        let mut best: Option<(u16, Idx<Pilot>, Vec<LeaseId>)> = None;
        for r in k.able() {
            for &pilot in &self.supply.nodes[r.node].pilots {
                if let Some((gpus, leases)) = self.could_park(pilot, cell)
                    && best.as_ref().is_none_or(|(n, ..)| gpus < *n)
                {
                    best = Some((gpus, pilot, leases));
                }
            }
        }
        let Some((_, pilot, leases)) = best else {
            return false;
        };
        self.hold_back(pilot, cell);
        for id in leases {
            self.ask(id, cell, out);
        }
        true
    }

    /// Leases of this pilot whose cells must be parked for the cell to start, with their GPUs, beside the leases asked
    /// already. The longest running leases come first. `None` means that even all of them are too few.
    fn could_park(&self, pilot: Idx<Pilot>, cell: Idx<Cell>) -> Option<(u16, Vec<LeaseId>)> {
        let (p, c) = (&self.supply.pilots[pilot], &self.work.cells[cell]);
        let before = |o: Idx<Cell>| o != cell && self.work.cells[o].rank < c.rank;
        if p.state != PilotState::Up
            || p.pool != self.work.kernels[c.kernel].pool
            || self.is_held(p, cell)
            || p.reserved.iter().any(|&r| before(r))
        {
            return None;
        }
        let fitting = (0..p.groups.len()).filter(|&g| p.groups[g].fits(&c.need));
        let parks = fitting.filter_map(|g| self.could_park_in(pilot, g, c));
        parks.min_by_key(|(gpus, _)| *gpus)
    }

    fn could_park_in(&self, pilot: Idx<Pilot>, group: usize, c: &Cell) -> Option<(u16, Vec<LeaseId>)> {
        let p = &self.supply.pilots[pilot];
        let (mut gpus, mut cpus) = (p.groups[group].free(), p.cpus_free());
        let mut due = Vec::new();
        for id in &p.leases {
            let lease = &self.work.leases[id];
            let mine = if lease.group == Some(group) { lease.gpus } else { 0 };
            match &lease.state {
                LeaseState::Ending { .. } | LeaseState::Lingering { .. } => {
                    gpus += mine;
                    cpus += lease.cpus;
                }
                LeaseState::Running(_) if lease.asked == ParkAsk::Asked => {
                    gpus += mine;
                    cpus += lease.cpus;
                }
                LeaseState::Running(r)
                    if mine > 0
                        && lease.asked == ParkAsk::No
                        && lease.kernel != c.kernel
                        && self.runs_nothing_else(lease)
                        && self.outran(lease) =>
                {
                    due.push((r.since, *id));
                }
                LeaseState::Running(_) | LeaseState::Starting { .. } => {}
            }
        }
        due.sort_unstable();
        let (mut parked, mut leases) = (0, Vec::new());
        for (_, id) in due {
            if gpus >= c.need.gpus && cpus >= c.cpus {
                break;
            }
            let lease = &self.work.leases[&id];
            gpus += lease.gpus;
            cpus += lease.cpus;
            parked += lease.gpus;
            leases.push(id);
        }
        (gpus >= c.need.gpus && cpus >= c.cpus).then_some((parked, leases))
    }

    /// Whether the kernel runs nothing else and has nothing parked: a parked cell binds the kernel to a replica.
    fn runs_nothing_else(&self, lease: &Lease) -> bool {
        let k = &self.work.kernels[lease.kernel];
        k.leases.len() == 1 && k.parked.is_none()
    }

    fn ask(&mut self, id: LeaseId, waiting: Idx<Cell>, out: &mut Vec<Output>) {
        let gpus = self.work.cells[waiting].need.gpus;
        let lease = self.work.leases.get_mut(&id).expect("the caller has found it");
        lease.asked = ParkAsk::Asked;
        let (kernel, LeaseState::Running(r)) = (lease.kernel, &lease.state) else {
            return;
        };
        out.push(Output::Park {
            kernel: self.work.kernels[kernel].id.clone(),
            lease: id,
            cell: r.cell.clone(),
            reason: ParkBecause {
                ran: self.now.since(r.since),
                gpus,
            },
        });
    }

    /// Whether a cell in this pilot is asked to park.
    pub(crate) fn is_asked(&self, pilot: Idx<Pilot>) -> bool {
        let asked = |id: &LeaseId| {
            let lease = &self.work.leases[id];
            lease.asked == ParkAsk::Asked && matches!(lease.state, LeaseState::Running(_))
        };
        self.supply.pilots[pilot].leases.iter().any(asked)
    }

    /// The cell can't be parked: the cell runs on, and isn't asked again on this lease.
    pub(crate) fn park_refused(&mut self, kernel_id: &KernelId, id: LeaseId, out: &mut Vec<Output>) {
        let kernel = self.find_kernel(kernel_id);
        let Some(lease) = self.work.leases.get_mut(&id).filter(|l| Some(l.kernel) == kernel) else {
            return;
        };
        lease.asked = ParkAsk::Refused;
        let pilot = lease.pilot;
        self.unreserve_in_vain(pilot);
        self.ask_for_first(pilot, out);
    }

    /// The cell was parked in its middle: the lease ends, and the cell waits for another lease beside its memory. An
    /// unasked park, or a park after a refusal, is taken too: an earlier daemon may have asked, or an answer may be
    /// late. The GPUs are free in any case.
    pub(crate) fn cell_parked(
        &mut self,
        kernel_id: &KernelId,
        cell: &CellId,
        id: LeaseId,
        out: &mut Vec<Output>,
    ) {
        let kernel = self.find_kernel(kernel_id);
        let Some(lease) = self.work.leases.get(&id).filter(|l| Some(l.kernel) == kernel) else {
            return;
        };
        let (LeaseState::Running(r), kernel, executor) = (&lease.state, lease.kernel, lease.executor) else {
            return;
        };
        if r.cell != *cell || lease.gpus == 0 || self.work.kernels[kernel].parked.is_some() {
            return;
        }
        let (mut r, cpus) = (r.clone(), lease.cpus);
        // Memory from one type of chip is restored to the same type only.
        r.need.gpu_type = r.need.gpu_type.or_else(|| self.chip_of(lease));
        let here = self.work.kernels[kernel]
            .replicas
            .iter()
            .any(|x| x.incarnation == executor);
        self.stop_running(id, Outcome::Parked, out);
        self.end_parked(id, out);
        if !here || self.work.kernels[kernel].closed {
            return;
        }
        let ran = Span(r.ran.0 + self.now.since(r.since).0);
        let waiting = self.new_cell(
            kernel,
            r.cell,
            r.need,
            cpus,
            r.class,
            r.print,
            self.now,
            Some((executor, ran)),
        );
        self.wait(waiting, out);
    }

    /// The type of the lease's GPUs, if Slurm names it.
    fn chip_of(&self, lease: &Lease) -> Option<GpuType> {
        let group = &self.supply.pilots[lease.pilot].groups[lease.group?];
        (!group.gpu_type.as_str().is_empty()).then(|| group.gpu_type.clone())
    }

    /// A replica reports a parked cell that is unknown here: the cell waits for GPUs, as if just parked.
    pub(crate) fn parked_there(
        &mut self,
        kernel: Idx<Kernel>,
        replica: Incarnation,
        w: &WaitingCell,
        ran: Span,
        out: &mut Vec<Output>,
    ) {
        let busy = self.work.kernels[kernel].parked.is_some() || w.need.gpus == 0;
        if self.asked_before(kernel, &w.cell, out) || busy {
            return;
        }
        let cpus = self.cpus_of(self.work.kernels[kernel].pool, &w.need);
        let parked = Some((replica, ran.min(MOST_RUN)));
        let (id, need) = (w.cell.clone(), w.need.clone());
        let since = self.waits_since(kernel, &id);
        let waiting = self.new_cell(kernel, id, need, cpus, w.class, w.print, since, parked);
        if !self.try_start(waiting, out) {
            self.wait(waiting, out);
        }
    }

    /// How long the lease's cell may run. `None` means for ever, or no such cell.
    pub(crate) fn explain_quantum(&self, lease: &Lease) -> Option<Item> {
        Some(Item::Quantum {
            after: self.quantum(lease)?,
            asked: lease.asked,
        })
    }

    /// Drops the parked cells of a lost replica.
    pub(crate) fn lose_parked(&mut self, kernel: Idx<Kernel>, replica: Incarnation, out: &mut Vec<Output>) {
        let there = |c: &Idx<Cell>| self.work.cells[*c].parked.is_some_and(|(r, _)| r == replica);
        let lost: Vec<Idx<Cell>> = self.work.kernels[kernel]
            .cells
            .iter()
            .copied()
            .filter(there)
            .collect();
        for cell in lost {
            self.drop_cell(cell, Some(RefusedBecause::ReplicaLost), out);
        }
    }

    /// Need of an otherwise unknown cell, taken from its lease.
    pub(crate) fn need_of(&self, id: LeaseId) -> Need {
        let lease = &self.work.leases[&id];
        Need {
            gpus: lease.gpus,
            gpu_type: lease.gpu_type.clone(),
            cpus: lease.cpus,
            ..Need::default()
        }
    }

    /// Nothing has to leave the GPUs any more, and nobody needs to be told.
    fn end_parked(&mut self, id: LeaseId, out: &mut Vec<Output>) {
        let (now, cause) = (self.now, EndCause::Claimed);
        let lease = self.work.leases.get_mut(&id).expect("the caller has found it");
        lease.state = LeaseState::Ending {
            cause,
            since: now,
            leaves_by: None,
        };
        let pilot = lease.pilot;
        self.list_pilot(pilot);
        self.note_lease(id, out);
        out.push(self.end_order(self.supply.pilots[pilot].job, id, cause));
    }
}
