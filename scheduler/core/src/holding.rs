//! Kernels that can't let go of their GPUs, because a library or a program keeps them open.
//!
//! Taking such GPUs back ends the kernel, with its variables. So the lease lingers on while nobody waits for its GPUs,
//! and the user pays for the lease as for any other. The kernel tries again to let go, at growing intervals and after
//! each cell. Once a cell waits, the kernel is warned, and has the pool's grace twice: before the take-back and during
//! it. If no cell waits any more by the end of the first grace, the kernel keeps its GPUs.

use crate::core::Core;
use crate::index::Idx;
use crate::output::Output;
use crate::room::free_beside;
use crate::state::{Cell, Holding, Kernel, Lease, LeaseState, PilotState, Timer};
use hop_words::id::{KernelId, LeaseId};
use hop_words::lease::EndCause;
use hop_words::reason::{RefusedBecause, Wanted};
use hop_words::time::Span;

/// Pause before a kernel is asked once more to let go: the time of its holding on so far, within these bounds.
const ASK_AGAIN_LEAST: Span = Span::from_secs(30);
const ASK_AGAIN_MOST: Span = Span::from_secs(600);

impl Core {
    /// The kernel can't let go of the lease's GPUs.
    pub(crate) fn still_held(&mut self, kernel: &KernelId, id: LeaseId, why: String, out: &mut Vec<Output>) {
        let kernel = self.find_kernel(kernel);
        let now = self.now;
        let lease = self.work.leases.get_mut(&id);
        let Some(lease) = lease.filter(|l| Some(l.kernel) == kernel && l.gpus > 0) else {
            return;
        };
        let leaves = match lease.state {
            LeaseState::Lingering { .. } => false,
            LeaseState::Ending {
                cause,
                leaves_by: Some(_),
                ..
            } if cause.may_hold() => true,
            LeaseState::Starting { .. } | LeaseState::Running(_) | LeaseState::Ending { .. } => return,
        };
        let since = lease.holding.as_ref().map_or(now, |held| held.since);
        lease.holding = Some(Holding { since, why });
        if !leaves {
            return self.tell_held(id, None, out);
        }
        match self.wanted(id) {
            None => self.keep(id, out),
            wanted => self.tell_held(id, wanted, out),
        }
    }

    /// The kernel's time to let go is over. If the kernel can't, but nobody waits for its GPUs any more, the kernel
    /// keeps them.
    pub(crate) fn leaving_time_over(&mut self, id: LeaseId, out: &mut Vec<Output>) {
        let holds = |l: &Lease| {
            let leaves =
                matches!(l.state, LeaseState::Ending { cause, leaves_by: Some(_), .. } if cause.may_hold());
            leaves && l.holding.is_some()
        };
        if self.work.leases.get(&id).is_some_and(holds) && self.wanted(id).is_none() {
            self.keep(id, out);
        } else {
            self.take_back(id, out);
        }
    }

    /// The ending lease lingers on. The lease serves the kernel's own waiting cells; cells that can't use the lease are
    /// refused.
    fn keep(&mut self, id: LeaseId, out: &mut Vec<Output>) {
        let now = self.now;
        let lease = self.work.leases.get_mut(&id).expect("the caller has found it");
        let (LeaseState::Ending { since, leaves_by, .. }, Some(held)) = (&lease.state, &lease.holding) else {
            return;
        };
        let pause = now.since(held.since).clamp(ASK_AGAIN_LEAST, ASK_AGAIN_MOST);
        let (since, leaves_by, why) = (*since, *leaves_by, held.why.clone());
        let (kernel, pilot, gpus) = (lease.kernel, lease.pilot, lease.gpus);
        let until = now + pause;
        lease.state = LeaseState::Lingering { since, until };
        if let Some(by) = leaves_by {
            self.timers.remove(&(by, Timer::TakeBack(id)));
        }
        self.at(until, Timer::Linger(id));
        self.list_pilot(pilot);
        self.note_lease(id, out);
        self.tell_held(id, None, out);
        self.serve_by_held(kernel, id, &RefusedBecause::StillHolds { gpus, why }, out);
    }

    fn serve_by_held(
        &mut self,
        kernel: Idx<Kernel>,
        id: LeaseId,
        refusal: &RefusedBecause,
        out: &mut Vec<Output>,
    ) {
        for cell in self.work.kernels[kernel].cells.clone() {
            let Some(c) = self.work.cells.get(cell).filter(|c| c.parked.is_none()) else {
                continue;
            };
            if c.unasked.is_none() && self.lingering_for(kernel, &c.need, c.cpus) == Some(id) {
                let c = self.take_cell(cell);
                let waited = self.now.since(c.submitted);
                self.grant_lingering(id, c.running(self.now), waited, out);
            } else {
                self.drop_cell(cell, Some(refusal.clone()), out);
            }
        }
    }

