//! The kernel that `hop state` or `hop gpu` asks: the surrounding, the named or the only kernel.
//!
//! A kernel is found by its connection file in Jupyter's runtime folder, by its process's door, or by `hopd`. The
//! notebook's name is the Jupyter session's, as told to the kernel's process, or `hopd`'s. The kernel's process is
//! reached at the door on this machine, or through the user's seats ([`crate::relay`]).

use crate::context::Context;
use crate::failure::Failure;
use crate::{files, kernels, relay};
use hop_api::message::{KernelRow, KernelState, ReplicaRole};
use hop_door::{Door, Doors, Hello, Pid, folders};
use hop_words::error::chain;
use hop_words::id::KernelId;
use hop_words::text;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Set in the processes of a kernel of ours.
const OWN: &str = "GRESSHOPPER_KERNEL";
/// Set by `%hop` in a notebook: the kernel's process, and the word that proves that the kernel's cell waits for this
/// command.
const ASK: &str = "GRESSHOPPER_ASK";
/// Most time for a kernel's process to say hello.
const HELLO: Duration = Duration::from_secs(5);
/// How long a kernel may take to accept a connection, to count as alive.
const ALIVE: Duration = Duration::from_millis(500);
/// The most bytes of a connection file.
const MOST: u64 = 1 << 20;
/// Most ancestors searched for the kernel in which a command runs.
const ANCESTORS: usize = 30;

/// A kernel that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    pub(crate) id: String,
    /// Name of the kernel's notebook, if known.
    pub(crate) name: Option<String>,
    /// Connection file of the kernel; `None` for a kernel on another node.
    pub(crate) file: Option<PathBuf>,
    /// `true` if this process is a child of the kernel, which then runs a cell and can't answer another request.
    pub(crate) own: bool,
}

impl Kernel {
    /// A kernel without a connection file here.
    fn elsewhere(id: String, name: Option<String>) -> Self {
        Self {
            id,
            name,
            file: None,
            own: false,
        }
    }

    /// As a person knows it.
    pub(crate) fn title(&self) -> String {
        let short: String = self.id.chars().take(8).collect();
        match &self.name {
            Some(name) => format!("{name} ({short})"),
            None => short,
        }
    }

    /// Whether a process claims to be the kernel's.
    fn is(&self, hello: &Hello) -> bool {
        let file = || self.file.as_ref().and_then(|file| file.canonicalize().ok());
        hello.kernel.as_deref() == Some(self.id.as_str())
            || hello.connection_file.is_some() && hello.connection_file == file()
    }

    /// Whether a process has the key of this kernel's clients: a notebook that is opened anew goes on with a kernel of
    /// another id. A site may give all kernels the same key.
    fn has_key(&self, hello: &Hello) -> bool {
        let key = || {
            Connection::read(self.file.as_ref()?)
                .map(|c| c.key)
                .filter(|key| !key.is_empty())
        };
        let digest = || key().map(|key| hex::encode(Sha256::digest(key)));
        hello.kernel.is_some() && hello.key.is_some() && hello.key == digest()
    }
}

/// What a connection file says.
#[derive(Debug, Deserialize)]
struct Connection {
    transport: String,
    ip: String,
    shell_port: u16,
    #[serde(default)]
    key: String,
}

impl Connection {
    fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&files::read(path, MOST).ok()?).ok()
    }

    /// Whether a process listens on the kernel's port. A killed kernel leaves its file behind.
    fn is_alive(&self) -> bool {
        match self.transport.as_str() {
            "ipc" => UnixStream::connect(format!("{}-{}", self.ip, self.shell_port)).is_ok(),
            _ => format!("{}:{}", self.ip, self.shell_port)
                .parse::<SocketAddr>()
                .is_ok_and(|address| TcpStream::connect_timeout(&address, ALIVE).is_ok()),
        }
    }
}

/// Jupyter's folder of connection files.
pub(crate) fn runtime(context: &Context<'_>) -> Result<PathBuf, Failure> {
    let home = (context.env)("HOME").ok_or_else(|| Failure::Failed("HOME isn't set".to_owned()))?;
    let data =
        (context.env)("XDG_DATA_HOME").map_or_else(|| Path::new(&home).join(".local/share"), PathBuf::from);
    Ok((context.env)("JUPYTER_RUNTIME_DIR").map_or_else(|| data.join("jupyter/runtime"), PathBuf::from))
}

