//! Counts the open files of a lent device: zero proves that nobody holds the device any more.
//!
//! Linux makes a `struct file` for each open of a device, and frees the file after the last reference. A reference is a
//! descriptor, a duplicate, a child's descriptor, a mapping, an entry of a ring, a descriptor in flight in a socket, or
//! a pointer on the stack of a thread asleep in a system call. Three BPF programs count the files:
//!
//! - `judged`, a device program of the cgroup above all: checks each open by a kernel's thread. The program refuses
//!   devices not lent to this very kernel, and uncountable files. A file that passes counts from then on.
//! - `allocated`, on the tracepoint of the allocator: notes the file that a kernel's thread is about to open.
//! - `freed`, on the tracepoint of the allocator: the file no longer counts, and the driver's `release` has run.
//!
//! Linux never leaves `judged` out, so no open is missed. Linux may leave out a tracepoint's program: a stale note then
//! has `judged` count another file instead of the opened one. A freed file is therefore taken off the count only if it
//! reached the open of the device with the credentials of the counted open. Each such file was judged itself, so the
//! count is never less than the number of open files. The next allocation of the address makes up for a left-out
//! `freed`. Both tracepoints have their program twice, since the two are left out independently.
//!
//! Zero after [`Counter::close`] is a proof. Only registered kernels are judged or counted: other processes' opens
//! belong to no lease, and none is touched. Programs and maps are pinned in a bpf file system, one set for all nodes
//! of a host. Like the counted files, the programs outlive our processes and vanish at a boot. All also works in a
//! locked-down Linux, where programs on Linux's functions are refused. [`Sight`] says who has a counted file; the
//! search for other hiding places is left to [`crate::holders`].

use crate::bpf::{self, Instruction, Map, Number, instruction};
use crate::btf::Btf;
use crate::mounts::Group;
use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

mod seen;
#[cfg(test)]
pub(crate) mod tests;
pub use seen::{Look, Sight, Sighting};

/// Where systemd mounts the bpf file system.
pub const BPF_DIR: &str = "/sys/fs/bpf";
/// Version of the maps and their meaning: programs of another version count beside these.
const SET: &str = "gresshopper-3";
/// More open files than any program needs of one GPU; further opens are refused.
const MOST_FILES: i32 = 16_384;
/// As many have sixteen devices that are all full.
const MOST_FILES_IN_ALL: u32 = 16 * MOST_FILES.cast_unsigned();
const MOST_DEVICES: u32 = 1024;
const MOST_KERNELS: u32 = 16_384;
/// A thread and a file for each open that is under way at a time, with room for what isn't any more.
const MOST_NOTES: u32 = 131_072;

/// Why nothing can be counted on this node.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    #[error("{} is no bpf file system that root alone may write: mount one with mode=700 (systemd does)", .0.display())]
    NoFileSystem(PathBuf),
    #[error("this Linux doesn't describe its types (CONFIG_DEBUG_INFO_BTF), or lacks {0}")]
    NoTypes(&'static str),
    #[error("the root of the cgroup2 hierarchy, on which the device program belongs, is not mounted here")]
    NoCgroup2,
    #[error("the counting programs see nothing on this Linux")]
    Blind,
    #[error("{what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> CountError {
    move |source| CountError::Io { what, source }
}

/// Who may open a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
struct Lent {
    group: Group,
    /// 1 during the lease, 0 after it.
    open: u64,
}

/// Who opened a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
struct Opened {
    device: u32,
    uid: u32,
    /// The process in the upper half.
    process: u64,
    /// The address of the opener's credentials, which live as long as the file.
    credentials: u64,
}

/// An open file of a device, as it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Opener {
    pub pid: u32,
    pub uid: u32,
}

/// The pinned programs and maps.
#[derive(Debug)]
pub struct Counter {
    /// Open files by device. Only the programs change it, but for the first zero.
    counts: Map<u32, u64>,
    lent: Map<u32, Lent>,
    kernels: Map<Group, u64>,
    /// By the address of the file.
    files: Map<u64, Opened>,
    /// By thread its last allocated file, and by file its last allocating thread, of kernels' threads. Addresses of
    /// Linux's are no thread's number. A thread whose entry was evicted is refused.
    last: Map<u64, u64>,
}

/// A device's number as it stands in the kernel's own structures.
fn internal(number: Number) -> u32 {
    number.major << 20 | number.minor
}

const MAPS: [&str; 5] = ["counts", "lent", "kernels", "files", "last"];

