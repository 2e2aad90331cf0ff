//! The end of a lease: the holder goes, the plugin takes the devices back, Slurm clears the step away, or each is overdue.

use super::{
    AgentState, Ending, Isolation, Lease, LeavingStep, Loss, Output, Phase, Rescue, Reserving, SlurmEnd,
    SrunWord, blocked_because, failed,
};
use hop_api::message::{EndCause, EndedLease, LeaseEnd, Request};
use hop_handover::token::Look;
use hop_words::id::{GpuIndex, JobId, LeaseId};
use hop_words::time::{Span, Timestamp};

impl AgentState {
    pub(super) fn ending(&mut self, id: LeaseId, change: impl FnOnce(&mut Ending)) {
        if let Some(Phase::Ending(ending)) = self.leases.get_mut(&id).map(|l| &mut l.phase) {
            change(ending);
        }
    }

    pub(super) fn holder_gone(&mut self, id: LeaseId, now: Timestamp, out: &mut Vec<Output>) {
        let isolation = self.facts.isolation;
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.holder = false;
        let srun = lease.srun;
        match lease.phase {
            Phase::Live { .. } => {
                let detail = "its Slurm step was ended or died".into();
                self.begin_end(id, EndCause::StepLost, detail, self.facts.grace, now, out);
            }
            Phase::Waiting { .. } | Phase::Starting { .. } | Phase::Restarting { .. } | Phase::Ending(_) => {}
        }
        if isolation == Isolation::None && !srun {
            self.ending(id, |ending| ending.step_over = true);
        }
        self.finish_if_over(id, now, out);
    }

    pub(super) fn step_exited(
        &mut self,
        id: LeaseId,
        detail: &str,
        word: SrunWord,
        now: Timestamp,
        out: &mut Vec<Output>,
    ) {
        self.leaving.remove(&id);
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.srun = false;
        let (pilot, waits) = (self.facts.pilot, self.facts.waits);
        match &mut lease.phase {
            // Not the lease's fault: the lease waits until hopd withdraws it.
            Phase::Starting { .. } | Phase::Restarting { .. } if word == SrunWord::Away => {
                lease.sruns = 0;
                lease.phase = Phase::Waiting {
                    until: Some(now + self.facts.waits.slurmctld),
                };
            }
            Phase::Restarting { .. } => {
                lease.phase = Phase::Waiting { until: Some(now) };
            }
            Phase::Starting { .. } => {
                let reason = format!("Slurm did not start the lease's step: {detail}");
                self.begin_end(id, EndCause::Failed, reason, Span::ZERO, now, out);
                self.ending(id, |ending| ending.step_over = true);
            }
            Phase::Ending(ending) => {
                // After a handover, the death of srun says nothing about the step.
                ending.step_over |= ending.handover.is_none() || ending.taken.is_some();
                if let SrunWord::Ended(by) = word {
                    ending.was_ended(by, pilot);
                }
                // With a GraceTime Slurm ends the steps of a pilot that it preempts as if they were cancelled.
                if ending.cause == EndCause::Cancelled && ending.may_ask(now + waits.preemption) {
                    out.push(Output::AskPreemption { lease: id });
                }
                if ending.cause == EndCause::PilotLost {
                    ending.word_by = None;
                }
            }
            // The holder's connection is the lease's lifeline, not its srun.
            Phase::Waiting { .. } | Phase::Live { .. } => {}
        }
        if self.facts.isolation == Isolation::None {
            let holder = self.leases.get(&id).is_some_and(|l| l.holder);
            self.ending(id, |ending| ending.step_over |= !holder);
        }
        self.finish_if_over(id, now, out);
    }

    pub(super) fn rescue_exited(&mut self, id: LeaseId, detail: &str, now: Timestamp, out: &mut Vec<Output>) {
        let mut failed = false;
        self.ending(id, |ending| {
            if ending.taken.is_none() {
                failed = true;
                ending.rescue = Rescue::Failed;
                ending.deadline = now;
            }
        });
        if failed {
            out.push(Output::Warn(format!(
                "lease {id}: the take-back step failed: {detail}"
            )));
        }
    }

