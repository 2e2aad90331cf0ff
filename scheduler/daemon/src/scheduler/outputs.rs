//! Carries out what the core decided: orders to agents, events to kernels, pilots to Slurm, rows and entries to disk.

use super::records::{Change, JournalKey, JournalValue};
use super::{Due, Report, Scheduler};
use crate::access;
use crate::parks;
use crate::pilot_jobs::{Act, PilotRequest};
use hop_api::config::{Pool, Quantum, StepNames};
use hop_api::message::{Event, Grant, MoveCause, Order, Placement, Refusal, Response, SeatPlan, StartLease};
use hop_core::{Input, Output, Withdrawal};
use hop_words::id::{CellId, Incarnation, JobId, KernelId, LeaseId, NodeName, ReplicaId};
use hop_words::need::Class;
use hop_words::time::{Span, Timestamp};
use std::time::Duration;
use tracing::{info, warn};

/// Most ends acknowledged at once, a quarter of what may wait for a caller.
const ACKNOWLEDGED: usize = 1024;
const ACKNOWLEDGE_PAUSE: Duration = Duration::from_millis(100);

impl Scheduler {
    /// Writes the records first, then carries out the other outputs in order. Ends are acknowledged when they are on
    /// disk.
    pub(super) fn carry_out(&mut self, outputs: Vec<Output>) {
        let (mut changes, mut rows, mut acknowledged): (Vec<Change>, _, _) =
            (Vec::new(), Vec::new(), Vec::new());
        let mut rest = Vec::new();
        for output in outputs {
            match output {
                Output::Journal(entry) => {
                    changes.push((JournalKey::Core(entry.key), entry.value.map(JournalValue::Core)));
                }
                Output::Record(record) => rows.extend(self.records.rows.enter(record)),
                Output::EndAcknowledged { lease, pilot } => acknowledged.push((lease, pilot)),
                other => rest.push(other),
            }
        }
        self.records.write(changes, rows);
        if !acknowledged.is_empty() {
            self.records.when_durable(acknowledged);
        }
        for output in rest {
            tracing::debug!(?output, "output");
            self.carry_out_one(output);
        }
    }

    /// Tells agents to forget these leases. After hours with a full disk there are thousands at once: more than may wait
    /// unread for an agent go later.
    pub(super) fn acknowledge(&mut self, mut ended: Vec<(LeaseId, JobId)>) {
        let rest = ended.split_off(ended.len().min(ACKNOWLEDGED));
        if !rest.is_empty() {
            let reports = self.reports.clone();
            tokio::spawn(async move {
                tokio::time::sleep(ACKNOWLEDGE_PAUSE).await;
                let _ = reports.send(Report::Durable(rest));
            });
        }
        for (lease, pilot) in ended {
            self.handovers.remove(&lease);
            self.parks.over(lease);
            let term = self.term;
            self.connections
                .order(pilot, Order::EndAcknowledged { term, lease });
        }
    }

    fn carry_out_one(&mut self, output: Output) {
        match output {
            Output::StartLease(_)
            | Output::EndLease { .. }
            | Output::DrainPilot { .. }
            | Output::SubmitPilot { .. }
            | Output::CancelPilot { .. } => self.for_pilots(output),
            Output::Granted { .. }
            | Output::Queued { .. }
            | Output::Refused { .. }
            | Output::Revoked { .. }
            | Output::Held { .. }
            | Output::CloseKernel { .. } => self.for_kernels(output),
            Output::Place { kernel, seat } => self.placed(&kernel, Ok(seat)),
            Output::PlaceRefused { kernel, reason } => self.placed(&kernel, Err(reason.to_string())),
            Output::Park {
                kernel,
                lease,
                cell,
                reason,
            } => self.ask_to_park(kernel, lease, cell, reason.to_string()),
            Output::Migrate {
                kernel,
                victim,
                seat,
                cause,
            } => self.ask_to_move(kernel, victim, seat, cause),
            // Whoever asked has the core's answer already.
            Output::MoveRefused { .. } => {}
            Output::MoveWithdrawn {
                kernel,
                incarnation,
                why,
                ..
            } => self.move_withdrawn(kernel, incarnation, why),
            Output::Forget { kernel } => self.forget(&kernel),
            Output::Record(_) | Output::Journal(_) | Output::EndAcknowledged { .. } => {}
        }
    }

