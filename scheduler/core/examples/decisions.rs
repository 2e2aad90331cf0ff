//! Prints the lines of bench `core`: inputs a second, and the 99th percentile of one.

#[path = "../tests/world/mod.rs"]
mod world;

fn main() {
    let mut full = world::Full::new();
    full.run(20_000);
    let mut nanos = full.run(300_000);
    full.world.core.sanity_check().expect("the state is sane");
    let total: u64 = nanos.iter().sum();
    nanos.sort_unstable();
    let n = nanos.len();
    let per_second = n as f64 / (total as f64 / 1e9);
    let p99 = nanos[n * 99 / 100] as f64 / 1e3;
    for (case, value, unit) in [("decisions_per_s", per_second, "1/s"), ("p99_us", p99, "us")] {
        println!(
            "{{\"bench\":\"core\",\"case\":\"{case}\",\"ours\":{value:.3},\"peer\":null,\"peer_value\":null,\"unit\":\"{unit}\",\"n\":{n}}}"
        );
    }
}
