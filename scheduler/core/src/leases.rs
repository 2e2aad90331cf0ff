//! A lease's life: ordered, confirmed, running, lingering, ending, over.

use crate::core::Core;
use crate::index::Idx;
use crate::input::ReportedEnd;
use crate::journal::{Key, LeaseImage, Phase};
use crate::output::{Output, Record};
use crate::state::{Account, Cell, Kernel, Lease, LeaseState, Pilot, PilotState, Pool, Running, Timer, User};
use hop_words::id::{CellId, GpuIndex, JobId, KernelId, LeaseId};
use hop_words::lease::{EndCause, Outcome, ParkAsk};
use hop_words::reason::{NOT_IN_TIME, NOT_TAKEN_BACK, Reason, RefusedBecause, RevokedBecause};
use hop_words::time::{Span, Timestamp};

/// Worth, in idle GPU-seconds, of a lease that still lingers: no handover, and no memory to restore.
const LINGER_GAIN: f64 = 400.0;
/// The same where waits are cheap, as a multiple of the price of a wait for a pilot.
const LINGER_PER_PRICE: f64 = 30.0;

/// Time to failure from which a failed start is Slurm's fault while slurmctld is away.
const HUNG: Span = Span::from_secs(5);

impl Core {
    pub(crate) fn lease_started(
        &mut self,
        id: LeaseId,
        pilot: JobId,
        devices: Vec<GpuIndex>,
        out: &mut Vec<Output>,
    ) {
        let Some(lease) = self.work.leases.get(&id) else {
            // Given up meanwhile: nobody wants it.
            if let Some(&p) = self.supply.pilot_by_job.get(&pilot) {
                self.estrange(p, id, devices);
            }
            return out.push(self.end_order(pilot, id, EndCause::Failed));
        };
        let starting = matches!(lease.state, LeaseState::Starting { .. });
        if !starting && lease.started.is_some() {
            return;
        }
        self.learn_devices(id, devices.clone());
        let now = self.now;
        let lease = self.work.leases.get_mut(&id).expect("found above");
        lease.started = Some(now);
        lease.wait = now.since(lease.submit);
        let started = Output::Record(Record::LeaseStarted {
            lease: id,
            devices,
            at: now,
        });
        let LeaseState::Starting { cell } = &lease.state else {
            // The lease did start, though nobody wants it any more.
            return out.push(started);
        };
        let cell = (**cell).clone();
        let start_by = lease.start_by;
        lease.cells = 1;
        lease.wait = now.since(cell.submitted);
        let running = cell.running(now);
        lease.state = LeaseState::Running(running);
        let (kernel, executor, gpus, wait) = (lease.kernel, lease.executor, lease.gpus, lease.wait);
        let (pilot, pool) = (lease.pilot, lease.pool);
        let timeout = (start_by, Timer::StartTimeout(id));
        self.timers.remove(&timeout);
        self.supply.pools[pool].running += u32::from(gpus);
        self.arm_quantum(id);
        self.ran_on(kernel, executor, out);
        self.note_lease(id, out);
        out.push(started);
        let node = self.supply.pilots[pilot].node;
        out.push(Output::Granted {
            kernel: self.work.kernels[kernel].id.clone(),
            cell: cell.id,
            lease: id,
            node: self.supply.nodes[node].name.clone(),
            executor,
            lingering: false,
            waited: wait,
        });
    }

    fn ran_on(&mut self, kernel: Idx<Kernel>, executor: hop_words::id::Incarnation, out: &mut Vec<Output>) {
        let k = &mut self.work.kernels[kernel];
        if k.last_executor != Some(executor) {
            k.last_executor = Some(executor);
            k.last_node = k
                .replicas
                .iter()
                .find(|r| r.incarnation == executor)
                .map(|r| r.node);
            let home = k.last_node;
            self.set_home(kernel, home);
            self.note_kernel(kernel, out);
        }
    }

    pub(crate) fn learn_devices(&mut self, id: LeaseId, devices: Vec<GpuIndex>) {
        let lease = self.work.leases.get_mut(&id).expect("the caller has found it");
        if let Some(g) = lease.group {
            for slot in &mut self.supply.pilots[lease.pilot].groups[g].slots {
                if devices.contains(&slot.index) {
                    slot.lease = Some(id);
                }
            }
        }
        lease.devices = devices;
    }

