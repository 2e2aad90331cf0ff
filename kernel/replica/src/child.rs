//! The kernel process: start, signals, end, and the sentence on the cause of death.
//!
//! The process starts as `hop-replica exec`. This program binds the process to the supervisor's life, makes it the
//! first to be killed when memory is short, and then becomes the kernel. The kernel leads its own process group, and
//! signals the group itself on an interrupt.

use crate::agent::FD_VARIABLE;
use crate::oom::OomWatch;
use anyhow::{Context, Result};
use hop_protocol::file::{FrontFile, Launch, Takeover};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use tokio::process::{Child, Command};

/// Module for each ipykernel to load as an extension.
const EXTENSION: &str = "gresshopper.extension";

/// Keeps the former `PYTHONPATH`, for the agent to restore.
const OLD_PATH_VARIABLE: &str = "GRESSHOPPER_OLD_PYTHONPATH";

/// Set if GPUs are lent here: the agent then watches for frameworks that use a GPU.
const LENDS_VARIABLE: &str = "GRESSHOPPER_LENDS";

/// Has the agent answer `state.*` from the start.
const STATE_VARIABLE: &str = "GRESSHOPPER_STATE";

/// Names the file with the reason of an interrupt by somebody other than the user.
const REVOKED_VARIABLE: &str = "GRESSHOPPER_REVOKED";

/// Says that the hash seed is ours, for the agent to take out of the environment.
const HASH_SEED_VARIABLE: &str = "GRESSHOPPER_HASH_SEED";

/// Variables with different values for the kernels of one server, read by no program at its start. Kernels that differ
/// in other variables can't share spares.
pub(crate) const OF_ONE_KERNEL: [&str; 5] = [
    "GRESSHOPPER_KERNEL",
    "GRESSHOPPER_NOTEBOOK",
    "JPY_INTERRUPT_EVENT",
    "JPY_PARENT_PID",
    "JPY_SESSION_NAME",
];

#[derive(Debug)]
pub struct Kernel {
    child: Child,
    group: Option<Pid>,
    oom: OomWatch,
    /// Read by the agent when the interrupt comes.
    revoked: PathBuf,
}

impl Kernel {
    /// Starts the kernelspec's argv with a connection file in `scratch`.
    pub fn start(
        program: &Path,
        file: &FrontFile,
        scratch: &Path,
        agent: OwnedFd,
        lends: bool,
    ) -> Result<Self> {
        write_connection_file(scratch, &file.signing_key)?;
        let mut command = command(program, file, scratch, &agent, lends, Path::new(""))?;
        if let Some(cwd) = file.launch.cwd.as_ref().filter(|d| d.is_dir()) {
            command.current_dir(cwd);
        }
        if file.takeover.is_some() {
            set_own_variables(&mut command, file);
        }
        Self::spawn(command, scratch)
    }

    /// Starts the same command, whose process then waits to become a kernel: [`crate::spare`].
    pub(crate) fn start_spare(
        program: &Path,
        file: &FrontFile,
        scratch: &Path,
        agent: &OwnedFd,
        lends: bool,
    ) -> Result<Self> {
        let launcher = agent_folder().context("Gresshopper's Python package isn't installed here")?;
        let launcher = launcher.join("gresshopper/launcher");
        let mut command = command(program, file, scratch, agent, lends, &launcher)?;
        // The folder has no files of a user's to import.
        command.current_dir(scratch);
        Self::spawn(command, scratch)
    }

    fn spawn(mut command: Command, scratch: &Path) -> Result<Self> {
        let oom = OomWatch::start();
        let child = command.spawn().context("can't start the kernel")?;
        let group = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        Ok(Self {
            child,
            group,
            oom,
            revoked: revoked_file(scratch),
        })
    }

    pub fn pid(&self) -> u32 {
        self.group.map_or(0, |p| p.as_raw_pid() as u32)
    }

