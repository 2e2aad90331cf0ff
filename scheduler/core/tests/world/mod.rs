//! A driver for tests: agents that start and end leases as they are told, replicas that submit cells, all at
//! random from a seed. It asserts on its own account that no GPU is lent twice.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::new_without_default,
    reason = "benches and examples use a part of it"
)]

use hop_core::config::{Config, Count, Limit, LimitOf, Limits, PoolConfig, Scale, Share, Shares};
use hop_core::journal::Entry;
use hop_core::{
    CancelTarget, Core, DecidedLease, GpuSlot, Input, NodeFacts, Output, ParkedCell, PilotUp, PlaceReplica,
    Record, ReplicaFacts, ReportedEnd, ReportedLease, SeatPlan, Standby, Submit, WaitingCell,
};
use hop_words::id::{CellId, GpuIndex, GpuType, Incarnation, JobId, KernelId, LeaseId, NodeName, Tenure};
use hop_words::lease::{EndCause, Outcome};
use hop_words::need::{Class, Need};
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// A pool without pilots of its own or spares: pilots come on demand. Its kernels don't move.
pub fn on_demand(gpus: u16, most: u32) -> PoolConfig {
    let mut pool = PoolConfig::fixed("main", 0, gpus, 8);
    pool.max_pilots = most;
    pool.scale = Some(Scale {
        learn: false,
        spares: 0,
        ..Scale::default()
    });
    pool
}

/// A pool whose pilots come by hand: on nodes that have one, none is asked for.
pub fn by_hand(gpus: u16, cpus: u16) -> PoolConfig {
    let mut pool = PoolConfig::fixed("main", 0, gpus, cpus);
    pool.max_pilots = 8;
    pool
}

/// A report of a replica that has nothing to say.
pub fn report(kernel: &KernelId, user: &str, incarnation: Incarnation, node: &str) -> ReplicaFacts {
    ReplicaFacts {
        kernel: kernel.clone(),
        incarnation,
        user: user.into(),
        account: None,
        pool: "main".into(),
        node: node.into(),
        seat: JobId(incarnation.0 + 10_000),
        name: String::new(),
        holds: None,
        ended: None,
        waiting: Vec::new(),
        parked: None,
        fixed: None,
        standbys: Vec::new(),
        executes: None,
    }
}

/// A node of the pool `main` with two GPUs.
pub fn facts(node: &str) -> NodeFacts {
    NodeFacts {
        node: node.into(),
        pool: "main".into(),
        gpus: 2,
        gpu_type: "".into(),
        gpu_mem_mib: 0,
        cpus: 8,
    }
}

/// xorshift64*: the same numbers on every machine.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n.max(1)
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len() as u64) as usize].clone())
    }
}

#[derive(Debug)]
pub struct Agent {
    pub node: NodeName,
    pub gpus: u16,
    pub gpu_type: GpuType,
    pub cpus: u16,
    /// Leases ordered and not started.
    pub starting: BTreeMap<LeaseId, DecidedLease>,
    pub live: BTreeMap<LeaseId, (KernelId, Vec<GpuIndex>)>,
    pub ending: BTreeMap<LeaseId, EndCause>,
    pub blocked: BTreeSet<GpuIndex>,
    pub silent: bool,
    pub draining: bool,
}

impl Agent {
    fn take(&self, n: u16) -> Option<Vec<GpuIndex>> {
        let used: BTreeSet<GpuIndex> = self.live.values().flat_map(|(_, d)| d.iter().copied()).collect();
        let free: Vec<GpuIndex> = (0..self.gpus)
            .map(GpuIndex)
            .filter(|g| !used.contains(g) && !self.blocked.contains(g))
            .take(usize::from(n))
            .collect();
        (free.len() == usize::from(n)).then_some(free)
    }
}

#[derive(Debug)]
pub struct World {
    pub core: Core,
    pub now: Timestamp,
    pub rng: Rng,
    pub agents: BTreeMap<JobId, Agent>,
    pub kernels: BTreeMap<KernelId, Vec<(Incarnation, NodeName)>>,
    pub waiting: BTreeSet<(KernelId, CellId)>,
    pub running: BTreeMap<(KernelId, CellId), LeaseId>,
    pub lingering: BTreeMap<LeaseId, KernelId>,
    /// Leases that are over and whose kernels have not said that they are off.
    pub leaving: BTreeMap<LeaseId, KernelId>,
    /// The tenures of kernels that elect their executors.
    pub tenures: BTreeMap<KernelId, u64>,
    /// Executors that live on beside an elected one.
    pub deposed: BTreeSet<(KernelId, Incarnation)>,
    /// Cells that stood still in their middle: they are lost with their process.
    pub stood: BTreeSet<(KernelId, CellId)>,
    /// Cells that were asked to park.
    pub asked_to_park: Vec<(KernelId, CellId, LeaseId)>,
    pub opened: BTreeSet<LeaseId>,
    pub closed: BTreeSet<LeaseId>,
    pub migrations: Vec<(KernelId, Incarnation, SeatPlan)>,
    pub granted: u64,
    pub parked: u64,
    /// Some of what replicas say of parked cells is heard only with their next report.
    pub answers_get_lost: bool,
    pub next_job: u32,
    pub next_cell: u64,
    pub check_every: u64,
    pub inputs: u64,
    /// How long the core took for each input, in nanoseconds; none: nobody wants to know.
    pub took: Option<Vec<u64>>,
    /// A hash of all outputs so far; none: nobody wants to know.
    pub digest: Option<u64>,
    /// Pilots that were asked for.
    pub asked: Vec<u64>,
    /// What the core has written to its journal.
    pub journal: Vec<Entry>,
    /// Pilots whose agents may have something left to do.
    pub ordered: BTreeSet<JobId>,
    out: Vec<Output>,
}

