//! Places of the kernels' GPU memory and state, and the cost of having both where the next cell runs.
//!
//! A kernel without its lease parks its GPU memory in the host memory of the node; the next lease on the node brings
//! the memory back (unparking). A kernel whose next cell runs on another node first reads its state and GPU memory from
//! the store (fetching). Host memory is bounded: the memory parked first moves to the store when another kernel needs
//! the room.

use super::World;
use crate::cluster::Cluster;
use crate::rng::Rng;
use hop_words::time::Span;
use std::collections::VecDeque;

/// Parked GPU memory in a node's host memory.
#[derive(Debug, Clone, Default)]
pub(super) struct HostMemory {
    used_gb: f64,
    /// Sessions with parked memory and its size, in the order of parking.
    sessions: VecDeque<(usize, f64)>,
}

impl HostMemory {
    fn forget(&mut self, session: usize) {
        if let Some(i) = self.sessions.iter().position(|(s, _)| *s == session) {
            let (_, gb) = self.sessions.remove(i).expect("it was just found");
            self.used_gb -= gb;
        }
    }
}

/// Where a kernel's GPU memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It has used no GPU.
    Nowhere,
    /// On the GPUs of its lease, on this node.
    Device(usize),
    /// Parked in this node's host memory.
    Host(usize),
    Store,
}

/// The memory of one kernel.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    /// GB on each of its GPUs.
    vram_gb: f64,
    /// GB of state beside them.
    state_gb: f64,
    /// GPUs of the last cell.
    gpus: u16,
    place: Place,
}

/// Nothing is larger: the GPUs' memory, and what a node's host memory holds.
const MOST_VRAM_GB: f64 = 80.0;
const MOST_STATE_GB: f64 = 200.0;

impl Memory {
    pub(super) fn draw(cluster: &Cluster, draw: &mut Rng) -> Self {
        let l = &cluster.latency;
        Self {
            vram_gb: l.vram_gb.draw(draw).as_secs_f64().min(MOST_VRAM_GB),
            state_gb: l.state_gb.draw(draw).as_secs_f64().min(MOST_STATE_GB),
            gpus: 0,
            place: Place::Nowhere,
        }
    }

    /// GB of GPU memory over all GPUs.
    fn on_gpus(&self) -> f64 {
        self.vram_gb * f64::from(self.gpus)
    }
}

impl World<'_> {
    /// Time between the start of a cell of `gpus` GPUs on the node and its code's start: fetching and unparking.
    pub(super) fn bring_memory(&mut self, s: usize, node: usize, gpus: u16, lingering: bool) -> (Span, Span) {
        let l = &self.cluster.latency;
        let memory = &self.sessions[s].memory;
        let unpark = l.unpark(memory.vram_gb);
        let costs = match memory.place {
            Place::Nowhere => (Span::ZERO, Span::ZERO),
            _ if lingering => (Span::ZERO, Span::ZERO),
            Place::Host(n) if n == node => (Span::ZERO, unpark),
            Place::Device(_) | Place::Host(_) | Place::Store => {
                let gb = memory.state_gb + memory.on_gpus();
                self.result.moved_gb += gb;
                let restore = l.restore.draw(&mut self.rng);
                (Span(restore.0 + l.store(gb).0), unpark)
            }
        };
        self.leave_host(s);
        let memory = &mut self.sessions[s].memory;
        memory.gpus = gpus;
        memory.place = Place::Device(node);
        costs
    }

    /// How long the kernel's GPU memory takes to leave the GPUs.
    pub(super) fn park_takes(&self, s: usize) -> Span {
        let memory = &self.sessions[s].memory;
        self.cluster.latency.park(memory.vram_gb)
    }

    /// The kernel's GPU memory is off the GPUs of the node.
    pub(super) fn is_parked(&mut self, s: usize) {
        let Place::Device(node) = self.sessions[s].memory.place else {
            return;
        };
        let gb = self.sessions[s].memory.on_gpus();
        self.sessions[s].memory.place = Place::Host(node);
        let host = &mut self.parked[node];
        host.sessions.push_back((s, gb));
        host.used_gb += gb;
        let most = self.cluster.mem_gb_per_node;
        while self.parked[node].used_gb > most {
            let Some((first, gb)) = self.parked[node].sessions.pop_front() else {
                break;
            };
            self.parked[node].used_gb -= gb;
            self.sessions[first].memory.place = Place::Store;
            self.result.spills += 1;
            self.result.moved_gb += gb;
        }
    }

    /// Time to have the kernel's memory on another node: written to the store and read there.
    pub(super) fn move_takes(&mut self, s: usize) -> Span {
        self.comes_along(s, 2.0)
    }

    /// Time until a kernel's standby runs cells: its state is in the store by then, its GPU memory comes along.
    pub(super) fn switch_takes(&mut self, s: usize) -> Span {
        self.comes_along(s, 1.0)
    }

    /// Time to have the kernel's memory elsewhere, where a living kernel's state goes through the store so many times.
    fn comes_along(&mut self, s: usize, state_copies: f64) -> Span {
        let l = &self.cluster.latency;
        let memory = &self.sessions[s].memory;
        let gb = match memory.place {
            Place::Nowhere => 0.0,
            Place::Store => memory.state_gb + memory.on_gpus(),
            Place::Device(_) | Place::Host(_) => state_copies * memory.state_gb + 2.0 * memory.on_gpus(),
        };
        self.result.moved_gb += gb;
        let restore = l.restore.draw(&mut self.rng);
        Span(restore.0 + l.store(gb).0)
    }

    /// The kernel's memory has come along to the node.
    pub(super) fn has_moved(&mut self, s: usize, node: usize) {
        if matches!(self.sessions[s].memory.place, Place::Nowhere) {
            return;
        }
        self.leave_host(s);
        self.sessions[s].memory.place = Place::Device(node);
        self.is_parked(s);
    }

    /// Nothing of the kernel is in any host's memory any more.
    pub(super) fn leave_host(&mut self, s: usize) {
        if let Place::Host(n) = self.sessions[s].memory.place {
            self.parked[n].forget(s);
        }
    }
}
