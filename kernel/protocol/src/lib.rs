//! Shared parts of a front and its replicas: Jupyter's envelope, the wire between both, and the file that leads a
//! replica to its front. `docs/kernel.md` tells how the two work together.

pub mod comm;
pub mod content;
pub mod file;
pub mod jupyter;
pub mod link;
pub mod meanwhile;
pub mod message;
pub mod mount;
pub mod retain;
pub mod states;
pub mod step;
pub mod tls;
pub mod wait;
