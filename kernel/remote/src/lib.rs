//! Saved states in an object store: S3, or another folder.
//!
//! A kernel writes to its user's local store; this crate carries a state between the local store and an object store,
//! in the same form (docs/state-format.md, "In an object store"). Neither credentials nor async code enter a kernel. A
//! remote state is proven with its owner's key before any use. A head is put last: a broken upload leaves the earlier
//! state whole. Requests and reports to people are the caller's.

pub mod address;
pub mod error;
pub mod fetch;
pub mod open;
pub mod remote;
pub mod send;

mod collect;
mod marks;
mod profile;
