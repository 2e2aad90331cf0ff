//! The records of one node as files of root's: `RUN_DIR/NODE/{kernels,gpus,leases}/KEY.json`.
//!
//! A write is a new file renamed over the old, so a reader sees either. Nothing is synced: the directory is on a tmpfs,
//! and cgroups, processes and records of a node die together. The folder bears the number of the boot, and each record
//! the version of its form. Records of another boot are void. Unreadable records, or records of another version, are
//! never taken for clean, and concern only their own device or kernel. Locks are flocks on files beside them; the
//! kernel drops them with their process, however it dies.

use crate::bpf::Number;
use crate::record::{DeviceRecord, KernelRecord, LeaseRecord};
use hop_words::id::JobId;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
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
    #[error("{} is of version {theirs}, this is {VERSION}: it is kept until the node boots", .path.display())]
    Version { path: PathBuf, theirs: u32 },
    #[error("{} must belong to root and be writable by nobody else", .path.display())]
    Insecure { path: PathBuf },
    #[error("{} is locked by another step for too long", .path.display())]
    Locked { path: PathBuf },
}

/// The form of the records.
const VERSION: u32 = 3;
const PARTS: [&str; 3] = [KernelRecord::PART, DeviceRecord::PART, LeaseRecord::PART];

/// A record in a file of its own.
pub trait Record: Serialize + DeserializeOwned {
    const PART: &'static str;
    /// The file's name.
    fn key(&self) -> String;
}

impl Record for KernelRecord {
    const PART: &'static str = "kernels";
    fn key(&self) -> String {
        self.key.to_string()
    }
}

impl Record for DeviceRecord {
    const PART: &'static str = "gpus";
    fn key(&self) -> String {
        Number::of(&self.device).to_string()
    }
}

/// By the lease's step in its pilot.
impl Record for LeaseRecord {
    const PART: &'static str = "leases";
    fn key(&self) -> String {
        self.step.to_string()
    }
}

#[derive(Serialize, serde::Deserialize)]
struct Versioned<T> {
    v: u32,
    #[serde(flatten)]
    record: T,
}

#[derive(serde::Deserialize)]
struct VersionOnly {
    #[serde(default)]
    v: u32,
}

