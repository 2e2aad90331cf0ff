//! Decisions on a notebook's state, and reading a saved one without Python.
//!
//! [`plan`] is pure: measured costs in, a decision for each group out. [`form`] reads and proves saved states. [`log`]
//! writes them, for the agent and for [`writer`], which shortens long ones. [`compact`] says what a log may leave out,
//! [`garbage`] removes content that no state refers to and no [`hold`] spares, and [`ahead`] names content soon needed;
//! none looks into a stream. Capturing and rebuilding are the in-kernel agent's (`kernel/python/gresshopper/state`).

pub mod ahead;
pub mod compact;
pub mod form;
pub mod garbage;
pub mod hold;
pub mod log;
pub mod plan;
pub mod writer;
