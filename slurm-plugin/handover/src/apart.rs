//! Work that may hang, in a child that can be ended.
//!
//! Linux shows a process's memory under a lock of that process's. Its user can keep the lock for ever: by a mapping of
//! a file whose file system, the user's own, doesn't answer. Only SIGKILL ends a process that waits for the lock.

#![allow(unsafe_code)] // fork(2) has no wrapper that is safe in a process with threads.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// For a child that was sent SIGKILL.
const DYING: Duration = Duration::from_millis(500);

/// Runs `work` in a child, and returns the bytes that the child wrote, about `most` of them. The second value says whether the
/// work came to its end within `patience`. Another thread may have held any lock at the fork, but for the allocator's: `work`
/// makes system calls, and needs nothing else of the process.
///
/// # Errors
/// There is no child to be had.
pub(crate) fn apart(
    patience: Duration,
    most: usize,
    work: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<(Vec<u8>, bool)> {
    let until = Instant::now() + patience;
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: the array has room for both descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us these descriptors.
    let [read, write] = ends.map(|fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
    // SAFETY: the child does the work, and ends without returning.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        let done = catch_unwind(AssertUnwindSafe(|| work(&write)));
        // SAFETY: nothing of this copy of the process is run after it.
        unsafe { libc::_exit(i32::from(!matches!(done, Ok(Ok(()))))) };
    }
    let pidfd = Pid::from_raw(child).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    drop(write);
    let mut said = Vec::new();
    let ended = hear(&read, until, most, &mut said);
    if !ended && let Some(Ok(pidfd)) = pidfd {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
    Ok((said, reap(child) == Some(0) && ended))
}

/// `true` at the end of what is said.
fn hear(mut from: &File, until: Instant, most: usize, said: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 8192];
    while said.len() < most {
        let left = until.saturating_duration_since(Instant::now());
        let mut poll = [rustix::event::PollFd::new(&from, rustix::event::PollFlags::IN)];
        let left = rustix::event::Timespec::try_from(left).unwrap_or_default();
        match rustix::event::poll(&mut poll, Some(&left)) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(1..) => {}
            _ => return false,
        }
        match from.read(&mut buffer) {
            Ok(0) => return true,
            Ok(count) => said.extend_from_slice(&buffer[..count]),
            Err(_) => return false,
        }
    }
    false
}

/// The exit status of a child that has ended or is about to. The child is ours and nobody else's to wait for.
fn reap(child: c_int) -> Option<c_int> {
    let until = Instant::now() + DYING;
    loop {
        let mut status = 0;
        // SAFETY: the status is written to a variable of ours.
        match unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } {
            0 if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            pid => return (pid == child).then_some(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_hangs_is_ended_and_what_it_said_before_counts() {
        let (read, _write) = io::pipe().unwrap();
        let begun = Instant::now();
        let said = apart(Duration::from_millis(200), 100, |mut out| {
            out.write_all(b"before")?;
            let _never = (&read).read(&mut [0]);
            out.write_all(b"after")
        });
        assert_eq!(said.unwrap(), (b"before".to_vec(), false));
        assert!(begun.elapsed() < Duration::from_secs(5));
        let none = rustix::process::wait(rustix::process::WaitOptions::NOHANG);
        assert!(none.is_err(), "no child is left: {none:?}");
    }

    #[test]
    fn all_of_it_is_heard_and_not_more_than_was_asked_for() {
        let write = |mut out: &File| out.write_all(&[7; 100_000]);
        let (said, whole) = apart(Duration::from_secs(10), 1 << 20, write).unwrap();
        assert_eq!((said.len(), whole), (100_000, true));
        let (said, whole) = apart(Duration::from_secs(10), 50_000, write).unwrap();
        assert!((50_000..100_000).contains(&said.len()) && !whole);
        let (_, whole) = apart(Duration::from_secs(10), 10, |_| Err(io::ErrorKind::Other.into())).unwrap();
        assert!(!whole);
    }
}
