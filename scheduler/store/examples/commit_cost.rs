//! What a durable commit costs on the disk at the path given: `cargo run --release -p hop-store --example
//! commit_cost -- DIR`. Prints microseconds: p50, p90, p99 of single commits, and the cost per change of batches.

use hop_store::Journal;
use std::time::Instant;

fn main() {
    let folder = std::env::args_os().nth(1).expect("usage: commit_cost DIR");
    let path = std::path::Path::new(&folder).join("commit-cost.journal");
    let (journal, _) = Journal::<u64, String>::open(&path).expect("the folder is writable");
    let value = "x".repeat(300);
    let mut single: Vec<u128> = (0..500_u64)
        .map(|i| {
            let start = Instant::now();
            journal
                .post([(&(i % 100), Some(&value))])
                .durable_blocking()
                .expect("there is room");
            start.elapsed().as_micros()
        })
        .collect();
    single.sort_unstable();
    println!(
        "single n=500 p50={} p90={} p99={} us",
        single[250], single[450], single[495]
    );
    let start = Instant::now();
    let tickets: Vec<_> = (0..10_000_u64)
        .map(|i| journal.post([(&(i % 1000), Some(&value))]))
        .collect();
    let posted = start.elapsed();
    for ticket in tickets {
        ticket.durable_blocking().expect("there is room");
    }
    println!(
        "10000 posts: {:.2} us each to post, {:.1} us each until durable",
        posted.as_secs_f64() * 100.0,
        start.elapsed().as_secs_f64() * 100.0
    );
    open_again(&path, journal);
    // As large as no site's journal was seen to be.
    let (journal, _) = Journal::<u64, String>::open(&path).expect("it was closed");
    let many: Vec<u64> = (0..30_000).collect();
    drop(journal.post(many.iter().map(|i| (i, Some(&value)))));
    open_again(&path, journal);
    let _ = std::fs::remove_file(&path);
}

/// What a start waits for: all pages are verified.
fn open_again(path: &std::path::Path, journal: Journal<u64, String>) {
    drop(journal);
    println!(
        "file {} bytes",
        std::fs::metadata(path).map_or(0, |about| about.len())
    );
    let start = Instant::now();
    drop(Journal::<u64, String>::open(path).expect("it was closed"));
    println!("open {} us", start.elapsed().as_micros());
}
