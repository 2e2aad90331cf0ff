//! The process with the notebook's run by nbclient (`gresshopper_jupyter.unattended`), and its messages.

use crate::failure::Failure;
use hop_api::config::Config;
use hop_protocol::file::data_dir_by;
use hop_replica::need::Unattended;
use hop_words::line::LineError;
use hop_words::line::tokio::{Lines, write as write_line};
use hop_words::need::Need;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// The version in every [`Open`].
pub(super) const VERSION: u32 = 1;

/// The longest line of an [`Event`], in bytes: [`Opened`] has the sources of all cells.
const MAX_LINE: usize = 64 << 20;

/// Environment variable with the Python that has nbclient.
pub(super) const PYTHON: &str = "GRESSHOPPER_JUPYTER_PYTHON";

/// Which notebook, and how.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Open {
    pub(super) version: u32,
    pub(super) notebook: PathBuf,
    pub(super) out: PathBuf,
    pub(super) cwd: PathBuf,
    pub(super) record: PathBuf,
    pub(super) kernel: Option<String>,
    pub(super) parameters: Vec<(String, String)>,
    pub(super) raw_parameters: Vec<(String, String)>,
    pub(super) parameter_files: Vec<PathBuf>,
    pub(super) resume: bool,
    /// Wait for another run on the same output to end, which was told to.
    pub(super) patient: bool,
    pub(super) allow_errors: bool,
    pub(super) startup_timeout_s: u64,
    pub(super) keep_s: u64,
}

#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub(super) enum Order {
    Open(Box<Open>),
    Go,
    /// Orders for a cell; without `run` the cell is not run.
    Cell {
        run: Option<Unattended>,
        timeout_s: Option<f64>,
    },
    Stop,
    End,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(super) enum Event {
    Opened(Opened),
    Refused {
        reason: String,
    },
    Warning {
        text: String,
    },
    Kernel {
        id: String,
    },
    /// May this cell run, and how?
    Cell {
        index: usize,
    },
    Waiting {
        position: Option<u32>,
        reason: Option<String>,
        eta_s: Option<f64>,
    },
    Running {},
    CellOver(CellOver),
    /// All is over but the kernel's end.
    Written {},
    Over(Over),
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Opened {
    pub(super) kernel: String,
    /// The kernel is ours, and runs without Slurm.
    pub(super) ours: bool,
    pub(super) local: bool,
    pub(super) pool: Option<String>,
    /// The kernelspec's default need.
    pub(super) need: Need,
    pub(super) parameters: String,
    pub(super) cells: Vec<BookCell>,
    /// An earlier run's kernel still has its variables.
    pub(super) living: bool,
    pub(super) warnings: Vec<String>,
}

/// A cell that runs at all.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct BookCell {
    pub(super) index: usize,
    pub(super) source: String,
    pub(super) need: Option<serde_json::Value>,
    pub(super) seconds: Option<f64>,
    /// The cell and all cells above it have succeeded before.
    pub(super) good: bool,
    /// The cell must run again, for its variables.
    pub(super) again: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct CellOver {
    pub(super) index: usize,
    pub(super) status: Status,
    pub(super) reason: String,
    pub(super) seconds: f64,
    pub(super) waited: f64,
    pub(super) lease: Option<Lease>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Lease {
    pub(super) lease: Option<u64>,
    pub(super) node: String,
    pub(super) gpus: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Status {
    Ok,
    Error,
    Timeout,
    Interrupted,
    /// The kernel died.
    Died,
    /// The kernel never started.
    NotStarted,
    /// All ran, and the output could not be written.
    Unwritten,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Over {
    pub(super) status: Status,
    pub(super) reason: String,
    pub(super) kept_until: Option<f64>,
    pub(super) kernel: Option<String>,
}

/// A kernel that an earlier run kept.
#[derive(Debug, Deserialize)]
pub(super) struct Kept {
    pub(super) host: String,
    pub(super) socket: PathBuf,
    pub(super) kernel: String,
}

/// The other end of the conversation.
#[derive(Debug)]
pub(super) struct Link {
    lines: Lines<BufReader<OwnedReadHalf>>,
    out: OwnedWriteHalf,
    child: Option<Child>,
    log: PathBuf,
    /// Told to go: there may be a kernel, and outputs.
    goes: bool,
}

/// A process that wasn't told to go has nothing to lose.
impl Drop for Link {
    fn drop(&mut self) {
        if !self.goes {
            self.kill();
        }
    }
}

impl Link {
    fn new(stream: StdStream, child: Option<Child>, log: PathBuf) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (read, out) = UnixStream::from_std(stream)?.into_split();
        Ok(Self {
            lines: Lines::new(BufReader::new(read), MAX_LINE),
            out,
            child,
            log,
            goes: false,
        })
    }

    /// Starts the process. Other output of the process and the front goes to a log that [`Link::last_words`] reads.
    pub(super) fn spawn(python: &Path, record: &Path) -> Result<Self, Failure> {
        let log = record.with_extension("log");
        let start = || {
            let (ours, theirs) = StdStream::pair()?;
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&log)?;
            let child = Command::new(python)
                .args(["-m", "gresshopper_jupyter.unattended"])
                .envs(jupyter_path(
                    std::env::var_os("JUPYTER_PATH"),
                    crate::kernelspec::of_the_site(),
                ))
                .stdin(Stdio::from(OwnedFd::from(theirs)))
                .stdout(file.try_clone()?)
                .stderr(file)
                .spawn()?;
            Self::new(ours, Some(child), log.clone())
        };
        start().map_err(|e| Failure::Failed(format!("can't start {}: {e}", python.display())))
    }

    /// Goes to a kernel that was kept.
    pub(super) fn connect(kept: &Kept, record: &Path) -> io::Result<Self> {
        Self::new(
            StdStream::connect(&kept.socket)?,
            None,
            record.with_extension("log"),
        )
    }

    pub(super) async fn say(&mut self, order: &Order) {
        self.goes |= matches!(order, Order::Go);
        // A dead process shows by its silence.
        let _ = write_line(&mut self.out, order).await;
    }

    /// What it says next; none: it ended.
    pub(super) async fn next(&mut self) -> Option<Event> {
        match self.lines.read().await {
            Ok(event) => event,
            Err(LineError::Io(_)) => None,
            Err(error) => Some(Event::Refused {
                reason: format!(
                    "hop and gresshopper-jupyter don't understand each other ({error}): install the same release of both"
                ),
            }),
        }
    }

    /// Ends the process at once, with its front and the kernel.
    pub(super) fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            // The process may have ended already.
            let _ = child.kill();
        }
    }

    /// Last line of a process with an unexpected end.
    pub(super) fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let last = text.lines().rev().find(|l| !l.trim().is_empty());
        match last {
            Some(line) => format!("{} (all of it: {})", line.trim(), self.log.display()),
            None => "it said nothing".to_owned(),
        }
    }
}

