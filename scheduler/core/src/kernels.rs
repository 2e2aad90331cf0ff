//! Kernels and their replicas, from the first registration to the end. Their seats are given in [`crate::placement`].

use crate::core::Core;
use crate::index::Idx;
use crate::input::{EndedCell, ReplicaFacts, Standby, Submit};
use crate::journal::{KernelImage, Key};
use crate::output::Output;
use crate::predict::Habit;
use crate::state::{Cell, FailedMoves, Kernel, LeaseState, Node, Pool, Replica, Timer};
use crate::usage::Usage;
use hop_words::id::{AccountName, Incarnation, JobId, KernelId, LeaseId, NodeName, PoolName, UserName};
use hop_words::lease::{EndCause, Outcome};
use hop_words::need::Need;
use hop_words::reason::{REPLICA_GONE, RefusedBecause, RevokedBecause};
use std::collections::BTreeSet;

/// An open kernel of which nothing but its record is left here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BareKernel<'a> {
    pub kernel: &'a KernelId,
    pub user: &'a UserName,
    /// Seats of its replicas, by the last report. Empty if none has ever reported.
    pub seats: &'a [JobId],
}

impl Core {
    /// The kernel, made if it is new. Who asks is who it belongs to.
    pub(crate) fn kernel_of(
        &mut self,
        id: &KernelId,
        user: &UserName,
        account: Option<&AccountName>,
        pool: &PoolName,
        name: &str,
    ) -> Idx<Kernel> {
        let pool = self.pool_index(pool);
        if let Some(k) = self.find_kernel(id) {
            let account = account.map(|a| self.account_index(Some(a)));
            let kernel = &mut self.work.kernels[k];
            if !name.is_empty() {
                name.clone_into(&mut kernel.name);
            }
            kernel.account = account.unwrap_or(kernel.account);
            kernel.closed = false;
            self.move_to_pool(k, pool);
            return k;
        }
        let (user, account) = (self.user_index(user), self.account_index(account));
        let k = self.work.kernels.insert(Kernel {
            id: id.clone(),
            user,
            account,
            pool,
            name: name.to_owned(),
            default_need: Need::default(),
            mem_mib: 0,
            cpus: 1,
            replicas: Vec::new(),
            standbys: Vec::new(),
            planned: Vec::new(),
            next_incarnation: 1,
            last_executor: None,
            last_node: None,
            bound: None,
            parked: None,
            closed: false,
            leases: Vec::new(),
            cells: Vec::new(),
            waited: Vec::new(),
            last_end: None,
            quiet_since: self.now,
            usage: Usage::default(),
            moved: self.now,
            move_took: None,
            failed_moves: FailedMoves::default(),
            last_gpus: 0,
            sizes: Vec::new(),
            home: None,
            base: None,
            think: Habit::default(),
            streak: 0,
            runs: Habit::default(),
            prints: Vec::new(),
            migrating: None,
            fixed: None,
            alone_since: Some(self.now),
            seats: Vec::new(),
            tallied: None,
        });
        self.work.kernel_by_id.insert(id.clone(), k);
        self.at(self.now + self.config.kernel_ttl, Timer::Alone(k));
        k
    }

    fn move_to_pool(&mut self, k: Idx<Kernel>, pool: Idx<Pool>) {
        if self.work.kernels[k].pool == pool {
            return;
        }
        let cells = self.work.kernels[k].cells.clone();
        for &cell in &cells {
            self.dequeue(cell);
            self.unreserve(cell);
        }
        self.work.kernels[k].pool = pool;
        self.tally_kernel(k);
        for &cell in &cells {
            self.enqueue(cell);
        }
    }

