//! The trace simulator.
