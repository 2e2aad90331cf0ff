//! Hears callers: connections come and go, and each request is judged and taken in.

use super::seats::{Ask, Seat, Waiting};
use super::{JournalKey, JournalValue, Report, Scheduler};
use crate::access::{self, Access, Sender};
use crate::caller::{ConnId, Incoming};
use crate::pilot_jobs::Down;
use crate::slurm::Owner;
use crate::views;
use hop_api::message::{
    AgentUp, EndedLease, Handover, LossStage, NodeStanding, Refusal, Request, Response, ToHopd,
};
use hop_core::{Input, SeatUp};
use hop_words::id::{JobId, KernelId, LeaseId, PoolName, UserName};
use hop_words::text;
use hop_words::time::Span;
use std::collections::{BTreeSet, VecDeque};
use tracing::{debug, info, warn};

/// A replica whose connection broke may come back within this time.
const REPLICA_AWAY: Span = Span::from_secs(15);

/// How a request is answered.
#[derive(Debug)]
pub(super) enum Answer {
    Now(Response),
    /// Later, or by events.
    Later,
}

/// The usual answer to a request that was taken in.
pub(super) const DONE: Answer = Answer::Now(Response::Done);

impl Scheduler {
    // --- connections ---

    pub(super) fn incoming(&mut self, event: Incoming) {
        match event {
            Incoming::Opened {
                conn,
                caller,
                outgoing,
            } => self.connections.opened(conn, caller, outgoing),
            Incoming::Closed { conn } => self.closed(conn),
            Incoming::Message { conn, message } => self.message(conn, message),
        }
    }

    pub(super) fn closed(&mut self, conn: ConnId) {
        let Some((open, was_agent)) = self.connections.closed(conn) else {
            return;
        };
        let now = self.clock.now();
        if let Some(pilot) = open.pilot.filter(|_| was_agent) {
            warn!(%pilot, "the agent's connection broke");
            self.todo.push_back(Input::PilotSilent { pilot });
            self.look_soon();
        }
        for id in open.replicas {
            if self.registry.disconnected(&id, conn) {
                self.note_loss(&id, LossStage::Silent);
                self.todo.push_back(Input::ReplicaAway {
                    kernel: id.kernel.clone(),
                    incarnation: id.incarnation,
                });
                self.due.insert((now + REPLICA_AWAY, super::Due::ReplicaAway(id)));
            }
        }
        for kernel in open.kernels {
            self.forget_unknown(&kernel);
        }
    }

    /// Forgets a kernel that a front alone has named, and no front names any more.
    pub(super) fn forget_unknown(&mut self, kernel: &KernelId) {
        if self.core.owner(kernel).is_none() && !self.connections.is_heard(kernel) {
            self.forget(kernel);
        }
    }

    pub(super) fn message(&mut self, conn: ConnId, message: ToHopd) {
        let Some(open) = self.connections.get(conn) else {
            return;
        };
        if open.held_up.is_some() {
            return self.hold_up(conn, message);
        }
        let access = Access {
            caller: open.caller.clone(),
            pilot: open.pilot,
        };
        let id = message.id;
        match self.request(conn, &access, message) {
            Ok(Answer::Now(body)) => self.connections.answer(conn, id, body),
            Ok(Answer::Later) => {}
            Err(refusal) => {
                debug!(?conn, user = %access.caller.user, "refused: {refusal}");
                self.connections.answer(conn, id, Response::Refused(refusal));
            }
        }
    }

    /// Keeps a message until Slurm has said whose the caller's seat is. A ping that wants no numbered answer is answered
    /// out of turn, since Slurm may keep the others waiting for longer than silence is borne.
    fn hold_up(&mut self, conn: ConnId, message: ToHopd) {
        let id = message.id;
        if id == 0 && matches!(message.body, Request::Ping) {
            return self.connections.answer(conn, id, Response::Pong);
        }
        let uid = self.connections.get(conn).map(|open| open.caller.uid);
        if !uid.is_some_and(|uid| self.connections.may_hold_up(uid)) {
            return self.connections.answer(conn, id, access::too_many());
        }
        if let Some(held_up) = self.connections.get_mut(conn).and_then(|c| c.held_up.as_mut()) {
            held_up.push_back(message);
        }
    }

