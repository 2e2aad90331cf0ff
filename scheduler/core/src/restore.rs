//! The core after its driver's restart: from the journal, then from the reports of agents and replicas.

use crate::config::{Config, PoolConfig};
use crate::core::Core;
use crate::index::Idx;
use crate::input::Input;
use crate::journal::{Entry, KernelImage, Key, LeaseImage, Phase, TicketImage, Value};
use crate::late::GIVEN_UP;
use crate::output::Output;
use crate::state::{Cell, FailedMoves, Lease, LeaseState, Pilot, PilotState, Running, Ticket, Timer};
use crate::usage::Usage;
use hop_words::id::LeaseId;
use hop_words::lease::{EndCause, ParkAsk};
use hop_words::need::Need;
use hop_words::time::{Span, Timestamp};
use std::collections::BTreeMap;

impl Core {
    /// Rebuilds the core. Of each key the last entry counts. Pilots are silent until their agents report; leases in
    /// pilots that don't report within [`Config::silent_grace`] are lost. Cells about to start or in wait are
    /// forgotten but for the times of their submission: their replicas submit them again. A lease that starts for such a
    /// cell is ended.
    pub fn restore(
        config: Config,
        pools: Vec<PoolConfig>,
        entries: impl IntoIterator<Item = Entry>,
        now: Timestamp,
        out: &mut Vec<Output>,
    ) -> Self {
        let mut last: BTreeMap<Key, Option<Value>> = BTreeMap::new();
        for entry in entries {
            last.insert(entry.key, entry.value);
        }
        let mut core = Self::new(config, now);
        for pool in &pools {
            let i = core.pool_index(&pool.name);
            core.supply.pools[i].config = pool.clone();
        }
        let mut leases = Vec::new();
        for (key, value) in last {
            match (key, value) {
                (Key::Lease(_), Some(Value::Lease(image))) => leases.push(*image),
                (key, Some(value)) => core.restore_entry(key, value),
                (_, None) => {}
            }
        }
        for image in &leases {
            core.restore_use(image);
        }
        for image in leases {
            core.restore_lease(image);
        }
        for pool in pools {
            core.handle(Input::Pool(pool), now, out);
        }
        core
    }

    fn restore_entry(&mut self, key: Key, value: Value) {
        match (key, value) {
            (Key::Counters, Value::Counters(c)) => {
                self.work.next_lease = self.work.next_lease.max(c.next_lease);
                self.supply.next_ticket = self.supply.next_ticket.max(c.next_ticket);
            }
            (Key::Kernel(id), Value::Kernel(image)) => self.restore_kernel(id, *image),
            (Key::Ticket(ticket), Value::Ticket(image)) => self.restore_ticket(ticket, image),
            (Key::Pilot(job), Value::Pilot { node, pool }) => {
                let pool = self.pool_index(&pool);
                let node = self.node_index(&node, pool);
                let i = self.insert_pilot(job, node, pool);
                self.hush(i);
            }
            (Key::User(name), Value::Usage { usage, at }) => {
                let i = self.user_index(&name);
                let inflated = self.inflate_noted(usage, at);
                self.people.users[i].usage.restore(inflated, at);
            }
            (Key::Account(name), Value::Usage { usage, at }) => {
                let i = self.account_index(Some(&name));
                let inflated = self.inflate_noted(usage, at);
                self.people.accounts[i].usage.restore(inflated, at);
            }
            (Key::Association(user, account), Value::Usage { usage, at }) => {
                let association = (self.user_index(&user), self.account_index(account.as_ref()));
                let inflated = self.inflate_noted(usage, at);
                let used_in = self.people.used_in.entry(association).or_default();
                used_in.restore(inflated, at);
            }
            // A key with a value of another kind was not written by this version: nothing to take over.
            _ => {}
        }
    }

    /// Usage noted at `at`, in the present form.
    fn inflate_noted(&self, usage: f64, at: Timestamp) -> f64 {
        let decay = self.decay();
        decay.inflate(decay.aged(usage, at, self.now), self.now)
    }

    /// Counts a lease's use since the usage of its kernel and of its user was last noted.
    fn restore_use(&mut self, image: &LeaseImage) {
        let Some(k) = self.find_kernel(&image.kernel) else {
            return;
        };
        let (user, account) = (self.work.kernels[k].user, self.work.kernels[k].account);
        let (decay, now) = (self.decay(), self.now);
        let usage = &mut self.people.users[user].usage;
        usage.add_unnoted(image.gpus, image.ordered, &decay, now);
        let usage = &mut self.people.accounts[account].usage;
        usage.add_unnoted(image.gpus, image.ordered, &decay, now);
        let usage = self.people.used_in.entry((user, account)).or_default();
        usage.add_unnoted(image.gpus, image.ordered, &decay, now);
        let usage = &mut self.work.kernels[k].usage;
        usage.add_unnoted(image.gpus, image.ordered, &decay, now);
    }

    /// The pilot's agent has not been heard of yet.
    fn hush(&mut self, pilot: Idx<Pilot>) {
        let p = &mut self.supply.pilots[pilot];
        p.state = PilotState::Silent {
            since: self.now,
            draining: false,
        };
        let job = p.job;
        self.at(self.now + self.config.silent_grace, Timer::Silent(job));
    }

