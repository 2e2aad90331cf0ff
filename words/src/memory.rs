//! How much host memory a process may still take: the tightest memory cgroup above it, v1 or v2, and the machine.
//!
//! Callers that keep much in host memory ask here first: parked GPU memory and captures of a notebook's state are
//! charged to the user's seat. Page cache that Linux would free at once counts as free.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Host memory left, and the limit behind the number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLeft {
    pub bytes: u64,
    /// A noun phrase for the user, such as "the machine's memory".
    pub limit: String,
}

/// Where to look. The defaults are found from the mounts of this process.
#[derive(Debug, Clone)]
pub struct MemoryPaths {
    pub proc: PathBuf,
    /// Mount of cgroup v1's memory controller.
    pub v1: Option<PathBuf>,
    /// Mount of cgroup v2.
    pub v2: Option<PathBuf>,
    /// Bytes that the machine can give, where somebody knows better than `/proc/meminfo`: a virtual machine whose
    /// memory grows as it is used.
    pub machine: Option<u64>,
}

impl MemoryPaths {
    /// The mounts that `/proc/self/mountinfo` names.
    #[must_use]
    pub fn here() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self {
            proc: "/proc".into(),
            v1: find_mount(&mounts, "cgroup", Some("memory")),
            v2: find_mount(&mounts, "cgroup2", None),
            machine: None,
        }
    }

    /// The memory that `pid` may still take. `None` means that no limit is known.
    pub fn left(&self, pid: i32) -> Option<HostLeft> {
        let cgroups = fs::read_to_string(self.proc.join(pid.to_string()).join("cgroup")).unwrap_or_default();
        let mut limits = self.machine().into_iter().collect::<Vec<_>>();
        for line in cgroups.lines() {
            let mut parts = line.splitn(3, ':');
            let (_, Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let (mount, files) = match controllers {
                "" => (&self.v2, &V2),
                names if names.split(',').any(|name| name == "memory") => (&self.v1, &V1),
                _ => continue,
            };
            if let Some(mount) = mount {
                limits.extend(up(mount, path, files));
            }
        }
        limits.into_iter().min_by_key(|left| left.bytes)
    }

    fn machine(&self) -> Option<HostLeft> {
        if let Some(bytes) = self.machine {
            return Some(HostLeft {
                bytes,
                limit: "what was said of the machine".to_owned(),
            });
        }
        let meminfo = fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let line = meminfo
            .lines()
            .find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        Some(HostLeft {
            bytes: kib * 1024,
            limit: "the machine's memory".to_owned(),
        })
    }
}

/// The files of one cgroup version.
struct Files {
    limit: &'static str,
    usage: &'static str,
    reclaimable: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

const V2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: "inactive_file",
};

/// The memory that each cgroup from `path` up to the mount leaves.
fn up(mount: &Path, path: &str, files: &Files) -> Vec<HostLeft> {
    let mut dir = mount.join(path.trim_start_matches('/'));
    // In a cgroup namespace the path may lie outside of what is mounted: then the mount's root is all there is.
    if path.contains("/..") || !dir.is_dir() {
        dir = mount.to_path_buf();
    }
    let mut found = Vec::new();
    while dir.starts_with(mount) {
        found.extend(one(&dir, files));
        if !dir.pop() {
            break;
        }
    }
    found
}

fn one(dir: &Path, files: &Files) -> Option<HostLeft> {
    let number = |file: &str| {
        fs::read_to_string(dir.join(file))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    let limit = number(files.limit).filter(|limit| *limit < 1 << 60)?;
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let reclaimable = stat
        .lines()
        .find_map(|l| l.strip_prefix(files.reclaimable)?.trim().parse::<u64>().ok());
    let used = number(files.usage)?.saturating_sub(reclaimable.unwrap_or(0));
    Some(HostLeft {
        bytes: limit.saturating_sub(used),
        limit: format!("the memory cgroup {}", dir.display()),
    })
}

/// The mount point of a file system type, with a super option where one is asked for.
fn find_mount(mountinfo: &str, kind: &str, option: Option<&str>) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (fs_type, _, options) = (right.next()?, right.next()?, right.next()?);
        let has_option = option.is_none_or(|wanted| options.split(',').any(|o| o == wanted));
        (fs_type == kind && has_option).then(|| left.split(' ').nth(4).map(PathBuf::from))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    fn world(cgroup: &str) -> (tempfile::TempDir, MemoryPaths) {
        let dir = tempfile::tempdir().unwrap();
        put(&dir.path().join("proc/7"), &[("cgroup", cgroup)]);
        put(
            &dir.path().join("proc"),
            &[("meminfo", "MemTotal: 9 kB\nMemAvailable:    1000 kB\n")],
        );
        let paths = MemoryPaths {
            proc: dir.path().join("proc"),
            v1: Some(dir.path().join("v1")),
            v2: Some(dir.path().join("v2")),
            machine: None,
        };
        (dir, paths)
    }

    #[test]
    fn v2_counts_the_tightest_level_and_gives_page_cache_back() {
        let (dir, paths) = world("0::/job/step\n");
        let stat = ("memory.stat", "anon 5\ninactive_file 50\n");
        put(
            &dir.path().join("v2/job"),
            &[("memory.max", "300"), ("memory.current", "250"), stat],
        );
        put(
            &dir.path().join("v2/job/step"),
            &[("memory.max", "max"), ("memory.current", "100")],
        );
        let left = paths.left(7).unwrap();
        assert_eq!(left.bytes, 100);
        assert!(left.limit.ends_with("v2/job"), "{}", left.limit);
    }

    #[test]
    fn v1_is_read_too_and_no_limit_means_the_machine() {
        let (dir, paths) = world("9:cpu:/x\n8:memory:/slurm/job_1\n0::/\n");
        put(
            &dir.path().join("v1/slurm/job_1"),
            &[
                ("memory.limit_in_bytes", "9223372036854771712"),
                ("memory.usage_in_bytes", "1"),
            ],
        );
        assert_eq!(paths.left(7).unwrap().limit, "the machine's memory");
        put(
            &dir.path().join("v1/slurm"),
            &[("memory.limit_in_bytes", "1000"), ("memory.usage_in_bytes", "1")],
        );
        assert_eq!(paths.left(7).unwrap().bytes, 999);
        let told = MemoryPaths {
            machine: Some(500),
            ..paths
        };
        assert_eq!(
            told.left(7).unwrap().bytes,
            500,
            "what was said counts like any limit"
        );
    }

    #[test]
    fn mounts_are_found_by_type_and_controller() {
        let info = "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                    33 24 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(
            find_mount(info, "cgroup", Some("memory")).unwrap(),
            Path::new("/sys/fs/cgroup/memory")
        );
        assert_eq!(
            find_mount(info, "cgroup2", None).unwrap(),
            Path::new("/sys/fs/cgroup/unified")
        );
        assert_eq!(find_mount(info, "cgroup", Some("cpu")), None);
    }
}
