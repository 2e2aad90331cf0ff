//! The log of a folder, and the groups in it.

use crate::error::{AppendError, OpenError, SyncError};
use crate::frame::{Frame, GroupNumber, Position};
use crate::memory::GroupState;
use crate::options::Options;
use crate::segment::Blank;
use crate::shared::{Shared, read_all};
use crate::sync::Syncer;
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

/// The log of a folder. Dropping syncs all frames and ends the thread.
#[derive(Debug)]
pub struct Wal {
    shared: Arc<Shared>,
    _syncer: Syncer,
}

impl Wal {
    /// Opens or makes the log in a folder, and reads its content.
    ///
    /// # Errors
    /// If the folder can't be used, another process has the log open, or acknowledged frames are damaged.
    pub fn open(dir: &Path, options: Options) -> Result<Self, OpenError> {
        let folder = |source| OpenError::Folder {
            path: dir.to_owned(),
            source,
        };
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(dir).map_err(folder)?;
        let lock = lock(dir)?;
        // An unfinished segment.
        match std::fs::remove_file(dir.join("blank")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(folder(error)),
            _ => {}
        }
        let mut core = read_all(dir)?;
        if core.segments.is_empty() {
            let blank = Blank::create(dir, options.segment).map_err(folder)?;
            core.segments
                .push_back(blank.into_segment(dir, 1).map_err(folder)?);
        }
        let shared = Arc::new(Shared::new(dir, options, core, lock));
        let syncer = Syncer::start(Arc::clone(&shared)).map_err(folder)?;
        Ok(Self {
            shared,
            _syncer: syncer,
        })
    }

    /// The group of this name, with its content in the log.
    ///
    /// # Errors
    /// If the group is new and can't be written.
    pub fn group(&self, name: &[u8]) -> Result<Group, AppendError> {
        let core = self.shared.lock();
        let number = match core.memory.find(name) {
            Some(number) => number,
            None => {
                let group = core.memory.next_number();
                let name = Bytes::copy_from_slice(name);
                self.shared.write(core, &[Frame::Open { group, name }]).1?;
                group
            }
        };
        Ok(Group {
            shared: Arc::clone(&self.shared),
            number,
        })
    }

    /// The groups in the log.
    pub fn names(&self) -> Vec<Bytes> {
        self.shared.lock().memory.names().cloned().collect()
    }

    /// Calls `then` once all frames up to the position are synced, or syncing has failed. The call may come at once, or
    /// from another thread.
    pub fn on_synced(&self, position: Position, then: impl FnOnce(Result<(), SyncError>) + Send + 'static) {
        self.shared.on_synced(position, Box::new(then));
    }

    /// Bytes of the log on its disk.
    pub fn disk(&self) -> u64 {
        let core = self.shared.lock();
        core.segments.iter().chain(&core.next).map(|s| s.size).sum()
    }
}

/// One group in the log.
#[derive(Debug, Clone)]
pub struct Group {
    shared: Arc<Shared>,
    number: GroupNumber,
}

impl Group {
    /// Writes entries behind the last entry. On return the entries are readable, and safe against the process's death.
    ///
    /// # Errors
    /// If the entries don't follow the last, or can't be written. The log is unchanged then.
    pub fn append(&self, first: u64, entries: &[Bytes]) -> Result<Position, AppendError> {
        let core = self.shared.lock();
        let last = core.memory.group(self.number).ok_or(AppendError::Closed)?.last();
        if let Some(last) = last.filter(|last| first != last + 1) {
            return Err(AppendError::Gap { index: first, last });
        }
        let frames: Vec<Frame> = (first..)
            .zip(entries)
            .map(|(index, entry)| Frame::Entry {
                group: self.number,
                index,
                entry: entry.clone(),
            })
            .collect();
        self.shared.write(core, &frames).1
    }

    /// Sets a slot's value.
    ///
    /// # Errors
    /// If the frame can't be written; the slot keeps its value then.
    pub fn put(&self, slot: u64, value: Bytes) -> Result<Position, AppendError> {
        let group = self.number;
        self.write(Frame::Put { group, slot, value })
    }

    /// Removes the entries from this index on.
    ///
    /// # Errors
    /// If the frame can't be written; the entries stay then.
    pub fn truncate(&self, from: u64) -> Result<Position, AppendError> {
        let group = self.number;
        self.write(Frame::Truncate { group, from })
    }

    /// Removes the entries up to this index.
    ///
    /// # Errors
    /// If the frame can't be written; the entries stay then.
    pub fn purge(&self, upto: u64) -> Result<Position, AppendError> {
        let group = self.number;
        self.write(Frame::Purge { group, upto })
    }

    /// Removes the group with all content.
    ///
    /// # Errors
    /// If the frame can't be written; the group stays then.
    pub fn close(&self) -> Result<Position, AppendError> {
        let group = self.number;
        self.write(Frame::Close { group })
    }

    fn write(&self, frame: Frame) -> Result<Position, AppendError> {
        let core = self.shared.lock();
        core.memory.group(self.number).ok_or(AppendError::Closed)?;
        self.shared.write(core, &[frame]).1
    }

    /// The position behind all written frames, of all groups.
    pub fn written(&self) -> Position {
        self.shared.lock().written
    }

    /// Reads the group's content. `None`: the group is closed.
    pub fn read<R>(&self, look: impl FnOnce(&GroupState) -> R) -> Option<R> {
        self.shared.lock().memory.group(self.number).map(look)
    }

    /// As [`Wal::on_synced`].
    pub fn on_synced(&self, position: Position, then: impl FnOnce(Result<(), SyncError>) + Send + 'static) {
        self.shared.on_synced(position, Box::new(then));
    }
}

fn lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join("lock");
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(|source| OpenError::Folder {
        path: path.clone(),
        source,
    })?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| OpenError::Locked { path: dir.to_owned() })?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment;

    impl Wal {
        /// Exchanges the file of the segment that takes new frames.
        fn exchange(&self, file: Arc<File>) -> Arc<File> {
            let mut core = self.shared.lock();
            let last = core.segments.back_mut().unwrap();
            std::mem::replace(&mut last.file, file)
        }
    }

    /// The segment may end with a part of the frame, behind which no other counts.
    #[test]
    fn nothing_is_taken_after_a_frame_that_could_not_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let wal = Wal::open(dir.path(), Options::default()).unwrap();
        let group = wal.group(b"k").unwrap();
        let other = wal.group(b"other").unwrap();
        group.append(1, &[Bytes::from_static(b"first")]).unwrap();
        let read_only = File::open(segment::path(dir.path(), 1)).unwrap();
        let file = wal.exchange(Arc::new(read_only));
        let entry = [Bytes::from_static(b"second")];
        let written = group.append(2, &entry);
        assert!(matches!(written, Err(AppendError::Write(_))), "{written:?}");
        wal.exchange(file);
        for later in [
            group.append(2, &entry),
            other.append(1, &entry),
            other.put(0, Bytes::new()),
        ] {
            assert!(matches!(later, Err(AppendError::Write(_))), "{later:?}");
        }
        drop((wal, group, other));
        let wal = Wal::open(dir.path(), Options::default()).unwrap();
        let group = wal.group(b"k").unwrap();
        assert_eq!(group.read(|g| g.last()).unwrap(), Some(1));
    }
}
