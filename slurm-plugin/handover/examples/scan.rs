//! How long one scan for a device's holders takes on this machine: prints a JSON object. Needs root to see all.

use hop_handover::bpf::Number;
use hop_handover::holders;
use std::time::Instant;

const ROUNDS: usize = 100;

fn main() -> std::io::Result<()> {
    let nobodys = [Number {
        major: 250,
        minor: 250,
    }];
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        holders::scan(&nobodys)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let processes = std::fs::read_dir("/proc")?
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().parse::<u32>().is_ok())
        .count();
    let (p50, p99) = (times[ROUNDS / 2], times[ROUNDS - 1]);
    println!("{{\"scan_ms_p50\":{p50:.3},\"scan_ms_max\":{p99:.3},\"processes\":{processes}}}");
    Ok(())
}
