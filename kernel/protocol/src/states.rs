//! The folders of a kernel's states in the user's store, `states/<kernel>/<tenure>.<part>` (docs/replication.md):
//! finding the newest folder, and opening the next tenure with success for a single opener.

use crate::file::make_private;
use hop_log::{Form, FormError, State, store};
use hop_words::id::Tenure;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Why a kernel's state can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("can't read {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} can't be read", path.display())]
    Form {
        path: PathBuf,
        #[source]
        source: FormError,
    },
}

/// Why a tenure can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another opener was first.
    #[error("tenure {0} is taken")]
    Taken(Tenure),
    #[error("can't write in {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The file in a kernel's folder with the notebook's name. Without this file, no opening finds the kernel again.
pub const NOTEBOOK: &str = "notebook";

/// The notebook's name by the content of the file [`NOTEBOOK`].
pub fn notebook_name(file: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Notebook {
        path: PathBuf,
    }
    let notebook: Notebook = serde_json::from_slice(file).ok()?;
    Some(notebook.path.file_name()?.to_string_lossy().into_owned())
}

/// The file in a kernel's folder that the kernel's front keeps locked for life.
pub const OWNER: &str = "owner";

/// Whether a living front runs the kernel with this folder, even a front out of reach or at a standstill.
///
/// # Errors
/// The lock can't be looked at: a front may hold it.
pub fn has_owner(kernel: &Path) -> io::Result<bool> {
    let lock = match File::open(kernel.join(OWNER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    match lock.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        // Fronts hold no locks either on such a file system.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether a notebook's next opening finds the kernel with this folder again. A folder that can't be looked into may
/// name a notebook.
pub fn is_found_again(kernel: &Path) -> bool {
    kernel.join(NOTEBOOK).try_exists().unwrap_or(true)
}

/// The path of a tenure's folder.
pub fn folder(kernel: &Path, tenure: Tenure, part: u32) -> PathBuf {
    kernel.join(store::folder_name(tenure, part))
}

/// The state in the newest folder, as left by its writer. `None` means that the kernel has no state.
///
/// # Errors
/// The folder or the file in it can't be read, or belongs to another release.
pub fn newest(kernel: &Path) -> Result<Option<State>, ReadError> {
    newest_folder(kernel)?.map(|folder| read(&folder)).transpose()
}

/// The newest folder itself.
///
/// # Errors
/// The kernel's folder can't be read.
pub fn newest_folder(kernel: &Path) -> Result<Option<PathBuf>, ReadError> {
    let newest = newest_name(kernel)?;
    Ok(newest.map(|(tenure, part)| folder(kernel, tenure, part)))
}

fn newest_name(kernel: &Path) -> Result<Option<(Tenure, u32)>, ReadError> {
    let failed = |source| ReadError::Io {
        path: kernel.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(kernel) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    let names: Vec<String> = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<_>>()
        .map_err(failed)?;
    Ok(store::newest(names.iter().map(String::as_str)))
}

/// The state in one folder.
///
/// # Errors
/// As [`newest`].
pub fn read(folder: &Path) -> Result<State, ReadError> {
    let path = folder.join(store::STATE_FILE);
    match std::fs::read(&path) {
        Ok(bytes) => State::decode(bytes.into()).map_err(|source| ReadError::Form { path, source }),
        Err(source) => Err(ReadError::Io { path, source }),
    }
}

/// Replaces the state in a folder, on disk when this returns.
///
/// # Errors
/// The file system's.
pub fn write(folder: &Path, state: &State) -> io::Result<()> {
    write_bytes(folder, &state.encode())
}

/// The same for a state in its serialised form.
///
/// # Errors
/// The file system's.
pub fn write_bytes(folder: &Path, state: &[u8]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(state)?;
    file.as_file().sync_all()?;
    file.persist(folder.join(store::STATE_FILE))
        .map_err(|e| e.error)?;
    File::open(folder)?.sync_all()
}

/// Opens the folder of the state's tenure. Of several openers one succeeds: a rename onto a folder with content fails.
///
/// # Errors
/// The tenure is taken, or the file system's error.
pub fn open(kernel: &Path, state: &State) -> Result<PathBuf, OpenError> {
    let path = folder(kernel, state.tenure(), 0);
    let new = kernel.join(format!(".new-{}", uuid::Uuid::new_v4().simple()));
    let failed = |source| OpenError::Io {
        path: new.clone(),
        source,
    };
    make_private(kernel)
        .and_then(|()| make_private(&new))
        .map_err(failed)?;
    write(&new, state).map_err(failed)?;
    match std::fs::rename(&new, &path) {
        Ok(()) => {
            File::open(kernel)
                .and_then(|dir| dir.sync_all())
                .map_err(failed)?;
            Ok(path)
        }
        Err(error) => {
            let _ = std::fs::remove_dir_all(&new);
            match error.kind() {
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {
                    Err(OpenError::Taken(state.tenure()))
                }
                _ => Err(OpenError::Io { path, source: error }),
            }
        }
    }
}

/// Folder in which a tenure's next part is made.
const NEXT_PART: &str = ".new-part";

/// A folder in which the writer of a tenure makes the tenure's next part: empty, whatever was left there.
///
/// # Errors
/// The file system's.
pub fn make_part(kernel: &Path) -> io::Result<PathBuf> {
    let new = kernel.join(NEXT_PART);
    match std::fs::remove_dir_all(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Not with the folder above, which is gone if the kernel was closed.
    DirBuilder::new().mode(0o700).create(&new)?;
    Ok(new)
}

/// Has the folder of [`make_part`] be the tenure's next part. It begins with the state beside the part before, by which
/// the kernel goes on from wherever it was settled.
///
/// # Errors
/// The file system's.
pub fn open_part(kernel: &Path, before: &Path, tenure: Tenure, part: u32) -> io::Result<PathBuf> {
    let (new, path) = (kernel.join(NEXT_PART), folder(kernel, tenure, part));
    write_bytes(&new, &std::fs::read(before.join(store::STATE_FILE))?)?;
    std::fs::rename(&new, &path)?;
    File::open(kernel)?.sync_all()?;
    Ok(path)
}

/// Python's hash seed for all processes of a kernel, kept beside its tenures. New kernels of a user take the seed in
/// the folder `shared`, for a waiting interpreter to become any of these kernels.
///
/// # Errors
/// The file system's.
pub fn hash_seed(kernel: &Path, shared: Option<&Path>) -> io::Result<u32> {
    let drawn = || uuid::Uuid::new_v4().as_u128() as u32;
    seed_in(kernel, || match shared {
        Some(shared) => seed_in(shared, || Ok(drawn())),
        None => Ok(drawn()),
    })
}

/// The seed in this folder, made by its first reader. The seed is never 0, which would switch randomisation off.
fn seed_in(folder: &Path, new: impl FnOnce() -> io::Result<u32>) -> io::Result<u32> {
    let path = folder.join("hash-seed");
    let read = || std::fs::read_to_string(&path).ok()?.trim().parse::<u32>().ok();
    if let Some(seed) = read() {
        return Ok(seed);
    }
    make_private(folder)?;
    let seed = new()?.max(1);
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    writeln!(file, "{seed}")?;
    match file.persist_noclobber(&path) {
        Ok(_) => Ok(seed),
        // Another front was first: its seed counts.
        Err(error) => read().ok_or(error.error),
    }
}

/// The file that marks a folder as kept for its user. Collections of garbage pass over names with a leading dot.
const KEPT: &str = ".kept";

/// Has the folder stay when later tenures no longer need it: its variables could not be brought back, and their user
/// was told where they are.
///
/// # Errors
/// The file system's.
pub fn keep(folder: &Path) -> io::Result<()> {
    File::create(folder.join(KEPT))?.sync_all()?;
    File::open(folder)?.sync_all()
}

/// Removes folders older than the settled folder, not needed by the state and not kept. Only the opener of the state's
/// tenure may call this. A folder that can't be removed is left to the next opener.
pub fn remove_older(kernel: &Path, state: &State) {
    let oldest = state
        .settled()
        .map_or_else(|| (state.tenure(), 0), |s| (s.tenure, s.part));
    for entry in std::fs::read_dir(kernel).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_older = store::newest([name.as_str()]).is_some_and(|found| found < oldest);
        // A folder that can't be looked into may be kept.
        if is_older && !entry.path().join(KEPT).try_exists().unwrap_or(true) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_log::{Entry, Index};
    use hop_words::id::{Incarnation, JobId};

    fn in_office(tenure: u64) -> State {
        let mut state = State::new();
        let incarnation = Incarnation(1);
        let join = Entry::Join {
            incarnation,
            seat: JobId(1),
            node: "n1".into(),
            hot: false,
        };
        state.apply(Index(1), &join).unwrap();
        for n in 1..=tenure {
            let entry = Entry::Tenure {
                tenure: Tenure(n),
                executor: incarnation,
            };
            state.apply(Index(1 + n), &entry).unwrap();
        }
        state
    }

    #[test]
    fn all_kernels_of_a_user_have_one_seed_and_each_keeps_its_own() {
        let tmp = tempfile::tempdir().unwrap();
        let [shared, one, two] = ["shared", "one", "two"].map(|name| tmp.path().join(name));
        let seed = hash_seed(&one, Some(&shared)).unwrap();
        assert_ne!(seed, 0);
        assert_eq!(hash_seed(&two, Some(&shared)).unwrap(), seed);
        std::fs::write(one.join("hash-seed"), "7\n").unwrap();
        assert_eq!(
            hash_seed(&one, Some(&shared)).unwrap(),
            7,
            "a kernel keeps its own"
        );
        assert_eq!(hash_seed(&two, None).unwrap(), seed);
    }

    #[test]
    fn a_tenure_has_one_opener() {
        let tmp = tempfile::tempdir().unwrap();
        let kernel = tmp.path().join("states/k");
        assert_eq!(newest(&kernel).unwrap(), None);
        let results: Vec<bool> = std::thread::scope(|scope| {
            let open = || open(&kernel, &in_office(1));
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|t| t.join().unwrap().is_ok()).collect()
        });
        assert_eq!(results.iter().filter(|ok| **ok).count(), 1);
        assert_eq!(newest(&kernel).unwrap(), Some(in_office(1)));
        assert_eq!(
            std::fs::read_dir(&kernel).unwrap().count(),
            1,
            "nothing temporary stays"
        );
    }

    #[test]
    fn the_newest_tenure_counts_and_older_ones_go() {
        let tmp = tempfile::tempdir().unwrap();
        for tenure in [9, 10] {
            open(tmp.path(), &in_office(tenure)).unwrap();
        }
        let state = newest(tmp.path()).unwrap().unwrap();
        assert_eq!(state.tenure(), Tenure(10));
        remove_older(tmp.path(), &state);
        assert!(!folder(tmp.path(), Tenure(9), 0).exists() && folder(tmp.path(), Tenure(10), 0).exists());
    }

    #[test]
    fn a_tenures_next_part_begins_with_the_state_of_the_part_before() {
        let tmp = tempfile::tempdir().unwrap();
        let first = open(tmp.path(), &in_office(3)).unwrap();
        std::fs::write(make_part(tmp.path()).unwrap().join("left"), "").unwrap();
        let new = make_part(tmp.path()).unwrap();
        assert_eq!(std::fs::read_dir(&new).unwrap().count(), 0);
        std::fs::write(new.join("log"), "text").unwrap();
        assert_eq!(newest_name(tmp.path()).unwrap(), Some((Tenure(3), 0)));
        let next = open_part(tmp.path(), &first, Tenure(3), 1).unwrap();
        assert_eq!(next, folder(tmp.path(), Tenure(3), 1));
        assert_eq!(std::fs::read_to_string(next.join("log")).unwrap(), "text");
        assert_eq!(newest(tmp.path()).unwrap(), Some(in_office(3)));
        assert!(first.exists() && !new.exists());
        open(tmp.path(), &in_office(4)).unwrap();
        assert_eq!(newest_name(tmp.path()).unwrap(), Some((Tenure(4), 0)));
    }

    #[test]
    fn a_damaged_state_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let path = open(tmp.path(), &in_office(1)).unwrap();
        std::fs::write(path.join(store::STATE_FILE), b"no state").unwrap();
        assert!(matches!(newest(tmp.path()), Err(ReadError::Form { .. })));
    }
}
