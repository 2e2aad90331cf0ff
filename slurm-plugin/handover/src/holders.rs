//! Who on this node still holds a device: by descriptor, mapping, io_uring, or a descriptor in flight.
//!
//! A device cgroup judges opening alone, so a take-back looks at every process of the node, whatever its cgroup.
//! Each scan is a pass over `/proc` and may miss a descriptor that wanders from one process to another during
//! it; the caller repeats it until it is clean twice. Nothing here opens a device or waits for a file system.
//! Where the kernel can, [`crate::pass`] looks at the processes and what follows `/proc` is left for the few that
//! need a second look.

#![allow(unsafe_code)] // kcmp(2) has no wrapper in libc, nor has the query of mappings.

use crate::bpf::Number;
use crate::pass::{Pass, Seen, What};
use crate::token::Hold;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, StatxFlags, openat, readlinkat, statx};
use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A process that holds one of the devices, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Found {
    pub pid: u32,
    pub how: Hold,
    /// What is in flight was looked at, and can't be said to be harmless. Without, it may be anything.
    pub looked_into: bool,
}

/// One pass over all processes.
struct Scan<'a> {
    numbers: &'a [Number],
    /// Inode of a Unix socket -> a descriptor is in flight in it.
    sockets: HashMap<u64, bool>,
    /// The device number of the file system of anonymous inodes.
    anonymous: Option<Number>,
    /// Files that were seen mapped and are none of the devices.
    harmless: HashSet<(u32, u32, u64)>,
    found: HashSet<Found>,
}

/// Looks for holders, as often as asked.
#[derive(Debug)]
pub struct Scanner {
    numbers: Vec<Number>,
    /// None: through `/proc`.
    pass: Option<Pass>,
    /// The last scan found something in flight.
    flights: bool,
}

impl Scanner {
    /// For holders of `numbers` (character devices). `cache`: see [`Pass::new`]; none: through `/proc` alone.
    pub fn new(numbers: &[Number], cache: Option<&Path>) -> Self {
        Self {
            numbers: numbers.to_vec(),
            pass: cache.and_then(|cache| Pass::new(numbers, anonymous_device(), cache).ok()),
            flights: false,
        }
    }

    /// Whether the kernel does the looking.
    pub fn in_kernel(&self) -> bool {
        self.pass.is_some()
    }

    /// Every process that holds one of the devices.
    ///
    /// # Errors
    /// `/proc` can't be listed. A process that ends meanwhile holds nothing and is no error.
    pub fn scan(&mut self) -> io::Result<Vec<Found>> {
        match self.pass.as_mut().map(|pass| see(pass, self.flights)) {
            Some(Ok((seen, looked_into))) => {
                self.flights = looked_into || seen.iter().any(|s| s.what == What::InFlight);
                Ok(self.judge(&seen, looked_into))
            }
            Some(Err(_)) => {
                self.pass = None;
                scan(&self.numbers)
            }
            None => scan(&self.numbers),
        }
    }

    fn judge(&self, seen: &[Seen], looked_into: bool) -> Vec<Found> {
        let mut scan = Scan::new(&self.numbers);
        for seen in seen {
            let fdinfo = format!("/proc/{}/task/{}/fdinfo", seen.pid, seen.thread);
            let how = match seen.what {
                What::Device => Some(Hold::Descriptor),
                What::Mapping => Some(Hold::Mapping),
                What::InFlight => Some(Hold::InFlight),
                What::Listening => in_flight(CWD, &fdinfo, seen.descriptor).then_some(Hold::InFlight),
                What::Ring => scan
                    .ring_holds(CWD, &fdinfo, seen.descriptor, seen.pid)
                    .then_some(Hold::IoUring),
            };
            if let Some(how) = how {
                scan.found.insert(Found {
                    pid: seen.pid,
                    how,
                    // Connections to come are never looked into, and nobody has them wait for long.
                    looked_into: how == Hold::InFlight && (looked_into || seen.what == What::Listening),
                });
            }
        }
        scan.sorted()
    }
}

