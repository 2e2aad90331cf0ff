//! Single facts about processes from `/proc` (proc(5)). Nothing is cached: a pid may name another process a moment later.

/// Returns the start of a process in clock ticks since boot: field 22 of `/proc/PID/stat`. Pid and start together name
/// one process for ever. `None` means that the process doesn't exist, or has ended and only waits to be reaped.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_start_time(&stat)
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
}
