//! What it could gain at most to park cells that have run for a quantum while others wait: delays with and without, as
//! GPUs get fewer. `quantum TRACE`. To parking's favour every GPU is as good as any other, a parked cell may go on
//! anywhere, and every process can be parked; GPU memory goes to the host and back at the simulator's speeds.

use hop_core::time::{Span, Timestamp};
use hop_sim::metrics::Quantiles;
use hop_sim::rng::Rng;
use hop_sim::{CellResult, Cluster, PolicyResult, Trace};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// A cell that waits, runs or is parked.
#[derive(Clone)]
struct Job {
    session: usize,
    cell: usize,
    gpus: u32,
    submit: Timestamp,
    start: Option<Timestamp>,
    left: Span,
    /// When it was last given its GPUs.
    since: Timestamp,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A job of this number is done, unless it was parked since.
    Done(u64),
    /// So many GPUs are free again after a job was parked.
    Parked(u32),
    /// A job may be parked from now on.
    Due,
    Submit(usize, usize),
}

struct World<'a> {
    trace: &'a Trace,
    quantum: Option<Span>,
    gb: Vec<f64>,
    speeds: (f64, f64),
    now: Timestamp,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    seq: u64,
    free: u32,
    /// GPUs of jobs that are being parked.
    coming: u32,
    queue: VecDeque<Job>,
    running: BTreeMap<u64, Job>,
    parked: u64,
    result: PolicyResult,
}

impl World<'_> {
    fn at(&mut self, when: Timestamp, event: Event) -> u64 {
        self.seq += 1;
        self.events.push(Reverse((when, self.seq, event)));
        self.seq
    }

    fn go(&mut self) {
        for (s, session) in self.trace.sessions.iter().enumerate() {
            if let Some(c) = session.cells.first() {
                let when = c.submit;
                self.at(when, Event::Submit(s, 0));
            }
        }
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = self.now.max(at);
            match event {
                Event::Submit(session, cell) => {
                    let c = &self.trace.sessions[session].cells[cell];
                    self.queue.push_back(Job {
                        session,
                        cell,
                        gpus: c.gpus.into(),
                        submit: self.now,
                        start: None,
                        left: c.run,
                        since: self.now,
                    });
                }
                Event::Done(n) => self.done(n),
                Event::Parked(gpus) => {
                    self.free += gpus;
                    self.coming -= gpus;
                }
                Event::Due => {}
            }
            self.serve();
        }
    }

    fn done(&mut self, n: u64) {
        let Some(job) = self.running.remove(&n) else {
            return;
        };
        self.free += job.gpus;
        let start = job.start.expect("it ran");
        self.result.cells.push(CellResult {
            session: job.session as u32,
            cell: job.cell as u32,
            gpus: job.gpus as u16,
            submit: job.submit,
            start,
            unpark: Span::ZERO,
            end: self.now,
            immediate: start == job.submit,
            reused: None,
            migrated: false,
            node: 0,
            estimate: None,
            foretold: None,
        });
        if let Some(next) = self.trace.sessions[job.session].cells.get(job.cell + 1) {
            self.at(
                next.submit.max(self.now),
                Event::Submit(job.session, job.cell + 1),
            );
        }
    }

    /// First come, first served; who has run for a quantum makes room for the first who waits.
    fn serve(&mut self) {
        while let Some(job) = self.queue.front() {
            if job.gpus <= self.free {
                let job = self.queue.pop_front().expect("it was looked at");
                self.start(job);
                continue;
            }
            let missing = job.gpus.saturating_sub(self.free + self.coming);
            if missing > 0 {
                self.park(missing);
            }
            return;
        }
    }

    fn start(&mut self, mut job: Job) {
        self.free -= job.gpus;
        let again = job.start.is_some();
        let back = if again {
            self.gb[job.session] / self.speeds.1
        } else {
            0.0
        };
        job.since = self.now;
        job.start.get_or_insert(self.now);
        // What remains includes bringing its memory back.
        job.left.0 += (back * 1e6) as u64;
        let n = self.seq + 1;
        self.at(self.now + job.left, Event::Done(n));
        if let Some(q) = self.quantum.filter(|q| job.left > *q) {
            self.at(self.now + q, Event::Due);
        }
        self.running.insert(n, job);
    }

    /// Parks jobs that have run for a quantum, the longest first, if that frees so many GPUs.
    fn park(&mut self, missing: u32) {
        let Some(quantum) = self.quantum else { return };
        let mut due: Vec<(Timestamp, u64, u32)> = self
            .running
            .iter()
            .filter(|(_, j)| self.now.since(j.since) >= quantum)
            .map(|(n, j)| (j.since, *n, j.gpus))
            .collect();
        due.sort_unstable();
        if due.iter().map(|d| d.2).sum::<u32>() < missing {
            return;
        }
        let mut freed = 0;
        for (_, n, gpus) in due {
            if freed >= missing {
                return;
            }
            let mut job = self.running.remove(&n).expect("it runs");
            job.left = Span(job.left.0.saturating_sub(self.now.since(job.since).0));
            let takes = Span((self.gb[job.session] / self.speeds.0 * 1e6) as u64);
            self.at(self.now + takes, Event::Parked(gpus));
            self.coming += gpus;
            freed += gpus;
            self.parked += 1;
            self.queue.push_back(job);
        }
    }
}

fn main() {
    let path = std::env::args().nth(1).expect("first argument: a trace");
    let text = std::fs::read_to_string(&path).expect("the trace can be read");
    let trace = Trace::parse("month", &text, 1).expect("the trace is one");
    let latency = Cluster::default().latency;
    println!(
        "| GPUs | quantum | delay p90 | p95 | p99 | max s | mean s | parked | ANTT | completion p50 | p95 | p99 s |"
    );
    for gpus in [400, 344, 320, 296, 272] {
        for quantum in [None, Some(4 * 3600), Some(3600), Some(600)] {
            let mut draw = Rng::new(1, 0xd1a5);
            let gb = |_| latency.vram_gb.draw(&mut draw).as_secs_f64().min(80.0);
            let mut world = World {
                trace: &trace,
                quantum: quantum.map(Span::from_secs),
                gb: trace.sessions.iter().map(gb).collect(),
                speeds: (latency.park_gb_s, latency.unpark_gb_s),
                now: Timestamp(0),
                events: BinaryHeap::new(),
                seq: 0,
                free: gpus,
                coming: 0,
                queue: VecDeque::new(),
                running: BTreeMap::new(),
                parked: 0,
                result: PolicyResult::default(),
            };
            world.go();
            let r = &world.result;
            assert_eq!(r.cells.len(), trace.cells(), "every cell ran");
            let seconds = |f: &dyn Fn(&CellResult) -> Span| -> Vec<f64> {
                r.cells.iter().map(|c| f(c).as_secs_f64()).collect()
            };
            let delays = seconds(&CellResult::delay);
            let mean = delays.iter().sum::<f64>() / delays.len() as f64;
            let (d, t) = (
                Quantiles::of(delays),
                Quantiles::of(seconds(&|c| c.end.since(c.submit))),
            );
            let name = quantum.map_or_else(|| "none".to_owned(), |q| format!("{} min", q / 60));
            println!(
                "| {gpus} | {name} | {:.1} | {:.1} | {:.0} | {:.0} | {mean:.1} | {} | {:.3} | {:.0} | {:.0} | {:.0} |",
                d.p90,
                d.p95,
                d.p99,
                d.max,
                world.parked,
                r.antt_stp(&trace, false).0,
                t.p50,
                t.p95,
                t.p99
            );
        }
    }
}
