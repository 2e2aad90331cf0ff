//! The native half of the in-kernel agent, loaded by `gresshopper.state.native` through ctypes.
//!
//! [`track`] asks Linux for written pages, [`walk`] reads a pickler's memo, [`audit`] listens to Python's audit events;
//! the rest hands memory to the store and hashes it. Decisions are made elsewhere. All functions return a negative
//! number on failure, and [`hop_error`] then gives the reason; none panics across the boundary.
#![allow(unsafe_code)] // a C interface over the memory of another language's objects

pub mod audit;
pub mod logs;
pub mod track;
pub mod walk;

use hop_blobs::local::{Local, parallel};
use hop_blobs::{CHUNK_BYTES, ChunkId, PutError};
use hop_words::memory::MemoryPaths;
use logs::How;
use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

/// Version of this interface; `native.ABI` must be the same.
pub const ABI: u32 = 7;

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Returned where the store doesn't answer ([`PutError::Hangs`]).
const HANGS: i64 = -2;

fn failed(e: &dyn Error) -> i64 {
    LAST.with_borrow_mut(|last| *last = hop_words::error::chain(e));
    -1
}

fn not_put(e: &PutError) -> i64 {
    let result = failed(e);
    match e {
        PutError::Hangs { .. } => HANGS,
        _ => result,
    }
}

fn guarded(work: impl FnOnce() -> i64) -> i64 {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        LAST.with_borrow_mut(|last| "the native library failed".clone_into(last));
        -1
    })
}

/// Memory given by address.
///
/// # Safety
/// `at` must point to `len` readable bytes that live through `'a`. Another thread of the interpreter may write to
/// them meanwhile: what is read is then some mixture, which the next scan reports as written.
unsafe fn bytes<'a>(at: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(at, len) }
}

/// # Safety
/// As [`bytes`], writable, and nobody else's meanwhile.
unsafe fn bytes_mut<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts_mut(at, len) }
}

/// Asks nothing of the file system, which may hang.
///
/// # Safety
/// `dir` must be a string that ends in zero.
unsafe fn local(dir: *const c_char) -> Arc<Local> {
    static OPEN: OnceLock<Mutex<HashMap<PathBuf, Arc<Local>>>> = OnceLock::new();
    // SAFETY: by this function's contract.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(dir) }.to_bytes())).to_owned();
    let mut open = OPEN
        .get_or_init(Mutex::default)
        .lock()
        .expect("no holder of this lock panics");
    let made = |path: &PathBuf| Arc::new(Local::at(path));
    Arc::clone(open.entry(path).or_insert_with_key(made))
}

/// The version of this interface.
#[unsafe(no_mangle)]
pub extern "C" fn hop_abi() -> u32 {
    ABI
}

/// Copies the reason of this thread's last failure to `out`, ended by zero.
///
/// # Safety
/// `out` must point to `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_error(out: *mut u8, len: usize) -> i64 {
    LAST.with_borrow(|last| {
        let n = last.len().min(len.saturating_sub(1));
        // SAFETY: by this function's contract.
        let out = unsafe { bytes_mut(out, len) };
        if let Some(end) = out.get_mut(n) {
            *end = 0;
        }
        out[..n].copy_from_slice(&last.as_bytes()[..n]);
        n as i64
    })
}

/// Memory that this process may still take, in bytes, by the machine's limit and the tightest memory cgroup. Negative
/// if no limit is known.
#[unsafe(no_mangle)]
pub extern "C" fn hop_room() -> i64 {
    guarded(|| {
        let left = MemoryPaths::here().left(std::process::id().cast_signed());
        left.map_or(-1, |left| i64::try_from(left.bytes).unwrap_or(i64::MAX))
    })
}

