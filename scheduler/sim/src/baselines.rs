//! The policies that others have: each a small model of its own, over the same trace and cluster.
//!
//! Where a baseline's cost is not known it is left out, to the baseline's favour.

use crate::cluster::Cluster;
use crate::metrics::{CellResult, PolicyResult};
use crate::rng::Rng;
use crate::trace::Trace;
use hop_core::time::{Span, Timestamp};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// What holds GPUs, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holding {
    /// The session, from opening to closing.
    Reservation,
    /// The session, until it has been idle for long; then again from its next cell, in a new container.
    IdleCull,
    /// The cell, in a new container that reads its state from the store and writes it back.
    Batch,
    /// The cell, in a warm container that does the same.
    WarmPool,
    /// The cell, for as long as it runs; GPUs of different nodes count as one node's.
    Oracle,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A session's container has stopped, its GPUs are free.
    Free {
        session: usize,
    },
    Done {
        session: usize,
        cell: usize,
    },
    Cull {
        session: usize,
        cell: usize,
    },
    Close(usize),
    Open(usize),
    Submit {
        session: usize,
        cell: usize,
    },
}

#[derive(Debug, Clone, Default)]
struct State {
    /// Node and number of GPUs held, and since when.
    holds: Option<(usize, u16, Timestamp)>,
    last_node: Option<usize>,
    /// A cell that waits for its GPUs.
    waiting: Option<(usize, Timestamp)>,
    queued: bool,
    closed: bool,
    done: usize,
    state_gb: f64,
}

struct World<'a> {
    trace: &'a Trace,
    cluster: &'a Cluster,
    how: Holding,
    rng: Rng,
    now: Timestamp,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    seq: u64,
    free: Vec<u32>,
    queue: VecDeque<usize>,
    sessions: Vec<State>,
    result: PolicyResult,
}

/// First come, first served; the first who doesn't fit holds up the rest, as in a plain queue.
pub(crate) fn holding(trace: &Trace, cluster: &Cluster, seed: u64, how: Holding) -> PolicyResult {
    let mut draw = Rng::new(seed, 0xd1a5);
    let sessions = trace
        .sessions
        .iter()
        .map(|_| {
            cluster.latency.vram_gb.draw(&mut draw);
            State {
                state_gb: cluster.latency.state_gb.draw(&mut draw).as_secs_f64().min(200.0),
                ..State::default()
            }
        })
        .collect();
    let free = match how {
        Holding::Oracle => vec![cluster.gpus()],
        _ => vec![cluster.gpus_per_node.into(); cluster.nodes as usize],
    };
    let mut world = World {
        trace,
        cluster,
        how,
        rng: Rng::new(seed, 0xba5e),
        now: Timestamp(0),
        events: BinaryHeap::new(),
        seq: 0,
        free,
        queue: VecDeque::new(),
        sessions,
        result: PolicyResult::default(),
    };
    world.go();
    world.result
}

