//! The kernel behind a saved state. Each kernel's folder of states names its notebook, and the kernel's front holds a
//! lock there. The next opening of a notebook finds the kernel with a free lock, and goes on with its variables.
//! At the end a front removes everything that the next opening must not find.
//!
//! The lock is the kernel's own (`flock`): the lock ends with its process, however the process ends. In a home without
//! locks a kernel counts as free if it has no `front.json`, which a front removes at its orderly end.

use crate::owner::Notebook;
use crate::termination::{self, Removal};
use hop_log::store::STATE_FILE;
use hop_log::{Office, Settled, State};
use hop_protocol::file::make_private;
use hop_protocol::meanwhile::Meanwhile;
use hop_protocol::states::{self, NOTEBOOK, OWNER};
use hop_words::error::chain;
use hop_words::id::KernelId;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// In the lock's file while its holder saves the kernel and ends.
const PARTING: &[u8] = b"parting\n";

/// How long a kernel that is being saved is waited for: as long as its front waits, and some seconds for that front's
/// end. The owner of this front waits longer (`_LAUNCH` in gresshopper_jupyter/provisioner.py).
const PARTS: Duration = Duration::from_micros(termination::PARTING.0 + 5_000_000);

const POLL: Duration = Duration::from_millis(50);

/// The file [`NOTEBOOK`].
#[derive(Debug, Serialize, Deserialize)]
struct Named {
    kernel: KernelId,
    #[serde(flatten)]
    notebook: Notebook,
    /// The notebook's first kernel, if it ran elsewhere when this kernel began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beside: Option<KernelId>,
}

impl Named {
    fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(folder.join(NOTEBOOK)).ok()?).ok()
    }

    /// `at` puts the kernels of one notebook in order.
    fn write(&self, folder: &Path, at: SystemTime) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer(&mut file, self)?;
        // The file system's own clock may tick too slowly for two files to have an order.
        file.as_file().set_modified(at)?;
        file.persist(folder.join(NOTEBOOK)).map_err(|e| e.error)?;
        Ok(())
    }
}

/// Takes a lock, as [`File::try_lock`].
type Locking = fn(&File) -> Result<(), TryLockError>;

/// The right to run a kernel with this state.
#[derive(Debug)]
pub struct Owned {
    lock: File,
    folder: PathBuf,
    lockless: Option<io::Error>,
}

/// The variables that the state of an ended kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saved {
    /// All: the last word of the state, or of the kernel's front, is that all was saved.
    Whole,
    /// All but the effects of cells that were lost before the last save. The user is told their names.
    Partly,
    /// The variables at this time, if it is known. The kernel ended without a later save.
    Then(Option<SystemTime>),
}

impl Saved {
    fn of(folder: &Path, state: &State) -> Self {
        let news = Meanwhile::read(folder).unwrap_or_default();
        if sleeps(state) || news.is_whole {
            let lacks = news.has_losses() || state.losses().len() > 0;
            return if lacks { Self::Partly } else { Self::Whole };
        }
        // The state beside a log is written each time the log is on disk.
        let beside = |s: &Settled| states::folder(folder, s.tenure, s.part).join(STATE_FILE);
        let written = |path: PathBuf| path.metadata().and_then(|m| m.modified()).ok();
        Self::Then(state.settled().map(beside).and_then(written))
    }

    /// Sentence for the user of the notebook, in this zone's time.
    pub fn sentence(self, zone: &TimeZone) -> String {
        const ENDED: &str = "this notebook's kernel ended before it could be saved once more, and is back with its \
            variables of";
        const WHOLE: &str = "this notebook's kernel was saved, and is back with its variables";
        const PARTLY: &str = "this notebook's kernel is back with its variables as they were saved, without the effects \
            of some cells";
        let at = match self {
            Self::Whole => return WHOLE.to_owned(),
            Self::Partly => return PARTLY.to_owned(),
            Self::Then(at) => at,
        };
        let at = at.and_then(|at| jiff::Timestamp::try_from(at).ok());
        match at.map(|at| at.to_zoned(zone.clone()).strftime("%H:%M:%S on %-d %B")) {
            Some(at) => format!("{ENDED} {at}"),
            None => format!("{ENDED} its last save"),
        }
    }
}

