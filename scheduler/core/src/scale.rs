//! How many pilots there are, and where: started where a kernel's next cell is expected, kept as long as that is
//! worth the GPUs, and given back.

use crate::config::{Burst, Scale};
use crate::core::Core;
use crate::index::Idx;
use crate::output::Output;
use crate::placement::Fit;
use crate::state::{Cell, Kernel, Load, Node, Pilot, PilotState, Pool, Standing, Timer};
use hop_words::id::JobId;
use hop_words::time::Span;

/// Shortest pause between two looks at an idle pilot's worth.
const LOOK_LEAST: Span = Span::from_secs(15);
const LOOK_MOST: Span = Span::from_secs(600);
/// Number of pilots in vain for one cell before the first pause, length of that pause, and how often the pause doubles.
const VAIN_AT_ONCE: u32 = 3;
const VAIN_PAUSE: Span = Span::from_secs(10);
const VAIN_DOUBLINGS: u32 = 5;
/// Highest chance of conflict between kernels packed onto one node.
const CONFLICT: f64 = 0.02;
/// Expected share of use of a kernel's GPUs, and the weight of this prior in GPU-hours of experience.
const PRIOR_DUTY: f64 = 0.3;
const PRIOR_GPU_SECONDS: f64 = 24.0 * 3600.0;

/// Where a burst partition has room.
enum BurstNode {
    Known(Idx<Node>),
    /// The site has not described its nodes: Slurm chooses.
    Unknown,
    Full,
}

impl Core {
    pub(crate) fn scale(&self, pool: Idx<Pool>) -> Option<&Scale> {
        self.supply.pools[pool].config.scale.as_ref()
    }

    // --- starting pilots ---

    /// Starts a pilot for a waiting cell if the kernel's nodes have no pilot, or busy ones only.
    pub(crate) fn demand_grew(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) {
        let k = self.work.cells[cell].kernel;
        let pool = self.work.kernels[k].pool;
        let c = &self.work.cells[cell];
        if self.now < c.vain.next || self.is_booting_for(cell) || self.limits_demand(cell) {
            return;
        }
        if self.scale(pool).is_none() {
            return self.bring_pilot(cell, out);
        }
        let home = self.work.kernels[k].home;
        let size = self.size_for(cell);
        // A pilot waiting in Slurm's queue keeps the place, unless another pilot would not wait.
        let queues = self.has_stuck(cell);
        if let Some(node) = self.own_node(k).filter(|_| self.home_can_start(cell)) {
            self.boot(node, size, cell, out);
            return;
        }
        if self.start_is_near(cell) {
            return;
        }
        let mut nodes: Vec<Idx<Node>> = self.work.kernels[k].able().map(|r| r.node).collect();
        nodes.sort_by_key(|&n| (self.is_taken(n, size), home != Some(n), n));
        nodes.retain(|&n| !queues || !self.is_taken(n, size));
        match nodes.into_iter().find(|&n| self.could_boot(n, size, cell)) {
            Some(node) => self.boot(node, size, cell, out),
            None => self.burst(cell, out),
        }
        if self.work.cells.get(cell).is_some() && !self.is_booting_for(cell) {
            self.bring_pilot(cell, out);
        }
    }

    /// Brings a pilot to a cell whose kernel has none, nor any on its way. In a full pool an idle pilot elsewhere gives
    /// way, or any pilot for a cell that has waited very long.
    fn bring_pilot(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let pool = k.pool;
        let anywhere = || self.supply.tickets.anywhere();
        let unplaced = || anywhere().any(|t| t.pool == pool && !self.is_stuck(t));
        if self.is_served(cell) || unplaced() {
            return;
        }
        let size = self.size_for(cell);
        let queues = self.has_stuck(cell);
        let fits = |n: &Idx<Node>| {
            self.takes_pilots(*n, pool)
                && self.may_suit(*n, &c.need)
                && self.spare_gpus(*n) >= size
                && self.may_start_there(*n, cell)
                && !(queues && self.is_taken(*n, size))
        };
        let node = k
            .able()
            .map(|r| r.node)
            .filter(fits)
            .min_by_key(|&n| (self.is_taken(n, size), k.home != Some(n), n));
        let Some(node) = node else { return };
        if !self.may_add(pool, node, size) {
            if self.is_burst(node) || self.is_taken(node, size) {
                return;
            }
            let Some(victim) = self.gives_way(pool, c.due) else {
                return;
            };
            // The new pilot is requested first, to keep the pool's minimum from requesting another.
            self.submit_for(cell, node, size, out);
            return self.drain(victim, out);
        }
        self.submit_for(cell, node, size, out);
    }

