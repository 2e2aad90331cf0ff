//! The proof that a device is empty of us: NVML lists no process of ours, and none of them holds a device file, by
//! descriptor or by mapping.
//!
//! The driver's own files (`nvidiactl`, `nvidia-uvm`) hold no device; they are reported, and don't count. An
//! unreadable process counts as a holder: absence must be proven.

use crate::Pid;
use crate::procs::{Held, Procs};
use crate::telemetry::Sample;
use serde::Serialize;
use std::fmt;
use std::io;

/// A process from `ours` ([`look`]) that NVML still lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub pid: Pid,
    pub device: String,
    pub memory: Option<u64>,
}

/// The findings about our own processes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Left {
    pub listed: Vec<Listed>,
    pub files: Vec<Held>,
    /// The driver's files that hold no device.
    pub control: Vec<Held>,
    /// Our own processes that can't be read.
    pub unreadable: Vec<Pid>,
    /// Questions that NVML didn't answer.
    pub unknown: Vec<String>,
    /// NVML was asked as well.
    pub nvml: bool,
}

impl Left {
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
            && self.files.is_empty()
            && self.unreadable.is_empty()
            && self.unknown.is_empty()
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            let by = if self.nvml {
                "NVML and the device files"
            } else {
                "the device files (there is no NVML)"
            };
            return write!(f, "nothing of ours is left, say {by}");
        }
        let listed = self
            .listed
            .iter()
            .map(|l| format!("NVML lists process {} on {}", l.pid, l.device));
        let files = self
            .files
            .iter()
            .map(|h| format!("process {} ({}) holds {}", h.pid, h.comm, h.file));
        let unreadable = self
            .unreadable
            .iter()
            .map(|pid| format!("process {pid} can't be looked into"));
        let unknown = self.unknown.iter().map(|what| format!("NVML can't tell {what}"));
        f.write_str(
            &listed
                .chain(files)
                .chain(unreadable)
                .chain(unknown)
                .collect::<Vec<_>>()
                .join("; "),
        )
    }
}

/// Looks for what `ours` have left. `sample`: NVML's view, where there is one.
pub fn look(ours: &[Pid], procs: &Procs, sample: Option<&Sample>) -> Left {
    let mut left = Left {
        nvml: sample.is_some(),
        unknown: sample.map(|s| s.unknown.clone()).unwrap_or_default(),
        ..Left::default()
    };
    for pid in ours {
        match procs.held(*pid) {
            Ok(held) => {
                let (devices, control) = held.into_iter().partition(|h| h.is_device(&procs.dev_prefix));
                left.files.extend::<Vec<_>>(devices);
                left.control.extend::<Vec<_>>(control);
            }
            Err(error) if is_gone(&error) => {}
            Err(_) => left.unreadable.push(*pid),
        }
    }
    for device in sample.iter().flat_map(|s| &s.devices) {
        let listed = device.processes.iter().filter(|p| ours.contains(&p.pid));
        left.listed.extend(listed.map(|p| Listed {
            pid: p.pid,
            device: device.uuid.clone(),
            memory: p.memory,
        }));
    }
    left
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_has_left_nothing() {
        let left = look(&[Pid::MAX], &Procs::default(), None);
        assert!(left.is_empty());
        assert!(left.to_string().contains("no NVML"), "{left}");
    }

    #[test]
    fn what_cannot_be_read_is_not_proven() {
        let dir = tempfile::tempdir().unwrap();
        // `fd` is no directory: not gone, and not readable.
        std::fs::create_dir_all(dir.path().join("7")).unwrap();
        std::fs::write(dir.path().join("7/fd"), "").unwrap();
        let procs = Procs {
            proc: dir.path().into(),
            ..Procs::default()
        };
        let left = look(&[7], &procs, None);
        assert_eq!(left.unreadable, [7]);
        assert!(!left.is_empty());
    }
}