    pub(crate) fn grant_lingering(
        &mut self,
        id: LeaseId,
        running: Running,
        waited: Span,
        out: &mut Vec<Output>,
    ) {
        let now = self.now;
        let lease = self.work.leases.get_mut(&id).expect("the caller has found it");
        Self::close_phase(lease, now);
        if let LeaseState::Lingering { until, .. } = lease.state {
            self.timers.remove(&(until, Timer::Linger(id)));
        }
        lease.cells += 1;
        lease.holding = None;
        let cell = running.cell.clone();
        lease.state = LeaseState::Running(running);
        lease.expected.set(Timestamp(0));
        lease.foreseen.take();
        if lease.asked == ParkAsk::Asked {
            lease.asked = ParkAsk::No;
        }
        let (kernel, executor, pilot) = (lease.kernel, lease.executor, lease.pilot);
        self.supply.pools[lease.pool].running += u32::from(lease.gpus);
        self.list_pilot(pilot);
        self.arm_quantum(id);
        self.note_lease(id, out);
        let node = self.supply.pilots[pilot].node;
        out.push(Output::Granted {
            kernel: self.work.kernels[kernel].id.clone(),
            cell,
            lease: id,
            node: self.supply.nodes[node].name.clone(),
            executor,
            lingering: true,
            waited,
        });
    }

    pub(crate) fn cell_ended(
        &mut self,
        kernel_id: &KernelId,
        cell: &CellId,
        id: LeaseId,
        outcome: Outcome,
        out: &mut Vec<Output>,
    ) {
        let Some(kernel) = self.find_kernel(kernel_id) else {
            return;
        };
        let ours =
            |l: &Lease| l.kernel == kernel && matches!(&l.state, LeaseState::Running(r) if r.cell == *cell);
        if self.work.leases.get(&id).is_some_and(ours) {
            self.stop_running(id, outcome, out);
            self.after_cell(id, out);
        }
    }

    /// Books the end of the cell on this lease. The lease lingers, with no end set.
    pub(crate) fn stop_running(&mut self, id: LeaseId, outcome: Outcome, out: &mut Vec<Output>) {
        self.book_cell(id, outcome, false, out);
    }

    fn book_cell(&mut self, id: LeaseId, outcome: Outcome, with_lease: bool, out: &mut Vec<Output>) {
        let now = self.now;
        let lease = self.work.leases.get_mut(&id).expect("the caller has found it");
        Self::close_phase(lease, now);
        let lingering = LeaseState::Lingering {
            since: now,
            until: now,
        };
        let LeaseState::Running(r) = std::mem::replace(&mut lease.state, lingering) else {
            return;
        };
        let ran = now.since(r.since);
        let pool = &mut self.supply.pools[lease.pool];
        pool.running -= u32::from(lease.gpus);
        let k = &mut self.work.kernels[lease.kernel];
        let busy = ran.as_secs_f64() * f64::from(lease.gpus);
        if let Some(load) = pool.loads.iter_mut().find(|l| l.gpus == k.default_need.gpus) {
            load.busy += busy;
        }
        k.quiet_since = now;
        let pilot = lease.pilot;
        if lease.gpus > 0 && outcome != Outcome::Parked {
            k.last_end = Some(now);
        }
        if !matches!(outcome, Outcome::Lost | Outcome::Parked) {
            let ran = Span(r.ran.0 + ran.0);
            k.runs.observe(ran);
            if r.print != 0 {
                learn_print(&mut k.prints, r.print, ran);
            }
            pool.runs.observe(ran);
            pool.long_runs.observe_of_many(ran);
        }
        self.list_pilot(pilot);
        out.push(Output::Record(Record::CellServed {
            lease: id,
            cell: r.cell,
            submit: r.submitted,
            start: r.since,
            end: now,
            wait: r.since.since(r.submitted),
            outcome,
            with_lease,
        }));
    }

