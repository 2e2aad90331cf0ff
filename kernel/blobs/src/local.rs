//! Chunks in a directory of a file system that all of the user's nodes share.
//!
//! Blocking calls on plain threads: the callers are a kernel's own process, where memory goes straight to the file,
//! and tools.

use crate::direct::Buffer;
use crate::patient::{self, Gate, Hangs, Loan, Steps};
use crate::{CHUNK_BYTES, ChunkId, GetError, PutError, Raw, private};
use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

const PRESENT: rustix::fs::Timespec = rustix::fs::Timespec {
    tv_sec: 0,
    tv_nsec: rustix::fs::UTIME_NOW,
};

/// A file's times, to be set to the present by the file system's own clock.
pub const NOW: rustix::fs::Timestamps = rustix::fs::Timestamps {
    last_access: PRESENT,
    last_modification: PRESENT,
};

/// Compressing must save at least this share of a chunk.
const PAYS: f64 = 0.9;
/// Bytes from a chunk's middle that must compress before the whole chunk is tried.
const SAMPLE: usize = 64 * 1024;
/// Share of its size below which a compressed chunk is written at once, faster than the device.
const AT_ONCE: f64 = 0.25;
/// Number of chunks in a call from which on chunks bypass the page cache.
const MANY: usize = 4;

/// The beginning of the name of a chunk in the making.
const NEW: &str = ".new-";
/// The beginning of the name of a chunk that a collection is about to remove.
const ASIDE: &str = ".gone-";

static TEMP: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static BUFFER: RefCell<Buffer> = RefCell::default();
}

/// Bytes of lent memory that are copied at once, few enough for a thread's stack and a processor's cache.
const PIECE: usize = 64 * 1024;

/// Chunks of one user below a directory (`chunks/` of the store).
#[derive(Debug, Clone)]
pub struct Local {
    root: PathBuf,
    fresh: Arc<Mutex<Vec<ChunkId>>>,
    gate: Arc<Gate>,
}

/// Content to be written.
#[derive(Debug, Clone, Copy)]
enum Content<'a> {
    Own(&'a [u8]),
    /// A part of lent memory. Nothing of it is read while the file system is asked for something.
    Lent(&'a Loan, usize, usize),
}

impl Content<'_> {
    fn len(self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Lent(_, _, len) => len,
        }
    }

    /// # Errors
    /// The memory was taken back.
    fn read<T>(self, part: Range<usize>, read: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        match self {
            Self::Own(bytes) => Ok(read(&bytes[part])),
            Self::Lent(loan, at, _) => loan
                .read(at + part.start..at + part.end, read)
                .ok_or_else(|| io::Error::other("its memory was taken back")),
        }
    }

    fn all<T>(self, read: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        self.read(0..self.len(), read)
    }

    fn write_to(self, file: &mut File, steps: &Steps) -> io::Result<()> {
        if let Self::Own(bytes) = self {
            return file.write_all(bytes);
        }
        let mut buffer = [0; PIECE];
        for at in (0..self.len()).step_by(PIECE) {
            let part = at..self.len().min(at + PIECE);
            let piece = &mut buffer[..part.len()];
            self.read(part, |bytes| piece.copy_from_slice(bytes))?;
            file.write_all(piece)?;
            steps.step();
        }
        Ok(())
    }
}

/// Memory on its way into chunks, on several threads.
#[derive(Debug)]
struct Put {
    local: Local,
    loan: Arc<Loan>,
    len: usize,
    /// The numbers of the chunks to store.
    pick: Vec<usize>,
    ids: Mutex<Vec<ChunkId>>,
    wrote: AtomicU64,
    /// Equal chunks may come up on two threads at once: the first writes.
    taken: Mutex<HashSet<ChunkId>>,
    shelves: Mutex<HashSet<PathBuf>>,
}

impl Put {
    /// Has the names in a folder on disk at the end, or at once where no other chunk may come into it.
    fn synced_later(&self, shelf: &Path) -> Result<(), PutError> {
        if self.pick.len() == 1 {
            return sync_folder(shelf);
        }
        let mut shelves = self.shelves.lock().expect("no holder of this lock panics");
        shelves.insert(shelf.to_owned());
        Ok(())
    }

    fn put(&self, i: usize, steps: &Steps) -> Result<(), PutError> {
        let begin = self.pick[i] * CHUNK_BYTES;
        let content = Content::Lent(&self.loan, begin, CHUNK_BYTES.min(self.len - begin));
        let id = content.all(ChunkId::of).map_err(|_| self.local.hung())?;
        self.ids.lock().expect("no holder of this lock panics")[self.pick[i]] = id;
        if self
            .taken
            .lock()
            .expect("no holder of this lock panics")
            .insert(id)
        {
            let direct = self.pick.len() >= MANY;
            let bytes = self.local.put_as(id, content, direct, steps)?;
            if bytes > 0 {
                self.synced_later(shelf_of(&self.local.path(id)))?;
            }
            self.wrote.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// What a collection of garbage did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Collected {
    pub kept: u64,
    pub removed: u64,
    pub freed_bytes: u64,
}

impl Local {
    /// The chunks below `root`, which is made (0700) with the first chunk if need be.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            fresh: Arc::default(),
            gate: Arc::default(),
        }
    }

