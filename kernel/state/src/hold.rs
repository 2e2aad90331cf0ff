//! Holds on content that a capture in progress may need: no record names it yet, so a collection would take it for
//! garbage.
//!
//! A kernel keeps a file in the store's folder `holds` locked for life. The file says a moment. A collection spares all
//! content used since the earliest moment of a living holder. A holder's end, however it comes, frees the lock, and a
//! later collection removes the file.
//!
//! Both the moments and the times of content are the file system's own: those of a network's file system come from its
//! server. They are only compared with one another. The holder measures by a clock that nobody sets how long ago it saw
//! which moment, and holds from one that is more than [`HELD`] old. So no clock that is set, on a node or on the
//! server, makes held content old: content is used after the moment that is held, by the same clock.
//!
//! Left to others: a file system without locks has no holds. Content is then as safe as its age says
//! ([`crate::garbage`]).

use crate::log::random;
use hop_blobs::private;
use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The store's folder of holds.
const HOLDS: &str = "holds";

/// Content is held for so long after its last use. The record of a capture comes within twenty minutes (docs/state.md).
pub const HELD: Duration = Duration::from_hours(1);

/// How often a holder has its hold go on. Content is held for longer by as much.
pub const GOES_ON_EVERY: Duration = Duration::from_mins(10);

/// Attempts at a file that no collection removes before it is locked.
const TRIES: usize = 5;

/// The moments that a holder has seen, the oldest first: each by its own clock and by the file system's.
#[derive(Debug)]
struct Seen(VecDeque<(Duration, SystemTime)>);

impl Seen {
    /// A holder begins. Records may be on their way for it since before.
    fn first(now: Duration, moment: SystemTime) -> Self {
        let since = moment.checked_sub(HELD).unwrap_or(SystemTime::UNIX_EPOCH);
        Self(VecDeque::from([(now, since)]))
    }

    /// Sees the present moment; returns the one from which content is held.
    fn sees(&mut self, now: Duration, moment: SystemTime) -> SystemTime {
        self.0.push_back((now, moment));
        while self
            .0
            .get(1)
            .is_some_and(|(at, _)| now.saturating_sub(*at) >= HELD)
        {
            self.0.pop_front();
        }
        self.since()
    }

