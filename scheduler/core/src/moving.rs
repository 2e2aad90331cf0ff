//! Moving a replica to where a GPU is free, when that is expected to be quicker than waiting.

use crate::asked::move_takes_by_default;
use crate::core::Core;
use crate::index::Idx;
use crate::input::ReplicaFacts;
use crate::late::GIVEN_UP;
use crate::leases::PRIOR_WEIGHT;
use crate::output::{Output, Withdrawal};
use crate::predict::Habit;
use crate::state::{Cell, Kernel, Moving, Node, Pilot, Pool, Replica, Ticket, Timer};
use hop_words::id::{Incarnation, KernelId};
use hop_words::replica::MoveCause;
use hop_words::time::{Span, Timestamp};

/// What was seen where nothing was.
static NEVER: Habit = Habit::new();

/// Factor over others' time after which a move is given up, and over the time of the kernel's own last one.
const PATIENCE: u64 = 20;
const PATIENCE_KNOWN: u64 = 4;

/// Longest wait for a move: GPUs are kept for the kernel at its target meanwhile.
const PATIENT_AT_MOST: Span = Span::from_secs(1800);

/// But no move is given up sooner: the cell that runs ends first, and an election itself takes no second.
const PATIENT_FOR: Span = Span::from_secs(30);

/// A failed pilot says nothing of a pilot asked for later than this after the failure.
const FORGIVEN: Span = Span::from_secs(60);

impl Core {
    /// Moves a replica of the cell's kernel if the cell is thereby expected to start sooner. The target is a node with
    /// free GPUs, else a node where a pilot can be started, else a node with lingering leases.
    pub(crate) fn consider_moving(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) {
        if !self.is_better_moved(cell) {
            return;
        }
        if let Some(pilot) = self.free_elsewhere(cell) {
            self.move_to_pilot(cell, pilot, out);
        } else if let Some(node) = self.bare_node_for(cell).filter(|_| self.is_better_booted(cell)) {
            self.move_to_bare(cell, node, out);
        } else if let Some((pilot, group)) = self.idle_elsewhere(cell) {
            self.claim_on(pilot, group, cell, out);
            self.move_to_pilot(cell, pilot, out);
        }
    }

    /// Whether waiting where the cell's kernel is takes longer than moving it, as far as can be told.
    pub(crate) fn is_better_moved(&self, cell: Idx<Cell>) -> bool {
        let k = &self.work.kernels[self.work.cells[cell].kernel];
        let Some(m) = &self.supply.pools[k.pool].config.migrate else {
            return false;
        };
        let takes = self.move_takes(k, m.takes).0 + m.margin.0;
        let c = &self.work.cells[cell];
        // A due cell was expected to start long ago: it has waited for longer than a move takes.
        let expected_in_vain = || c.due && self.now.since(c.submitted).0 > takes;
        self.may_be_brought(cell) && (expected_in_vain() || self.expected_wait(cell).0 > takes)
    }

    /// Whether the cell lacks nothing but taken GPUs, and its kernel may be moved.
    pub(crate) fn may_be_brought(&self, cell: Idx<Cell>) -> bool {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let own_ending = |r: &Replica| self.own_lease_ending(c.kernel, r.node);
        k.migrating.is_none()
            && self.may_roam(c.kernel)
            && c.limited.is_none()
            && c.unasked.is_none()
            && !k.failed_moves.pauses(self.now)
            && self.can_be_asked_to_move(k)
            && !k.replicas.iter().any(own_ending)
            && self.over_limit(c).is_none()
    }

    /// Whether the executor, which carries a move out, is connected: else the move would fail at once.
    pub(crate) fn can_be_asked_to_move(&self, k: &Kernel) -> bool {
        let executor = k.replicas.iter().max_by_key(|r| (r.executes, r.incarnation));
        executor.is_none_or(|r| !r.away)
    }