impl Counter {
    /// The host's counter; loaded and tried out if there is none yet. `dir`: [`BPF_DIR`], but for tests.
    ///
    /// # Errors
    /// This Linux can't count; the reason is told to the operator.
    pub fn open(dir: &Path) -> Result<Self, CountError> {
        check_file_system(dir)?;
        let set = dir.join(SET);
        if let Some(counter) = Self::pinned(&set)? {
            return Ok(counter);
        }
        let lock = std::fs::File::open(dir).map_err(failed("the bpf file system can't be opened"))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|e| failed("the bpf file system can't be locked")(e.into()))?;
        match Self::pinned(&set)? {
            Some(counter) => Ok(counter),
            None => Self::load(&set),
        }
    }

    fn pinned(set: &Path) -> Result<Option<Self>, CountError> {
        let get = |name: &str| bpf::pinned(&set.join(name));
        match MAPS.map(get) {
            [Ok(counts), Ok(lent), Ok(kernels), Ok(files), Ok(last)] => Ok(Some(Self {
                counts: Map::of(counts),
                lent: Map::of(lent),
                kernels: Map::of(kernels),
                files: Map::of(files),
                last: Map::of(last),
            })),
            [Err(e), ..] if e.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => Err(failed("the pinned maps can't be used")(
                io::ErrorKind::InvalidData.into(),
            )),
        }
    }

    /// Names are given last: whoever finds the set finds it whole.
    fn load(set: &Path) -> Result<Self, CountError> {
        let layout = Layout::of_running()?;
        let made = || -> io::Result<Self> {
            Ok(Self {
                counts: Map::make(MOST_DEVICES)?,
                lent: Map::make(MOST_DEVICES)?,
                kernels: Map::make(MOST_KERNELS)?,
                files: Map::make(MOST_FILES_IN_ALL)?,
                last: Map::make_forgetful(MOST_NOTES)?,
            })
        };
        let counter = made().map_err(failed("a map can't be made"))?;
        let mounts = crate::mounts::Mounts::of_self().map_err(failed("the mounts can't be read"))?;
        // In a container it would be a part of the hierarchy: the true root alone has no events.
        let root = mounts
            .v2(Path::new("/"))
            .filter(|dir| !dir.join("cgroup.events").exists());
        let root = root.ok_or(CountError::NoCgroup2)?;
        let root = std::fs::File::open(root).map_err(failed("the root cgroup can't be opened"))?;
        let cache = learn_cache(&layout)?;
        let (free, allocation) = (
            counter.on_free(&layout, cache),
            counter.on_allocation(&layout, cache),
        );
        let attached = || -> io::Result<[OwnedFd; 5]> {
            Ok([
                bpf::trace(&free, FREED)?,
                bpf::trace(&free, FREED)?,
                bpf::trace(&allocation, ALLOCATED)?,
                bpf::trace(&allocation, ALLOCATED)?,
                bpf::judge_devices(&counter.on_access(&layout), &root)?,
            ])
        };
        let links = attached().map_err(failed("the counting programs can't be attached"))?;
        counter.try_out()?;
        counter
            .pin_all(set, &links)
            .map_err(failed("programs and maps can't be pinned"))?;
        Ok(counter)
    }

    fn pin_all(&self, set: &Path, links: &[OwnedFd; 5]) -> io::Result<()> {
        // Names with dots are Linux's own there.
        let new = set.with_file_name(format!("{SET}-new-{}", std::process::id()));
        std::fs::create_dir(&new)?;
        let maps = [
            self.counts.fd(),
            self.lent.fd(),
            self.kernels.fd(),
            self.files.fd(),
            self.last.fd(),
        ];
        let links = links.iter().map(AsFd::as_fd).zip([
            "freed",
            "freed-again",
            "allocated",
            "allocated-again",
            "judged",
        ]);
        let pinned = maps
            .into_iter()
            .zip(MAPS)
            .chain(links)
            .try_for_each(|(object, name)| bpf::pin(object, &new.join(name)))
            .and_then(|()| std::fs::rename(&new, set));
        if pinned.is_err() {
            let _ = std::fs::remove_dir_all(&new);
        }
        pinned
    }

    /// Whether the programs count and refuse on this Linux, tried with a device present on every host and rarely open.
    fn try_out(&self) -> Result<(), CountError> {
        const FULL: Number = Number { major: 1, minor: 7 };
        let open = || std::fs::File::open("/dev/full");
        let me = own_group().ok_or(CountError::Blind)?;
        let tried = || -> io::Result<bool> {
            self.prepare(FULL, me)?;
            self.lend(FULL, me)?;
            let file = open()?;
            let during = self.open_files(FULL)?;
            self.close(FULL)?;
            let refused = open().is_err();
            drop(file);
            Ok((during, self.open_files(FULL)?, refused) == (1, 0, true))
        };
        let works = tried();
        let forgotten = self
            .kernels
            .remove(&me)
            .and_then(|()| self.lent.remove(&internal(FULL)))
            .and_then(|()| self.counts.remove(&internal(FULL)));
        match works.and_then(|works| forgotten.map(|()| works)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(CountError::Blind),
            Err(e) => Err(failed("the counting programs can't be tried out")(e)),
        }
    }

    /// Registers a kernel: from now on the kernel opens no device of ours except devices lent to this kernel.
    ///
    /// # Errors
    /// Linux's.
    pub fn admit(&self, kernel: Group) -> io::Result<()> {
        self.kernels.put(&kernel, &1)
    }

    /// The kernel's cgroup is gone.
    ///
    /// # Errors
    /// Linux's.
    pub fn forget(&self, kernel: Group) -> io::Result<()> {
        self.kernels.remove(&kernel)
    }

    /// Prepares the lease of a device, refused to every kernel so far. The caller has seen that no files are open.
    ///
    /// # Errors
    /// Linux's; then nothing may be opened.
    pub fn prepare(&self, device: Number, kernel: Group) -> io::Result<()> {
        let key = internal(device);
        self.admit(kernel)?;
        self.lent.put(
            &key,
            &Lent {
                group: kernel,
                open: 0,
            },
        )?;
        self.know(device)
    }

    /// Refuses the device to every kernel without a lease on it.
    ///
    /// # Errors
    /// Linux's.
    pub fn know(&self, device: Number) -> io::Result<()> {
        let key = internal(device);
        match self.counts.get(&key)? {
            Some(_) => Ok(()),
            None => self.counts.put(&key, &0),
        }
    }

    /// Lets the kernel open the prepared device, and counts its opens. The kernel's cgroup permits the device by now:
    /// an open that is counted and then refused by somebody else would count for ever.
    ///
    /// # Errors
    /// Linux's.
    pub fn lend(&self, device: Number, kernel: Group) -> io::Result<()> {
        self.lent.put(
            &internal(device),
            &Lent {
                group: kernel,
                open: 1,
            },
        )
    }

    /// Refuses every kernel's opens of the device from now on. [`Self::open_files`] can then only fall.
    ///
    /// # Errors
    /// Linux's.
    pub fn close(&self, device: Number) -> io::Result<()> {
        let key = internal(device);
        if let Some(lent) = self.lent.get(&key)? {
            self.lent.put(&key, &Lent { open: 0, ..lent })?;
        }
        // The program counts and then looks again; here the order is the reverse. One of both sees the other.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Whether the device was ever lent since the node booted, and to whom at last.
    ///
    /// # Errors
    /// Linux's.
    pub fn last_lessee(&self, device: Number) -> io::Result<Option<Group>> {
        Ok(self.lent.get(&internal(device))?.map(|l| l.group))
    }

    /// The open files of leases of the device, wherever they are.
    ///
    /// # Errors
    /// Linux's.
    pub fn open_files(&self, device: Number) -> io::Result<u64> {
        Ok(self.counts.get(&internal(device))?.unwrap_or(0))
    }

    /// Begins a closed device's count anew, which no counted file is behind.
    ///
    /// # Errors
    /// Linux's.
    pub fn restart(&self, device: Number) -> io::Result<()> {
        self.counts.put(&internal(device), &0)
    }

    /// The counted open files, each with its opener.
    pub fn files(&self, device: Number) -> Vec<(u64, Opener)> {
        let opened = |file| Some((file, self.files.get(&file).ok().flatten()?));
        let files = self.files.keys(MOST_FILES_IN_ALL).into_iter().filter_map(opened);
        files
            .filter(|(_, opened)| opened.device == internal(device))
            .map(|(file, opened)| {
                let pid = u32::try_from(opened.process >> 32).unwrap_or(0);
                let uid = opened.uid;
                (file, Opener { pid, uid })
            })
            .collect()
    }
}

