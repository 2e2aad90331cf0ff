//! A kernel's log on three nodes: one openraft group per kernel, in the WAL that all groups of a seat share.
//!
//! [`Group`] is the public side; openraft is private to this crate. A [`Member`] is one replica's part of a group. A
//! member never acts by itself: it has no timer, sends no heartbeats and starts no election. The keeper hears which
//! seats live, for all groups at once, and calls [`Member::campaign`] and [`Member::remind`]. A quiet group hence
//! costs memory alone.
//!
//! `docs/replication.md` has the rules behind openraft's liveness, each with its reason.

mod group;
mod machine;
mod member;
mod network;
mod runtime;
mod store;
mod types;

pub use group::{ChangeError, Feed, Group, Progress, ProposeError, Standing};
pub use machine::News;
pub use member::{Member, OpenError, Opening, ReceiveError};
pub use network::{Transport, Unreachable};
