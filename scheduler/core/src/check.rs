//! Invariants of the state after every input, checked from scratch.

use crate::core::Core;
use crate::index::Idx;
use crate::state::{Cell, LeaseState, Node, Pilot, PilotState, Scope};
use std::collections::{BTreeMap, BTreeSet};

/// What doesn't hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the scheduler's state contradicts itself: {0}")]
pub struct Insane(pub String);

macro_rules! hold {
    ($cond:expr, $($arg:tt)+) => {
        if !$cond {
            return Err(Insane(format!($($arg)+)));
        }
    };
}

impl Core {
    /// Checks all invariants. Costs time in proportion to the state.
    ///
    /// # Errors
    /// The first that doesn't hold, in words.
    pub fn sanity_check(&self) -> Result<(), Insane> {
        self.check_pilots()?;
        self.check_leases()?;
        self.check_cells()?;
        self.check_kernels()?;
        self.check_sums()
    }

    fn check_pilots(&self) -> Result<(), Insane> {
        for (i, p) in self.supply.pilots.iter() {
            self.check_places_of(i, p)?;
            self.check_lent_by(i, p)?;
            self.check_reserved_of(i, p)?;
        }
        hold!(
            self.supply.pilots.len() == self.supply.pilot_by_job.len(),
            "a job names a pilot that is gone"
        );
        self.check_tickets()
    }

    /// The pilot is in the index by job, in its node's and its pool's lists, and in the lists of free GPUs.
    fn check_places_of(&self, i: Idx<Pilot>, p: &Pilot) -> Result<(), Insane> {
        hold!(
            self.supply.pilot_by_job.get(&p.job) == Some(&i),
            "pilot {} is not found by its job",
            p.job
        );
        hold!(
            self.supply.nodes[p.node].pilots.contains(&i),
            "pilot {} is not on its node",
            p.job
        );
        hold!(
            self.supply.pools[p.pool].pilots.contains(&i),
            "pilot {} is not in its pool",
            p.job
        );
        hold!(
            p.listed == self.listing_of(i),
            "pilot {} is listed wrongly: {:?}, not {:?}",
            p.job,
            p.listed,
            self.listing_of(i)
        );
        Ok(())
    }

    /// The counts of lent GPUs and cores equal the leases under them.
    fn check_lent_by(&self, i: Idx<Pilot>, p: &Pilot) -> Result<(), Insane> {
        let (mut gpus, mut cpus) = (vec![0u16; p.groups.len()], 0u16);
        for id in &p.leases {
            let Some(lease) = self.work.leases.get(id) else {
                return Err(Insane(format!("pilot {} lists lease {id}, which is over", p.job)));
            };
            hold!(
                lease.pilot == i,
                "lease {id} is listed by a pilot that is not its own"
            );
            cpus += lease.cpus;
            if let Some(g) = lease.group {
                gpus[g] += lease.gpus;
            }
        }
        hold!(
            cpus == p.cpus_used,
            "pilot {}: {cpus} cores are leased, {} counted",
            p.job,
            p.cpus_used
        );
        for (g, group) in p.groups.iter().enumerate() {
            hold!(
                gpus[g] == group.used,
                "pilot {}: {} GPUs are leased, {} counted",
                p.job,
                gpus[g],
                group.used
            );
            hold!(
                group.used as usize <= group.slots.len(),
                "pilot {} lends more GPUs than it has",
                p.job
            );
            for slot in &group.slots {
                let Some(id) = slot.lease else { continue };
                let known = self
                    .work
                    .leases
                    .get(&id)
                    .is_some_and(|l| l.devices.contains(&slot.index) && l.pilot == i);
                hold!(
                    known,
                    "GPU {} of pilot {} is marked for lease {id}, which doesn't have it",
                    slot.index,
                    p.job
                );
            }
        }
        hold!(
            p.leases.is_empty() == p.idle_since.is_some(),
            "pilot {}: idleness is miscounted",
            p.job
        );
        Ok(())
    }

    /// Each cell with a reservation knows of it and can still use it. A draining pilot has none.
    fn check_reserved_of(&self, i: Idx<Pilot>, p: &Pilot) -> Result<(), Insane> {
        for &cell in &p.reserved {
            let back = self.work.cells.get(cell).map(|c| c.reserved);
            hold!(
                back == Some(Some(i)),
                "pilot {} is held back for a cell that doesn't know",
                p.job
            );
            hold!(
                p.state != PilotState::Draining,
                "draining pilot {} is held back for a cell",
                p.job
            );
            hold!(
                self.is_worth_reserving(p, cell),
                "pilot {} is held back in vain for cell {}",
                p.job,
                self.work.cells[cell].id
            );
        }
        Ok(())
    }

