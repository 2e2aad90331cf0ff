//! The core at full size: 10,000 kernels on 1,000 nodes of 8 GPUs, 1,000 cells waiting. One iteration is one input:
//! a submission, an end of a cell, a start or an end of a lease, with all that follows from it. Criterion reports the
//! mean; the 99th percentile of all inputs that it measured is printed beside it, and must be under 1 ms.

#[path = "../tests/world/mod.rs"]
mod world;

use criterion::{Criterion, criterion_group, criterion_main};
use std::time::Duration;

const P99: Duration = Duration::from_millis(1);

fn core(c: &mut Criterion) {
    let mut full = world::Full::new();
    let mut all: Vec<u64> = Vec::new();
    c.bench_function("input", |b| {
        b.iter_custom(|n| {
            let took = full.run(n);
            let sum = took.iter().sum();
            all.extend(took);
            Duration::from_nanos(sum)
        });
    });
    all.sort_unstable();
    let Some(&p99) = all.get(all.len() * 99 / 100) else {
        return;
    };
    let p99 = Duration::from_nanos(p99);
    println!("input                   p99:    {p99:?} of {} inputs", all.len());
    assert!(p99 < P99, "the 99th percentile is {p99:?}, not under {P99:?}");
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(5)).sample_size(20);
    targets = core
}
criterion_main!(benches);