    /// Asks for a pilot on the node, for this cell.
    pub(crate) fn submit_for(&mut self, cell: Idx<Cell>, node: Idx<Node>, size: u16, out: &mut Vec<Output>) {
        let pool = self.work.kernels[self.work.cells[cell].kernel].pool;
        let gpu_type = self.type_to_name(cell);
        let ticket = self.submit_pilot(pool, None, Some(node), Some(size), gpu_type, out);
        self.dedicate(ticket, cell, out);
    }

    /// The coming pilot is meant for the cell.
    pub(crate) fn dedicate(&mut self, ticket: u64, cell: Idx<Cell>, out: &mut Vec<Output>) {
        self.give_up_stuck_for(cell, out);
        let seq = self.work.cells[cell].seq;
        self.supply.tickets.change(ticket, |t| t.cell = Some((cell, seq)));
        self.note_ticket(ticket, out);
        self.reconsider_hold(cell);
    }

    /// A pilot meant for the cell is up. If the cell neither starts nor has GPUs there, the pilot was in vain. After
    /// several such pilots, the next ones start at ever longer intervals: for some unknown reason, pilots are of no use
    /// to the cell.
    pub(crate) fn count_if_vain(&mut self, pilot: Idx<Pilot>, cell: Idx<Cell>, seq: u64) {
        if !self.is_same(cell, seq) || self.work.cells[cell].reserved == Some(pilot) {
            return;
        }
        let vain = &mut self.work.cells[cell].vain;
        vain.pilots += 1;
        if let Some(more) = vain.pilots.checked_sub(VAIN_AT_ONCE) {
            vain.next = self.now + Span(VAIN_PAUSE.0 << more.min(VAIN_DOUBLINGS));
        }
    }

    /// Whether a large enough pilot with GPUs that would do is on a node of the cell's kernel, or on its way there.
    fn is_served(&self, cell: Idx<Cell>) -> bool {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let lends = |p: &Idx<Pilot>| {
            let p = &self.supply.pilots[*p];
            match p.state {
                PilotState::Up => c.need.gpus == 0 || p.groups.iter().any(|g| g.could_serve(&c.need)),
                PilotState::Silent { draining, .. } => !draining,
                PilotState::Draining => false,
            }
        };
        let here = |n: Idx<Node>| {
            let mut coming = self.supply.tickets.on(n);
            coming.any(|(_, t)| t.pool == k.pool && !self.is_stuck(t)) && self.may_suit(n, &c.need)
                || self.supply.nodes[n].pilots.iter().any(lends)
        };
        k.able().any(|r| here(r.node))
    }

    /// Whether a pilot could be started on the node now, if need be in place of an idle pilot elsewhere.
    pub(crate) fn could_bring(&self, pool: Idx<Pool>, node: Idx<Node>) -> bool {
        let may_replace = || !self.is_burst(node) && !self.is_taken(node, 1);
        self.may_add(pool, node, 1) || may_replace() && self.gives_way(pool, false).is_some()
    }

    /// The pool's own least useful pilot: without leases on a node without waiting cells, or else with all leases held
    /// by kernels unable to let go. For a due cell, the pilot that lends least.
    fn gives_way(&self, pool: Idx<Pool>, due: bool) -> Option<Idx<Pilot>> {
        let held = |l: &hop_words::id::LeaseId| {
            let lease = &self.work.leases[l];
            lease.holding.is_some() && lease.lingers_since().is_some()
        };
        let idle = |p: &Pilot| {
            p.leases.iter().all(held) && p.reserved.is_empty() && self.supply.nodes[p.node].queue.is_empty()
        };
        let own = |p: &Pilot| p.state == PilotState::Up && !self.is_burst(p.node);
        self.supply.pools[pool]
            .pilots
            .iter()
            .copied()
            .filter(|&p| own(&self.supply.pilots[p]) && (due || idle(&self.supply.pilots[p])))
            .min_by_key(|&p| {
                let pilot = &self.supply.pilots[p];
                let homes = self.supply.nodes[pilot.node].homes.len();
                (!idle(pilot), pilot.used_gpus(), homes, p)
            })
    }

