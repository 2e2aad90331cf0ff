//! The privileged helper, for sites whose driver lets only root checkpoint. It has one verb: one checkpoint step on
//! one process, for the user who owns the process.
//!
//! The asker is the uid that Linux reports for the socket's other end (SO_PEERCRED). The target's four user ids must
//! all be that uid. Its start time must be the one that the caller names, so a reused pid is not touched. Root may
//! ask for any process.

use crate::Pid;
use crate::driver::{Api, Driver, DriverError, ProcessState, Step};
use crate::procs::{Procs, Uids};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Where the helper listens unless told otherwise.
pub const SOCKET: &str = "/run/gresshopper/gpu-helper.sock";
const VERSION: u32 = 1;
/// A request is a pid, a step and at most 8 pairs of UUIDs.
const MAX_REQUEST: u64 = 8 << 10;
/// Time after which a silent peer is dropped.
const PATIENCE: Duration = Duration::from_secs(5);
/// More callers at once are turned away: a hanging driver must not let threads pile up.
const MAX_CALLERS: usize = 32;

/// The one verb.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub v: u32,
    pub pid: Pid,
    pub start_time: u64,
    pub step: Step,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reply {
    Done { state: ProcessState },
    Driver(DriverError),
    Refused { why: String },
}

/// Why a caller is turned away.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("process {pid} is not yours")]
    NotYours { pid: Pid },
    #[error("process {pid} is gone; another one has its number now")]
    Reused { pid: Pid },
    #[error("there is no process {pid}")]
    Gone { pid: Pid },
    #[error("{pid} is no process id")]
    NoPid { pid: Pid },
}

/// Whether `caller` may have a step done on a process that is `target`'s and started at `started`.
///
/// # Errors
/// It may not.
pub fn authorise(caller: u32, request: &Request, target: Uids, started: u64) -> Result<(), Denied> {
    let pid = request.pid;
    if caller != 0 && !target.are_all(caller) {
        return Err(Denied::NotYours { pid });
    }
    if started != request.start_time {
        return Err(Denied::Reused { pid });
    }
    Ok(())
}

/// The serving side.
#[derive(Clone)]
pub struct Helper {
    driver: Arc<dyn Driver>,
    procs: Procs,
    callers: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Helper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Helper")
            .field("procs", &self.procs)
            .finish_non_exhaustive()
    }
}

impl Helper {
    pub fn new(driver: Arc<dyn Driver>, procs: Procs) -> Self {
        Self {
            driver,
            procs,
            callers: Arc::default(),
        }
    }