    /// Whether waiting takes longer than a pilot on a new node, too.
    fn is_better_booted(&self, cell: Idx<Cell>) -> bool {
        let pool = self.work.kernels[self.work.cells[cell].kernel].pool;
        let margin = self.supply.pools[pool].config.migrate.as_ref().map(|m| m.margin);
        self.expected_wait(cell).0 > self.boot_takes(pool).0 + margin.unwrap_or_default().0
    }

    /// A pilot elsewhere where the cell could start now: beside a standby; else the tightest one. Nodes where the last
    /// move of the kernel failed come last.
    fn free_elsewhere(&self, cell: Idx<Cell>) -> Option<Idx<Pilot>> {
        let kernel = self.work.cells[cell].kernel;
        let takes = |p: &Idx<Pilot>| self.takes_in(kernel, self.supply.pilots[*p].node);
        let standbys = self.work.kernels[kernel].standbys.iter();
        let beside = standbys.flat_map(|s| self.supply.nodes[s.node].pilots.iter().copied());
        let beside = beside.filter(|p| self.room(*p, cell).is_some());
        let all = beside.chain(self.rooms_anywhere(cell)).filter(takes);
        self.untried_first(kernel, all, |p| self.supply.pilots[p].node)
    }

    /// A pilot elsewhere where idle leases can make room for the cell.
    fn idle_elsewhere(&self, cell: Idx<Cell>) -> Option<(Idx<Pilot>, Option<usize>)> {
        let kernel = self.work.cells[cell].kernel;
        let takes = |p: &Idx<Pilot>| self.takes_in(kernel, self.supply.pilots[*p].node);
        let found = self.idle_anywhere(cell).filter(takes);
        let found = found.filter_map(|p| self.claimable_on(p, cell));
        let found = found.map(|(_, pilot, group)| (pilot, group));
        self.untried_first(kernel, found, |(p, _)| self.supply.pilots[p].node)
    }

    /// The first of these places on a node to which no move of the kernel has failed, else the first.
    fn untried_first<T: Copy>(
        &self,
        kernel: Idx<Kernel>,
        places: impl Iterator<Item = T>,
        node: impl Fn(T) -> Idx<Node>,
    ) -> Option<T> {
        let failed = &self.work.kernels[kernel].failed_moves;
        let mut first = None;
        for place in places {
            if !failed.has(node(place)) {
                return Some(place);
            }
            first = first.or(Some(place));
        }
        first
    }

    /// Whether a replica of the kernel may be moved to the node now.
    pub(crate) fn takes_in(&self, kernel: Idx<Kernel>, node: Idx<Node>) -> bool {
        let failed = &self.work.kernels[kernel].failed_moves;
        !self.sits_on(kernel, node)
            && self.supply.nodes[node].standing.is_up()
            && !failed.avoids(node, self.now)
    }

    /// Whether the kernel isn't moved to the node for now, after failed moves.
    pub(crate) fn is_put_off(&self, kernel: Idx<Kernel>, node: Idx<Node>) -> bool {
        let failed = &self.work.kernels[kernel].failed_moves;
        failed.avoids(node, self.now) && !self.sits_on(kernel, node)
    }

    /// How long the cell is expected to wait where its replicas are.
    pub(crate) fn expected_wait(&self, cell: Idx<Cell>) -> Span {
        let c = &self.work.cells[cell];
        let coming = self.work.kernels[c.kernel]
            .able()
            .filter(|r| self.may_suit(r.node, &c.need))
            .filter_map(|r| self.supply.tickets.on(r.node).next())
            .map(|(_, t)| self.up_in(t))
            .min();
        let free = self.estimate(cell).unwrap_or(Span(u64::MAX / 4));
        coming.map_or(free, |c| c.min(free))
    }

    /// How long a pilot takes on the pool's own nodes.
    pub(crate) fn boot_takes(&self, pool: Idx<Pool>) -> Span {
        let (seen, told) = self.boots_of(pool, None);
        seen.remaining(seen, 0.0, Span::ZERO, 0.5).unwrap_or(told)
    }