/// Whether there may be records of a job, by the names of files alone, and without making anything.
pub fn knows(run_dir: &Path, node: &str, job: JobId) -> bool {
    let prefix = format!("{job}.");
    let of_it = |entry: io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|e| e.file_name().to_string_lossy().starts_with(&prefix))
    };
    [KernelRecord::PART, LeaseRecord::PART].iter().any(|part| {
        let names = std::fs::read_dir(run_dir.join(node).join(part));
        names.is_ok_and(|mut names| names.any(of_it))
    })
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
    /// The directory can't be made, or doesn't belong to this process's user (in slurmstepd: to root).
    pub fn open(run_dir: &Path, node: &str) -> Result<Self, StoreError> {
        let dir = run_dir.join(node);
        for part in PARTS.into_iter().chain(["locks"]) {
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
        let store = Self { dir };
        store.check_boot()?;
        Ok(store)
    }

    /// Removes records of another boot, whose processes and cgroups are gone, before the folder bears this boot's
    /// number.
    fn check_boot(&self) -> Result<(), StoreError> {
        let path = self.dir.join("boot");
        let id = Path::new("/proc/sys/kernel/random/boot_id");
        let now = std::fs::read(id).map_err(io_error(id, "read"))?;
        let kept = || std::fs::read(&path).ok();
        if kept().is_some_and(|kept| kept == now) {
            return Ok(());
        }
        let _lock = self.lock("boot", Duration::from_secs(5))?;
        if let Some(kept) = kept() {
            if kept == now {
                return Ok(());
            }
            for part in PARTS {
                let dir = self.dir.join(part);
                for entry in std::fs::read_dir(&dir)
                    .map_err(io_error(&dir, "listed"))?
                    .flatten()
                {
                    remove(&entry.path())?;
                }
            }
        }
        let new = path.with_extension("new");
        std::fs::write(&new, &now).map_err(io_error(&new, "written"))?;
        std::fs::rename(&new, &path).map_err(io_error(&path, "replaced"))
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

    fn path<R: Record>(&self, key: impl Display) -> PathBuf {
        self.dir.join(R::PART).join(format!("{key}.json"))
    }

    /// # Errors
    /// An unreadable file, or no record of this version.
    pub fn get<R: Record>(&self, key: impl Display) -> Result<Option<R>, StoreError> {
        read(&self.path::<R>(key))
    }

    /// All readable records: an unreadable record fails for its own readers alone.
    ///
    /// # Errors
    /// The folder can't be listed.
    pub fn all<R: Record>(&self) -> Result<Vec<R>, StoreError> {
        let dir = self.dir.join(R::PART);
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(io_error(&dir, "listed"))? {
            let path = entry.map_err(io_error(&dir, "listed"))?.path();
            if path.extension().is_some_and(|e| e == "json") {
                all.extend(read(&path).ok().flatten());
            }
        }
        Ok(all)
    }

    /// # Errors
    /// The file can't be written; the old one stays.
    pub fn put<R: Record>(&self, record: &R) -> Result<(), StoreError> {
        let path = self.path::<R>(record.key());
        let new = path.with_extension(format!("new{}", std::process::id()));
        let text = serde_json::to_vec(&Versioned { v: VERSION, record })
            .expect("a record holds nothing that JSON can't say");
        let written = write_new(&new, &text);
        let replaced =
            written.and_then(|()| std::fs::rename(&new, &path).map_err(io_error(&path, "replaced")));
        if replaced.is_err() {
            // A directory without room mustn't fill up with what didn't fit.
            let _ = std::fs::remove_file(&new);
        }
        replaced
    }

    /// # Errors
    /// No record can be written here now.
    pub fn check_room(&self) -> Result<(), StoreError> {
        let path = self.dir.join(format!("room{}", std::process::id()));
        let written = write_new(&path, b"{}");
        let _ = std::fs::remove_file(&path);
        written
    }

    /// # Errors
    /// The file can't be removed.
    pub fn remove<R: Record>(&self, key: impl Display) -> Result<(), StoreError> {
        remove(&self.path::<R>(key))
    }

    /// For a kernel without any further need of a lock: a waiter finds no record under the lock.
    pub fn remove_lock(&self, name: &str) {
        let _ = std::fs::remove_file(self.dir.join("locks").join(name));
    }
}

fn write_new(path: &Path, text: &[u8]) -> Result<(), StoreError> {
    let mut file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(io_error(path, "made"))?;
    file.write_all(text).map_err(io_error(path, "written"))
}

fn read<R: Record>(path: &Path) -> Result<Option<R>, StoreError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(path, "read")(e)),
    };
    let format = |source| StoreError::Format {
        path: path.to_owned(),
        source,
    };
    let VersionOnly { v } = serde_json::from_slice(&text).map_err(format)?;
    if v != VERSION {
        let path = path.to_owned();
        return Err(StoreError::Version { path, theirs: v });
    }
    let read: Versioned<R> = serde_json::from_slice(&text).map_err(format)?;
    Ok(Some(read.record))
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error(path, "removed")(e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::DeviceState;
    use hop_words::gpu::Device;
    use hop_words::id::{Epoch, GpuIndex};
    use std::os::unix::fs::PermissionsExt;

    fn free(minor: u16, epoch: u64) -> DeviceRecord {
        DeviceRecord {
            device: gpu(minor),
            epoch: Epoch(epoch),
            pilot: None,
            state: DeviceState::Free,
        }
    }

    fn device(store: &Store, minor: u16) -> Result<Option<DeviceRecord>, StoreError> {
        store.get(Number::of(&gpu(minor)))
    }

    fn gpu(minor: u16) -> Device {
        let index = GpuIndex(minor);
        let path = format!("/dev/gpu{minor}").into();
        let (major, minor) = (195, minor.into());
        Device {
            index,
            path,
            major,
            minor,
        }
    }

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), "n1").unwrap();
        (dir, store)
    }

    #[test]
    fn records_are_private_and_come_back() {
        let (dir, store) = store();
        assert_eq!(device(&store, 0).unwrap(), None);
        store.put(&free(0, 4)).unwrap();
        let record = device(&store, 0).unwrap().unwrap();
        assert_eq!((record.epoch, record.state), (Epoch(4), DeviceState::Free));
        let mode = std::fs::metadata(dir.path().join("n1/gpus/195-0.json"))
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
    fn records_of_another_boot_are_void_and_those_of_another_version_are_not_clean() {
        let (dir, store) = store();
        let put = |minor| store.put(&free(minor, 1)).unwrap();
        put(0);
        put(1);
        let path = dir.path().join("n1/gpus/195-1.json");
        let old = std::fs::read_to_string(&path)
            .unwrap()
            .replace("\"v\":3", "\"v\":2");
        std::fs::write(&path, old).unwrap();
        assert!(matches!(
            device(&store, 1),
            Err(StoreError::Version { theirs: 2, .. })
        ));
        let again = Store::open(dir.path(), "n1").unwrap();
        assert!(device(&again, 0).unwrap().is_some());
        std::fs::write(dir.path().join("n1/boot"), "another").unwrap();
        let later = Store::open(dir.path(), "n1").unwrap();
        assert_eq!(device(&later, 0).unwrap(), None);
        assert_eq!(device(&later, 1).unwrap(), None);
    }

    #[test]
    fn a_job_is_known_by_the_names_of_its_records() {
        let (dir, _) = store();
        assert!(!knows(dir.path(), "n1", JobId(4)) && !knows(dir.path(), "n2", JobId(4)));
        std::fs::write(dir.path().join("n1/leases/44.0.json"), "").unwrap();
        assert!(knows(dir.path(), "n1", JobId(44)) && !knows(dir.path(), "n1", JobId(4)));
    }

    /// A folder in the way of a record is refused as a full disk is.
    #[test]
    fn a_record_that_cannot_be_written_leaves_nothing_behind() {
        let (dir, store) = store();
        std::fs::create_dir(dir.path().join("n1/gpus/195-0.json")).unwrap();
        let error = store.put(&free(0, 4)).unwrap_err();
        assert!(error.to_string().ends_with("can't be replaced"), "{error}");
        let left = std::fs::read_dir(dir.path().join("n1/gpus")).unwrap();
        let left: Vec<_> = left.map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["195-0.json"]);
        store.check_room().unwrap();
        std::fs::remove_dir_all(dir.path().join("n1")).unwrap();
        store.check_room().unwrap_err();
    }

    #[test]
    fn a_broken_record_is_told_not_overlooked() {
        let (dir, store) = store();
        std::fs::write(dir.path().join("n1/gpus/195-1.json"), "{").unwrap();
        assert!(matches!(device(&store, 1), Err(StoreError::Format { .. })));
        // And it holds up nobody else.
        std::fs::write(dir.path().join("n1/leases/1.1.json"), "{").unwrap();
        assert!(store.all::<LeaseRecord>().unwrap().is_empty());
    }
}
