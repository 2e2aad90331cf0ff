//! A folder of our own on the node for the kernel's unix sockets, 0700, and the removal of those that killed replicas
//! left behind.

use hop_protocol::file::make_private;
use hop_words::process::{is_gone, start_time};
use std::fs::DirEntry;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers the folders of this process.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a folder below `$XDG_RUNTIME_DIR` or `/tmp`, and sweeps there. Short: a unix socket's path has 107
    /// bytes.
    pub fn create() -> io::Result<Self> {
        let uid = rustix::process::getuid().as_raw();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let runtime = runtime.filter(|d| d.is_dir() && d.as_os_str().len() < 40);
        let usual = PathBuf::from(format!("/tmp/gresshopper-{uid}"));
        Self::first_of(runtime.map(|d| d.join("gresshopper")).into_iter().chain([usual]))
    }

    fn first_of(bases: impl Iterator<Item = PathBuf>) -> io::Result<Self> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{number}", own_name());
        let mut trouble = None;
        for base in bases {
            match Self::within(&base, &name) {
                Ok(scratch) => return Ok(scratch),
                Err(error) => trouble = Some(error),
            }
        }
        // Another user may have made a folder of that name first: then the folder gets an unguessable name.
        let unknown = PathBuf::from(format!("/tmp/gresshopper-{}", uuid::Uuid::new_v4().simple()));
        match make_private(&unknown) {
            Ok(()) => Ok(Self(unknown)),
            Err(error) => Err(trouble.unwrap_or(error)),
        }
    }

    fn within(base: &Path, name: &str) -> io::Result<Self> {
        make_private(base)?;
        sweep(base, "");
        let dir = base.join(name);
        make_private(&dir)?;
        Ok(Self(dir))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // An undeletable folder is swept by the next replica.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The name of this process in the names of its folders.
pub(crate) fn own_name() -> String {
    let pid = std::process::id();
    match start_time(pid) {
        Some(start) => format!("{pid}-{start}"),
        // Nobody can tell when this process is gone: the folders are never swept.
        None => format!("{pid}-unknown"),
    }
}

/// Removes this user's folders of ended processes. Behind the prefix their names begin with [`own_name`].
pub(crate) fn sweep(base: &Path, prefix: &str) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|n| n.strip_prefix(prefix)?.split_once('-'));
        let owner = owner.and_then(|(pid, rest)| {
            let start = rest.split('.').next()?;
            Some((pid.parse::<u32>().ok()?, start.parse::<u64>().ok()?))
        });
        if owner.is_some_and(|(pid, start)| is_gone(pid, start)) && is_ours(&entry) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_ours(entry: &DirEntry) -> bool {
    let meta = entry.metadata();
    meta.is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::getuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_is_passed_over() {
        let tmp = tempfile::tempdir().unwrap();
        // Root, as which tests may run, owns what another user's folder would be: a file is as much in the way.
        let taken = tmp.path().join("taken");
        std::fs::write(&taken, "").unwrap();
        let scratch = Scratch::first_of([taken, tmp.path().join("free")].into_iter()).unwrap();
        assert!(scratch.path().starts_with(tmp.path().join("free")));
        drop(scratch);
        let unknown = Scratch::first_of(std::iter::once(tmp.path().join("taken"))).unwrap();
        assert!(unknown.path().starts_with("/tmp") && unknown.path().is_dir());
        let path = unknown.path().to_owned();
        drop(unknown);
        assert!(!path.exists());
    }

    #[test]
    fn folders_of_the_dead_are_swept_and_those_of_the_living_stay() {
        let tmp = tempfile::tempdir().unwrap();
        let me = std::process::id();
        let alive = format!("{me}-{}", start_time(me).unwrap());
        let reused = format!("{me}-1");
        for name in [&alive, &reused, "4194305-7", "note"] {
            std::fs::create_dir(tmp.path().join(name)).unwrap();
        }
        sweep(tmp.path(), "");
        let mut left: Vec<_> = std::fs::read_dir(tmp.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, [alive.as_str(), "note"]);
    }
}
