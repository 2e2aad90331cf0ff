//! The plan of a checkpoint: ship, recompute or leave.
