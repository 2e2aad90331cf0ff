//! Handing leased devices and cores over to a kernel's cgroup, and taking them back.
//!
//! The agent uses [`token`]: what it asks of the plugin, and what the plugin confirms. The SPANK plugin
//! (`slurm-plugin/spank`) uses the rest; it runs as root in slurmstepd.
//!
//! [`decide`] holds the rules, pure; [`node`] carries them out with [`store`] (records), [`cgroup`] and [`bpf`]
//! (devices), [`cores`], and [`holders`] (who still holds a device). `docs/who-holds-a-device.md` argues why that
//! is enough.

pub mod bpf;
mod btf;
pub mod cgroup;
pub mod cores;
pub mod cpuset;
pub mod decide;
pub mod gres;
pub mod holders;
pub mod hostlist;
pub mod node;
pub mod options;
mod pass;
pub mod proc;
pub mod record;
pub mod store;
pub mod token;