    /// Hands on the lease of an ended cell: to the kernel's next cell, to another kernel, or to lingering.
    fn after_cell(&mut self, id: LeaseId, out: &mut Vec<Output>) {
        let lease = &self.work.leases[&id];
        let (kernel, pilot) = (lease.kernel, lease.pilot);
        if self.hand_on(id, out) {
            return;
        }
        if self.is_waited_for(id) {
            return self.end_lease(id, EndCause::Claimed, out);
        }
        if self.claimed_by_limit(id, out) {
            return;
        }
        let hold = self.linger_for(id);
        let replica = self.work.kernels[kernel]
            .replicas
            .iter()
            .any(|r| r.incarnation == self.work.leases[&id].executor);
        if self.supply.pilots[pilot].state != PilotState::Up || hold == Span::ZERO || !replica {
            return self.end_lease(id, EndCause::Done, out);
        }
        let until = self.now + hold;
        let since = self.now;
        self.work.leases.get_mut(&id).expect("found above").state = LeaseState::Lingering { since, until };
        self.list_pilot(pilot);
        self.at(until, Timer::Linger(id));
        self.note_lease(id, out);
    }

    /// Ends the lease of an ended cell, and other idle ones, for a cell that is over a limit with it. Returns whether
    /// the lease ends.
    fn claimed_by_limit(&mut self, id: LeaseId, out: &mut Vec<Output>) -> bool {
        let lease = &self.work.leases[&id];
        let cells = self.freed_from_limits(lease.user, lease.account, lease.pool);
        let ends = |l: &Lease| matches!(l.state, LeaseState::Ending { .. });
        let first = cells.into_iter().find(|&c| self.helps_within_limits(id, c, ends));
        let Some(cell) = first else {
            return false;
        };
        // Another idle lease may do as well, and this lease linger on.
        self.claim_within_limits(cell, out);
        ends(&self.work.leases[&id])
    }

    /// Whether this lease has GPUs or cores for the cell, of another kernel, to use.
    pub(crate) fn helps(&self, id: LeaseId, cell: Idx<Cell>) -> bool {
        let (lease, c) = (&self.work.leases[&id], &self.work.cells[cell]);
        let group = lease.group.map(|g| &self.supply.pilots[lease.pilot].groups[g]);
        c.kernel != lease.kernel && group.is_none_or(|g| c.need.gpus == 0 || g.fits(&c.need))
    }

    /// How long this lease is held on to for the kernel's next cell.
    fn linger_for(&self, id: LeaseId) -> Span {
        let lease = &self.work.leases[&id];
        let pool = &self.supply.pools[lease.pool];
        let linger = &pool.config.linger;
        if linger.most <= linger.least {
            return linger.least;
        }
        let gain = self.linger_gain(lease.pool) * self.reuse_chance(lease);
        let cost = f64::from(lease.gpus.max(1));
        let think = &self.work.kernels[lease.kernel].think;
        let pays = think.best_hold(&pool.think, PRIOR_WEIGHT, Span::ZERO, gain, cost, linger.most);
        pays.max(linger.least)
    }

    /// Worth, in idle GPU-seconds, of a lease that still lingers when the next cell comes.
    fn linger_gain(&self, pool: Idx<Pool>) -> f64 {
        match self.scale(pool) {
            Some(_) => (LINGER_PER_PRICE * self.price(pool)).min(LINGER_GAIN),
            None => LINGER_GAIN,
        }
    }

    /// Chance, by the kernel's last needs, that the next cell can use this lease. The chance of a larger need is
    /// subtracted: a cell with a larger need must wait for the lease's end first.
    fn reuse_chance(&self, lease: &Lease) -> f64 {
        let sizes = &self.work.kernels[lease.kernel].sizes;
        let total: f32 = sizes.iter().map(|(_, w)| w).sum();
        if total <= 0.0 {
            return 1.0;
        }
        let sum = |f: &dyn Fn(u16) -> bool| sizes.iter().filter(|(g, _)| f(*g)).map(|(_, w)| w).sum::<f32>();
        let (same, more) = (sum(&|g| g == lease.gpus), sum(&|g| g > lease.gpus));
        f64::from(((same - more) / total).max(0.0))
    }

