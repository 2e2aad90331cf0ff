//! The log's content, shared by its callers and the syncing thread: memory, segments, and frames in line for a sync.

use crate::error::{AppendError, OpenError, SyncError};
use crate::frame::{Frame, HEAD, Position};
use crate::memory::{Memory, SegmentNumber};
use crate::options::{Options, Sync};
use crate::segment::{self, Blank, HEADER, Segment};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    core: Mutex<Core>,
    /// Work for the syncer.
    pub(crate) work: Condvar,
    /// The syncer has made a segment, or has failed.
    pub(crate) made: Condvar,
    /// Held while the log is open.
    _lock: File,
}

pub(crate) struct Core {
    pub(crate) memory: Memory,
    /// The oldest first. The last takes new frames.
    pub(crate) segments: VecDeque<Segment>,
    /// Prepared for a full last segment.
    pub(crate) next: Option<Segment>,
    /// The next frame's offset in the last segment.
    at: u64,
    /// All bytes ever written.
    pub(crate) written: Position,
    pub(crate) synced: Position,
    /// Files with unsynced frames.
    pub(crate) dirty: Vec<Arc<File>>,
    pub(crate) waiters: Vec<(Position, Waiter)>,
    /// Segments without living content after the sync of the position.
    retired: VecDeque<(Position, SegmentNumber)>,
    failed: Option<AppendError>,
    /// The syncer makes a segment. Nobody else may: two segments would get the same name.
    pub(crate) making: bool,
    /// The time of the last failure to make a segment.
    no_space: Option<Instant>,
    pub(crate) closing: bool,
}

/// Called once when frames are synced, or can't be.
pub(crate) type Waiter = Box<dyn FnOnce(Result<(), SyncError>) + Send>;

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("written", &self.written)
            .field("synced", &self.synced)
            .finish_non_exhaustive()
    }
}

/// The pause before the next attempt to make a segment.
const NO_SPACE_PAUSE: Duration = Duration::from_secs(1);

impl Shared {
    /// The content of a folder, around which the callers and the syncing thread meet. `lock` stays held as long.
    pub(crate) fn new(dir: &Path, options: Options, core: Core, lock: File) -> Self {
        Self {
            dir: dir.to_owned(),
            options,
            core: Mutex::new(core),
            work: Condvar::new(),
            made: Condvar::new(),
            _lock: lock,
        }
    }

    /// The content. A panicked thread left the content in order: each change follows the writing of its frame.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes frames, all or none of them.
    pub(crate) fn write<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        frames: &[Frame],
    ) -> (MutexGuard<'a, Core>, Result<Position, AppendError>) {
        let size: u64 = frames.iter().map(|f| f.size() as u64).sum();
        // Room for the segment's last frame is always kept.
        let needed = size + HEAD as u64;
        if !core.has_room(needed) {
            core = self
                .made
                .wait_while(core, |c| c.making)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let written = self.write_now(&mut core, frames, needed);
        (core, written)
    }

    fn write_now(&self, core: &mut Core, frames: &[Frame], needed: u64) -> Result<Position, AppendError> {
        if let Some(failed) = &core.failed {
            return Err(failed.clone());
        }
        if !core.has_room(needed) {
            self.begin_segment(core, HEADER + needed)?;
        }
        core.put_down(frames)?;
        self.work.notify_one();
        Ok(core.written)
    }

    /// Goes on in the next segment, of at least `needed` bytes.
    fn begin_segment(&self, core: &mut Core, needed: u64) -> Result<(), AppendError> {
        let number = core.last().number + 1;
        if core.next.as_ref().is_none_or(|next| next.size < needed) {
            // A prepared segment of too small a size is replaced: the name is the same.
            let made = self.make_segment(number, needed.max(self.options.segment));
            core.next = Some(made.map_err(|source| AppendError::Segment {
                path: self.dir.clone(),
                source: Arc::new(source),
            })?);
        }
        core.put_down(&[Frame::End])?;
        core.segments.extend(core.next.take());
        core.at = HEADER;
        Ok(())
    }

    pub(crate) fn make_segment(&self, number: SegmentNumber, size: u64) -> io::Result<Segment> {
        Blank::create(&self.dir, size)?.into_segment(&self.dir, number)
    }

    pub(crate) fn on_synced(&self, position: Position, then: Waiter) {
        let mut core = self.lock();
        if let Some(AppendError::Sync(error)) = &core.failed {
            let error = error.clone();
            drop(core);
            return then(Err(error));
        }
        if position <= core.synced || self.options.sync != Sync::Always {
            drop(core);
            return then(Ok(()));
        }
        core.waiters.push((position, then));
        self.work.notify_one();
    }
}