/// XXH3-128 of each chunk of the memory, 16 bytes each, to `out`.
///
/// # Safety
/// `at` must point to `len` readable bytes, `out` to 16 bytes for each `chunk` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_tags(at: *const u8, len: usize, chunk: usize, out: *mut u8) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let (content, out) = unsafe { (bytes(at, len), bytes_mut(out, 16 * len.div_ceil(chunk))) };
        let parts: Vec<(&[u8], Mutex<&mut [u8]>)> = content
            .chunks(chunk)
            .zip(out.chunks_mut(16).map(Mutex::new))
            .collect();
        let done: Result<(), std::convert::Infallible> = parallel(parts.len(), |i| {
            let tag = twox_hash::XxHash3_128::oneshot(parts[i].0);
            parts[i]
                .1
                .lock()
                .expect("no holder of this lock panics")
                .copy_from_slice(&tag.to_le_bytes());
            Ok(())
        });
        done.map_or(-1, |()| 0)
    })
}

/// Stores memory in chunks (those marked in `wanted`, or all when it is null), names to `names`, 32 bytes each.
/// Returns how many bytes were written, or -2 where the store doesn't answer. Nothing reads the memory afterwards.
///
/// # Safety
/// `dir` must be a string; `at` must point to `len` readable bytes, `wanted` to a byte and `names` to 32 bytes for
/// each chunk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_put(
    dir: *const c_char,
    at: *const u8,
    len: usize,
    chunk: usize,
    wanted: *const u8,
    names: *mut u8,
) -> i64 {
    guarded(|| {
        if chunk != CHUNK_BYTES {
            return failed(&std::io::Error::other("another length of chunks"));
        }
        let count = len.div_ceil(chunk);
        // SAFETY: by this function's contract.
        let (content, names) = unsafe { (bytes(at, len), bytes_mut(names, 32 * count)) };
        // SAFETY: as above.
        let wanted = (!wanted.is_null()).then(|| unsafe { bytes(wanted, count) });
        // SAFETY: as above.
        let put = unsafe { local(dir) }.put_all(content, wanted);
        match put {
            Ok((ids, wrote)) => {
                for (name, id) in names.chunks_mut(32).zip(ids) {
                    name.copy_from_slice(&id.0);
                }
                i64::try_from(wrote).unwrap_or(i64::MAX)
            }
            Err(e) => not_put(&e),
        }
    })
}

/// Whether `count` chunks exist: 1 or 0. Existing ones then count as used now.
///
/// # Safety
/// `dir` must be a string; `names` must point to 32 bytes for each chunk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_keep(dir: *const c_char, names: *const u8, count: usize) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let (local, names) = unsafe { (local(dir), bytes(names, 32 * count)) };
        local
            .keeps_all(ids(names))
            .map_or_else(|e| not_put(&e), i64::from)
    })
}

/// Whether the store was found hanging, and has not answered since: 1 or 0.
///
/// # Safety
/// `dir` must be a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_hangs(dir: *const c_char) -> i64 {
    // SAFETY: by this function's contract.
    guarded(|| i64::from(unsafe { local(dir) }.hangs()))
}

fn ids(raw: &[u8]) -> Vec<ChunkId> {
    raw.chunks_exact(32)
        .map(|id| ChunkId(id.try_into().expect("32 bytes")))
        .collect()
}

/// Reads `count` chunks into memory, each checked.
///
/// # Safety
/// `dir` must be a string; `names` must point to 32 bytes for each chunk, `at` to `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_get(
    dir: *const c_char,
    names: *const u8,
    count: usize,
    at: *mut u8,
    len: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let (names, into) = unsafe { (bytes(names, 32 * count), bytes_mut(at, len)) };
        // SAFETY: as above.
        unsafe { local(dir) }
            .get_all(&ids(names), into)
            .map_or_else(|e| failed(&e), |()| 0)
    })
}

/// Maps `count` chunks as private memory, each checked; null when it can't be done.
///
/// # Safety
/// `dir` must be a string; `names` must point to 32 bytes for each chunk. The memory is the caller's until
/// [`hop_unmap`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_map(dir: *const c_char, names: *const u8, count: usize, len: usize) -> *mut u8 {
    let mut at = std::ptr::null_mut();
    guarded(|| {
        // SAFETY: by this function's contract.
        let names = unsafe { bytes(names, 32 * count) };
        // SAFETY: as above.
        let local = unsafe { local(dir) };
        match track::map(&local, &ids(names), len) {
            Ok(mapped) => {
                at = mapped;
                0
            }
            Err(e) => failed(&e),
        }
    });
    at
}

