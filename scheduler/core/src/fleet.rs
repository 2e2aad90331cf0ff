//! Pilots: what is there to be lent, where it comes from, and when it goes.

use crate::core::Core;
use crate::id::{GpuIndex, GpuType, JobId, LeaseId, NodeName};
use crate::input::{GpuSlot, NodeFacts, PilotUp};
use crate::journal::{Key, Value};
use crate::lease::EndCause;
use crate::output::Output;
use crate::state::{Group, LeaseState, Pilot, PilotState, Slot, Ticket, Timer};
use crate::time::{Span, Timestamp};
use std::collections::BTreeSet;

/// After `sbatch` refused, so long until the next try.
const RETRY: Span = Span::from_secs(10);

/// Why the GPUs of a lease are blocked that nobody knows any longer.
const STRANGER: &str = "a lease that the scheduler has given up is still being ended on it";

impl Core {
    pub(crate) fn node_facts(&mut self, facts: NodeFacts, burst: Option<String>, out: &mut Vec<Output>) {
        let pool = self.pool_index(&facts.pool);
        let i = self.node_index(&facts.node, pool);
        let node = &mut self.nodes[i as usize];
        node.gpus = facts.gpus;
        node.gpu_type = facts.gpu_type;
        node.gpu_mem_mib = facts.gpu_mem_mib;
        node.rack = facts.rack;
        node.down = false;
        node.burst = burst;
        if node.pool != pool {
            let old = std::mem::replace(&mut node.pool, pool);
            self.pools[old as usize].nodes.retain(|&n| n != i);
            self.pools[pool as usize].nodes.push(i);
        }
        self.cancel_crowded_out(i, out);
        self.keep_pilots(pool, out);
    }

    pub(crate) fn node_down(&mut self, name: &NodeName) {
        if let Some(i) = self.find_node(name) {
            self.nodes[i as usize].down = true;
        }
    }

    // --- asking for pilots ---

    /// Submits what is missing of the pool's minimum.
    pub(crate) fn keep_pilots(&mut self, pool: u32, out: &mut Vec<Output>) {
        let config = &self.pools[pool as usize].config;
        let (min, max) = (config.min_pilots, config.max_pilots.max(config.min_pilots));
        let mut there = self.pilots_coming(pool);
        while there < min.min(max) {
            self.submit_pilot(pool, None, None, None, out);
            there += 1;
        }
    }

    pub(crate) fn is_burst(&self, node: u32) -> bool {
        self.nodes[node as usize].burst.is_some()
    }

    /// The ticket is for a burst partition.
    pub(crate) fn bursts(&self, ticket: &Ticket) -> bool {
        ticket.partition.is_some() || ticket.node.is_some_and(|n| self.is_burst(n))
    }

    /// Pilots that lend or will lend, on the pool's own nodes.
    pub(crate) fn pilots_coming(&self, pool: u32) -> u32 {
        let lends = |p: &&u32| match self.pilots[**p].state {
            PilotState::Up => true,
            PilotState::Silent { draining, .. } => !draining,
            PilotState::Draining => false,
        };
        let own = |p: &&u32| !self.is_burst(self.pilots[**p].node);
        let up = self.pools[pool as usize]
            .pilots
            .iter()
            .filter(lends)
            .filter(own)
            .count();
        let coming = self
            .tickets
            .values()
            .filter(|t| t.pool == pool && !self.bursts(t))
            .count();
        (up + coming) as u32
    }

    pub(crate) fn submit_pilot(
        &mut self,
        pool: u32,
        partition: Option<String>,
        node: Option<u32>,
        gpus: Option<u16>,
        out: &mut Vec<Output>,
    ) -> u64 {
        let ticket = self.new_ticket(out);
        let partition = partition.or_else(|| self.nodes[node? as usize].burst.clone());
        let whole = self.pools[pool as usize].config.gpus_per_pilot;
        let entry = Ticket {
            pool,
            partition: partition.clone(),
            node,
            gpus: gpus.unwrap_or(whole),
            job: None,
            at: self.now,
            cell: None,
        };
        self.tickets.insert(ticket, entry);
        self.note_ticket(ticket, out);
        out.push(Output::SubmitPilot {
            ticket,
            pool: self.pools[pool as usize].config.name.clone(),
            partition,
            node: node.map(|n| self.nodes[n as usize].name.clone()),
            gpus: gpus.filter(|&g| g != whole),
        });
        ticket
    }

