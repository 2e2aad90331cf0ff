//! The agent of a pilot.

fn main() {}