/// Gives back what [`hop_map`] mapped.
///
/// # Safety
/// `at` and `len` must be those of one call of [`hop_map`], and nothing may use the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_unmap(at: *mut u8, len: usize) -> i64 {
    // SAFETY: by this function's contract.
    unsafe { rustix::mm::munmap(at.cast(), len) }.map_or_else(|e| failed(&std::io::Error::from(e)), |()| 0)
}

/// Makes all that was stored below `dir` survive a crash of the machine.
///
/// # Safety
/// `dir` must be a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_sync(dir: *const c_char) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        unsafe { local(dir) }.sync().map_or_else(|e| failed(&e), |()| 0)
    })
}

/// Compresses the content stored below `dir` since the last call, where worthwhile; returns the bytes saved.
///
/// # Safety
/// `dir` must be a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_pack(dir: *const c_char) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        unsafe { local(dir) }
            .pack_fresh()
            .map_or_else(|e| failed(&e), |saved| i64::try_from(saved).unwrap_or(i64::MAX))
    })
}

/// Keyed BLAKE3 of the memory, 32 bytes to `out`.
///
/// # Safety
/// `key` and `out` must point to 32 bytes, `at` to `len` readable ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_keyed(key: *const u8, at: *const u8, len: usize, out: *mut u8) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let (key, content, out) = unsafe { (bytes(key, 32), bytes(at, len), bytes_mut(out, 32)) };
        let key: &[u8; 32] = key.try_into().expect("32 bytes");
        out.copy_from_slice(blake3::keyed_hash(key, content).as_bytes());
        0
    })
}

/// Opens the log of a state in `dir`, a folder that exists: anew, or with `resumed` after its last record. Returns the
/// log's number.
///
/// # Safety
/// `dir` must be a string; `key` must point to 32 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_log_open(dir: *const c_char, key: *const u8, resumed: i32) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let (dir, key) = unsafe { (CStr::from_ptr(dir), bytes(key, 32)) };
        let key = key.try_into().expect("32 bytes");
        let how = if resumed != 0 { How::Resumed } else { How::Anew };
        logs::open(Path::new(OsStr::from_bytes(dir.to_bytes())), key, how).unwrap_or_else(|e| failed(&e))
    })
}

/// Adds a record to a log. Returns the bytes that it takes there.
///
/// # Safety
/// `text` and `body` must point to as many readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_log_add(
    log: i64,
    text: *const u8,
    text_len: usize,
    body: *const u8,
    body_len: usize,
    compress: i32,
) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let (text, body) = unsafe { (bytes(text, text_len), bytes(body, body_len)) };
        logs::add(log, text, body, compress != 0)
            .map_or_else(|e| failed(&e), |length| i64::try_from(length).unwrap_or(i64::MAX))
    })
}

/// Makes the records added to a log count.
#[unsafe(no_mangle)]
pub extern "C" fn hop_log_commit(log: i64, durable: i32) -> i64 {
    guarded(|| logs::commit(log, durable != 0).map_or_else(|e| failed(&e), |()| 0))
}

/// Closes a log; what wasn't committed doesn't count.
#[unsafe(no_mangle)]
pub extern "C" fn hop_log_close(log: i64) -> i64 {
    guarded(|| {
        logs::close(log);
        0
    })
}

/// Makes a plan: the problem and the plan are JSON (`hop_state::plan`). Returns the plan's length; a plan of at most
/// `cap` bytes is copied to `out`.
///
/// # Safety
/// `at` must point to `len` readable bytes, `out` to `cap` writable ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_plan(at: *const u8, len: usize, out: *mut u8, cap: usize) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let (problem, out) = unsafe { (bytes(at, len), bytes_mut(out, cap)) };
        let plan = serde_json::from_slice::<hop_state::plan::Problem>(problem)
            .map(|problem| hop_state::plan::plan(&problem))
            .and_then(|plan| serde_json::to_vec(&plan));
        match plan {
            Ok(text) => {
                if let Some(there) = out.get_mut(..text.len()) {
                    there.copy_from_slice(&text);
                }
                text.len() as i64
            }
            Err(e) => failed(&e),
        }
    })
}

