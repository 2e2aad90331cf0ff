//! Nodes held for due cells: the safeguard against starvation.
//!
//! Of the due cells free to run anywhere in their pool, the first of each shape holds a node: no start on this node may
//! delay the cell. Cells running on the node may never end, so the hold doubles in time: one node, two, four, finally
//! every node. From then on the cell starts as soon as the cells of any one node end. Each start of a later cell of the
//! same size widens the hold, too, and so limits such starts. A due cell whose kernel can't move, or has a cell parked
//! on its node, holds its own nodes. `docs/policy.md` argues that every cell is served.
//!
//! On a held node a cell may still start if, by its kernel's past, the cell ends in time (backfill). Estimates may be
//! wrong. So backfill ends once only cells that backfill are in the due cell's way, or a few of the size have
//! overtaken. A node has room for a due cell if one pilot there has both the GPUs and the cores, or could be started.

use crate::core::Core;
use crate::index::{Idx, Places};
use crate::leases::PRIOR_WEIGHT;
use crate::output::Output;
use crate::state::{
    Band, Cell, Group, Hold, Kernel, Lease, LeaseState, Node, Pilot, Pool, Rank, Shape, Size, Timer,
};
use hop_words::time::Span;
use std::collections::BTreeSet;
use std::collections::btree_map::Entry;

/// The number of runs after which a kernel's past is believed.
const BACKFILL_PAST: u32 = 8;
/// The age of a hold from which kernels without such a past may backfill as well.
const BACKFILL_BY_PAST_FOR: Span = Span::from_secs(3600);
/// The quantile of a kernel's runs that has to end in time.
const BACKFILL_QUANTILE: f64 = 0.9;
/// Starts of later cells with a due cell's number of GPUs after which none of them may backfill where the due cell
/// could start.
const BACKFILL_OVERTAKEN: u64 = 4;
/// How often a hold doubles for each later cell of the due cell's size that starts.
const DOUBLINGS: u64 = 2;

/// GPUs that would do for a due cell, and cores.
#[derive(Debug, Clone, Copy)]
struct Room {
    gpus: u16,
    cpus: u16,
}

impl Room {
    fn is_enough(self, due: &Cell) -> bool {
        self.gpus >= due.need.gpus && self.cpus >= due.cpus
    }
}

/// GPUs and cores that are free on a node for a due cell, by where the cell could start.
struct Rooms<'a> {
    due: &'a Cell,
    /// Each lending pilot with its room, and the leases that have not ended.
    pilots: Vec<(&'a Pilot, Room, usize)>,
    /// GPUs for a pilot yet to be started, with those of idle pilots, which give way.
    bare: u16,
}

impl Rooms<'_> {
    /// The lease of the pilot at this place ends.
    fn end(&mut self, at: usize, lease: &Lease) {
        let (p, room, left) = &mut self.pilots[at];
        if lease.group.is_some_and(|g| p.groups[g].fits(&self.due.need)) {
            room.gpus = room.gpus.saturating_add(lease.gpus);
        }
        room.cpus = room.cpus.saturating_add(lease.cpus);
        *left -= 1;
        if *left == 0 {
            self.bare = self.bare.saturating_add(p.lendable());
        }
    }
}

impl Core {
    /// Whether the pilot's node is held for a due cell, and this cell would delay the due one.
    pub(crate) fn is_held(&self, p: &Pilot, cell: Idx<Cell>) -> bool {
        let Some(holder) = self.holder_before(p.node, cell) else {
            return false;
        };
        let (h, c) = (&self.work.cells[holder], &self.work.cells[cell]);
        // Cores beyond the holder's are free for all.
        let beside = c.need.gpus == 0 && p.cpus_free() >= c.cpus.saturating_add(h.cpus);
        !beside && !self.is_over_in_time(c, h, p.node)
    }

    /// Whether a new pilot on the node would serve the cell: no cell before it holds the node, or the cell may
    /// backfill.
    pub(crate) fn may_start_there(&self, node: Idx<Node>, cell: Idx<Cell>) -> bool {
        let c = &self.work.cells[cell];
        self.holder_before(node, cell)
            .is_none_or(|h| c.need.gpus == 0 || self.is_over_in_time(c, &self.work.cells[h], node))
    }

