//! The agent's decisions: the leases of one pilot, as a pure function of inputs.
//!
//! Only the agent grants on its node: the agent's records are the last word on the holders of the pilot's devices. A
//! lease starts when the plugin has confirmed the handover, and is over when the plugin has confirmed the take-back.
//! From then on nobody holds the device. The next lease may start while Slurm still clears the old step away, since
//! Slurm gives no GPU to two steps. Processes, sockets, disk and clock are left to the shell (`run.rs`).

mod end;
mod guards;
mod io;
mod term;
#[cfg(test)]
mod tests;
mod up;

use hop_api::message::{
    Device, EndCause, EndedLease, GpuSlot, Handover, NodeStanding, Order, Request, StartLease,
};
use hop_handover::token::{Confirmation, Look, Refusal, Standing, TakenBack};
use hop_words::id::{Epoch, GpuIndex, LeaseId, Term, UserName};
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

use guards::Guards;
pub(crate) use io::{Input, Isolation, LeaseCheckpoint, Output, PilotFacts, SlurmEnd, SrunWord, Waits};
use term::Keeping;

#[derive(Debug)]
pub(crate) struct AgentState {
    facts: PilotFacts,
    term: Term,
    keeping: Keeping,
    /// The reason for hanging up, if the node obeys a newer `hopd` than the connected `hopd`.
    older: Option<String>,
    draining: bool,
    /// Slurm ends the pilot: no step can be started any more.
    terminated: Option<Timestamp>,
    steps_used: u32,
    epochs: std::ops::Range<u64>,
    reserving: Reserving,
    /// The greatest epoch reported by the plugin.
    seen_epoch: u64,
    leases: BTreeMap<LeaseId, Lease>,
    /// Steps of leases that are over, until Slurm has ended them.
    leaving: BTreeMap<LeaseId, LeavingStep>,
    ended: BTreeMap<LeaseId, EndedLease>,
    idle_since: Option<Timestamp>,
    /// The plugin's last report on the node.
    standing: Option<NodeStanding>,
    /// Devices kept by the plugin because a process holds them. The devices can become free again in this pilot.
    held: BTreeSet<GpuIndex>,
    /// Time of the plugin's next look at these devices.
    look_at: Option<Timestamp>,
    guards: Guards,
}

#[derive(Debug)]
struct Lease {
    order: StartLease,
    epoch: Epoch,
    /// `true` while the lease's srun runs as our child.
    srun: bool,
    /// Number of the lease's sruns since slurmctld was last away.
    sruns: u8,
    holder: bool,
    /// Slurm gave a step of the lease a GPU that the plugin keeps.
    refused: bool,
    /// Until when the holder of a lease that was handed over has to have come.
    holder_due: Option<Timestamp>,
    phase: Phase,
}

/// A step whose devices were taken back.
#[derive(Debug)]
struct LeavingStep {
    step: u32,
    devices: Vec<GpuIndex>,
    /// When Slurm is given up on.
    deadline: Timestamp,
}

#[derive(Debug)]
enum Phase {
    /// Waits for epochs on disk or for guards; or, after slurmctld was away, until then.
    Waiting {
        until: Option<Timestamp>,
    },
    Starting {
        deadline: Timestamp,
        /// Time of the next request to Slurm: just after its own start Slurm may leave a request unanswered.
        again: Option<Timestamp>,
    },
    /// The lease's srun has been told to end; another follows.
    Restarting {
        deadline: Timestamp,
    },
    Live {
        handover: Handover,
    },
    Ending(Ending),
}

#[derive(Debug)]
struct Ending {
    cause: EndCause,
    detail: String,
    /// The confirmed handover; `None` means that nothing was lent.
    handover: Option<Handover>,
    taken: Option<Box<TakenBack>>,
    /// Slurm's step is over, as far as we can know.
    step_over: bool,
    device_lost: bool,
    rescue: Rescue,
    deadline: Timestamp,
    /// Until when the end of a lost step is kept back: it may yet turn out who ended the step.
    word_by: Option<Timestamp>,
    /// Slurm was asked whether it preempts the pilot.
    asked: bool,
    grace: Span,
}

