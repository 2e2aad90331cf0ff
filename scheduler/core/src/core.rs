//! The state as a whole, and its one entrance: a function from an input to outputs.

use crate::config::{Config, Limits, PoolConfig, Share, Shares};
use crate::index::{Idx, Places, Table};
use crate::input::{CancelTarget, Input, Room};
use crate::journal::{Counters, Entry, Key, TicketImage, Value};
use crate::output::Output;
use crate::predict::{Habit, STREAKS};
use crate::state::{
    Account, Cell, Kernel, Lanes, Lease, LeaseState, Node, People, Pool, Standing, Supply, Tally, Ticket,
    Timer, User, Work,
};
use crate::usage::Usage;
use hop_words::id::{AccountName, CellId, KernelId, LeaseId, NodeName, PoolName, UserName};
use hop_words::lease::EndCause;
use hop_words::reason::RefusedBecause;
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// The scheduler's state. Decides; never acts.
#[derive(Debug)]
pub struct Core {
    pub(crate) config: Config,
    /// Usage is inflated relative to this time.
    pub(crate) origin: Timestamp,
    pub(crate) now: Timestamp,
    /// An input is being handled. Only then are forecasts noted: a question between two inputs decides nothing.
    pub(crate) decides: bool,
    pub(crate) timers: BTreeSet<(Timestamp, Timer)>,
    pub(crate) supply: Supply,
    pub(crate) people: People,
    pub(crate) work: Work,
}

impl Core {
    /// An empty state. `now` becomes the origin of usage.
    pub fn new(config: Config, now: Timestamp) -> Self {
        Self {
            config,
            origin: now,
            now,
            decides: false,
            timers: BTreeSet::new(),
            supply: Supply {
                next_ticket: 1,
                ..Supply::default()
            },
            people: People::default(),
            work: Work {
                next_lease: 1,
                ..Work::default()
            },
        }
    }

    /// Takes in the event `input` of time `now` and appends its outputs to `out`. Timers that expired before `now`
    /// run first. A `now` before an earlier one counts as the earlier one.
    pub fn handle(&mut self, input: Input, now: Timestamp, out: &mut Vec<Output>) {
        self.now = self.now.max(now);
        self.decides = true;
        self.run_timers(out);
        match input {
            Input::Pool(config) => self.set_pool(config, out),
            Input::Limits(limits) => self.set_limits(limits, out),
            Input::Shares(shares) => self.set_shares(&shares),
            Input::Node(facts) => self.node_facts(facts, None, out),
            Input::BurstNode { facts, partition } => self.node_facts(facts, Some(partition), out),
            Input::NodeDown { node } => self.node_down(&node, out),
            Input::NodeGone { node } => self.node_gone(&node, out),
            Input::NodeRoom { node, room } => self.node_room(&node, room),
            Input::SlurmAway { away } => self.slurm_away(away, out),
            Input::PoolOffers(offers) => self.pool_offers(offers, out),
            Input::PilotQueued { ticket, job } => self.pilot_queued(ticket, job, out),
            Input::PilotFailed { ticket, .. } => self.pilot_failed(ticket, out),
            Input::PilotRefused { ticket, .. } => self.pilot_refused(ticket, out),
            Input::PilotUp(up) => self.pilot_up(up, out),
            Input::PilotDraining { pilot } => self.pilot_draining(pilot, out),
            Input::PilotSilent { pilot } => self.pilot_silent(pilot),
            Input::PilotLost { pilot, cause } => self.pilot_lost(pilot, cause, out),
            Input::SlotBlocked {
                pilot,
                index,
                reason,
                lost,
            } => self.slot_blocked(pilot, index, reason, lost, out),
            Input::SlotUnblocked { pilot, index } => self.slot_unblocked(pilot, index, out),
            Input::PlaceKernel(place) => self.place_kernel(place, out),
            Input::CloseKernel { kernel } => self.close_kernel(&kernel, EndCause::Released, out),
            Input::SeatUp(up) => self.seat_up(up),
            Input::SeatGone { job } => self.seat_gone(job, out),
            Input::SeatEnds { job, soon } => self.seat_ends(job, soon),
            Input::ReplicaUp(up) => self.replica_up(up, out),
            Input::ReplicaAway { kernel, incarnation } => self.replica_away(&kernel, incarnation),
            Input::ReplicaLost { kernel, incarnation } => self.replica_lost(&kernel, incarnation, out),
            Input::KernelBound { kernel, incarnation } => self.kernel_bound(&kernel, incarnation, out),
            Input::Submit(asked) => self.submit(asked, out),
            Input::CancelCell { kernel, cell } => self.cancel_cell(&kernel, &cell, None, out),
            Input::CellsRefused { kernel, why } => self.refuse_cells(&kernel, &why, out),
            Input::CellEnded {
                kernel,
                cell,
                lease,
                outcome,
            } => self.cell_ended(&kernel, &cell, lease, outcome, out),
            Input::ReleaseLease { kernel, lease } => self.release(&kernel, lease, out),
            Input::StillHeld { kernel, lease, why } => self.still_held(&kernel, lease, why, out),
            Input::ParkRefused { kernel, lease } => self.park_refused(&kernel, lease, out),
            Input::CellParked { kernel, cell, lease } => self.cell_parked(&kernel, &cell, lease, out),
            Input::LeaseStarted {
                lease,
                pilot,
                devices,
            } => self.lease_started(lease, pilot, devices, out),
            Input::LeaseFailed {
                lease,
                pilot,
                reason,
                device_lost,
            } => self.lease_failed(lease, pilot, reason, device_lost, out),
            Input::LeaseEnded { pilot, ended } => self.lease_ended(pilot, ended, out),
            Input::Cancel { target, by } => self.cancel(&target, &by, out),
            Input::KernelFixed { kernel, why } => self.kernel_fixed(&kernel, why),
            Input::Migrate {
                kernel,
                from,
                to,
                cause,
            } => self.migrate(&kernel, from.as_ref(), to.as_ref(), cause, out),
            Input::Hibernated { kernel } => self.hibernated(&kernel, out),
            Input::MigrationFailed { kernel, incarnation } => {
                self.migration_failed(&kernel, incarnation, out);
            }
            Input::Tick => {}
        }
        self.settle(out);
        self.decides = false;
    }