    // --- requests ---

    /// Takes a request in, sorted by the kind of sender.
    fn request(&mut self, conn: ConnId, access: &Access, message: ToHopd) -> Result<Answer, Refusal> {
        match access.judge(&message.body)? {
            Sender::Anybody => Ok(Answer::Now(Response::Pong)),
            Sender::Front => self.of_front(conn, access, message),
            Sender::Seat | Sender::Replica => self.of_user(conn, access, message),
            Sender::Agent => self.of_agent(conn, access, message.body),
            Sender::Person => self.of_person(conn, access, message),
        }
    }

    /// Requests of a seat or a replica. A report that names a seat waits until Slurm has named the seat's owner.
    fn of_user(&mut self, conn: ConnId, access: &Access, message: ToHopd) -> Result<Answer, Refusal> {
        let seat = match &message.body {
            Request::SeatUp { job, .. } => *job,
            Request::ReplicaUp(up) => {
                self.check_replica(access, up)?;
                up.seat.job
            }
            _ => return self.of_replica(conn, message.body),
        };
        match self.seats.ask(&access.caller, seat, self.clock.now()) {
            Ask::Theirs => {}
            Ask::Refused(refusal) => return Err(refusal),
            Ask::Waits => return Ok(self.ask_whose_seat(conn, access, message, seat)),
        }
        match message.body {
            Request::SeatUp {
                job,
                node,
                mem_mib,
                cpus,
            } => {
                let user = access.caller.user.clone();
                self.todo.push_back(Input::SeatUp(SeatUp {
                    job,
                    user,
                    node,
                    mem_mib,
                    cpus,
                }));
            }
            Request::ReplicaUp(up) => self.admit_replica(conn, access, *up)?,
            _ => unreachable!("chosen above"),
        }
        Ok(DONE)
    }

    fn ask_whose_seat(&mut self, conn: ConnId, access: &Access, message: ToHopd, job: JobId) -> Answer {
        if let Some(open) = self.connections.get_mut(conn) {
            open.held_up = Some(VecDeque::new());
        }
        let caller = access.caller.clone();
        self.seats.wait(
            job,
            Waiting {
                conn,
                caller,
                message,
            },
        );
        self.look_seats_up();
        Answer::Later
    }

    fn look_seats_up(&mut self) {
        while let Some(job) = self.seats.next_lookup() {
            let (slurm, reports) = (self.slurm.clone(), self.reports.clone());
            tokio::spawn(async move {
                let answer = slurm.owner(job).await;
                let _ = reports.send(Report::SeatOwner { job, answer });
            });
        }
    }

    /// Slurm has named a seat's owner, or can't be asked. In the latter case the caller is believed until Slurm answers.
    pub(super) fn seat_owner(&mut self, job: JobId, answer: &Result<Option<Owner>, String>) {
        if let Err(reason) = answer {
            warn!(%job, "whose seat this is can't be asked now: {reason}");
        }
        let hides_jobs = self.news.hides_jobs();
        for (waiting, seat) in self.seats.answered(job, answer, hides_jobs, self.clock.now()) {
            let Waiting { conn, message, .. } = waiting;
            let held_up = self
                .connections
                .get_mut(conn)
                .and_then(|open| open.held_up.take());
            match seat {
                Ok(seat) => {
                    self.seats.restore(job, seat.clone());
                    self.message(conn, message);
                    match answer {
                        Ok(_) => self.write_seat(job, Some(seat)),
                        Err(_) => {
                            self.seats.forget(job);
                            self.connections.believed(conn);
                        }
                    }
                }
                Err(refusal) => self
                    .connections
                    .answer(conn, message.id, Response::Refused(refusal)),
            }
            for message in held_up.into_iter().flatten() {
                self.message(conn, message);
            }
        }
        self.look_seats_up();
    }

