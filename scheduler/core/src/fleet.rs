//! Pilots: their sources, their GPUs to lend, and their ends.

use crate::core::Core;
use crate::index::Idx;
use crate::input::{GpuSlot, NodeFacts, PilotUp};
use crate::journal::{Key, Value};
use crate::late::GIVEN_UP;
use crate::output::Output;
use crate::state::{
    Cell, Failing, Group, LeaseState, Node, Pilot, PilotState, Pool, Slot, Standing, Ticket, Timer,
};
use hop_words::id::{GpuIndex, GpuType, JobId, LeaseId, NodeName};
use hop_words::lease::EndCause;
use hop_words::reason::{NODE_FORGOT, STILL_ENDING};
use hop_words::time::{Span, Timestamp};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Pause after a refusal of `sbatch`, until the next try.
const RETRY: Span = Span::from_secs(10);
/// A pilot with at most so many steps left takes no new lease and is replaced.
const ROTATE_STEPS: u32 = 64;

impl Core {
    pub(crate) fn node_facts(&mut self, facts: NodeFacts, burst: Option<String>, out: &mut Vec<Output>) {
        let pool = self.pool_index(&facts.pool);
        let i = self.node_index(&facts.node, pool);
        let node = &mut self.supply.nodes[i];
        // The type that the node's pilots reported stays if Slurm names none.
        let stays = facts.gpu_type.as_str().is_empty() && !node.pilots.is_empty();
        let gpu_type = if stays {
            node.gpu_type.clone()
        } else {
            facts.gpu_type
        };
        if (node.gpus, &node.gpu_type) != (facts.gpus, &gpu_type) {
            node.lacks.clear();
        }
        node.gpus = facts.gpus;
        node.sized = true;
        node.gpu_type = gpu_type;
        node.gpu_mem_mib = facts.gpu_mem_mib;
        node.standing = Standing::Up;
        node.burst = burst;
        if node.pool != pool {
            self.change_pool(i, pool, out);
        }
        // The node may be a burst partition's since now.
        let coming: Vec<u64> = self.supply.tickets.on(i).map(|(number, _)| number).collect();
        let burst = self.is_burst(i);
        for number in coming {
            self.supply
                .tickets
                .change(number, |t| t.bursts = burst || t.partition.is_some());
        }
        for pilot in self.supply.nodes[i].pilots.clone() {
            self.tally_pilot(pilot);
        }
        self.list_node(i);
        self.cancel_crowded_out(i, out);
        self.drain_other_pools(i, out);
        self.keep_pilots(pool, out);
    }

    /// Nothing is placed on the node. Pilots that were asked for there long ago are given up; the others may come once
    /// the node is back, a moment later.
    pub(crate) fn node_down(&mut self, name: &NodeName, out: &mut Vec<Output>) {
        if let Some(i) = self.find_node(name) {
            self.supply.nodes[i].standing = Standing::Down;
            self.list_node(i);
            self.give_up_tickets(i, Self::is_stuck, out);
        }
    }

    /// Nothing is placed on the node, and Slurm starts no pilot there. Those that are there drain: the rules of their
    /// pool's partition on users don't hold on the node any more.
    pub(crate) fn node_gone(&mut self, name: &NodeName, out: &mut Vec<Output>) {
        if let Some(i) = self.find_node(name) {
            self.supply.nodes[i].standing = Standing::Gone;
            self.list_node(i);
            self.give_up_tickets(i, |_, _| true, out);
            self.drain_other_pools(i, out);
        }
    }

    /// The node belongs to this pool from now on. The old pool's lists forget it.
    fn change_pool(&mut self, node: Idx<Node>, pool: Idx<Pool>, out: &mut Vec<Output>) {
        if let Some(cell) = self.supply.nodes[node].held_for {
            self.lose_hold(cell, node);
            self.reconsider_hold(cell);
        }
        let n = &mut self.supply.nodes[node];
        let (old, listed) = (
            std::mem::replace(&mut n.pool, pool),
            std::mem::take(&mut n.listed),
        );
        let left = &mut self.supply.pools[old];
        left.nodes.retain(|&other| other != node);
        left.unheld.remove(node);
        left.lanes.spare.remove(&(listed, node));
        left.balance = None;
        let joined = &mut self.supply.pools[pool];
        joined.nodes.push(node);
        joined.unheld.insert(node);
        self.give_up_tickets(node, |_, t| t.pool == old, out);
    }