    pub(crate) fn pilot_queued(&mut self, ticket: u64, job: JobId, out: &mut Vec<Output>) {
        if let Some(t) = self.tickets.get_mut(&ticket) {
            t.job = Some(job);
            self.note_ticket(ticket, out);
            // Its agent may have spoken before sbatch's answer was read.
            if self.pilot_by_job.contains_key(&job) {
                self.drop_ticket(ticket, out);
            }
        }
    }

    pub(crate) fn pilot_failed(&mut self, ticket: u64, out: &mut Vec<Output>) {
        if let Some(t) = self.tickets.get(&ticket) {
            let pool = t.pool;
            self.drop_ticket(ticket, out);
            self.at(self.now + RETRY, Timer::Scale(pool));
        }
    }

    pub(crate) fn drop_ticket(&mut self, ticket: u64, out: &mut Vec<Output>) {
        self.tickets.remove(&ticket);
        self.note(|| Key::Ticket(ticket), || None, out);
    }

    // --- pilots come and go ---

    pub(crate) fn pilot_up(&mut self, up: PilotUp, out: &mut Vec<Output>) {
        let pool = self.pool_index(&up.pool);
        let node = self.node_index(&up.node, pool);
        let ticket = self
            .tickets
            .iter()
            .find(|(_, t)| t.job == Some(up.pilot))
            .map(|(&n, t)| (n, t.clone()));
        let known = self.pilot_by_job.get(&up.pilot).copied();
        let i = known.unwrap_or_else(|| self.new_pilot(&up, node, pool, out));
        if let Some((ticket, t)) = ticket {
            self.learn_boot(pool, t.partition.as_ref(), self.now.since(t.at));
            self.pilots[i].partition = t.partition;
            self.drop_ticket(ticket, out);
        }
        self.refresh(i, &up, out);
        self.reconcile(i, &up, out);
        self.arm_rotation(i, out);
        self.dispatch_node(node, out);
        self.cancel_crowded_out(node, out);
        self.offer(node, out);
        self.maybe_idle(i, out);
        self.keep_pilots(pool, out);
    }

    fn new_pilot(&mut self, up: &PilotUp, node: u32, pool: u32, out: &mut Vec<Output>) -> u32 {
        let i = self.insert_pilot(up.pilot, node, pool);
        let (n, p) = (up.node.clone(), up.pool.clone());
        self.note(
            || Key::Pilot(up.pilot),
            || Some(Value::Pilot { node: n, pool: p }),
            out,
        );
        i
    }

    pub(crate) fn insert_pilot(&mut self, job: JobId, node: u32, pool: u32) -> u32 {
        let i = self.pilots.insert(Pilot {
            job,
            node,
            pool,
            state: PilotState::Up,
            groups: Vec::new(),
            cpus: 0,
            cpus_used: 0,
            ends: None,
            steps_left: u32::MAX,
            partition: None,
            leases: Vec::new(),
            strangers: Vec::new(),
            reserved: None,
            idle_since: Some(self.now),
            keep_until: self.now,
        });
        self.pilot_by_job.insert(job, i);
        self.nodes[node as usize].pilots.push(i);
        self.pools[pool as usize].pilots.insert(i);
        i
    }

