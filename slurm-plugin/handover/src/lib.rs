//! Handing leased devices and cores over to a kernel's cgroup, and taking them back.
//!
//! The agent uses [`token`]: what it asks of the plugin, and what the plugin confirms. The SPANK plugin
//! (`slurm-plugin/spank`) uses the rest; it runs as root in slurmstepd.

pub mod token;
