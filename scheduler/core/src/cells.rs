//! Waiting cells: submission, place in the queue, and the way to a lease.

use crate::core::Core;
use crate::index::Idx;
use crate::input::Submit;
use crate::output::{DecidedLease, Output, Record};
use crate::room::Spot;
use crate::state::{
    Band, Cell, Kernel, Lease, LeaseState, Node, Pool, Rank, Running, Size, Timer, Told, Vain,
};
use hop_words::id::{CellId, Incarnation, JobId, KernelId, LeaseId};
use hop_words::need::{Class, Need};
use hop_words::reason::RefusedBecause;
use hop_words::time::{Span, Timestamp};

/// Pause between two looks at a waiting cell, as a part of the time that the cell has waited.
const REPORT_PART: u64 = 100;
const REPORT_MOST: Span = Span::from_secs(300);

/// A wait told to people holds for a quarter of its length, at least for this long.
const FORESEE_LEAST: Span = Span::from_secs(5);

/// Cells that waited before the driver's restart are asked for again within this time. Other cells were withdrawn
/// meanwhile, and their ids may come again.
const RETURNS_WITHIN: Span = Span::from_secs(600);

impl Core {
    pub(crate) fn submit(&mut self, asked: Submit, out: &mut Vec<Output>) {
        let Submit {
            kernel: kernel_id,
            cell: id,
            need,
            class,
            print,
        } = asked;
        let refuse = |reason, out: &mut Vec<Output>| {
            out.push(Output::Refused {
                kernel: kernel_id.clone(),
                cell: id.clone(),
                reason,
            });
        };
        let open = |k: &Idx<Kernel>| !self.work.kernels[*k].closed;
        let Some(kernel) = self.find_kernel(&kernel_id).filter(open) else {
            return refuse(RefusedBecause::NoKernel, out);
        };
        if self.asked_before(kernel, &id, out) {
            return;
        }
        if let Some(reason) = self.never(kernel, &need) {
            return refuse(reason, out);
        }
        self.learn_think(kernel, &need);
        self.learn_size(kernel, need.gpus);
        let cpus = self.cpus_of(self.work.kernels[kernel].pool, &need);
        let submitted = self.waits_since(kernel, &id);
        if let Some(lease) = self.lingering_for(kernel, &need, cpus) {
            let size = Size::of(&need, cpus);
            let running = Running {
                cell: id,
                need,
                class,
                submitted,
                since: self.now,
                print,
                ran: Span::ZERO,
            };
            self.grant_lingering(lease, running, self.now.since(submitted), out);
            self.learn_price(self.work.kernels[kernel].pool, false);
            return self.overtake(lease, &size, (submitted, u64::MAX));
        }
        self.end_unfit_lingering(kernel, out);
        let cell = self.new_cell(kernel, id, need, cpus, class, print, submitted, None);
        let (pool, seq) = (self.work.kernels[kernel].pool, self.work.cells[cell].seq);
        if !self.try_start(cell, out) {
            self.wait(cell, out);
            if self.is_same(cell, seq) && self.is_booting_for(cell) {
                self.learn_price(pool, true);
            }
        } else {
            self.learn_price(pool, false);
        }
    }

    /// Answers again for a waiting cell or one with a lease: the replica's former connection may have broken.
    pub(crate) fn asked_before(&mut self, kernel: Idx<Kernel>, id: &CellId, out: &mut Vec<Output>) -> bool {
        let k = &self.work.kernels[kernel];
        if let Some(&cell) = k.cells.iter().find(|&&c| self.work.cells[c].id == *id) {
            self.work.cells[cell].told = None;
            if !self.asked_anew(cell, out) {
                self.tell(cell, out);
            }
            return true;
        }
        let lease = k.leases.iter().find_map(|l| match &self.work.leases[l].state {
            LeaseState::Starting { cell } if cell.id == *id => Some((*l, None)),
            LeaseState::Running(r) if r.cell == *id => Some((*l, Some(r.since.since(r.submitted)))),
            _ => None,
        });
        let Some((lease, running)) = lease else {
            return false;
        };
        // The start of a starting lease will grant the cell.
        if let Some(waited) = running {
            let l = &self.work.leases[&lease];
            out.push(Output::Granted {
                kernel: k.id.clone(),
                cell: id.clone(),
                lease,
                node: self.supply.nodes[self.supply.pilots[l.pilot].node].name.clone(),
                executor: l.executor,
                lingering: l.cells > 1,
                waited,
            });
        }
        true
    }