/// What the kernel sees. True: sockets with something in flight were looked into, so these are such that matter. That
/// takes longer (the verifier goes through the whole walk), and most of what is in flight has arrived a moment later, so
/// it is done only if there was something the last time, too.
fn see(pass: &mut Pass, again: bool) -> io::Result<(Vec<Seen>, bool)> {
    let mut seen = pass.run()?;
    if again && seen.iter().any(|s| s.what == What::InFlight) {
        let Ok(flights) = pass.look_into_flights() else {
            return Ok((seen, false));
        };
        seen.retain(|s| s.what != What::InFlight);
        seen.extend(flights);
    }
    Ok((seen, again))
}

/// Every process that holds one of `numbers` (character devices), by a pass through `/proc`.
///
/// # Errors
/// See [`Scanner::scan`].
pub fn scan(numbers: &[Number]) -> io::Result<Vec<Found>> {
    let proc = open_dir(CWD, "/proc")?;
    let mut scan = Scan::new(numbers);
    for_each_number(&proc, |pid| scan.process(&proc, pid))?;
    Ok(scan.sorted())
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
fn anonymous_device() -> Option<Number> {
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()?;
    let stat = statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE).ok()?;
    Some(Number {
        major: stat.stx_dev_major,
        minor: stat.stx_dev_minor,
    })
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

/// The threads beside the first.
fn other_threads(process: &OwnedFd, pid: u32) -> Vec<u32> {
    // A directory of n threads has n + 2 links.
    let one = statx(process, "task", AtFlags::empty(), StatxFlags::NLINK).is_ok_and(|s| s.stx_nlink <= 3);
    let mut others = Vec::new();
    if !one && let Ok(tasks) = open_dir(process.as_fd(), "task") {
        let _ = for_each_number(&tasks, |tid| {
            if tid != pid {
                others.push(tid);
            }
        });
    }
    others
}

/// Unix sockets tell how many descriptors wait in them, a listening one those of its connections to come.
fn in_flight(process: BorrowedFd<'_>, fdinfo: &str, number: u32) -> bool {
    let text = read_text(process, &format!("{fdinfo}/{number}"));
    text.is_some_and(|text| {
        text.lines()
            .find_map(|l| l.strip_prefix("scm_fds:"))
            .is_some_and(|n| n.trim().parse::<u64>().is_ok_and(|n| n > 0))
    })
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

    fn sorted(self) -> Vec<Found> {
        let mut found: Vec<Found> = self.found.into_iter().collect();
        found.sort_unstable();
        found
    }

    fn process(&mut self, proc: &OwnedFd, pid: u32) {
        let Ok(dir) = open_dir(proc.as_fd(), &pid.to_string()) else {
            return;
        };
        let had = self.found.len();
        self.descriptors(&dir, "fd", "fdinfo", pid);
        let threads = other_threads(&dir, pid);
        for tid in threads.iter().filter(|tid| !same_files(pid, **tid)) {
            self.descriptors(
                &dir,
                &format!("task/{tid}/fd"),
                &format!("task/{tid}/fdinfo"),
                pid,
            );
        }
        if self.found.len() > had || self.mappings(&dir, pid) {
            return;
        }
        // The first thread may end before the others, and then shows no memory.
        for tid in threads {
            if open_dir(proc.as_fd(), &tid.to_string()).is_ok_and(|dir| self.mappings(&dir, pid)) {
                return;
            }
        }
    }

    fn found(&mut self, pid: u32, how: Hold) {
        self.found.insert(Found {
            pid,
            how,
            looked_into: false,
        });
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
            libc::S_IFSOCK if self.socket_in_flight(process, fdinfo, number, stat.stx_ino) => {
                self.found(pid, Hold::InFlight);
            }
            // Anonymous inodes have no type before Linux 6.16.
            0 | libc::S_IFREG
                if self
                    .anonymous
                    .is_none_or(|d| (d.major, d.minor) == (stat.stx_dev_major, stat.stx_dev_minor))
                    && is_ring(dir, &name)
                    && self.ring_holds(process.as_fd(), fdinfo, number, pid) =>
            {
                self.found(pid, Hold::IoUring);
            }
            _ => {}
        }
    }

    fn is_ours(&self, major: u32, minor: u32) -> bool {
        self.numbers.contains(&Number { major, minor })
    }

    fn socket_in_flight(&mut self, process: &OwnedFd, fdinfo: &str, number: u32, inode: u64) -> bool {
        if let Some(known) = self.sockets.get(&inode) {
            return *known;
        }
        let waiting = in_flight(process.as_fd(), fdinfo, number);
        self.sockets.insert(inode, waiting);
        waiting
    }

    /// fdinfo names a ring's registered files by path alone. A path that doesn't lead to a file that is surely
    /// something else counts, since a mount namespace can make any file look like any other.
    fn ring_holds(&self, process: BorrowedFd<'_>, fdinfo: &str, number: u32, pid: u32) -> bool {
        let Some(text) = read_text(process, &format!("{fdinfo}/{number}")) else {
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

    /// False: there is no memory to look at.
    fn mappings(&mut self, process: &OwnedFd, pid: u32) -> bool {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(maps) = openat(process, "maps", flags, Mode::empty()) else {
            return false;
        };
        let mut at = 0;
        loop {
            match next_mapping(&maps, at) {
                Ok(mapping) if self.maps_ours(process, &mapping) => {
                    self.found(pid, Hold::Mapping);
                    return true;
                }
                Ok(mapping) => at = mapping.end,
                Err(libc::ENOENT) => return true,
                Err(libc::ESRCH) => return false,
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
        !text.is_empty()
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

    /// How `pid` holds the device, through `/proc` and, where it can, by the kernel.
    fn both_ways(device: Number, pid: u32) -> Vec<Hold> {
        let dir = tempfile::tempdir().unwrap();
        let mut in_kernel = Scanner::new(&[device], Some(&dir.path().join("layout.json")));
        if !in_kernel.in_kernel() {
            eprintln!("SKIPPED the half of it: this kernel, or this user, has no iterators");
        }
        let of = |found: Vec<Found>| -> Vec<Hold> {
            found.iter().filter(|f| f.pid == pid).map(|f| f.how).collect()
        };
        let by_proc = of(scan(&[device]).unwrap());
        assert_eq!(of(in_kernel.scan().unwrap()), by_proc);
        by_proc
    }

    #[test]
    fn an_open_descriptor_is_found_and_a_closed_one_is_not() {
        // /dev/full: a device that nothing else holds.
        let full = Number { major: 1, minor: 7 };
        let me = std::process::id();
        assert_eq!(both_ways(full, me), []);
        let file = std::fs::File::open("/dev/full").unwrap();
        assert_eq!(both_ways(full, me), [Hold::Descriptor]);
        assert!(holds(me, &[NULL, full]));
        drop(file);
        assert_eq!(both_ways(full, me), []);
        assert!(!holds(me, &[full]));
        let others = scan(&[NOBODYS]).unwrap();
        assert!(others.iter().all(|f| f.how == Hold::InFlight), "{others:?}");
    }

    /// What root has in flight blocks a take-back: not beside those of `tests/root.rs`.
    fn alone() -> Option<std::fs::File> {
        let file = std::fs::File::create("/run/hop-handover-test.lock").ok()?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        Some(file)
    }

    fn send(to: &std::os::unix::net::UnixStream, files: &[BorrowedFd<'_>]) {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        sendmsg(to, &[io::IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
    }

    /// What is in flight to this process, if the kernel looks into it and if nobody does.
    fn flights(device: Number) -> (Option<bool>, bool) {
        let me = std::process::id();
        let any = |found: Vec<Found>, looked_into| {
            found
                .iter()
                .any(|f| f.pid == me && f.how == Hold::InFlight && f.looked_into == looked_into)
        };
        let dir = tempfile::tempdir().unwrap();
        let mut in_kernel = Scanner::new(&[device], Some(&dir.path().join("layout.json")));
        in_kernel.scan().unwrap();
        let seen = in_kernel.scan().unwrap();
        let seen = in_kernel.in_kernel().then(|| any(seen, true));
        if seen.is_none() {
            eprintln!("SKIPPED the half of it: this kernel, or this user, has no iterators");
        }
        (seen, any(scan(&[device]).unwrap(), false))
    }

    #[test]
    fn what_is_in_flight_is_looked_into() {
        use std::os::unix::net::UnixStream;
        let _alone = alone();
        let null = std::fs::File::open("/dev/null").unwrap();
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let harmless = [file.as_fd(), null.as_fd()];
        let says = |(kernel, proc): (Option<bool>, bool), expected: (bool, bool)| {
            assert_eq!((kernel.unwrap_or(expected.0), proc), expected);
        };
        let (left, right) = UnixStream::pair().unwrap();
        says(flights(NOBODYS), (false, false));
        send(&left, &harmless);
        says(flights(NOBODYS), (false, true));
        // Behind others, in a message of its own.
        says(flights(NULL), (true, true));
        // A socket that may carry it in turn counts, one that carries nothing doesn't.
        let (inner, inner_right) = UnixStream::pair().unwrap();
        send(&left, &[inner_right.as_fd()]);
        says(flights(NOBODYS), (false, true));
        send(&inner, &harmless);
        says(flights(NOBODYS), (true, true));
        drop((left, right, inner, inner_right));
        // More than anybody wants to look at.
        let (left, right) = UnixStream::pair().unwrap();
        for _ in 0..200 {
            send(&left, &[file.as_fd(), file.as_fd(), file.as_fd()]);
        }
        says(flights(NOBODYS), (true, true));
        drop((left, right));
        says(flights(NOBODYS), (false, false));
    }

    #[test]
    fn a_descriptor_in_flight_in_a_connection_that_nobody_accepted_counts_whatever_it_is() {
        use std::os::unix::net::{UnixListener, UnixStream};
        let _alone = alone();
        let dir = tempfile::tempdir().unwrap();
        let me = std::process::id();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let client = UnixStream::connect(dir.path().join("s")).unwrap();
        assert_eq!(both_ways(NOBODYS, me), []);
        send(&client, &[listener.as_fd()]);
        assert_eq!(both_ways(NOBODYS, me), [Hold::InFlight]);
        drop((client, listener));
        assert_eq!(both_ways(NOBODYS, me), []);
    }

    /// A private mapping of /dev/zero keeps the file, as one of a GPU does.
    const ZERO: Number = Number { major: 1, minor: 5 };

    #[test]
    fn a_mapping_is_found_without_a_descriptor() {
        let me = std::process::id();
        assert_eq!(both_ways(ZERO, me), []);
        let file = std::fs::File::open("/dev/zero").unwrap();
        let flags = rustix::mm::MapFlags::PRIVATE;
        let read = rustix::mm::ProtFlags::READ;
        // SAFETY: a new mapping at an address of the kernel's choice, not touched, unmapped below.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, read, flags, &file, 0).unwrap() };
        drop(file);
        assert_eq!(both_ways(ZERO, me), [Hold::Mapping]);
        // SAFETY: the mapping made above.
        unsafe { rustix::mm::munmap(at, 4096).unwrap() };
        assert_eq!(both_ways(ZERO, me), []);
    }

    #[test]
    fn a_mapping_is_found_after_its_processs_first_thread_has_ended() {
        use std::io::BufRead;
        const PROGRAM: &str = r#"
import ctypes, os, platform, threading, time
libc = ctypes.CDLL(None)
zero = os.open("/dev/zero", os.O_RDONLY)
libc.mmap(None, ctypes.c_size_t(4096), 1, 2, zero, ctypes.c_size_t(0))
os.close(zero)
def rest():
    time.sleep(0.2)
    print("alone", flush=True)
    time.sleep(60)
threading.Thread(target=rest).start()
libc.syscall(93 if platform.machine() == "aarch64" else 60, 0)
"#;
        let child = std::process::Command::new("/usr/bin/python3")
            .args(["-c", PROGRAM])
            .stdout(std::process::Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            eprintln!("SKIPPED: no /usr/bin/python3");
            return;
        };
        let mut line = String::new();
        let mut out = io::BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "alone\n");
        let held = both_ways(ZERO, child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(held, [Hold::Mapping]);
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
