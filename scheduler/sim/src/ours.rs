//! Our own policy: the production core, in a world whose agents, pilots and replicas answer after a while.

use crate::cluster::{Cluster, LONGEST, Latencies};
use crate::metrics::{CellResult, Foretold, PROGRESS, PolicyResult};
use crate::rng::Rng;
use crate::trace::Trace;
use hop_core::config::{Config, PoolConfig, Quantum};
use hop_core::id::{CellId, GpuIndex, Incarnation, JobId, KernelId, LeaseId, NodeName};
use hop_core::lease::{EndCause, Outcome};
use hop_core::need::{Class, Need};
use hop_core::time::{Span, Timestamp};
use hop_core::{
    Core, GpuSlot, Input, NodeFacts, Output, PilotUp, PlaceKernel, ReplicaUp, SeatPlan, StartLease,
    WaitingCell,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

/// Parts that can be left out, to see what each is worth.
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
    pub replicas: bool,
    pub deadlines: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ended(LeaseId),
    CellDone {
        session: usize,
        cell: usize,
        lease: LeaseId,
    },
    /// Nothing of the cell that runs on the lease is on its GPUs any more.
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

struct Pilot {
    node: usize,
    submitted: Timestamp,
    leases: u32,
    free: Vec<bool>,
    draining: bool,
}

/// A pilot that Slurm has been asked for.
struct Asked {
    node: usize,
    gpus: u16,
    at: Timestamp,
    /// Slurm has given it its GPUs.
    runs: bool,
}

struct Session {
    kernel: KernelId,
    /// GPU memory of its process, in GB per GPU.
    vram: f64,
    /// GB that move with a replica.
    state: f64,
    next: usize,
    waiting: Option<Waiting>,
    last_node: Option<usize>,
    used_gpu: bool,
    closing: bool,
    reply: Timestamp,
    /// Its processes can be parked in the middle of a cell.
    parkable: bool,
    runs: Option<Run>,
    /// What its parked cell has left to run.
    parked: Option<Span>,
}

/// A cell that runs on a lease, or is on its way off it.
#[derive(Clone, Copy)]
struct Run {
    lease: LeaseId,
    cell: usize,
    /// Its place in the results.
    result: usize,
    done: Timestamp,
    /// It is being parked, with so much left to run.
    parking: Option<Span>,
}

struct Waiting {
    cell: usize,
    submit: Timestamp,
    queued: bool,
    migrated: bool,
    estimate: Option<Span>,
    foretold: Option<Foretold>,
}

struct Lease {
    pilot: JobId,
    session: usize,
    gpus: u16,
    ordered: Timestamp,
    devices: Vec<usize>,
    start: StartLease,
    /// Its cell was parked: nothing has to leave the GPUs.
    off: bool,
}

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
    /// Which of the nodes' GPUs Slurm has given to pilots.
    node_used: Vec<u16>,
    /// The burst partition that each node is in.
    node_burst: Vec<Option<usize>>,
    pilots: BTreeMap<JobId, Pilot>,
    tickets: BTreeMap<u64, Asked>,
    leases: HashMap<LeaseId, Lease>,
    result: PolicyResult,
    check: bool,
    finished: Option<usize>,
    without: Without,
    /// Of each session with a deadline: how wrong its run times are foretold, as a factor.
    foretold: Vec<f64>,
}

/// Runs the core over the trace. `check`: run its sanity check after every input (slow).
pub(crate) fn run(
    trace: &Trace,
    cluster: &Cluster,
    seed: u64,
    without: Without,
    check: bool,
) -> PolicyResult {
    let mut world = World::new(trace, cluster, seed, without, check);
    world.go();
    world.result
}

