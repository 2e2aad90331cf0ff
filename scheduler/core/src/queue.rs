//! The order of waiting cells, and when a cell is due.
//!
//! Cells go by fair share, class, deadline, and then by the past service of their kernels. The kernel with the least
//! service goes first (least attained service): this needs no foreknowledge and serves short sessions soon. Ranks are
//! renewed while cells wait.
//!
//! A cell is due after a wait of [`Config::due_after`](crate::Config), or after many overtakings. Due cells go before
//! all others, the oldest first, and `hold.rs` keeps GPUs free for them.

use crate::core::Core;
use crate::index::Idx;
use crate::state::{Account, Arena, Band, Cell, Kernel, Pool, Rank, Shape, Size, Timer, User};
use hop_words::id::LeaseId;
use hop_words::need::Class;
use hop_words::time::{Span, Timestamp};
use std::collections::BTreeSet;

/// Weight of the user's and the account's service beside the kernel's own: one part in so many. A new kernel for every
/// cell thus doesn't get a user ahead of all others.
const USER_PART: f64 = 16.0;
const ACCOUNT_PART: f64 = 64.0;
/// A cell is due after `DUE_RUNS` runs as long as the pool's long ones (of quantile `DUE_QUANTILE`), but not before
/// `DUE_LEAST`. With fewer than `DUE_SEEN` runs, the pool's long runs are unknown, and only the configured age counts.
const DUE_RUNS: u64 = 10;
const DUE_QUANTILE: f64 = 0.99;
const DUE_SEEN: u32 = 200;
const DUE_LEAST: Span = Span::from_secs(600);
/// How often the ranks of waiting cells are renewed: service grows and fades meanwhile.
const RENEW_EVERY: Span = Span::from_secs(60);
/// Steps of service for each doubling.
const COARSE: f64 = 0.5;
const FINE: f64 = 4.0;

/// Service in logarithmic steps: coarse, so that small changes don't reorder the queue.
fn steps(gpu_seconds: f64, per_doubling: f64) -> i16 {
    if gpu_seconds <= 0.0 {
        return i16::MIN;
    }
    (per_doubling * gpu_seconds.log2()).floor() as i16
}

impl Core {
    pub(crate) fn rank(&self, cell: &Cell) -> Rank {
        let due = Rank {
            band: Band::Due,
            service: 0,
            class: Class::Interactive,
            latest: Timestamp(u64::MAX),
            fine: 0,
            submitted: cell.submitted,
            seq: cell.seq,
        };
        if cell.due {
            return due;
        }
        let latest = self.latest_start(cell);
        // A cell bound to miss its deadline delays no other.
        let class = match cell.class {
            Class::Deadline if latest < self.now => Class::Batch,
            class => class,
        };
        let (service, fine) = self.service_of(cell.kernel, cell.class);
        Rank {
            // A parked cell stays behind the cell for which it was parked.
            band: match cell.parked {
                None => Band::Ordinary,
                Some(_) => Band::Parked,
            },
            service,
            class,
            latest,
            fine,
            ..due
        }
    }

    /// Service of the kernel, with parts of its user's and its account's over their shares, in coarse and in fine
    /// steps. A kernel with a deadline isn't put back for its own runs, because its work must be done in time.
    fn service_of(&self, kernel: Idx<Kernel>, class: Class) -> (i16, i16) {
        let k = &self.work.kernels[kernel];
        self.service(self.used(&k.usage), k.user, k.account, class)
    }

    /// The same for a kernel with the past service `own`.
    pub(crate) fn service(
        &self,
        own: f64,
        user: Idx<User>,
        account: Idx<Account>,
        class: Class,
    ) -> (i16, i16) {
        if !self.config.fair_share {
            return (0, steps(own, FINE));
        }
        let people = self.service_of_people(user, account);
        let ordered = match class {
            Class::Deadline => people,
            Class::Interactive | Class::Batch => own + people,
        };
        (steps(ordered, COARSE), steps(own + people, FINE))
    }

    /// The part of the user's and the account's service that counts for each of their kernels.
    fn service_of_people(&self, user: Idx<User>, account: Idx<Account>) -> f64 {
        let (u, a) = (
            &self.people.users[user].usage,
            &self.people.accounts[account].usage,
        );
        self.used(u) / u.weight * self.people.user_weight / USER_PART
            + self.used(a) / a.weight * self.people.account_weight / ACCOUNT_PART
    }