    pub(super) fn orphan_step(&mut self, step: u32, now: Timestamp, out: &mut Vec<Output>) {
        let known = self
            .leases
            .values()
            .any(|l| l.lent().is_some_and(|h| h.step == step))
            || self.leaving.values().any(|l| l.step == step)
            || self.guards.has_step(step);
        if known {
            return;
        }
        out.push(Output::Warn(format!(
            "step {}.{step} is in Slurm's queue and nobody holds it: the pilot is to be replaced",
            self.facts.pilot
        )));
        let lent = self.lent(LeaseId(u64::MAX));
        let suspects: Vec<_> = self
            .facts
            .gpus
            .iter()
            .filter(|g| g.blocked.is_none() && !lent.contains(&g.index))
            .map(|g| g.index)
            .collect();
        // Slurm doesn't say which GPU an old step holds without a query of its own: none of the idle is lent.
        for index in suspects {
            self.block(
                index,
                &format!("Slurm step {step} holds a GPU and has no holder"),
                Loss::Slurms,
                now,
                out,
            );
        }
    }

    /// A pilot that Slurm preempts takes no more leases: it ends within Slurm's GraceTime.
    pub(super) fn preemption(&mut self, id: LeaseId, preempted: bool, now: Timestamp, out: &mut Vec<Output>) {
        let (pilot, waits) = (self.facts.pilot, self.facts.waits);
        self.draining |= preempted;
        self.ending(id, |ending| {
            if ending.word_by.is_none() {
                return;
            }
            if preempted {
                ending.is_the_pilots(pilot, "was preempted");
            }
            // Slurm's signal to a pilot that somebody cancels may be on its way.
            let waits_on = !preempted && ending.cause == EndCause::Cancelled;
            ending.word_by = waits_on.then_some(now + waits.word);
        });
        self.finish_if_over(id, now, out);
    }

    pub(super) fn terminate(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        self.terminated = Some(now);
        self.draining = true;
        let ids: Vec<_> = self.leases.keys().copied().collect();
        for id in ids {
            let detail = format!("the Slurm job {} that held the GPU was ended", self.facts.pilot);
            // Slurm signals a pilot's steps one after the other: the lease's may have ended first.
            let srun = self.leases.get(&id).is_some_and(|l| l.srun);
            self.ending(id, |ending| ending.pilot_was_ended(&detail, srun));
            self.begin_end(id, EndCause::PilotLost, detail, self.facts.grace, now, out);
            self.finish_if_over(id, now, out);
        }
    }

    /// Starts to end a lease, unless it ends already.
    pub(super) fn begin_end(
        &mut self,
        id: LeaseId,
        cause: EndCause,
        detail: String,
        grace: Span,
        now: Timestamp,
        out: &mut Vec<Output>,
    ) {
        let waits = self.facts.waits;
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let (handover, step_over) = match std::mem::replace(&mut lease.phase, Phase::Waiting { until: None })
        {
            Phase::Waiting { .. } => (None, true),
            Phase::Starting { .. } | Phase::Restarting { .. } => {
                out.push(Output::EndStep { lease: id });
                (None, false)
            }
            Phase::Live { handover } => (Some(handover), false),
            ending @ Phase::Ending(_) => {
                lease.phase = ending;
                return;
            }
        };
        if lease.holder {
            out.push(Output::EndHolder { lease: id });
        }
        let is_unclear = cause == EndCause::StepLost || cause == EndCause::PilotLost && lease.srun;
        let word_by = (is_unclear && handover.is_some()).then_some(now + waits.word);
        lease.phase = Phase::Ending(Ending {
            cause,
            detail,
            deadline: now + grace + waits.take_back,
            handover,
            taken: None,
            word_by,
            asked: false,
            step_over,
            device_lost: false,
            rescue: Rescue::No,
            grace,
        });
        self.finish_if_over(id, now, out);
    }

