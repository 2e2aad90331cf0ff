//! Written memory, as known to Linux: userfaultfd write-protection in its asynchronous form and `PAGEMAP_SCAN` (6.7
//! and later). The first write to a page after arming costs a fault of about a microsecond, resolved in Linux;
//! nothing is delivered here.
//!
//! Only private memory is tracked: another process's writes to shared memory would not be seen. Pages that a range
//! shares with its neighbours are hashed rather than tracked, since a neighbour's scan would reset them.

use hop_blobs::local::Local;
use hop_blobs::{CHUNK_BYTES, ChunkId};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

const PAGE: usize = 4096;
const UFFD_API: u64 = 0xAA;
const UFFD_USER_MODE_ONLY: i32 = 1;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 1 << 1;
const IOCTL_API: u64 = 0xC018_AA3F;
const IOCTL_REGISTER: u64 = 0xC020_AA00;
const IOCTL_UNREGISTER: u64 = 0x8010_AA01;
const IOCTL_PAGEMAP_SCAN: u64 = 0xC060_6610;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const SCAN_WP_MATCHING: u64 = 1;
const SCAN_CHECK_WPASYNC: u64 = 2;

#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdRange {
    start: u64,
    len: u64,
}

#[repr(C)]
struct UffdRegister {
    range: UffdRange,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

struct Tracker {
    uffd: OwnedFd,
    pagemap: File,
    pid: u32,
    /// Hashes of the two ends of each armed range that share a page with something else.
    edges: Mutex<HashMap<(usize, usize), (u128, u128)>>,
}

static TRACKER: OnceLock<Option<Tracker>> = OnceLock::new();

fn tracker() -> io::Result<&'static Tracker> {
    let found = TRACKER.get_or_init(|| start().ok()).as_ref();
    match found {
        Some(t) if t.pid == std::process::id() => Ok(t),
        Some(_) => Err(io::Error::other("a forked process doesn't track writes")),
        None => Err(io::Error::other(
            "Linux here can't track writes (userfaultfd, PAGEMAP_SCAN of 6.7)",
        )),
    }
}

/// Starts tracking, and proves by a real write that tracking works here.
///
/// # Errors
/// Linux lacks tracking, forbids tracking, or only pretends to track.
pub fn init() -> io::Result<()> {
    tracker().map(|_| ())
}

/// One ioctl.
///
/// # Safety
/// `arg` must be what `request` takes.
unsafe fn ioctl<T>(fd: i32, request: u64, arg: &mut T) -> io::Result<i64> {
    // SAFETY: by this function's contract; the kernel checks all addresses inside.
    let got = unsafe { libc::ioctl(fd, request as _, std::ptr::from_mut(arg)) };
    if got < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(got.into())
    }
}

fn start() -> io::Result<Tracker> {
    // SAFETY: a system call without pointers.
    let raw = unsafe {
        libc::syscall(
            libc::SYS_userfaultfd,
            libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY,
        )
    };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours.
    let uffd = unsafe { OwnedFd::from_raw_fd(raw as i32) };
    let mut api = UffdApi {
        api: UFFD_API,
        features: FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED,
        ioctls: 0,
    };
    // SAFETY: the argument is UFFDIO_API's.
    unsafe { ioctl(uffd.as_raw_fd(), IOCTL_API, &mut api)? };
    let made = Tracker {
        uffd,
        pagemap: File::open("/proc/self/pagemap")?,
        pid: std::process::id(),
        edges: Mutex::default(),
    };
    probe(&made)?;
    Ok(made)
}

