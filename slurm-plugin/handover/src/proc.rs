//! Single facts about processes from `/proc`. Nothing is cached: a pid may be another process a moment later.

use hop_words::text::plain;
use std::io;
use std::path::{Path, PathBuf};

/// Most characters of a program's name: records and lines to the agent stay short.
pub(crate) const EXE: usize = 256;

/// The real uid. None: no such process.
pub fn real_uid(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Tracers of a process or of the process's threads: a tracer can keep a process from ending.
pub fn tracers(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let tracer = |status: std::path::PathBuf| -> Option<u32> {
        let text = std::fs::read_to_string(status.join("status")).ok()?;
        let line = text.lines().find_map(|l| l.strip_prefix("TracerPid:"))?;
        line.trim().parse().ok().filter(|tracer| *tracer != 0)
    };
    tasks.flatten().filter_map(|task| tracer(task.path())).collect()
}

/// The program's file, as far as it is shown; empty for kernel threads and processes that are gone.
pub fn exe(pid: u32) -> String {
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    plain(&path.to_string_lossy()).chars().take(EXE).collect()
}

/// The cgroups that a process is in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Membership {
    /// (controllers, path) of each v1 hierarchy.
    v1: Vec<(String, PathBuf)>,
    /// The path in the unified hierarchy.
    v2: Option<PathBuf>,
}

impl Membership {
    /// # Errors
    /// No such process.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read_to_string(format!(
            "/proc/{pid}/cgroup"
        ))?))
    }

    fn parse(text: &str) -> Self {
        let mut membership = Self::default();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if controllers.is_empty() {
                membership.v2 = Some(path.into());
            } else {
                membership.v1.push((controllers.to_owned(), path.into()));
            }
        }
        membership
    }

    /// The path in the v1 hierarchy of a controller.
    pub fn v1(&self, controller: &str) -> Option<&Path> {
        self.v1
            .iter()
            .find(|(controllers, _)| controllers.split(',').any(|c| c == controller))
            .map(|(_, path)| path.as_path())
    }

    /// Whether the process is in a job of Slurm's, or a kernel's cgroup of ours. A user can't leave or name cgroups.
    pub fn in_job(&self) -> bool {
        let first = |path: &Path| path.iter().nth(1).map(|n| n.to_string_lossy().into_owned());
        let ours = |(_, path): &(String, PathBuf)| {
            let tree = first(path);
            tree.is_some_and(|t| {
                t.starts_with("gresshopper_") || t.starts_with("slurm") && path.iter().count() > 2
            })
        };
        let is_job = |path: &Path| path.iter().any(|n| n.to_string_lossy().starts_with("job_"));
        self.v1
            .iter()
            .any(|entry| ours(entry) && (is_job(&entry.1) || entry.0.contains("devices")))
            || self.v2.as_deref().is_some_and(is_job)
    }

    /// The path in the unified hierarchy.
    pub fn v2(&self) -> Option<&Path> {
        self.v2.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_hierarchies_are_read() {
        let membership =
            Membership::parse("5:devices:/slurm_n1/uid_0\n2:cpu,cpuacct:/x\n0::/system.slice/a:b\n");
        assert_eq!(membership.v1("devices"), Some(Path::new("/slurm_n1/uid_0")));
        assert_eq!(membership.v1("cpuacct"), Some(Path::new("/x")));
        assert_eq!(membership.v1("cpu"), Some(Path::new("/x")));
        assert_eq!(membership.v1("cpuset"), None);
        assert_eq!(membership.v2(), Some(Path::new("/system.slice/a:b")));
    }
}
