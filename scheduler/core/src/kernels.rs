//! Kernels, their replicas and the seats these sit in.

use crate::core::Core;
use crate::id::{AccountName, Incarnation, JobId, KernelId, LeaseId, NodeName, PoolName, UserName};
use crate::input::{PlaceKernel, ReplicaUp};
use crate::journal::{KernelImage, Key};
use crate::lease::{EndCause, Outcome};
use crate::need::Need;
use crate::output::{Output, SeatPlan};
use crate::predict::Habit;
use crate::reason::RefusedBecause;
use crate::state::{Kernel, LeaseState, PilotState, Planned, Replica, Seat, Timer};

/// Seats of one kernel that are planned at a time: two placements of the most replicas.
const PLANS: usize = 10;

/// A node that would do: whether it is over the cap, its load, whether the user has no seat there, and itself.
type Fit = (bool, u32, bool, u32);

impl Core {
    /// The kernel, made if it is new. Who asks is who it belongs to.
    fn kernel_of(
        &mut self,
        id: &KernelId,
        user: &UserName,
        account: Option<&AccountName>,
        pool: &PoolName,
        name: &str,
    ) -> u32 {
        let pool = self.pool_index(pool);
        if let Some(k) = self.find_kernel(id) {
            let account = account.map(|a| self.account_index(Some(a)));
            let kernel = &mut self.kernels[k];
            if !name.is_empty() {
                name.clone_into(&mut kernel.name);
            }
            kernel.account = account.unwrap_or(kernel.account);
            kernel.closed = false;
            self.move_to_pool(k, pool);
            return k;
        }
        let (user, account) = (self.user_index(user), self.account_index(account));
        let k = self.kernels.insert(Kernel {
            id: id.clone(),
            user,
            account,
            pool,
            name: name.to_owned(),
            default_need: Need::default(),
            mem_mib: 0,
            cpus: 1,
            replicas: Vec::new(),
            planned: Vec::new(),
            next_incarnation: 1,
            last_executor: None,
            last_node: None,
            bound: None,
            parked: None,
            closed: false,
            leases: Vec::new(),
            cells: Vec::new(),
            last_end: None,
            quiet_since: self.now,
            moved: self.now,
            last_gpus: 0,
            sizes: Vec::new(),
            home: None,
            base: None,
            think: Habit::default(),
            streak: 0,
            runs: Habit::default(),
            prints: Vec::new(),
            migrating: None,
            alone_since: Some(self.now),
        });
        self.kernel_by_id.insert(id.clone(), k);
        self.at(self.now + self.config.kernel_ttl, Timer::Alone(k));
        k
    }

    fn move_to_pool(&mut self, k: u32, pool: u32) {
        if self.kernels[k].pool == pool {
            return;
        }
        let cells = self.kernels[k].cells.clone();
        for &cell in &cells {
            self.dequeue(cell);
            self.unreserve(cell);
        }
        self.kernels[k].pool = pool;
        for &cell in &cells {
            self.enqueue(cell);
        }
    }

    // --- placement ---

    pub(crate) fn place_kernel(&mut self, place: PlaceKernel, out: &mut Vec<Output>) {
        let Some(pool) = self.find_pool(&place.pool) else {
            return out.push(Output::PlaceRefused {
                kernel: place.kernel,
                reason: RefusedBecause::NoPool { pool: place.pool },
            });
        };
        let user = self.user_index(&place.user);
        let wanted = place.replicas.max(1);
        let nodes = self.choose_nodes(pool, user, &place, wanted);
        if nodes.len() < usize::from(wanted) {
            let never = self.never_in(pool, &place.default_need);
            return out.push(Output::PlaceRefused {
                kernel: place.kernel,
                reason: never.unwrap_or(RefusedBecause::TooFewNodes {
                    pool: place.pool,
                    wanted,
                    found: nodes.len() as u16,
                }),
            });
        }
        let k = self.kernel_of(
            &place.kernel,
            &place.user,
            place.account.as_ref(),
            &place.pool,
            &place.name,
        );
        let kernel = &mut self.kernels[k];
        kernel.default_need = place.default_need;
        kernel.last_gpus = kernel.default_need.gpus;
        kernel.mem_mib = place.mem_mib;
        kernel.cpus = place.cpus;
        if self.kernels[k].replicas.is_empty() {
            self.set_home(k, nodes.first().copied());
            self.kernels[k].base = nodes.first().copied();
        }
        let seats = nodes.into_iter().map(|node| self.plan_seat(k, node)).collect();
        self.kernels[k].quiet_since = self.now;
        self.expect_kernel(k, out);
        self.note_kernel(k, out);
        out.push(Output::Place {
            kernel: place.kernel,
            seats,
        });
    }

