//! Records of a node's kernels, devices and leases, as stored on disk.
//!
//! The records are root's alone. A lease's end needs nothing but its record: no configuration, no user database. The
//! records are the only thing about a kernel believed by the plugin, and let any later callback undo the leavings of a
//! killed slurmstepd. Keeping them is left to [`crate::store`].

use crate::bpf::Program;
use crate::cpuset::CpuSet;
use crate::mounts::Group;
use crate::probe::DeviceFile;
use crate::token::{Device, Level};
use hop_words::id::{Epoch, JobId, LeaseId};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A process, told apart from later ones with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

/// A step on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepKey {
    pub job: JobId,
    pub step: u32,
}

impl std::fmt::Display for StepKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.job, self.step)
    }
}

/// A kernel's step, registered when its task was forked. All of it comes from Slurm or the kernel, nothing from
/// the step's environment but the name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRecord {
    pub key: StepKey,
    pub uid: u32,
    /// The step's first process, the replica.
    pub process: ProcessId,
    pub cgroup: KernelCgroup,
    /// The cgroup as the counting programs know it; none where nothing is counted.
    pub group: Option<Group>,
    /// The devices denied to the step by Slurm: the node's GRES, whatever the device files' modes.
    pub denied: Vec<DeviceFile>,
}

/// Confinement of a kernel's processes to permitted devices. Paths are as in `/proc/PID/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "version", rename_all = "kebab-case")]
pub enum KernelCgroup {
    /// A devices cgroup of our own, and a cpuset one where Slurm constrains cores.
    V1 {
        devices: PathBuf,
        cpuset: Option<CpusetV1>,
        /// Slurm's freezer of the step, which holds the processes still for an examination.
        freezer: Option<PathBuf>,
    },
    /// Slurm's own cgroup of the task. `program`: the device program as made by Slurm, from which lent devices are
    /// excepted. `base`: its cores, where constrained.
    V2 {
        task: PathBuf,
        base: Option<CpuSet>,
        program: Program,
    },
}

impl KernelCgroup {
    /// The cgroup that judges the kernel's devices.
    pub fn path(&self) -> &Path {
        match self {
            Self::V1 { devices, .. } => devices,
            Self::V2 { task, .. } => task,
        }
    }
}

/// Our cpuset cgroup of a kernel on v1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpusetV1 {
    pub path: PathBuf,
    /// The seat's own cores.
    pub base: CpuSet,
}

/// Who hears of a lease's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    pub socket: PathBuf,
    /// The service account: the listener must run as this account, and the account may hold the pilot's devices.
    pub uid: u32,
}

/// A device's history and its present use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Known by its number; the index is Slurm's name in the device's last lease.
    pub device: Device,
    /// The greatest epoch that was granted.
    pub epoch: Epoch,
    /// The pilot of the last lease. Before another's, Slurm may have given the device to any job.
    #[serde(default)]
    pub pilot: Option<JobId>,
    pub state: DeviceState,
}

/// Who may open a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum DeviceState {
    /// No kernel, and no process holds it.
    Free,
    /// The kernel of the lease that the step `step` has.
    Lent { step: StepKey, lease: LeaseId },
    /// No kernel has the device, but a process may still hold it.
    Blocked(Blocked),
}

/// What keeps a device from being lent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    pub step: StepKey,
    pub lease: LeaseId,
    /// The last lessee: no other device goes to this user before this device is free.
    pub lessee: u32,
    pub why: String,
}

/// A lease, from before its handover until a clean take-back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The lease's step in its pilot.
    pub step: StepKey,
    pub lease: LeaseId,
    pub epoch: Epoch,
    /// The kernel's step.
    pub kernel: StepKey,
    pub uid: u32,
    /// The kernel's registered process, which is ended last.
    pub process: ProcessId,
    pub cgroup: KernelCgroup,
    /// Way in which the lease's end is known, with the cgroup as known to the counting programs.
    pub level: Level,
    pub group: Option<Group>,
    pub devices: Vec<Device>,
    pub cores: CpuSet,
    /// Masks of the kernel's threads before they were widened.
    pub affinity: CpuSet,
    pub notify: Agent,
    pub grace_ms: u32,
    /// `true` once the kernel can open none of the devices and has its own cores again. The remaining holders must
    /// still let go.
    pub closed: bool,
    /// The slurmstepd with the task of the take-back at the step's end, if alive.
    pub stepd: ProcessId,
}
