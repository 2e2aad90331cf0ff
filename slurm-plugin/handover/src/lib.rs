//! Handing leased devices and cores over to a kernel's cgroup, and taking them back.
//!
//! The agent uses [`token`]: its requests to the plugin, and the plugin's confirmations. The SPANK plugin
//! (`slurm-plugin/spank`) uses the rest, as root in slurmstepd.
//!
//! [`decide`] holds the rules, pure, and [`node`] carries them out. `docs/who-holds-a-device.md` argues why this is
//! enough. The tools of [`node`]:
//!
//! - [`store`]: the records of leases
//! - [`probe`]: the devices that Slurm lets a step open
//! - [`mounts`], and [`cgroup`] with [`bpf`]: the rules for devices; [`cores`]: those for cores
//! - [`count`]: the proof that a device is free
//! - [`release`] with [`holders`]: the end of a device's remaining holders

mod apart;
pub mod bpf;
mod btf;
pub mod cgroup;
pub mod cores;
pub mod count;
pub mod cpuset;
pub mod decide;
pub mod holders;
pub mod mounts;
pub mod node;
pub mod options;
pub mod probe;
pub mod proc;
pub mod record;
pub mod release;
pub mod store;
pub mod token;
