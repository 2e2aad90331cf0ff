//! Kernels as their users see and steer them: listed, moved, put to sleep, woken, forgotten.

use super::kept::Asleep;
use super::requests::{Answer, DONE};
use super::{JournalKey, JournalValue, Scheduler};
use crate::access::{self, Access};
use crate::views;
use hop_api::message::{
    Event, Explanation, HibernateTarget, KernelItem, KernelRow, KernelState, KernelsQuery, LossStage,
    Refusal, ReplicaRole, ReplicaRow, Request, Response, Told,
};
use hop_core::{Doing, Input, KernelView, MoveCause, Output};
use hop_words::explain::Parts;
use hop_words::id::{CellId, Incarnation, KernelId, NodeName, UserName};
use hop_words::text;
use std::collections::HashSet;
use tracing::info;

impl Scheduler {
    pub(super) fn of_owner(&mut self, access: &Access, body: Request) -> Result<Answer, Refusal> {
        match body {
            Request::Kernels(query) => self.kernels(access, &query),
            Request::Migrate { kernel, to, force } => self.migrate(access, kernel, to, force),
            Request::Hibernate { target, force } => self.hibernate(access, target, force),
            Request::Wake { kernel } => self.wake(access, &kernel),
            Request::Forget { kernel } => self.forget_asleep(access, &kernel),
            _ => unreachable!("chosen by the caller"),
        }
    }

    // --- listed ---

    fn kernels(&self, access: &Access, query: &KernelsQuery) -> Result<Answer, Refusal> {
        let all = query.all_users || query.visible && access.caller.operator;
        let users = access.may_see(all, &query.users)?;
        let wanted = |user: &UserName| users.as_ref().is_none_or(|u| u.contains(user));
        let on = |row: &KernelRow| {
            let mut replicas = row.replicas.iter();
            query.nodes.is_empty() || replicas.any(|r| query.nodes.contains(&r.node))
        };
        let open = self.core.kernels().into_iter().filter(|k| wanted(&k.user));
        let mut rows: Vec<KernelRow> = open.map(|k| self.kernel_row(k)).filter(on).collect();
        let asleep = self.kept.all_asleep().filter(|(_, a)| wanted(&a.user));
        // A kernel that hibernated a moment ago may still have a lease.
        let there: HashSet<KernelId> = rows.iter().map(|r| r.kernel.clone()).collect();
        let asleep: Vec<_> = asleep
            .filter(|(id, _)| !there.contains(*id))
            .map(|(id, a)| asleep_row(id, a))
            .filter(on)
            .collect();
        rows.extend(asleep);
        Ok(Answer::Now(Response::Kernels { rows }))
    }

    fn kernel_row(&self, k: KernelView) -> KernelRow {
        let id = &k.kernel;
        let moving = self.kept.moving(id).map(|m| m.row.clone());
        let saves = self.kept.saves_since(id);
        let executor = self.registry.executor(id);
        let leader = executor.and_then(|(me, r)| r.leader_among(me.incarnation));
        let lost = self.kept.loss(id).cloned();
        let (state, since) = match (&lost, saves, &moving) {
            // The front has given the executor up, and with it the executor's save or move.
            (Some(loss), ..) if loss.stage == LossStage::Replacing => (KernelState::Replacing, loss.since),
            (_, Some(since), _) => (KernelState::Hibernating, since),
            (_, None, Some(moving)) => (KernelState::Moving, moving.since),
            (Some(loss), None, None) => (loss.stage.state(), loss.since),
            (None, None, None) => (does(k.doing), k.since),
        };
        KernelRow {
            state,
            since,
            tenure: self.registry.tenure(id),
            wanted: executor.map_or(1, |(_, r)| r.wanted),
            replicas: {
                let mut rows: Vec<ReplicaRow> = k.replicas.into_iter().map(executor_row).collect();
                let known: Vec<_> = rows.iter().map(|r| r.incarnation).collect();
                let standbys = executor.map_or(&[][..], |(_, r)| &r.standbys);
                rows.extend(
                    standbys
                        .iter()
                        .filter(|s| !known.contains(&s.incarnation))
                        .cloned(),
                );
                for row in rows.iter_mut().filter(|row| Some(row.incarnation) == leader) {
                    row.behind = Some(0);
                }
                rows
            },
            leader,
            lease: k.lease,
            moving,
            move_failed: self.kept.failure(id).cloned(),
            captured: executor.is_some_and(|(_, r)| r.captured),
            unsaved: executor.and_then(|(_, r)| r.unsaved.clone()),
            bound: executor.map_or_else(Vec::new, |(_, r)| r.bound.reasons()),
            executor: executor.map(|(id, _)| id.incarnation),
            account: k.account,
            mem_mib: k.mem_mib,
            cpus: k.cpus,
            stayed: self.kept.stayed(id).cloned(),
            lost,
            name: k.name,
            user: k.user,
            pool: k.pool,
            kernel: k.kernel,
        }
    }