    /// Boot times of pilots seen in a burst partition or in the pool's own, and the site's figure.
    pub(crate) fn boots_of(&self, pool: Idx<Pool>, partition: Option<&String>) -> (&Habit, Span) {
        let p = &self.supply.pools[pool];
        let own = || p.config.scale.as_ref().map_or(Span::from_secs(10), |s| s.boot);
        let burst = |name: &String| p.config.burst.iter().find(|b| b.partition == *name);
        let told = partition.and_then(burst).map_or_else(own, |b| b.boot);
        let seen = p.boots.iter().find(|(name, _)| name.as_ref() == partition);
        (seen.map_or(&NEVER, |(_, habit)| habit), told)
    }

    /// Records how long a pilot took from request to start. On the pool's own nodes, what goes beyond the longest boot
    /// is the time in Slurm's queue: it tells nothing of the next pilot.
    pub(crate) fn learn_boot(&mut self, pool: Idx<Pool>, partition: Option<&String>, took: Span) {
        let (_, told) = self.boots_of(pool, partition);
        let took = match partition {
            None => took.min(GIVEN_UP.max(told)),
            Some(_) => took,
        };
        let boots = &mut self.supply.pools[pool].boots;
        let known = boots.iter().position(|(name, _)| name.as_ref() == partition);
        let i = known.unwrap_or_else(|| {
            boots.push((partition.cloned(), Habit::default()));
            boots.len() - 1
        });
        boots[i].1.observe(took);
    }