    /// Takes over what the agent says of the pilot itself.
    fn refresh(&mut self, i: u32, up: &PilotUp, out: &mut Vec<Output>) {
        let was_draining = match self.pilots[i].state {
            PilotState::Draining => true,
            PilotState::Silent { draining, .. } => draining,
            PilotState::Up => false,
        };
        let groups = group_slots(&up.gpus);
        let leases = self.pilots[i].leases.clone();
        let p = &mut self.pilots[i];
        p.state = if was_draining || up.draining {
            PilotState::Draining
        } else {
            PilotState::Up
        };
        p.groups = groups;
        p.cpus = up.cpus;
        p.ends = up.ends;
        p.steps_left = up.steps_left;
        let node = p.node;
        let types: u16 = p.groups.iter().map(|g| g.slots.len() as u16).sum();
        self.pilots[i].strangers.clear();
        for id in leases {
            self.reattach(i, id);
        }
        for l in &up.leases {
            if !self.leases.contains_key(&l.lease) {
                self.estrange(i, l.lease, l.devices.clone());
            }
        }
        let n = &mut self.nodes[node as usize];
        n.gpus = n.gpus.max(types);
        n.down = false;
        if let Some(g) = self.pilots[i].groups.first() {
            n.gpu_type = g.gpu_type.clone();
            n.gpu_mem_mib = g.mem_mib;
        }
        if was_draining && !up.draining {
            out.push(Output::DrainPilot { pilot: up.pilot });
        }
    }

    /// A lease lives there of which nobody knows: its GPUs can't be lent until it is over.
    pub(crate) fn estrange(&mut self, pilot: u32, lease: LeaseId, devices: Vec<GpuIndex>) {
        for &index in &devices {
            if let Some(slot) = self.slot(pilot, index) {
                slot.blocked.get_or_insert_with(|| STRANGER.to_owned());
            }
        }
        self.pilots[pilot].strangers.push((lease, devices));
    }

    /// A lease of which nobody knew is over.
    pub(crate) fn stranger_over(&mut self, lease: LeaseId, job: JobId, clean: bool, out: &mut Vec<Output>) {
        let Some(&i) = self.pilot_by_job.get(&job) else {
            return;
        };
        let strangers = &mut self.pilots[i].strangers;
        let Some(n) = strangers.iter().position(|(l, _)| *l == lease) else {
            return;
        };
        let (_, devices) = strangers.remove(n);
        if !clean {
            return;
        }
        for index in devices {
            if let Some(slot) = self.slot(i, index)
                && slot.blocked.as_deref() == Some(STRANGER)
            {
                slot.blocked = None;
            }
        }
        let node = self.pilots[i].node;
        self.dispatch_node(node, out);
    }

    /// Counts a known lease in its pilot's newly made groups.
    fn reattach(&mut self, pilot: u32, id: LeaseId) {
        let lease = self.leases.get_mut(&id).expect("a pilot's leases live");
        if lease.gpus == 0 {
            return;
        }
        let p = &mut self.pilots[pilot];
        let holds = |g: &Group| g.slots.iter().any(|s| lease.devices.contains(&s.index));
        let of_type = |g: &Group| lease.gpu_type.as_ref().is_none_or(|t| *t == g.gpu_type);
        let group = p
            .groups
            .iter()
            .position(holds)
            .or_else(|| p.groups.iter().position(of_type));
        lease.group = group;
        if let Some(g) = group {
            p.groups[g].used += lease.gpus;
            for slot in p.groups[g]
                .slots
                .iter_mut()
                .filter(|s| lease.devices.contains(&s.index))
            {
                slot.lease = Some(id);
            }
        }
    }

    /// Brings the leases that we know in line with those that live there.
    fn reconcile(&mut self, i: u32, up: &PilotUp, out: &mut Vec<Output>) {
        let job = up.pilot;
        for e in &up.ended {
            self.lease_ended(e.lease, job, e.cause, e.clean, e.detail.clone(), out);
        }
        let live: BTreeSet<LeaseId> = up.leases.iter().map(|l| l.lease).collect();
        let gone: Vec<LeaseId> = self.pilots[i]
            .leases
            .iter()
            .copied()
            .filter(|l| !live.contains(l))
            .collect();
        for id in gone {
            if self.leases.contains_key(&id) {
                self.lease_over(
                    id,
                    EndCause::StepLost,
                    true,
                    "its node doesn't know it any longer".into(),
                    out,
                );
            }
        }
        for l in &up.leases {
            let Some(lease) = self.leases.get(&l.lease) else {
                out.push(self.end_order(job, l.lease, EndCause::Released));
                continue;
            };
            match lease.state {
                // Its kernel is getting off: ordered in its time.
                LeaseState::Ending {
                    leaves_by: Some(_), ..
                } => self.learn_devices(l.lease, l.devices.clone()),
                LeaseState::Ending { cause, .. } => out.push(self.end_order(job, l.lease, cause)),
                LeaseState::Starting { .. } => self.lease_started(l.lease, job, l.devices.clone(), out),
                LeaseState::Running(_) | LeaseState::Lingering { .. } => {
                    self.learn_devices(l.lease, l.devices.clone());
                }
            }
        }
    }

