//! Moving a replica to where a GPU is free, when that is expected to be quicker than waiting.

use crate::core::Core;
use crate::id::{Incarnation, KernelId};
use crate::leases::PRIOR_WEIGHT;
use crate::output::Output;
use crate::predict::Habit;
use crate::state::{Moving, PilotState, Ticket, Timer};
use crate::time::Span;

/// What was seen where nothing was.
static NEVER: Habit = Habit::new();

/// How many of the first in the queue are looked at when GPUs become free that nobody near wants.
const OFFERS: usize = 8;
/// A move that takes this many times as long as expected is given up.
const PATIENCE: u64 = 20;

impl Core {
    /// Moves a replica of the cell's kernel if the cell is thereby expected to start sooner.
    pub(crate) fn consider_moving(&mut self, cell: u32, out: &mut Vec<Output>) {
        let c = &self.cells[cell];
        let k = &self.kernels[c.kernel];
        let pool = k.pool;
        let Some(m) = self.pools[pool as usize].config.migrate.clone() else {
            return;
        };
        if k.migrating.is_some() || k.only().is_some() || c.limited.is_some() || k.replicas.is_empty() {
            return;
        }
        if k.replicas.iter().any(|r| self.own_lease_ending(c.kernel, r.node)) {
            return;
        }
        let takes = self.move_takes(pool, m.takes);
        let wait = self.expected_wait(cell);
        if wait.0 <= takes.0 + m.margin.0 {
            return;
        }
        let target = self.free_node_for(cell).map(|n| (n, false));
        let boot = self.boot_takes(pool);
        let target = target.or_else(|| {
            let sooner = wait.0 > takes.0.max(boot.0) + m.margin.0;
            if sooner {
                self.bare_node_for(cell).map(|n| (n, true))
            } else {
                None
            }
        });
        if let Some((node, bare)) = target {
            if bare {
                let size = self.pilot_size(pool, self.cells[cell].need.gpus, self.cells[cell].cpus);
                self.submit_pilot(pool, None, Some(node), Some(size), out);
            }
            self.move_to(cell, node, out);
        }
    }

    /// How long the cell is expected to wait where its replicas are.
    pub(crate) fn expected_wait(&self, cell: u32) -> Span {
        let k = &self.kernels[self.cells[cell].kernel];
        let coming = k
            .able()
            .filter_map(|r| self.tickets.values().find(|t| t.node == Some(r.node)))
            .map(|t| self.up_in(t))
            .min();
        let free = self.estimate(cell).unwrap_or(Span(u64::MAX / 4));
        coming.map_or(free, |c| c.min(free))
    }

    /// How long a pilot takes on the pool's own nodes.
    pub(crate) fn boot_takes(&self, pool: u32) -> Span {
        let (seen, told) = self.boots_of(pool, None);
        seen.remaining(seen, 0.0, Span::ZERO, 0.5).unwrap_or(told)
    }

    /// How long pilots took until they were up, in a burst partition or the pool's own, and what the site says of it.
    pub(crate) fn boots_of(&self, pool: u32, partition: Option<&String>) -> (&Habit, Span) {
        let p = &self.pools[pool as usize];
        let own = || p.config.scale.as_ref().map_or(Span::from_secs(10), |s| s.boot);
        let burst = |name: &String| p.config.burst.iter().find(|b| b.partition == *name);
        let told = partition.and_then(burst).map_or_else(own, |b| b.boot);
        let seen = p.boots.iter().find(|(name, _)| name.as_ref() == partition);
        (seen.map_or(&NEVER, |(_, habit)| habit), told)
    }

    /// A pilot was up this long after it was asked for.
    pub(crate) fn learn_boot(&mut self, pool: u32, partition: Option<&String>, took: Span) {
        let boots = &mut self.pools[pool as usize].boots;
        let known = boots.iter().position(|(name, _)| name.as_ref() == partition);
        let i = known.unwrap_or_else(|| {
            boots.push((partition.cloned(), Habit::default()));
            boots.len() - 1
        });
        boots[i].1.observe(took);
    }

    /// How much longer until this pilot is up. One that is late waits for its GPUs: for as long again as it has.
    pub(crate) fn up_in(&self, ticket: &Ticket) -> Span {
        let waited = self.now.since(ticket.at);
        let (seen, told) = self.boots_of(ticket.pool, ticket.partition.as_ref());
        let late = || {
            if waited < told {
                Span(told.0 - waited.0)
            } else {
                waited
            }
        };
        seen.remaining(seen, 0.0, waited, 0.5).unwrap_or_else(late)
    }

