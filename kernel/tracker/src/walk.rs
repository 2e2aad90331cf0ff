//! Reads, in place, which objects a C pickler went through.
//!
//! CPython keeps the memo of its C pickler in a plain table, with the same layout from 3.2 to 3.13. The Python side
//! verifies the layout on a known object; if it differs, the memo is copied, which is slower.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};

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

/// Offsets, in bytes, of a type's flags and of its function that visits an instance's references, on 64-bit machines.
const TYPE_FLAGS: usize = 168;
const TYPE_TRAVERSE: usize = 184;
const TYPE_SUBCLASS: u64 = 1 << 31;
/// `Py_TPFLAGS_HAVE_GC`: instances can be visited, and a visit shows each reference once, as the collector needs it.
const VISITED: u64 = 1 << 14;

type Visit = unsafe extern "C" fn(*const Object, *mut c_void) -> c_int;
type Traverse = unsafe extern "C" fn(*const Object, Visit, *mut c_void) -> c_int;

impl Object {
    fn flags(&self) -> u64 {
        // SAFETY: an object's type is alive.
        unsafe { self.kind.add(TYPE_FLAGS).cast::<u64>().read() }
    }
}

impl Memo {
    /// Whether an object is a key, found as CPython does. Another way of CPython's finds nothing.
    fn has(&self, key: *const Object) -> bool {
        let hash = key as usize >> 3;
        let (mut at, mut perturb) = (hash & self.mask, hash);
        for _ in 0..self.allocated {
            // SAFETY: the table has `mask` + 1 places.
            let there = unsafe { (*self.table.add(at & self.mask)).key };
            if there == key || there.is_null() {
                return there == key;
            }
            at = (at << 2).wrapping_add(at).wrapping_add(perturb).wrapping_add(1);
            perturb >>= 5;
        }
        false
    }
}

/// Objects that were made for a dump: the memo, the dump's own notes and other such objects alone refer to them. They are
/// gone once the dump is, and what comes to lie at their address has nothing to do with the dump.
struct Made<'a> {
    memo: &'a Memo,
    /// References from such objects and from the notes, by object.
    from_made: HashMap<usize, isize>,
    found: HashSet<usize>,
    left: Vec<*const Object>,
}

impl Made<'_> {
    /// `notes` are the lists and dictionaries in which the dump keeps objects.
    ///
    /// # Safety
    /// The interpreter's lock is held, the memo is a pickler's, and the notes are objects that are alive.
    unsafe fn of(memo: &Memo, entries: &[MemoEntry], notes: &[*const Object]) -> HashSet<usize> {
        let keys = entries.iter().map(|entry| entry.key).filter(|key| !key.is_null());
        // SAFETY: the memo holds a reference to each of its keys.
        let alone = keys.filter(|key| unsafe { (**key).references } == 1);
        let mut left: Vec<*const Object> = alone.collect();
        let found = left.iter().map(|key| *key as usize).collect();
        left.extend(notes);
        let mut made = Made {
            memo,
            from_made: HashMap::new(),
            found,
            left,
        };
        while let Some(key) = made.left.pop() {
            // SAFETY: the memo holds the keys, the caller the notes, and the notes their referents. A visit
            // changes nothing.
            unsafe {
                let object = &*key;
                if object.flags() & VISITED == 0 {
                    continue;
                }
                let traverse = object.kind.add(TYPE_TRAVERSE).cast::<Option<Traverse>>().read();
                if let Some(traverse) = traverse {
                    traverse(key, visited, (&raw mut made).cast());
                }
            }
        }
        made.found
    }

    /// # Safety
    /// The object is alive.
    unsafe fn refers_to(&mut self, object: *const Object) {
        let from_memo = isize::from(self.memo.has(object));
        // SAFETY: by this function's contract.
        let (references, flags) = unsafe { ((*object).references, (*object).flags()) };
        if from_memo == 0 && flags & VISITED == 0 {
            return; // A number, say, that the memo doesn't hold: nothing is found through it.
        }
        let counted = self.from_made.entry(object as usize).or_insert(0);
        *counted += 1;
        if references - *counted == from_memo && self.found.insert(object as usize) {
            self.left.push(object);
        }
    }
}

/// # Safety
/// `made` is a [`Made`].
unsafe extern "C" fn visited(object: *const Object, made: *mut c_void) -> c_int {
    // SAFETY: by the function's contract; nobody else uses `made` during a visit, and the visited object is alive.
    unsafe { (*made.cast::<Made<'_>>()).refers_to(object) };
    0
}

/// Writes the sorted addresses of the objects in a pickler's memo to `out`, and returns their number. If the number is
/// more than `out` holds, nothing useful was written.
///
/// Left out are instances of the types in `harmless`, classes, and members of enumerations (whose metaclass is the
/// last in `harmless`). Lists and dictionaries made for the dump are left out as well, though `notes` refers to them:
/// it has their addresses.
///
/// # Safety
/// The interpreter's lock is held, `pickler` is a `_pickle.Pickler` (or of a subclass), and `notes` are objects' addresses.
pub unsafe fn memo_ids(pickler: *const u8, harmless: &[usize], notes: &[usize], out: &mut [u64]) -> usize {
    let enum_meta = harmless.last();
    let mut kinds: Vec<usize> = harmless.to_vec();
    kinds.sort_unstable();
    // SAFETY: by this function's contract; the table is the pickler's own and stays while the lock is held.
    let (entries, made) = unsafe {
        let memo = &*(*pickler.cast::<Pickler>()).memo;
        let entries = std::slice::from_raw_parts(memo.table, memo.allocated);
        let notes: Vec<*const Object> = notes.iter().map(|at| *at as *const Object).collect();
        (entries, Made::of(memo, entries, &notes))
    };
    let mut n = 0;
    for entry in entries {
        if entry.key.is_null() {
            continue;
        }
        // SAFETY: the memo holds a reference to each of its keys.
        let object = unsafe { &*entry.key };
        if made.contains(&(entry.key as usize)) || kinds.binary_search(&(object.kind as usize)).is_ok() {
            continue;
        }
        // SAFETY: an object's type is alive, and so is the type's own type.
        let meta = unsafe { (*object.kind.cast::<Object>()).kind as usize };
        if object.flags() & TYPE_SUBCLASS != 0 || Some(&meta) == enum_meta {
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