    /// Path of an uncompressed chunk.
    pub fn path(&self, id: ChunkId) -> PathBuf {
        let name = id.to_string();
        self.root.join(&name[..2]).join(&name[2..])
    }

    fn packed_path(&self, id: ChunkId) -> PathBuf {
        self.path(id).with_extension("z")
    }

    /// The file that holds a chunk, packed or not. `None` means that there is none.
    pub fn file(&self, id: ChunkId) -> Option<PathBuf> {
        let places = [self.path(id), self.packed_path(id)];
        places.into_iter().find(|place| place.exists())
    }

    /// Whether a chunk of this length exists.
    pub fn has(&self, id: ChunkId, len: usize) -> bool {
        fs::metadata(self.path(id)).is_ok_and(|m| m.len() == len as u64)
            || fs::metadata(self.packed_path(id)).is_ok_and(|m| m.len() > 0)
    }

    /// As [`Self::has`]; the chunk then counts as used now, safe from collections.
    pub fn keeps(&self, id: ChunkId, len: usize) -> bool {
        self.has(id, len) && self.touch(id)
    }

    /// Stores a chunk, on disk on return; returns its name, and the bytes written (0 for an existing chunk).
    ///
    /// # Errors
    /// [`PutError`]: other chunks are as they were.
    pub fn put(&self, content: &[u8]) -> Result<(ChunkId, u64), PutError> {
        let id = ChunkId::of(content);
        let wrote = self.put_as(id, Content::Own(content), false, &Steps::default())?;
        if wrote > 0 {
            sync_folder(shelf_of(&self.path(id)))?;
        }
        Ok((id, wrote))
    }

    /// As [`Self::put`], but the chunk's name isn't on disk before [`sync_folder`].
    fn put_as(
        &self,
        id: ChunkId,
        content: Content<'_>,
        direct: bool,
        steps: &Steps,
    ) -> Result<u64, PutError> {
        if self.keeps(id, content.len()) {
            return Ok(0);
        }
        steps.step();
        let looked = content.all(|bytes| {
            let share = sampled(bytes);
            let small = (bytes.len() > 2 * SAMPLE && share < AT_ONCE).then(|| compressed(bytes, 1));
            (share, small.flatten())
        });
        let (share, small) = looked.map_err(|_| self.hung())?;
        if let Some(small) = small {
            self.write(&self.packed_path(id), Content::Own(&small), false, steps)?;
            return Ok(small.len() as u64);
        }
        self.write(&self.path(id), content, direct, steps)?;
        if share < PAYS {
            self.fresh.lock().expect("no holder of this lock panics").push(id);
        }
        Ok(content.len() as u64)
    }

    /// Marks a chunk as used, for a collection that judges it from now on. Returns whether it has its name afterwards.
    fn touch(&self, id: ChunkId) -> bool {
        let touched = |path: PathBuf| {
            rustix::fs::utimensat(rustix::fs::CWD, path, &NOW, rustix::fs::AtFlags::empty()).is_ok()
        };
        // Linux finds the file by its name, and sets its times a moment later: a collection may have judged and removed
        // the file between the two. Once its times are set, a chunk with its name is safe.
        (touched(self.path(id)) || touched(self.packed_path(id))) && self.file(id).is_some()
    }