    fn move_takes(&self, pool: u32, told: Span) -> Span {
        let moves = &self.pools[pool as usize].moves;
        moves
            .remaining(moves, PRIOR_WEIGHT, Span::ZERO, 0.5)
            .unwrap_or(told)
    }

    /// How much longer the kernel's move, if one is under way, is expected to take.
    pub(crate) fn move_left(&self, kernel: u32) -> Option<Span> {
        let k = &self.kernels[kernel];
        let (moving, m) = k
            .migrating
            .zip(self.pools[k.pool as usize].config.migrate.as_ref())?;
        let takes = self.move_takes(k.pool, m.takes);
        Some(Span(takes.0.saturating_sub(self.now.since(moving.since).0)))
    }

    /// A node without a replica of the kernel where the cell could start now: the one where the fewest GPUs stay
    /// over, and of these the one where the fewest kernels are at home.
    fn free_node_for(&self, cell: u32) -> Option<u32> {
        let c = &self.cells[cell];
        let k = &self.kernels[c.kernel];
        self.pools[k.pool as usize]
            .pilots
            .iter()
            .filter(|&&p| {
                let pilot = &self.pilots[p];
                let fits = |g: &crate::state::Group| g.fits(&c.need) && g.free() >= c.need.gpus;
                pilot.state == PilotState::Up
                    && pilot.reserved.is_none()
                    && pilot.cpus_free() >= c.cpus
                    && (c.need.gpus == 0 || pilot.groups.iter().any(fits))
                    && !self.sits_on(c.kernel, pilot.node)
                    && !self.nodes[pilot.node as usize].down
            })
            .min_by_key(|&&p| {
                let pilot = &self.pilots[p];
                (self.nodes[pilot.node as usize].homes.len(), pilot.free_gpus(), p)
            })
            .map(|&p| self.pilots[p].node)
    }

    /// A node without a pilot where one could be started for the cell.
    fn bare_node_for(&self, cell: u32) -> Option<u32> {
        let c = &self.cells[cell];
        let k = &self.kernels[c.kernel];
        let pool = &self.pools[k.pool as usize];
        let size = self.pilot_size(k.pool, c.need.gpus, c.cpus);
        if pool.config.scale.is_none() || !self.may_add_own(k.pool, size) {
            return None;
        }
        let bare = |n: &u32| {
            !self.is_burst(*n)
                && self.spare_gpus(*n) >= size
                && self.may_sit(*n, &c.need, &[])
                && !self.sits_on(c.kernel, *n)
        };
        pool.nodes
            .iter()
            .copied()
            .filter(bare)
            .min_by_key(|&n| (self.nodes[n as usize].homes.len(), n))
    }

    fn sits_on(&self, kernel: u32, node: u32) -> bool {
        let k = &self.kernels[kernel];
        k.replicas.iter().any(|r| r.node == node) || k.planned.iter().any(|p| p.node == node)
    }

    fn move_to(&mut self, cell: u32, node: u32, out: &mut Vec<Output>) {
        let kernel = self.cells[cell].kernel;
        let Some(victim) = self.victim(cell) else {
            return;
        };
        let pilot = self.nodes[node as usize].pilots.first().copied();
        if let Some(p) = pilot.filter(|&p| self.pilots[p].state == PilotState::Up) {
            self.hold_back(p, cell);
        }
        self.begin_move(kernel, victim, node, out);
    }

    /// Has the replica moved to the node.
    pub(crate) fn begin_move(&mut self, kernel: u32, victim: Incarnation, node: u32, out: &mut Vec<Output>) {
        let pool = self.kernels[kernel].pool;
        let told = self.pools[pool as usize].config.migrate.as_ref().map(|m| m.takes);
        let takes = self.move_takes(pool, told.unwrap_or_default());
        let seat = self.plan_seat(kernel, node);
        let incarnation = seat.incarnation;
        let k = &mut self.kernels[kernel];
        k.moved = self.now;
        k.migrating = Some(Moving {
            victim,
            incarnation,
            to: node,
            since: self.now,
        });
        let late = Span(takes.0.saturating_mul(PATIENCE));
        self.at(self.now + late, Timer::Moving(kernel, incarnation));
        self.note_kernel(kernel, out);
        out.push(Output::Migrate {
            kernel: self.kernels[kernel].id.clone(),
            victim,
            seat,
        });
    }