    /// Why a cell waits, and where its kernel stands.
    pub(super) fn explain(
        &self,
        access: &Access,
        kernel: KernelId,
        cell: Option<CellId>,
    ) -> Result<Answer, Refusal> {
        access.owns(self.owner_of(&kernel), &kernel)?;
        let about = match cell {
            None => self.about_kernel(&kernel),
            Some(_) => Vec::new(),
        };
        let is_known = self.core.kernel(&kernel).is_some() || self.kept.asleep(&kernel).is_some();
        let starts = about
            .iter()
            .any(|told| matches!(told, Told::Kernel(KernelItem::Starts { .. })));
        let items = match views::explain(&self.core, &kernel, cell.as_ref()) {
            Ok(mut items) => {
                self.explain_slurms_word(&mut items);
                [items, about].concat()
            }
            // The cells of a kernel that starts are with its front.
            Err(_) if starts => about,
            Err(_) if is_known && cell.is_none() => [vec![KernelItem::NoCell.into()], about].concat(),
            Err(refusal) => return Err(refusal),
        };
        let explanation = Explanation::new(kernel, cell, items);
        Ok(Answer::Now(Response::Explanation(explanation)))
    }

    /// Statements on a kernel's start, sleep and moves, and on the obstacles to them.
    fn about_kernel(&self, kernel: &KernelId) -> Vec<Told> {
        let mut items = Vec::from_iter(self.about_start(kernel));
        items.extend(self.about_seat(kernel));
        if self.kept.asleep(kernel).is_some() {
            items.push(KernelItem::Asleep);
        }
        items.extend(self.kept.loss(kernel).cloned().map(KernelItem::Lost));
        let executor = self.registry.executor(kernel);
        if let Some((id, executor)) = executor
            && !executor.standbys.is_empty()
        {
            items.push(KernelItem::Replicas(Parts {
                executor: id.incarnation,
                node: executor.node.clone(),
                away: executor.conn.is_none(),
                leader: executor.leader_among(id.incarnation),
                standbys: executor.standbys.clone(),
            }));
        }
        if let Some(why) = executor.and_then(|(_, r)| r.unsaved.clone()) {
            items.push(KernelItem::Unsaved { why });
        }
        if let Some(m) = self.kept.moving(kernel) {
            items.push(KernelItem::Moves(m.row.clone()));
        }
        let seat = executor.map(|(_, r)| r.seat.job);
        if let Some((job, at)) = seat.and_then(|job| Some((job, self.endings.end_of(job)?))) {
            let within = at.since(self.clock.now());
            items.push(KernelItem::SeatEnds { job, within });
        }
        if let Some(failed) = self.kept.failure(kernel) {
            items.push(KernelItem::MoveFailed(failed.clone()));
        }
        if let Some(why) = self.kept.stayed(kernel) {
            let why = why.clone();
            items.push(KernelItem::StayedAwake { why });
        }
        let pool = self.core.pool_of(kernel);
        let moves = pool.and_then(|pool| self.config.pool.get(pool)?.migrate.as_ref());
        if let (Some(_), Some(why)) = (moves, self.core.kernel(kernel).and_then(|k| k.fixed)) {
            items.push(KernelItem::Stays { why });
        }
        items.into_iter().map(Told::from).collect()
    }

