//! Processes on this node that seem to hold a device: by descriptor, mapping, io_uring, or a descriptor in flight.
//!
//! A look through `/proc` finds processes to end and to name. The look proves nothing: moving references are missed,
//! and references without a descriptor are invisible. [`crate::count`] has the proof. Nothing here opens a device,
//! waits for a file system, or follows a path that a user chose.

#![allow(unsafe_code)] // kcmp(2) has no wrapper in libc.

use crate::apart::apart;
use crate::bpf::Number;
use crate::token::Hold;
use hop_words::line;
use hop_words::process::open_flags;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, StatxFlags, openat, readlinkat, statx};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// A process with a certain or possible hold on one of the devices, and the kind of reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Found {
    pub pid: u32,
    pub how: Hold,
}

impl Found {
    /// Whether the device itself was seen, rather than a possible hiding place.
    pub fn is_sure(&self) -> bool {
        matches!(self.how, Hold::Descriptor | Hold::Mapping)
    }
}

/// One pass over processes.
struct Scan<'a> {
    numbers: &'a [Number],
    until: Instant,
    /// Inode of a Unix socket -> a descriptor is in flight in it.
    sockets: HashMap<u64, bool>,
    /// The device number of the file system of anonymous inodes.
    anonymous: Option<Number>,
    /// Files that were seen mapped and are none of the devices.
    harmless: HashSet<(u32, u32, u64)>,
    found: HashSet<Found>,
}

/// How long a search may take: a user may have millions of descriptors, and Slurm drains the node of a step that
/// doesn't end.
const SEARCH: Duration = Duration::from_secs(5);

/// Processes among `pids` that hold or may hold one of `numbers` (character devices). `false` means that the search
/// was not finished.
pub fn among(pids: &[u32], numbers: &[Number]) -> (Vec<Found>, bool) {
    search(pids, numbers, SEARCH)
}

fn search(pids: &[u32], numbers: &[Number], patience: Duration) -> (Vec<Found>, bool) {
    let until = Instant::now() + patience;
    let said = apart(patience, usize::MAX, |out| {
        let proc = open_dir(CWD, "/proc")?;
        let mut scan = Scan::new(numbers, until);
        // Memory last: a look at it may not end.
        let mut others = Vec::new();
        for pid in pids {
            scan.open_files(&proc, *pid);
            if !scan.tell(out)? {
                others.push(*pid);
            }
        }
        for pid in others {
            scan.memory(&proc, pid);
            scan.tell(out)?;
        }
        Ok(())
    });
    let (said, whole) = said.unwrap_or_default();
    let lines = said.split(|b| *b == b'\n');
    let mut found: Vec<Found> = lines.filter_map(|l| line::decode(l).ok()).collect();
    found.sort_unstable();
    (found, whole && Instant::now() <= until)
}

/// The first process whose memory nobody may look at: Linux's lock on it isn't to be had.
pub(crate) fn locked() -> Option<u32> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let pids = all_processes().ok()?;
    let said = apart(PATIENCE, usize::MAX, |mut out| {
        pids.iter().try_for_each(|pid| {
            out.write_all(&pid.to_ne_bytes())?;
            // Linux takes the lock first, and then finds nothing at the address.
            let _ = File::open(format!("/proc/{pid}/mem")).and_then(|memory| memory.read_at(&mut [0], 0));
            Ok(())
        })
    });
    let (said, whole) = said.ok()?;
    let (pids, _) = said.as_chunks();
    pids.last().filter(|_| !whole).map(|pid| u32::from_ne_bytes(*pid))
}

/// Every process.
///
/// # Errors
/// `/proc` can't be listed.
pub fn all_processes() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for_each_number(&open_dir(CWD, "/proc")?, |pid| pids.push(pid))?;
    Ok(pids)
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

/// Device of inodes without a name, such as io_uring's. `None` means unknown: look at all.
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

/// Whether two tasks share their table of descriptors. Without kcmp(2) the answer is no, and both are searched. A
/// task that may not be compared may not be searched either.
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

/// Whether a Unix socket has descriptors in flight. A listening socket counts the references of its pending
/// connections.
fn in_flight(process: BorrowedFd<'_>, fdinfo: &str, number: u32) -> bool {
    let text = read_text(process, &format!("{fdinfo}/{number}"));
    text.is_some_and(|text| {
        text.lines()
            .find_map(|l| l.strip_prefix("scm_fds:"))
            .is_some_and(|n| n.trim().parse::<u64>().is_ok_and(|n| n > 0))
    })
}