fn check_file_system(dir: &Path) -> Result<(), CountError> {
    const BPF_MAGIC: i64 = 0xcafe_4a11;
    let bpf = rustix::fs::statfs(dir).is_ok_and(|s| s.f_type == BPF_MAGIC);
    let own = rustix::fs::stat(dir).is_ok_and(|s| s.st_uid == 0 && s.st_mode & 0o022 == 0);
    if bpf && own {
        Ok(())
    } else {
        Err(CountError::NoFileSystem(dir.to_owned()))
    }
}

/// This process's cgroup, as seen by the programs.
fn own_group() -> Option<Group> {
    let mounts = crate::mounts::Mounts::of_self().ok()?;
    let membership = crate::proc::Membership::of(std::process::id()).ok()?;
    crate::mounts::group_of(&mounts, &membership)
}

/// The allocator's cache of open files. Programs see only the address, fixed until the next boot.
fn learn_cache(layout: &Layout) -> Result<u64, CountError> {
    const NAME: i32 = i32::from_ne_bytes(*b"filp");
    let io = || failed("the cache of open files can't be learnt");
    let found: Map<u32, u64> = Map::make(1).map_err(io())?;
    let mut a = Assembler::default();
    a.push(POINTER, FILE, 1, 16, 0);
    a.push(CALL, 0, 0, 0, PID_TGID);
    a.push(STORE_POINTER, STACK, 0, GROUP_AT, 0);
    a.push(WORD, 0, STACK, GROUP_AT, 0);
    a.jump(
        JUMP_UNLESS,
        0,
        0,
        rustix::thread::gettid().as_raw_nonzero().get(),
        Label::Allow,
    );
    a.push(COPY, COUNT, FILE, 0, 0);
    a.follow(COUNT, layout.cache_name);
    a.follow(COUNT, 0);
    a.push(STORE_POINTER, STACK, COUNT, GROUP_AT, 0);
    a.push(WORD, 1, STACK, GROUP_AT, 0);
    a.jump(JUMP_UNLESS, 1, 0, NAME, Label::Allow);
    a.push(BYTE, 1, STACK, GROUP_AT + 4, 0);
    a.jump(JUMP_UNLESS, 1, 0, 0, Label::Allow);
    a.push(STORE_POINTER, STACK, FILE, FILE_AT, 0);
    a.push(STORE_NUMBER, STACK, 0, DEVICE_AT, 0);
    a.place_of(3, FILE_AT);
    a.push(MOVE, 4, 0, 0, 0);
    a.on_map(UPDATE, found.fd(), DEVICE_AT);
    a.place(Label::Allow);
    a.end(0);
    let link = bpf::trace(&a.finish(), ALLOCATED).map_err(io())?;
    let opened = std::fs::File::open("/proc/self/status").map_err(io())?;
    drop((opened, link));
    found.get(&0).map_err(io())?.ok_or(CountError::Blind)
}