impl World {
    pub fn new(seed: u64, config: Config, pool: PoolConfig) -> Self {
        let now = Timestamp(1_000_000);
        let mut world = Self {
            core: Core::new(config, now),
            now,
            rng: Rng(seed | 1),
            agents: BTreeMap::new(),
            kernels: BTreeMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeMap::new(),
            lingering: BTreeMap::new(),
            leaving: BTreeMap::new(),
            tenures: BTreeMap::new(),
            deposed: BTreeSet::new(),
            stood: BTreeSet::new(),
            asked_to_park: Vec::new(),
            opened: BTreeSet::new(),
            closed: BTreeSet::new(),
            migrations: Vec::new(),
            granted: 0,
            parked: 0,
            answers_get_lost: false,
            next_job: 100,
            next_cell: 0,
            check_every: 1,
            inputs: 0,
            took: None,
            digest: None,
            ordered: BTreeSet::new(),
            asked: Vec::new(),
            journal: Vec::new(),
            out: Vec::new(),
        };
        world.tell(Input::Pool(pool));
        world
    }

    /// Hands an input to the core, carries out what follows, and checks.
    pub fn tell(&mut self, input: Input) -> Vec<Output> {
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let start = std::time::Instant::now();
        self.core.handle(input, self.now, &mut out);
        if let Some(took) = &mut self.took {
            took.push(start.elapsed().as_nanos() as u64);
        }
        self.inputs += 1;
        if let Some(digest) = &mut self.digest {
            let said = format!("{out:?}");
            // FNV-1a: the same on every machine and in every build.
            let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
            *digest = said.bytes().fold(*digest, hash);
        }
        for o in &out {
            self.carry_out(o);
        }
        if self.check_every > 0 && self.inputs.is_multiple_of(self.check_every) {
            self.core.sanity_check().unwrap();
        }
        let emitted = out.clone();
        self.out = out;
        emitted
    }

    fn carry_out(&mut self, output: &Output) {
        match output {
            Output::StartLease(start) => {
                // One that died a moment ago, of which the core is just being told, starts nothing.
                let Some(agent) = self.agents.get_mut(&start.pilot) else {
                    return;
                };
                assert!(!agent.draining, "a lease is started in a draining pilot");
                let executor = (start.kernel.clone(), start.executor);
                assert!(!self.deposed.contains(&executor), "{executor:?} is deposed");
                agent.starting.insert(start.lease, start.clone());
                self.ordered.insert(start.pilot);
            }
            Output::EndLease {
                lease, pilot, cause, ..
            } => {
                self.leaving.remove(lease);
                if let Some(agent) = self.agents.get_mut(pilot) {
                    agent.ending.insert(*lease, *cause);
                    self.ordered.insert(*pilot);
                }
            }
            Output::DrainPilot { pilot } => {
                if let Some(agent) = self.agents.get_mut(pilot) {
                    agent.draining = true;
                }
            }
            Output::Granted {
                kernel,
                cell,
                lease,
                executor,
                ..
            } => {
                let key = (kernel.clone(), cell.clone());
                let executor = (kernel.clone(), *executor);
                assert!(!self.deposed.contains(&executor), "{executor:?} is deposed");
                // Told again, because the cell was asked for again.
                if self.running.get(&key) == Some(lease) {
                    return;
                }
                self.granted += 1;
                assert!(
                    self.waiting.remove(&key),
                    "{kernel}/{cell} was granted without waiting"
                );
                self.lingering.remove(lease);
                self.running.insert(key, *lease);
            }
            Output::Refused { kernel, cell, .. } => {
                self.waiting.remove(&(kernel.clone(), cell.clone()));
            }
            Output::Revoked {
                kernel, lease, grace, ..
            } => {
                self.lingering.remove(lease);
                let own = self.running.range((kernel.clone(), CellId::from(""))..);
                let own = own.take_while(|((k, _), _)| k == kernel);
                let gone: Vec<_> = own
                    .filter(|(_, l)| *l == lease)
                    .map(|(key, _)| key.clone())
                    .collect();
                for key in gone {
                    self.running.remove(&key);
                }
                if *grace > Span::ZERO {
                    self.leaving.insert(*lease, kernel.clone());
                }
            }
            Output::Held {
                kernel,
                lease,
                wanted: None,
                ..
            } => {
                self.leaving.remove(lease);
                self.lingering.insert(*lease, kernel.clone());
            }
            Output::Park {
                kernel, lease, cell, ..
            } => {
                let key = (kernel.clone(), cell.clone());
                // It may be ending just now, which the core is being told after what became due.
                let runs = self.running.get(&key).is_none_or(|l| l == lease);
                assert!(runs && !self.waiting.contains(&key), "only what runs is asked");
                let ask = (kernel.clone(), cell.clone(), *lease);
                assert!(!self.asked_to_park.contains(&ask), "asked twice");
                self.asked_to_park.push(ask);
            }
            Output::Forget { kernel } => {
                self.kernels.remove(kernel);
                self.tenures.remove(kernel);
                self.deposed.retain(|(k, _)| k != kernel);
                self.waiting.retain(|(k, _)| k != kernel);
            }
            Output::SubmitPilot { ticket, .. } => self.asked.push(*ticket),
            Output::Journal(entry) => self.journal.push(entry.clone()),
            Output::Migrate {
                kernel, victim, seat, ..
            } => {
                self.migrations.push((kernel.clone(), *victim, seat.clone()));
            }
            Output::Record(Record::LeaseOpened { lease, .. }) => {
                assert!(self.opened.insert(*lease), "lease {lease} is opened twice");
            }
            Output::Record(Record::LeaseClosed {
                lease,
                run,
                linger,
                held,
                ..
            }) => {
                assert!(
                    self.opened.contains(lease),
                    "lease {lease} is closed but was not opened"
                );
                assert!(self.closed.insert(*lease), "lease {lease} is closed twice");
                self.leaving.remove(lease);
                assert!(
                    run.0 + linger.0 <= held.0,
                    "lease {lease} ran longer than it was held"
                );
            }
            _ => {}
        }
    }