    /// Ends the pilots on a node that is another pool's own by Slurm's word, or no pool's. Their pool's partition doesn't
    /// have the node any more, and its rules on users would be passed by. Pools may share nodes of a burst partition.
    fn drain_other_pools(&mut self, node: Idx<Node>, out: &mut Vec<Output>) {
        let n = &self.supply.nodes[node];
        let is_gone = n.standing == Standing::Gone;
        let is_own = n.sized && n.burst.is_none();
        let is_others = |p: &Idx<Pilot>| is_gone || is_own && self.supply.pilots[*p].pool != n.pool;
        let others = n.pilots.iter().copied().filter(is_others);
        for pilot in others.collect::<Vec<_>>() {
            self.drain(pilot, out);
        }
    }

    /// Ends pilots beyond the pool's maximum, which the configuration may have lowered: idle ones first. The minimum
    /// stays, whatever the pilots' sizes.
    pub(crate) fn drain_excess(&mut self, pool: Idx<Pool>, out: &mut Vec<Output>) {
        let p = &self.supply.pools[pool];
        let most = p.config.max_pilots.max(p.config.min_pilots) * u32::from(p.config.gpus_per_pilot);
        let least = p.config.min_pilots;
        if !p.config.is_configured() || p.tally.gpus <= most {
            return;
        }
        let mut own: Vec<_> = p.pilots.iter().copied().collect();
        own.retain(|&i| self.pilots_part(i).is_some_and(|gpus| gpus > 0));
        own.sort_by_key(|&i| {
            let pilot = &self.supply.pilots[i];
            (pilot.leases.len(), pilot.reserved.len(), Reverse(pilot.job))
        });
        for pilot in own {
            let (size, tally) = (self.supply.pilots[pilot].gpus(), &self.supply.pools[pool].tally);
            if u32::from(size) <= tally.gpus.saturating_sub(most) && tally.pilots > least {
                self.drain(pilot, out);
            }
        }
    }

    // --- asking for pilots ---

    /// Submits the pilots missing from the pool's minimum.
    pub(crate) fn keep_pilots(&mut self, pool: Idx<Pool>, out: &mut Vec<Output>) {
        let config = &self.supply.pools[pool].config;
        let (min, max) = (config.min_pilots, config.max_pilots.max(config.min_pilots));
        let mut there = self.pilots_coming(pool);
        while there < min.min(max) {
            self.submit_pilot(pool, None, None, None, None, out);
            there += 1;
        }
    }

    pub(crate) fn is_burst(&self, node: Idx<Node>) -> bool {
        self.supply.nodes[node].burst.is_some()
    }

    /// Whether a ticket for the partition or the node is for a burst partition.
    pub(crate) fn bursts(&self, partition: Option<&String>, node: Option<Idx<Node>>) -> bool {
        partition.is_some() || node.is_some_and(|n| self.is_burst(n))
    }

    /// Pilots that lend or will lend, on the pool's own nodes.
    pub(crate) fn pilots_coming(&self, pool: Idx<Pool>) -> u32 {
        self.supply.pools[pool].tally.pilots + self.supply.tickets.own(pool).pilots
    }

    pub(crate) fn submit_pilot(
        &mut self,
        pool: Idx<Pool>,
        partition: Option<String>,
        node: Option<Idx<Node>>,
        gpus: Option<u16>,
        gpu_type: Option<GpuType>,
        out: &mut Vec<Output>,
    ) -> u64 {
        let partition = partition.or_else(|| self.supply.nodes[node?].burst.clone());
        let whole = self.supply.pools[pool].config.gpus_per_pilot;
        let (bursts, size) = (self.bursts(partition.as_ref(), node), gpus.unwrap_or(whole));
        if !bursts {
            self.take_place_of_stuck(pool, size, out);
        }
        let ticket = self.new_ticket(out);
        let entry = Ticket {
            pool,
            partition: partition.clone(),
            node,
            bursts,
            gpus: size,
            job: None,
            at: self.now,
            cell: None,
            returning: None,
            gpu_type: gpu_type.clone(),
        };
        self.supply.tickets.insert(ticket, entry);
        self.at(self.now + GIVEN_UP, Timer::Stuck(ticket));
        if let Some(node) = node {
            self.list_node(node);
        }
        self.note_ticket(ticket, out);
        out.push(Output::SubmitPilot {
            ticket,
            pool: self.supply.pools[pool].config.name.clone(),
            partition,
            node: node.map(|n| self.supply.nodes[n].name.clone()),
            gpus: gpus.filter(|&g| g != whole),
            gpu_type,
        });
        ticket
    }

