//! The talk with `gresshopper.gpu` inside a process: JSON lines over a socket in the owner's private directory.
//!
//! `<dir>/gpu-<pid>.sock`, where `<dir>` is `$GRESSHOPPER_GPU_DIR`, `$XDG_RUNTIME_DIR/gresshopper` or
//! `/tmp/gresshopper-<uid>`: 0700 and the owner's, which is checked, and the other end must be that very process.
//! Requests: `{"v":1,"op":"report"|"out"|"in"|"guard"|"unguard"|"restart"}`; answers: `{"v":1,"ok":true,...}` or `{"v":1,"ok":false,"error":"..."}`.

use crate::Pid;
use crate::ladder::Inside;
use crate::procs::check_private_dir;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The version of these messages.
pub const VERSION: u32 = 1;

/// What the agent is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    Report,
    Out,
    In,
    /// The driver takes everything: guard the user's code against waiting on an absent device.
    Guard,
    Unguard,
    /// Starts the interpreter again (rung d).
    Restart,
}

#[derive(Serialize)]
struct Request<'a> {
    v: u32,
    op: Op,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a Path>,
}

#[derive(Deserialize)]
struct Reply {
    v: u32,
    ok: bool,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    report: Option<Inside>,
    #[serde(default)]
    moved: Option<Moved>,
}

/// What a copy-out or copy-in moved.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Moved {
    pub bytes: u64,
    /// The copies alone.
    pub copy_s: f64,
    /// Finding and page-locking host memory; 0 when enough was at hand.
    pub pin_s: f64,
}

/// Why the agent didn't do it.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no agent answers in process {pid}")]
    Nobody {
        pid: Pid,
        #[source]
        source: io::Error,
    },
    #[error("what listens at {path} is not process {pid}")]
    Stranger { path: String, pid: Pid },
    #[error("the agent has not answered after {0:?}")]
    TimedOut(Duration),
    #[error("the agent's connection broke")]
    Broken(#[source] io::Error),
    #[error("the agent answers in a way that this version doesn't understand")]
    Garbled,
    #[error("{0}")]
    Refused(String),
}

/// The way to one process's agent.
#[derive(Debug, Clone)]
pub struct Agent {
    pid: Pid,
    uid: u32,
    dirs: Vec<PathBuf>,
}

impl Agent {
    /// The agent of a process of `uid`'s. `dir` overrides where its socket is looked for.
    pub fn of(pid: Pid, uid: u32, dir: Option<&Path>) -> Self {
        let dirs = match dir {
            Some(dir) => vec![dir.to_path_buf()],
            None => run_dirs(uid),
        };
        Self { pid, uid, dirs }
    }

    /// What the process says of itself.
    ///
    /// # Errors
    /// Nobody answers in time, or not what was asked.
    pub fn report(&self, deadline: Duration) -> Result<Inside, AskError> {
        self.ask(Op::Report, None, deadline)?
            .report
            .ok_or(AskError::Garbled)
    }

    /// Copies out or in.
    ///
    /// # Errors
    /// The agent refuses (and has rolled itself back), or doesn't answer in time.
    pub fn do_it(&self, op: Op, deadline: Duration) -> Result<Moved, AskError> {
        Ok(self.ask(op, None, deadline)?.moved.unwrap_or_default())
    }

    /// Has the interpreter restart from a saved state, after the answer. The report of its new agent says `saved`.
    ///
    /// # Errors
    /// The agent refuses, or doesn't answer in time.
    pub fn restart(&self, state: &Path, deadline: Duration) -> Result<(), AskError> {
        self.ask(Op::Restart, Some(state), deadline).map(|_| ())
    }

    fn ask(&self, op: Op, state: Option<&Path>, deadline: Duration) -> Result<Reply, AskError> {
        let mut stream = self.connect()?;
        let set = stream
            .set_read_timeout(Some(deadline))
            .and_then(|()| stream.set_write_timeout(Some(deadline)));
        set.map_err(AskError::Broken)?;
        let mut line = serde_json::to_vec(&Request {
            v: VERSION,
            op,
            state,
        })
        .expect("two plain fields");
        line.push(b'\n');
        let io = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::TimedOut(deadline),
            _ => AskError::Broken(error),
        };
        stream.write_all(&line).map_err(io)?;
        let mut answer = String::new();
        // A reply is short; an endless one must not fill our memory.
        BufReader::new(io::Read::take(&stream, 1 << 20))
            .read_line(&mut answer)
            .map_err(io)?;
        let reply: Reply = serde_json::from_str(&answer).map_err(|_| AskError::Garbled)?;
        match reply {
            Reply { v, .. } if v != VERSION => Err(AskError::Garbled),
            Reply { ok: true, .. } => Ok(reply),
            Reply { error, .. } => Err(AskError::Refused(
                error.unwrap_or_else(|| "no reason given".to_owned()),
            )),
        }
    }

    fn connect(&self) -> Result<UnixStream, AskError> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for dir in &self.dirs {
            let path = dir.join(format!("gpu-{}.sock", self.pid));
            match check_private_dir(dir, self.uid).and_then(|()| UnixStream::connect(&path)) {
                Ok(stream) => return self.check(stream, &path),
                Err(error) => last = error,
            }
        }
        Err(AskError::Nobody {
            pid: self.pid,
            source: last,
        })
    }

    fn check(&self, stream: UnixStream, path: &Path) -> Result<UnixStream, AskError> {
        let stranger = || AskError::Stranger {
            path: path.display().to_string(),
            pid: self.pid,
        };
        let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(|_| stranger())?;
        match peer.uid.as_raw() == self.uid && peer.pid.as_raw_nonzero().get() == self.pid {
            true => Ok(stream),
            false => Err(stranger()),
        }
    }
}

/// Folders in which a user's agents listen, the likeliest first.
pub fn run_dirs(uid: u32) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    if rustix::process::geteuid().as_raw() == uid {
        dirs.extend(std::env::var_os("GRESSHOPPER_GPU_DIR").map(PathBuf::from));
        dirs.extend(std::env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("gresshopper")));
    }
    dirs.push(format!("/run/user/{uid}/gresshopper").into());
    dirs.push(format!("/tmp/gresshopper-{uid}").into());
    dirs
}