    // --- things that happen ---

    pub fn pilot(&mut self, node: &str, gpus: u16, cpus: u16) -> JobId {
        self.pilot_up(node, gpus, cpus).0
    }

    /// A pilot comes up, and what follows from that.
    pub fn pilot_up(&mut self, node: &str, gpus: u16, cpus: u16) -> (JobId, Vec<Output>) {
        self.pilot_of(node, "fake", gpus, cpus)
    }

    /// The same with GPUs of this type.
    pub fn pilot_of(&mut self, node: &str, gpu_type: &str, gpus: u16, cpus: u16) -> (JobId, Vec<Output>) {
        self.next_job += 1;
        let job = JobId(self.next_job);
        let agent = Agent {
            node: node.into(),
            gpus,
            gpu_type: gpu_type.into(),
            cpus,
            starting: BTreeMap::new(),
            live: BTreeMap::new(),
            ending: BTreeMap::new(),
            blocked: BTreeSet::new(),
            silent: false,
            draining: false,
        };
        self.agents.insert(job, agent);
        let out = self.announce(job);
        (job, out)
    }

    /// The agent reports itself, as it does after every (re)connection.
    pub fn announce(&mut self, job: JobId) -> Vec<Output> {
        self.announce_starting(job, Vec::new())
    }

    /// The same, while the agent starts these leases.
    pub fn announce_starting(&mut self, job: JobId, starting: Vec<LeaseId>) -> Vec<Output> {
        let agent = self.agents.get_mut(&job).unwrap();
        agent.silent = false;
        // Orders that were on their way when the connection broke are lost.
        agent.starting.clear();
        agent.ending.clear();
        let slot = |i| GpuSlot {
            index: GpuIndex(i),
            gpu_type: agent.gpu_type.clone(),
            mem_mib: 1024,
            blocked: agent.blocked.contains(&GpuIndex(i)).then(|| "broken".to_owned()),
        };
        let up = PilotUp {
            node: agent.node.clone(),
            pilot: job,
            pool: "main".into(),
            gpus: (0..agent.gpus).map(slot).collect(),
            cpus: agent.cpus,
            ends: None,
            steps_left: 40_000,
            leases: agent
                .live
                .iter()
                .map(|(l, (k, d))| ReportedLease {
                    lease: *l,
                    kernel: k.clone(),
                    devices: d.clone(),
                })
                .collect(),
            starting,
            ended: Vec::new(),
            draining: agent.draining,
            node_drains: false,
        };
        self.tell(Input::PilotUp(up))
    }

    /// Slurm has no room for a pilot that was asked for, if there is one.
    pub fn no_pilot(&mut self) -> bool {
        let Some(ticket) = self.asked.pop() else {
            return false;
        };
        let reason = "no room".into();
        self.tell(Input::PilotFailed { ticket, reason });
        true
    }

    pub fn kernel(&mut self, name: &str, user: &str, nodes: &[&str], gpus: u16) -> KernelId {
        let account = format!("acct-{}", user.len() % 2);
        self.kernel_in(&account, name, user, nodes, gpus)
    }

    pub fn kernel_in(
        &mut self,
        account: &str,
        name: &str,
        user: &str,
        nodes: &[&str],
        gpus: u16,
    ) -> KernelId {
        let id: KernelId = name.into();
        let place = PlaceReplica {
            kernel: id.clone(),
            user: user.into(),
            account: Some(account.into()),
            pool: "main".into(),
            first: None,
            default_need: Need::gpus(gpus),
            mem_mib: 512,
            cpus: 1,
            avoid: Vec::new(),
            name: name.to_owned(),
        };
        self.kernels.insert(id.clone(), Vec::new());
        self.tell(Input::PlaceKernel(place));
        for (i, node) in nodes.iter().enumerate() {
            self.replica(&id, user, Incarnation(i as u32 + 1), node);
        }
        id
    }

    pub fn replica(
        &mut self,
        kernel: &KernelId,
        user: &str,
        incarnation: Incarnation,
        node: &str,
    ) -> Vec<Output> {
        self.kernels
            .entry(kernel.clone())
            .or_default()
            .push((incarnation, node.into()));
        self.tell(Input::ReplicaUp(report(kernel, user, incarnation, node)))
    }