    pub async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// As a terminal's Ctrl-C would. With a reason, which the agent raises as an exception of our own.
    pub fn interrupt(&self, why: Option<&str>) {
        if let Some(why) = why {
            // Without the file it is a KeyboardInterrupt; the cell's output has the reason too.
            let _ = std::fs::write(&self.revoked, why);
        }
        self.signal(Signal::INT);
    }

    /// Ends the kernel and its process group.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // The process may already have exited.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Whether the kernel died of a SIGKILL that the memory limit doesn't explain.
    pub fn was_killed(&self, status: ExitStatus) -> bool {
        status.signal() == Some(9) && self.oom.struck().is_none()
    }

    /// Reason of the death, as a sentence for the user.
    pub fn reason(&self, status: ExitStatus) -> String {
        if let (Some(9), Some(limit)) = (status.signal(), self.oom.struck()) {
            let limit = limit.map_or_else(String::new, |l| format!(" (its limit is {} MiB)", l >> 20));
            return format!(
                "the kernel ran out of memory{limit} and was killed. Load less at once, or choose a \
                 kernel with more: `hop kernelspec install --user --mem 8192 --name big` makes one with 8 GiB"
            );
        }
        match (status.signal(), status.code()) {
            (Some(signal), _) => format!("the kernel was killed by signal {signal}{}", signal_name(signal)),
            (None, code) => format!("the kernel exited with status {}", code.unwrap_or(-1)),
        }
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        6 => " (abort)",
        7 => " (bus error)",
        9 => " (kill)",
        11 => " (segmentation fault)",
        15 => " (terminate)",
        _ => "",
    }
}

fn revoked_file(scratch: &Path) -> PathBuf {
    scratch.join("revoked")
}

fn connection_file(scratch: &Path) -> PathBuf {
    scratch.join("kernel.json")
}

/// The kernel's values of the variables that a spare may hold for another kernel. `None` means that the kernel doesn't
/// have the variable.
pub(crate) fn own_variables(file: &FrontFile) -> impl Iterator<Item = (&'static str, Option<&str>)> {
    let given: &[(String, String)] = match &file.takeover {
        Some(Takeover { environment, .. }) => environment,
        None => &[],
    };
    // The supervisor is the parent of every kernel of its own.
    let names = OF_ONE_KERNEL.into_iter().filter(|n| *n != "JPY_PARENT_PID");
    names.map(move |name| match name {
        "GRESSHOPPER_KERNEL" => (name, Some(file.kernel.as_str())),
        _ => (
            name,
            given.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str()),
        ),
    })
}