    /// Whether Slurm can start the pool's pilots on the node now, as far as known. A kernel may sit on a node that has
    /// left its pool.
    pub(crate) fn takes_pilots(&self, node: Idx<Node>, pool: Idx<Pool>) -> bool {
        let n = &self.supply.nodes[node];
        n.standing.is_up() && n.pool == pool && self.is_trusted(node)
    }

    /// Whether `size` more GPUs are allowed on the node.
    pub(crate) fn may_add(&self, pool: Idx<Pool>, node: Idx<Node>, size: u16) -> bool {
        self.too_many(pool, node, size) == 0
    }

    /// By how many GPUs the limit of the node's partition would be exceeded with `size` more. A burst partition that
    /// isn't configured any more has no room.
    fn too_many(&self, pool: Idx<Pool>, node: Idx<Node>, size: u16) -> u32 {
        let Some(name) = &self.supply.nodes[node].burst else {
            // A pilot waiting in Slurm's queue isn't given up for another pilot that would wait, too.
            return match self.is_taken(node, size) {
                true => self.too_many_in_all(pool, size),
                false => self.too_many_own(pool, size),
            };
        };
        let burst = &self.supply.pools[pool].config.burst;
        let burst = burst.iter().find(|b| b.partition == *name);
        burst.map_or_else(|| size.into(), |b| self.too_many_there(pool, b, size))
    }

    /// Pilots that Slurm doesn't start are given up for others.
    fn too_many_own(&self, pool: Idx<Pool>, size: u16) -> u32 {
        let excess = self.too_many_in_all(pool, size);
        if excess == 0 {
            0
        } else {
            excess.saturating_sub(self.gpus_stuck(pool))
        }
    }

    /// The same with all coming pilots.
    pub(crate) fn too_many_in_all(&self, pool: Idx<Pool>, size: u16) -> u32 {
        let config = &self.supply.pools[pool].config;
        let most = config.max_pilots * u32::from(config.gpus_per_pilot);
        (self.gpus_coming(pool) + u32::from(size)).saturating_sub(most)
    }

    fn too_many_there(&self, pool: Idx<Pool>, burst: &Burst, size: u16) -> u32 {
        let whole = u32::from(self.supply.pools[pool].config.gpus_per_pilot);
        let there = self.gpus_bursting(pool, &burst.partition);
        (there + u32::from(size)).saturating_sub(burst.max_pilots * whole)
    }

    /// GPUs of the pool's pilots in the burst partition or on their way there. An ending pilot without leases counts as
    /// gone.
    fn gpus_bursting(&self, pool: Idx<Pool>, partition: &str) -> u32 {
        let nodes = self.supply.pools[pool].nodes.iter();
        let nodes = nodes.filter(|&&n| self.supply.nodes[n].burst.as_deref() == Some(partition));
        let up = nodes.map(|&n| self.gpus_up(n));
        let tickets = self.supply.tickets.values();
        let coming = tickets.filter(|t| t.pool == pool && t.partition.as_deref() == Some(partition));
        up.chain(coming.map(|t| t.gpus)).map(u32::from).sum()
    }

    /// GPUs of a pilot for a cell of this need.
    pub(crate) fn pilot_size(&self, pool: Idx<Pool>, gpus: u16, cpus: u16) -> u16 {
        let config = &self.supply.pools[pool].config;
        let whole = config.gpus_per_pilot.max(1);
        if !config.scale.as_ref().is_some_and(|s| s.right_size) {
            return whole;
        }
        // A pilot's cores are in proportion to its GPUs.
        let per_gpu = (config.cpus_per_pilot / whole).max(1);
        gpus.max(cpus.div_ceil(per_gpu)).clamp(1, whole)
    }

    /// Most cores of a pilot on so many free GPUs.
    pub(crate) fn cpus_of_pilot(&self, pool: Idx<Pool>, gpus: u16) -> u16 {
        let config = &self.supply.pools[pool].config;
        let whole = config.gpus_per_pilot.max(1);
        match gpus < whole {
            true => gpus.saturating_mul((config.cpus_per_pilot / whole).max(1)),
            false => config.cpus_per_pilot.max(whole),
        }
    }

