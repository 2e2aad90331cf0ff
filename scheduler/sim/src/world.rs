//! Our own policy: the production core, in a world whose agents, pilots and replicas answer after a while.
//!
//! The world knows more than the core: submission times, run times, the places of GPU memory and the cost to restore
//! it. The core is told what `hopd` would be told, and no more.

mod batch;
mod leases;
mod memory;
mod moves;
mod pilots;
mod sessions;

use crate::cluster::{Cluster, LONGEST, Latencies};
use crate::metrics::PolicyResult;
use crate::rng::Rng;
use crate::trace::Trace;
use hop_core::config::{Config, PoolConfig};
use hop_core::{Core, Input, NodeFacts, Output};
use hop_words::id::{Incarnation, JobId, KernelId, LeaseId, NodeName};
use hop_words::time::{Span, Timestamp};
use leases::Lease;
use pilots::Slurm;
use sessions::Session;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Parts that can be left out, to measure the worth of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Without {
    pub linger: bool,
    pub migration: bool,
    pub moving_ahead: bool,
    pub scaling: bool,
    pub fair_share: bool,
    pub affinity: bool,
    pub packing: bool,
    pub learning: bool,
    pub deadlines: bool,
    /// Not left out but added: three replicas of each kernel, and parking at a quantum of an hour.
    pub three_replicas: bool,
    pub parking: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Slurm looks whether a batch job fits on the node.
    BatchLooks(usize),
    BatchOver {
        node: usize,
        job: u64,
    },
    Ended(LeaseId),
    CellDone {
        session: usize,
        cell: usize,
        lease: LeaseId,
    },
    /// The running cell has left the lease's GPUs.
    Parked {
        session: usize,
        lease: LeaseId,
    },
    PilotEnded(JobId),
    PilotReady {
        ticket: u64,
    },
    Started(LeaseId),
    Close(usize),
    Open(usize),
    ReplicaReady {
        session: usize,
        incarnation: Incarnation,
        node: usize,
    },
    Moved {
        session: usize,
        victim: Incarnation,
        incarnation: Incarnation,
        node: usize,
    },
    Submit {
        session: usize,
        cell: usize,
    },
    Wake,
}

/// Cells that wait so long beside no lease at all would wait for ever, while pilots come and go.
const STANDSTILL: Span = Span::from_secs(90 * 24 * 3600);

struct World<'a> {
    trace: &'a Trace,
    cluster: &'a Cluster,
    core: Core,
    now: Timestamp,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    seq: u64,
    wake: Option<Timestamp>,
    rng: Rng,
    sessions: Vec<Session>,
    by_kernel: HashMap<KernelId, usize>,
    by_node: HashMap<NodeName, usize>,
    slurm: Slurm,
    /// GB of parked GPU memory on each node, by session in the order of parking.
    parked: Vec<memory::HostMemory>,
    /// `None` means that nobody else wants the nodes.
    batch: Option<batch::Batch>,
    leases: HashMap<LeaseId, Lease>,
    /// When a lease lived last, or nobody waited.
    moved_at: Timestamp,
    result: PolicyResult,
    check: bool,
    open: usize,
    without: Without,
}

/// Runs the core over the trace. `check`: run its sanity check after every input (slow).
pub(crate) fn run(
    trace: &Trace,
    cluster: &Cluster,
    seed: u64,
    without: Without,
    check: bool,
) -> PolicyResult {
    let three = Cluster {
        replicas: 3.min(cluster.nodes as u16).max(1),
        ..cluster.clone()
    };
    let cluster = if without.three_replicas { &three } else { cluster };
    let mut world = World::new(trace, cluster, seed, without, check);
    world.go();
    world.result
}

/// The site's settings of the core, for all pools.
fn core_config(cluster: &Cluster, without: Without) -> Config {
    let knobs = &cluster.policy;
    let config = Config {
        fair_share: knobs.fair_share && !without.fair_share,
        due_overtaken: knobs.due_overtaken,
        report_every: Span::from_secs(15),
        // In this world every lease starts, however long the start takes.
        start_timeout: Span(2 * LONGEST.0),
        ..Config::default()
    };
    if cluster.latency.replica.p99 <= Latencies::default().replica.p99 {
        return config;
    }
    // Every replica starts, too, even if that takes longer than the core's usual patience.
    Config {
        placement_ttl: Span(2 * LONGEST.0),
        kernel_ttl: Span(2 * LONGEST.0),
        replica_grace: Span(2 * LONGEST.0),
        ..config
    }
}

