//! The way into a kernel's process, `docs/agent-wire.md`.
//!
//! - [`wire`]: frames of the agent channel, which the supervisor and the door have in common.
//! - [`client`]: a command's end of a process's door.
//! - [`folders`]: where doors are looked for.

pub mod client;
pub mod folders;
pub mod wire;

pub use client::{AskError, Door, Hello, News};

/// A process id.
pub type Pid = i32;
