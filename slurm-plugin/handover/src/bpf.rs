//! bpf(2): the device program of a cgroup v2 (Slurm's own, with lent devices excepted), and the calls needed by
//! [`crate::count`] for programs and maps.
//!
//! A handful of instructions, assembled by hand; the kernel's verifier checks the program at load.

#![allow(unsafe_code)] // bpf(2) has no wrapper in libc.

use std::ffi::{CStr, CString};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// An instruction, in the eight bytes of the kernel's `struct bpf_insn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Instruction(u64);

impl Instruction {
    pub(crate) fn with_offset(self, offset: i16) -> Self {
        Self(self.0 & !0xffff_0000 | u64::from(offset.cast_unsigned()) << 16)
    }
}

const LOAD_WORD: u8 = 0x61; // BPF_LDX | BPF_MEM | BPF_W
const AND_IMMEDIATE: u8 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const MOVE_IMMEDIATE: u8 = 0xb4; // BPF_ALU | BPF_MOV | BPF_K
const JUMP_IF_NOT: u8 = 0x55; // BPF_JMP | BPF_JNE | BPF_K
const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const MAP_NEXT_KEY: libc::c_int = 4;
const PROG_LOAD: libc::c_int = 5;
const OBJECT_PIN: libc::c_int = 6;
const OBJECT_GET: libc::c_int = 7;
const PROG_ATTACH: libc::c_int = 8;
const PROG_BY_ID: libc::c_int = 13;
const OBJECT_INFO: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
const TRACEPOINT_OPEN: libc::c_int = 17;
const LINK_CREATE: libc::c_int = 28;
const ITERATOR_CREATE: libc::c_int = 33;
const MAP_HASH: u32 = 1;
const MAP_FORGETFUL: u32 = 9;
const NO_PREALLOC: u32 = 1;
const TYPE_CGROUP_DEVICE: u32 = 15;
const TYPE_RAW_TRACEPOINT: u32 = 17;
const TYPE_TRACING: u32 = 26;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const ATTACH_ITERATOR: u32 = 28;

/// Most instructions of a cgroup's device program: Slurm's has about five for each device.
const MOST_INSTRUCTIONS: usize = 65_536;

/// Character devices; the low half of the context's first word.
const CHARACTER: i32 = 2;

/// A character device's number.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub struct Number {
    pub major: u32,
    pub minor: u32,
}

impl Number {
    pub fn of(device: &hop_words::gpu::Device) -> Self {
        Self {
            major: device.major,
            minor: device.minor,
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.major, self.minor)
    }
}

/// A device program, as it also stands in records.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Program(Vec<Instruction>);

/// `to` and `from` are registers; `offset` is a field's or a jump's.
pub(crate) fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = immediate.to_le_bytes();
    Instruction(u64::from_le_bytes([code, from << 4 | to, low, high, a, b, c, d]))
}

impl Program {
    /// A program that answers `answer` for the devices of a list, and else goes on to `rest`.
    fn first(numbers: &[Number], answer: i32, rest: &[Instruction]) -> Vec<Instruction> {
        // Register 1 points to the context: access type, major, minor, a word each.
        let mut program = vec![
            instruction(LOAD_WORD, 2, 1, 0, 0),
            instruction(AND_IMMEDIATE, 2, 0, 0, 0xffff),
            instruction(LOAD_WORD, 3, 1, 4, 0),
            instruction(LOAD_WORD, 4, 1, 8, 0),
        ];
        for device in numbers {
            program.extend([
                instruction(JUMP_IF_NOT, 2, 0, 4, CHARACTER),
                instruction(JUMP_IF_NOT, 3, 0, 3, device.major.cast_signed()),
                instruction(JUMP_IF_NOT, 4, 0, 2, device.minor.cast_signed()),
                instruction(MOVE_IMMEDIATE, 0, 0, 0, answer),
                instruction(EXIT, 0, 0, 0, 0),
            ]);
        }
        program.extend_from_slice(rest);
        program
    }

    /// Denies the devices of a list, as Slurm's does.
    pub fn denying(numbers: &[Number]) -> Self {
        let allow = [
            instruction(MOVE_IMMEDIATE, 0, 0, 0, 1),
            instruction(EXIT, 0, 0, 0, 0),
        ];
        Self(Self::first(numbers, 0, &allow))
    }