/// The door of a kernel's process.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) door: Door,
    /// Whether the process runs on this machine.
    pub(crate) here: bool,
}

/// Opens the door of the kernel's process for work between its cells. `python` is the folder of our package, for a
/// kernel that hasn't loaded it.
pub(crate) fn door(kernel: &Kernel, python: Option<&Path>, context: &Context<'_>) -> Result<Door, Failure> {
    match kernel.own {
        true => own_door(kernel, context),
        false => reach(kernel, python).map(|reached| reached.door),
    }
}

/// Opens the door of the kernel's process, on this machine or on another node.
///
/// Of several replicas the executor is meant: a standby's variables are those of records, and its cells run elsewhere.
pub(crate) fn reach(kernel: &Kernel, python: Option<&Path>) -> Result<Reached, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    let Doors { mut open, silent } = Doors::open(uid, &folders::of(uid), HELLO);
    let executes = |rule: fn(&Kernel, &Hello) -> bool| {
        let all = open.iter().enumerate();
        all.filter(move |(_, door)| rule(kernel, &door.hello) && !door.hello.standby)
            .map(|(at, _)| at)
    };
    let with_key: Vec<usize> = executes(Kernel::has_key).collect();
    let at = executes(Kernel::is).next().or(match with_key[..] {
        [at] => Some(at),
        _ => None,
    });
    if let Some(at) = at {
        let door = open.swap_remove(at);
        return Ok(Reached { door, here: true });
    }
    let key = kernel.file.as_deref().and_then(Connection::read).map(|c| c.key);
    match relay::door(&kernel.id, key.as_deref(), HELLO) {
        Ok(door) => Ok(Reached { door, here: false }),
        Err(why) => Err(Failure::Failed(out_of_reach(
            kernel,
            silent,
            &chain(&why),
            python,
        ))),
    }
}

/// Kernels with a door on this machine, by the beginning of their ids.
fn with_doors(word: &str) -> Vec<Kernel> {
    let uid = rustix::process::geteuid().as_raw();
    let doors = Doors::open(uid, &folders::of(uid), HELLO);
    let mut ids: Vec<String> = doors
        .open
        .into_iter()
        .filter_map(|door| door.hello.kernel)
        .filter(|id| kernels::begins(id, word))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(|id| Kernel::elsewhere(id, None)).collect()
}

/// The user's kernels with a process on some node, as `hopd` knows them.
fn on_any_node(context: &Context<'_>) -> Result<Vec<Kernel>, Failure> {
    let runs = |row: &KernelRow| {
        row.state != KernelState::Asleep && row.replicas.iter().any(|r| r.role == ReplicaRole::Executor)
    };
    let rows = kernels::own(context)?.into_iter().filter(runs);
    Ok(rows
        .map(|row| {
            Kernel::elsewhere(
                row.kernel.to_string(),
                Some(row.name).filter(|name| !name.is_empty()),
            )
        })
        .collect())
}

/// The kernels called `word` by `hopd`. Without an answer of `hopd`, the kernels so called in the user's home.
fn called_elsewhere(
    word: &str,
    known: Result<Vec<Kernel>, Failure>,
    home: impl FnOnce() -> Vec<(KernelId, String)>,
) -> Result<Vec<Kernel>, Failure> {
    let called = |mut kernels: Vec<Kernel>| {
        kernels.retain(|k| is_called(k, word));
        kernels
    };
    let away = match known {
        Err(Failure::Unreachable(away)) => Some(away),
        Err(Failure::Unconfigured(_)) => None,
        known => return known.map(called),
    };
    let kernels = home()
        .into_iter()
        .map(|(id, name)| Kernel::elsewhere(id.to_string(), Some(name).filter(|name| !name.is_empty())));
    let found = called(kernels.collect());
    match away {
        Some(away) if found.is_empty() => Err(Failure::Unreachable(format!(
            "no kernel known here is called {word:?}, and hopd, which knows the others, can't be asked: {away}"
        ))),
        _ => Ok(found),
    }
}

