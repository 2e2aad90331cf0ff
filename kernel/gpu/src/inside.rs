//! The talk with `gresshopper.gpu` inside a process, by the process's door: `gpu.*` of `docs/agent-wire.md`.

use crate::Pid;
use crate::ladder::Inside;
pub use hop_door::AskError;
use hop_door::{Door, folders};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the agent is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl Op {
    fn name(self) -> &'static str {
        match self {
            Self::Report => "gpu.report",
            Self::Out => "gpu.out",
            Self::In => "gpu.in",
            Self::Guard => "gpu.guard",
            Self::Unguard => "gpu.unguard",
            Self::Restart => "gpu.restart",
        }
    }
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

/// The way to one process's agent.
#[derive(Debug, Clone)]
pub struct Agent {
    pid: Pid,
    uid: u32,
    dirs: Vec<PathBuf>,
}

impl Agent {
    /// The agent in a process of `uid`'s. `dir` overrides the folder of its door.
    pub fn of(pid: Pid, uid: u32, dir: Option<&Path>) -> Self {
        let dirs = match dir {
            Some(dir) => vec![dir.to_path_buf()],
            None => folders::of(uid),
        };
        Self { pid, uid, dirs }
    }

    /// What the process says of itself.
    ///
    /// # Errors
    /// Nobody answers in time, or not what was asked.
    pub fn report(&self, deadline: Duration) -> Result<Inside, AskError> {
        let mut door = self.open(deadline)?;
        report(&mut door, deadline)?.ok_or_else(|| self.has_no_agent())
    }

    /// Copies out or in.
    ///
    /// # Errors
    /// The agent refuses (and has rolled itself back), or doesn't answer in time.
    pub fn do_it(&self, op: Op, deadline: Duration) -> Result<Moved, AskError> {
        let said = self.ask(op, json!({}), deadline)?;
        match &said["moved"] {
            Value::Null => Ok(Moved::default()),
            moved => Moved::deserialize(moved).map_err(|_| AskError::Garbled),
        }
    }

    /// Has the interpreter restart from a saved state, after the answer. The new agent's report says `saved`.
    ///
    /// # Errors
    /// The agent refuses, or doesn't answer in time.
    pub fn restart(&self, state: &Path, deadline: Duration) -> Result<(), AskError> {
        self.ask(Op::Restart, json!({ "state": state }), deadline)
            .map(|_| ())
    }

    fn ask(&self, op: Op, body: Value, deadline: Duration) -> Result<Value, AskError> {
        let mut door = self.open(deadline)?;
        match speaks(&door) {
            true => door.ask(op.name(), body, deadline, &mut |_| {}),
            false => Err(self.has_no_agent()),
        }
    }

    fn open(&self, deadline: Duration) -> Result<Door, AskError> {
        Door::open(self.pid, self.uid, &self.dirs, None, deadline)
    }

    fn has_no_agent(&self) -> AskError {
        AskError::Nobody {
            pid: self.pid,
            source: std::io::ErrorKind::Unsupported.into(),
        }
    }
}

/// Asks the process behind a door for its report. `None`: the process has loaded no `gresshopper.gpu`.
///
/// # Errors
/// Nobody answers in time, or not what was asked.
pub fn report(door: &mut Door, deadline: Duration) -> Result<Option<Inside>, AskError> {
    if !speaks(door) {
        return Ok(None);
    }
    let said = door.ask(Op::Report.name(), json!({}), deadline, &mut |_| {})?;
    let report = Inside::deserialize(&said["report"]).map_err(|_| AskError::Garbled)?;
    Ok(Some(report))
}

fn speaks(door: &Door) -> bool {
    door.hello.ops.iter().any(|known| known == "gpu")
}
