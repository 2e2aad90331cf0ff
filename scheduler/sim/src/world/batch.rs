//! A batch queue beside the pool: jobs of Slurm's other users, always enough of them, which take what pilots leave.
//!
//! A pilot has priority over these jobs. Jobs that have the pilot's GPUs are stopped, the youngest first; where the
//! site stops no jobs, the pilot waits until enough jobs have ended. Burst nodes have no such jobs.

use super::{Event, World};
use crate::cluster::BatchQueue;
use crate::rng::Rng;
use hop_words::time::Timestamp;

struct Job {
    id: u64,
    since: Timestamp,
    /// The job was asked to leave, and still has its GPUs.
    stops: bool,
}

/// The jobs of one node, in the order of their starts.
#[derive(Default)]
struct Node {
    jobs: Vec<Job>,
    /// Slurm looks soon whether a job fits.
    looks: bool,
}

pub(super) struct Batch {
    queue: BatchQueue,
    nodes: Vec<Node>,
    rng: Rng,
    next: u64,
}

impl Batch {
    pub(super) fn new(queue: BatchQueue, nodes: u32, seed: u64) -> Self {
        Self {
            queue,
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            rng: Rng::new(seed, 0xba7c),
            next: 0,
        }
    }

    /// GPUs that jobs have on the node.
    fn gpus_on(&self, node: usize) -> u16 {
        let jobs = self.nodes.get(node).map_or(0, |n| n.jobs.len() as u16);
        jobs * self.queue.gpus
    }
}

impl World<'_> {
    pub(super) fn batch_gpus_on(&self, node: usize) -> u16 {
        self.batch.as_ref().map_or(0, |b| b.gpus_on(node))
    }

    /// GPUs of the node may have become free: Slurm looks for a job after a while.
    pub(super) fn offer_to_batch(&mut self, node: usize) {
        let Some(batch) = &mut self.batch else { return };
        let Some(n) = batch.nodes.get_mut(node) else {
            return;
        };
        if std::mem::replace(&mut n.looks, true) {
            return;
        }
        let after = batch.queue.starts_after;
        self.after(after, Event::BatchLooks(node));
    }

    pub(super) fn batch_looks(&mut self, node: usize) {
        let waits = self.slurm.gpus_queued(node) > 0;
        let (used, all) = (self.slurm.gpus_used(node), self.cluster.gpus_per_node);
        let now = self.now;
        let mut ends = Vec::new();
        let Some(batch) = &mut self.batch else { return };
        batch.nodes[node].looks = false;
        while !waits && used + batch.gpus_on(node) + batch.queue.gpus <= all {
            let id = batch.next;
            batch.next += 1;
            let run = batch.queue.run.draw(&mut batch.rng);
            batch.nodes[node].jobs.push(Job {
                id,
                since: now,
                stops: false,
            });
            ends.push((run, id));
        }
        for (run, job) in ends {
            self.result.batch.get_or_insert_default().jobs += 1;
            self.after(run, Event::BatchOver { node, job });
        }
    }

    /// Makes jobs leave the node until its waiting pilots have room.
    pub(super) fn stop_batch_for(&mut self, node: usize) {
        let room = self.cluster.gpus_per_node - self.slurm.gpus_used(node);
        let gpus = self.slurm.gpus_queued(node).min(room);
        let Some(batch) = &mut self.batch else { return };
        let Some(yields) = batch.queue.yields else { return };
        let each = batch.queue.gpus;
        let Some(n) = batch.nodes.get_mut(node) else {
            return;
        };
        let staying = n.jobs.iter().filter(|j| !j.stops).count() as u16 * each;
        let mut excess = (staying + gpus).saturating_sub(room);
        let mut stopped = Vec::new();
        for job in n.jobs.iter_mut().rev().filter(|j| !j.stops) {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(each);
            job.stops = true;
            stopped.push(job.id);
        }
        for job in stopped {
            self.after(yields, Event::BatchOver { node, job });
        }
    }

    /// The job's time is over: it is done, or has left for a pilot.
    pub(super) fn batch_over(&mut self, node: usize, job: u64) {
        let now = self.now;
        let Some(batch) = &mut self.batch else { return };
        let jobs = &mut batch.nodes[node].jobs;
        // A stopped job may have ended by itself before.
        let Some(i) = jobs.iter().position(|j| j.id == job) else {
            return;
        };
        let gone = jobs.remove(i);
        self.count_batch(&gone, now);
        self.run_queued(node);
        self.offer_to_batch(node);
    }

    fn count_batch(&mut self, job: &Job, now: Timestamp) {
        let Some(batch) = &self.batch else { return };
        let hours = |seconds: f64| seconds / 3600.0 * f64::from(batch.queue.gpus);
        let ran = now.since(job.since).as_secs_f64();
        let lost = match job.stops {
            true => batch.queue.checkpoint.map_or(ran, |c| ran.min(c.as_secs_f64())),
            false => 0.0,
        };
        let result = self.result.batch.get_or_insert_default();
        result.requeued += u64::from(job.stops);
        result.gpu_hours_lost += hours(lost);
        result.gpu_hours_done += hours(ran - lost);
    }

    /// Counts what jobs have done up to now, at the end of the run.
    pub(super) fn end_batch(&mut self) {
        let nodes = self.batch.as_mut().map(|b| std::mem::take(&mut b.nodes));
        for job in nodes.into_iter().flatten().flat_map(|n| n.jobs) {
            let still = Job { stops: false, ..job };
            self.count_batch(&still, self.now);
        }
    }
}
