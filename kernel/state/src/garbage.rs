//! Removes content from a user's store that no state refers to (docs/state.md, "Room in the store").
//!
//! A state not understood here might need any content: then nothing is removed, and the error names the place. All
//! states of the store's user count:
//!
//! - named states
//! - every folder of every kernel's tenures, with its records of the last moment
//! - states saved into folders elsewhere, which the store knows by [`register`]
//!
//! # Content that no record names yet
//!
//! A capture stores content, or finds and touches it, before its record is written. Two rules keep this content:
//!
//! - Content used after the earliest moment that a living process holds is spared ([`crate::hold`]). This rule relies on
//!   no clock that can be set. On a file system with locks it covers every kernel with a log, and `hop state` while it
//!   fetches.
//! - Content younger than the grace is spared. It covers everybody else: kernels that write their own log, file systems
//!   without locks. The present is the time of a file in the store that is touched
//!   for it. So the clock of one node doesn't matter on a network's file system: its server has set all times. A server's
//!   clock, or that of a node with the store on its own disk, ages this content if it is set ahead by more than the
//!   grace, between a use and its record.
//!
//! A clock that is set back keeps content for longer.

use crate::form::{self, ReadError};
use crate::hold;
use crate::log::{Key, own_uid};
use hop_blobs::local::{Collected, Local};
use hop_blobs::{ChunkId, private};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The store's folder of links to places of states, beside the store's own states.
const PLACES: &str = "places";

/// The file in the store that a collection keeps locked. Its time is that of the last collection's begin.
const LOCK: &str = "collecting";

/// Attempts at a look without a change of the states meanwhile.
const LOOKS: usize = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Files beside logs, and in the folders above them. Names with a leading dot are files and folders in the making.
const KNOWN: [&str; 7] = [
    "log",
    "head",
    "kernel",
    "owner",
    "notebook",
    "hash-seed",
    "meanwhile",
];