    // --- pilots ---

    fn for_pilots(&mut self, output: Output) {
        let term = self.term;
        match output {
            Output::StartLease(start) => self.start_lease(start),
            Output::EndLease {
                lease,
                pilot,
                cause,
                grace,
            } => {
                let order = Order::EndLease {
                    term,
                    lease,
                    cause,
                    grace,
                };
                self.connections.order(pilot, order);
            }
            Output::DrainPilot { pilot } => {
                self.pilot_jobs.drains(pilot);
                self.connections.order(pilot, Order::Drain { term });
            }
            Output::SubmitPilot {
                ticket,
                pool,
                partition,
                node,
                gpus,
                gpu_type,
            } => {
                let request = PilotRequest {
                    pool,
                    partition,
                    node,
                    gpus,
                    gpu_type,
                };
                let acts = self.pilot_jobs.want(ticket, request, self.clock.now());
                self.act(acts);
            }
            Output::CancelPilot { ticket, job } => {
                let acts = self.pilot_jobs.cancel(ticket, job);
                self.act(acts);
            }
            _ => unreachable!("the caller has chosen"),
        }
    }

    fn step_name(&self, start: &hop_core::DecidedLease) -> String {
        match self.config.hopd.step_names {
            StepNames::Notebook => access::step_name(&start.user, &start.name, &start.kernel),
            StepNames::Lease => access::step_name(&start.user, &start.lease.to_string(), &start.kernel),
        }
    }

    fn start_lease(&mut self, start: hop_core::DecidedLease) {
        let replica = ReplicaId {
            kernel: start.kernel.clone(),
            incarnation: start.executor,
        };
        let executor = self.registry.replica(&replica).map(|r| r.seat.clone());
        let problem = match executor {
            None => "its executor is not connected",
            Some(_) if !self.connections.has_agent(start.pilot) => "its agent is not connected",
            Some(executor) => {
                let order = StartLease {
                    term: self.term,
                    lease: start.lease,
                    pilot: start.pilot,
                    step_name: self.step_name(&start),
                    user: start.user,
                    account: start.account,
                    pool: start.pool,
                    kernel: start.kernel,
                    name: start.name,
                    cell: start.cell,
                    submit: start.submit,
                    executor,
                    gpus: start.gpus,
                    gpu_type: start.gpu_type,
                    cpus: start.cpus,
                };
                self.watch_start(start.lease);
                return self.connections.order(start.pilot, Order::StartLease(order));
            }
        };
        self.todo.push_back(Input::LeaseFailed {
            lease: start.lease,
            pilot: start.pilot,
            reason: problem.into(),
            device_lost: false,
        });
    }

