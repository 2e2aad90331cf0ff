//! The SPANK plugin gresshopper.so: registers kernels' steps, hands leased devices and cores over, takes both back, and
//! reports to the agent.
//!
//! The plugin runs as root in slurmstepd, for every step of the node. A foreign step costs a look into its environment.
//! No panic leaves the plugin, and no callback fails: under `optional` Slurm would go on anyway, and a lease counts
//! only when the agent has the plugin's own confirmation.
//!
//! | callback | process | what is done |
//! |---|---|---|
//! | task_post_fork | slurmstepd, the task not yet let go | a kernel's step: register and confine it; a lease's: its token's order |
//! | task_exit, exit | slurmstepd | the take-back; a kernel's step is forgotten |
//! | job_epilog | child of slurmd | whatever the ended job had lent is taken back |
//!
//! Decisions and actions are in `hop-handover`. This crate is the contact with Slurm.

#![allow(unsafe_code)] // FFI: Slurm calls us and we call it.
#![allow(unreachable_pub, reason = "the symbols are for Slurm's loader")]

#[cfg(spank)]
mod callbacks;
#[cfg(spank)]
mod ffi;
#[cfg(spank)]
mod notify;
#[cfg(spank)]
mod site;