    /// Size of a pilot for this cell and for the likely next needs of its kernel. As large as the cell's own need if
    /// the kernel's nodes have room for such a pilot alone: the cell doesn't wait for more than it asks for.
    pub(crate) fn size_for(&self, cell: Idx<Cell>) -> u16 {
        let (least, likely) = (self.least_size(cell), self.likely_size(cell));
        if likely <= least {
            return least;
        }
        let k = &self.work.kernels[self.work.cells[cell].kernel];
        let best = |size: u16| k.able().map(|r| self.could_come(r.node, size, cell)).max();
        if best(least) > best(likely) { least } else { likely }
    }

    /// Whether the node has room for a pilot for the cell, and whether the limits allow the pilot, too.
    fn could_come(&self, node: Idx<Node>, size: u16, cell: Idx<Cell>) -> (bool, bool) {
        let pool = self.work.kernels[self.work.cells[cell].kernel].pool;
        let room = self.could_boot(node, size, cell) && !self.is_taken(node, size);
        (
            room,
            room && self.to_give_back(pool, node, size, Some(cell)).is_some(),
        )
    }

    /// Size of a pilot for this cell alone.
    fn least_size(&self, cell: Idx<Cell>) -> u16 {
        let c = &self.work.cells[cell];
        self.pilot_size(self.work.kernels[c.kernel].pool, c.need.gpus, c.cpus)
    }

    /// Size of a pilot for the likely next needs of the cell's kernel.
    fn likely_size(&self, cell: Idx<Cell>) -> u16 {
        let k = &self.work.kernels[self.work.cells[cell].kernel];
        let Some(scale) = self.scale(k.pool).filter(|s| s.right_size && s.learn) else {
            return 0;
        };
        let total: f32 = k.sizes.iter().map(|(_, w)| w).sum();
        let more = |g: u16| {
            k.sizes
                .iter()
                .filter(|(s, _)| *s > g)
                .map(|(_, w)| w)
                .sum::<f32>()
        };
        let enough = |g: &u16| f64::from(more(*g)) <= f64::from(total) * scale.too_small;
        let likely = k.sizes.iter().map(|(g, _)| *g).filter(enough).min();
        likely.map_or(0, |likely| self.pilot_size(k.pool, likely, 0))
    }

    pub(crate) fn is_booting_for(&self, cell: Idx<Cell>) -> bool {
        let this = (cell, self.work.cells[cell].seq);
        self.supply.tickets.for_cell(this).any(|(_, t)| !self.is_stuck(t))
    }

    /// Starts a pilot for the cell on the node, after idle pilots that are in the way are given back.
    pub(crate) fn boot(&mut self, node: Idx<Node>, size: u16, cell: Idx<Cell>, out: &mut Vec<Output>) {
        let c = &self.work.cells[cell];
        let (seq, pool) = (c.seq, self.work.kernels[c.kernel].pool);
        let Some(in_the_way) = self.to_give_back(pool, node, size, Some(cell)) else {
            return;
        };
        in_the_way.into_iter().for_each(|p| self.drain(p, out));
        // The removed pilots may have been reserved for this cell, or for a cell from which it could take the place.
        if !self.is_same(cell, seq) {
            return;
        }
        for p in self.idle_to_give_back(node, size, Some(cell)) {
            if self.has_room(node, size) {
                break;
            }
            self.drain(p, out);
        }
        if self.is_same(cell, seq) {
            self.submit_for(cell, node, size, out);
        }
    }

    /// GPUs of the node that no pilot has or will have. An ending pilot without leases counts as gone.
    pub(crate) fn spare_gpus(&self, node: Idx<Node>) -> u16 {
        let coming: u16 = self.supply.tickets.on(node).map(|(_, t)| t.gpus).sum();
        let all = self.supply.nodes[node].gpus;
        all.saturating_sub(self.gpus_up(node) + coming)
    }

    /// GPUs of the node that pilots have and will keep for now.
    pub(crate) fn gpus_up(&self, node: Idx<Node>) -> u16 {
        let going = |p: &Pilot| {
            let draining = match p.state {
                PilotState::Draining => true,
                PilotState::Silent { draining, .. } => draining,
                PilotState::Up => false,
            };
            draining && p.leases.is_empty()
        };
        let up = self.supply.nodes[node]
            .pilots
            .iter()
            .map(|p| &self.supply.pilots[*p]);
        up.filter(|p| !going(p)).map(Pilot::gpus).sum()
    }

