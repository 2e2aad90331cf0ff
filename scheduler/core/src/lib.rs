//! Gresshopper's policy: pure functions decide who gets which GPUs and when.
//!
//! Every function is `fn(&mut State, Input, now) -> Outputs`. The crate has no clock, randomness, IO or `async`, and
//! depends only on the words. `hopd` and the simulator both drive it: the simulator shows what the daemon does.
//!
//! [`Core::handle`] is the whole interface. A driver tells it each event, carries out its outputs, and calls it again
//! with [`Input::Tick`] at [`Core::next_wake`]. `docs/policy.md` has the rules and their reasons.

mod ahead;
mod asked;
mod cells;
mod charge;
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
mod holding;
pub mod index;
mod input;
pub mod journal;
mod kernels;
mod late;
mod leases;
mod limits;
mod line;
mod moving;
mod offers;
mod output;
mod placement;
pub mod predict;
pub mod price;
mod prospect;
mod quantum;
mod queue;
mod restore;
mod room;
mod scale;
mod state;
mod succession;
mod tally;
mod usage;
mod wait;
mod why;

pub use asked::{Doing, KernelView, ReplicaView};
pub use check::Insane;
pub use config::Config;
pub use core::Core;
pub use explain::{CellView, LeaseView, PilotView};
pub use foretell::Foretold;
pub use input::*;
pub use kernels::BareKernel;
pub use output::*;
pub use prospect::Prospect;