    /// Whether the cell should end, by its kernel's past, before the holder could start on the node.
    fn is_over_in_time(&self, c: &Cell, holder: &Cell, node: Idx<Node>) -> bool {
        // The dearest question comes last.
        let believed = self.is_believed(c.kernel) || self.is_old(holder);
        let may = believed && !self.backfill_is_in_the_way(holder, node);
        if !may || self.has_overtaken_enough(c, Some(node)) {
            return false;
        }
        let k = &self.work.kernels[c.kernel];
        let others = &self.supply.pools[k.pool].runs;
        let takes = k
            .runs
            .remaining(others, PRIOR_WEIGHT, Span::ZERO, BACKFILL_QUANTILE);
        let starts = self.node_free_in(node, holder);
        takes.zip(starts).is_some_and(|(takes, starts)| takes < starts)
    }

    /// Whether the holder would have room on the node by now, were it not for the cells backfilling there. From then on
    /// no further cell backfills there: the holder waits only for the cells already running.
    fn backfill_is_in_the_way(&self, holder: &Cell, node: Idx<Node>) -> bool {
        let mut rooms = self.rooms(node, holder);
        for (at, p) in self.supply.lending(node).enumerate() {
            let leases = p.leases.iter().map(|id| &self.work.leases[id]);
            leases.filter(|l| l.backfills).for_each(|l| rooms.end(at, l));
        }
        self.are_enough(node, &rooms)
    }

    /// Whether a due cell with as many GPUs has been overtaken too often for another backfill, of cells that the node
    /// would do for. Without a node: of cells that any node for `c` would do for. The due cell may wait for its own boot
    /// or move, and hold nothing.
    fn has_overtaken_enough(&self, c: &Cell, node: Option<Idx<Node>>) -> bool {
        let shapes = &self.supply.pools[self.work.kernels[c.kernel].pool].shapes;
        let own = Shape::of(&c.need);
        let competes = |shape: &Shape| match node {
            Some(node) => shape.gpus == own.gpus && self.has_fitting(node, shape),
            None => shape.asks_no_more_than(&own),
        };
        let competing = shapes.iter().filter(|(shape, _)| competes(shape));
        let mut firsts = competing.filter_map(|(_, waiting)| {
            let mut due = waiting
                .iter()
                .take_while(|(rank, _)| rank.band == Band::Due && *rank < c.rank);
            due.find(|&&(_, d)| {
                self.work.cells[d].limited.is_none() && self.may_roam(self.work.cells[d].kernel)
            })
        });
        firsts.any(|&(_, d)| self.overtaken_since_due(&self.work.cells[d]) >= BACKFILL_OVERTAKEN)
    }

    /// Whether a held node may take the cell, as far as can be told without a forecast. It may take a cell of better
    /// rank than a holder, a cell fit for backfill, and a cell on cores alone.
    pub(crate) fn may_start_on_held(&self, cell: Idx<Cell>) -> bool {
        let c = &self.work.cells[cell];
        let mut holders = self.supply.pools.values().flat_map(|p| p.held_for.keys());
        c.need.gpus == 0 || holders.any(|&h| c.rank <= self.work.cells[h].rank) || self.may_backfill(c)
    }

    /// The same for backfill alone.
    fn may_backfill(&self, c: &Cell) -> bool {
        let mut holders = self.supply.pools.values().flat_map(|p| p.held_for.keys());
        let believed = self.is_believed(c.kernel) || holders.any(|&h| self.is_old(&self.work.cells[h]));
        believed && !self.has_overtaken_enough(c, None)
    }

    /// Whether the holder has held nodes for so long that kernels without a past may backfill, too, by the runs of
    /// others in their pool. The holder may lack GPUs for days.
    fn is_old(&self, holder: &Cell) -> bool {
        let hold = holder.hold.as_ref();
        hold.is_some_and(|h| self.now.since(h.since) > BACKFILL_BY_PAST_FOR)
    }