impl World<'_> {
    fn at(&mut self, when: Timestamp, event: Event) {
        self.seq += 1;
        self.events.push(Reverse((when, self.seq, event)));
    }

    fn by_session(&self) -> bool {
        matches!(self.how, Holding::Reservation | Holding::IdleCull)
    }

    fn go(&mut self) {
        for (i, s) in self
            .trace
            .sessions
            .iter()
            .enumerate()
            .filter(|(_, s)| !s.cells.is_empty())
        {
            self.at(s.open, Event::Open(i));
            self.at(s.close, Event::Close(i));
        }
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = self.now.max(at);
            match event {
                Event::Open(s) => self.open(s),
                Event::Submit { session, cell } => self.submit(session, cell),
                Event::Done { session, cell } => self.done(session, cell),
                Event::Cull { session, cell } => self.cull(session, cell),
                Event::Free { session } => self.release(session),
                Event::Close(s) => {
                    self.sessions[s].closed = true;
                    self.close(s);
                }
            }
        }
    }

    fn open(&mut self, s: usize) {
        if self.how == Holding::Reservation && self.trace.sessions[s].gpus() > 0 {
            self.queue.push_back(s);
            self.serve();
        }
        let first = self.trace.sessions[s].cells[0].submit;
        self.at(first.max(self.now), Event::Submit { session: s, cell: 0 });
    }

    /// What the session asks for at once.
    fn need(&self, s: usize) -> u16 {
        if self.by_session() {
            return self.trace.sessions[s].gpus();
        }
        let (cell, _) = self.sessions[s].waiting.expect("only waiting cells ask");
        self.trace.sessions[s].cells[cell].gpus
    }

    fn submit(&mut self, s: usize, cell: usize) {
        let gpus = self.trace.sessions[s].cells[cell].gpus;
        self.sessions[s].waiting = Some((cell, self.now));
        self.sessions[s].queued = false;
        if gpus == 0 || self.sessions[s].holds.is_some() {
            return self.start(s, Span::ZERO);
        }
        if self.how == Holding::Reservation {
            // Its session waits for its GPUs already.
            self.sessions[s].queued = true;
            return;
        }
        self.queue.push_back(s);
        self.serve();
        if self.sessions[s].waiting.is_some() {
            self.sessions[s].queued = true;
        }
    }

    fn serve(&mut self) {
        while let Some(&s) = self.queue.front() {
            let need = self.need(s);
            let last = self.sessions[s].last_node;
            let fits = |n: &usize| self.free[*n] >= u32::from(need);
            let node = last
                .filter(|n| self.how == Holding::WarmPool && fits(n))
                .or_else(|| {
                    (0..self.free.len())
                        .filter(fits)
                        .min_by_key(|&n| (self.free[n], n))
                });
            let Some(n) = node else { return };
            self.queue.pop_front();
            self.free[n] -= u32::from(need);
            self.sessions[s].holds = Some((n, need, self.now));
            if self.sessions[s].waiting.is_some() {
                let prepare = self.prepare(s);
                self.start(s, prepare);
            }
        }
    }

    /// What passes before the code runs, with the GPUs held already.
    fn prepare(&mut self, s: usize) -> Span {
        let l = &self.cluster.latency;
        let first = self.sessions[s].done == 0;
        let read = if first {
            0.0
        } else {
            self.sessions[s].state_gb / l.store_gb_s
        };
        let read = Span((read * 1e6) as u64);
        let container = match self.how {
            Holding::Reservation | Holding::Oracle => return Span::ZERO,
            // The first container is ready when the session opens; a culled one comes back without its state.
            Holding::IdleCull if first => return Span::ZERO,
            Holding::IdleCull => return l.container.draw(&mut self.rng),
            Holding::Batch => l.container.draw(&mut self.rng),
            Holding::WarmPool => l.warm.draw(&mut self.rng),
        };
        Span(container.0 + read.0)
    }

    fn start(&mut self, s: usize, prepare: Span) {
        let Some((cell, submit)) = self.sessions[s].waiting.take() else {
            return;
        };
        let c = &self.trace.sessions[s].cells[cell];
        let message = match self.how {
            Holding::Oracle => Span::ZERO,
            _ => self.cluster.latency.message.draw(&mut self.rng),
        };
        let start = self.now + prepare + message;
        let node = self.sessions[s].holds.map(|(n, _, _)| n);
        let reused = match (self.sessions[s].last_node, node) {
            (Some(a), Some(b)) => Some(a == b),
            _ => None,
        };
        self.sessions[s].last_node = node.or(self.sessions[s].last_node);
        self.result.cells.push(CellResult {
            session: s as u32,
            cell: cell as u32,
            gpus: c.gpus,
            submit,
            start,
            unpark: Span::ZERO,
            end: start + c.run,
            immediate: !self.sessions[s].queued && prepare < Span::from_secs(1),
            reused,
            migrated: false,
            node: node.map_or(u32::MAX, |n| n as u32),
            estimate: None,
            foretold: None,
        });
        self.at(start + c.run, Event::Done { session: s, cell });
    }

    fn done(&mut self, s: usize, cell: usize) {
        self.sessions[s].done = cell + 1;
        if let Some(next) = self.trace.sessions[s].cells.get(cell + 1) {
            self.at(
                next.submit.max(self.now),
                Event::Submit {
                    session: s,
                    cell: cell + 1,
                },
            );
        }
        if self.sessions[s].holds.is_some() {
            match self.how {
                Holding::Reservation => {}
                Holding::IdleCull => {
                    let idle = Span::from_secs(60 * self.cluster.idle_cull_min);
                    self.at(self.now + idle, Event::Cull { session: s, cell });
                }
                Holding::Oracle => self.release(s),
                Holding::Batch | Holding::WarmPool => {
                    let write = self.sessions[s].state_gb / self.cluster.latency.store_gb_s;
                    self.hand_back(s, Span((write * 1e6) as u64));
                }
            }
        }
        self.close(s);
    }

    /// The cell's GPUs stay held while its state is written.
    fn hand_back(&mut self, s: usize, takes: Span) {
        // The next cell may come before that: it takes GPUs of its own, as the next job would.
        let held = self.sessions[s].holds.take().expect("the caller has looked");
        self.result.held.span(held.2, self.now + takes, i64::from(held.1));
        self.result
            .provisioned
            .span(held.2, self.now + takes, i64::from(held.1));
        self.sessions[s].last_node = Some(held.0);
        let ghost = self.sessions.len();
        self.sessions.push(State {
            holds: Some((held.0, held.1, Timestamp(u64::MAX))),
            ..State::default()
        });
        self.at(self.now + takes, Event::Free { session: ghost });
    }

    fn cull(&mut self, s: usize, cell: usize) {
        let idle = self.sessions[s].done == cell + 1 && self.sessions[s].waiting.is_none();
        let running = self.result_running(s);
        if idle && !running {
            self.release(s);
        }
    }

    fn result_running(&self, s: usize) -> bool {
        // A cell runs from its start to `done`: the next one has been submitted and is not done.
        let next = self.sessions[s].done;
        self.trace.sessions[s]
            .cells
            .get(next)
            .is_some_and(|c| c.submit <= self.now)
    }

    fn release(&mut self, s: usize) {
        if let Some((n, gpus, since)) = self.sessions[s].holds.take() {
            self.free[n] += u32::from(gpus);
            if since.0 != u64::MAX {
                self.result.held.span(since, self.now, i64::from(gpus));
                self.result.provisioned.span(since, self.now, i64::from(gpus));
            }
            self.serve();
        }
    }

    fn close(&mut self, s: usize) {
        let state = &self.sessions[s];
        if state.closed && state.done == self.trace.sessions[s].cells.len() && self.by_session() {
            self.release(s);
        }
    }
}