fn core_pool(cluster: &Cluster, without: Without) -> PoolConfig {
    let knobs = &cluster.policy;
    let mut pool = PoolConfig::fixed(
        "main",
        cluster.nodes,
        cluster.gpus_per_node,
        cluster.cpus_per_node,
    );
    pool.linger = match without.linger {
        true => hop_core::config::Linger::fixed(Span::ZERO),
        false => knobs.linger,
    };
    pool.migrate = knobs.migrate.clone().filter(|_| !without.migration);
    if let Some(migrate) = pool.migrate.as_mut().filter(|_| without.moving_ahead) {
        migrate.ahead = false;
    }
    pool.quantum = match without.parking {
        true => hop_core::config::Quantum::of_all(Span::from_secs(3600)),
        false => knobs.quantum,
    };
    pool.affinity = !without.affinity;
    pool.pack = !without.packing;
    if let Some(scale) = knobs.scale.clone().filter(|_| !without.scaling) {
        pool.scale = Some(hop_core::config::Scale {
            learn: scale.learn && !without.learning,
            ..scale
        });
        pool.min_pilots = 0;
    }
    let burst = |b: &crate::cluster::BurstNodes| hop_core::config::Burst {
        partition: b.partition.clone(),
        max_pilots: b.nodes,
        boot: Span((b.boot.p50 * 1e6) as u64),
        price: b.price,
    };
    pool.burst = cluster.burst.iter().map(burst).collect();
    pool
}

impl<'a> World<'a> {
    fn new(trace: &'a Trace, cluster: &'a Cluster, seed: u64, without: Without, check: bool) -> Self {
        let mut draw = Rng::new(seed, 0xd1a5);
        let sessions = sessions::of_trace(trace, cluster, &mut draw);
        let slurm = Slurm::new(cluster);
        let names: Vec<NodeName> = (0..slurm.nodes()).map(node_name).collect();
        let mut world = Self {
            trace,
            cluster,
            core: Core::new(core_config(cluster, without), Timestamp(0)),
            now: Timestamp(0),
            events: BinaryHeap::new(),
            seq: 0,
            wake: None,
            rng: Rng::new(seed, 0x0045),
            by_kernel: sessions
                .iter()
                .enumerate()
                .map(|(i, s)| (s.kernel.clone(), i))
                .collect(),
            open: sessions.len(),
            sessions,
            by_node: names.iter().enumerate().map(|(i, n)| (n.clone(), i)).collect(),
            parked: vec![memory::HostMemory::default(); names.len()],
            batch: cluster
                .batch
                .clone()
                .map(|queue| batch::Batch::new(queue, cluster.nodes, seed)),
            slurm,
            leases: HashMap::new(),
            moved_at: Timestamp(0),
            result: PolicyResult::default(),
            check,
            without,
        };
        world.set_up(&names);
        world
    }

    fn set_up(&mut self, names: &[NodeName]) {
        for (n, name) in names.iter().enumerate() {
            let facts = NodeFacts {
                node: name.clone(),
                pool: "main".into(),
                gpus: self.cluster.gpus_per_node,
                gpu_type: "gpu".into(),
                gpu_mem_mib: 80 * 1024,
                cpus: self.cluster.cpus_per_node,
            };
            self.tell(match self.slurm.burst_of(n) {
                None => Input::Node(facts),
                Some(b) => Input::BurstNode {
                    facts,
                    partition: self.cluster.burst[b].partition.clone(),
                },
            });
        }
        self.tell(Input::Pool(core_pool(self.cluster, self.without)));
        for i in 0..self.sessions.len() {
            let (open, close) = (self.sessions[i].opens, self.sessions[i].closes);
            self.at(open, Event::Open(i));
            self.at(close, Event::Close(i));
        }
        for node in 0..self.cluster.nodes as usize {
            self.offer_to_batch(node);
        }
    }

    fn at(&mut self, when: Timestamp, event: Event) {
        self.seq += 1;
        self.events.push(Reverse((when, self.seq, event)));
    }

    fn after(&mut self, span: Span, event: Event) {
        self.at(self.now + span, event);
    }

