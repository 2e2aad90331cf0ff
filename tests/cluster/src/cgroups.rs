//! The cgroup directories of a cluster's nodes: finding them, ending what lives in them, removing them.
//!
//! Slurm names them by node, and node names are unique on a machine, so nothing of another cluster or of
//! the machine's own can be among them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use crate::host::{CgroupMount, cgroup_mounts};
use crate::process::{Process, wait_until};

/// The v2 controllers that Slurm's constraints and accounting need handed down to `system.slice`. Slurm 22.05 misses the last
/// of a directory's `cgroup.controllers`, newline and all: `pids` stands there for `memory` on a host without systemd.
pub(crate) const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];
const HANDS_DOWN: [&str; 2] = ["/sys/fs/cgroup/system.slice", "/sys/fs/cgroup"];

/// Those of [`CONTROLLERS`] that the host doesn't hand down, by directory; none unless it has v2 alone.
pub(crate) fn withheld() -> BTreeMap<PathBuf, Vec<String>> {
    let lacking = |dir: &str| {
        let given = fs::read_to_string(Path::new(dir).join("cgroup.subtree_control")).ok()?;
        let lacks = CONTROLLERS
            .iter()
            .filter(|c| !given.split_whitespace().any(|g| g == **c));
        Some((PathBuf::from(dir), lacks.map(|c| (*c).to_owned()).collect()))
    };
    HANDS_DOWN.into_iter().filter_map(lacking).collect()
}

/// Withholds them again, below first.
pub(crate) fn withhold(controllers: &BTreeMap<PathBuf, Vec<String>>) {
    for dir in HANDS_DOWN.map(Path::new) {
        for controller in controllers.get(dir).into_iter().flatten() {
            // Refused if somebody has come to use it meanwhile, and then rightly so.
            let _ = fs::write(dir.join("cgroup.subtree_control"), format!("-{controller}"));
        }
    }
}

/// Cgroup directories that these nodes may have in one mount.
fn candidates(mount: &CgroupMount, nodes: &[String]) -> Vec<PathBuf> {
    let patterns: &[(&str, &str)] = match mount.controllers {
        Some(_) => &[("slurm_", ""), ("gresshopper_", "")],
        None => &[("system.slice/", "_slurmstepd.scope"), ("gresshopper_", "")],
    };
    let join = |n: &String| -> Vec<PathBuf> {
        patterns
            .iter()
            .map(|(before, after)| mount.path.join(format!("{before}{n}{after}")))
            .collect()
    };
    nodes.iter().flat_map(join).collect()
}

/// The cgroup directories of these nodes that exist.
pub(crate) fn of_nodes(nodes: &[String]) -> Result<Vec<PathBuf>> {
    let mounts = cgroup_mounts()?;
    Ok(mounts
        .iter()
        .flat_map(|m| candidates(m, nodes))
        .filter(|p| p.is_dir())
        .collect())
}

/// The living processes in a node's cgroups.
pub(crate) fn processes(node: &str) -> Result<Vec<Process>> {
    let mut pids = vec![];
    for dir in of_nodes(&[node.to_owned()])? {
        collect_pids(&dir, &mut pids);
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids.into_iter().filter_map(Process::find).collect())
}

fn collect_pids(dir: &Path, pids: &mut Vec<i32>) {
    let inside = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    pids.extend(inside.lines().filter_map(|line| line.parse::<i32>().ok()));
    for child in fs::read_dir(dir).into_iter().flatten().flatten() {
        if child.file_type().is_ok_and(|t| t.is_dir()) {
            collect_pids(&child.path(), pids);
        }
    }
}

/// Ends every process in these nodes' cgroups and removes the directories.
pub(crate) fn remove(nodes: &[String]) -> Result<()> {
    let mut left = vec![];
    for dir in of_nodes(nodes)? {
        if !wait_until(Duration::from_secs(10), || remove_tree(&dir)) {
            left.push(dir.display().to_string());
        }
    }
    ensure!(
        left.is_empty(),
        "these cgroups can't be removed: {}",
        left.join(", ")
    );
    Ok(())
}

/// On v2 without systemd `system.slice` is the keepers' making. For the last cluster: another one that is coming up may
/// have found it there.
pub(crate) fn remove_slice() -> Result<()> {
    if Path::new("/run/systemd/system").exists() {
        return Ok(());
    }
    for mount in cgroup_mounts()?.iter().filter(|m| m.controllers.is_none()) {
        // Fails, rightly, while somebody else is in it.
        let _ = fs::remove_dir(mount.path.join("system.slice"));
    }
    Ok(())
}

/// One attempt; true when the directory is gone.
fn remove_tree(dir: &Path) -> bool {
    for child in fs::read_dir(dir).into_iter().flatten().flatten() {
        if child.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&child.path());
        }
    }
    let frozen = dir.join("freezer.state");
    if frozen.exists() {
        // A frozen process can't die. Gone in between is as good.
        let _ = fs::write(frozen, "THAWED");
    }
    let inside = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    inside
        .lines()
        .filter_map(|l| l.parse().ok())
        .filter_map(Process::find)
        .for_each(|p| p.signal(Signal::KILL));
    fs::remove_dir(dir).is_ok() || !dir.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_only_for_directories_named_by_its_nodes() {
        let nodes = ["n1".to_owned()];
        let v1 = CgroupMount {
            path: "/cg/devices".into(),
            controllers: Some(vec!["devices".into()]),
        };
        assert_eq!(
            candidates(&v1, &nodes),
            [
                PathBuf::from("/cg/devices/slurm_n1"),
                PathBuf::from("/cg/devices/gresshopper_n1")
            ]
        );
        let v2 = CgroupMount {
            path: "/cg".into(),
            controllers: None,
        };
        assert_eq!(
            candidates(&v2, &nodes),
            [
                PathBuf::from("/cg/system.slice/n1_slurmstepd.scope"),
                PathBuf::from("/cg/gresshopper_n1")
            ]
        );
    }
}
