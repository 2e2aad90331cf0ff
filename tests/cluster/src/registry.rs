//! What the clusters of this machine have taken: indices, device numbers, users.
//!
//! One small file in /run, changed under a lock. It goes with the last cluster.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

const DIRECTORY: &str = "/run/gresshopper-dev";

/// What one cluster has taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub index: u16,
    /// Device files and their minor numbers.
    pub devices: BTreeMap<PathBuf, u32>,
}

/// What all clusters have taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub clusters: BTreeMap<PathBuf, Claim>,
    /// Passwords of the users that we made, so that a second cluster can tell them too.
    #[serde(default)]
    pub passwords: BTreeMap<String, String>,
    /// Controllers that cgroup v2's directories didn't hand down before the first cluster came.
    #[serde(default)]
    pub withheld: BTreeMap<PathBuf, Vec<String>>,
}

impl Taken {
    /// The cluster with this index, if it isn't the one at `base`.
    pub(crate) fn holder_of(&self, index: u16, base: &Path) -> Option<&Path> {
        self.clusters
            .iter()
            .find(|(b, c)| c.index == index && *b != base)
            .map(|(b, _)| b.as_path())
    }
}

/// The registry, locked until dropped.
#[derive(Debug)]
pub(crate) struct Registry {
    _lock: File,
    pub taken: Taken,
}

impl Registry {
    /// Waits for the lock and reads the file. Claims whose base directory is gone are dropped and returned.
    pub(crate) fn open() -> Result<(Self, Vec<Claim>)> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(DIRECTORY)
            .context("can't make the registry")?;
        let lock = lock_file(&Path::new(DIRECTORY).join("lock"))?;
        let mut taken: Taken = match fs::read(Self::file()) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| {
                format!(
                    "{} is damaged: remove it once no cluster runs",
                    Self::file().display()
                )
            })?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Taken::default(),
            Err(e) => bail!("can't read {}: {e}", Self::file().display()),
        };
        let (kept, gone) = taken.clusters.into_iter().partition(|(base, _)| base.is_dir());
        taken.clusters = kept;
        let gone: BTreeMap<PathBuf, Claim> = gone;
        Ok((Self { _lock: lock, taken }, gone.into_values().collect()))
    }

    fn file() -> PathBuf {
        Path::new(DIRECTORY).join("clusters.json")
    }

    /// Writes the file; takes file and directory away when no cluster is left.
    pub(crate) fn save(self) -> Result<()> {
        if self.taken.clusters.is_empty() {
            fs::remove_dir_all(DIRECTORY).context("can't remove the registry")?;
            return Ok(());
        }
        let next = Self::file().with_extension("new");
        let text = serde_json::to_vec_pretty(&self.taken).context("can't write the registry")?;
        fs::write(&next, text)
            .and_then(|()| fs::rename(&next, Self::file()))
            .context("can't write the registry")
    }
}

/// Opens a file and holds an exclusive lock on it until it is closed.
pub(crate) fn lock_file(path: &Path) -> Result<File> {
    loop {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("can't open {}", path.display()))?;
        file.lock()
            .with_context(|| format!("can't lock {}", path.display()))?;
        // The former holder may have removed it while we waited: then this lock guards nothing.
        if same_file(&file, path) {
            return Ok(file);
        }
        if let Some(parent) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)
                .context("can't make the registry")?;
        }
    }
}

fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let id = |m: fs::Metadata| (m.dev(), m.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => id(a) == id(b),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_belongs_to_one_base() {
        let mut taken = Taken::default();
        taken.clusters.insert(
            "/srv/a".into(),
            Claim {
                index: 3,
                devices: BTreeMap::new(),
            },
        );
        assert_eq!(taken.holder_of(3, Path::new("/srv/b")), Some(Path::new("/srv/a")));
        assert_eq!(taken.holder_of(3, Path::new("/srv/a")), None);
        assert_eq!(taken.holder_of(4, Path::new("/srv/b")), None);
    }

    #[test]
    fn a_lock_on_a_removed_file_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = lock_file(&path).unwrap();
        let waiter = std::thread::spawn({
            let path = path.clone();
            move || lock_file(&path).map(|f| same_file(&f, &path))
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        fs::remove_file(&path).unwrap();
        drop(first);
        assert!(waiter.join().unwrap().unwrap());
    }
}
