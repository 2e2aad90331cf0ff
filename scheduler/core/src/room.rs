//! Pilots with room for a cell now, and the lists for finding them.

use crate::core::Core;
use crate::index::Idx;
use crate::state::{Band, Cell, Kernel, LeaseState, Listed, Node, Pilot, PilotState, Shape, Standing};
use hop_words::id::Incarnation;
use std::ops::RangeFrom;

/// Where a cell could start now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    pub pilot: Idx<Pilot>,
    pub group: Option<usize>,
    pub executor: Incarnation,
}

/// All entries of a list with at least so many GPUs.
fn at_least<T>(gpus: u16) -> RangeFrom<(u16, Idx<T>)> {
    (gpus, Idx::FIRST)..
}

impl Core {
    /// Place for the cell to start now: its kernel's last place if possible, else the pilot with the fewest GPUs left
    /// over.
    pub(crate) fn spot(&self, cell: Idx<Cell>) -> Option<Spot> {
        let c = &self.work.cells[cell];
        if c.unasked.is_some() {
            return None;
        }
        let k = &self.work.kernels[c.kernel];
        let affinity = self.supply.pools[k.pool].config.affinity;
        let mut best: Option<(bool, u16, Spot)> = None;
        for r in k.staying().filter(|r| !self.own_lease_ending(c.kernel, r.node)) {
            let elsewhere = affinity && k.home != Some(r.node);
            for &pilot in &self.supply.nodes[r.node].pilots {
                let Some(group) = self.room(pilot, cell) else {
                    continue;
                };
                let key = (elsewhere, self.supply.pilots[pilot].free_gpus());
                let spot = Spot {
                    pilot,
                    group,
                    executor: r.incarnation,
                };
                if best.is_none_or(|(e, f, _)| key < (e, f)) {
                    best = Some((key.0, key.1, spot));
                }
            }
        }
        best.map(|(_, _, spot)| spot)
    }

    /// Whether nothing keeps the cell from starting now.
    pub(crate) fn could_start(&self, cell: Idx<Cell>) -> bool {
        self.spot(cell).is_some() && self.over_limit(&self.work.cells[cell]).is_none()
    }

    /// Whether a lease of the kernel is ending on the node. A process must let go of a device before it gets another on
    /// the same node.
    pub(crate) fn own_lease_ending(&self, kernel: Idx<Kernel>, node: Idx<Node>) -> bool {
        self.work.kernels[kernel].leases.iter().any(|id| {
            let lease = &self.work.leases[id];
            matches!(lease.state, LeaseState::Ending { .. }) && self.supply.pilots[lease.pilot].node == node
        })
    }

    /// Whether the pilot can take the cell now: `Some(group)`, with no group for cores alone.
    pub(crate) fn room(&self, pilot: Idx<Pilot>, cell: Idx<Cell>) -> Option<Option<usize>> {
        let (p, c) = (&self.supply.pilots[pilot], &self.work.cells[cell]);
        let pool = self.work.kernels[c.kernel].pool;
        // The free GPUs are in a list; the check for holds needs forecasts, so it comes last.
        let enough = p.listed.is_some_and(|l| l.free >= c.need.gpus);
        if p.state != PilotState::Up || p.pool != pool || !enough || self.is_held(p, cell) {
            return None;
        }
        if c.avoids(p.job, self.now).is_some() {
            return None;
        }
        let before = self.reserved_before(p, cell);
        let cpus_held: u16 = before.iter().map(|r| r.cpus).sum();
        if p.cpus_free() < c.cpus.saturating_add(cpus_held) {
            return None;
        }
        if c.need.gpus == 0 {
            return Some(None);
        }
        let fits = |g: usize| p.groups[g].fits(&c.need) && free_beside(p, g, &before) >= c.need.gpus;
        (0..p.groups.len()).find(|&g| fits(g)).map(Some)
    }

    /// Cells with GPUs of the pilot reserved before `cell`: cells of better rank and, unless `cell` is due, cells whose
    /// kernel is on its way here. A kernel that came in vain would be moved on, and on.
    pub(crate) fn reserved_before(&self, p: &Pilot, cell: Idx<Cell>) -> Vec<&Cell> {
        let rank = self.work.cells[cell].rank;
        let comes = |r: &Cell| rank.band != Band::Due && self.comes_to(r, p.node);
        let others = p.reserved.iter().filter(|&&r| r != cell);
        let others = others.map(|&r| &self.work.cells[r]);
        others.filter(|r| r.rank < rank || comes(r)).collect()
    }

    // --- the lists ---

    /// Brings the pool's lists, and the pilot's reservations, up to date after a change on the pilot.
    pub(crate) fn list_pilot(&mut self, pilot: Idx<Pilot>) {
        self.tally_pilot(pilot);
        self.unreserve_in_vain(pilot);
        let new = self.listing_of(pilot);
        let p = &mut self.supply.pilots[pilot];
        let old = std::mem::replace(&mut p.listed, new);
        if old == new {
            return;
        }
        let node = p.node;
        let lanes = &mut self.supply.pools[p.pool].lanes;
        if let Some(old) = old {
            lanes.free.remove(&(old.free, pilot));
            lanes.idle.remove(&(old.idle, pilot));
        }
        if let Some(new) = new {
            lanes.free.insert((new.free, pilot));
            lanes.idle.insert((new.idle, pilot));
        }
        self.list_free(node);
    }