    pub(crate) fn replica_up(&mut self, up: ReplicaFacts, out: &mut Vec<Output>) {
        if self
            .find_kernel(&up.kernel)
            .is_some_and(|k| self.work.kernels[k].closed)
        {
            return out.push(Output::CloseKernel {
                kernel: up.kernel,
                reason: RefusedBecause::Closed,
            });
        }
        let k = self.kernel_of(&up.kernel, &up.user, up.account.as_ref(), &up.pool, &up.name);
        if self.is_deposed(k, &up) {
            return;
        }
        let deposed = self.deposed_by(k, &up);
        self.cells_of_another(k, &up, !deposed.is_empty(), out);
        self.fix(k, up.fixed.clone());
        self.stand_by(k, &up.standbys);
        let back = self.is_back(k, up.incarnation);
        let new = self.take_in(k, &up);
        for executor in &deposed {
            self.depose(k, *executor, &up, out);
        }
        self.sits(k);
        self.note_kernel(k, out);
        if let Some(p) = &up.parked {
            // Said before, perhaps to nobody.
            self.cell_parked(&up.kernel, &p.cell, p.lease, out);
        }
        self.reconcile_holder(k, &up, out);
        for w in &up.waiting {
            let mut cells = self.work.kernels[k].cells.iter().copied();
            let waits = cells.find(|&c| self.work.cells[c].id == w.cell);
            if let Some(cell) = waits {
                self.asked_anew(cell, out);
                continue;
            }
            match up.parked.as_ref().filter(|p| p.cell == w.cell) {
                Some(p) => self.parked_there(k, up.incarnation, w, p.ran, out),
                None => {
                    let asked = Submit {
                        kernel: up.kernel.clone(),
                        cell: w.cell.clone(),
                        need: w.need.clone(),
                        class: w.class,
                        print: w.print,
                    };
                    self.submit(asked, out);
                }
            }
        }
        if !up.waiting.is_empty() {
            // The kernel's other cells were withdrawn meanwhile.
            self.work.kernels[k].waited.clear();
        }
        self.moved_in(k, up.incarnation);
        self.move_overtaken(k, &up, out);
        if back {
            self.move_again(k, out);
        }
        if new || !deposed.is_empty() {
            for cell in self.work.kernels[k].cells.clone() {
                if self.work.cells.get(cell).is_some() {
                    self.start_or_claim(cell, out);
                }
            }
        }
    }

    /// The connection of a living replica is broken, until its next report: it can't be asked to move, nor to have
    /// another moved.
    pub(crate) fn replica_away(&mut self, id: &KernelId, incarnation: Incarnation) {
        if let Some(k) = self.find_kernel(id) {
            let replicas = self.work.kernels[k].replicas.iter_mut();
            let known = replicas.filter(|r| r.incarnation == incarnation);
            known.for_each(|r| r.away = true);
        }
    }

    /// The replica has a connection again. Returns whether it had none before.
    fn is_back(&mut self, k: Idx<Kernel>, incarnation: Incarnation) -> bool {
        let mut replicas = self.work.kernels[k].replicas.iter_mut();
        let known = replicas.find(|r| r.incarnation == incarnation);
        known.is_some_and(|r| std::mem::take(&mut r.away))
    }

    /// Notes that the replica is there. Returns whether it is new.
    fn take_in(&mut self, k: Idx<Kernel>, up: &ReplicaFacts) -> bool {
        let mut replicas = self.work.kernels[k].replicas.iter_mut();
        if let Some(known) = replicas.find(|r| r.incarnation == up.incarnation) {
            known.executes = up.executes;
            return false;
        }
        let node = self.node_index(&up.node, self.work.kernels[k].pool);
        let replica = Replica {
            incarnation: up.incarnation,
            node,
            seat: up.seat,
            executes: up.executes,
            away: false,
        };
        self.add_replica(k, replica);
        true
    }

    /// The members of the kernel's log. Members on unknown nodes are left out.
    fn stand_by(&mut self, k: Idx<Kernel>, told: &[Standby]) {
        let known = |s: &Standby| {
            let node = self.find_node(&s.node)?;
            Some(Replica {
                incarnation: s.incarnation,
                node,
                seat: s.seat,
                executes: None,
                away: false,
            })
        };
        let standbys: Vec<Replica> = told.iter().filter_map(known).collect();
        for standby in &standbys {
            self.fulfil_plan(k, standby.incarnation, standby.node);
        }
        let kernel = &mut self.work.kernels[k];
        let highest = standbys.iter().map(|s| s.incarnation.0.saturating_add(1)).max();
        kernel.next_incarnation = kernel.next_incarnation.max(highest.unwrap_or(0));
        kernel.standbys = standbys;
    }

    /// Removes the plan fulfilled by this replica: its own, else the oldest for its node (the front numbered the
    /// replica without `hopd`).
    fn fulfil_plan(&mut self, k: Idx<Kernel>, incarnation: Incarnation, node: Idx<Node>) {
        let planned = &self.work.kernels[k].planned;
        let own = planned.iter().find(|p| p.incarnation == incarnation);
        let plan = own.or_else(|| planned.iter().find(|p| p.node == node));
        if let Some(plan) = plan.map(|p| p.incarnation) {
            self.unplan(k, plan);
        }
    }