    /// The kernel's log elects an executor there, which asks for these cells. The ones before may live on.
    pub fn elect(
        &mut self,
        kernel: &KernelId,
        incarnation: u32,
        node: &str,
        cells: &[CellId],
    ) -> Vec<Output> {
        // What is due meanwhile comes before. The kernel may be forgotten by it.
        let due = self.tell(Input::Tick);
        let Some(user) = self.core.owner(kernel).cloned() else {
            return due;
        };
        let incarnation = Incarnation(incarnation);
        let tenure = self.tenures.entry(kernel.clone()).or_default();
        *tenure += 1;
        let executes = Some(Tenure(*tenure));
        let replicas = self.kernels.entry(kernel.clone()).or_default();
        let before = std::mem::replace(replicas, vec![(incarnation, node.into())]);
        let deposed = before.into_iter().map(|(before, _)| (kernel.clone(), before));
        self.deposed.extend(deposed);
        self.deposed.remove(&(kernel.clone(), incarnation));
        let waits = |cell: &&CellId| self.waiting.contains(&(kernel.clone(), (*cell).clone()));
        let waiting = cells.iter().filter(waits).map(|cell| WaitingCell {
            cell: cell.clone(),
            need: Need::gpus(1),
            class: Class::Interactive,
            print: 0,
        });
        self.tell(Input::ReplicaUp(ReplicaFacts {
            waiting: waiting.collect(),
            executes,
            ..report(kernel, user.as_str(), incarnation, node)
        }))
    }

    /// The kernel asks for the cell once more.
    pub fn ask_again(&mut self, kernel: &KernelId, cell: &CellId) -> Vec<Output> {
        self.tell(Input::Submit(Submit {
            kernel: kernel.clone(),
            cell: cell.clone(),
            need: Need::gpus(1),
            class: Class::Interactive,
            print: 0,
        }))
    }

    /// The kernel's executor names the other members of its log.
    pub fn stands_by(&mut self, kernel: &KernelId, standbys: Vec<Standby>) {
        let (incarnation, node) = self.kernels[kernel][0].clone();
        let user = self.core.owner(kernel).expect("it has one").clone();
        self.tell(Input::ReplicaUp(ReplicaFacts {
            standbys,
            ..report(kernel, user.as_str(), incarnation, node.as_str())
        }));
    }

    pub fn submit(&mut self, kernel: &KernelId, need: Need) -> (CellId, Vec<Output>) {
        self.submit_of(kernel, need, Class::Interactive)
    }

    pub fn submit_of(&mut self, kernel: &KernelId, need: Need, class: Class) -> (CellId, Vec<Output>) {
        self.next_cell += 1;
        let cell: CellId = format!("c{}", self.next_cell).into();
        self.waiting.insert((kernel.clone(), cell.clone()));
        let out = self.tell(Input::Submit(Submit {
            kernel: kernel.clone(),
            cell: cell.clone(),
            need,
            class,
            print: 0,
        }));
        (cell, out)
    }

    pub fn end_cell(&mut self, kernel: &KernelId, cell: &CellId) -> Vec<Output> {
        let lease = self
            .running
            .remove(&(kernel.clone(), cell.clone()))
            .expect("it runs");
        self.lingering.insert(lease, kernel.clone());
        self.tell(Input::CellEnded {
            kernel: kernel.clone(),
            cell: cell.clone(),
            lease,
            outcome: Outcome::Ok,
        })
    }

    /// The agent starts a lease that it was told to start.
    pub fn confirm(&mut self, job: JobId, lease: LeaseId) -> Vec<Output> {
        let agent = self.agents.get_mut(&job).unwrap();
        let start = agent.starting.remove(&lease).expect("it was ordered");
        let devices = agent
            .take(start.gpus)
            .expect("the core orders no more than there is");
        agent.live.insert(lease, (start.kernel, devices.clone()));
        self.tell(Input::LeaseStarted {
            lease,
            pilot: job,
            devices,
        })
    }

    pub fn confirm_end(&mut self, job: JobId, lease: LeaseId, clean: bool) -> Vec<Output> {
        let agent = self.agents.get_mut(&job).unwrap();
        let cause = agent.ending.remove(&lease).unwrap_or(EndCause::Done);
        agent.starting.remove(&lease);
        if let Some((_, devices)) = agent.live.remove(&lease)
            && !clean
        {
            agent.blocked.extend(devices);
        }
        let ended = ReportedEnd {
            lease,
            cause,
            clean,
            detail: String::new(),
        };
        self.tell(Input::LeaseEnded { pilot: job, ended })
    }

    /// A kernel whose lease is over says that it is off, if there is one that has not.
    pub fn left(&mut self) -> Option<Vec<Output>> {
        let (lease, kernel) = self.leaving.pop_first()?;
        Some(self.tell(Input::ReleaseLease { kernel, lease }))
    }

    /// The kernel can't let go of the lease's GPUs.
    pub fn hold_on(&mut self, kernel: &KernelId, lease: LeaseId) -> Vec<Output> {
        self.tell(Input::StillHeld {
            kernel: kernel.clone(),
            lease,
            why: "process 7 holds it".into(),
        })
    }