    pub(super) fn finish_if_over(&mut self, id: LeaseId, now: Timestamp, out: &mut Vec<Output>) {
        let owed_by_plugin = self.facts.isolation == Isolation::Plugin;
        let over = match self.leases.get(&id).map(|l| &l.phase) {
            Some(Phase::Ending(e)) => {
                let over = e.taken.is_some() || e.step_over && (e.handover.is_none() || !owed_by_plugin);
                over && e.word_by.is_none()
            }
            _ => false,
        };
        if over {
            self.finish(id, now, out);
        }
    }

    /// The last word on a lease.
    fn finish(&mut self, id: LeaseId, now: Timestamp, out: &mut Vec<Output>) {
        let Some(Lease {
            order,
            phase: Phase::Ending(ending),
            ..
        }) = self.leases.remove(&id)
        else {
            return;
        };
        out.push(Output::Forget { lease: id });
        if let (false, Some(taken), Some(handover)) = (ending.step_over, &ending.taken, &ending.handover) {
            let leaving = LeavingStep {
                step: handover.step,
                devices: taken.devices.clone(),
                deadline: now + self.facts.waits.step_end,
            };
            self.leaving.insert(id, leaving);
        }
        let lent = ending
            .handover
            .as_ref()
            .is_some_and(|_| ending.cause != EndCause::Failed);
        let clean = match (&ending.taken, &ending.handover) {
            (Some(taken), _) => taken.clean,
            (None, Some(_)) => self.facts.isolation == Isolation::None,
            (None, None) => true,
        };
        let mut free = Vec::new();
        if let Some(taken) = ending.taken.as_ref().filter(|t| !t.clean) {
            let why = blocked_because(taken);
            // An older plugin names none.
            let is_kept = |i: &GpuIndex| taken.blocked.is_empty() || taken.blocked.contains(i);
            for index in taken.devices.iter().filter(|i| is_kept(i)) {
                self.block(*index, &why, Loss::Plugins, now, out);
            }
            free.extend(taken.devices.iter().copied().filter(|i| !is_kept(i)));
        } else if !clean {
            let why = "no take-back was confirmed".to_owned();
            for device in ending.handover.iter().flat_map(|h| &h.devices) {
                self.block(device.index, &why, Loss::Slurms, now, out);
            }
        }
        let lost = ending.device_lost || !clean && ending.taken.is_none();
        if lent {
            let end = LeaseEnd {
                cause: ending.cause,
                clean,
                ended_pids: ending.taken.map(|t| t.ended_pids).unwrap_or_default(),
                at: now,
                detail: ending.detail,
            };
            let ended = EndedLease {
                order,
                handover: ending.handover,
                end,
            };
            self.ended.insert(id, ended.clone());
            out.push(Output::Report(Request::LeaseEnded(Box::new(ended))));
            // For hopd an unclean end blocks all devices of a lease.
            let free = free.into_iter().map(|index| Request::SlotUnblocked { index });
            out.extend(free.map(Output::Report));
        } else {
            let reason = if ending.detail.is_empty() {
                "it was ended before it had started".to_owned()
            } else {
                ending.detail
            };
            out.push(failed(id, reason, lost));
        }
    }

    /// Stops lending a GPU of this pilot, for now or for good.
    pub(super) fn block(
        &mut self,
        index: GpuIndex,
        why: &str,
        loss: Loss,
        now: Timestamp,
        out: &mut Vec<Output>,
    ) {
        let slot = self.facts.gpus.iter_mut().find(|g| g.index == index);
        // The plugin may name another holder at its next look.
        let is_news = |told: &str| told != why && loss == Loss::Plugins && self.held.contains(&index);
        let Some(slot) = slot.filter(|s| s.blocked.as_deref().is_none_or(is_news)) else {
            return;
        };
        slot.blocked = Some(why.to_owned());
        if loss == Loss::Plugins {
            self.held.insert(index);
            self.look_at.get_or_insert(now + self.facts.waits.look);
        }
        out.push(Output::Report(Request::SlotBlocked {
            index,
            reason: why.to_owned(),
            lost: loss == Loss::Slurms,
        }));
    }

