//! Who on this node still holds a device: by descriptor, mapping, io_uring, or a descriptor in flight.
//!
//! A device cgroup judges opening alone, so a take-back looks at every process of the node, whatever its cgroup.
//! Each scan is a pass over `/proc` and may miss a descriptor that wanders from one process to another during
//! it; the caller repeats it until it is clean twice. Nothing here opens a device or waits for a file system.

#![allow(unsafe_code)] // kcmp(2) has no wrapper in libc, nor has the query of mappings.

use crate::bpf::Number;
use crate::token::Hold;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, StatxFlags, openat, readlinkat, statx};
use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A process that holds one of the devices, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Found {
    pub pid: u32,
    pub how: Hold,
}

/// One pass over all processes.
struct Scan<'a> {
    numbers: &'a [Number],
    /// Inode of a Unix socket -> a descriptor is in flight in it.
    sockets: HashMap<u64, bool>,
    /// The device number of the file system of anonymous inodes.
    anonymous: Option<(u32, u32)>,
    /// Files that were seen mapped and are none of the devices.
    harmless: HashSet<(u32, u32, u64)>,
    found: HashSet<Found>,
}

/// Every process that holds one of `numbers` (character devices).
///
/// # Errors
/// `/proc` can't be listed. A process that ends meanwhile holds nothing and is no error.
pub fn scan(numbers: &[Number]) -> io::Result<Vec<Found>> {
    let proc = open_dir(CWD, "/proc")?;
    let mut scan = Scan::new(numbers);
    for_each_number(&proc, |pid| scan.process(&proc, pid))?;
    let mut found: Vec<Found> = scan.found.into_iter().collect();
    found.sort_unstable();
    Ok(found)
}

/// Whether one process holds one of `numbers` still, for a last look before it is ended.
pub fn holds(pid: u32, numbers: &[Number]) -> bool {
    let Ok(proc) = open_dir(CWD, "/proc") else {
        return false;
    };
    let mut scan = Scan::new(numbers);
    scan.process(&proc, pid);
    !scan.found.is_empty()
}

fn open_dir(at: BorrowedFd<'_>, path: &str) -> io::Result<OwnedFd> {
    Ok(openat(
        at,
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Calls `f` with each entry that is a number.
fn for_each_number(dir: &OwnedFd, mut f: impl FnMut(u32)) -> io::Result<()> {
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        if let Some(number) = entry?.file_name().to_str().ok().and_then(|n| n.parse().ok()) {
            f(number);
        }
    }
    Ok(())
}

/// Where the kernel keeps inodes that have no name, io_uring's among them. None: unknown, look at all.
fn anonymous_device() -> Option<(u32, u32)> {
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()?;
    let stat = statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor))
}