    /// Idle pilots of the node, the smallest first.
    fn idle_there(&self, node: Idx<Node>, cell: Option<Idx<Cell>>) -> Vec<Idx<Pilot>> {
        let pilots = self.supply.nodes[node].pilots.iter().copied();
        let mut idle: Vec<Idx<Pilot>> = pilots.filter(|&p| self.is_idle_for(p, cell)).collect();
        idle.sort_by_key(|&p| (self.supply.pilots[p].gpus(), p));
        idle
    }

    /// Idle pilots of the node that may be given back for a pilot of `size`. None where the new pilot would wait
    /// for the jobs of others all the same.
    fn idle_to_give_back(&self, node: Idx<Node>, size: u16, cell: Option<Idx<Cell>>) -> Vec<Idx<Pilot>> {
        let idle = self.idle_there(node, cell);
        let theirs: u16 = idle.iter().map(|&p| self.supply.pilots[p].gpus()).sum();
        let others = self.supply.nodes[node].room.taken;
        let waits = others > 0 && self.spare_gpus(node) + theirs < size.saturating_add(others);
        if waits { Vec::new() } else { idle }
    }

    /// Whether the pilot may be given back for the cell's. A pilot that is kept for later cells makes room for a due
    /// cell: the later ones come after it in any case.
    fn is_idle_for(&self, pilot: Idx<Pilot>, cell: Option<Idx<Cell>>) -> bool {
        let p = &self.supply.pilots[pilot];
        let due = cell.filter(|&c| self.work.cells[c].due);
        let lends_nothing = || p.state == PilotState::Up && p.leases.is_empty();
        p.is_idle() || due.is_some_and(|c| lends_nothing() && self.reserved_before(p, c).is_empty())
    }

    pub(crate) fn could_boot(&self, node: Idx<Node>, size: u16, cell: Idx<Cell>) -> bool {
        let idle = self.idle_to_give_back(node, size, Some(cell));
        let idle: u16 = idle.iter().map(|&p| self.supply.pilots[p].gpus()).sum();
        let pool = self.work.kernels[self.work.cells[cell].kernel].pool;
        self.takes_pilots(node, pool)
            && self.may_suit(node, &self.work.cells[cell].need)
            && self.spare_gpus(node) + idle >= size
            && self.may_start_there(node, cell)
    }

    /// Whether the cell need only wait for something that is under way already.
    fn start_is_near(&self, cell: Idx<Cell>) -> bool {
        let c = &self.work.cells[cell];
        c.reserved.is_some_and(|p| {
            let soon = Span::from_secs(60);
            self.free_in(&self.supply.pilots[p], c).is_some_and(|s| s < soon)
        })
    }

    /// The idle pilots to give back if the limits are to allow this many GPUs more on the node, for the cell. They
    /// are the least valuable ones of the node's partition, the node's own first. `None` means that even all of them
    /// wouldn't do.
    pub(crate) fn to_give_back(
        &self,
        pool: Idx<Pool>,
        node: Idx<Node>,
        size: u16,
        cell: Option<Idx<Cell>>,
    ) -> Option<Vec<Idx<Pilot>>> {
        let mut missing = self.too_many(pool, node, size);
        let mut victims = Vec::new();
        if missing == 0 {
            return Some(victims);
        }
        if self.is_taken(node, size) {
            return None;
        }
        let partition = |n: Idx<Node>| &self.supply.nodes[n].burst;
        let same = |p: &Idx<Pilot>| partition(self.supply.pilots[*p].node) == partition(node);
        let pilots = self.supply.pools[pool].pilots.iter().copied().filter(same);
        let mut idle: Vec<Idx<Pilot>> = pilots.filter(|&p| self.is_idle_for(p, cell)).collect();
        idle.sort_by_key(|&p| {
            let pilot = &self.supply.pilots[p];
            (pilot.node != node, pilot.keep_until, p)
        });
        for p in idle {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(self.supply.pilots[p].gpus().into());
            victims.push(p);
        }
        (missing == 0).then_some(victims)
    }