fn sleeps(state: &State) -> bool {
    matches!(state.office(), Office::Asleep { .. })
}

/// What a notebook's opening finds.
#[derive(Debug)]
pub enum Found {
    Nothing,
    /// A kernel that nobody runs.
    Kernel(KernelId, Owned, Saved),
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
    /// Its kernel can't be taken, and may run for somebody else.
    Unclear(KernelId, io::Error),
}

impl Owned {
    /// Takes the folder of a new kernel, or of the owner's own, and makes it if need be. `None` means that another front
    /// has the folder. A home without locks gives no proof of that, and the kernel's id is the owner's alone.
    ///
    /// # Errors
    /// The file system's.
    pub fn take(folder: &Path) -> io::Result<Option<Self>> {
        Self::attempt(folder, || false, File::try_lock)
    }

    /// `may_run` tells whether a front may run the kernel, where no lock does. `None` means that another front has the
    /// folder.
    ///
    /// # Errors
    /// It can't be told whether another front has the folder, or the folder can't be written.
    fn attempt(folder: &Path, may_run: impl Fn() -> bool, locking: Locking) -> io::Result<Option<Self>> {
        make_private(folder)?;
        let lock = open(folder)?;
        let lockless = match locking(&lock) {
            Ok(()) => None,
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) if may_run() => return Err(error),
            Err(TryLockError::Error(error)) => Some(error),
        };
        lock.set_len(0)?;
        let folder = folder.to_owned();
        Ok(Some(Self {
            lock,
            folder,
            lockless,
        }))
    }

    /// Why the file system has no lock. `None` means that the lock is held.
    pub fn lockless(&self) -> Option<&io::Error> {
        self.lockless.as_ref()
    }

    /// The notebook's first kernel, if it ran elsewhere when this kernel began.
    pub fn beside(&self) -> Option<KernelId> {
        Named::read(&self.folder).and_then(|named| named.beside)
    }

    /// Notes for which notebook the kernel runs. The caller writes the note.
    #[must_use]
    pub fn name(&self, kernel: &KernelId, notebook: &Notebook, beside: Option<&KernelId>) -> Noted {
        let named = Named {
            kernel: kernel.clone(),
            notebook: notebook.clone(),
            beside: beside.cloned(),
        };
        Noted {
            folder: self.folder.clone(),
            named,
        }
    }

    /// Tells the notebook's next opening to wait for the end of this front. The caller writes the word.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn parts(&self) -> io::Result<Parting> {
        self.lock.try_clone().map(Parting)
    }
}

/// The kernel's notebook, not yet written beside the state.
#[derive(Debug)]
pub struct Noted {
    folder: PathBuf,
    named: Named,
}

impl Noted {
    /// # Errors
    /// The file system's.
    pub fn write(&self) -> io::Result<()> {
        let states = self.folder.parent().unwrap_or(&self.folder);
        let last = folders(states).filter_map(|folder| named_at(&folder)).max();
        self.named.write(&self.folder, later(last, SystemTime::now()))
    }

    pub(crate) fn write_or_warn(&self) {
        if let Err(error) = self.write() {
            tracing::warn!(%error, "the notebook's name can't be noted, so its kernel won't be found again");
        }
    }
}

/// The word that the lock's holder ends, not yet written.
#[derive(Debug)]
pub struct Parting(File);

