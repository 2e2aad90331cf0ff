//! A kernel's folder in the user's home, with `front.json`, by which a replica finds its front and the command to
//! run. The file holds keys: the folder is 0700, the file 0600, and it is replaced as a whole.

use crate::content::Stores;
use crate::step::{StepSize, is_of_slurm};
use crate::tls::KernelKeys;
use hop_words::id::{AccountName, Incarnation, KernelId, PoolName, Tenure};
use hop_words::need::Need;
use hop_words::replica::Replicas;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

const NAME: &str = "front.json";

/// Folder of this kernel's `front.json`: `gresshopper/kernels/<kernel>` in the user's data folder.
pub fn kernel_dir(kernel: &KernelId) -> Option<PathBuf> {
    Some(data_dir()?.join("kernels").join(safe(kernel.as_str())))
}

/// `gresshopper` in the user's data folder. `None` means that neither `XDG_DATA_HOME` nor `HOME` is set.
pub fn data_dir() -> Option<PathBuf> {
    data_dir_by(|name| std::env::var_os(name))
}

/// As [`data_dir`], by another environment.
pub fn data_dir_by<T: Into<PathBuf>>(env: impl Fn(&str) -> Option<T>) -> Option<PathBuf> {
    let path = |name| env(name).map(Into::<PathBuf>::into);
    let data = path("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let data = data.or_else(|| Some(path("HOME")?.join(".local/share")))?;
    Some(data.join("gresshopper"))
}

/// The folder of the addresses and keys of this user's seats: `gresshopper/seats` in the user's data folder.
pub fn seats_dir() -> Option<PathBuf> {
    Some(data_dir()?.join("seats"))
}

/// The folder of all states of this user's kernels: `gresshopper/states` in the user's data folder.
pub fn states_dir() -> Option<PathBuf> {
    Some(data_dir()?.join("states"))
}

/// The folder of one kernel's states.
pub fn state_dir(kernel: &KernelId) -> Option<PathBuf> {
    Some(states_dir()?.join(safe(kernel.as_str())))
}

/// An id as a file name: Jupyter lets callers choose kernel ids.
fn safe(id: &str) -> String {
    let keep = |c: char| {
        if c.is_ascii_alphanumeric() || "-_".contains(c) {
            c
        } else {
            '_'
        }
    };
    id.chars().map(keep).take(100).collect()
}

/// What the front tells its replicas.
#[derive(Clone, Serialize, Deserialize)]
pub struct FrontFile {
    pub version: u32,
    pub kernel: KernelId,
    /// The newest incarnation; older ones end on reading it.
    pub incarnation: Incarnation,
    /// Grows with every front of the kernel.
    pub epoch: u64,
    /// The state of the kernel in the user's store. `None` means a kernel without a log.
    #[serde(default)]
    pub state: Option<StateFolder>,
    /// Addresses of the front: the first to answer with the right certificate is the front.
    pub addresses: Vec<String>,
    pub keys: KernelKeys,
    /// Jupyter's signing key of this kernel.
    pub signing_key: String,
    pub launch: Launch,
    /// For a kernel with three replicas in Slurm.
    #[serde(default)]
    pub takeover: Option<Takeover>,
}

impl std::fmt::Debug for FrontFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrontFile")
            .field("kernel", &self.kernel)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// The folder in which an executor writes the kernel's state (docs/replication.md).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFolder {
    /// The folder of all the kernel's tenures, `states/<kernel>`.
    pub kernel: PathBuf,
    /// The tenure opened by the front for the incarnation of this file.
    pub tenure: Tenure,
    /// The user's content-addressed stores of chunks.
    #[serde(flatten)]
    pub stores: Stores,
    /// Python's hash seed in all processes of the kernel.
    pub hash_seed: u32,
}

/// When a kernel's state is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durable {
    /// Never: the kernel dies with its process.
    No,
    /// After each cell, behind its reply.
    #[default]
    AfterReply,
    /// After each cell, before its reply.
    BeforeReply,
}

/// How a kernel is interrupted, by its own kernelspec. Clients always do so by a message: a signal reaches no other
/// node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interrupt {
    /// It takes the message.
    #[default]
    Message,
    /// The kernel takes SIGINT, and has no message for an interrupt.
    Signal,
}