    /// Whether the kernel has run often enough for its past to be believed.
    fn is_believed(&self, kernel: Idx<Kernel>) -> bool {
        self.work.kernels[kernel].runs.count >= BACKFILL_PAST
    }

    /// Whether the cell can't start on the holder's nodes, as far as can be told without a forecast.
    pub(crate) fn would_delay(&self, cell: Idx<Cell>, holder: Idx<Cell>) -> bool {
        let (c, h) = (&self.work.cells[cell], &self.work.cells[holder]);
        cell != holder && c.rank > h.rank && c.need.gpus > 0 && !self.may_backfill(c)
    }

    /// Whether the cell could start only where a due cell's node may be backfilled. Forecasts change without an event:
    /// the cell is tried at the next change there.
    pub(crate) fn would_backfill(&self, cell: Idx<Cell>) -> bool {
        let node = |pilot: Idx<Pilot>| self.supply.pilots[pilot].node;
        let spot = self.spot(cell);
        spot.is_some_and(|s| self.holder_before(node(s.pilot), cell).is_some())
    }

    /// The due cell that holds the node, if `cell` comes after that due cell.
    pub(crate) fn holder_before(&self, node: Idx<Node>, cell: Idx<Cell>) -> Option<Idx<Cell>> {
        let holder = self.supply.nodes[node].held_for.filter(|&h| h != cell)?;
        (self.work.cells[holder].rank < self.work.cells[cell].rank).then_some(holder)
    }

    /// The GPUs and cores that are free on the node for the due cell.
    fn rooms<'a>(&'a self, node: Idx<Node>, due: &'a Cell) -> Rooms<'a> {
        let mut rooms = Rooms {
            due,
            pilots: Vec::new(),
            bare: self.bare_gpus(node),
        };
        for p in self.supply.lending(node) {
            let room = Room {
                gpus: p.fitting(&due.need).map(Group::free).sum(),
                cpus: p.cpus_free(),
            };
            if p.leases.is_empty() {
                rooms.bare = rooms.bare.saturating_add(p.lendable());
            }
            rooms.pilots.push((p, room, p.leases.len()));
        }
        rooms
    }

    /// GPUs of the node that neither pilots nor the jobs of others have.
    fn bare_gpus(&self, node: Idx<Node>) -> u16 {
        let taken = self.supply.nodes[node].room.taken;
        self.spare_gpus(node).saturating_sub(taken)
    }

    fn are_enough(&self, node: Idx<Node>, rooms: &Rooms<'_>) -> bool {
        let mut pilots = rooms.pilots.iter();
        pilots.any(|(_, room, _)| room.is_enough(rooms.due))
            || self.bare_is_enough(node, rooms.bare, rooms.due)
    }

    /// Whether a pilot with so many GPUs of the node, started anew, would have room for the due cell.
    fn bare_is_enough(&self, node: Idx<Node>, gpus: u16, due: &Cell) -> bool {
        let cpus = self.cpus_of_pilot(self.supply.nodes[node].pool, gpus);
        Room { gpus, cpus }.is_enough(due)
    }

    /// Expected time until the node has room for the due cell without any other start there. `None` means that it never
    /// has.
    pub(crate) fn node_free_in(&self, node: Idx<Node>, due: &Cell) -> Option<Span> {
        let mut rooms = self.rooms(node, due);
        let mut ends = Vec::new();
        for (at, p) in self.supply.lending(node).enumerate() {
            let leases = p.leases.iter().map(|id| &self.work.leases[id]);
            ends.extend(leases.map(|l| (self.remaining(l), at, l)));
        }
        if self.are_enough(node, &rooms) {
            return Some(Span::ZERO);
        }
        ends.sort_by_key(|&(span, at, l)| (span, at, l.id));
        ends.into_iter().find_map(|(span, at, lease)| {
            rooms.end(at, lease);
            self.are_enough(node, &rooms).then_some(span)
        })
    }

    // --- who holds what ---