    /// Journals a seat, which spares the next `hopd` a question to Slurm.
    pub(super) fn write_seat(&mut self, job: JobId, seat: Option<Seat>) {
        let change = (JournalKey::Seat(job), seat.map(JournalValue::Seat));
        self.records.write(vec![change], Vec::new());
    }

    // --- agents ---

    fn of_agent(&mut self, conn: ConnId, access: &Access, body: Request) -> Result<Answer, Refusal> {
        let body = match body {
            Request::AgentUp(up) => {
                let (pilot, node) = (up.pilot, up.node.clone());
                let heard = self.agent_up(conn, *up);
                if let Err(refusal) = &heard {
                    warn!(%pilot, %node, "an agent is refused: {refusal}");
                    self.agent_is_down(pilot, Down::Refused(refusal.to_string()));
                }
                return heard.map(|()| DONE);
            }
            Request::AgentFailed { pilot, node, reason } => {
                warn!(%pilot, %node, "an agent can't start: {reason}");
                self.agent_is_down(pilot, Down::CannotStart(reason));
                return Ok(DONE);
            }
            body => body,
        };
        let pilot = access.pilot()?;
        match body {
            Request::LeaseStarted { lease, handover } => self.lease_started(pilot, lease, handover),
            Request::LeaseFailed {
                lease,
                reason,
                device_lost,
            } => {
                warn!(%lease, %pilot, "a lease did not start: {reason}");
                self.start_failed(pilot, lease, &reason);
                self.todo.push_back(Input::LeaseFailed {
                    lease,
                    pilot,
                    reason,
                    device_lost,
                });
            }
            Request::SlotBlocked { index, reason, lost } => {
                warn!(%pilot, gpu = %index, "a GPU can't be lent: {reason}");
                self.todo.push_back(Input::SlotBlocked {
                    pilot,
                    index,
                    reason,
                    lost,
                });
            }
            Request::SlotUnblocked { index } => {
                info!(%pilot, gpu = %index, "a blocked GPU is free");
                self.todo.push_back(Input::SlotUnblocked { pilot, index });
            }
            Request::NodeStands(standing) => self.node_stands(pilot, standing),
            Request::LeaseEnded(ended) => {
                self.ended_unknown(pilot, &ended);
                self.was_held(pilot, &ended);
                let ended = views::reported_end(&ended);
                self.todo.push_back(Input::LeaseEnded { pilot, ended });
            }
            _ => unreachable!("sorted by its sender"),
        }
        Ok(DONE)
    }

    fn agent_is_down(&mut self, pilot: JobId, why: Down) {
        let now = self.clock.now();
        self.pilot_jobs.agent_is_down(pilot, why, now);
    }

    /// The jobs of the pilots that the core knows.
    pub(super) fn live_pilots(&self) -> BTreeSet<JobId> {
        self.core.pilots().into_iter().map(|p| p.pilot).collect()
    }

    fn node_stands(&mut self, pilot: JobId, standing: NodeStanding) {
        for (gpu, lease) in &standing.freed {
            info!(%pilot, %gpu, %lease, "what the lease had left blocked is free");
        }
        let live = self.live_pilots();
        self.standings.retain(|known, _| live.contains(known));
        self.standings.insert(pilot, standing);
    }