/// Who keeps a device from being lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// Slurm, for the rest of the pilot.
    Slurms,
    /// The plugin, until nobody holds it.
    Plugins,
}

#[derive(Debug, PartialEq, Eq)]
enum Rescue {
    No,
    Running,
    Failed,
}

/// How the next block of epochs stands to the node's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reserving {
    No,
    UnderWay,
    /// The disk is full or broken. The next try follows at `again`.
    Failed {
        again: Timestamp,
    },
}

impl Reserving {
    fn is_due(self, now: Timestamp) -> bool {
        match self {
            Self::No => true,
            Self::UnderWay => false,
            Self::Failed { again } => again <= now,
        }
    }

    /// When the next try is due.
    fn again(self) -> Option<Timestamp> {
        match self {
            Self::Failed { again } => Some(again),
            Self::No | Self::UnderWay => None,
        }
    }
}

/// How often Slurm is asked for a step anew without having said no.
const SRUNS: u8 = 2;

/// Number of unused epochs below which another block is reserved, long before the last is used.
const EPOCHS_LOW: u64 = 16;

impl AgentState {
    pub(crate) fn new(facts: PilotFacts) -> Self {
        Self {
            term: facts.term,
            keeping: Keeping::Kept,
            older: None,
            draining: false,
            terminated: None,
            steps_used: 0,
            epochs: 0..0,
            reserving: Reserving::No,
            seen_epoch: 0,
            leases: BTreeMap::new(),
            leaving: BTreeMap::new(),
            ended: BTreeMap::new(),
            idle_since: None,
            standing: None,
            held: BTreeSet::new(),
            look_at: None,
            guards: Guards::default(),
            facts,
        }
    }