    /// The cell that was asked first parks, or says that it can't.
    pub fn park(&mut self, can: bool) -> Option<Vec<Output>> {
        if self.asked_to_park.is_empty() {
            return None;
        }
        let (kernel, cell, lease) = self.asked_to_park.remove(0);
        if !can {
            return Some(self.tell(Input::ParkRefused { kernel, lease }));
        }
        let key = (kernel.clone(), cell.clone());
        if self.running.get(&key) == Some(&lease) {
            self.running.remove(&key);
            self.stood.insert(key.clone());
            self.waiting.insert(key);
            self.parked += 1;
            if self.answers_get_lost && self.rng.below(3) == 0 {
                return Some(self.report_parked(&kernel, &cell, lease));
            }
        }
        Some(self.tell(Input::CellParked { kernel, cell, lease }))
    }

    /// The answer is lost, and the replica's next report says it.
    fn report_parked(&mut self, kernel: &KernelId, cell: &CellId, lease: LeaseId) -> Vec<Output> {
        let executor = self.core.lease(lease).expect("a cell runs on it").executor;
        let replicas = &self.kernels[kernel];
        let (_, node) = replicas.iter().find(|(i, _)| *i == executor).expect("it runs it");
        let node = node.clone();
        let user = self.core.owner(kernel).expect("it has one").clone();
        self.tell(Input::ReplicaUp(ReplicaFacts {
            waiting: vec![WaitingCell {
                cell: cell.clone(),
                need: Need::gpus(1),
                class: Class::Interactive,
                print: 0,
            }],
            parked: Some(ParkedCell {
                cell: cell.clone(),
                lease,
                ran: Span::from_secs(1),
            }),
            executes: self.tenures.get(kernel).map(|t| Tenure(*t)),
            ..report(kernel, user.as_str(), executor, node.as_str())
        }))
    }

    pub fn pass(&mut self, span: Span) -> Vec<Output> {
        self.now = self.now + span;
        self.tell(Input::Tick)
    }

