//! Requests of replicas: the speaker for a kernel, and its reports.

use super::registry::{Registered, fixed};
use super::requests::{Answer, DONE};
use super::{Due, JournalKey, JournalValue, Scheduler};
use crate::access::{self, Access};
use crate::admission::{Applicant, NotAdmitted};
use crate::caller::{Caller, ConnId};
use hop_api::message::{
    Bound, Event, LossStage, Refusal, ReplicaRow, ReplicaUp, Request, Response, WaitingCell,
};
use hop_core::{Input, Standby, Submit};
use hop_words::id::{JobId, KernelId, LeaseId, PoolName, ReplicaId, Tenure, UserName};
use hop_words::text;
use hop_words::time::Span;
use tracing::info;

/// Replicas of one kernel: five, and a successor of each.
const REPLICAS: usize = 10;

impl Scheduler {
    // --- registering ---

    /// Judges a replica's report as far as Slurm's word on its seat isn't needed.
    pub(super) fn check_replica(&self, access: &Access, up: &ReplicaUp) -> Result<(), Refusal> {
        access::check_replica(access, up)?;
        access.owns(self.owner_of(&up.kernel), &up.kernel)?;
        // The end of the replica that hibernated the kernel doesn't wake the kernel.
        if self
            .kept
            .asleep(&up.kernel)
            .is_some_and(|a| up.tenure <= a.tenure)
        {
            return Err(Refusal::Invalid {
                reason: format!("kernel {} hibernates since tenure {}", up.kernel, up.tenure),
            });
        }
        let pool = up.pool.clone().unwrap_or_else(|| self.default_pool());
        // A kernel that is known keeps its running cell, though its pool isn't lent any more.
        match self.core.owner(&up.kernel) {
            Some(_) => self.pool_exists(&pool),
            None => self.pool_lends(&pool),
        }
    }

    /// Registers a replica in a seat of its user's. If it can't be said yet whether the pool takes the user's cells, the
    /// kernel keeps its leases, and the refusal makes the replica report its cells again.
    pub(super) fn admit_replica(
        &mut self,
        conn: ConnId,
        access: &Access,
        mut up: ReplicaUp,
    ) -> Result<(), Refusal> {
        self.is_in_its_seat(&up)?;
        self.within_quota(access, &up)?;
        self.hear_tenure(&up.kernel, up.tenure)?;
        let waiting = std::mem::take(&mut up.waiting);
        up.standbys.truncate(REPLICAS);
        access::cut(&mut up.bound);
        up.unsaved = up.unsaved.map(|why| access::printable(&why, access::REASON));
        let job = up.seat.job;
        let pool = up.pool.clone().unwrap_or_else(|| self.default_pool());
        let mut answer = Ok(());
        match self.takes(&pool, &access.caller.groups, job) {
            Ok(()) => up.waiting = waiting,
            Err(refusal @ Refusal::Unavailable { .. }) if !waiting.is_empty() => answer = Err(refusal),
            Err(refusal) => {
                let parked = up.parked.as_ref().map(|parked| &parked.cell);
                let has_begun = |waiting: &WaitingCell| parked == Some(&waiting.cell);
                let (begun, refused) = waiting.into_iter().partition(has_begun);
                up.waiting = begun;
                self.refuse_cells(conn, &up.kernel, refused, &refusal);
            }
        }
        self.replica_up(conn, &access.caller.user, up);
        answer
    }

    /// The kernel lives on without leases.
    fn refuse_cells(&mut self, conn: ConnId, kernel: &KernelId, cells: Vec<WaitingCell>, why: &Refusal) {
        for waiting in cells {
            let event = Event::Refused {
                kernel: kernel.clone(),
                cell: waiting.cell,
                reason: why.to_string(),
            };
            self.connections.send(conn, 0, Response::Event(event));
        }
    }