    fn check_tickets(&self) -> Result<(), Insane> {
        let tickets = &self.supply.tickets;
        hold!(
            *tickets == tickets.listed_anew(),
            "the pilots that were asked for are listed wrongly: {tickets:?}"
        );
        for t in tickets.values() {
            hold!(
                t.bursts == self.bursts(t.partition.as_ref(), t.node),
                "a pilot that was asked for bursts, or not: {t:?}"
            );
        }
        for (i, node) in self.supply.nodes.iter() {
            let here = self.supply.tickets.values().filter(|t| t.node == Some(i));
            let coming: u16 = here.map(|t| t.gpus).sum();
            hold!(
                !node.sized || coming == 0 || coming + self.gpus_up(i) <= node.gpus,
                "node {}: pilots of {coming} GPUs are waited for, which have no room beside the {} there",
                node.name,
                self.gpus_up(i)
            );
        }
        Ok(())
    }

    fn check_leases(&self) -> Result<(), Insane> {
        let mut devices = BTreeSet::new();
        for (id, lease) in &self.work.leases {
            hold!(id.0 < self.work.next_lease, "lease {id} is from the future");
            let Some(p) = self.supply.pilots.get(lease.pilot) else {
                return Err(Insane(format!("lease {id} lives in a pilot that is gone")));
            };
            hold!(p.leases.contains(id), "lease {id} is not listed by its pilot");
            let Some(k) = self.work.kernels.get(lease.kernel) else {
                return Err(Insane(format!("lease {id} belongs to a kernel that is gone")));
            };
            hold!(k.leases.contains(id), "lease {id} is not listed by its kernel");
            for d in &lease.devices {
                hold!(
                    devices.insert((p.node, p.job, *d)),
                    "GPU {d} of pilot {} is leased twice",
                    p.job
                );
            }
            hold!(
                lease.holding.is_none() || lease.gpus > 0 && lease.started.is_some(),
                "lease {id} is held on to without GPUs"
            );
            if let LeaseState::Lingering { until, .. } = lease.state {
                let timer = (until, crate::state::Timer::Linger(*id));
                hold!(self.timers.contains(&timer), "lease {id} lingers without an end");
            }
            if let LeaseState::Ending {
                leaves_by: Some(by), ..
            } = lease.state
            {
                let timer = (by, crate::state::Timer::TakeBack(*id));
                hold!(
                    self.timers.contains(&timer) && lease.gpus > 0,
                    "lease {id} may be left for ever"
                );
            }
            if let LeaseState::Starting { .. } = lease.state {
                let timer = (lease.start_by, crate::state::Timer::StartTimeout(*id));
                hold!(self.timers.contains(&timer), "lease {id} may start for ever");
            }
        }
        Ok(())
    }

    fn check_cells(&self) -> Result<(), Insane> {
        let runs = self.timers.iter().any(|(_, t)| *t == crate::state::Timer::Renew);
        hold!(
            runs == self.work.renewing && (runs || self.work.cells.is_empty()),
            "cells wait, and their ranks are not renewed"
        );
        for (i, _) in self.work.cells.iter() {
            self.check_cell(i)?;
        }
        self.check_holds()?;
        self.check_held_nodes()?;
        for (i, c) in self.work.cells.iter() {
            hold!(
                !self.could_start(i) || self.would_backfill(i),
                "cell {} of kernel {} waits and could start",
                c.id,
                self.work.kernels[c.kernel].id
            );
            self.check_limited(i)?;
        }
        self.check_queues()
    }

