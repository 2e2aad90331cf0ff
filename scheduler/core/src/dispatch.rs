//! Distribution of freed GPUs and cores: the first cell in the queue's order gets them, wherever its kernel is.
//!
//! Cells whose kernels have a replica on the node start there. A cell of better rank that waits elsewhere has a replica
//! moved to the node, if its wait would take longer than the move. Nobody is tried whose kernel sits where no GPU is
//! free, or only where none may overtake a due cell (`hold.rs`).

use crate::core::Core;
use crate::index::Idx;
use crate::output::Output;
use crate::state::{Cell, Node, Pilot, PilotState, Pool, Rank, Shape, Work};
use hop_words::id::LeaseId;
use hop_words::lease::EndCause;
use std::collections::{BTreeMap, BTreeSet};

/// Number of cells of one shape to examine for a worthwhile move.
const LOOK_AT: usize = 4;

/// Answers that hold as long as nothing happens: many nodes are looked at for the same cells.
#[derive(Debug, Default)]
struct Looked {
    /// Number of outputs, and of reservations given up, at the time of the look. Each ground of a forecast or a start
    /// changes only with one of them.
    changes: (usize, u64),
    /// Whether a cell may be moved, and is better moved than left waiting.
    better_moved: BTreeMap<Idx<Cell>, bool>,
    /// A holder, to whose nodes in this pool nobody can be brought.
    nobody_to: Option<(Idx<Pool>, Idx<Cell>)>,
    /// Cells that can't start.
    stuck: BTreeSet<Idx<Cell>>,
}

impl Looked {
    /// Forgets everything if there are new outputs, or reservations were given up.
    fn refresh(&mut self, work: &Work, outputs: usize) {
        let changes = (outputs, work.unreserved);
        if self.changes != changes {
            *self = Self {
                changes,
                ..Self::default()
            };
        }
    }
}

impl Core {
    /// Serves the cells for which something has changed.
    pub(crate) fn settle(&mut self, out: &mut Vec<Output>) {
        let mut looked = Looked::default();
        loop {
            if let Some(pool) = self.work.unheld.pop_first() {
                self.hold_for_due(pool, out);
                looked = Looked::default();
            } else if let Some(node) = self.work.stale.pop_first() {
                self.dispatch_one_of_many(node, &mut looked, out);
            } else if let Some(node) = self.work.demanding.pop_first() {
                self.demand_on(node, out);
                looked.refresh(&self.work, out.len());
            } else {
                return;
            }
        }
    }

    /// Marks the kernel's nodes as changed: cells waiting there may be able to start now.
    pub(crate) fn stale_around(&mut self, kernel: Idx<crate::state::Kernel>) {
        let nodes = self.work.kernels[kernel].replicas.iter().map(|r| r.node);
        self.work.stale.extend(nodes);
    }

    /// GPUs or cores of this node have become free: starts waiting cells, in order.
    pub(crate) fn dispatch_node(&mut self, node: Idx<Node>, out: &mut Vec<Output>) {
        self.dispatch_one_of_many(node, &mut Looked::default(), out);
    }

    /// As [`Self::dispatch_node`], for one of several nodes. Nothing else changes between two of them.
    fn dispatch_one_of_many(&mut self, node: Idx<Node>, looked: &mut Looked, out: &mut Vec<Output>) {
        let mut far = self.first_with_room(node, looked, out.len());
        // Only a start changes this.
        let mut cores = self.has_free_cores(node);
        if !cores {
            return;
        }
        for cell in self.queue_from_first_chance(node, far, looked) {
            if !cores {
                return;
            }
            let Some(rank) = self.work.cells.get(cell).map(|c| c.rank) else {
                continue;
            };
            far = self.bring(far, node, Some((rank, cell)), looked, out);
            looked.refresh(&self.work, out.len());
            if self.work.cells.get(cell).is_none() || looked.stuck.contains(&cell) {
                continue;
            }
            if !self.may_start(cell) {
                continue;
            }
            if self.try_start(cell, out) {
                far = self.first_with_room(node, looked, out.len());
                cores = self.has_free_cores(node);
            } else {
                looked.stuck.insert(cell);
            }
        }
        self.bring(far, node, None, looked, out);
    }

    /// The cells of the node's queue, beginning with the first cell that may start, or that comes behind `far`. While
    /// nodes are held for a due cell, hundreds of nodes change at a time, and most have no such cell.
    fn queue_from_first_chance(
        &self,
        node: Idx<Node>,
        far: Option<(Rank, Idx<Cell>)>,
        looked: &Looked,
    ) -> Vec<Idx<Cell>> {
        let queue = self.supply.nodes[node].queue.iter();
        let idle = |place: &&(Rank, Idx<Cell>)| {
            let cell = place.1;
            far.is_none_or(|far| **place < far) && (looked.stuck.contains(&cell) || !self.may_start(cell))
        };
        queue.skip_while(idle).map(|&(_, cell)| cell).collect()
    }