    /// The pool's due cells have changed, or were overtaken: what is held for them follows.
    pub(crate) fn hold_for_due(&mut self, pool: Idx<Pool>, out: &mut Vec<Output>) {
        let (holders, bound) = (self.roaming_holders(pool), self.bound_holders(pool));
        let before = std::mem::replace(&mut self.supply.pools[pool].holders, holders.clone());
        // Due cells whose kernels can't move hold nodes, too.
        let of_pool = |c: &Idx<Cell>| self.work.kernels[self.work.cells[*c].kernel].pool == pool;
        let hold = self
            .supply
            .pools
            .values()
            .flat_map(|p| p.held_for.keys().copied());
        let no_more = hold.filter(|c| of_pool(c) && !bound.contains(c));
        let old: BTreeSet<Idx<Cell>> = before.into_iter().chain(no_more).collect();
        for old in old.into_iter().filter(|c| !holders.contains(c)) {
            self.release_hold(old);
        }
        for cell in bound {
            let kernel = self.work.cells[cell].kernel;
            let nodes: Vec<Idx<Node>> = self.work.kernels[kernel].able().map(|r| r.node).collect();
            self.hold(cell, nodes, out);
        }
        for cell in holders {
            let nodes = self.nodes_to_hold(cell);
            self.hold(cell, nodes, out);
        }
    }

    /// Whether GPUs of the node would do, free or not.
    fn has_fitting(&self, node: Idx<Node>, shape: &Shape) -> bool {
        let n = &self.supply.nodes[node];
        let mut groups = self.supply.lending(node).flat_map(|p| &p.groups);
        shape.takes(&n.gpu_type, n.gpu_mem_mib) || groups.any(|g| shape.fits(g))
    }

    /// Of the due cells that may run anywhere in the pool, the first of each shape, in the queue's order. A cell holds
    /// nothing behind a holder that asks for no more: whatever becomes free goes to that one first.
    fn roaming_holders(&self, pool: Idx<Pool>) -> Vec<Idx<Cell>> {
        let p = &self.supply.pools[pool];
        if p.config.migrate.is_none() {
            return Vec::new();
        }
        let mut firsts: Vec<(Rank, Idx<Cell>, &Shape)> = Vec::new();
        for (shape, waiting) in &p.shapes {
            let mut due = waiting.iter().take_while(|(rank, _)| rank.band == Band::Due);
            let holds = |c: Idx<Cell>| self.may_hold(c) && self.may_roam(self.work.cells[c].kernel);
            if let Some(&(rank, cell)) = due.find(|&&(_, c)| holds(c)) {
                firsts.push((rank, cell, shape));
            }
        }
        firsts.sort_unstable();
        let mut holders: Vec<(Idx<Cell>, &Shape)> = Vec::new();
        for (_, cell, shape) in firsts {
            if !holders.iter().any(|(_, first)| first.asks_no_more_than(shape)) {
                holders.push((cell, shape));
            }
        }
        holders.into_iter().map(|(cell, _)| cell).collect()
    }

    /// The due cells that can't run but where their kernels are, in the queue's order.
    fn bound_holders(&self, pool: Idx<Pool>) -> Vec<Idx<Cell>> {
        let p = &self.supply.pools[pool];
        let holds = |c: &Idx<Cell>| self.may_hold(*c) && !self.may_roam(self.work.cells[*c].kernel);
        if p.config.migrate.is_none() {
            let due = p.queue.iter().take_while(|(rank, _)| rank.band == Band::Due);
            return due.map(|&(_, c)| c).filter(holds).collect();
        }
        let stuck = p.tally.stuck.iter().flat_map(|&k| &self.work.kernels[k].cells);
        let due = stuck.map(|&c| (self.work.cells[c].rank, c));
        let due = due.filter(|(rank, c)| rank.band == Band::Due && holds(c));
        let mut due: Vec<(Rank, Idx<Cell>)> = due.collect();
        due.sort_unstable();
        due.into_iter().map(|(_, c)| c).collect()
    }