    fn restore_kernel(&mut self, id: hop_words::id::KernelId, image: KernelImage) {
        let pool = self.pool_index(&image.pool);
        let user = self.user_index(&image.user);
        let account = self.account_index(image.account.as_ref());
        let mut usage = Usage::default();
        let at = image.at.unwrap_or(self.now);
        usage.restore(self.inflate_noted(image.usage, at), at);
        let last_node = image.last_node.map(|n| self.node_index(&n, pool));
        let k = self.work.kernels.insert(crate::state::Kernel {
            id: id.clone(),
            user,
            account,
            pool,
            name: image.name,
            default_need: image.default_need,
            mem_mib: image.mem_mib,
            cpus: image.cpus.max(1),
            replicas: Vec::new(),
            standbys: Vec::new(),
            planned: Vec::new(),
            next_incarnation: image.next_incarnation,
            last_executor: image.last_executor,
            last_node,
            bound: None,
            parked: None,
            closed: false,
            leases: Vec::new(),
            cells: Vec::new(),
            waited: image.waiting,
            last_end: None,
            quiet_since: self.now,
            usage,
            moved: self.now,
            move_took: None,
            failed_moves: FailedMoves::default(),
            last_gpus: 0,
            sizes: Vec::new(),
            home: None,
            base: None,
            think: image.think,
            streak: 0,
            runs: image.runs,
            prints: Vec::new(),
            migrating: None,
            fixed: None,
            alone_since: Some(self.now),
            seats: image.seats,
            tallied: None,
        });
        self.work.kernel_by_id.insert(id, k);
        self.at(self.now + self.config.kernel_ttl, Timer::Alone(k));
    }

    fn restore_ticket(&mut self, ticket: u64, image: TicketImage) {
        let pool = self.pool_index(&image.pool);
        let node = image.node.map(|n| self.node_index(&n, pool));
        self.supply.tickets.insert(
            ticket,
            Ticket {
                pool,
                bursts: self.bursts(image.partition.as_ref(), node),
                partition: image.partition,
                node,
                gpus: image.gpus,
                job: image.job,
                at: image.at,
                cell: None,
                returning: image.cell,
                gpu_type: image.gpu_type,
            },
        );
        // Replicas have until then to submit the cells that wait for the pilot again.
        self.at(image.at.max(self.now) + GIVEN_UP, Timer::Stuck(ticket));
        if let Some(node) = node {
            self.list_node(node);
        }
    }

    /// The pilots asked for on account of the cell before the restart are for it again.
    pub(crate) fn regain_pilots(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) {
        let c = &self.work.cells[cell];
        let kernel = &self.work.kernels[c.kernel].id;
        for ticket in self.supply.tickets.of_returning(kernel, &c.id) {
            self.supply.tickets.change(ticket, |t| t.returning = None);
            self.dedicate(ticket, cell, out);
        }
    }

    fn restore_lease(&mut self, image: LeaseImage) {
        let Some(kernel) = self.find_kernel(&image.kernel) else {
            return;
        };
        self.work.next_lease = self.work.next_lease.max(image.lease.0 + 1);
        if let Phase::Starting { cell, submitted, .. } = &image.phase {
            self.work.kernels[kernel].waited.push((cell.clone(), *submitted));
        }
        let pool = self.pool_index(&image.pool);
        let node = self.node_index(&image.node, pool);
        let pilot = self
            .supply
            .pilot_by_job
            .get(&image.pilot)
            .copied()
            .unwrap_or_else(|| {
                let i = self.insert_pilot(image.pilot, node, pool);
                self.hush(i);
                i
            });
        let need = Need {
            gpus: image.gpus,
            gpu_type: image.gpu_type.clone(),
            cpus: image.cpus,
            ..Need::default()
        };
        let state = self.restore_phase(image.lease, image.phase, need);
        let (user, account) = (self.work.kernels[kernel].user, self.work.kernels[kernel].account);
        let lease = Lease {
            id: image.lease,
            kernel,
            user,
            account,
            pool,
            pilot,
            group: None,
            gpus: image.gpus,
            gpu_type: image.gpu_type,
            cpus: image.cpus,
            executor: image.executor,
            devices: image.devices,
            state,
            submit: image.submit,
            ordered: image.ordered,
            start_by: image.ordered + self.config.start_timeout,
            started: image.started,
            run: image.run,
            linger: image.linger,
            wait: image.wait,
            cells: image.cells,
            backfills: false,
            holding: None,
            expected: std::cell::Cell::new(Timestamp(0)),
            foreseen: std::cell::Cell::default(),
            asked: ParkAsk::No,
        };
        self.count_held(&lease, true);
        if matches!(lease.state, LeaseState::Running(_)) {
            self.supply.pools[pool].running += u32::from(lease.gpus);
        }
        let p = &mut self.supply.pilots[pilot];
        p.leases.push(lease.id);
        p.cpus_used += lease.cpus;
        p.idle_since = None;
        self.work.kernels[kernel].leases.push(lease.id);
        let id = lease.id;
        self.work.leases.insert(id, lease);
        self.arm_quantum(id);
    }

    fn restore_phase(&mut self, lease: LeaseId, phase: Phase, need: Need) -> LeaseState {
        match phase {
            // The waiting replica will submit the cell again; until then nobody would take the lease.
            Phase::Starting { .. } => LeaseState::Ending {
                cause: EndCause::Released,
                since: self.now,
                leaves_by: None,
            },
            Phase::Running {
                cell,
                submitted,
                since,
                class,
                ran,
            } => LeaseState::Running(Running {
                cell,
                need,
                class,
                submitted,
                since,
                print: 0,
                ran,
            }),
            Phase::Lingering { since } => {
                // The replica gets this long to come back.
                let until = self.now + self.config.silent_grace.max(Span::from_secs(1));
                self.at(until, Timer::Linger(lease));
                LeaseState::Lingering { since, until }
            }
            // Ordered (again) when its agent reports.
            Phase::Ending { cause, since } => LeaseState::Ending {
                cause,
                since,
                leaves_by: None,
            },
        }
    }
}
