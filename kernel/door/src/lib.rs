//! The way into a kernel's process, `docs/agent-wire.md`.
//!
//! - [`wire`]: frames of the agent channel, which the supervisor and the door have in common.
//! - [`client`]: a command's end of a process's door. A user's seats lead commands from other nodes to it (`hop-keeper`).
//! - [`folders`]: where doors are looked for.

pub mod client;
pub mod folders;
pub mod wire;

pub use client::{AskError, Door, Doors, Hello, News};

/// A process id.
pub type Pid = i32;