/// The door of the kernel around this process. The kernel's cell waits for this process.
fn own_door(kernel: &Kernel, context: &Context<'_>) -> Result<Door, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    let asked = (context.env)(ASK).unwrap_or_default();
    let Some((Ok(pid), word)) = asked.split_once(':').map(|(pid, word)| (pid.parse(), word)) else {
        return Err(Failure::Usage(format!(
            "this is the notebook's own kernel ({}), which waits for this very command: write `%hop state ..` in place of \
             `!hop state ..`, or run it in a terminal",
            kernel.title()
        )));
    };
    Door::open(pid, uid, &folders::of(uid), Some(word), HELLO).map_err(|error| Failure::of(&error))
}

fn out_of_reach(kernel: &Kernel, silent: Option<Pid>, seats: &str, python: Option<&Path>) -> String {
    let title = kernel.title();
    if let Some(pid) = silent {
        return format!(
            "kernel {title} wasn't found, and process {pid} doesn't say what it is: if that is the kernel, its cell keeps Python \
             from answering; try again later"
        );
    }
    let folder = python.map_or_else(String::new, |python| {
        format!(" (`import sys; sys.path.append({python:?})` makes it known there)")
    });
    format!(
        "kernel {title} can't be asked, neither on this machine nor through your seats ({seats}); `%hop` in its notebook may \
         reach it. A kernel that isn't Gresshopper's first needs the cell `%load_ext gresshopper`{folder}, and a command on its \
         own machine; one of an older release, a restart"
    )
}

/// Finds the kernel meant by `which`: by a connection file, by an id or an id's beginning, or by a notebook's name.
/// Without `which`, finds the kernel around this process, else the only running kernel.
pub(crate) fn find(which: Option<&str>, runtime: &Path, context: &Context<'_>) -> Result<Kernel, Failure> {
    if let Some(file) = which.map(Path::new).filter(|p| is_connection_file(p)) {
        return Ok(of_file(file, &HashMap::new(), None));
    }
    which.map_or(Ok(()), kernels::check)?;
    let own = own(context);
    let names = session_names();
    let mut found = listening(runtime, &names, own.as_deref());
    if let Some(own) = own.filter(|own| found.iter().all(|k| k.id != *own)) {
        found.push(Kernel {
            name: names.get(&own).cloned(),
            id: own,
            file: None,
            own: true,
        });
    }
    let Some(word) = which else {
        return match found.iter().position(|k| k.own) {
            Some(at) => Ok(named(found.swap_remove(at), context)),
            None => only(found, runtime, context),
        };
    };
    if found
        .iter()
        .any(|k| k.name.is_none() && !kernels::begins(&k.id, word))
    {
        // Asked only where it may help: saving needs no hopd.
        add_names(&mut found, context);
    }
    found.retain(|k| is_called(k, word));
    if found.is_empty() {
        found = with_doors(word);
    }
    if found.is_empty() {
        found = called_elsewhere(word, on_any_node(context), relay::names_in_home)?;
    }
    match found.len() {
        0 => Err(Failure::Failed(format!(
            "no kernel or saved state is called {word:?} (kernels are looked for in {}, and by hopd): give a notebook's name, the beginning of \
             a kernel's id, or a connection file",
            runtime.display()
        ))),
        1 => Ok(found.remove(0)),
        _ => Err(several(&format!("{word:?} can mean"), &found)),
    }
}

/// Whether a kernel's id begins with the word, or its notebook has the word as name.
fn is_called(kernel: &Kernel, word: &str) -> bool {
    kernels::is_called(word, &kernel.id, kernel.name.as_deref())
}

/// A notebook is a file, too, and no connection file.
fn is_connection_file(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|e| e == "json")
}

fn only(mut found: Vec<Kernel>, runtime: &Path, context: &Context<'_>) -> Result<Kernel, Failure> {
    if found.is_empty() {
        found = match on_any_node(context) {
            Err(Failure::Unconfigured(_)) => vec![],
            known => known?,
        };
    }
    match found.len() {
        0 => Err(Failure::Failed(format!(
            "no running kernel (looked in {}); give its connection file",
            runtime.display()
        ))),
        1 => Ok(named(found.remove(0), context)),
        _ => {
            add_names(&mut found, context);
            Err(several("there are", &found))
        }
    }
}

