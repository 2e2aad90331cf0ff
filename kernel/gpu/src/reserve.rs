//! Reserves device memory for a restore. A restore without enough memory leaves the process stuck for ever (driver
//! 580), so the memory is asked for first.
//!
//! A look at the free memory is enough if nobody else is on the device. Otherwise, or without NVML's answer, a
//! short-lived process really takes the memory, and gives it up at the moment of the restore.

use crate::driver::{DriverError, GpuUuid};
use crate::libcuda::LibCuda;
use crate::telemetry::Sample;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// What a reservation would be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    pub device: GpuUuid,
    pub bytes: u64,
}

/// How to make sure of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// The memory is free, and nobody else could take it.
    Free,
    /// Take the memory.
    Hold,
}

/// Lack of memory for the restore.
#[derive(Debug, thiserror::Error)]
pub enum NoRoom {
    #[error("{} MiB needed on {device}, {} MiB free", need >> 20, free >> 20)]
    TooLittle { device: GpuUuid, need: u64, free: u64 },
    #[error("{device} isn't there")]
    NoDevice { device: GpuUuid },
    #[error("the memory can't be reserved: {0}")]
    Refused(String),
    #[error("the reservation has not been made after {0:?}")]
    TimedOut(Duration),
    #[error("the reserving process can't be started")]
    Spawn(#[source] io::Error),
}

/// Decides by what NVML says.
///
/// # Errors
/// NVML already reports a lack of room.
pub fn means(want: Want, sample: Option<&Sample>) -> Result<Means, NoRoom> {
    let Some(sample) = sample else {
        return Ok(Means::Hold);
    };
    let uuid = want.device.to_string();
    let device = sample
        .devices
        .iter()
        .find(|d| d.uuid == uuid)
        .ok_or(NoRoom::NoDevice { device: want.device })?;
    match device.free() {
        None => Ok(Means::Hold),
        Some(free) if free < want.bytes => Err(NoRoom::TooLittle {
            device: want.device,
            need: want.bytes,
            free,
        }),
        Some(_) if device.processes.is_empty() => Ok(Means::Free),
        Some(_) => Ok(Means::Hold),
    }
}

/// Memory held by a child process until the value is dropped.
#[derive(Debug)]
pub struct Held {
    child: Child,
}

impl Held {
    /// Starts `command` (which must end in [`hold`]) and waits until the command has the memory.
    ///
    /// # Errors
    /// No room, or no answer in time.
    pub fn by(mut command: Command, deadline: Duration) -> Result<Self, NoRoom> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().map_err(NoRoom::Spawn)?;
        let out = child.stdout.take().expect("stdout is piped");
        let held = Self { child };
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(out).read_line(&mut line);
            let _ = tell.send(line);
        });
        match told.recv_timeout(deadline) {
            Err(_) => Err(NoRoom::TimedOut(deadline)),
            Ok(line) if line.trim_end() == "held" => Ok(held),
            Ok(line) => Err(NoRoom::Refused(line.trim_end().to_owned())),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Killed rather than asked: the driver frees the memory either way, and nothing can delay it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child's side: takes the memory, prints `held`, and keeps it until stdin ends.
///
/// # Errors
/// No device or no room; also printed, for the parent.
pub fn hold(cuda: &LibCuda, want: Want) -> Result<(), DriverError> {
    let tell = |line: &str| {
        let mut out = io::stdout();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    };
    let bytes = usize::try_from(want.bytes).unwrap_or(usize::MAX);
    let session = cuda
        .session(Some(want.device))
        .inspect_err(|error| tell(&error.to_string()))?;
    let _memory = session
        .alloc(bytes)
        .inspect_err(|error| tell(&error.to_string()))?;
    tell("held");
    let _ = io::stdin().read(&mut [0]);
    Ok(())
}