    /// The start of a kernel without a process, whose notebook is open. Its first cells are with its front, and
    /// unknown to `hopd`. A kernel whose front is gone may be listed for a day.
    fn about_start(&self, kernel: &KernelId) -> Option<KernelItem> {
        let view = self.core.kernel(kernel)?;
        let starts = view.doing == Doing::Starting && self.connections.is_heard(kernel);
        starts.then(|| KernelItem::Starts {
            time: self.clock.now().since(view.since),
        })
    }

    /// Seats that Slurm has not started, where the kernel's next process may be to sit in one.
    fn about_seat(&self, kernel: &KernelId) -> Vec<KernelItem> {
        let starts = self.registry.executor(kernel).is_none() && self.connections.is_heard(kernel);
        let waits = starts || self.kept.moving(kernel).is_some() || self.kept.loss(kernel).is_some();
        let user = self.owner_of(kernel).filter(|_| waits);
        let seats = user.into_iter().flat_map(|user| self.news.waiting_seats(user));
        let items = seats.map(|seat| KernelItem::SeatWaits {
            job: seat.job,
            why: access::printable(&seat.why, access::REASON),
        });
        items.collect()
    }

    // --- moved ---

    fn migrate(
        &mut self,
        access: &Access,
        kernel: KernelId,
        to: Option<NodeName>,
        force: bool,
    ) -> Result<Answer, Refusal> {
        access.owns(self.owner_of(&kernel), &kernel)?;
        self.may_leave(&kernel, "moved", force)?;
        self.ask_core_to_move(&kernel, None, to, MoveCause::Asked)
            .map_err(|why| stays("moved", &kernel, &why))?;
        Ok(DONE)
    }

    /// Has the core look for a place; the reason where there is none.
    pub(super) fn ask_core_to_move(
        &mut self,
        kernel: &KernelId,
        from: Option<NodeName>,
        to: Option<NodeName>,
        cause: MoveCause,
    ) -> Result<(), String> {
        let mut out = Vec::new();
        let input = Input::Migrate {
            kernel: kernel.clone(),
            from,
            to,
            cause,
        };
        self.core.handle(input, self.clock.now(), &mut out);
        let refused = out.iter().find_map(|o| match o {
            Output::MoveRefused { reason, .. } => Some(reason.to_string()),
            _ => None,
        });
        self.carry_out(out);
        refused.map_or(Ok(()), Err)
    }

    /// Whether the kernel's state can be taken elsewhere. The refusal names what would be lost.
    fn may_leave(&self, kernel: &KernelId, what: &str, force: bool) -> Result<(), Refusal> {
        let refuse = |why: &str| Err(stays(what, kernel, why));
        if self.kept.asleep(kernel).is_some() {
            return refuse("it sleeps");
        }
        let Some((_, executor)) = self.registry.executor(kernel) else {
            return refuse("no process of it is up");
        };
        if executor.conn.is_none() {
            return refuse("its process does not answer at the moment");
        }
        if !executor.may_be_asked_to_leave() {
            return refuse("its state is not saved, so its variables would be lost");
        }
        match &executor.bound.reasons()[..] {
            [] => Ok(()),
            _ if force => Ok(()),
            reasons => refuse(&format!("{} --force does it all the same", reasons.join(" "))),
        }
    }

    /// The executor says that a move has failed.
    pub(super) fn move_failed(&mut self, kernel: KernelId, incarnation: Incarnation, reason: &str) {
        let reason = access::printable(reason, access::REASON);
        info!(%kernel, %incarnation, "a move failed: {reason}");
        self.kept
            .move_failed(&kernel, incarnation, reason, self.clock.now());
        self.todo
            .push_back(Input::MigrationFailed { kernel, incarnation });
    }

