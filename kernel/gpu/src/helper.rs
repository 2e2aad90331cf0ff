//! The privileged helper, for sites whose driver lets only root checkpoint. The helper has a single verb: a
//! checkpoint step on a process, for the owner of the process.
//!
//! The caller's uid is Linux's report for the socket's other end (SO_PEERCRED). The target's four user ids must all
//! equal this uid. The process's start time must equal the caller's word, which protects a reused pid. Root may ask for
//! any process.

use crate::Pid;
use crate::driver::{Api, Driver, DriverError, ProcessState, Step};
use crate::procs::{Procs, Uids};
use hop_words::line::{self, LineError, Lines};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where the helper listens unless told otherwise.
pub const SOCKET: &str = "/run/gresshopper/gpu-helper.sock";
const VERSION: u32 = 1;
/// The longest line, in bytes: a request is a pid, a step and at most 8 pairs of UUIDs.
const MAX_LINE: usize = 8 << 10;
/// Time after which a silent peer is dropped.
const PATIENCE: Duration = Duration::from_secs(5);
/// More callers at once are turned away: a hanging driver must not let threads pile up.
const MAX_CALLERS: usize = 256;
/// As many of one user: whoever idles shuts out nobody else.
const MAX_OF_A_USER: usize = 16;
/// Time until a listener that is out of descriptors or memory is tried again.
const AGAIN: Duration = Duration::from_millis(100);

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
    callers: Callers,
}

/// Callers who are being answered, by uid.
#[derive(Debug, Clone, Default)]
struct Callers(Arc<Mutex<BTreeMap<u32, usize>>>);

/// One of them, until dropped.
#[derive(Debug)]
struct Caller {
    uid: u32,
    all: Callers,
}

impl Callers {
    fn now(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        // A number changes in one step, so a panic leaves no number half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` means too many callers, in all or of this user.
    fn admit(&self, uid: u32) -> Option<Caller> {
        let mut now = self.now();
        let full = now.values().sum::<usize>() >= MAX_CALLERS;
        let own = now.get(&uid).copied().unwrap_or(0);
        if own >= MAX_OF_A_USER || full && uid != 0 {
            return None;
        }
        now.insert(uid, own + 1);
        let all = self.clone();
        Some(Caller { uid, all })
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut now = self.all.now();
        if let Some(own) = now.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                now.remove(&self.uid);
            }
        }
    }
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
            callers: Callers::default(),
        }
    }

    /// Serves until the listener breaks. A caller's failure, or a passing shortage, doesn't end the service of others.
    ///
    /// # Errors
    /// Accepting failed for good.
    pub fn serve(&self, listener: &UnixListener) -> io::Result<()> {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_passing(&error) => {
                    std::thread::sleep(AGAIN);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else {
                continue;
            };
            let Some(caller) = self.callers.admit(peer.uid.as_raw()) else {
                continue;
            };
            let helper = self.clone();
            // Without a thread the caller is dropped, and hears nothing: it may ask again.
            let _ = std::thread::Builder::new().spawn(move || {
                // A peer that goes away in the middle has nobody to be told.
                let _ = helper.one(stream, caller.uid);
                drop(caller);
            });
        }
    }

    fn one(&self, stream: UnixStream, caller: u32) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let reply = match Lines::new(BufReader::new(&stream), MAX_LINE).read() {
            Ok(Some(request)) => self.answer(caller, &request),
            Err(LineError::Io(error)) => return Err(error),
            Ok(None) | Err(_) => refused("that is no request"),
        };
        Ok(line::write(&mut &stream, &reply)?)
    }

    fn answer(&self, caller: u32, request: &Request) -> Reply {
        if request.v != VERSION {
            return refused(&format!("version {} of the request is not known here", request.v));
        }
        if let Err(denied) = self.check(caller, request) {
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

/// Whether accepting may go well again: the caller is gone, or there is a shortage.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::ECONNABORTED | libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
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
    /// `api`: generation of the driver to be loaded by the helper, also loaded here.
    pub fn new(socket: PathBuf, api: Option<Api>, procs: Procs, deadline: Duration) -> Self {
        Self {
            socket,
            api,
            procs,
            deadline,
        }
    }

    /// Whether somebody listens, and is root: the path's directory proves nothing to a caller without access to the
    /// directory.
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
        let stream = self.connect()?;
        let fail = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => DriverError::TimedOut {
                call: request.step.name().to_owned(),
                after: self.deadline,
            },
            _ => DriverError::Helper(error.to_string()),
        };
        stream.set_read_timeout(Some(self.deadline)).map_err(fail)?;
        line::write(&mut &stream, request).map_err(|error| fail(error.into()))?;
        match Lines::new(BufReader::new(&stream), MAX_LINE).read() {
            Ok(Some(reply)) => Ok(reply),
            Err(LineError::Io(error)) => Err(fail(error)),
            Ok(None) | Err(_) => Err(DriverError::Helper("it turned us away without a word".to_owned())),
        }
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
    #[test]
    fn one_users_callers_shut_out_nobody_else() {
        let callers = Callers::default();
        let mut admitted: Vec<Caller> = (0..100).filter_map(|_| callers.admit(1000)).collect();
        assert_eq!(admitted.len(), MAX_OF_A_USER);
        let other = callers.admit(1001).unwrap();
        drop(admitted.pop());
        admitted.push(callers.admit(1000).unwrap());
        assert!(callers.admit(1000).is_none());
        let many: Vec<Caller> = (2000..3000).filter_map(|uid| callers.admit(uid)).collect();
        assert_eq!(many.len(), MAX_CALLERS - MAX_OF_A_USER - 1);
        assert!(callers.admit(9).is_none());
        let root = callers.admit(0).unwrap();
        drop((admitted, other, many, root));
        assert!(callers.now().is_empty(), "nobody is remembered");
    }
}