    /// Serves until the listener breaks.
    ///
    /// # Errors
    /// Accepting failed for good.
    pub fn serve(&self, listener: &UnixListener) -> io::Result<()> {
        loop {
            let (stream, _) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let helper = self.clone();
            if helper.callers.fetch_add(1, Ordering::Relaxed) >= MAX_CALLERS {
                helper.callers.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            std::thread::spawn(move || {
                // A peer that goes away in the middle has nobody to be told.
                let _ = helper.one(stream);
                helper.callers.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    fn one(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let caller = rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw();
        let mut line = String::new();
        BufReader::new(Read::take(&stream, MAX_REQUEST)).read_line(&mut line)?;
        let mut reply = serde_json::to_vec(&self.answer(caller, &line))?;
        reply.push(b'\n');
        stream.write_all(&reply)
    }

    fn answer(&self, caller: u32, line: &str) -> Reply {
        let request = match serde_json::from_str::<Request>(line) {
            Ok(request) if request.v == VERSION => request,
            Ok(request) => {
                return refused(&format!("version {} of the request is not known here", request.v));
            }
            Err(_) => return refused("that is no request"),
        };
        if let Err(denied) = self.check(caller, &request) {
            return refused(&denied.to_string());
        }
        match self.driver.step(request.pid, &request.step) {
            Ok(state) => Reply::Done { state },
            Err(error) => Reply::Driver(error),
        }
    }

    fn check(&self, caller: u32, request: &Request) -> Result<(), Denied> {
        let pid = request.pid;
        if pid <= 1 {
            return Err(Denied::NoPid { pid });
        }
        let gone = |_| Denied::Gone { pid };
        let target = self.procs.uids(pid).map_err(gone)?;
        let started = self.procs.start_time(pid).map_err(gone)?;
        authorise(caller, request, target, started)
    }
}

fn refused(why: &str) -> Reply {
    Reply::Refused { why: why.to_owned() }
}

/// Binds the helper's socket: in a directory that only its owner can write, and for everybody to connect to, since
/// each caller is proven.
///
/// # Errors
/// The directory is writable by others, another helper listens there, or binding fails.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let dir = path.parent().unwrap_or_else(|| Path::new("/"));
    std::fs::create_dir_all(dir)?;
    let meta = std::fs::metadata(dir)?;
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        let text = format!("{} must be ours, and writable by nobody else", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    if UnixStream::connect(path).is_ok() {
        let text = format!("another helper listens at {}", path.display());
        return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// The asking side: a [`Driver`] whose calls the helper makes.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    api: Option<Api>,
    procs: Procs,
    /// The longest that a step may take.
    pub deadline: Duration,
}

impl Client {
    /// `api`: generation of the driver that the helper will load, which is also loaded here.
    pub fn new(socket: PathBuf, api: Option<Api>, procs: Procs, deadline: Duration) -> Self {
        Self {
            socket,
            api,
            procs,
            deadline,
        }
    }

    /// Whether somebody listens, and is root: the path's directory proves nothing to a caller who can't read it.
    pub fn is_there(&self) -> bool {
        self.connect().is_ok()
    }

    fn connect(&self) -> Result<UnixStream, DriverError> {
        let fail = |error: io::Error| DriverError::Helper(format!("{}: {error}", self.socket.display()));
        let stream = UnixStream::connect(&self.socket).map_err(fail)?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(|error| fail(error.into()))?;
        let me = rustix::process::geteuid();
        match peer.uid.is_root() || peer.uid == me {
            true => Ok(stream),
            false => Err(DriverError::Helper(format!(
                "{} is not root's",
                self.socket.display()
            ))),
        }
    }

    fn ask(&self, request: &Request) -> Result<Reply, DriverError> {
        let mut stream = self.connect()?;
        let fail = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => DriverError::TimedOut {
                call: request.step.name().to_owned(),
                after: self.deadline,
            },
            _ => DriverError::Helper(error.to_string()),
        };
        stream.set_read_timeout(Some(self.deadline)).map_err(fail)?;
        let mut line = serde_json::to_vec(request).map_err(|error| fail(error.into()))?;
        line.push(b'\n');
        stream.write_all(&line).map_err(fail)?;
        let mut answer = String::new();
        BufReader::new(Read::take(&stream, MAX_REQUEST))
            .read_line(&mut answer)
            .map_err(fail)?;
        serde_json::from_str(&answer)
            .map_err(|_| DriverError::Helper("it turned us away without a word".to_owned()))
    }
}

impl Driver for Client {
    fn api(&self) -> Option<Api> {
        self.api
    }

    fn step(&self, pid: Pid, step: &Step) -> Result<ProcessState, DriverError> {
        let gone = |error: io::Error| DriverError::Helper(format!("process {pid}: {error}"));
        let start_time = self.procs.start_time(pid).map_err(gone)?;
        match self.ask(&Request {
            v: VERSION,
            pid,
            start_time,
            step: step.clone(),
        })? {
            Reply::Done { state } => Ok(state),
            Reply::Driver(error) => Err(error),
            Reply::Refused { why } => Err(DriverError::Helper(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            v: VERSION,
            pid: 7,
            start_time: 42,
            step: Step::Checkpoint,
        }
    }

    fn uids(real: u32, effective: u32) -> Uids {
        Uids {
            real,
            effective,
            saved: effective,
            fs: effective,
        }
    }

    #[test]
    fn only_the_owner_and_root_may_ask_and_only_for_the_process_they_mean() {
        assert_eq!(authorise(1000, &request(), uids(1000, 1000), 42), Ok(()));
        assert_eq!(authorise(0, &request(), uids(1000, 1000), 42), Ok(()));
        assert_eq!(
            authorise(1001, &request(), uids(1000, 1000), 42),
            Err(Denied::NotYours { pid: 7 })
        );
        // A setuid program that the caller started is not the caller's.
        assert_eq!(
            authorise(1000, &request(), uids(1000, 0), 42),
            Err(Denied::NotYours { pid: 7 })
        );
        assert_eq!(
            authorise(1000, &request(), uids(1000, 1000), 43),
            Err(Denied::Reused { pid: 7 })
        );
        assert_eq!(
            authorise(0, &request(), uids(1000, 1000), 43),
            Err(Denied::Reused { pid: 7 })
        );
    }
}
