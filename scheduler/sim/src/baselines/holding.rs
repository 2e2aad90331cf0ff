//! GPUs held by sessions or by cells, in containers: reservation, idle culling, batch jobs, a pool of warm containers.

use crate::cluster::Cluster;
use crate::metrics::{CellResult, PolicyResult};
use crate::rng::Rng;
use crate::trace::Trace;
use hop_words::time::{Span, Timestamp};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What holds GPUs, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holding {
    /// The session, from opening to closing.
    Reservation,
    /// The session, until a long idle time; then again from its next cell, in a new container without variables.
    IdleCull,
    /// The cell, in a new container that reads and writes the cell's state from and to the store.
    Batch,
    /// The cell, in a warm container that reads and writes the state likewise.
    WarmPool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The state of an ended cell has been written: the cell's GPUs are free.
    Free {
        node: usize,
        gpus: u16,
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
    vram_gb: f64,
    /// GPUs of the last cell.
    gpus: u16,
}

struct World<'a> {
    trace: &'a Trace,
    cluster: &'a Cluster,
    how: Holding,
    rng: Rng,
    now: Timestamp,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    seq: u64,
    free: Vec<u16>,
    /// When each node's warm containers are ready.
    warm: Vec<Vec<Timestamp>>,
    queue: VecDeque<usize>,
    sessions: Vec<State>,
    result: PolicyResult,
}

