//! Slurm's commands, as a process of the seat's job runs them.

use hop_protocol::step::is_of_slurm;
use std::process::Stdio;
use tokio::process::Command;

/// One of Slurm's commands, about no particular job. The variables of this process's job would change its answer.
pub(crate) fn slurm(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_slurm) {
            command.env_remove(&name);
        }
    }
    command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command
}