    /// The cell's deadline less its expected run.
    fn latest_start(&self, cell: &Cell) -> Timestamp {
        let Some(deadline) = cell.need.deadline.filter(|_| cell.class == Class::Deadline) else {
            return Timestamp(u64::MAX);
        };
        let ran = cell.parked.map_or(Span::ZERO, |(_, ran)| ran);
        let run = self.run_left(cell.kernel, cell.print, ran);
        Timestamp(deadline.0.saturating_sub(run.unwrap_or(Span::ZERO).0))
    }

    /// Moves the cell to the place of its present rank. Returns whether its rank has changed.
    pub(crate) fn rerank(&mut self, cell: Idx<Cell>) -> bool {
        let new = self.rank(&self.work.cells[cell]);
        let changed = new != self.work.cells[cell].rank;
        if changed {
            self.dequeue(cell);
            self.work.cells[cell].rank = new;
            self.enqueue(cell);
            self.stale_around(self.work.cells[cell].kernel);
        }
        changed
    }

    /// Renews the ranks of all waiting cells, and again after a while. Else a cell would keep the place by its user's use
    /// at its submission, however much the user's other cells use meanwhile.
    pub(crate) fn renew_ranks(&mut self) {
        self.work.renewing = false;
        self.renew_runs();
        self.rerank_all();
        if !self.work.cells.is_empty() {
            self.renew_later();
        }
    }

    /// Renews the expected runs of all waiting cells: others like them have run meanwhile.
    fn renew_runs(&mut self) {
        let waiting = self.work.cells.iter();
        let runs: Vec<(Idx<Cell>, Span)> = waiting.map(|(i, c)| (i, self.mean_run(c))).collect();
        for (cell, run) in runs {
            self.work.cells[cell].runs_for = run;
        }
    }

    fn renew_later(&mut self) {
        if !std::mem::replace(&mut self.work.renewing, true) {
            self.at(self.now + RENEW_EVERY, Timer::Renew);
        }
    }

    /// As [`Self::rerank`] for all cells. After a change of rank another cell may come first, even on nodes without any other
    /// change.
    pub(crate) fn rerank_all(&mut self) {
        let all: Vec<Idx<Cell>> = self.work.cells.iter().map(|(i, _)| i).collect();
        let mut changed = BTreeSet::new();
        for cell in all {
            if self.rerank(cell) {
                changed.insert(self.work.kernels[self.work.cells[cell].kernel].pool);
            }
        }
        for &pool in &changed {
            self.work.stale.extend(&self.supply.pools[pool].nodes);
        }
        self.work.unheld.extend(changed);
    }

    pub(crate) fn enqueue(&mut self, cell: Idx<Cell>) {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let entry = (c.rank, cell);
        let pool = &mut self.supply.pools[k.pool];
        pool.queue.insert(entry);
        pool.shapes.entry(Shape::of(&c.need)).or_default().insert(entry);
        for r in &k.replicas {
            self.supply.nodes[r.node].queue.insert(entry);
        }
        self.renew_later();
    }

    pub(crate) fn dequeue(&mut self, cell: Idx<Cell>) {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        let entry = (c.rank, cell);
        let pool = &mut self.supply.pools[k.pool];
        pool.queue.remove(&entry);
        let shape = Shape::of(&c.need);
        if let Some(waiting) = pool.shapes.get_mut(&shape) {
            waiting.remove(&entry);
            if waiting.is_empty() {
                pool.shapes.remove(&shape);
            }
        }
        for r in &k.replicas {
            self.supply.nodes[r.node].queue.remove(&entry);
        }
    }

    // --- overtaking ---

    /// Counts the overtaking cells from now on.
    pub(crate) fn enter_arenas(&mut self, cell: Idx<Cell>) {
        let c = &self.work.cells[cell];
        let (kernel, size) = (c.kernel, Size::of(&c.need, c.cpus));
        let k = &self.work.kernels[kernel];
        let arenas: Vec<Arena> = match self.may_roam(kernel) {
            true => vec![Arena::Pool(k.pool)],
            false => k.replicas.iter().map(|r| Arena::Node(r.node)).collect(),
        };
        // Cells with less slack rightly go before a cell with a deadline: only its age makes it due.
        let most = match c.class {
            Class::Deadline => None,
            Class::Interactive | Class::Batch => Some(self.config.due_overtaken),
        };
        let place = (c.submitted, c.seq);
        for arena in arenas {
            // A kernel may have two replicas on a node.
            if self.work.cells[cell].arenas.contains(&arena) {
                continue;
            }
            let overtaking = self.work.arenas.entry(arena).or_default();
            overtaking.enter(cell, size.clone(), place, most);
            self.work.cells[cell].arenas.push(arena);
        }
    }