/// The user's folder for what runs keep.
pub(super) fn folder(env: fn(&str) -> Option<String>) -> Result<PathBuf, Failure> {
    let parent = data_dir_by(env).ok_or_else(|| Failure::Failed("HOME is not set".to_owned()))?;
    let folder = parent.join("run");
    fs::create_dir_all(parent.parent().unwrap_or(&parent))
        .and_then(|()| make_private(&parent))
        .and_then(|()| make_private(&folder))
        .map_err(|e| Failure::Failed(format!("can't make {}: {e}", folder.display())))?;
    Ok(folder)
}

fn make_private(folder: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// The kernel kept by an earlier run for this output, if any.
pub(super) fn kept(record: &Path) -> Option<Kept> {
    serde_json::from_str(&fs::read_to_string(record).ok()?).ok()
}

/// The Python with both nbclient and our package: the named one, else the first of the usual ones, the site's the last.
pub(super) fn find_python(
    env: fn(&str) -> Option<String>,
    config: Option<&Config>,
) -> Result<PathBuf, Failure> {
    if let Some(named) = env(PYTHON) {
        return match can_run(Path::new(&named)) {
            true => Ok(named.into()),
            false => Err(Failure::Failed(format!(
                "{named}, which {PYTHON} names, has no nbclient or no gresshopper-jupyter: install both there"
            ))),
        };
    }
    let of = |name: &str| env(name).map(|prefix| PathBuf::from(prefix).join("bin/python"));
    let path = env("PATH").unwrap_or_default();
    let on_path = |name: &str| {
        path.split(':')
            .map(|d| Path::new(d).join(name))
            .find(|p| p.is_file())
    };
    let jupyter = on_path("jupyter").and_then(|script| shebang(&script));
    let candidates = [
        of("VIRTUAL_ENV"),
        of("CONDA_PREFIX"),
        jupyter,
        on_path("python3"),
        on_path("python"),
        config.and_then(|c| c.jupyter_python.clone()),
    ];
    let candidates: Vec<PathBuf> = candidates.into_iter().flatten().collect();
    let found = candidates.iter().find(|p| can_run(p));
    found.cloned().ok_or_else(|| {
        let tried: Vec<String> = candidates.iter().map(|p| p.display().to_string()).collect();
        Failure::Failed(format!(
            "no Python with nbclient and gresshopper-jupyter was found (tried {}): activate the environment of your \
             Jupyter, install both there, or name it in {PYTHON}; for everybody a site names it as jupyter_python in \
             gresshopper.toml",
            if tried.is_empty() { "none".to_owned() } else { tried.join(", ") }
        ))
    })
}

/// A shell on a login node knows nothing of the site's kernels: Jupyter looks there last.
fn jupyter_path(before: Option<OsString>, site: Option<PathBuf>) -> Option<(&'static str, OsString)> {
    let before = before
        .iter()
        .flat_map(std::env::split_paths)
        .filter(|p| p.is_absolute());
    let path = std::env::join_paths(before.chain(site)).ok()?;
    (!path.is_empty()).then_some(("JUPYTER_PATH", path))
}

fn shebang(script: &Path) -> Option<PathBuf> {
    let text = fs::read(script).ok()?;
    let first = text.split(|b| *b == b'\n').next()?;
    let line = std::str::from_utf8(first).ok()?.strip_prefix("#!")?.trim();
    (line.starts_with('/') && !line.contains(' ')).then(|| line.into())
}

fn can_run(python: &Path) -> bool {
    const ASK: &str = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('nbclient', 'gresshopper_jupyter'))))";
    Command::new(python)
        .args(["-c", ASK])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    /// Whether a process that stays has ended after its link.
    async fn ends(orders: &[Order]) -> bool {
        let tmp = tempfile::tempdir().unwrap();
        let python = tmp.path().join("python");
        fs::write(&python, "#!/bin/sh\nexec sleep 60\n").unwrap();
        fs::set_permissions(&python, Permissions::from_mode(0o700)).unwrap();
        let mut link = Link::spawn(&python, &tmp.path().join("record")).unwrap();
        for order in orders {
            link.say(order).await;
        }
        let pid = link.child.as_ref().unwrap().id();
        drop(link);
        let gone = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.contains(") ") || stat.contains(") Z ")
        };
        for _ in 0..100 {
            if gone() {
                return true;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let _ = Command::new("kill").arg(pid.to_string()).status();
        false
    }

    #[tokio::test]
    async fn a_process_that_was_not_told_to_go_ends_with_its_link() {
        assert!(ends(&[]).await);
        assert!(!ends(&[Order::Go]).await);
    }
}