    /// Whether an attempt to start the cell is worth a look: on a node with free GPUs, unless a hold forbids the start,
    /// or on cores alone. Often nearly all nodes are full or held.
    fn may_start(&self, cell: Idx<Cell>) -> bool {
        let c = &self.work.cells[cell];
        let kernel = &self.work.kernels[c.kernel];
        let may = c.need.gpus == 0
            || kernel.replicas.iter().any(|r| {
                self.supply.open.contains(r.node)
                    || self.supply.free.contains(r.node) && self.may_start_on_held(cell)
            });
        debug_assert!(
            may || self.spot(cell).is_none(),
            "a cell that could start is passed over"
        );
        may
    }

    fn has_free_cores(&self, node: Idx<Node>) -> bool {
        let pilots = self.supply.nodes[node].pilots.iter();
        let mut pilots = pilots.map(|p| &self.supply.pilots[*p]);
        pilots.any(|p| p.state == PilotState::Up && p.cpus_free() > 0)
    }

    /// The first cell of another node with room on this node.
    fn first_with_room(
        &self,
        node: Idx<Node>,
        looked: &mut Looked,
        outputs: usize,
    ) -> Option<(Rank, Idx<Cell>)> {
        looked.refresh(&self.work, outputs);
        let n = &self.supply.nodes[node];
        let holder = n.held_for.map(|cell| (n.pool, cell));
        if holder.is_some() && looked.nobody_to == holder {
            return None;
        }
        let cores = self.supply.lending(node).map(Pilot::cpus_free).max().unwrap_or(0);
        let wanted = |shape: &Shape| self.has_room_for(node, shape);
        let first = self.first_elsewhere(node, cores, &wanted, looked);
        if let Some((pool, cell)) = holder
            && self.nobody_comes_to(pool, cell, looked)
        {
            looked.nobody_to = holder;
        }
        first
    }

    /// Whether nobody can be brought to the holder's nodes in the pool: each candidate would delay the holder, or is
    /// better left where it waits.
    fn nobody_comes_to(&self, pool: Idx<Pool>, holder: Idx<Cell>, looked: &Looked) -> bool {
        let with_gpus = self.supply.pools[pool].shapes.iter();
        let with_gpus = with_gpus.filter(|(shape, _)| shape.gpus > 0);
        let mut near = with_gpus.flat_map(|(_, waiting)| waiting.iter().take(LOOK_AT));
        near.all(|&(_, c)| looked.better_moved.get(&c) == Some(&false) || self.would_delay(c, holder))
    }

    /// Has replicas moved to the node for cells of other nodes, beginning with `far`. Goes on while these cells come
    /// before `place` in the queue and find room. Returns the first cell behind `place`.
    fn bring(
        &mut self,
        far: Option<(Rank, Idx<Cell>)>,
        node: Idx<Node>,
        place: Option<(Rank, Idx<Cell>)>,
        looked: &mut Looked,
        out: &mut Vec<Output>,
    ) -> Option<(Rank, Idx<Cell>)> {
        let mut far = far;
        while let Some((rank, cell)) = far {
            if place.is_some_and(|p| p < (rank, cell)) {
                return far;
            }
            if !self.move_to_room(cell, node, out) {
                return None;
            }
            far = self.first_with_room(node, looked, out.len());
        }
        None
    }

    /// The first cell in the queue that waits elsewhere, has a wanted shape, needs no more than these cores, and is
    /// better moved to the node than left waiting.
    fn first_elsewhere(
        &self,
        node: Idx<Node>,
        cores: u16,
        wanted: &dyn Fn(&Shape) -> bool,
        looked: &mut Looked,
    ) -> Option<(Rank, Idx<Cell>)> {
        let pool = &self.supply.pools[self.supply.nodes[node].pool];
        if pool.config.migrate.is_none() || !self.supply.nodes[node].standing.is_up() {
            return None;
        }
        let shapes = pool
            .shapes
            .iter()
            .filter(|(shape, _)| shape.gpus > 0 && wanted(shape));
        let firsts = shapes.filter_map(|(_, waiting)| {
            let near = waiting.iter().copied();
            let mut near = near
                .filter(|&(_, c)| self.work.cells[c].cpus <= cores)
                .take(LOOK_AT);
            near.find(|&(_, c)| {
                let better = || self.may_be_brought(c) && self.is_better_moved(c);
                self.takes_in(self.work.cells[c].kernel, node)
                    && *looked.better_moved.entry(c).or_insert_with(better)
            })
        });
        firsts.min()
    }

    /// Tries these cells again, in the queue's order, and has the others wait on.
    pub(crate) fn retry(&mut self, cells: &BTreeSet<Idx<Cell>>, out: &mut Vec<Output>) {
        let mut order: Vec<Idx<Cell>> = cells
            .iter()
            .copied()
            .filter(|&c| self.work.cells.get(c).is_some())
            .collect();
        order.sort_by_key(|&c| self.work.cells[c].rank);
        for cell in order {
            if self.work.cells.get(cell).is_some() && !self.try_start(cell, out) {
                let seq = self.work.cells[cell].seq;
                self.claim(cell, out);
                if self.is_same(cell, seq) {
                    self.demand_grew(cell, out);
                }
                if self.is_same(cell, seq) {
                    self.tell(cell, out);
                }
            }
        }
    }

