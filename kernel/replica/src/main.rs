//! Supervises a real ipykernel.

fn main() {}