    /// Writes a chunk. The chunk gets its name once its content is on disk. Some file systems tell only then that there
    /// is no room. After a loss of power, no chunk is there by name alone.
    fn write(&self, path: &Path, content: Content<'_>, direct: bool, steps: &Steps) -> Result<(), PutError> {
        let failed = |source| PutError::Write {
            path: path.to_owned(),
            source,
        };
        let parent = shelf_of(path);
        let temp = parent.join(format!(
            "{NEW}{}-{}",
            std::process::id(),
            TEMP.fetch_add(1, Ordering::Relaxed)
        ));
        let fill = || {
            if direct && content.len() == CHUNK_BYTES {
                let fill = |chunk: &mut [u8]| content.all(|bytes| chunk.copy_from_slice(bytes));
                let step = || steps.step();
                if let Some(()) = BUFFER.with_borrow_mut(|buffer| buffer.write(&temp, fill, step))? {
                    return Ok(());
                }
                // The file may have been made before the failure.
                let _ = fs::remove_file(&temp);
            }
            let mut file = private::open(OpenOptions::new().write(true).create_new(true), &temp)?;
            steps.step();
            content.write_to(&mut file, steps)?;
            file.sync_data()
        };
        let filled = match fill() {
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                ) =>
            {
                private::folder(&self.root, parent).map_err(failed)?;
                sync_folder(&self.root)?;
                fill()
            }
            other => other,
        };
        steps.step();
        let done = filled.and_then(|()| fs::rename(&temp, path));
        if done.is_err() {
            // The caller hears of the first error.
            let _ = fs::remove_file(&temp);
        }
        done.map_err(failed)
    }

    /// Stores content in chunks, on several threads; all are on disk on return. With `wanted`, only the chunks marked
    /// there; the other names are zero. Returns the names and how many bytes were written.
    ///
    /// # Errors
    /// The first [`PutError`]; chunks stored before the error stay and are garbage. [`PutError::Hangs`] after a second
    /// without an answer of the file system, and at once until it has answered a probe. The content is the caller's
    /// alone again.
    pub fn put_all(&self, content: &[u8], wanted: Option<&[u8]>) -> Result<(Vec<ChunkId>, u64), PutError> {
        patient::lend(content, |loan| self.put_lent(loan, content.len(), wanted))
    }

    fn put_lent(
        &self,
        loan: &Arc<Loan>,
        len: usize,
        wanted: Option<&[u8]>,
    ) -> Result<(Vec<ChunkId>, u64), PutError> {
        let count = len.div_ceil(CHUNK_BYTES);
        let put = Arc::new(Put {
            local: self.clone(),
            loan: Arc::clone(loan),
            len,
            pick: (0..count)
                .filter(|&i| wanted.is_none_or(|w| w.get(i).is_some_and(|&b| b != 0)))
                .collect(),
            ids: Mutex::new(vec![ChunkId([0; 32]); count]),
            wrote: AtomicU64::new(0),
            taken: Mutex::default(),
            shelves: Mutex::default(),
        });
        let work = Arc::clone(&put);
        self.patiently(waiters(), put.pick.len(), move |i, steps| work.put(i, steps))?;
        let shelves = std::mem::take(&mut *put.shelves.lock().expect("no holder of this lock panics"));
        let shelves: Vec<PathBuf> = shelves.into_iter().collect();
        self.patiently(waiters(), shelves.len(), move |i, _| sync_folder(&shelves[i]))?;
        let ids = std::mem::take(&mut *put.ids.lock().expect("no holder of this lock panics"));
        Ok((ids, put.wrote.load(Ordering::Relaxed)))
    }

    /// Whether all of these chunks exist; they then count as used now, safe from collections.
    ///
    /// # Errors
    /// [`PutError::Hangs`], as [`Self::put_all`].
    pub fn keeps_all(&self, ids: Vec<ChunkId>) -> Result<bool, PutError> {
        let kept = Arc::new(AtomicBool::new(true));
        let (local, all) = (self.clone(), Arc::clone(&kept));
        // A single thread is enough: a look at a name costs less than a further thread.
        self.patiently(1, ids.len(), move |i, _| {
            if !local.touch(ids[i]) {
                all.store(false, Ordering::Relaxed);
            }
            Ok(())
        })?;
        Ok(kept.load(Ordering::Relaxed))
    }

    /// Whether the file system was found hanging, and has not answered since.
    pub fn hangs(&self) -> bool {
        self.gate.is_closed()
    }

    fn hung(&self) -> PutError {
        PutError::Hangs {
            path: self.root.clone(),
        }
    }

    /// Runs work that the file system may hold up, as [`patient::run`].
    fn patiently(
        &self,
        threads: usize,
        count: usize,
        work: impl Fn(usize, &Steps) -> Result<(), PutError> + Send + Sync + 'static,
    ) -> Result<(), PutError> {
        match patient::run(&self.gate, threads, count, work) {
            Ok(done) => done,
            Err(Hangs) => {
                let local = self.clone();
                self.gate.close_until(move || local.probe());
                Err(self.hung())
            }
        }
    }

    /// Writes something that nobody else stores. An error is an answer as well: the next writer hears of it.
    fn probe(&self) {
        let content = format!("probe of {} at {:?}", std::process::id(), SystemTime::now());
        if let Ok((id, _)) = self.put(content.as_bytes()) {
            // A file left behind is garbage.
            let _ = fs::remove_file(self.path(id));
        }
    }

    /// A chunk as it lies, to be carried elsewhere. It isn't proven yet.
    ///
    /// # Errors
    /// [`GetError::Missing`] or [`GetError::Read`].
    pub fn raw(&self, id: ChunkId) -> Result<Raw, GetError> {
        self.once_open(id, || self.raw_as_is(id))
    }

    fn raw_as_is(&self, id: ChunkId) -> Result<Raw, GetError> {
        // A chunk may be compressed between two reads, but never becomes plain again.
        for (path, packed) in [(self.path(id), false), (self.packed_path(id), true)] {
            match fs::read(path) {
                Ok(bytes) => return Ok(Raw { bytes, packed }),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(GetError::Read { id, source }),
            }
        }
        Err(GetError::Missing { id })
    }

    /// Stores a chunk in its form elsewhere, proven by the caller ([`Raw::prove`]).
    ///
    /// # Errors
    /// [`PutError::Write`]: nothing is left behind, and other chunks are as they were.
    pub fn adopt(&self, id: ChunkId, raw: &Raw) -> Result<(), PutError> {
        let path = if raw.packed {
            self.packed_path(id)
        } else {
            self.path(id)
        };
        self.write(&path, Content::Own(&raw.bytes), false, &Steps::default())?;
        sync_folder(shelf_of(&path))
    }

    /// Reads one chunk of known length and checks it.
    ///
    /// # Errors
    /// [`GetError`]; `into` then holds nothing of use.
    pub fn get(&self, id: ChunkId, into: &mut [u8]) -> Result<(), GetError> {
        self.once_open(id, || self.get_as_is(id, &mut *into))
    }

    /// Reads a chunk, again where a kernel had made it or its folder under an umask that closed both.
    fn once_open<T>(
        &self,
        id: ChunkId,
        mut read: impl FnMut() -> Result<T, GetError>,
    ) -> Result<T, GetError> {
        match read() {
            Err(GetError::Read { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                // The second attempt tells what is still closed.
                let _ = private::folder(&self.root, shelf_of(&self.path(id)));
                for path in [self.path(id), self.packed_path(id)] {
                    let _ = private::mend(&path);
                }
                read()
            }
            other => other,
        }
    }

    fn get_as_is(&self, id: ChunkId, into: &mut [u8]) -> Result<(), GetError> {
        match File::open(self.path(id)) {
            Ok(file) => Self::read_plain(id, file, into)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.read_packed(id, into)?,
            Err(source) => return Err(GetError::Read { id, source }),
        }
        if ChunkId::of(into) == id {
            Ok(())
        } else {
            Err(GetError::Tampered { id })
        }
    }

    /// As [`Self::get`], for a whole chunk and past the page cache where that can be done.
    fn get_direct(&self, id: ChunkId, into: &mut [u8]) -> Result<(), GetError> {
        let read = BUFFER.with_borrow_mut(|buffer| {
            let read = buffer.read(&self.path(id));
            if let Ok(Some(())) = read {
                if ChunkId::of(buffer.chunk()) != id {
                    return Err(GetError::Tampered { id });
                }
                into.copy_from_slice(buffer.chunk());
            }
            Ok(read)
        })?;
        match read {
            Ok(Some(())) => Ok(()),
            Ok(None) => self.get(id, into),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                ) =>
            {
                self.get(id, into)
            }
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(GetError::Truncated { id }),
            Err(source) => Err(GetError::Read { id, source }),
        }
    }

    fn read_plain(id: ChunkId, mut file: File, into: &mut [u8]) -> Result<(), GetError> {
        let len = file
            .metadata()
            .map_err(|source| GetError::Read { id, source })?
            .len();
        if len != into.len() as u64 {
            return Err(GetError::Truncated { id });
        }
        file.read_exact(into)
            .map_err(|source| GetError::Read { id, source })
    }

    fn read_packed(&self, id: ChunkId, into: &mut [u8]) -> Result<(), GetError> {
        let packed = fs::read(self.packed_path(id)).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => GetError::Missing { id },
            _ => GetError::Read { id, source },
        })?;
        let len = zstd::bulk::decompress_to_buffer(&packed, into).map_err(|_| GetError::Tampered { id })?;
        if len == into.len() {
            Ok(())
        } else {
            Err(GetError::Truncated { id })
        }
    }

    /// Reads chunks one behind the other, on several threads, and checks them.
    ///
    /// # Errors
    /// The first [`GetError`].
    pub fn get_all(&self, ids: &[ChunkId], into: &mut [u8]) -> Result<(), GetError> {
        let parts: Vec<Mutex<&mut [u8]>> = into.chunks_mut(CHUNK_BYTES).map(Mutex::new).collect();
        if parts.len() != ids.len() {
            return Err(GetError::Truncated {
                id: ids.last().copied().unwrap_or(ChunkId([0; 32])),
            });
        }
        let direct = ids.len() >= MANY;
        waiting(parts.len(), |i| {
            let mut part = parts[i].lock().expect("no holder of this lock panics");
            if direct && part.len() == CHUNK_BYTES {
                self.get_direct(ids[i], &mut part)
            } else {
                self.get(ids[i], &mut part)
            }
        })
    }

    /// Makes all that was written since the last call survive a crash of the machine.
    ///
    /// # Errors
    /// [`PutError::Sync`].
    pub fn sync(&self) -> Result<(), PutError> {
        let failed = |source: io::Error| PutError::Sync {
            path: self.root.clone(),
            source,
        };
        let root = File::open(&self.root).map_err(failed)?;
        rustix::fs::syncfs(&root).map_err(|e| failed(e.into()))
    }

    /// Compresses chunks written through this value, where compression saves space. Not on the path of a write.
    ///
    /// # Errors
    /// [`PutError`]; the chunk then stays unchanged.
    pub fn pack_fresh(&self) -> Result<u64, PutError> {
        let fresh = std::mem::take(&mut *self.fresh.lock().expect("no holder of this lock panics"));
        let mut saved = 0;
        for id in fresh {
            saved += self.pack(id)?;
        }
        Ok(saved)
    }

    /// Compresses a chunk where compression saves space; returns the bytes saved.
    ///
    /// # Errors
    /// [`PutError`]; the chunk then stays unchanged.
    pub fn pack(&self, id: ChunkId) -> Result<u64, PutError> {
        let path = self.path(id);
        let Ok(content) = fs::read(&path) else {
            return Ok(0);
        };
        let Some(packed) = packed(&content) else {
            return Ok(0);
        };
        self.write(
            &self.packed_path(id),
            Content::Own(&packed),
            false,
            &Steps::default(),
        )?;
        sync_folder(shelf_of(&path))?;
        // Later readers without the plain file find the packed file.
        let _ = fs::remove_file(&path);
        Ok((content.len() - packed.len()) as u64)
    }

    /// Removes chunks outside `live` that weren't touched after `unused_since`, by the file system's clock (an unfinished
    /// capture may need them), and leavings of interrupted writes.
    ///
    /// A writer may find a chunk present, and touch the chunk, during the judgement here. A seemingly dead chunk
    /// is therefore first taken aside and then judged again. A later writer finds nothing and writes the chunk
    /// anew, and a chunk touched before gets the name back.
    ///
    /// # Errors
    /// The first I/O error; what is left is removed by the next call.
    pub fn collect(&self, live: &HashSet<ChunkId>, unused_since: SystemTime) -> io::Result<Collected> {
        let mut done = Collected::default();
        for shelf in unless_gone(fs::read_dir(&self.root))?.into_iter().flatten() {
            let shelf = shelf?;
            if shelf.file_type()?.is_dir() {
                collect_shelf(&shelf.path(), live, unused_since, &mut done)?;
            }
        }
        Ok(done)
    }
}