    /// When [`Input::Tick`] is due at the latest; none: not before something else happens.
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    fn run_timers(&mut self, out: &mut Vec<Output>) {
        while let Some(&(at, timer)) = self.timers.first() {
            if at > self.now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::Linger(lease) => self.linger_over(lease, out),
                Timer::StartTimeout(lease) => self.start_timed_out(lease, out),
                Timer::Quantum(lease) => self.quantum_due(lease, out),
                Timer::TakeBack(lease) => self.leaving_time_over(lease, out),
                Timer::Silent(job) => self.silence_over(job, out),
                Timer::Rotate(job) => self.rotate(job, out),
                Timer::Due(cell, seq) => self.due_timer(cell, seq),
                Timer::Widen(cell, seq) => self.widen(cell, seq),
                Timer::Late(cell, seq) => self.is_late(cell, seq),
                Timer::Report(cell, seq) => self.report_due(cell, seq, out),
                Timer::Retry(cell, seq) => self.retry_due(cell, seq, out),
                Timer::Scale(pool) => self.keep_pilots(pool, out),
                Timer::Foresee(pool) => self.foresee(pool, out),
                Timer::Idle(job) => self.idle_due(job, out),
                Timer::Moving(kernel, incarnation) => self.moving_late(kernel, incarnation, out),
                Timer::MoveAgain(kernel) => self.move_again(kernel, out),
                Timer::Planned(kernel, incarnation) => self.planned_over(kernel, incarnation),
                Timer::Alone(kernel) => self.alone_due(kernel, out),
                Timer::Unasked(cell, seq) => self.unasked_due(cell, seq, out),
                Timer::Renew => self.renew_ranks(),
                Timer::Stuck(ticket) => self.stuck_due(ticket, out),
            }
        }
    }

    pub(crate) fn at(&mut self, when: Timestamp, timer: Timer) {
        self.timers.insert((when, timer));
    }

    fn cancel(&mut self, target: &CancelTarget, by: &UserName, out: &mut Vec<Output>) {
        match target {
            CancelTarget::Lease { lease } => {
                if self.work.leases.contains_key(lease) {
                    self.end_lease(*lease, EndCause::Cancelled, out);
                }
            }
            CancelTarget::Cell { kernel, cell } => {
                let because = RefusedBecause::Cancelled { by: by.to_string() };
                self.cancel_cell(kernel, cell, Some(because), out);
            }
            CancelTarget::Kernel { kernel } => {
                out.push(Output::CloseKernel {
                    kernel: kernel.clone(),
                    reason: RefusedBecause::Cancelled { by: by.to_string() },
                });
                self.close_kernel(kernel, EndCause::Cancelled, out);
            }
        }
    }

    // --- pools, nodes, people ---

    fn set_pool(&mut self, config: PoolConfig, out: &mut Vec<Output>) {
        let pool = self.pool_index(&config.name);
        self.supply.pools[pool].config = config;
        self.drain_excess(pool, out);
        self.keep_pilots(pool, out);
        self.foresee_soon(pool);
    }

    fn set_shares(&mut self, shares: &Shares) {
        let (decay, now) = (self.decay(), self.now);
        let take = |usage: &mut Usage, share: &Share| {
            let left = decay.aged(share.usage, shares.at, now);
            usage.told(share.weight.max(1e-6), decay.inflate(left, now));
        };
        // Users and accounts missing from the list have used nothing, by Slurm's word.
        let users = self.people.users.values_mut().map(|u| &mut u.usage);
        let accounts = self.people.accounts.values_mut().map(|a| &mut a.usage);
        for usage in users.chain(accounts).chain(self.people.used_in.values_mut()) {
            usage.told(1.0, 0.0);
        }
        for (name, share) in &shares.users {
            let user = self.user_index(name);
            take(&mut self.people.users[user].usage, share);
        }
        for (name, share) in &shares.accounts {
            let account = self.account_index(Some(name));
            take(&mut self.people.accounts[account].usage, share);
        }
        for (user, account, share) in &shares.associations {
            let association = (self.user_index(user), self.account_index(Some(account)));
            take(self.people.used_in.entry(association).or_default(), share);
        }
        self.people.user_weight = mean_weight(self.people.users.values().map(|u| &u.usage));
        self.people.account_weight = mean_weight(self.people.accounts.values().map(|a| &a.usage));
        self.rerank_all();
    }

    fn set_limits(&mut self, limits: Limits, out: &mut Vec<Output>) {
        self.people.limits = Table::default();
        for limit in limits.limits {
            self.people.limits.push(limit);
        }
        self.people.elsewhere = limits.elsewhere;
        self.people.members = self.members_of_limits();
        let waiting: BTreeSet<Idx<Cell>> = self.people.limited.values().flatten().copied().collect();
        // The limit on these cells may have changed.
        for &cell in &waiting {
            self.unlimit(cell);
        }
        self.refuse_beyond_limits(out);
        self.retry(&waiting, out);
    }

    /// The pool of this name; an unconfigured pool is made empty.
    pub(crate) fn pool_index(&mut self, name: &PoolName) -> Idx<Pool> {
        if let Some(&i) = self.supply.pool_by_name.get(name) {
            return i;
        }
        let i = self.supply.pools.push(Pool {
            config: PoolConfig::fixed(name.as_str(), 0, 0, 0),
            queue: BTreeSet::new(),
            shapes: BTreeMap::new(),
            pilots: BTreeSet::new(),
            nodes: Vec::new(),
            held: 0,
            running: 0,
            boots: Vec::new(),
            moves: Habit::default(),
            think: Habit::default(),
            thinks: vec![Habit::default(); STREAKS],
            price: None,
            runs: Habit::default(),
            long_runs: Habit::default(),
            demand: 0,
            loads: Vec::new(),
            foreseeing: None,
            stirred: self.now,
            looked_apart: None,
            balance: None,
            offers: None,
            lanes: Lanes::default(),
            tally: Tally::default(),
            holders: Vec::new(),
            unheld: Places::default(),
            held_for: BTreeMap::new(),
        });
        self.supply.pool_by_name.insert(name.clone(), i);
        i
    }

    pub(crate) fn find_pool(&self, name: &PoolName) -> Option<Idx<Pool>> {
        self.supply.pool_by_name.get(name).copied()
    }

    pub(crate) fn find_node(&self, name: &NodeName) -> Option<Idx<Node>> {
        self.supply.node_by_name.get(name).copied()
    }

    pub(crate) fn node_index(&mut self, name: &NodeName, pool: Idx<Pool>) -> Idx<Node> {
        if let Some(&i) = self.supply.node_by_name.get(name) {
            return i;
        }
        let i = self.supply.nodes.push(Node {
            name: name.clone(),
            pool,
            gpus: 0,
            sized: false,
            gpu_type: "".into(),
            lacks: BTreeSet::new(),
            gpu_mem_mib: 0,
            standing: Standing::default(),
            burst: None,
            pilots: Vec::new(),
            queue: BTreeSet::new(),
            failing: None,
            shunned: None,
            room: Room::default(),
            held_for: None,
            listed: 0,
            subscribed: 0,
            replicas: 0,
            homes: BTreeSet::new(),
            home_sizes: Vec::new(),
            sitting: BTreeSet::new(),
        });
        self.supply.pools[pool].nodes.push(i);
        self.supply.pools[pool].unheld.insert(i);
        self.supply.node_by_name.insert(name.clone(), i);
        i
    }

    pub(crate) fn user_index(&mut self, name: &UserName) -> Idx<User> {
        if let Some(&i) = self.people.user_by_name.get(name) {
            return i;
        }
        let i = self.people.users.push(User {
            name: name.clone(),
            usage: Usage::default(),
            held: 0,
            held_in: Vec::new(),
            leases: BTreeSet::new(),
            cells: BTreeSet::new(),
            seats: BTreeSet::new(),
        });
        self.people.user_by_name.insert(name.clone(), i);
        i
    }

    pub(crate) fn find_user(&self, name: &UserName) -> Option<Idx<User>> {
        self.people.user_by_name.get(name).copied()
    }

    pub(crate) fn account_index(&mut self, name: Option<&AccountName>) -> Idx<Account> {
        let name = name.cloned();
        if let Some(&i) = self.people.account_by_name.get(&name) {
            return i;
        }
        let i = self.people.accounts.push(Account {
            name: name.clone(),
            usage: Usage::default(),
            held: 0,
        });
        self.people.account_by_name.insert(name, i);
        i
    }

    pub(crate) fn find_kernel(&self, id: &KernelId) -> Option<Idx<Kernel>> {
        self.work.kernel_by_id.get(id).copied()
    }

    // --- ids and the journal ---

    pub(crate) fn new_lease_id(&mut self, out: &mut Vec<Output>) -> LeaseId {
        let id = LeaseId(self.work.next_lease);
        self.work.next_lease += 1;
        self.note_counters(out);
        id
    }

    pub(crate) fn new_ticket(&mut self, out: &mut Vec<Output>) -> u64 {
        let ticket = self.supply.next_ticket;
        self.supply.next_ticket += 1;
        self.note_counters(out);
        ticket
    }

    pub(crate) fn new_seq(&mut self) -> u64 {
        self.work.next_seq += 1;
        self.work.next_seq
    }

    pub(crate) fn note(
        &self,
        key: impl FnOnce() -> Key,
        value: impl FnOnce() -> Option<Value>,
        out: &mut Vec<Output>,
    ) {
        if self.config.journal {
            out.push(Output::Journal(Entry {
                key: key(),
                value: value(),
            }));
        }
    }

    fn note_counters(&self, out: &mut Vec<Output>) {
        let counters = Counters {
            next_lease: self.work.next_lease,
            next_ticket: self.supply.next_ticket,
        };
        self.note(|| Key::Counters, || Some(Value::Counters(counters)), out);
    }

    pub(crate) fn note_lease(&self, id: LeaseId, out: &mut Vec<Output>) {
        let value = || {
            self.work
                .leases
                .get(&id)
                .map(|l| Value::Lease(Box::new(self.lease_image(l))))
        };
        self.note(|| Key::Lease(id), value, out);
    }

    pub(crate) fn note_kernel(&self, kernel: Idx<Kernel>, out: &mut Vec<Output>) {
        let key = || Key::Kernel(self.work.kernels[kernel].id.clone());
        let value = || Some(Value::Kernel(Box::new(self.kernel_image(kernel))));
        self.note(key, value, out);
    }

    pub(crate) fn note_ticket(&self, ticket: u64, out: &mut Vec<Output>) {
        let value = || {
            self.supply.tickets.get(ticket).map(|t| {
                Value::Ticket(TicketImage {
                    pool: self.supply.pools[t.pool].config.name.clone(),
                    partition: t.partition.clone(),
                    node: t.node.map(|n| self.supply.nodes[n].name.clone()),
                    gpus: t.gpus,
                    job: t.job,
                    at: t.at,
                    cell: self.cell_of_ticket(t),
                    gpu_type: t.gpu_type.clone(),
                })
            })
        };
        self.note(|| Key::Ticket(ticket), value, out);
    }

    /// The cell, waiting or returning, for which the pilot was started.
    fn cell_of_ticket(&self, ticket: &Ticket) -> Option<(KernelId, CellId)> {
        let waits = ticket.cell.filter(|&(cell, seq)| self.is_same(cell, seq));
        let named = waits.map(|(cell, _)| {
            let c = &self.work.cells[cell];
            (self.work.kernels[c.kernel].id.clone(), c.id.clone())
        });
        named.or_else(|| ticket.returning.clone())
    }

    /// Tells the time spent in the state that the lease is leaving.
    pub(crate) fn close_phase(lease: &mut Lease, now: Timestamp) {
        match &lease.state {
            LeaseState::Running(r) => lease.run = Span(lease.run.0 + now.since(r.since).0),
            LeaseState::Lingering { since, .. } => {
                lease.linger = Span(lease.linger.0 + now.since(*since).0);
            }
            LeaseState::Starting { .. } | LeaseState::Ending { .. } => {}
        }
    }
}

fn mean_weight<'a>(usages: impl Iterator<Item = &'a Usage>) -> f64 {
    let (sum, count) = usages.fold((0.0, 0.0), |(sum, count), u| (sum + u.weight, count + 1.0));
    if count > 0.0 { sum / count } else { 1.0 }
}