    /// What has waited for long enough.
    pub(super) fn due(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        let mut again = false;
        for lease in self.leases.values_mut() {
            if matches!(lease.phase, Phase::Waiting { until: Some(t) } if t <= now) {
                lease.phase = Phase::Waiting { until: None };
                again = true;
            }
        }
        if self.reserving.again().is_some_and(|at| at <= now) {
            self.reserving = Reserving::No;
            again = true;
        }
        if again {
            self.start_waiting(now, out);
        }
        let ids: Vec<_> = self.leases.keys().copied().collect();
        for id in ids {
            self.hear_out(id, now, out);
            let Some(lease) = self.leases.get(&id) else {
                continue;
            };
            let deadline = match &lease.phase {
                Phase::Starting { deadline, again } => Some(again.unwrap_or(*deadline)),
                Phase::Restarting { deadline } => Some(*deadline),
                Phase::Ending(ending) => Some(ending.deadline),
                Phase::Live { .. } => lease.holder_due,
                Phase::Waiting { .. } => None,
            };
            if deadline.is_some_and(|d| d <= now) {
                self.overdue(id, now, out);
            }
        }
        let stuck = self.leaving.extract_if(.., |_, step| step.deadline <= now);
        let stuck: Vec<_> = stuck.collect();
        for (id, step) in stuck {
            let why = "Slurm did not end the lease's step";
            out.push(Output::Warn(format!("lease {id}: {why}")));
            for index in step.devices {
                self.block(index, why, Loss::Slurms, now, out);
            }
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = Some(now + self.facts.waits.look);
            if self.terminated.is_none() {
                out.push(Output::Look(Look {
                    again: self.held.iter().copied().collect(),
                    operator: None,
                    asked: None,
                }));
            }
        }
    }

    /// Reports a lost lease although nothing has told who ended its step.
    fn hear_out(&mut self, id: LeaseId, now: Timestamp, out: &mut Vec<Output>) {
        let (mut is_over, mut asks, answer_by) = (false, false, now + self.facts.waits.preemption);
        self.ending(id, |ending| {
            if ending.word_by.is_none_or(|by| by > now) {
                return;
            }
            asks = ending.cause == EndCause::StepLost && ending.may_ask(answer_by);
            is_over = !asks;
            if is_over {
                ending.word_by = None;
            }
        });
        if asks {
            out.push(Output::AskPreemption { lease: id });
        }
        if is_over {
            self.finish_if_over(id, now, out);
        }
    }