    /// Notes where the kernel's replicas and standbys sit.
    fn sits(&mut self, k: Idx<Kernel>) {
        let kernel = &mut self.work.kernels[k];
        let members = kernel.replicas.iter().chain(&kernel.standbys);
        let seats: BTreeSet<JobId> = members.map(|r| r.seat).collect();
        kernel.seats = Vec::from_iter(seats);
    }

    fn add_replica(&mut self, k: Idx<Kernel>, replica: Replica) {
        let Replica {
            incarnation,
            node,
            seat,
            ..
        } = replica;
        self.fulfil_plan(k, incarnation, node);
        let cells = self.work.kernels[k].cells.clone();
        for &c in &cells {
            self.dequeue(c);
        }
        let kernel = &mut self.work.kernels[k];
        kernel.next_incarnation = kernel.next_incarnation.max(incarnation.0.saturating_add(1));
        let (gpus, mem, pool) = (u32::from(kernel.default_need.gpus), kernel.mem_mib, kernel.pool);
        let first = kernel.replicas.is_empty();
        if first {
            self.supply.pools[pool].demand += gpus;
            self.count_load(pool, gpus as u16, 1);
            self.foresee_soon(pool);
        }
        let kernel = &mut self.work.kernels[k];
        kernel.replicas.push(replica);
        let n = &mut self.supply.nodes[node];
        n.subscribed += gpus;
        n.replicas += 1;
        n.sitting.insert(k);
        self.tally_kernel(k);
        if let Some(s) = self.work.seats.get_mut(&seat) {
            s.mem_used += u128::from(mem);
        }
        for &c in &cells {
            self.enqueue(c);
        }
        if first && self.work.kernels[k].home.is_none() {
            let home = self.work.kernels[k].last_node.unwrap_or(node);
            self.set_home(k, Some(home));
        }
    }

    /// Makes the node the one where the kernel's next cell is expected.
    pub(crate) fn set_home(&mut self, k: Idx<Kernel>, node: Option<Idx<Node>>) {
        let old = std::mem::replace(&mut self.work.kernels[k].home, node);
        let gpus = self.work.kernels[k].default_need.gpus;
        if let Some(n) = old {
            self.supply.nodes[n].homes.remove(&k);
            self.count_home(n, gpus, -1);
        }
        if let Some(n) = node {
            self.supply.nodes[n].homes.insert(k);
            self.count_home(n, gpus, 1);
        }
        self.tally_kernel(k);
    }

    fn count_home(&mut self, node: Idx<Node>, gpus: u16, by: i32) {
        if gpus == 0 {
            return;
        }
        let sizes = &mut self.supply.nodes[node].home_sizes;
        let i = sizes.iter().position(|(g, _)| *g == gpus).unwrap_or_else(|| {
            sizes.push((gpus, 0));
            sizes.len() - 1
        });
        sizes[i].1 = sizes[i].1.saturating_add_signed(by);
    }

    /// Reconciles the replica's lease with ours.
    fn reconcile_holder(&mut self, k: Idx<Kernel>, up: &ReplicaFacts, out: &mut Vec<Output>) {
        if let Some(ended) = &up.ended {
            self.heard_late(k, up.incarnation, ended, out);
        }
        let held = up.holds.as_ref().map(|(lease, _)| *lease);
        if let Some((lease, cell)) = &up.holds {
            let ours = self.work.leases.get(lease).is_some_and(|l| l.kernel == k);
            if !ours {
                out.push(Output::Revoked {
                    kernel: up.kernel.clone(),
                    lease: *lease,
                    cause: EndCause::StepLost,
                    reason: RevokedBecause::Unknown,
                    grace: hop_words::time::Span::ZERO,
                });
            } else {
                self.reconcile_cell(k, *lease, cell.as_ref(), out);
            }
        }
        // A report may cross the grant of a cell still listed as waiting.
        let on_its_way = |l: &LeaseId| match &self.work.leases[l].state {
            LeaseState::Running(r) => up.waiting.iter().any(|w| w.cell == r.cell),
            _ => false,
        };
        let stale: Vec<LeaseId> = self.work.kernels[k]
            .leases
            .iter()
            .copied()
            .filter(|l| Some(*l) != held && self.work.leases[l].executor == up.incarnation && !on_its_way(l))
            .filter(|l| {
                matches!(
                    self.work.leases[l].state,
                    LeaseState::Running(_) | LeaseState::Lingering { .. }
                )
            })
            .collect();
        for lease in stale {
            self.end_lease(lease, EndCause::Released, out);
        }
    }

