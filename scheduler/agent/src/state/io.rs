//! Inputs and outputs of the agent's decisions, and the facts that never change.

use hop_api::message::{GpuSlot, Handover, Order, Request, StartLease};
use hop_handover::token::{Confirmation, Look};
use hop_words::id::{Epoch, GpuIndex, GpuType, JobId, LeaseId, NodeName, PoolName, Term};
use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waits {
    /// From the order to the plugin's confirmation.
    pub(crate) start: Span,
    /// Time between starts of two sruns if Slurm doesn't even start the first one's task. Longer than an srun needs
    /// to notice the absence of slurmctld.
    pub(crate) ask_again: Span,
    /// Between two sruns while slurmctld is away.
    pub(crate) slurmctld: Span,
    /// From the holder's first word to the plugin's, which was said before.
    pub(crate) plugin: Span,
    /// From the handover to the holder's first word.
    pub(crate) holder: Span,
    /// From the end of a holder to the plugin's confirmation, beyond the grace that holders of the device get.
    pub(crate) take_back: Span,
    /// From the start of a take-back step to its confirmation.
    pub(crate) rescue: Span,
    /// From the take-back to the end of Slurm's step.
    pub(crate) step_end: Span,
    /// How long ended leases wait for `hopd` before a drained agent goes all the same.
    pub(crate) farewell: Span,
    /// Pause between two looks at blocked devices.
    pub(crate) look: Span,
    /// From the start of a guard's step to its word.
    pub(crate) guard: Span,
    /// Until the next guard is tried where Slurm started none.
    pub(crate) guard_again: Span,
    /// Until the next try to put a term on disk.
    pub(crate) disk: Span,
    /// From the loss of a lease's step to its report: Slurm's signal to the agent, and srun's last word, tell who ended
    /// the step.
    pub(crate) word: Span,
    /// From the question whether Slurm preempts the pilot to its answer.
    pub(crate) preemption: Span,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            start: Span::from_secs(30),
            ask_again: Span::from_secs(12),
            slurmctld: Span::from_secs(1),
            plugin: Span::from_secs(2),
            holder: Span::from_secs(5),
            take_back: Span::from_secs(4),
            rescue: Span::from_secs(30),
            step_end: Span::from_secs(20),
            farewell: Span::from_secs(30),
            look: Span::from_secs(60),
            guard: Span::from_secs(10),
            guard_again: Span::from_secs(60),
            disk: Span::from_secs(1),
            word: Span::from_secs(3),
            preemption: Span::from_secs(10),
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    /// `hopd` let us in. The shell has tried to put a higher term on disk first, and said how that went.
    Connected {
        term: Term,
    },
    /// `hopd` has refused a report.
    ReportRefused,
    /// The node's record has this term, ours or a higher one.
    TermKept(Term),
    /// This term could not be put on disk: the disk is full or broken.
    TermFailed {
        term: Term,
        why: String,
    },
    /// A term seen by another agent of this node.
    NodeTerm(Term),
    Order(Order),
    /// Epochs `from..to` are ours, on disk.
    Epochs {
        from: u64,
        to: u64,
    },
    /// Reserved epochs could not be put on disk.
    EpochsFailed {
        why: String,
    },
    /// A holder has connected; `checkpoint` is an earlier agent's record of its lease.
    HolderUp {
        lease: LeaseId,
        step: u32,
        gpus: Vec<GpuIndex>,
        checkpoint: Option<Box<LeaseCheckpoint>>,
    },
    /// A holder's connection broke from its side.
    HolderGone {
        lease: LeaseId,
    },
    /// A guard's process has connected.
    GuardUp {
        step: u32,
        gpus: Vec<GpuIndex>,
    },
    /// A guard's connection broke from its side.
    GuardGone {
        index: GpuIndex,
    },
    /// The srun of a guard has ended, or could not be started.
    GuardExited {
        number: u64,
        detail: String,
    },
    /// The plugin's confirmation (the shell has checked root as the sender).
    Confirmed(Confirmation),
    /// The srun of a lease's step has ended, or could not be started.
    StepExited {
        lease: LeaseId,
        detail: String,
        word: SrunWord,
    },
    /// The srun of a take-back step has ended.
    RescueExited {
        lease: LeaseId,
        detail: String,
    },
    /// The executor's process is gone.
    ExecutorGone {
        lease: LeaseId,
    },
    /// A step still shown by Slurm, without a holder: an earlier agent lost the step with its slurmstepd.
    OrphanStep {
        step: u32,
    },
    /// Whether Slurm preempts the pilot, asked on account of this lease. `false`, too, if Slurm could not say.
    Preemption {
        lease: LeaseId,
        preempted: bool,
    },
    /// Slurm ends the pilot.
    Terminated,
    /// [`AgentState::next_wake`] is due.
    Tick,
}

