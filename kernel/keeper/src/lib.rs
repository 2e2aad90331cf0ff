//! The keeper: the part of a seat's process that keeps the logs of its user's kernels.
//!
//! A single TLS link for each pair of seats carries the messages of all groups, and pings in both directions. A group
//! has no timer of its own: the group's task wakes on an entry, on a change of members, or when a seat comes or goes.
//! The leader's duties are `hop_log::steward`'s; this crate carries them out.
//!
//! Commands of the user's reach a kernel's process by the same port ([`visit`]).
//!
//! Hearing ([`hearing`]) and the rule to stand for election ([`election`]) are pure.

mod book;
pub mod election;
mod event;
mod group;
pub mod hearing;
mod keeper;
mod leftovers;
mod link;
mod links;
mod lock;
mod patience;
pub mod visit;
mod wire;

pub use book::Book;
pub use event::{Event, Need};
pub use keeper::{Keeper, Kernel, KernelError, Settings, StartError};
pub use leftovers::unanswering;
pub use links::Wire;
pub use patience::Patience;