    pub(crate) fn leave_arenas(&mut self, cell: Idx<Cell>) {
        let c = &mut self.work.cells[cell];
        let (size, place) = (Size::of(&c.need, c.cpus), (c.submitted, c.seq));
        for arena in std::mem::take(&mut c.arenas) {
            if let Some(overtaking) = self.work.arenas.get_mut(&arena) {
                overtaking.leave(&size, place);
                if overtaking.classes.is_empty() {
                    self.work.arenas.remove(&arena);
                }
            }
        }
    }

    /// A cell of `size`, with `place` by submission, has got the lease. Earlier cells still waiting were
    /// overtaken, if the lease's GPUs and the pilot's free cores would have done.
    pub(crate) fn overtake(&mut self, id: LeaseId, size: &Size, place: (Timestamp, u64)) {
        let lease = &self.work.leases[&id];
        let (pool, p) = (lease.pool, &self.supply.pilots[lease.pilot]);
        let cores = p.cpus_free().saturating_add(lease.cpus);
        let group = lease.group.map(|g| &p.groups[g]);
        let would_do = |waits: &Size| {
            waits.shape.gpus == lease.gpus && waits.cpus <= cores && group.is_none_or(|g| waits.shape.fits(g))
        };
        let mut due = Vec::new();
        for arena in [Arena::Pool(pool), Arena::Node(p.node)] {
            if let Some(overtaking) = self.work.arenas.get_mut(&arena) {
                due.extend(overtaking.started(size, place, &would_do));
            }
        }
        for cell in due {
            self.is_due(cell);
        }
        // Holds widen with each overtaking cell.
        if !self.supply.pools[pool].holders.is_empty() {
            self.work.unheld.insert(pool);
        }
    }

    pub(crate) fn due_timer(&mut self, cell: Idx<Cell>, seq: u64) {
        if !self.is_same(cell, seq) {
            return;
        }
        self.work.cells[cell].due_at = None;
        let c = &self.work.cells[cell];
        if self.now.since(c.submitted) >= self.due_after(self.work.kernels[c.kernel].pool) {
            self.is_due(cell);
        } else {
            self.arm_due(cell);
        }
    }

    /// The cell's latest start has passed.
    pub(crate) fn is_late(&mut self, cell: Idx<Cell>, seq: u64) {
        if self.is_same(cell, seq) {
            self.rerank(cell);
        }
    }

    /// Puts the cell before all cells that are not due, and holds nodes for it.
    fn is_due(&mut self, cell: Idx<Cell>) {
        if std::mem::replace(&mut self.work.cells[cell].due, true) {
            return;
        }
        self.rerank(cell);
        let pool = self.work.kernels[self.work.cells[cell].kernel].pool;
        self.work.unheld.insert(pool);
    }

    /// Arms the timers for the cell's becoming due, and for the miss of its deadline.
    pub(crate) fn arm_due(&mut self, cell: Idx<Cell>) {
        let c = &self.work.cells[cell];
        let (latest, seq) = (c.rank.latest, c.seq);
        if latest < Timestamp(u64::MAX) && latest >= self.now {
            self.at(latest + Span(1), Timer::Late(cell, seq));
        }
        let c = &self.work.cells[cell];
        if !c.due && c.due_at.is_none() {
            // Meanwhile the core learns how long runs are.
            let age = c.submitted + self.due_after(self.work.kernels[c.kernel].pool);
            let at = age.min(self.now + DUE_LEAST);
            self.work.cells[cell].due_at = Some(at);
            self.at(at, Timer::Due(cell, seq));
        }
    }

    /// Age at which a cell is due. Keeping GPUs free for a cell costs as long as the longest cells there run: where all
    /// are short, none waits for hours behind hundreds of others.
    fn due_after(&self, pool: Idx<Pool>) -> Span {
        let most = self.config.due_after;
        let runs = &self.supply.pools[pool].long_runs;
        let long = runs.remaining(runs, 0.0, Span::ZERO, DUE_QUANTILE);
        match long.filter(|_| runs.count >= DUE_SEEN) {
            Some(long) => Span(long.0.saturating_mul(DUE_RUNS)).max(DUE_LEAST).min(most),
            None => most,
        }
    }

    /// Whether the kernel's cells may be brought to any node of its pool.
    pub(crate) fn may_roam(&self, kernel: Idx<Kernel>) -> bool {
        let k = &self.work.kernels[kernel];
        let moves = self.supply.pools[k.pool].config.migrate.is_some();
        moves && k.fixed.is_none() && k.only().is_none() && !k.replicas.is_empty()
    }
}
