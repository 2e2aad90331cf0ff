//! Words about a lease that the core, the wire and the books share.

use crate::gpu::Device;
use crate::id::{Epoch, JobId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Why a lease ends or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndCause {
    /// The cell and its linger were over.
    Done,
    /// Somebody else waited.
    Claimed,
    /// The kernel let it go or is gone.
    Released,
    /// `hop cancel`, scancel of the step.
    Cancelled,
    /// The pilot ended, was cancelled or suspended.
    PilotLost,
    /// The step, its srun or its slurmstepd died.
    StepLost,
    /// The node or its agent is gone.
    NodeLost,
    /// The replica died or its seat ended.
    ReplicaLost,
    /// The lease never started.
    Failed,
}

impl EndCause {
    /// Whether a kernel that can't let go of its GPUs may keep them while nobody waits for them.
    pub fn may_hold(self) -> bool {
        matches!(self, Self::Done | Self::Claimed | Self::Released)
    }

    /// The end as a sentence for the user whose lease it was; none where the end was ordinary.
    pub fn sentence(self) -> Option<&'static str> {
        Some(match self {
            Self::Done | Self::Released => return None,
            Self::Claimed => "the GPU was idle between two cells and somebody else waited for it",
            Self::Cancelled => "the lease was cancelled",
            Self::PilotLost => "the Slurm job that held the GPU ended",
            Self::StepLost => "the Slurm step that held the GPU died",
            Self::NodeLost => "the node or its agent is gone",
            Self::ReplicaLost => "the kernel's process or its seat ended",
            Self::Failed => "the lease could not be started",
        })
    }
}

/// Whether the cell on a lease was asked to park for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParkAsk {
    #[default]
    No,
    Asked,
    /// The cell can't park.
    Refused,
}

/// How a cell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Ok,
    Error,
    Aborted,
    /// The kernel or the lease was lost under it.
    Lost,
    /// The cell was parked in its middle, and goes on with another lease.
    Parked,
}

/// The plugin's confirmation of a handover, and the step under which Slurm shows the lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    pub epoch: Epoch,
    pub pilot: JobId,
    /// The lease's step in the pilot: `squeue -s` and `sacct` show it.
    pub step: u32,
    pub devices: Vec<Device>,
    /// The cores lent, as a Linux cpu list ("2-5,8"); empty where none were asked for or the site doesn't constrain
    /// them.
    pub cores: String,
    pub at: Timestamp,
}

/// How a lease ended on its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseEnd {
    pub cause: EndCause,
    /// The take-back was confirmed: no process on the node holds the device.
    pub clean: bool,
    /// Processes that were ended for the take-back.
    pub ended_pids: Vec<u32>,
    pub at: Timestamp,
    /// A sentence for the user; empty after an ordinary end.
    pub detail: String,
}