    /// The time of the cell's submission: before the driver's restart, if the cell waited then.
    pub(crate) fn waits_since(&mut self, kernel: Idx<Kernel>, id: &CellId) -> Timestamp {
        let old = self.now.since(self.origin) > RETURNS_WITHIN;
        let waited = &mut self.work.kernels[kernel].waited;
        if old {
            waited.clear();
        }
        let since = waited
            .extract_if(.., |(cell, _)| cell == id)
            .map(|(_, since)| since);
        since.fold(self.now, Ord::min)
    }

    /// Why this need can't ever be served.
    fn never(&self, kernel: Idx<Kernel>, need: &Need) -> Option<RefusedBecause> {
        if need.is_none() {
            return Some(RefusedBecause::NeedsNothing);
        }
        self.never_in(self.work.kernels[kernel].pool, need)
            .or_else(|| self.never_within_limits(kernel, need.gpus))
    }

    fn learn_size(&mut self, kernel: Idx<Kernel>, gpus: u16) {
        const DECAY: f32 = 0.93;
        if gpus == 0 {
            return;
        }
        let sizes = &mut self.work.kernels[kernel].sizes;
        for (_, w) in sizes.iter_mut() {
            *w *= DECAY;
        }
        match sizes.iter_mut().find(|(g, _)| *g == gpus) {
            Some((_, w)) => *w += 1.0,
            None => sizes.push((gpus, 1.0)),
        }
        self.tally_kernel(kernel);
    }

    fn learn_think(&mut self, kernel: Idx<Kernel>, need: &Need) {
        if need.gpus > 0
            && let Some(end) = self.work.kernels[kernel].last_end.take()
        {
            self.learn_pace(kernel, self.now.since(end));
        }
    }

    /// Cores of a lease for `need`: the need's own number, else one for each GPU, at least 1 and at most a
    /// pilot's.
    pub(crate) fn cpus_of(&self, pool: Idx<Pool>, need: &Need) -> u16 {
        if need.cpus > 0 {
            return need.cpus;
        }
        need.gpus
            .clamp(1, self.supply.pools[pool].config.cpus_per_pilot.max(1))
    }

    /// An idle lease of the kernel's that exactly fits the need.
    pub(crate) fn lingering_for(&self, kernel: Idx<Kernel>, need: &Need, cpus: u16) -> Option<LeaseId> {
        self.work.kernels[kernel].leases.iter().copied().find(|id| {
            let lease = &self.work.leases[id];
            let group = lease.group.map(|g| &self.supply.pilots[lease.pilot].groups[g]);
            matches!(lease.state, LeaseState::Lingering { .. })
                && lease.gpus == need.gpus
                && lease.cpus == cpus
                && group.is_none_or(|g| g.fits(need))
        })
    }