    /// Everything ordered is carried out, and everything that follows, until nothing is left to do.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.left().is_some() {
                continue;
            }
            let mut next = None;
            for (job, a) in self.agents.iter().filter(|(_, a)| !a.silent) {
                if let Some(lease) = a.ending.keys().next() {
                    next = Some((*job, *lease, true));
                    break;
                }
                if let Some(lease) = a.starting.keys().next() {
                    next = Some((*job, *lease, false));
                    break;
                }
            }
            match next {
                Some((job, lease, true)) => self.confirm_end(job, lease, true),
                Some((job, lease, false)) => self.confirm(job, lease),
                None => return,
            };
        }
        panic!("it doesn't settle");
    }

    // --- at random ---

    /// Something happens. `faults`: things break too.
    pub fn random_step(&mut self, nodes: u64, users: u64, faults: bool) {
        self.now = self.now + Span(self.rng.below(2_000_000));
        let kernels: Vec<KernelId> = self.kernels.keys().cloned().collect();
        let jobs: Vec<JobId> = self
            .agents
            .iter()
            .filter(|(_, a)| !a.silent)
            .map(|(j, _)| *j)
            .collect();
        if self.rng.below(30) == 0 {
            return self.random_election(nodes);
        }
        let dice = self.rng.below(if faults { 112 } else { 100 });
        match dice {
            0..30 => self.random_confirm(&jobs),
            30..50 => self.random_confirm_end(&jobs),
            50..68 => self.random_submit(&kernels),
            68..86 => {
                let running: Vec<_> = self.running.keys().cloned().collect();
                if let Some((k, c)) = self.rng.pick(&running) {
                    self.end_cell(&k, &c);
                }
            }
            86..90 => self.random_kernel(nodes, users),
            90..93 => {
                self.pass(Span::from_secs(5));
            }
            93..95 => self.random_cancel(&kernels),
            95..97 => {
                let all = self.lingering.iter().chain(&self.leaving);
                let lingering: Vec<_> = all.map(|(l, k)| (*l, k.clone())).collect();
                if let Some((lease, kernel)) = self.rng.pick(&lingering) {
                    if self.rng.below(2) == 0 {
                        self.tell(Input::ReleaseLease { kernel, lease });
                    } else {
                        self.hold_on(&kernel, lease);
                    }
                }
            }
            97 => {
                if self.asked_to_park.is_empty() {
                    self.random_migration();
                } else {
                    let can = self.rng.below(3) > 0;
                    self.park(can);
                }
            }
            98 => {
                if let Some(ticket) = self.asked.pop() {
                    self.tell(Input::PilotFailed {
                        ticket,
                        reason: "no".into(),
                    });
                }
            }
            99 => {
                if kernels.len() > 20
                    && let Some(kernel) = self.rng.pick(&kernels)
                {
                    self.waiting.retain(|(k, _)| *k != kernel);
                    self.tell(Input::CloseKernel { kernel });
                }
            }
            _ => self.random_fault(&jobs, &kernels, nodes),
        }
    }

    fn random_confirm(&mut self, jobs: &[JobId]) {
        let ordered: Vec<(JobId, LeaseId)> = jobs
            .iter()
            .flat_map(|j| {
                let a = &self.agents[j];
                let wanted = a.starting.keys().filter(|l| !a.ending.contains_key(*l));
                wanted.map(|l| (*j, *l)).collect::<Vec<_>>()
            })
            .collect();
        if let Some((job, lease)) = self.rng.pick(&ordered) {
            self.confirm(job, lease);
        }
    }

    fn random_confirm_end(&mut self, jobs: &[JobId]) {
        let ordered: Vec<(JobId, LeaseId)> = jobs
            .iter()
            .flat_map(|j| self.agents[j].ending.keys().map(|l| (*j, *l)).collect::<Vec<_>>())
            .collect();
        if let Some((job, lease)) = self.rng.pick(&ordered) {
            self.confirm_end(job, lease, true);
        }
    }

    fn random_submit(&mut self, kernels: &[KernelId]) {
        if let Some(kernel) = self.rng.pick(kernels) {
            let busy = self.running.keys().any(|(k, _)| *k == kernel);
            if busy && self.rng.below(4) > 0 {
                return;
            }
            let gpus = self.rng.pick(&[0, 1, 1, 1, 2, 4]).unwrap();
            let cpus = if gpus == 0 { 2 } else { 0 };
            self.submit(
                &kernel,
                Need {
                    gpus,
                    cpus,
                    ..Need::default()
                },
            );
        }
    }

    fn random_kernel(&mut self, nodes: u64, users: u64) {
        if self.kernels.len() > 60 {
            return;
        }
        self.next_cell += 1;
        let name = format!("k{}", self.next_cell);
        let user = format!("u{}", "x".repeat(self.rng.below(users) as usize));
        let first = self.rng.below(nodes);
        let names: Vec<String> = (0..3.min(nodes))
            .map(|i| format!("n{}", (first + i) % nodes))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.kernel(&name, &user, &names, 1);
    }

    /// Another executor of a kernel with a log, or the first one. It asks for some of the cells at once, for others later, and
    /// for the rest never.
    fn random_election(&mut self, nodes: u64) {
        let elects: Vec<KernelId> = self.tenures.keys().cloned().collect();
        let node = format!("n{}", self.rng.below(nodes));
        self.next_cell += 1;
        // Far from the numbers that the core gives to replicas that it moves.
        let incarnation = self.next_cell as u32 * 1_000;
        let kernel = match self.rng.pick(&elects) {
            Some(kernel) if elects.len() > 10 || self.rng.below(3) > 0 => kernel,
            _ if self.kernels.len() > 60 => return,
            _ => self.kernel(&format!("e{}", self.next_cell), "uxx", &[], 1),
        };
        let waiting: Vec<CellId> = self
            .waiting
            .iter()
            .filter(|key| key.0 == kernel && !self.stood.contains(key))
            .map(|(_, cell)| cell.clone())
            .collect();
        let mut asked = [Vec::new(), Vec::new(), Vec::new()];
        for cell in waiting {
            asked[self.rng.below(3) as usize].push(cell);
        }
        self.elect(&kernel, incarnation, &node, &asked[0]);
        for cell in &asked[1] {
            if self.waiting.contains(&(kernel.clone(), cell.clone())) {
                self.ask_again(&kernel, cell);
            }
        }
    }

    fn random_cancel(&mut self, kernels: &[KernelId]) {
        let waiting: Vec<_> = self.waiting.iter().cloned().collect();
        let leases: Vec<LeaseId> = self.opened.difference(&self.closed).copied().collect();
        let target = match self.rng.below(3) {
            0 => self.rng.pick(&waiting).map(|(kernel, cell)| {
                self.waiting.remove(&(kernel.clone(), cell.clone()));
                CancelTarget::Cell { kernel, cell }
            }),
            1 => self.rng.pick(&leases).map(|lease| CancelTarget::Lease { lease }),
            _ => {
                let many = kernels.len() > 30;
                let kernel = if many { self.rng.pick(kernels) } else { None };
                kernel.map(|kernel| {
                    self.waiting.retain(|(k, _)| *k != kernel);
                    CancelTarget::Kernel { kernel }
                })
            }
        };
        if let Some(target) = target {
            self.tell(Input::Cancel {
                target,
                by: "root".into(),
            });
        }
    }

    fn random_migration(&mut self) {
        let Some((kernel, victim, seat)) = self.migrations.pop() else {
            return;
        };
        if !self.kernels.contains_key(&kernel) {
            return;
        }
        let user = self.core.owner(&kernel).map(|u| u.as_str().to_owned());
        if self.rng.below(4) == 0 {
            self.tell(Input::MigrationFailed {
                kernel,
                incarnation: seat.incarnation,
            });
        } else if let Some(user) = user {
            self.replica_moves(&kernel, &user, victim, &seat);
        }
    }

    /// The move that was asked for last is done.
    pub fn move_replica(&mut self) -> bool {
        let Some((kernel, victim, seat)) = self.migrations.pop() else {
            return false;
        };
        if let Some(user) = self.core.owner(&kernel).map(|u| u.as_str().to_owned()) {
            self.replica_moves(&kernel, &user, victim, &seat);
        }
        true
    }

    fn replica_moves(&mut self, kernel: &KernelId, user: &str, victim: Incarnation, seat: &SeatPlan) {
        if self.tenures.contains_key(kernel) {
            self.elect(kernel, seat.incarnation.0, seat.node.as_str(), &[]);
            return;
        }
        if let Some(replicas) = self.kernels.get_mut(kernel) {
            replicas.retain(|(i, _)| *i != victim);
        }
        self.replica(kernel, user, seat.incarnation, seat.node.as_str());
        self.tell(Input::ReplicaLost {
            kernel: kernel.clone(),
            incarnation: victim,
        });
    }

    fn random_fault(&mut self, jobs: &[JobId], kernels: &[KernelId], nodes: u64) {
        let job = self.rng.pick(jobs);
        match (self.rng.below(9), job) {
            (0, Some(job)) => {
                self.agents.get_mut(&job).unwrap().silent = true;
                self.tell(Input::PilotSilent { pilot: job });
            }
            (1 | 2, _) => {
                let silent: Vec<JobId> = self
                    .agents
                    .iter()
                    .filter(|(_, a)| a.silent)
                    .map(|(j, _)| *j)
                    .collect();
                if let Some(job) = self.rng.pick(&silent) {
                    self.announce(job);
                }
            }
            (3, Some(job)) => {
                self.agents.remove(&job);
                self.tell(Input::PilotLost {
                    pilot: job,
                    cause: EndCause::PilotLost,
                });
            }
            (4, _) => {
                let node = format!("n{}", self.rng.below(nodes));
                if !self
                    .agents
                    .values()
                    .any(|a| a.node.as_str() == node && !a.draining)
                {
                    self.pilot(&node, 4, 8);
                }
            }
            (5, Some(job)) => {
                let live: Vec<LeaseId> = self.agents[&job].live.keys().copied().collect();
                if let Some(lease) = self.rng.pick(&live) {
                    self.confirm_end(job, lease, false);
                }
            }
            (6, Some(job)) => {
                let starting: Vec<LeaseId> = self.agents[&job].starting.keys().copied().collect();
                if let Some(lease) = self.rng.pick(&starting) {
                    self.agents.get_mut(&job).unwrap().starting.remove(&lease);
                    self.agents.get_mut(&job).unwrap().ending.remove(&lease);
                    self.tell(Input::LeaseFailed {
                        lease,
                        pilot: job,
                        reason: "srun died".into(),
                        device_lost: self.rng.0.is_multiple_of(5),
                    });
                }
            }
            (7, _) => {
                if let Some(kernel) = self.rng.pick(kernels) {
                    let replicas = self.kernels.get_mut(&kernel).unwrap();
                    if let Some((incarnation, _)) = replicas.pop() {
                        if replicas.is_empty() {
                            self.waiting.retain(|(k, _)| *k != kernel);
                        }
                        self.tell(Input::ReplicaLost { kernel, incarnation });
                    }
                }
            }
            (8, Some(job)) => {
                let blocked: Vec<GpuIndex> = self.agents[&job].blocked.iter().copied().collect();
                if let Some(index) = self.rng.pick(&blocked) {
                    self.agents.get_mut(&job).unwrap().blocked.remove(&index);
                    self.tell(Input::SlotUnblocked { pilot: job, index });
                }
            }
            _ => {}
        }
    }

    /// Answers whatever is asked for with its failure, in one moment, until nothing is.
    pub fn everything_fails_at_once(&mut self) {
        for answers in 0.. {
            assert!(answers < 200, "the core asks again and again in one moment");
            let Some(failure) = self.next_failure() else {
                return;
            };
            self.tell(failure);
        }
    }

    fn next_failure(&mut self) -> Option<Input> {
        let reason = || "no".to_owned();
        if let Some((kernel, _, seat)) = self.migrations.pop() {
            let incarnation = seat.incarnation;
            return Some(Input::MigrationFailed { kernel, incarnation });
        }
        if let Some(ticket) = self.asked.pop() {
            let reason = reason();
            return Some(match self.rng.below(2) {
                0 => Input::PilotFailed { ticket, reason },
                _ => Input::PilotRefused { ticket, reason },
            });
        }
        if let Some((kernel, _, lease)) = self.asked_to_park.pop() {
            return Some(Input::ParkRefused { kernel, lease });
        }
        let mut agents = self.agents.iter().filter(|(_, a)| !a.silent);
        let (pilot, lease) = agents.find_map(|(j, a)| Some((*j, *a.starting.keys().next()?)))?;
        let agent = self.agents.get_mut(&pilot)?;
        agent.starting.remove(&lease);
        agent.ending.remove(&lease);
        Some(Input::LeaseFailed {
            lease,
            pilot,
            reason: reason(),
            device_lost: self.rng.below(5) == 0,
        })
    }

    pub fn limits(&mut self) {
        let limit = |of, gpus, name: &str| Limit {
            of,
            gpus: Some(gpus),
            gpu_minutes: None,
            name: name.to_owned(),
        };
        // Account acct-1 is that of the users whose names have an odd number of letters.
        let members = |count| LimitOf::Members {
            who: [1, 3, 5]
                .map(|n| (format!("u{}", "x".repeat(n - 1)).into(), Some("acct-1".into())))
                .to_vec(),
            count,
        };
        self.tell(Input::Limits(Limits {
            limits: vec![
                limit(LimitOf::EachUser, 6, "MaxTRESPerUser"),
                limit(LimitOf::Account("acct-0".into()), 9, "GrpTRES"),
                limit(members(Count::Accounts), 8, "GrpTRES of account acct-1"),
                limit(members(Count::PerUser), 5, "MaxTRESPerUser of QOS gpu"),
            ],
            elsewhere: Vec::new(),
        }));
    }
}