    /// Reserves a seat for a new replica on this node.
    pub(crate) fn plan_seat(&mut self, k: u32, node: u32) -> SeatPlan {
        let now = self.now;
        // Who asks again and again has the last few plans only.
        while self.kernels[k].planned.len() >= PLANS {
            let oldest = self.kernels[k].planned[0].incarnation;
            self.unplan(k, oldest);
        }
        let kernel = &mut self.kernels[k];
        let incarnation = Incarnation(kernel.next_incarnation);
        kernel.next_incarnation += 1;
        let (user, mem_mib, cpus, gpus) =
            (kernel.user, kernel.mem_mib, kernel.cpus, kernel.default_need.gpus);
        kernel.planned.push(Planned {
            incarnation,
            node,
            at: now,
        });
        let n = &mut self.nodes[node as usize];
        n.subscribed += u32::from(gpus);
        n.replicas += 1;
        let name = n.name.clone();
        self.at(now + self.config.placement_ttl, Timer::Planned(k, incarnation));
        SeatPlan {
            incarnation,
            node: name,
            existing: self.seat_with_room(user, node, mem_mib),
            mem_mib,
            cpus,
        }
    }

    fn seat_with_room(&self, user: u32, node: u32, mem_mib: u64) -> Option<JobId> {
        self.seats
            .iter()
            .find(|(_, s)| {
                s.user == user && s.node == node && s.mem_mib >= s.mem_used.saturating_add(mem_mib)
            })
            .map(|(&job, _)| job)
    }

    /// Distinct nodes for new replicas: those of the right GPUs, the least subscribed first; under the cap while
    /// there are enough, in racks of their own where these are known, beside a seat of the user's where nothing
    /// else decides.
    pub(crate) fn choose_nodes(&self, pool: u32, user: u32, place: &PlaceKernel, wanted: u16) -> Vec<u32> {
        let need = &place.default_need;
        let gpus = u32::from(need.gpus);
        let cap = self.cap(pool);
        let replicas = f64::from(wanted);
        let mut fit: Vec<Fit> = self.pools[pool as usize]
            .nodes
            .iter()
            .copied()
            .filter(|&n| self.may_sit(n, need, &place.avoid))
            .map(|n| {
                let node = &self.nodes[n as usize];
                let there = f64::from(node.gpus.max(1));
                let ratio = f64::from(node.subscribed + gpus) / (there * replicas);
                // Parts per thousand: an order without floats.
                let load = (ratio * 1000.0) as u32 + node.replicas.min(999) * u32::from(gpus == 0);
                let seat = self.seat_with_room(user, n, place.mem_mib).is_none();
                (ratio > cap, load, seat, n)
            })
            .collect();
        fit.sort_unstable();
        self.where_gpus_are(pool, wanted, &mut fit);
        if self.pools[pool as usize].config.pack && gpus > 0 {
            self.home_first(pool, need.gpus, &mut fit);
            self.spares_next(pool, &mut fit);
        }
        self.spread(&fit, wanted)
    }