    /// Refuses the waiting cells that their pools take no more: the configuration, or Slurm's settings and rules, have
    /// changed. Cells wait on while that is unknown, or while their kernel is away: its next report is judged.
    pub(super) fn refuse_waiting(&mut self) {
        for kernel in self.registry.owned() {
            if self.core.waiting_in(&kernel) == 0 {
                continue;
            }
            let executor = self.registry.executor(&kernel);
            let Some(conn) = executor.and_then(|(_, replica)| replica.conn) else {
                continue;
            };
            if let Err(refusal @ Refusal::Invalid { .. }) = self.may_lease(conn, &kernel) {
                let why = refusal.to_string();
                info!(%kernel, "its waiting cells are refused: {why}");
                self.todo.push_back(Input::CellsRefused { kernel, why });
            }
        }
    }

    /// Whether the kernel's pool takes cells of its user's now.
    fn may_lease(&self, conn: ConnId, kernel: &KernelId) -> Result<(), Refusal> {
        let open = self.connections.get(conn);
        let groups = open.map_or(&[][..], |open| &open.caller.groups);
        let mine = open.and_then(|open| open.replicas.iter().find(|r| r.kernel == *kernel));
        let seat = mine.and_then(|id| self.registry.replica(id)).map(|r| r.seat.job);
        let pool = self.core.pool_of(kernel).cloned();
        match (seat, pool) {
            (Some(seat), Some(pool)) => self.takes(&pool, groups, seat),
            // The core reports errors about an unknown kernel.
            _ => Ok(()),
        }
    }

    /// Whether the pool is lent, and the rules of its partition admit a user of these groups in this seat. The cells
    /// wait while the answer is [`Refusal::Unavailable`].
    fn takes(&self, pool: &PoolName, groups: &[String], seat: JobId) -> Result<(), Refusal> {
        if let Some(why) = self.pilot_jobs.refusal(pool) {
            let reason = format!("pool {pool} is not lent: {why}");
            return Err(Refusal::Invalid { reason });
        }
        // A pool that is new in the configuration has no rules before Slurm has said them, and is no one's until then.
        let Some(rules) = self.news.rules.as_ref().and_then(|rules| rules.get(pool)) else {
            return Err(Refusal::Unavailable {
                reason: format!("Slurm has not said yet whom the partition of pool {pool} takes"),
            });
        };
        let seat = self.seats.get(seat);
        // A caller who is believed while Slurm is away has named no node.
        let told = seat.is_some_and(|s| !s.nodes.is_empty());
        let applicant = Applicant {
            groups,
            account: seat.and_then(|s| s.account.as_ref()),
            qos: seat.and_then(|s| s.qos.as_deref()),
            told,
        };
        rules.judge(applicant).map_err(|why| match why {
            NotAdmitted::Rule(_) => Refusal::Invalid {
                reason: format!("pool {pool} is not for you: {why}"),
            },
            NotAdmitted::Unknown(_) => Refusal::Unavailable {
                reason: format!("whether pool {pool} is for you can't be said: {why}"),
            },
        })
    }

    fn replica_up(&mut self, conn: ConnId, user: &UserName, up: ReplicaUp) {
        let id = ReplicaId {
            kernel: up.kernel.clone(),
            incarnation: up.incarnation,
        };
        info!(replica = %id, %user, node = %up.node, seat = %up.seat.job, "a replica is up");
        self.owned_now(&up.kernel, user);
        self.awake(&up.kernel);
        self.supersede(&id, &up);
        self.kept.reports(&up.kernel);
        if let Some(old) = self.registry.register(id.clone(), Registered::new(conn, &up)) {
            self.connections.replica_left(old, &id);
        }
        self.connections.has_replica(conn, id.clone());
        self.tell_homes();
        if let Some(parked) = &up.parked {
            self.parks.answered(parked.lease, &up.kernel);
        }
        for event in self.parks.of(&id) {
            self.connections.send(conn, 0, Response::Event(event));
        }
        let moving = self.kept.moving(&up.kernel);
        if moving.is_some_and(|m| m.incarnation == up.incarnation) {
            self.kept.has_moved(&up.kernel);
        }
        let fixed = fixed(up.captured, &up.bound);
        let standbys = self.standbys_in_seats(user, &up);
        let pool = up.pool.unwrap_or_else(|| self.default_pool());
        // Slurm's word on who is charged goes before the kernel's own.
        let account = self.seats.get(up.seat.job).and_then(|seat| seat.account.clone());
        self.todo.push_back(Input::ReplicaUp(hop_core::ReplicaFacts {
            kernel: up.kernel,
            incarnation: up.incarnation,
            user: user.clone(),
            account,
            pool,
            node: up.node,
            seat: up.seat.job,
            name: text::name(&up.name),
            holds: up.holds,
            ended: up.ended,
            waiting: up.waiting,
            parked: up.parked,
            fixed,
            standbys,
            executes: Some(up.tenure),
        }));
    }