    pub(crate) fn linger_over(&mut self, id: LeaseId, out: &mut Vec<Output>) {
        let due = |l: &Lease| matches!(l.state, LeaseState::Lingering { until, .. } if until <= self.now);
        if self.work.leases.get(&id).is_some_and(due) {
            self.end_lease(id, EndCause::Done, out);
        }
    }

    pub(crate) fn release(&mut self, kernel_id: &KernelId, id: LeaseId, out: &mut Vec<Output>) {
        let kernel = self.find_kernel(kernel_id);
        if self
            .work
            .leases
            .get(&id)
            .is_some_and(|l| Some(l.kernel) == kernel)
        {
            self.end_lease(id, EndCause::Released, out);
            self.take_back(id, out);
        }
    }

    /// The node takes the GPUs back: the kernel has left them, refuses to, or its time is over.
    pub(crate) fn take_back(&mut self, id: LeaseId, out: &mut Vec<Output>) {
        let Some(lease) = self.work.leases.get_mut(&id) else {
            return;
        };
        if let LeaseState::Ending { cause, leaves_by, .. } = &mut lease.state
            && let Some(by) = leaves_by.take()
        {
            let (cause, pilot) = (*cause, lease.pilot);
            self.timers.remove(&(by, Timer::TakeBack(id)));
            self.note_lease(id, out);
            out.push(self.end_order(self.supply.pilots[pilot].job, id, cause));
        }
    }

    // --- ending ---

    /// Ends a lease. A cell about to start on the lease is told; a running cell is lost.
    pub(crate) fn end_lease(&mut self, id: LeaseId, cause: EndCause, out: &mut Vec<Output>) {
        if let Some(cell) = self.end_lease_keep_cell(id, cause, out) {
            let reason = match cause {
                EndCause::Cancelled => RefusedBecause::Cancelled {
                    by: "an operator or the user".into(),
                },
                _ => RefusedBecause::Closed,
            };
            out.push(Output::Refused {
                kernel: self.work.kernels[cell.kernel].id.clone(),
                cell: cell.id,
                reason,
            });
        }
    }

    /// Ends a lease and hands back the cell about to start on it. A kernel with possible memory on the lease's GPUs is
    /// told first, and has the pool's grace to leave: during the take-back the kernel couldn't open the devices any
    /// more.
    pub(crate) fn end_lease_keep_cell(
        &mut self,
        id: LeaseId,
        cause: EndCause,
        out: &mut Vec<Output>,
    ) -> Option<Cell> {
        let now = self.now;
        if matches!(self.work.leases[&id].state, LeaseState::Running(_)) {
            self.book_cell(id, Outcome::Lost, true, out);
        }
        let lease = self.work.leases.get_mut(&id).expect("the caller has found it");
        Self::close_phase(lease, now);
        let ending = LeaseState::Ending {
            cause,
            since: now,
            leaves_by: None,
        };
        let before = match lease.state {
            LeaseState::Ending { .. } => return None,
            _ => std::mem::replace(&mut lease.state, ending),
        };
        let (kernel, pilot, start_by) = (lease.kernel, lease.pilot, lease.start_by);
        let cell = match before {
            LeaseState::Starting { cell } => {
                let timeout = (start_by, Timer::StartTimeout(id));
                self.timers.remove(&timeout);
                Some(*cell)
            }
            LeaseState::Lingering { until, .. } => {
                self.timers.remove(&(until, Timer::Linger(id)));
                None
            }
            LeaseState::Running(_) | LeaseState::Ending { .. } => None,
        };
        self.list_pilot(pilot);
        let grace = self.supply.pools[self.work.leases[&id].pool].config.grace;
        if cell.is_none() {
            self.revoke(kernel, id, cause, grace, out);
        }
        if cell.is_none() && grace > Span::ZERO && self.can_leave(id) {
            let by = now + grace;
            self.at(by, Timer::TakeBack(id));
            let lease = self.work.leases.get_mut(&id).expect("the caller has found it");
            lease.state = LeaseState::Ending {
                cause,
                since: now,
                leaves_by: Some(by),
            };
            self.note_lease(id, out);
        } else {
            self.note_lease(id, out);
            out.push(self.end_order(self.supply.pilots[pilot].job, id, cause));
        }
        cell
    }