    /// A cell ended on the replica while nobody listened.
    fn heard_late(
        &mut self,
        k: Idx<Kernel>,
        executor: Incarnation,
        ended: &EndedCell,
        out: &mut Vec<Output>,
    ) {
        let runs = |l: &&LeaseId| {
            let lease = &self.work.leases[*l];
            let cell = matches!(&lease.state, LeaseState::Running(r) if r.cell == ended.cell);
            cell && lease.executor == executor
        };
        if let Some(&lease) = self.work.kernels[k].leases.iter().find(runs) {
            let kernel = self.work.kernels[k].id.clone();
            self.cell_ended(&kernel, &ended.cell, lease, ended.outcome, out);
        }
    }

    fn reconcile_cell(
        &mut self,
        k: Idx<Kernel>,
        id: LeaseId,
        cell: Option<&hop_words::id::CellId>,
        out: &mut Vec<Output>,
    ) {
        let kernel = self.work.kernels[k].id.clone();
        match (&self.work.leases[&id].state, cell) {
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
    fn resume(&mut self, id: LeaseId, cell: &hop_words::id::CellId, out: &mut Vec<Output>) {
        if matches!(self.work.leases[&id].state, LeaseState::Lingering { .. }) {
            let running = crate::state::Running {
                cell: cell.clone(),
                need: self.need_of(id),
                class: hop_words::need::Class::default(),
                submitted: self.now,
                since: self.now,
                print: 0,
                ran: hop_words::time::Span::ZERO,
            };
            self.grant_lingering(id, running, hop_words::time::Span::ZERO, out);
        }
    }

    pub(crate) fn replica_lost(&mut self, id: &KernelId, incarnation: Incarnation, out: &mut Vec<Output>) {
        let Some(k) = self.find_kernel(id) else {
            return;
        };
        self.unplan(k, incarnation);
        self.move_failed(k, incarnation);
        let Some(cells) = self.remove_replica(k, incarnation, out) else {
            return;
        };
        if self.work.kernels[k].replicas.is_empty() {
            self.now_alone(k, out);
        } else {
            for c in cells {
                if self.work.cells.get(c).is_some() {
                    self.unreserve(c);
                    self.claim(c, out);
                }
            }
        }
        self.forget_if_closed(k, out);
    }

    /// Takes a replica from the kernel, with its leases and its parked cell. Returns the waiting cells; `None` means no
    /// such replica.
    pub(crate) fn remove_replica(
        &mut self,
        k: Idx<Kernel>,
        incarnation: Incarnation,
        out: &mut Vec<Output>,
    ) -> Option<Vec<Idx<Cell>>> {
        let kernel = &self.work.kernels[k];
        let i = kernel
            .replicas
            .iter()
            .position(|r| r.incarnation == incarnation)?;
        let cells = kernel.cells.clone();
        for &c in &cells {
            self.dequeue(c);
        }
        let kernel = &mut self.work.kernels[k];
        let replica = kernel.replicas.remove(i);
        if kernel.bound == Some(incarnation) {
            kernel.bound = None;
        }
        let (gpus, mem, pool) = (u32::from(kernel.default_need.gpus), kernel.mem_mib, kernel.pool);
        let last = kernel.replicas.is_empty();
        if last {
            let demand = &mut self.supply.pools[pool].demand;
            *demand = demand.saturating_sub(gpus);
            self.count_load(pool, gpus as u16, -1);
        }
        self.unsubscribe(replica.node, gpus);
        if self.work.kernels[k]
            .replicas
            .iter()
            .all(|r| r.node != replica.node)
        {
            self.supply.nodes[replica.node].sitting.remove(&k);
        }
        if let Some(s) = self.work.seats.get_mut(&replica.seat) {
            s.mem_used -= u128::from(mem);
        }
        self.follow_only(k, replica.node);
        self.tally_kernel(k);
        for &c in &cells {
            self.enqueue(c);
        }
        self.end_leases_of(k, incarnation, out);
        self.lose_parked(k, incarnation, out);
        Some(cells)
    }

    /// After the loss of the replica on `lost`, a kernel with a single other replica is at home with the other.
    fn follow_only(&mut self, k: Idx<Kernel>, lost: Idx<Node>) {
        let kernel = &mut self.work.kernels[k];
        let [only] = &kernel.replicas[..] else { return };
        if !kernel.cells.is_empty() {
            // The kernel was moved for a cell: the cell's node becomes its home.
            return;
        }
        let node = only.node;
        if kernel.base == Some(lost) {
            kernel.base = Some(node);
        }
        if kernel.home == Some(lost) {
            self.set_home(k, Some(node));
        }
    }

    /// The kernel has no replica left: its cells keep their places for a while, and are refused afterwards.
    fn now_alone(&mut self, k: Idx<Kernel>, out: &mut Vec<Output>) {
        self.work.kernels[k].alone_since = Some(self.now);
        self.at(self.now + self.config.replica_grace, Timer::Alone(k));
        self.at(self.now + self.config.kernel_ttl, Timer::Alone(k));
        for cell in self.work.kernels[k].cells.clone() {
            if self.work.cells.get(cell).is_some() {
                self.unreserve(cell);
                self.tell(cell, out);
            }
        }
    }

    pub(crate) fn alone_due(&mut self, k: Idx<Kernel>, out: &mut Vec<Output>) {
        let Some(since) = self.work.kernels.get(k).and_then(|kernel| kernel.alone_since) else {
            return;
        };
        let alone = self.now.since(since);
        if alone >= self.config.replica_grace {
            for cell in self.work.kernels[k].cells.clone() {
                self.drop_cell(cell, Some(RefusedBecause::ReplicaLost), out);
            }
        }
        let kernel = &self.work.kernels[k];
        let empty = kernel.planned.is_empty() && kernel.leases.is_empty();
        if alone >= self.config.kernel_ttl {
            if empty {
                self.work.kernels[k].closed = true;
                self.forget_if_closed(k, out);
            } else {
                self.at(self.now + self.config.kernel_ttl, Timer::Alone(k));
            }
        }
    }

    /// Forgets the user's kernels without processes and cells, the longest idle first, until fewer than `most` are
    /// left. Returns whether fewer are left.
    pub fn make_room_for_kernel(&mut self, user: &UserName, most: usize, out: &mut Vec<Output>) -> bool {
        let Some(user) = self.find_user(user) else {
            return true;
        };
        let mut count = 0;
        let mut idle: Vec<(hop_words::time::Timestamp, Idx<Kernel>)> = Vec::new();
        for (k, kernel) in self.work.kernels.iter().filter(|(_, k)| k.user == user) {
            count += 1;
            let since = kernel.alone_since.filter(|_| kernel.is_empty());
            idle.extend(since.map(|since| (since, k)));
        }
        idle.sort_unstable();
        for (_, k) in idle {
            if count < most {
                break;
            }
            self.work.kernels[k].closed = true;
            self.forget_if_closed(k, out);
            count -= 1;
        }
        count < most
    }

    /// The open kernels without processes, cells, leases and plans.
    pub fn bare_kernels(&self) -> impl Iterator<Item = BareKernel<'_>> {
        let open = self.work.kernels.iter().map(|(_, k)| k).filter(|k| !k.closed);
        let bare = open.filter(|k| k.alone_since.is_some() && k.is_empty());
        bare.map(|k| BareKernel {
            kernel: &k.id,
            user: &self.people.users[k.user].name,
            seats: &k.seats,
        })
    }

    /// Number of the kernel's other replicas in operation.
    pub fn other_replicas(&self, kernel: &KernelId, incarnation: Incarnation) -> usize {
        let replicas = self.find_kernel(kernel).map(|k| &self.work.kernels[k].replicas);
        let others = |r: &&Replica| r.incarnation != incarnation;
        replicas.map_or(0, |r| r.iter().filter(others).count())
    }

    /// All nodes that any pool has or had, as far as known.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.supply.nodes.values().map(|n| &n.name)
    }