    /// Expected time until this pilot is up. A late pilot waits for GPUs: expect as long again.
    pub(crate) fn up_in(&self, ticket: &Ticket) -> Span {
        let waited = self.now.since(self.wanted_since(ticket));
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

    /// When a pilot was asked for on the ticket's node: if pilots failed there one after the other, the first of them.
    pub(crate) fn wanted_since(&self, ticket: &Ticket) -> Timestamp {
        let failing = ticket.node.and_then(|n| self.supply.nodes[n].failing);
        let failing = failing.filter(|f| ticket.at.since(f.last) <= FORGIVEN);
        failing.map_or(ticket.at, |f| f.since)
    }

    /// Whether the pilot should have been up long ago: Slurm has no GPUs for it.
    pub(crate) fn is_late_to_boot(&self, ticket: &Ticket) -> bool {
        let (seen, told) = self.boots_of(ticket.pool, ticket.partition.as_ref());
        let most = seen
            .remaining(seen, 0.0, Span::ZERO, 0.9)
            .unwrap_or(told)
            .max(told);
        self.now.since(self.wanted_since(ticket)) > Span(most.0.saturating_mul(2))
    }

    /// How long a move of the kernel takes: as long as its last one, else as others in its pool. Kernels' memory
    /// differs by orders of magnitude.
    fn move_takes(&self, kernel: &Kernel, told: Span) -> Span {
        kernel
            .move_took
            .unwrap_or_else(|| self.others_move_in(kernel.pool, told))
    }

    fn others_move_in(&self, pool: Idx<Pool>, told: Span) -> Span {
        let moves = &self.supply.pools[pool].moves;
        moves
            .remaining(moves, PRIOR_WEIGHT, Span::ZERO, 0.5)
            .unwrap_or(told)
    }

    /// How long a move of the kernel is waited for.
    fn patience(&self, kernel: &Kernel) -> Span {
        let config = self.supply.pools[kernel.pool].config.migrate.as_ref();
        let told = config.map_or_else(move_takes_by_default, |m| m.takes);
        let others = self.others_move_in(kernel.pool, told).0.saturating_mul(PATIENCE);
        let own = kernel.move_took.unwrap_or_default().0;
        Span(others.max(own.saturating_mul(PATIENCE_KNOWN))).clamp(PATIENT_FOR, PATIENT_AT_MOST)
    }

    /// How much longer the kernel's move, if one is under way, is expected to take.
    pub(crate) fn move_left(&self, kernel: Idx<Kernel>) -> Option<Span> {
        let k = &self.work.kernels[kernel];
        let (moving, m) = k
            .migrating
            .zip(self.supply.pools[k.pool].config.migrate.as_ref())?;
        let takes = self.move_takes(k, m.takes);
        Some(Span(takes.0.saturating_sub(self.now.since(moving.since).0)))
    }

    /// A node where a pilot could be started for the cell. It has enough GPUs outside all pilots; else idle pilots
    /// give way there, as they do on the kernel's own nodes.
    fn bare_node_for(&self, cell: Idx<Cell>) -> Option<Idx<Node>> {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let pool = &self.supply.pools[k.pool];
        let size = self.pilot_size(k.pool, c.need.gpus, c.cpus);
        pool.config.scale.as_ref()?;
        let bare = |n: &Idx<Node>| {
            !self.is_burst(*n)
                && self.may_sit(*n, &c.need, &[])
                && !self.is_taken(*n, size)
                && self.takes_in(c.kernel, *n)
                && self.could_boot(*n, size, cell)
                && self.to_give_back(k.pool, *n, size, Some(cell)).is_some()
        };
        let spare = pool.lanes.spare.range((size, Idx::FIRST)..);
        let spare = spare.map(|&(_, n)| n);
        let idle = pool.lanes.idle.range((1, Idx::FIRST)..);
        // A cell whose pilot is on its way, on a burst node for instance, takes no place of others' next cells.
        let idle = idle.filter(|_| !self.is_booting_for(cell));
        let idle = idle.map(|&(_, p)| self.supply.pilots[p].node);
        self.untried_first(c.kernel, spare.chain(idle).filter(bare), |n| n)
    }

    pub(crate) fn sits_on(&self, kernel: Idx<Kernel>, node: Idx<Node>) -> bool {
        let k = &self.work.kernels[kernel];
        k.replicas.iter().any(|r| r.node == node) || k.planned.iter().any(|p| p.node == node)
    }

    /// Has the cell's kernel moved to the pilot's node, and reserves the cell's need there.
    pub(crate) fn move_to_pilot(&mut self, cell: Idx<Cell>, pilot: Idx<Pilot>, out: &mut Vec<Output>) {
        let node = self.supply.pilots[pilot].node;
        if let Some(victim) = self.victim(cell) {
            self.hold_back(pilot, cell);
            let kernel = self.work.cells[cell].kernel;
            self.begin_move(kernel, victim, node, MoveCause::Waiting, out);
        }
    }

    /// The same for a node where the cell has room now. Returns whether it comes.
    pub(crate) fn move_to_room(&mut self, cell: Idx<Cell>, node: Idx<Node>, out: &mut Vec<Output>) -> bool {
        let mut pilots = self.supply.nodes[node].pilots.iter().copied();
        let Some(pilot) = pilots.find(|&p| self.room(p, cell).is_some()) else {
            return false;
        };
        self.move_to_pilot(cell, pilot, out);
        self.work.kernels[self.work.cells[cell].kernel]
            .migrating
            .is_some()
    }

    fn move_to_bare(&mut self, cell: Idx<Cell>, node: Idx<Node>, out: &mut Vec<Output>) {
        let c = &self.work.cells[cell];
        let kernel = c.kernel;
        let pool = self.work.kernels[kernel].pool;
        let size = self.pilot_size(pool, c.need.gpus, c.cpus);
        let seq = c.seq;
        self.boot(node, size, cell, out);
        // The pilots that gave way may have made room for the cell elsewhere.
        let comes = self.is_same(cell, seq)
            && self.is_booting_for(cell)
            && self.work.kernels[kernel].migrating.is_none();
        if comes && let Some(victim) = self.victim(cell) {
            self.begin_move(kernel, victim, node, MoveCause::Waiting, out);
        }
    }

    /// Has the replica moved to the node.
    pub(crate) fn begin_move(
        &mut self,
        kernel: Idx<Kernel>,
        victim: Incarnation,
        node: Idx<Node>,
        cause: MoveCause,
        out: &mut Vec<Output>,
    ) {
        let until = self.now + self.patience(&self.work.kernels[kernel]);
        let standbys = &self.work.kernels[kernel].standbys;
        let standby = standbys.iter().find(|s| s.node == node).cloned();
        let seat = self.plan_seat(kernel, node, standby.as_ref());
        let incarnation = seat.incarnation;
        let k = &mut self.work.kernels[kernel];
        let tenure = k.replicas.iter().filter_map(|r| r.executes).max();
        k.moved = self.now;
        k.migrating = Some(Moving {
            victim,
            incarnation,
            to: node,
            since: self.now,
            until,
            tenure,
        });
        self.tally_kernel(kernel);
        self.unreserve_where_it_is_not(kernel);
        self.reconsider_holds_of(kernel);
        self.at(until, Timer::Moving(kernel, incarnation));
        self.note_kernel(kernel, out);
        out.push(Output::Migrate {
            kernel: self.work.kernels[kernel].id.clone(),
            victim,
            seat,
            cause,
        });
    }

    /// The replica whose place is worth the least: where the cell would wait longest; the last executor, which has
    /// the namespace ready, only if there is no other.
    fn victim(&self, cell: Idx<Cell>) -> Option<Incarnation> {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let wait = |node: Idx<Node>| {
            let pilots = &self.supply.nodes[node].pilots;
            let spans = pilots
                .iter()
                .filter_map(|&p| self.free_in(&self.supply.pilots[p], c));
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

    /// The new replica of a move has reported itself.
    pub(crate) fn moved_in(&mut self, kernel: Idx<Kernel>, incarnation: Incarnation) {
        let k = &mut self.work.kernels[kernel];
        if let Some(m) = k.migrating.filter(|m| m.incarnation == incarnation) {
            k.migrating = None;
            k.failed_moves.succeeded(m.to);
            for pilot in self.supply.nodes[m.to].pilots.clone() {
                self.unreserve_in_vain(pilot);
            }
            self.tally_kernel(kernel);
            self.reconsider_holds_of(kernel);
            self.stale_around(kernel);
            let took = self.now.since(m.since);
            let k = &mut self.work.kernels[kernel];
            k.move_took = Some(took);
            let pool = k.pool;
            self.supply.pools[pool].moves.observe(took);
        }
    }

    /// A replica that was part of a move is gone.
    pub(crate) fn moving_lost(&mut self, kernel: Idx<Kernel>, incarnation: Incarnation) {
        let k = &mut self.work.kernels[kernel];
        if k.migrating.is_some_and(|m| m.incarnation == incarnation) {
            k.migrating = None;
            self.tally_kernel(kernel);
            self.reconsider_holds_of(kernel);
            self.stale_around(kernel);
            self.unreserve_where_it_is_not(kernel);
        }
    }

    /// Gives up the kernel's reservations on nodes where its cells can't run, or can't after its move.
    pub(crate) fn unreserve_where_it_is_not(&mut self, kernel: Idx<Kernel>) {
        for cell in self.work.kernels[kernel].cells.clone() {
            let pilot = self.work.cells.get(cell).and_then(|c| c.reserved);
            let Some(node) = pilot.map(|p| self.supply.pilots[p].node) else {
                continue;
            };
            let comes = self.comes_to(&self.work.cells[cell], node);
            if !comes && !self.work.kernels[kernel].staying().any(|r| r.node == node) {
                self.unreserve(cell);
            }
        }
    }

    pub(crate) fn moving_late(
        &mut self,
        kernel: Idx<Kernel>,
        incarnation: Incarnation,
        out: &mut Vec<Output>,
    ) {
        // The timer may belong to an earlier kernel in this kernel's place.
        let now = self.now;
        let is_late = |m: Moving| m.incarnation == incarnation && m.until <= now;
        let late = |k: &Kernel| k.migrating.filter(|m| is_late(*m));
        if let Some(m) = self.work.kernels.get(kernel).and_then(late) {
            // The next move gets more time: this move may have been under way, with all of the kernel's memory.
            self.work.kernels[kernel].move_took = Some(now.since(m.since));
            self.withdraw_move(kernel, Withdrawal::Late, out);
        }
    }

    /// The kernel has another executor since the move was asked for. [`Self::moved_in`] comes first, so the new executor
    /// isn't the move's target. The executor in charge of the move is gone, and no other process knows of the move.
    pub(crate) fn move_overtaken(&mut self, kernel: Idx<Kernel>, up: &ReplicaFacts, out: &mut Vec<Output>) {
        let moving = self.work.kernels[kernel].migrating.as_mut();
        let Some(m) = moving.filter(|m| m.tenure.is_some() && up.executes > m.tenure) else {
            return;
        };
        if up.incarnation == m.victim {
            // The kernel's process was lost, and the replica goes on with the move in the next one.
            m.tenure = up.executes;
            return;
        }
        self.withdraw_move(kernel, Withdrawal::Overtaken(up.incarnation), out);
    }

    fn withdraw_move(&mut self, kernel: Idx<Kernel>, why: Withdrawal, out: &mut Vec<Output>) {
        let k = &self.work.kernels[kernel];
        let id = k.id.clone();
        if let Some(Moving { incarnation, to, .. }) = k.migrating {
            let is_late = matches!(why, Withdrawal::Late);
            out.push(Output::MoveWithdrawn {
                kernel: id,
                incarnation,
                to: self.supply.nodes[to].name.clone(),
                why,
            });
            if is_late {
                self.move_failed(kernel, incarnation);
            }
            self.move_over(kernel, incarnation, out);
        }
    }

    pub(crate) fn migration_failed(
        &mut self,
        id: &KernelId,
        incarnation: Incarnation,
        out: &mut Vec<Output>,
    ) {
        let Some(k) = self.find_kernel(id) else {
            return;
        };
        self.move_failed(k, incarnation);
        self.move_over(k, incarnation, out);
    }

    /// Ends the kernel's move, if the move is `incarnation`'s. The next move to the same node comes after a pause.
    pub(crate) fn move_failed(&mut self, kernel: Idx<Kernel>, incarnation: Incarnation) {
        let k = &mut self.work.kernels[kernel];
        let Some(m) = k.migrating.filter(|m| m.incarnation == incarnation) else {
            return;
        };
        let now = self.now;
        k.failed_moves.failed(m.to, m.since, now);
        let ends: Vec<Timestamp> = k.failed_moves.ends(now).collect();
        for end in ends {
            self.at(end, Timer::MoveAgain(kernel));
        }
        self.moving_lost(kernel, incarnation);
        self.lose_holds_put_off(kernel);
    }

    /// A pause after a failed move is over, or the executor can be asked again. The timer may belong to an earlier kernel in this kernel's place.
    pub(crate) fn move_again(&mut self, kernel: Idx<Kernel>, out: &mut Vec<Output>) {
        let Some(k) = self.work.kernels.get(kernel) else {
            return;
        };
        let cells = k.cells.clone();
        self.reconsider_holds_of(kernel);
        for cell in cells {
            if self.work.cells.get(cell).is_some() {
                self.consider_moving(cell, out);
            }
        }
    }

    /// The kernel's cells wait where it is, or for another move.
    fn move_over(&mut self, k: Idx<Kernel>, incarnation: Incarnation, out: &mut Vec<Output>) {
        self.unplan(k, incarnation);
        self.moving_lost(k, incarnation);
        for cell in self.work.kernels[k].cells.clone() {
            if self.work.cells.get(cell).is_some() && !self.try_start(cell, out) {
                self.unreserve(cell);
                self.claim(cell, out);
            }
        }
    }
}