    /// Whether the lease's kernel can be asked to leave its GPUs.
    pub(crate) fn can_leave(&self, id: LeaseId) -> bool {
        let lease = &self.work.leases[&id];
        let k = &self.work.kernels[lease.kernel];
        lease.gpus > 0 && !k.closed && k.replicas.iter().any(|r| r.incarnation == lease.executor)
    }

    fn revoke(
        &self,
        kernel: Idx<Kernel>,
        lease: LeaseId,
        cause: EndCause,
        grace: Span,
        out: &mut Vec<Output>,
    ) {
        out.push(Output::Revoked {
            kernel: self.work.kernels[kernel].id.clone(),
            lease,
            cause,
            reason: RevokedBecause::Ended(cause),
            grace,
        });
    }

    pub(crate) fn start_timed_out(&mut self, id: LeaseId, out: &mut Vec<Output>) {
        let starting = |l: &Lease| matches!(l.state, LeaseState::Starting { .. });
        if !self.work.leases.get(&id).is_some_and(starting) {
            return;
        }
        if self.supply.slurm_away {
            return self.start_later(id);
        }
        let pilot = self.supply.pilots[self.work.leases[&id].pilot].job;
        if let Some(mut cell) = self.end_lease_keep_cell(id, EndCause::Failed, out) {
            let why = NOT_IN_TIME;
            self.failed_on(&mut cell, pilot, why);
            self.requeue(cell, why, out);
        }
    }

    /// Another full time to start in.
    fn start_later(&mut self, id: LeaseId) {
        let by = self.now + self.config.start_timeout;
        let lease = self.work.leases.get_mut(&id).expect("the caller has found it");
        let before = std::mem::replace(&mut lease.start_by, by);
        self.timers.remove(&(before, Timer::StartTimeout(id)));
        self.at(by, Timer::StartTimeout(id));
    }

    /// slurmctld stopped answering, or answers again. No step starts without it: starting leases wait, and their
    /// cells are told.
    pub(crate) fn slurm_away(&mut self, away: bool, out: &mut Vec<Output>) {
        if std::mem::replace(&mut self.supply.slurm_away, away) == away {
            return;
        }
        let starting = self.work.leases.values();
        let starting = starting.filter(|l| matches!(l.state, LeaseState::Starting { .. }));
        for id in starting.map(|l| l.id).collect::<Vec<_>>() {
            self.start_later(id);
            self.tell_starting(id, out);
        }
    }

    /// Tells the cell of a starting lease why the start takes long.
    pub(crate) fn tell_starting(&self, id: LeaseId, out: &mut Vec<Output>) {
        let lease = &self.work.leases[&id];
        if let LeaseState::Starting { cell } = &lease.state
            && self.supply.slurm_away
        {
            out.push(Output::Queued {
                kernel: self.work.kernels[lease.kernel].id.clone(),
                cell: cell.id.clone(),
                position: 1,
                reason: Reason::SlurmAway,
                estimate: None,
            });
        }
    }

    pub(crate) fn lease_failed(
        &mut self,
        id: LeaseId,
        pilot: JobId,
        reason: String,
        device_lost: bool,
        out: &mut Vec<Output>,
    ) {
        if self.work.leases.contains_key(&id) {
            self.lease_over(id, EndCause::Failed, true, reason, out);
        }
        out.push(Output::EndAcknowledged { lease: id, pilot });
        if device_lost && let Some(&p) = self.supply.pilot_by_job.get(&pilot) {
            self.drain(p, out);
        }
    }

    pub(crate) fn lease_ended(&mut self, pilot: JobId, ended: ReportedEnd, out: &mut Vec<Output>) {
        let ReportedEnd {
            lease: id,
            cause,
            clean,
            detail,
        } = ended;
        if self.work.leases.contains_key(&id) {
            self.lease_over(id, cause, clean, detail, out);
        } else {
            self.stranger_over(id, pilot, clean, out);
        }
        out.push(Output::EndAcknowledged { lease: id, pilot });
    }