impl<'a> World<'a> {
    fn new(trace: &'a Trace, cluster: &'a Cluster, seed: u64, without: Without, check: bool) -> Self {
        let knobs = &cluster.policy;
        let config = Config {
            fair_share: knobs.fair_share && !without.fair_share,
            aging: Span::from_secs(knobs.aging_s),
            reserve_after: Span((knobs.reserve_after_s * 1e6) as u64),
            report_every: Span::from_secs(15),
            // Here every lease starts, however long it takes.
            start_timeout: Span(2 * LONGEST.0),
            ..Config::default()
        };
        let config = if cluster.latency.replica.p99 > Latencies::default().replica.p99 {
            // And so does every replica, where it takes longer than the core's patience is made for.
            Config {
                placement_ttl: Span(2 * LONGEST.0),
                kernel_ttl: Span(2 * LONGEST.0),
                replica_grace: Span(2 * LONGEST.0),
                ..config
            }
        } else {
            config
        };
        let mut draw = Rng::new(seed, 0xd1a5);
        let sessions: Vec<Session> = trace
            .sessions
            .iter()
            .map(|s| Session {
                kernel: s.id.as_str().into(),
                vram: cluster.latency.vram_gb.draw(&mut draw).as_secs_f64().min(80.0),
                state: cluster.latency.state_gb.draw(&mut draw).as_secs_f64().min(200.0),
                next: 0,
                waiting: None,
                last_node: None,
                used_gpu: false,
                closing: false,
                reply: Timestamp(0),
                parkable: true,
                runs: None,
                parked: None,
            })
            .collect();
        let homes: Vec<Option<usize>> = std::iter::repeat_n(None, cluster.nodes as usize)
            .chain(
                cluster
                    .burst
                    .iter()
                    .enumerate()
                    .flat_map(|(i, b)| std::iter::repeat_n(Some(i), b.nodes as usize)),
            )
            .collect();
        let names: Vec<NodeName> = (0..homes.len()).map(node_name).collect();
        let mut world = Self {
            trace,
            cluster,
            core: Core::new(config, Timestamp(0)),
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
            sessions,
            by_node: names.iter().enumerate().map(|(i, n)| (n.clone(), i)).collect(),
            node_used: vec![0; names.len()],
            node_burst: homes,
            pilots: BTreeMap::new(),
            tickets: BTreeMap::new(),
            leases: HashMap::new(),
            result: PolicyResult::default(),
            check,
            finished: None,
            without,
            foretold: trace.sessions.iter().map(|_| draw.lognormal(0.0, 0.3)).collect(),
        };
        if let Some(share) = knobs.parkable {
            for session in &mut world.sessions {
                session.parkable = draw.unit() < share;
            }
        }
        world.set_up(&names, without);
        world
    }

