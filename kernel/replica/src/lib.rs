//! Supervises a real ipykernel for a kernel: starts the process, carries Jupyter's messages between kernel and front,
//! asks `hopd` for the needs of cells, and reports a death's cause. `docs/kernel.md` tells how the parts work together.
//!
//! [`core`] decides, and has no socket, process or clock; `run` and the modules beside it carry out.

pub mod agent;
mod ahead;
pub mod child;
mod connected;
pub mod core;
pub mod dial;
mod errands;
mod grace;
mod guard;
pub mod leases;
mod leavings;
mod link;
pub mod log;
pub mod models;
pub mod need;
pub mod oom;
pub mod place;
mod process;
mod progress;
mod run;
pub mod scratch;
pub mod seat;
mod slurm;
mod sockets;
pub mod spare;
mod standby;
pub mod start;
mod store;
mod upkeep;