    fn agent_up(&mut self, conn: ConnId, mut up: AgentUp) -> Result<(), Refusal> {
        if up.term > self.term {
            return Err(Refusal::Forbidden {
                reason: format!(
                    "node {} obeys term {}, this hopd is of term {}: another hopd has run since, or {} is an older \
                     copy. If no other runs, write {} into the file {} there, and start hopd again",
                    up.node,
                    up.term,
                    self.term,
                    self.config.hopd.state_dir.display(),
                    up.term,
                    crate::state_dir::TERM,
                ),
            });
        }
        self.pool_exists(&up.pool)?;
        if let Some(open) = self.connections.get_mut(conn) {
            open.ended.append(&mut up.ended);
            if up.more {
                return Ok(());
            }
            up.ended = std::mem::take(&mut open.ended);
        }
        info!(pilot = %up.pilot, node = %up.node, leases = up.leases.len(), ended = up.ended.len(), "an agent is up");
        self.connections.is_agent(conn, up.pilot);
        if let Some(standing) = up.standing.clone() {
            self.standings.insert(up.pilot, standing);
        }
        self.pilot_jobs.node_works(up.pilot, &up.node);
        let known = self.core.pilots().iter().any(|p| p.pilot == up.pilot);
        let now = self.clock.now();
        let acts = self.pilot_jobs.agent_up(up.pilot, &up.pool, known, now);
        self.act(acts);
        let mut rows = Vec::new();
        for live in &up.leases {
            let lease = live.order.lease;
            rows.extend(
                self.records
                    .rows
                    .adopt(&up.node, &live.order, Some(&live.handover)),
            );
            self.records.rows.step(lease, live.handover.step);
            self.handovers.insert(lease, live.handover.clone());
        }
        for ended in up
            .ended
            .iter()
            .filter(|e| self.core.lease(e.order.lease).is_none())
        {
            rows.extend(self.records.rows.ended_on_node(&up.node, ended));
        }
        self.records.write(Vec::new(), rows);
        for ended in &up.ended {
            self.was_held(up.pilot, ended);
        }
        let node_drains = self.drains.reason(&up.node).is_some();
        let drains = node_drains || self.pilot_jobs.refusal(&up.pool).is_some();
        let up = views::pilot_up(up, self.clock.skew(), drains);
        self.todo.push_back(Input::PilotUp(up));
        Ok(())
    }

    /// A lease that was withdrawn while the plugin was at work was held for a moment all the same.
    fn was_held(&mut self, pilot: JobId, ended: &EndedLease) {
        let lease = ended.order.lease;
        let withdrawn = |l: hop_core::LeaseView| l.state == "ENDING" && l.started.is_none();
        if let Some(handover) = &ended.handover
            && self.core.lease(lease).is_some_and(withdrawn)
        {
            self.records.rows.step(lease, handover.step);
            let devices = handover.devices.iter().map(|d| d.index).collect();
            self.todo.push_back(Input::LeaseStarted {
                lease,
                pilot,
                devices,
            });
        }
    }

    /// Writes the rows of a lease that the core doesn't know.
    fn ended_unknown(&mut self, pilot: JobId, ended: &EndedLease) {
        if self.core.lease(ended.order.lease).is_some() {
            return;
        }
        let pilots = self.core.pilots();
        let node = pilots.iter().find(|p| p.pilot == pilot).map(|p| p.node.clone());
        let rows = self
            .records
            .rows
            .ended_on_node(&node.unwrap_or_else(|| "".into()), ended);
        self.records.write(Vec::new(), rows);
    }

    fn lease_started(&mut self, pilot: JobId, lease: LeaseId, handover: Handover) {
        info!(%lease, %pilot, step = handover.step, "a lease has started");
        self.failed_starts.started(pilot);
        self.records.rows.step(lease, handover.step);
        let devices = handover.devices.iter().map(|d| d.index).collect();
        self.handovers.insert(lease, handover);
        self.todo.push_back(Input::LeaseStarted {
            lease,
            pilot,
            devices,
        });
    }

    /// After a start: leases with open rows, unknown to the core and reported by no agent.
    pub(super) fn orphans_over(&mut self) {
        let orphans: Vec<LeaseId> = self
            .records
            .rows
            .open()
            .map(|(id, _)| id)
            .filter(|id| self.core.lease(*id).is_none() && !self.handovers.contains_key(id))
            .collect();
        for lease in &orphans {
            warn!(%lease, "nobody knows what became of this lease: its row is closed");
        }
        let started = self.started;
        let rows: Vec<_> = orphans
            .into_iter()
            .flat_map(|id| self.records.rows.lost(id, started))
            .collect();
        self.records.write(Vec::new(), rows);
    }