    /// The kernel's standbys in seats that are the user's by Slurm's word.
    fn standbys_in_seats(&self, user: &UserName, up: &ReplicaUp) -> Vec<Standby> {
        let sits = |row: &&ReplicaRow| {
            let seat = self.seats.get(row.seat);
            seat.is_some_and(|seat| seat.user == *user && seat.nodes.contains(&row.node))
        };
        let rows = up.standbys.iter().take(REPLICAS).filter(sits);
        rows.map(|row| Standby {
            incarnation: row.incarnation,
            node: row.node.clone(),
            seat: row.seat,
        })
        .collect()
    }

    /// Forgets the executors that this new replica replaces. The new replica's report replaces deposed executors in the
    /// core. They stay on their connections, and hear the fate of their leases and the end of their tenure.
    fn supersede(&mut self, new: &ReplicaId, up: &ReplicaUp) {
        for id in self.registry.deposed_by(new, up) {
            info!(replica = %id, by = %new, "an executor is deposed");
            self.forget_replica(&id, "another process of the kernel has taken over");
        }
        let holds = |id: &ReplicaId| {
            let mut leases = self.core.leases().into_iter();
            leases.any(|l| l.kernel == id.kernel && l.executor == id.incarnation)
        };
        for id in self.registry.superseded_by(new, up, holds) {
            self.replica_away(&id);
        }
    }

    /// A replica is where its seat is. While Slurm can't be asked, any node that is known will do.
    fn is_in_its_seat(&self, up: &ReplicaUp) -> Result<(), Refusal> {
        let nodes = self.seats.get(up.seat.job).map_or(&[][..], |seat| &seat.nodes);
        let right = match nodes {
            [] => self.core.knows_node(&up.node),
            nodes => nodes.contains(&up.node),
        };
        match right {
            true => Ok(()),
            false => Err(access::not_its_node(up.seat.job, &up.node)),
        }
    }

    /// A pilot is of most use where kernels are.
    pub(super) fn tell_homes(&mut self) {
        self.pilot_jobs.set_homes(self.registry.homes());
    }

    // --- gone ---

    /// A replica has not come back in time, or is known to be gone.
    pub(super) fn replica_away(&mut self, id: &ReplicaId) {
        if self.registry.replica(id).is_some_and(|r| r.conn.is_none()) {
            info!(replica = %id, "a replica did not come back");
            self.note_loss(id, LossStage::Lost);
            self.forget_replica(id, "its process ended before it had answered");
            self.tell_homes();
            self.todo.push_back(Input::ReplicaLost {
                kernel: id.kernel.clone(),
                incarnation: id.incarnation,
            });
        }
    }

    /// Notes for `hop kernels` what is known of the loss, if the replica speaks for its kernel.
    pub(super) fn note_loss(&mut self, id: &ReplicaId, stage: LossStage) {
        let executor = self.registry.executor(&id.kernel);
        let executor = executor.filter(|(speaks, _)| *speaks == id);
        let node = executor.map(|(_, replica)| replica.node.clone());
        if let Some(node) = node.filter(|_| self.core.owner(&id.kernel).is_some()) {
            self.kept.loses(&id.kernel, node, stage, self.clock.now());
        }
    }

