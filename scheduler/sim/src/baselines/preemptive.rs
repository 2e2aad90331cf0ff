//! An upper bound on every scheduler: the model knows all run times, and stops and continues cells at no cost. It runs
//! a cell on any GPUs of the cluster, or on a part of them at a part of the speed.
//!
//! At each moment the GPUs go to the cells with the most to gain. A cell's gain is the weight of its session in ANTT
//! (one over the session's time alone), divided by the cell's remaining GPU-seconds. The model has no costs, whole
//! GPUs, nodes or unknown run times, and is therefore a bound on the policies' reach.

use crate::cluster::Cluster;
use crate::metrics::{CellResult, PolicyResult};
use crate::trace::Trace;
use hop_words::time::{Span, Timestamp};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A cell that has been submitted and is not done.
struct Active {
    session: usize,
    cell: usize,
    gpus: f64,
    submit: Timestamp,
    started: Option<Timestamp>,
    /// Seconds at full speed.
    left: f64,
    speed: f64,
}

struct World<'a> {
    trace: &'a Trace,
    gpus: f64,
    /// The inverse of each session's run time.
    weights: Vec<f64>,
    now: Timestamp,
    coming: BinaryHeap<Reverse<(Timestamp, usize, usize)>>,
    active: Vec<Active>,
    result: PolicyResult,
}

pub(crate) fn preemptive(trace: &Trace, cluster: &Cluster) -> PolicyResult {
    let alone = |s: &crate::trace::Session| s.cells.iter().map(|c| c.run.as_secs_f64()).sum::<f64>();
    let mut world = World {
        trace,
        gpus: f64::from(cluster.gpus()),
        weights: trace.sessions.iter().map(|s| 1.0 / alone(s).max(1e-6)).collect(),
        now: Timestamp(0),
        coming: BinaryHeap::new(),
        active: Vec::new(),
        result: PolicyResult::default(),
    };
    for (i, s) in trace.sessions.iter().enumerate() {
        if let Some(c) = s.cells.first() {
            world.coming.push(Reverse((c.submit, i, 0)));
        }
    }
    world.go();
    world.result.provisioned = world.result.held.clone();
    world.result
}

impl World<'_> {
    fn go(&mut self) {
        loop {
            let submit = self.coming.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = [submit, self.next_end()].into_iter().flatten().min() else {
                return;
            };
            self.advance(next.max(self.now));
            self.take_submitted();
            self.end_done();
            self.share();
        }
    }

    fn next_end(&self) -> Option<Timestamp> {
        let running = self.active.iter().filter(|a| a.speed > 0.0);
        let ends = running.map(|a| self.now + Span((a.left / a.speed * 1e6).ceil() as u64));
        ends.min()
    }

    fn advance(&mut self, to: Timestamp) {
        let passed = to.since(self.now).as_secs_f64();
        for a in &mut self.active {
            a.left = (a.left - passed * a.speed).max(0.0);
        }
        self.now = to;
    }

    fn take_submitted(&mut self) {
        while let Some(&Reverse((at, session, cell))) = self.coming.peek() {
            if at > self.now {
                return;
            }
            self.coming.pop();
            let c = &self.trace.sessions[session].cells[cell];
            self.active.push(Active {
                session,
                cell,
                gpus: c.gpus.into(),
                submit: at,
                started: None,
                left: c.run.as_secs_f64(),
                speed: 0.0,
            });
        }
    }

    fn end_done(&mut self) {
        let (done, active) = std::mem::take(&mut self.active)
            .into_iter()
            .partition(|a| a.left < 1e-6 && a.started.is_some() || a.left <= 0.0);
        self.active = active;
        let done: Vec<Active> = done;
        for a in done {
            self.book(&a);
            if let Some(next) = self.trace.sessions[a.session].cells.get(a.cell + 1) {
                let at = next.submit.max(self.now);
                self.coming.push(Reverse((at, a.session, a.cell + 1)));
            }
        }
    }

    fn book(&mut self, a: &Active) {
        let c = &self.trace.sessions[a.session].cells[a.cell];
        let start = a.started.unwrap_or(self.now);
        self.result.cells.push(CellResult {
            session: a.session as u32,
            cell: a.cell as u32,
            gpus: c.gpus,
            submit: a.submit,
            granted: start,
            fetch: Span::ZERO,
            unpark: Span::ZERO,
            start,
            end: self.now.max(a.submit + c.run),
            immediate: start == a.submit,
            reused: (a.cell > 0).then_some(true),
            migrated: false,
            node: 0,
            estimate: None,
            foretold: None,
        });
        self.result.waiting.span(a.submit, start, 1);
        // Books the cell's run alone, wherever in time the cell had its GPUs.
        self.result.held.span(start, start + c.run, i64::from(c.gpus));
    }

    /// The GPUs go to those with the most to gain.
    fn share(&mut self) {
        let weights = &self.weights;
        let gain = |a: &Active| weights[a.session] / (a.gpus.max(1e-9) * a.left.max(1e-9));
        self.active.sort_by(|a, b| {
            let order = gain(b).total_cmp(&gain(a));
            order.then_with(|| (a.session, a.cell).cmp(&(b.session, b.cell)))
        });
        let mut left = self.gpus;
        let now = self.now;
        for a in &mut self.active {
            let part = a.gpus.min(left);
            left -= part;
            a.speed = if a.gpus > 0.0 { part / a.gpus } else { 1.0 };
            if a.speed > 0.0 {
                a.started.get_or_insert(now);
            }
        }
    }
}
