//! Idle leases make room: a lingering lease ends as soon as a waiting cell can use its GPUs or cores.

use crate::core::Core;
use crate::index::Idx;
use crate::limits::Over;
use crate::output::Output;
use crate::room::free_beside;
use crate::state::{Cell, Lease, LeaseState, Node, Pilot, PilotState, Scope};
use hop_words::id::LeaseId;
use hop_words::lease::{EndCause, ParkAsk};

/// GPUs of idle leases to be taken: from kernels that can't let go, and from all kernels.
type IdleTaken = (u16, u16);

impl Core {
    /// Ends idle leases on the kernel's nodes if that makes room for the cell, and reserves the room.
    pub(crate) fn claim(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) {
        if self.work.cells[cell].unasked.is_some() {
            return;
        }
        if self.over_limit(&self.work.cells[cell]).is_some() {
            return self.claim_within_limits(cell, out);
        }
        let pool = self.work.kernels[self.work.cells[cell].kernel].pool;
        if self.supply.pools[pool].config.affinity && self.home_can_start(cell) {
            return;
        }
        if let Some((pilot, group)) = self.claimable(cell) {
            self.claim_on(pilot, group, cell, out);
        }
    }

    /// Ends as many idle leases of the pilot as the cell needs gone, the longest idle first. Leases of kernels that
    /// can't let go come last: their end costs variables.
    pub(crate) fn claim_on(
        &mut self,
        pilot: Idx<Pilot>,
        group: Option<usize>,
        cell: Idx<Cell>,
        out: &mut Vec<Output>,
    ) {
        self.hold_back(pilot, cell);
        for id in self.idle_to_end(pilot, group, cell) {
            self.end_lease(id, EndCause::Claimed, out);
        }
    }

    fn idle_to_end(&self, pilot: Idx<Pilot>, group: Option<usize>, cell: Idx<Cell>) -> Vec<LeaseId> {
        let (p, c) = (&self.supply.pilots[pilot], &self.work.cells[cell]);
        let (mut gpus, mut cpus) = self.free_or_ending(p, group, cell);
        let enough = |gpus: u16, cpus: u16| gpus >= c.need.gpus && cpus >= c.cpus;
        let leases = p.leases.iter().map(|id| &self.work.leases[id]);
        let mut idle: Vec<_> = leases.filter_map(|l| Some((l.lingers_since()?, l))).collect();
        idle.sort_by_key(|(since, l)| (l.holding.is_some(), *since, l.id));
        let mut victims = Vec::new();
        for (_, lease) in idle {
            if enough(gpus, cpus) {
                break;
            }
            if c.need.gpus > gpus && lease.group != group {
                continue;
            }
            gpus += lease.gpus_in(group);
            cpus += lease.cpus;
            victims.push(lease.id);
        }
        victims
    }

    /// The pilot's GPUs and cores that are free for the cell, or are about to be.
    fn free_or_ending(&self, p: &Pilot, group: Option<usize>, cell: Idx<Cell>) -> (u16, u16) {
        let before = self.reserved_before(p, cell);
        let ending = p.leases.iter().map(|id| &self.work.leases[id]);
        let ending = ending.filter(|l| matches!(l.state, LeaseState::Ending { .. }));
        let mut gpus = group.map_or(0, |g| free_beside(p, g, &before));
        let mut cpus = p.cpus_free();
        for lease in ending {
            gpus += lease.gpus_in(group);
            cpus += lease.cpus;
        }
        let held: u16 = before.iter().map(|r| r.cpus).sum();
        (gpus, cpus.saturating_sub(held))
    }

    /// The pilot where the fewest idle leases must end for the cell to start, those of kernels that can't let go
    /// before all, if any will do.
    fn claimable(&self, cell: Idx<Cell>) -> Option<(Idx<Pilot>, Option<usize>)> {
        let k = &self.work.kernels[self.work.cells[cell].kernel];
        let pilots = k
            .staying()
            .flat_map(|r| self.supply.nodes[r.node].pilots.iter().copied());
        let found = pilots.filter_map(|p| self.claimable_on(p, cell));
        let least = found.min_by_key(|(idle, ..)| *idle);
        least.map(|(_, pilot, group)| (pilot, group))
    }