    /// The kernel's front starts another replica in the executor's place. The front may know of the loss before the
    /// executor's connection here breaks.
    pub(super) fn is_replaced(&mut self, kernel: &KernelId) {
        let executor = self.registry.executor(kernel).map(|(_, r)| &r.node);
        let node = executor.or_else(|| self.kept.loss(kernel).map(|loss| &loss.node));
        if let Some(node) = node.cloned() {
            self.kept
                .loses(kernel, node, LossStage::Replacing, self.clock.now());
        }
    }

    /// Requests to the replica come to nothing.
    fn forget_replica(&mut self, id: &ReplicaId, why: &str) {
        if self.registry.remove(id).is_some() {
            self.kept.stays(&id.kernel, why.to_owned());
        }
        let (now, why) = (self.clock.now(), "the new process ended".to_owned());
        self.kept.move_failed(&id.kernel, id.incarnation, why, now);
    }

    /// Ends the wait for replicas with leases under an earlier `hopd`. If a replica is back but waits for Slurm's word
    /// on its seat, it is looked at again.
    pub(super) fn grace_over(&mut self) {
        let mut again = false;
        for view in self.core.leases() {
            let executor = ReplicaId {
                kernel: view.kernel.clone(),
                incarnation: view.executor,
            };
            if self.registry.contains(&executor) {
                continue;
            }
            if self.seats.is_waiting(&executor) {
                again = true;
                continue;
            }
            info!(lease = %view.lease, replica = %executor, "nobody has come back for this lease");
            self.todo.push_back(Input::ReleaseLease {
                kernel: view.kernel,
                lease: view.lease,
            });
        }
        if again {
            let soon = self.clock.now() + Span::from_secs(self.config.hopd.grace_s.into());
            self.due.insert((soon, Due::Grace));
        }
    }

    // --- requests ---

    /// Requests of a replica that speaks for its kernel.
    pub(super) fn of_replica(&mut self, conn: ConnId, body: Request) -> Result<Answer, Refusal> {
        match body {
            Request::Submit { .. } | Request::CancelCell { .. } => self.of_cell(conn, body),
            Request::CellEnded { .. }
            | Request::ReleaseLease { .. }
            | Request::StillHeld { .. }
            | Request::CellParked { .. }
            | Request::ParkRefused { .. } => self.of_lease(conn, body),
            _ => self.of_kernel(conn, body),
        }
    }

    fn of_cell(&mut self, conn: ConnId, body: Request) -> Result<Answer, Refusal> {
        match body {
            Request::Submit {
                kernel,
                tenure,
                cell,
                need,
                class,
                print,
            } => {
                self.speaks_for(conn, &kernel, tenure)?;
                access::check_name("cell id", cell.as_str())?;
                access::check_need(&need)?;
                self.may_lease(conn, &kernel)?;
                if let Some(open) = self.connections.get(conn) {
                    self.may_wait(&open.caller, 1)?;
                }
                self.todo.push_back(Input::Submit(Submit {
                    kernel,
                    cell,
                    need,
                    class,
                    print,
                }));
            }
            Request::CancelCell { kernel, tenure, cell } => {
                self.speaks_for(conn, &kernel, tenure)?;
                self.todo.push_back(Input::CancelCell { kernel, cell });
            }
            _ => unreachable!("sorted by the caller"),
        }
        Ok(DONE)
    }

