//! The count, and what is left of it where Linux leaves a tracepoint's program out: here the programs are taken away.

use super::*;
use crate::holders::tests::{Silent, ring};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

/// A device that other programs of this cgroup leave alone: all of them would be counted.
const FUSE: Number = Number {
    major: 10,
    minor: 229,
};
/// No driver has the number.
pub(crate) const NOBODYS: Number = Number { major: 241, minor: 7 };

/// A bpf file system of the test's own: nothing of it reaches other sets of programs.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn make() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mount = ["-t", "bpf", "-o", "mode=700", "bpf"];
        let status = Command::new("mount").args(mount).arg(dir.path()).status();
        assert!(status.unwrap().success());
        Self(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// One test at a time has the devices: all tests are in one cgroup, and each would count the others' files.
pub(crate) fn alone() -> File {
    let lock = File::create("/run/hop-handover-count.lock").unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    lock
}

/// A counter of the test's own, for which the test's cgroup is a kernel.
pub(super) struct Host {
    pub(super) counter: Counter,
    mounted: Mounted,
    _alone: File,
}

impl Host {
    /// None, with the reason, where nothing can be counted.
    pub(super) fn that_counts() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root");
            return None;
        }
        let alone = alone();
        let mounted = Mounted::make();
        let counter = Counter::open(mounted.0.path())
            .inspect_err(|e| eprintln!("SKIPPED: this Linux can't count: {e}"))
            .ok()?;
        Some(Self {
            counter,
            mounted,
            _alone: alone,
        })
    }

    pub(super) fn lend(&self, device: Number) {
        let group = own_group().unwrap();
        self.counter.prepare(device, group).unwrap();
        self.counter.lend(device, group).unwrap();
    }

    fn open_files(&self, device: Number) -> u64 {
        self.counter.open_files(device).unwrap()
    }

    /// Linux leaves these programs out, a moment later: `gone` says when.
    fn leave_out(&self, programs: &[&str], gone: impl Fn() -> bool) {
        for program in programs {
            std::fs::remove_file(self.mounted.0.path().join(SET).join(program)).unwrap();
        }
        while !gone() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn leave_out_allocations(&self) {
        // A new thread has no note, and so opens nothing.
        self.leave_out(&ALLOCATED, || std::thread::spawn(open).join().unwrap().is_err());
    }
}

const ALLOCATED: [&str; 2] = ["allocated", "allocated-again"];
const FREED: [&str; 2] = ["freed", "freed-again"];

fn open() -> io::Result<File> {
    File::open("/dev/fuse")
}

/// Files that come and go at the addresses of freed ones.
fn churn() {
    let files: Vec<File> = (0..500).map(|_| File::open("/dev/null").unwrap()).collect();
    drop(files);
}

/// One CPU for the threads of a test: the next file has the address of the last one that was freed.
fn stay_here() {
    let mut one = rustix::thread::CpuSet::new();
    one.set(0);
    rustix::thread::sched_setaffinity(None, &one).unwrap();
}

#[test]
fn an_open_that_can_not_be_counted_is_refused() {
    let Some(host) = Host::that_counts() else { return };
    if open().is_err() {
        eprintln!("SKIPPED: this host has no /dev/fuse");
        return;
    }
    let most = usize::try_from(MOST_FILES).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    let room = maximum.unwrap_or(u64::MAX).min(2 * most as u64);
    let current = Some(room);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    if room < most as u64 + 100 {
        eprintln!("SKIPPED: no process may open as many files here");
        return;
    }
    host.lend(FUSE);
    // Where Linux left a program and its twin out, the open is refused.
    let open_at_last = || (0..10).find_map(|_| open().ok());
    let files: Vec<_> = (0..most).map(|_| open_at_last().unwrap()).collect();
    assert_eq!(open().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(host.open_files(FUSE), most as u64);
    drop(files);
    assert!(open_at_last().is_some(), "there is room again");
    churn();
    assert_eq!(host.open_files(FUSE), 0);
}

#[test]
fn an_open_that_fails_counts_no_longer_than_it_takes() {
    let Some(host) = Host::that_counts() else { return };
    host.lend(NOBODYS);
    let dir = tempfile::tempdir().unwrap();
    let path = nobodys(dir.path());
    let failed = File::open(&path).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::ENXIO), "{failed}");
    let refused = File::options()
        .read(true)
        .custom_flags(libc::O_NOATIME)
        .open(&path);
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(host.open_files(NOBODYS), 0);
}

/// The device's file.
fn nobodys(dir: &Path) -> PathBuf {
    let path = dir.join("device");
    let numbers = ["c", &NOBODYS.major.to_string(), &NOBODYS.minor.to_string()];
    let made = Command::new("mknod").arg(&path).args(numbers).status();
    assert!(made.unwrap().success());
    path
}

#[test]
fn one_of_two_twins_does() {
    let Some(host) = Host::that_counts() else { return };
    host.lend(FUSE);
    host.leave_out(&[ALLOCATED[0], FREED[0]], || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        true
    });
    let file = open().unwrap();
    assert_eq!(host.open_files(FUSE), 1);
    drop(file);
    assert_eq!(host.open_files(FUSE), 0);
}