/// Arms two pages, writes to the first, and expects exactly the first.
fn probe(tracker: &Tracker) -> io::Result<()> {
    let len = 2 * PAGE;
    // SAFETY: a new anonymous map, unmapped below, that nothing else knows.
    unsafe {
        let at = mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?;
        let bytes = at.cast::<u8>();
        bytes.write_volatile(1);
        bytes.add(PAGE).write_volatile(1);
        let seen = tracker.register(at as usize, len).and_then(|()| {
            let before = tracker.written(at as usize, at as usize + len, true)?;
            bytes.add(PAGE).write_volatile(2);
            let after = tracker.written(at as usize, at as usize + len, true)?;
            Ok((before, after))
        });
        munmap(at, len)?;
        let (before, after) = seen?;
        let right = before.is_empty() && after.len() == 1 && after[0].start == at as u64 + PAGE as u64;
        if right {
            Ok(())
        } else {
            Err(io::Error::other(
                "the kernel accepts write tracking but doesn't track",
            ))
        }
    }
}

impl Tracker {
    /// Protects whole pages.
    fn register(&self, at: usize, len: usize) -> io::Result<()> {
        let mut arg = UffdRegister {
            range: UffdRange {
                start: at as u64,
                len: len as u64,
            },
            mode: REGISTER_MODE_WP,
            ioctls: 0,
        };
        // SAFETY: the argument is UFFDIO_REGISTER's.
        unsafe { ioctl(self.uffd.as_raw_fd(), IOCTL_REGISTER, &mut arg)? };
        self.written(at, at + len, true).map(|_| ())
    }

    fn unregister(&self, at: usize, len: usize) {
        let mut arg = UffdRange {
            start: at as u64,
            len: len as u64,
        };
        // A failure means that the memory is gone, and the memory's registration as well. SAFETY: the argument is
        // UFFDIO_UNREGISTER's.
        let _ = unsafe { ioctl(self.uffd.as_raw_fd(), IOCTL_UNREGISTER, &mut arg) };
    }

    /// Written regions; `again` protects them anew in the same step.
    fn written(&self, start: usize, end: usize, again: bool) -> io::Result<Vec<Region>> {
        let mut found = Vec::new();
        let mut at = start as u64;
        while at < end as u64 {
            let mut regions = [Region::default(); 256];
            let mut arg = ScanArg {
                size: std::mem::size_of::<ScanArg>() as u64,
                flags: SCAN_CHECK_WPASYNC | if again { SCAN_WP_MATCHING } else { 0 },
                start: at,
                end: end as u64,
                walk_end: 0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: PAGE_IS_WRITTEN,
                category_anyof_mask: 0,
                return_mask: PAGE_IS_WRITTEN,
            };
            // SAFETY: the argument is PAGEMAP_SCAN's, and `regions` outlives the call.
            let n = unsafe { ioctl(self.pagemap.as_raw_fd(), IOCTL_PAGEMAP_SCAN, &mut arg)? };
            found.extend_from_slice(&regions[..usize::try_from(n).unwrap_or(0).min(regions.len())]);
            if arg.walk_end <= at {
                break;
            }
            at = arg.walk_end;
        }
        Ok(found)
    }
}

/// The whole pages inside a range.
fn inner(at: usize, len: usize) -> (usize, usize) {
    (at.next_multiple_of(PAGE), (at + len) / PAGE * PAGE)
}

/// Hashes of the parts of a range outside its whole pages.
fn edges(at: usize, len: usize) -> (u128, u128) {
    let (start, end) = inner(at, len);
    // SAFETY: the caller's range is live memory; both parts lie inside it.
    let (head, tail) = unsafe {
        (
            std::slice::from_raw_parts(at as *const u8, start - at),
            std::slice::from_raw_parts(end as *const u8, at + len - end),
        )
    };
    (
        twox_hash::XxHash3_128::oneshot(head),
        twox_hash::XxHash3_128::oneshot(tail),
    )
}

