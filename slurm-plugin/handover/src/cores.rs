//! Cores of a lease: widening a kernel's cpuset and the masks of the kernel's threads, and narrowing both.
//!
//! The cpuset is the limit. A thread with a mask of its own (task/affinity sets a mask, and children inherit the mask)
//! stays within the mask however wide the cpuset is. So every thread of the kernel gets the new mask. Without
//! constrained cores there is no limit to widen, and nothing is done.

use crate::cgroup::{self, CgroupError, read_cpus};
use crate::cpuset::CpuSet;
use crate::mounts::Mounts;
use crate::proc::Membership;
use crate::record::KernelCgroup;
use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Cores of a step, from the cpuset of a process in it; empty if Slurm doesn't constrain cores.
pub fn of_step(mounts: &Mounts, membership: &Membership) -> CpuSet {
    let v1 = membership
        .v1("cpuset")
        .filter(|p| p.components().nth(1).is_some())
        .and_then(|p| mounts.v1("cpuset", p))
        .map(|d| d.join("cpuset.cpus"));
    let v2 = || {
        let path = membership
            .v2()
            .filter(|p| p.iter().any(|n| n.to_string_lossy().starts_with("step_")))?;
        let dir = mounts.v2(path)?;
        // Without the controller in Slurm's tree the file is missing: cores are not constrained.
        Some(dir.join("cpuset.cpus.effective"))
    };
    v1.or_else(v2)
        .and_then(|file| std::fs::read_to_string(file).ok())
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// The mask of a process; empty if it can't be read.
pub fn affinity_of(pid: u32) -> CpuSet {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Ok(mask) = sched_getaffinity(pid) else {
        return CpuSet::default();
    };
    (0..u32::try_from(rustix::thread::CpuSet::MAX_CPU).unwrap_or(0))
        .filter(|cpu| mask.is_set(*cpu as usize))
        .collect()
}

/// The seat's own cores, as recorded; none where cores aren't constrained.
pub fn base(cgroup: &KernelCgroup) -> Option<&CpuSet> {
    match cgroup {
        KernelCgroup::V1 { cpuset, .. } => cpuset.as_ref().map(|c| &c.base),
        KernelCgroup::V2 { base, .. } => base.as_ref(),
    }
}

/// Adds `lease` to the kernel's cores, threads and children included.
///
/// # Errors
/// The kernel refuses the cpuset; single threads that end meanwhile are no error.
pub fn widen(
    mounts: &Mounts,
    cgroup: &KernelCgroup,
    affinity: &CpuSet,
    lease: &CpuSet,
) -> Result<(), CgroupError> {
    for dir in levels(mounts, cgroup) {
        let now = read(&dir)?;
        if !now.is_empty() {
            write(&dir, &now.union(lease))?;
        }
    }
    set_masks(mounts, cgroup, &affinity.union(lease));
    Ok(())
}

/// Takes `lease` away again, but for what is the seat's own. Idempotent.
///
/// # Errors
/// The kernel refuses the cpuset.
pub fn narrow(
    mounts: &Mounts,
    cgroup: &KernelCgroup,
    affinity: &CpuSet,
    lease: &CpuSet,
) -> Result<(), CgroupError> {
    let Some(base) = base(cgroup) else { return Ok(()) };
    let extra = lease.minus(base);
    for dir in levels(mounts, cgroup).into_iter().rev() {
        // A cgroup that goes meanwhile has no processes left.
        narrow_level(&dir, &extra).or_else(|e| if dir.is_dir() { Err(e) } else { Ok(()) })?;
    }
    set_masks(mounts, cgroup, affinity);
    Ok(())
}

fn narrow_level(dir: &Path, extra: &CpuSet) -> Result<(), CgroupError> {
    let now = read(dir)?;
    let rest = now.minus(extra);
    // An empty list would mean "all of the parent's" on v2.
    if rest == now || rest.is_empty() {
        Ok(())
    } else {
        write(dir, &rest)
    }
}

/// The cpusets to change, the outermost first. On v2 a child can't have more than its parent, so all of Slurm's
/// levels from the job down are among them.
fn levels(mounts: &Mounts, cgroup: &KernelCgroup) -> Vec<PathBuf> {
    match cgroup {
        KernelCgroup::V1 { cpuset: Some(c), .. } => mounts
            .v1("cpuset", &c.path)
            .into_iter()
            .filter(|d| d.is_dir())
            .collect(),
        KernelCgroup::V2 {
            task, base: Some(_), ..
        } => {
            let is_job = |p: &Path| {
                p.file_name()
                    .is_some_and(|n| n.to_string_lossy().starts_with("job_"))
            };
            let depth = task.ancestors().position(is_job).unwrap_or(0);
            let mut paths: Vec<&Path> = task.ancestors().take(depth + 1).collect();
            paths.reverse();
            paths.into_iter().filter_map(|p| mounts.v2(p)).collect()
        }
        _ => Vec::new(),
    }
}

fn read(dir: &Path) -> Result<CpuSet, CgroupError> {
    read_cpus(dir, "cpuset.cpus")
}

fn write(dir: &Path, cpus: &CpuSet) -> Result<(), CgroupError> {
    cgroup::write(dir, "cpuset.cpus", &cpus.to_string(), "can't set")
}

/// Rounds over the thread list. A new thread inherits its maker's mask, so only makers not reached yet can add old
/// masks, and each round leaves fewer of them.
const ROUNDS: usize = 8;

fn set_masks(mounts: &Mounts, cgroup: &KernelCgroup, cpus: &CpuSet) {
    if cpus.is_empty() {
        return;
    }
    let mut mask = rustix::thread::CpuSet::new();
    cpus.iter()
        .filter(|c| (*c as usize) < rustix::thread::CpuSet::MAX_CPU)
        .for_each(|c| mask.set(c as usize));
    let mut done = HashSet::new();
    for _ in 0..ROUNDS {
        let new: Vec<i32> = cgroup::threads(mounts, cgroup)
            .into_iter()
            .filter(|t| done.insert(*t))
            .collect();
        if new.is_empty() {
            return;
        }
        for tid in new {
            // The thread may have ended. A core offline or not ours fails for a single thread alone.
            let _ = sched_setaffinity(Pid::from_raw(tid), &mask);
        }
    }
}