    /// Requests about a cell on a lease, which don't apply to the lease's next cell.
    fn of_lease(&mut self, conn: ConnId, body: Request) -> Result<Answer, Refusal> {
        match body {
            Request::CellEnded {
                kernel,
                tenure,
                cell,
                lease,
                outcome,
                ..
            } => {
                self.speaks_of_lease(conn, &kernel, tenure, lease)?;
                self.parks.answered(lease, &kernel);
                self.todo.push_back(Input::CellEnded {
                    kernel,
                    cell,
                    lease,
                    outcome,
                });
            }
            Request::ReleaseLease {
                kernel,
                tenure,
                lease,
            } => {
                self.speaks_of_lease(conn, &kernel, tenure, lease)?;
                self.todo.push_back(Input::ReleaseLease { kernel, lease });
            }
            Request::StillHeld {
                kernel,
                tenure,
                lease,
                why,
            } => {
                self.speaks_of_lease(conn, &kernel, tenure, lease)?;
                let why = access::printable(&why, 500);
                info!(%kernel, %lease, "a kernel can't let go of its GPUs: {why}");
                self.todo.push_back(Input::StillHeld { kernel, lease, why });
            }
            Request::CellParked {
                kernel,
                tenure,
                cell,
                lease,
            } => {
                self.speaks_of_lease(conn, &kernel, tenure, lease)?;
                access::check_name("cell id", cell.as_str())?;
                info!(%kernel, %lease, %cell, "a cell is parked");
                self.parks.answered(lease, &kernel);
                self.todo.push_back(Input::CellParked { kernel, cell, lease });
            }
            Request::ParkRefused {
                kernel,
                tenure,
                lease,
                reason,
            } => {
                self.speaks_of_lease(conn, &kernel, tenure, lease)?;
                info!(%kernel, %lease, "a cell can't be parked: {}", access::printable(&reason, 500));
                self.parks.answered(lease, &kernel);
                self.todo.push_back(Input::ParkRefused { kernel, lease });
            }
            _ => unreachable!("sorted by the caller"),
        }
        Ok(DONE)
    }

    fn of_kernel(&mut self, conn: ConnId, body: Request) -> Result<Answer, Refusal> {
        match body {
            Request::KernelBound {
                kernel,
                tenure,
                mut bound,
            } => {
                self.speaks_for(conn, &kernel, tenure)?;
                access::cut(&mut bound);
                self.kernel_bound(kernel, bound);
            }
            Request::MigrationFailed {
                kernel,
                tenure,
                incarnation,
                reason,
            } => {
                self.speaks_for(conn, &kernel, tenure)?;
                self.move_failed(kernel, incarnation, &reason);
            }
            Request::Hibernated { kernel, tenure } => {
                self.speaks_for(conn, &kernel, tenure)?;
                self.hibernated(kernel);
            }
            Request::KernelEnded { kernel, tenure } => {
                self.speaks_for(conn, &kernel, tenure)?;
                self.todo.push_back(Input::CloseKernel { kernel });
            }
            Request::HibernateRefused {
                kernel,
                tenure,
                reason,
            } => {
                self.speaks_for(conn, &kernel, tenure)?;
                self.hibernate_refused(&kernel, &reason);
            }
            _ => unreachable!("sorted by its sender"),
        }
        Ok(DONE)
    }

    /// The obstacles to moving the kernel have changed.
    fn kernel_bound(&mut self, kernel: KernelId, bound: Bound) {
        let executor = self.registry.executor(&kernel).map(|(id, _)| id.clone());
        let incarnation = executor.as_ref().map(|id| id.incarnation).filter(|_| bound.gpu);
        if let Some(replica) = executor.and_then(|id| self.registry.replica_mut(&id)) {
            replica.bound = bound;
            let why = replica.fixed();
            self.todo.push_back(Input::KernelFixed {
                kernel: kernel.clone(),
                why,
            });
        }
        self.todo.push_back(Input::KernelBound { kernel, incarnation });
    }

    // --- who speaks ---