    /// Whether a hold would help the cell. A due cell over a limit, or of a kernel without a process, would hold in
    /// vain. A cell in wait of its own move, boot or lease would as well.
    fn may_hold(&self, cell: Idx<Cell>) -> bool {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        c.limited.is_none()
            && !k.replicas.is_empty()
            && self.over_limit(c).is_none()
            && !self.waits_for_its_own(cell)
    }

    /// Whether the cell waits for its kernel's move, for the boot of its pilot, or for the end of its kernel's own
    /// lease. No hold makes a move, a boot or an end quicker. In a large pool dozens of later cells rightly start
    /// meanwhile. A hold widening with each of them would soon stop the whole pool.
    fn waits_for_its_own(&self, cell: Idx<Cell>) -> bool {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let mut booting = self.supply.tickets.for_cell((cell, c.seq));
        k.migrating.is_some()
            || booting.any(|(_, t)| !self.is_late_to_boot(t))
            || k.able().all(|r| self.own_lease_ending(c.kernel, r.node))
    }

    /// The cell waits for something of its own, or no longer does: a due cell begins or ends its hold.
    pub(crate) fn reconsider_hold(&mut self, cell: Idx<Cell>) {
        let Some(c) = self.work.cells.get(cell).filter(|c| c.due) else {
            return;
        };
        let pool = self.work.kernels[c.kernel].pool;
        self.work.unheld.insert(pool);
    }

    /// The same for all cells of a kernel, whose move begins or ends.
    pub(crate) fn reconsider_holds_of(&mut self, kernel: Idx<Kernel>) {
        for cell in self.work.kernels[kernel].cells.clone() {
            self.reconsider_hold(cell);
        }
    }

    /// The number of further nodes for a due cell to hold: the longer its wait, and the more later cells of its size
    /// have started, the more nodes.
    fn nodes_to_hold(&self, cell: Idx<Cell>) -> Vec<Idx<Node>> {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let held = c.hold.as_ref();
        let has = held.map_or(0, |h| h.nodes.len());
        let age = held.map_or(Span::ZERO, |h| self.now.since(h.since));
        let doublings = age.0 / self.config.widen_every.0.max(1) + DOUBLINGS * self.overtaken_since_due(c);
        let most = 1usize << doublings.min(31);
        if has >= most {
            return Vec::new();
        }
        let pool = &self.supply.pools[k.pool];
        let behind = |o: &Idx<Cell>| *o != cell && self.work.cells[*o].rank > c.rank;
        let of_others = pool.held_for.keys().filter(|o| behind(o));
        let of_others = of_others.filter_map(|&o| self.work.cells[o].hold.as_ref());
        let of_others = of_others.flat_map(|h| h.nodes.iter());
        let of_others = of_others.filter(|&n| self.supply.nodes[n].pool == k.pool);
        let free = pool.unheld.iter().chain(of_others);
        let fits = free.filter(|&n| {
            self.may_sit(n, &c.need, &[]) && self.has_ever(n, c) && !self.is_put_off(c.kernel, n)
        });
        let fits: Vec<Idx<Node>> = fits.collect();
        if fits.len() <= most - has {
            return fits;
        }
        let mut soonest: Vec<(Span, bool, Idx<Node>)> = fits
            .into_iter()
            .filter_map(|n| Some((self.node_free_in(n, c)?, k.home != Some(n), n)))
            .collect();
        soonest.sort_unstable();
        let soonest = soonest.into_iter().take(most - has);
        soonest.map(|(.., n)| n).collect()
    }

    /// Whether the node has room for the due cell, once all that runs there has ended: whether
    /// [`Self::node_free_in`] knows a time.
    pub(crate) fn has_ever(&self, node: Idx<Node>, due: &Cell) -> bool {
        let mut bare = 0u16;
        for p in self.supply.lending(node) {
            let gpus = p.fitting(&due.need).map(|g| g.used + g.free()).sum();
            if (Room { gpus, cpus: p.cpus }).is_enough(due) {
                return true;
            }
            bare = bare.saturating_add(p.lendable());
        }
        self.bare_is_enough(node, bare.saturating_add(self.bare_gpus(node)), due)
    }