impl World {
    /// The sentences of `hop explain`.
    pub fn said(&self, kernel: &KernelId, cell: Option<&CellId>) -> Option<Vec<String>> {
        let items = self.core.explain(kernel, cell)?;
        Some(items.iter().map(ToString::to_string).collect())
    }
}

impl World {
    /// Slurm says what people have used by now; of some it says nothing.
    pub fn shares(&mut self) {
        let mut share = || Share {
            weight: self.rng.below(3) as f64,
            usage: self.rng.below(100_000) as f64,
        };
        let users = ["u", "ux", "uxxx"].map(|n| (n.into(), share())).to_vec();
        let accounts = ["acct-0", "acct-9"].map(|n| (n.into(), share())).to_vec();
        let associations = [("u", "acct-1"), ("ux", "acct-0"), ("u", "acct-9")];
        let associations = associations.map(|(u, a)| (u.into(), a.into(), share())).to_vec();
        self.tell(Input::Shares(Shares {
            at: self.now,
            users,
            accounts,
            associations,
        }));
    }
}

pub fn ended(lease: LeaseId) -> ReportedEnd {
    ReportedEnd {
        lease,
        cause: EndCause::Done,
        clean: true,
        detail: String::new(),
    }
}

/// The core at full size: 10,000 kernels of 500 users with three replicas each on 1,000 nodes of 8 GPUs, every GPU
/// leased and 1,000 cells waiting, kept so.
#[derive(Debug)]
pub struct Full {
    pub world: World,
    /// Kernels that neither run nor wait.
    idle: Vec<KernelId>,
}