    /// GPUs of the pilots that lend or will lend, on the pool's own nodes.
    pub(crate) fn gpus_coming(&self, pool: Idx<Pool>) -> u32 {
        self.supply.pools[pool].tally.gpus + self.supply.tickets.own(pool).gpus
    }

    /// The pool's own partition has no room: pilots in a burst partition, if waiting takes longer than their boot.
    fn burst(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) {
        let pool = self.work.kernels[self.work.cells[cell].kernel].pool;
        let config = &self.supply.pools[pool].config;
        if config.burst.is_empty() || !self.may_be_brought(cell) {
            return;
        }
        let wait = self.estimate(cell).unwrap_or(Span(u64::MAX));
        let (least, likely) = (self.least_size(cell), self.likely_size(cell));
        let sizes = Some(likely).filter(|l| *l > least).into_iter().chain([least]);
        for b in config.burst.iter().filter(|b| wait > b.boot) {
            for size in sizes.clone().filter(|&s| self.too_many_there(pool, b, s) == 0) {
                if self.boots_for_more(cell, &b.partition) {
                    return;
                }
                match self.burst_node(cell, &b.partition, size) {
                    BurstNode::Known(node) => return self.submit_for(cell, node, size, out),
                    BurstNode::Unknown => {
                        let partition = Some(b.partition.clone());
                        let gpu_type = self.type_to_name(cell);
                        let ticket = self.submit_pilot(pool, partition, None, Some(size), gpu_type, out);
                        return self.dedicate(ticket, cell, out);
                    }
                    BurstNode::Full => {}
                }
            }
        }
    }

    /// Node of the partition on which to start a pilot for the cell. A running node is better than a node still to
    /// boot.
    fn burst_node(&self, cell: Idx<Cell>, partition: &str, size: u16) -> BurstNode {
        let c = &self.work.cells[cell];
        let nodes = &self.supply.pools[self.work.kernels[c.kernel].pool].nodes;
        let there = |n: &&Idx<Node>| self.supply.nodes[**n].burst.as_deref() == Some(partition);
        if !nodes.iter().any(|n| there(&n)) {
            return BurstNode::Unknown;
        }
        let room = |n: &&Idx<Node>| {
            self.may_sit(**n, &c.need, &[])
                && self.is_trusted(**n)
                && self.has_room(**n, size)
                && self.may_start_there(**n, cell)
        };
        let found = nodes.iter().filter(there).filter(room);
        let found = found.min_by_key(|&&n| (self.supply.nodes[n].pilots.is_empty(), n));
        found.map_or(BurstNode::Full, |&n| BurstNode::Known(n))
    }

    /// Whether a booting pilot of the partition has room for the cell beside the cells of its start.
    fn boots_for_more(&self, cell: Idx<Cell>, partition: &str) -> bool {
        let (c, pool) = (
            &self.work.cells[cell],
            self.work.kernels[self.work.cells[cell].kernel].pool,
        );
        let boots = self.supply.tickets.values();
        let mut boots = boots.filter(|t| t.pool == pool && t.partition.as_deref() == Some(partition));
        boots.any(|t| {
            let started_for = t.cell.filter(|&(c, seq)| self.is_same(c, seq));
            let taken = started_for.map_or(0, |(c, _)| self.work.cells[c].need.gpus);
            t.gpus >= taken + c.need.gpus
        })
    }

    /// A kernel was placed: its first cell is expected soon.
    pub(crate) fn expect_kernel(&mut self, k: Idx<Kernel>, out: &mut Vec<Output>) {
        let kernel = &self.work.kernels[k];
        let (pool, gpus) = (kernel.pool, kernel.default_need.gpus);
        let Some(node) = kernel.home else { return };
        if gpus == 0 || !self.scale(pool).is_some_and(|s| s.learn) {
            return;
        }
        let size = self.pilot_size(pool, gpus, 0);
        let free = |p: &Idx<Pilot>| {
            self.supply.pilots[*p].state == PilotState::Up && self.supply.pilots[*p].free_gpus() >= gpus
        };
        let there = self.supply.nodes[node].pilots.iter().any(free);
        let room = self.takes_pilots(node, pool) && self.has_room(node, size);
        if !there && room && self.may_add(pool, node, size) {
            self.submit_pilot(pool, None, Some(node), Some(size), None, out);
        }
    }

