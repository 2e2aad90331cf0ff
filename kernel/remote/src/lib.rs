//! Saved states in an object store: S3, or another folder.
//!
//! A kernel writes to its user's local store; this carries a state between that and an object store, as it lies there
//! (docs/state-format.md, "In an object store"), so that neither credentials nor async code enter a kernel. A state
//! there is proven with its owner's key before anything of it is used; a head is put last, so that what a broken
//! upload leaves is the earlier state, whole. Where states are asked for and what is told to whom is the caller's.

pub mod address;
pub mod error;
pub mod fetch;
pub mod open;
pub mod remote;
pub mod send;

mod collect;
mod marks;
mod profile;
