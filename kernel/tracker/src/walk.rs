//! Reads, in place, which objects a C pickler went through.
//!
//! CPython keeps the memo of its C pickler in a plain table, with the same layout from 3.2 to 3.13. The Python side
//! verifies the layout on a known object; if it differs, the memo is copied, which is slower.

/// `PyObject` as far as it is read here: the count of references and the type.
#[repr(C)]
struct Object {
    references: isize,
    kind: *const u8,
}

#[repr(C)]
struct Pickler {
    head: Object,
    memo: *const Memo,
}

#[repr(C)]
struct Memo {
    mask: usize,
    used: usize,
    allocated: usize,
    table: *const MemoEntry,
}

#[repr(C)]
struct MemoEntry {
    key: *const Object,
    value: isize,
}

/// Offset of a type's flags, in bytes, on 64-bit machines.
const TYPE_FLAGS: usize = 168;
const TYPE_SUBCLASS: u64 = 1 << 31;

/// Writes the sorted addresses of the objects in a pickler's memo to `out` and returns how many there are, which may
/// be more than `out` holds (then nothing useful was written). Left out are instances of the types in `harmless`,
/// classes, members of enumerations (whose metaclass is the last in `harmless`), and what only the memo refers to any
/// more (made for the dump).
///
/// # Safety
/// The interpreter's lock is held and `pickler` is a `_pickle.Pickler` (or of a subclass).
pub unsafe fn memo_ids(pickler: *const u8, harmless: &[usize], out: &mut [u64]) -> usize {
    let enum_meta = harmless.last();
    let mut kinds: Vec<usize> = harmless.to_vec();
    kinds.sort_unstable();
    // SAFETY: by this function's contract; the table is the pickler's own and stays while the lock is held.
    let entries = unsafe {
        let memo = &*(*pickler.cast::<Pickler>()).memo;
        std::slice::from_raw_parts(memo.table, memo.allocated)
    };
    let mut n = 0;
    for entry in entries {
        if entry.key.is_null() {
            continue;
        }
        // SAFETY: the memo holds a reference to each of its keys.
        let object = unsafe { &*entry.key };
        if object.references == 1 || kinds.binary_search(&(object.kind as usize)).is_ok() {
            continue;
        }
        // SAFETY: an object's type is alive, and so is the type's own type.
        let (flags, meta) = unsafe {
            (
                object.kind.add(TYPE_FLAGS).cast::<u64>().read(),
                (*object.kind.cast::<Object>()).kind as usize,
            )
        };
        if flags & TYPE_SUBCLASS != 0 || Some(&meta) == enum_meta {
            continue;
        }
        if let Some(place) = out.get_mut(n) {
            *place = entry.key as u64;
        }
        n += 1;
    }
    if n <= out.len() {
        out[..n].sort_unstable();
    }
    n
}

/// Writes the addresses of the instances of exactly `kind` in a pickler's memo to `out` and returns how many there are,
/// which may be more than `out` holds.
///
/// # Safety
/// As for [`memo_ids`].
pub unsafe fn memo_of(pickler: *const u8, kind: *const u8, out: &mut [u64]) -> usize {
    // SAFETY: by this function's contract; the table is the pickler's own and stays while the lock is held.
    let entries = unsafe {
        let memo = &*(*pickler.cast::<Pickler>()).memo;
        std::slice::from_raw_parts(memo.table, memo.allocated)
    };
    let mut n = 0;
    for entry in entries.iter().filter(|entry| !entry.key.is_null()) {
        // SAFETY: the memo holds a reference to each of its keys.
        if unsafe { (*entry.key).kind } == kind {
            if let Some(place) = out.get_mut(n) {
                *place = entry.key as u64;
            }
            n += 1;
        }
    }
    n
}

/// Whether all these objects are instances of one of the types; null (an empty place) counts as an instance.
///
/// # Safety
/// The interpreter's lock is held and the objects are alive.
pub unsafe fn all_of(objects: &[*const u8], types: &[usize]) -> bool {
    objects.iter().all(|&object| {
        // SAFETY: by this function's contract.
        object.is_null() || types.contains(&(unsafe { (*object.cast::<Object>()).kind } as usize))
    })
}