    fn set_up(&mut self, names: &[NodeName], without: Without) {
        let knobs = &self.cluster.policy;
        let mut pool = PoolConfig::fixed(
            "main",
            self.cluster.nodes,
            self.cluster.gpus_per_node,
            self.cluster.cpus_per_node,
        );
        pool.linger = match without.linger {
            true => hop_core::config::Linger::Fixed(Span::ZERO),
            false => knobs.linger,
        };
        pool.migrate = knobs.migrate.clone().filter(|_| !without.migration);
        if let Some(migrate) = pool.migrate.as_mut().filter(|_| without.moving_ahead) {
            migrate.ahead = false;
        }
        pool.quantum = knobs
            .quantum_s
            .map_or_else(Quantum::default, |s| Quantum::of_all(Span::from_secs(s)));
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
        pool.burst = self.cluster.burst.iter().map(burst).collect();
        for (n, name) in names.iter().enumerate() {
            let facts = NodeFacts {
                node: name.clone(),
                pool: "main".into(),
                gpus: self.cluster.gpus_per_node,
                gpu_type: "gpu".into(),
                gpu_mem_mib: 80 * 1024,
                cpus: self.cluster.cpus_per_node,
                rack: String::new(),
            };
            self.tell(match self.node_burst[n] {
                None => Input::Node(facts),
                Some(b) => Input::BurstNode {
                    facts,
                    partition: self.cluster.burst[b].partition.clone(),
                },
            });
        }
        self.tell(Input::Pool(pool));
        for (i, s) in self.trace.sessions.iter().enumerate() {
            self.at(s.open, Event::Open(i));
            self.at(s.close + Span::from_secs(1), Event::Close(i));
        }
        self.finished = Some(self.trace.sessions.len());
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
            self.now = self.now.max(at);
            if let Event::Wake = event {
                // One that was overtaken by an earlier one.
                if self.wake != Some(at) {
                    continue;
                }
                self.wake = None;
                if self.finished == Some(0) {
                    continue;
                }
                self.tell(Input::Tick);
            } else {
                self.happen(event);
            }
            self.set_wake();
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

    /// What still stands at the end is counted up to then.
    fn wind_up(&mut self) {
        let end = self.now;
        for (_, p) in std::mem::take(&mut self.pilots) {
            self.provisioned(p.node, p.submitted, end, p.free.len() as u16);
        }
        for l in self.leases.values() {
            self.result.held.span(l.ordered, end, i64::from(l.gpus));
        }
        self.result.held.changes.sort_unstable();
        self.count_deadlines();
    }

    fn count_deadlines(&mut self) {
        let mut done = vec![Timestamp(0); self.sessions.len()];
        for c in &self.result.cells {
            let s = c.session as usize;
            done[s] = done[s].max(c.end);
        }
        let set = self
            .trace
            .sessions
            .iter()
            .zip(&done)
            .filter_map(|(s, d)| s.deadline.map(|by| *d <= by));
        let all: Vec<bool> = set.collect();
        if !all.is_empty() {
            self.result.deadlines = Some((all.iter().filter(|m| **m).count() as u64, all.len() as u64));
        }
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

    // --- sessions ---

    fn open(&mut self, s: usize) {
        let session = &self.trace.sessions[s];
        if session.cells.is_empty() {
            return;
        }
        let gpus = session.gpus();
        self.tell(Input::PlaceKernel(PlaceKernel {
            kernel: self.sessions[s].kernel.clone(),
            user: session.user.as_str().into(),
            account: session.account.as_deref().map(Into::into),
            pool: "main".into(),
            replicas: self.cluster.replicas,
            default_need: Need::gpus(gpus),
            mem_mib: 1024,
            cpus: 1,
            avoid: Vec::new(),
            name: session.id.clone(),
        }));
        let first = session.cells[0].submit;
        self.at(first.max(self.now), Event::Submit { session: s, cell: 0 });
    }

    fn replica(&mut self, s: usize, incarnation: Incarnation, node: usize) {
        let session = &self.trace.sessions[s];
        let waiting = self.sessions[s].waiting.as_ref().map(|w| w.cell);
        let waiting = waiting.filter(|&c| session.cells[c].gpus > 0 || session.cells[c].cpus > 0);
        self.tell(Input::ReplicaUp(ReplicaUp {
            kernel: self.sessions[s].kernel.clone(),
            incarnation,
            user: session.user.as_str().into(),
            account: session.account.as_deref().map(Into::into),
            pool: "main".into(),
            node: node_name(node),
            seat: JobId(1_000_000 + s as u32),
            name: String::new(),
            holds: None,
            waiting: waiting.map(|c| self.waiting_cell(s, c)).into_iter().collect(),
            parked: None,
        }));
    }

    fn submit(&mut self, s: usize, cell: usize) {
        let c = &self.trace.sessions[s].cells[cell];
        let (gpus, cpus, print) = (c.gpus, c.cpus, c.print);
        self.sessions[s].waiting = Some(Waiting {
            cell,
            submit: self.now,
            queued: false,
            migrated: false,
            estimate: None,
            foretold: self.foretell(s, print),
        });
        if gpus == 0 && cpus == 0 {
            // Needs nothing: runs at once, and the scheduler doesn't hear of it.
            let run = c.run;
            self.record(s, self.now, Span::ZERO, None);
            return self.after(
                run,
                Event::CellDone {
                    session: s,
                    cell,
                    lease: LeaseId(0),
                },
            );
        }
        let WaitingCell { cell, need, class } = self.waiting_cell(s, cell);
        self.tell(Input::Submit {
            kernel: self.sessions[s].kernel.clone(),
            cell,
            need,
            class,
            print,
        });
    }

    /// What the core expects of a cell of this text that the session submits now.
    fn foretell(&self, s: usize, print: u64) -> Option<Foretold> {
        let kernel = &self.sessions[s].kernel;
        let now = self.core.foretell(kernel, print, Span::ZERO)?;
        let later = self.core.foretell(kernel, print, PROGRESS)?;
        Some(Foretold {
            run: now.left,
            later: later.left.map(|l| Span(PROGRESS.0 + l.0)),
            gpus: now.gpus,
            history: now.history,
        })
    }

    /// What the replica asks for on the cell's behalf.
    fn waiting_cell(&self, s: usize, cell: usize) -> WaitingCell {
        let c = &self.trace.sessions[s].cells[cell];
        WaitingCell {
            cell: CellId::from(cell.to_string()),
            need: Need {
                gpus: c.gpus,
                cpus: c.cpus,
                deadline: self.cell_deadline(s, cell),
                ..Need::default()
            },
            class: self.class(s),
        }
    }

    fn class(&self, s: usize) -> Class {
        match self.trace.sessions[s].deadline {
            _ if self.cluster.policy.short_first => Class::Deadline,
            None => Class::Interactive,
            Some(_) if self.without.deadlines => Class::Batch,
            Some(_) => Class::Deadline,
        }
    }

    /// The notebook's deadline less what is foretold for this cell and those after it.
    fn cell_deadline(&self, s: usize, cell: usize) -> Option<Timestamp> {
        let session = &self.trace.sessions[s];
        if self.cluster.policy.short_first {
            // So late that nothing is urgent, in the order of the run times.
            return Some(Timestamp(u64::MAX / 4 + 1000 * session.cells[cell].run.0));
        }
        let deadline = session.deadline.filter(|_| !self.without.deadlines)?;
        let rest: u64 = session.cells[cell..].iter().map(|c| c.run.0).sum();
        Some(Timestamp(
            deadline.0.saturating_sub((rest as f64 * self.foretold[s]) as u64),
        ))
    }

    /// Books a cell that starts now.
    fn record(&mut self, s: usize, start: Timestamp, unpark: Span, node: Option<usize>) {
        let Some(w) = self.sessions[s].waiting.take() else {
            return;
        };
        let c = &self.trace.sessions[s].cells[w.cell];
        let reused = match (self.sessions[s].last_node, node) {
            (Some(last), Some(now)) => Some(last == now),
            _ => None,
        };
        if node.is_some() {
            self.sessions[s].last_node = node;
        }
        self.result.cells.push(CellResult {
            session: s as u32,
            cell: w.cell as u32,
            gpus: c.gpus,
            submit: w.submit,
            start,
            unpark,
            end: start + unpark + c.run,
            immediate: !w.queued,
            reused,
            migrated: w.migrated,
            node: node.map_or(u32::MAX, |n| n as u32),
            estimate: w.estimate,
            foretold: w.foretold,
        });
    }

    fn granted(
        &mut self,
        kernel: &KernelId,
        cell: &CellId,
        lease: LeaseId,
        node: &NodeName,
        lingering: bool,
    ) {
        let s = self.by_kernel[kernel];
        let n = self.by_node[node];
        let i: usize = cell.as_str().parse().expect("cells are named by number here");
        let gpus = self.trace.sessions[s].cells[i].gpus;
        let message = self.cluster.latency.message.draw(&mut self.rng);
        let unpark = if lingering || gpus == 0 || !self.sessions[s].used_gpu {
            Span::ZERO
        } else {
            Span((self.sessions[s].vram / self.cluster.latency.unpark_gb_s * 1e6) as u64)
        };
        self.sessions[s].used_gpu |= gpus > 0;
        let start = self.now + message;
        let parked = self.sessions[s].parked.take();
        let done = start + unpark + parked.unwrap_or(self.trace.sessions[s].cells[i].run);
        let result = match self.sessions[s].runs.filter(|_| parked.is_some()) {
            Some(run) => {
                self.result.cells[run.result].end = done;
                run.result
            }
            None => {
                self.record(s, start, unpark, Some(n));
                self.result.cells.len() - 1
            }
        };
        self.sessions[s].runs = Some(Run {
            lease,
            cell: i,
            result,
            done,
            parking: None,
        });
        self.at(
            done,
            Event::CellDone {
                session: s,
                cell: i,
                lease,
            },
        );
    }

    /// The cell is asked to park: it stands still while its memory goes to the host.
    fn park(&mut self, kernel: KernelId, lease: LeaseId) {
        let s = self.by_kernel[&kernel];
        let (now, session) = (self.now, &mut self.sessions[s]);
        let parkable = session.parkable;
        let run = session.runs.as_mut().filter(|r| r.lease == lease && r.done > now);
        let Some(run) = run.filter(|_| parkable) else {
            return self.tell(Input::ParkRefused { kernel, lease });
        };
        run.parking = Some(run.done.since(now));
        let takes = session.vram / self.cluster.latency.park_gb_s;
        self.after(Span((takes * 1e6) as u64), Event::Parked { session: s, lease });
    }

    fn parked(&mut self, s: usize, lease: LeaseId) {
        let session = &mut self.sessions[s];
        let Some(run) = session.runs.filter(|r| r.lease == lease) else {
            return;
        };
        session.parked = run.parking;
        let kernel = session.kernel.clone();
        if let Some(l) = self.leases.get_mut(&lease) {
            l.off = true;
        }
        self.result.parks += 1;
        self.tell(Input::CellParked {
            kernel,
            cell: CellId::from(run.cell.to_string()),
            lease,
        });
    }

    fn cell_done(&mut self, s: usize, cell: usize, lease: LeaseId) {
        let stopped = |r: Run| r.lease != lease || r.parking.is_some();
        if lease.0 > 0 && self.sessions[s].runs.is_none_or(stopped) {
            return;
        }
        if lease.0 > 0 {
            self.sessions[s].runs = None;
            self.tell(Input::CellEnded {
                kernel: self.sessions[s].kernel.clone(),
                cell: CellId::from(cell.to_string()),
                lease,
                outcome: Outcome::Ok,
            });
        }
        self.sessions[s].next = cell + 1;
        self.sessions[s].reply = self.now;
        if let Some(next) = self.trace.sessions[s].cells.get(cell + 1) {
            self.at(
                next.submit.max(self.now),
                Event::Submit {
                    session: s,
                    cell: cell + 1,
                },
            );
        }
        self.close_if_done(s);
    }

    fn close_if_done(&mut self, s: usize) {
        let session = &self.sessions[s];
        if session.closing && session.next == self.trace.sessions[s].cells.len() && session.next > 0 {
            self.tell(Input::CloseKernel {
                kernel: self.sessions[s].kernel.clone(),
            });
            self.sessions[s].closing = false;
            if let Some(n) = &mut self.finished {
                *n -= 1;
            }
        } else if session.closing && self.trace.sessions[s].cells.is_empty() {
            self.sessions[s].closing = false;
            if let Some(n) = &mut self.finished {
                *n -= 1;
            }
        }
    }

    // --- what the core orders ---

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
            } => {
                self.granted(&kernel, &cell, lease, &node, lingering);
            }
            Output::Queued { kernel, estimate, .. } => {
                if let Some(w) = &mut self.sessions[self.by_kernel[&kernel]].waiting {
                    if !w.queued {
                        w.estimate = estimate;
                    }
                    w.queued = true;
                }
            }
            Output::Place { kernel, seats } => self.place(&kernel, seats),
            Output::SubmitPilot {
                ticket,
                node,
                gpus,
                partition,
                ..
            } => self.submit_pilot(ticket, node, gpus, partition.as_deref()),
            Output::CancelPilot { ticket, .. } => self.cancel_pilot(ticket),
            Output::DrainPilot { pilot } => self.drain(pilot),
            Output::Migrate { kernel, victim, seat } => self.migrate(&kernel, victim, &seat),
            Output::Refused { kernel, cell, reason } => {
                panic!("the trace asks for what the cluster can't give: {kernel}/{cell}: {reason}")
            }
            Output::PlaceRefused { kernel, reason } => panic!("{kernel} can't be placed: {reason}"),
            // What leaving takes is counted with the take-back (`end_lease`).
            Output::Revoked { kernel, lease, .. } => self.tell(Input::ReleaseLease { kernel, lease }),
            Output::EndAcknowledged { .. }
            | Output::CloseKernel { .. }
            | Output::Forget { .. }
            | Output::Record(_)
            | Output::Journal(_) => {}
        }
    }

    fn start_lease(&mut self, start: StartLease) {
        let id = start.lease;
        let session = self.by_kernel[&start.kernel];
        let pilot = self
            .pilots
            .get_mut(&start.pilot)
            .expect("leases start in pilots that live");
        pilot.leases += 1;
        let lease = Lease {
            pilot: start.pilot,
            session,
            gpus: start.gpus,
            ordered: self.now,
            devices: Vec::new(),
            start,
            off: false,
        };
        self.leases.insert(id, lease);
        let takes = self.cluster.latency.lease.draw(&mut self.rng);
        self.after(takes, Event::Started(id));
    }

    fn started(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let pilot = self
            .pilots
            .get_mut(&lease.pilot)
            .expect("a pilot outlives its leases");
        let free: Vec<usize> = (0..pilot.free.len())
            .filter(|&i| pilot.free[i])
            .take(lease.gpus.into())
            .collect();
        assert!(
            free.len() == usize::from(lease.gpus),
            "the core lends more GPUs than there are"
        );
        for &i in &free {
            pilot.free[i] = false;
        }
        let devices = free.iter().map(|&i| GpuIndex(i as u16)).collect();
        lease.devices = free;
        let pilot = lease.start.pilot;
        self.tell(Input::LeaseStarted {
            lease: id,
            pilot,
            devices,
        });
    }

    fn end_lease(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get(&id) else {
            return;
        };
        let park = if lease.gpus > 0 && !lease.devices.is_empty() && !lease.off {
            self.sessions[lease.session].vram / self.cluster.latency.park_gb_s
        } else {
            0.0
        };
        let closing = !self.by_kernel.contains_key(&lease.start.kernel);
        let park = if closing { 0.0 } else { park };
        let takes = self.cluster.latency.take_back.draw(&mut self.rng);
        self.after(Span(takes.0 + (park * 1e6) as u64), Event::Ended(id));
    }

    fn ended(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        let pilot = self
            .pilots
            .get_mut(&lease.pilot)
            .expect("a pilot outlives its leases");
        pilot.leases -= 1;
        for &i in &lease.devices {
            pilot.free[i] = true;
        }
        let empty = pilot.draining && pilot.leases == 0;
        self.result
            .held
            .span(lease.ordered, self.now, i64::from(lease.gpus));
        self.tell(Input::LeaseEnded {
            lease: id,
            pilot: lease.pilot,
            cause: EndCause::Done,
            clean: true,
            detail: String::new(),
        });
        if empty {
            let takes = self.cluster.latency.pilot_end.draw(&mut self.rng);
            self.after(takes, Event::PilotEnded(lease.pilot));
        }
    }

    fn place(&mut self, kernel: &KernelId, seats: Vec<SeatPlan>) {
        let s = self.by_kernel[kernel];
        for seat in seats {
            let node = self.by_node[&seat.node];
            let takes = self.cluster.latency.replica.draw(&mut self.rng);
            self.after(
                takes,
                Event::ReplicaReady {
                    session: s,
                    incarnation: seat.incarnation,
                    node,
                },
            );
        }
    }

    fn migrate(&mut self, kernel: &KernelId, victim: Incarnation, seat: &SeatPlan) {
        let s = self.by_kernel[kernel];
        self.result.migrations += 1;
        if let Some(w) = &mut self.sessions[s].waiting {
            w.migrated = true;
        }
        let copy = 2.0 * self.sessions[s].state / self.cluster.latency.store_gb_s;
        let takes = self.cluster.latency.replica.draw(&mut self.rng);
        let node = self.by_node[&seat.node];
        let incarnation = seat.incarnation;
        let event = Event::Moved {
            session: s,
            victim,
            incarnation,
            node,
        };
        self.after(Span(takes.0 + (copy * 1e6) as u64), event);
    }

    fn moved(&mut self, s: usize, victim: Incarnation, incarnation: Incarnation, node: usize) {
        let kernel = self.sessions[s].kernel.clone();
        if self.core.owner(&kernel).is_none() {
            return;
        }
        if self.runs_on(s, victim) {
            // What was copied is of before this cell: its executor stays, and the copy is thrown away.
            return self.tell(Input::MigrationDone {
                kernel,
                incarnation,
                moved: false,
            });
        }
        self.replica(s, incarnation, node);
        self.tell(Input::MigrationDone {
            kernel: kernel.clone(),
            incarnation,
            moved: true,
        });
        self.tell(Input::ReplicaLost {
            kernel,
            incarnation: victim,
        });
    }

    /// The session's cell runs on this replica now, or is on its way off it.
    fn runs_on(&self, s: usize, executor: Incarnation) -> bool {
        let lease = self.sessions[s].runs.and_then(|r| self.leases.get(&r.lease));
        lease.is_some_and(|l| l.start.executor == executor)
    }

    // --- pilots ---

    fn submit_pilot(
        &mut self,
        ticket: u64,
        node: Option<NodeName>,
        gpus: Option<u16>,
        partition: Option<&str>,
    ) {
        let gpus = gpus.unwrap_or(self.cluster.gpus_per_node);
        let node = match node {
            Some(name) => Some(self.by_node[&name]),
            None => {
                let of = |n: usize| self.node_burst[n].map(|b| self.cluster.burst[b].partition.as_str());
                let fits = |n: &usize| self.node_used[*n] + gpus <= self.cluster.gpus_per_node;
                (0..self.node_used.len()).find(|n| fits(n) && of(*n) == partition)
            }
        };
        let Some(n) = node else {
            return self.tell(Input::PilotFailed {
                ticket,
                reason: "no node is free".into(),
            });
        };
        self.tickets.insert(
            ticket,
            Asked {
                node: n,
                gpus,
                at: self.now,
                runs: false,
            },
        );
        self.tell(Input::PilotQueued {
            ticket,
            job: JobId(ticket as u32),
        });
        self.run_queued(n);
    }

    /// Slurm starts those queued for the node that now fit, first come, first served.
    fn run_queued(&mut self, n: usize) {
        let queued: Vec<u64> = self
            .tickets
            .iter()
            .filter(|(_, t)| t.node == n && !t.runs)
            .map(|(&t, _)| t)
            .collect();
        for ticket in queued {
            let asked = self.tickets.get_mut(&ticket).expect("it was just found");
            if self.node_used[n] + asked.gpus > self.cluster.gpus_per_node {
                return;
            }
            asked.runs = true;
            let takes = match self.node_burst[n].filter(|_| self.node_used[n] == 0) {
                Some(b) => self.cluster.burst[b].boot,
                None => self.cluster.latency.pilot,
            };
            self.node_used[n] += asked.gpus;
            let takes = takes.draw(&mut self.rng);
            self.after(takes, Event::PilotReady { ticket });
        }
    }

    /// Books a pilot's GPUs; of a burst node also what they cost.
    fn provisioned(&mut self, node: usize, from: Timestamp, to: Timestamp, gpus: u16) {
        self.result.provisioned.span(from, to, gpus.into());
        if let Some(b) = self.node_burst[node] {
            self.result.burst.span(from, to, gpus.into());
            let hours = to.since(from).as_secs_f64() / 3600.0 * f64::from(gpus);
            self.result.burst_cost += hours * self.cluster.burst[b].price;
        }
    }

    fn cancel_pilot(&mut self, ticket: u64) {
        if let Some(asked) = self.tickets.remove(&ticket)
            && asked.runs
        {
            self.provisioned(asked.node, asked.at, self.now, asked.gpus);
            self.node_used[asked.node] -= asked.gpus;
            self.run_queued(asked.node);
        }
    }

    fn pilot_ready(&mut self, ticket: u64) {
        let Some(asked) = self.tickets.remove(&ticket) else {
            return;
        };
        let job = JobId(ticket as u32);
        let gpus = asked.gpus;
        let pilot = Pilot {
            node: asked.node,
            submitted: asked.at,
            leases: 0,
            free: vec![true; gpus.into()],
            draining: false,
        };
        self.pilots.insert(job, pilot);
        let slot = |i| GpuSlot {
            index: GpuIndex(i),
            gpu_type: "gpu".into(),
            mem_mib: 80 * 1024,
            blocked: None,
        };
        self.tell(Input::PilotUp(PilotUp {
            node: node_name(asked.node),
            pilot: job,
            pool: "main".into(),
            gpus: (0..gpus).map(slot).collect(),
            cpus: self.cluster.cores_of(gpus),
            ends: None,
            steps_left: u32::MAX,
            leases: Vec::new(),
            ended: Vec::new(),
            draining: false,
        }));
    }

    fn drain(&mut self, job: JobId) {
        let Some(p) = self.pilots.get_mut(&job) else {
            return;
        };
        if !p.draining {
            p.draining = true;
            if p.leases == 0 {
                let takes = self.cluster.latency.pilot_end.draw(&mut self.rng);
                self.after(takes, Event::PilotEnded(job));
            }
        }
    }

    fn pilot_ended(&mut self, job: JobId) {
        let Some(p) = self.pilots.remove(&job) else {
            return;
        };
        self.provisioned(p.node, p.submitted, self.now, p.free.len() as u16);
        self.node_used[p.node] -= p.free.len() as u16;
        self.run_queued(p.node);
        self.tell(Input::PilotLost {
            pilot: job,
            cause: EndCause::Done,
        });
    }
}

fn node_name(n: usize) -> NodeName {
    format!("n{n:04}").into()
}
