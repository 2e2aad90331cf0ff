//! Policies without waiting: all cells run slower, the more cells run. Switching costs nothing, and every GPU's
//! memory is large enough for all its sessions. A session that changes nodes reads its memory from the store.

use crate::cluster::Cluster;
use crate::metrics::{CellResult, PolicyResult};
use crate::rng::Rng;
use crate::trace::Trace;
use hop_words::time::{Span, Timestamp};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Ways to share GPUs between concurrent cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// A cell stays on its session's node as long as nobody shares there, else the cell goes to the node with the
    /// fewest requested GPUs. All cells of a node share its GPUs by time.
    TimeSlicing,
    /// Every open session has a part of the cluster in proportion to its request.
    Partitioning,
}

/// Nobody waits; everything runs slower the more there is to run.
pub(crate) fn sharing(trace: &Trace, cluster: &Cluster, seed: u64, how: Sharing) -> PolicyResult {
    let mut draw = Rng::new(seed, 0xd1a5);
    let l = &cluster.latency;
    let memory = trace.sessions.iter().map(|s| {
        let vram = l.vram_gb.draw(&mut draw).as_secs_f64().min(80.0);
        let state = l.state_gb.draw(&mut draw).as_secs_f64().min(200.0);
        l.store(state + vram * f64::from(s.gpus()))
    });
    let mut fluid = Fluid {
        fetch: memory.collect(),
        home: vec![None; trace.sessions.len()],
        trace,
        how,
        shares: match how {
            Sharing::TimeSlicing => (0..cluster.nodes)
                .map(|_| Share::of(cluster.gpus_per_node.into()))
                .collect(),
            Sharing::Partitioning => vec![Share::of(f64::from(cluster.gpus()))],
        },
        left: vec![0; trace.sessions.len()],
        events: BinaryHeap::new(),
        result: PolicyResult::default(),
    };
    for (i, s) in trace.sessions.iter().enumerate() {
        let Some(first) = s.cells.first() else { continue };
        fluid.left[i] = s.cells.len();
        fluid.events.push(Reverse((s.open, Event::Open(i))));
        fluid
            .events
            .push(Reverse((first.submit.max(s.open), Event::Submit(i, 0))));
    }
    fluid.go()
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Open(usize),
    Close(usize),
    Submit(usize, usize),
    /// The cell's memory is on the node of this share.
    Arrive {
        session: usize,
        cell: usize,
        share: usize,
        submit: Timestamp,
    },
    /// A cell of this share may be done, unless the share has changed since.
    Ends(usize, u64),
}

/// GPUs that some cells share.
struct Share {
    gpus: f64,
    /// Requested GPUs: by running cells where shared by time, by open sessions where shared in parts.
    asked: f64,
    /// Running cells: seconds of full speed left, and times of submission and arrival.
    running: BTreeMap<(usize, usize), (f64, Timestamp, Timestamp)>,
    at: Timestamp,
    version: u64,
    /// Since when GPUs of it are held, and how many millionths.
    held: Option<(Timestamp, i64)>,
}

impl Share {
    fn of(gpus: f64) -> Self {
        Self {
            gpus,
            asked: 0.0,
            running: BTreeMap::new(),
            at: Timestamp(0),
            version: 0,
            held: None,
        }
    }

    fn speed(&self) -> f64 {
        (self.gpus / self.asked.max(1e-9)).min(1.0)
    }

    fn advance(&mut self, to: Timestamp) {
        let passed = to.since(self.at).as_secs_f64() * self.speed();
        for (left, ..) in self.running.values_mut() {
            *left = (*left - passed).max(0.0);
        }
        self.at = self.at.max(to);
    }

    fn next_end(&self) -> Option<Timestamp> {
        let left = self.running.values().map(|(left, ..)| *left);
        let least = left.min_by(f64::total_cmp)?;
        Some(self.at + Span((least / self.speed() * 1e6).ceil() as u64))
    }
}

struct Fluid<'a> {
    trace: &'a Trace,
    how: Sharing,
    /// Time to fetch each session's memory to another node, and the session's present share.
    fetch: Vec<Span>,
    home: Vec<Option<usize>>,
    shares: Vec<Share>,
    /// Cells that each session has left.
    left: Vec<usize>,
    events: BinaryHeap<Reverse<(Timestamp, Event)>>,
    result: PolicyResult,
}

/// GPUs are counted in millionths.
const PARTS: u32 = 1_000_000;

