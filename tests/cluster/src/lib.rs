//! A real Slurm cluster of several nodes on one machine, for tests and demonstrations.
//!
//! munged, MariaDB with slurmdbd, slurmctld, and a slurmd per node are started below one base directory, on
//! loopback and Unix sockets only. The one fake is the GPU: a device node of the cluster's own (an unused
//! virtual console's number) that can be opened without hardware, so that "may open" and "may not" are
//! decided by the kernel's real cgroups.
//!
//! What a cluster makes outside its base directory (device nodes, users, cgroup directories, and for cgroup
//! v2 a private mount namespace) is recorded and taken away by [`Cluster::down`].

mod cgroups;
mod cluster;
mod config;
mod daemons;
mod devices;
mod host;
mod layout;
mod options;
mod prepare;
mod process;
mod registry;
mod sandbox;
mod trixie;
mod users;

pub use cluster::{Cluster, NodeStatus, Status, UpOutcome};
pub use host::CgroupSetup;
pub use layout::Layout;
pub use options::{Options, Variant};
pub use prepare::prepare as prepare_trixie;
pub use sandbox::Identity;