    /// Takes in an input and returns the actions that follow.
    pub(crate) fn handle(&mut self, input: Input, now: Timestamp) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Connected { term } => self.connected(term, &mut out),
            Input::ReportRefused => self.report_refused(&mut out),
            Input::NodeTerm(term) => self.term = self.term.max(term),
            Input::TermKept(term) => self.term_kept(term, now, &mut out),
            Input::TermFailed { term, why } => self.term_failed(term, &why, now, &mut out),
            Input::Order(order) => self.order(order, now, &mut out),
            Input::Epochs { from, to } => self.epochs(from, to, now, &mut out),
            Input::EpochsFailed { why } => self.epochs_failed(&why, now, &mut out),
            Input::HolderUp {
                lease,
                step,
                gpus,
                checkpoint,
            } => self.holder_up(lease, step, gpus, checkpoint, now, &mut out),
            Input::HolderGone { lease } => self.holder_gone(lease, now, &mut out),
            Input::GuardUp { step, gpus } => self.guard_up(step, &gpus, &mut out),
            Input::GuardGone { index } => self.guard_gone(index),
            Input::GuardExited { number, detail } => self.guard_exited(number, &detail, now, &mut out),
            Input::Confirmed(confirmation) => self.confirmed(confirmation, now, &mut out),
            Input::StepExited { lease, detail, word } => {
                self.step_exited(lease, &detail, word, now, &mut out);
            }
            Input::RescueExited { lease, detail } => self.rescue_exited(lease, &detail, now, &mut out),
            Input::ExecutorGone { lease } => {
                let detail = "the kernel's process ended".into();
                self.begin_end(
                    lease,
                    EndCause::ReplicaLost,
                    detail,
                    self.facts.grace,
                    now,
                    &mut out,
                );
            }
            Input::OrphanStep { step } => self.orphan_step(step, now, &mut out),
            Input::Preemption { lease, preempted } => self.preemption(lease, preempted, now, &mut out),
            Input::Terminated => self.terminate(now, &mut out),
            Input::Tick => {}
        }
        self.due(now, &mut out);
        self.guard(now, &mut out);
        self.start_held_up(now, &mut out);
        self.keep_term_if_due(now, &mut out);
        self.leave_if_over(now, &mut out);
        out
    }

    /// When [`Input::Tick`] is next wanted.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        let leases = self.leases.values().filter_map(|l| match &l.phase {
            Phase::Waiting { until } => *until,
            Phase::Live { .. } => l.holder_due,
            Phase::Starting { deadline, again } => Some(again.unwrap_or(*deadline)),
            Phase::Restarting { deadline } => Some(*deadline),
            Phase::Ending(ending) => Some(
                ending
                    .word_by
                    .map_or(ending.deadline, |by| by.min(ending.deadline)),
            ),
        });
        let farewell = self.idle_since.map(|t| t + self.facts.waits.farewell);
        let leaving = self.leaving.values().map(|l| l.deadline);
        let own = self.look_at.into_iter().chain(self.keep_term_at());
        let own = own.chain(self.reserving.again()).chain(self.guards.due());
        leases.chain(leaving).chain(farewell).chain(own).min()
    }

    /// A new agent's first question: the node's standing and its blocked devices.
    pub(crate) fn first_look(&self) -> Option<Output> {
        (self.facts.isolation == Isolation::Plugin).then(|| Output::Look(Look::default()))
    }

    /// The highest term seen.
    #[cfg(test)]
    pub(crate) fn term(&self) -> Term {
        self.term
    }

    fn order(&mut self, order: Order, now: Timestamp, out: &mut Vec<Output>) {
        let term = match &order {
            Order::StartLease(start) => start.term,
            Order::EndLease { term, .. }
            | Order::EndAcknowledged { term, .. }
            | Order::Drain { term }
            | Order::Release { term, .. } => *term,
        };
        if term < self.term {
            let reason = format!(
                "an order of term {term} was refused: this node obeys term {}",
                self.term
            );
            out.push(Output::Warn(reason.clone()));
            out.push(Output::HangUp { reason });
            return;
        }
        match order {
            Order::StartLease(start) => self.start(start, now, out),
            Order::EndLease {
                lease, cause, grace, ..
            } => {
                self.begin_end(lease, cause, String::new(), grace, now, out);
                if let Some(ended) = self.ended.get(&lease) {
                    out.push(Output::Report(Request::LeaseEnded(Box::new(ended.clone()))));
                }
            }
            Order::EndAcknowledged { lease, .. } => {
                self.ended.remove(&lease);
            }
            Order::Drain { .. } => self.draining = true,
            Order::Release {
                gpus,
                operator,
                asked,
                ..
            } => self.release(gpus, operator, asked, out),
        }
    }

    /// An operator wants blocked devices looked at.
    fn release(&self, mut gpus: Vec<GpuIndex>, operator: UserName, asked: Timestamp, out: &mut Vec<Output>) {
        if gpus.is_empty() {
            gpus = self.facts.gpus.iter().map(|g| g.index).collect();
        }
        if self.facts.isolation == Isolation::Plugin && self.terminated.is_none() {
            out.push(Output::Look(Look {
                again: gpus,
                operator: Some(operator),
                asked: Some(asked),
            }));
        }
    }

    /// Takes in the plugin's look: devices kept by the plugin are no longer lent, and devices found free are lent
    /// again.
    fn stands(&mut self, standing: Standing, now: Timestamp, out: &mut Vec<Output>) {
        for blocked in &standing.blocked {
            let (index, why) = (blocked.index, &blocked.why);
            self.block(index, why, Loss::Plugins, now, out);
        }
        let kept = |index: &GpuIndex| standing.blocked.iter().any(|b| b.index == *index);
        let free: Vec<GpuIndex> = self.held.iter().copied().filter(|i| !kept(i)).collect();
        for index in free {
            self.held.remove(&index);
            for slot in self.facts.gpus.iter_mut().filter(|g| g.index == index) {
                slot.blocked = None;
            }
            out.push(Output::Report(Request::SlotUnblocked { index }));
        }
        self.look_at = (!self.held.is_empty()).then_some(now + self.facts.waits.look);
        let standing = NodeStanding {
            isolation: standing.level.to_string(),
            why: standing.why,
            freed: standing.freed,
            asked: standing.asked.max(self.standing.as_ref().and_then(|s| s.asked)),
        };
        self.standing = Some(standing.clone());
        out.push(Output::Report(Request::NodeStands(standing)));
    }

    fn start(&mut self, order: StartLease, now: Timestamp, out: &mut Vec<Output>) {
        let id = order.lease;
        if self.ended.contains_key(&id) {
            return;
        }
        if let Some(lease) = self.leases.get(&id) {
            if let Phase::Live { handover } = &lease.phase {
                out.push(Output::Report(Request::LeaseStarted {
                    lease: id,
                    handover: handover.clone(),
                }));
            }
            return;
        }
        if let Some(reason) = self.refusal(&order) {
            out.push(failed(id, reason, false));
            return;
        }
        let lease = Lease {
            order,
            epoch: Epoch(0),
            srun: false,
            sruns: 0,
            holder: false,
            refused: false,
            holder_due: None,
            phase: Phase::Waiting { until: None },
        };
        self.leases.insert(id, lease);
        self.start_waiting(now, out);
    }

    fn refusal(&self, order: &StartLease) -> Option<String> {
        if self.terminated.is_some() || self.draining {
            return Some(format!("pilot {} takes no more leases", self.facts.pilot));
        }
        let lent = self.lent(order.lease);
        let blocked = |g: &&GpuSlot| g.blocked.is_some() && !lent.contains(&g.index);
        let blocked = self.facts.gpus.iter().filter(blocked).count();
        let others = self.leases.values().filter(|l| l.order.lease != order.lease);
        let used: usize = others.map(|l| usize::from(l.order.gpus)).sum();
        if usize::from(order.gpus) + used + blocked > self.facts.gpus.len() {
            return Some(format!(
                "pilot {} has no {} free GPUs: {used} of {} are lent",
                self.facts.pilot,
                order.gpus,
                self.facts.gpus.len()
            ));
        }
        if order.gpus == 0 && order.cpus == 0 {
            return Some("the lease asks for nothing".into());
        }
        None
    }

    fn epochs(&mut self, from: u64, to: u64, now: Timestamp, out: &mut Vec<Output>) {
        self.reserving = Reserving::No;
        if from >= self.epochs.end && from > self.seen_epoch {
            // The rest of the last block is skipped: epochs need only grow.
            self.epochs = from..to;
        }
        self.start_waiting(now, out);
    }

    /// Starts the leases that waited for guards.
    fn start_held_up(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        if self.leases.values().any(Lease::waits) {
            self.start_waiting(now, out);
        }
    }

    fn start_waiting(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        let is_guarding = self.is_guarding();
        for lease in self.leases.values_mut() {
            if is_guarding && lease.order.gpus > 0 || !lease.waits() {
                continue;
            }
            let Some(epoch) = self.epochs.next() else { break };
            lease.epoch = Epoch(epoch);
            lease.srun = true;
            lease.sruns = lease.sruns.saturating_add(1);
            lease.phase = Phase::Starting {
                deadline: now + self.facts.waits.start,
                again: (lease.sruns <= SRUNS).then_some(now + self.facts.waits.ask_again),
            };
            out.push(Output::StartStep {
                order: lease.order.clone(),
                epoch: lease.epoch,
            });
        }
        let left = self.epochs.end - self.epochs.start;
        if left < EPOCHS_LOW && self.reserving.is_due(now) {
            self.reserving = Reserving::UnderWay;
            out.push(Output::ReserveEpochs {
                // A record that was damaged, and begun anew, is behind this agent's own epochs.
                above: self.seen_epoch.max(self.epochs.end.saturating_sub(1)),
            });
        }
    }

    /// Fails the leases that wait for an epoch, for `hopd` to turn to another node with the reason. The disk is tried
    /// again after a pause.
    fn epochs_failed(&mut self, why: &str, now: Timestamp, out: &mut Vec<Output>) {
        self.reserving = Reserving::Failed {
            again: now + self.facts.waits.disk,
        };
        let waiting = self.leases.iter().filter(|(_, l)| l.waits());
        let waiting: Vec<LeaseId> = waiting.map(|(id, _)| *id).collect();
        for id in waiting {
            let reason = format!("its node can't write down epochs: {why}");
            self.begin_end(id, EndCause::Failed, reason, Span::ZERO, now, out);
        }
    }

    /// The node's own record was lost (a wiped `state_dir`), the plugin's was not: go on above it.
    fn skip_epochs(&mut self, last: u64) {
        self.seen_epoch = self.seen_epoch.max(last);
        if self.epochs.start <= last {
            self.epochs.start = self.epochs.end.min(last.saturating_add(1));
        }
    }

    /// Indices that are lent to any lease but `except`.
    fn lent(&self, except: LeaseId) -> BTreeSet<GpuIndex> {
        self.leases
            .iter()
            .filter(|(id, _)| **id != except)
            .filter_map(|(_, lease)| lease.lent())
            .flat_map(|handover| handover.devices.iter().map(|d| d.index))
            .collect()
    }

    fn holder_up(
        &mut self,
        id: LeaseId,
        step: u32,
        gpus: Vec<GpuIndex>,
        checkpoint: Option<Box<LeaseCheckpoint>>,
        now: Timestamp,
        out: &mut Vec<Output>,
    ) {
        self.steps_used = self.steps_used.max(step + 1);
        if !self.leases.contains_key(&id) {
            match checkpoint {
                Some(checkpoint) if checkpoint.order.lease == id => self.adopt(*checkpoint, out),
                _ => {
                    out.push(Output::Warn(format!(
                        "lease {id} is not ours: its holder is sent away"
                    )));
                    out.push(Output::EndHolder { lease: id });
                    return;
                }
            }
        }
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.holder = true;
        lease.holder_due = None;
        match &lease.phase {
            Phase::Starting { .. } if self.facts.isolation == Isolation::None => {
                let handover = Handover {
                    epoch: lease.epoch,
                    pilot: self.facts.pilot,
                    step,
                    devices: gpus.iter().map(|index| unproven_device(*index)).collect(),
                    cores: String::new(),
                    at: now,
                };
                self.handed_over(id, handover, now, out);
            }
            // The plugin speaks before the task is started: it has only to be read.
            Phase::Starting { deadline, .. } => {
                let deadline = (*deadline).min(now + self.facts.waits.plugin);
                lease.phase = Phase::Starting {
                    deadline,
                    again: None,
                };
            }
            Phase::Ending(_) => out.push(Output::EndHolder { lease: id }),
            Phase::Waiting { .. } | Phase::Restarting { .. } | Phase::Live { .. } => {}
        }
    }

    /// A lease of an agent before us.
    fn adopt(&mut self, checkpoint: LeaseCheckpoint, out: &mut Vec<Output>) {
        let id = checkpoint.order.lease;
        out.push(Output::Watch {
            lease: id,
            pid: checkpoint.order.executor.pid,
            start_time: checkpoint.order.executor.start_time,
        });
        out.push(Output::Report(Request::LeaseStarted {
            lease: id,
            handover: checkpoint.handover.clone(),
        }));
        let lease = Lease {
            order: checkpoint.order,
            epoch: checkpoint.handover.epoch,
            srun: false,
            sruns: 0,
            holder: true,
            refused: false,
            holder_due: None,
            phase: Phase::Live {
                handover: checkpoint.handover,
            },
        };
        self.leases.insert(id, lease);
    }

    fn handed_over(&mut self, id: LeaseId, handover: Handover, now: Timestamp, out: &mut Vec<Output>) {
        self.steps_used = self.steps_used.max(handover.step + 1);
        let taken = self.lent(id);
        // Slurm never gives a GPU to two steps: an older step has lost its GPUs to this step.
        let given = |index: &GpuIndex| handover.devices.iter().any(|d| d.index == *index);
        self.leaving.retain(|_, old| !old.devices.iter().any(given));
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let wrong = if matches!(lease.phase, Phase::Restarting { .. }) {
            Some("Slurm started its step when that had been given up".to_owned())
        } else if handover.epoch != lease.epoch {
            Some(format!(
                "epoch {} was confirmed, not {}",
                handover.epoch, lease.epoch
            ))
        } else if let Some(d) = handover.devices.iter().find(|d| taken.contains(&d.index)) {
            Some(format!("Slurm gave GPU {} to two steps", d.index))
        } else if handover.devices.len() != usize::from(lease.order.gpus) {
            Some(format!(
                "Slurm gave the step {} GPUs instead of {}",
                handover.devices.len(),
                lease.order.gpus
            ))
        } else {
            None
        };
        match (&mut lease.phase, wrong) {
            (Phase::Starting { .. }, None) => {
                let executor = &lease.order.executor;
                out.push(Output::Report(Request::LeaseStarted {
                    lease: id,
                    handover: handover.clone(),
                }));
                out.push(Output::Watch {
                    lease: id,
                    pid: executor.pid,
                    start_time: executor.start_time,
                });
                out.push(Output::Detach { lease: id });
                out.push(Output::KeepCheckpoint {
                    lease: id,
                    checkpoint: Box::new(LeaseCheckpoint {
                        order: lease.order.clone(),
                        handover: handover.clone(),
                    }),
                });
                lease.holder_due = (!lease.holder).then_some(now + self.facts.waits.holder);
                lease.phase = Phase::Live { handover };
            }
            (Phase::Starting { .. } | Phase::Restarting { .. }, Some(wrong)) => {
                out.push(Output::Warn(format!("lease {id}: {wrong}; it is ended")));
                lease.phase = Phase::Live { handover };
                self.begin_end(id, EndCause::Failed, wrong, Span::ZERO, now, out);
            }
            // The lease was ended while the plugin was at work: its device has to be taken back all the same.
            (Phase::Ending(ending), _) if ending.handover.is_none() => ending.handover = Some(handover),
            _ => {}
        }
    }

    fn confirmed(&mut self, confirmation: Confirmation, now: Timestamp, out: &mut Vec<Output>) {
        match confirmation {
            Confirmation::HandedOver(handed) if handed.handover.pilot == self.facts.pilot => {
                self.handed_over(handed.lease, handed.handover, now, out);
            }
            Confirmation::TakenBack(taken) if taken.pilot == self.facts.pilot => {
                self.taken_back(taken, now, out);
            }
            Confirmation::Standing(standing) if standing.pilot == self.facts.pilot => {
                self.stands(standing, now, out);
            }
            Confirmation::Refused(refused) if refused.pilot == self.facts.pilot => {
                let Some(id) = refused.lease else {
                    out.push(Output::Warn(format!(
                        "the plugin refused a step: {}",
                        refused.reason
                    )));
                    return;
                };
                match &refused.reason {
                    Refusal::Blocked { index, why } => {
                        self.block(*index, why, Loss::Plugins, now, out);
                        if self.start_again(id, out) {
                            return;
                        }
                    }
                    Refusal::StaleEpoch { last, .. } => self.skip_epochs(last.0),
                    _ => {}
                }
                let detail = format!("the plugin refused the handover: {}", refused.reason);
                if matches!(
                    self.leases.get(&id).map(|l| &l.phase),
                    Some(Phase::Starting { .. } | Phase::Restarting { .. })
                ) {
                    self.begin_end(id, EndCause::Failed, detail, Span::ZERO, now, out);
                } else {
                    out.push(Output::Warn(format!("lease {id}: {detail}")));
                }
            }
            _ => out.push(Output::Warn(
                "a confirmation for another pilot was ignored".into(),
            )),
        }
    }

    /// A lease that was refused a blocked GPU starts once more where the pilot has others: the blocked
    /// one has a guard by then.
    fn start_again(&mut self, id: LeaseId, out: &mut Vec<Output>) -> bool {
        let order = self.leases.get(&id).map(|lease| &lease.order);
        if order.is_none_or(|order| self.refusal(order).is_some()) {
            return false;
        }
        let Some(lease) = self.leases.get_mut(&id).filter(|lease| !lease.refused) else {
            return false;
        };
        let Phase::Starting { deadline, .. } = lease.phase else {
            return false;
        };
        lease.refused = true;
        lease.phase = Phase::Restarting { deadline };
        if lease.holder {
            out.push(Output::EndHolder { lease: id });
        }
        out.push(Output::EndStep { lease: id });
        true
    }

    fn taken_back(&mut self, taken: TakenBack, now: Timestamp, out: &mut Vec<Output>) {
        let id = taken.lease;
        let Some(lease) = self.leases.get(&id) else { return };
        if !matches!(lease.phase, Phase::Waiting { .. } | Phase::Ending(_)) {
            let detail = "its Slurm step ended".into();
            self.begin_end(id, EndCause::StepLost, detail, self.facts.grace, now, out);
        }
        let srun = self.leases.get(&id).is_some_and(|l| l.srun);
        self.ending(id, |ending| {
            ending.taken = Some(Box::new(taken));
            // Without an srun to watch, the plugin's last word in the step is its end.
            ending.step_over |= !srun;
        });
        self.finish_if_over(id, now, out);
    }

    /// What must hold between any two inputs.
    #[cfg(test)]
    pub(crate) fn sanity_check(&self) {
        let mut seen = BTreeSet::new();
        for (id, lease) in &self.leases {
            assert_eq!(*id, lease.order.lease);
            assert!(!self.ended.contains_key(id), "a lease both lives and has ended");
            assert!(
                !self.leaving.contains_key(id),
                "a lease lives and its step leaves"
            );
            if let Phase::Live { handover } = &lease.phase {
                assert_eq!(handover.epoch, lease.epoch);
                assert_eq!(handover.devices.len(), usize::from(lease.order.gpus));
                for device in &handover.devices {
                    assert!(seen.insert(device.index), "GPU {} is lent twice", device.index);
                }
            }
            if lease.waits() {
                assert!(
                    self.reserving != Reserving::No || self.is_guarding(),
                    "a lease waits for what nobody does"
                );
            }
        }
        self.check_guards();
        if self.terminated.is_some() {
            assert!(self.draining);
            assert!(self.leases.values().all(|l| matches!(l.phase, Phase::Ending(_))));
        }
    }
}

impl Lease {
    /// Whether it waits for epochs, or for guards.
    fn waits(&self) -> bool {
        matches!(self.phase, Phase::Waiting { until: None })
    }

    /// The handover that isn't yet taken back.
    fn lent(&self) -> Option<&Handover> {
        match &self.phase {
            Phase::Live { handover } => Some(handover),
            Phase::Ending(ending) => ending.handover.as_ref(),
            Phase::Waiting { .. } | Phase::Starting { .. } | Phase::Restarting { .. } => None,
        }
    }
}

fn failed(lease: LeaseId, reason: String, device_lost: bool) -> Output {
    Output::Report(Request::LeaseFailed {
        lease,
        reason,
        device_lost,
    })
}

/// A device whose files are unknown, since nothing constrains devices here.
fn unproven_device(index: GpuIndex) -> Device {
    Device {
        index,
        path: std::path::PathBuf::new(),
        major: 0,
        minor: 0,
    }
}

fn blocked_because(taken: &TakenBack) -> String {
    match taken.holders.first() {
        Some(holder) => holder.to_string(),
        None => "the plugin could not take it back".into(),
    }
}
