//! Supervises a real ipykernel for one kernel: starts it, carries Jupyter's messages between it and the front, asks
//! `hopd` for what its cells need, and says why it died. `docs/kernel.md` tells how the parts work together.

pub mod agent;
pub mod child;
pub mod dial;
pub mod leases;
pub mod need;
pub mod oom;
pub mod park;
pub mod run;
pub mod scratch;
pub mod seat;
pub mod turn;