/// All of a file of /proc, which has no size to ask for first.
fn read_text(at: BorrowedFd<'_>, path: &str) -> Option<String> {
    let fd = openat(at, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    loop {
        let full = bytes.len();
        bytes.resize(full + 4096, 0);
        let count = rustix::io::read(&fd, &mut bytes[full..]).ok()?;
        bytes.truncate(full + count);
        if count == 0 {
            return Some(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

/// Whether two tasks share their table of descriptors. Without kcmp(2) the answer is no: both are looked at. One
/// that may not be compared may not be looked at either.
fn same_files(a: u32, b: u32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: kcmp takes numbers alone.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_FILES, 0, 0) };
    answer == 0 || answer < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

impl<'a> Scan<'a> {
    fn new(numbers: &'a [Number]) -> Self {
        Self {
            numbers,
            sockets: HashMap::new(),
            anonymous: anonymous_device(),
            harmless: HashSet::new(),
            found: HashSet::new(),
        }
    }

    fn process(&mut self, proc: &OwnedFd, pid: u32) {
        let Ok(dir) = open_dir(proc.as_fd(), &pid.to_string()) else {
            return;
        };
        let had = self.found.len();
        self.descriptors(&dir, "fd", "fdinfo", pid);
        self.other_tables(&dir, pid);
        if self.found.len() == had {
            self.mappings(&dir, pid);
        }
    }

    /// Threads that unshared their table of descriptors from their process's.
    fn other_tables(&mut self, dir: &OwnedFd, pid: u32) {
        // A directory of n threads has n + 2 links.
        let Ok(stat) = statx(dir, "task", AtFlags::empty(), StatxFlags::NLINK) else {
            return;
        };
        if stat.stx_nlink <= 3 {
            return;
        }
        let Ok(tasks) = open_dir(dir.as_fd(), "task") else {
            return;
        };
        let mut others = Vec::new();
        let _ = for_each_number(&tasks, |tid| {
            if tid != pid && !same_files(pid, tid) {
                others.push(tid);
            }
        });
        for tid in others {
            self.descriptors(dir, &format!("task/{tid}/fd"), &format!("task/{tid}/fdinfo"), pid);
        }
    }

    fn found(&mut self, pid: u32, how: Hold) {
        self.found.insert(Found { pid, how });
    }

    fn descriptors(&mut self, process: &OwnedFd, fd: &str, fdinfo: &str, pid: u32) {
        let Ok(dir) = open_dir(process.as_fd(), fd) else {
            return;
        };
        let _ = for_each_number(&dir, |number| self.descriptor(process, &dir, fdinfo, number, pid));
    }

    fn descriptor(&mut self, process: &OwnedFd, dir: &OwnedFd, fdinfo: &str, number: u32, pid: u32) {
        let name = number.to_string();
        // A file on a dead NFS server must not hold up the take-back.
        let flags = AtFlags::STATX_DONT_SYNC;
        let Ok(stat) = statx(dir, &*name, flags, StatxFlags::TYPE | StatxFlags::INO) else {
            return;
        };
        match u32::from(stat.stx_mode) & libc::S_IFMT {
            libc::S_IFCHR if self.is_ours(stat.stx_rdev_major, stat.stx_rdev_minor) => {
                self.found(pid, Hold::Descriptor);
            }
            libc::S_IFSOCK if self.in_flight(process, fdinfo, number, stat.stx_ino) => {
                self.found(pid, Hold::InFlight);
            }
            // Anonymous inodes have no type before Linux 6.16.
            0 | libc::S_IFREG
                if self
                    .anonymous
                    .is_none_or(|d| d == (stat.stx_dev_major, stat.stx_dev_minor))
                    && is_ring(dir, &name)
                    && self.ring_holds(process, fdinfo, number, pid) =>
            {
                self.found(pid, Hold::IoUring);
            }
            _ => {}
        }
    }

    fn is_ours(&self, major: u32, minor: u32) -> bool {
        self.numbers.contains(&Number { major, minor })
    }

    /// Unix sockets tell how many descriptors wait in them, a listening one those of its connections to come.
    fn in_flight(&mut self, process: &OwnedFd, fdinfo: &str, number: u32, inode: u64) -> bool {
        if let Some(known) = self.sockets.get(&inode) {
            return *known;
        }
        let text = read_text(process.as_fd(), &format!("{fdinfo}/{number}"));
        let waiting = text.is_some_and(|text| {
            text.lines()
                .find_map(|l| l.strip_prefix("scm_fds:"))
                .is_some_and(|n| n.trim().parse::<u64>().is_ok_and(|n| n > 0))
        });
        self.sockets.insert(inode, waiting);
        waiting
    }

    /// fdinfo names a ring's registered files by path alone. A path that doesn't lead to a file that is surely
    /// something else counts, since a mount namespace can make any file look like any other.
    fn ring_holds(&self, process: &OwnedFd, fdinfo: &str, number: u32, pid: u32) -> bool {
        let Some(text) = read_text(process.as_fd(), &format!("{fdinfo}/{number}")) else {
            return false;
        };
        registered_files(&text).iter().any(|path| {
            !path.starts_with('/') && !is_anonymous(path) || {
                path.starts_with('/') && self.may_be_ours(pid, path)
            }
        })
    }

    fn may_be_ours(&self, pid: u32, path: &str) -> bool {
        let inside = format!("/proc/{pid}/root{path}");
        match statx(CWD, &*inside, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE) {
            Ok(stat) if u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFCHR => {
                self.is_ours(stat.stx_rdev_major, stat.stx_rdev_minor)
            }
            Ok(_) => foreign_namespace(pid),
            Err(_) => true,
        }
    }

    fn mappings(&mut self, process: &OwnedFd, pid: u32) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(maps) = openat(process, "maps", flags, Mode::empty()) else {
            return;
        };
        let mut at = 0;
        loop {
            match next_mapping(&maps, at) {
                Ok(mapping) if self.maps_ours(process, &mapping) => {
                    self.found(pid, Hold::Mapping);
                    return;
                }
                Ok(mapping) => at = mapping.end,
                Err(libc::ENOENT | libc::ESRCH) => return,
                Err(_) => break,
            }
        }
        // Before Linux 6.11 there is only the text.
        let text = read_text(process.as_fd(), "maps").unwrap_or_default();
        if text
            .lines()
            .filter_map(parse_mapping)
            .any(|m| self.maps_ours(process, &m))
        {
            self.found(pid, Hold::Mapping);
        }
    }

    fn maps_ours(&mut self, process: &OwnedFd, mapping: &Mapping) -> bool {
        if self.harmless.contains(&mapping.file) {
            return false;
        }
        let name = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
        let Ok(stat) = statx(process, &*name, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE) else {
            return false;
        };
        let character = u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFCHR;
        if character && self.is_ours(stat.stx_rdev_major, stat.stx_rdev_minor) {
            return true;
        }
        self.harmless.insert(mapping.file);
        false
    }
}

/// A mapping of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    /// File system (major, minor) and inode.
    file: (u32, u32, u64),
}

/// The kernel's `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct MapQuery {
    size: u64,
    query_flags: u64,
    query_address: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// The first mapping of a file that ends after `at`, without the text of all that is between.
fn next_mapping(maps: &OwnedFd, at: u64) -> Result<Mapping, i32> {
    const QUERY: libc::c_ulong = 0xc068_6611; // _IOWR('f', 17, struct procmap_query)
    const THIS_OR_NEXT: u64 = 0x10;
    const FILE_BACKED: u64 = 0x20;
    let mut query = MapQuery {
        size: size_of::<MapQuery>() as u64,
        query_flags: THIS_OR_NEXT | FILE_BACKED,
        query_address: at,
        ..MapQuery::default()
    };
    // SAFETY: the structure has the kernel's layout and says its size; no pointers are given in it.
    let result = unsafe { libc::ioctl(maps.as_raw_fd(), QUERY, &raw mut query) };
    if result < 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    Ok(Mapping {
        start: query.start,
        end: query.end,
        file: (query.major, query.minor, query.inode),
    })
}

fn is_ring(dir: &OwnedFd, name: &str) -> bool {
    readlinkat(dir, name, Vec::new()).is_ok_and(|target| target.as_bytes() == b"anon_inode:[io_uring]")
}

/// Sockets, pipes and anonymous inodes are written as "kind:[number]".
fn is_anonymous(path: &str) -> bool {
    ["socket:", "pipe:", "anon_inode:", "/memfd:"]
        .iter()
        .any(|kind| path.starts_with(kind))
}

fn foreign_namespace(pid: u32) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    namespace(&pid.to_string()) != namespace("self")
}

/// The names in the section `UserFiles:` of a ring's fdinfo.
fn registered_files(fdinfo: &str) -> Vec<&str> {
    fdinfo
        .lines()
        .skip_while(|l| !l.starts_with("UserFiles:"))
        .skip(1)
        .map_while(|l| l.strip_prefix(char::is_whitespace))
        .filter_map(|l| l.split_once(':'))
        .map(|(_, name)| name.trim())
        .filter(|name| !name.is_empty() && *name != "<none>")
        .collect()
}

/// A line of maps. None: memory without a file.
fn parse_mapping(line: &str) -> Option<Mapping> {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (major, minor) = fields.nth(2)?.split_once(':')?;
    let inode = fields.next()?.parse().ok().filter(|inode| *inode != 0)?;
    let file = (
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
        inode,
    );
    Some(Mapping {
        start: number(start)?,
        end: number(end)?,
        file,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NULL: Number = Number { major: 1, minor: 3 };
    const NOBODYS: Number = Number {
        major: 250,
        minor: 250,
    };

    #[test]
    fn an_open_descriptor_is_found_and_a_closed_one_is_not() {
        // /dev/full: a device that nothing else holds.
        let full = Number { major: 1, minor: 7 };
        let me = std::process::id();
        let mine = || {
            scan(&[full])
                .unwrap()
                .into_iter()
                .filter(|f| f.pid == me)
                .collect::<Vec<_>>()
        };
        assert_eq!(mine(), []);
        let file = std::fs::File::open("/dev/full").unwrap();
        assert_eq!(
            mine(),
            [Found {
                pid: me,
                how: Hold::Descriptor
            }]
        );
        assert!(holds(me, &[NULL, full]));
        drop(file);
        assert_eq!(mine(), []);
        assert!(!holds(me, &[full]));
        assert_eq!(
            scan(&[NOBODYS])
                .unwrap()
                .iter()
                .filter(|f| f.how != Hold::InFlight)
                .count(),
            0
        );
    }

    #[test]
    fn a_mapping_is_found_without_a_descriptor() {
        // A private mapping of /dev/zero keeps the file, as one of a GPU does.
        let zero = Number { major: 1, minor: 5 };
        let me = std::process::id();
        let mine = || {
            scan(&[zero]).unwrap().into_iter().any(|f| {
                f == Found {
                    pid: me,
                    how: Hold::Mapping,
                }
            })
        };
        assert!(!mine());
        let file = std::fs::File::open("/dev/zero").unwrap();
        let flags = rustix::mm::MapFlags::PRIVATE;
        // SAFETY: a new mapping at an address of the kernel's choice, not touched, unmapped below.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                rustix::mm::ProtFlags::READ,
                flags,
                &file,
                0,
            )
            .unwrap()
        };
        drop(file);
        assert!(mine());
        // SAFETY: the mapping made above.
        unsafe { rustix::mm::munmap(at, 4096).unwrap() };
        assert!(!mine());
    }

    #[test]
    fn both_ways_of_reading_the_mappings_agree() {
        let maps = std::fs::File::open("/proc/self/maps").unwrap().into();
        let first = next_mapping(&maps, 0);
        if first == Err(libc::ENOTTY) {
            eprintln!("SKIPPED: Linux before 6.11");
            return;
        }
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert_eq!(first.ok(), text.lines().find_map(parse_mapping));
    }

    #[test]
    fn maps_and_rings_are_read() {
        assert_eq!(
            parse_mapping("7f00-7f01 rw-s 00000000 00:05 91    /dev/nvidia0"),
            Some(Mapping {
                start: 0x7f00,
                end: 0x7f01,
                file: (0, 5, 91)
            })
        );
        assert_eq!(parse_mapping("7f00-7f01 rw-p 00000000 00:00 0 "), None);
        let text = "SqMask:\t0x1\nUserFiles:\t3\n    0: /dev/nvidia0\n    1: socket:[5]\nUserBufs:\t0\n";
        assert_eq!(registered_files(text), ["/dev/nvidia0", "socket:[5]"]);
        assert_eq!(registered_files("SqMask:\t0x1\n"), Vec::<&str>::new());
    }
}