    /// Leaves those nodes of a list that should be taken before the others, if there are enough: where pilots are if
    /// these don't follow demand; the pool's own as long as there is room on them, then those of burst partitions.
    fn where_gpus_are(&self, pool: u32, wanted: u16, fit: &mut Vec<Fit>) {
        let mut only = |better: &dyn Fn(&Fit) -> bool| {
            let enough = fit.iter().filter(|f| better(f)).count() >= usize::from(wanted);
            if enough {
                fit.retain(|f| better(f));
            }
            enough
        };
        let config = &self.pools[pool as usize].config;
        if config.scale.is_none() {
            let up = |n: u32| {
                let mut pilots = self.nodes[n as usize].pilots.iter().map(|p| &self.pilots[*p]);
                pilots.any(|p| p.state != PilotState::Draining && p.pool == pool)
            };
            only(&|f| up(f.3));
        }
        if !config.burst.is_empty() {
            let room = |f: &Fit| !f.0 && !self.is_crowded(pool, f.3);
            let found = only(&|f| room(f) && !self.is_burst(f.3)) || only(&|f| room(f));
            if !found {
                only(&|f| !self.is_burst(f.3));
            }
        }
    }

    /// No GPU is free there, and cells wait already or there will be no pilot.
    fn is_crowded(&self, pool: u32, n: u32) -> bool {
        let node = &self.nodes[n as usize];
        let mut pilots = node.pilots.iter().map(|p| &self.pilots[*p]);
        let free = pilots.any(|p| p.state == PilotState::Up && p.free_gpus() > 0);
        let coming = self.tickets.values().any(|t| t.node == Some(n));
        let none = node.pilots.is_empty() && !coming && !self.could_bring(pool, n);
        !free && (!node.queue.is_empty() || none)
    }

    /// The first nodes of the list, from as many racks as there are.
    fn spread(&self, fit: &[Fit], wanted: u16) -> Vec<u32> {
        let mut chosen: Vec<u32> = Vec::new();
        let rack = |n: u32| self.nodes[n as usize].rack.as_str();
        for fresh_racks_only in [true, false] {
            for &(_, _, _, n) in fit {
                if chosen.len() == usize::from(wanted) {
                    return chosen;
                }
                let seen = !rack(n).is_empty() && chosen.iter().any(|&c| rack(c) == rack(n));
                let skip = chosen.contains(&n) || (fresh_racks_only && seen);
                if !skip {
                    chosen.push(n);
                }
            }
        }
        chosen
    }

    pub(crate) fn may_sit(&self, n: u32, need: &Need, avoid: &[NodeName]) -> bool {
        let node = &self.nodes[n as usize];
        let type_fits = need.gpu_type.as_ref().is_none_or(|t| *t == node.gpu_type);
        let mem_fits = need.gpu_mem_mib == 0 || node.gpu_mem_mib >= need.gpu_mem_mib;
        !node.down
            && node.gpus >= need.gpus
            && (need.gpus == 0 || type_fits && mem_fits)
            && !avoid.contains(&node.name)
    }

    /// The cap on a node's subscription: what demand over use says, between 1 and the configured most.
    fn cap(&self, pool: u32) -> f64 {
        let p = &self.pools[pool as usize];
        if p.running == 0 {
            return p.config.subscription_cap;
        }
        let ratio = f64::from(p.demand) / f64::from(p.running);
        ratio.clamp(1.0, p.config.subscription_cap.max(1.0))
    }

    pub(crate) fn planned_over(&mut self, k: u32, incarnation: Incarnation) {
        let Some(kernel) = self.kernels.get(k) else {
            return;
        };
        let ttl = self.config.placement_ttl;
        let old = |p: &Planned| p.incarnation == incarnation && self.now.since(p.at) >= ttl;
        if kernel.planned.iter().any(old) {
            self.unplan(k, incarnation);
        }
    }

    /// Forgets a planned seat.
    pub(crate) fn unplan(&mut self, k: u32, incarnation: Incarnation) {
        let kernel = &mut self.kernels[k];
        let Some(i) = kernel.planned.iter().position(|p| p.incarnation == incarnation) else {
            return;
        };
        let planned = kernel.planned.remove(i);
        let gpus = u32::from(kernel.default_need.gpus);
        self.unsubscribe(planned.node, gpus);
    }

    fn unsubscribe(&mut self, node: u32, gpus: u32) {
        let n = &mut self.nodes[node as usize];
        n.subscribed = n.subscribed.saturating_sub(gpus);
        n.replicas = n.replicas.saturating_sub(1);
    }

    // --- seats ---

