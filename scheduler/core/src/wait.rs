//! Estimators of waits: a cell's place in the queue, the time until its start, and the time until a lease ends.
//!
//! Cells, moves, scaling and holds decide by them, and people read them in [`crate::Output::Queued`]. The line before a
//! cell is in `line.rs`, the expected run of one cell in `foretell.rs`.

use crate::core::Core;
use crate::foretell::{Basis, UNKNOWN, UNSEEN};
use crate::index::Idx;
use crate::line::Place;
use crate::state::{Cell, Lease, LeaseState, Node, Pilot, PilotState, Pool, Rank, Supply, Work};
use hop_words::need::Need;
use hop_words::time::Span;

impl Core {
    /// Place from 1 among the cells for the same GPUs, on the node with the smallest number.
    pub(crate) fn position(&self, cell: Idx<Cell>) -> u32 {
        let place = self.work.place(cell);
        self.work.position_by(cell, |node| self.ahead_on(node, place))
    }

    /// Expected wait. The cell starts when its GPUs are free behind cells of better rank, when its booting pilot is up,
    /// or when its kernel's replica has moved, whichever comes first.
    pub(crate) fn estimate(&self, cell: Idx<Cell>) -> Option<Span> {
        self.estimate_by(cell, Basis::Guess, self.line_of(cell, Basis::Guess))
    }

    /// The time until the cells before the cell on a node have let it through.
    fn line_of(&self, cell: Idx<Cell>, basis: Basis) -> impl Fn(Idx<Node>) -> Span {
        let c = &self.work.cells[cell];
        let pool = self.work.kernels[c.kernel].pool;
        let line = move |node| self.line_before(self.work.place(cell), node, pool, basis);
        move |node| line(node).lets_through_in(&c.need)
    }

    /// Expected wait for people. `None` means that too few cells like the running ones were seen.
    pub(crate) fn foreseen_wait(&self, cell: Idx<Cell>) -> Option<Span> {
        self.foreseen_wait_by(cell, self.line_of(cell, Basis::Seen))
    }

    pub(crate) fn foreseen_wait_by(&self, cell: Idx<Cell>, line: impl Fn(Idx<Node>) -> Span) -> Option<Span> {
        self.estimate_by(cell, Basis::Seen, line)
            .filter(|wait| wait.0 < UNKNOWN.0 / 2)
    }

    fn estimate_by(&self, cell: Idx<Cell>, basis: Basis, line: impl Fn(Idx<Node>) -> Span) -> Option<Span> {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let booting = self.supply.tickets.for_cell((cell, c.seq)).next();
        let boots = booting.map(|(_, t)| self.up_in(t));
        let mut best = [boots, self.move_left(c.kernel)].into_iter().flatten().min();
        for r in k.able() {
            let there = self.wait_behind((line(r.node), c.rank), basis, r.node, k.pool, &c.need, c.cpus);
            best = [best, there].into_iter().flatten().min();
        }
        best
    }

    /// Expected wait of a cell at this place in the queue, on the pool's pilots that are up on the node. `None` means
    /// that it never starts there.
    pub(crate) fn wait_on(
        &self,
        node: Idx<Node>,
        place: Place,
        pool: Idx<Pool>,
        need: &Need,
        cpus: u16,
    ) -> Option<Span> {
        let line = self.line_before(place, node, pool, Basis::Guess);
        let line = line.lets_through_in(need);
        self.wait_behind((line, place.0), Basis::Guess, node, pool, need, cpus)
    }

    fn wait_behind(
        &self,
        (line, rank): (Span, Rank),
        basis: Basis,
        node: Idx<Node>,
        pool: Idx<Pool>,
        need: &Need,
        cpus: u16,
    ) -> Option<Span> {
        let up = self.supply.lending_of(node, pool);
        let spans = up.filter_map(|pilot| self.free_for(pilot, basis, need, cpus));
        let free = spans.min()?.max(line);
        match held_before(&self.supply, &self.work, node, rank, need, cpus) {
            // The holder gets the next free GPUs and cores on the node first.
            Some(holder) => {
                let first = self.node_free_in(node, holder)?;
                Some(free.max(first + self.run_of_cell(holder, basis)))
            }
            None => Some(free),
        }
    }

    /// Expected time until the lease ends.
    pub(crate) fn lease_left(&self, lease: &Lease, basis: Basis) -> Span {
        match basis {
            Basis::Guess => self.remaining(lease),
            Basis::Seen => self.seen_remaining(lease),
        }
    }

    /// Expected run of a cell about to start, at the median.
    fn run_at_start(&self, cell: &Cell) -> Span {
        let ran = cell.parked.map_or(Span::ZERO, |(_, ran)| ran);
        let run = self.run_left(cell.kernel, cell.print, ran);
        run.unwrap_or_else(|| ran.max(UNSEEN))
    }

    /// Expected time until the lease ends, for decisions.
    pub(crate) fn remaining(&self, lease: &Lease) -> Span {
        match &lease.state {
            LeaseState::Running(r) => {
                let expected = lease.expected.get();
                if expected > self.now {
                    return expected.since(self.now);
                }
                let span = self.reckon(lease, r);
                if self.decides {
                    lease.expected.set(self.now + span);
                }
                span
            }
            LeaseState::Starting { cell } => self.run_at_start(cell),
            // The pool's grace once before the take-back, and once during it.
            LeaseState::Lingering { .. }
            | LeaseState::Ending {
                leaves_by: Some(_), ..
            } if lease.holding.is_some() => Span(2 * self.supply.pools[lease.pool].config.grace.0),
            LeaseState::Lingering { .. } | LeaseState::Ending { .. } => Span::from_millis(100),
        }
    }

