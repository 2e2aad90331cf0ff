//! The helper process that links libslurm.

fn main() {}