    pub(crate) fn seat_up(&mut self, job: JobId, user: UserName, node: NodeName, mem_mib: u64) {
        let user = self.user_index(&user);
        let Some(node) = self.find_node(&node) else {
            return;
        };
        let mem_used = self.seats.get(&job).map_or(0, |s| s.mem_used);
        let seat = Seat {
            user,
            node,
            mem_mib,
            mem_used,
        };
        self.seats.insert(job, seat);
    }

    pub(crate) fn seat_gone(&mut self, job: JobId, out: &mut Vec<Output>) {
        if self.seats.remove(&job).is_none() {
            return;
        }
        let lost: Vec<(KernelId, Incarnation)> = self
            .kernels
            .iter()
            .flat_map(|(_, k)| k.replicas.iter().map(move |r| (k, r)))
            .filter(|(_, r)| r.seat == job)
            .map(|(k, r)| (k.id.clone(), r.incarnation))
            .collect();
        for (kernel, incarnation) in lost {
            self.replica_lost(&kernel, incarnation, out);
        }
    }

    // --- replicas ---

    pub(crate) fn replica_up(&mut self, up: ReplicaUp, out: &mut Vec<Output>) {
        if self
            .find_kernel(&up.kernel)
            .is_some_and(|k| self.kernels[k].closed)
        {
            return out.push(Output::CloseKernel {
                kernel: up.kernel,
                reason: "the kernel was closed".to_owned(),
            });
        }
        let k = self.kernel_of(&up.kernel, &up.user, up.account.as_ref(), &up.pool, &up.name);
        let node = self.node_index(&up.node, self.kernels[k].pool);
        if self.kernels[k].alone_since.take().is_some() {
            // Cells that the process doesn't know went with the one that asked for them.
            for cell in self.kernels[k].cells.clone() {
                if !up.waiting.iter().any(|w| w.cell == self.cells[cell].id) {
                    self.drop_cell(cell, Some(RefusedBecause::ReplicaLost), out);
                }
            }
        }
        let known = self.kernels[k]
            .replicas
            .iter()
            .any(|r| r.incarnation == up.incarnation);
        if !known {
            self.add_replica(k, up.incarnation, node, up.seat);
        }
        self.note_kernel(k, out);
        if let Some(p) = &up.parked {
            // Said before, perhaps to nobody.
            self.cell_parked(&up.kernel, &p.cell, p.lease, out);
        }
        self.reconcile_holder(k, &up, out);
        for w in &up.waiting {
            let waits = self.kernels[k].cells.iter().any(|&c| self.cells[c].id == w.cell);
            match up.parked.as_ref().filter(|p| p.cell == w.cell) {
                _ if waits => {}
                Some(p) => self.parked_there(k, up.incarnation, w, p.ran, out),
                None => self.submit(up.kernel.clone(), w.cell.clone(), w.need.clone(), w.class, 0, out),
            }
        }
        self.moved_in(k, up.incarnation);
        if !known {
            for cell in self.kernels[k].cells.clone() {
                if self.cells.get(cell).is_some() && !self.try_start(cell, out) {
                    self.claim(cell, out);
                    self.tell(cell, out);
                }
            }
        }
    }

    fn add_replica(&mut self, k: u32, incarnation: Incarnation, node: u32, seat: JobId) {
        self.unplan(k, incarnation);
        let cells = self.kernels[k].cells.clone();
        for &c in &cells {
            self.dequeue(c);
        }
        let kernel = &mut self.kernels[k];
        kernel.next_incarnation = kernel.next_incarnation.max(incarnation.0.saturating_add(1));
        let (gpus, mem, pool) = (u32::from(kernel.default_need.gpus), kernel.mem_mib, kernel.pool);
        let first = kernel.replicas.is_empty();
        if first {
            self.pools[pool as usize].demand += gpus;
            self.count_load(pool, gpus as u16, 1);
            self.foresee_soon(pool);
        }
        let kernel = &mut self.kernels[k];
        kernel.replicas.push(Replica {
            incarnation,
            node,
            seat,
        });
        let n = &mut self.nodes[node as usize];
        n.subscribed += gpus;
        n.replicas += 1;
        n.sitting.insert(k);
        if let Some(s) = self.seats.get_mut(&seat) {
            s.mem_used = s.mem_used.saturating_add(mem);
        }
        for &c in &cells {
            self.enqueue(c);
        }
        if first && self.kernels[k].home.is_none() {
            let home = self.kernels[k].last_node.unwrap_or(node);
            self.set_home(k, Some(home));
        }
    }