/// Starts write tracking; negative where Linux can't.
#[unsafe(no_mangle)]
pub extern "C" fn hop_track_init() -> i64 {
    guarded(|| track::init().map_or_else(|e| failed(&e), |()| 0))
}

/// Tracks writes to memory from now on.
#[unsafe(no_mangle)]
pub extern "C" fn hop_track_arm(at: usize, len: usize) -> i64 {
    guarded(|| track::arm(at, len).map_or_else(|e| failed(&e), |()| 0))
}

/// Stops tracking memory.
#[unsafe(no_mangle)]
pub extern "C" fn hop_track_drop(at: usize, len: usize) -> i64 {
    guarded(|| {
        track::drop_range(at, len);
        0
    })
}

/// Marks in `dirty` the chunks written since the last scan with `again` (or since arming); returns their number.
/// Negative if unknown, which also ends the tracking.
///
/// # Safety
/// `dirty` must point to a byte for each chunk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_track_scan(
    at: usize,
    len: usize,
    chunk: usize,
    dirty: *mut u8,
    again: i32,
) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let dirty = unsafe { bytes_mut(dirty, len.div_ceil(chunk)) };
        match track::scan(at, len, chunk, dirty, again != 0) {
            Ok(()) => dirty.iter().filter(|&&d| d != 0).count() as i64,
            Err(e) => {
                track::drop_range(at, len);
                failed(&e)
            }
        }
    })
}

/// Addresses in a pickler's memo, sorted, without objects of the types in `harmless`; see [`walk::memo_ids`].
///
/// # Safety
/// The interpreter's lock must be held. `pickler` must be a C pickler of a Python whose layout was tested. `harmless`
/// must be `count` types, and `notes` the addresses of `noted` objects that are alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_memo_ids(
    pickler: *const u8,
    harmless: *const usize,
    count: usize,
    notes: *const usize,
    noted: usize,
    out: *mut u64,
    cap: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let (types, notes, out) = unsafe {
            (
                std::slice::from_raw_parts(harmless, count),
                std::slice::from_raw_parts(notes, noted),
                std::slice::from_raw_parts_mut(out, cap),
            )
        };
        // SAFETY: by this function's contract.
        unsafe { walk::memo_ids(pickler, types, notes, out) as i64 }
    })
}

/// As [`audit::listen`], with the kinds one a line. Returns 0, or a negative number with or without a Python exception.
///
/// # Safety
/// `kinds` must be a string that ends in zero, `told` as [`audit::listen`] asks; the caller holds the interpreter's lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_audit(kinds: *const c_char, told: *mut std::ffi::c_void) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let kinds = audit::Kinds::new(unsafe { CStr::from_ptr(kinds) }.to_bytes());
        // SAFETY: by this function's contract.
        unsafe { audit::listen(kinds, told) }.map_or(-1, i64::from)
    })
}

/// Addresses of the instances of exactly `kind` in a pickler's memo; see [`walk::memo_of`].
///
/// # Safety
/// As for [`hop_memo_ids`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_memo_of(pickler: *const u8, kind: *const u8, out: *mut u64, cap: usize) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let out = unsafe { std::slice::from_raw_parts_mut(out, cap) };
        // SAFETY: by this function's contract.
        unsafe { walk::memo_of(pickler, kind, out) as i64 }
    })
}

/// Whether `count` pointers at `at` all are to objects of these types.
///
/// # Safety
/// The interpreter's lock must be held, and the pointers be those of a live array of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hop_all_atoms(
    at: *const *const u8,
    count: usize,
    types: *const usize,
    n: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: by this function's contract.
        let (objects, types) = unsafe {
            (
                std::slice::from_raw_parts(at, count),
                std::slice::from_raw_parts(types, n),
            )
        };
        // SAFETY: by this function's contract.
        i64::from(unsafe { walk::all_of(objects, types) })
    })
}