    // --- fronts ---

    fn of_front(&mut self, conn: ConnId, access: &Access, message: ToHopd) -> Result<Answer, Refusal> {
        let user = &access.caller.user;
        match message.body {
            Request::PlaceKernel(place) => return self.place(conn, access, message.id, place),
            Request::FrontUp { kernel } => {
                access.owns(self.owner_of(&kernel), &kernel)?;
                self.may_name_kernel(access, &kernel)?;
                self.owned_now(&kernel, user);
                self.connections.listen(conn, &kernel);
            }
            Request::CloseKernel { kernel } => {
                access.owns(self.owner_of(&kernel), &kernel)?;
                self.drop_asleep(&kernel);
                self.todo.push_back(Input::CloseKernel { kernel });
            }
            Request::LeaveKernel { kernel } => {
                access.owns(self.owner_of(&kernel), &kernel)?;
                let executor = self.registry.executor(&kernel);
                if executor.and_then(|(_, replica)| replica.conn).is_none() {
                    self.hibernated(kernel);
                }
            }
            Request::RenameKernel { kernel, name } => {
                access.owns(self.owner_of(&kernel), &kernel)?;
                self.rename_asleep(&kernel, &name);
            }
            _ => unreachable!("sorted by its sender"),
        }
        Ok(DONE)
    }

    fn place(
        &mut self,
        conn: ConnId,
        access: &Access,
        id: u64,
        place: hop_api::message::PlaceKernel,
    ) -> Result<Answer, Refusal> {
        let user = &access.caller.user;
        access::check_place(&place)?;
        let owner = self.owner_of(&place.kernel);
        if owner.is_some_and(|o| o != user) {
            return Err(access::not_yours(&place.kernel));
        }
        self.may_open_kernel(access, &place.kernel)?;
        let pool = place.pool.clone().unwrap_or_else(|| self.default_pool());
        self.pool_lends(&pool)?;
        if place.replaces {
            self.is_replaced(&place.kernel);
        }
        self.registry.placing(place.kernel.clone(), conn, id);
        let seat = &self.config.seat;
        self.todo.push_back(Input::PlaceKernel(hop_core::PlaceReplica {
            kernel: place.kernel,
            user: user.clone(),
            // Slurm names the charged account once a seat is there: the asker doesn't choose the limits.
            account: None,
            pool,
            first: place.first,
            default_need: place.default_need,
            mem_mib: if place.mem_mib == 0 {
                seat.mem_mib
            } else {
                place.mem_mib
            },
            cpus: if place.cpus == 0 { seat.cpus } else { place.cpus },
            avoid: place.avoid,
            name: text::name(&place.name),
        }));
        Ok(Answer::Later)
    }

    // --- pools, owners ---

    pub(super) fn pool_exists(&self, pool: &PoolName) -> Result<(), Refusal> {
        match self.config.pool.contains_key(pool) {
            true => Ok(()),
            false => Err(Refusal::NotFound {
                what: format!("pool {pool}"),
            }),
        }
    }

    pub(super) fn pool_lends(&self, pool: &PoolName) -> Result<(), Refusal> {
        self.pool_exists(pool)?;
        match self.pilot_jobs.refusal(pool) {
            Some(why) => Err(Refusal::Unavailable {
                reason: format!("pool {pool} is not lent: {why}"),
            }),
            None => Ok(()),
        }
    }

    pub(super) fn default_pool(&self) -> PoolName {
        self.config.default_pool()
    }

    pub(super) fn owner_of(&self, kernel: &KernelId) -> Option<&UserName> {
        self.registry.owner(kernel).or_else(|| self.core.owner(kernel))
    }

    pub(super) fn owned_now(&mut self, kernel: &KernelId, user: &UserName) {
        if self.registry.own(kernel, user) {
            let change = (
                JournalKey::Owner(kernel.clone()),
                Some(JournalValue::Owner(user.clone())),
            );
            self.records.write(vec![change], Vec::new());
        }
    }
}