    fn end_unfit_lingering(&mut self, kernel: Idx<Kernel>, out: &mut Vec<Output>) {
        let idle: Vec<LeaseId> = self.work.kernels[kernel]
            .leases
            .iter()
            .copied()
            .filter(|id| matches!(self.work.leases[id].state, LeaseState::Lingering { .. }))
            .collect();
        for id in idle {
            self.end_lease(id, hop_words::lease::EndCause::Done, out);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all of it is the cell")]
    pub(crate) fn new_cell(
        &mut self,
        kernel: Idx<Kernel>,
        id: CellId,
        need: Need,
        cpus: u16,
        class: Class,
        print: u64,
        submitted: Timestamp,
        parked: Option<(Incarnation, Span)>,
    ) -> Idx<Cell> {
        let seq = self.new_seq();
        let rank = Rank {
            band: Band::Ordinary,
            service: 0,
            class,
            latest: Timestamp(u64::MAX),
            fine: 0,
            submitted,
            seq,
        };
        let cell = Cell {
            kernel,
            id,
            need,
            cpus,
            class,
            print,
            runs_for: Span::ZERO,
            submitted,
            seq,
            failures: 0,
            failed_on: Vec::new(),
            why_failed: String::new(),
            vain: Vain::default(),
            rank,
            reserved: None,
            due: false,
            due_at: None,
            hold: None,
            arenas: Vec::new(),
            told: None,
            limited: None,
            parked,
            unasked: None,
        };
        self.insert_cell(cell)
    }

    /// The kernel's new executor asks for a cell of the former executor. `false`: it has before.
    pub(crate) fn asked_anew(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) -> bool {
        let waited = self.work.cells[cell].unasked.take().is_some();
        if waited {
            self.work.cells[cell].told = None;
            self.start_or_claim(cell, out);
        }
        waited
    }

    /// Starts the cell, or makes room for it and tells its place.
    pub(crate) fn start_or_claim(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) {
        if !self.try_start(cell, out) {
            self.claim(cell, out);
            self.tell(cell, out);
        }
    }

    /// Puts a cell into the queue.
    pub(crate) fn insert_cell(&mut self, mut cell: Cell) -> Idx<Cell> {
        cell.rank = self.rank(&cell);
        cell.runs_for = self.mean_run(&cell);
        let (kernel, user) = (cell.kernel, self.work.kernels[cell.kernel].user);
        let i = self.work.cells.insert(cell);
        self.work.kernels[kernel].cells.push(i);
        if let Some((replica, _)) = self.work.cells[i].parked {
            self.work.kernels[kernel].parked = Some(replica);
            self.tally_kernel(kernel);
            self.unreserve_where_it_is_not(kernel);
        }
        self.people.users[user].cells.insert(i);
        if let Some(until) = self.work.cells[i].unasked {
            let timer = Timer::Unasked(i, self.work.cells[i].seq);
            self.at(until, timer);
        }
        self.enqueue(i);
        self.enter_arenas(i);
        if self.work.cells[i].due {
            self.work.unheld.insert(self.work.kernels[kernel].pool);
        }
        i
    }

    /// Takes a cell out of the queue for good, with its reservations.
    pub(crate) fn take_cell(&mut self, cell: Idx<Cell>) -> Cell {
        self.dequeue(cell);
        self.leave_arenas(cell);
        self.unlimit(cell);
        self.unreserve(cell);
        self.release_hold(cell);
        let c = self.work.cells.remove(cell).expect("a cell is taken once");
        let k = &mut self.work.kernels[c.kernel];
        k.cells.retain(|&x| x != cell);
        let user = k.user;
        if c.parked.is_some() {
            k.parked = None;
            self.tally_kernel(c.kernel);
            self.stale_around(c.kernel);
        }
        self.people.users[user].cells.remove(&cell);
        if let Some(at) = c.due_at {
            self.timers.remove(&(at, Timer::Due(cell, c.seq)));
        }
        c
    }

    // --- starting ---

    /// Starts the cell on a lease if one can be had now.
    pub(crate) fn try_start(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) -> bool {
        let Some(spot) = self.spot(cell) else {
            return false;
        };
        if let Some(over) = self.over_limit(&self.work.cells[cell]) {
            self.limit(cell, over.scope);
            // Others may have the GPUs meanwhile.
            let c = &self.work.cells[cell];
            if c.reserved
                .is_some_and(|p| !self.comes_to(c, self.supply.pilots[p].node))
            {
                self.unreserve(cell);
            }
            return false;
        }
        self.start(cell, spot, out);
        true
    }

    fn start(&mut self, cell: Idx<Cell>, spot: Spot, out: &mut Vec<Output>) {
        let backfills = self
            .holder_before(self.supply.pilots[spot.pilot].node, cell)
            .is_some();
        let c = self.take_cell(cell);
        let (size, place) = (Size::of(&c.need, c.cpus), (c.submitted, c.seq));
        let id = self.new_lease_id(out);
        let now = self.now;
        let pilot = &mut self.supply.pilots[spot.pilot];
        let gpu_type = spot.group.map(|g| pilot.groups[g].gpu_type.clone());
        let named = gpu_type
            .filter(|t| !t.as_str().is_empty() && (pilot.groups.len() > 1 || c.need.gpu_type.is_some()));
        if let Some(g) = spot.group {
            pilot.groups[g].used += c.need.gpus;
        }
        pilot.cpus_used += c.cpus;
        pilot.steps_left = pilot.steps_left.saturating_sub(1);
        pilot.leases.push(id);
        pilot.idle_since = None;
        let (job, node, pool) = (pilot.job, pilot.node, pilot.pool);
        let k = &mut self.work.kernels[c.kernel];
        k.leases.push(id);
        k.last_gpus = c.need.gpus;
        let lease = Lease {
            id,
            kernel: c.kernel,
            user: k.user,
            account: k.account,
            pool,
            pilot: spot.pilot,
            group: spot.group,
            gpus: c.need.gpus,
            gpu_type: named,
            cpus: c.cpus,
            executor: spot.executor,
            devices: Vec::new(),
            submit: c.submitted,
            ordered: now,
            start_by: now + self.config.start_timeout,
            started: None,
            run: Span::ZERO,
            linger: Span::ZERO,
            wait: now.since(c.submitted),
            cells: 0,
            backfills,
            holding: None,
            expected: std::cell::Cell::new(Timestamp(0)),
            foreseen: std::cell::Cell::default(),
            asked: hop_words::lease::ParkAsk::No,
            state: LeaseState::Starting { cell: Box::new(c) },
        };
        self.count_held(&lease, true);
        self.work.leases.insert(id, lease);
        self.list_pilot(spot.pilot);
        self.at(now + self.config.start_timeout, Timer::StartTimeout(id));
        self.note_lease(id, out);
        let (user, account) = (self.work.leases[&id].user, self.work.leases[&id].account);
        self.note_usage(user, account, out);
        self.announce_start(id, job, node, out);
        self.foresee_soon(pool);
        self.wear(spot.pilot, out);
        self.overtake(id, &size, place);
    }

    fn announce_start(
        &self,
        id: LeaseId,
        pilot: hop_words::id::JobId,
        node: Idx<Node>,
        out: &mut Vec<Output>,
    ) {
        let lease = &self.work.leases[&id];
        let LeaseState::Starting { cell } = &lease.state else {
            return;
        };
        let k = &self.work.kernels[lease.kernel];
        let user = self.people.users[lease.user].name.clone();
        let account = self.people.accounts[lease.account].name.clone();
        let pool = self.supply.pools[lease.pool].config.name.clone();
        let node = self.supply.nodes[node].name.clone();
        out.push(Output::Record(Record::LeaseOpened {
            lease: id,
            kernel: k.id.clone(),
            name: k.name.clone(),
            user: user.clone(),
            account: account.clone(),
            pool: pool.clone(),
            node: node.clone(),
            pilot,
            gpus: lease.gpus,
            cpus: lease.cpus,
            submit: lease.submit,
            at: lease.ordered,
        }));
        out.push(Output::StartLease(DecidedLease {
            lease: id,
            pilot,
            node,
            pool,
            user,
            account,
            kernel: k.id.clone(),
            name: k.name.clone(),
            cell: cell.id.clone(),
            submit: lease.submit,
            executor: lease.executor,
            gpus: lease.gpus,
            gpu_type: lease.gpu_type.clone(),
            cpus: lease.cpus,
        }));
        self.tell_starting(id, out);
    }

    // --- waiting ---

    /// Makes room for a delayed cell, arms its timers and reports its place.
    pub(crate) fn wait(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) {
        let seq = self.work.cells[cell].seq;
        self.note_kernel(self.work.cells[cell].kernel, out);
        self.regain_pilots(cell, out);
        self.arm_due(cell);
        if self.config.report_every > Span::ZERO {
            self.at(self.now + self.config.report_every, Timer::Report(cell, seq));
        }
        self.claim(cell, out);
        self.make_room_for(cell, seq, out);
    }

    /// Asks for pilots, moves and parks: for every way to GPUs sooner. The cell may have started by then.
    fn make_room_for(&mut self, cell: Idx<Cell>, seq: u64, out: &mut Vec<Output>) {
        if self.is_same(cell, seq) {
            self.demand_grew(cell, out);
        }
        if self.is_same(cell, seq) {
            self.consider_moving(cell, out);
        }
        if self.is_same(cell, seq) {
            self.ask_to_park(cell, out);
        }
        if self.is_same(cell, seq) {
            self.tell(cell, out);
        }
    }

    /// Whether the slot still holds the cell with sequence number `seq`.
    pub(crate) fn is_same(&self, cell: Idx<Cell>, seq: u64) -> bool {
        self.work.cells.get(cell).is_some_and(|c| c.seq == seq)
    }

    pub(crate) fn report_due(&mut self, cell: Idx<Cell>, seq: u64, out: &mut Vec<Output>) {
        if self.is_same(cell, seq) {
            // Cells that have waited for hours are looked at less often.
            let waited = self.now.since(self.work.cells[cell].submitted);
            let least = self.config.report_every.0;
            let every = Span((waited.0 / REPORT_PART).clamp(least, REPORT_MOST.0.max(least)));
            self.at(self.now + every, Timer::Report(cell, seq));
            if self.work.cells[cell].hold.is_none() {
                self.reconsider_hold(cell);
            }
            if self.work.cells[cell].reserved.is_none() {
                self.claim(cell, out);
            }
            self.make_room_for(cell, seq, out);
        }
    }

    /// Tells position, reason and estimate, unless all three are as told before.
    pub(crate) fn tell(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) {
        let reason = self.reason(cell);
        let position = self.position(cell);
        let kind = std::mem::discriminant(&reason);
        let told = self.work.cells[cell].told;
        let of_own = reason.yours().map_or(0, |yours| yours.gpus);
        let same = told.filter(|t| (t.position, t.kind, t.of_own) == (position, kind, of_own));
        if same.is_some_and(|t| self.now < t.holds_until) {
            return;
        }
        let estimate = self.foreseen_wait(cell);
        let starts = estimate.map(|wait| self.now + wait);
        let known = same.map(|t| t.starts).filter(|t| is_about(*t, starts, self.now));
        let holds = Span(estimate.unwrap_or_default().0 / 4).max(FORESEE_LEAST);
        let now = self.now;
        let c = &mut self.work.cells[cell];
        c.told = Some(Told {
            position,
            kind,
            of_own,
            starts: known.unwrap_or(starts),
            holds_until: now + holds,
        });
        if known.is_some() {
            return;
        }
        out.push(Output::Queued {
            kernel: self.work.kernels[c.kernel].id.clone(),
            cell: c.id.clone(),
            position,
            reason,
            estimate,
        });
    }

    // --- leaving ---

    /// Withdraws a waiting cell, or ends the lease on which the cell runs. The kernel is told `because`; `None` means
    /// that the kernel itself asked.
    pub(crate) fn cancel_cell(
        &mut self,
        kernel_id: &KernelId,
        id: &CellId,
        because: Option<RefusedBecause>,
        out: &mut Vec<Output>,
    ) {
        let Some(kernel) = self.find_kernel(kernel_id) else {
            return;
        };
        let k = &self.work.kernels[kernel];
        if let Some(&cell) = k.cells.iter().find(|&&c| self.work.cells[c].id == *id) {
            return self.drop_cell(cell, because, out);
        }
        let holds = |l: &&LeaseId| self.work.leases[*l].cell() == Some(id);
        if let Some(&lease) = k.leases.iter().find(holds) {
            self.drop_started(lease, because, out);
        }
    }

    /// Refuses the kernel's waiting cells, but for a parked one.
    pub(crate) fn refuse_cells(&mut self, kernel: &KernelId, why: &str, out: &mut Vec<Output>) {
        let Some(kernel) = self.find_kernel(kernel) else {
            return;
        };
        for cell in self.work.kernels[kernel].cells.clone() {
            if self.work.cells.get(cell).is_some_and(|c| c.parked.is_none()) {
                let why = why.to_owned();
                self.drop_cell(cell, Some(RefusedBecause::NotTaken { why }), out);
            }
        }
    }

    fn drop_started(&mut self, lease: LeaseId, because: Option<RefusedBecause>, out: &mut Vec<Output>) {
        let cause = hop_words::lease::EndCause::Cancelled;
        if let Some(cell) = self.end_lease_keep_cell(lease, cause, out)
            && let Some(reason) = because
        {
            out.push(Output::Refused {
                kernel: self.work.kernels[cell.kernel].id.clone(),
                cell: cell.id,
                reason,
            });
        }
    }

    pub(crate) fn drop_cell(
        &mut self,
        cell: Idx<Cell>,
        because: Option<RefusedBecause>,
        out: &mut Vec<Output>,
    ) {
        let c = self.take_cell(cell);
        self.note_kernel(c.kernel, out);
        self.record_withdrawn(&c, because.as_ref(), out);
        if let Some(reason) = because {
            out.push(Output::Refused {
                kernel: self.work.kernels[c.kernel].id.clone(),
                cell: c.id,
                reason,
            });
        }
    }

    /// The row of a cell without a lease after its wait. `because` is `None` if the kernel itself withdrew the cell.
    pub(crate) fn record_withdrawn(
        &mut self,
        c: &Cell,
        because: Option<&RefusedBecause>,
        out: &mut Vec<Output>,
    ) {
        let lease = self.new_lease_id(out);
        let k = &self.work.kernels[c.kernel];
        out.push(Output::Record(Record::CellWithdrawn {
            lease,
            cell: c.id.clone(),
            kernel: k.id.clone(),
            name: k.name.clone(),
            user: self.people.users[k.user].name.clone(),
            account: self.people.accounts[k.account].name.clone(),
            pool: self.supply.pools[k.pool].config.name.clone(),
            gpus: c.need.gpus,
            cpus: c.cpus,
            submit: c.submitted,
            at: self.now,
            reason: because.cloned(),
        }));
    }

    /// A lease of this pilot failed: the cell goes elsewhere, or comes back after a pause, doubled each time.
    pub(crate) fn failed_on(&self, cell: &mut Cell, pilot: JobId, why: &str) {
        let times = u32::from(cell.failures.min(16));
        let pause = Span(self.config.retry_after.0.saturating_mul(1 << times));
        cell.failures = cell.failures.saturating_add(1);
        cell.failed_on.retain(|(job, _)| *job != pilot);
        cell.failed_on.push((pilot, self.now + pause));
        why.clone_into(&mut cell.why_failed);
    }

    pub(crate) fn retry_due(&mut self, cell: Idx<Cell>, seq: u64, out: &mut Vec<Output>) {
        if self.is_same(cell, seq) && !self.try_start(cell, out) {
            self.wait(cell, out);
        }
    }

    /// A cell whose lease came to nothing waits again, where it stood.
    pub(crate) fn requeue(&mut self, cell: Cell, why: &str, out: &mut Vec<Output>) {
        if self.work.kernels[cell.kernel].closed {
            return;
        }
        let failed = (cell.failures > self.config.start_retries).then(|| RefusedBecause::StartFailed {
            tries: cell.failures,
            reason: why.to_owned(),
        });
        // A limit may be lower than when the cell came.
        let refusal = failed.or_else(|| self.beyond_limits(cell.kernel, cell.need.gpus));
        if let Some(reason) = refusal {
            return out.push(Output::Refused {
                kernel: self.work.kernels[cell.kernel].id.clone(),
                cell: cell.id,
                reason,
            });
        }
        let fresh = Cell {
            reserved: None,
            due_at: None,
            hold: None,
            arenas: Vec::new(),
            told: None,
            limited: None,
            ..cell
        };
        let cell = self.insert_cell(fresh);
        let seq = self.work.cells[cell].seq;
        let retries = self.work.cells[cell].failed_on.iter().map(|(_, until)| *until);
        for until in retries.filter(|until| *until > self.now).collect::<Vec<_>>() {
            self.at(until, Timer::Retry(cell, seq));
        }
        if !self.try_start(cell, out) {
            self.wait(cell, out);
        }
    }
}

/// Whether two expectations are about the same for a waiting user.
fn is_about(told: Option<Timestamp>, new: Option<Timestamp>, now: Timestamp) -> bool {
    match (told, new) {
        (Some(told), Some(new)) => {
            let off = told.since(new).max(new.since(told));
            off <= Span(new.since(now).0 / 4).max(FORESEE_LEAST)
        }
        (None, None) => true,
        _ => false,
    }
}
