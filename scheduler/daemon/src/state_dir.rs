//! The state directory: its owner, and the term, with a life beyond the journal's.

use crate::installation::Installation;
use anyhow::{Context, Result, bail};
use hop_store::Accounting;
use hop_words::id::Term;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) const JOURNAL: &str = "journal.redb";
/// The last term, beside the journal.
pub(crate) const TERM: &str = "term";
/// The directory's own id.
const INSTALLATION: &str = "installation";
/// How long the lock of a `hopd` that has ended is waited for.
const LEAVING: Duration = Duration::from_secs(3);
/// Lease ids of a term begin at the term's number times this factor.
pub(crate) const IDS_PER_TERM: u64 = 1_000_000;

/// The directory, locked for as long as this lives.
#[derive(Debug)]
pub(crate) struct StateDir {
    dir: PathBuf,
    lock: File,
}

impl StateDir {
    /// Makes the state directory and takes its lock, released by the process's end.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .with_context(|| format!("can't make {}", dir.display()))?;
        let meta = std::fs::metadata(dir)?;
        if meta.mode() & 0o077 != 0 || meta.uid() != rustix::process::geteuid().as_raw() {
            bail!(
                "{} must belong to the service account with mode 700",
                dir.display()
            );
        }
        let path = dir.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("{}", path.display()))?;
        match take(&lock) {
            Err(rustix::io::Errno::WOULDBLOCK) => bail!("another hopd runs on {}", dir.display()),
            taken => taken.with_context(|| format!("can't lock {}", path.display()))?,
        }
        let dir = dir.to_owned();
        Ok(Self { dir, lock })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The reason why the directory is no longer this `hopd`'s. `None` means still ours. Another directory may have
    /// been put in its place, with another `hopd`.
    pub(crate) fn superseded(&self) -> Option<String> {
        let path = self.path("lock");
        let ours = self.lock.metadata().ok()?;
        match std::fs::metadata(&path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => None,
            // Whatever hinders a look is no proof.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => None,
            _ => Some(format!(
                "{} is no longer the directory that this hopd was started on",
                self.dir.display()
            )),
        }
    }

    /// Whether a `hopd` has begun a term here: journal and accounting were there.
    pub(crate) fn has_begun(&self) -> bool {
        self.path(TERM).exists()
    }

    /// The highest term known without the journal: from the file beside the journal, and from the accounting's leases.
    pub(crate) fn known_term(&self, accounting: &Accounting) -> Result<Term> {
        let path = self.path(TERM);
        let mend = || format!("write hopd's last term into it, or remove the file if {JOURNAL} is there");
        let written: u64 = match std::fs::read_to_string(&path) {
            Ok(text) => text
                .trim()
                .parse()
                .with_context(|| format!("{} has no number, but {text:?}: {}", path.display(), mend()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
        };
        let written =
            Term::try_from(written).with_context(|| format!("{} is damaged: {}", path.display(), mend()))?;
        let lease = accounting.last_lease()?;
        let leases = Term::try_from(lease.0 / IDS_PER_TERM).with_context(|| {
            format!(
                "the accounting has a lease {lease}, which no hopd ever gave: restore a copy of accounting.db"
            )
        })?;
        Ok(leases.max(written))
    }

    /// The directory's id, made by its first `hopd`. It stays when the journal is set aside.
    pub(crate) fn installation(&self) -> Result<Installation> {
        let path = self.path(INSTALLATION);
        match std::fs::read_to_string(&path) {
            Ok(text) => Installation::parse(&text).with_context(|| {
                format!(
                    "{} holds no id, but {text:?}: restore it from a copy or from the comment of a pilot's job, or \
                     remove it, and the pilots that nothing else tells of are left alone",
                    path.display()
                )
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let id = Installation::random();
                self.write(INSTALLATION, &id)?;
                Ok(id)
            }
            Err(error) => Err(error).with_context(|| format!("{}", path.display())),
        }
    }

    pub(crate) fn write_term(&self, term: Term) -> Result<()> {
        self.write(TERM, &term)
    }

    /// Replaces the file by one of this line, whole or not at all.
    fn write(&self, name: &str, line: &impl std::fmt::Display) -> Result<()> {
        let (path, new) = (self.path(name), self.path(&format!("{name}.new")));
        let write = || {
            let mut file = OpenOptions::new()
                .create(true)
                .truncate(true)
                .write(true)
                .mode(0o600)
                .open(&new)?;
            writeln!(file, "{line}")?;
            file.sync_all()?;
            std::fs::rename(&new, &path)
        };
        write().with_context(|| format!("{}", path.display()))
    }

    /// Renames the journal; says to what. `None`: there was none.
    pub(crate) fn set_journal_aside(&self) -> Result<Option<PathBuf>> {
        let path = self.path(JOURNAL);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The clock may have been set back, and an earlier one must stay.
        let mut names = (now.as_secs()..).map(|at| self.path(&format!("{JOURNAL}.aside-{at}")));
        let free = names.find(|name| !name.try_exists().unwrap_or(false));
        let aside = free.context("there is no free name for the journal")?;
        match std::fs::rename(&path, &aside) {
            Ok(()) => Ok(Some(aside)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{}", path.display())),
        }
    }
}

/// Takes the lock. A killed `hopd`, or a child that it was about to start, has the lock until Linux has closed its
/// files.
fn take(lock: &File) -> rustix::io::Result<()> {
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < LEAVING => {
                std::thread::sleep(Duration::from_millis(20));
            }
            taken => return taken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{JournalKey, JournalValue};
    use hop_store::Journal;
    use std::os::unix::fs::PermissionsExt;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        folder
    }

    /// The term of a start.
    fn start(state: &StateDir) -> Result<Term> {
        let accounting = Accounting::open(&state.path("accounting.db"))?;
        let known = state.known_term(&accounting)?;
        let (_, snapshot) = Journal::<JournalKey, JournalValue>::open_after(&state.path(JOURNAL), known)?;
        state.write_term(snapshot.term)?;
        Ok(snapshot.term)
    }

    #[test]
    fn a_hopd_that_is_about_to_end_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("state");
        let other = StateDir::open(&dir).unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(other);
        });
        StateDir::open(&dir).expect("the other one has ended");
        ends.join().unwrap();
    }

    #[test]
    fn terms_go_on_when_the_journal_is_lost() {
        let folder = folder();
        let state = StateDir::open(folder.path()).unwrap();
        assert_eq!(start(&state).unwrap(), Term(1));
        assert_eq!(start(&state).unwrap(), Term(2));
        std::fs::write(state.path(JOURNAL), "rubbish").unwrap();
        assert!(start(&state).is_err());
        let aside = state.set_journal_aside().unwrap().unwrap();
        assert_eq!(std::fs::read(aside).unwrap(), b"rubbish");
        assert_eq!(start(&state).unwrap(), Term(3));
        assert_eq!(start(&state).unwrap(), Term(4));
    }

    /// In one second, or in the same second after the clock was set back.
    #[test]
    fn a_journal_that_is_set_aside_replaces_no_other() {
        let folder = folder();
        let state = StateDir::open(folder.path()).unwrap();
        let asides = ["1", "2", "3"].map(|text| {
            std::fs::write(state.path(JOURNAL), text).unwrap();
            state.set_journal_aside().unwrap().unwrap()
        });
        let kept = asides.map(|aside| std::fs::read_to_string(aside).unwrap());
        assert_eq!(kept, ["1", "2", "3"]);
    }

    #[test]
    fn a_directory_keeps_its_id() {
        let folder = folder();
        let state = StateDir::open(folder.path()).unwrap();
        let id = state.installation().unwrap();
        start(&state).unwrap();
        state.set_journal_aside().unwrap();
        assert_eq!(state.installation().unwrap(), id);
        std::fs::write(state.path(INSTALLATION), "").unwrap();
        let error = state.installation().unwrap_err().to_string();
        assert!(error.contains("holds no id"), "{error}");
    }

    #[test]
    fn a_term_that_is_no_number_is_not_taken_for_none() {
        let folder = folder();
        let state = StateDir::open(folder.path()).unwrap();
        assert_eq!(start(&state).unwrap(), Term(1));
        for text in ["", "5O", "term 5"] {
            std::fs::write(state.path(TERM), text).unwrap();
            let error = start(&state).unwrap_err().to_string();
            assert!(error.contains("has no number"), "{error}");
        }
        std::fs::write(state.path(TERM), u64::MAX.to_string()).unwrap();
        let error = format!("{:#}", start(&state).unwrap_err());
        assert!(error.contains("write hopd's last term into it"), "{error}");
        assert!(
            error.contains("18446744073709551615 is no term of a hopd"),
            "{error}"
        );
        std::fs::write(state.path(TERM), Term::MOST.to_string()).unwrap();
        let error = format!("{:#}", start(&state).unwrap_err());
        assert!(error.contains("1000000000001 is no term of a hopd"), "{error}");
        std::fs::write(state.path(TERM), "5\n").unwrap();
        assert_eq!(start(&state).unwrap(), Term(6));
    }

    #[test]
    fn another_directory_in_its_place_is_noticed() {
        let above = folder();
        let dir = above.path().join("state");
        let state = StateDir::open(&dir).unwrap();
        assert_eq!(state.superseded(), None);
        assert!(StateDir::open(&dir).is_err(), "locked");
        std::fs::rename(&dir, above.path().join("old")).unwrap();
        assert!(state.superseded().is_some(), "gone");
        let _other = StateDir::open(&dir).unwrap();
        assert!(state.superseded().unwrap().contains("no longer the directory"));
    }
}