    /// How many later cells of its size have started since the cell is due.
    fn overtaken_since_due(&self, c: &Cell) -> u64 {
        let size = Size::of(&c.need, c.cpus);
        let since = c.arenas.iter().filter_map(|arena| {
            let class = self.work.arenas.get(arena)?.classes.get(&size)?;
            Some(class.overtaken_since_due((c.submitted, c.seq)))
        });
        since.max().unwrap_or(0)
    }

    /// Holds these nodes, too, for the cell. Nodes held for a cell of better rank stay with that cell.
    fn hold(&mut self, cell: Idx<Cell>, mut nodes: Vec<Idx<Node>>, out: &mut Vec<Output>) {
        let now = self.now;
        let rank = self.work.cells[cell].rank;
        nodes.sort_unstable();
        let mut lost = Places::default();
        for node in nodes {
            let other = self.supply.nodes[node].held_for.filter(|&o| o != cell);
            match other {
                Some(o) if self.work.cells[o].rank < rank => continue,
                Some(o) => {
                    self.lose_hold(o, node);
                    lost.insert(node);
                }
                None => {}
            }
            self.hold_node(node, Some(cell));
            let hold = self.work.cells[cell].hold.get_or_insert_with(|| Hold {
                since: now,
                nodes: Places::default(),
            });
            if hold.nodes.insert(node) {
                self.clear_idle(node, cell, out);
            }
        }
        self.may_go_on(&lost);
        let c = &self.work.cells[cell];
        let pool = &self.supply.pools[self.work.kernels[c.kernel].pool];
        let seq = c.seq;
        if let Some(hold) = c.hold.as_ref().filter(|_| pool.holders.contains(&cell)) {
            let every = self.config.widen_every.0.max(1);
            let next = (now.since(hold.since).0 / every + 1).saturating_mul(every);
            self.at(hold.since + Span(next), Timer::Widen(cell, seq));
        }
    }

    pub(crate) fn widen(&mut self, cell: Idx<Cell>, seq: u64) {
        if self.is_same(cell, seq) {
            let pool = self.work.kernels[self.work.cells[cell].kernel].pool;
            self.work.unheld.insert(pool);
        }
    }

    /// Ends the leases that only linger on a held node and are in the cell's way.
    fn clear_idle(&mut self, node: Idx<Node>, cell: Idx<Cell>, out: &mut Vec<Output>) {
        let pilots = self.supply.nodes[node].pilots.iter();
        let pilots = pilots.map(|p| &self.supply.pilots[*p]);
        let pilots = pilots.filter(|p| p.listed.is_none_or(|l| l.lingers));
        let leases = pilots.flat_map(|p| &p.leases);
        let lingers = |id: &&hop_words::id::LeaseId| {
            matches!(self.work.leases[*id].state, LeaseState::Lingering { .. }) && self.helps(**id, cell)
        };
        let idle: Vec<_> = leases.filter(lingers).copied().collect();
        for id in idle {
            self.end_lease(id, hop_words::lease::EndCause::Claimed, out);
        }
    }

    /// From now on the node is held for this cell, or for none.
    fn hold_node(&mut self, node: Idx<Node>, cell: Option<Idx<Cell>>) {
        let n = &mut self.supply.nodes[node];
        let old = std::mem::replace(&mut n.held_for, cell);
        if old == cell {
            return;
        }
        let pool = &mut self.supply.pools[n.pool];
        match old.map(|old| pool.held_for.entry(old)) {
            Some(Entry::Occupied(mut count)) if *count.get() > 1 => *count.get_mut() -= 1,
            Some(Entry::Occupied(count)) => _ = count.remove(),
            Some(Entry::Vacant(_)) => {}
            None => _ = pool.unheld.remove(node),
        }
        match cell {
            Some(cell) => {
                *pool.held_for.entry(cell).or_default() += 1;
                self.supply.held.insert(node);
            }
            None => {
                pool.unheld.insert(node);
                self.supply.held.remove(node);
            }
        }
        self.list_open(node);
    }