fn shelf_of(chunk: &Path) -> &Path {
    chunk.parent().expect("a chunk lies in a directory of the store")
}

/// Has the names in a folder on disk.
fn sync_folder(folder: &Path) -> Result<(), PutError> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Some file systems have no such thing, since each change of names is on disk at once.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other.map_err(|source| PutError::Sync {
            path: folder.to_owned(),
            source,
        }),
    }
}

fn collect_shelf(
    shelf: &Path,
    live: &HashSet<ChunkId>,
    unused_since: SystemTime,
    done: &mut Collected,
) -> io::Result<()> {
    let is_old = |meta: &fs::Metadata| meta.modified().is_ok_and(|touched| touched <= unused_since);
    let first = shelf.file_name().unwrap_or_default().to_string_lossy();
    for file in fs::read_dir(shelf)? {
        let (mut path, mut name) = {
            let file = file?;
            (file.path(), file.file_name().to_string_lossy().into_owned())
        };
        // Left by a collection that was broken off.
        if let Some(former) = name.strip_prefix(ASIDE).map(str::to_owned) {
            (path, name) = (bring_back(&path, &shelf.join(&former))?, former);
        }
        let id = format!("{first}{}", name.strip_suffix(".z").unwrap_or(&name)).parse::<ChunkId>();
        let Some(found) = unless_gone(fs::metadata(&path))? else {
            continue;
        };
        let is_dead = match id {
            Ok(id) => !live.contains(&id),
            // Other names are not ours.
            Err(_) => name.starts_with(NEW),
        };
        if !is_dead || !is_old(&found) {
            done.kept += 1;
            continue;
        }
        let aside = shelf.join(format!("{ASIDE}{name}"));
        if unless_gone(fs::rename(&path, &aside))?.is_none() {
            continue;
        }
        judge_again(&aside, &path, is_old, done)?;
    }
    Ok(())
}

