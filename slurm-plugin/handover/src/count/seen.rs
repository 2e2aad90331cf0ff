//! Processes with a counted file, by descriptor or by mapping: Linux's iterators over both, beside the map of files.
//!
//! This is exact where `/proc` is not: a lease's file is told from a daemon's own of the same device. References
//! without a descriptor or a mapping show nowhere; [`super::Counter::open_files`] counts them.

use super::{
    Assembler, CALL, COPY, CountError, Counter, FILE, FILE_AT, JUMP_IF, LOOKUP, Label, MOVE, POINTER, STACK,
    STORE_POINTER, WORD, failed,
};
use crate::bpf::{self, Instruction};
use crate::token::Hold;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

/// A process that has a counted file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sighting {
    /// As in [`Counter::files`].
    pub file: u64,
    pub pid: u32,
    pub how: Hold,
}

/// The iterators over all descriptors and all mappings of the host.
#[derive(Debug)]
pub struct Sight {
    descriptors: OwnedFd,
    mappings: OwnedFd,
}

impl Counter {
    /// # Errors
    /// This Linux lacks such iterators, or refuses their use.
    pub fn sight(&self) -> Result<Sight, CountError> {
        let bytes = super::description()?;
        let btf = super::types(&bytes)?;
        let missing = |what| move || CountError::NoTypes(what);
        let tgid = btf
            .offset("task_struct", "tgid")
            .ok_or_else(missing("task.tgid"))?;
        let vm_file = btf
            .offset("vm_area_struct", "vm_file")
            .ok_or_else(missing("vma.vm_file"))?;
        let iterator = |name, path: &[i16]| {
            let kind = btf.function(name).ok_or_else(missing(name))?;
            bpf::iterate(&self.on_item(tgid, path), kind).map_err(failed("an iterator can't be had"))
        };
        Ok(Sight {
            descriptors: iterator("bpf_iter_task_file", &[24])?,
            mappings: iterator("bpf_iter_task_vma", &[16, vm_file])?,
        })
    }

    /// Writes file and process of a counted file. `path`: from the context, whose second word is the task, to the file.
    fn on_item(&self, tgid: i16, path: &[i16]) -> Vec<Instruction> {
        const CONTEXT: u8 = 7;
        const SEQUENCE_WRITE: i32 = 127; // bpf_seq_write
        let mut a = Assembler::default();
        a.push(COPY, CONTEXT, 1, 0, 0);
        a.push(COPY, FILE, 1, 0, 0);
        for offset in path {
            a.push(POINTER, FILE, FILE, *offset, 0);
            a.jump(JUMP_IF, FILE, 0, 0, Label::Allow);
        }
        a.push(STORE_POINTER, STACK, FILE, FILE_AT, 0);
        a.on_map(LOOKUP, self.files.fd(), FILE_AT);
        a.jump(JUMP_IF, 0, 0, 0, Label::Allow);
        a.push(POINTER, 1, CONTEXT, 8, 0);
        a.jump(JUMP_IF, 1, 0, 0, Label::Allow);
        a.push(WORD, 1, 1, tgid, 0);
        a.push(STORE_POINTER, STACK, 1, FILE_AT + 8, 0);
        a.push(POINTER, 1, CONTEXT, 0, 0);
        a.push(POINTER, 1, 1, 0, 0);
        a.place_of(2, FILE_AT);
        a.push(MOVE, 3, 0, 0, 16);
        a.push(CALL, 0, 0, 0, SEQUENCE_WRITE);
        a.place(Label::Allow);
        a.end(0);
        a.finish()
    }
}