#[test]
fn a_free_that_was_left_out_is_made_up_for_when_the_address_is_used_again() {
    let Some(host) = Host::that_counts() else { return };
    stay_here();
    host.lend(FUSE);
    host.leave_out(&FREED, || {
        drop(open().unwrap());
        host.open_files(FUSE) > 0
    });
    churn();
    assert_eq!(host.open_files(FUSE), 0);
}

/// The note is of an open that failed, and its file is free again.
#[test]
fn a_stale_note_of_a_freed_file_opens_nothing_uncounted() {
    let Some(host) = Host::that_counts() else { return };
    stay_here();
    host.lend(FUSE);
    let later = File::open("/dev/null").unwrap();
    assert!(File::open("/nowhere").is_err());
    // Its address comes before the noted one.
    drop(later);
    host.leave_out_allocations();
    let held = open();
    churn();
    assert_eq!(host.open_files(FUSE), u64::from(held.is_ok()));
}

/// access(2) has no file. The thread's note is of a file that is gone, and another thread of the process is about to
/// open the next file at that address, with the same credentials.
#[test]
fn a_question_counts_no_file_of_another_thread() {
    let Some(host) = Host::that_counts() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = nobodys(dir.path());
    host.lend(NOBODYS);
    stay_here();
    // Not each time it is the other thread's file that lies at the noted address.
    for _ in 0..10 {
        let Some(silent) = Silent::mount() else {
            eprintln!("SKIPPED: this host has no FUSE");
            return;
        };
        let waits = silent.dir.path().join("file");
        let (go, started) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            started.recv().unwrap();
            File::open(waits)
        });
        assert!(File::open("/nowhere").is_err());
        go.send(()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let asked = rustix::fs::access(&path, rustix::fs::Access::READ_OK);
        drop(silent);
        assert!(other.join().unwrap().is_err());
        churn();
        assert_eq!(asked, Err(rustix::io::Errno::PERM));
        assert_eq!(
            (host.open_files(NOBODYS), host.counter.files(NOBODYS)),
            (0, vec![])
        );
    }
}

/// No process has a descriptor or a mapping of it.
#[test]
fn a_file_that_a_ring_alone_has_counts() {
    let Some(host) = Host::that_counts() else { return };
    host.lend(FUSE);
    let Ok(file) = open() else {
        eprintln!("SKIPPED: this host has no /dev/fuse");
        return;
    };
    let Some(holder) = ring(Some(&file)) else {
        eprintln!("SKIPPED: this host has no io_uring");
        return;
    };
    drop(file);
    churn();
    assert_eq!(host.open_files(FUSE), 1);
    assert_eq!(host.counter.files(FUSE).len(), 1);
    drop(holder);
    // Linux puts a ring's files away a moment later.
    let gone = (0..2000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        host.open_files(FUSE) == 0
    });
    assert!(gone, "{:?}", host.counter.files(FUSE));
}

pub(crate) fn is_admitted(counter: &Counter, kernel: Group) -> bool {
    counter.kernels.get(&kernel).unwrap().is_some()
}

/// As a file whose open was refused after it was counted, by somebody else than its driver.
pub(crate) fn count_one_more(counter: &Counter, device: Number) {
    let count = counter.open_files(device).unwrap();
    counter.counts.put(&internal(device), &(count + 1)).unwrap();
}

/// The note is of a file that another thread is about to open meanwhile, with the same credentials.
#[test]
fn a_stale_note_of_another_threads_file_makes_no_held_device_free() {
    // Not each time it is the other thread's file that lies at the noted address.
    let opened = (0..10).any(|_| opened_by_a_stale_note());
    eprintln!(
        "the device {} opened by a stale note",
        if opened { "was" } else { "was not" }
    );
}

fn opened_by_a_stale_note() -> bool {
    let Some(host) = Host::that_counts() else {
        return true;
    };
    let Some(silent) = Silent::mount() else {
        eprintln!("SKIPPED: this host has no FUSE");
        return true;
    };
    stay_here();
    host.lend(FUSE);
    let path = silent.dir.path().join("file");
    let (go, started) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        started.recv().unwrap();
        File::open(path)
    });
    assert!(File::open("/nowhere").is_err());
    host.leave_out_allocations();
    go.send(()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let held = open();
    let opened = held.is_ok();
    // The other thread's open fails, and its file is freed.
    drop(silent);
    assert!(other.join().unwrap().is_err());
    churn();
    let open_files = host.open_files(FUSE);
    assert!(held.is_err() || open_files == 1, "{open_files}");
    assert_eq!(host.counter.files(FUSE), [], "the file that was counted is gone");
    drop(held);
    host.counter.close(FUSE).unwrap();
    host.counter.restart(FUSE).unwrap();
    assert_eq!(host.open_files(FUSE), 0);
    opened
}

#[test]
fn a_devices_files_are_listed_beside_any_number_of_others() {
    let Some(host) = Host::that_counts() else { return };
    let put = |device: Number, files: std::ops::Range<u64>| {
        let opened = Opened {
            device: internal(device),
            ..Opened::default()
        };
        files.for_each(|file| host.counter.files.put(&file, &opened).unwrap());
    };
    let others = u64::from(MOST_FILES.cast_unsigned());
    put(NOBODYS, 0..3 * others);
    put(FUSE, 3 * others..3 * others + 20);
    assert_eq!(host.counter.files(FUSE).len(), 20);
}
