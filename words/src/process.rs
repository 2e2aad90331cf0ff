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
    fn this_process_has_a_start() {
        assert!(start_time(std::process::id()).is_some());
        assert_eq!(start_time(u32::MAX), None);
    }

    #[test]
    fn a_process_is_gone_once_it_or_its_start_is_another() {
        let me = std::process::id();
        let start = start_time(me).unwrap();
        assert!(!is_gone(me, start));
        assert!(is_gone(me, start + 1) && is_gone(u32::MAX, start));
    }
}