impl Sight {
    /// All present holders of counted files, of any device.
    ///
    /// # Errors
    /// Linux's.
    pub fn look(&self) -> io::Result<Vec<Sighting>> {
        let mut seen = Vec::new();
        for (link, how) in [
            (&self.descriptors, Hold::Descriptor),
            (&self.mappings, Hold::Mapping),
        ] {
            let mut bytes = Vec::new();
            bpf::run(link)?.read_to_end(&mut bytes)?;
            let (words, _) = bytes.as_chunks::<8>();
            let (items, _) = words.as_chunks::<2>();
            seen.extend(items.iter().map(|[file, pid]| Sighting {
                file: u64::from_ne_bytes(*file),
                pid: u32::try_from(u64::from_ne_bytes(*pid)).unwrap_or(0),
                how,
            }));
        }
        Ok(seen)
    }
}

#[cfg(test)]
#[allow(unsafe_code)] // mmap(2).
mod tests {
    use super::*;
    use crate::bpf::Number;
    use std::path::Path;
    use std::process::Command;

    const ZERO: Number = Number { major: 1, minor: 5 };
    /// A device that other tests and programs of this group leave alone: all of them would be counted.
    const FUSE: Number = Number {
        major: 10,
        minor: 229,
    };

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

    fn counter(dir: &Path) -> Option<Counter> {
        Counter::open(dir)
            .inspect_err(|e| eprintln!("SKIPPED: this Linux can't count: {e}"))
            .ok()
    }

    #[test]
    fn a_counted_file_is_seen_by_descriptor_and_by_mapping() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root");
            return;
        }
        let mounted = Mounted::make();
        let Some(counter) = counter(mounted.0.path()) else {
            return;
        };
        let sight = counter.sight().unwrap();
        let me = std::process::id();
        let seen = || -> Vec<(Hold, u64)> {
            let mine = sight.look().unwrap().into_iter().filter(|s| s.pid == me);
            mine.map(|s| (s.how, s.file)).collect()
        };
        let uncounted = std::fs::File::open("/dev/zero").unwrap();
        counter.lend(ZERO, super::super::own_group().unwrap()).unwrap();
        assert_eq!(seen(), [], "it was opened before the lease");
        let file = std::fs::File::open("/dev/zero").unwrap();
        let files = counter.files(ZERO);
        let [(Hold::Descriptor, address)] = seen()[..] else {
            panic!("{:?}", seen());
        };
        assert!(files.iter().any(|(f, opener)| *f == address && opener.pid == me));
        let (length, protection) = (4096, libc::PROT_READ);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: a new private mapping of a page, which nothing refers to.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_PRIVATE, fd, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        drop((file, uncounted));
        assert_eq!(seen(), [(Hold::Mapping, address)]);
        // SAFETY: the mapping is this test's, without any other reference.
        assert_eq!(unsafe { libc::munmap(page, length) }, 0);
        assert_eq!(seen(), []);
    }

    #[test]
    fn an_open_that_can_not_be_counted_is_refused() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root");
            return;
        }
        if std::fs::File::open("/dev/fuse").is_err() {
            eprintln!("SKIPPED: this host has no /dev/fuse");
            return;
        }
        let mounted = Mounted::make();
        let Some(counter) = counter(mounted.0.path()) else {
            return;
        };
        let most = usize::try_from(super::super::MOST_FILES).unwrap();
        let maximum = getrlimit(Resource::Nofile).maximum;
        let room = maximum.unwrap_or(u64::MAX).min(2 * most as u64);
        let current = Some(room);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
        if room < most as u64 + 100 {
            eprintln!("SKIPPED: no process may open as many files here");
            return;
        }
        counter.lend(FUSE, super::super::own_group().unwrap()).unwrap();
        let open = || std::fs::File::open("/dev/fuse");
        // Linux 6.18 leaves a tracepoint's program out where another task was preempted in it: the open is refused, or
        // the freed file counts on.
        let open_at_last = || (0..10).find_map(|_| open().ok());
        let files: Vec<_> = (0..most).map(|_| open_at_last().unwrap()).collect();
        assert_eq!(open().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(counter.open_files(FUSE).unwrap(), most as u64);
        drop(files);
        assert!(open_at_last().is_some(), "there is room again");
        let left = counter.open_files(FUSE).unwrap();
        assert!(left < most as u64 / 100, "{left}");
    }
}
