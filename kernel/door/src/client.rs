//! A command's end of a process's door: one connection, one request after the other.

use crate::wire::{self, Decoded, Parcel};
use crate::{Pid, folders};
use bytes::BytesMut;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A command hears of silence as often as this.
const QUIET: Duration = Duration::from_secs(2);
/// The largest message that a command takes from a process.
const LARGEST: usize = 64 << 20;

/// Why a process didn't do it.
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
    /// `kind` is for programs, the text for people.
    #[error("{message}")]
    Refused { kind: String, message: String },
}

/// What a process says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Hello {
    pub version: u32,
    /// The namespaces of its operations.
    pub ops: Vec<String>,
    pub pid: Pid,
    /// The kernel's id, if the process has a supervisor.
    pub kernel: Option<String>,
    pub connection_file: Option<PathBuf>,
    /// SHA-256 of the key by which the kernel's messages are signed, in hexadecimal digits.
    pub key: Option<String>,
    /// The process follows another one, the executor of the kernel's cells.
    pub standby: bool,
}

/// Heard while a request's answer is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News<'a> {
    Silence,
    Progress(&'a str),
}

/// An open door.
#[derive(Debug)]
pub struct Door {
    stream: UnixStream,
    buf: BytesMut,
    last: u64,
    pub hello: Hello,
}

impl Door {
    /// Opens the door of a process of `uid`'s, looked for in `dirs`. `within` is the word of `%hop`, whose cell waits.
    ///
    /// # Errors
    /// Nobody listens there, or another process does, or no answer comes in time.
    pub fn open(
        pid: Pid,
        uid: u32,
        dirs: &[PathBuf],
        within: Option<&str>,
        deadline: Duration,
    ) -> Result<Self, AskError> {
        Self::over(connect(pid, uid, dirs)?, within, deadline)
    }

    /// Opens a door over a connection, possibly to another machine.
    ///
    /// # Errors
    /// The process doesn't answer in time, or hangs up.
    pub fn over(stream: UnixStream, within: Option<&str>, deadline: Duration) -> Result<Self, AskError> {
        let set = stream.set_write_timeout(Some(deadline));
        set.map_err(AskError::Broken)?;
        let mut door = Self {
            stream,
            buf: BytesMut::new(),
            last: 0,
            hello: Hello::default(),
        };
        let asked = json!({"version": wire::VERSION, "within": within});
        let said = door.ask("hello", asked, deadline, &mut |_| {})?;
        door.hello = serde_json::from_value(said).map_err(|_| AskError::Garbled)?;
        Ok(door)
    }

