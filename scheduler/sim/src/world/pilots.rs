//! Slurm: pilots wait for their GPUs, start, and end.

use super::{Event, World, node_name};
use crate::cluster::Cluster;
use hop_core::{GpuSlot, Input, PilotUp};
use hop_words::id::{GpuIndex, JobId, NodeName};
use hop_words::lease::EndCause;
use hop_words::time::Timestamp;
use std::collections::BTreeMap;

pub(super) struct Pilot {
    pub node: usize,
    pub submitted: Timestamp,
    pub leases: u32,
    pub free: Vec<bool>,
    pub draining: bool,
}

/// A pilot requested from Slurm.
struct Asked {
    node: usize,
    gpus: u16,
    at: Timestamp,
    /// Slurm has given it its GPUs.
    runs: bool,
}

pub(super) struct Slurm {
    /// GPUs of each node that have been given to pilots.
    used: Vec<u16>,
    /// Each node's burst partition, if any.
    burst: Vec<Option<usize>>,
    pilots: BTreeMap<JobId, Pilot>,
    tickets: BTreeMap<u64, Asked>,
}

impl Slurm {
    pub(super) fn new(cluster: &Cluster) -> Self {
        let own = std::iter::repeat_n(None, cluster.nodes as usize);
        let bursts = cluster.burst.iter().enumerate();
        let bursts = bursts.flat_map(|(i, b)| std::iter::repeat_n(Some(i), b.nodes as usize));
        let burst: Vec<Option<usize>> = own.chain(bursts).collect();
        Self {
            used: vec![0; burst.len()],
            burst,
            pilots: BTreeMap::new(),
            tickets: BTreeMap::new(),
        }
    }

    pub(super) fn nodes(&self) -> usize {
        self.burst.len()
    }

    /// GPUs of the node that pilots have, or will have in a moment.
    pub(super) fn gpus_used(&self, node: usize) -> u16 {
        self.used[node]
    }

    /// GPUs for pilots in Slurm's queue for the node.
    pub(super) fn gpus_queued(&self, node: usize) -> u16 {
        let queued = self.tickets.values().filter(|t| t.node == node && !t.runs);
        queued.map(|t| t.gpus).sum()
    }

    pub(super) fn burst_of(&self, node: usize) -> Option<usize> {
        self.burst[node]
    }

    pub(super) fn pilot(&mut self, job: JobId) -> &mut Pilot {
        self.pilots.get_mut(&job).expect("a pilot outlives its leases")
    }
}

impl World<'_> {
    pub(super) fn submit_pilot(
        &mut self,
        ticket: u64,
        node: Option<NodeName>,
        gpus: Option<u16>,
        partition: Option<&str>,
    ) {
        self.result.pilots += 1;
        let gpus = gpus.unwrap_or(self.cluster.gpus_per_node);
        let node = match node {
            Some(name) => Some(self.by_node[&name]),
            None => {
                let of = |n: usize| {
                    let burst = self.slurm.burst[n];
                    burst.map(|b| self.cluster.burst[b].partition.as_str())
                };
                let fits = |n: &usize| self.slurm.used[*n] + gpus <= self.cluster.gpus_per_node;
                (0..self.slurm.nodes()).find(|n| fits(n) && of(*n) == partition)
            }
        };
        let Some(n) = node else {
            return self.tell(Input::PilotFailed {
                ticket,
                reason: "no node is free".into(),
            });
        };
        let asked = Asked {
            node: n,
            gpus,
            at: self.now,
            runs: false,
        };
        self.slurm.tickets.insert(ticket, asked);
        self.tell(Input::PilotQueued {
            ticket,
            job: JobId(ticket as u32),
        });
        self.run_queued(n);
    }

    /// Starts queued pilots of the node that now fit, first come, first served.
    pub(super) fn run_queued(&mut self, n: usize) {
        let queued = self.slurm.tickets.iter();
        let queued = queued.filter(|(_, t)| t.node == n && !t.runs);
        let queued: Vec<u64> = queued.map(|(&t, _)| t).collect();
        for ticket in queued {
            let gpus = self.slurm.tickets[&ticket].gpus;
            if self.slurm.used[n] + gpus > self.cluster.gpus_per_node {
                return;
            }
            if self.slurm.used[n] + gpus + self.batch_gpus_on(n) > self.cluster.gpus_per_node {
                return self.stop_batch_for(n);
            }
            let asked = self.slurm.tickets.get_mut(&ticket).expect("it was just found");
            asked.runs = true;
            let takes = match self.slurm.burst[n].filter(|_| self.slurm.used[n] == 0) {
                Some(b) => self.cluster.burst[b].boot,
                None => self.cluster.latency.pilot,
            };
            self.slurm.used[n] += gpus;
            let takes = takes.draw(&mut self.rng);
            self.after(takes, Event::PilotReady { ticket });
        }
    }

    /// Books a pilot's GPUs, and the cost of a burst node's.
    fn provisioned(&mut self, node: usize, from: Timestamp, to: Timestamp, gpus: u16) {
        self.result.provisioned.span(from, to, gpus.into());
        if let Some(b) = self.slurm.burst[node] {
            self.result.burst.span(from, to, gpus.into());
            let hours = to.since(from).as_secs_f64() / 3600.0 * f64::from(gpus);
            self.result.burst_cost += hours * self.cluster.burst[b].price;
        }
    }

    pub(super) fn cancel_pilot(&mut self, ticket: u64) {
        if let Some(asked) = self.slurm.tickets.remove(&ticket)
            && asked.runs
        {
            self.provisioned(asked.node, asked.at, self.now, asked.gpus);
            self.slurm.used[asked.node] -= asked.gpus;
            self.run_queued(asked.node);
            self.offer_to_batch(asked.node);
        }
    }

    pub(super) fn pilot_ready(&mut self, ticket: u64) {
        let Some(asked) = self.slurm.tickets.remove(&ticket) else {
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
        self.slurm.pilots.insert(job, pilot);
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
            starting: Vec::new(),
            ended: Vec::new(),
            draining: false,
            node_drains: false,
        }));
    }

    pub(super) fn drain(&mut self, job: JobId) {
        let Some(p) = self.slurm.pilots.get_mut(&job) else {
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

    pub(super) fn pilot_ended(&mut self, job: JobId) {
        let Some(p) = self.slurm.pilots.remove(&job) else {
            return;
        };
        let gpus = p.free.len() as u16;
        self.provisioned(p.node, p.submitted, self.now, gpus);
        self.slurm.used[p.node] -= gpus;
        self.run_queued(p.node);
        self.offer_to_batch(p.node);
        self.tell(Input::PilotLost {
            pilot: job,
            cause: EndCause::Done,
        });
    }

    /// Counts the remaining pilots up to now.
    pub(super) fn end_pilots(&mut self) {
        for (_, p) in std::mem::take(&mut self.slurm.pilots) {
            self.provisioned(p.node, p.submitted, self.now, p.free.len() as u16);
        }
    }
}