    /// Brings the lists of nodes with free GPUs, and of open ones, up to date after a change on a pilot of the node.
    pub(crate) fn list_free(&mut self, node: Idx<Node>) {
        match self.has_free_gpus(node) {
            true => _ = self.supply.free.insert(node),
            false => _ = self.supply.free.remove(node),
        }
        self.list_open(node);
    }

    /// Brings the list of open nodes up to date after a change of the node's hold.
    pub(crate) fn list_open(&mut self, node: Idx<Node>) {
        let is_open = self.supply.nodes[node].held_for.is_none() && self.supply.free.contains(node);
        match is_open {
            true => _ = self.supply.open.insert(node),
            false => _ = self.supply.open.remove(node),
        }
    }

    /// Whether a pilot on the node has free GPUs.
    pub(crate) fn has_free_gpus(&self, node: Idx<Node>) -> bool {
        let listed = |p: &Idx<Pilot>| self.supply.pilots[*p].listed;
        let mut listed = self.supply.nodes[node].pilots.iter().filter_map(listed);
        listed.any(|l| l.free > 0)
    }

    pub(crate) fn listing_of(&self, pilot: Idx<Pilot>) -> Option<Listed> {
        let p = &self.supply.pilots[pilot];
        if p.state != PilotState::Up {
            return None;
        }
        let idle = |l: &&hop_words::id::LeaseId| {
            let state = &self.work.leases[*l].state;
            matches!(state, LeaseState::Lingering { .. } | LeaseState::Ending { .. })
        };
        let idle = p.leases.iter().filter(idle).map(|l| self.work.leases[l].gpus);
        let free = p.free_gpus();
        Some(Listed {
            free,
            idle: free + idle.sum::<u16>(),
            lingers: p
                .leases
                .iter()
                .any(|l| self.work.leases[l].lingers_since().is_some()),
        })
    }

    /// Brings the pool's list up to date after a change on the node.
    pub(crate) fn list_node(&mut self, node: Idx<Node>) {
        let new = self.spare_listing(node);
        let n = &mut self.supply.nodes[node];
        self.supply.pools[n.pool].balance = None;
        let old = std::mem::replace(&mut n.listed, new);
        let lanes = &mut self.supply.pools[n.pool].lanes;
        if old != new {
            lanes.spare.remove(&(old, node));
            if new > 0 {
                lanes.spare.insert((new, node));
            }
        }
    }

    /// GPUs of the node that no pilot has or will have; zero where none may be started.
    pub(crate) fn spare_listing(&self, node: Idx<Node>) -> u16 {
        match self.supply.nodes[node].standing {
            Standing::Up => self.spare_gpus(node),
            Standing::Unheard | Standing::Down | Standing::Gone => 0,
        }
    }

    /// Pilots of the cell's pool with room for the cell now, were its kernel there; the tightest first.
    pub(crate) fn rooms_anywhere(&self, cell: Idx<Cell>) -> impl Iterator<Item = Idx<Pilot>> + '_ {
        let c = &self.work.cells[cell];
        let lanes = &self.supply.pools[self.work.kernels[c.kernel].pool].lanes;
        let pilots = lanes.free.range(at_least(c.need.gpus)).map(|&(_, p)| p);
        self.not_held(pilots, cell)
            .filter(move |&p| self.room(p, cell).is_some())
    }

    /// Pilots anywhere in the cell's pool where idle leases might make room for it.
    pub(crate) fn idle_anywhere(&self, cell: Idx<Cell>) -> impl Iterator<Item = Idx<Pilot>> + '_ {
        let c = &self.work.cells[cell];
        let lanes = &self.supply.pools[self.work.kernels[c.kernel].pool].lanes;
        let pilots = lanes.idle.range(at_least(c.need.gpus)).map(|&(_, p)| p);
        self.not_held(pilots, cell)
    }

    /// Leaves out pilots on held nodes if no held node may take the cell.
    fn not_held<'a>(
        &'a self,
        pilots: impl Iterator<Item = Idx<Pilot>> + 'a,
        cell: Idx<Cell>,
    ) -> impl Iterator<Item = Idx<Pilot>> + 'a {
        let any = std::cell::LazyCell::new(move || self.may_start_on_held(cell));
        pilots.filter(move |&p| !self.supply.held.contains(self.supply.pilots[p].node) || *any)
    }

    /// Whether cells of this shape could start on the node now, beside the cells with reservations there.
    pub(crate) fn has_room_for(&self, node: Idx<Node>, shape: &Shape) -> bool {
        let pilots = self.supply.nodes[node].pilots.iter();
        let pilots = pilots.map(|p| &self.supply.pilots[*p]);
        let mut up = pilots.filter(|p| p.state == PilotState::Up);
        up.any(|p| p.groups.iter().any(|g| shape.fits(g) && g.free() >= shape.gpus))
    }
}

/// GPUs of the pilot's group left free by the reservations of these cells.
pub(crate) fn free_beside(p: &Pilot, group: usize, before: &[&Cell]) -> u16 {
    let g = &p.groups[group];
    let held: u16 = before
        .iter()
        .filter(|r| g.fits(&r.need))
        .map(|r| r.need.gpus)
        .sum();
    g.free().saturating_sub(held)
}