impl Core {
    /// The segment that takes new frames.
    fn last(&self) -> &Segment {
        self.segments.back().expect("there is always one")
    }

    fn has_room(&self, needed: u64) -> bool {
        self.at + needed <= self.last().size
    }

    /// Writes frames to the last segment, where the frames are known to fit. A failure is for good: the segment may end
    /// with a part of a frame.
    fn put_down(&mut self, frames: &[Frame]) -> Result<(), AppendError> {
        let (number, file) = (self.last().number, Arc::clone(&self.last().file));
        let mut bytes = BytesMut::new();
        for frame in frames {
            frame.encode(number, &mut bytes);
        }
        debug_assert!(
            self.at + bytes.len() as u64 <= self.last().size,
            "a frame is written beyond its segment"
        );
        file.write_all_at(&bytes, self.at).map_err(|error| {
            let error = AppendError::Write(Arc::new(error));
            self.failed = Some(error.clone());
            error
        })?;
        for frame in frames {
            self.memory.apply(frame, number);
        }
        if !self.dirty.iter().any(|f| Arc::ptr_eq(f, &file)) {
            self.dirty.push(file);
        }
        self.at += bytes.len() as u64;
        self.written.0 += bytes.len() as u64;
        Ok(())
    }

    /// The number of the segment to prepare. `None`: the segment is prepared, or can't be made now.
    pub(crate) fn wants_next(&self) -> Option<SegmentNumber> {
        let failed_lately = self.no_space.is_some_and(|at| at.elapsed() < NO_SPACE_PAUSE);
        (self.next.is_none() && !failed_lately).then_some(self.last().number + 1)
    }

    /// The next segment was made, or making failed.
    pub(crate) fn prepared(&mut self, made: io::Result<Segment>) {
        self.making = false;
        self.no_space = made.is_err().then(Instant::now);
        self.next = made.ok();
    }

    /// Nothing is acknowledged any more.
    pub(crate) fn fail(&mut self, error: &SyncError) -> Vec<(Position, Waiter)> {
        self.failed = Some(AppendError::Sync(error.clone()));
        std::mem::take(&mut self.waiters)
    }

    /// The segment could not be removed. Later segments must wait: a gap would look like damage.
    pub(crate) fn keep_retired(&mut self, number: SegmentNumber) {
        self.retired.push_front((Position(0), number));
    }

    /// The oldest segment without living content, once the content is safe elsewhere.
    pub(crate) fn take_retired(&mut self) -> Option<SegmentNumber> {
        let synced = self.synced;
        self.retired
            .pop_front_if(|(at, _)| *at <= synced)
            .map(|(_, number)| number)
    }
}

impl Shared {
    /// Writes the oldest segment's living content again, if the content needs fewer segments. Returns whether the segment
    /// is retired.
    pub(crate) fn clean<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> (MutexGuard<'a, Core>, bool) {
        if !core.has_too_many_segments(&self.options) {
            return (core, false);
        }
        let oldest = core.segments.front().expect("there are two").number;
        let frames = core.memory.living_in(oldest);
        if !frames.is_empty() {
            let (guard, written) = self.write(core, &frames);
            core = guard;
            // Without room the oldest segment stays, and the next append says why.
            if written.is_err() {
                return (core, false);
            }
        }
        let written = core.written;
        core.segments.pop_front();
        core.retired.push_back((written, oldest));
        (core, true)
    }
}