/// Removes a chunk taken aside, unless somebody touched it before it was.
fn judge_again(
    aside: &Path,
    former: &Path,
    is_old: impl Fn(&fs::Metadata) -> bool,
    done: &mut Collected,
) -> io::Result<()> {
    // Opened, since only then a network's file system asks for the present time.
    let Some(found) = unless_gone(File::open(aside).and_then(|file| file.metadata()))? else {
        return Ok(());
    };
    if is_old(&found) {
        unless_gone(fs::remove_file(aside))?;
        done.removed += 1;
        done.freed_bytes += found.len();
    } else {
        bring_back(aside, former)?;
        done.kept += 1;
    }
    Ok(())
}

/// Gives a chunk taken aside its name back, unless a writer has written the chunk anew. Returns the path with the name.
fn bring_back(file: &Path, former: &Path) -> io::Result<PathBuf> {
    match fs::hard_link(file, former) {
        Err(e) if !matches!(e.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {
            return Err(e);
        }
        _ => unless_gone(fs::remove_file(file))?,
    };
    Ok(former.to_owned())
}

/// `None` for a file that is gone.
fn unless_gone<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Ratio to which a sample of the content compresses; 0 for content too small for a sample.
fn sampled(content: &[u8]) -> f64 {
    if content.len() <= 2 * SAMPLE {
        return 0.0;
    }
    let middle = content.len() / 2;
    let sample = &content[middle - SAMPLE / 2..middle + SAMPLE / 2];
    zstd::bulk::compress(sample, 1).map_or(1.0, |small| small.len() as f64 / sample.len() as f64)
}

/// The content compressed, if that pays.
fn compressed(content: &[u8], level: i32) -> Option<Vec<u8>> {
    let small = zstd::bulk::compress(content, level).ok()?;
    ((small.len() as f64) < content.len() as f64 * PAYS).then_some(small)
}

/// The content compressed well, if that pays.
fn packed(content: &[u8]) -> Option<Vec<u8>> {
    (sampled(content) < PAYS)
        .then(|| compressed(content, 3))
        .flatten()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Runs `work` for 0..count on as many threads as there are cores; stops at the first error.
///
/// # Errors
/// The first error of `work`.
pub fn parallel<E: Send>(count: usize, work: impl Fn(usize) -> Result<(), E> + Sync) -> Result<(), E> {
    on_threads(cores().min(8), count, work)
}

/// As [`parallel`], for work that waits for a device half of the time.
fn waiting<E: Send>(count: usize, work: impl Fn(usize) -> Result<(), E> + Sync) -> Result<(), E> {
    on_threads(waiters(), count, work)
}

/// The number of threads for work that waits for a device half of the time.
fn waiters() -> usize {
    (2 * cores()).clamp(4, 16)
}

fn on_threads<E: Send>(
    most: usize,
    count: usize,
    work: impl Fn(usize) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let threads = most.min(count);
    if threads <= 1 {
        return (0..count).try_for_each(work);
    }
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<E>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        break;
                    }
                    if let Err(e) = work(i) {
                        next.store(count, Ordering::Relaxed);
                        failed
                            .lock()
                            .expect("no holder of this lock panics")
                            .get_or_insert(e);
                        break;
                    }
                }
            });
        }
    });
    failed
        .into_inner()
        .expect("no holder of this lock panics")
        .map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn store() -> (tempfile::TempDir, Local) {
        let dir = tempfile::tempdir().unwrap();
        let local = Local::at(&dir.path().join("chunks"));
        (dir, local)
    }

    fn files(local: &Local) -> Vec<PathBuf> {
        fs::read_dir(&local.root)
            .unwrap()
            .flat_map(|d| fs::read_dir(d.unwrap().path()).unwrap())
            .map(|f| f.unwrap().path())
            .collect()
    }

    /// Bytes that don't compress, always the same.
    fn noise(len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut out);
        out
    }

    #[test]
    fn many_chunks_go_out_and_in_past_the_page_cache() {
        let (_dir, local) = store();
        let content = noise((MANY + 2) * CHUNK_BYTES + 77);
        let (ids, wrote) = local.put_all(&content, None).unwrap();
        assert_eq!(wrote, content.len() as u64);
        local.sync().unwrap();
        let mut back = vec![0; content.len()];
        local.get_all(&ids, &mut back).unwrap();
        assert!(back == content);
        let mut raw = fs::read(local.path(ids[2])).unwrap();
        raw[7] ^= 1;
        fs::write(local.path(ids[2]), &raw).unwrap();
        assert!(matches!(local.get_all(&ids, &mut back), Err(GetError::Tampered { id }) if id == ids[2]));
        fs::write(local.path(ids[2]), &raw[1..]).unwrap();
        assert!(matches!(local.get_all(&ids, &mut back), Err(GetError::Truncated { id }) if id == ids[2]));
        fs::remove_file(local.path(ids[2])).unwrap();
        assert!(matches!(local.get_all(&ids, &mut back), Err(GetError::Missing { id }) if id == ids[2]));
    }

    #[test]
    fn what_compresses_well_is_never_written_plain() {
        let (_dir, local) = store();
        let content = vec![1; 2 * CHUNK_BYTES];
        let (ids, wrote) = local.put_all(&content, None).unwrap();
        assert!(wrote < CHUNK_BYTES as u64 / 100);
        assert_eq!(files(&local), [local.packed_path(ids[0])]);
        assert_eq!(local.pack_fresh().unwrap(), 0);
        let mut back = vec![0; content.len()];
        local.get_all(&ids, &mut back).unwrap();
        assert!(back == content);
    }

    #[test]
    fn same_content_is_stored_once() {
        let (_dir, local) = store();
        let chunk = noise(CHUNK_BYTES);
        let content = [&chunk[..], &chunk[..], &[7; 5]].concat();
        let (ids, wrote) = local.put_all(&content, None).unwrap();
        assert_eq!((ids.len(), ids[0], wrote), (3, ids[1], CHUNK_BYTES as u64 + 5));
        assert_eq!(local.put_all(&content, None).unwrap(), (ids.clone(), 0));
        assert_eq!(files(&local).len(), 2);
        let mut back = vec![0; content.len()];
        local.get_all(&ids, &mut back).unwrap();
        assert_eq!(back, content);
    }

    #[test]
    fn only_wanted_chunks_are_stored() {
        let (_dir, local) = store();
        let content = noise(3 * CHUNK_BYTES);
        let (ids, wrote) = local.put_all(&content, Some(&[0, 1, 0])).unwrap();
        assert_eq!(
            (ids[0], ids[2], wrote),
            (ChunkId([0; 32]), ChunkId([0; 32]), CHUNK_BYTES as u64)
        );
        assert_eq!(files(&local), [local.path(ids[1])]);
    }

    #[test]
    fn truncated_changed_and_missing_chunks_are_refused() {
        let (_dir, local) = store();
        let (id, _) = local.put(b"content").unwrap();
        let mut into = [0; 7];
        fs::write(local.path(id), b"contend").unwrap();
        assert!(matches!(local.get(id, &mut into), Err(GetError::Tampered { .. })));
        fs::write(local.path(id), b"cont").unwrap();
        assert!(matches!(
            local.get(id, &mut into),
            Err(GetError::Truncated { .. })
        ));
        fs::remove_file(local.path(id)).unwrap();
        assert!(matches!(local.get(id, &mut into), Err(GetError::Missing { .. })));
        // A torn chunk is written again rather than taken for the whole one.
        fs::write(local.path(id), b"c").unwrap();
        assert_eq!(local.put(b"content").unwrap(), (id, 7));
        local.get(id, &mut into).unwrap();
        assert_eq!(&into, b"content");
    }

    #[test]
    fn packing_changes_nothing_but_the_length() {
        let (_dir, local) = store();
        // Compresses to about half.
        let content: Vec<u8> = noise(CHUNK_BYTES)
            .iter()
            .enumerate()
            .map(|(i, b)| if i % 2 == 0 { *b } else { 0 })
            .collect();
        let (ids, wrote) = local.put_all(&content, None).unwrap();
        assert_eq!(wrote, CHUNK_BYTES as u64);
        assert!(local.pack_fresh().unwrap() > CHUNK_BYTES as u64 / 4);
        assert!(!local.path(ids[0]).exists());
        let mut back = vec![0; CHUNK_BYTES];
        local.get_all(&ids, &mut back).unwrap();
        assert_eq!(back, content);
        assert_eq!(local.put(&back).unwrap(), (ids[0], 0));
        let packed = local.packed_path(ids[0]);
        let mut raw = fs::read(&packed).unwrap();
        raw[20] ^= 1;
        fs::write(&packed, raw).unwrap();
        assert!(local.get_all(&ids, &mut back).is_err());
    }

    #[test]
    fn what_is_carried_to_another_store_is_proven_as_it_lies() {
        let ((_a, here), (_b, there)) = (store(), store());
        for content in [noise(5000), vec![3; CHUNK_BYTES]] {
            let (id, _) = here.put(&content).unwrap();
            let raw = here.raw(id).unwrap();
            assert_eq!(raw.packed, content.len() > 5000);
            raw.prove(id, content.len()).unwrap();
            assert!(
                raw.prove(id, content.len() - 1).is_err()
                    && raw.prove(ChunkId([0; 32]), content.len()).is_err()
            );
            let mut bad = raw.clone();
            bad.bytes[9] ^= 1;
            assert!(bad.prove(id, content.len()).is_err());
            there.adopt(id, &raw).unwrap();
            let mut back = vec![0; content.len()];
            there.get_all(&[id], &mut back).unwrap();
            assert!(back == content);
        }
        assert!(matches!(
            here.raw(ChunkId([9; 32])),
            Err(GetError::Missing { .. })
        ));
    }

    #[test]
    fn collection_spares_what_is_live_or_young() {
        let (_dir, local) = store();
        let (live, _) = local.put(b"live").unwrap();
        let (dead, _) = local.put(b"dead").unwrap();
        let (now, long) = (SystemTime::now(), Duration::from_secs(100));
        let keep = HashSet::from([live]);
        assert_eq!(local.collect(&keep, now - long).unwrap().removed, 0);
        let done = local.collect(&keep, now + long).unwrap();
        assert_eq!(
            done,
            Collected {
                kept: 1,
                removed: 1,
                freed_bytes: 4
            }
        );
        assert!(local.has(live, 4) && !local.has(dead, 4));
    }

    #[test]
    fn a_chunk_touched_while_it_is_judged_gets_its_name_back() {
        let (_dir, local) = store();
        let (id, _) = local.put(b"content").unwrap();
        let (path, old) = (local.path(id), SystemTime::now() - Duration::from_secs(100));
        let aside = path.with_file_name(format!("{ASIDE}{}", &id.to_string()[2..]));
        let collect = || {
            let unused_since = SystemTime::now() - Duration::from_secs(50);
            local.collect(&HashSet::new(), unused_since).unwrap()
        };
        // Broken off in the middle, before and after a writer wrote it anew.
        fs::rename(&path, &aside).unwrap();
        assert!(!local.keeps(id, 7), "a writer doesn't rely on it");
        assert_eq!((collect().kept, collect().removed), (1, 0));
        assert!(local.keeps(id, 7) && !aside.exists());
        fs::rename(&path, &aside).unwrap();
        assert_eq!(local.put(b"content").unwrap(), (id, 7));
        assert_eq!(collect().removed, 0);
        assert!(path.exists() && !aside.exists());
        // Touched between the first look and the loss of its name.
        let (mut done, is_old) = (Collected::default(), |meta: &fs::Metadata| {
            meta.modified().unwrap() <= old
        });
        fs::rename(&path, &aside).unwrap();
        judge_again(&aside, &path, is_old, &mut done).unwrap();
        assert_eq!((done.kept, done.removed), (1, 0));
        assert!(path.exists() && !aside.exists());

        File::open(&path).unwrap().set_modified(old).unwrap();
        assert_eq!(collect().removed, 1);
        assert_eq!(files(&local), [] as [PathBuf; 0]);
    }

    /// Ends the other thread also after a failed assertion.
    struct Ends<'a>(&'a std::sync::atomic::AtomicBool);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Writers that find chunks present, against collections that take them for dead.
    #[test]
    fn no_writer_loses_a_chunk_to_a_collection() {
        let (_dir, local) = store();
        let contents: Vec<Vec<u8>> = (0..50_u32).map(|i| i.to_le_bytes().to_vec()).collect();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let unused_since = SystemTime::now() - Duration::from_secs(50);
                    local.collect(&HashSet::new(), unused_since).unwrap();
                }
            });
            let _end = Ends(&over);
            for round in 0..40 {
                for content in &contents {
                    let id = ChunkId::of(content);
                    if let Ok(file) = File::open(local.path(id)) {
                        // As old as if nobody had asked for it for long.
                        let _ = file.set_modified(SystemTime::now() - Duration::from_secs(100));
                    }
                    local.put(content).unwrap();
                    // A collection judging the chunk again may stand still before giving the name back.
                    let has = |wait| {
                        std::thread::sleep(Duration::from_millis(wait));
                        local.has(id, content.len())
                    };
                    assert!((0..100).any(has), "it is lost in round {round}");
                }
            }
        });
        for content in &contents {
            assert!(local.has(ChunkId::of(content), content.len()));
        }
    }

    fn ran(program: &str, args: &[&std::ffi::OsStr]) -> bool {
        let status = std::process::Command::new(program).args(args).status();
        status.is_ok_and(|s| s.success())
    }

    #[test]
    fn what_is_stored_is_there_after_a_loss_of_power() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: mounting a file system needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let [disk, after, place] = ["disk", "after", "place"].map(|name| dir.path().join(name));
        File::create(&disk).unwrap().set_len(96 << 20).unwrap();
        fs::create_dir(&place).unwrap();
        let options = ["-o", "loop"].map(std::ffi::OsStr::new);
        if !ran("mkfs.ext4", &["-qF".as_ref(), disk.as_ref()])
            || !ran("mount", &[options[0], options[1], disk.as_ref(), place.as_ref()])
        {
            eprintln!("skipped: no file system can be made in a file here");
            return;
        }
        let local = Local::at(&place.join("chunks"));
        let (small, large) = (noise(5000), noise((MANY + 1) * CHUNK_BYTES + 3));
        let id = local.put(&small).unwrap().0;
        let ids = local.put_all(&large, None).unwrap().0;
        // Only the content of the disk is kept: the file system's own memory is lost.
        fs::copy(&disk, &after).unwrap();
        assert!(ran("umount", &[place.as_ref()]));
        assert!(ran(
            "mount",
            &[options[0], options[1], after.as_ref(), place.as_ref()]
        ));
        let mut back = vec![0; large.len()];
        let read = (local.get(id, &mut back[..5000]), local.get_all(&ids, &mut back));
        assert!(ran("umount", &[place.as_ref()]));
        assert!(matches!(read, (Ok(()), Ok(()))), "{read:?}");
        assert!(back == large);
    }

    #[test]
    fn a_full_disk_is_an_error_and_leaves_nothing_behind() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: mounting a small file system needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"])
            .arg(dir.path())
            .status()
            .unwrap();
        assert!(mounted.success());
        let local = Local::at(&dir.path().join("chunks"));
        let first = noise(CHUNK_BYTES);
        let (kept, _) = local.put_all(&first, None).unwrap();
        let second: Vec<u8> = first.iter().map(|b| !b).collect();
        let failed = local.put_all(&second, None);
        let left = files(&local);
        let mut back = vec![0; CHUNK_BYTES];
        let read = local.get_all(&kept, &mut back);
        std::process::Command::new("umount")
            .arg(dir.path())
            .status()
            .unwrap();
        assert!(matches!(failed, Err(PutError::Write { .. })));
        assert_eq!(left, [local.path(kept[0])]);
        read.unwrap();
        assert_eq!(back, first);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_put_is_got(content in proptest::collection::vec(any::<u8>(), 0..3000), repeat in 1usize..2000) {
            let (_dir, local) = store();
            let content = content.repeat(repeat);
            let (ids, _) = local.put_all(&content, None).unwrap();
            let mut back = vec![0; content.len()];
            local.pack_fresh().unwrap();
            local.get_all(&ids, &mut back).unwrap();
            prop_assert_eq!(back, content);
        }
    }
}