    // --- asleep ---

    fn hibernate(
        &mut self,
        access: &Access,
        target: HibernateTarget,
        force: bool,
    ) -> Result<Answer, Refusal> {
        let (wanted, one) = match target {
            HibernateTarget::Kernel { kernel } => {
                access.owns(self.owner_of(&kernel), &kernel)?;
                (vec![kernel], true)
            }
            HibernateTarget::All { node } => (self.awake_of(access, node.as_ref()), false),
        };
        let (mut kernels, mut refused) = (Vec::new(), Vec::new());
        for kernel in wanted {
            match self.may_leave(&kernel, "hibernated", force) {
                Err(refusal) if one => return Err(refusal),
                Err(refusal) => refused.push((kernel, refusal.to_string())),
                Ok(()) => {
                    self.ask_to_sleep(&kernel, format!("{} asked for it", access.caller.user));
                    kernels.push(kernel);
                }
            }
        }
        Ok(Answer::Now(Response::Asked { kernels, refused }))
    }

    /// The open kernels of the caller, or everybody's for an operator, with a replica on the node.
    fn awake_of(&self, access: &Access, node: Option<&NodeName>) -> Vec<KernelId> {
        let caller = &access.caller;
        let open = self.core.kernels().into_iter();
        let theirs = open.filter(|k| caller.operator || k.user == caller.user);
        let there = theirs.filter(|k| {
            let mut replicas = k.replicas.iter();
            node.map_or(!k.replicas.is_empty(), |n| replicas.any(|r| r.node == *n))
        });
        there.map(|k| k.kernel).collect()
    }

    fn ask_to_sleep(&mut self, kernel: &KernelId, reason: String) {
        let Some(conn) = self.registry.executor(kernel).and_then(|(_, r)| r.conn) else {
            return;
        };
        info!(%kernel, "asked to hibernate: {reason}");
        self.kept.asked_to_sleep(kernel.clone(), self.clock.now());
        let event = Event::Hibernate {
            kernel: kernel.clone(),
            reason,
        };
        self.connections.send(conn, 0, Response::Event(event));
    }

    /// The kernel's state is whole in its user's home: only the fact of the sleep is kept here.
    pub(super) fn hibernated(&mut self, kernel: KernelId) {
        let Some(view) = self.core.kernel(&kernel) else {
            return;
        };
        info!(%kernel, user = %view.user, "a kernel hibernates");
        for id in self.registry.of_kernel(&kernel) {
            let gone = self.registry.remove(&id);
            if let Some(conn) = gone.and_then(|r| r.conn) {
                self.connections.replica_left(conn, &id);
            }
        }
        self.tell_homes();
        let asleep = Asleep {
            user: view.user.clone(),
            name: view.name,
            pool: view.pool,
            since: self.clock.now(),
            tenure: self.registry.tenure(&kernel),
        };
        let value = JournalValue::Asleep(Box::new(asleep.clone()));
        let change = (JournalKey::Asleep(kernel.clone()), Some(value));
        self.records.write(vec![change], Vec::new());
        self.owned_now(&kernel, &view.user);
        self.kept.falls_asleep(kernel.clone(), asleep);
        for oldest in self.kept.too_many(&view.user, self.config.quota.asleep) {
            info!(kernel = %oldest, "more kernels hibernate than are kept: this one is forgotten");
            self.drop_asleep(&oldest);
        }
        self.todo.push_back(Input::Hibernated { kernel });
    }

    pub(super) fn hibernate_refused(&mut self, kernel: &KernelId, reason: &str) {
        let reason = access::printable(reason, access::REASON);
        info!(%kernel, "it does not hibernate: {reason}");
        self.kept.stays(kernel, reason);
    }