/// How GPUs are shared by those who run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Sessions live on a node for good; who is active there shares its GPUs equally, as the OS would.
    TimeSlicing,
    /// Every session has its part of the cluster, in proportion to what it asks for, for as long as it is open.
    Partitioning,
}

/// Nobody waits; everything runs slower the more there is to run. Switching costs nothing.
pub(crate) fn sharing(trace: &Trace, cluster: &Cluster, how: Sharing) -> PolicyResult {
    Fluid::new(trace, cluster, how).go()
}

struct Fluid<'a> {
    trace: &'a Trace,
    how: Sharing,
    gpus: f64,
    nodes: Vec<FluidNode>,
    /// Of each session: its node, its speed if partitioned.
    home: Vec<usize>,
    speed: Vec<f64>,
    /// When each session is over: not before its last cell's end.
    over: Vec<Timestamp>,
    /// Cells to be submitted.
    coming: BinaryHeap<Reverse<(Timestamp, usize, usize)>>,
    result: PolicyResult,
}

#[derive(Default)]
struct FluidNode {
    /// Active cells: what is left of each in seconds of full speed.
    active: BTreeMap<(usize, usize), (f64, Timestamp)>,
    at: Timestamp,
}

/// What a session holds of a partitioned cluster is counted in millionths of a GPU.
const PARTS: u32 = 1_000_000;

impl<'a> Fluid<'a> {
    fn new(trace: &'a Trace, cluster: &Cluster, how: Sharing) -> Self {
        let all: Vec<&crate::trace::Session> = trace.sessions.iter().collect();
        let peak = crate::trace::peak(&all).max(1);
        let part = (f64::from(cluster.gpus()) / f64::from(peak)).min(1.0);
        let count = if how == Sharing::Partitioning {
            trace.sessions.len()
        } else {
            cluster.nodes as usize
        };
        let mut fluid = Self {
            trace,
            how,
            gpus: f64::from(cluster.gpus_per_node),
            nodes: (0..count).map(|_| FluidNode::default()).collect(),
            home: vec![0; trace.sessions.len()],
            speed: vec![part; trace.sessions.len()],
            over: trace.sessions.iter().map(|s| s.close).collect(),
            coming: BinaryHeap::new(),
            result: PolicyResult::default(),
        };
        fluid.settle(cluster);
        fluid
    }

    /// Gives every session its node, the least loaded at its opening.
    fn settle(&mut self, cluster: &Cluster) {
        let mut changes: Vec<(Timestamp, bool, usize)> = Vec::new();
        for (i, s) in self.trace.sessions.iter().enumerate() {
            changes.push((s.open, true, i));
            changes.push((s.close, false, i));
            if let Some(c) = s.cells.first() {
                self.coming.push(Reverse((c.submit, i, 0)));
            }
        }
        changes.sort_unstable();
        let mut load = vec![0u32; cluster.nodes as usize];
        for (_, opens, i) in changes {
            let gpus = u32::from(self.trace.sessions[i].gpus());
            if self.how == Sharing::Partitioning {
                self.home[i] = i;
                continue;
            }
            if opens {
                let n = (0..load.len()).min_by_key(|&n| (load[n], n)).unwrap_or(0);
                self.home[i] = n;
                load[n] += gpus;
            } else {
                load[self.home[i]] -= gpus;
            }
        }
    }

