//! What a cluster shall be like: the choices made at `up`, kept in its base directory for later commands.
//!
//! All names and numbers that must be unique on a machine (node names, ports) are derived from the index
//! here, so that two clusters of different index never meet.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::host::CgroupSetup;

/// Which Slurm series runs on which cgroup version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// The host's Slurm on cgroup v1.
    V1,
    /// The host's Slurm on cgroup v2; on a host that mounts v1 too, in a private mount namespace.
    V2,
    /// Debian 13's Slurm in a chroot, on cgroup v2.
    Trixie,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
            Self::Trixie => "trixie",
        })
    }
}

impl Variant {
    /// cgroup v2 on a host whose controllers are on v1: a private mount and the shim are needed.
    pub(crate) fn hides_v1(self, cgroups: CgroupSetup) -> bool {
        self != Self::V1 && cgroups == CgroupSetup::Hybrid
    }

    /// Whether the cluster lives in a mount namespace of its own.
    pub(crate) fn private_mounts(self, cgroups: CgroupSetup) -> bool {
        self.hides_v1(cgroups) || self == Self::Trixie
    }
}

/// The choices made at `up`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Everything of the cluster lies below this directory.
    pub base: PathBuf,
    /// Tells the clusters of one machine apart: node names, ports, devices.
    pub index: u16,
    /// The Slurm series and cgroup version.
    pub variant: Variant,
    /// Nodes of partition `notebook`.
    pub nodes: u16,
    /// CLOUD nodes of partition `burst`, which Slurm powers up and down.
    pub burst_nodes: u16,
    /// Fake GPUs per node, on burst nodes too.
    pub gpus_per_node: u16,
    /// Device files of real GPUs, in place of fake ones. The cluster has one node then, which holds them all.
    #[serde(default)]
    pub gpu_files: Vec<PathBuf>,
    /// The machine's real cores and `ConstrainCores=yes`, rather than 32 pretended ones.
    pub real_cores: bool,
    /// `task/affinity` before `task/cgroup`.
    pub task_affinity: bool,
    /// Lines added to slurm.conf.
    pub conf_extra: String,
    /// A line for plugstack.conf.
    pub plugstack: Option<String>,
    /// Further directories to be seen inside the chroot of variant `trixie`.
    pub binds: Vec<PathBuf>,
}

/// Ports a cluster may use, counted from its own first one.
const PORTS_PER_CLUSTER: u16 = 100;
const FIRST_PORT: u16 = 17_000;
const MAX_INDEX: u16 = 99;

impl Options {
    /// Refuses what can't work: too many nodes for the ports, a base that isn't absolute.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.base.is_absolute(),
            "the base directory must be absolute, not {}",
            self.base.display()
        );
        let plain = self
            .base
            .to_str()
            .is_some_and(|s| s.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)));
        ensure!(
            plain,
            "the base directory's name may have letters, digits and /._- only: {}",
            self.base.display()
        );
        ensure!(
            self.base.components().count() > 2,
            "{} is too high up for a base directory",
            self.base.display()
        );
        ensure!(self.index <= MAX_INDEX, "the index must be at most {MAX_INDEX}");
        ensure!(
            (1..=20).contains(&self.nodes),
            "a cluster has 1 to 20 nodes, not {}",
            self.nodes
        );
        ensure!(self.burst_nodes <= 10, "a cluster has at most 10 burst nodes");
        ensure!(
            self.gpu_files.is_empty() || self.nodes + self.burst_nodes == 1,
            "real GPUs belong to one node: ask for --nodes 1 --burst-nodes 0, not for {} and {}",
            self.nodes,
            self.burst_nodes
        );
        Ok(())
    }

    /// Nodes of partition `notebook`, e.g. `n1`, `n2` for index 0 and `c3n1` for index 3.
    pub fn node_names(&self) -> Vec<String> {
        let prefix = if self.index == 0 {
            String::new()
        } else {
            format!("c{}", self.index)
        };
        (1..=self.nodes).map(|i| format!("{prefix}n{i}")).collect()
    }

    /// Nodes of partition `burst`.
    pub fn burst_names(&self) -> Vec<String> {
        let prefix = if self.index == 0 {
            String::new()
        } else {
            format!("c{}", self.index)
        };
        (1..=self.burst_nodes).map(|i| format!("{prefix}b{i}")).collect()
    }

    /// All nodes.
    pub fn all_nodes(&self) -> Vec<String> {
        let mut names = self.node_names();
        names.extend(self.burst_names());
        names
    }

    fn port(&self, offset: u16) -> u16 {
        FIRST_PORT + self.index * PORTS_PER_CLUSTER + offset
    }

    /// Port of the slurmd of the node at this place in [`Self::all_nodes`].
    pub fn slurmd_port(&self, place: usize) -> u16 {
        self.port(1 + u16::try_from(place).expect("checked: at most 30 nodes"))
    }

    /// Port of slurmctld.
    pub fn ctld_port(&self) -> u16 {
        self.port(40)
    }

    /// Port of slurmdbd.
    pub fn dbd_port(&self) -> u16 {
        self.port(41)
    }

    /// First of forty ports that the cluster itself leaves to what is tested on it.
    pub fn free_port(&self) -> u16 {
        self.port(50)
    }

    /// The cluster's name for Slurm.
    pub fn cluster_name(&self) -> String {
        format!("hopdev{}", self.index)
    }
}

#[cfg(test)]
pub(crate) fn sample() -> Options {
    Options {
        base: PathBuf::from("/srv/hop"),
        index: 0,
        variant: Variant::V1,
        nodes: 4,
        burst_nodes: 2,
        gpus_per_node: 2,
        gpu_files: vec![],
        real_cores: false,
        task_affinity: false,
        conf_extra: String::new(),
        plugstack: None,
        binds: vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn clusters_of_different_index_share_no_name_and_no_port() {
        let (mut names, mut ports) = (BTreeSet::new(), BTreeSet::new());
        for index in 0..=MAX_INDEX {
            let o = Options {
                index,
                nodes: 20,
                burst_nodes: 10,
                ..sample()
            };
            o.check().unwrap();
            for (place, name) in o.all_nodes().into_iter().enumerate() {
                assert!(names.insert(name.clone()), "{name} twice");
                assert!(ports.insert(o.slurmd_port(place)));
            }
            let free = o.free_port()..o.free_port() + 40;
            for port in free.chain([o.ctld_port(), o.dbd_port()]) {
                assert!(ports.insert(port), "port {port} twice");
            }
        }
        assert!(*ports.last().unwrap() < 32_768, "below the ephemeral ports");
    }

    #[test]
    fn refuses_bases_that_down_must_never_remove() {
        for base in ["/", "/srv", "relative/dir", "/srv/with space", "/srv/x'y"] {
            assert!(
                Options {
                    base: base.into(),
                    ..sample()
                }
                .check()
                .is_err(),
                "{base}"
            );
        }
    }
}