    /// The replica whose place is worth the least: where the cell would wait longest; the last executor, which has
    /// the namespace ready, only if there is no other.
    fn victim(&self, cell: u32) -> Option<Incarnation> {
        let c = &self.cells[cell];
        let k = &self.kernels[c.kernel];
        let wait = |node: u32| {
            let pilots = &self.nodes[node as usize].pilots;
            let spans = pilots.iter().filter_map(|&p| self.free_in(&self.pilots[p], c));
            spans.min().unwrap_or(Span(u64::MAX / 4))
        };
        k.replicas
            .iter()
            .max_by_key(|r| {
                (
                    k.last_executor != Some(r.incarnation),
                    wait(r.node),
                    r.incarnation,
                )
            })
            .map(|r| r.incarnation)
    }

    /// GPUs are free on this node and nobody there wants them: perhaps somebody elsewhere does.
    pub(crate) fn offer(&mut self, node: u32, out: &mut Vec<Output>) {
        let pool = self.nodes[node as usize].pool;
        let p = &self.pools[pool as usize];
        if p.config.migrate.is_none() || p.queue.is_empty() {
            return;
        }
        let free = |p: &u32| self.pilots[*p].state == PilotState::Up && self.pilots[*p].free_gpus() > 0;
        if !self.nodes[node as usize].pilots.iter().any(free) {
            return;
        }
        let first: Vec<u32> = p.queue.iter().take(OFFERS).map(|&(_, c)| c).collect();
        for cell in first {
            if self.cells.get(cell).is_some() {
                self.consider_moving(cell, out);
            }
        }
    }

    /// The new replica of a move has reported itself.
    pub(crate) fn moved_in(&mut self, kernel: u32, incarnation: Incarnation) {
        let k = &mut self.kernels[kernel];
        if let Some(m) = k.migrating.filter(|m| m.incarnation == incarnation) {
            k.migrating = None;
            self.stale_around(kernel);
            let k = &self.kernels[kernel];
            let took = self.now.since(m.since);
            let pool = k.pool;
            self.pools[pool as usize].moves.observe(took);
        }
    }

    /// A replica that was part of a move is gone.
    pub(crate) fn moving_lost(&mut self, kernel: u32, incarnation: Incarnation) {
        let k = &mut self.kernels[kernel];
        if k.migrating.is_some_and(|m| m.incarnation == incarnation) {
            k.migrating = None;
            self.stale_around(kernel);
            self.unreserve_where_it_is_not(kernel);
        }
    }

    /// What is held back for the kernel's cells where they can't run is anybody's.
    pub(crate) fn unreserve_where_it_is_not(&mut self, kernel: u32) {
        for cell in self.kernels[kernel].cells.clone() {
            let pilot = self.cells.get(cell).and_then(|c| c.reserved);
            let Some(node) = pilot.map(|p| self.pilots[p].node) else {
                continue;
            };
            if !self.kernels[kernel].able().any(|r| r.node == node) {
                self.unreserve(cell);
            }
        }
    }

    pub(crate) fn moving_late(&mut self, kernel: u32, incarnation: Incarnation, out: &mut Vec<Output>) {
        let late = |k: &crate::state::Kernel| k.migrating.is_some_and(|m| m.incarnation == incarnation);
        if self.kernels.get(kernel).is_some_and(late) {
            let id = self.kernels[kernel].id.clone();
            self.migration_done(&id, incarnation, false, out);
        }
    }

    pub(crate) fn migration_done(
        &mut self,
        id: &KernelId,
        incarnation: Incarnation,
        moved: bool,
        out: &mut Vec<Output>,
    ) {
        let Some(k) = self.find_kernel(id) else {
            return;
        };
        if !moved {
            self.unplan(k, incarnation);
        }
        self.moving_lost(k, incarnation);
        for cell in self.kernels[k].cells.clone() {
            if self.cells.get(cell).is_some() && !self.try_start(cell, out) && !moved {
                let left = self.unreserve(cell);
                self.claim(cell, out);
                if let Some(node) = left {
                    self.dispatch_node(node, out);
                }
            }
        }
    }
}