    /// Puts the program in force for the cgroup with `excepted` opened, in place of any program attached there without
    /// flags.
    ///
    /// # Errors
    /// EPERM without CAP_BPF/CAP_SYS_ADMIN or where an ancestor's program forbids one here; EINVAL from the verifier.
    pub fn attach(&self, cgroup: impl AsFd, excepted: &[Number]) -> io::Result<()> {
        let program = Self::first(excepted, 1, &self.0);
        let program = load(&program, TYPE_CGROUP_DEVICE)?;
        let target = word(cgroup.as_fd());
        let mut attributes = [target, word(program.as_fd()), ATTACH_CGROUP_DEVICE];
        bpf(PROG_ATTACH, &mut attributes).map(drop)
    }

    /// The program attached to the cgroup itself. `None` means that none is attached.
    ///
    /// # Errors
    /// EPERM without privileges; several programs, none of which can be taken for Slurm's.
    pub fn attached(cgroup: impl AsFd) -> io::Result<Option<Self>> {
        let mut ids = [0_u32; 64];
        let mut attributes = QueryAttributes {
            target: word(cgroup.as_fd()),
            kind: ATTACH_CGROUP_DEVICE,
            query_flags: 0,
            attach_flags: 0,
            ids: ids.as_mut_ptr().addr() as u64,
            count: 64,
            padding: 0,
        };
        bpf(PROG_QUERY, &mut attributes)?;
        match attributes.count {
            0 => Ok(None),
            1 => Self::read(ids[0]).map(Some),
            n => Err(io::Error::other(format!("{n} device programs are attached"))),
        }
    }

    /// The instructions of a loaded program.
    fn read(id: u32) -> io::Result<Self> {
        let program = bpf(PROG_BY_ID, &mut [id]).map(owned)?;
        let info_of = |info: &mut ProgramInformation| {
            let mut attributes = InformationAttributes {
                object: word(program.as_fd()),
                size: u32::try_from(size_of::<ProgramInformation>()).map_err(io::Error::other)?,
                information: std::ptr::from_mut(info).addr() as u64,
            };
            bpf(OBJECT_INFO, &mut attributes).map(drop)
        };
        let mut info = ProgramInformation::default();
        info_of(&mut info)?;
        let bytes = info.length;
        let mut words = vec![Instruction(0); bytes as usize / size_of::<Instruction>()];
        if words.is_empty() || words.len() > MOST_INSTRUCTIONS {
            return Err(io::Error::other("its instructions can't be read"));
        }
        info = ProgramInformation {
            length: bytes,
            instructions: words.as_mut_ptr().addr() as u64,
            ..ProgramInformation::default()
        };
        info_of(&mut info)?;
        if info.length != bytes || info.instructions == 0 {
            return Err(io::Error::other("its instructions are not shown"));
        }
        Ok(Self(words))
    }
}

// The fields of `union bpf_attr` that are used, for each command; the kernel takes the rest as zeros. If all are words
// of 32 bits, they are an array in their order.

/// For BPF_PROG_LOAD.
#[repr(C)]
#[derive(Default)]
struct LoadAttributes {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log: [u64; 2],
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_kind: u32,
    debugging: [u64; 4],
    line_count: u32,
    /// Number in BTF of the function of Linux's to attach to.
    attach_to: u32,
}

