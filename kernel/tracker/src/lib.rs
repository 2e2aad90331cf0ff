//! The native half of the in-kernel agent.
