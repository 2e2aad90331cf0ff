//! Whether the kernel ran out of memory: the counters of its memory cgroup, of version 1 and 2.

use std::path::{Path, PathBuf};

/// The memory cgroup of this process and all cgroups above, with each cgroup's count of kills for memory.
#[derive(Debug, Clone)]
pub struct OomWatch {
    levels: Vec<(PathBuf, u64)>,
}

impl OomWatch {
    /// Remembers the counters as they are.
    pub fn start() -> Self {
        let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let levels = levels(&cgroups, &mounts)
            .into_iter()
            .map(|dir| (kills(&dir), dir))
            .map(|(n, d)| (d, n));
        Self {
            levels: levels.collect(),
        }
    }

    /// Whether any process in this cgroup was killed for memory since, and the limit in bytes if one is known.
    pub fn struck(&self) -> Option<Option<u64>> {
        let struck = self.levels.iter().any(|(dir, before)| kills(dir) > *before);
        struck.then(|| self.levels.iter().filter_map(|(dir, _)| limit(dir)).min())
    }
}

/// The folders of the memory cgroup, the innermost first.
fn levels(cgroups: &str, mounts: &str) -> Vec<PathBuf> {
    let v1 = cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        controllers
            .split(',')
            .any(|c| c == "memory")
            .then(|| fields.next())
            .flatten()
    });
    let v2 = || cgroups.lines().find_map(|line| line.strip_prefix("0::"));
    let (path, root) = match v1 {
        Some(path) => (
            path,
            mount(mounts, |kind, options| {
                kind == "cgroup" && options.split(',').any(|o| o == "memory")
            }),
        ),
        None => match v2() {
            Some(path) => (path, mount(mounts, |kind, _| kind == "cgroup2")),
            None => return Vec::new(),
        },
    };
    let Some(root) = root else {
        return Vec::new();
    };
    let below = Path::new(path.trim_start_matches('/'));
    below
        .ancestors()
        .filter(|p| !p.as_os_str().is_empty())
        .map(|p| root.join(p))
        .collect()
}

/// Mount point of a file system of the wanted kind, from `/proc/self/mountinfo`.
fn mount(mounts: &str, wanted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        wanted(kind, options)
            .then(|| left.split(' ').nth(4).map(PathBuf::from))
            .flatten()
    })
}

fn kills(dir: &Path) -> u64 {
    let count = |file: &str| {
        let text = std::fs::read_to_string(dir.join(file)).ok()?;
        text.lines()
            .find_map(|l| l.strip_prefix("oom_kill ")?.trim().parse().ok())
    };
    count("memory.events")
        .or_else(|| count("memory.oom_control"))
        .unwrap_or(0)
}

fn limit(dir: &Path) -> Option<u64> {
    let read = |file: &str| {
        std::fs::read_to_string(dir.join(file))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    // Version 1 says "no limit" with a number near the largest.
    read("memory.max")
        .or_else(|| read("memory.limit_in_bytes"))
        .filter(|n| *n < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "30 24 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n\
                          40 24 0:36 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_memory_cgroup_is_found_on_either_version() {
        let hybrid = levels("4:memory:/slurm/job_1/step_2\n0::/x\n", MOUNTS);
        let expected = ["slurm/job_1/step_2", "slurm/job_1", "slurm"]
            .map(|p| Path::new("/sys/fs/cgroup/memory").join(p));
        assert_eq!(hybrid, expected);
        let unified = levels("0::/system/job_1\n", MOUNTS);
        assert_eq!(
            unified,
            ["system/job_1", "system"].map(|p| Path::new("/sys/fs/cgroup/unified").join(p))
        );
        assert!(levels("", MOUNTS).is_empty());
    }

    #[test]
    fn a_kill_in_the_cgroup_or_above_counts_and_the_tightest_limit_is_named() {
        let tmp = tempfile::tempdir().unwrap();
        let inner = tmp.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(tmp.path().join("memory.events"), "low 0\noom 0\noom_kill 3\n").unwrap();
        std::fs::write(tmp.path().join("memory.max"), "max\n").unwrap();
        std::fs::write(
            inner.join("memory.oom_control"),
            "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
        )
        .unwrap();
        std::fs::write(inner.join("memory.limit_in_bytes"), "1048576\n").unwrap();
        let watch = OomWatch {
            levels: [inner.clone(), tmp.path().to_owned()]
                .map(|d| (d.clone(), kills(&d)))
                .to_vec(),
        };
        assert_eq!(watch.struck(), None);
        std::fs::write(
            inner.join("memory.oom_control"),
            "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        )
        .unwrap();
        assert_eq!(watch.struck(), Some(Some(1_048_576)));
    }
}