    pub(super) fn act(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Tell(input) => self.todo.push_back(input),
                Act::Say(text) => warn!("{text}"),
                Act::Scancel(job) => {
                    let slurm = self.slurm.clone();
                    tokio::spawn(async move {
                        if let Err(reason) = slurm.scancel(job).await {
                            warn!(%job, "scancel failed: {reason}");
                        }
                    });
                }
                Act::Sbatch {
                    ticket,
                    request,
                    exclude,
                } => self.sbatch(ticket, request, exclude),
            }
        }
        let now = self.clock.now();
        if let Some(at) = self.pilot_jobs.next_wake(now) {
            self.due.insert((at, Due::Submit));
        }
    }

    fn sbatch(&self, ticket: u64, request: PilotRequest, exclude: Vec<NodeName>) {
        info!(
            ticket,
            pool = %request.pool,
            partition = request.partition,
            node = request.node.as_ref().map(NodeName::as_str),
            gpus = request.gpus,
            "a pilot is submitted"
        );
        let (slurm, reports, stepmgr) = (self.slurm.clone(), self.reports.clone(), self.news.stepmgr);
        tokio::spawn(async move {
            let answer = slurm.sbatch(ticket, &request, exclude, stepmgr).await;
            let _ = reports.send(Report::Submitted { ticket, answer });
        });
    }

    // --- kernels ---

    pub(super) fn for_kernels(&mut self, output: Output) {
        let (kernel, event) = match output {
            Output::Granted { .. } => match self.granted(output) {
                Some(granted) => granted,
                None => return,
            },
            Output::Queued {
                kernel,
                cell,
                position,
                reason,
                estimate,
            } => {
                let range = self.likely(&kernel, &cell, estimate);
                let event = Event::Queued {
                    kernel: kernel.clone(),
                    cell,
                    position,
                    reason: self.worded(&reason),
                    estimate,
                    range,
                };
                (kernel, event)
            }
            Output::Refused { kernel, cell, reason } => {
                self.estimates.over(&kernel, &cell);
                let reason = reason.to_string();
                (kernel.clone(), Event::Refused { kernel, cell, reason })
            }
            Output::Revoked {
                kernel,
                lease,
                cause,
                reason,
                grace,
            } => {
                let event = Event::Revoked {
                    kernel: kernel.clone(),
                    lease,
                    cause,
                    reason: reason.to_string(),
                    grace,
                    may_hold: cause.may_hold() && grace > Span::ZERO,
                };
                (kernel, event)
            }
            Output::Held {
                kernel,
                lease,
                wanted,
                within,
            } => {
                let event = Event::Held {
                    kernel: kernel.clone(),
                    lease,
                    wanted: wanted.map(|w| w.to_string()),
                    within,
                };
                (kernel, event)
            }
            Output::CloseKernel { kernel, reason } => {
                let reason = reason.to_string();
                (kernel.clone(), Event::Close { kernel, reason })
            }
            _ => unreachable!("the caller has chosen"),
        };
        self.connections.tell(&kernel, &event);
    }

    /// Notes an estimate that is told. Returns the likely range of the wait.
    fn likely(&mut self, kernel: &KernelId, cell: &CellId, estimate: Option<Span>) -> Option<(Span, Span)> {
        let estimate = estimate?;
        self.estimates.told(kernel, cell, estimate, self.clock.now());
        self.estimates.range(estimate)
    }

    /// Quanta of the lease's pool, where its cell could be parked.
    fn quanta(&self, lease: LeaseId) -> Vec<(Class, Span)> {
        let view = self.core.lease(lease).filter(|l| l.gpus > 0);
        let Some(view) = view else {
            return Vec::new();
        };
        let executor = ReplicaId {
            kernel: view.kernel,
            incarnation: view.executor,
        };
        let parks = self.registry.replica(&executor).is_some_and(|r| r.parks);
        let pool = self.config.pool.get(&view.pool).filter(|_| parks);
        let quantum = pool.and_then(|pool| pool.quantum);
        quantum.iter().flat_map(Quantum::classes).collect()
    }

    /// Tells a kernel the end of its lease's lingering, if its pool's linger is fixed.
    pub(super) fn tell_kept(&mut self, lease: LeaseId) {
        let Some(view) = self.core.lease(lease).filter(|l| l.state == "LINGERING") else {
            return;
        };
        let linger = self.config.pool.get(&view.pool).map(Pool::linger);
        let Some(linger) = linger.filter(|l| l.most <= l.least) else {
            return;
        };
        let replica = ReplicaId {
            kernel: view.kernel.clone(),
            incarnation: view.executor,
        };
        if let Some(conn) = self.registry.replica(&replica).and_then(|r| r.conn) {
            let event = Event::Kept {
                kernel: view.kernel,
                lease,
                until: view.since + linger.least,
            };
            self.connections.send(conn, 0, Response::Event(event));
        }
    }

    fn granted(&mut self, output: Output) -> Option<(KernelId, Event)> {
        let Output::Granted {
            kernel,
            cell,
            lease,
            node,
            executor,
            lingering,
            waited,
        } = output
        else {
            return None;
        };
        let Some(handover) = self.handovers.get(&lease).cloned() else {
            warn!(%lease, "a lease was granted without a handover");
            return None;
        };
        self.estimates.granted(&kernel, &cell, self.clock.now());
        let quanta = self.quanta(lease);
        let grant = Grant {
            quanta,
            lease,
            node,
            executor,
            handover,
            waited,
            lingering,
        };
        Some((kernel.clone(), Event::Granted { kernel, cell, grant }))
    }

    /// Answers the front that asked first for a placement of the kernel.
    fn placed(&mut self, kernel: &KernelId, seat: Result<SeatPlan, String>) {
        let Some((conn, id)) = self.registry.placed(kernel) else {
            return;
        };
        let body = match seat {
            Ok(seat) => {
                if let Some(user) = self.core.owner(kernel).cloned() {
                    self.owned_now(kernel, &user);
                }
                self.awake(kernel);
                self.connections.listen(conn, kernel);
                let tenure = self.registry.tenure(kernel);
                Response::Placement(Placement { seat, tenure })
            }
            Err(reason) => Response::Refused(Refusal::Unavailable { reason }),
        };
        self.connections.answer(conn, id, body);
    }

    /// Asks the replica with the running cell to park it, if the replica can. If a replica's connection breaks, it is
    /// asked again on its return.
    fn ask_to_park(&mut self, kernel: KernelId, lease: LeaseId, cell: CellId, reason: String) {
        let incarnation = self.core.lease(lease).map(|l| l.executor);
        let replica = incarnation.map(|incarnation| ReplicaId {
            kernel: kernel.clone(),
            incarnation,
        });
        let parks = |id: ReplicaId| {
            let found = self.registry.replica(&id).filter(|r| r.parks);
            found.map(|r| r.conn).map(|conn| (id, conn))
        };
        let Some((id, conn)) = replica.and_then(parks) else {
            info!(%kernel, %lease, "its replica can't park a cell");
            return self.todo.push_back(Input::ParkRefused { kernel, lease });
        };
        info!(replica = %id, %lease, %cell, "a cell is asked to park: {reason}");
        let now = self.clock.now();
        let event = Event::Park {
            kernel,
            lease,
            cell,
            reason,
        };
        self.parks.ask(lease, id, event.clone(), now);
        self.due.insert((now + parks::PATIENCE, Due::ParkAnswer));
        if let Some(conn) = conn {
            self.connections.send(conn, 0, Response::Event(event));
        }
    }

    pub(super) fn parks_overdue(&mut self, now: Timestamp) {
        for (lease, replica) in self.parks.overdue(now) {
            warn!(%lease, %replica, "it has not said whether its cell parks: taken as a no");
            let kernel = replica.kernel;
            self.todo.push_back(Input::ParkRefused { kernel, lease });
        }
    }

    /// Has the kernel's executor move a replica; without an executor that is connected, and can, the move has failed.
    fn ask_to_move(&mut self, kernel: KernelId, victim: Incarnation, seat: SeatPlan, cause: MoveCause) {
        let incarnation = seat.incarnation;
        let executor = self.registry.executor(&kernel);
        let executor = executor.filter(|(_, r)| r.may_be_asked_to_leave());
        let Some(conn) = executor.and_then(|(_, r)| r.conn) else {
            return self
                .todo
                .push_back(Input::MigrationFailed { kernel, incarnation });
        };
        info!(%kernel, %victim, to = %seat.node, "a replica is asked to move: {cause}");
        let (now, to) = (self.clock.now(), seat.node.clone());
        self.kept.moves(kernel.clone(), incarnation, to, cause, now);
        let event = Event::Move {
            kernel,
            victim,
            seat,
            cause,
        };
        self.connections.send(conn, 0, Response::Event(event));
    }

    /// The core waits for the move no longer.
    fn move_withdrawn(&mut self, kernel: KernelId, incarnation: Incarnation, why: Withdrawal) {
        info!(%kernel, %incarnation, "a move is not waited for: {why}");
        let now = self.clock.now();
        self.kept.move_failed(&kernel, incarnation, why.to_string(), now);
        if let Some(conn) = self.registry.executor(&kernel).and_then(|(_, r)| r.conn) {
            let event = Event::MoveWithdrawn { kernel, incarnation };
            self.connections.send(conn, 0, Response::Event(event));
        }
    }

    /// Forgets a kernel without processes. The owner, tenure and front of a hibernated kernel stay known.
    pub(super) fn forget(&mut self, kernel: &KernelId) {
        self.kept.forget_awake(kernel);
        if self.kept.asleep(kernel).is_some() {
            return;
        }
        self.connections.forget(kernel);
        let (owner, tenure) = self.registry.forget(kernel);
        let mut changes = Vec::new();
        if owner {
            changes.push((JournalKey::Owner(kernel.clone()), None));
        }
        if tenure {
            changes.push((JournalKey::Tenure(kernel.clone()), None));
        }
        self.records.write(changes, Vec::new());
    }
}
