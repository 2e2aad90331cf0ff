//! The Slurm step of a replica, the same whoever starts it: the front at first, a seat's keeper when its replica takes
//! office.

use hop_words::id::{Incarnation, JobId, KernelId, NodeName};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The size of a replica's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSize {
    pub mem_mib: u64,
    pub cpus: u16,
}

/// When a replica runs the kernel's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// At once.
    Now,
    /// When the front moves the kernel there.
    Moved,
    /// At once, if the kernel's group has elected the replica: without the group's word it must not run.
    Elected,
    /// The replica begins when the kernel's group elects it. Until then its process follows the kernel's log.
    Follows,
}

impl Turn {
    fn option(self) -> Option<&'static str> {
        match self {
            Self::Now => None,
            Self::Moved => Some("--standby"),
            Self::Elected => Some("--elected"),
            Self::Follows => Some("--follows"),
        }
    }
}

/// A replica's step in a seat.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    pub kernel: &'a KernelId,
    /// The kernel's folder with `front.json`.
    pub dir: &'a Path,
    pub incarnation: Incarnation,
    pub seat: JobId,
    pub node: &'a NodeName,
    pub size: StepSize,
    /// `hop-replica` on the node.
    pub program: &'a Path,
    pub turn: Turn,
}

impl Step<'_> {
    /// The arguments of `srun`.
    pub fn srun_args(&self) -> Vec<String> {
        let run = run_args(self.dir, self.incarnation).into_iter();
        step_args(self.seat, self.node, self.size, kernel_arg(self.kernel))
            .chain([self.program.display().to_string()])
            .chain(run)
            .chain(self.turn.option().map(str::to_owned))
            .collect()
    }

    /// The arguments of `srun` for a step waiting to become such a replica of any kernel of this kernel's kind.
    pub fn spare_args(&self, number: u32) -> Vec<String> {
        step_args(
            self.seat,
            self.node,
            self.size,
            name_arg(&format!("spare-{number}")),
        )
        .chain([self.program.display().to_string(), "spare".into()])
        .chain(["--dir".into(), self.dir.display().to_string()])
        .chain(["--number".into(), number.to_string()])
        .collect()
    }
}

/// The argument of `srun` that marks this kernel's sruns among the user's.
pub fn kernel_arg(kernel: &KernelId) -> String {
    name_arg(&format!("kernel-{kernel}"))
}

fn name_arg(name: &str) -> String {
    format!("--job-name={name}")
}

/// The arguments common to all steps of a seat.
fn step_args(seat: JobId, node: &NodeName, size: StepSize, name: String) -> impl Iterator<Item = String> {
    let fixed = [
        "-Q",
        "--overlap",
        "--gres=none",
        "--nodes=1",
        "--ntasks=1",
        "--cpu-bind=none",
        "--mpi=none",
        "--export=ALL",
        "--input=none",
        "--kill-on-bad-exit=0",
    ];
    let own = [
        format!("--jobid={seat}"),
        format!("--nodelist={node}"),
        format!("--mem={}M", size.mem_mib),
        format!("--cpus-per-task={}", size.cpus.max(1)),
        name,
    ];
    fixed.into_iter().map(str::to_owned).chain(own)
}

/// The arguments of `hop-replica` for one replica of a kernel.
pub fn run_args(dir: &Path, incarnation: Incarnation) -> [String; 5] {
    let dir = dir.display().to_string();
    [
        "run".into(),
        "--dir".into(),
        dir,
        "--incarnation".into(),
        incarnation.to_string(),
    ]
}

/// Takes the variables of this process's job, and of the user's preferred table format, from a command of Slurm's.
pub fn forget_job(command: &mut std::process::Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_slurm) {
            command.env_remove(&name);
        }
    }
}

/// Whether a variable of the environment belongs to the Slurm job or command around this process, and so must not reach
/// another. The path of Slurm's configuration is not the job's own.
pub fn is_of_slurm(name: &str) -> bool {
    const PREFIXES: [&str; 6] = ["SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SQUEUE_", "SCANCEL_"];
    name != "SLURM_CONF" && PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}