/// Gives a process after a spare its own kernel's variables: the supervisor has the variables of the spare's first
/// kernel.
fn set_own_variables(command: &mut Command, file: &FrontFile) {
    for (name, value) in own_variables(file) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

/// The kernel's command. `launcher` is a folder before all others on the kernel's path, unless empty. A kernel with
/// kept state has a hash seed.
fn command(
    program: &Path,
    file: &FrontFile,
    scratch: &Path,
    agent: &OwnedFd,
    lends: bool,
    launcher: &Path,
) -> Result<Command> {
    let (launch, connection) = (&file.launch, connection_file(scratch));
    let connection = connection.to_str();
    let connection = connection.context("the scratch folder's name is not text")?;
    let mut argv: Vec<String> = launch
        .argv
        .iter()
        .map(|a| a.replace("{connection_file}", connection))
        .collect();
    let mut command = Command::new(program);
    command
        .arg("exec")
        .arg("--parent")
        .arg(std::process::id().to_string())
        .arg("--");
    command.env("JPY_PARENT_PID", std::process::id().to_string());
    if let Some(python) = agent_folder().filter(|_| launch.is_ipykernel()) {
        inject(&mut command, &mut argv, &python, agent, launcher)?;
        command.env(REVOKED_VARIABLE, revoked_file(scratch));
        if lends {
            command.env(LENDS_VARIABLE, "1");
        }
        if let Some(state) = &file.state {
            keep_state(&mut command, state.hash_seed);
        }
    }
    command
        .args(&argv)
        .stdin(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    Ok(command)
}

pub(crate) fn write_connection_file(scratch: &Path, signing_key: &str) -> Result<()> {
    let content = json!({
        "transport": "ipc",
        "ip": scratch.join("k"),
        "shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5,
        "signature_scheme": "hmac-sha256",
        "key": signing_key,
        "kernel_name": "",
    });
    std::fs::write(connection_file(scratch), content.to_string())
        .context("can't write the kernel's connection file")
}

/// Whether our package exists and can be loaded into the kernel.
pub fn has_agent(launch: &Launch) -> bool {
    launch.is_ipykernel() && agent_folder().is_some()
}

/// Folder of the package `gresshopper`, beside this program's installation.
fn agent_folder() -> Option<PathBuf> {
    let named = std::env::var_os("GRESSHOPPER_PYTHON").map(PathBuf::from);
    let beside = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("python"));
    named
        .or_else(beside)
        .filter(|d| d.join("gresshopper/extension.py").is_file())
}

/// Puts the agent on the kernel's path and has the agent loaded, in an environment without any trace of Gresshopper.
fn inject(
    command: &mut Command,
    argv: &mut Vec<String>,
    python: &Path,
    agent: &OwnedFd,
    launcher: &Path,
) -> Result<()> {
    let path = python_path(python);
    if let Some(old) = std::env::var_os("PYTHONPATH").filter(|o| !o.is_empty()) {
        command.env(OLD_PATH_VARIABLE, old);
    }
    let first = launcher.as_os_str();
    let parts = [first, &path].into_iter().filter(|p| !p.is_empty());
    command
        .env("PYTHONPATH", parts.collect::<Vec<_>>().join(OsStr::new(":")))
        .env(FD_VARIABLE, agent.as_raw_fd().to_string());
    // The child inherits this descriptor alone; this process starts nothing else.
    rustix::io::fcntl_setfd(agent, rustix::io::FdFlags::empty())
        .context("can't hand the agent's socket on")?;
    argv.push(format!("--InteractiveShellApp.extra_extensions={EXTENSION}"));
    Ok(())
}

/// `PYTHONPATH` of a kernel at its start: the agent's folder, and the path before.
fn python_path(python: &Path) -> OsString {
    let mut path = python.as_os_str().to_owned();
    if let Some(old) = std::env::var_os("PYTHONPATH").filter(|o| !o.is_empty()) {
        path.push(":");
        path.push(old);
    }
    path
}

/// Variables missing in a spare's environment for a kernel: `PYTHONPATH` as at a kernel's start.
pub(crate) fn path_of_kernel() -> Option<(String, String)> {
    let path = python_path(&agent_folder()?).into_string().ok()?;
    Some(("PYTHONPATH".into(), path))
}

/// Has the agent capture the kernel's state, and gives all lives of the kernel one hash seed: sets of strings then keep
/// their order. A seed of the user's choice is left alone.
fn keep_state(command: &mut Command, seed: u32) {
    command.env(STATE_VARIABLE, "1");
    if std::env::var_os("PYTHONHASHSEED").is_none() {
        command
            .env("PYTHONHASHSEED", seed.to_string())
            .env(HASH_SEED_VARIABLE, "1");
    }
}

/// Becomes the kernel: dies with `parent`, goes first when memory is short.
pub fn exec(parent: u32, argv: &[String]) -> Result<std::convert::Infallible> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("can't tie myself to my parent")?;
    let now = rustix::process::getppid().map_or(0, |p| p.as_raw_pid() as u32);
    anyhow::ensure!(now == parent, "my parent is gone already");
    // A failure here doesn't keep the kernel from starting.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let (program, args) = argv.split_first().context("there is no program to start")?;
    let error = std::process::Command::new(program).args(args).exec();
    Err(error).with_context(|| format!("can't start {program}"))
}
