//! Durable facts of a node: the highest term of a `hopd` that it has obeyed, and the epochs given out.
//!
//! A small file per node is shared by the agents of all pilots there. The file is written whole (new file, fsync,
//! rename, fsync of the directory) under a lock. Epochs are reserved in blocks, to spare each lease an fsync. An agent
//! reserves a fresh block when it starts, and a device comes to a pilot only with the pilot's start: epochs of one
//! device always grow.

use hop_words::id::Term;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Epochs of one reservation.
pub(crate) const BLOCK: u64 = 256;
const FILE: &str = "epochs.json";
const LOCK: &str = "epochs.lock";
const VERSION: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    term: Term,
    /// The first epoch that nobody has reserved.
    next_epoch: u64,
}

/// Why the record could not be read or written. The agent lends nothing then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EpochError {
    #[error("{path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not a record of this release: {reason}")]
    Unreadable { path: PathBuf, reason: String },
    #[error("{path} belongs to uid {owner} with mode {mode:o}; it must be the agent's own and 700")]
    Exposed { path: PathBuf, owner: u32, mode: u32 },
}

/// The node's record.
#[derive(Debug, Clone)]
pub(crate) struct Epochs {
    dir: PathBuf,
}

impl Epochs {
    /// Opens or makes `dir` (0700).
    ///
    /// # Errors
    /// [`EpochError::Exposed`] where somebody else owns the directory or may enter it.
    pub(crate) fn open(dir: &Path) -> Result<Self, EpochError> {
        let io = |source| EpochError::Io {
            path: dir.into(),
            source,
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(io)?;
        let meta = std::fs::symlink_metadata(dir).map_err(io)?;
        let me = rustix::process::geteuid().as_raw();
        if !meta.is_dir() || meta.uid() != me || meta.mode() & 0o077 != 0 {
            return Err(EpochError::Exposed {
                path: dir.into(),
                owner: meta.uid(),
                mode: meta.mode() & 0o7777,
            });
        }
        Ok(Self { dir: dir.into() })
    }

    /// The highest term obeyed by any agent of this node.
    pub(crate) fn term(&self) -> Result<Term, EpochError> {
        Ok(self.read()?.term)
    }

    /// Puts a term on disk if higher than the stored term; returns the highest.
    pub(crate) fn raise_term(&self, term: Term) -> Result<Term, EpochError> {
        let _lock = self.lock()?;
        let mut record = self.read()?;
        if term > record.term {
            record.term = term;
            self.write(record)?;
        }
        Ok(record.term)
    }

    /// Reserves the next [`BLOCK`] epochs, all greater than `above`: from the first to one past the last.
    pub(crate) fn reserve(&self, above: u64) -> Result<(u64, u64), EpochError> {
        let _lock = self.lock()?;
        let mut record = self.read()?;
        let from = record.next_epoch.max(above + 1);
        record.next_epoch = from + BLOCK;
        self.write(record)?;
        Ok((from, record.next_epoch))
    }

    fn lock(&self) -> Result<File, EpochError> {
        let path = self.dir.join(LOCK);
        let io = |source: io::Error| EpochError::Io {
            path: path.clone(),
            source,
        };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(io)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).map_err(|e| io(e.into()))?;
        Ok(file)
    }

    fn read(&self) -> Result<Record, EpochError> {
        let path = self.dir.join(FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(Record {
                    version: VERSION,
                    term: Term(0),
                    next_epoch: 1,
                });
            }
            Err(source) => return Err(EpochError::Io { path, source }),
        };
        let unreadable = |reason: String| EpochError::Unreadable {
            path: path.clone(),
            reason,
        };
        let record: Record = serde_json::from_slice(&text).map_err(|e| unreadable(e.to_string()))?;
        if record.version != VERSION {
            return Err(unreadable(format!("version {}", record.version)));
        }
        Ok(record)
    }

    fn write(&self, record: Record) -> Result<(), EpochError> {
        let path = self.dir.join(FILE);
        let work = || -> io::Result<()> {
            let mut new = tempfile::NamedTempFile::new_in(&self.dir)?;
            new.write_all(&serde_json::to_vec(&record)?)?;
            new.as_file().sync_data()?;
            new.persist(&path)?;
            File::open(&self.dir)?.sync_all()
        };
        work().map_err(|source| EpochError::Io {
            path: path.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn epochs() -> (tempfile::TempDir, Epochs) {
        let dir = tempfile::tempdir().unwrap();
        let epochs = Epochs::open(&dir.path().join("n1")).unwrap();
        (dir, epochs)
    }

    #[test]
    fn blocks_never_overlap_whoever_reserves_them() {
        let (dir, one) = epochs();
        let two = Epochs::open(&dir.path().join("n1")).unwrap();
        let threads: Vec<_> = [one, two]
            .into_iter()
            .map(|e| std::thread::spawn(move || (0..20).map(|_| e.reserve(0).unwrap()).collect::<Vec<_>>()))
            .collect();
        let mut blocks: Vec<_> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
        blocks.sort_unstable();
        assert_eq!(blocks.len(), 40);
        assert_eq!(blocks[0].0, 1);
        assert!(blocks.windows(2).all(|w| w[0].1 == w[1].0));
    }

    #[test]
    fn the_term_only_rises_and_survives() {
        let (dir, epochs) = epochs();
        assert_eq!(epochs.term().unwrap(), Term(0));
        assert_eq!(epochs.raise_term(Term(4)).unwrap(), Term(4));
        assert_eq!(epochs.raise_term(Term(3)).unwrap(), Term(4));
        epochs.reserve(0).unwrap();
        let again = Epochs::open(&dir.path().join("n1")).unwrap();
        assert_eq!(again.term().unwrap(), Term(4));
        assert_eq!(again.reserve(0).unwrap().0, 1 + BLOCK);
    }

    #[test]
    fn a_damaged_or_newer_record_is_refused_and_left_alone() {
        let (dir, epochs) = epochs();
        let file = dir.path().join("n1").join(FILE);
        for text in ["", "{", r#"{"version":2,"term":1,"next_epoch":5}"#] {
            std::fs::write(&file, text).unwrap();
            assert!(
                matches!(epochs.reserve(0), Err(EpochError::Unreadable { .. })),
                "{text}"
            );
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(
            Epochs::open(dir.path()),
            Err(EpochError::Exposed { mode: 0o755, .. })
        ));
    }
}
