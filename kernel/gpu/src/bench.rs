//! `hop gpu bench`: the cost of the driver's checkpoint on this machine, beside the machine's copy bandwidth. The
//! process under test is our own and holds a known pattern. Rung (b) needs a framework and is measured by `bench/gpu/`.

use crate::driver::{DriverError, GpuUuid};
use crate::libcuda::LibCuda;
use serde::Serialize;
use std::io::{self, BufRead, Write};
use std::time::Instant;

/// Device memory is filled with this, and looked at again after each unpark.
const PATTERN: u8 = 0x5a;
/// Bytes from the start that are compared.
const COMPARED: usize = 64 << 20;

/// The machine's copy bandwidth with page-locked memory, in bytes a second, and what page-locking cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bandwidth {
    pub bytes: usize,
    pub out_bytes_per_s: f64,
    pub in_bytes_per_s: f64,
    pub pin_s: f64,
}

/// Copies `bytes` out and in, three times each; the best of each.
///
/// # Errors
/// No device, or no room.
pub fn bandwidth(cuda: &LibCuda, device: Option<GpuUuid>, bytes: usize) -> Result<Bandwidth, DriverError> {
    let session = cuda.session(device)?;
    let memory = session.alloc(bytes)?;
    memory.fill(PATTERN)?;
    let start = Instant::now();
    let mut pinned = session.pin(bytes)?;
    let pin_s = start.elapsed().as_secs_f64();
    let (mut out, mut back) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..3 {
        let start = Instant::now();
        memory.copy_out(&mut pinned)?;
        out = out.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        memory.copy_in(&pinned)?;
        back = back.min(start.elapsed().as_secs_f64());
    }
    let rate = |seconds: f64| bytes as f64 / seconds.max(1e-9);
    Ok(Bandwidth {
        bytes,
        out_bytes_per_s: rate(out),
        in_bytes_per_s: rate(back),
        pin_s,
    })
}

/// The held process's side: takes `bytes`, says `ready`, and answers each line on stdin with `same` or `differs`
/// until stdin ends.
///
/// # Errors
/// No device or no room; also printed.
pub fn hold_pattern(cuda: &LibCuda, device: Option<GpuUuid>, bytes: usize) -> Result<(), DriverError> {
    let tell = |line: &str| {
        let mut out = io::stdout();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    };
    let session = cuda.session(device)?;
    let memory = session.alloc(bytes)?;
    memory.fill(PATTERN)?;
    let mut pinned = session.pin(bytes.min(COMPARED))?;
    tell("ready");
    for line in io::stdin().lock().lines() {
        if line.is_err() {
            break;
        }
        memory.copy_out(&mut pinned)?;
        let same = pinned.as_slice().iter().all(|byte| *byte == PATTERN);
        tell(if same { "same" } else { "differs" });
    }
    Ok(())
}