#[repr(C)]
struct MapAttributes {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

#[repr(C)]
struct ElementAttributes {
    map: u32,
    padding: u32,
    key: u64,
    /// The value, or the next key.
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ObjectAttributes {
    path: u64,
    object: u32,
    flags: u32,
}

#[repr(C)]
struct TracepointAttributes {
    name: u64,
    program: u32,
    padding: u32,
}

#[repr(C)]
struct InformationAttributes {
    object: u32,
    size: u32,
    information: u64,
}

/// The beginning of `struct bpf_prog_info`; the kernel fills as much as it is given room for.
#[repr(C)]
#[derive(Default)]
struct ProgramInformation {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    machine_length: u32,
    length: u32,
    machine_code: u64,
    instructions: u64,
}

#[repr(C)]
struct QueryAttributes {
    target: u32,
    kind: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    padding: u32,
}

fn bpf<A>(command: libc::c_int, attributes: &mut A) -> io::Result<i32> {
    // SAFETY: `attributes` is the kernel's layout for `command`, of the size given, and all that it points to
    // outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<A>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::try_from(result).unwrap_or(i32::MAX))
}

fn load(program: &[Instruction], kind: u32) -> io::Result<OwnedFd> {
    load_for(program, kind, 0, 0)
}

fn load_for(program: &[Instruction], kind: u32, attach_kind: u32, attach_to: u32) -> io::Result<OwnedFd> {
    let mut attributes = LoadAttributes {
        kind,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        instructions: program.as_ptr().addr() as u64,
        // Programs that read the kernel's own structures must be usable under the GPL too.
        license: c"Dual MIT/GPL".as_ptr().addr() as u64,
        name: *b"gresshopper\0\0\0\0\0",
        attach_kind,
        attach_to,
        ..LoadAttributes::default()
    };
    bpf(PROG_LOAD, &mut attributes).map(owned)
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel just gave us this descriptor.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Loads a program and attaches it to a tracepoint. The link is what keeps it attached.
///
/// # Errors
/// EPERM without privileges; EINVAL or EACCES from the verifier; ENOENT: no such tracepoint.
pub(crate) fn trace(program: &[Instruction], tracepoint: &CStr) -> io::Result<OwnedFd> {
    let program = load(program, TYPE_RAW_TRACEPOINT)?;
    let mut attributes = TracepointAttributes {
        name: tracepoint.as_ptr().addr() as u64,
        program: word(program.as_fd()),
        padding: 0,
    };
    bpf(TRACEPOINT_OPEN, &mut attributes).map(owned)
}

/// Has a program judge every access to a device by the cgroup's processes, beside whatever judges there and below.
///
/// # Errors
/// As [`trace`]; EPERM where a program of the cgroup or above wants to be alone.
pub(crate) fn judge_devices(program: &[Instruction], cgroup: impl AsFd) -> io::Result<OwnedFd> {
    let program = load(program, TYPE_CGROUP_DEVICE)?;
    let target = word(cgroup.as_fd());
    let mut attributes = [word(program.as_fd()), target, ATTACH_CGROUP_DEVICE];
    bpf(LINK_CREATE, &mut attributes).map(owned)
}

/// A program for each item of one of Linux's iterators, which `function` is in BTF; [`run`] goes over the items.
///
/// # Errors
/// As [`trace`].
pub(crate) fn iterate(program: &[Instruction], function: u32) -> io::Result<OwnedFd> {
    let program = load_for(program, TYPE_TRACING, ATTACH_ITERATOR, function)?;
    let no_target = 0;
    let mut attributes = [word(program.as_fd()), no_target, ATTACH_ITERATOR];
    bpf(LINK_CREATE, &mut attributes).map(owned)
}

/// The output of an iterator's program, as a file to be read once.
///
/// # Errors
/// The kernel's.
pub(crate) fn run(iterator: impl AsFd) -> io::Result<std::fs::File> {
    let mut attributes = [word(iterator.as_fd())];
    bpf(ITERATOR_CREATE, &mut attributes).map(|fd| owned(fd).into())
}

fn address(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Gives a map or a link a name in a bpf file system, and with the name a life beyond the last descriptor.
///
/// # Errors
/// The kernel's; EPERM where it is no bpf file system.
pub(crate) fn pin(object: impl AsFd, path: &Path) -> io::Result<()> {
    let path = address(path)?;
    let mut attributes = ObjectAttributes {
        path: path.as_ptr().addr() as u64,
        object: word(object.as_fd()),
        flags: 0,
    };
    bpf(OBJECT_PIN, &mut attributes).map(drop)
}

/// Opens the object of this name in a bpf file system.
///
/// # Errors
/// The kernel's; ENOENT: nothing.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = address(path)?;
    let mut attributes = ObjectAttributes {
        path: path.as_ptr().addr() as u64,
        object: 0,
        flags: 0,
    };
    bpf(OBJECT_GET, &mut attributes).map(owned)
}

/// A hash map of the kernel's. `K` and `V` are plain words without padding.
#[derive(Debug)]
pub(crate) struct Map<K, V> {
    fd: OwnedFd,
    types: PhantomData<(K, V)>,
}

impl<K: Copy + Default, V: Copy + Default> Map<K, V> {
    /// # Errors
    /// The kernel's.
    pub(crate) fn make(entries: u32) -> io::Result<Self> {
        Self::of_kind(MAP_HASH, NO_PREALLOC, entries)
    }

    /// A map that, when full, evicts the least recently used entry.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn make_forgetful(entries: u32) -> io::Result<Self> {
        Self::of_kind(MAP_FORGETFUL, 0, entries)
    }

    fn of_kind(kind: u32, flags: u32, entries: u32) -> io::Result<Self> {
        let mut attributes = MapAttributes {
            kind,
            key_size: u32::try_from(size_of::<K>()).map_err(io::Error::other)?,
            value_size: u32::try_from(size_of::<V>()).map_err(io::Error::other)?,
            max_entries: entries,
            flags,
        };
        bpf(MAP_CREATE, &mut attributes).map(|fd| Self::of(owned(fd)))
    }

    /// `fd` must be of a map that [`Map::make`] made with the same types.
    pub(crate) fn of(fd: OwnedFd) -> Self {
        Self {
            fd,
            types: PhantomData,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn element(&self, key: &K, value: u64) -> ElementAttributes {
        ElementAttributes {
            map: word(self.fd()),
            padding: 0,
            key: std::ptr::from_ref(key).addr() as u64,
            value,
            flags: 0,
        }
    }

    /// # Errors
    /// The kernel's. None: no such key.
    pub(crate) fn get(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = V::default();
        let mut attributes = self.element(key, std::ptr::from_mut(&mut value).addr() as u64);
        present(bpf(MAP_LOOKUP, &mut attributes)).map(|found| found.map(|_| value))
    }

    /// # Errors
    /// The kernel's; E2BIG: the map is full.
    pub(crate) fn put(&self, key: &K, value: &V) -> io::Result<()> {
        let mut attributes = self.element(key, std::ptr::from_ref(value).addr() as u64);
        bpf(MAP_UPDATE, &mut attributes).map(drop)
    }

    /// # Errors
    /// The kernel's. No such key is none.
    pub(crate) fn remove(&self, key: &K) -> io::Result<()> {
        present(bpf(MAP_DELETE, &mut self.element(key, 0))).map(drop)
    }

    /// The keys, read while the map may change: no lasting key is missing.
    pub(crate) fn keys(&self, at_most: u32) -> Vec<K> {
        let mut keys: Vec<K> = Vec::new();
        let mut next = K::default();
        let mut attributes = ElementAttributes {
            map: word(self.fd()),
            padding: 0,
            key: 0,
            value: std::ptr::from_mut(&mut next).addr() as u64,
            flags: 0,
        };
        while keys.len() < at_most as usize && bpf(MAP_NEXT_KEY, &mut attributes).is_ok() {
            keys.push(next);
            attributes.key = keys.last().map_or(0, |k| std::ptr::from_ref(k).addr() as u64);
        }
        keys
    }
}

/// "There is none" is an answer.
fn present(result: io::Result<i32>) -> io::Result<Option<i32>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

fn word(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A stand-in for Linux: an interpreter for the five instructions that we use.
    fn run(program: &[Instruction], access_type: u32, device: Number) -> u32 {
        let mut registers = [0_u32; 16];
        let mut at = 0_usize;
        for _ in 0..10_000 {
            let [code, pair, low, high, a, b, c, d] = program[at].0.to_le_bytes();
            let offset = usize::from(u16::from_le_bytes([low, high]));
            let immediate = u32::from_le_bytes([a, b, c, d]);
            let to = usize::from(pair & 15);
            at += 1;
            match code {
                LOAD_WORD => registers[to] = [access_type, device.major, device.minor][offset / 4],
                AND_IMMEDIATE => registers[to] &= immediate,
                MOVE_IMMEDIATE => registers[to] = immediate,
                JUMP_IF_NOT if registers[to] != immediate => at += offset,
                JUMP_IF_NOT => {}
                EXIT => return registers[0],
                other => panic!("unknown instruction {other:#x}"),
            }
        }
        panic!("no exit");
    }

    proptest! {
        /// Of an arbitrary program of Slurm's: what is lent opens, and about all else it has the last word.
        #[test]
        fn exactly_what_is_lent_is_excepted(
            denied in proptest::collection::vec((0..6_u32, 0..6_u32), 0..12),
            lent in proptest::collection::vec((0..6_u32, 0..6_u32), 0..4),
            device in (0..6_u32, 0..6_u32),
            access in 1..8_u32,
            kind in 1..3_u32,
        ) {
            let numbers = |of: &[(u32, u32)]| -> Vec<Number> {
                of.iter().map(|&(major, minor)| Number { major, minor }).collect()
            };
            let number = Number { major: device.0, minor: device.1 };
            let slurms = Program::denying(&numbers(&denied));
            let before = run(&slurms.0, access << 16 | kind, number);
            prop_assert_eq!(before == 0, kind == 2 && denied.contains(&device));
            let with = Program::first(&numbers(&lent), 1, &slurms.0);
            let after = run(&with, access << 16 | kind, number);
            let excepted = kind == 2 && lent.contains(&device);
            prop_assert_eq!(after, if excepted { 1 } else { before });
        }
    }
}