    fn tell_held(&self, id: LeaseId, wanted: Option<Wanted>, out: &mut Vec<Output>) {
        let lease = &self.work.leases[&id];
        let grace = self.supply.pools[lease.pool].config.grace;
        let first = match lease.state {
            LeaseState::Ending {
                leaves_by: Some(by), ..
            } => by.since(self.now),
            _ => grace,
        };
        out.push(Output::Held {
            kernel: self.work.kernels[lease.kernel].id.clone(),
            lease: id,
            wanted,
            within: Span(first.0 + grace.0),
        });
    }

    /// Why the GPUs of a kernel that can't let go of them must be taken back. `None`: nobody waits for them.
    pub(crate) fn wanted(&self, id: LeaseId) -> Option<Wanted> {
        let lease = &self.work.leases[&id];
        let p = &self.supply.pilots[lease.pilot];
        let drains = matches!(
            p.state,
            PilotState::Draining | PilotState::Silent { draining: true, .. }
        );
        if drains {
            return Some(Wanted::Drained);
        }
        if !self.can_leave(id) {
            return Some(Wanted::Closed);
        }
        if self.is_needed(id) {
            return Some(Wanted::Waited);
        }
        self.is_kept_too_long(lease).then_some(Wanted::GivenBack)
    }

    /// Whether the end of this lease would help a waiting cell of another kernel.
    fn is_needed(&self, id: LeaseId) -> bool {
        let lease = &self.work.leases[&id];
        let p = &self.supply.pilots[lease.pilot];
        let node = &self.supply.nodes[p.node];
        let limited = self.freed_from_limits(lease.user, lease.account, lease.pool);
        // A cell that has no GPU to start on gains nothing by room under its limit.
        let has_place = |c: Idx<Cell>| {
            let k = &self.work.kernels[self.work.cells[c].kernel];
            k.staying().any(|r| r.node == p.node) || self.spot(c).is_some() || self.home_can_start(c)
        };
        let limits = |c: &Idx<Cell>| {
            self.work.cells[*c].kernel != lease.kernel
                && has_place(*c)
                && self.helps_within_limits(id, *c, goes)
        };
        let queue = node.queue.iter().map(|&(_, c)| c);
        limited.iter().any(limits)
            || node.held_for.is_some_and(|c| self.helps(id, c))
            || queue.chain(p.reserved.iter().copied()).any(|c| self.needs(id, c))
            || self.claimant_elsewhere(id).is_some()
    }

    /// Whether the cell could start on the lease's pilot after the end of this lease and of all idle leases, but not
    /// without the end of this lease.
    fn needs(&self, id: LeaseId, cell: Idx<Cell>) -> bool {
        let (lease, c) = (&self.work.leases[&id], &self.work.cells[cell]);
        let p = &self.supply.pilots[lease.pilot];
        let k = &self.work.kernels[c.kernel];
        let sits = c.reserved == Some(lease.pilot) || k.staying().any(|r| r.node == p.node);
        if c.kernel == lease.kernel
            || !sits
            || k.pool != p.pool
            || c.limited.is_some()
            || c.unasked.is_some()
            || c.avoids(p.job, self.now).is_some()
            || self.is_held(p, cell)
        {
            return false;
        }
        let group = if c.need.gpus == 0 { None } else { lease.group };
        if group.is_some_and(|g| !p.groups[g].fits(&c.need)) {
            return false;
        }
        let before = self.reserved_before(p, cell);
        let taken: u16 = before.iter().map(|r| r.cpus).sum();
        let mut gpus = group.map_or(0, |g| free_beside(p, g, &before));
        let mut cpus = p.cpus_free().saturating_sub(taken);
        let others = p
            .leases
            .iter()
            .filter(|l| **l != id)
            .map(|l| &self.work.leases[l]);
        for other in others.clone().filter(|l| goes(l)) {
            gpus += other.gpus_in(group);
            cpus += other.cpus;
        }
        if gpus >= c.need.gpus && cpus >= c.cpus {
            return false;
        }
        for other in others.filter(|l| l.lingers_since().is_some()).chain([lease]) {
            gpus += other.gpus_in(group);
            cpus += other.cpus;
        }
        gpus >= c.need.gpus && cpus >= c.cpus
    }

    /// Whether the lease keeps a pilot beyond the time for which an idle pilot is kept.
    fn is_kept_too_long(&self, lease: &Lease) -> bool {
        let (Some(scale), Some(held)) = (self.scale(lease.pool), &lease.holding) else {
            return false;
        };
        let least = self.supply.pools[lease.pool].config.min_pilots;
        let p = &self.supply.pilots[lease.pilot];
        let spare = self.is_burst(p.node) || self.pilots_coming(lease.pool) > least;
        spare && self.now.since(held.since) >= scale.idle_max
    }
}

/// Whether the lease's GPUs are on their way back for good.
fn goes(lease: &Lease) -> bool {
    match lease.state {
        LeaseState::Ending { cause, leaves_by, .. } => {
            leaves_by.is_none() || cause == EndCause::Claimed || lease.holding.is_none()
        }
        LeaseState::Starting { .. } | LeaseState::Running(_) | LeaseState::Lingering { .. } => false,
    }
}