    /// A process of the kernel's is there, or will be.
    pub(super) fn awake(&mut self, kernel: &KernelId) {
        if self.kept.wakes(kernel) {
            info!(%kernel, "a kernel wakes");
            let change = (JournalKey::Asleep(kernel.clone()), None);
            self.records.write(vec![change], Vec::new());
        }
    }

    /// The notebook of a kernel that sleeps has another name.
    pub(super) fn rename_asleep(&mut self, kernel: &KernelId, name: &str) {
        let Some(asleep) = self.kept.rename(kernel, text::name(name)) else {
            return;
        };
        info!(%kernel, user = %asleep.user, "the notebook of a kernel that hibernates has another name");
        let value = JournalValue::Asleep(Box::new(asleep.clone()));
        let change = (JournalKey::Asleep(kernel.clone()), Some(value));
        self.records.write(vec![change], Vec::new());
    }

    /// Forgets a kernel that sleeps.
    pub(super) fn drop_asleep(&mut self, kernel: &KernelId) {
        if self.kept.asleep(kernel).is_some() {
            self.awake(kernel);
            if self.core.kernel(kernel).is_none() {
                self.forget(kernel);
            }
        }
    }

    fn wake(&mut self, access: &Access, kernel: &KernelId) -> Result<Answer, Refusal> {
        access.owns(self.owner_of(kernel), kernel)?;
        let Some(asleep) = self.kept.asleep(kernel) else {
            return Err(Refusal::Invalid {
                reason: format!("kernel {kernel} is awake"),
            });
        };
        let name = asleep.name.clone();
        let event = Event::Wake {
            kernel: kernel.clone(),
        };
        if self.connections.tell_fronts(kernel, &event) {
            return Ok(DONE);
        }
        let notebook = match name.as_str() {
            "" => "its notebook".to_owned(),
            name => format!("its notebook ({name})"),
        };
        Err(Refusal::Unavailable {
            reason: format!("no Jupyter server has kernel {kernel} open: open {notebook}, and it comes back"),
        })
    }

    fn forget_asleep(&mut self, access: &Access, kernel: &KernelId) -> Result<Answer, Refusal> {
        access.owns(self.owner_of(kernel), kernel)?;
        if self.kept.asleep(kernel).is_none() {
            return Err(Refusal::Invalid {
                reason: format!(
                    "kernel {kernel} does not sleep: `hop cancel --kernel {kernel}` closes one that is open"
                ),
            });
        }
        info!(%kernel, by = %access.caller.user, "a kernel that hibernates is forgotten");
        self.drop_asleep(kernel);
        Ok(DONE)
    }
}

fn does(doing: Doing) -> KernelState {
    match doing {
        Doing::Starting => KernelState::Starting,
        Doing::Moving => KernelState::Moving,
        Doing::Running => KernelState::Running,
        Doing::Waiting => KernelState::Waiting,
        Doing::Idle => KernelState::Idle,
    }
}

fn executor_row(r: hop_core::ReplicaView) -> ReplicaRow {
    ReplicaRow {
        incarnation: r.incarnation,
        role: ReplicaRole::Executor,
        node: r.node,
        seat: r.seat,
        behind: None,
    }
}

fn asleep_row(kernel: &KernelId, asleep: &Asleep) -> KernelRow {
    KernelRow {
        kernel: kernel.clone(),
        name: asleep.name.clone(),
        user: asleep.user.clone(),
        pool: asleep.pool.clone(),
        state: KernelState::Asleep,
        since: asleep.since,
        tenure: asleep.tenure,
        wanted: 0,
        replicas: Vec::new(),
        lease: None,
        moving: None,
        move_failed: None,
        captured: true,
        unsaved: None,
        bound: Vec::new(),
        executor: None,
        leader: None,
        account: None,
        mem_mib: 0,
        cpus: 0,
        stayed: None,
        lost: None,
    }
}

fn stays(what: &str, kernel: &KernelId, why: &str) -> Refusal {
    Refusal::Invalid {
        reason: format!("kernel {kernel} can't be {what}: {why}"),
    }
}
