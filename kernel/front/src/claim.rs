//! The kernel behind a saved state. Each kernel's folder of states names its notebook, and the kernel's front holds a
//! lock there. The next opening of a notebook finds the kernel with a free lock, and goes on with its variables.
//!
//! The lock is the kernel's own (`flock`): the lock ends with its process, however the process ends.

use crate::owner::Notebook;
use hop_log::{Office, State};
use hop_protocol::file::make_private;
use hop_protocol::states::{self, NOTEBOOK, OWNER};
use hop_words::error::chain;
use hop_words::id::KernelId;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// In the lock's file while its holder saves the kernel and ends.
const PARTING: &[u8] = b"parting\n";

/// How long a kernel that is being saved is waited for.
const PARTS: Duration = Duration::from_secs(40);

const POLL: Duration = Duration::from_millis(50);

/// The file [`NOTEBOOK`].
#[derive(Debug, Serialize, Deserialize)]
struct Named {
    kernel: KernelId,
    #[serde(flatten)]
    notebook: Notebook,
}

/// The right to run a kernel with this state.
#[derive(Debug)]
pub struct Owned {
    lock: File,
    folder: PathBuf,
}

/// What a notebook's opening finds.
#[derive(Debug)]
pub enum Found {
    Nothing,
    /// A kernel that nobody runs.
    Kernel(KernelId, Owned),
    /// A kernel whose front is gone: it may have run on.
    Left {
        kernel: KernelId,
        owned: Owned,
        is_saved: bool,
    },
    /// Its kernel runs for somebody else.
    InUse(KernelId),
    /// A kernel that nobody runs, and whose state can't be read.
    Unreadable(KernelId),
}

impl Owned {
    /// Takes the kernel's folder, and makes it if need be. `None` means that another front has the folder.
    ///
    /// # Errors
    /// The file system's.
    pub fn take(folder: &Path) -> io::Result<Option<Self>> {
        make_private(folder)?;
        let lock = open(folder)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        lock.set_len(0)?;
        let folder = folder.to_owned();
        Ok(Some(Self { lock, folder }))
    }

    /// Notes for which notebook the kernel runs.
    ///
    /// # Errors
    /// The file system's.
    pub fn name(&self, kernel: &KernelId, notebook: &Notebook) -> io::Result<()> {
        let named = Named {
            kernel: kernel.clone(),
            notebook: notebook.clone(),
        };
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        serde_json::to_writer(&mut file, &named)?;
        file.persist(self.folder.join(NOTEBOOK)).map_err(|e| e.error)?;
        Ok(())
    }

    /// Tells the notebook's next opening to wait for the end of this front.
    pub fn parts(&mut self) {
        // Without the lock the next opening begins a kernel of its own.
        let _ = self.lock.set_len(0).and_then(|()| self.lock.write_all(PARTING));
    }
}

fn open(folder: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(folder.join(OWNER))
}

/// Looks for the kernel of a notebook among the states of the user's kernels, the newest first. `was_left` tells
/// whether the kernel's last front has ended without a word. This kernel may have died with its front: if nothing of it
/// is saved, an older, saved kernel comes first.
pub fn find(states: &Path, notebook: &Notebook, was_left: impl Fn(&KernelId) -> bool) -> Found {
    let mut folders: Vec<(SystemTime, PathBuf, KernelId)> = std::fs::read_dir(states)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| of_notebook(&entry.path(), notebook))
        .collect();
    folders.sort();
    let (mut unusable, mut unsaved) = (Found::Nothing, None);
    for (_, folder, kernel) in folders.into_iter().rev() {
        let Some(owned) = take_patiently(&folder) else {
            unusable = Found::InUse(kernel);
            continue;
        };
        let (state, is_read) = match states::newest(&folder) {
            Ok(state) => (state, true),
            Err(error) => {
                tracing::warn!(error = chain(&error), "a saved kernel can't be read");
                (None, false)
            }
        };
        let sleeps = |s: &State| matches!(s.office(), Office::Asleep { .. });
        let is_left = was_left(&kernel) && !state.as_ref().is_some_and(sleeps);
        let is_saved = state.is_some_and(|s| s.settled().is_some());
        let left = |owned| Found::Left {
            kernel: kernel.clone(),
            owned,
            is_saved,
        };
        match (is_left, is_saved) {
            (true, true) => return left(owned),
            (true, false) => _ = unsaved.get_or_insert_with(|| left(owned)),
            (false, true) => return Found::Kernel(kernel, owned),
            (false, false) if !is_read => unusable = Found::Unreadable(kernel),
            (false, false) => {}
        }
    }
    unsaved.unwrap_or(unusable)
}

fn of_notebook(folder: &Path, notebook: &Notebook) -> Option<(SystemTime, PathBuf, KernelId)> {
    let path = folder.join(NOTEBOOK);
    let named: Named = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
    let since = path.metadata().ok()?.modified().ok()?;
    (named.notebook == *notebook).then(|| (since, folder.to_owned(), named.kernel))
}

/// Whether nothing of the kernel was saved, for certain: such a kernel is as good as none. A state that can't be read
/// may hold variables.
pub fn is_without_state(folder: &Path) -> bool {
    match states::newest(folder) {
        Ok(state) => state.is_none_or(|s| s.settled().is_none()),
        Err(error) => {
            tracing::warn!(
                error = chain(&error),
                "the kernel's state can't be read, so it is kept"
            );
            false
        }
    }
}