    pub fn knows_node(&self, node: &NodeName) -> bool {
        self.find_node(node).is_some()
    }

    /// How many cells of the kernel wait.
    pub fn waiting_in(&self, kernel: &KernelId) -> usize {
        self.find_kernel(kernel)
            .map_or(0, |k| self.work.kernels[k].cells.len())
    }

    /// How many cells of the user's wait.
    pub fn waiting_of(&self, user: &UserName) -> usize {
        self.find_user(user)
            .map_or(0, |u| self.people.users[u].cells.len())
    }

    /// Ends the leases of a lost replica. Cells about to start there wait again.
    pub(crate) fn end_leases_of(&mut self, k: Idx<Kernel>, incarnation: Incarnation, out: &mut Vec<Output>) {
        for id in self.work.kernels[k].leases.clone() {
            if self
                .work
                .leases
                .get(&id)
                .is_some_and(|l| l.executor == incarnation)
            {
                self.take_back(id, out);
            }
            if self
                .work
                .leases
                .get(&id)
                .is_some_and(|l| l.executor == incarnation)
                && let Some(cell) = self.end_lease_keep_cell(id, EndCause::ReplicaLost, out)
                && !self.work.kernels[k].replicas.is_empty()
            {
                if cell.parked.is_some() {
                    out.push(Output::Refused {
                        kernel: self.work.kernels[k].id.clone(),
                        cell: cell.id,
                        reason: RefusedBecause::ReplicaLost,
                    });
                } else {
                    self.requeue(cell, REPLICA_GONE, out);
                }
            }
        }
    }

