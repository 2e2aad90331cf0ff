//! Places of a process's cgroups: the mounted hierarchies, Slurm's trees there, and the number of a cgroup.

use crate::proc::Membership;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Mount points of the hierarchies, as this process sees them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mounts {
    v1: Vec<(String, PathBuf)>,
    v2: Vec<PathBuf>,
}

impl Mounts {
    /// # Errors
    /// `/proc/self/mountinfo` can't be read.
    pub fn of_self() -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read_to_string("/proc/self/mountinfo")?))
    }

    /// A later mount hides an earlier mount on the same place, so the last comes first.
    fn parse(mountinfo: &str) -> Self {
        let mut mounts = Self::default();
        for line in mountinfo.lines().rev() {
            let Some((mount, filesystem)) = line.split_once(" - ") else {
                continue;
            };
            let Some(point) = mount.split(' ').nth(4) else {
                continue;
            };
            let mut filesystem = filesystem.split(' ');
            match filesystem.next() {
                Some("cgroup2") => mounts.v2.push(point.into()),
                Some("cgroup") => {
                    let options = filesystem.nth(1).unwrap_or_default();
                    mounts
                        .v1
                        .extend(options.split(',').map(|o| (o.to_owned(), point.into())));
                }
                _ => {}
            }
        }
        mounts
    }

    /// The directory of a v1 cgroup.
    pub fn v1(&self, controller: &str, path: &Path) -> Option<PathBuf> {
        let (_, mount) = self.v1.iter().find(|(c, _)| c == controller)?;
        Some(below(mount, path))
    }

    /// The directory of a v2 cgroup, if v2 is mounted.
    pub fn v2(&self, path: &Path) -> Option<PathBuf> {
        self.v2
            .iter()
            .map(|mount| below(mount, path))
            .find(|dir| dir.is_dir())
    }
}

fn below(mount: &Path, path: &Path) -> PathBuf {
    mount.join(path.strip_prefix("/").unwrap_or(path))
}

/// How Slurm confines a task's devices, from where it put the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    V1,
    /// The task's cgroup.
    V2(PathBuf),
    /// Slurm doesn't confine the task's devices, as far as the path tells.
    None,
}

/// Slurm's v1 trees are `/slurm` or `/slurm_NODE`; ours begin with `/gresshopper_`. Its v2 task cgroups are
/// `.../step_S/user/task_T`, whatever is above.
pub fn placement(membership: &Membership) -> Placement {
    let first = |path: &Path| {
        path.components().nth(1).is_some_and(|c| {
            let c = c.as_os_str().to_string_lossy();
            c.starts_with("slurm") || c.starts_with("gresshopper_")
        })
    };
    if membership.v1("devices").is_some_and(first) {
        return Placement::V1;
    }
    match membership.v2() {
        Some(path) if is_task(path) => Placement::V2(path.to_owned()),
        _ => Placement::None,
    }
}

fn is_task(path: &Path) -> bool {
    let names: Vec<_> = path.iter().map(|n| n.to_string_lossy()).collect();
    let last = names.last().is_some_and(|n| n.starts_with("task_"));
    last && names.iter().any(|n| n.starts_with("step_"))
}

/// A cgroup, by the hierarchy and the number in the hierarchy, unique until the next boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[repr(C)]
pub struct Group {
    pub hierarchy: u64,
    pub id: u64,
}

impl Group {
    /// The hierarchy of the v1 controller `devices`.
    pub const DEVICES: u64 = 1;
    /// The unified one.
    pub const UNIFIED: u64 = 2;
}

/// The cgroup that judges the devices of any process, as known to the counting programs.
pub(crate) fn group_of(mounts: &Mounts, membership: &Membership) -> Option<Group> {
    let v1 = membership.v1("devices").and_then(|p| mounts.v1("devices", p));
    let v2 = membership.v2().and_then(|p| mounts.v2(p));
    numbered(Group::DEVICES, v1).or_else(|| numbered(Group::UNIFIED, v2))
}

/// A cgroup by its directory; `None` means that the directory is gone.
pub(crate) fn numbered(hierarchy: u64, dir: Option<PathBuf>) -> Option<Group> {
    let id = std::fs::metadata(dir?).ok()?.ino();
    Some(Group { hierarchy, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mounts_of_a_hybrid_host_are_found_and_hidden_ones_come_last() {
        let mounts = Mounts::parse(
            "30 20 0:27 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices\n\
             31 20 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
             32 20 0:29 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n\
             33 20 0:29 / /sys/fs/cgroup rw - cgroup2 none rw\n",
        );
        let path = Path::new("/gresshopper_n1/1.0.5");
        assert_eq!(
            mounts.v1("devices", path),
            Some("/sys/fs/cgroup/devices/gresshopper_n1/1.0.5".into())
        );
        assert_eq!(mounts.v1("cpuset", path), None);
        assert_eq!(
            mounts.v2,
            [PathBuf::from("/sys/fs/cgroup"), "/sys/fs/cgroup/unified".into()]
        );
    }

    #[test]
    fn slurms_task_cgroups_are_known_by_their_end() {
        assert!(is_task(Path::new(
            "/system.slice/n1_slurmstepd.scope/job_4/step_0/user/task_0"
        )));
        assert!(!is_task(Path::new(
            "/system.slice/n1_slurmstepd.scope/job_4/step_0/slurm"
        )));
        assert!(!is_task(Path::new("/user.slice/task_0")));
    }
}
