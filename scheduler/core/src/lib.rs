//! The policy of Gresshopper: who gets which GPUs when, decided by pure functions.
//!
//! Everything here is `fn(&mut State, Input, now) -> Outputs`. There is no clock, randomness, IO or `async`
//! in this crate, and it depends on nothing else of ours; `hopd` and the simulator both drive it, so what
//! the simulator shows is what the daemon does.
//!
//! [`Core::handle`] is the whole interface: tell it what happened, carry out what it says, and come back at
//! [`Core::next_wake`] with [`Input::Tick`]. `docs/policy.md` says how it decides and why.

mod ahead;
mod asked;
mod cells;
mod check;
mod claim;
pub mod config;
mod core;
mod dispatch;
mod explain;
mod fleet;
mod forecast;
mod foretell;
mod hold;
pub mod index;
mod input;
pub mod journal;
mod kernels;
mod leases;
mod limits;
mod moving;
mod offers;
mod output;
pub mod predict;
mod prospect;
mod quantum;
mod queue;
pub mod reason;
mod restore;
mod room;
mod scale;
mod state;
mod usage;

pub use asked::{Doing, KernelView, ReplicaView};
pub use check::Insane;
pub use config::Config;
pub use core::Core;
pub use explain::{CellView, LeaseView, PilotView};
pub use foretell::Foretold;
pub use input::*;
pub use output::*;
pub use prospect::Prospect;
