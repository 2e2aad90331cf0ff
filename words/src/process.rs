//! Single facts about processes from `/proc` (proc(5)). Nothing is cached: a pid may name another process a moment later.

use std::io::ErrorKind;

const ESRCH: i32 = 3;

/// Returns the start of a process in clock ticks since boot: field 22 of `/proc/PID/stat`. Pid and start together name
/// one process for ever. `None` means that the process doesn't exist, or has ended and only waits to be reaped.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_start_time(&stat)
}

/// Whether this process is gone, for certain. A process that can't be looked at may live.
pub fn is_gone(pid: u32, start: u64) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => parse_start_time(&stat) != Some(start),
        // ESRCH: the process ended during the read.
        Err(error) => error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH),
    }
}

/// The children called `name` that the first thread of `parent` has started.
pub fn children_named(parent: u32, name: &str) -> Vec<u32> {
    let listed = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = listed.unwrap_or_default();
    let has_name = |child: &u32| {
        std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    children
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .filter(has_name)
        .collect()
}

/// The flags with which a descriptor was opened, by the text of `/proc/PID/fdinfo/FD`.
pub fn open_flags(fdinfo: &str) -> Option<u32> {
    let line = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

/// Fields count from the last parenthesis, since the command's name may hold anything.
fn parse_start_time(stat: &str) -> Option<u64> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    fields.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "7 (a) b) (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";

    #[test]
    fn a_name_with_parentheses_is_skipped() {
        assert_eq!(parse_start_time(STAT), Some(4711));
    }

    #[test]
    fn a_zombie_is_no_process() {
        assert_eq!(parse_start_time(&STAT.replace(" S ", " Z ")), None);
        assert_eq!(parse_start_time("7 (a) S 1"), None);
    }

    #[test]
    fn flags_are_octal() {
        assert_eq!(
            open_flags("pos:\t0\nflags:\t012000000\nmnt_id:\t9\n"),
            Some(0o12_000_000)
        );
        assert_eq!(open_flags("pos:\t0\n"), None);
    }

    #[test]
    fn this_process_has_a_start() {
        assert!(start_time(std::process::id()).is_some());
        assert_eq!(start_time(u32::MAX), None);
    }

    #[test]
    fn children_are_told_by_their_name() {
        let shell = "sleep 60 & sleep 60 & echo; wait";
        let mut shell = std::process::Command::new("sh")
            .args(["-c", shell])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let started = shell.stdout.take().unwrap();
        std::io::Read::read(&mut { started }, &mut [0]).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let mut sleepers = children_named(shell.id(), "sleep");
        while sleepers.len() < 2 && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(10));
            sleepers = children_named(shell.id(), "sleep");
        }
        let others = children_named(shell.id(), "srun");
        for pid in &sleepers {
            let _ = std::process::Command::new("kill").arg(pid.to_string()).status();
        }
        shell.wait().unwrap();
        assert_eq!((sleepers.len(), others.len()), (2, 0));
    }

    #[test]
    fn a_process_is_gone_once_it_or_its_start_is_another() {
        let me = std::process::id();
        let start = start_time(me).unwrap();
        assert!(!is_gone(me, start));
        assert!(is_gone(me, start + 1) && is_gone(u32::MAX, start));
    }
}