/// Offsets of the fields read by the programs on this Linux.
#[derive(Debug)]
struct Layout {
    /// A file's inode, and its address space with the space's host: a failed open leaves these.
    inode: i16,
    mapping: i16,
    host: i16,
    /// An inode's kind and device.
    mode: i16,
    device: i16,
    /// A file's flags and credentials, and those of a task.
    flags: i16,
    credentials: i16,
    own_credentials: i16,
    /// A file's references, and the jump that a freed file's take.
    references: (i16, u8),
    /// The name of an allocator's cache.
    cache_name: i16,
    /// A task's cgroups; of these, the unified hierarchy's, and v1's `devices` in two steps.
    cgroups: i16,
    unified: i16,
    devices: Option<[i16; 2]>,
    /// A cgroup's folder, and the folder's number.
    folder: i16,
    number: i16,
}

const ALLOCATED: &CStr = c"kmem_cache_alloc";
const FREED: &CStr = c"kmem_cache_free";

fn description() -> Result<Vec<u8>, CountError> {
    std::fs::read("/sys/kernel/btf/vmlinux").map_err(|_| CountError::NoTypes("all description"))
}

fn types(description: &[u8]) -> Result<Btf<'_>, CountError> {
    Btf::parse(description).ok_or(CountError::NoTypes("a description that is known here"))
}

