//! The ground floor: nouns shared by every part of Gresshopper, and the one copy of each small tool.
//!
//! Nothing here decides anything, and nothing here depends on another crate of ours. The scheduler's policy lives in
//! `scheduler/core`, messages between daemons in `scheduler/api`, messages between front and replica in `kernel/protocol`.

pub mod cell;
pub mod clock;
pub mod deadline;
pub mod error;
pub mod explain;
pub mod gpu;
pub mod id;
pub mod lease;
pub mod line;
pub mod memory;
pub mod need;
pub mod net;
pub mod process;
pub mod reason;
pub mod replica;
pub mod text;
pub mod time;
