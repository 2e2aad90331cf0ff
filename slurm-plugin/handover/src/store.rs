//! The records of one node as files of root's: `RUN_DIR/NODE/{kernels,gpus,leases}/KEY.json`.
//!
//! A write is a new file renamed over the old, so a reader sees either. Nothing is synced: the directory is on a
//! tmpfs, and cgroups, processes and records of a node die together. Locks are flocks on files beside them; the
//! kernel drops them with their process, however it dies.

use crate::record::{DeviceRecord, DeviceState, KernelRecord, LeaseRecord, StepKey};
use hop_words::id::{Epoch, GpuIndex, JobId, LeaseId};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why records could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{} can't be {doing}", .path.display())]
    Io {
        path: PathBuf,
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{} is not a record of this version", .path.display())]
    Format {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} must belong to root and be writable by nobody else", .path.display())]
    Insecure { path: PathBuf },
    #[error("{} is locked by another step for too long", .path.display())]
    Locked { path: PathBuf },
}

/// The records of one node.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
}

/// Held until dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the descriptor holds the lock")] File);

fn io_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, doing, source }
}

impl Store {
    /// The store below `run_dir`, made if missing (0700).
    ///
    /// # Errors
    /// A directory that can't be made, or that is not this process's own (root's in slurmstepd).
    pub fn open(run_dir: &Path, node: &str) -> Result<Self, StoreError> {
        let dir = run_dir.join(node);
        for part in ["kernels", "gpus", "leases", "locks"] {
            let path = dir.join(part);
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(io_error(&path, "made"))?;
        }
        for path in [run_dir, &dir] {
            let meta = std::fs::symlink_metadata(path).map_err(io_error(path, "looked at"))?;
            let own = meta.uid() == rustix::process::geteuid().as_raw();
            if !own || !meta.is_dir() || meta.mode() & 0o022 != 0 {
                return Err(StoreError::Insecure {
                    path: path.to_owned(),
                });
            }
        }
        Ok(Self { dir })
    }

    /// Where what was learnt about the running kernel is kept.
    pub fn kernel_layout(&self) -> PathBuf {
        self.dir.join("kernel-layout.json")
    }