impl Layout {
    fn of_running() -> Result<Self, CountError> {
        let bytes = description()?;
        let btf = types(&bytes)?;
        let field = |structure, name| btf.offset(structure, name).ok_or(CountError::NoTypes(name));
        let states = field("css_set", "subsys")?;
        let state = field("cgroup_subsys_state", "cgroup")?;
        // A Linux without v1's `devices` has no such number.
        let devices = btf.enumerator("cgroup_subsys_id", "devices_cgrp_id");
        let devices = devices.and_then(|n| i16::try_from(8 * n).ok());
        Ok(Self {
            inode: field("file", "f_inode")?,
            mapping: field("file", "f_mapping")?,
            host: field("address_space", "host")?,
            mode: field("inode", "i_mode")?,
            device: field("inode", "i_rdev")?,
            flags: field("file", "f_flags")?,
            credentials: field("file", "f_cred")?,
            own_credentials: field("task_struct", "cred")?,
            references: match btf.offset("file", "f_ref") {
                // Since Linux 6.13 the number of references beyond the first, and negative without any.
                Some(at) => (at, JUMP_IF_NEGATIVE),
                None => (field("file", "f_count")?, JUMP_UNLESS_POSITIVE),
            },
            cache_name: field("kmem_cache", "name")?,
            cgroups: field("task_struct", "cgroups")?,
            unified: field("css_set", "dfl_cgrp")?,
            devices: devices.map(|at| [states + at, state]),
            folder: field("cgroup", "kn")?,
            number: field("kernfs_node", "id")?,
        })
    }
}

// Registers: the helpers' arguments are 1 to 5, and 6 to 9 outlive a call; 10 is the end of the stack.
const FILE: u8 = 6;
const COUNT: u8 = 7;
const OTHER: u8 = 8;
const STACK: u8 = 10;

// On the stack: the device, the cgroup (hierarchy and number), the file, who opened it, a place to read into, the
// thread.
const DEVICE_AT: i16 = -8;
const GROUP_AT: i16 = -24;
const FILE_AT: i16 = -32;
const OPENED_AT: i16 = -56;
const SCRATCH_AT: i16 = -64;
const THREAD_AT: i16 = -72;

/// A character device, by an inode's kind.
const KIND: i32 = 0xf000;
const CHARACTER_FILE: i32 = 0x2000;

const WORD: u8 = 0x61;
const BYTE: u8 = 0x71;
const POINTER: u8 = 0x79;
const STORE_WORD: u8 = 0x63;
const STORE_POINTER: u8 = 0x7b;
const STORE_NUMBER: u8 = 0x7a;
/// Of 64 bits, in two instructions; or a map.
const MAP: u8 = 0x18;
const MOVE: u8 = 0xb7;
const COPY: u8 = 0xbf;
const ADD: u8 = 0x07;
const AND: u8 = 0x57;
const SHIFT_LEFT: u8 = 0x67;
const SHIFT_RIGHT: u8 = 0x77;
const OR_REGISTER: u8 = 0x4f;
const JUMP: u8 = 0x05;
const JUMP_IF: u8 = 0x15;
const JUMP_UNLESS: u8 = 0x55;
const JUMP_UNLESS_SAME: u8 = 0x5d;
const JUMP_IF_AT_LEAST: u8 = 0x35;
const JUMP_IF_NEGATIVE: u8 = 0xc5;
const JUMP_UNLESS_POSITIVE: u8 = 0xd5;
/// By their lower halves.
const JUMP_UNLESS_SAME_WORD: u8 = 0x5e;
const ATOMIC: u8 = 0xdb;
/// With a full barrier, as the two orders in [`Counter::close`] need.
const FETCH_AND_ADD: i32 = 1;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

const LOOKUP: i32 = 1; // bpf_map_lookup_elem
const UPDATE: i32 = 2; // bpf_map_update_elem
const DELETE: i32 = 3; // bpf_map_delete_elem
const PID_TGID: i32 = 14; // bpf_get_current_pid_tgid
const UID_GID: i32 = 15; // bpf_get_current_uid_gid
const TASK: i32 = 35; // bpf_get_current_task
const READ_KERNEL: i32 = 113; // bpf_probe_read_kernel

const NEW_ONLY: i32 = 1; // BPF_NOEXIST

/// Target of jumps; each is placed once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Label {
    Allow,
    Deny,
    Kernel,
    Unified,
    /// Taken off the count, if there was anything.
    Settled,
    Inode,
    /// Counted, but lent no more.
    Late,
}

/// A program in the making.
#[derive(Debug, Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    places: HashMap<Label, usize>,
}