    /// Asks, and waits for the answer. Dropping the door calls off what the process hasn't begun.
    ///
    /// # Errors
    /// The process refuses, or doesn't answer in time.
    pub fn ask(
        &mut self,
        op: &str,
        body: Value,
        deadline: Duration,
        hear: &mut dyn FnMut(News<'_>),
    ) -> Result<Value, AskError> {
        self.last += 1;
        for piece in wire::encode(&Parcel::request(self.last, op, body)) {
            self.stream
                .write_all(&piece)
                .map_err(|error| broken(error, deadline))?;
        }
        let until = Instant::now() + deadline;
        loop {
            let said = self.receive(until, deadline, hear)?.wire;
            if said.re != Some(self.last) {
                if let Some(text) = said.body["text"].as_str() {
                    hear(News::Progress(text));
                }
                continue;
            }
            return match (said.ok, said.error) {
                (Some(ok), None) => Ok(ok),
                (_, Some(error)) => Err(AskError::Refused {
                    kind: error.kind,
                    message: error.message,
                }),
                (None, None) => Err(AskError::Garbled),
            };
        }
    }

    fn receive(
        &mut self,
        until: Instant,
        deadline: Duration,
        hear: &mut dyn FnMut(News<'_>),
    ) -> Result<Parcel, AskError> {
        loop {
            match wire::decode(&mut self.buf).map_err(|_| AskError::Garbled)? {
                Decoded::Parcel(parcel) => return Ok(parcel),
                // An endless answer must not fill our memory.
                Decoded::Wants(more) if self.buf.len() + more > LARGEST => return Err(AskError::Garbled),
                Decoded::Wants(_) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(AskError::TimedOut(deadline));
            }
            let set = self.stream.set_read_timeout(Some(left.min(QUIET)));
            set.map_err(AskError::Broken)?;
            let mut piece = [0; 16 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(AskError::Broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.buf.extend_from_slice(&piece[..n]),
                Err(error) if is_timeout(&error) => hear(News::Silence),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(AskError::Broken(error)),
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn broken(error: io::Error, deadline: Duration) -> AskError {
    match is_timeout(&error) {
        true => AskError::TimedOut(deadline),
        false => AskError::Broken(error),
    }
}

/// The doors of a user's processes on this machine.
#[derive(Debug, Default)]
pub struct Doors {
    /// Those that answer.
    pub open: Vec<Door>,
    /// A process whose door doesn't answer in time.
    pub silent: Option<Pid>,
}

impl Doors {
    /// Opens all doors of `uid`'s in `dirs`.
    pub fn open(uid: u32, dirs: &[PathBuf], deadline: Duration) -> Self {
        let mut doors = Self::default();
        for pid in folders::processes(uid, dirs) {
            match Door::open(pid, uid, dirs, None, deadline) {
                Ok(door) => doors.open.push(door),
                Err(AskError::TimedOut(_)) => doors.silent = Some(pid),
                Err(_) => {}
            }
        }
        doors
    }

    /// The process running this kernel's cells. A standby has only the variables of records.
    pub fn executor(&self, kernel: &str) -> Option<Pid> {
        let mut hellos = self.open.iter().map(|door| &door.hello);
        let found = hellos.find(|hello| hello.kernel.as_deref() == Some(kernel) && !hello.standby);
        found.map(|hello| hello.pid)
    }
}

/// Connects to the door of a process of `uid`'s, looked for in `dirs`.
///
/// # Errors
/// No process listens there, or another one than `pid`.
pub fn connect(pid: Pid, uid: u32, dirs: &[PathBuf]) -> Result<UnixStream, AskError> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for dir in dirs {
        let path = dir.join(folders::name(pid));
        match folders::check(dir, uid).and_then(|()| UnixStream::connect(&path)) {
            Ok(stream) => return check(stream, pid, uid, &path),
            Err(error) => {
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    forget(pid, uid, &path);
                }
                last = error;
            }
        }
    }
    Err(AskError::Nobody { pid, source: last })
}

/// Removes the socket of a killed process. A new process in its place makes another socket.
fn forget(pid: Pid, uid: u32, path: &Path) {
    let is_gone = !Path::new(&format!("/proc/{pid}")).exists();
    if is_gone && rustix::process::geteuid().as_raw() == uid {
        let _ = fs::remove_file(path);
    }
}

fn check(stream: UnixStream, pid: Pid, uid: u32, path: &Path) -> Result<UnixStream, AskError> {
    let stranger = || AskError::Stranger {
        path: path.display().to_string(),
        pid,
    };
    let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(|_| stranger())?;
    match peer.uid.as_raw() == uid && peer.pid.as_raw_nonzero().get() == pid {
        true => Ok(stream),
        false => Err(stranger()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::thread;

    const SOON: Duration = Duration::from_secs(20);

    fn me() -> (Pid, u32) {
        let pid = std::process::id().try_into().unwrap();
        (pid, rustix::process::geteuid().as_raw())
    }

    /// A process of ours that gives these answers, in their order, each after a request.
    fn played(dir: &Path, answers: Vec<Vec<Parcel>>) {
        fs::set_permissions(dir, Permissions::from_mode(0o700)).unwrap();
        let listener = UnixListener::bind(dir.join(folders::name(me().0))).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for parcels in answers {
                let mut piece = [0; 4096];
                if stream.read(&mut piece).unwrap() == 0 {
                    return;
                }
                for parcel in parcels {
                    stream.write_all(&wire::encode(&parcel).concat()).unwrap();
                }
            }
        });
    }

    fn open(dir: &Path) -> Result<Door, AskError> {
        let (pid, uid) = me();
        Door::open(pid, uid, &[dir.to_path_buf()], None, SOON)
    }

    #[test]
    fn an_answer_comes_after_its_progress() {
        let tmp = tempfile::tempdir().unwrap();
        let mut progress = Parcel::request(0, "state.progress", json!({"re": 2, "text": "half"}));
        progress.wire.id = None;
        let hello = Parcel::answer(1, json!({"version": 1, "kernel": "k", "a later key": 1}));
        played(
            tmp.path(),
            vec![
                vec![hello],
                vec![progress, Parcel::answer(2, json!({"done": true}))],
            ],
        );
        let mut door = open(tmp.path()).unwrap();
        assert_eq!(door.hello.kernel.as_deref(), Some("k"));
        let mut heard = Vec::new();
        let mut hear = |news: News<'_>| {
            if let News::Progress(text) = news {
                heard.push(text.to_owned());
            }
        };
        let said = door.ask("state.save", json!({}), SOON, &mut hear).unwrap();
        assert_eq!((said, heard), (json!({"done": true}), vec!["half".to_owned()]));
    }

    #[test]
    fn a_refusal_is_the_processs_sentence() {
        let tmp = tempfile::tempdir().unwrap();
        played(
            tmp.path(),
            vec![vec![Parcel::refuse(1, "version", "restart the kernel")]],
        );
        let error = open(tmp.path()).unwrap_err();
        assert!(matches!(&error, AskError::Refused { kind, .. } if kind == "version"));
        assert_eq!(error.to_string(), "restart the kernel");
    }

    #[test]
    fn a_folder_open_to_others_is_not_believed() {
        let tmp = tempfile::tempdir().unwrap();
        played(tmp.path(), vec![]);
        fs::set_permissions(tmp.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(open(tmp.path()), Err(AskError::Nobody { .. })));
    }

    #[test]
    fn the_socket_of_a_dead_process_is_removed() {
        let tmp = tempfile::tempdir().unwrap();
        fs::set_permissions(tmp.path(), Permissions::from_mode(0o700)).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = child.id().try_into().unwrap();
        child.wait().unwrap();
        let (alive, uid) = me();
        for (pid, stays) in [(alive, true), (gone, false)] {
            let path = tmp.path().join(folders::name(pid));
            drop(UnixListener::bind(&path).unwrap());
            let opened = Door::open(pid, uid, &[tmp.path().to_path_buf()], None, SOON);
            assert!(matches!(opened, Err(AskError::Nobody { .. })));
            assert_eq!(path.exists(), stays);
        }
    }

    #[test]
    fn another_process_behind_the_name_is_no_door() {
        let tmp = tempfile::tempdir().unwrap();
        fs::set_permissions(tmp.path(), Permissions::from_mode(0o700)).unwrap();
        let (pid, uid) = me();
        let _listener = UnixListener::bind(tmp.path().join(folders::name(pid + 1))).unwrap();
        let opened = Door::open(pid + 1, uid, &[tmp.path().to_path_buf()], None, SOON);
        assert!(matches!(opened, Err(AskError::Stranger { .. })));
    }

    #[test]
    fn a_silent_process_is_given_up() {
        let tmp = tempfile::tempdir().unwrap();
        played(tmp.path(), vec![vec![], vec![]]);
        let (pid, uid) = me();
        let opened = Door::open(
            pid,
            uid,
            &[tmp.path().to_path_buf()],
            None,
            Duration::from_millis(50),
        );
        assert!(matches!(opened, Err(AskError::TimedOut(_))));
    }
}
