//! The policy of Gresshopper: who gets which GPUs when, decided by pure functions.
//!
//! Everything here is `fn(&mut State, Input, now) -> Outputs`. There is no clock, randomness, IO or `async`
//! in this crate, and it depends on nothing else of ours; `hopd` and the simulator both drive it, so what
//! the simulator shows is what the daemon does.

pub mod id;
pub mod need;
pub mod time;