impl Assembler {
    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.code.push(instruction(code, to, from, offset, immediate));
    }

    fn jump(&mut self, code: u8, one: u8, other: u8, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(code, one, other, 0, value);
    }

    fn place(&mut self, label: Label) {
        self.places.insert(label, self.code.len());
    }

    /// The address of a place on the stack.
    fn place_of(&mut self, register: u8, place: i16) {
        self.push(COPY, register, STACK, 0, 0);
        self.push(ADD, register, 0, 0, place.into());
    }

    /// A helper on the entry of `map` whose key lies at `key`.
    fn on_map(&mut self, helper: i32, map: BorrowedFd<'_>, key: i16) {
        const DESCRIPTOR: u8 = 1;
        self.push(MAP, 1, DESCRIPTOR, 0, map.as_raw_fd());
        self.push(0, 0, 0, 0, 0);
        self.place_of(2, key);
        self.push(CALL, 0, 0, 0, helper);
    }

    /// Reads the word at `address + offset` to `address`, through the scratch place. What can't be read is zero.
    fn follow(&mut self, address: u8, offset: i16) {
        self.push(COPY, 3, address, 0, 0);
        self.push(ADD, 3, 0, 0, offset.into());
        self.place_of(1, SCRATCH_AT);
        self.push(MOVE, 2, 0, 0, 8);
        self.push(CALL, 0, 0, 0, READ_KERNEL);
        self.push(POINTER, address, STACK, SCRATCH_AT, 0);
    }

    /// Reads the word at `address + offset` to another register.
    fn field(&mut self, to: u8, address: u8, offset: i16) {
        self.push(COPY, to, address, 0, 0);
        self.follow(to, offset);
    }

    /// Passes an allocation or release of this cache; jumps to `Allow` for others.
    fn is_of(&mut self, cache: u64) {
        let half = |n: u64| i32::from_ne_bytes(u32::try_from(n).unwrap_or(0).to_ne_bytes());
        self.push(POINTER, 2, 1, 16, 0);
        self.push(MAP, 3, 0, 0, half(cache & 0xffff_ffff));
        self.push(0, 0, 0, 0, half(cache >> 32));
        self.jump(JUMP_UNLESS_SAME, 2, 3, 0, Label::Allow);
        self.push(POINTER, 1, 1, 8, 0);
        self.push(STORE_POINTER, STACK, 1, FILE_AT, 0);
    }

    fn end(&mut self, answer: i32) {
        self.push(MOVE, 0, 0, 0, answer);
        self.push(EXIT, 0, 0, 0, 0);
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in &self.jumps {
            let to = self.places.get(label).copied().unwrap_or(*at);
            let distance = to.cast_signed() - at.cast_signed() - 1;
            self.code[*at] = self.code[*at].with_offset(i16::try_from(distance).unwrap_or(i16::MIN));
        }
        self.code
    }
}

impl Counter {
    /// Before an open of a device, by whomever: 1 lets it pass.
    fn on_access(&self, layout: &Layout) -> Vec<Instruction> {
        const CHARACTER: i32 = 2;
        /// Reading or writing; whoever only asks whether there is a device opens none.
        const OPENS: i32 = 2 | 4;
        let mut a = Assembler::default();
        a.push(WORD, 2, 1, 0, 0);
        a.push(COPY, 3, 2, 0, 0);
        a.push(AND, 3, 0, 0, 0xffff);
        a.jump(JUMP_UNLESS, 3, 0, CHARACTER, Label::Allow);
        a.push(SHIFT_RIGHT, 2, 0, 0, 16);
        a.push(AND, 2, 0, 0, OPENS);
        a.jump(JUMP_IF, 2, 0, 0, Label::Allow);
        a.push(WORD, 2, 1, 4, 0);
        a.push(SHIFT_LEFT, 2, 0, 0, 20);
        a.push(WORD, 3, 1, 8, 0);
        a.push(OR_REGISTER, 2, 3, 0, 0);
        a.push(STORE_WORD, STACK, 2, DEVICE_AT, 0);
        a.on_map(LOOKUP, self.counts.fd(), DEVICE_AT);
        a.jump(JUMP_IF, 0, 0, 0, Label::Allow);
        a.push(COPY, COUNT, 0, 0, 0);
        self.is_kernel(&mut a, layout);
        a.place(Label::Kernel);
        self.is_lent(&mut a, Label::Deny);
        self.file_of_thread(&mut a, layout);
        self.count(&mut a);
        self.is_lent(&mut a, Label::Late);
        a.place(Label::Allow);
        a.end(1);
        a.place(Label::Late);
        a.on_map(DELETE, self.files.fd(), FILE_AT);
        a.jump(JUMP_UNLESS, 0, 0, 0, Label::Deny);
        a.push(MOVE, 1, 0, 0, -1);
        a.push(ATOMIC, COUNT, 1, 0, FETCH_AND_ADD);
        a.place(Label::Deny);
        a.end(0);
        a.finish()
    }

