//! Looking at processes and ending them without ever hitting a stranger's.
//!
//! A pid from a file means nothing by itself: it may have been reused. A process counts as the cluster's
//! only when its environment bears the cluster's mark ([`MARK`]), or when it holds one of its logs open.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Environment variable of every process that a cluster started; its value is the base directory.
pub(crate) const MARK: &str = "HOP_DEV_CLUSTER";

const POLL: Duration = Duration::from_millis(15);

/// A process as seen at one moment: its pid and its start, which together never recur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub pid: i32,
    start: u64,
}

impl Process {
    /// The living process with this pid; a zombie doesn't live.
    pub(crate) fn find(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, start) = parse_stat(&stat)?;
        (state != 'Z' && state != 'X').then_some(Self { pid, start })
    }

    /// The process that a pid file names, if it lives.
    pub(crate) fn from_pid_file(path: &Path) -> Option<Self> {
        fs::read_to_string(path)
            .ok()?
            .trim()
            .parse()
            .ok()
            .and_then(Self::find)
    }

    /// Whether this very process still lives.
    pub(crate) fn alive(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// Whether its environment bears the mark of the cluster at `base`.
    pub(crate) fn marked(self, base: &Path) -> bool {
        let wanted = format!("{MARK}={}", base.display());
        fs::read(format!("/proc/{}/environ", self.pid))
            .is_ok_and(|env| env.split(|b| *b == 0).any(|v| v == wanted.as_bytes()))
    }

    /// Whether Slurm started it for a node's step.
    pub(crate) fn is_of_node(self, node: &str) -> bool {
        let wanted = format!("SLURMD_NODENAME={node}");
        fs::read(format!("/proc/{}/environ", self.pid))
            .is_ok_and(|env| env.split(|b| *b == 0).any(|v| v == wanted.as_bytes()))
    }

    /// Its command line, arguments joined by blanks.
    pub(crate) fn command_line(self) -> String {
        let raw = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        String::from_utf8_lossy(&raw).replace('\0', " ").trim().to_owned()
    }

    /// Name of the program, as the kernel keeps it (at most 15 bytes).
    pub(crate) fn name(self) -> String {
        fs::read_to_string(format!("/proc/{}/comm", self.pid))
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    /// Whether it holds open a file that lies directly in `dir`, judged by device and inode: so it is right
    /// for processes in another mount namespace or a chroot too.
    pub(crate) fn holds_file_in(self, dir: &Path) -> bool {
        let files: Vec<_> = entries(dir)
            .filter_map(|e| e.metadata().ok())
            .map(|m| (m.dev(), m.ino()))
            .collect();
        entries(&Path::new("/proc").join(self.pid.to_string()).join("fd"))
            .filter_map(|e| fs::metadata(e.path()).ok())
            .any(|m| files.contains(&(m.dev(), m.ino())))
    }

    /// Sends a signal, unless the pid belongs to another process by now.
    pub(crate) fn signal(self, signal: Signal) {
        if !self.alive() {
            return;
        }
        if let Some(pid) = Pid::from_raw(self.pid) {
            // A process that ended in between needs no signal.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Asks it to end, insists after `grace`, and waits until it is gone.
    pub(crate) fn stop(self, grace: Duration) {
        self.signal(Signal::TERM);
        if !wait_until(grace, || !self.alive()) {
            self.signal(Signal::KILL);
            wait_until(Duration::from_secs(5), || !self.alive());
        }
    }
}

fn parse_stat(stat: &str) -> Option<(char, u64)> {
    // The name in parentheses may itself contain blanks and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

fn entries(dir: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(dir).into_iter().flatten().flatten()
}

/// All living processes.
pub(crate) fn all() -> Vec<Process> {
    entries(Path::new("/proc"))
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .filter_map(Process::find)
        .collect()
}

/// This process and its ancestors, which no sweep may touch.
fn lineage() -> Vec<i32> {
    let parent = |pid: i32| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?
            .1
            .split_ascii_whitespace()
            .nth(1)?
            .parse()
            .ok()
    };
    let me = i32::try_from(std::process::id()).expect("pids fit into i32");
    std::iter::successors(Some(me), |pid| parent(*pid).filter(|p| *p > 0)).collect()
}

/// Every living process of the cluster at `base` whose logs are in `logs`, but for the caller's own lineage.
pub(crate) fn of_cluster(base: &Path, logs: &Path) -> Vec<Process> {
    let mine = lineage();
    all()
        .into_iter()
        .filter(|p| !mine.contains(&p.pid))
        // slurmstepd overwrites its environment with its title, so it is known by its log.
        .filter(|p| p.marked(base) || (p.name().starts_with("slurm") && p.holds_file_in(logs)))
        .collect()
}

/// Asks `found()` again and again until it is true; false when `limit` passed first.
pub(crate) fn wait_until(limit: Duration, mut found: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if found() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn reads_state_and_start_despite_odd_names() {
        let stat = "42 (a) R b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(parse_stat(stat), Some(('S', 777)));
        assert_eq!(parse_stat("garbage"), None);
    }

    #[test]
    fn a_sweep_finds_the_marked_child_and_never_its_caller() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep")
            .arg("60")
            .env(MARK, dir.path())
            .spawn()
            .unwrap();
        let found = of_cluster(dir.path(), dir.path());
        assert_eq!(
            found.iter().map(|p| p.pid).collect::<Vec<_>>(),
            [i32::try_from(child.id()).unwrap()]
        );
        found[0].stop(Duration::from_secs(5));
        assert!(!found[0].alive(), "a zombie counts as gone");
        assert!(of_cluster(dir.path(), dir.path()).is_empty());
        child.wait().unwrap();
    }

    #[test]
    fn a_reused_pid_is_not_the_process_that_was_meant() {
        let me = Process::find(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(me.alive());
        let former = Process {
            start: me.start - 1,
            ..me
        };
        assert!(!former.alive());
        former.signal(Signal::KILL); // must not hit this test
    }
}
