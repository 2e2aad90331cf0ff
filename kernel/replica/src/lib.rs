//! Supervises a real ipykernel for one kernel: starts it, carries Jupyter's messages between it and the front, asks
//! `hopd` for its cells' needs, and reports why it died. `docs/kernel.md` tells how the parts work together.
//!
//! [`core`] decides, and has no socket, process or clock; [`run`] and the modules beside it carry out.

pub mod agent;
pub mod child;
pub mod core;
pub mod dial;
mod errands;
mod grace;
pub mod leases;
mod link;
pub mod log;
pub mod models;
pub mod need;
pub mod oom;
mod process;
pub mod run;
pub mod scratch;
pub mod seat;
mod sockets;
pub mod spare;
mod standby;
mod store;