    fn overdue(&mut self, id: LeaseId, now: Timestamp, out: &mut Vec<Output>) {
        let waits = self.facts.waits;
        let can_rescue = self.terminated.is_none() && self.facts.isolation == Isolation::Plugin;
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let epoch = lease.epoch;
        if matches!(lease.phase, Phase::Live { .. }) {
            let reason = "the task of its Slurm step did not come up".into();
            self.begin_end(id, EndCause::StepLost, reason, self.facts.grace, now, out);
            return;
        }
        if let Phase::Starting {
            deadline,
            again: Some(_),
        } = lease.phase
        {
            lease.phase = Phase::Restarting { deadline };
            return out.push(Output::EndStep { lease: id });
        }
        let holder = lease.holder;
        let Phase::Ending(ending) = &mut lease.phase else {
            let seconds = waits.start.as_secs_f64();
            let reason = match holder {
                true => "its Slurm step ran without the plugin: gresshopper.so is not in this node's plugstack.conf, or \
                         could not be loaded (slurmd's log says why)"
                    .to_owned(),
                false => format!("the plugin confirmed no handover within {seconds:.0} s"),
            };
            self.begin_end(id, EndCause::Failed, reason, Span::ZERO, now, out);
            return;
        };
        let owed = ending.handover.is_some() && ending.taken.is_none();
        if owed && ending.rescue == Rescue::No && can_rescue {
            // The step's slurmstepd is dead: Slurm keeps the GPU until the pilot ends.
            ending.rescue = Rescue::Running;
            ending.deadline = now + ending.grace + waits.rescue;
            ending.step_over = true;
            out.push(Output::Rescue {
                lease: id,
                epoch,
                grace: ending.grace,
            });
            let step = ending.handover.as_ref().map_or(0, |h| h.step);
            self.block_devices_of(id, &format!("the slurmstepd of step {step} died"), now, out);
            return;
        }
        if !ending.step_over && !owed {
            let why = "Slurm did not end the lease's step";
            out.push(Output::Warn(format!("lease {id}: {why}")));
            ending.device_lost = true;
            self.block_devices_of(id, why, now, out);
        }
        self.finish(id, now, out);
    }

    fn block_devices_of(&mut self, id: LeaseId, why: &str, now: Timestamp, out: &mut Vec<Output>) {
        let devices: Vec<_> = match self.leases.get(&id).map(|l| &l.phase) {
            Some(Phase::Ending(Ending {
                handover: Some(handover),
                ..
            })) => handover.devices.iter().map(|d| d.index).collect(),
            _ => Vec::new(),
        };
        for index in devices {
            self.block(index, why, Loss::Slurms, now, out);
        }
    }

    pub(super) fn leave_if_over(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        if !self.draining || !self.leases.is_empty() || !self.leaving.is_empty() {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert(now);
        if self.ended.is_empty() || since + self.facts.waits.farewell <= now {
            out.push(Output::Exit);
        }
    }
}

impl Ending {
    /// Takes in Slurm's reason for the end of the lease's step.
    fn was_ended(&mut self, by: SlurmEnd, pilot: JobId) {
        if self.word_by.is_none() {
            return;
        }
        match by {
            SlurmEnd::Cancelled if self.cause == EndCause::PilotLost => {}
            SlurmEnd::Cancelled => {
                self.cause = EndCause::Cancelled;
                "its Slurm step was cancelled".clone_into(&mut self.detail);
            }
            SlurmEnd::TimeLimit => self.is_the_pilots(pilot, "reached its time limit"),
            SlurmEnd::Preempted => self.is_the_pilots(pilot, "was preempted"),
            SlurmEnd::Requeued => self.is_the_pilots(pilot, "was requeued"),
            SlurmEnd::NodeFailed => {
                self.is_the_pilots(pilot, "was ended because its node failed");
                self.cause = EndCause::NodeLost;
            }
        }
    }

    /// Whether Slurm is to be asked if it preempts the pilot: once, while it isn't clear who ended the step.
    fn may_ask(&mut self, answer_by: Timestamp) -> bool {
        let may = self.word_by.is_some() && !self.asked;
        if may {
            (self.asked, self.word_by) = (true, Some(answer_by));
        }
        may
    }

    /// The pilot's end has ended the lease.
    fn is_the_pilots(&mut self, pilot: JobId, did: &str) {
        self.cause = EndCause::PilotLost;
        self.detail = format!("the Slurm job {pilot} that held the GPU {did}");
    }

    /// Takes in that Slurm ends the pilot, while it isn't clear who ended the step.
    fn pilot_was_ended(&mut self, detail: &str, srun: bool) {
        if self.word_by.is_none() {
            return;
        }
        if matches!(self.cause, EndCause::StepLost | EndCause::Cancelled) {
            self.cause = EndCause::PilotLost;
            detail.clone_into(&mut self.detail);
        }
        if !srun {
            self.word_by = None;
        }
    }
}