/// `O_PATH`: a name, for which nobody asks a driver or needs a permission.
fn is_path_only(process: BorrowedFd<'_>, fdinfo: &str, number: u32) -> bool {
    let text = read_text(process, &format!("{fdinfo}/{number}"));
    let flags = text.as_deref().and_then(open_flags);
    flags.is_some_and(|f| f & libc::O_PATH.cast_unsigned() != 0)
}

impl<'a> Scan<'a> {
    fn new(numbers: &'a [Number], until: Instant) -> Self {
        Self {
            numbers,
            until,
            sockets: HashMap::new(),
            anonymous: anonymous_device(),
            harmless: HashSet::new(),
            found: HashSet::new(),
        }
    }

    fn is_late(&self) -> bool {
        Instant::now() > self.until
    }

    /// A line for each finding since the last time; false without any.
    fn tell(&mut self, mut out: &File) -> io::Result<bool> {
        let mut any = false;
        for found in self.found.drain() {
            line::write(&mut out, &found)?;
            any = true;
        }
        Ok(any)
    }

    fn open_files(&mut self, proc: &OwnedFd, pid: u32) {
        let Ok(dir) = open_dir(proc.as_fd(), &pid.to_string()) else {
            return;
        };
        self.descriptors(&dir, "fd", "fdinfo", pid);
        let own = other_threads(&dir, pid).into_iter();
        for tid in own.filter(|tid| !same_files(pid, *tid)) {
            self.descriptors(
                &dir,
                &format!("task/{tid}/fd"),
                &format!("task/{tid}/fdinfo"),
                pid,
            );
        }
    }