impl Parting {
    pub(crate) fn write(mut self) {
        // Without the lock the next opening begins a kernel of its own.
        let _ = self.0.set_len(0).and_then(|()| self.0.write_all(PARTING));
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

/// Looks for the kernel of a notebook among the states of the user's kernels. A kernel of the id `own` comes first: the
/// owner starts it again. The notebook's latest kernel is next. A kernel that began beside another comes after that
/// other. `was_left` tells whether the kernel's last front has ended without a word. This kernel may have died with
/// its front: if nothing of it is saved, an older, saved kernel comes first.
pub fn find(
    states: &Path,
    notebook: &Notebook,
    own: &KernelId,
    was_left: impl Fn(&KernelId) -> bool,
) -> Found {
    find_by(states, notebook, own, was_left, File::try_lock)
}

fn find_by(
    states: &Path,
    notebook: &Notebook,
    own: &KernelId,
    was_left: impl Fn(&KernelId) -> bool,
    locking: Locking,
) -> Found {
    let (mut busy, mut unsaved) = (None, None);
    for (folder, kernel) in candidates(states, notebook, own) {
        let owned = match take_patiently(&folder, || was_left(&kernel), locking) {
            Ok(Some(owned)) => owned,
            Ok(None) => {
                _ = busy.get_or_insert(Found::InUse(kernel));
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, folder = %folder.display(), "a notebook's kernel can't be taken");
                _ = busy.get_or_insert(Found::Unclear(kernel, error));
                continue;
            }
        };
        let (state, is_read) = match states::newest(&folder) {
            Ok(state) => (state, true),
            Err(error) => {
                tracing::warn!(error = chain(&error), "a saved kernel can't be read");
                (None, false)
            }
        };
        let is_left = was_left(&kernel) && !state.as_ref().is_some_and(sleeps);
        // A restart by the user leaves the earlier variables behind.
        let is_saved = state.as_ref().is_some_and(|s| s.restore().settled.is_some());
        let saved = state.map_or(Saved::Then(None), |s| Saved::of(&folder, &s));
        let left = |owned| Found::Left {
            kernel: kernel.clone(),
            owned,
            is_saved,
        };
        match (is_left, is_saved) {
            (true, true) => return left(owned),
            (true, false) => _ = unsaved.get_or_insert_with(|| left(owned)),
            (false, true) => return Found::Kernel(kernel, owned, saved),
            (false, false) if !is_read => _ = busy.get_or_insert(Found::Unreadable(kernel)),
            (false, false) => {}
        }
    }
    unsaved.or(busy).unwrap_or(Found::Nothing)
}

/// The folders of the notebook's kernels, in the order in which they are tried.
fn candidates(states: &Path, notebook: &Notebook, own: &KernelId) -> Vec<(PathBuf, KernelId)> {
    let mut found: Vec<(SystemTime, PathBuf, Named)> = folders(states)
        .filter_map(|folder| {
            let named = Named::read(&folder).filter(|named| named.notebook == *notebook)?;
            let since = named_at(&folder)?;
            Some((since, folder, named))
        })
        .collect();
    let kernels: BTreeSet<KernelId> = found.iter().map(|(.., named)| named.kernel.clone()).collect();
    let is_second = |named: &Named| {
        let first = named.beside.as_ref().filter(|first| **first != named.kernel);
        first.is_some_and(|first| kernels.contains(first))
    };
    found.sort_by_key(|(since, folder, named)| {
        let last = Reverse((*since, folder.clone()));
        (named.kernel != *own, is_second(named), last)
    });
    let found = found.into_iter();
    found.map(|(_, folder, named)| (folder, named.kernel)).collect()
}

/// When a kernel's notebook was noted.
fn named_at(folder: &Path) -> Option<SystemTime> {
    folder.join(NOTEBOOK).metadata().ok()?.modified().ok()
}

/// Gives a note another time, if there is a note.
fn touch(folder: &Path, at: SystemTime) {
    let note = File::open(folder.join(NOTEBOOK));
    let _ = note.and_then(|note| note.set_modified(at));
}

/// The time of a note behind the last one of all. The clock may have been set back since, and some file systems keep
/// whole seconds.
fn later(last: Option<SystemTime>, now: SystemTime) -> SystemTime {
    let behind = last.and_then(|last| last.checked_add(Duration::from_secs(1)));
    behind.map_or(now, |behind| behind.max(now))
}

fn folders(states: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(states).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// A kernel whose notebook has another name.
#[derive(Debug)]
pub struct Renamed {
    pub kernel: KernelId,
    folder: PathBuf,
}

impl Renamed {
    /// The present name of the notebook, which may have been renamed again.
    pub fn name(&self) -> Option<String> {
        states::notebook_name(&std::fs::read(self.folder.join(NOTEBOOK)).ok()?)
    }
}

/// Notes for all kernels of a notebook, or of the notebooks in a folder, that it has another path. The fronts of the
/// kernels in `told` hear it from their owner, and each front alone writes its kernel's note: it may know a later path
/// already. Fronts of other servers hear nothing, so their kernels' notes are written here. Returns the kernels with a
/// note written here whose notebook has another name as well.
///
/// # Errors
/// The file system's.
pub fn rename(states: &Path, told: &BTreeSet<KernelId>, old: &str, new: &str) -> io::Result<Vec<Renamed>> {
    let mut renamed = Vec::new();
    // Kernels of a notebook keep their order by age.
    let mut all: Vec<PathBuf> = folders(states).collect();
    all.sort_by_cached_key(|folder| named_at(folder));
    let mut last = all.last().and_then(|folder| named_at(folder));
    for folder in all {
        let Some(mut named) = Named::read(&folder) else {
            continue;
        };
        let rest = Path::new(&named.notebook.path).strip_prefix(old).ok();
        let path = rest.map(|rest| match rest.as_os_str().is_empty() {
            true => PathBuf::from(new),
            false => Path::new(new).join(rest),
        });
        if told.contains(&named.kernel) {
            // The kernel keeps its place by age, whether or not its front has written the new path.
            if path.is_some() || Path::new(&named.notebook.path).starts_with(new) {
                let at = later(last, SystemTime::now());
                touch(&folder, at);
                last = Some(at);
            }
            continue;
        }
        if let Some(path) = path.and_then(|path| path.into_os_string().into_string().ok()) {
            let before = std::mem::replace(&mut named.notebook.path, path);
            let at = later(last, SystemTime::now());
            named.write(&folder, at)?;
            last = Some(at);
            if Path::new(&before).file_name() != Path::new(&named.notebook.path).file_name() {
                let kernel = named.kernel;
                renamed.push(Renamed { kernel, folder });
            }
        }
    }
    Ok(renamed)
}

/// Removes a kernel's folders at its front's end: the front's own, and the state's. `meanwhile` is news for the
/// notebook's next opening, kept beside the state.
pub fn clear_away(removal: Removal, front: &Path, state: Option<&Path>, meanwhile: Option<Meanwhile>) {
    // A saved kernel keeps its state; its next front makes a new folder with new keys. A replica that is still saving
    // the kernel finds no front, and goes on by itself. A lost front may already have removed a folder.
    if removal != Removal::Nothing {
        let _ = std::fs::remove_dir_all(front);
    }
    let Some(state) = state else {
        return;
    };
    if let Some(Err(error)) = meanwhile.map(|meanwhile| meanwhile.write(state)) {
        tracing::warn!(%error, "what the last cell showed can't be kept for the notebook's next opening");
    }
    if leaves_nothing(removal, Some(state)) {
        let _ = std::fs::remove_dir_all(state);
    }
}

/// The message to `hopd` at a front's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastWord {
    /// The kernel is closed for good.
    Closed,
    /// The kernel is dead, and its state is kept for the notebook's next opening.
    Left,
}

/// How the front knows its kernel's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    No,
    /// The front's own end isn't its kernel's for certain.
    Maybe,
    Certain,
}