    /// The earliest, should the file system's clock have been set back.
    fn since(&self) -> SystemTime {
        let moments = self.0.iter().map(|(_, moment)| *moment);
        moments.min().unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// A hold on the content of one store, until it is dropped.
#[derive(Debug)]
pub struct Hold {
    path: PathBuf,
    file: File,
    seen: Seen,
}

impl Hold {
    /// Holds what is used from now on, and what was within [`HELD`]. `now` is the time on a clock that is never set.
    ///
    /// # Errors
    /// The file system's: for instance, it has no locks.
    pub fn begin(store: &Path, now: Duration) -> io::Result<Self> {
        let (path, file) = locked(&store.join(HOLDS))?;
        let begun = touched(&file).and_then(|moment| {
            let seen = Seen::first(now, moment);
            write(&file, seen.since())?;
            Ok(seen)
        });
        match begun {
            Ok(seen) => Ok(Self { path, file, seen }),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// Lets go of what was used long ago. Due each [`GOES_ON_EVERY`]; a hold that doesn't go on keeps all the longer.
    ///
    /// # Errors
    /// The file system's, also for a file that was removed with its store.
    pub fn go_on(&mut self, now: Duration) -> io::Result<()> {
        if self.file.metadata()?.nlink() == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let moment = touched(&self.file)?;
        write(&self.file, self.seen.sees(now, moment))
    }
}

#[cfg(test)]
impl Hold {
    /// Has the moments seen so far be others.
    pub(crate) fn was_seen(&mut self, other: impl Fn(SystemTime) -> SystemTime) {
        for (_, moment) in &mut self.seen.0 {
            *moment = other(*moment);
        }
        write(&self.file, self.seen.since()).unwrap();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The next collection removes a file left behind.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes a file, and locks it.
fn locked(holds: &Path) -> io::Result<(PathBuf, File)> {
    // Made in the user's process, under any umask.
    private::folder(holds, holds)?;
    for _ in 0..TRIES {
        let path = holds.join(hex::encode(&random()?[..16]));
        let file = private::open(File::options().read(true).write(true).create_new(true), &path)?;
        // A collection may have found it unlocked.
        match file.try_lock() {
            Ok(()) if file.metadata()?.nlink() > 0 => return Ok((path, file)),
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => {
                let _ = fs::remove_file(&path);
                return Err(error);
            }
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Microseconds since 1970, always as long, so that a reader finds the last moment or this one.
fn write(mut file: &File, since: SystemTime) -> io::Result<()> {
    let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    file.rewind()?;
    file.write_all(format!("{:020}\n", since.as_micros()).as_bytes())?;
    file.sync_data()
}

/// The earliest moment from which a living holder holds content. `None` means that nothing is held.
///
/// # Errors
/// The file system's.
pub(crate) fn since(store: &Path) -> io::Result<Option<SystemTime>> {
    let mut earliest = None;
    for path in entries(&store.join(HOLDS))? {
        let mut file = match File::options().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        match file.try_lock() {
            // Its holder is gone.
            Ok(()) => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => continue,
            },
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // A holder that has said nothing yet holds everything.
        let micros = text.trim().parse().unwrap_or(0);
        let since = SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
        earliest = earliest.min(Some(since)).or(Some(since));
    }
    Ok(earliest)
}

/// Has the file's time be the present one by the file system's own clock, and returns it.
pub(crate) fn touched(file: &File) -> io::Result<SystemTime> {
    rustix::fs::futimens(file, &hop_blobs::local::NOW)?;
    file.metadata()?.modified()
}

/// The entries of a folder; none if there is no folder.
pub(crate) fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| entry.map(|e| e.path())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60;

    fn at(minutes: u64) -> Duration {
        Duration::from_secs(minutes * MINUTE)
    }

    /// Moments of the file system in minutes, each ten minutes of the holder's clock; and the minute that is held from.
    fn held_from(moments: &[u64]) -> u64 {
        let moment = |minutes| SystemTime::UNIX_EPOCH + at(minutes);
        let mut seen = Seen::first(Duration::ZERO, moment(moments[0]));
        for (n, minutes) in moments.iter().enumerate().skip(1) {
            seen.sees(at(10 * n as u64), moment(*minutes));
        }
        let since = seen.since().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        since.as_secs() / MINUTE
    }

    #[test]
    fn content_is_held_for_an_hour_by_a_clock_that_is_never_set() {
        let steady: Vec<u64> = (0..12).map(|n| 1000 + 10 * n).collect();
        for (seen, from, why) in [
            (&steady[..1], 940, "records may be on their way since before"),
            (&steady[..6], 940, "the holder has not seen an hour"),
            (&steady[..8], 1010, "an hour after its second look"),
            (&steady[..12], 1050, "and so on"),
            (&[1000, 1010, 1080, 1090], 940, "the clock was set an hour ahead"),
            (
                &[1000, 1070, 1080, 1090, 1100, 1110, 1120, 1130, 1140],
                1080,
                "an hour after that",
            ),
            (&[1000, 1010, 400, 410], 400, "it was set back"),
            (
                &[1000, 1010, 400, 410, 420, 430, 440, 450, 460, 470],
                410,
                "and is past it",
            ),
        ] {
            assert_eq!(held_from(seen), from, "{why}: {seen:?}");
        }
    }

    fn store() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn the_earliest_of_the_living_holders_counts() {
        let store = store();
        assert_eq!(since(store.path()).unwrap(), None);
        let (one, two) = (
            Hold::begin(store.path(), at(0)).unwrap(),
            Hold::begin(store.path(), at(0)).unwrap(),
        );
        let early = SystemTime::UNIX_EPOCH + at(7);
        write(&one.file, early).unwrap();
        assert_eq!(since(store.path()).unwrap(), Some(early));
        fs::write(&two.path, "").unwrap();
        assert_eq!(since(store.path()).unwrap(), Some(SystemTime::UNIX_EPOCH));
        drop(two);
        assert_eq!(since(store.path()).unwrap(), Some(early));
        drop(one);
        assert_eq!(since(store.path()).unwrap(), None);
        // Left by a process that was killed.
        fs::write(store.path().join(HOLDS).join("dead"), "0").unwrap();
        assert_eq!(since(store.path()).unwrap(), None);
        assert_eq!(fs::read_dir(store.path().join(HOLDS)).unwrap().count(), 0);
    }

    #[test]
    fn a_hold_that_was_removed_says_so() {
        let store = store();
        let mut hold = Hold::begin(store.path(), at(0)).unwrap();
        hold.go_on(at(10)).unwrap();
        fs::remove_dir_all(store.path().join(HOLDS)).unwrap();
        assert_eq!(hold.go_on(at(20)).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