    /// Books what was held: by each session its part, or by all who are at home on a node the whole of it.
    fn book(&mut self) {
        let held = &mut self.result.held;
        let open = |i: usize| !self.trace.sessions[i].cells.is_empty();
        if self.how == Sharing::Partitioning {
            held.parts = Some(PARTS);
            for (i, s) in self.trace.sessions.iter().enumerate().filter(|(i, _)| open(*i)) {
                let part = f64::from(s.gpus()) * self.speed[i] * f64::from(PARTS);
                held.span(s.open, self.over[i], part.ceil() as i64);
            }
            return;
        }
        let mut order: Vec<usize> = (0..self.home.len()).filter(|&i| open(i)).collect();
        order.sort_by_key(|&i| (self.home[i], self.trace.sessions[i].open, i));
        let whole = self.gpus as i64;
        for home in order.chunk_by(|&a, &b| self.home[a] == self.home[b]) {
            let mut booked = Timestamp(0);
            for &i in home {
                let from = self.trace.sessions[i].open.max(booked);
                held.span(from, self.over[i], whole);
                booked = booked.max(self.over[i]);
            }
        }
    }

    fn rate(&self, n: usize) -> f64 {
        let active: f64 = self.nodes[n]
            .active
            .keys()
            .map(|&(s, c)| f64::from(self.trace.sessions[s].cells[c].gpus))
            .sum();
        match self.how {
            Sharing::TimeSlicing => (self.gpus / active.max(1e-9)).min(1.0),
            Sharing::Partitioning => self.speed[n],
        }
    }

    /// The first of the node's cells to end, and when.
    fn next_end(&self, n: usize) -> Option<(Timestamp, (usize, usize))> {
        let rate = self.rate(n);
        let node = &self.nodes[n];
        node.active
            .iter()
            .map(|(&k, &(left, _))| (node.at + Span((left / rate * 1e6).ceil() as u64), k))
            .min()
    }

    fn advance(&mut self, n: usize, to: Timestamp) {
        let rate = self.rate(n);
        let node = &mut self.nodes[n];
        let passed = to.since(node.at).as_secs_f64() * rate;
        for (left, _) in node.active.values_mut() {
            *left = (*left - passed).max(0.0);
        }
        node.at = to;
    }

    fn go(mut self) -> PolicyResult {
        let mut ends: BinaryHeap<Reverse<(Timestamp, usize, u64)>> = BinaryHeap::new();
        let mut version = vec![0u64; self.nodes.len()];
        loop {
            let submit = self.coming.peek().map(|Reverse((t, _, _))| *t);
            let end = ends.peek().map(|Reverse((t, _, _))| *t);
            let n = match (submit, end) {
                (None, None) => break,
                (Some(s), e) if e.is_none_or(|e| s < e) => self.submitted(),
                _ => {
                    let Reverse((at, n, v)) = ends.pop().expect("it was peeked at");
                    if v != version[n] {
                        continue;
                    }
                    self.ended(n, at);
                    n
                }
            };
            version[n] += 1;
            if let Some((at, _)) = self.next_end(n) {
                ends.push(Reverse((at, n, version[n])));
            }
        }
        self.book();
        self.result.provisioned = self.result.held.clone();
        self.result
    }

    fn submitted(&mut self) -> usize {
        let Reverse((at, s, c)) = self.coming.pop().expect("it was peeked at");
        let n = self.home[s];
        let at = at.max(self.nodes[n].at);
        self.advance(n, at);
        let run = self.trace.sessions[s].cells[c].run.as_secs_f64();
        self.nodes[n].active.insert((s, c), (run, at));
        n
    }

    fn ended(&mut self, n: usize, at: Timestamp) {
        let Some((_, key)) = self.next_end(n) else {
            return;
        };
        self.advance(n, at);
        let (_, submit) = self.nodes[n].active.remove(&key).expect("it was the next to end");
        let (s, c) = key;
        self.over[s] = self.over[s].max(at);
        self.result.cells.push(CellResult {
            session: s as u32,
            cell: c as u32,
            gpus: self.trace.sessions[s].cells[c].gpus,
            submit,
            start: submit,
            unpark: Span::ZERO,
            end: at,
            immediate: true,
            reused: (c > 0).then_some(true),
            migrated: false,
            node: n as u32,
            estimate: None,
            foretold: None,
        });
        if let Some(next) = self.trace.sessions[s].cells.get(c + 1) {
            self.coming.push(Reverse((next.submit.max(at), s, c + 1)));
        }
    }
}