    /// The order to the pilot's agent to take this lease back.
    pub(crate) fn end_order(&self, pilot: JobId, lease: LeaseId, cause: EndCause) -> Output {
        let pool = self.pilot_by_job.get(&pilot).map(|&p| self.pilots[p].pool);
        Output::EndLease {
            lease,
            pilot,
            cause,
            grace: pool.map_or_else(crate::config::grace, |p| self.pools[p as usize].config.grace),
        }
    }

    fn arm_rotation(&mut self, i: u32, out: &mut Vec<Output>) {
        let p = &self.pilots[i];
        let before = self.pools[p.pool as usize].config.rotate_before;
        let (job, ends) = (p.job, p.ends);
        if let Some(ends) = ends {
            let when = Timestamp(ends.0.saturating_sub(before.0));
            if when <= self.now {
                self.drain(i, out);
            } else {
                self.at(when, Timer::Rotate(job));
            }
        }
        self.wear(i, out);
    }

    /// Replaces a pilot that has few steps left.
    pub(crate) fn wear(&mut self, i: u32, out: &mut Vec<Output>) {
        let p = &self.pilots[i];
        if p.state == PilotState::Up && p.steps_left <= self.pools[p.pool as usize].config.rotate_steps {
            self.drain(i, out);
        }
    }

    pub(crate) fn rotate(&mut self, job: JobId, out: &mut Vec<Output>) {
        let Some(&i) = self.pilot_by_job.get(&job) else {
            return;
        };
        let p = &self.pilots[i];
        let before = self.pools[p.pool as usize].config.rotate_before;
        let due = |ends: Timestamp| ends.0.saturating_sub(before.0) <= self.now.0;
        if p.ends.is_some_and(due) {
            self.drain(i, out);
        }
    }

    /// No new leases in this pilot; idle ones end; another takes its place.
    pub(crate) fn drain(&mut self, i: u32, out: &mut Vec<Output>) {
        let p = &mut self.pilots[i];
        let (job, pool, node) = (p.job, p.pool, p.node);
        match &mut p.state {
            PilotState::Up => p.state = PilotState::Draining,
            PilotState::Silent { draining, .. } if !*draining => *draining = true,
            PilotState::Silent { .. } | PilotState::Draining => return,
        }
        let leases = p.leases.clone();
        let reserved = p.reserved.take();
        out.push(Output::DrainPilot { pilot: job });
        if let Some(cell) = reserved {
            self.cells[cell].reserved = None;
        }
        for id in leases {
            if matches!(self.leases[&id].state, LeaseState::Lingering { .. }) {
                self.end_lease(id, EndCause::Done, out);
            }
        }
        self.keep_pilots(pool, out);
        if let Some(cell) = reserved {
            self.reserve(cell, out);
        }
        self.dispatch_node(node, out);
    }

    pub(crate) fn pilot_draining(&mut self, job: JobId, out: &mut Vec<Output>) {
        if let Some(&i) = self.pilot_by_job.get(&job) {
            self.drain(i, out);
        }
    }

    pub(crate) fn pilot_silent(&mut self, job: JobId) {
        let Some(&i) = self.pilot_by_job.get(&job) else {
            return;
        };
        let now = self.now;
        let p = &mut self.pilots[i];
        let draining = match p.state {
            PilotState::Up => false,
            PilotState::Draining => true,
            PilotState::Silent { .. } => return,
        };
        p.state = PilotState::Silent { since: now, draining };
        self.at(now + self.config.silent_grace, Timer::Silent(job));
    }