    /// Node for the kernel's pilots: its own node, else its home.
    fn own_node(&self, kernel: Idx<Kernel>) -> Option<Idx<Node>> {
        let k = &self.work.kernels[kernel];
        let sits = |n: &Idx<Node>| k.able().any(|r| r.node == *n);
        k.base.filter(sits).or_else(|| k.home.filter(sits))
    }

    /// Whether the cell should wait for a pilot on its home node (with room for a pilot) rather than run elsewhere.
    pub(crate) fn home_can_start(&self, cell: Idx<Cell>) -> bool {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        if self.scale(k.pool).is_none() {
            return false;
        }
        let Some(home) = self.own_node(c.kernel) else {
            return false;
        };
        let mut coming = self.supply.tickets.for_cell((cell, c.seq));
        if coming.any(|(_, t)| t.node == Some(home) && !self.is_stuck(t)) {
            return true;
        }
        let size = self.size_for(cell);
        self.could_boot(home, size, cell) && !self.is_taken(home, size) && self.may_add(k.pool, home, size)
    }

    // --- keeping and giving back ---

    /// Keeps an idle pilot for as long as new work is likely.
    pub(crate) fn maybe_idle(&mut self, pilot: Idx<Pilot>, out: &mut Vec<Output>) {
        let p = &self.supply.pilots[pilot];
        let Some(scale) = self.scale(p.pool) else {
            return;
        };
        if p.state != PilotState::Up || !p.leases.is_empty() {
            return;
        }
        let (idle_min, idle_max, learn) = (scale.idle_min, scale.idle_max, scale.learn);
        let (node, pool, job) = (p.node, p.pool, p.job);
        let idle = self.now.since(p.idle_since.unwrap_or(self.now));
        let least = Span(idle_min.0.saturating_sub(idle.0));
        let hold = if least > Span::ZERO {
            least
        } else if self.is_reserved_for_one_that_may_start(p) {
            LOOK_LEAST
        } else if !learn {
            Span(idle_max.0.saturating_sub(idle.0))
        } else if idle < idle_max && self.worth_keeping(pilot) {
            // The forecast changes the more slowly, the longer the pilot was idle.
            Span((idle.0 / 8).clamp(LOOK_LEAST.0, LOOK_MOST.0))
        } else {
            Span::ZERO
        };
        if hold == Span::ZERO {
            let least = self.supply.pools[pool].config.min_pilots;
            if self.is_burst(node) || self.pilots_coming(pool) > least {
                self.drain(pilot, out);
                self.foresee_in(pool, LOOK_LEAST);
            } else {
                self.at(self.now + idle_min.max(Span::from_secs(1)), Timer::Idle(job));
            }
            return;
        }
        let until = self.now + hold;
        self.supply.pilots[pilot].keep_until = until;
        self.at(until, Timer::Idle(job));
    }

    /// Whether a cell with GPUs reserved on the pilot may start on the node, or the cell's kernel is moving to the
    /// node. If all such cells come after a due cell with a hold on the node, the pilot counts as idle.
    fn is_reserved_for_one_that_may_start(&self, p: &Pilot) -> bool {
        p.reserved
            .iter()
            .any(|&c| self.comes_to(&self.work.cells[c], p.node) || self.may_start_there(p.node, c))
    }

    pub(crate) fn idle_due(&mut self, job: JobId, out: &mut Vec<Output>) {
        let Some(&pilot) = self.supply.pilot_by_job.get(&job) else {
            return;
        };
        if self.supply.pilots[pilot].keep_until <= self.now {
            self.maybe_idle(pilot, out);
        }
    }

    // --- spares ---

    /// Whether the node is set apart for spare pilots: the last ones of the pool.
    pub(crate) fn is_apart(&self, pool: Idx<Pool>, node: Idx<Node>) -> bool {
        self.apart(pool).any(|n| n == node)
    }