pub(crate) fn holding(trace: &Trace, cluster: &Cluster, seed: u64, how: Holding) -> PolicyResult {
    let mut draw = Rng::new(seed, 0xd1a5);
    let l = &cluster.latency;
    let sessions = trace.sessions.iter().map(|_| State {
        vram_gb: l.vram_gb.draw(&mut draw).as_secs_f64().min(80.0),
        state_gb: l.state_gb.draw(&mut draw).as_secs_f64().min(200.0),
        ..State::default()
    });
    let nodes = cluster.nodes as usize;
    let mut world = World {
        trace,
        cluster,
        how,
        rng: Rng::new(seed, 0xba5e),
        now: Timestamp(0),
        events: BinaryHeap::new(),
        seq: 0,
        free: vec![cluster.gpus_per_node; nodes],
        warm: vec![vec![Timestamp(0); cluster.warm_per_node.into()]; nodes],
        queue: VecDeque::new(),
        sessions: sessions.collect(),
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
        let sessions = self.trace.sessions.iter().enumerate();
        for (i, s) in sessions.filter(|(_, s)| !s.cells.is_empty()) {
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
                Event::Free { node, gpus } => {
                    self.free[node] += gpus;
                    self.serve();
                }
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
            return self.start(s, (Span::ZERO, Span::ZERO, Span::ZERO));
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

    /// Starts every session that fits, in the order of arrival.
    fn serve(&mut self) {
        let mut most = self.free.iter().copied().max().unwrap_or(0);
        let mut at = 0;
        while at < self.queue.len() && most > 0 {
            let s = self.queue[at];
            let need = self.need(s);
            let Some(n) = (need <= most).then(|| self.place(s, need)).flatten() else {
                at += 1;
                continue;
            };
            self.queue.remove(at);
            self.free[n] -= need;
            most = self.free.iter().copied().max().unwrap_or(0);
            self.sessions[s].holds = Some((n, need, self.now));
            if self.sessions[s].waiting.is_some() {
                let prepare = self.prepare(s, n);
                self.start(s, prepare);
            }
        }
    }

    /// The session's last node if large enough (a warm container knows its packages), else the node with the fewest
    /// GPUs left over.
    fn place(&self, s: usize, need: u16) -> Option<usize> {
        let fits = |n: &usize| self.free[*n] >= need;
        let last = self.sessions[s].last_node;
        let last = last.filter(|n| self.how == Holding::WarmPool && fits(n));
        let tightest = || {
            (0..self.free.len())
                .filter(fits)
                .min_by_key(|&n| (self.free[n], n))
        };
        last.or_else(tightest)
    }

    /// Time before the code runs, with the GPUs already held: container start, read from the store, and copy of
    /// memory to the GPUs.
    fn prepare(&mut self, s: usize, node: usize) -> (Span, Span, Span) {
        let first = self.sessions[s].done == 0;
        let none = (Span::ZERO, Span::ZERO, Span::ZERO);
        let container = match self.how {
            Holding::Reservation => return none,
            // The first container is ready when the session opens; a culled container comes back without its variables.
            Holding::IdleCull if first => return none,
            Holding::IdleCull => return (self.cluster.latency.container.draw(&mut self.rng), none.1, none.2),
            Holding::Batch => self.cluster.latency.container.draw(&mut self.rng),
            Holding::WarmPool => self.take_warm(node),
        };
        if first {
            return (container, Span::ZERO, Span::ZERO);
        }
        let (l, state) = (&self.cluster.latency, &self.sessions[s]);
        let gb = state.state_gb + state.vram_gb * f64::from(state.gpus);
        let read = l.store(gb);
        let load = match state.gpus {
            0 => Span::ZERO,
            _ => l.unpark(state.vram_gb),
        };
        self.result.moved_gb += gb;
        (container, read, load)
    }

    /// A warm container of the node, or a new one where none is ready sooner. Another is made ready in its place.
    fn take_warm(&mut self, node: usize) -> Span {
        let l = &self.cluster.latency;
        let (cold, again) = (l.container.draw(&mut self.rng), l.container.draw(&mut self.rng));
        let take = l.warm.draw(&mut self.rng);
        let now = self.now;
        let Some(first) = self.warm[node].iter_mut().min() else {
            return cold;
        };
        let ready = first.since(now);
        *first = now.max(*first) + again;
        (ready + take).min(cold)
    }

    fn start(&mut self, s: usize, prepare: (Span, Span, Span)) {
        let Some((cell, submit)) = self.sessions[s].waiting.take() else {
            return;
        };
        let c = &self.trace.sessions[s].cells[cell];
        let message = self.cluster.latency.message.draw(&mut self.rng);
        let (container, fetch, unpark) = prepare;
        let granted = self.now + container + message;
        let start = granted + fetch + unpark;
        let node = self.sessions[s].holds.map(|(n, _, _)| n);
        let state = &mut self.sessions[s];
        let reused = match (state.last_node, node) {
            (Some(a), Some(b)) => Some(a == b),
            _ => None,
        };
        state.last_node = node.or(state.last_node);
        state.gpus = if c.gpus > 0 { c.gpus } else { state.gpus };
        self.result.waiting.span(submit, granted, 1);
        self.result.cells.push(CellResult {
            session: s as u32,
            cell: cell as u32,
            gpus: c.gpus,
            submit,
            granted,
            fetch,
            unpark,
            start,
            end: start + c.run,
            immediate: !self.sessions[s].queued && container < Span::from_secs(1),
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
                Holding::Batch | Holding::WarmPool => self.hand_back(s),
            }
        }
        self.close(s);
    }

    /// The cell's GPUs stay held while its state is written. The next cell takes GPUs of its own, as the next job
    /// would.
    fn hand_back(&mut self, s: usize) {
        let state = &mut self.sessions[s];
        let gb = state.state_gb + state.vram_gb * f64::from(state.gpus);
        let (node, gpus, since) = state.holds.take().expect("the caller has looked");
        self.result.moved_gb += gb;
        let until = self.now + self.cluster.latency.store(gb);
        self.book(since, until, gpus);
        self.at(until, Event::Free { node, gpus });
    }

    fn cull(&mut self, s: usize, cell: usize) {
        let idle = self.sessions[s].done == cell + 1 && self.sessions[s].waiting.is_none();
        // A cell runs from its start to `done`: the next cell has been submitted and is not done.
        let next = self.trace.sessions[s].cells.get(self.sessions[s].done);
        let runs = next.is_some_and(|c| c.submit <= self.now);
        if idle && !runs {
            self.release(s);
        }
    }

    fn release(&mut self, s: usize) {
        if let Some((node, gpus, since)) = self.sessions[s].holds.take() {
            self.free[node] += gpus;
            self.book(since, self.now, gpus);
            self.serve();
        }
    }

    fn book(&mut self, from: Timestamp, to: Timestamp, gpus: u16) {
        self.result.held.span(from, to, i64::from(gpus));
        self.result.provisioned.span(from, to, i64::from(gpus));
    }

    fn close(&mut self, s: usize) {
        let state = &self.sessions[s];
        if state.closed && state.done == self.trace.sessions[s].cells.len() && self.by_session() {
            self.release(s);
        }
    }
}
