//! Ends the sruns left by earlier fronts of a kernel. Nobody waits for an srun whose front was killed. An srun may miss
//! Slurm's word of its step's end, because a node was lost or slurmctld was away: then it stays for ever.

use hop_protocol::step::kernel_arg;
use hop_words::id::KernelId;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Ends the user's sruns that were started on this machine for the kernel's replicas, once no such replica runs.
/// The calling front's own sruns must have been waited for.
pub(crate) fn end_sruns(kernel: &KernelId) {
    let argument = kernel_arg(kernel);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if let Some(pid) = Pid::from_raw(pid) {
            end_if_srun(pid, &argument);
        }
    }
}

/// The descriptor is opened before the look, so that the signal reaches no later process of the same pid.
fn end_if_srun(pid: Pid, argument: &str) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    if is_srun_of(&Path::new("/proc").join(pid.to_string()), argument) {
        tracing::info!(%pid, "an srun is left of an earlier front, and is ended");
        // The process may have exited.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}

/// Reading a command line, in the memory of the process, may block without end: only the command lines of the
/// user's own sruns are read.
fn is_srun_of(process: &Path, argument: &str) -> bool {
    let is_own = fs::metadata(process).is_ok_and(|folder| folder.uid() == geteuid().as_raw());
    let is_srun = || fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "srun");
    let line = || fs::read(process.join("cmdline")).unwrap_or_default();
    is_own
        && is_srun()
        && line()
            .split(|byte| *byte == 0)
            .any(|word| word == argument.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A shell in srun's place, which ends by a signal alone.
    fn stand_in(folder: &std::path::Path, name: &str, argument: &str) -> Child {
        let program = folder.join(name);
        if !program.exists() {
            fs::copy("/bin/bash", &program).unwrap();
        }
        let shell = Command::new(program)
            .args(["-c", "read -r word; exit 0", argument])
            .stdin(Stdio::piped())
            .spawn();
        shell.unwrap()
    }

    #[test]
    fn a_command_line_that_never_comes_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("comm"), "python3\n").unwrap();
        let line = folder.path().join("cmdline");
        let made = Command::new("mkfifo").arg(&line).status().unwrap();
        assert!(made.success());
        let (said, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(is_srun_of(folder.path(), "argument")));
        assert_eq!(heard.recv_timeout(std::time::Duration::from_secs(20)), Ok(false));
    }

    #[test]
    fn sruns_of_the_kernel_end_and_no_other_process() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, others) = (KernelId::from("ours"), KernelId::from("ours-too"));
        let mut left = [1, 2].map(|_| stand_in(folder.path(), "srun", &kernel_arg(&ours)));
        let stay = [
            stand_in(folder.path(), "srun", &kernel_arg(&others)),
            stand_in(folder.path(), "editor", &kernel_arg(&ours)),
        ];
        // Before exec a child has the name and the arguments of the test.
        for child in left.iter().chain(&stay) {
            let line = format!("/proc/{}/cmdline", child.id());
            while !fs::read_to_string(&line).unwrap().contains("--job-name") {
                std::thread::yield_now();
            }
        }
        end_sruns(&ours);
        for child in &mut left {
            assert!(!child.wait().unwrap().success());
        }
        for mut child in stay {
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
        }
    }
}