    /// The file that the thread is about to open. Without such a file, goes to `Deny`: the open can't be counted. The
    /// note is good for one open. Only the free of the file shows whether the note was of this open. The checks here
    /// spare a good program a file that counts for ever.
    fn file_of_thread(&self, a: &mut Assembler, layout: &Layout) {
        a.push(CALL, 0, 0, 0, PID_TGID);
        a.push(STORE_POINTER, STACK, 0, THREAD_AT, 0);
        a.on_map(LOOKUP, self.last.fd(), THREAD_AT);
        a.jump(JUMP_IF, 0, 0, 0, Label::Deny);
        a.push(POINTER, FILE, 0, 0, 0);
        a.push(STORE_POINTER, STACK, FILE, FILE_AT, 0);
        a.on_map(DELETE, self.last.fd(), THREAD_AT);
        // The noted file may be gone, and another thread about to open a file at that address.
        a.on_map(LOOKUP, self.last.fd(), FILE_AT);
        a.jump(JUMP_IF, 0, 0, 0, Label::Deny);
        a.push(POINTER, 1, 0, 0, 0);
        a.push(POINTER, 2, STACK, THREAD_AT, 0);
        a.jump(JUMP_UNLESS_SAME, 1, 2, 0, Label::Deny);
        let (references, freed) = layout.references;
        a.field(OTHER, FILE, references);
        a.jump(freed, OTHER, 0, 0, Label::Deny);
        // The later open gives the file its inode.
        a.field(OTHER, FILE, layout.inode);
        a.jump(JUMP_UNLESS, OTHER, 0, 0, Label::Deny);
        // Linux refuses such an open itself, but only after this program.
        a.field(OTHER, FILE, layout.flags);
        a.push(AND, OTHER, 0, 0, libc::O_NOATIME);
        a.jump(JUMP_UNLESS, OTHER, 0, 0, Label::Deny);
        a.push(CALL, 0, 0, 0, TASK);
        a.push(COPY, OTHER, 0, 0, 0);
        a.follow(OTHER, layout.own_credentials);
        a.push(STORE_POINTER, STACK, OTHER, OPENED_AT + 16, 0);
        a.follow(FILE, layout.credentials);
        a.jump(JUMP_UNLESS_SAME, FILE, OTHER, 0, Label::Deny);
    }

    /// A file was allocated, for whatever it will be.
    fn on_allocation(&self, layout: &Layout, cache: u64) -> Vec<Instruction> {
        let mut a = Assembler::default();
        a.is_of(cache);
        self.settle(&mut a, layout);
        self.is_kernel(&mut a, layout);
        a.place(Label::Kernel);
        a.push(CALL, 0, 0, 0, PID_TGID);
        a.push(STORE_POINTER, STACK, 0, THREAD_AT, 0);
        for (key, value) in [(THREAD_AT, FILE_AT), (FILE_AT, THREAD_AT)] {
            a.place_of(3, value);
            a.push(MOVE, 4, 0, 0, 0);
            a.on_map(UPDATE, self.last.fd(), key);
        }
        a.place(Label::Allow);
        a.end(0);
        a.finish()
    }

    /// Goes to `Kernel` with the cgroup on the stack if it is a registered kernel's, else to `Allow`.
    fn is_kernel(&self, a: &mut Assembler, layout: &Layout) {
        const AT: u8 = OTHER;
        let look = |a: &mut Assembler, hierarchy: u64, path: &[i16], next: Label| {
            a.push(CALL, 0, 0, 0, TASK);
            a.push(COPY, AT, 0, 0, 0);
            a.follow(AT, layout.cgroups);
            for offset in path {
                a.follow(AT, *offset);
            }
            a.follow(AT, layout.folder);
            a.follow(AT, layout.number);
            let hierarchy = i32::try_from(hierarchy).unwrap_or(0);
            a.push(STORE_NUMBER, STACK, 0, GROUP_AT, hierarchy);
            a.push(STORE_POINTER, STACK, AT, GROUP_AT + 8, 0);
            a.on_map(LOOKUP, self.kernels.fd(), GROUP_AT);
            a.jump(JUMP_IF, 0, 0, 0, next);
            a.jump(JUMP, 0, 0, 0, Label::Kernel);
        };
        if let Some(path) = layout.devices {
            look(a, Group::DEVICES, &path, Label::Unified);
        }
        a.place(Label::Unified);
        look(a, Group::UNIFIED, &[layout.unified], Label::Allow);
    }