impl Core {
    fn has_too_many_segments(&self, options: &Options) -> bool {
        if self.segments.len() <= options.spare.max(1) {
            return false;
        }
        let size = |frames: Vec<Frame>| frames.iter().map(|f| f.size() as u64).sum::<u64>();
        let segments = self.segments.iter().map(|s| s.number);
        let living: u64 = segments.map(|number| size(self.memory.living_in(number))).sum();
        let needed = usize::try_from(2 * living / options.segment).unwrap_or(usize::MAX);
        self.segments.len() > needed.saturating_add(options.spare.max(1))
    }
}

/// Reads all segments. The log ends at the first broken frame. A whole frame behind the break proves damage: the break is
/// no torn end of the last write.
pub(crate) fn read_all(dir: &Path) -> Result<Core, OpenError> {
    let mut core = Core {
        memory: Memory::default(),
        segments: VecDeque::new(),
        next: None,
        at: HEADER,
        written: Position(0),
        synced: Position(0),
        dirty: Vec::new(),
        waiters: Vec::new(),
        retired: VecDeque::new(),
        failed: None,
        making: false,
        no_space: None,
        closing: false,
    };
    let numbers = segment::list(dir).map_err(|source| OpenError::Read {
        path: dir.to_owned(),
        source,
    })?;
    let mut goes_on = true;
    for number in numbers {
        let path = segment::path(dir, number);
        let read = segment::open(dir, number).map_err(|source| OpenError::Read {
            path: path.clone(),
            source,
        })?;
        let Some((segment, bytes)) = read else {
            return Err(OpenError::Version { path });
        };
        let follows = core.segments.back().is_none_or(|s| s.number + 1 == number);
        if !goes_on || !follows {
            if Frame::decode(number, &bytes).is_some() || !follows {
                return Err(OpenError::Damaged { path, at: HEADER });
            }
            // Prepared, and not used yet.
            core.next = Some(segment);
            continue;
        }
        let (at, ended) = core.read_segment(number, &bytes);
        if !ended && is_frame_behind(number, &bytes, at) {
            return Err(OpenError::Damaged {
                path,
                at: HEADER + at as u64,
            });
        }
        goes_on = ended;
        core.at = HEADER + at as u64;
        core.segments.push_back(segment);
    }
    core.finish_reading(goes_on);
    Ok(core)
}

impl Core {
    /// Applies the segment's frames. Returns their end, and whether the log goes on in the next segment.
    fn read_segment(&mut self, number: SegmentNumber, bytes: &Bytes) -> (usize, bool) {
        let mut at = 0;
        while let Some((frame, size)) = Frame::decode(number, &bytes.slice(at..)) {
            at += size;
            self.memory.apply(&frame, number);
            if frame == Frame::End {
                return (at, true);
            }
        }
        (at, false)
    }

    /// After a full last segment the log goes on in the prepared segment.
    fn finish_reading(&mut self, goes_on: bool) {
        if goes_on && let Some(next) = self.next.take() {
            self.segments.push_back(next);
            self.at = HEADER;
        }
    }
}

/// Whether a whole frame lies behind the break. A process killed in the middle of a write leaves no such frame.
fn is_frame_behind(number: SegmentNumber, bytes: &Bytes, at: usize) -> bool {
    let rest = bytes.get(at..).unwrap_or_default();
    // Nearly all bytes are zeros. A frame's length has a byte other than zero.
    let lengths = rest.iter().enumerate().filter(|(_, byte)| **byte != 0);
    lengths
        .flat_map(|(i, _)| i.saturating_sub(3)..=i)
        .any(|i| i > 0 && Frame::decode(number, &bytes.slice(at + i..)).is_some())
}