    /// Last report of a lease: the lease is over on the node, whatever the state here.
    pub(crate) fn lease_over(
        &mut self,
        id: LeaseId,
        cause: EndCause,
        clean: bool,
        detail: String,
        out: &mut Vec<Output>,
    ) {
        let was_running = matches!(self.work.leases[&id].state, LeaseState::Running(_));
        if was_running {
            self.book_cell(id, Outcome::Lost, true, out);
            let kernel = self.work.leases[&id].kernel;
            self.revoke(kernel, id, cause, Span::ZERO, out);
        }
        let mut lease = self.work.leases.remove(&id).expect("the caller has found it");
        Self::close_phase(&mut lease, self.now);
        self.count_held(&lease, false);
        self.note_usage(lease.user, lease.account, out);
        self.note_kernel(lease.kernel, out);
        self.vacate(&lease, clean, &detail);
        self.work.kernels[lease.kernel].leases.retain(|l| *l != id);
        self.note(|| Key::Lease(id), || None, out);
        let cause = match lease.state {
            // A lease that we ended keeps our reason, unless its node reports a failure in use.
            LeaseState::Ending { cause: ours, .. }
                if matches!(cause, EndCause::Done | EndCause::Released)
                    || matches!(cause, EndCause::Failed | EndCause::StepLost) && lease.started.is_none() =>
            {
                ours
            }
            _ => cause,
        };
        self.record_closed(&lease, cause, clean, &detail, out);
        let kernel = lease.kernel;
        match lease.state {
            LeaseState::Starting { mut cell } => {
                let timeout = (lease.start_by, Timer::StartTimeout(id));
                self.timers.remove(&timeout);
                // Slurm is at fault for a start that hung, and the agent for an unheard order: not the pilot. Slurm is
                // not at fault for a start that fails at once.
                let hung = self.supply.slurm_away && self.now.since(lease.ordered) >= HUNG;
                if !hung && cause != EndCause::StepLost {
                    let pilot = self.supply.pilots[lease.pilot].job;
                    self.failed_on(&mut cell, pilot, &detail);
                }
                self.requeue(*cell, &detail, out);
            }
            LeaseState::Lingering { until, .. } => {
                self.timers.remove(&(until, Timer::Linger(id)));
                if !was_running {
                    self.revoke(kernel, id, cause, Span::ZERO, out);
                }
            }
            LeaseState::Ending {
                leaves_by: Some(by), ..
            } => {
                self.timers.remove(&(by, Timer::TakeBack(id)));
            }
            LeaseState::Running(_) | LeaseState::Ending { .. } => {}
        }
        self.freed(lease.pilot, lease.user, lease.account, lease.pool, out);
        self.own_lease_over(kernel, out);
        self.forget_if_closed(kernel, out);
    }

    fn record_closed(
        &self,
        lease: &Lease,
        cause: EndCause,
        clean: bool,
        detail: &str,
        out: &mut Vec<Output>,
    ) {
        out.push(Output::Record(Record::LeaseClosed {
            lease: lease.id,
            cause,
            clean,
            at: self.now,
            held: lease.started.map_or(Span::ZERO, |s| self.now.since(s)),
            run: lease.run,
            linger: lease.linger,
            wait: lease.wait,
            cells: lease.cells,
            detail: detail.to_owned(),
            held_on: lease
                .holding
                .as_ref()
                .map(|held| (self.now.since(held.since), held.why.clone())),
        }));
    }

    /// Gives the lease's GPUs and cores back to its pilot. GPUs stay blocked if the end was not clean.
    fn vacate(&mut self, lease: &Lease, clean: bool, detail: &str) {
        let p = &mut self.supply.pilots[lease.pilot];
        if let Some(g) = lease.group {
            let group = &mut p.groups[g];
            group.used -= lease.gpus;
            for slot in group.slots.iter_mut().filter(|s| s.lease == Some(lease.id)) {
                slot.lease = None;
                if !clean && slot.blocked.is_none() {
                    let why = if detail.is_empty() { NOT_TAKEN_BACK } else { detail };
                    slot.blocked = Some(why.to_owned());
                }
            }
        }
        p.cpus_used -= lease.cpus;
        p.leases.retain(|l| *l != lease.id);
        if p.leases.is_empty() {
            p.idle_since = Some(self.now);
        }
        let node = p.node;
        self.list_pilot(lease.pilot);
        self.list_node(node);
    }