fn several(how: &str, found: &[Kernel]) -> Failure {
    let titles: Vec<String> = found.iter().map(Kernel::title).collect();
    Failure::Usage(format!(
        "{how} {} kernels: name the one you mean: {}",
        found.len(),
        titles.join(", ")
    ))
}

/// Adds the name that `hopd` knows, if no other source has named the kernel.
fn named(kernel: Kernel, context: &Context<'_>) -> Kernel {
    let mut one = [kernel];
    add_names(&mut one, context);
    let [kernel] = one;
    kernel
}

fn add_names(found: &mut [Kernel], context: &Context<'_>) {
    let (nameless, ids): (Vec<&mut Kernel>, Vec<_>) = found
        .iter_mut()
        .filter(|k| k.name.is_none() && kernels::is_whole(&k.id))
        .map(|k| {
            let id = k.id.as_str().into();
            (k, id)
        })
        .unzip();
    if nameless.is_empty() {
        return;
    }
    // Without hopd kernels go by their ids.
    let rows = kernels::of(&ids, context).unwrap_or_default();
    for kernel in nameless {
        let row = rows.iter().find(|r| r.kernel.as_str() == kernel.id);
        kernel.name = row.map(|r| r.name.clone()).filter(|name| !name.is_empty());
    }
}

/// Kernels listening on this machine, by their connection files.
fn listening(runtime: &Path, names: &HashMap<String, String>, own: Option<&str>) -> Vec<Kernel> {
    let mut found: Vec<Kernel> = fs::read_dir(runtime)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| id_of(path).is_some())
        .filter(|path| Connection::read(path).is_some_and(|c| c.is_alive()))
        .map(|path| of_file(&path, names, own))
        .collect();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    found
}

fn of_file(path: &Path, names: &HashMap<String, String>, own: Option<&str>) -> Kernel {
    let stem = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let id = id_of(path).unwrap_or(stem);
    Kernel {
        name: names.get(&id).cloned(),
        own: own == Some(id.as_str()),
        file: Some(path.to_owned()),
        id,
    }
}

/// The id in the name of a connection file.
fn id_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let id = name.strip_prefix("kernel-")?.strip_suffix(".json")?;
    (!id.is_empty()).then(|| id.to_owned())
}

/// The kernel that this process runs in.
fn own(context: &Context<'_>) -> Option<String> {
    (context.env)(OWN)
        .filter(|id| !id.is_empty())
        .or_else(|| ancestors().find_map(kernel_of))
}

/// This process's parents, the nearest first.
fn ancestors() -> impl Iterator<Item = u32> {
    std::iter::successors(Some(std::process::id()), |pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        parent.trim().parse().ok().filter(|pid| *pid > 1)
    })
    .skip(1)
    .take(ANCESTORS)
}

/// The kernel whose connection file a process was started with.
fn kernel_of(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    line.split(|byte| *byte == 0)
        .find_map(|word| id_of(Path::new(std::str::from_utf8(word).ok()?)))
}

