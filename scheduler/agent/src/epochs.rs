//! Durable facts of a node: the highest term of a `hopd` that it has obeyed, and the epochs given out.
//!
//! A small file per node is shared by the agents of all pilots there. The file is written whole (new file, fsync,
//! rename, fsync of the directory) under a lock. Epochs are reserved in blocks, to spare each lease an fsync. An agent
//! reserves a fresh block when it starts, and a device comes to a pilot only with the pilot's start: epochs of one
//! device always grow.
//!
//! A damaged file is set aside, and a new one begun, as if there had been none: the plugin keeps each device's last
//! epoch itself, refuses any that isn't greater, and names the last. See "Terms" in `docs/control-wire.md`. A file of a
//! newer release isn't damaged, and stays.

use hop_words::id::Term;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tracing::warn;

/// Epochs of one reservation.
pub(crate) const BLOCK: u64 = 256;
const FILE: &str = "epochs.json";
/// The last damaged record.
const DAMAGED: &str = "epochs.json.damaged";
const LOCK: &str = "epochs.lock";
const VERSION: u32 = 1;
/// No node ever gives out so many epochs: a damaged record.
const MOST_EPOCHS: u64 = 1 << 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    term: Term,
    /// The first epoch that nobody has reserved.
    next_epoch: u64,
}

impl Record {
    /// What is known of a node without a record.
    const FIRST: Self = Self {
        version: VERSION,
        term: Term(0),
        next_epoch: 1,
    };
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
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
    #[error(
        "{path} is of version {found}, this release knows {VERSION}: install the newer release of the agent again"
    )]
    Newer { path: PathBuf, found: u32 },
    #[error("{path} is damaged: {reason}")]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "no epoch is greater than {last}, the plugin's last: its records of this node's GPUs are damaged"
    )]
    UsedUp { last: u64 },
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
        match self.read() {
            Err(EpochError::Damaged { .. }) => self.raise_term(Term(0)),
            read => Ok(read?.term),
        }
    }

    /// Puts a term on disk if higher than the stored term; returns the highest.
    pub(crate) fn raise_term(&self, term: Term) -> Result<Term, EpochError> {
        let _lock = self.lock()?;
        let mut record = self.read_or_begin_anew()?;
        if term > record.term {
            record.term = term;
            self.write(record)?;
        }
        Ok(record.term)
    }

    /// Reserves the next [`BLOCK`] epochs, all greater than `above`: from the first to one past the last.
    pub(crate) fn reserve(&self, above: u64) -> Result<(u64, u64), EpochError> {
        let _lock = self.lock()?;
        let mut record = self.read_or_begin_anew()?;
        let from = record.next_epoch.max(above.saturating_add(1));
        if from > MOST_EPOCHS {
            return Err(EpochError::UsedUp { last: above });
        }
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

    /// Reads the record under the lock. A damaged one is set aside first.
    fn read_or_begin_anew(&self) -> Result<Record, EpochError> {
        match self.read() {
            Err(EpochError::Damaged { path, reason }) => {
                let aside = self.dir.join(DAMAGED);
                std::fs::rename(&path, &aside).map_err(|source| EpochError::Io {
                    path: path.clone(),
                    source,
                })?;
                warn!(
                    "{} was damaged ({reason}) and is {} now: epochs go on above the plugin's last, and the term is \
                     hopd's next",
                    path.display(),
                    aside.display()
                );
                Ok(Record::FIRST)
            }
            read => read,
        }
    }

    fn read(&self) -> Result<Record, EpochError> {
        let path = self.dir.join(FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Record::FIRST),
            Err(source) => return Err(EpochError::Io { path, source }),
        };
        let damaged = |reason: String| EpochError::Damaged {
            path: path.clone(),
            reason,
        };
        let text = std::str::from_utf8(&text).map_err(|e| damaged(e.to_string()))?;
        let VersionOnly { version } = serde_json::from_str(text).map_err(|e| damaged(e.to_string()))?;
        if version > VERSION {
            let found = version;
            return Err(EpochError::Newer { path, found });
        }
        let record: Record = serde_json::from_str(text).map_err(|e| damaged(e.to_string()))?;
        if record.next_epoch > MOST_EPOCHS {
            return Err(damaged(format!("no node comes to epoch {}", record.next_epoch)));
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
    fn a_newer_record_is_refused_and_left_alone() {
        let (dir, epochs) = epochs();
        let file = dir.path().join("n1").join(FILE);
        let text = r#"{"version":2,"terms":[1]}"#;
        std::fs::write(&file, text).unwrap();
        let error = epochs.reserve(0).unwrap_err();
        assert!(matches!(error, EpochError::Newer { found: 2, .. }), "{error}");
        assert!(epochs.term().is_err() && epochs.raise_term(Term(3)).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }

    #[test]
    fn a_damaged_record_is_set_aside_and_epochs_go_on_above_the_plugins() {
        for text in [
            "",
            "{",
            "\0\0\0\0",
            r#"{"version":1,"term":1}"#,
            r#"{"version":1,"term":18446744073709551615,"next_epoch":5}"#,
            r#"{"version":1,"term":1,"next_epoch":18446744073709551615}"#,
        ] {
            let (dir, epochs) = epochs();
            let file = |name| dir.path().join("n1").join(name);
            std::fs::write(file(FILE), text).unwrap();
            assert_eq!(epochs.term().unwrap(), Term(0), "{text}");
            assert_eq!(std::fs::read_to_string(file(DAMAGED)).unwrap(), text);
            assert_eq!(epochs.raise_term(Term(4)).unwrap(), Term(4));
            std::fs::write(file(FILE), text).unwrap();
            // An agent that runs, and has heard of the plugin's epoch 900.
            assert_eq!(epochs.reserve(900).unwrap(), (901, 901 + BLOCK));
        }
    }

    #[test]
    fn epochs_never_overflow() {
        let (_dir, epochs) = epochs();
        let error = epochs.reserve(u64::MAX).unwrap_err().to_string();
        assert!(
            error.contains("18446744073709551615, the plugin's last"),
            "{error}"
        );
        assert_eq!(epochs.reserve(0).unwrap().0, 1);
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