    /// A waiting cell is in each of its lists.
    fn check_cell(&self, i: Idx<Cell>) -> Result<(), Insane> {
        let c = &self.work.cells[i];
        let Some(k) = self.work.kernels.get(c.kernel) else {
            return Err(Insane(format!("cell {} waits for a kernel that is gone", c.id)));
        };
        hold!(k.cells.contains(&i), "cell {} is not listed by its kernel", c.id);
        hold!(
            self.people.users[k.user].cells.contains(&i),
            "cell {} is not listed by its user",
            c.id
        );
        let entry = (c.rank, i);
        hold!(
            self.supply.pools[k.pool].queue.contains(&entry),
            "cell {} is not in its pool's queue",
            c.id
        );
        for r in &k.replicas {
            hold!(
                self.supply.nodes[r.node].queue.contains(&entry),
                "cell {} is not in its node's queue",
                c.id
            );
        }
        if let Some(p) = c.reserved {
            let knows = |p: &crate::state::Pilot| p.reserved.contains(&i);
            hold!(
                self.supply.pilots.get(p).is_some_and(knows),
                "cell {} thinks that GPUs are held back for it",
                c.id
            );
            let node = self.supply.pilots[p].node;
            hold!(
                k.migrating.is_some_and(|m| m.to == node) || k.staying().any(|r| r.node == node),
                "GPUs are held back for cell {} where it can't run",
                c.id
            );
        }
        if let Some(until) = c.unasked {
            let timer = (until, crate::state::Timer::Unasked(i, c.seq));
            hold!(
                self.timers.contains(&timer),
                "cell {} may be awaited for ever",
                c.id
            );
        }
        if let Some(scope) = c.limited {
            let listed = self.people.limited.get(&scope).is_some_and(|s| s.contains(&i));
            hold!(listed, "cell {} is not listed under its limit", c.id);
        }
        Ok(())
    }

    /// A cell held up by limits alone is on the list of a limit that is against it now. The list is tried when its
    /// limit counts fewer GPUs, and nothing else tries the cell.
    fn check_limited(&self, i: Idx<Cell>) -> Result<(), Insane> {
        let c = &self.work.cells[i];
        let mut against = self.limits_over(c).map(|over| over.scope).peekable();
        if against.peek().is_some() && self.spot(i).is_some() {
            hold!(
                against.any(|scope| c.limited == Some(scope)),
                "cell {} is over a limit, and not on its list",
                c.id
            );
        }
        Ok(())
    }

    /// The lists of cells have waiting cells alone, each once.
    fn check_queues(&self) -> Result<(), Insane> {
        let queued = self.work.cells.len();
        let in_shapes = self.supply.pools.values().flat_map(|p| p.shapes.values());
        let in_shapes: usize = in_shapes.map(std::collections::BTreeSet::len).sum();
        hold!(
            in_shapes == queued,
            "{in_shapes} cells are listed by what they need, {queued} wait"
        );
        let in_pools: usize = self.supply.pools.values().map(|p| p.queue.len()).sum();
        hold!(
            in_pools == queued,
            "{in_pools} cells are in queues, {queued} wait"
        );
        for n in self.supply.nodes.values() {
            for (rank, c) in &n.queue {
                let right = self.work.cells.get(*c).is_some_and(|c| c.rank == *rank);
                hold!(right, "node {} queues a cell that is gone or elsewhere", n.name);
            }
        }
        for (scope, set) in &self.people.limited {
            let right = set
                .iter()
                .all(|c| self.work.cells.get(*c).is_some_and(|c| c.limited == Some(*scope)));
            hold!(
                right && !set.is_empty(),
                "a limit lists a cell that it doesn't hold up"
            );
        }
        Ok(())
    }

    /// Each held node names a due cell that lists the node, and the reverse. Lists and counts agree.
    fn check_holds(&self) -> Result<(), Insane> {
        for (n, node) in self.supply.nodes.iter() {
            hold!(
                node.listed == self.spare_listing(n),
                "node {} is listed with {} spare GPUs and has {}",
                node.name,
                node.listed,
                self.spare_listing(n)
            );
            if let Some(cell) = node.held_for {
                let hold = self.work.cells.get(cell).and_then(|c| c.hold.as_ref());
                let knows = hold.is_some_and(|h| h.nodes.contains(n));
                hold!(knows, "node {} is held for a cell that doesn't know", node.name);
            }
            hold!(
                self.supply.held.contains(n) == node.held_for.is_some(),
                "node {} is listed as held for a cell, or not",
                node.name
            );
            let free = self.has_free_gpus(n);
            hold!(
                self.supply.free.contains(n) == free,
                "node {} is listed with free GPUs, or not",
                node.name
            );
            hold!(
                self.supply.open.contains(n) == (free && node.held_for.is_none()),
                "node {} is listed as open, or not",
                node.name
            );
            let free = self.supply.pools[node.pool].unheld.contains(n);
            hold!(
                free == node.held_for.is_none(),
                "node {} is listed as held, or not",
                node.name
            );
        }
        for (i, c) in self.work.cells.iter() {
            for n in c.hold.iter().flat_map(|h| h.nodes.iter()) {
                let held = self.supply.nodes[n].held_for == Some(i) && c.due;
                hold!(held, "cell {} thinks that a node is held for it", c.id);
            }
            for arena in &c.arenas {
                let class = self
                    .work
                    .arenas
                    .get(arena)
                    .and_then(|a| a.classes.get(&crate::state::Size::of(&c.need, c.cpus)));
                let waiter = class.and_then(|s| s.waiting.get(&(c.submitted, c.seq)));
                let counted = waiter.is_some_and(|w| w.cell == i);
                hold!(counted, "cell {} competes where nobody knows of it", c.id);
            }
        }
        let classes = || self.work.arenas.values().flat_map(|a| a.classes.values());
        for class in classes() {
            let before = match class.pending.first() {
                Some(&first) => class.waiting.range(..first).count(),
                None => class.waiting.len(),
            };
            hold!(
                before == class.settled && class.pending.iter().all(|p| class.waiting.contains_key(p)),
                "{before} cells wait before the first that isn't due, {} counted",
                class.settled
            );
        }
        let waiting: usize = classes().map(|c| c.waiting.len()).sum();
        let entered: usize = self.work.cells.iter().map(|(_, c)| c.arenas.len()).sum();
        hold!(
            waiting == entered,
            "{entered} cells compete, {waiting} are counted"
        );
        Ok(())
    }