    /// Lets waiting cells start after the end of a lease.
    fn freed(
        &mut self,
        pilot: Idx<Pilot>,
        user: Idx<User>,
        account: Idx<Account>,
        pool: Idx<Pool>,
        out: &mut Vec<Output>,
    ) {
        let limited = self.freed_from_limits(user, account, pool);
        for &cell in &limited {
            if self.work.cells.get(cell).is_some() {
                self.unlimit(cell);
                if !self.try_start(cell, out) {
                    self.claim(cell, out);
                }
            }
        }
        if let Some(p) = self.supply.pilots.get(pilot) {
            let node = p.node;
            self.dispatch_node(node, out);
            self.maybe_idle(pilot, out);
            if self.supply.nodes[node].held_for.is_some() {
                // What may backfill has changed.
                self.work.demanding.insert(node);
            }
        }
        // Cells beside the freed GPUs come first: an idle pilot may give way to a new one.
        for cell in limited {
            if self.work.cells.get(cell).is_some() {
                self.demand_grew(cell, out);
            }
        }
    }

    /// The kernel's waiting cells may have waited for its own lease to end.
    fn own_lease_over(&mut self, kernel: Idx<Kernel>, out: &mut Vec<Output>) {
        let Some(k) = self.work.kernels.get(kernel) else {
            return;
        };
        for cell in k.cells.clone() {
            if self.work.cells.get(cell).is_some() {
                self.try_start(cell, out);
            }
        }
    }

    pub(crate) fn lease_image(&self, l: &Lease) -> LeaseImage {
        let p = &self.supply.pilots[l.pilot];
        LeaseImage {
            lease: l.id,
            kernel: self.work.kernels[l.kernel].id.clone(),
            node: self.supply.nodes[p.node].name.clone(),
            pilot: p.job,
            pool: self.supply.pools[l.pool].config.name.clone(),
            executor: l.executor,
            gpus: l.gpus,
            gpu_type: l.gpu_type.clone(),
            cpus: l.cpus,
            devices: l.devices.clone(),
            phase: match &l.state {
                LeaseState::Starting { cell } => Phase::Starting {
                    cell: cell.id.clone(),
                    need: cell.need.clone(),
                    class: cell.class,
                    submitted: cell.submitted,
                },
                LeaseState::Running(r) => Phase::Running {
                    cell: r.cell.clone(),
                    submitted: r.submitted,
                    since: r.since,
                    class: r.class,
                    ran: r.ran,
                },
                LeaseState::Lingering { since, .. } => Phase::Lingering { since: *since },
                // Nothing was ordered yet: after a restart the kernel is asked once more, and may still hold on.
                LeaseState::Ending {
                    cause,
                    since,
                    leaves_by: Some(_),
                } if cause.may_hold() => Phase::Lingering { since: *since },
                LeaseState::Ending { cause, since, .. } => Phase::Ending {
                    cause: *cause,
                    since: *since,
                },
            },
            submit: l.submit,
            ordered: l.ordered,
            started: l.started,
            run: l.run,
            linger: l.linger,
            wait: l.wait,
            cells: l.cells,
        }
    }
}

/// Weight of the other kernels' observations beside a kernel's own: as of so many own ones.
pub(crate) const PRIOR_WEIGHT: f32 = 3.0;

/// How many different cells of a kernel are remembered by their print.
const PRINTS: usize = 32;

fn learn_print(prints: &mut Vec<(u64, crate::predict::Habit)>, print: u64, ran: Span) {
    let known = prints.iter().position(|(p, _)| *p == print);
    let (_, mut habit) =
        known.map_or_else(|| (print, crate::predict::Habit::default()), |i| prints.remove(i));
    habit.observe(ran);
    if prints.len() >= PRINTS {
        prints.remove(0);
    }
    prints.push((print, habit));
}