    pub(crate) fn pilot_queued(&mut self, ticket: u64, job: JobId, out: &mut Vec<Output>) {
        if self.supply.tickets.change(ticket, |t| t.job = Some(job)) {
            self.note_ticket(ticket, out);
            // The pilot's agent may have spoken before `sbatch`'s answer was read.
            if self.supply.pilot_by_job.contains_key(&job) {
                self.drop_ticket(ticket, out);
            }
        }
    }

    pub(crate) fn pilot_failed(&mut self, ticket: u64, out: &mut Vec<Output>) {
        if let Some(t) = self.supply.tickets.get(ticket) {
            let (pool, node, since) = (t.pool, t.node, self.wanted_since(t));
            if let Some(node) = node {
                let last = self.now;
                self.supply.nodes[node].failing = Some(Failing { since, last });
            }
            self.drop_ticket(ticket, out);
            self.at(self.now + RETRY, Timer::Scale(pool));
        }
    }

    pub(crate) fn drop_ticket(&mut self, ticket: u64, out: &mut Vec<Output>) -> Option<Ticket> {
        let dropped = self.supply.tickets.remove(ticket);
        if let Some(t) = &dropped {
            self.timers.remove(&(t.at + GIVEN_UP, Timer::Stuck(ticket)));
        }
        if let Some(node) = dropped.as_ref().and_then(|t| t.node) {
            self.list_node(node);
        }
        self.note(|| Key::Ticket(ticket), || None, out);
        dropped
    }

    // --- pilots come and go ---

    pub(crate) fn pilot_up(&mut self, up: PilotUp, out: &mut Vec<Output>) {
        let pool = self.pool_index(&up.pool);
        let node = self.node_index(&up.node, pool);
        let ticket = self.supply.tickets.of(up.pilot);
        let ticket = ticket.map(|(n, t)| (n, t.clone()));
        self.supply.nodes[node].failing = None;
        self.supply.nodes[node].shunned = None;
        let known = self.supply.pilot_by_job.get(&up.pilot).copied();
        let i = known.unwrap_or_else(|| self.new_pilot(&up, node, pool, out));
        let mut meant_for = None;
        if let Some((ticket, t)) = ticket {
            self.learn_boot(pool, t.partition.as_ref(), self.now.since(t.at));
            self.supply.pilots[i].partition = t.partition;
            meant_for = t.cell;
            self.drop_ticket(ticket, out);
        }
        self.refresh(i, &up, out);
        if up.node_drains {
            self.drain(i, out);
        }
        self.drain_other_pools(node, out);
        self.drain_excess(pool, out);
        if let Some((cell, seq)) = meant_for {
            self.keep_for_mover(i, cell, seq);
        }
        self.reconcile(i, &up, out);
        self.arm_rotation(i, out);
        self.dispatch_node(node, out);
        if let Some((cell, seq)) = meant_for {
            self.count_if_vain(i, cell, seq);
        }
        self.cancel_crowded_out(node, out);
        self.maybe_idle(i, out);
        self.keep_pilots(pool, out);
    }

    /// A pilot for a cell is up, and the cell's kernel is still on its way there: the pilot is kept for the cell. The
    /// boot is often quicker than the move.
    fn keep_for_mover(&mut self, pilot: Idx<Pilot>, cell: Idx<Cell>, seq: u64) {
        if !self.is_same(cell, seq) {
            return;
        }
        let p = &self.supply.pilots[pilot];
        if p.state == PilotState::Up && self.comes_to(&self.work.cells[cell], p.node) {
            self.hold_back(pilot, cell);
        }
    }

    fn new_pilot(
        &mut self,
        up: &PilotUp,
        node: Idx<Node>,
        pool: Idx<Pool>,
        out: &mut Vec<Output>,
    ) -> Idx<Pilot> {
        let i = self.insert_pilot(up.pilot, node, pool);
        let (n, p) = (up.node.clone(), up.pool.clone());
        self.note(
            || Key::Pilot(up.pilot),
            || Some(Value::Pilot { node: n, pool: p }),
            out,
        );
        i
    }