/// Names of the notebooks of this user's kernels, as Jupyter told the kernels' processes.
fn session_names() -> HashMap<String, String> {
    let uid = rustix::process::geteuid().as_raw();
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            if entry.metadata().ok()?.uid() != uid {
                return None;
            }
            let id = kernel_of(pid)?;
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let session = environment
                .split(|byte| *byte == 0)
                .find_map(|pair| pair.strip_prefix(b"JPY_SESSION_NAME="))?;
            let session = String::from_utf8_lossy(session).into_owned();
            let name = Path::new(&session).file_name()?.to_str()?;
            Some((id, text::name(name)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_from_connection_files_alone() {
        assert_eq!(id_of(Path::new("/run/kernel-1a2b.json")), Some("1a2b".to_owned()));
        for other in [
            "/run/jpserver-12.json",
            "kernel-.json",
            "kernel-1a.ipynb",
            "kernel.json",
        ] {
            assert_eq!(id_of(Path::new(other)), None, "{other}");
        }
    }

    fn kernel(id: &str, name: Option<&str>) -> Kernel {
        Kernel::elsewhere(id.to_owned(), name.map(str::to_owned))
    }

    #[test]
    fn a_kernel_is_called_by_its_notebook_or_the_beginning_of_its_id() {
        let meant = kernel("a6f6a924-0000", Some("mine.ipynb"));
        for word in ["a6f6", "mine.ipynb", "work/mine.ipynb"] {
            assert!(is_called(&meant, word), "{word}");
        }
        for other in ["6f6a", "mine", "other.ipynb", ".."] {
            assert!(!is_called(&meant, other), "{other}");
        }
    }

    #[test]
    fn with_hopd_away_names_come_from_the_users_home() {
        let away = || Err(Failure::Unreachable("hopd does not answer".to_owned()));
        let home = || {
            vec![
                ("k1".into(), "mine.ipynb".to_owned()),
                ("k2".into(), String::new()),
            ]
        };
        let found = called_elsewhere("work/mine.ipynb", away(), home).unwrap();
        assert_eq!(found, [kernel("k1", Some("mine.ipynb"))]);
        let failure = called_elsewhere("other.ipynb", away(), home).unwrap_err();
        assert!(
            matches!(&failure, Failure::Unreachable(text) if text.contains("hopd does not answer")),
            "{failure}"
        );
        let unconfigured = || Err(Failure::Unconfigured("no configuration".to_owned()));
        assert_eq!(called_elsewhere("other.ipynb", unconfigured(), home).unwrap(), []);
        let found = called_elsewhere("mine.ipynb", unconfigured(), home).unwrap();
        assert_eq!(found, [kernel("k1", Some("mine.ipynb"))]);
        let refused = Err(Failure::Failed("refused".to_owned()));
        assert!(matches!(
            called_elsewhere("k1", refused, home),
            Err(Failure::Failed(_))
        ));
        let known = Ok(vec![kernel("k3", Some("other.ipynb"))]);
        assert_eq!(called_elsewhere("mine.ipynb", known, home).unwrap(), []);
    }

    #[test]
    fn a_process_is_the_kernels_by_its_id_or_its_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of_id = |id: &str| Hello {
            kernel: Some(id.to_owned()),
            ..Hello::default()
        };
        let of_file = |path: &Path| Hello {
            connection_file: Some(path.canonicalize().unwrap()),
            ..Hello::default()
        };
        let mut meant = kernel("a6f6a924-0000", None);
        assert!(meant.is(&of_id("a6f6a924-0000")));
        assert!(!meant.is(&of_id("a6f6a924")));
        assert!(!meant.is(&Hello::default()), "neither has a file");
        assert!(!meant.is(&of_file(file.path())));
        meant.file = Some(file.path().to_owned());
        assert!(meant.is(&of_file(file.path())));
        assert!(!meant.is(&of_file(Path::new("/"))));
    }

    #[test]
    fn a_supervised_process_is_the_kernels_by_its_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let written = r#"{"transport": "tcp", "ip": "127.0.0.1", "shell_port": 1, "key": "secret"}"#;
        fs::write(file.path(), written).unwrap();
        let mut meant = kernel("an id of Jupyter's", None);
        let hello = |kernel: Option<&str>, key: &str| Hello {
            kernel: kernel.map(str::to_owned),
            key: Some(hex::encode(Sha256::digest(key))),
            ..Hello::default()
        };
        assert!(!meant.has_key(&hello(Some("ours"), "secret")), "no file, no key");
        meant.file = Some(file.path().to_owned());
        assert!(meant.has_key(&hello(Some("ours"), "secret")));
        assert!(!meant.has_key(&hello(Some("ours"), "another")));
        assert!(
            !meant.has_key(&hello(None, "secret")),
            "a plain kernel is found by its file"
        );
    }

    #[test]
    fn a_kernel_out_of_reach_says_what_helps() {
        let meant = kernel("a6f6a924-0000", Some("mine.ipynb"));
        let said = |silent| out_of_reach(&meant, silent, "no seat", Some(Path::new("/opt/python")));
        assert!(said(Some(7)).contains("process 7"));
        let plain = said(None);
        assert!(
            plain.contains("%load_ext gresshopper") && plain.contains("sys.path.append(\"/opt/python\")")
        );
    }

    #[test]
    fn several_kernels_are_named() {
        let found = [kernel("a6f6a924-0000", Some("mine.ipynb")), kernel("b7", None)];
        assert_eq!(
            several("there are", &found).to_string(),
            "there are 2 kernels: name the one you mean: mine.ipynb (a6f6a924), b7"
        );
    }
}