    /// How many GPUs of idle leases must be taken on the pilot for the cell, and in which group: first the GPUs of
    /// kernels that can't let go, then all. `None` means that even all of them are too few.
    pub(crate) fn claimable_on(
        &self,
        pilot: Idx<Pilot>,
        cell: Idx<Cell>,
    ) -> Option<(IdleTaken, Idx<Pilot>, Option<usize>)> {
        let (p, c) = (&self.supply.pilots[pilot], &self.work.cells[cell]);
        if p.state != PilotState::Up
            || p.pool != self.work.kernels[c.kernel].pool
            || self.is_held(p, cell)
            || c.avoids(p.job, self.now).is_some()
        {
            return None;
        }
        let groups = p.groups_for(&c.need);
        let needed = groups.into_iter().filter_map(|g| {
            let idle = self.idle_needed(p, g, cell)?;
            Some(((self.held_among(p, g, idle), idle), pilot, g))
        });
        needed.min_by_key(|(idle, ..)| *idle)
    }

    /// The part of these `idle` GPUs with kernels that can't let go.
    fn held_among(&self, p: &Pilot, group: Option<usize>, idle: u16) -> u16 {
        let leases = p.leases.iter().map(|id| &self.work.leases[id]);
        let free = leases.filter(|l| l.lingers_since().is_some() && l.holding.is_none());
        idle.saturating_sub(free.map(|l| l.gpus_in(group)).sum())
    }

    /// How many GPUs of idle leases must be taken for the cell; `None` if all of them wouldn't do.
    pub(crate) fn idle_needed(&self, p: &Pilot, group: Option<usize>, cell: Idx<Cell>) -> Option<u16> {
        let c = &self.work.cells[cell];
        let (gpus, cpus) = self.free_or_ending(p, group, cell);
        let leases = p.leases.iter().map(|id| &self.work.leases[id]);
        let idle = || leases.clone().filter(|l| l.lingers_since().is_some());
        let idle_gpus: u16 = idle().map(|l| l.gpus_in(group)).sum();
        let idle_cpus: u16 = idle().map(|l| l.cpus).sum();
        let enough = gpus + idle_gpus >= c.need.gpus && cpus + idle_cpus >= c.cpus;
        enough.then(|| c.need.gpus.saturating_sub(gpus))
    }

    /// Ends idle leases under the limits against the cell, if the cell is within all its limits without them.
    pub(crate) fn claim_within_limits(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) {
        for id in self.idle_within_limits(cell).unwrap_or_default() {
            self.end_lease(id, EndCause::Claimed, out);
        }
    }

    /// The idle leases to end for the cell to be within all its limits, those of kernels that can't let go last. `None`
    /// means that even all of them wouldn't do: they end for nobody.
    fn idle_within_limits(&self, cell: Idx<Cell>) -> Option<Vec<LeaseId>> {
        let ends = |l: &Lease| matches!(l.state, LeaseState::Ending { .. });
        let mut idle: Vec<&Lease> = self.work.leases.values().collect();
        idle.retain(|l| l.lingers_since().is_some());
        idle.sort_by_key(|l| l.holding.is_some());
        let mut victims: Vec<LeaseId> = Vec::new();
        for over in self.limits_over(&self.work.cells[cell]) {
            let counted = idle.iter().filter(|l| self.is_within(l, over.scope));
            let (taken, left): (Vec<&Lease>, Vec<&Lease>) = counted.partition(|l| victims.contains(&l.id));
            let taken: u32 = taken.iter().map(|l| u32::from(l.gpus)).sum();
            let mut excess = over
                .excess()
                .saturating_sub(taken + self.leased_under(&over, ends));
            for lease in left {
                if excess > 0 {
                    excess = excess.saturating_sub(lease.gpus.into());
                    victims.push(lease.id);
                }
            }
            if excess > 0 {
                return None;
            }
        }
        Some(victims)
    }

    /// GPUs of the leases counted by the limit, as far as wanted.
    fn leased_under(&self, over: &Over, wanted: impl Fn(&Lease) -> bool) -> u32 {
        let leases = self.work.leases.values();
        let leases = leases.filter(|l| wanted(l) && self.is_within(l, over.scope));
        leases.map(|l| u32::from(l.gpus)).sum()
    }