    /// Makes the node the one where the kernel's next cell is expected.
    pub(crate) fn set_home(&mut self, k: u32, node: Option<u32>) {
        let old = std::mem::replace(&mut self.kernels[k].home, node);
        if let Some(n) = old {
            self.nodes[n as usize].homes.remove(&k);
        }
        if let Some(n) = node {
            self.nodes[n as usize].homes.insert(k);
        }
    }

    /// Brings what the replica says it holds in line with what we know.
    fn reconcile_holder(&mut self, k: u32, up: &ReplicaUp, out: &mut Vec<Output>) {
        let held = up.holds.as_ref().map(|(lease, _)| *lease);
        if let Some((lease, cell)) = &up.holds {
            let ours = self.leases.get(lease).is_some_and(|l| l.kernel == k);
            if !ours {
                out.push(Output::Revoked {
                    kernel: up.kernel.clone(),
                    lease: *lease,
                    cause: EndCause::StepLost,
                    reason: "the scheduler doesn't know this lease any longer".to_owned(),
                    grace: crate::time::Span::ZERO,
                });
            } else {
                self.reconcile_cell(k, *lease, cell.as_ref(), out);
            }
        }
        let stale: Vec<LeaseId> = self.kernels[k]
            .leases
            .iter()
            .copied()
            .filter(|l| Some(*l) != held && self.leases[l].executor == up.incarnation)
            .filter(|l| {
                matches!(
                    self.leases[l].state,
                    LeaseState::Running(_) | LeaseState::Lingering { .. }
                )
            })
            .collect();
        for lease in stale {
            self.end_lease(lease, EndCause::Released, out);
        }
    }

    fn reconcile_cell(
        &mut self,
        k: u32,
        id: LeaseId,
        cell: Option<&crate::id::CellId>,
        out: &mut Vec<Output>,
    ) {
        let kernel = self.kernels[k].id.clone();
        match (&self.leases[&id].state, cell) {
            (LeaseState::Running(r), None) => {
                let ended = r.cell.clone();
                self.cell_ended(&kernel, &ended, id, Outcome::Lost, out);
            }
            (LeaseState::Running(r), Some(c)) if r.cell != *c => {
                let ended = r.cell.clone();
                self.cell_ended(&kernel, &ended, id, Outcome::Lost, out);
                self.resume(id, c, out);
            }
            (LeaseState::Lingering { .. }, Some(c)) => self.resume(id, c, out),
            _ => {}
        }
    }

    /// The lease runs a cell of which we had not heard.
    fn resume(&mut self, id: LeaseId, cell: &crate::id::CellId, out: &mut Vec<Output>) {
        if matches!(self.leases[&id].state, LeaseState::Lingering { .. }) {
            let running = crate::state::Running {
                cell: cell.clone(),
                need: self.need_of(id),
                class: crate::need::Class::default(),
                submitted: self.now,
                since: self.now,
                print: 0,
                ran: crate::time::Span::ZERO,
            };
            self.grant_lingering(id, running, crate::time::Span::ZERO, out);
        }
    }