    /// Expected time until the lease ends, from runs that were seen. A running cell's is reckoned anew each second: a
    /// guess that is counted down says "at once" in the end, however long the cell goes on.
    fn seen_remaining(&self, lease: &Lease) -> Span {
        let LeaseState::Running(r) = &lease.state else {
            return match &lease.state {
                LeaseState::Starting { cell } if !self.has_seen(cell.kernel, cell.print, Span::ZERO) => {
                    UNKNOWN
                }
                _ => self.remaining(lease),
            };
        };
        let (at, end) = lease.foreseen.get();
        if end > self.now && self.now.since(at) < Span::from_secs(1) {
            return end.since(self.now);
        }
        let elapsed = Span(r.ran.0 + self.now.since(r.since).0);
        let left = if self.has_seen(lease.kernel, r.print, elapsed) {
            self.run_left(lease.kernel, r.print, elapsed)
        } else {
            None
        };
        let left = left.unwrap_or(UNKNOWN);
        if self.decides {
            lease.foreseen.set((self.now, self.now + left));
        }
        left
    }

    fn reckon(&self, lease: &Lease, r: &crate::state::Running) -> Span {
        let elapsed = Span(r.ran.0 + self.now.since(r.since).0);
        let left = self.run_left(lease.kernel, r.print, elapsed);
        // A cell that outran all runs seen is expected to run as long again.
        left.unwrap_or_else(|| elapsed.max(Span::from_secs(1)))
    }

    /// Expected time until the pilot has room for the cell, if nobody else takes it. `None` means never.
    pub(crate) fn free_in(&self, p: &Pilot, c: &Cell) -> Option<Span> {
        self.free_for(p, Basis::Guess, &c.need, c.cpus)
    }

    fn free_for(&self, p: &Pilot, basis: Basis, need: &Need, cores: u16) -> Option<Span> {
        let leases = p.leases.iter().map(|id| &self.work.leases[id]);
        let ends = leases.map(|l| (self.lease_left(l, basis), l)).collect();
        p.free_in(ends, need, cores)
    }
}

impl Work {
    /// The cell's place in the queue.
    fn place(&self, cell: Idx<Cell>) -> Place {
        (self.cells[cell].rank, cell)
    }

    /// The cell's position, given the number of cells `ahead` on each node.
    pub(crate) fn position_by(&self, cell: Idx<Cell>, ahead: impl Fn(Idx<Node>) -> u64) -> u32 {
        let nodes = self.kernels[self.cells[cell].kernel].able();
        1 + nodes.map(|r| ahead(r.node) as u32).min().unwrap_or(0)
    }
}

impl Supply {
    /// The node's pilots that lend.
    pub(crate) fn lending(&self, node: Idx<Node>) -> impl Iterator<Item = &Pilot> {
        let pilots = self.nodes[node].pilots.iter().map(|&p| &self.pilots[p]);
        pilots.filter(|p| p.state == PilotState::Up)
    }

    /// The pool's pilots on the node that lend.
    pub(crate) fn lending_of(&self, node: Idx<Node>, pool: Idx<Pool>) -> impl Iterator<Item = &Pilot> {
        self.lending(node).filter(move |p| p.pool == pool)
    }
}

impl Pilot {
    /// Time until the pilot has room for the need, given the time until the end of each of its leases. `None` means
    /// never.
    fn free_in(&self, mut ends: Vec<(Span, &Lease)>, need: &Need, cores: u16) -> Option<Span> {
        let groups: Vec<Option<usize>> = if need.gpus == 0 {
            vec![None]
        } else {
            (0..self.groups.len())
                .filter(|&g| self.groups[g].fits(need))
                .map(Some)
                .collect()
        };
        ends.sort_by_key(|(span, l)| (*span, l.id));
        let first = |group: Option<usize>| {
            let mut gpus = group.map_or(0, |g| self.groups[g].free());
            let mut cpus = self.cpus_free();
            let enough = |gpus: u16, cpus: u16| gpus >= need.gpus && cpus >= cores;
            if enough(gpus, cpus) {
                return Some(Span::ZERO);
            }
            for (span, l) in &ends {
                gpus += if l.group == group { l.gpus } else { 0 };
                cpus += l.cpus;
                if enough(gpus, cpus) {
                    return Some(*span);
                }
            }
            None
        };
        groups.into_iter().filter_map(first).min()
    }
}

/// The due cell of better rank with a hold on the node, if the hold delays a cell of this need.
fn held_before<'a>(
    supply: &Supply,
    work: &'a Work,
    node: Idx<Node>,
    rank: Rank,
    need: &Need,
    cpus: u16,
) -> Option<&'a Cell> {
    let holder = &work.cells[supply.nodes[node].held_for?];
    let both = holder.cpus.saturating_add(cpus);
    let beside = || need.gpus == 0 && supply.lending(node).any(|p| p.cpus_free() >= both);
    (holder.rank < rank && !beside()).then_some(holder)
}