/// What a replica runs, and for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The kernelspec's argv with `{connection_file}` still in it.
    pub argv: Vec<String>,
    pub cwd: Option<PathBuf>,
    /// Need of a cell that names none.
    #[serde(default)]
    pub default_need: Need,
    #[serde(default)]
    pub account: Option<AccountName>,
    #[serde(default)]
    pub pool: Option<PoolName>,
    /// What the user calls the notebook.
    #[serde(default)]
    pub name: String,
    /// Without Slurm and without leases: for development and tests.
    #[serde(default)]
    pub local: bool,
    #[serde(default)]
    pub durable: Durable,
    #[serde(default)]
    pub interrupt: Interrupt,
    /// Replicas that the kernel should have. With three a Raft group keeps the kernel's log.
    #[serde(default)]
    pub replicas: Replicas,
    /// Whether one of the kernel's three replicas keeps the variables while another executes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hot_standby: bool,
}

/// The data with which a seat starts the kernel's executor by itself, as the front would.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Takeover {
    pub size: StepSize,
    /// The environment of the front, in which the user's kernel was started.
    pub environment: Vec<(String, String)>,
}

impl Takeover {
    /// By the environment of this process, without the variables of its job.
    pub fn here(size: StepSize) -> Self {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            let pair = (name.into_string().ok()?, value.into_string().ok()?);
            (!is_of_slurm(&pair.0)).then_some(pair)
        });
        Self {
            size,
            environment: environment.collect(),
        }
    }
}

impl std::fmt::Debug for Takeover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Takeover")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl Launch {
    /// Whether the kernel has a log of its state. Other kernels than ipykernels can't be saved.
    pub fn has_log(&self) -> bool {
        self.durable != Durable::No && self.is_ipykernel()
    }

    /// Whether our package can be loaded into the kernel.
    pub fn is_ipykernel(&self) -> bool {
        self.argv.iter().any(|a| a.contains("ipykernel"))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("can't write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("can't read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} was written by another release", path.display())]
    Version { path: PathBuf },
}

impl FrontFile {
    pub fn write(&self, dir: &Path) -> Result<(), FileError> {
        let path = dir.join(NAME);
        let written = make_private(dir).and_then(|()| {
            let mut file = tempfile::NamedTempFile::new_in(dir)?;
            file.as_file().set_permissions(Permissions::from_mode(0o600))?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|e| e.error)?;
            Ok(())
        });
        written.map_err(|source| FileError::Write { path, source })
    }

    /// Whether the folder has the file. One that can't be looked into may.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(NAME).try_exists().unwrap_or(true)
    }

    pub fn read(dir: &Path) -> Result<Self, FileError> {
        let path = dir.join(NAME);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(source) => return Err(FileError::Read { path, source }),
        };
        match serde_json::from_slice::<Self>(&bytes) {
            Ok(file) if file.version == crate::message::VERSION => Ok(file),
            _ => Err(FileError::Version { path }),
        }
    }
}

/// Makes a private folder; refuses one of another owner.
pub fn make_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let opened = File::open(dir)?;
    use std::os::unix::fs::MetadataExt;
    let meta = opened.metadata()?;
    let ours = std::fs::symlink_metadata(dir)?.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
    if !ours {
        let text = format!("{} belongs to another user", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    opened.set_permissions(Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nobody_else_can() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("a/b");
        let file = FrontFile {
            version: crate::message::VERSION,
            kernel: "k".into(),
            incarnation: Incarnation(2),
            epoch: 3,
            state: None,
            addresses: vec!["127.0.0.1:1".into()],
            keys: KernelKeys::generate().unwrap(),
            signing_key: "key".into(),
            launch: Launch {
                argv: vec!["python".into()],
                cwd: None,
                default_need: Need::gpus(1),
                account: None,
                pool: None,
                name: String::new(),
                local: true,
                durable: Durable::No,
                interrupt: Interrupt::default(),
                replicas: Replicas::One,
                hot_standby: false,
            },
            takeover: None,
        };
        file.write(&dir).unwrap();
        assert_eq!(FrontFile::read(&dir).unwrap().launch, file.launch);
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join(NAME))), (0o700, 0o600));
        assert_eq!(
            std::fs::read_dir(&dir).unwrap().count(),
            1,
            "no temporary file stays"
        );

        let other = FrontFile { version: 99, ..file };
        other.write(&dir).unwrap();
        assert!(matches!(FrontFile::read(&dir), Err(FileError::Version { .. })));
        assert!(matches!(FrontFile::read(tmp.path()), Err(FileError::Read { .. })));
    }

    #[test]
    fn an_id_can_not_climb_out_of_its_folder() {
        assert_eq!(safe("../../x y"), "______x_y");
    }
}