/// Tracks writes to a range from now on.
///
/// # Errors
/// When the range is shared with another process, or the kernel refuses.
pub fn arm(at: usize, len: usize) -> io::Result<()> {
    let tracker = tracker()?;
    let (start, end) = inner(at, len);
    if start >= end {
        return Err(io::Error::other("too short to be tracked"));
    }
    if !private(start, end)? {
        return Err(io::Error::other("memory that others may write isn't tracked"));
    }
    let there = edges(at, len);
    tracker.register(start, end - start)?;
    tracker
        .edges
        .lock()
        .expect("no holder of this lock panics")
        .insert((at, len), there);
    Ok(())
}

/// Stops tracking a range.
pub fn drop_range(at: usize, len: usize) {
    let Ok(tracker) = tracker() else { return };
    if tracker
        .edges
        .lock()
        .expect("no holder of this lock panics")
        .remove(&(at, len))
        .is_some()
    {
        let (start, end) = inner(at, len);
        tracker.unregister(start, end - start);
    }
}

/// Marks the chunks that were written since the last scan with `again`, or since arming.
///
/// # Errors
/// When any part of the range isn't tracked any more (moved, unmapped, dropped): nothing is known then.
pub fn scan(at: usize, len: usize, chunk: usize, dirty: &mut [u8], again: bool) -> io::Result<()> {
    let tracker = tracker()?;
    let mut armed = tracker.edges.lock().expect("no holder of this lock panics");
    let before = *armed
        .get(&(at, len))
        .ok_or_else(|| io::Error::other("not tracked"))?;
    let (start, end) = inner(at, len);
    dirty.fill(0);
    for region in tracker.written(start, end, again)? {
        let first = (region.start as usize - at) / chunk;
        let last = (region.end as usize - 1 - at) / chunk;
        dirty[first..=last].fill(1);
    }
    let now = edges(at, len);
    if now.0 != before.0 {
        dirty[..=(start - at).saturating_sub(1) / chunk].fill(1);
    }
    if now.1 != before.1 {
        dirty[(end - at) / chunk..].fill(1);
    }
    if again {
        armed.insert((at, len), now);
    }
    Ok(())
}

/// Whether nobody else can write this memory: private maps of nothing, or of chunks of the store.
fn private(start: usize, end: usize) -> io::Result<bool> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut at = start;
    for line in maps.lines() {
        let Some((low, high, mode, rest)) = map_line(line) else {
            continue;
        };
        if high <= at || low >= end {
            continue;
        }
        let anonymous = rest.split_ascii_whitespace().nth(2) == Some("0");
        if low > at || !mode.ends_with('p') || !(anonymous || rest.contains("/chunks/")) {
            return Ok(false);
        }
        at = high;
        if at >= end {
            return Ok(true);
        }
    }
    Ok(false)
}

fn map_line(line: &str) -> Option<(usize, usize, &str, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (low, high) = range.split_once('-')?;
    let (mode, rest) = rest.split_once(' ')?;
    Some((
        usize::from_str_radix(low, 16).ok()?,
        usize::from_str_radix(high, 16).ok()?,
        mode,
        rest,
    ))
}

/// Maps chunks in sequence as private memory. Each is checked; compressed ones are read.
///
/// # Errors
/// When a chunk is missing, truncated or not what was stored, or the kernel refuses the map.
pub fn map(local: &Local, ids: &[ChunkId], len: usize) -> io::Result<*mut u8> {
    if len == 0 || ids.len() != len.div_ceil(CHUNK_BYTES) {
        return Err(io::Error::other("the chunks don't make up this length"));
    }
    // SAFETY: a new anonymous map, given to the caller or unmapped below.
    let base = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?
    };
    let start = base as usize;
    let done = hop_blobs::local::parallel(ids.len(), |i| {
        let offset = i * CHUNK_BYTES;
        map_chunk(local, ids[i], start + offset, (len - offset).min(CHUNK_BYTES))
    });
    if let Err(e) = done {
        // SAFETY: nobody has seen the map.
        unsafe { munmap(base, len)? };
        return Err(e);
    }
    Ok(base.cast())
}

