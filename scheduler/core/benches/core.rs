//! The core at full size: 10,000 kernels on 1,000 nodes of 8 GPUs, 1,000 cells waiting. One iteration is one input:
//! a submission, an end of a cell, a start or an end of a lease, with all that follows from it.

#[path = "../tests/world/mod.rs"]
mod world;

use criterion::{Criterion, criterion_group, criterion_main};
use std::time::Duration;

fn core(c: &mut Criterion) {
    let mut full = world::Full::new();
    c.bench_function("input", |b| {
        b.iter_custom(|n| Duration::from_nanos(full.run(n).iter().sum()));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(5)).sample_size(20);
    targets = core
}
criterion_main!(benches);