    /// The pools' lists and counts of held nodes. A time is known exactly for nodes with room at some time.
    fn check_held_nodes(&self) -> Result<(), Insane> {
        for (i, pool) in self.supply.pools.iter() {
            let nodes = self.supply.nodes.values().filter(|n| n.pool == i);
            let mut held_for = BTreeMap::new();
            for cell in nodes.filter_map(|n| n.held_for) {
                *held_for.entry(cell).or_default() += 1;
            }
            hold!(
                held_for == pool.held_for,
                "pool {}: nodes are held for {held_for:?}, {:?} counted",
                pool.config.name,
                pool.held_for
            );
            for c in pool.holders.iter().map(|&c| &self.work.cells[c]) {
                let differs = |n: &&Idx<Node>| self.has_ever(**n, c) != self.node_free_in(**n, c).is_some();
                let node = pool.nodes.iter().find(differs);
                hold!(
                    node.is_none(),
                    "cell {} never has room on node {node:?}, or at a known time",
                    c.id
                );
            }
        }
        Ok(())
    }

    fn check_kernels(&self) -> Result<(), Insane> {
        for (i, k) in self.work.kernels.iter() {
            hold!(
                self.work.kernel_by_id.get(&k.id) == Some(&i),
                "kernel {} is not found by its id",
                k.id
            );
            for id in &k.leases {
                hold!(
                    self.work.leases.get(id).is_some_and(|l| l.kernel == i),
                    "kernel {} lists lease {id}",
                    k.id
                );
            }
            let tenures: BTreeSet<_> = k.replicas.iter().filter_map(|r| r.executes).collect();
            hold!(
                tenures.len() <= 1,
                "kernel {} has executors of different tenures: {tenures:?}",
                k.id
            );
            for r in &k.replicas {
                hold!(
                    self.supply.nodes[r.node].sitting.contains(&i),
                    "node {} doesn't know that kernel {} sits there",
                    self.supply.nodes[r.node].name,
                    k.id
                );
            }
            for c in &k.cells {
                hold!(
                    self.work.cells.get(*c).is_some_and(|c| c.kernel == i),
                    "kernel {} lists a foreign cell",
                    k.id
                );
            }
            let parked = k.cells.iter().find_map(|c| self.work.cells[*c].parked);
            hold!(
                k.parked == parked.map(|(replica, _)| replica),
                "kernel {} has a cell parked, or not",
                k.id
            );
            if let Some((replica, _)) = parked {
                hold!(
                    k.replicas.iter().any(|r| r.incarnation == replica),
                    "kernel {} has a cell parked where it has no replica",
                    k.id
                );
            }
            let gone = k.closed && k.leases.is_empty() && k.replicas.is_empty();
            hold!(!gone, "kernel {} is closed and was not forgotten", k.id);
        }
        Ok(())
    }

