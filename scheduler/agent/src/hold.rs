//! `hop-agent hold`: the one task of a lease's step, and of a guard's.
//!
//! The holder only lives: until it ends, Slurm counts the step's GPUs as taken. Its connection to the agent is the
//! lease's lifeline. It ends by the agent's order, 10 s after the agent's loss, or at its slurmstepd's end: without a
//! slurmstepd nobody would take the device back.

use crate::link::{HolderHello, MAX_LINE, ToHolder, VERSION, parse_gpus};
use anyhow::{Context, Result, bail};
use hop_words::id::LeaseId;
use hop_words::line::{self, LineError, Lines};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getppid, set_parent_process_death_signal};
use std::io::{BufReader, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long an agent may be away.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the parent is looked at where no signal came.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent's socket
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    lease: u64,
}

pub(crate) fn hold(args: &Args) -> Result<()> {
    let parent = getppid();
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).context("prctl")?;
    // The parent may have died before the request for the signal; then this process has another parent.
    if getppid() != parent || !parent.is_some_and(is_slurmstepd) {
        bail!("slurmstepd is gone");
    }
    // Slurm's children may inherit any mask; an interrupt is meant for the cell, not for its lease.
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGINT);
    mask.add(Signal::SIGHUP);
    mask.thread_set_mask().context("sigprocmask")?;

    let variable = |name: &str| std::env::var(name).ok();
    let hello = HolderHello {
        holder: VERSION,
        lease: LeaseId(args.lease),
        step: variable("SLURM_STEP_ID")
            .and_then(|s| s.parse().ok())
            .context("SLURM_STEP_ID is not set: this program is started by hop-agent, as a Slurm step")?,
        gpus: parse_gpus(&variable("SLURM_STEP_GPUS").unwrap_or_default())
            .context("SLURM_STEP_GPUS can't be read")?,
    };
    let mut away_since = Instant::now();
    loop {
        if getppid() != parent {
            bail!("slurmstepd is gone");
        }
        if let Ok(stream) = UnixStream::connect(&args.socket) {
            match follow(stream, &hello, parent)? {
                Followed::Over => return Ok(()),
                Followed::AgentGone { heard: true } => away_since = Instant::now(),
                Followed::AgentGone { heard: false } => {}
            }
        }
        if away_since.elapsed() > PATIENCE {
            bail!("the agent has been away for {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_slurmstepd(pid: Pid) -> bool {
    let path = format!("/proc/{}/comm", pid.as_raw_nonzero());
    // Other users' processes may be hidden; then the check passes.
    std::fs::read_to_string(path).map_or(true, |comm| comm.starts_with("slurmstepd"))
}

enum Followed {
    Over,
    /// `heard`: the connection had stood for a while.
    AgentGone {
        heard: bool,
    },
}

fn follow(stream: UnixStream, hello: &HolderHello, parent: Option<Pid>) -> Result<Followed> {
    stream.set_read_timeout(Some(LOOK))?;
    if line::write(&mut &stream, hello).is_err() {
        return Ok(Followed::AgentGone { heard: false });
    }
    let since = Instant::now();
    let mut lines = Lines::new(BufReader::new(&stream), MAX_LINE);
    loop {
        match lines.read() {
            Ok(Some(ToHolder::End)) => return Ok(Followed::Over),
            Ok(None) => {
                return Ok(Followed::AgentGone {
                    heard: since.elapsed() > LOOK,
                });
            }
            Err(LineError::Io(e)) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if getppid() != parent {
                    bail!("slurmstepd is gone");
                }
            }
            Err(LineError::Io(_)) => return Ok(Followed::AgentGone { heard: false }),
            Err(LineError::TooLong { .. }) => bail!("the agent's line is too long"),
            Err(error @ LineError::Json(_)) => return Err(error).context("a line of the agent's"),
        }
    }
}