    /// As [`Self::hold_node`] with no cell, for all nodes of a hold at its end. A hold of a whole pool ends so at each
    /// start of its holder.
    fn free_nodes(&mut self, cell: Idx<Cell>, nodes: &Places<Node>) {
        for node in nodes.iter() {
            let n = &mut self.supply.nodes[node];
            debug_assert_eq!(n.held_for, Some(cell), "a hold knows its nodes");
            n.held_for = None;
            self.supply.pools[n.pool].unheld.insert(node);
            self.supply.held.remove(node);
            if self.supply.free.contains(node) {
                self.supply.open.insert(node);
            }
        }
        for pool in self.supply.pools.places() {
            self.supply.pools[pool].held_for.remove(&cell);
        }
    }

    pub(crate) fn lose_hold(&mut self, cell: Idx<Cell>, node: Idx<Node>) {
        if let Some(hold) = &mut self.work.cells[cell].hold {
            hold.nodes.remove(node);
        }
        self.hold_node(node, None);
    }

    /// Nodes to which the kernel isn't moved for now are held no longer for its cells.
    pub(crate) fn lose_holds_put_off(&mut self, kernel: Idx<Kernel>) {
        for cell in self.work.kernels[kernel].cells.clone() {
            let hold = self.work.cells[cell].hold.as_ref();
            let held = hold.into_iter().flat_map(|h| h.nodes.iter());
            let put_off: Vec<Idx<Node>> = held.filter(|&n| self.is_put_off(kernel, n)).collect();
            let mut lost = Places::default();
            for node in put_off {
                self.lose_hold(cell, node);
                lost.insert(node);
            }
            self.may_go_on(&lost);
        }
    }

    /// The node is held no longer for a cell that may run elsewhere and can't have room there.
    pub(crate) fn lose_hold_in_vain(&mut self, node: Idx<Node>) {
        let Some(cell) = self.supply.nodes[node].held_for else {
            return;
        };
        let c = &self.work.cells[cell];
        if self.may_roam(c.kernel) && !self.has_ever(node, c) {
            self.lose_hold(cell, node);
            let mut lost = Places::default();
            lost.insert(node);
            self.may_go_on(&lost);
        }
    }

    /// These nodes are held no longer. Marks nodes as changed if a cell could start there now, or a pilot could be
    /// started there for a cell. Many nodes are held at a time, and most are full.
    fn may_go_on(&mut self, nodes: &Places<Node>) {
        if nodes.is_empty() {
            return;
        }
        let lanes = self.supply.pools.values().map(|p| &p.lanes);
        let spare = lanes.flat_map(|l| l.spare.iter().map(|&(_, n)| n));
        self.work.demanding.extend(spare.filter(|&n| nodes.contains(n)));
        let cores_alone = |p: &Pool| p.shapes.keys().next().is_some_and(|s| s.gpus == 0);
        if self.supply.pools.values().any(cores_alone) {
            self.work.stale.extend(nodes.iter());
            return;
        }
        let free = self
            .supply
            .pools
            .values()
            .flat_map(|p| p.lanes.free.range((1, Idx::FIRST)..));
        let changed = free.map(|&(_, p)| self.supply.pilots[p].node);
        let changed = changed.filter(|&n| nodes.contains(n));
        self.work.stale.extend(changed);
    }

    /// Nothing is held for the cell any more.
    pub(crate) fn release_hold(&mut self, cell: Idx<Cell>) {
        let Some(c) = self.work.cells.get(cell) else {
            return;
        };
        let (due, pool) = (c.due, self.work.kernels[c.kernel].pool);
        let hold = self.work.cells[cell].hold.take();
        let nodes = hold.map_or_else(Places::default, |h| h.nodes);
        self.free_nodes(cell, &nodes);
        self.may_go_on(&nodes);
        self.supply.pools[pool].holders.retain(|&h| h != cell);
        if due {
            self.work.unheld.insert(pool);
        }
    }
}