fn map_chunk(local: &Local, id: ChunkId, at: usize, len: usize) -> io::Result<()> {
    // SAFETY: only this call uses this part of the new map.
    let part = |at: usize| unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) };
    let Ok(file) = File::open(local.path(id)) else {
        return local.get(id, part(at)).map_err(io::Error::other);
    };
    if file.metadata()?.len() != len as u64 {
        return Err(io::Error::other(hop_blobs::GetError::Truncated { id }));
    }
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: the call replaces a part of the caller's new map; `at` is a multiple of the page.
    unsafe {
        mmap(
            at as *mut _,
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
            &file,
            0,
        )?
    };
    if ChunkId::of(part(at)) == id {
        Ok(())
    } else {
        Err(io::Error::other(hop_blobs::GetError::Tampered { id }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 7) as u8).collect()
    }

    #[test]
    fn sees_exactly_the_chunks_that_were_written() {
        if init().is_err() {
            eprintln!("skipped: no write tracking here");
            return;
        }
        let mut content = memory(8 << 20);
        let (at, len, chunk) = (content.as_ptr() as usize, content.len(), 1 << 20);
        arm(at, len).unwrap();
        let mut dirty = [9; 8];
        scan(at, len, chunk, &mut dirty, true).unwrap();
        assert_eq!(dirty, [0; 8]);
        content[(3 << 20) + 8192] ^= 1;
        content[len - 1] ^= 1;
        scan(at, len, chunk, &mut dirty, false).unwrap();
        assert_eq!(dirty, [0, 0, 0, 1, 0, 0, 0, 1]);
        scan(at, len, chunk, &mut dirty, true).unwrap();
        assert_eq!(dirty, [0, 0, 0, 1, 0, 0, 0, 1]);
        scan(at, len, chunk, &mut dirty, true).unwrap();
        assert_eq!(dirty, [0; 8]);
        content[0] ^= 1;
        scan(at, len, chunk, &mut dirty, true).unwrap();
        assert_eq!(dirty, [1, 0, 0, 0, 0, 0, 0, 0]);
        drop_range(at, len);
        assert!(scan(at, len, chunk, &mut dirty, true).is_err());
    }

    #[test]
    fn memory_that_was_replaced_is_an_error_not_clean() {
        if init().is_err() {
            return;
        }
        let len = 4 << 20;
        // SAFETY: maps of this test alone.
        unsafe {
            let at = mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
            .unwrap();
            arm(at as usize, len).unwrap();
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags).unwrap();
            assert!(scan(at as usize, len, len, &mut [0], true).is_err());
            munmap(at, len).unwrap();
        }
    }

    #[test]
    fn shared_memory_is_not_tracked() {
        if init().is_err() {
            return;
        }
        let len = 4 << 20;
        // SAFETY: a map of this test alone.
        unsafe {
            let at = mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
            .unwrap();
            assert!(arm(at as usize, len).is_err());
            munmap(at, len).unwrap();
        }
    }

    #[test]
    fn maps_chunks_and_refuses_what_isnt_them() {
        let dir = tempfile::tempdir().unwrap();
        let local = Local::at(dir.path());
        let content = memory(CHUNK_BYTES + 100);
        let (ids, _) = local.put_all(&content, None).unwrap();
        let at = map(&local, &ids, content.len()).unwrap();
        // SAFETY: this test owns the map until the unmap.
        unsafe {
            assert_eq!(std::slice::from_raw_parts(at, content.len()), content);
            at.write(77);
            munmap(at.cast(), content.len()).unwrap();
        }
        assert!(
            map(&local, &ids, content.len()).is_ok(),
            "a write to the map stays private"
        );
        let path = local.path(ids[1]);
        std::fs::write(&path, vec![0; 100]).unwrap();
        assert!(map(&local, &ids, content.len()).is_err());
        std::fs::write(&path, b"short").unwrap();
        assert!(map(&local, &ids, content.len()).is_err());
    }
}