    /// The nodes set apart for spare pilots.
    pub(crate) fn apart(&self, pool: Idx<Pool>) -> impl Iterator<Item = Idx<Node>> + '_ {
        let scale = self.scale(pool).filter(|s| s.spares > 0);
        let nodes = scale.map_or(0, |s| s.spare_nodes as usize);
        let all = self.supply.pools[pool].nodes.iter().rev().copied();
        let gone = |n: Idx<Node>| self.supply.nodes[n].standing == Standing::Gone;
        all.filter(move |&n| !self.is_burst(n) && !gone(n)).take(nodes)
    }

    // --- packing ---

    /// Kernels of this size came (`by` > 0) or went.
    pub(crate) fn count_load(&mut self, pool: Idx<Pool>, gpus: u16, by: i32) {
        let now = self.now;
        let loads = &mut self.supply.pools[pool].loads;
        let i = loads.iter().position(|l| l.gpus == gpus).unwrap_or_else(|| {
            loads.push(Load {
                gpus,
                kernels: 0,
                since: now,
                open: 0.0,
                busy: 0.0,
            });
            loads.len() - 1
        });
        let load = &mut loads[i];
        load.open += now.since(load.since).as_secs_f64() * f64::from(load.kernels) * f64::from(gpus);
        load.since = now;
        load.kernels = load.kernels.saturating_add_signed(by);
    }

    /// Share of use of the GPUs of a kernel of this size.
    fn duty(&self, pool: Idx<Pool>, gpus: u16) -> f64 {
        let prior = PRIOR_GPU_SECONDS * f64::from(gpus);
        let (busy, open) = match self.supply.pools[pool].loads.iter().find(|l| l.gpus == gpus) {
            Some(l) => {
                let running = self.now.since(l.since).as_secs_f64() * f64::from(l.kernels) * f64::from(gpus);
                (l.busy, l.open + running)
            }
            None => (0.0, 0.0),
        };
        ((busy + prior * PRIOR_DUTY) / (open + prior)).clamp(0.01, 1.0)
    }

    /// The best home for a kernel of this size. The fullest node of kernels of its size comes first, if conflicts are
    /// unlikely there; then an empty node; then the node with the fewest conflicts. Nodes set apart come last.
    pub(crate) fn best_home(&self, pool: Idx<Pool>, gpus: u16, fit: &[Fit]) -> Option<Idx<Node>> {
        let duty = self.duty(pool, gpus);
        let apart: Vec<Idx<Node>> = self.apart(pool).collect();
        let key = |n: Idx<Node>| {
            let node = &self.supply.nodes[n];
            let (mut same, mut others) = (0u32, 0u32);
            for &(g, homes) in &node.home_sizes {
                if g == gpus { same += homes } else { others += homes }
            }
            let lanes = u32::from(node.gpus / gpus.max(1)).max(1);
            let conflict = at_least(same, duty, lanes);
            let up = node
                .pilots
                .iter()
                .any(|p| self.supply.pilots[*p].state == PilotState::Up);
            // Pilots are as large as the need: a node of its own costs no more.
            let alone = gpus > 1 && self.scale(pool).is_some_and(|s| s.right_size);
            if apart.contains(&n) {
                return (3, same + others, n);
            }
            match (same, others) {
                (0, 0) if alone => (0u8, 0, n),
                (0, 0) => (1, u32::from(!up), n),
                (_, 0) if conflict <= CONFLICT => (0, u32::MAX - same, n),
                _ => (
                    2,
                    (conflict * 1e6) as u32
                        + others * 500_000 * u32::from(gpus) / u32::from(node.gpus.max(1)),
                    n,
                ),
            }
        };
        fit.iter().map(|f| f.3).min_by_key(|&n| key(n))
    }
}

/// The chance that at least `m` of `n` kernels are busy at once, each with chance `p`.
fn at_least(n: u32, p: f64, m: u32) -> f64 {
    if m > n {
        return 0.0;
    }
    let mut term = (1.0 - p).powi(n as i32);
    let mut below = 0.0;
    for i in 0..m {
        below += term;
        term *= f64::from(n - i) / f64::from(i + 1) * p / (1.0 - p).max(1e-12);
    }
    (1.0 - below).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::at_least;

    #[test]
    fn the_chance_of_many_at_once_is_binomial() {
        assert!((at_least(2, 0.5, 1) - 0.75).abs() < 1e-12);
        assert!((at_least(2, 0.5, 2) - 0.25).abs() < 1e-12);
        assert_eq!(at_least(1, 0.9, 2), 0.0);
        assert!(at_least(70, 0.05, 8) < 0.04);
    }
}