    pub(crate) fn silence_over(&mut self, job: JobId, out: &mut Vec<Output>) {
        let Some(&i) = self.pilot_by_job.get(&job) else {
            return;
        };
        let grace = self.config.silent_grace;
        if let PilotState::Silent { since, .. } = self.pilots[i].state
            && self.now.since(since) >= grace
        {
            self.pilot_lost(job, EndCause::NodeLost, out);
        }
    }

    pub(crate) fn pilot_lost(&mut self, job: JobId, cause: EndCause, out: &mut Vec<Output>) {
        let ticket = self
            .tickets
            .iter()
            .find(|(_, t)| t.job == Some(job))
            .map(|(&n, _)| n);
        if let Some(ticket) = ticket {
            self.pilot_failed(ticket, out);
        }
        let Some(&i) = self.pilot_by_job.get(&job) else {
            return;
        };
        // Nothing starts in it while its leases are told off.
        self.pilots[i].state = PilotState::Draining;
        if let Some(cell) = self.pilots[i].reserved.take() {
            self.cells[cell].reserved = None;
        }
        let detail = cause.sentence().unwrap_or_default().to_owned();
        for id in self.pilots[i].leases.clone() {
            if self.leases.contains_key(&id) {
                self.lease_over(id, cause, true, detail.clone(), out);
            }
        }
        let p = self.pilots.remove(i).expect("found above");
        self.pilot_by_job.remove(&job);
        self.nodes[p.node as usize].pilots.retain(|&x| x != i);
        self.pools[p.pool as usize].pilots.remove(&i);
        self.note(|| Key::Pilot(job), || None, out);
        self.keep_pilots(p.pool, out);
        self.demand_after_loss(p.node, out);
        self.foresee_soon(p.pool);
    }

    /// Cells that waited for the node's GPUs need another pilot.
    fn demand_after_loss(&mut self, node: u32, out: &mut Vec<Output>) {
        let waiting: Vec<u32> = self.nodes[node as usize].queue.iter().map(|&(_, c)| c).collect();
        for cell in waiting {
            if self.cells.get(cell).is_some() {
                self.demand_grew(cell, out);
            }
        }
    }

    // --- slots ---

    pub(crate) fn slot_blocked(
        &mut self,
        job: JobId,
        index: GpuIndex,
        reason: String,
        lost: bool,
        out: &mut Vec<Output>,
    ) {
        let Some(&i) = self.pilot_by_job.get(&job) else {
            return;
        };
        if let Some(slot) = self.slot(i, index) {
            slot.blocked = Some(reason);
        }
        if lost {
            self.drain(i, out);
        }
    }

    pub(crate) fn slot_unblocked(&mut self, job: JobId, index: GpuIndex, out: &mut Vec<Output>) {
        let Some(&i) = self.pilot_by_job.get(&job) else {
            return;
        };
        if let Some(slot) = self.slot(i, index) {
            slot.blocked = None;
        }
        let node = self.pilots[i].node;
        self.dispatch_node(node, out);
    }

    fn slot(&mut self, pilot: u32, index: GpuIndex) -> Option<&mut Slot> {
        self.pilots[pilot]
            .groups
            .iter_mut()
            .flat_map(|g| g.slots.iter_mut())
            .find(|s| s.index == index)
    }
}

/// Slots by type. Slurm can't tell GPUs of one type apart by memory, so the least counts.
fn group_slots(gpus: &[GpuSlot]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let find = |groups: &[Group], t: &GpuType| groups.iter().position(|g| g.gpu_type == *t);
    for gpu in gpus {
        let g = find(&groups, &gpu.gpu_type).unwrap_or_else(|| {
            groups.push(Group {
                gpu_type: gpu.gpu_type.clone(),
                mem_mib: gpu.mem_mib,
                slots: Vec::new(),
                used: 0,
            });
            groups.len() - 1
        });
        groups[g].mem_mib = groups[g].mem_mib.min(gpu.mem_mib);
        groups[g].slots.push(Slot {
            index: gpu.index,
            blocked: gpu.blocked.clone(),
            lease: None,
        });
    }
    groups
}