    pub(crate) fn insert_pilot(&mut self, job: JobId, node: Idx<Node>, pool: Idx<Pool>) -> Idx<Pilot> {
        let i = self.supply.pilots.insert(Pilot {
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
            reserved: Vec::new(),
            listed: None,
            tallied: None,
            idle_since: Some(self.now),
            keep_until: self.now,
        });
        self.supply.pilot_by_job.insert(job, i);
        self.supply.nodes[node].pilots.push(i);
        self.supply.pools[pool].pilots.insert(i);
        self.tally_pilot(i);
        i
    }

    /// Takes over the agent's facts about the pilot itself.
    fn refresh(&mut self, i: Idx<Pilot>, up: &PilotUp, out: &mut Vec<Output>) {
        let was_draining = match self.supply.pilots[i].state {
            PilotState::Draining => true,
            PilotState::Silent { draining, .. } => draining,
            PilotState::Up => false,
        };
        let groups = group_slots(&up.gpus);
        let leases = self.supply.pilots[i].leases.clone();
        let p = &mut self.supply.pilots[i];
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
        self.supply.pilots[i].strangers.clear();
        for id in leases {
            self.reattach(i, id);
        }
        for l in &up.leases {
            if !self.work.leases.contains_key(&l.lease) {
                self.estrange(i, l.lease, l.devices.clone());
            }
        }
        let n = &mut self.supply.nodes[node];
        n.gpus = n.gpus.max(types);
        n.standing = n.standing.with_agent();
        if let Some(g) = self.supply.pilots[i].groups.first() {
            // Slurm's word is on the GPUs of the pool's type; a mixed node's pilot may have another.
            if !n.sized || n.gpu_type.as_str().is_empty() {
                n.gpu_type = g.gpu_type.clone();
            }
            n.gpu_mem_mib = g.mem_mib;
        }
        self.list_pilot(i);
        self.list_node(node);
        if was_draining && !up.draining {
            out.push(Output::DrainPilot { pilot: up.pilot });
        }
    }

    /// Blocks the GPUs of an unknown lease alive in the pilot: no other lease there gets these GPUs before its end.
    pub(crate) fn estrange(&mut self, pilot: Idx<Pilot>, lease: LeaseId, devices: Vec<GpuIndex>) {
        for &index in &devices {
            if let Some(slot) = self.slot(pilot, index) {
                slot.blocked.get_or_insert_with(|| STILL_ENDING.to_owned());
            }
        }
        self.supply.pilots[pilot].strangers.push((lease, devices));
        self.list_pilot(pilot);
    }

    /// A lease unknown to the core is over.
    pub(crate) fn stranger_over(&mut self, lease: LeaseId, job: JobId, clean: bool, out: &mut Vec<Output>) {
        let Some(&i) = self.supply.pilot_by_job.get(&job) else {
            return;
        };
        let strangers = &mut self.supply.pilots[i].strangers;
        let Some(n) = strangers.iter().position(|(l, _)| *l == lease) else {
            return;
        };
        let (_, devices) = strangers.remove(n);
        if !clean {
            return;
        }
        for index in devices {
            if let Some(slot) = self.slot(i, index)
                && slot.blocked.as_deref() == Some(STILL_ENDING)
            {
                slot.blocked = None;
            }
        }
        self.list_pilot(i);
        let node = self.supply.pilots[i].node;
        self.dispatch_node(node, out);
    }