    pub(crate) fn kernel_bound(&mut self, id: &KernelId, to: Option<Incarnation>, out: &mut Vec<Output>) {
        if let Some(k) = self.find_kernel(id) {
            self.work.kernels[k].bound = to;
            self.tally_kernel(k);
            self.unreserve_where_it_is_not(k);
            for cell in self.work.kernels[k].cells.clone() {
                if self.work.cells.get(cell).is_some() {
                    self.try_start(cell, out);
                }
            }
        }
    }

    pub(crate) fn close_kernel(&mut self, id: &KernelId, cause: EndCause, out: &mut Vec<Output>) {
        self.end_kernel(id, cause, &RefusedBecause::Closed, out);
    }

    /// Ends the kernel's cells, leases and replicas, and forgets the kernel after its last lease.
    pub(crate) fn end_kernel(
        &mut self,
        id: &KernelId,
        cause: EndCause,
        because: &RefusedBecause,
        out: &mut Vec<Output>,
    ) {
        let Some(k) = self.find_kernel(id) else {
            return;
        };
        self.work.kernels[k].closed = true;
        // Cells leave all queues first: no cell of the kernel starts while its leases end.
        let cells: Vec<_> = self.work.kernels[k]
            .cells
            .clone()
            .into_iter()
            .map(|c| self.take_cell(c))
            .collect();
        for cell in cells {
            self.record_withdrawn(&cell, Some(because), out);
            out.push(Output::Refused {
                kernel: id.clone(),
                cell: cell.id,
                reason: because.clone(),
            });
        }
        for lease in self.work.kernels[k].leases.clone() {
            self.end_lease(lease, cause, out);
        }
        for planned in self.work.kernels[k].planned.clone() {
            self.unplan(k, planned.incarnation);
        }
        for replica in self.work.kernels[k].replicas.clone() {
            self.replica_lost(id, replica.incarnation, out);
        }
        self.forget_if_closed(k, out);
    }

    /// Forgets a closed kernel without leases, cells or replicas.
    pub(crate) fn forget_if_closed(&mut self, k: Idx<Kernel>, out: &mut Vec<Output>) {
        let Some(kernel) = self.work.kernels.get(k) else {
            return;
        };
        if !kernel.closed || !kernel.leases.is_empty() || !kernel.replicas.is_empty() {
            return;
        }
        self.set_home(k, None);
        let kernel = self.work.kernels.remove(k).expect("found above");
        if let Some(part) = kernel.tallied {
            self.untally(k, part);
        }
        self.work.kernel_by_id.remove(&kernel.id);
        self.note(|| Key::Kernel(kernel.id.clone()), || None, out);
        out.push(Output::Forget { kernel: kernel.id });
    }

    pub(crate) fn kernel_image(&self, k: Idx<Kernel>) -> KernelImage {
        let kernel = &self.work.kernels[k];
        let waiting = kernel.cells.iter().map(|&c| &self.work.cells[c]);
        let waiting = waiting.map(|c| (c.id.clone(), c.submitted));
        KernelImage {
            user: self.people.users[kernel.user].name.clone(),
            account: self.people.accounts[kernel.account].name.clone(),
            pool: self.supply.pools[kernel.pool].config.name.clone(),
            name: kernel.name.clone(),
            next_incarnation: kernel.next_incarnation,
            last_executor: kernel.last_executor,
            last_node: kernel.last_node.map(|n| self.supply.nodes[n].name.clone()),
            default_need: kernel.default_need.clone(),
            think: kernel.think.clone(),
            runs: kernel.runs.clone(),
            usage: self.usage_left(&kernel.usage),
            at: Some(self.now),
            waiting: waiting.chain(kernel.waited.iter().cloned()).collect(),
            mem_mib: kernel.mem_mib,
            cpus: kernel.cpus,
            seats: kernel.seats.clone(),
        }
    }
}