    /// Waits for the lock `name` at most `patience`.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when the time is over.
    pub fn lock(&self, name: &str, patience: Duration) -> Result<Lock, StoreError> {
        let path = self.dir.join("locks").join(name);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
            .open(&path)
            .map_err(io_error(&path, "opened"))?;
        let deadline = Instant::now() + patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock(file)),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(e) => return Err(io_error(&path, "locked")(e.into())),
            }
            if Instant::now() >= deadline {
                return Err(StoreError::Locked { path });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn path(&self, part: &str, name: &str) -> PathBuf {
        self.dir.join(part).join(format!("{name}.json"))
    }

    fn write<T: Serialize>(&self, path: &Path, value: &T) -> Result<(), StoreError> {
        let new = path.with_extension(format!("new{}", std::process::id()));
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .map_err(io_error(&new, "made"))?;
        let text = serde_json::to_vec(value).expect("a record holds nothing that JSON can't say");
        file.write_all(&text).map_err(io_error(&new, "written"))?;
        std::fs::rename(&new, path).map_err(io_error(path, "replaced"))
    }

    fn read<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, StoreError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io_error(path, "read")(e)),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| StoreError::Format {
                path: path.to_owned(),
                source,
            })
    }

    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error(path, "removed")(e)),
            _ => Ok(()),
        }
    }

    fn read_all<T: DeserializeOwned>(&self, part: &str) -> Result<Vec<T>, StoreError> {
        let dir = self.dir.join(part);
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(io_error(&dir, "listed"))? {
            let path = entry.map_err(io_error(&dir, "listed"))?.path();
            if path.extension().is_some_and(|e| e == "json") {
                all.extend(self.read(&path)?);
            }
        }
        Ok(all)
    }

    /// # Errors
    /// As each of these: files that can't be read, or are no records.
    pub fn kernel(&self, key: StepKey) -> Result<Option<KernelRecord>, StoreError> {
        self.read(&self.path("kernels", &key.to_string()))
    }

    /// # Errors
    /// See [`Store::kernel`].
    pub fn kernels(&self) -> Result<Vec<KernelRecord>, StoreError> {
        self.read_all("kernels")
    }

    /// # Errors
    /// See [`Store::kernel`].
    pub fn put_kernel(&self, record: &KernelRecord) -> Result<(), StoreError> {
        self.write(&self.path("kernels", &record.key.to_string()), record)
    }

    /// # Errors
    /// See [`Store::kernel`].
    pub fn remove_kernel(&self, key: StepKey) -> Result<(), StoreError> {
        // Nobody takes this lock again: whoever waits for it finds no record under it.
        let _ = std::fs::remove_file(self.dir.join("locks").join(format!("kernel.{key}")));
        self.remove(&self.path("kernels", &key.to_string()))
    }

    /// # Errors
    /// See [`Store::kernel`].
    pub fn device(&self, index: GpuIndex) -> Result<Option<DeviceRecord>, StoreError> {
        self.read(&self.path("gpus", &index.to_string()))
    }

    /// # Errors
    /// See [`Store::kernel`].
    pub fn put_device(&self, index: GpuIndex, epoch: Epoch, state: DeviceState) -> Result<(), StoreError> {
        self.write(
            &self.path("gpus", &index.to_string()),
            &DeviceRecord { index, epoch, state },
        )
    }

    /// The lease of a pilot's step.
    ///
    /// # Errors
    /// See [`Store::kernel`].
    pub fn lease(&self, step: StepKey) -> Result<Option<LeaseRecord>, StoreError> {
        self.read(&self.path("leases", &step.to_string()))
    }

    /// # Errors
    /// See [`Store::kernel`].
    pub fn leases(&self) -> Result<Vec<LeaseRecord>, StoreError> {
        self.read_all("leases")
    }

    /// All that a pilot has lent, in the order of their steps.
    ///
    /// # Errors
    /// See [`Store::kernel`].
    pub fn leases_of(&self, pilot: JobId) -> Result<Vec<LeaseRecord>, StoreError> {
        let mut leases = self.leases()?;
        leases.retain(|l| l.step.job == pilot);
        leases.sort_by_key(|l| l.step);
        Ok(leases)
    }

    /// # Errors
    /// See [`Store::kernel`].
    pub fn lease_by_id(&self, lease: LeaseId) -> Result<Option<LeaseRecord>, StoreError> {
        Ok(self.leases()?.into_iter().find(|l| l.lease == lease))
    }

    /// # Errors
    /// See [`Store::kernel`].
    pub fn put_lease(&self, record: &LeaseRecord) -> Result<(), StoreError> {
        self.write(&self.path("leases", &record.step.to_string()), record)
    }

    /// # Errors
    /// See [`Store::kernel`].
    pub fn remove_lease(&self, step: StepKey) -> Result<(), StoreError> {
        self.remove(&self.path("leases", &step.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), "n1").unwrap();
        (dir, store)
    }

    #[test]
    fn records_are_private_and_come_back() {
        let (dir, store) = store();
        assert_eq!(store.device(GpuIndex(0)).unwrap(), None);
        store
            .put_device(GpuIndex(0), Epoch(4), DeviceState::Free)
            .unwrap();
        let record = store.device(GpuIndex(0)).unwrap().unwrap();
        assert_eq!((record.epoch, record.state), (Epoch(4), DeviceState::Free));
        let mode = std::fs::metadata(dir.path().join("n1/gpus/0.json"))
            .unwrap()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused() {
        let (dir, _) = store();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            Store::open(dir.path(), "n1"),
            Err(StoreError::Insecure { .. })
        ));
    }

    #[test]
    fn a_lock_excludes_and_ends_with_its_holder() {
        let (_dir, store) = store();
        let held = store.lock("gpu.0", Duration::ZERO).unwrap();
        assert!(matches!(
            store.lock("gpu.0", Duration::from_millis(10)),
            Err(StoreError::Locked { .. })
        ));
        store.lock("gpu.1", Duration::ZERO).unwrap();
        drop(held);
        store.lock("gpu.0", Duration::ZERO).unwrap();
    }

    #[test]
    fn a_broken_record_is_told_not_overlooked() {
        let (dir, store) = store();
        std::fs::write(dir.path().join("n1/gpus/1.json"), "{").unwrap();
        assert!(matches!(
            store.device(GpuIndex(1)),
            Err(StoreError::Format { .. })
        ));
    }
}