impl Full {
    /// With a fixed number of pilots, and kernels that stay where they are.
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// As a pool is shipped: pilots follow demand, kernels are packed, and move.
    pub fn shipped() -> Self {
        Self::with(|pool| {
            pool.scale = Some(hop_core::config::Scale::default());
            pool.migrate = Some(hop_core::config::Migrate::default());
        })
    }

    fn with(more: impl FnOnce(&mut PoolConfig)) -> Self {
        let mut pool = PoolConfig::fixed("main", 0, 8, 64);
        pool.max_pilots = 2000;
        pool.linger = hop_core::config::Linger::fixed(Span::from_secs(2));
        more(&mut pool);
        let mut world = World::new(11, Config::default(), pool);
        world.check_every = 0;
        for n in 0..1000 {
            world.pilot(&format!("n{n}"), 8, 64);
        }
        let mut idle = Vec::new();
        for k in 0..10_000u64 {
            let first = world.rng.below(1000);
            let nodes: Vec<String> = (0..3).map(|i| format!("n{}", (first + i * 333) % 1000)).collect();
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            idle.push(world.kernel(
                &format!("k{k}"),
                &format!("u{}", "x".repeat((k % 500) as usize)),
                &nodes,
                1,
            ));
        }
        let mut full = Self { world, idle };
        while full.world.waiting.len() < 1000 {
            full.submit();
            full.settle();
        }
        full
    }

    fn submit(&mut self) {
        let i = self.world.rng.below(self.idle.len() as u64) as usize;
        let kernel = self.idle.swap_remove(i);
        self.world.submit(&kernel, Need::gpus(1));
    }

    fn settle(&mut self) {
        while self.world.left().is_some() || self.world.move_replica() || self.answer() {}
    }

    /// An agent does what was ordered, or Slurm has no room for a pilot.
    fn answer(&mut self) -> bool {
        if self.world.no_pilot() {
            return true;
        }
        let next = loop {
            let Some(&job) = self.world.ordered.first() else {
                break None;
            };
            let agent = self.world.agents.get(&job);
            let ending = agent.and_then(|a| Some((job, *a.ending.keys().next()?, true)));
            let order = ending.or_else(|| Some((job, *agent?.starting.keys().next()?, false)));
            if order.is_some() {
                break order;
            }
            self.world.ordered.pop_first();
        };
        match next {
            Some((job, lease, true)) => self.world.confirm_end(job, lease, true),
            Some((job, lease, false)) => self.world.confirm(job, lease),
            None => return false,
        };
        true
    }

    /// So many inputs more; how long each took, in nanoseconds.
    pub fn run(&mut self, inputs: u64) -> Vec<u64> {
        let enough = self.world.inputs + inputs;
        self.world.took = Some(Vec::new());
        let mut rounds = 0;
        while self.world.inputs < enough {
            self.world.now = self.world.now + Span::from_millis(5);
            let from = KernelId::from(format!("k{}", self.world.rng.below(10_000)));
            let running = &self.world.running;
            let mut from = running.range((from, CellId::from(""))..).chain(running);
            let ((kernel, cell), _) = from.next().expect("many run");
            let (kernel, cell) = (kernel.clone(), cell.clone());
            self.world.end_cell(&kernel, &cell);
            self.idle.push(kernel);
            self.settle();
            self.submit();
            self.settle();
            rounds += 1;
            if rounds % 100 == 0 {
                self.block_a_slot();
            }
        }
        self.world.took.take().expect("it was set above")
    }

    fn block_a_slot(&mut self) {
        let pilot = JobId(101 + self.world.rng.below(1000) as u32);
        let index = GpuIndex(7);
        self.world.tell(Input::SlotBlocked {
            pilot,
            index,
            reason: "test".into(),
            lost: false,
        });
        self.world.tell(Input::SlotUnblocked { pilot, index });
    }
}