/// Why no content is removed.
#[derive(Debug, thiserror::Error)]
pub enum GarbageError {
    #[error("the state in {} can't be read, so nothing is removed: move it away, or remove it", path.display())]
    State {
        path: PathBuf,
        #[source]
        source: ReadError,
    },
    #[error("{} is nothing that this release knows and may be a state, so nothing is removed", path.display())]
    Unknown { path: PathBuf },
    #[error("{} is out of reach and may have a state, so nothing is removed", path.display())]
    Away {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("states come and go, so nothing is removed: run this again")]
    Restless,
    #[error("another collection is under way")]
    Busy,
    #[error("the store can't be used")]
    Io(#[from] io::Error),
}

/// Has later collections in the store look for states also in `folder`: a state, or a folder of states.
///
/// # Errors
/// The file system's, also for a missing store.
pub fn register(store: &Path, folder: &Path) -> io::Result<()> {
    let folder = std::path::absolute(folder)?;
    let places = store.join(PLACES);
    // Not with the store, which its user's program checks and makes.
    fs::metadata(store)?;
    private::folder(&places, &places)?;
    let mark = blake3::hash(folder.as_os_str().as_encoded_bytes()).to_hex();
    match std::os::unix::fs::symlink(&folder, places.join(&mark[..32])) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// The time since the begin of the last collection in this store. `None` means that there was none.
pub fn age(store: &Path, now: SystemTime) -> Option<Duration> {
    let begun = fs::metadata(store.join(LOCK)).and_then(|m| m.modified()).ok()?;
    // A collection far in the future was begun by a clock that was ahead.
    let age = now.duration_since(begun).unwrap_or_else(|ahead| ahead.duration());
    Some(age)
}

/// Removes content that no state refers to, unless it was stored or asked for within `grace`, or a living kernel holds
/// it: its record may be on the way. `states` is the folder of the user's states; those of [`register`] count, too.
///
/// # Errors
/// [`GarbageError`]. Nothing is removed but after errors of the removal itself.
pub fn collect(store: &Path, states: &Path, key: &Key, grace: Duration) -> Result<Collected, GarbageError> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    let lock = private::open(&mut options, &store.join(LOCK))?;
    match lock.try_lock() {
        // Two collections do each other no harm: the lock spares work, on file systems that have locks.
        Ok(()) | Err(TryLockError::Error(_)) => {}
        Err(TryLockError::WouldBlock) => return Err(GarbageError::Busy),
    }
    // The look at the states comes after this moment: content whose record comes after the look is younger.
    let now = hold::touched(&lock)?;
    let unused_since = now.checked_sub(grace).unwrap_or(SystemTime::UNIX_EPOCH);
    let unused_since = hold::since(store)?.map_or(unused_since, |held| held.min(unused_since));
    let live = live(store, states, key.bytes(), own_uid())?;
    Ok(Local::at(&store.join("chunks")).collect(&live, unused_since)?)
}

/// The chunks that states refer to.
fn live(store: &Path, states: &Path, key: &[u8; 32], uid: u32) -> Result<HashSet<ChunkId>, GarbageError> {
    let mut why = GarbageError::Restless;
    for attempt in 0..LOOKS {
        if attempt > 0 {
            std::thread::sleep(BETWEEN_LOOKS);
        }
        // A kernel's log goes on in another folder, and the earlier one is removed: only a look without any such
        // change has found all. A state being replaced is unreadable for a moment.
        let found = all_logs(store, states)?;
        match read_all(&found, key, uid) {
            Ok(Some(chunks)) if all_logs(store, states)? == found => return Ok(chunks),
            Ok(_) => why = GarbageError::Restless,
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// The chunks named by these logs. `None` means that a log is gone.
fn read_all(
    logs: &BTreeSet<PathBuf>,
    key: &[u8; 32],
    uid: u32,
) -> Result<Option<HashSet<ChunkId>>, GarbageError> {
    let mut live = HashSet::new();
    for folder in logs {
        match form::named(folder, key, uid) {
            Ok(chunks) => live.extend(chunks.keys().filter_map(|name| name.parse::<ChunkId>().ok())),
            Err(source) => {
                let path = folder.clone();
                return if is_log(folder)? {
                    Err(GarbageError::State { path, source })
                } else {
                    Ok(None)
                };
            }
        }
    }
    Ok(Some(live))
}

fn is_log(folder: &Path) -> Result<bool, GarbageError> {
    for name in ["log", "head"] {
        let there = folder.join(name).try_exists();
        if there.map_err(|source| away(folder, source))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn canonical(folder: &Path) -> PathBuf {
    fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned())
}

fn away(path: &Path, source: io::Error) -> GarbageError {
    let path = path.to_owned();
    GarbageError::Away { path, source }
}

/// The folders of all logs.
fn all_logs(store: &Path, states: &Path) -> Result<BTreeSet<PathBuf>, GarbageError> {
    // Most links lead to the states' own folder: each place is looked at once.
    let mut places = BTreeMap::from([(canonical(states), states.to_owned())]);
    for link in entries(&store.join(PLACES))? {
        if let Some(folder) = linked(&link)? {
            places.entry(canonical(&folder)).or_insert(folder);
        } else {
            // The next collection would pass over the link as well.
            let _ = fs::remove_file(&link);
        }
    }
    let mut found = BTreeSet::new();
    for folder in places.values() {
        let level = if is_log(folder)? {
            Level::State
        } else {
            Level::States
        };
        look(folder, level, &mut found)?;
    }
    Ok(found)
}

/// The folder behind a link of [`register`]. `None` means that the folder is gone, though the parent still exists.
fn linked(link: &Path) -> Result<Option<PathBuf>, GarbageError> {
    let folder = fs::read_link(link)?;
    match fs::metadata(&folder) {
        Ok(_) => Ok(Some(folder)),
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && folder.parent().is_some_and(Path::exists) =>
        {
            Ok(None)
        }
        Err(source) => Err(away(&folder, source)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// A folder of states and kernels.
    States,
    /// A named state, or the folder of a kernel's tenures.
    State,
    /// A tenure's folder.
    Tenure,
}

/// Finds the logs at and below a folder, and refuses what it doesn't know.
fn look(folder: &Path, level: Level, found: &mut BTreeSet<PathBuf>) -> Result<(), GarbageError> {
    if is_log(folder)? {
        found.insert(canonical(folder));
    }
    for path in entries(folder)? {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let in_the_making = name.starts_with('.');
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // An entry may have gone since. A link to nothing may be a state all the same.
                if fs::symlink_metadata(&path).is_ok() && !in_the_making {
                    return Err(GarbageError::Unknown { path });
                }
                continue;
            }
            Err(source) => return Err(away(&path, source)),
        };
        let below = match level {
            Level::States => Some(Level::State),
            Level::State if is_of_a_tenure(&name) => Some(Level::Tenure),
            _ => None,
        };
        match below {
            _ if in_the_making => {
                if meta.is_dir() && is_log(&path)? {
                    found.insert(path);
                }
            }
            Some(level) if meta.is_dir() => look(&path, level, found)?,
            _ if meta.is_file() && KNOWN.contains(&&name[..]) => {}
            _ => return Err(GarbageError::Unknown { path }),
        }
    }
    Ok(())
}

/// `<tenure>.<part>` (`hop_log::store`).
fn is_of_a_tenure(name: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    name.split_once('.')
        .is_some_and(|(tenure, part)| digits(tenure) && digits(part))
}

/// The entries of a folder; none if there is no folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, GarbageError> {
    hold::entries(folder).map_err(|error| away(folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::Writer;

    const KEY: [u8; 32] = [7; 32];

    struct World {
        _tmp: tempfile::TempDir,
        store: PathBuf,
        states: PathBuf,
        local: Local,
    }

    fn world() -> World {
        let tmp = tempfile::tempdir().unwrap();
        let (store, states) = (tmp.path().join("store"), tmp.path().join("states"));
        fs::create_dir(&states).unwrap();
        fs::create_dir(&store).unwrap();
        World {
            local: Local::at(&store.join("chunks")),
            store,
            states,
            _tmp: tmp,
        }
    }

    impl World {
        fn content(&self, text: &str) -> ChunkId {
            self.local.put(text.as_bytes()).unwrap().0
        }

        /// A log as a replica writes it, with a record for each of these chunks.
        fn log(&self, folder: &str, chunks: &[ChunkId]) -> Writer {
            let folder = self.states.join(folder);
            fs::create_dir_all(&folder).unwrap();
            let mut log = Writer::create(&folder, &Key::new(KEY)).unwrap();
            for chunk in chunks {
                log.append(&record(*chunk), b"").unwrap();
            }
            log
        }

        fn collect(&self) -> Result<Collected, GarbageError> {
            collect(&self.store, &self.states, &Key::new(KEY), Duration::ZERO)
        }

        fn has(&self, chunk: ChunkId) -> bool {
            self.local.path(chunk).exists()
        }
    }

    fn record(chunk: ChunkId) -> Vec<u8> {
        let said = serde_json::json!({
            "at": 1.0, "gone": [], "process": {}, "inputs": {}, "env": null, "cell": null,
            "units": [{"u": 1, "m": ["n:a"], "s": {"in": [0, 0]}, "b": [[4, 0, [chunk.to_string()]]], "f": [],
                "c": [], "t": [], "gone": [], "notes": [], "types": [], "sec": 0.0, "dig": ""}],
        });
        said.to_string().into_bytes()
    }

    #[test]
    fn what_kernels_and_named_states_need_stays_with_the_records_of_the_last_moment() {
        let world = world();
        let chunks = ["named", "counts", "coming", "begun", "made"].map(|text| world.content(text));
        let [named, counts, coming, begun, made] = chunks;
        let dead = world.content("dead");
        world.log("work", &[named]).commit().unwrap();
        let mut log = world.log("kernel-1/3.0", &[counts]);
        log.commit().unwrap();
        log.append(&record(coming), b"").unwrap();
        fs::write(world.states.join("kernel-1/3.0/kernel"), "{}").unwrap();
        world.log("kernel-2/4.1", &[begun]);
        fs::create_dir(world.states.join("kernel-2/5.0")).unwrap();
        world.log("kernel-2/.new-x", &[made]);
        for name in ["owner", "notebook", "hash-seed", "meanwhile", ".tmpx"] {
            fs::write(world.states.join("kernel-2").join(name), "").unwrap();
        }
        assert_eq!(world.collect().unwrap().removed, 1);
        assert_eq!(chunks.map(|c| world.has(c)), [true; 5]);
        assert!(!world.has(dead));
        fs::remove_dir_all(world.states.join("kernel-1")).unwrap();
        assert_eq!(world.collect().unwrap().removed, 2);
        assert!(!world.has(counts) && !world.has(coming));
    }

    #[test]
    fn what_is_unknown_or_damaged_keeps_everything_and_is_named() {
        let world = world();
        let dead = world.content("dead");
        let named = world.content("named");
        world.log("k/1.0", &[named]).commit().unwrap();
        let refuses = |place: &str, folder: bool| {
            let path = world.states.join(place);
            if folder {
                fs::create_dir_all(&path).unwrap();
            } else {
                fs::write(&path, "text").unwrap();
            }
            let why = world.collect().unwrap_err();
            assert!(
                matches!(&why, GarbageError::Unknown { path: p } if *p == path),
                "{why}"
            );
            assert!(why.to_string().contains(place));
            if folder {
                fs::remove_dir_all(&path).unwrap();
            } else {
                fs::remove_file(&path).unwrap();
            }
        };
        refuses("k/tenures", true);
        refuses("k/index", false);
        refuses("k/1.0/segments", true);
        refuses("k/1.0/log.2", false);
        refuses("packed-states", false);
        std::os::unix::fs::symlink("/nowhere/state", world.states.join("linked")).unwrap();
        assert!(matches!(world.collect(), Err(GarbageError::Unknown { .. })));
        fs::remove_file(world.states.join("linked")).unwrap();

        let log = world.states.join("k/1.0/log");
        let whole = fs::read(&log).unwrap();
        for damaged in [&whole[..whole.len() - 1], b"", b"HOPSTATE\x63\0\0\0b3\0\0"] {
            fs::write(&log, damaged).unwrap();
            assert!(matches!(world.collect(), Err(GarbageError::State { .. })));
        }
        fs::remove_file(&log).unwrap();
        assert!(matches!(world.collect(), Err(GarbageError::State { .. })));
        // Of another release, and just begun.
        fs::remove_file(world.states.join("k/1.0/head")).unwrap();
        fs::write(&log, b"HOPSTATE\x63\0\0\0b3\0\0").unwrap();
        assert!(matches!(world.collect(), Err(GarbageError::State { .. })));
        assert!(world.has(dead) && world.has(named));
        fs::write(&log, &whole[..10]).unwrap();
        assert_eq!(world.collect().unwrap().removed, 2);
    }

    #[test]
    fn states_elsewhere_count_until_they_are_removed() {
        let world = world();
        let [one, two] = ["one", "two"].map(|text| world.content(text));
        let elsewhere = tempfile::tempdir().unwrap();
        world.log("made/x", &[one]).commit().unwrap();
        let moved = elsewhere.path().join("far/work");
        fs::create_dir(elsewhere.path().join("far")).unwrap();
        fs::rename(world.states.join("made/x"), &moved).unwrap();
        let others = elsewhere.path().join("others");
        world.log("made/y", &[two]).commit().unwrap();
        fs::rename(world.states.join("made"), &others).unwrap();
        for place in [&moved, &others, &others] {
            register(&world.store, place).unwrap();
        }
        assert_eq!(world.collect().unwrap().removed, 0);
        fs::rename(elsewhere.path().join("far"), elsewhere.path().join("unmounted")).unwrap();
        assert!(matches!(world.collect(), Err(GarbageError::Away { path, .. }) if path == moved));
        fs::rename(elsewhere.path().join("unmounted"), elsewhere.path().join("far")).unwrap();
        fs::remove_dir_all(&moved).unwrap();
        assert_eq!(world.collect().unwrap().removed, 1);
        assert!(!world.has(one) && world.has(two));
    }

    #[test]
    fn a_clock_that_is_set_ahead_ages_nothing_that_a_living_kernel_may_need() {
        let world = world();
        let captured = world.content("captured");
        let mut hold = hold::Hold::begin(&world.store, Duration::ZERO).unwrap();
        // All times so far are of before the clock was set.
        let ahead = |time: SystemTime| time - Duration::from_hours(48);
        let chunk = File::open(world.local.path(captured)).unwrap();
        chunk.set_modified(ahead(SystemTime::now())).unwrap();
        hold.was_seen(ahead);
        let hour = Duration::from_hours(1);
        let collect = || collect(&world.store, &world.states, &Key::new(KEY), hour).unwrap();
        assert_eq!((collect().kept, world.has(captured)), (1, true));
        hold.go_on(hour / 2).unwrap();
        assert_eq!(collect().kept, 1, "its record may still be on the way");
        hold.go_on(2 * hour).unwrap();
        assert_eq!(collect().removed, 1);
        drop(hold);
        let captured = world.content("captured");
        let chunk = File::open(world.local.path(captured)).unwrap();
        chunk.set_modified(ahead(SystemTime::now())).unwrap();
        assert_eq!(collect().removed, 1, "nobody holds it");
    }

    #[test]
    fn a_collection_far_in_the_future_keeps_none_off() {
        let world = world();
        let lock = File::create(world.store.join(LOCK)).unwrap();
        let (now, hour) = (SystemTime::now(), Duration::from_hours(1));
        lock.set_modified(now + 48 * hour).unwrap();
        assert!(age(&world.store, now).unwrap() > hour);
        world.collect().unwrap();
        assert!(age(&world.store, SystemTime::now()).unwrap() < hour);
    }

    #[test]
    fn one_collects_at_a_time() {
        let world = world();
        assert_eq!(age(&world.store, SystemTime::now()), None);
        let lock = File::create(world.store.join(LOCK)).unwrap();
        lock.lock().unwrap();
        assert!(matches!(world.collect(), Err(GarbageError::Busy)));
        drop(lock);
        assert_eq!(world.collect().unwrap(), Collected::default());
        assert!(age(&world.store, SystemTime::now()).is_some());
    }
}