/// What `hopd` is told, if anything. Nobody else tells it of a kernel that died, as at a start that failed, where no
/// replica has come up again: `hopd` would list the kernel for a day. `has_notebook`: an opening may bring the kernel
/// back.
pub fn last_word(
    removal: Removal,
    death: Death,
    has_notebook: bool,
    state: Option<&Path>,
) -> Option<LastWord> {
    let closed = removal == Removal::Kernel
        || death != Death::No && leaves_nothing(removal, state)
        || death == Death::Certain && !has_notebook;
    match closed {
        true => Some(LastWord::Closed),
        false => (death == Death::Certain).then_some(LastWord::Left),
    }
}

/// Whether nothing is left of a kernel whose front ends so.
pub fn leaves_nothing(removal: Removal, state: Option<&Path>) -> bool {
    match removal {
        Removal::Nothing => false,
        Removal::Front => state.is_none_or(is_without_state),
        Removal::Kernel => true,
    }
}

/// Whether nothing of the kernel was saved, for certain: such a kernel is as good as none. A state that can't be read
/// may hold variables.
fn is_without_state(folder: &Path) -> bool {
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
fn take_patiently(folder: &Path, may_run: impl Fn() -> bool, locking: Locking) -> io::Result<Option<Owned>> {
    let since = Instant::now();
    loop {
        let taking = Owned::attempt(folder, &may_run, locking);
        let parts = || std::fs::read(folder.join(OWNER)).is_ok_and(|said| said == PARTING);
        if matches!(taking, Ok(Some(_))) || !parts() || since.elapsed() > PARTS {
            return taking;
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_log::{Act, Entry, Index, Payload, Record, RecordNumber, Sequence, Settled, State};
    use hop_protocol::meanwhile::Unsaved;
    use hop_words::id::{Incarnation, JobId, Tenure};

    fn notebook(path: &str) -> Notebook {
        Notebook {
            path: path.into(),
            kernelspec: "python3".into(),
        }
    }

    fn seek(states: &Path, notebook: &Notebook, was_left: impl Fn(&KernelId) -> bool) -> Found {
        find(states, notebook, &"new".into(), was_left)
    }

    /// A file system without locks.
    fn no_locks(_: &File) -> Result<(), TryLockError> {
        Err(TryLockError::Error(io::ErrorKind::Unsupported.into()))
    }

    /// No kernel's front is told.
    fn rename(states: &Path, old: &str, new: &str) -> io::Result<Vec<Renamed>> {
        super::rename(states, &BTreeSet::new(), old, new)
    }

    /// The kernel that an opening of the notebook `x` takes.
    fn taken(states: &Path, own: &str) -> String {
        match find(states, &notebook("x"), &own.into(), |_| false) {
            Found::Kernel(kernel, ..) => kernel.to_string(),
            other => panic!("{other:?}"),
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
        owned.name(&kernel.into(), &notebook(path), None).write().unwrap();
        states::open(&folder, &settled()).unwrap();
    }

    #[test]
    fn a_notebook_finds_its_own_kernel_and_no_other() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "/home/a/x.ipynb");
        assert!(matches!(
            seek(tmp.path(), &notebook("/home/a/copy.ipynb"), |_| false),
            Found::Nothing
        ));
        let other = Notebook {
            kernelspec: "r".into(),
            ..notebook("/home/a/x.ipynb")
        };
        assert!(matches!(seek(tmp.path(), &other, |_| false), Found::Nothing));
        let Found::Kernel(kernel, owned, _) = seek(tmp.path(), &notebook("/home/a/x.ipynb"), |_| false)
        else {
            panic!("it is there");
        };
        assert_eq!(kernel.as_str(), "k1");
        let second = seek(tmp.path(), &notebook("/home/a/x.ipynb"), |_| false);
        assert!(matches!(second, Found::InUse(k) if k.as_str() == "k1"));
        drop(owned);
        assert!(matches!(
            seek(tmp.path(), &notebook("/home/a/x.ipynb"), |_| false),
            Found::Kernel(..)
        ));
    }

    #[test]
    fn a_kernel_without_a_state_is_none() {
        let tmp = tempfile::tempdir().unwrap();
        let owned = Owned::take(&tmp.path().join("k1")).unwrap().unwrap();
        owned.name(&"k1".into(), &notebook("x"), None).write().unwrap();
        drop(owned);
        assert!(matches!(
            seek(tmp.path(), &notebook("x"), |_| false),
            Found::Nothing
        ));
        assert!(matches!(
            seek(&tmp.path().join("none"), &notebook("x"), |_| false),
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
        let found = find(tmp.path(), &notebook("x"), &"new".into(), |_| false);
        assert!(matches!(found, Found::Unreadable(k) if k.as_str() == "k1"));
    }

    #[test]
    fn a_kernel_without_a_last_save_comes_back_with_the_time_of_the_one_before() {
        let zone = TimeZone::UTC;
        let at = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 31) + Duration::from_secs(3723);
        let ended = "this notebook's kernel ended before it could be saved once more, and is back with its variables of";
        let whole = "this notebook's kernel was saved, and is back with its variables";
        assert_eq!(Saved::Whole.sentence(&zone), whole);
        assert!(!Saved::Partly.sentence(&zone).contains("was saved"));
        assert_eq!(
            Saved::Then(Some(at)).sentence(&zone),
            format!("{ended} 01:02:03 on 1 February")
        );
        assert_eq!(
            Saved::Then(None).sentence(&zone),
            format!("{ended} its last save")
        );

        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "x");
        let folder = tmp.path().join("k1");
        let beside = states::folder(&folder, Tenure(1), 0).join(STATE_FILE);
        File::open(&beside).unwrap().set_modified(at).unwrap();
        let how = || match find(tmp.path(), &notebook("x"), &"new".into(), |_| false) {
            Found::Kernel(_, _, how) => how,
            other => panic!("{other:?}"),
        };
        assert_eq!(how(), Saved::Then(Some(at)));
        let word = Meanwhile::default().whole(true);
        word.write(&folder).unwrap();
        assert_eq!(how(), Saved::Whole);
        assert!(Meanwhile::take(&folder).is_some());
        let mut state = states::newest(&folder).unwrap().unwrap();
        let act = hop_log::Entry::Act {
            tenure: Tenure(1),
            sequence: state.sequence().next(),
            act: hop_log::Act::Hibernated,
        };
        state.apply(state.applied().next(), &act).unwrap();
        states::write(&states::folder(&folder, Tenure(1), 0), &state.at_rest()).unwrap();
        assert_eq!(how(), Saved::Whole);
        let mut untold = Meanwhile::default();
        untold.unsaved.push(Unsaved {
            cell: "c1".into(),
            name: "[5]".into(),
            is_lost: false,
        });
        untold.write(&folder).unwrap();
        assert_eq!(how(), Saved::Whole, "the replica went on with the save");
        untold.unsaved[0].is_lost = true;
        untold.write(&folder).unwrap();
        assert_eq!(how(), Saved::Partly);
    }

    #[test]
    fn a_front_removes_what_its_successors_must_not_find() {
        for (removal, is_saved, front_stays, state_stays) in [
            (Removal::Nothing, false, true, true),
            (Removal::Front, true, false, true),
            (Removal::Front, false, false, false),
            (Removal::Kernel, true, false, false),
        ] {
            let tmp = tempfile::tempdir().unwrap();
            let (front, state) = (tmp.path().join("front"), tmp.path().join("k1"));
            std::fs::create_dir(&front).unwrap();
            std::fs::create_dir(&state).unwrap();
            if is_saved {
                saved(tmp.path(), "k1", "x.ipynb");
            }
            let mut meanwhile = Meanwhile::default();
            meanwhile.lost.push("x = 1".into());
            let word = |death, has_notebook| last_word(removal, death, has_notebook, Some(&state));
            let closed = |is: bool| is.then_some(LastWord::Closed);
            let ends = removal == Removal::Kernel;
            for has_notebook in [false, true] {
                let words = [Death::No, Death::Maybe].map(|death| word(death, has_notebook));
                assert_eq!(words, [closed(ends), closed(!state_stays)], "{removal:?}");
            }
            let left = if state_stays {
                LastWord::Left
            } else {
                LastWord::Closed
            };
            let dead = [false, true].map(|has_notebook| word(Death::Certain, has_notebook));
            assert_eq!(dead, [Some(LastWord::Closed), Some(left)], "{removal:?}");
            clear_away(removal, &front, Some(&state), Some(meanwhile));
            assert_eq!(
                (front.exists(), state.exists()),
                (front_stays, state_stays),
                "{removal:?}"
            );
            let told = Meanwhile::take(&state).map(|m| m.lost);
            assert_eq!(told, state_stays.then(|| vec!["x = 1".to_owned()]), "{removal:?}");
        }
    }

    #[test]
    fn a_kernel_whose_front_is_gone_is_found_before_anything_is_saved() {
        let tmp = tempfile::tempdir().unwrap();
        let owned = Owned::take(&tmp.path().join("k1")).unwrap().unwrap();
        owned.name(&"k1".into(), &notebook("x"), None).write().unwrap();
        let left = |kernel: &KernelId| kernel.as_str() == "k1";
        assert!(matches!(seek(tmp.path(), &notebook("x"), left), Found::InUse(_)));
        drop(owned);
        let found = seek(tmp.path(), &notebook("x"), left);
        assert!(matches!(found, Found::Left { kernel, is_saved: false, .. } if kernel.as_str() == "k1"));
    }

    #[test]
    fn a_kernel_that_is_saved_comes_before_a_later_one_that_was_left_with_nothing_saved() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "x");
        std::thread::sleep(POLL);
        let owned = Owned::take(&tmp.path().join("k2")).unwrap().unwrap();
        owned.name(&"k2".into(), &notebook("x"), None).write().unwrap();
        drop(owned);
        let left = |kernel: &KernelId| kernel.as_str() == "k2";
        let found = seek(tmp.path(), &notebook("x"), left);
        assert!(matches!(found, Found::Kernel(k, ..) if k.as_str() == "k1"));
    }

    /// A kernel began while the clock was ahead by a year, and another one after the clock was set back.
    #[test]
    fn the_latest_kernel_of_a_notebook_comes_first_by_any_clock() {
        let tmp = tempfile::tempdir().unwrap();
        let ahead = SystemTime::now() + Duration::from_hours(24 * 365);
        saved(tmp.path(), "k1", "x");
        let note = File::open(tmp.path().join("k1").join(NOTEBOOK)).unwrap();
        note.set_modified(ahead).unwrap();
        saved(tmp.path(), "k0", "x");
        assert_eq!(taken(tmp.path(), "new"), "k0");
        rename(tmp.path(), "x", "y").unwrap();
        rename(tmp.path(), "y", "x").unwrap();
        assert_eq!(taken(tmp.path(), "new"), "k0", "a rename keeps their order");
        let times = ["k1", "k0"].map(|kernel| named_at(&tmp.path().join(kernel)).unwrap());
        assert!(ahead < times[0] && times[0] < times[1], "{times:?}");
    }

    #[test]
    fn a_front_that_parts_is_waited_for() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "x");
        let owned = Owned::take(&tmp.path().join("k1")).unwrap().unwrap();
        owned.parts().unwrap().write();
        let found = std::thread::scope(|scope| {
            let waits = scope.spawn(|| seek(tmp.path(), &notebook("x"), |_| false));
            std::thread::sleep(POLL * 2);
            drop(owned);
            waits.join().unwrap()
        });
        assert!(matches!(found, Found::Kernel(..)));
    }

    #[test]
    fn a_kernel_that_began_while_another_ran_comes_after_that_one() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "x");
        std::thread::sleep(POLL);
        saved(tmp.path(), "k2", "x");
        assert_eq!(taken(tmp.path(), "new"), "k2", "the latest comes first");
        std::thread::sleep(POLL);
        let owned = Owned::take(&tmp.path().join("k2")).unwrap().unwrap();
        owned
            .name(&"k2".into(), &notebook("x"), Some(&"k1".into()))
            .write()
            .unwrap();
        drop(owned);
        assert_eq!(taken(tmp.path(), "new"), "k1");
        assert_eq!(taken(tmp.path(), "k2"), "k2", "its own server starts it again");
        let first = Owned::take(&tmp.path().join("k1")).unwrap().unwrap();
        assert_eq!(taken(tmp.path(), "new"), "k2");
        let second = Owned::take(&tmp.path().join("k2")).unwrap().unwrap();
        assert_eq!(second.beside(), Some("k1".into()));
        let found = seek(tmp.path(), &notebook("x"), |_| false);
        assert!(matches!(found, Found::InUse(k) if k.as_str() == "k1"));
        drop((first, second));
        assert_eq!(taken(tmp.path(), "new"), "k1");
        std::fs::remove_dir_all(tmp.path().join("k1")).unwrap();
        assert_eq!(taken(tmp.path(), "new"), "k2");
    }

    #[test]
    fn a_renamed_notebook_or_folder_finds_its_kernel_and_its_old_name_finds_none() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "/home/a/x.ipynb");
        saved(tmp.path(), "k2", "/home/a/x.ipynb.ipynb");
        let renamed = rename(tmp.path(), "/home/a/x.ipynb", "/home/a/y.ipynb").unwrap();
        let told: Vec<_> = renamed.iter().map(|r| (r.kernel.as_str(), r.name())).collect();
        assert_eq!(told, [("k1", Some("y.ipynb".to_owned()))]);
        let renamed = rename(tmp.path(), "/home/a", "/home/b/c").unwrap();
        assert!(renamed.is_empty(), "the notebooks are called as before");
        let finds = |path: &str| match seek(tmp.path(), &notebook(path), |_| false) {
            Found::Kernel(kernel, ..) => Some(kernel.to_string()),
            _ => None,
        };
        assert_eq!(finds("/home/b/c/y.ipynb").as_deref(), Some("k1"));
        assert_eq!(finds("/home/b/c/x.ipynb.ipynb").as_deref(), Some("k2"));
        for old in ["/home/a/x.ipynb", "/home/a/y.ipynb", "/home/b/c/x.ipynb"] {
            assert_eq!(finds(old), None, "{old}");
        }
    }

    #[test]
    fn a_rename_leaves_the_note_of_a_told_front_to_that_front() {
        let (x, y) = ("/home/a/x.ipynb", "/home/a/y.ipynb");
        for (is_told, noted, old, new, left) in [
            (false, x, x, y, y),
            (false, x, "/home/a", "/home/b", "/home/b/x.ipynb"),
            (true, x, x, y, x),
            (true, x, "/home/a", "/home/b", x),
            (true, y, x, y, y),
        ] {
            let tmp = tempfile::tempdir().unwrap();
            saved(tmp.path(), "k1", noted);
            let told = BTreeSet::from(["other".into(), if is_told { "k1" } else { "k2" }.into()]);
            super::rename(tmp.path(), &told, old, new).unwrap();
            let named = Named::read(&tmp.path().join("k1")).unwrap();
            assert_eq!(named.notebook.path, left, "{is_told} {noted} {old}");
        }
    }

    #[test]
    fn a_rename_keeps_the_order_of_told_and_saved_kernels() {
        for writes_first in [false, true] {
            let tmp = tempfile::tempdir().unwrap();
            saved(tmp.path(), "k1", "a");
            saved(tmp.path(), "k2", "a");
            let writes = || {
                let owned = Owned::take(&tmp.path().join("k2")).unwrap().unwrap();
                owned.name(&"k2".into(), &notebook("x"), None).write().unwrap();
            };
            if writes_first {
                writes();
            }
            super::rename(tmp.path(), &BTreeSet::from(["k2".into()]), "a", "x").unwrap();
            if !writes_first {
                writes();
            }
            assert_eq!(taken(tmp.path(), "new"), "k2", "{writes_first}");
        }
    }

    #[test]
    fn what_was_saved_before_a_restart_does_not_come_back() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "x");
        let mut state = settled();
        let entry = Entry::Act {
            tenure: Tenure(1),
            sequence: Sequence(2),
            act: Act::Fresh,
        };
        state.apply(Index(state.applied().0 + 1), &entry).unwrap();
        states::write(&states::folder(&tmp.path().join("k1"), Tenure(1), 0), &state).unwrap();
        let found = seek(tmp.path(), &notebook("x"), |_| false);
        assert!(matches!(found, Found::Nothing));
        let found = seek(tmp.path(), &notebook("x"), |_| true);
        assert!(matches!(found, Found::Left { is_saved: false, .. }));
    }

    #[test]
    fn a_saved_kernel_is_taken_in_a_home_without_locks_unless_a_front_may_run_it() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "x");
        let seek = |may_run: bool| {
            let own = "new".into();
            find_by(tmp.path(), &notebook("x"), &own, |_| may_run, no_locks)
        };
        let found = seek(true);
        assert!(
            matches!(found, Found::Unclear(k, e) if k.as_str() == "k1" && e.kind() == io::ErrorKind::Unsupported)
        );
        let Found::Kernel(kernel, owned, _) = seek(false) else {
            panic!("it is free");
        };
        assert_eq!(kernel.as_str(), "k1");
        assert!(owned.lockless().is_some());
    }

    #[test]
    fn a_front_that_parts_is_waited_for_without_locks() {
        let tmp = tempfile::tempdir().unwrap();
        saved(tmp.path(), "k1", "x");
        let folder = tmp.path().join("k1");
        let Ok(Some(owned)) = Owned::attempt(&folder, || false, no_locks) else {
            panic!("nobody has it");
        };
        owned.parts().unwrap().write();
        let front = tmp.path().join("front");
        std::fs::write(&front, "").unwrap();
        let found = std::thread::scope(|scope| {
            let own = "new".into();
            let runs = |_: &KernelId| front.exists();
            let states = tmp.path();
            let waits = scope.spawn(move || find_by(states, &notebook("x"), &own, runs, no_locks));
            std::thread::sleep(POLL * 2);
            std::fs::remove_file(&front).unwrap();
            waits.join().unwrap()
        });
        assert!(matches!(found, Found::Kernel(..)));
    }
}
