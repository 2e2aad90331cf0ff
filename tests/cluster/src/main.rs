//! A real Slurm cluster of several nodes on one machine.

fn main() {}