    /// Only a registered replica of the highest tenure speaks for a kernel.
    fn speaks_for(&mut self, conn: ConnId, kernel: &KernelId, tenure: Tenure) -> Result<(), Refusal> {
        let registered = self
            .connections
            .get(conn)
            .is_some_and(|c| c.replicas.iter().any(|r| r.kernel == *kernel));
        if !registered {
            return Err(Refusal::Forbidden {
                reason: format!("this connection has registered no replica of kernel {kernel}"),
            });
        }
        self.hear_tenure(kernel, tenure)
    }

    /// Takes reports on a lease from the replica on the lease, in any tenure: such reports only give the lease up.
    fn speaks_of_lease(
        &mut self,
        conn: ConnId,
        kernel: &KernelId,
        tenure: Tenure,
        lease: LeaseId,
    ) -> Result<(), Refusal> {
        let refused = match self.speaks_for(conn, kernel, tenure) {
            Err(refused @ Refusal::Superseded { .. }) => refused,
            other => return other,
        };
        let executor = self.core.lease(lease).map(|l| ReplicaId {
            kernel: l.kernel,
            incarnation: l.executor,
        });
        let here = |id| {
            self.connections
                .get(conn)
                .is_some_and(|c| c.replicas.contains(&id))
        };
        match executor.is_some_and(here) {
            true => Ok(()),
            false => Err(refused),
        }
    }

    fn hear_tenure(&mut self, kernel: &KernelId, tenure: Tenure) -> Result<(), Refusal> {
        if self.registry.hear(kernel, tenure)? {
            let change = (
                JournalKey::Tenure(kernel.clone()),
                Some(JournalValue::Tenure(tenure)),
            );
            self.records.write(vec![change], Vec::new());
        }
        Ok(())
    }

    // --- quotas ---

    /// Whether the user may open another kernel; the user's kernels without processes make room.
    pub(super) fn may_open_kernel(&mut self, access: &Access, kernel: &KernelId) -> Result<(), Refusal> {
        if self.core.owner(kernel).is_some() || access.caller.operator {
            return Ok(());
        }
        let (user, most) = (&access.caller.user, self.config.quota.kernels);
        let mut out = Vec::new();
        let room = self.core.make_room_for_kernel(user, most, &mut out);
        self.carry_out(out);
        match room {
            true => Ok(()),
            false => Err(access::over_quota(user, "kernels open", most)),
        }
    }

    /// Whether the user may name another kernel that nothing is known of, as a front does that is early.
    pub(super) fn may_name_kernel(&self, access: &Access, kernel: &KernelId) -> Result<(), Refusal> {
        let (user, most) = (&access.caller.user, self.config.quota.kernels);
        let unknown = |k: &KernelId| self.core.owner(k).is_none() && self.kept.asleep(k).is_none();
        let named = self.owner_of(kernel).is_some() || access.caller.operator;
        if named || self.registry.owned_by(user).filter(|k| unknown(k)).count() < most {
            return Ok(());
        }
        Err(access::over_quota(user, "kernels open", most))
    }

    /// Whether `more` cells of the user may wait. The user's cells on their way to the core count too.
    fn may_wait(&self, caller: &Caller, more: usize) -> Result<(), Refusal> {
        let (user, most) = (&caller.user, self.config.quota.cells);
        if !caller.operator && self.core.waiting_of(user) + more > most {
            // An unavailable answer would make the cell wait on in the kernel, and the quota bound nothing.
            return Err(Refusal::Invalid {
                reason: access::over_quota_words(user, "cells waiting", most),
            });
        }
        Ok(())
    }

    fn within_quota(&mut self, access: &Access, up: &ReplicaUp) -> Result<(), Refusal> {
        self.may_open_kernel(access, &up.kernel)?;
        // Cells that the core knows already are asked for again.
        let known = self.core.waiting_in(&up.kernel);
        self.may_wait(&access.caller, up.waiting.len().saturating_sub(known))?;
        if self.core.other_replicas(&up.kernel, up.incarnation) >= REPLICAS {
            return Err(access::over_quota(
                &access.caller.user,
                "replicas of this kernel",
                REPLICAS,
            ));
        }
        Ok(())
    }
}