    // --- a lease whose cell is over ---

    /// Ends the lease for the first cell in wait of its resources. Returns whether there is such a cell.
    pub(crate) fn hand_on(&mut self, id: LeaseId, out: &mut Vec<Output>) -> bool {
        let lease = &self.work.leases[&id];
        let (kernel, pilot, group) = (lease.kernel, lease.pilot, lease.group);
        let node = self.supply.pilots[pilot].node;
        let near = self.claimant(id).map(|cell| (self.work.cells[cell].rank, cell));
        let far = self.claimant_elsewhere(id);
        let Some((_, cell)) = [near, far].into_iter().flatten().min() else {
            return false;
        };
        let c = &self.work.cells[cell];
        if c.kernel == kernel && self.lingering_for(kernel, &c.need, c.cpus) == Some(id) {
            let c = self.take_cell(cell);
            let waited = self.now.since(c.submitted);
            self.grant_lingering(id, c.running(self.now), waited, out);
            return true;
        }
        self.end_lease(id, EndCause::Claimed, out);
        if far.is_some_and(|(_, c)| c == cell) {
            // It comes while the lease ends.
            self.move_to_pilot(cell, pilot, out);
        } else {
            self.claim_on(pilot, group, cell, out);
        }
        self.work.stale.insert(node);
        true
    }

    /// The first cell in the node's queue with room after this lease's end.
    fn claimant(&self, id: LeaseId) -> Option<Idx<Cell>> {
        let node = self.supply.pilots[self.work.leases[&id].pilot].node;
        let queue = self.supply.nodes[node].queue.iter().map(|&(_, c)| c);
        let mut near = queue.filter(|&c| {
            let kernel = self.work.cells[c].kernel;
            self.work.kernels[kernel].staying().any(|r| r.node == node)
        });
        near.find(|&cell| self.would_fit(id, cell))
    }

    /// The first cell of another node to be moved here after this lease's end.
    pub(crate) fn claimant_elsewhere(&self, id: LeaseId) -> Option<(Rank, Idx<Cell>)> {
        let lease = &self.work.leases[&id];
        let group = lease.group?;
        let p = &self.supply.pilots[lease.pilot];
        let g = &p.groups[group];
        let wanted = |shape: &Shape| shape.fits(g) && g.free() + lease.gpus >= shape.gpus;
        let cores = p.cpus_free().saturating_add(lease.cpus);
        let first = self.first_elsewhere(p.node, cores, &wanted, &mut Looked::default())?;
        self.would_fit(id, first.1).then_some(first)
    }

    /// Whether the cell could start on the lease's pilot if the lease were over, and only then.
    fn would_fit(&self, id: LeaseId, cell: Idx<Cell>) -> bool {
        let lease = &self.work.leases[&id];
        let (p, c) = (&self.supply.pilots[lease.pilot], &self.work.cells[cell]);
        if p.state != PilotState::Up
            || c.limited.is_some()
            || c.unasked.is_some()
            || self.work.kernels[c.kernel].pool != p.pool
            || self.is_held(p, cell)
        {
            return false;
        }
        let before = self.reserved_before(p, cell);
        let held: u16 = before.iter().map(|r| r.cpus).sum();
        if p.cpus_free() + lease.cpus < c.cpus.saturating_add(held) {
            return false;
        }
        if c.need.gpus == 0 {
            // The cell could have started beside this lease: another reason holds the cell up.
            return p.cpus_free() < c.cpus.saturating_add(held);
        }
        lease.group.is_some_and(|g| {
            let free = crate::room::free_beside(p, g, &before);
            p.groups[g].fits(&c.need) && lease.gpus > 0 && free + lease.gpus >= c.need.gpus
        })
    }

    /// Whether a due cell holds the lease's node, or GPUs of its pilot are held back for a cell that finds too few
    /// free.
    pub(crate) fn is_waited_for(&self, id: LeaseId) -> bool {
        let lease = &self.work.leases[&id];
        let p = &self.supply.pilots[lease.pilot];
        let lacks = |c: &Idx<Cell>| {
            self.helps(id, *c) && self.idle_needed(p, lease.group, *c).is_some_and(|idle| idle > 0)
        };
        let held = self.supply.nodes[p.node].held_for;
        held.is_some_and(|c| self.helps(id, c)) || p.reserved.iter().any(lacks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_at_is_forgotten_at_the_next_change() {
        let mut work = Work::default();
        let mut looked = Looked::default();
        looked.stuck.insert(Idx::FIRST);
        looked.better_moved.insert(Idx::FIRST, true);
        looked.refresh(&work, 0);
        assert!(looked.stuck.contains(&Idx::FIRST) && looked.better_moved.len() == 1);
        looked.refresh(&work, 1);
        assert!(looked.stuck.is_empty() && looked.better_moved.is_empty());
        looked.stuck.insert(Idx::FIRST);
        looked.refresh(&work, 1);
        assert!(looked.stuck.contains(&Idx::FIRST));
        work.unreserved += 1;
        looked.refresh(&work, 1);
        assert!(looked.stuck.is_empty());
    }
}
