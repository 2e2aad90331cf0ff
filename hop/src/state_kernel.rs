//! The kernel meant by `hop state`: the surrounding, the named or the only kernel.
//!
//! A kernel is found by its connection file in Jupyter's runtime folder. The notebook's name is that of the Jupyter session,
//! as the kernel's process was told it, or `hopd`'s.

use crate::context::Context;
use crate::failure::Failure;
use crate::kernels;
use hop_zmtp::Endpoint;
use serde::Deserialize;
use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Set in the processes of a kernel of ours.
const OWN: &str = "GRESSHOPPER_KERNEL";
/// How long a kernel may take to accept a connection, to count as alive.
const ALIVE: Duration = Duration::from_millis(500);
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
    /// As a person knows it.
    pub(crate) fn title(&self) -> String {
        let short: String = self.id.chars().take(8).collect();
        match &self.name {
            Some(name) => format!("{name} ({short})"),
            None => short,
        }
    }
}

/// What a connection file says.
#[derive(Debug, Deserialize)]
pub(crate) struct Connection {
    transport: String,
    ip: String,
    shell_port: u16,
    pub(crate) key: String,
}

impl Connection {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |why: String| {
            Failure::Failed(format!(
                "{} isn't a usable connection file: {why}",
                path.display()
            ))
        };
        let text = fs::read(path).map_err(|e| failed(e.to_string()))?;
        serde_json::from_slice(&text).map_err(|e| failed(e.to_string()))
    }

    pub(crate) fn shell(&self) -> Result<Endpoint, Failure> {
        match self.transport.as_str() {
            "ipc" => Ok(Endpoint::Ipc(PathBuf::from(format!(
                "{}-{}",
                self.ip, self.shell_port
            )))),
            _ => format!("{}:{}", self.ip, self.shell_port)
                .parse::<SocketAddr>()
                .map(Endpoint::Tcp)
                .map_err(|e| Failure::Failed(format!("the kernel's address {} can't be used: {e}", self.ip))),
        }
    }

    /// Whether a process listens on the kernel's port. A killed kernel leaves its file behind.
    fn is_alive(&self) -> bool {
        match self.shell() {
            Ok(Endpoint::Tcp(address)) => TcpStream::connect_timeout(&address, ALIVE).is_ok(),
            Ok(Endpoint::Ipc(path)) => std::os::unix::net::UnixStream::connect(path).is_ok(),
            Err(_) => false,
        }
    }
}

/// Finds the kernel meant by `which`: by a connection file, by an id or an id's beginning, or by a notebook's name.
/// Without `which`: the kernel around this process, else the only running kernel.
pub(crate) fn find(which: Option<&str>, runtime: &Path, context: &Context<'_>) -> Result<Kernel, Failure> {
    if let Some(file) = which.map(Path::new).filter(|p| is_connection_file(p)) {
        return Ok(of_file(file, &HashMap::new(), None));
    }
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
    if found.iter().any(|k| k.name.is_none() && !k.id.starts_with(word)) {
        // Asked only where it may help: saving needs no hopd.
        add_names(&mut found, context);
    }
    let base = Path::new(word).file_name().and_then(|n| n.to_str());
    found.retain(|k| k.id.starts_with(word) || (base.is_some() && k.name.as_deref() == base));
    match found.len() {
        0 => Err(Failure::Failed(format!(
            "no kernel or saved state {word:?} is here (kernels are looked for in {}): give a notebook's name, the beginning of \
             a kernel's id, or a connection file",
            runtime.display()
        ))),
        1 => Ok(found.remove(0)),
        _ => Err(several(&format!("{word:?} can mean"), &found)),
    }
}

/// A notebook is a file, too, and no connection file.
fn is_connection_file(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|e| e == "json")
}

fn only(mut found: Vec<Kernel>, runtime: &Path, context: &Context<'_>) -> Result<Kernel, Failure> {
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
        .filter(|path| Connection::read(path).is_ok_and(|c| c.is_alive()))
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
            let name = Path::new(&session).file_name()?.to_str()?.to_owned();
            Some((id, name))
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

    #[test]
    fn several_kernels_are_named() {
        let kernel = |id: &str, name: Option<&str>| Kernel {
            id: id.to_owned(),
            name: name.map(str::to_owned),
            file: None,
            own: false,
        };
        let found = [kernel("a6f6a924-0000", Some("mine.ipynb")), kernel("b7", None)];
        assert_eq!(
            several("there are", &found).to_string(),
            "there are 2 kernels: name the one you mean: mine.ipynb (a6f6a924), b7"
        );
    }
}