    fn memory(&mut self, proc: &OwnedFd, pid: u32) {
        let Ok(dir) = open_dir(proc.as_fd(), &pid.to_string()) else {
            return;
        };
        if self.mappings(&dir, pid) {
            return;
        }
        // The first thread may end before the others, and then shows no memory.
        for tid in other_threads(&dir, pid) {
            if open_dir(proc.as_fd(), &tid.to_string()).is_ok_and(|dir| self.mappings(&dir, pid)) {
                return;
            }
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
        if self.is_late() {
            return;
        }
        let name = number.to_string();
        // A file of a file system that doesn't answer must not hold up the take-back.
        let flags = AtFlags::STATX_DONT_SYNC;
        let Ok(stat) = statx(dir, &*name, flags, StatxFlags::TYPE | StatxFlags::INO) else {
            return;
        };
        match u32::from(stat.stx_mode) & libc::S_IFMT {
            libc::S_IFCHR
                if self.is_ours(stat.stx_rdev_major, stat.stx_rdev_minor)
                    && !is_path_only(process.as_fd(), fdinfo, number) =>
            {
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
                    && ring_may_hold(process.as_fd(), fdinfo, number) =>
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

    /// `false` means that the process has no memory to look at. The text may be long: the process's owner chooses the
    /// names in it.
    fn mappings(&mut self, process: &OwnedFd, pid: u32) -> bool {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(maps) = openat(process, "maps", flags, Mode::empty()) else {
            return false;
        };
        let mut any = false;
        let lines = BufReader::new(File::from(maps)).split(b'\n');
        for line in lines.map_while(Result::ok) {
            any = true;
            if self.is_late() {
                break;
            }
            let mapping = parse_mapping(&String::from_utf8_lossy(&line));
            if mapping.is_some_and(|m| self.maps_ours(process, &m)) {
                self.found(pid, Hold::Mapping);
                break;
            }
        }
        any
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

fn is_ring(dir: &OwnedFd, name: &str) -> bool {
    readlinkat(dir, name, Vec::new()).is_ok_and(|target| target.as_bytes() == b"anon_inode:[io_uring]")
}

/// Whether a ring has registered files that may be devices. fdinfo has names alone, and none while the ring is busy.
/// A name proves nothing, since its owner chooses the mounts.
fn ring_may_hold(process: BorrowedFd<'_>, fdinfo: &str, number: u32) -> bool {
    let text = read_text(process, &format!("{fdinfo}/{number}")).unwrap_or_default();
    registered_files(&text).is_none_or(|mut names| names.any(|name| name.starts_with('/')))
}

/// The names in the section `UserFiles:` of a ring's fdinfo. None: there is no such section.
fn registered_files(fdinfo: &str) -> Option<impl Iterator<Item = &str>> {
    let mut lines = fdinfo.lines().skip_while(|l| !l.starts_with("UserFiles:"));
    lines.next()?;
    let names = lines.map_while(|l| l.strip_prefix(char::is_whitespace));
    Some(
        names
            .filter_map(|l| l.split_once(':'))
            .map(|(_, name)| name.trim()),
    )
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
pub(crate) mod tests {
    use super::*;

    const FULL: Number = Number { major: 1, minor: 7 };
    /// A private mapping of /dev/zero keeps the file, as one of a GPU does.
    const ZERO: Number = Number { major: 1, minor: 5 };

    fn holds(device: Number, pid: u32) -> Vec<Hold> {
        let (found, all) = among(&[pid], &[device]);
        assert!(all);
        found.iter().map(|f| f.how).collect()
    }

    #[test]
    fn an_open_descriptor_is_found_and_a_name_or_a_closed_one_is_not() {
        let me = std::process::id();
        assert!(all_processes().unwrap().contains(&me));
        let path = openat(CWD, "/dev/full", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let sure = |held: Vec<Hold>| held.contains(&Hold::Descriptor);
        assert!(!sure(holds(FULL, me)));
        let file = std::fs::File::open("/dev/full").unwrap();
        assert!(sure(holds(FULL, me)));
        drop((file, path));
        assert!(!sure(holds(FULL, me)));
    }

    #[test]
    fn a_descriptor_in_a_table_of_another_thread_alone_is_found() {
        const RANDOM: Number = Number { major: 1, minor: 8 };
        let (tell, told) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: the thread uses none of the descriptors that it shared.
            let own = unsafe { libc::unshare(libc::CLONE_FILES) };
            let file = File::open("/dev/random").unwrap();
            tell.send(own).unwrap();
            let _ = released.recv();
            drop(file);
        });
        assert_eq!(told.recv(), Ok(0));
        assert!(holds(RANDOM, std::process::id()).contains(&Hold::Descriptor));
        drop(release);
        thread.join().unwrap();
        assert!(!holds(RANDOM, std::process::id()).contains(&Hold::Descriptor));
    }

    fn send(to: &std::os::unix::net::UnixStream, files: &[BorrowedFd<'_>]) {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        sendmsg(to, &[io::IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn a_descriptor_in_flight_is_suspected_whatever_it_is() {
        use std::os::unix::net::{UnixListener, UnixStream};
        let dir = tempfile::tempdir().unwrap();
        let me = std::process::id();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let client = UnixStream::connect(dir.path().join("s")).unwrap();
        let proc = open_dir(CWD, "/proc/self").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&listener).cast_unsigned();
        assert!(!in_flight(proc.as_fd(), "fdinfo", number), "nothing was sent");
        send(&client, &[listener.as_fd()]);
        assert!(in_flight(proc.as_fd(), "fdinfo", number));
        assert!(holds(ZERO, me).contains(&Hold::InFlight));
    }

    const MAPS_ZERO: &str = r#"
import ctypes, os, platform, sys, threading, time
libc = ctypes.CDLL(None)
zero = os.open("/dev/zero", os.O_RDONLY)
libc.mmap(None, ctypes.c_size_t(4096), 1, 2, zero, ctypes.c_size_t(0))
os.close(zero)
def rest():
    time.sleep(0.2)
    print("ready", flush=True)
    time.sleep(60)
if sys.argv[1] == "plain":
    rest()
threading.Thread(target=rest).start()
libc.syscall(93 if platform.machine() == "aarch64" else 60, 0)
"#;

    #[test]
    fn a_mapping_is_found_also_behind_an_ended_first_thread() {
        use std::io::BufRead;
        for how in ["plain", "headless"] {
            let child = std::process::Command::new("/usr/bin/python3")
                .args(["-c", MAPS_ZERO, how])
                .stdout(std::process::Stdio::piped())
                .spawn();
            let Ok(mut child) = child else {
                eprintln!("SKIPPED: no /usr/bin/python3");
                return;
            };
            let mut line = String::new();
            let mut out = io::BufReader::new(child.stdout.take().unwrap());
            out.read_line(&mut line).unwrap();
            let held = holds(ZERO, child.id());
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!((line.as_str(), held), ("ready\n", vec![Hold::Mapping]));
        }
    }

    /// A file system of which nobody answers anything, as a user's FUSE or a dead NFS.
    pub(crate) struct Silent {
        pub(crate) dir: tempfile::TempDir,
        _server: File,
    }

    impl Silent {
        pub(crate) fn mount() -> Option<Self> {
            use std::os::fd::AsRawFd;
            let server = File::options().read(true).write(true).open("/dev/fuse").ok()?;
            let dir = tempfile::tempdir().unwrap();
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
            let mount = std::ffi::CString::new(dir.path().as_os_str().as_encoded_bytes()).unwrap();
            let options = std::ffi::CString::new(options).unwrap();
            // SAFETY: all are strings that outlive the call.
            let code = unsafe {
                libc::mount(
                    c"silent".as_ptr(),
                    mount.as_ptr(),
                    c"fuse".as_ptr(),
                    libc::MS_NOSUID | libc::MS_NODEV,
                    options.as_ptr().cast(),
                )
            };
            (code == 0).then_some(Self { dir, _server: server })
        }
    }

    impl Drop for Silent {
        fn drop(&mut self) {
            let umount = std::process::Command::new("umount")
                .arg("-l")
                .arg(self.dir.path())
                .status();
            assert!(umount.unwrap().success());
        }
    }

    #[test]
    fn a_file_system_that_never_answers_holds_up_no_look() {
        let _alone = rustix::process::geteuid()
            .is_root()
            .then(crate::count::tests::alone);
        let Some(silent) = Silent::mount() else {
            eprintln!("SKIPPED: needs root and FUSE");
            return;
        };
        let _name = openat(
            CWD,
            silent.dir.path(),
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .unwrap();
        let _full = File::open("/dev/full").unwrap();
        let me = std::process::id();
        let (say, hear) = std::sync::mpsc::channel();
        std::thread::spawn(move || say.send(holds(FULL, me)));
        let held = hear.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        assert!(
            held.contains(&Hold::Descriptor),
            "what comes after it is found too"
        );
    }

    /// The time is over at the first of them.
    #[test]
    fn a_search_that_takes_too_long_says_that_there_was_more() {
        let proc = open_dir(CWD, "/proc").unwrap();
        let _full = File::open("/dev/full").unwrap();
        let numbers = [FULL];
        let mut scan = Scan::new(&numbers, Instant::now());
        scan.open_files(&proc, std::process::id());
        assert!(scan.is_late() && scan.found.is_empty());
        let (_, whole) = search(&[std::process::id()], &numbers, Duration::ZERO);
        assert!(!whole);
    }

    /// An io_uring, with the file registered if there is one. `None` means that this host has no io_uring.
    pub(crate) fn ring(registered: Option<&File>) -> Option<OwnedFd> {
        use std::os::fd::{AsRawFd, FromRawFd};
        const REGISTER_FILES: libc::c_int = 2;
        /// Bytes of `struct io_uring_params`.
        const PARAMETERS: usize = 120;
        let mut parameters = [0_u64; PARAMETERS / 8];
        // SAFETY: Linux writes to the parameters alone, which outlive the call.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
        let ring = i32::try_from(ring).ok().filter(|ring| *ring >= 0)?;
        // SAFETY: the descriptor is new, and nobody else's.
        let ring = unsafe { OwnedFd::from_raw_fd(ring) };
        if let Some(file) = registered {
            let files = [file.as_raw_fd()];
            let (number, fd) = (libc::SYS_io_uring_register, ring.as_raw_fd());
            // SAFETY: Linux reads one descriptor, which outlives the call.
            let code = unsafe { libc::syscall(number, fd, REGISTER_FILES, files.as_ptr(), 1) };
            assert_eq!(code, 0);
        }
        Some(ring)
    }

    #[test]
    fn a_ring_with_a_registered_device_is_suspected() {
        let me = std::process::id();
        let suspected = || holds(FULL, me).contains(&Hold::IoUring);
        let Some(empty) = ring(None) else {
            eprintln!("SKIPPED: this host has no io_uring");
            return;
        };
        assert!(!suspected(), "nothing is registered");
        let full = File::open("/dev/full").unwrap();
        let holder = ring(Some(&full));
        drop(full);
        assert!(suspected());
        drop((empty, holder));
        assert!(!suspected());
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
        assert!(registered_files(text).unwrap().eq(["/dev/nvidia0", "socket:[5]"]));
        assert!(registered_files("SqMask:\t0x1\n").is_none());
    }
}