impl Fluid<'_> {
    fn go(mut self) -> PolicyResult {
        self.result.held.parts = Some(PARTS);
        while let Some(Reverse((at, event))) = self.events.pop() {
            match event {
                Event::Open(s) => self.open(s, at, true),
                Event::Close(s) => self.open(s, at, false),
                Event::Submit(s, c) => self.submit(s, c, at),
                Event::Arrive {
                    session,
                    cell,
                    share,
                    submit,
                } => self.arrive(session, cell, share, submit, at),
                Event::Ends(n, version) => {
                    if self.shares[n].version == version {
                        self.end(n, at);
                    }
                }
            }
        }
        self.result.provisioned = self.result.held.clone();
        self.result
    }

    /// A session that has parts of the cluster opens or closes.
    fn open(&mut self, s: usize, at: Timestamp, opens: bool) {
        if self.how == Sharing::Partitioning {
            let gpus = f64::from(self.trace.sessions[s].gpus());
            self.shares[0].advance(at);
            self.shares[0].asked += if opens { gpus } else { -gpus };
            self.changed(0, at);
        }
    }

    fn submit(&mut self, session: usize, cell: usize, submit: Timestamp) {
        let gpus = f64::from(self.trace.sessions[session].cells[cell].gpus);
        let asked = |n: &usize| self.shares[*n].asked;
        let home = self.home[session];
        let stays =
            home.filter(|&n| self.how == Sharing::Partitioning || asked(&n) + gpus <= self.shares[n].gpus);
        let least = || (0..self.shares.len()).min_by(|a, b| asked(a).total_cmp(&asked(b)));
        let share = stays.or_else(least).unwrap_or(0);
        let moves = home.is_some_and(|h| h != share);
        let takes = if moves { self.fetch[session] } else { Span::ZERO };
        self.home[session] = Some(share);
        let arrive = Event::Arrive {
            session,
            cell,
            share,
            submit,
        };
        self.events.push(Reverse((submit + takes, arrive)));
    }

    fn arrive(&mut self, s: usize, c: usize, n: usize, submit: Timestamp, at: Timestamp) {
        let cell = &self.trace.sessions[s].cells[c];
        let share = &mut self.shares[n];
        share.advance(at);
        if self.how == Sharing::TimeSlicing {
            share.asked += f64::from(cell.gpus);
        }
        share.running.insert((s, c), (cell.run.as_secs_f64(), submit, at));
        self.changed(n, at);
    }

    /// Books what was held, and looks again at when the next cell ends.
    fn changed(&mut self, n: usize, at: Timestamp) {
        let share = &mut self.shares[n];
        share.version += 1;
        if let Some(end) = share.next_end() {
            self.events.push(Reverse((end, Event::Ends(n, share.version))));
        }
        let holds = match self.how {
            // The whole node, as long as something runs there.
            Sharing::TimeSlicing if share.running.is_empty() => 0.0,
            Sharing::TimeSlicing => share.gpus,
            Sharing::Partitioning => share.asked.min(share.gpus),
        };
        let holds = (holds * f64::from(PARTS)) as i64;
        if let Some((since, held)) = share.held.replace((at, holds)) {
            self.result.held.span(since, at, held);
        }
    }

    fn end(&mut self, n: usize, at: Timestamp) {
        self.shares[n].advance(at);
        let done = self.shares[n].running.iter();
        let done = done.filter(|(_, (left, ..))| *left < 1e-6);
        let done: Vec<_> = done
            .map(|(k, (_, submit, start))| (*k, *submit, *start))
            .collect();
        for ((s, c), submit, start) in done {
            let cell = &self.trace.sessions[s].cells[c];
            self.shares[n].running.remove(&(s, c));
            if self.how == Sharing::TimeSlicing {
                self.shares[n].asked -= f64::from(cell.gpus);
            }
            self.result.cells.push(CellResult {
                session: s as u32,
                cell: c as u32,
                gpus: cell.gpus,
                submit,
                granted: submit,
                fetch: start.since(submit),
                unpark: Span::ZERO,
                start,
                end: at.max(start + cell.run),
                immediate: true,
                reused: (c > 0).then_some(start == submit),
                migrated: false,
                node: n as u32,
                estimate: None,
                foretold: None,
            });
            self.left[s] -= 1;
            match self.trace.sessions[s].cells.get(c + 1) {
                Some(next) => {
                    let submit = next.submit.max(at);
                    self.events.push(Reverse((submit, Event::Submit(s, c + 1))));
                }
                None => {
                    let close = self.trace.sessions[s].close.max(at);
                    self.events.push(Reverse((close, Event::Close(s))));
                }
            }
        }
        self.changed(n, at);
    }
}