    pub(crate) fn replica_lost(&mut self, id: &KernelId, incarnation: Incarnation, out: &mut Vec<Output>) {
        let Some(k) = self.find_kernel(id) else {
            return;
        };
        self.unplan(k, incarnation);
        self.moving_lost(k, incarnation);
        let kernel = &self.kernels[k];
        let Some(i) = kernel.replicas.iter().position(|r| r.incarnation == incarnation) else {
            return;
        };
        let cells = kernel.cells.clone();
        for &c in &cells {
            self.dequeue(c);
        }
        let kernel = &mut self.kernels[k];
        let replica = kernel.replicas.remove(i);
        if kernel.bound == Some(incarnation) {
            kernel.bound = None;
        }
        let (gpus, mem, pool) = (u32::from(kernel.default_need.gpus), kernel.mem_mib, kernel.pool);
        let last = kernel.replicas.is_empty();
        if last {
            let demand = &mut self.pools[pool as usize].demand;
            *demand = demand.saturating_sub(gpus);
            self.count_load(pool, gpus as u16, -1);
        }
        self.unsubscribe(replica.node, gpus);
        if self.kernels[k].replicas.iter().all(|r| r.node != replica.node) {
            self.nodes[replica.node as usize].sitting.remove(&k);
        }
        if let Some(s) = self.seats.get_mut(&replica.seat) {
            s.mem_used = s.mem_used.saturating_sub(mem);
        }
        for &c in &cells {
            self.enqueue(c);
        }
        self.end_leases_of(k, incarnation, out);
        self.lose_parked(k, incarnation, out);
        if last {
            self.now_alone(k, out);
        } else {
            for &c in &cells {
                if self.cells.get(c).is_some() {
                    self.unreserve(c);
                    self.claim(c, out);
                }
            }
        }
        self.forget_if_closed(k, out);
    }

    /// The kernel has no replica left: its cells keep their places for a while, then they are refused.
    fn now_alone(&mut self, k: u32, out: &mut Vec<Output>) {
        self.kernels[k].alone_since = Some(self.now);
        self.at(self.now + self.config.replica_grace, Timer::Alone(k));
        self.at(self.now + self.config.kernel_ttl, Timer::Alone(k));
        for cell in self.kernels[k].cells.clone() {
            if self.cells.get(cell).is_some() {
                self.unreserve(cell);
                self.tell(cell, out);
            }
        }
    }

    pub(crate) fn alone_due(&mut self, k: u32, out: &mut Vec<Output>) {
        let Some(since) = self.kernels.get(k).and_then(|kernel| kernel.alone_since) else {
            return;
        };
        let alone = self.now.since(since);
        if alone >= self.config.replica_grace {
            for cell in self.kernels[k].cells.clone() {
                self.drop_cell(cell, Some(RefusedBecause::ReplicaLost), out);
            }
        }
        let kernel = &self.kernels[k];
        let empty = kernel.planned.is_empty() && kernel.leases.is_empty();
        if alone >= self.config.kernel_ttl {
            if empty {
                self.kernels[k].closed = true;
                self.forget_if_closed(k, out);
            } else {
                self.at(self.now + self.config.kernel_ttl, Timer::Alone(k));
            }
        }
    }

    /// Forgets the user's kernels of which nothing is left, those that lie idle the longest first, until there are
    /// fewer than `most`. Returns whether there are.
    pub fn make_room_for_kernel(&mut self, user: &UserName, most: usize, out: &mut Vec<Output>) -> bool {
        let Some(user) = self.find_user(user) else {
            return true;
        };
        let mut count = 0;
        let mut idle: Vec<(crate::time::Timestamp, u32)> = Vec::new();
        for (k, kernel) in self.kernels.iter().filter(|(_, k)| k.user == user) {
            count += 1;
            let empty = kernel.planned.is_empty() && kernel.leases.is_empty() && kernel.cells.is_empty();
            idle.extend(kernel.alone_since.filter(|_| empty).map(|since| (since, k)));
        }
        idle.sort_unstable();
        for (_, k) in idle {
            if count < most {
                break;
            }
            self.kernels[k].closed = true;
            self.forget_if_closed(k, out);
            count -= 1;
        }
        count < most
    }

    /// How many replicas of the kernel are up, this one not counted.
    pub fn other_replicas(&self, kernel: &KernelId, incarnation: Incarnation) -> usize {
        let replicas = self.find_kernel(kernel).map(|k| &self.kernels[k].replicas);
        let others = |r: &&Replica| r.incarnation != incarnation;
        replicas.map_or(0, |r| r.iter().filter(others).count())
    }

    pub fn knows_node(&self, node: &NodeName) -> bool {
        self.find_node(node).is_some()
    }

    /// How many cells of the kernel wait.
    pub fn waiting_in(&self, kernel: &KernelId) -> usize {
        self.find_kernel(kernel)
            .map_or(0, |k| self.kernels[k].cells.len())
    }

