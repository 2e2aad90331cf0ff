//! Prints the lines of bench `core`: inputs a second, the 99th percentile and the longest of one. First with a fixed
//! number of pilots and kernels that stay where they are; then as a pool is shipped.
//!
//! Equal inputs have equal outputs, so the same inputs are run several times, and the least time of each counts: what
//! the core takes for an input, and not what else the machine did meanwhile.

#[path = "../tests/world/mod.rs"]
mod world;

use world::Full;

const RUNS: usize = 3;
const WARM_UP: u64 = 20_000;
const INPUTS: u64 = 100_000;

/// The time of each input in nanoseconds.
fn run(make: fn() -> Full) -> Vec<u64> {
    let mut full = make();
    full.run(WARM_UP);
    let nanos = full.run(INPUTS);
    full.world.core.sanity_check().expect("the state is sane");
    nanos
}

fn measure(make: fn() -> Full, suffix: &str) {
    let mut nanos = run(make);
    for _ in 1..RUNS {
        let again = run(make);
        assert_eq!(nanos.len(), again.len(), "the same inputs were run");
        for (least, nanos) in nanos.iter_mut().zip(again) {
            *least = nanos.min(*least);
        }
    }
    nanos.sort_unstable();
    let total: u64 = nanos.iter().sum();
    let n = nanos.len();
    let per_second = n as f64 / (total as f64 / 1e9);
    let p99 = nanos[n * 99 / 100] as f64 / 1e3;
    let longest = nanos[n - 1] as f64 / 1e3;
    for (case, value, unit) in [
        ("decisions_per_s", per_second, "1/s"),
        ("p99_us", p99, "us"),
        ("longest_us", longest, "us"),
    ] {
        println!(
            "{{\"bench\":\"core\",\"case\":\"{case}{suffix}\",\"ours\":{value:.3},\"peer\":null,\"peer_value\":null,\"unit\":\"{unit}\",\"n\":{n}}}"
        );
    }
}

fn main() {
    measure(Full::new, "");
    measure(Full::shipped, "_shipped");
}
