//! Slurm's commands, as a process of the seat's job runs them.

use hop_protocol::step::forget_job;
use std::process::Stdio;
use tokio::process::Command;

/// A command of Slurm's, about no particular job. The variables of this process's job would change its answer.
pub(crate) fn slurm(program: &str) -> Command {
    let mut command = Command::new(program);
    forget_job(command.as_std_mut());
    command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command
}
