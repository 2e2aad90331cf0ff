//! Speaks Jupyter's protocol to clients on behalf of one kernel.

fn main() {}
