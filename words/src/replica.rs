//! Replicas: their seats, their roles, and the causes of moves.

use crate::id::{Incarnation, JobId, NodeName};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The name of a seat's Slurm job.
pub const SEAT_JOB: &str = "kernels";

/// Seat of a new replica: the user's seat on the node, or a seat still to be submitted by a process of the user's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatPlan {
    /// Number of the replica, from its start on.
    pub incarnation: Incarnation,
    pub node: NodeName,
    /// A seat of the user's on the node that has room. `None` asks for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<JobId>,
    /// The partition of a new seat. `None` means `[seat] partition`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Memory in MiB and cores of the replica's step.
    pub mem_mib: u64,
    pub cpus: u16,
}

/// A replica's step on its node: by it the plugin finds the process's cgroup, and refuses any other process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatStep {
    /// The seat.
    pub job: JobId,
    pub step: u32,
    /// The replica's own pid, in the node's pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`, in clock ticks since boot: the same pid later is not the same process.
    pub start_time: u64,
    pub uid: u32,
}

/// What a replica does for its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaRole {
    /// Runs the cells and speaks for the kernel.
    Executor,
    /// Has a process with the namespace as of the last record, which could run the next cell at once.
    Hot,
    /// Holds the log alone: a process has to start before a cell can run.
    Warm,
}

/// A replica of a kernel, as users see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaRow {
    pub incarnation: Incarnation,
    pub role: ReplicaRole,
    pub node: NodeName,
    /// The seat's job.
    pub seat: JobId,
    /// Entries of the kernel's log that the replica lacks. 0 means that it lacks none for longer than a second; `None`
    /// means that nobody knows the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<u64>,
}

/// How many replicas a kernel should have. Two would be lost with either of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum Replicas {
    #[default]
    One,
    Three,
}

impl Replicas {
    pub const fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Three => 3,
        }
    }
}

/// A number of replicas that no kernel can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a kernel has 1 or 3 replicas, not {0}")]
pub struct NoSuchCount(u8);

impl TryFrom<u8> for Replicas {
    type Error = NoSuchCount;

    fn try_from(count: u8) -> Result<Self, NoSuchCount> {
        match count {
            1 => Ok(Self::One),
            3 => Ok(Self::Three),
            _ => Err(NoSuchCount(count)),
        }
    }
}

impl From<Replicas> for u8 {
    fn from(replicas: Replicas) -> Self {
        replicas.count() as Self
    }
}

/// Why a replica is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveCause {
    /// A cell waits where no GPU comes free, and the other node has one.
    Waiting,
    /// The kernel is quiet and would find no GPU on its nodes.
    Ahead,
    /// Slurm drains the node.
    Drain,
    /// The seat's time limit comes near.
    SeatEnds,
    /// Asked for by its user or an operator.
    Asked,
}

impl fmt::Display for MoveCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "a GPU is free there and none comes free here",
            Self::Ahead => "GPUs are idle there and scarce here",
            Self::Drain => "its node is being drained",
            Self::SeatEnds => "its seat's time limit comes near",
            Self::Asked => "it was asked for",
        })
    }
}

/// What speaks against moving a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Bound {
    /// The executor's process can't let go of its node's GPUs: GPU cells run there alone.
    pub gpu: bool,
    /// Objects of the kernel beyond capture, a sentence each.
    pub holds: Vec<String>,
}

impl Bound {
    /// Whether policy may move the kernel.
    pub fn is_free(&self) -> bool {
        !self.gpu && self.holds.is_empty()
    }

    /// Every reason, in sentences.
    pub fn reasons(&self) -> Vec<String> {
        let gpu = "Its process can't let go of the GPUs of its node.";
        let gpu = self.gpu.then(|| gpu.to_owned());
        gpu.into_iter().chain(self.holds.iter().cloned()).collect()
    }
}