    /// How many cells of the user's wait.
    pub fn waiting_of(&self, user: &UserName) -> usize {
        self.find_user(user)
            .map_or(0, |u| self.users[u as usize].cells.len())
    }

    /// Ends the leases of a replica that is gone; cells that were about to start there wait again.
    fn end_leases_of(&mut self, k: u32, incarnation: Incarnation, out: &mut Vec<Output>) {
        for id in self.kernels[k].leases.clone() {
            if self.leases.get(&id).is_some_and(|l| l.executor == incarnation) {
                self.take_back(id, out);
            }
            if self.leases.get(&id).is_some_and(|l| l.executor == incarnation)
                && let Some(cell) = self.end_lease_keep_cell(id, EndCause::ReplicaLost, out)
                && !self.kernels[k].replicas.is_empty()
            {
                if cell.parked.is_some() {
                    out.push(Output::Refused {
                        kernel: self.kernels[k].id.clone(),
                        cell: cell.id,
                        reason: RefusedBecause::ReplicaLost,
                    });
                } else {
                    self.requeue(cell, "its replica is gone", out);
                }
            }
        }
    }

    pub(crate) fn kernel_bound(&mut self, id: &KernelId, to: Option<Incarnation>, out: &mut Vec<Output>) {
        if let Some(k) = self.find_kernel(id) {
            self.kernels[k].bound = to;
            self.unreserve_where_it_is_not(k);
            for cell in self.kernels[k].cells.clone() {
                if self.cells.get(cell).is_some() {
                    self.try_start(cell, out);
                }
            }
        }
    }

    pub(crate) fn close_kernel(&mut self, id: &KernelId, cause: EndCause, out: &mut Vec<Output>) {
        let Some(k) = self.find_kernel(id) else {
            return;
        };
        self.kernels[k].closed = true;
        // Out of all queues first, so that nothing of it starts while the rest is told off.
        let cells: Vec<_> = self.kernels[k]
            .cells
            .clone()
            .into_iter()
            .map(|c| self.take_cell(c))
            .collect();
        for (cell, held_back) in cells {
            out.push(Output::Refused {
                kernel: id.clone(),
                cell: cell.id,
                reason: RefusedBecause::Closed,
            });
            if let Some(node) = held_back {
                self.dispatch_node(node, out);
            }
        }
        for lease in self.kernels[k].leases.clone() {
            self.end_lease(lease, cause, out);
        }
        for planned in self.kernels[k].planned.clone() {
            self.unplan(k, planned.incarnation);
        }
        for replica in self.kernels[k].replicas.clone() {
            self.replica_lost(id, replica.incarnation, out);
        }
        self.forget_if_closed(k, out);
    }

    /// Forgets a closed kernel when nothing of it is left.
    pub(crate) fn forget_if_closed(&mut self, k: u32, out: &mut Vec<Output>) {
        let Some(kernel) = self.kernels.get(k) else {
            return;
        };
        if !kernel.closed || !kernel.leases.is_empty() || !kernel.replicas.is_empty() {
            return;
        }
        self.set_home(k, None);
        let kernel = self.kernels.remove(k).expect("found above");
        self.kernel_by_id.remove(&kernel.id);
        self.note(|| Key::Kernel(kernel.id.clone()), || None, out);
        out.push(Output::Forget { kernel: kernel.id });
    }

    pub(crate) fn kernel_image(&self, k: u32) -> KernelImage {
        let kernel = &self.kernels[k];
        KernelImage {
            user: self.users[kernel.user as usize].name.clone(),
            account: self.accounts[kernel.account as usize].name.clone(),
            pool: self.pools[kernel.pool as usize].config.name.clone(),
            name: kernel.name.clone(),
            next_incarnation: kernel.next_incarnation,
            last_executor: kernel.last_executor,
            last_node: kernel.last_node.map(|n| self.nodes[n as usize].name.clone()),
            default_need: kernel.default_need.clone(),
            think: kernel.think.clone(),
            runs: kernel.runs.clone(),
        }
    }
}