    fn check_sums(&self) -> Result<(), Insane> {
        for (u, user) in self.people.users.iter() {
            let held: u32 = self
                .work
                .leases
                .values()
                .filter(|l| l.user == u)
                .map(|l| u32::from(l.gpus))
                .sum();
            hold!(
                held == user.held,
                "user {} holds {held} GPUs, {} counted",
                user.name,
                user.held
            );
            let leases = self.work.leases.iter().filter(|(_, l)| l.user == u);
            hold!(
                leases.map(|(id, _)| id).eq(&user.leases),
                "user {} doesn't know of a lease, or of one that is over",
                user.name
            );
            let seats = self.work.seats.iter().filter(|(_, s)| s.user == u);
            hold!(
                seats.map(|(job, _)| job).eq(&user.seats),
                "user {} doesn't know of a seat, or of one that is gone",
                user.name
            );
            let in_pools: u32 = user.held_in.iter().map(|(_, n)| n).sum();
            hold!(in_pools == held, "user {}: GPUs by pool don't add up", user.name);
            hold!(
                user.usage.held() == held && user.usage.is_sane(),
                "user {}: usage counts other GPUs than are held, or is no amount",
                user.name
            );
        }
        self.check_accounts()?;
        self.check_seats()?;
        self.check_members()?;
        self.check_homes()?;
        for (i, pool) in self.supply.pools.iter() {
            let of = self.work.leases.values().filter(|l| l.pool == i);
            let (mut held, mut running) = (0, 0);
            for l in of {
                held += u32::from(l.gpus);
                if matches!(l.state, LeaseState::Running(_)) {
                    running += u32::from(l.gpus);
                }
            }
            hold!(
                held == pool.held,
                "pool {} lends {held} GPUs, {} counted",
                pool.config.name,
                pool.held
            );
            hold!(
                pool.tally == self.tally_anew(i),
                "pool {}: its kernels and pilots add up to {:?}, {:?} counted",
                pool.config.name,
                self.tally_anew(i),
                pool.tally
            );
            hold!(
                running == pool.running,
                "pool {}: {running} GPUs run, {} counted",
                pool.config.name,
                pool.running
            );
        }
        Ok(())
    }

    fn check_accounts(&self) -> Result<(), Insane> {
        for (_, account) in self.people.accounts.iter() {
            hold!(
                account.usage.held() == account.held && account.usage.is_sane(),
                "an account's usage counts other GPUs than are held, or is no amount"
            );
        }
        for (&(user, account), usage) in &self.people.used_in {
            let leases = self.work.leases.values();
            let own = leases.filter(|l| (l.user, l.account) == (user, account));
            let held: u32 = own.map(|l| u32::from(l.gpus)).sum();
            hold!(
                usage.held() == held && usage.is_sane(),
                "a user's usage in an account counts other GPUs than are held, or is no amount"
            );
        }
        Ok(())
    }

    /// The memory counted in each seat is that of the replicas there.
    fn check_seats(&self) -> Result<(), Insane> {
        for (&job, seat) in &self.work.seats {
            let used = self.mem_used_in(job);
            hold!(
                used == seat.mem_used,
                "seat {job}: its replicas have {used} MiB, {} counted",
                seat.mem_used
            );
        }
        Ok(())
    }

    /// The homes of each node are counted by size.
    fn check_homes(&self) -> Result<(), Insane> {
        for (_, node) in self.supply.nodes.iter() {
            let mut sizes: BTreeMap<u16, u32> = BTreeMap::new();
            for &k in &node.homes {
                *sizes.entry(self.work.kernels[k].default_need.gpus).or_default() += 1;
            }
            sizes.remove(&0);
            let counted = node.home_sizes.iter().copied().filter(|(_, n)| *n > 0);
            hold!(
                counted.collect::<BTreeMap<_, _>>() == sizes,
                "node {} counts its homes wrongly",
                node.name
            );
        }
        Ok(())
    }

    /// The counts under limits on associations equal the leases under them.
    fn check_members(&self) -> Result<(), Insane> {
        for (&(limit, key), &held) in &self.people.members.held {
            let leases = self.work.leases.values();
            let leased: u32 = leases
                .filter(|l| self.is_within(l, Scope::Members(limit, key)))
                .map(|l| u32::from(l.gpus))
                .sum();
            let elsewhere = !self.people.elsewhere.is_empty();
            hold!(
                held == leased || elsewhere && held > leased,
                "limit {limit:?} counts {held} GPUs, {leased} are held"
            );
        }
        for (_, k) in self.work.kernels.iter() {
            hold!(
                k.alone_since.is_some() == k.replicas.is_empty(),
                "kernel {} is alone, or not",
                k.id
            );
        }
        Ok(())
    }
}