/// Takes the lock; if its holder is parting, waits for the lock.
fn take_patiently(folder: &Path) -> Option<Owned> {
    let since = Instant::now();
    loop {
        match Owned::take(folder) {
            Ok(Some(owned)) => return Some(owned),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, folder = %folder.display(), "a saved kernel can't be taken");
                return None;
            }
        }
        let parts = std::fs::read(folder.join(OWNER)).is_ok_and(|said| said == PARTING);
        if !parts || since.elapsed() > PARTS {
            return None;
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_log::{Act, Entry, Index, Payload, Record, RecordNumber, Sequence, Settled, State};
    use hop_words::id::{Incarnation, JobId, Tenure};

    fn notebook(path: &str) -> Notebook {
        Notebook {
            path: path.into(),
            kernelspec: "python3".into(),
        }
    }

    /// A state with a record in the store.
    fn settled() -> State {
        let mut state = State::new();
        let (tenure, number) = (Tenure(1), RecordNumber(1));
        let payload = Payload::Folder;
        let record = Record { number, payload };
        let act = Act::Record {
            record,
            through: None,
        };
        let entries = [
            Entry::Join {
                incarnation: Incarnation(1),
                seat: JobId(1),
                node: "n1".into(),
                hot: false,
            },
            Entry::Tenure {
                tenure,
                executor: Incarnation(1),
            },
            Entry::Act {
                tenure,
                sequence: Sequence(1),
                act,
            },
            Entry::Settled {
                settled: Settled {
                    tenure,
                    part: 0,
                    upto: number,
                    length: 9,
                    mac: "00".into(),
                },
            },
        ];
        for (n, entry) in entries.iter().enumerate() {
            state.apply(Index(n as u64 + 1), entry).unwrap();
        }
        state
    }

    /// A saved kernel of this notebook.
    fn saved(states: &Path, kernel: &str, path: &str) {
        let folder = states.join(kernel);
        let owned = Owned::take(&folder).unwrap().unwrap();
        owned.name(&kernel.into(), &notebook(path)).unwrap();
        states::open(&folder, &settled()).unwrap();
    }

    #[test]
    fn a_notebook_finds_its_own_kernel_and_no_other() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "/home/a/x.ipynb");
        assert!(matches!(
            find(tmp.path(), &notebook("/home/a/copy.ipynb"), |_| false),
            Found::Nothing
        ));
        let other = Notebook {
            kernelspec: "r".into(),
            ..notebook("/home/a/x.ipynb")
        };
        assert!(matches!(find(tmp.path(), &other, |_| false), Found::Nothing));
        let Found::Kernel(kernel, owned) = find(tmp.path(), &notebook("/home/a/x.ipynb"), |_| false) else {
            panic!("it is there");
        };
        assert_eq!(kernel.as_str(), "k1");
        let second = find(tmp.path(), &notebook("/home/a/x.ipynb"), |_| false);
        assert!(matches!(second, Found::InUse(k) if k.as_str() == "k1"));
        drop(owned);
        assert!(matches!(
            find(tmp.path(), &notebook("/home/a/x.ipynb"), |_| false),
            Found::Kernel(..)
        ));
    }

    #[test]
    fn a_kernel_without_a_state_is_none() {
        let tmp = tempfile::tempdir().unwrap();
        let owned = Owned::take(&tmp.path().join("k1")).unwrap().unwrap();
        owned.name(&"k1".into(), &notebook("x")).unwrap();
        drop(owned);
        assert!(matches!(
            find(tmp.path(), &notebook("x"), |_| false),
            Found::Nothing
        ));
        assert!(matches!(
            find(&tmp.path().join("none"), &notebook("x"), |_| false),
            Found::Nothing
        ));
    }

    #[test]
    fn a_state_that_can_not_be_read_is_not_taken_for_none() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "x");
        let folder = tmp.path().join("k1");
        assert!(!is_without_state(&folder) && is_without_state(&tmp.path().join("none")));
        // No read of a folder as a file succeeds, even by root.
        let path = states::folder(&folder, Tenure(1), 0).join(hop_log::store::STATE_FILE);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(!is_without_state(&folder));
        let found = find(tmp.path(), &notebook("x"), |_| false);
        assert!(matches!(found, Found::Unreadable(k) if k.as_str() == "k1"));
    }

    #[test]
    fn a_kernel_whose_front_is_gone_is_found_before_anything_is_saved() {
        let tmp = tempfile::tempdir().unwrap();
        let owned = Owned::take(&tmp.path().join("k1")).unwrap().unwrap();
        owned.name(&"k1".into(), &notebook("x")).unwrap();
        let left = |kernel: &KernelId| kernel.as_str() == "k1";
        assert!(matches!(find(tmp.path(), &notebook("x"), left), Found::InUse(_)));
        drop(owned);
        let found = find(tmp.path(), &notebook("x"), left);
        assert!(matches!(found, Found::Left { kernel, is_saved: false, .. } if kernel.as_str() == "k1"));
    }

    #[test]
    fn a_kernel_that_is_saved_comes_before_a_later_one_that_was_left_with_nothing_saved() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "x");
        std::thread::sleep(POLL);
        let owned = Owned::take(&tmp.path().join("k2")).unwrap().unwrap();
        owned.name(&"k2".into(), &notebook("x")).unwrap();
        drop(owned);
        let left = |kernel: &KernelId| kernel.as_str() == "k2";
        let found = find(tmp.path(), &notebook("x"), left);
        assert!(matches!(found, Found::Kernel(k, _) if k.as_str() == "k1"));
    }

    #[test]
    fn a_front_that_parts_is_waited_for() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "x");
        let mut owned = Owned::take(&tmp.path().join("k1")).unwrap().unwrap();
        owned.parts();
        let found = std::thread::scope(|scope| {
            let waits = scope.spawn(|| find(tmp.path(), &notebook("x"), |_| false));
            std::thread::sleep(POLL * 2);
            drop(owned);
            waits.join().unwrap()
        });
        assert!(matches!(found, Found::Kernel(..)));
    }
}