    /// Goes to `otherwise` unless the device is lent to the cgroup on the stack.
    fn is_lent(&self, a: &mut Assembler, otherwise: Label) {
        a.on_map(LOOKUP, self.lent.fd(), DEVICE_AT);
        a.jump(JUMP_IF, 0, 0, 0, otherwise);
        for at in [0, 8] {
            a.push(POINTER, 1, 0, at, 0);
            a.push(POINTER, 2, STACK, GROUP_AT + at, 0);
            a.jump(JUMP_UNLESS_SAME, 1, 2, 0, otherwise);
        }
        a.push(POINTER, 1, 0, 16, 0);
        a.jump(JUMP_UNLESS, 1, 0, 1, otherwise);
    }

    fn count(&self, a: &mut Assembler) {
        a.push(POINTER, 1, COUNT, 0, 0);
        a.jump(JUMP_IF_AT_LEAST, 1, 0, MOST_FILES, Label::Deny);
        a.push(WORD, 1, STACK, DEVICE_AT, 0);
        a.push(STORE_WORD, STACK, 1, OPENED_AT, 0);
        a.push(CALL, 0, 0, 0, UID_GID);
        a.push(STORE_WORD, STACK, 0, OPENED_AT + 4, 0);
        a.push(CALL, 0, 0, 0, PID_TGID);
        a.push(STORE_POINTER, STACK, 0, OPENED_AT + 8, 0);
        a.place_of(3, OPENED_AT);
        a.push(MOVE, 4, 0, 0, NEW_ONLY);
        a.on_map(UPDATE, self.files.fd(), FILE_AT);
        a.jump(JUMP_UNLESS, 0, 0, 0, Label::Deny);
        a.push(MOVE, 1, 0, 0, 1);
        a.push(ATOMIC, COUNT, 1, 0, FETCH_AND_ADD);
    }

    /// A file is freed, and its address may be another's in a moment.
    fn on_free(&self, layout: &Layout, cache: u64) -> Vec<Instruction> {
        let mut a = Assembler::default();
        a.is_of(cache);
        self.settle(&mut a, layout);
        a.place(Label::Allow);
        a.end(0);
        a.finish()
    }

    /// The last file at the address on the stack is gone. The file is taken off the count if it had reached the open of
    /// the counted device with the opener's credentials; no other process has had these meanwhile. The file's
    /// memory is as left by the last user: the allocator keeps its own words elsewhere.
    fn settle(&self, a: &mut Assembler, layout: &Layout) {
        const CREDENTIALS: u8 = 9;
        a.on_map(LOOKUP, self.files.fd(), FILE_AT);
        a.jump(JUMP_IF, 0, 0, 0, Label::Settled);
        a.push(WORD, 1, 0, 0, 0);
        a.push(STORE_WORD, STACK, 1, DEVICE_AT, 0);
        a.push(POINTER, CREDENTIALS, 0, 16, 0);
        a.on_map(DELETE, self.files.fd(), FILE_AT);
        // The program's twin was first.
        a.jump(JUMP_UNLESS, 0, 0, 0, Label::Settled);
        a.push(POINTER, FILE, STACK, FILE_AT, 0);
        a.field(OTHER, FILE, layout.credentials);
        a.jump(JUMP_UNLESS_SAME, OTHER, CREDENTIALS, 0, Label::Settled);
        a.field(OTHER, FILE, layout.flags);
        a.push(AND, OTHER, 0, 0, libc::O_PATH);
        a.jump(JUMP_UNLESS, OTHER, 0, 0, Label::Settled);
        a.field(OTHER, FILE, layout.inode);
        a.jump(JUMP_UNLESS, OTHER, 0, 0, Label::Inode);
        // The driver's open failed.
        a.field(OTHER, FILE, layout.mapping);
        a.follow(OTHER, layout.host);
        a.place(Label::Inode);
        a.field(FILE, OTHER, layout.mode);
        a.push(AND, FILE, 0, 0, KIND);
        a.jump(JUMP_UNLESS, FILE, 0, CHARACTER_FILE, Label::Settled);
        a.follow(OTHER, layout.device);
        a.push(WORD, 1, STACK, DEVICE_AT, 0);
        a.jump(JUMP_UNLESS_SAME_WORD, OTHER, 1, 0, Label::Settled);
        a.on_map(LOOKUP, self.counts.fd(), DEVICE_AT);
        a.jump(JUMP_IF, 0, 0, 0, Label::Settled);
        a.push(MOVE, 1, 0, 0, -1);
        a.push(ATOMIC, 0, 1, 0, FETCH_AND_ADD);
        a.place(Label::Settled);
    }
}