    /// Whether the cell would be within all its limits after the end of this lease and of all idle leases, but not
    /// without the end of this lease. `going` tells the leases that end in any case.
    pub(crate) fn helps_within_limits(
        &self,
        id: LeaseId,
        cell: Idx<Cell>,
        going: impl Fn(&Lease) -> bool,
    ) -> bool {
        let lease = &self.work.leases[&id];
        let idle = |l: &Lease| l.lingers_since().is_some() || matches!(l.state, LeaseState::Ending { .. });
        let overs: Vec<Over> = self.limits_over(&self.work.cells[cell]).collect();
        let going = |l: &Lease| l.id != id && going(l);
        let needs = |o: &Over| self.is_within(lease, o.scope) && self.leased_under(o, going) < o.excess();
        overs.iter().any(needs) && overs.iter().all(|o| self.leased_under(o, idle) >= o.excess())
    }

    /// Whether a limit of this scope counts the lease.
    pub(crate) fn is_within(&self, lease: &Lease, scope: Scope) -> bool {
        self.counts(scope, lease.user, lease.account, lease.pool)
    }

    // --- holding back ---

    /// Reserves GPUs of the pilot, free now or soon, for the cell.
    pub(crate) fn hold_back(&mut self, pilot: Idx<Pilot>, cell: Idx<Cell>) {
        if self.work.cells[cell].reserved == Some(pilot) {
            return;
        }
        self.unreserve(cell);
        let p = &mut self.supply.pilots[pilot];
        p.reserved.push(cell);
        self.work.cells[cell].reserved = Some(pilot);
        self.work.stale.insert(self.supply.pilots[pilot].node);
    }

    /// Whether GPUs of the pilot are worth keeping for the cell: enough are free, ending, idle or asked to park, or the
    /// cell's kernel is on its way there.
    pub(crate) fn is_worth_reserving(&self, p: &Pilot, cell: Idx<Cell>) -> bool {
        let c = &self.work.cells[cell];
        let leases = p.leases.iter().map(|id| &self.work.leases[id]);
        let leaves = |l: &&Lease| match l.state {
            LeaseState::Lingering { .. } | LeaseState::Ending { .. } => true,
            LeaseState::Running(_) => l.asked == ParkAsk::Asked,
            LeaseState::Starting { .. } => false,
        };
        let leaving: Vec<&Lease> = leases.filter(leaves).collect();
        let cpus = p.cpus_free() + leaving.iter().map(|l| l.cpus).sum::<u16>();
        let would_do = |group: Option<usize>| {
            let free = group.map_or(0, |g| p.groups[g].free());
            free + leaving.iter().map(|l| l.gpus_in(group)).sum::<u16>() >= c.need.gpus
        };
        self.comes_to(c, p.node) || cpus >= c.cpus && p.groups_for(&c.need).into_iter().any(would_do)
    }

    /// Whether the cell's kernel is on its way to the node.
    pub(crate) fn comes_to(&self, cell: &Cell, node: Idx<Node>) -> bool {
        let moving = self.work.kernels[cell.kernel].migrating;
        moving.is_some_and(|m| m.to == node)
    }

    /// Gives up the pilot's reservations that are of no use any more: others have the GPUs.
    pub(crate) fn unreserve_in_vain(&mut self, pilot: Idx<Pilot>) {
        let p = &self.supply.pilots[pilot];
        let in_vain = |c: &Idx<Cell>| !self.is_worth_reserving(p, *c);
        for cell in p.reserved.iter().copied().filter(in_vain).collect::<Vec<_>>() {
            self.unreserve(cell);
        }
    }

    /// Gives up the cell's reservation of GPUs.
    pub(crate) fn unreserve(&mut self, cell: Idx<Cell>) {
        if let Some(pilot) = self.work.cells[cell].reserved.take() {
            let p = &mut self.supply.pilots[pilot];
            p.reserved.retain(|&c| c != cell);
            self.work.stale.insert(p.node);
            self.work.unreserved += 1;
        }
    }
}