    /// Counts a known lease in its pilot's newly made groups.
    fn reattach(&mut self, pilot: Idx<Pilot>, id: LeaseId) {
        let lease = self.work.leases.get_mut(&id).expect("a pilot's leases live");
        if lease.gpus == 0 {
            return;
        }
        let p = &mut self.supply.pilots[pilot];
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

    /// Reconciles our leases with the leases that live in the pilot.
    fn reconcile(&mut self, i: Idx<Pilot>, up: &PilotUp, out: &mut Vec<Output>) {
        let job = up.pilot;
        // Taken now: the ends below make room for leases of which the agent can't have heard.
        let known = self.supply.pilots[i].leases.clone();
        for e in &up.ended {
            self.lease_ended(job, e.clone(), out);
        }
        let live = up.leases.iter().map(|l| l.lease);
        let live: BTreeSet<LeaseId> = live.chain(up.starting.iter().copied()).collect();
        for id in known.into_iter().filter(|l| !live.contains(l)) {
            if self.work.leases.contains_key(&id) {
                self.lease_over(id, EndCause::StepLost, true, NODE_FORGOT.into(), out);
            }
        }
        for l in &up.leases {
            let Some(lease) = self.work.leases.get(&l.lease) else {
                out.push(self.end_order(job, l.lease, EndCause::Released));
                continue;
            };
            match lease.state {
                // The kernel still leaves its GPUs; the order to end follows.
                LeaseState::Ending {
                    leaves_by: Some(_), ..
                } => self.learn_devices(l.lease, l.devices.clone()),
                LeaseState::Ending { cause, .. } => {
                    self.lease_started(l.lease, job, l.devices.clone(), out);
                    out.push(self.end_order(job, l.lease, cause));
                }
                LeaseState::Starting { .. } => self.lease_started(l.lease, job, l.devices.clone(), out),
                LeaseState::Running(_) | LeaseState::Lingering { .. } => {
                    self.learn_devices(l.lease, l.devices.clone());
                }
            }
        }
        for &id in &up.starting {
            let cause = match self.work.leases.get(&id).map(|l| &l.state) {
                Some(LeaseState::Ending { cause, .. }) => *cause,
                None => EndCause::Released,
                Some(LeaseState::Starting { .. } | LeaseState::Running(_) | LeaseState::Lingering { .. }) => {
                    continue;
                }
            };
            out.push(self.end_order(job, id, cause));
        }
    }

    /// The order to the pilot's agent to take this lease back.
    pub(crate) fn end_order(&self, pilot: JobId, lease: LeaseId, cause: EndCause) -> Output {
        let pool = self
            .supply
            .pilot_by_job
            .get(&pilot)
            .map(|&p| self.supply.pilots[p].pool);
        Output::EndLease {
            lease,
            pilot,
            cause,
            grace: pool.map_or_else(crate::config::grace, |p| self.supply.pools[p].config.grace),
        }
    }

    fn arm_rotation(&mut self, i: Idx<Pilot>, out: &mut Vec<Output>) {
        let p = &self.supply.pilots[i];
        let before = self.supply.pools[p.pool].config.rotate_before;
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

    /// Replaces a pilot with few steps left.
    pub(crate) fn wear(&mut self, i: Idx<Pilot>, out: &mut Vec<Output>) {
        let p = &self.supply.pilots[i];
        if p.state == PilotState::Up && p.steps_left <= ROTATE_STEPS {
            self.drain(i, out);
        }
    }

    pub(crate) fn rotate(&mut self, job: JobId, out: &mut Vec<Output>) {
        let Some(&i) = self.supply.pilot_by_job.get(&job) else {
            return;
        };
        let p = &self.supply.pilots[i];
        let before = self.supply.pools[p.pool].config.rotate_before;
        let due = |ends: Timestamp| ends.0.saturating_sub(before.0) <= self.now.0;
        if p.ends.is_some_and(due) {
            self.drain(i, out);
        }
    }

    /// Stops new leases in this pilot, ends the pilot's idle leases and has another pilot take its place.
    pub(crate) fn drain(&mut self, i: Idx<Pilot>, out: &mut Vec<Output>) {
        let p = &mut self.supply.pilots[i];
        let (job, pool, node) = (p.job, p.pool, p.node);
        match &mut p.state {
            PilotState::Up => p.state = PilotState::Draining,
            PilotState::Silent { draining, .. } if !*draining => *draining = true,
            PilotState::Silent { .. } | PilotState::Draining => return,
        }
        let leases = p.leases.clone();
        let reserved = p.reserved.clone();
        out.push(Output::DrainPilot { pilot: job });
        for &cell in &reserved {
            self.unreserve(cell);
        }
        self.list_pilot(i);
        self.list_node(node);
        for id in leases {
            if matches!(self.work.leases[&id].state, LeaseState::Lingering { .. }) {
                self.end_lease(id, EndCause::Done, out);
            }
        }
        self.keep_pilots(pool, out);
        for cell in reserved {
            if self.work.cells.get(cell).is_some() {
                self.claim(cell, out);
            }
        }
        self.dispatch_node(node, out);
    }

    pub(crate) fn pilot_draining(&mut self, job: JobId, out: &mut Vec<Output>) {
        if let Some(&i) = self.supply.pilot_by_job.get(&job) {
            self.drain(i, out);
        }
    }

    pub(crate) fn pilot_silent(&mut self, job: JobId) {
        let Some(&i) = self.supply.pilot_by_job.get(&job) else {
            return;
        };
        let now = self.now;
        let p = &mut self.supply.pilots[i];
        let draining = match p.state {
            PilotState::Up => false,
            PilotState::Draining => true,
            PilotState::Silent { .. } => return,
        };
        p.state = PilotState::Silent { since: now, draining };
        self.list_pilot(i);
        self.at(now + self.config.silent_grace, Timer::Silent(job));
    }

    pub(crate) fn silence_over(&mut self, job: JobId, out: &mut Vec<Output>) {
        let Some(&i) = self.supply.pilot_by_job.get(&job) else {
            return;
        };
        let grace = self.config.silent_grace;
        if let PilotState::Silent { since, .. } = self.supply.pilots[i].state
            && self.now.since(since) >= grace
        {
            self.pilot_lost(job, EndCause::NodeLost, out);
        }
    }

    pub(crate) fn pilot_lost(&mut self, job: JobId, cause: EndCause, out: &mut Vec<Output>) {
        if let Some(ticket) = self.supply.tickets.of(job).map(|(n, _)| n) {
            self.pilot_failed(ticket, out);
        }
        let Some(&i) = self.supply.pilot_by_job.get(&job) else {
            return;
        };
        // Nothing starts in the pilot while its leases end.
        self.supply.pilots[i].state = PilotState::Draining;
        for cell in self.supply.pilots[i].reserved.clone() {
            self.unreserve(cell);
        }
        self.list_pilot(i);
        let detail = cause.sentence().unwrap_or_default().to_owned();
        for id in self.supply.pilots[i].leases.clone() {
            if self.work.leases.contains_key(&id) {
                self.lease_over(id, cause, true, detail.clone(), out);
            }
        }
        let p = self.supply.pilots.remove(i).expect("found above");
        self.supply.pilot_by_job.remove(&job);
        self.supply.nodes[p.node].pilots.retain(|&x| x != i);
        self.list_node(p.node);
        self.supply.pools[p.pool].pilots.remove(&i);
        self.note(|| Key::Pilot(job), || None, out);
        self.keep_pilots(p.pool, out);
        self.demand_on(p.node, out);
        self.foresee_soon(p.pool);
    }

    /// Cells that wait for the node's GPUs may need a pilot there: a pilot was lost, or a hold or a lease has ended.
    pub(crate) fn demand_on(&mut self, node: Idx<Node>, out: &mut Vec<Output>) {
        let waiting: Vec<Idx<Cell>> = self.supply.nodes[node].queue.iter().map(|&(_, c)| c).collect();
        for cell in waiting {
            if self.work.cells.get(cell).is_some() {
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
        let Some(&i) = self.supply.pilot_by_job.get(&job) else {
            return;
        };
        if let Some(slot) = self.slot(i, index) {
            slot.blocked = Some(reason);
        }
        self.list_pilot(i);
        if lost {
            self.drain(i, out);
        }
    }

    pub(crate) fn slot_unblocked(&mut self, job: JobId, index: GpuIndex, out: &mut Vec<Output>) {
        let Some(&i) = self.supply.pilot_by_job.get(&job) else {
            return;
        };
        if let Some(slot) = self.slot(i, index) {
            slot.blocked = None;
        }
        self.list_pilot(i);
        let node = self.supply.pilots[i].node;
        self.dispatch_node(node, out);
    }

    fn slot(&mut self, pilot: Idx<Pilot>, index: GpuIndex) -> Option<&mut Slot> {
        self.supply.pilots[pilot]
            .groups
            .iter_mut()
            .flat_map(|g| g.slots.iter_mut())
            .find(|s| s.index == index)
    }
}

/// Slots by type. Slurm can't tell GPUs of the same type apart by memory, so the least memory counts.
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
