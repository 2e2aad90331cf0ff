//! Guards: small steps of the agent's own on the GPUs that the plugin keeps.
//!
//! Slurm chooses the GPUs of a step by itself, as a rule those with the lowest indices. A blocked GPU left to Slurm would
//! go to one lease after the other, and each would be refused, beside GPUs that nobody uses. So the agent starts guards
//! one after another until each blocked GPU has one. Guards with a free GPU end then. Leases wait meanwhile.

use super::{AgentState, Isolation, Output, Phase};
use hop_words::id::{GpuIndex, GpuType, LeaseId};
use hop_words::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Guards {
    steps: BTreeMap<GpuIndex, Guard>,
    next: Next,
    /// Guards that were started so far.
    started: u64,
}

#[derive(Debug)]
struct Guard {
    step: u32,
    /// The guard was told to end.
    leaves: bool,
}

#[derive(Debug, Default, Clone, Copy)]
enum Next {
    #[default]
    AtOnce,
    /// The guard with the last number is being started.
    Starts { deadline: Timestamp },
    /// Slurm started none: leases do without until the next try.
    After(Timestamp),
}

impl Guards {
    /// When [`AgentState::guard`] has something to do.
    pub(super) fn due(&self) -> Option<Timestamp> {
        match self.next {
            Next::AtOnce => None,
            Next::Starts { deadline: at } | Next::After(at) => Some(at),
        }
    }

    pub(super) fn has_step(&self, step: u32) -> bool {
        self.steps.values().any(|guard| guard.step == step)
    }
}

impl AgentState {
    /// A guard's process has connected.
    pub(super) fn guard_up(&mut self, step: u32, gpus: &[GpuIndex], out: &mut Vec<Output>) {
        self.steps_used = self.steps_used.max(step + 1);
        self.guards.next = Next::AtOnce;
        for index in gpus {
            let leaves = self.draining;
            if leaves {
                out.push(Output::EndGuard { index: *index });
            }
            self.guards.steps.insert(*index, Guard { step, leaves });
        }
    }

    /// A guard's connection broke from its side, since its step has ended.
    pub(super) fn guard_gone(&mut self, index: GpuIndex) {
        self.guards.steps.remove(&index);
    }

    /// The srun of a guard has ended. A guard that had come up is known by its connection.
    pub(super) fn guard_exited(&mut self, number: u64, why: &str, now: Timestamp, out: &mut Vec<Output>) {
        if matches!(self.guards.next, Next::Starts { .. }) && number == self.guards.started {
            self.guards.next = Next::After(now + self.facts.waits.guard_again);
            out.push(Output::Warn(format!(
                "Slurm starts no step on a blocked GPU, and may give it to leases: {why}"
            )));
        }
    }

    /// Goes on with guarding.
    pub(super) fn guard(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        match self.guards.next {
            Next::Starts { deadline } if deadline <= now => {
                let number = self.guards.started;
                out.push(Output::EndGuardStart);
                self.guard_exited(number, "it didn't answer in time", now, out);
            }
            Next::After(at) if at <= now => self.guards.next = Next::AtOnce,
            _ => {}
        }
        let Some(gpu_type) = self.to_be_guarded() else {
            if !matches!(self.guards.next, Next::Starts { .. }) {
                self.guards.next = Next::AtOnce;
                self.end_guards(out);
            }
            return;
        };
        if matches!(self.guards.next, Next::AtOnce) && !self.is_a_step_without_gpus() {
            let deadline = now + self.facts.waits.guard;
            self.guards.next = Next::Starts { deadline };
            self.guards.started += 1;
            let number = self.guards.started;
            out.push(Output::StartGuard { number, gpu_type });
        }
    }

    /// Whether a lease that starts now may get a GPU that is to have a guard.
    pub(super) fn is_guarding(&self) -> bool {
        match self.guards.next {
            Next::Starts { .. } => true,
            Next::AtOnce => self.to_be_guarded().is_some(),
            Next::After(_) => false,
        }
    }

    /// The type of a blocked GPU without a guard. A GPU that Slurm counts as a lease's gets its guard afterwards.
    fn to_be_guarded(&self) -> Option<GpuType> {
        if self.facts.isolation != Isolation::Plugin || self.draining {
            return None;
        }
        let leaving = self.leaving.values().flat_map(|l| l.devices.iter().copied());
        let of_leases: BTreeSet<GpuIndex> = self.lent(LeaseId(u64::MAX)).into_iter().chain(leaving).collect();
        let is_free = |i: &&GpuIndex| !self.guards.steps.contains_key(i) && !of_leases.contains(i);
        let index = self.held.iter().find(is_free)?;
        let slot = self.facts.gpus.iter().find(|slot| slot.index == *index)?;
        Some(slot.gpu_type.clone())
    }

    /// Whether it is unknown which GPUs a step has, or still has.
    fn is_a_step_without_gpus(&self) -> bool {
        let on_gpus = self.leases.values().filter(|lease| lease.order.gpus > 0);
        on_gpus.map(|lease| &lease.phase).any(|phase| match phase {
            Phase::Starting { .. } | Phase::Restarting { .. } => true,
            Phase::Ending(ending) => ending.handover.is_none() && !ending.step_over,
            Phase::Waiting { .. } | Phase::Live { .. } => false,
        })
    }

    /// Ends the guards of GPUs that may be lent, and all of a pilot that lends no more. An earlier agent's guards stay
    /// until the plugin has said which GPUs it keeps.
    fn end_guards(&mut self, out: &mut Vec<Output>) {
        let is_known = self.standing.is_some();
        for (index, guard) in &mut self.guards.steps {
            let may_be_lent = is_known && !self.held.contains(index);
            if (self.draining || may_be_lent) && !guard.leaves {
                guard.leaves = true;
                out.push(Output::EndGuard { index: *index });
            }
        }
    }

    #[cfg(test)]
    pub(super) fn check_guards(&self) {
        let lent = self.lent(LeaseId(u64::MAX));
        for (index, guard) in &self.guards.steps {
            assert!(!lent.contains(index), "GPU {index} is lent and guarded");
            assert!(guard.step < self.steps_used);
        }
    }
}
