//! How long one scan for a device's holders takes on this machine, by the kernel's iterators and through `/proc`:
//! prints a JSON object for each. Needs root to see all.

use hop_handover::bpf::Number;
use hop_handover::holders::Scanner;
use std::time::Instant;

const ROUNDS: usize = 100;

fn main() -> std::io::Result<()> {
    let nobodys = [Number {
        major: 250,
        minor: 250,
    }];
    let cache = std::env::temp_dir().join(format!("hop-scan-{}.json", std::process::id()));
    for cache in [Some(cache.as_path()), None] {
        let start = Instant::now();
        let mut scanner = Scanner::new(&nobodys, cache);
        let prepared = start.elapsed().as_secs_f64() * 1e3;
        let start = Instant::now();
        let mut scanner_again = Scanner::new(&nobodys, cache);
        let prepared_again = start.elapsed().as_secs_f64() * 1e3;
        scanner_again.scan()?;
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            scanner.scan()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let processes = std::fs::read_dir("/proc")?
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().parse::<u32>().is_ok())
            .count();
        let (p50, max) = (times[ROUNDS / 2], times[ROUNDS - 1]);
        let kernel = scanner.in_kernel();
        println!(
            "{{\"in_kernel\":{kernel},\"prepare_ms\":[{prepared:.3},{prepared_again:.3}],\"scan_ms_p50\":{p50:.3},\
             \"scan_ms_max\":{max:.3},\"processes\":{processes}}}"
        );
        if let Some(cache) = cache {
            let _ = std::fs::remove_file(cache);
        }
    }
    Ok(())
}