    fn go(&mut self) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if self.open == 0 && matches!(event, Event::BatchLooks(_) | Event::BatchOver { .. }) {
                // Nobody is there any more whom batch jobs could hold up; their queue never ends.
                continue;
            }
            self.now = self.now.max(at);
            if let Event::Wake = event {
                // An earlier wake has replaced this one.
                if self.wake != Some(at) {
                    continue;
                }
                self.wake = None;
                if self.open == 0 {
                    continue;
                }
                self.tell(Input::Tick);
            } else {
                self.happen(event);
            }
            self.set_wake();
            // Nobody waits in a pause of the trace, however long the pause.
            if !self.leases.is_empty() || self.core.waiting_count() == 0 {
                self.moved_at = self.now;
            }
            assert!(
                self.now.since(self.moved_at) < STANDSTILL,
                "the policy serves its waiting cells at last: {} wait beside no lease",
                self.core.waiting_count()
            );
        }
        self.wind_up();
    }

    fn set_wake(&mut self) {
        if let Some(due) = self.core.next_wake()
            && self.wake.is_none_or(|w| due < w)
        {
            self.wake = Some(due);
            self.at(due, Event::Wake);
        }
    }

    /// Counts the state at the end up to the end.
    fn wind_up(&mut self) {
        self.end_pilots();
        self.end_batch();
        for l in self.leases.values() {
            self.result.held.span(l.ordered, self.now, i64::from(l.gpus));
        }
        self.result.held.changes.sort_unstable();
        self.result.deadlines = crate::deadline::met(self.trace, &self.result.cells);
    }

    fn tell(&mut self, input: Input) {
        let mut out = Vec::new();
        self.core.handle(input, self.now, &mut out);
        if self.check {
            self.core.sanity_check().expect("the core's state is sane");
        }
        for o in out {
            self.carry_out(o);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Open(s) => self.open(s),
            Event::ReplicaReady {
                session,
                incarnation,
                node,
            } => self.replica(session, incarnation, node),
            Event::Submit { session, cell } => self.submit(session, cell),
            Event::Started(lease) => self.started(lease),
            Event::CellDone { session, cell, lease } => self.cell_done(session, cell, lease),
            Event::Ended(lease) => self.ended(lease),
            Event::Parked { session, lease } => self.parked(session, lease),
            Event::PilotReady { ticket } => self.pilot_ready(ticket),
            Event::PilotEnded(job) => self.pilot_ended(job),
            Event::BatchLooks(node) => self.batch_looks(node),
            Event::BatchOver { node, job } => self.batch_over(node, job),
            Event::Moved {
                session,
                victim,
                incarnation,
                node,
            } => self.moved(session, victim, incarnation, node),
            Event::Close(s) => {
                self.sessions[s].closing = true;
                self.close_if_done(s);
            }
            Event::Wake => {}
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::StartLease(start) => self.start_lease(start),
            Output::EndLease { lease, .. } => self.end_lease(lease),
            Output::Park { kernel, lease, .. } => self.park(kernel, lease),
            Output::Granted {
                kernel,
                cell,
                lease,
                node,
                lingering,
                ..
            } => self.granted(&kernel, &cell, lease, &node, lingering),
            Output::Queued {
                kernel,
                estimate,
                reason,
                ..
            } => self.queued(&kernel, estimate, &reason),
            Output::Place { kernel, seat } => self.place(&kernel, &seat),
            Output::SubmitPilot {
                ticket,
                node,
                gpus,
                partition,
                ..
            } => self.submit_pilot(ticket, node, gpus, partition.as_deref()),
            Output::CancelPilot { ticket, .. } => self.cancel_pilot(ticket),
            Output::DrainPilot { pilot } => self.drain(pilot),
            Output::Migrate {
                kernel, victim, seat, ..
            } => self.migrate(&kernel, victim, &seat),
            Output::Refused { kernel, cell, reason } => {
                panic!("the trace asks for what the cluster can't give: {kernel}/{cell}: {reason}")
            }
            Output::PlaceRefused { kernel, reason } => panic!("{kernel} can't be placed: {reason}"),
            // The time to leave is counted with the take-back (`end_lease`).
            Output::Revoked { kernel, lease, .. } => self.tell(Input::ReleaseLease { kernel, lease }),
            Output::EndAcknowledged { .. }
            | Output::CloseKernel { .. }
            | Output::MoveRefused { .. }
            | Output::MoveWithdrawn { .. }
            // Simulated kernels always let go.
            | Output::Held { .. }
            | Output::Forget { .. }
            | Output::Record(_)
            | Output::Journal(_) => {}
        }
    }
}

fn node_name(n: usize) -> NodeName {
    format!("n{n:04}").into()
}