/// Actions, to carry out in this order.
#[derive(Debug, Clone)]
pub(crate) enum Output {
    Report(Request),
    /// Start the step of a lease with a token of this epoch.
    StartStep {
        order: StartLease,
        epoch: Epoch,
    },
    /// Store this for this agent's successor.
    KeepCheckpoint {
        lease: LeaseId,
        checkpoint: Box<LeaseCheckpoint>,
    },
    /// Tell the holder to end.
    EndHolder {
        lease: LeaseId,
    },
    /// End the srun of a lease whose task may not be there yet.
    EndStep {
        lease: LeaseId,
    },
    /// Start a guard's step, on one GPU of this type.
    StartGuard {
        number: u64,
        gpu_type: GpuType,
    },
    /// End the srun of the last guard, which has not come up.
    EndGuardStart,
    /// Tell the guard of this GPU to end.
    EndGuard {
        index: GpuIndex,
    },
    /// The step stands alone from now on: the death of its srun must not end the step.
    Detach {
        lease: LeaseId,
    },
    /// Ask Slurm whether it preempts the pilot. Answered by [`Input::Preemption`].
    AskPreemption {
        lease: LeaseId,
    },
    /// Start the step that takes back the lease of a dead slurmstepd.
    Rescue {
        lease: LeaseId,
        epoch: Epoch,
        grace: Span,
    },
    /// Start the step that has the plugin look at blocked devices, and say how the node stands.
    Look(Look),
    /// Watch the executor's process.
    Watch {
        lease: LeaseId,
        pid: u32,
        start_time: u64,
    },
    Forget {
        lease: LeaseId,
    },
    /// Put this term on disk.
    KeepTerm(Term),
    /// Reserve the next block of epochs on disk, all of them greater than this.
    ReserveEpochs {
        above: u64,
    },
    /// Obey this `hopd` no longer.
    HangUp {
        reason: String,
    },
    /// For the log.
    Warn(String),
    /// All is over: end the pilot.
    Exit,
}

/// Record of a lease for the next agent of its pilot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseCheckpoint {
    pub(crate) order: StartLease,
    pub(crate) handover: Handover,
}

/// The word of an srun's last line on its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SrunWord {
    /// Nothing that tells who ended the step.
    None,
    /// The srun found no slurmctld.
    Away,
    /// Slurm ended the step.
    Ended(SlurmEnd),
}

/// Slurm's reason for the end of a step, as its slurmstepd tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlurmEnd {
    /// The step alone, or its whole job, was cancelled.
    Cancelled,
    TimeLimit,
    Preempted,
    NodeFailed,
    Requeued,
}

/// Who constrains the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// The plugin: nothing is lent without its word.
    Plugin,
    /// Nobody, by the site's configuration: a holder's word is enough.
    None,
}

/// Facts of a pilot and its node, read by the agent at its start.
#[derive(Debug, Clone)]
pub(crate) struct PilotFacts {
    pub(crate) node: NodeName,
    pub(crate) pilot: JobId,
    pub(crate) pool: PoolName,
    pub(crate) gpus: Vec<GpuSlot>,
    pub(crate) cpus: u16,
    pub(crate) ends: Option<Timestamp>,
    pub(crate) steps_max: u32,
    pub(crate) isolation: Isolation,
    /// Grace of holders at a take-back without an order.
    pub(crate) grace: Span,
    pub(crate) waits: Waits,
    /// The highest term that the node has on disk.
    pub(crate) term: Term,
}
